//! What a forecast costs: plans for prompts of many pieces, resident and not, through the engine's
//! own handle. The goals are 0.2 ms for 2,000 tokens in 50 pieces, and 0.5 ms for 200 pieces in a tree of a
//! million blocks.
//!
//! `cargo bench --bench plan`; exits with 1 when a goal is missed.

use engine::{
    ContextOptions, Engine, EngineConfig, Layer, Piece, Prompt, Request, Salt, SamplingParams,
    TokenBytes,
};
use kernels::{KvArena, KvShape, KvType};
use models::config::Config;
use models::forward::{Forward, KvBlocks, KvStore, LogitRows, Logits, ModelIdentity, SeqStep};
use models::load::{LoadOptions, load_forward};
use models::tiny::{TinySpec, tiny_model};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GOAL: Duration = Duration::from_micros(200);
const GOAL_FULL_TREE: Duration = Duration::from_micros(500);
const ROUNDS: usize = 2_000;
/// What fills the tree: conversations of so many tokens, 1,024 blocks each.
const TREE_BLOCKS: usize = 1_000_000;
const CONVERSATION_TOKENS: usize = 32_768;

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

/// A model that computes nothing: what is measured is the engine.
struct Nothing(Box<dyn Forward>);

const SHAPE: KvShape = KvShape {
    layers: 1,
    kv_heads: 1,
    head_dim: 8,
    ty: KvType::F32,
};

impl Forward for Nothing {
    fn config(&self) -> &Config {
        self.0.config()
    }
    fn identity_seed(&self) -> &ModelIdentity {
        self.0.identity_seed()
    }
    fn kv_shape(&self) -> KvShape {
        SHAPE
    }
    fn new_kv(&self, blocks: usize, _: usize) -> models::Result<KvStore> {
        let arena = KvArena::new(SHAPE, blocks);
        let arena = arena.map_err(|e| models::Error::device(e.to_string()))?;
        Ok(KvStore {
            all: KvBlocks::Cpu(arena),
            window: None,
        })
    }
    fn forward(&mut self, steps: &[SeqStep<'_>], _: &mut KvStore) -> models::Result<Logits> {
        let vocab = self.config().vocab;
        let wanted = steps.iter().filter(|s| s.logits == LogitRows::Last).count();
        Ok(Logits {
            vocab,
            data: vec![0.0; vocab * wanted],
            rows_computed: steps.iter().map(|s| s.tokens.len()).sum(),
        })
    }
}

fn engine(context: usize, blocks: usize) -> Engine {
    let folder = std::env::temp_dir().join(format!("ostler-bench-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("tiny.gguf");
    let spec = TinySpec {
        context,
        ..TinySpec::default()
    };
    tiny_model(&path, &spec).expect("written");
    let loaded = load_forward(&path, &LoadOptions::default(), &|_| {}).expect("loads");
    let vocab = Arc::new(NoText(loaded.config.vocab));
    let config = EngineConfig {
        context: ContextOptions {
            kv_bytes: Some((blocks * SHAPE.block_bytes()) as u64),
            ..ContextOptions::default()
        },
        ..EngineConfig::default()
    };
    let forward = Box::new(Nothing(loaded.forward));
    let engine = Engine::start(forward, vocab, config).expect("starts");
    std::fs::remove_dir_all(&folder).expect("removed");
    engine
}

/// Conversations that begin alike and then part, each in 200 pieces.
fn conversation(number: usize) -> Prompt {
    let piece = |index: usize| {
        let mut state = if index == 0 {
            1
        } else {
            number as u64 * 200 + index as u64
        };
        let mut id = || {
            // Knuth's MMIX generator.
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as u32 % 251
        };
        let ids: Vec<u32> = (0..CONVERSATION_TOKENS / 200).map(|_| id()).collect();
        Piece::new(format!("piece {index}"), Layer::History, ids, b"")
    };
    Prompt::new((0..200).map(piece).collect()).expect("one layer")
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
    println!(
        "{:<36} {:>7} {:>10} {:>10}",
        "prompt", "reused", "median µs", "p99 µs"
    );
    let small = engine(16_384, 4_096);
    let mut missed = false;
    for (name, pieces, tokens, edited) in [
        ("resident, 50 pieces of 40", 50, 40, None),
        ("edited in the middle", 50, 40, Some(25)),
        ("edited at the start", 50, 40, Some(0)),
        ("resident, 200 pieces of 40", 200, 40, None),
    ] {
        compute(&small, &prompt(pieces, tokens, None));
        let median = measure(&small, name, &prompt(pieces, tokens, edited));
        missed |= pieces == 50 && median > GOAL;
    }
    let large = engine(2 * CONVERSATION_TOKENS, TREE_BLOCKS + 2_048);
    let mut number = 0;
    while large.stats().expect("runs").blocks.cached < TREE_BLOCKS {
        number += 1;
        compute(&large, &conversation(number));
    }
    let blocks = large.stats().expect("runs").blocks.cached;
    println!("in a tree of {blocks} blocks, {number} conversations:");
    for (name, number) in [
        ("resident, 200 pieces of 163", number / 2),
        ("new after the first piece", number + 1),
    ] {
        missed |= measure(&large, name, &conversation(number)) > GOAL_FULL_TREE;
    }
    match missed {
        false => ExitCode::SUCCESS,
        true => {
            eprintln!("a goal is missed: {GOAL:?}, and {GOAL_FULL_TREE:?} in the full tree");
            ExitCode::FAILURE
        }
    }
}

/// The median time of a plan.
fn measure(engine: &Engine, name: &str, asked: &Prompt) -> Duration {
    let salt = Salt::default();
    let reused = engine.plan(asked, &salt).expect("fits").reused;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let plan = engine.plan(asked, &salt).expect("fits");
            assert_eq!(plan.reused, reused);
            start.elapsed()
        })
        .collect();
    times.sort();
    let (median, late) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    println!(
        "{name:<36} {reused:>7} {:>10.1} {:>10.1}",
        us(median),
        us(late)
    );
    median
}
