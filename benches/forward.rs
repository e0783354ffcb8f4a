//! The forward pass against candle-transformers' quantized_llama, on the same file.
//!
//! ```text
//! cargo bench --bench forward -- MODEL.gguf [--threads 2] [--rounds 5]
//! ```
//!
//! Each measurement is a process of its own, and the two engines take turns: neither sees the
//! other's threads or caches, and a machine that slows down slows both. Compare the ratios; the
//! absolute figures move with whatever else the machine does. Prints one CSV line a figure:
//! medians in tokens a second.

mod options;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use candle_core::quantized::gguf_file;
use candle_core::{Device as CandleDevice, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use models::device::Device;
use models::forward::{Forward, KvStore, LogitRows, SeqStep};
use models::load::{LoadOptions, load_forward};
use options::{Options, arguments};

const PREFILL_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 64;
const FIGURES: [&str; 3] = ["prefill 512", "decode 64 at 0", "decode 64 at 512"];
const ENGINES: [&str; 2] = ["ostler", "candle"];
/// The child's only argument list: engine, model, threads.
const CHILD: &str = "--measure";

fn main() {
    if let [flag, engine, model, threads] = arguments().as_slice()
        && flag == CHILD
    {
        let threads = threads.parse().expect("a number of threads");
        let [prefill, shallow, deep] = match engine.as_str() {
            "ostler" => measure(&mut Ours::load(Path::new(model), threads)),
            _ => measure(&mut Candle::load(Path::new(model))),
        };
        println!("{prefill} {shallow} {deep}");
        return;
    }
    let options = Options::read_or_exit("forward", &["--threads", "--rounds"]);
    compare(&Settings {
        threads: options.number_or_exit("--threads", 2),
        rounds: options.number_or_exit("--rounds", 5),
        model: options.file,
    });
}

struct Settings {
    model: PathBuf,
    threads: usize,
    rounds: usize,
}

fn compare(options: &Settings) {
    // [engine][figure][round]
    let mut seen: [[Vec<f64>; 3]; 2] = Default::default();
    for _ in 0..options.rounds {
        for (engine, seen) in ENGINES.iter().zip(&mut seen) {
            let figures = measure_in_child(engine, options);
            seen.iter_mut()
                .zip(figures)
                .for_each(|(seen, figure)| seen.push(figure));
        }
    }
    let name = options
        .model
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    println!("model,threads,work,ostler_tok_s,candle_tok_s,ratio");
    for (figure, work) in FIGURES.iter().enumerate() {
        let [ours, theirs] = [0, 1].map(|engine| median(&mut seen[engine][figure]));
        let ratio = ours / theirs;
        println!(
            "{name},{},{work},{ours:.1},{theirs:.1},{ratio:.2}",
            options.threads
        );
    }
}

fn measure_in_child(engine: &str, options: &Settings) -> [f64; 3] {
    let threads = options.threads.to_string();
    let output = Command::new(std::env::current_exe().expect("this program's path"))
        .args([CHILD, engine])
        .arg(&options.model)
        .arg(&threads)
        .env("RAYON_NUM_THREADS", &threads)
        .output()
        .expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    figures.try_into().unwrap_or_else(|_| {
        panic!(
            "{engine} failed: {}{}",
            text,
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// An engine that reads tokens at a position and gives the last one's logits.
trait Runs {
    fn vocab(&self) -> usize;
    fn run(&mut self, tokens: &[u32], start: usize);
}

/// Tokens a second of each figure.
fn measure(engine: &mut dyn Runs) -> [f64; 3] {
    let vocab = engine.vocab() as u32;
    let tokens: Vec<u32> = (0..1024)
        .map(|i: u32| i.wrapping_mul(2_654_435_761) % vocab)
        .collect();
    let decode = |engine: &mut dyn Runs, start: usize| {
        let clock = Instant::now();
        for position in start..start + DECODE_TOKENS {
            engine.run(&tokens[position..=position], position);
        }
        DECODE_TOKENS as f64 / clock.elapsed().as_secs_f64()
    };
    // Warms the caches, and what either engine prepares at its first pass.
    engine.run(&tokens[..64], 0);
    let shallow = decode(engine, 0);
    let clock = Instant::now();
    engine.run(&tokens[..PREFILL_TOKENS], 0);
    let prefill = PREFILL_TOKENS as f64 / clock.elapsed().as_secs_f64();
    let deep = decode(engine, PREFILL_TOKENS);
    [prefill, shallow, deep]
}

struct Ours {
    model: Box<dyn Forward>,
    kv: KvStore,
    table: Vec<u32>,
}

impl Ours {
    fn load(path: &Path, threads: usize) -> Self {
        let options = LoadOptions {
            device: Device::Cpu { threads },
            ..LoadOptions::default()
        };
        let model = load_forward(path, &options, &|_| {})
            .expect("the model loads")
            .forward;
        let blocks = (PREFILL_TOKENS + DECODE_TOKENS).div_ceil(32);
        let kv = model.new_kv(blocks, blocks).expect("memory for KV");
        Self {
            model,
            kv,
            table: (0..blocks as u32).collect(),
        }
    }
}

impl Runs for Ours {
    fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    fn run(&mut self, tokens: &[u32], start: usize) {
        let step = SeqStep {
            tokens,
            start,
            table: &self.table,
            window_table: &self.table,
            logits: LogitRows::Last,
        };
        let logits = self.model.forward(&[step], &mut self.kv).expect("a pass");
        assert_eq!((logits.rows(), logits.rows_computed), (1, tokens.len()));
    }
}

struct Candle {
    model: ModelWeights,
    vocab: usize,
}

impl Candle {
    fn load(path: &Path) -> Self {
        let mut file = std::fs::File::open(path).expect("the model opens");
        let content = gguf_file::Content::read(&mut file).expect("a GGUF header");
        let vocab = content.tensor_infos["token_embd.weight"].shape.dims()[0];
        let model = ModelWeights::from_gguf(content, &mut file, &CandleDevice::Cpu);
        Self {
            model: model.expect("candle loads the model"),
            vocab,
        }
    }
}

impl Runs for Candle {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn run(&mut self, tokens: &[u32], start: usize) {
        let tokens = Tensor::new(tokens, &CandleDevice::Cpu).and_then(|t| t.unsqueeze(0));
        let logits = self
            .model
            .forward(&tokens.expect("a tensor"), start)
            .expect("a pass");
        assert_eq!(logits.elem_count(), self.vocab);
    }
}
