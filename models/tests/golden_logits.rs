//! Logits of tiny models in f32 against the Python package `transformers`, which shares nothing with
//! this program: neither the file, nor its reader, nor any arithmetic. `tests/golden/make_tiny.py`
//! made the numbers.
//!
//! They catch what agrees with itself and is wrong: the other style of rotation, a query head that
//! reads the wrong keys, a bias left out, Llama 3's factors ignored.

use std::path::PathBuf;

use kernels::KvType;
use models::config::Family;
use models::device::Device;
use models::forward::{LogitRows, SeqStep};
use models::load::{LoadOptions, load_forward};
use models::tiny::{TinySpec, tiny_model};
use serde_json::Value;

/// Of the range of the logits.
const DIFFERENCE_MAX: f32 = 1e-4;

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn spec(case: &Value, sizes: &Value) -> TinySpec {
    let size = |key: &str| sizes[key].as_u64().expect("a size") as usize;
    let factors = case["rope_factors"].as_array();
    TinySpec {
        family: match case["family"].as_str() {
            Some("llama") => Family::Llama,
            Some("qwen2") => Family::Qwen2,
            other => panic!("family {other:?}"),
        },
        layers: size("layers"),
        d_model: size("d_model"),
        q_heads: size("q_heads"),
        kv_heads: size("kv_heads"),
        d_ff: size("d_ff"),
        vocab: size("vocab"),
        context: size("context"),
        tied: case["tied"].as_bool().expect("tied"),
        rope_base: case["rope_base"].as_f64().expect("a base") as f32,
        rope_factors: factors.map(|list| {
            list.iter()
                .map(|f| f.as_f64().expect("a factor") as f32)
                .collect()
        }),
        seed: case["seed"].as_u64().expect("a seed"),
        ..TinySpec::default()
    }
}

fn our_logits(spec: &TinySpec, tokens: &[u32]) -> Vec<f32> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tiny.gguf");
    tiny_model(&path, spec).expect("a tiny model");
    let device = Device::Cpu { threads: 1 };
    let options = LoadOptions {
        device,
        kv_type: KvType::F32,
        digest_cache: None,
    };
    let mut model = load_forward(&path, &options, &|_| {})
        .expect("it loads")
        .forward;
    let mut kv = model.new_kv(2).expect("memory for KV");
    let step = SeqStep {
        tokens,
        start: 0,
        table: &[1, 0],
        logits: LogitRows::All,
    };
    model.forward(&[step], &mut kv).expect("a pass").data
}

#[test]
fn tiny_models_give_the_logits_that_transformers_gives() {
    let golden_cases: Value = serde_json::from_slice(&golden("tiny.json")).expect("JSON");
    let tokens = golden_cases["tokens"].as_array().expect("tokens");
    let tokens: Vec<u32> = tokens
        .iter()
        .map(|t| t.as_u64().expect("an id") as u32)
        .collect();
    assert_eq!(tokens.len(), 64);
    let cases = golden_cases["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 4);
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let expected = golden(&format!("{name}.f32"));
        let expected: Vec<f32> = expected
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let ours = our_logits(&spec(case, &golden_cases), &tokens);
        assert_eq!(ours.len(), expected.len(), "{name}");

        let (low, high) = expected
            .iter()
            .fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        let vocab = expected.len() / tokens.len();
        for (position, (ours, expected)) in
            ours.chunks(vocab).zip(expected.chunks(vocab)).enumerate()
        {
            let worst = ours
                .iter()
                .zip(expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0f32, f32::max);
            let relative = worst / (high - low);
            assert!(
                relative <= DIFFERENCE_MAX,
                "{name} at position {position}: {relative}"
            );
        }
    }
}
