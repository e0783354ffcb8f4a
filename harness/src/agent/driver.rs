//! Carries out what the machine asks for: appends to the session, asks the runtime, runs tools,
//! summarises. It decides nothing that the machine decides.

mod compacting;
mod fixed;
mod helping;
mod remembering;

use std::path::PathBuf;
use std::sync::Arc;

use fixed::{check_fixed, fixed_pieces, sections};

use super::budget::Budget;
use super::compact::Domain;
use super::finish_tool;
use super::guards::Limits;
use super::machine::{Answer, Effect, Event, Machine, Outcome, Phase};
use super::memory_tools;
use super::pieces::{Frozen, Section};
use super::runtime::{Ask, Calls, Reply, Runtime, Streamed};
use super::session::Session;
use super::skills::{self, Skills};
use super::task_tool;
use super::trace::{self, Trace, TracedPiece};
use super::transcript::{Call, Entry, Record, ToolOutput};
use super::transcript_tool;
use super::undo::Before;
use super::view::View;
use crate::error::{Blame, Error};
use crate::limits;
use crate::memory::Memories;
use crate::tools::bound::{self, Keep, ReadOn, Source};
use crate::tools::{Asker, Bounded, Cancel, Caps, Counter, Policy, ToolBox, ToolCall, ToolSpec};

/// What a person sees of a run.
pub trait Watch {
    fn streamed(&mut self, what: &Streamed);
    fn call_begins(&mut self, call: &Call);
    fn call_ended(&mut self, call: &Call, output: &ToolOutput);
    fn step_ended(&mut self, reply: &Reply);
    fn told(&mut self, text: &str);
    /// The answer, where the model gave it by a call and it was not streamed.
    fn answered(&mut self, text: &str);
    fn run_ended(&mut self, outcome: &Outcome);
}

/// What a run is given.
#[derive(Clone)]
pub struct Setup {
    pub workspace: PathBuf,
    /// Words of the user's own behind the built-in instructions.
    pub instructions: Option<String>,
    pub rounds_max: Option<usize>,
    /// Where files are kept as they were before a tool changed them.
    pub before: PathBuf,
    /// What summaries dwell on.
    pub domain: Domain,
    /// What was remembered in earlier sessions, and where more is kept.
    pub memories: Option<Memories>,
    pub skills: Skills,
    pub ablation: Ablation,
    /// It works on a part of another agent's task.
    pub is_helper: bool,
    /// The sections as that agent has sent them.
    pub frozen: Option<Vec<Section>>,
}

/// What is left out of the harness, to measure what it is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// Results are shown whole.
    pub bounding: bool,
    /// A full window ends the run.
    pub compaction: bool,
    /// Tools that are not offered.
    pub tools: &'static [&'static str],
}

/// An agent at work on one session.
pub struct Agent<'a> {
    runtime: &'a mut dyn Runtime,
    tools: &'a mut ToolBox,
    policy: Policy,
    asker: &'a mut dyn Asker,
    watch: &'a mut dyn Watch,
    cancel: Cancel,
    counter: Arc<Counter>,
    session: Session,
    setup: Setup,
    budget: Budget,
    /// A longer context is compacted before the model is asked.
    threshold: usize,
    frozen: Frozen,
    specs: Vec<ToolSpec>,
    machine: Option<Machine>,
    /// The last full output, kept until it is recorded: a refit starts from the whole.
    last_output: Option<Bounded>,
    calls_made: u64,
    /// Tokens of the context at most, where they follow from the last reply: measuring renders the prompt.
    tokens_at_most: Option<usize>,
    /// The pieces of the newest step.
    traced: Vec<TracedPiece>,
}

/// The hands an agent works with; apart from the session, which it owns.
pub struct Hands<'a> {
    pub runtime: &'a mut dyn Runtime,
    pub tools: &'a mut ToolBox,
    pub policy: Policy,
    pub asker: &'a mut dyn Asker,
    pub watch: &'a mut dyn Watch,
    pub cancel: Cancel,
    /// Counts tokens as the model does.
    pub counter: Arc<Counter>,
}

