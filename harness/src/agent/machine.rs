//! The loop of one run, free of I/O: an event goes in, the next phase and the effects to carry out
//! come out. Nothing here reads a clock, a file or a model, so a test can play every path.
//!
//! ```text
//!            Answered(calls)             last result
//!   Model ────────────────────▶ Tools ─────────────────▶ Model
//!     │ ▲                         │                        ▲
//!     │ └──── Compacted ──── Compact ◀── no room / over ───┘
//!     └── Answered(no calls), a guard, an interrupt ──▶ Done
//! ```

use std::collections::VecDeque;

use super::finish_tool;
use super::guards::{Guards, Limits, Repeat};
use super::transcript::{Call, Entry, ToolOutput};
use crate::error::Blame;

/// Where a run stands. Every state owns what it needs and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// The model has been asked.
    Model,
    /// `running` was handed to the tools; `waiting` follow in order.
    Tools {
        running: Call,
        waiting: VecDeque<Call>,
    },
    /// A summary has been asked for; `then` is what the run goes on with.
    Compact {
        reason: CompactReason,
        then: AfterCompact,
    },
    /// Nothing more will happen.
    Done(Outcome),
}

/// Why the context must shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactReason {
    /// The next call and the summary that may follow it would not both fit.
    OverThreshold { tokens: usize, threshold: usize },
    /// Not even the marker of a cut result fits beside what is there.
    NoRoomForResult { tokens: usize, threshold: usize },
    /// The person asked for it.
    Asked,
}

/// What a run goes on with once its context has shrunk.
#[derive(Clone, Debug, PartialEq)]
pub enum AfterCompact {
    /// Ask the model again.
    Ask,
    /// Put this call and its whole output back behind the summary, fitted to the new room.
    Refit {
        call: Call,
        output: ToolOutput,
        waiting: VecDeque<Call>,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The model answered without asking for a tool.
    Answered { text: String, cut: bool },
    /// The person stopped it; what there was is kept.
    Interrupted,
    /// A guard stopped it, and says which and why.
    Stopped { why: String },
    /// The runtime failed more often than is worth retrying.
    Failed { error: String, blame: Blame },
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The person gives the run its goal, or a follow-up. `tokens` is the context's length with it.
    Asked { text: String, tokens: usize },
    /// The person says something while the run goes on, of so many tokens. It is kept until the model is asked
    /// next: a message may not stand between a call and its result.
    Steered { text: String, tokens: usize },
    /// The model finished its turn. `tokens` is the context's length now, this turn included.
    Answered { answer: Answer, tokens: usize },
    /// The runtime could not answer.
    ModelFailed {
        error: String,
        blame: Blame,
        worth_retrying: bool,
    },
    /// A tool finished and its output fits.
    ToolFinished { output: ToolOutput, tokens: usize },
    /// A tool finished; its output cannot be cut small enough for the room that is left.
    NoRoom { output: ToolOutput, tokens: usize },
    /// The context shrank.
    Compacted { before: usize, after: usize },
    /// It did not; law 11: the reason, never an empty summary.
    CompactFailed { why: String },
    /// Ctrl-C.
    Interrupt { partial: Option<Answer> },
}

/// One model turn, as the parser saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub text: String,
    pub thinking: String,
    pub calls: Vec<Call>,
    /// A call that could not be read: its raw text, and why.
    pub broken: Option<(String, String)>,
    /// The ids as sampled; they are sent again, never tokenised again.
    pub sampled: Vec<u32>,
    /// The reply limit cut it.
    pub cut: bool,
}

/// What the driver must do, in order. Entries are on disk before anything acts on them.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Append(Entry),
    /// `may_call` false: of all tools only `finish` may be called.
    AskModel {
        may_call: bool,
    },
    RunTool(Call),
    Summarise(CompactReason),
    /// Fit this output to the room there is now and send it back as a `ToolFinished` or `NoRoom`.
    Refit {
        call: Call,
        output: ToolOutput,
    },
    /// Say this to the person; the model does not see it.
    Tell(String),
    /// The answer to the person, from a call of the `finish` tool.
    Deliver(String),
}

