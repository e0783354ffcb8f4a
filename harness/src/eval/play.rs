//! One task, played: a folder and a session of its own, every request counted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::script::{self, Script};
use super::task::{Ended, Task, lay_out, put};
use crate::agent::compact::Domain;
use crate::agent::driver::{Ablation, Agent, Hands, Setup, Watch};
use crate::agent::machine::Outcome;
use crate::agent::runtime::{Ask, Reply, Runtime, StepError, Streamed};
use crate::agent::session::Session;
use crate::agent::skills::Skills;
use crate::agent::transcript::{Call, Entry, ToolOutput};
use crate::agent::undo;
use crate::agent::view::View;
use crate::clock;
use crate::error::{Error, Result};
use crate::limits::EVAL_ROUNDS_MAX;
use crate::tools::{
    Answer, Asker, Cancel, Counter, Mode, Network, Policy, Question, Sandbox, SandboxConfig,
    ToolBox, ToolContext, ToolSpec,
};

/// How a task went.
#[derive(Clone, Debug, Serialize)]
pub struct Played {
    pub task: &'static str,
    pub passed: bool,
    /// Why not.
    pub why: Option<String>,
    /// Answers of the model, summaries included.
    pub steps: usize,
    /// Tokens of all requests.
    pub tokens_sent: usize,
    /// Those of them that were computed.
    pub tokens_computed: usize,
    pub compactions: usize,
    pub seconds: f64,
}

/// Plays `task` with a model.
pub fn play(
    task: &Task,
    runtime: &mut dyn Runtime,
    counter: Arc<Counter>,
    ablation: Ablation,
    environment: &[(std::ffi::OsString, std::ffi::OsString)],
    cancel: &Cancel,
) -> Result<Played> {
    let stage = Stage::new(task, ablation, environment, cancel.clone())?;
    let mut counted = Counted::new(runtime);
    let begun = Instant::now();
    let graded = stage.goals(&mut counted, counter);
    Ok(stage.played(&counted, graded, begun))
}

/// Plays `task` with its script, in a window of `window` tokens. The requests must be what the script says, and
/// begin with one another between two compactions (law 3).
pub fn play_script(
    task: &Task,
    window: usize,
    ablation: Ablation,
    environment: &[(std::ffi::OsString, std::ffi::OsString)],
) -> Result<Played> {
    let mut script = Script::new(window, (task.script)());
    script.summaries = task.summaries.iter().map(|s| (*s).to_owned()).collect();
    let stage = Stage::new(task, ablation, environment, script.cancel.clone())?;
    let mut counted = Counted::new(&mut script);
    let begun = Instant::now();
    let graded = stage.goals(&mut counted, Arc::new(script::count));
    let mut played = stage.played(&counted, graded, begun);
    let rewritten = script
        .asked
        .windows(2)
        .filter(|pair| !goes_on(&pair[0], &pair[1]))
        .count();
    let wrong = script.wrong.or_else(|| {
        (rewritten > played.compactions)
            .then(|| format!("{rewritten} requests do not begin with the one before"))
    });
    if played.passed
        && let Some(wrong) = wrong
    {
        played.passed = false;
        played.why = Some(wrong);
    }
    Ok(played)
}

fn goes_on(before: &View, after: &View) -> bool {
    before.sections == after.sections && after.turns.starts_with(&before.turns)
}

/// Passed, or why not.
type Graded = std::result::Result<(), String>;

/// The folder and the session of a task.
struct Stage<'a> {
    task: &'a Task,
    ablation: Ablation,
    environment: &'a [(std::ffi::OsString, std::ffi::OsString)],
    cancel: Cancel,
    work: PathBuf,
    sessions: PathBuf,
    /// Removed when dropped.
    _dir: tempfile::TempDir,
}

