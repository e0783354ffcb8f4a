//! `ostler run`: one prompt, one answer.

use std::sync::Arc;

use engine::{Finish, Layer, Piece, Prompt, Request};
use serde_json::json;

use super::Exit;
use super::answer::{Answer, Source, receive};
use super::args::RunArgs;
use super::figures::Figures;
use super::interrupt::Interrupts;
use super::output::{Out, note};
use super::{loading, pieces, prompt_input, sampling};
use crate::chat::{ChatModel, Conversation, Message, ReplyOptions, SystemPart};
use crate::env::Env;
use crate::error::Result;

pub fn run(env: &Env, args: &RunArgs, out: &mut Out) -> Result<Exit> {
    let text = prompt_input::prompt_text(env, &args.prompt, &mut std::io::stdin().lock())?;
    let loaded = loading::load(env, &loading::options(&args.model)?, args.verbose)?;
    let model = &loaded.model;
    let sampling = sampling::params(&args.sampling);
    let seed = sampling.seed;
    let interrupts = Interrupts::listen()?;
    let source = if args.raw {
        let mut request = Request::new(raw_prompt(model, &text)?);
        request.sampling = sampling;
        request.max_tokens = args.sampling.max_tokens;
        Source::Raw(model.engine.generate(request)?, model.format.tokenizer())
    } else {
        let options = ReplyOptions {
            sampling,
            max_tokens: args.sampling.max_tokens,
            ..ReplyOptions::default()
        };
        let conversation = conversation(args.system.as_deref(), vec![Message::user(text)]);
        Source::Chat(Box::new(model.reply(conversation, options)?))
    };
    let answer = receive(source, &interrupts, &mut |part| match args.json {
        true => Ok(()),
        false => out.model_text(part),
    })?;
    let figures = Figures {
        model: &model.name,
        report: &answer.report,
        context_tokens: model.engine.context().tokens,
    };
    if args.json {
        let mut object = figures.json();
        object["model"] = json!(model.name);
        object["text"] = json!(answer.text);
        if !answer.thinking.is_empty() {
            object["thinking"] = json!(answer.thinking);
        }
        object["finish_reason"] = json!(answer.finish.name());
        object["seed"] = json!(seed);
        object["pieces"] = json!(answer.report.pieces);
        object["between"] = json!(answer.report.between);
        if let Some(plan) = &answer.plan {
            object["plan"] = json!({
                "tokens": plan.tokens,
                "reused": plan.reused,
                "computed": plan.computed,
                "estimate_ms": plan.estimate_ms,
            });
        }
        out.line(&serde_json::to_string_pretty(&object).expect("plain JSON"))?;
    } else if !answer.text.ends_with('\n') {
        out.line("")?;
    }
    close(&figures, &answer, args.verbose, Some(seed));
    Ok(if answer.interrupted {
        Exit::Interrupted
    } else {
        Exit::Done
    })
}

/// Under an answer: what was left out, the pieces if they are wanted, the line of figures.
pub fn close(figures: &Figures<'_>, answer: &Answer, verbose: bool, seed: Option<u64>) {
    if let (Finish::Length, false) = (&answer.finish, answer.interrupted) {
        note("(cut off: --max-tokens or the end of the context was reached)");
    }
    if verbose && !answer.thinking.is_empty() {
        note(&format!("thought: {}", answer.thinking.trim()));
    }
    if verbose {
        if let Some(plan) = &answer.plan {
            note(&pieces::forecast(plan));
        }
        note(&pieces::table(&answer.report.pieces));
        for line in pieces::between(&answer.report) {
            note(&line);
        }
        if let Some(seed) = seed {
            note(&format!("seed {seed}"));
        }
    }
    note(&figures.line());
}

/// A conversation without tools, as `run` and `chat` have it.
pub fn conversation(system: Option<&str>, messages: Vec<Message>) -> Conversation {
    let part = |text: &str| SystemPart {
        name: "system".to_owned(),
        layer: Layer::Instructions,
        text: text.to_owned(),
    };
    Conversation {
        system: system.map(part).into_iter().collect(),
        tools: Vec::new(),
        messages,
        clock: crate::clock::freeze(),
        extra: serde_json::Map::new(),
        salt: engine::Salt::default(),
    }
}

/// The prompt as it is: no template. Control tokens that are written out in it count as such, and the
/// tokenizer's own rule decides on a beginning-of-text token.
fn raw_prompt(model: &Arc<ChatModel>, text: &str) -> Result<Prompt> {
    let ids = model.format.tokenizer().encode_raw_prompt(text);
    Ok(Prompt::new(vec![Piece::new(
        "prompt",
        Layer::Turn,
        ids,
        text.as_bytes(),
    )])?)
}