/// The machine: a phase, the guards that watch it, and what the person has said meanwhile.
#[derive(Clone, Debug)]
pub struct Machine {
    pub phase: Phase,
    pub guards: Guards,
    /// Text and tokens.
    heard: Vec<(String, usize)>,
}

impl Machine {
    /// A machine at rest; its first event is [`Event::Asked`].
    pub fn new(limits: Limits) -> Self {
        let idle = Outcome::Answered {
            text: String::new(),
            cut: false,
        };
        Machine {
            phase: Phase::Done(idle),
            guards: Guards::new(limits),
            heard: Vec::new(),
        }
    }

    /// Takes the event, gives the machine that follows and what is to be done.
    pub fn advance(mut self, event: Event) -> (Machine, Vec<Effect>) {
        if let Event::Steered { text, tokens } = event {
            self.heard.push((text, tokens));
            return (self, Vec::new());
        }
        let Machine {
            phase,
            mut guards,
            mut heard,
        } = self;
        let tokens = event.tokens();
        let (phase, effects) = match phase {
            Phase::Model => in_model(&mut guards, event),
            Phase::Tools { running, waiting } => in_tools(&mut guards, running, waiting, event),
            Phase::Compact { reason, then } => in_compact(&mut guards, reason, then, event),
            Phase::Done(outcome) => in_done(&mut guards, outcome, event),
        };
        let (phase, effects) = listen(&mut guards, &mut heard, phase, effects, tokens);
        let next = Machine {
            phase,
            guards,
            heard,
        };
        (next, effects)
    }
}

impl Event {
    /// The context's length, where the event tells.
    fn tokens(&self) -> Option<usize> {
        match self {
            Event::Asked { tokens, .. }
            | Event::Answered { tokens, .. }
            | Event::ToolFinished { tokens, .. }
            | Event::NoRoom { tokens, .. }
            | Event::Compacted { after: tokens, .. } => Some(*tokens),
            Event::Steered { .. }
            | Event::ModelFailed { .. }
            | Event::CompactFailed { .. }
            | Event::Interrupt { .. } => None,
        }
    }
}

/// Puts what the person has said meanwhile where a message may stand: before the model is asked, and behind an
/// answer, which then is not the end. Where a run ends otherwise it is recorded for whoever goes on.
fn listen(
    guards: &mut Guards,
    heard: &mut Vec<(String, usize)>,
    phase: Phase,
    mut effects: Vec<Effect>,
    tokens: Option<usize>,
) -> (Phase, Vec<Effect>) {
    let asks = matches!(effects.last(), Some(Effect::AskModel { .. }));
    let ends = matches!(effects.last(), Some(Effect::Append(Entry::End { .. })));
    if heard.is_empty() || !(asks || ends) {
        return (phase, effects);
    }
    let last = effects.pop();
    let added: usize = heard.iter().map(|(_, tokens)| tokens).sum();
    effects.extend(
        heard
            .drain(..)
            .map(|(text, _)| Effect::Append(Entry::User { text })),
    );
    match &phase {
        Phase::Done(Outcome::Interrupted | Outcome::Stopped { .. } | Outcome::Failed { .. }) => {
            effects.extend(last);
            return (phase, effects);
        }
        Phase::Done(Outcome::Answered { .. }) => guards.begin_run(),
        Phase::Model | Phase::Tools { .. } | Phase::Compact { .. } => {}
    }
    let phase = ask_or_compact(guards, tokens.unwrap_or_default() + added, &mut effects);
    (phase, effects)
}

