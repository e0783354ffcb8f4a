//! `ostler show`: a model at a glance, also one of a family that cannot be run.

use models::config::Config;
use models::gguf::{Gguf, Summary};
use serde_json::json;

use super::Exit;
use super::args::ShowArgs;
use super::models::open_store;
use super::output::Out;
use crate::env::Env;
use crate::error::Result;
use crate::store::{Found, bytes, file_sha256};
use crate::tools::clean::for_terminal;

pub fn run(env: &Env, args: &ShowArgs, out: &mut Out) -> Result<Exit> {
    let mut found = open_store(env)?.find(&args.model)?;
    let gguf = Gguf::open(&found.path)?;
    let summary = gguf.summary()?;
    let config = Config::from_gguf(&gguf);
    if found.sha256.is_none() && summary.parts == 1 {
        found.sha256 = Some(file_sha256(&found.path)?);
    }
    let template = gguf.metadata().contains("tokenizer.chat_template");
    let mut warnings = gguf.warnings().to_vec();
    match &config {
        Ok(config) => warnings.extend(config.warnings.iter().cloned()),
        Err(error) => warnings.push(format!("cannot be run: {error}")),
    }
    if args.json {
        let shown = json!({
            "name": found.name,
            "title": summary.name,
            "architecture": summary.architecture,
            "parameters": summary.parameters,
            "quantisation": summary.quantisation,
            "context_train": summary.context_train,
            "vocab": summary.vocab,
            "size_bytes": summary.file_bytes,
            "parts": summary.parts,
            "chat_template": template,
            "runs": config.is_ok(),
            "path": found.path,
            "sha256": found.sha256,
            "warnings": warnings,
        });
        out.line(&serde_json::to_string_pretty(&shown).expect("plain JSON"))?;
    } else {
        for (label, value) in rows(&found, &summary, config.as_ref().ok(), template) {
            out.line(&format!("{label:14}{}", for_terminal(&value)))?;
        }
        for warning in warnings {
            out.line(&format!("{:14}{}", "note", for_terminal(&warning)))?;
        }
    }
    Ok(Exit::Done)
}

fn rows(
    found: &Found,
    summary: &Summary,
    config: Option<&Config>,
    template: bool,
) -> Vec<(&'static str, String)> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "not told by the file".to_owned());
    let mut rows = vec![
        ("name", found.name.clone()),
        ("title", summary.name.clone()),
        ("architecture", known(summary.architecture.clone())),
        ("parameters", parameters(summary.parameters)),
        ("quantisation", types(summary)),
        (
            "context",
            known(
                summary
                    .context_train
                    .map(|tokens| format!("{tokens} tokens")),
            ),
        ),
        (
            "vocabulary",
            known(summary.vocab.map(|tokens| format!("{tokens} tokens"))),
        ),
    ];
    if let Some(c) = config {
        let shape = format!(
            "{} layers, {} values wide, {} query and {} key-value heads of {}",
            c.layers, c.d_model, c.q_heads, c.kv_heads, c.head_dim
        );
        rows.push(("shape", shape));
    }
    let parts = if summary.parts > 1 {
        format!(", {} files", summary.parts)
    } else {
        String::new()
    };
    rows.push(("size", format!("{}{parts}", bytes(summary.file_bytes))));
    rows.push((
        "chat template",
        if template {
            "yes"
        } else {
            "no; a ChatML prompt is used"
        }
        .to_owned(),
    ));
    rows.push(("path", found.path.display().to_string()));
    rows.push((
        "sha256",
        found
            .sha256
            .clone()
            .unwrap_or_else(|| "one a file, see the hub".to_owned()),
    ));
    rows
}

/// `Q4_K_M (Q4_K 60%, Q6_K 38%)`.
fn types(summary: &Summary) -> String {
    let total: u64 = summary.types.iter().map(|share| share.bytes).sum();
    let share = |bytes: u64| (bytes * 100).checked_div(total).unwrap_or(0);
    let shares: Vec<String> = summary
        .types
        .iter()
        .filter(|ty| share(ty.bytes) > 0)
        .map(|ty| format!("{} {}%", ty.ty, share(ty.bytes)))
        .collect();
    format!("{} ({})", summary.quantisation, shares.join(", "))
}

fn parameters(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.0} million", count as f64 / 1e6),
        _ => format!("{:.2} billion", count as f64 / 1e9),
    }
}
