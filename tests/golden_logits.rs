//! Logits against an independent program: the Python package `transformers` computed those in
//! `tests/golden` once, from the same weights made by the same formula, without reading a GGUF file
//! (`tests/golden/make_tiny.py`). Reader, tensor layout, RoPE, attention and the rest either agree
//! with it at every position, or something is wrong on one side.
//!
//! Why also without the factors: a model that ignores `rope_freqs.weight` is right on short prompts
//! and gibberish on long ones (llama.cpp#8676), so the test shows that they matter here.

use std::path::Path;

use kernels::KvType;
use models::config::Family;
use models::device::Device;
use models::forward::{LogitRows, Logits, SeqStep};
use models::load::{LoadOptions, load_forward};
use models::tiny::{TinySpec, tiny_model};
use serde::Deserialize;

/// Largest difference, as a share of the range of the logits at the same position.
const DIFFERENCE_MAX: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    layers: usize,
    d_model: usize,
    q_heads: usize,
    kv_heads: usize,
    d_ff: usize,
    vocab: usize,
    context: usize,
    tokens: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    family: String,
    tied: bool,
    rope_base: f32,
    seed: u64,
    rope_factors: Option<Vec<f32>>,
    window: Option<(usize, usize)>,
}

fn golden_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn golden() -> Golden {
    let text = std::fs::read(golden_dir().join("tiny.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// What `transformers` computed: [positions, vocab].
fn expected(golden: &Golden, case: &Case) -> Logits {
    let bytes = std::fs::read(golden_dir().join(format!("{}.f32", case.name))).unwrap();
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    let data: Vec<f32> = chunks
        .iter()
        .map(|chunk| f32::from_le_bytes(*chunk))
        .collect();
    assert_eq!(data.len(), golden.tokens.len() * golden.vocab);
    Logits {
        vocab: golden.vocab,
        data,
        rows_computed: 0,
    }
}

fn spec(golden: &Golden, case: &Case) -> TinySpec {
    let family = Family::ALL
        .into_iter()
        .find(|family| family.name() == case.family);
    TinySpec {
        family: family.unwrap(),
        layers: golden.layers,
        d_model: golden.d_model,
        q_heads: golden.q_heads,
        kv_heads: golden.kv_heads,
        d_ff: golden.d_ff,
        vocab: golden.vocab,
        context: golden.context,
        tied: case.tied,
        rope_base: case.rope_base,
        rope_factors: case.rope_factors.clone(),
        window: case.window,
        seed: case.seed,
        ..TinySpec::default()
    }
}

/// Our logits of all positions, the tokens given in chunks of these sizes.
fn computed(spec: &TinySpec, tokens: &[u32], chunks: &[usize]) -> Logits {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    tiny_model(&path, spec).unwrap();
    let options = LoadOptions {
        device: Device::Cpu { threads: 2 },
        kv_type: KvType::F32,
        ..LoadOptions::default()
    };
    let mut model = load_forward(&path, &options, &|_| {}).unwrap().forward;
    let blocks = tokens.len().div_ceil(kernels::BLOCK_TOKENS);
    let mut kv = model.new_kv(blocks, blocks).unwrap();
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let mut all = Logits {
        vocab: spec.vocab,
        ..Logits::default()
    };
    let mut start = 0;
    for &length in chunks {
        let tokens = &tokens[start..start + length];
        let step = SeqStep {
            tokens,
            start,
            table: &table,
            window_table: &table,
            logits: LogitRows::All,
        };
        let logits = model.forward(&[step], &mut kv).unwrap();
        all.data.extend(logits.data);
        all.rows_computed += logits.rows_computed;
        start += length;
    }
    all
}

/// The largest difference at any position, over the range of the expected logits there.
fn difference(expected: &Logits, computed: &Logits) -> f32 {
    assert_eq!(expected.rows(), computed.rows());
    assert_eq!(computed.rows_computed, computed.rows());
    let of_row = |row: usize| {
        let (want, have) = (expected.row(row), computed.row(row));
        let low = want.iter().copied().fold(f32::INFINITY, f32::min);
        let high = want.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let worst = want
            .iter()
            .zip(have)
            .map(|(w, h)| (w - h).abs())
            .fold(0.0, f32::max);
        assert!(high - low > 1.0, "row {row} has a range of {}", high - low);
        assert!(have.iter().all(|value| value.is_finite()), "row {row}");
        worst / (high - low)
    };
    (0..expected.rows()).map(of_row).fold(0.0, f32::max)
}

#[test]
fn logits_are_those_of_transformers_at_every_position() {
    let golden = golden();
    assert_eq!(golden.tokens.len(), 64);
    let mut seen = Vec::new();
    for case in &golden.cases {
        let expected = expected(&golden, case);
        let spec = spec(&golden, case);
        for chunks in [&[64][..], &[1, 30, 2, 31]] {
            let computed = computed(&spec, &golden.tokens, chunks);
            let worst = difference(&expected, &computed);
            println!(
                "{} in chunks {chunks:?}: {worst:.2e} of the range",
                case.name
            );
            assert!(worst <= DIFFERENCE_MAX, "{}: {worst}", case.name);
        }
        seen.push((case.family.as_str(), case.tied, case.rope_factors.is_some()));
    }
    seen.sort_unstable();
    let kinds = [
        ("gemma3", false, false),
        ("llama", false, false),
        ("llama", true, true),
        ("qwen2", false, false),
        ("qwen2", true, false),
    ];
    assert_eq!(seen, kinds, "all kinds were compared");
}

#[test]
fn without_its_rope_factors_a_model_computes_something_else() {
    let golden = golden();
    let case = golden
        .cases
        .iter()
        .find(|case| case.rope_factors.is_some())
        .unwrap();
    let without = TinySpec {
        rope_factors: None,
        ..spec(&golden, case)
    };
    let computed = computed(&without, &golden.tokens, &[64]);
    let worst = difference(&expected(&golden, case), &computed);
    assert!(worst > 100.0 * DIFFERENCE_MAX, "{worst}");
}