fn in_done(guards: &mut Guards, outcome: Outcome, event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::Asked { text, tokens } => {
            guards.begin_run();
            let mut effects = vec![Effect::Append(Entry::User { text })];
            let phase = ask_or_compact(guards, tokens, &mut effects);
            (phase, effects)
        }
        Event::Steered { .. }
        | Event::Answered { .. }
        | Event::ModelFailed { .. }
        | Event::ToolFinished { .. }
        | Event::NoRoom { .. }
        | Event::Compacted { .. }
        | Event::CompactFailed { .. }
        | Event::Interrupt { .. } => (Phase::Done(outcome), Vec::new()),
    }
}

fn in_model(guards: &mut Guards, event: Event) -> (Phase, Vec<Effect>) {
    match event {
        Event::Answered { answer, tokens } => answered(guards, answer, tokens),
        Event::ModelFailed {
            error,
            blame,
            worth_retrying,
        } => {
            if worth_retrying && guards.may_retry() {
                let tell = format!("the runtime failed and is asked again: {error}");
                (Phase::Model, vec![Effect::Tell(tell), ask(guards)])
            } else {
                done(Outcome::Failed { error, blame }, Vec::new())
            }
        }
        Event::Interrupt { partial } => {
            let mut effects = Vec::new();
            if let Some(partial) = partial {
                effects.push(Effect::Append(assistant(&partial)));
                // A call that was whole stands in what was sampled: it needs its result.
                let why = "the person stopped the run before it began";
                let not_run = |call| Effect::Append(Entry::not_run(call, why));
                effects.extend(partial.calls.iter().map(not_run));
            }
            done(Outcome::Interrupted, effects)
        }
        Event::Asked { .. }
        | Event::Steered { .. }
        | Event::ToolFinished { .. }
        | Event::NoRoom { .. }
        | Event::Compacted { .. }
        | Event::CompactFailed { .. } => (Phase::Model, Vec::new()),
    }
}

/// The model's turn is over: record it, then run what it asked for, correct it, or finish.
fn answered(guards: &mut Guards, answer: Answer, tokens: usize) -> (Phase, Vec<Effect>) {
    let mut effects = vec![Effect::Append(assistant(&answer))];
    if let Some((raw, why)) = &answer.broken
        && answer.calls.is_empty()
    {
        if !guards.may_correct() {
            let why = format!(
                "the model wrote {} broken tool calls in a row; the last: {why}",
                guards.limits.corrections_max + 1
            );
            return done(Outcome::Stopped { why }, effects);
        }
        effects.push(Effect::Append(Entry::Correction {
            text: correction(raw, why, answer.cut),
        }));
        let phase = ask_or_compact(guards, tokens, &mut effects);
        return (phase, effects);
    }
    let calls_tools = answer.calls.iter().any(|c| c.name != finish_tool::NAME);
    if calls_tools && !guards.may_call() {
        return refused(guards, answer, tokens, effects);
    }
    guards.answer_was_sound();
    let mut calls: VecDeque<Call> = answer.calls.into();
    let Some(first) = calls.pop_front() else {
        return done(
            Outcome::Answered {
                text: answer.text,
                cut: answer.cut,
            },
            effects,
        );
    };
    if let Err(why) = guards.begin_round() {
        for call in std::iter::once(first).chain(calls) {
            effects.push(Effect::Append(Entry::not_run(&call, &why)));
        }
        return done(Outcome::Stopped { why }, effects);
    }
    run_next(guards, first, calls, tokens, effects)
}

/// Hands a call to the tools; a call of `finish` ends the run, and those behind it are not run.
fn run_next(
    guards: &Guards,
    next: Call,
    waiting: VecDeque<Call>,
    tokens: usize,
    mut effects: Vec<Effect>,
) -> (Phase, Vec<Effect>) {
    let (text, ok) = match finish_tool::words(&next) {
        None => {
            effects.push(Effect::RunTool(next.clone()));
            let running = next;
            return (Phase::Tools { running, waiting }, effects);
        }
        Some(Ok(text)) => (text, true),
        Some(Err(why)) => (why, false),
    };
    let output = ToolOutput {
        text: if ok {
            finish_tool::DELIVERED.into()
        } else {
            text.clone()
        },
        ok,
        artifact: None,
    };
    effects.push(Effect::Append(Entry::result(&next, output)));
    let why = "an answer to the user came before it";
    let rest = waiting.iter().map(|call| Entry::not_run(call, why));
    effects.extend(rest.map(Effect::Append));
    if !ok {
        let phase = ask_or_compact(guards, tokens, &mut effects);
        return (phase, effects);
    }
    effects.push(Effect::Deliver(text.clone()));
    done(Outcome::Answered { text, cut: false }, effects)
}