impl<'a> Agent<'a> {
    /// An agent on a new or resumed session. Refuses fixed pieces that exceed their budget.
    pub fn new(hands: Hands<'a>, mut session: Session, setup: Setup) -> Result<Agent<'a>, Error> {
        let budget = Budget::for_window(hands.runtime.window())?;
        budget.check_instruction(hands.runtime.count(setup.domain.instruction()))?;
        let mut specs = hands.tools.specs();
        specs.extend([finish_tool::spec(), transcript_tool::spec()]);
        if budget.window > limits::WINDOW_TOKENS_SMALL {
            specs.push(task_tool::spec());
        }
        let (skills, broken) = setup.skills.list();
        if !skills.is_empty() {
            specs.push(skills::spec());
        }
        for why in broken {
            hands.watch.told(&format!("a skill is left out: {why}"));
        }
        if setup.memories.is_some() {
            specs.extend(memory_tools::specs());
        }
        specs.retain(|spec| !setup.ablation.tools.contains(&spec.name));
        specs.sort_by(|a, b| a.name.cmp(b.name));
        if setup.ablation.bounding {
            hands.tools.stop_bounding();
        }
        let now = sections(&setup, &*hands.runtime)?;
        let known = Frozen::replay(session.records().iter().map(|r| &r.entry));
        let frozen = known.unwrap_or_else(|| Frozen::new(now.clone()));
        check_fixed(&budget, &frozen, &specs, &*hands.runtime)?;
        let model = hands.runtime.model().to_owned();
        let workspace = setup.workspace.display().to_string();
        if session.records().is_empty() {
            session.append(Entry::Opened {
                version: SESSION_VERSION,
                model,
                workspace,
                sections: now,
            })?;
        } else {
            go_on(&mut session, hands.watch, model, &workspace)?;
        }
        let threshold = match setup.ablation.compaction {
            true => usize::MAX,
            false => budget.threshold(),
        };
        let mut limits = Limits::with_threshold(threshold);
        if let Some(rounds) = setup.rounds_max {
            limits.rounds_max = rounds;
        }
        Ok(Agent {
            // Higher than any call of any branch: each has a result of its own in the file.
            calls_made: session.next_id(),
            traced: trace::newest_pieces(session.records()),
            runtime: hands.runtime,
            tools: hands.tools,
            policy: hands.policy,
            asker: hands.asker,
            watch: hands.watch,
            cancel: hands.cancel,
            counter: hands.counter,
            session,
            setup,
            budget,
            frozen,
            specs,
            machine: Some(Machine::new(limits)),
            last_output: None,
            tokens_at_most: None,
            threshold,
        })
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    pub fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    /// Gives the model a skill that the user has named, as if it had read it.
    pub fn give_skill(&mut self, name: &str) -> Result<(), Error> {
        let result = self.setup.skills.text(name).map_err(Error::caller)?;
        let call = Call {
            id: self.next_call_id(),
            name: skills::NAME.into(),
            arguments: serde_json::json!({ "name": name }).to_string(),
        };
        self.session.append(Entry::Given { call, result })?;
        Ok(())
    }

    /// Works on `goal` until the run is done.
    pub fn run(&mut self, goal: &str) -> Result<Outcome, Error> {
        self.refuse_long(goal)?;
        self.note_changes()?;
        let tokens = self.measure()? + self.runtime.count(goal);
        let mut event = Some(Event::Asked {
            text: goal.to_owned(),
            tokens,
        });
        while let Some(now) = event.take() {
            for text in self.asker.said() {
                let tokens = self.runtime.count(&text) + limits::RESULT_FRAME_TOKENS_MAX;
                self.tokens_at_most = self.tokens_at_most.map(|most| most + tokens);
                self.advance(Event::Steered { text, tokens });
            }
            for effect in self.advance(now) {
                event = self.carry_out(effect)?.or(event);
            }
        }
        match &self.machine.as_ref().expect("put back above").phase {
            Phase::Done(outcome) => {
                self.watch.run_ended(outcome);
                Ok(outcome.clone())
            }
            Phase::Model | Phase::Tools { .. } | Phase::Compact { .. } => Err(Error::bug(
                "the run stopped in the middle: no effect gave an event",
            )),
        }
    }

    fn advance(&mut self, event: Event) -> Vec<Effect> {
        let machine = self.machine.take().expect("put back below");
        let (machine, effects) = machine.advance(event);
        self.machine = Some(machine);
        effects
    }

    /// A goal that no compaction makes room for would end this run and each that resumes it.
    fn refuse_long(&self, goal: &str) -> Result<(), Error> {
        let fixed = fixed_pieces(&self.frozen, &self.specs, &*self.runtime);
        let fixed: usize = fixed.iter().map(|(_, tokens)| tokens).sum();
        let room = self.budget.threshold().saturating_sub(fixed);
        let room = room.saturating_sub(self.budget.summary + limits::RESULT_FRAME_TOKENS_MAX);
        let need = self.runtime.count(goal);
        if need <= room {
            return Ok(());
        }
        Err(Error::caller(format!(
            "the goal has {need} tokens, and {room} fit beside the instructions and the tools ({fixed}) in a \
             window of {}; shorten it, put it into a file, or raise --context",
            self.budget.window
        )))
    }

    /// At most one effect of a step gives the next event.
    fn carry_out(&mut self, effect: Effect) -> Result<Option<Event>, Error> {
        match effect {
            Effect::Append(entry) => {
                self.session.append(entry)?;
                Ok(None)
            }
            Effect::Tell(text) => {
                self.watch.told(&text);
                Ok(None)
            }
            Effect::Deliver(text) => {
                self.watch.answered(&text);
                Ok(None)
            }
            Effect::AskModel { may_call: true } => {
                let masked = self.without_use();
                self.ask_model(Calls::AnyBut(masked)).map(Some)
            }
            Effect::AskModel { may_call: false } => self.ask_model(Calls::Finish).map(Some),
            Effect::RunTool(call) => self.run_tool(&call).map(Some),
            Effect::Refit { call, output } => self.fit(&call, output).map(Some),
            Effect::Summarise(reason) => self.summarise(reason).map(Some),
        }
    }

    /// Tools that read what is not there yet: a small model calls them all the same.
    fn without_use(&self) -> &'static [&'static str] {
        const READERS: [&str; 2] = ["artifact", transcript_tool::NAME];
        let records = self.session.records();
        let compacted = records
            .iter()
            .any(|r| matches!(r.entry, Entry::Compaction { .. }));
        let kept = records.iter().any(|r| match &r.entry {
            Entry::ToolResult { output, .. } => output.artifact.is_some(),
            _ => false,
        });
        match (kept, compacted) {
            (false, false) => &READERS,
            (false, true) => &READERS[..1],
            (true, false) => &READERS[1..],
            (true, true) => &[],
        }
    }

    fn ask_model(&mut self, calls: Calls) -> Result<Event, Error> {
        if self.cancel.is_cancelled() {
            return Ok(Event::Interrupt { partial: None });
        }
        let view = View::of(self.session.records());
        let ask = Ask {
            view: &view,
            tools: &self.specs,
            reply_max: self.budget.reply,
            calls,
            thinking: true,
            cancel: &self.cancel,
        };
        let reply = match self
            .runtime
            .ask(&ask, &mut |what| self.watch.streamed(&what))
        {
            Ok(reply) => reply,
            // Asked wrongly: no retry and no other step would help.
            Err(failed) if failed.error.blame() == Blame::Caller => return Err(failed.error),
            Err(failed) => {
                return Ok(Event::ModelFailed {
                    blame: failed.error.blame(),
                    error: failed.error.to_string(),
                    worth_retrying: failed.worth_retrying,
                });
            }
        };
        self.record_step(&reply)?;
        self.watch.step_ended(&reply);
        // Also where the reply was whole already: what it asks for is not done any more.
        if reply.interrupted || self.cancel.is_cancelled() {
            return Ok(Event::Interrupt {
                partial: Some(self.with_call_ids(reply.answer)),
            });
        }
        let tokens = reply.tokens;
        self.tokens_at_most = Some(tokens + limits::RESULT_FRAME_TOKENS_MAX);
        Ok(Event::Answered {
            answer: self.with_call_ids(reply.answer),
            tokens,
        })
    }

    /// Call ids are ours: unique in the session, and the same whatever a model or server calls them.
    fn with_call_ids(&mut self, mut answer: Answer) -> Answer {
        for call in &mut answer.calls {
            call.id = self.next_call_id();
        }
        answer
    }

    fn next_call_id(&mut self) -> String {
        self.calls_made += 1;
        format!("call{:05}", self.calls_made)
    }

    fn run_tool(&mut self, call: &Call) -> Result<Event, Error> {
        if self.cancel.is_cancelled() {
            return Ok(Event::Interrupt { partial: None });
        }
        self.watch.call_begins(call);
        self.last_output = None;
        let output = if call.name == transcript_tool::NAME {
            transcript_tool::run(self.session.records(), &call.arguments)
        } else if call.name == task_tool::NAME {
            self.run_task(call)?
        } else if call.name == skills::NAME {
            let read = self.setup.skills.run(&call.arguments);
            ToolOutput {
                ok: read.is_ok(),
                text: read.unwrap_or_else(|why| why),
                artifact: None,
            }
        } else if let Some(output) = self.run_with_memory(call)? {
            output
        } else {
            self.run_in_toolbox(call)?
        };
        // What was done in spite of the wish to stop is recorded as done; the run ends at the next step.
        if self.cancel.is_cancelled() && !output.ok {
            return Ok(Event::Interrupt { partial: None });
        }
        self.fit(call, output)
    }

    fn run_in_toolbox(&mut self, call: &Call) -> Result<ToolOutput, Error> {
        let doubt = self.doubt(call)?;
        let wanted = ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        };
        let mut changes = None;
        let result = match self.tools.parse(&wanted) {
            Err(refused) => *refused,
            Ok(parsed) => {
                let before = self.tools.changes(&parsed);
                match self.tools.gate(parsed, doubt, &mut self.policy, self.asker) {
                    Err(denied) => *denied,
                    Ok(approved) => {
                        changes = before.and_then(|path| Before::look(&path));
                        self.tools.run(&approved, &self.cancel)
                    }
                }
            }
        };
        if let Some(before) = changes
            && let Some(changed) = before.keep(&self.setup.before, &call.id)?
        {
            self.session.append(changed)?;
        }
        let output = ToolOutput {
            text: result.text.text().to_owned(),
            ok: result.ok,
            artifact: result.artifact.map(|id| id.to_string()),
        };
        self.last_output = Some(result.text);
        Ok(output)
    }

