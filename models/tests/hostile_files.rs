//! Hostile and damaged model files: each gets an error that names what is wrong, within a second and
//! without much memory. One test binary of its own, since it looks at the memory of the process.
//!
//! The stories behind the cases: readers that trust a length from the header allocate it
//! (ollama#17032), loop over 2^64 elements, recurse 20,000 arrays deep until the stack is gone
//! (ggml#709), divide by a head count of zero (ollama#7802), read behind the mapping (ollama#16236),
//! or take the bytes of a u8 array for i32 (llama.cpp#26690).

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use models::config::{Config, Family};
use models::gguf::write::{Meta, Writer};
use models::gguf::{Gguf, ValueType};
use models::tiny::{TinySpec, TinyTokenizer};
use models::{Blame, Error};
use proptest::prelude::*;

const SECONDS_MAX: Duration = Duration::from_secs(1);
const EXTRA_BYTES_MAX: u64 = 64 << 20;

struct Case {
    name: &'static str,
    file: Vec<u8>,
    /// What the error must say.
    says: &'static [&'static str],
}

fn case(name: &'static str, file: Vec<u8>, says: &'static [&'static str]) -> Case {
    Case { name, file, says }
}

/// Opens a file and reads the configuration, as loading does before it allocates anything.
fn load(path: &Path) -> Result<Config, Error> {
    let model = Gguf::open(path)?;
    Config::from_gguf(&model)
}

#[test]
fn each_hostile_file_gets_a_clear_error_at_once() {
    let cases: Vec<Case> = [
        no_models(),
        lengths_and_counts(),
        values_and_keys(),
        tensor_tables(),
        data_places(),
        alignments(),
        sizes(),
        rope(),
        inventories(),
        vocabularies(),
    ]
    .into_iter()
    .flatten()
    .collect();
    assert!(cases.len() > 90, "only {} cases", cases.len());
    let dir = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    let before = peak_bytes();
    for case in &cases {
        let path = dir.path().join(format!("{}.gguf", case.name));
        std::fs::write(&path, &case.file).unwrap();
        let start = Instant::now();
        let result = load(&path);
        let took = start.elapsed();
        let said = match result {
            Ok(_) => "LOADED".to_owned(),
            Err(error) => {
                assert_eq!(error.blame(), Blame::Input, "{}: {error}", case.name);
                error.to_string()
            }
        };
        let silent: Vec<_> = case
            .says
            .iter()
            .filter(|part| !said.contains(**part))
            .collect();
        if !silent.is_empty() {
            failures.push(format!("{}: does not say {silent:?}: {said}", case.name));
        }
        if !said.contains(&format!("{}.gguf", case.name)) {
            failures.push(format!("{}: does not name the file: {said}", case.name));
        }
        if said.len() > 1000 || took > SECONDS_MAX {
            failures.push(format!("{}: {} bytes, {took:?}", case.name, said.len()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let extra = peak_bytes().saturating_sub(before);
    assert!(extra < EXTRA_BYTES_MAX, "{extra} bytes more at the peak");
}

/// The most memory this process has held, 0 where the system does not say.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| {
        rest.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}

// What a header is made of.

fn head(tensors: u64, pairs: u64) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(tensors.to_le_bytes());
    out.extend(pairs.to_le_bytes());
    out
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// A file with one pair: the key, the number of its type, and the raw value.
fn pair(key: &[u8], ty: u32, value: &[u8]) -> Vec<u8> {
    let mut out = head(0, 1);
    text(&mut out, key);
    out.extend(ty.to_le_bytes());
    out.extend(value);
    out
}

fn array_head(element: u32, count: u64) -> Vec<u8> {
    [&element.to_le_bytes()[..], &count.to_le_bytes()].concat()
}

/// A small model that loads, changed.
fn model(change: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = spec().writer().unwrap();
    change(&mut writer);
    writer.to_bytes()
}

fn spec() -> TinySpec {
    TinySpec {
        d_model: 32,
        d_ff: 32,
        ..TinySpec::default()
    }
}

fn with(key: &'static str, value: impl Into<Meta>) -> Vec<u8> {
    model(|writer| {
        writer.set(key, value);
    })
}

fn no_models() -> Vec<Case> {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 98362432\n";
    let mut big_endian = b"GGUF\0\0\0\x03".to_vec();
    big_endian.extend(20_u64.to_be_bytes());
    big_endian.extend(21_u64.to_be_bytes());
    vec![
        case("empty", vec![], &["not a GGUF file", "0 bytes"]),
        case(
            "three-bytes",
            b"GGU".to_vec(),
            &["not a GGUF file", "3 bytes"],
        ),
        case("magic-alone", b"GGUF".to_vec(), &["version", "cut short"]),
        case(
            "other-magic",
            b"GGXF\x03\0\0\0".to_vec(),
            &["not a GGUF file", "GGXF"],
        ),
        case(
            "escape-magic",
            b"\x1b[2J....".to_vec(),
            &["not a GGUF file", "\\u{1b}"],
        ),
        case(
            "lfs-pointer",
            pointer.into(),
            &["Git LFS pointer", "git lfs pull"],
        ),
        case("web-page", b"<!DOCTYPE html><html>".to_vec(), &["web page"]),
        case("zip", b"PK\x03\x04....".to_vec(), &["zip archive"]),
        case("old-ggml", b"tjgg\x03\0\0\0".to_vec(), &["old GGML"]),
        case(
            "version-99",
            b"GGUF\x63\0\0\0".to_vec(),
            &["version 99", "2 and 3"],
        ),
        case("version-1", b"GGUF\x01\0\0\0".to_vec(), &["version 1"]),
        case("big-endian", big_endian, &["big-endian", "version 3"]),
    ]
}

fn lengths_and_counts() -> Vec<Case> {
    let long_key = |length: u64| [head(0, 1), length.to_le_bytes().to_vec(), vec![0; 32]].concat();
    let mut nested = array_head(9, 1);
    for _ in 0..20_000 {
        nested.extend(array_head(9, 1));
    }
    vec![
        case(
            "key-huge",
            long_key(i64::MAX as u64),
            &["key number 0", "9223372036854775807"],
        ),
        case(
            "key-max",
            long_key(u64::MAX),
            &["key number 0", "18446744073709551615"],
        ),
        case(
            "key-over",
            pair(&[b'k'; 70_000], 4, &[0; 4]),
            &["70000 bytes", "65535"],
        ),
        case(
            "string-huge",
            pair(b"k", 8, &(1_u64 << 62).to_le_bytes()),
            &["\"k\"", "string"],
        ),
        case(
            "array-max",
            pair(b"k", 9, &array_head(4, u64::MAX)),
            &["\"k\"", "array"],
        ),
        case(
            "array-strings",
            pair(b"k", 9, &array_head(8, 1 << 30)),
            &["\"k\"", "8589934592"],
        ),
        case(
            "array-inside",
            pair(b"k", 9, &array_head(9, 1 << 40)),
            &["\"k\"", "array"],
        ),
        case(
            "array-nested",
            pair(b"deep", 9, &nested),
            &["\"deep\"", "nested"],
        ),
        case(
            "array-type",
            pair(b"k", 9, &array_head(77, 1)),
            &["\"k\"", "type 77"],
        ),
        case("pairs-max", head(0, u64::MAX), &["metadata pairs", "65536"]),
        case(
            "pairs-some",
            head(0, 60_000),
            &["60000 metadata pairs", "780000 bytes", "have 0"],
        ),
        case("tensors-max", head(u64::MAX, 0), &["tensors", "65536"]),
        case(
            "tensors-some",
            head(60_000, 0),
            &["60000 tensors", "have 0"],
        ),
        case(
            "cut-in-header",
            model(|_| {})[..700].to_vec(),
            &["metadata key", "cut short"],
        ),
        case("cut-in-table", cut_in_table(), &["tensor", "cut short"]),
    ]
}

/// Ends a few bytes before the data section.
fn cut_in_table() -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "llama")
        .tensor_f32("a", &[8], &[0.0; 8]);
    let mut file = writer.to_bytes();
    let name = file
        .windows(9)
        .position(|w| w == b"\x01\0\0\0\0\0\0\0a")
        .unwrap();
    file.truncate(name + 20);
    file
}

fn values_and_keys() -> Vec<Case> {
    let bools = [array_head(7, 3), vec![0, 1, 2]].concat();
    let twice = model(|w| w.pairs.push(("llama.block_count".into(), Meta::U32(1))));
    vec![
        case("type-99", pair(b"k", 99, &[0]), &["\"k\"", "type 99"]),
        case(
            "type-escape",
            pair(b"k\x1b]0;x", 99, &[0]),
            &["k\\u{1b}]0;x", "type 99"],
        ),
        case("bool-7", pair(b"flag", 7, &[7]), &["\"flag\"", "bool", "7"]),
        case(
            "bools-2",
            pair(b"flags", 9, &bools),
            &["\"flags\"", "bool", "2"],
        ),
        case(
            "key-bytes",
            pair(b"k\xff\xfe", 4, &[0; 4]),
            &["key number 0", "not UTF-8"],
        ),
        case("key-twice", twice, &["\"llama.block_count\"", "twice"]),
    ]
}

fn tensor_tables() -> Vec<Case> {
    let norm = |change: fn(&mut models::gguf::write::TensorData)| {
        model(|w| change(w.tensor_mut("output_norm.weight").unwrap()))
    };
    let row = |ty: u32, cols: u64| {
        model(|w| {
            let tensor = w.tensor_mut("blk.0.ffn_up.weight").unwrap();
            (tensor.type_id, tensor.dims) = (ty, vec![cols, 32]);
        })
    };
    let named = |name: &str| {
        let name = name.to_owned();
        model(move |w| w.tensor_mut("output_norm.weight").unwrap().name = name)
    };
    let twice = model(|w| {
        let copy = w.tensors[1].clone();
        w.tensors.push(copy);
    });
    const NORM: &str = "\"output_norm.weight\"";
    const UP: &str = "\"blk.0.ffn_up.weight\"";
    vec![
        case(
            "dims-none",
            norm(|t| t.dims = vec![]),
            &[NORM, "0 dimensions"],
        ),
        case(
            "dims-nine",
            norm(|t| t.dims = vec![1; 9]),
            &[NORM, "9 dimensions"],
        ),
        case("dim-zero", norm(|t| t.dims = vec![32, 0]), &[NORM, "0"]),
        case(
            "dims-over",
            norm(|t| t.dims = vec![1 << 40, 1 << 40]),
            &[NORM, "64 bits"],
        ),
        case("bytes-over", norm(|t| t.dims = vec![1 << 62, 2]), &[NORM]),
        case(
            "type-200",
            norm(|t| t.type_id = 200),
            &[NORM, "type 200", "Q4_K"],
        ),
        case("type-removed", norm(|t| t.type_id = 4), &[NORM, "type 4"]),
        case(
            "type-iq4",
            norm(|t| t.type_id = 20),
            &[NORM, "IQ4_NL", "not supported"],
        ),
        case("row-31", row(8, 31), &[UP, "31", "Q8_0"]),
        case("row-k", row(12, 32), &[UP, "32", "Q4_K", "256"]),
        case("name-none", named(""), &["tensor number 19", "0 bytes"]),
        case(
            "name-long",
            named(&"n".repeat(300)),
            &["tensor number 19", "300 bytes"],
        ),
        case(
            "tensor-twice",
            twice,
            &["\"blk.0.attn_norm.weight\"", "twice"],
        ),
    ]
}

fn data_places() -> Vec<Case> {
    let at =
        |offset: u64| model(|w| w.tensor_mut("output_norm.weight").unwrap().offset = Some(offset));
    let whole = model(|_| {});
    let half = whole[..whole.len() - 4096].to_vec();
    let parts = spec().writer().unwrap().to_split("m", 3);
    let glued: Vec<u8> = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
    const NORM: &str = "\"output_norm.weight\"";
    vec![
        case("offset-far", at(1 << 40), &[NORM, "need a file of", "have"]),
        case("offset-max", at(u64::MAX - 31), &[NORM, "need a file of"]),
        case("offset-odd", at(36), &[NORM, "offset 36", "alignment, 32"]),
        case(
            "overlap",
            at(0),
            &["\"token_embd.weight\"", NORM, "before the end"],
        ),
        case("half", half, &["need a file of", "cut short"]),
        case("glued", glued, &["second GGUF header", "split", "glued"]),
    ]
}

fn alignments() -> Vec<Case> {
    const KEY: &str = "general.alignment";
    vec![
        case("align-0", with(KEY, 0), &[KEY, "have 0"]),
        case("align-3", with(KEY, 3), &[KEY, "have 3"]),
        case("align-4", with(KEY, 4), &[KEY, "have 4"]),
        case("align-max", with(KEY, u32::MAX), &[KEY, "4294967295"]),
        case(
            "align-i32",
            with(KEY, Meta::I32(32)),
            &[KEY, "need u32", "i32"],
        ),
        case("align-text", with(KEY, "32"), &[KEY, "string"]),
    ]
}

fn sizes() -> Vec<Case> {
    let heads = Meta::Array(ValueType::U32, vec![Meta::U32(4), Meta::U32(4)]);
    let no_arch = model(|w| {
        w.unset("general.architecture");
    });
    let no_heads = model(|w| {
        w.unset("llama.attention.head_count");
    });
    let nan = f32::NAN;
    vec![
        case(
            "arch-none",
            no_arch,
            &["\"general.architecture\"", "missing"],
        ),
        case(
            "arch-other",
            with("general.architecture", "nope"),
            &["nope", "llama, qwen2"],
        ),
        case(
            "arch-number",
            with("general.architecture", 7),
            &["general.architecture", "u32"],
        ),
        case(
            "heads-none",
            no_heads,
            &["llama.attention.head_count", "missing"],
        ),
        case(
            "heads-0",
            with("llama.attention.head_count", 0),
            &["llama.attention.head_count", "0"],
        ),
        case(
            "heads-each",
            with("llama.attention.head_count", heads),
            &["head_count", "array of 2"],
        ),
        case(
            "heads-5",
            with("llama.attention.head_count", 5),
            &["head_count", "divide"],
        ),
        case(
            "kv-0",
            with("llama.attention.head_count_kv", 0),
            &["head_count_kv", "0"],
        ),
        case(
            "kv-3",
            with("llama.attention.head_count_kv", 3),
            &["head_count_kv", "divide"],
        ),
        case(
            "key-15",
            with("llama.attention.key_length", 15),
            &["key_length", "even"],
        ),
        case(
            "key-4g",
            with("llama.attention.key_length", u32::MAX - 1),
            &["key_length", "512"],
        ),
        case(
            "value-16",
            with("llama.attention.value_length", 16),
            &["value_length", "equal"],
        ),
        case(
            "layers-0",
            with("llama.block_count", 0),
            &["llama.block_count", "0"],
        ),
        case(
            "layers-text",
            with("llama.block_count", "two"),
            &["llama.block_count", "string"],
        ),
        case(
            "layers-minus",
            with("llama.block_count", Meta::I32(-1)),
            &["block_count", "i32"],
        ),
        case(
            "layers-4g",
            with("llama.block_count", u32::MAX),
            &["blk.2.", "missing"],
        ),
        case(
            "layers-max",
            with("llama.block_count", Meta::U64(u64::MAX)),
            &["blk.2.", "missing"],
        ),
        case(
            "layers-1",
            with("llama.block_count", 1),
            &["blk.1.", "not part of"],
        ),
        case(
            "width-0",
            with("llama.embedding_length", 0),
            &["llama.embedding_length", "0"],
        ),
        case(
            "width-64",
            with("llama.embedding_length", 64),
            &["token_embd.weight", "[64, "],
        ),
        case(
            "ff-0",
            with("llama.feed_forward_length", 0),
            &["feed_forward_length", "0"],
        ),
        case(
            "ff-64",
            with("llama.feed_forward_length", 64),
            &["blk.0.ffn_gate.weight", "[32, 64]"],
        ),
        case(
            "context-0",
            with("llama.context_length", 0),
            &["llama.context_length", "0"],
        ),
        case(
            "context-4g",
            with("llama.context_length", u32::MAX),
            &["context_length", "16777216"],
        ),
        case(
            "eps-0",
            with("llama.attention.layer_norm_rms_epsilon", 0.0),
            &["epsilon", "above 0"],
        ),
        case(
            "eps-nan",
            with("llama.attention.layer_norm_rms_epsilon", nan),
            &["epsilon", "NaN"],
        ),
        case(
            "experts",
            with("llama.expert_count", 8),
            &["llama.expert_count", "8", "implemented"],
        ),
        case(
            "softcap",
            with("llama.attn_logit_softcapping", 50.0),
            &["softcapping", "50"],
        ),
        case(
            "both-ways",
            with("llama.attention.causal", false),
            &["attention.causal", "false"],
        ),
        case(
            "scale",
            with("llama.attention.scale", 0.5),
            &["attention.scale", "0.5"],
        ),
    ]
}

fn rope() -> Vec<Case> {
    let factors = |values: &[f32]| {
        let spec = TinySpec {
            rope_factors: Some(values.to_vec()),
            ..spec()
        };
        spec.writer().unwrap().to_bytes()
    };
    vec![
        case(
            "rope-odd",
            with("llama.rope.dimension_count", 7),
            &["dimension_count", "even"],
        ),
        case(
            "rope-0",
            with("llama.rope.dimension_count", 0),
            &["dimension_count", "0"],
        ),
        case(
            "rope-wide",
            with("llama.rope.dimension_count", 16),
            &["dimension_count", "head's 8"],
        ),
        case(
            "base-0",
            with("llama.rope.freq_base", 0.0),
            &["llama.rope.freq_base", "above 0"],
        ),
        case(
            "base-inf",
            with("llama.rope.freq_base", f32::INFINITY),
            &["freq_base", "inf"],
        ),
        case(
            "yarn",
            with("llama.rope.scaling.type", "yarn"),
            &["scaling.type", "yarn", "linear"],
        ),
        case(
            "scale-0",
            with("llama.rope.scaling.factor", 0.0),
            &["scaling.factor", "above 0"],
        ),
        case(
            "factors-3",
            factors(&[1.0; 3]),
            &["rope_freqs.weight", "[4]", "[3]"],
        ),
        case(
            "factors-0",
            factors(&[1.0, 0.0, 1.0, 1.0]),
            &["rope_freqs.weight", "factor 1"],
        ),
        case(
            "factors-nan",
            factors(&[1.0, 1.0, f32::NAN, 1.0]),
            &["rope_freqs", "factor 2"],
        ),
    ]
}

fn inventories() -> Vec<Case> {
    let without = |name: &'static str| model(move |w| w.tensors.retain(|t| t.name != name));
    let extra = |name: &'static str| {
        model(move |w| {
            w.tensor_f32(name, &[32], &[0.0; 32]);
        })
    };
    let one_bias = TinySpec {
        family: Family::Qwen2,
        ..spec()
    };
    let mut one_bias = one_bias.writer().unwrap();
    one_bias.tensors.retain(|t| t.name != "blk.1.attn_v.bias");
    vec![
        case(
            "none",
            without_tensors(),
            &["token_embd.weight", "0 tensors"],
        ),
        case(
            "no-embedding",
            without("token_embd.weight"),
            &["token_embd.weight", "missing"],
        ),
        case(
            "no-norm",
            without("output_norm.weight"),
            &["output_norm.weight", "missing"],
        ),
        case(
            "no-up",
            without("blk.1.ffn_up.weight"),
            &["blk.1.ffn_up.weight", "missing"],
        ),
        case(
            "no-bias",
            one_bias.to_bytes(),
            &["blk.1.attn_v.bias", "missing"],
        ),
        case(
            "q-norm",
            extra("blk.0.attn_q_norm.weight"),
            &["attn_q_norm.weight", "not part of"],
        ),
        case(
            "out-bias",
            extra("blk.0.attn_output.bias"),
            &["attn_output.bias", "not part of"],
        ),
    ]
}

fn without_tensors() -> Vec<u8> {
    model(|writer| writer.tensors.clear())
}

fn vocabularies() -> Vec<Case> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    let u8s = |count: usize| Meta::Array(ValueType::U8, vec![Meta::U8(1); count]);
    let spm = TinySpec {
        tokenizer: TinyTokenizer::Spm,
        ..spec()
    };
    let scores = |value: Meta| {
        let mut writer = spm.writer().unwrap();
        writer.set("tokenizer.ggml.scores", value);
        writer.to_bytes()
    };
    let more = || (0..387).map(|i| format!("t{i}"));
    let no_tokens = model(|w| {
        w.unset(TOKENS);
    });
    vec![
        case("tokens-none", no_tokens, &[TOKENS, "missing"]),
        case(
            "tokens-387",
            with(TOKENS, Meta::strings(more())),
            &[TOKENS, "387", "384 rows"],
        ),
        case(
            "tokens-u8",
            with(TOKENS, u8s(384)),
            &[TOKENS, "array of 384 u8"],
        ),
        case(
            "types-u8",
            with(TYPES, u8s(384)),
            &[TYPES, "array of i32", "u8"],
        ),
        case(
            "types-short",
            with(TYPES, Meta::i32s(vec![1; 380])),
            &[TYPES, "384", "380"],
        ),
        case(
            "types-9",
            with(TYPES, Meta::i32s(vec![9; 384])),
            &[TYPES, "type 9"],
        ),
        case(
            "scores-u8",
            scores(u8s(384)),
            &["tokenizer.ggml.scores", "array of f32", "u8"],
        ),
        case(
            "scores-short",
            scores(Meta::f32s(vec![0.0; 3])),
            &["tokenizer.ggml.scores", "have 3"],
        ),
        case(
            "bos-out",
            with("tokenizer.ggml.bos_token_id", 384),
            &["bos_token_id", "384"],
        ),
        case(
            "eos-out",
            with("tokenizer.ggml.eos_token_id", u32::MAX),
            &["eos_token_id", "4294967"],
        ),
        case(
            "eos-text",
            with("tokenizer.ggml.eos_token_id", "</s>"),
            &["eos_token_id", "string"],
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever happens to a good file, reading it ends with a model or an error: no panic, no
    /// endless loop, no memory that the file could not fill.
    #[test]
    fn a_damaged_file_never_panics(
        flips in prop::collection::vec((0_usize..12_000, 0_u8..8), 0..4),
        words in prop::collection::vec((0_usize..12_000, any::<u64>()), 0..2),
        cut in prop::option::of(0_usize..40_000),
    ) {
        let mut file = good_file().clone();
        for (at, bit) in flips {
            file[at] ^= 1 << bit;
        }
        for (at, word) in words {
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        file.truncate(cut.unwrap_or(file.len()));
        let before = peak_bytes();
        let start = Instant::now();
        let path = Path::new("damaged.gguf");
        let result = Gguf::from_bytes(path, Bytes::from(file)).and_then(|m| Config::from_gguf(&m));
        if let Err(error) = result {
            prop_assert!(error.to_string().len() < 1000, "{}", error);
        }
        prop_assert!(start.elapsed() < SECONDS_MAX);
        prop_assert!(peak_bytes().saturating_sub(before) < EXTRA_BYTES_MAX);
    }
}

fn good_file() -> &'static Vec<u8> {
    static FILE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    FILE.get_or_init(|| {
        let file = model(|_| {});
        let opened = Gguf::from_bytes(Path::new("good.gguf"), Bytes::from(file.clone())).unwrap();
        Config::from_gguf(&opened).expect("the undamaged file loads");
        file
    })
}