/// Calls in an answer that was to have none, from a runtime that cannot mask them: each gets a result
/// that says so, and the model is asked again, but not for ever.
fn refused(
    guards: &mut Guards,
    answer: Answer,
    tokens: usize,
    mut effects: Vec<Effect>,
) -> (Phase, Vec<Effect>) {
    let why = "the same calls gave the same results before; answer the user without a tool";
    let results = answer.calls.iter().map(|call| Entry::not_run(call, why));
    effects.extend(results.map(Effect::Append));
    if !guards.may_correct() {
        let why = "the model repeated calls and would not answer without them".into();
        return done(Outcome::Stopped { why }, effects);
    }
    let phase = ask_or_compact(guards, tokens, &mut effects);
    (phase, effects)
}

fn in_tools(
    guards: &mut Guards,
    running: Call,
    waiting: VecDeque<Call>,
    event: Event,
) -> (Phase, Vec<Effect>) {
    match event {
        Event::ToolFinished { output, tokens } => {
            tool_finished(guards, running, waiting, output, tokens)
        }
        Event::NoRoom { output, tokens } => {
            let reason = CompactReason::NoRoomForResult {
                tokens,
                threshold: guards.limits.threshold_tokens,
            };
            let then = AfterCompact::Refit {
                call: running,
                output,
                waiting,
            };
            (
                Phase::Compact { reason, then },
                vec![Effect::Summarise(reason)],
            )
        }
        Event::Interrupt { .. } => {
            let why =
                "cancelled by the person before it finished; what it had done until then stands";
            let effects = std::iter::once(&running)
                .chain(&waiting)
                .map(|call| Effect::Append(Entry::not_run(call, why)))
                .collect();
            done(Outcome::Interrupted, effects)
        }
        Event::Asked { .. }
        | Event::Steered { .. }
        | Event::Answered { .. }
        | Event::ModelFailed { .. }
        | Event::Compacted { .. }
        | Event::CompactFailed { .. } => (Phase::Tools { running, waiting }, Vec::new()),
    }
}

fn tool_finished(
    guards: &mut Guards,
    running: Call,
    mut waiting: VecDeque<Call>,
    output: ToolOutput,
    tokens: usize,
) -> (Phase, Vec<Effect>) {
    let repeat = guards.saw(&running, &output.text);
    let mut output = output;
    match repeat {
        Repeat::No => {}
        Repeat::Warn { times } => output.text.push_str(&format!(
            "\n[The same call gave the same result {times} times. Do something else, or answer the user now.]"
        )),
        Repeat::Bar { times } => output.text.push_str(&format!(
            "\n[The same call gave the same result {times} times. Answer the user now, in words: what was done, what the results show, and what is left.]"
        )),
    }
    let mut effects = vec![Effect::Append(Entry::result(&running, output))];
    if let Some(next) = waiting.pop_front() {
        return run_next(guards, next, waiting, tokens, effects);
    }
    let phase = ask_or_compact(guards, tokens, &mut effects);
    (phase, effects)
}

