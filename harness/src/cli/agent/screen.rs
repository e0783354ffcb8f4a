//! What a person, or a program, sees of an agent's run.

use std::path::Path;

use serde_json::{Value, json};

use super::super::output::{Out, note};
use super::super::pieces;
use crate::agent::driver::Watch;
use crate::agent::machine::Outcome;
use crate::agent::runtime::{Reply, Runtime, Streamed};
use crate::agent::transcript::{Call, ToolOutput};
use crate::error::{Error, Result};
use crate::tools::clean::for_terminal;

/// What shows a run and says at its end whether it could.
pub trait Shows: Watch {
    fn close(&mut self) -> Result<()>;
}

/// Shows a run to a person: the model's words on stdout, everything else on stderr.
pub struct Screen<'a> {
    verbose: bool,
    out: &'a mut Out,
    /// The first failure to write; it is told at the end, the run goes on.
    broken: Option<Error>,
    at_line_start: bool,
}

impl Shows for Screen<'_> {
    fn close(&mut self) -> Result<()> {
        if !self.at_line_start {
            self.out.line("")?;
        }
        self.broken.take().map_or(Ok(()), Err)
    }
}

impl<'a> Screen<'a> {
    pub fn new(verbose: bool, out: &'a mut Out) -> Screen<'a> {
        Screen {
            verbose,
            out,
            broken: None,
            at_line_start: true,
        }
    }

    fn end_line(&mut self) {
        if !self.at_line_start {
            self.say("\n");
        }
    }

    fn say(&mut self, text: &str) {
        if let Err(error) = self.out.model_text(text) {
            self.broken.get_or_insert(error);
        }
        self.at_line_start = text.ends_with('\n');
    }
}

impl Watch for Screen<'_> {
    fn streamed(&mut self, what: &Streamed) {
        match what {
            Streamed::Text(text) => self.say(text),
            Streamed::Plan(_) | Streamed::Thinking(_) => {}
        }
    }

    fn call_begins(&mut self, call: &Call) {
        self.end_line();
        note(&format!(
            "→ {} {}",
            call.name,
            shortened(&call.arguments, 160)
        ));
    }

    fn call_ended(&mut self, _call: &Call, output: &ToolOutput) {
        let lines = output.text.lines().count();
        let first = output.text.lines().next().unwrap_or_default();
        let more = if lines > 1 {
            format!(" … {lines} lines")
        } else {
            String::new()
        };
        let sign = if output.ok { "←" } else { "✗" };
        note(&format!("{sign} {}{more}", shortened(first, 160)));
    }

    fn step_ended(&mut self, reply: &Reply) {
        let Some(report) = &reply.report else { return };
        if !self.verbose {
            return;
        }
        self.end_line();
        note(&pieces::table(&report.pieces));
        for line in pieces::between(report) {
            note(&line);
        }
    }

    fn answered(&mut self, text: &str) {
        self.end_line();
        self.say(text);
    }

    fn told(&mut self, text: &str) {
        self.end_line();
        note(&format!("· {text}"));
    }

    fn run_ended(&mut self, _: &Outcome) {
        self.end_line();
    }
}

/// Shows a run to a program: one JSON object a line. Fields are added, never renamed or removed.
pub struct Events<'a> {
    out: &'a mut Out,
    broken: Option<Error>,
}

impl<'a> Events<'a> {
    pub fn new(
        out: &'a mut Out,
        session: &str,
        folder: &Path,
        runtime: &dyn Runtime,
    ) -> Events<'a> {
        let mut events = Events { out, broken: None };
        events.say(
            "session",
            json!({
                "session": session,
                "folder": folder,
                "model": runtime.model(),
                "context_tokens": runtime.window(),
            }),
        );
        events
    }

    fn say(&mut self, event: &str, about: Value) {
        let mut whole = json!({ "event": event });
        if let (Value::Object(whole), Value::Object(about)) = (&mut whole, about) {
            whole.extend(about);
        }
        if let Err(error) = self.out.line(&whole.to_string()) {
            self.broken.get_or_insert(error);
        }
    }
}

impl Shows for Events<'_> {
    fn close(&mut self) -> Result<()> {
        self.broken.take().map_or(Ok(()), Err)
    }
}

impl Watch for Events<'_> {
    fn streamed(&mut self, what: &Streamed) {
        match what {
            Streamed::Text(text) => self.say("text", json!({ "text": text })),
            Streamed::Thinking(text) => self.say("thinking", json!({ "text": text })),
            Streamed::Plan(plan) => self.say(
                "plan",
                json!({
                    "prompt_tokens": plan.tokens,
                    "cached_tokens": plan.reused,
                    "computed_tokens": plan.computed,
                    "estimate_ms": plan.estimate_ms,
                }),
            ),
        }
    }

    fn call_begins(&mut self, call: &Call) {
        let arguments: Value = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|_| call.arguments.as_str().into());
        self.say(
            "call",
            json!({ "id": call.id, "name": call.name, "arguments": arguments }),
        );
    }

    fn call_ended(&mut self, call: &Call, output: &ToolOutput) {
        self.say(
            "result",
            json!({
                "id": call.id,
                "name": call.name,
                "ok": output.ok,
                "text": output.text,
                "artifact": output.artifact,
            }),
        );
    }

    fn step_ended(&mut self, reply: &Reply) {
        let Some(report) = &reply.report else { return };
        self.say(
            "step",
            json!({
                "prompt_tokens": report.tokens,
                "cached_tokens": report.reused,
                "computed_tokens": report.computed,
                "generated_tokens": report.generated,
                "ttft_ms": report.ttft_ms,
            }),
        );
    }

    fn told(&mut self, text: &str) {
        self.say("note", json!({ "text": text }));
    }

    fn answered(&mut self, text: &str) {
        self.say("answer", json!({ "text": text }));
    }

    fn run_ended(&mut self, outcome: &Outcome) {
        let (outcome, text) = match outcome {
            Outcome::Answered { text, cut: false } => ("answered", Some(text)),
            Outcome::Answered { text, cut: true } => ("cut", Some(text)),
            Outcome::Interrupted => ("interrupted", None),
            Outcome::Stopped { why } => ("stopped", Some(why)),
            Outcome::Failed { error, .. } => ("failed", Some(error)),
        };
        self.say("end", json!({ "outcome": outcome, "text": text }));
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    let mut shown: String = for_terminal(text).chars().take(chars_max).collect();
    if text.chars().count() > chars_max {
        shown.push('…');
    }
    shown
}