    /// Fits an output to what the next request can hold, or says that there is no room.
    fn fit(&mut self, call: &Call, mut output: ToolOutput) -> Result<Event, Error> {
        let mut need = self.runtime.count(&output.text);
        let tokens = match self.tokens_at_most {
            Some(tokens) if tokens + need <= self.threshold => tokens,
            Some(_) | None => self.measure()?,
        };
        if tokens + need > self.threshold && !self.setup.ablation.bounding {
            let Some(room) = self.budget.result_room(tokens) else {
                return Ok(Event::NoRoom { output, tokens });
            };
            let caps = Caps::for_window(self.budget.window).within(room);
            let whole = match self.last_output.take() {
                Some(whole) => whole,
                None => {
                    let source = Source::whole(output.text.as_str());
                    bound::bound(
                        &source,
                        self.tools.caps(),
                        Keep::Head,
                        ReadOn::Nothing,
                        "",
                        &*self.counter,
                    )
                }
            };
            match whole.fit(caps, &*self.counter) {
                Ok(fitted) => {
                    output.text = fitted.text().to_owned();
                    need = self.runtime.count(&output.text);
                }
                Err(_) => {
                    self.last_output = Some(whole);
                    return Ok(Event::NoRoom { output, tokens });
                }
            }
        }
        self.watch.call_ended(call, &output);
        let tokens = tokens + need;
        // The next result of the same turn stands behind this one.
        self.tokens_at_most = self
            .tokens_at_most
            .map(|_| tokens + limits::RESULT_FRAME_TOKENS_MAX);
        Ok(Event::ToolFinished { output, tokens })
    }