fn in_compact(
    guards: &mut Guards,
    reason: CompactReason,
    then: AfterCompact,
    event: Event,
) -> (Phase, Vec<Effect>) {
    match event {
        Event::Compacted { before, after } => {
            if let Err(why) = guards.compacted(before, after) {
                return abandon(then, Outcome::Stopped { why });
            }
            let tell = Effect::Tell(format!("context compacted: {before} → {after} tokens"));
            match then {
                AfterCompact::Ask => (Phase::Model, vec![tell, ask(guards)]),
                AfterCompact::Refit {
                    call,
                    output,
                    waiting,
                } => {
                    let refit = Effect::Refit {
                        call: call.clone(),
                        output,
                    };
                    (
                        Phase::Tools {
                            running: call,
                            waiting,
                        },
                        vec![tell, refit],
                    )
                }
            }
        }
        Event::CompactFailed { why } => abandon(
            then,
            Outcome::Stopped {
                why: format!("compaction failed: {why}"),
            },
        ),
        Event::ModelFailed { error, blame, .. } => abandon(then, Outcome::Failed { error, blame }),
        Event::Interrupt { .. } => abandon(then, Outcome::Interrupted),
        Event::Asked { .. }
        | Event::Steered { .. }
        | Event::Answered { .. }
        | Event::ToolFinished { .. }
        | Event::NoRoom { .. } => (Phase::Compact { reason, then }, Vec::new()),
    }
}

/// Ends a run in the middle of a compaction; a call that was waiting for room keeps a result.
fn abandon(then: AfterCompact, outcome: Outcome) -> (Phase, Vec<Effect>) {
    let effects = match then {
        AfterCompact::Ask => Vec::new(),
        AfterCompact::Refit { call, waiting, .. } => std::iter::once(&call)
            .chain(&waiting)
            .map(|call| {
                Effect::Append(Entry::not_run(
                    call,
                    "its result did not fit and the context could not be shrunk",
                ))
            })
            .collect(),
    };
    done(outcome, effects)
}

fn ask_or_compact(guards: &Guards, tokens: usize, effects: &mut Vec<Effect>) -> Phase {
    let threshold = guards.limits.threshold_tokens;
    if tokens > threshold {
        let reason = CompactReason::OverThreshold { tokens, threshold };
        effects.push(Effect::Summarise(reason));
        Phase::Compact {
            reason,
            then: AfterCompact::Ask,
        }
    } else {
        effects.push(ask(guards));
        Phase::Model
    }
}

fn ask(guards: &Guards) -> Effect {
    Effect::AskModel {
        may_call: guards.may_call(),
    }
}

fn done(outcome: Outcome, mut effects: Vec<Effect>) -> (Phase, Vec<Effect>) {
    effects.push(Effect::Append(Entry::End {
        outcome: outcome.describe(),
    }));
    (Phase::Done(outcome), effects)
}

fn assistant(answer: &Answer) -> Entry {
    Entry::Assistant {
        text: answer.text.clone(),
        thinking: answer.thinking.clone(),
        calls: answer.calls.clone(),
        sampled: answer.sampled.clone(),
        cut: answer.cut,
    }
}

fn correction(raw: &str, why: &str, cut: bool) -> String {
    let cause = if cut {
        "The reply limit cut your tool call before its end. Make the call smaller, for example by writing the file in parts."
    } else {
        "Your tool call could not be read and nothing was run."
    };
    let shown: String = raw.chars().take(200).collect();
    format!(
        "{cause} The reason: {why}. It began: {shown:?}. Send the call again as one well-formed JSON object with \"name\" and \"arguments\"."
    )
}

