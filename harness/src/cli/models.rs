//! `pull`, `list`, `rm`: what lies in the store.

use std::sync::Arc;

use serde_json::json;

use super::Exit;
use super::args::{ListArgs, PullArgs, RmArgs};
use super::output::{Out, note};
use crate::env::Env;
use crate::error::Result;
use crate::store::{Found, Origin, StderrProgress, Store, bytes, quantisation_of};

pub fn open_store(env: &Env) -> Result<Store> {
    Ok(Store::open(
        env,
        Arc::new(StderrProgress::new(env.terminals.stderr)),
    )?)
}

pub fn pull(env: &Env, args: &PullArgs, out: &mut Out) -> Result<Exit> {
    let found = open_store(env)?.pull(&args.model)?;
    note(&match (found.origin, found.was_there) {
        (Origin::Local, _) => "your own file, used where it lies".to_owned(),
        (_, true) => format!(
            "{} is here already ({})",
            found.name,
            bytes(found.size_bytes)
        ),
        (_, false) => format!(
            "fetched {} ({}, verified)",
            found.name,
            bytes(found.size_bytes)
        ),
    });
    out.line(&found.path.display().to_string())?;
    Ok(Exit::Done)
}

pub fn list(env: &Env, args: &ListArgs, out: &mut Out) -> Result<Exit> {
    let store = open_store(env)?;
    let here = store.list();
    if args.json {
        let mut rows: Vec<_> = here.iter().map(row_json).collect();
        if args.all {
            let missing = missing(&store, &here);
            rows.extend(
                missing
                    .map(|entry| json!({ "name": entry.name, "about": entry.about, "path": null })),
            );
        }
        out.line(&serde_json::to_string_pretty(&rows).expect("plain JSON"))?;
        return Ok(Exit::Done);
    }
    let mut rows = vec![["NAME", "SIZE", "QUANTISATION", "PATH"].map(str::to_owned)];
    rows.extend(here.iter().map(|found| {
        let quantisation = quantisation_of(&file_name(found)).unwrap_or_else(|| "-".to_owned());
        [
            found.name.clone(),
            bytes(found.size_bytes),
            quantisation,
            found.path.display().to_string(),
        ]
    }));
    if here.is_empty() {
        note(&format!(
            "no models in {} yet; `ostler pull` fetches the default one",
            store.folder().display()
        ));
    } else {
        for line in columns(&rows) {
            out.line(&line)?;
        }
    }
    if args.all {
        let rows: Vec<_> = missing(&store, &here)
            .map(|entry| [entry.name.clone(), entry.about.clone()])
            .collect();
        out.line(if here.is_empty() {
            "NOT FETCHED"
        } else {
            "\nNOT FETCHED"
        })?;
        for line in columns(&rows) {
            out.line(&line)?;
        }
    }
    Ok(Exit::Done)
}

pub fn rm(env: &Env, args: &RmArgs, out: &mut Out) -> Result<Exit> {
    let store = open_store(env)?;
    for model in &args.models {
        let removed = store.remove(model)?;
        for path in &removed.left {
            note(&format!(
                "{} was in the hub's cache before ostler came, so it stays",
                path.display()
            ));
        }
        out.line(&format!(
            "removed {} ({})",
            removed.name,
            bytes(removed.bytes)
        ))?;
    }
    Ok(Exit::Done)
}

fn missing<'s>(
    store: &'s Store,
    here: &'s [Found],
) -> impl Iterator<Item = &'s crate::store::Entry> {
    store
        .catalogue()
        .models
        .iter()
        .filter(|entry| here.iter().all(|found| found.name != entry.name))
}

fn row_json(found: &Found) -> serde_json::Value {
    json!({
        "name": found.name,
        "path": found.path,
        "size_bytes": found.size_bytes,
        "quantisation": quantisation_of(&file_name(found)),
        "sha256": found.sha256,
        "source": match found.origin { Origin::Hub => "hub", Origin::Package => "package", Origin::Local => "local" },
    })
}

fn file_name(found: &Found) -> String {
    found
        .path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Rows as lines, each column as wide as its widest cell.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