    fn note_changes(&mut self) -> Result<(), Error> {
        let now = sections(&self.setup, &*self.runtime)?;
        let mut made = self.calls_made;
        let mut next = || {
            made += 1;
            format!("call{made:05}")
        };
        let changes = self.frozen.changes(&now, &mut next);
        self.calls_made = made;
        for change in changes {
            self.session.append(change)?;
        }
        Ok(())
    }

    fn record_step(&mut self, reply: &Reply) -> Result<(), Error> {
        if let Some(report) = &reply.report {
            let trace = reply.plan.as_ref().map(|plan| {
                let trace = Trace::new(plan, report, &self.traced);
                self.traced = trace.pieces(&self.traced);
                Box::new(trace)
            });
            self.session.append(Entry::Step {
                prompt_tokens: report.tokens,
                reused: report.reused,
                computed: report.computed,
                generated: report.generated,
                ttft_ms: report.ttft_ms.unwrap_or_default(),
                trace,
            })?;
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<usize, Error> {
        let view = View::of(self.session.records());
        self.runtime.measure(&view, &self.specs)
    }
}

/// Says what is not as it was when the session was left; another model is recorded.
fn go_on(
    session: &mut Session,
    watch: &mut dyn Watch,
    model: String,
    workspace: &str,
) -> Result<(), Error> {
    let earlier = |found: Option<&str>, now: &str| found.filter(|f| *f != now).map(str::to_owned);
    if let Some(earlier) = earlier(folder_of(session.records()), workspace) {
        watch.told(&format!(
            "this session began in {earlier}; the paths it speaks of are looked for in {workspace}"
        ));
    }
    if let Some(earlier) = earlier(model_of(session.records()), &model) {
        watch.told(&format!(
            "this session was {earlier}'s so far; what it said is read again as text"
        ));
        session.append(Entry::OtherModel { model })?;
    }
    Ok(())
}

/// The model that a session was last worked on with.
fn model_of(records: &[Record]) -> Option<&str> {
    records.iter().rev().find_map(|record| match &record.entry {
        Entry::Opened { model, .. } | Entry::OtherModel { model } => Some(model.as_str()),
        _ => None,
    })
}

/// The folder that a session began in.
fn folder_of(records: &[Record]) -> Option<&str> {
    records.iter().find_map(|record| match &record.entry {
        Entry::Opened { workspace, .. } => Some(workspace.as_str()),
        _ => None,
    })
}

/// The version of the session file's records.
const SESSION_VERSION: u32 = 1;