impl Outcome {
    /// One line for the transcript and the person.
    pub fn describe(&self) -> String {
        match self {
            Outcome::Answered { cut: false, .. } => "answered".into(),
            Outcome::Answered { cut: true, .. } => {
                "answered; the reply limit cut the answer".into()
            }
            Outcome::Interrupted => "interrupted".into(),
            Outcome::Stopped { why } => format!("stopped: {why}"),
            Outcome::Failed { error, .. } => format!("failed: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Call {
        Call {
            id: id.into(),
            name: "bash".into(),
            arguments: format!("{{\"command\":\"{id}\"}}"),
        }
    }

    fn output(text: &str) -> ToolOutput {
        ToolOutput {
            text: text.into(),
            ok: true,
            artifact: None,
        }
    }

    fn says(text: &str, calls: &[&str]) -> Event {
        let calls = calls.iter().map(|id| call(id)).collect();
        Event::Answered {
            answer: Answer {
                text: text.into(),
                calls,
                ..Answer::default()
            },
            tokens: 10,
        }
    }

    fn gives(text: &str) -> Event {
        Event::ToolFinished {
            output: output(text),
            tokens: 10,
        }
    }

    fn asks() -> Event {
        Event::Asked {
            text: "goal".into(),
            tokens: 10,
        }
    }

    /// Plays events; gives the machine and a short trace of what it wanted done.
    fn play(events: impl IntoIterator<Item = Event>) -> (Machine, Vec<String>) {
        let mut machine = Machine::new(Limits::with_threshold(100));
        let mut trace = Vec::new();
        for event in events {
            let (next, effects) = machine.advance(event);
            machine = next;
            trace.extend(effects.iter().map(short));
        }
        (machine, trace)
    }

    fn short(effect: &Effect) -> String {
        match effect {
            Effect::Append(Entry::User { .. }) => "+user".into(),
            Effect::Append(Entry::Assistant { calls, .. }) => {
                format!("+assistant({})", calls.len())
            }
            Effect::Append(Entry::ToolResult { call, output, .. }) => {
                format!(
                    "+result({call},{})",
                    if output.text.starts_with("[not run") {
                        "not run"
                    } else {
                        "ran"
                    }
                )
            }
            Effect::Append(Entry::Correction { .. }) => "+correction".into(),
            Effect::Append(Entry::End { outcome }) => {
                format!("+end({})", outcome.split(':').next().unwrap_or_default())
            }
            Effect::Append(entry) => panic!("the machine does not write {entry:?}"),
            Effect::AskModel { may_call: true } => "ask".into(),
            Effect::AskModel { may_call: false } => "ask without tools".into(),
            Effect::RunTool(call) => format!("run({})", call.id),
            Effect::Summarise(_) => "summarise".into(),
            Effect::Refit { call, .. } => format!("refit({})", call.id),
            Effect::Tell(_) => "tell".into(),
            Effect::Deliver(text) => format!("deliver({text})"),
        }
    }

    #[test]
    fn runs_are_played_as_written() {
        let over = |text: &str| Event::ToolFinished {
            output: output(text),
            tokens: 101,
        };
        let shrank = Event::Compacted {
            before: 101,
            after: 40,
        };
        let broken = || Event::Answered {
            answer: Answer {
                broken: Some(("{\"na".into(), "unexpected end".into())),
                cut: true,
                ..Answer::default()
            },
            tokens: 10,
        };
        let steers = |tokens| Event::Steered {
            text: "not that one".into(),
            tokens,
        };
        let fails = |worth| Event::ModelFailed {
            blame: Blame::Device,
            error: "no".into(),
            worth_retrying: worth,
        };
        let cases: Vec<(&str, Vec<Event>, &str)> = vec![
            (
                "a plain answer",
                vec![asks(), says("hi", &[])],
                "+user ask +assistant(0) +end(answered)",
            ),
            (
                "two calls run in order, then the model again",
                vec![
                    asks(),
                    says("", &["a", "b"]),
                    gives("1"),
                    gives("2"),
                    says("done", &[]),
                ],
                "+user ask +assistant(2) run(a) +result(a,ran) run(b) +result(b,ran) ask +assistant(0) +end(answered)",
            ),
            (
                "over the threshold: compact, then ask",
                vec![
                    asks(),
                    says("", &["a"]),
                    over("1"),
                    shrank.clone(),
                    says("done", &[]),
                ],
                "+user ask +assistant(1) run(a) +result(a,ran) summarise tell ask +assistant(0) +end(answered)",
            ),
            (
                "no room for a result: compact, put it back, go on with the next call",
                vec![
                    asks(),
                    says("", &["a", "b"]),
                    Event::NoRoom {
                        output: output("long"),
                        tokens: 99,
                    },
                    shrank.clone(),
                    gives("fitted"),
                ],
                "+user ask +assistant(2) run(a) summarise tell refit(a) +result(a,ran) run(b)",
            ),
            (
                "a failed compaction stops, and the waiting call keeps a result",
                vec![
                    asks(),
                    says("", &["a", "b"]),
                    Event::NoRoom {
                        output: output("long"),
                        tokens: 99,
                    },
                    Event::CompactFailed {
                        why: "empty".into(),
                    },
                ],
                "+user ask +assistant(2) run(a) summarise +result(a,not run) +result(b,not run) +end(stopped)",
            ),
            (
                "a broken call is corrected twice, then the run stops",
                vec![asks(), broken(), broken(), broken()],
                "+user ask +assistant(0) +correction ask +assistant(0) +correction ask +assistant(0) +end(stopped)",
            ),
            (
                "the runtime is asked again twice, then the run fails",
                vec![asks(), fails(true), fails(true), fails(true)],
                "+user ask tell ask tell ask +end(failed)",
            ),
            (
                "no retry where none helps",
                vec![asks(), fails(false)],
                "+user ask +end(failed)",
            ),
            (
                "an interrupt in the tools leaves one result a call",
                vec![
                    asks(),
                    says("", &["a", "b"]),
                    Event::Interrupt { partial: None },
                ],
                "+user ask +assistant(2) run(a) +result(a,not run) +result(b,not run) +end(interrupted)",
            ),
            (
                "what is said while a tool runs is seen at the next step",
                vec![
                    asks(),
                    says("", &["a", "b"]),
                    steers(1),
                    gives("1"),
                    gives("2"),
                    says("done", &[]),
                ],
                "+user ask +assistant(2) run(a) +result(a,ran) run(b) +result(b,ran) +user ask +assistant(0) +end(answered)",
            ),
            (
                "what is said while the model answers is answered too",
                vec![asks(), steers(1), says("hi", &[]), says("ho", &[])],
                "+user ask +assistant(0) +user ask +assistant(0) +end(answered)",
            ),
            (
                "what is said may need room first",
                vec![
                    asks(),
                    says("", &["a"]),
                    steers(95),
                    gives("1"),
                    shrank.clone(),
                ],
                "+user ask +assistant(1) run(a) +result(a,ran) +user summarise tell ask",
            ),
            (
                "what is said before a stop is recorded",
                vec![
                    asks(),
                    says("", &["a"]),
                    steers(1),
                    Event::Interrupt { partial: None },
                ],
                "+user ask +assistant(1) run(a) +result(a,not run) +user +end(interrupted)",
            ),
            (
                "an interrupt in the answer keeps its text, and its calls have not run",
                vec![
                    asks(),
                    Event::Interrupt {
                        partial: Some(Answer {
                            text: "half".into(),
                            calls: vec![call("a")],
                            ..Answer::default()
                        }),
                    },
                ],
                "+user ask +assistant(1) +result(a,not run) +end(interrupted)",
            ),
        ];
        for (story, events, expected) in cases {
            let (_, trace) = play(events);
            assert_eq!(trace.join(" "), expected, "{story}");
        }
    }

    /// A model that reads the same file for ever ran until the window was full.
    #[test]
    fn a_run_that_goes_in_circles_is_made_to_answer() {
        let circle = || [says("", &["a"]), gives("same")].into_iter();
        let mut events = vec![asks()];
        events.extend((0..crate::limits::REPEATS_BAR).flat_map(|_| circle()));
        let answered = events.iter().cloned().chain([says("that is all", &[])]);
        let (machine, trace) = play(answered);
        let answer = Outcome::Answered {
            text: "that is all".into(),
            cut: false,
        };
        assert_eq!(machine.phase, Phase::Done(answer));
        let asked = trace.iter().filter(|t| t.starts_with("ask")).cloned();
        assert_eq!(
            asked.collect::<Vec<_>>(),
            ["ask", "ask", "ask", "ask without tools"]
        );
        // A runtime that cannot mask may go on calling: nothing is run, and it ends.
        events.extend((0..10).map(|_| says("", &["a"])));
        let (machine, trace) = play(events);
        let Phase::Done(Outcome::Stopped { why }) = machine.phase else {
            panic!("stopped")
        };
        assert!(why.contains("repeated calls"), "{why}");
        let runs = trace.iter().filter(|t| *t == "run(a)").count();
        assert_eq!(runs, crate::limits::REPEATS_BAR);
        let results = trace.iter().filter(|t| t.starts_with("+result(a")).count();
        assert_eq!(
            results,
            trace.iter().filter(|t| *t == "+assistant(1)").count()
        );
    }

    /// A small model that had called tools never came back to prose.
    #[test]
    fn a_call_of_finish_ends_the_run() {
        let answer = |arguments: &str| Call {
            id: "z".into(),
            name: finish_tool::NAME.into(),
            arguments: arguments.into(),
        };
        let turn = |calls: Vec<Call>| Event::Answered {
            answer: Answer {
                calls,
                ..Answer::default()
            },
            tokens: 10,
        };
        let good = || answer(r#"{"text":"42"}"#);
        let cases = [
            (
                "alone",
                vec![asks(), turn(vec![good()])],
                "+user ask +assistant(1) +result(z,ran) deliver(42) +end(answered)",
            ),
            (
                "behind a call it waits for the result; what stands behind it is not run",
                vec![asks(), turn(vec![call("a"), good(), call("b")]), gives("x")],
                "+user ask +assistant(3) run(a) +result(a,ran) +result(z,ran) +result(b,not run) deliver(42) +end(answered)",
            ),
            (
                "what cannot be read is told to the model",
                vec![asks(), turn(vec![answer("{}")]), turn(vec![good()])],
                "+user ask +assistant(1) +result(z,ran) ask +assistant(1) +result(z,ran) deliver(42) +end(answered)",
            ),
        ];
        for (story, events, expected) in cases {
            let (machine, trace) = play(events);
            assert_eq!(trace.join(" "), expected, "{story}");
            let Phase::Done(Outcome::Answered { text, .. }) = machine.phase else {
                panic!("{story}")
            };
            assert_eq!(text, "42");
        }
    }

    #[test]
    fn rounds_are_limited_and_every_call_has_a_result() {
        let mut events = vec![asks()];
        for round in 0..crate::limits::TOOL_ROUNDS_MAX + 1 {
            events.extend([
                says("", &["a", "b"]),
                gives(&format!("{round}")),
                gives("b"),
            ]);
        }
        let (machine, trace) = play(events);
        assert!(matches!(
            machine.phase,
            Phase::Done(Outcome::Stopped { .. })
        ));
        let calls = trace.iter().filter(|t| *t == "+assistant(2)").count() * 2;
        let results = trace.iter().filter(|t| t.starts_with("+result")).count();
        assert_eq!(calls, results);
    }

    /// Law 11: the second compaction in a row that frees too little ends the run, with the numbers.
    #[test]
    fn a_compaction_that_frees_nothing_twice_stops() {
        let over = || Event::ToolFinished {
            output: output("x"),
            tokens: 101,
        };
        let barely = || Event::Compacted {
            before: 101,
            after: 99,
        };
        let (machine, _) = play([
            asks(),
            says("", &["a"]),
            over(),
            barely(),
            says("", &["b"]),
            over(),
            barely(),
        ]);
        let Phase::Done(Outcome::Stopped { why }) = machine.phase else {
            panic!("stopped")
        };
        assert!(why.contains("101") && why.contains("99"), "{why}");
    }
}