impl<'a> Stage<'a> {
    fn new(
        task: &'a Task,
        ablation: Ablation,
        environment: &'a [(std::ffi::OsString, std::ffi::OsString)],
        cancel: Cancel,
    ) -> Result<Stage<'a>> {
        let made = || {
            let dir = tempfile::Builder::new().prefix("ostler-eval-").tempdir()?;
            let work = dir.path().join("work");
            std::fs::create_dir(&work)?;
            lay_out(task, &work)?;
            Ok((dir, work))
        };
        let (dir, work) = made().map_err(|e: std::io::Error| {
            Error::device(format!("a folder for task {}: {e}", task.name))
        })?;
        Ok(Stage {
            task,
            ablation: Ablation {
                tools: task.without,
                ..ablation
            },
            environment,
            cancel,
            work,
            sessions: dir.path().join("sessions"),
            _dir: dir,
        })
    }

    /// Plays the goals and grades what they left.
    fn goals(&self, runtime: &mut Counted<'_>, counter: Arc<Counter>) -> Graded {
        let mut ended = Ended {
            work: self.work.clone(),
            answers: Vec::new(),
        };
        for (at, goal) in self.task.goals.iter().enumerate() {
            for (_, path, text) in self.task.later.iter().filter(|(goal, ..)| *goal == at) {
                put(&self.work, path, text.as_bytes()).map_err(|e| e.to_string())?;
            }
            let killed_after = self.task.killed_after.filter(|_| at == 0);
            let outcome = self
                .goal(runtime, counter.clone(), goal, killed_after)
                .map_err(|e| e.to_string())?;
            if killed_after.is_some() {
                self.kill().map_err(|e| e.to_string())?;
                continue;
            }
            match outcome {
                Outcome::Answered { text, .. } => ended.answers.push(text),
                other => return Err(format!("goal {}: {}", at + 1, other.describe())),
            }
        }
        (self.task.grade)(&ended)
    }

    fn goal(
        &self,
        runtime: &mut Counted<'_>,
        counter: Arc<Counter>,
        goal: &str,
        rounds: Option<usize>,
    ) -> Result<Outcome> {
        let session_dir = self.sessions.join("s");
        let mut tools = ToolBox::new(ToolContext {
            workspace: self.work.clone(),
            window_tokens: runtime.window(),
            sandbox: Sandbox::probe(&SandboxConfig {
                workspace: self.work.clone(),
                temporary: session_dir.join("tmp"),
                network: Network::Blocked,
                also_readable: Vec::new(),
                environment: self.environment.to_vec(),
            }),
            session_dir,
            environment: self.environment.to_vec(),
            counter: Arc::clone(&counter),
        })?;
        let session = match self.sessions.join("s.jsonl").exists() {
            true => Session::resume(&self.sessions, "s", clock::now_ms)?.0,
            false => Session::create(&self.sessions, "s", clock::now_ms)?,
        };
        let hands = Hands {
            runtime,
            tools: &mut tools,
            policy: Policy::new(Mode::Yes),
            asker: &mut Nobody,
            watch: &mut Nobody,
            cancel: self.cancel.clone(),
            counter,
        };
        let setup = Setup {
            workspace: self.work.clone(),
            instructions: None,
            rounds_max: Some(rounds.unwrap_or(EVAL_ROUNDS_MAX)),
            before: undo::folder(&self.sessions, "s"),
            domain: Domain::default(),
            memories: None,
            skills: Skills::default(),
            ablation: self.ablation,
            is_helper: false,
            frozen: None,
        };
        Agent::new(hands, session, setup)?.run(goal)
    }

    /// Leaves the session as a process does that is killed when it begins a call: the turn that asks for it is the
    /// last whole line.
    fn kill(&self) -> std::io::Result<()> {
        let path = self.sessions.join("s.jsonl");
        let text = std::fs::read_to_string(&path)?;
        let mut end = 0;
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            at += line.len();
            if line.contains("\"kind\":\"assistant\"") && line.contains("\"calls\":[") {
                end = at;
            }
        }
        std::fs::write(&path, format!("{}{{\"id\":", &text[..end]))
    }

    fn played(&self, counted: &Counted<'_>, graded: Graded, begun: Instant) -> Played {
        let records = Session::read(&self.sessions, "s").unwrap_or_default();
        let compactions = records
            .iter()
            .filter(|r| matches!(r.entry, Entry::Compaction { .. }))
            .count();
        Played {
            task: self.task.name,
            passed: graded.is_ok(),
            why: graded.err(),
            steps: counted.steps,
            tokens_sent: counted.sent,
            tokens_computed: counted.computed,
            compactions,
            seconds: begun.elapsed().as_secs_f64(),
        }
    }
}

/// Counts what another runtime is sent.
struct Counted<'a> {
    inner: &'a mut dyn Runtime,
    /// The request before.
    before: Option<View>,
    steps: usize,
    sent: usize,
    computed: usize,
}

impl<'a> Counted<'a> {
    fn new(inner: &'a mut dyn Runtime) -> Counted<'a> {
        Counted {
            inner,
            before: None,
            steps: 0,
            sent: 0,
            computed: 0,
        }
    }

    /// What a prefix cache would have to compute of `view`, by whole turns.
    fn new_tokens(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize> {
        let whole = self.inner.measure(view, tools)?;
        let Some(before) = &self.before else {
            return Ok(whole);
        };
        if before.sections != view.sections {
            return Ok(whole);
        }
        let pairs = before.turns.iter().zip(&view.turns);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let prefix = View {
            sections: view.sections.clone(),
            turns: view.turns[..same].to_vec(),
        };
        Ok(whole - self.inner.measure(&prefix, tools)?.min(whole))
    }
}

impl Runtime for Counted<'_> {
    fn model(&self) -> &str {
        self.inner.model()
    }

    fn window(&self) -> usize {
        self.inner.window()
    }

    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }

    fn measure(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize> {
        self.inner.measure(view, tools)
    }

    fn branch(&mut self) {
        self.inner.branch();
    }

    fn join(&mut self) {
        self.inner.join();
    }

    fn ask(
        &mut self,
        ask: &Ask<'_>,
        watch: &mut dyn FnMut(Streamed),
    ) -> std::result::Result<Reply, StepError> {
        let reply = self.inner.ask(ask, watch)?;
        self.steps += 1;
        let (sent, computed) = match &reply.report {
            Some(report) => (report.tokens, report.computed),
            None => {
                let failed = |error| StepError {
                    error,
                    worth_retrying: false,
                };
                let sent = self.inner.measure(ask.view, ask.tools).map_err(failed)?;
                (sent, self.new_tokens(ask.view, ask.tools).map_err(failed)?)
            }
        };
        self.sent += sent;
        self.computed += computed;
        self.before = Some(ask.view.clone());
        Ok(reply)
    }
}

/// There is no person.
struct Nobody;

impl Asker for Nobody {
    fn ask(&mut self, _: &Question) -> Answer {
        Answer::No(None)
    }
}

impl Watch for Nobody {
    fn streamed(&mut self, _: &Streamed) {}
    fn call_begins(&mut self, _: &Call) {}
    fn call_ended(&mut self, _: &Call, _: &ToolOutput) {}
    fn step_ended(&mut self, _: &Reply) {}
    fn told(&mut self, _: &str) {}
    fn answered(&mut self, _: &str) {}
    fn run_ended(&mut self, _: &Outcome) {}
}
