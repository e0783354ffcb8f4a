//! What the harness costs a model step: everything between a reply's last row and the next prompt's
//! first one. The call is read and gated, the tool runs, the result is bounded, the session is
//! appended to, the next prompt is composed, tokenised, planned and leased, its grammar compiled.
//! The goal is 2 ms.
//!
//! ```text
//! cargo bench --bench step -- MODEL.gguf
//! ```
//!
//! The agent, the engine, the tokenizer and the template are the real ones; a script stands in for the
//! arithmetic, so that nothing is timed but what is meant. It also prints what the engine adds to a
//! token: sampling, the grammar's mask, events. Exits with 1 when the goal is missed.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::SamplingParams;
use harness::agent::compact::Domain;
use harness::agent::driver::{Ablation, Agent, Hands, Setup, Watch};
use harness::agent::local::Local;
use harness::agent::machine::Outcome;
use harness::agent::runtime::{Reply, Streamed};
use harness::agent::session::Session;
use harness::agent::skills::Skills;
use harness::agent::transcript::{Call, ToolOutput};
use harness::load::{ModelOptions, start};
use harness::tools::{
    Answer, Asker, Cancel, Counter, Mode, Policy, Question, Sandbox, ToolBox, ToolContext,
};
use kernels::KvShape;
use models::config::Config;
use models::forward::{Forward, KvStore, LogitRows, Logits, ModelIdentity, SeqStep, WindowShape};
use models::template::FrozenClock;
use models::tokenizer::{Specials, Tokenizer};

const GOAL: Duration = Duration::from_millis(2);
/// Model steps of the run; each reads one file.
const STEPS: usize = 20;
const FILE_LINES: usize = 8;

/// A token to say. A call that is complete ends the reply, without a token for it.
struct Said {
    id: u32,
    ends_reply: bool,
}

/// One pass through the stand-in: when it was entered and left, and whether it ended a reply.
struct Pass {
    entered: Instant,
    left: Instant,
    ends_reply: bool,
}

/// Says the script's tokens, whatever the prompt.
struct Script {
    model: Box<dyn Forward>,
    said: VecDeque<Said>,
    passes: Arc<Mutex<Vec<Pass>>>,
}

impl Forward for Script {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn identity_seed(&self) -> &ModelIdentity {
        self.model.identity_seed()
    }

    fn kv_shape(&self) -> KvShape {
        self.model.kv_shape()
    }

    fn window(&self) -> Option<WindowShape> {
        self.model.window()
    }

    fn new_kv(&self, blocks: usize, window_blocks: usize) -> models::Result<KvStore> {
        self.model.new_kv(blocks, window_blocks)
    }

