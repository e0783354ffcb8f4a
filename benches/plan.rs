//! What a forecast costs: plans for prompts of many pieces, resident and not, through the engine's
//! own handle. The goal is 0.2 ms for 2,000 tokens in 50 pieces.
//!
//! `cargo bench --bench plan`; exits with 1 when the goal is missed.

use engine::{
    Engine, EngineConfig, Layer, Piece, Prompt, Request, Salt, SamplingParams, TokenBytes,
};
use models::load::{LoadOptions, load_forward};
use models::tiny::{TinySpec, tiny_model};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GOAL: Duration = Duration::from_micros(200);
const ROUNDS: usize = 2_000;

struct NoText(usize);

impl TokenBytes for NoText {
    fn vocab_size(&self) -> usize {
        self.0
    }
    fn bytes(&self, _id: u32) -> &[u8] {
        b""
    }
    fn is_control(&self, _id: u32) -> bool {
        false
    }
    fn is_end(&self, _id: u32) -> bool {
        false
    }
    fn eos(&self) -> Option<u32> {
        None
    }
}

fn prompt(pieces: usize, tokens_each: usize, edited: Option<usize>) -> Prompt {
    let piece = |index: usize| {
        let id = |token: usize| ((index * 131 + token * 17) % 251) as u32;
        let mut ids: Vec<u32> = (0..tokens_each).map(id).collect();
        if edited == Some(index) {
            ids[tokens_each / 2] += 1;
        }
        Piece::new(format!("piece {index}"), Layer::History, ids, b"")
    };
    Prompt::new((0..pieces).map(piece).collect()).expect("one layer")
}

fn engine() -> Engine {
    let folder = std::env::temp_dir().join(format!("ostler-bench-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("tiny.gguf");
    let spec = TinySpec {
        context: 16_384,
        ..TinySpec::default()
    };
    tiny_model(&path, &spec).expect("written");
    let loaded = load_forward(&path, &LoadOptions::default(), &|_| {}).expect("loads");
    let vocab = Arc::new(NoText(loaded.config.vocab));
    let config = EngineConfig::default();
    let engine = Engine::start(loaded.forward, vocab, config).expect("starts");
    std::fs::remove_dir_all(&folder).expect("removed");
    engine
}

fn compute(engine: &Engine, prompt: &Prompt) {
    let request = Request {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(0),
        ..Request::new(prompt.clone())
    };
    let mut generation = engine.generate(request).expect("accepted");
    while generation.recv().is_some() {}
}

fn main() -> ExitCode {
    let engine = engine();
    let rows = [
        ("resident, 50 pieces of 40", 50, 40, None),
        ("edited in the middle", 50, 40, Some(25)),
        ("edited at the start", 50, 40, Some(0)),
        ("resident, 200 pieces of 40", 200, 40, None),
    ];
    println!(
        "{:<28} {:>7} {:>10} {:>10}",
        "prompt", "reused", "median µs", "p99 µs"
    );
    let mut worst = Duration::ZERO;
    for (name, pieces, tokens, edited) in rows {
        compute(&engine, &prompt(pieces, tokens, None));
        let asked = prompt(pieces, tokens, edited);
        let salt = Salt::default();
        let reused = engine.plan(&asked, &salt).expect("fits").reused;
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                let plan = engine.plan(&asked, &salt).expect("fits");
                assert_eq!(plan.reused, reused);
                start.elapsed()
            })
            .collect();
        times.sort();
        let (median, late) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
        let us = |d: Duration| d.as_secs_f64() * 1e6;
        println!(
            "{name:<28} {reused:>7} {:>10.1} {:>10.1}",
            us(median),
            us(late)
        );
        if pieces == 50 {
            worst = worst.max(median);
        }
    }
    match worst <= GOAL {
        true => ExitCode::SUCCESS,
        false => {
            eprintln!("the goal of {GOAL:?} is missed");
            ExitCode::FAILURE
        }
    }
}