    fn forward(&mut self, steps: &[SeqStep<'_>], _: &mut KvStore) -> models::Result<Logits> {
        let entered = Instant::now();
        let vocab = self.config().vocab;
        let mut logits = Logits {
            vocab,
            data: Vec::new(),
            rows_computed: steps.iter().map(|step| step.tokens.len()).sum(),
        };
        let mut ends_reply = false;
        for _ in steps.iter().filter(|step| step.logits != LogitRows::None) {
            let said = self.said.pop_front().expect("the run ends with the script");
            ends_reply = said.ends_reply;
            let row = logits.data.len();
            logits.data.resize(row + vocab, 0.0);
            logits.data[row + said.id as usize] = 1.0;
        }
        self.passes.lock().expect("one thread").push(Pass {
            entered,
            left: Instant::now(),
            ends_reply,
        });
        Ok(logits)
    }
}

/// Nobody is asked, and nobody looks.
struct Nobody;

impl Asker for Nobody {
    fn ask(&mut self, _: &Question) -> Answer {
        Answer::No(None)
    }
}

impl Watch for Nobody {
    fn streamed(&mut self, _: &Streamed) {}
    fn call_begins(&mut self, _: &Call) {}
    fn call_ended(&mut self, _: &Call, output: &ToolOutput) {
        assert!(output.ok, "{}", output.text);
    }
    fn step_ended(&mut self, _: &Reply) {}
    fn told(&mut self, text: &str) {
        panic!("the run should have nothing to tell: {text}");
    }
    fn answered(&mut self, _: &str) {}
    fn run_ended(&mut self, _: &Outcome) {}
}

fn main() -> ExitCode {
    let model = std::env::args().skip(1).find(|arg| arg != "--bench");
    let Some(model) = model.map(PathBuf::from) else {
        println!("step: no model given, nothing measured");
        return ExitCode::SUCCESS;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let passes = run(&model, dir.path());
    let gap = |pair: &[Pass]| pair[1].entered - pair[0].left;
    let between = |ends: bool| {
        let pairs = passes.windows(2).filter(|pair| pair[0].ends_reply == ends);
        let mut gaps: Vec<Duration> = pairs.map(gap).collect();
        gaps.sort();
        gaps
    };
    let (steps, tokens) = (between(true), between(false));
    assert_eq!(steps.len(), STEPS, "every step but the first was timed");
    println!(
        "{:<28} {:>6} {:>10} {:>10}",
        "what", "count", "median µs", "p90 µs"
    );
    for (name, gaps) in [
        ("harness, a model step", &steps),
        ("engine, a token", &tokens),
    ] {
        let us = |d: Duration| d.as_secs_f64() * 1e6;
        let (median, late) = (gaps[gaps.len() / 2], gaps[gaps.len() * 9 / 10]);
        println!(
            "{name:<28} {:>6} {:>10.1} {:>10.1}",
            gaps.len(),
            us(median),
            us(late)
        );
    }
    match steps[steps.len() / 2] <= GOAL {
        true => ExitCode::SUCCESS,
        false => {
            eprintln!("the goal of {GOAL:?} is missed");
            ExitCode::FAILURE
        }
    }
}

/// Runs the script through the agent in `dir`.
fn run(model: &Path, dir: &Path) -> Vec<Pass> {
    let mut options = ModelOptions::new("script");
    options.context_tokens = Some(8_192);
    let mut loaded = models::load(model, &Default::default(), &|_| {}).expect("the model loads");
    let passes = Arc::default();
    loaded.forward = Box::new(Script {
        said: script(&loaded.tokenizer),
        model: loaded.forward,
        passes: Arc::clone(&passes),
    });
    let model = start(loaded, "script".into(), None, &options)
        .expect("it starts")
        .model;

    let work = dir.join("work");
    std::fs::create_dir(&work).expect("a workspace");
    for step in 0..STEPS {
        let line = |n| format!("line {n} of file {step}: value = {}\n", n * step);
        let text: String = (0..FILE_LINES).map(line).collect();
        std::fs::write(work.join(format!("f{step}.txt")), text).expect("written");
    }
    let format = Arc::clone(&model);
    let counter: Arc<Counter> = Arc::new(move |text: &str| format.format.count(text));
    let mut local = Local::new(model, SamplingParams::greedy(), FrozenClock::default());
    let mut tools = ToolBox::new(ToolContext {
        workspace: work.clone(),
        session_dir: dir.join("session"),
        window_tokens: 8_192,
        sandbox: Sandbox::off("nothing is run"),
        environment: Vec::new(),
        counter: Arc::clone(&counter),
    })
    .expect("tools");
    let hands = Hands {
        runtime: &mut local,
        tools: &mut tools,
        policy: Policy::new(Mode::Yes),
        asker: &mut Nobody,
        watch: &mut Nobody,
        cancel: Cancel::new(),
        counter,
    };
    let setup = Setup {
        workspace: work,
        instructions: None,
        before: dir.join("before"),
        domain: Domain::default(),
        memories: None,
        skills: Skills::default(),
        ablation: Ablation::default(),
        is_helper: false,
        frozen: None,
        rounds_max: None,
    };
    let session = Session::create(&dir.join("sessions"), "bench", || 0).expect("a session");
    let mut agent = Agent::new(hands, session, setup).expect("an agent");
    let outcome = agent.run("Read all the files.").expect("it runs");
    assert!(matches!(outcome, Outcome::Answered { .. }), "{outcome:?}");
    drop(agent);
    drop(tools);
    drop(local);
    std::mem::take(&mut *passes.lock().expect("the engine has stopped"))
}

/// A call a step, and the answer.
fn script(tokenizer: &Tokenizer) -> VecDeque<Said> {
    let call = |name: &str, arguments: &str| {
        let text = format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
        );
        let ids = tokenizer.encode(&text, Specials::Parse);
        let last = ids.len() - 1;
        let said = |(at, id)| Said {
            id,
            ends_reply: at == last,
        };
        ids.into_iter().enumerate().map(said).collect::<Vec<_>>()
    };
    let reads = (0..STEPS).map(|step| call("read", &format!("{{\"path\": \"f{step}.txt\"}}")));
    let finish = call("finish", "{\"text\": \"I have read them.\"}");
    reads.chain([finish]).flatten().collect()
}
