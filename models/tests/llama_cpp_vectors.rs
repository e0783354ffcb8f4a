//! The vocabulary vectors of llama.cpp: `ggml-vocab-*.gguf` with `.inp` texts and `.out` ids.
//!
//! They are not ours to ship. To run: download the source package `llama-cpp-python` 0.3.36, unpack
//! it, and
//! `OSTLER_LLAMA_VOCABS=.../vendor/llama.cpp/models cargo test -p ostler-models --test llama_cpp_vectors -- --ignored`

use std::path::PathBuf;

use models::gguf::Gguf;
use models::tokenizer::{Specials, Tokenizer};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// The vocabularies whose kind is supported, and how many texts each has.
const NAMES: &[(&str, usize)] = &[
    ("gpt-2", 46),
    ("llama-bpe", 46),
    ("qwen2", 46),
    ("qwen35", 46),
    ("llama-spm", 46),
    ("phi-3", 46),
    ("starcoder", 46),
    ("refact", 46),
    ("command-r", 46),
    ("falcon", 46),
    ("mpt", 46),
];

#[test]
#[ignore = "needs llama.cpp's vocabularies"]
fn ids_are_those_of_llama_cpp() {
    let folder =
        std::env::var_os("OSTLER_LLAMA_VOCABS").expect("OSTLER_LLAMA_VOCABS names the folder");
    let folder = PathBuf::from(folder);
    let mut wrong = Vec::new();
    for (name, count) in NAMES {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let started = std::time::Instant::now();
        let gguf = Gguf::open(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let loaded = started.elapsed();
        let read = |end: &str| {
            std::fs::read_to_string(path.with_extension(format!("gguf.{end}"))).unwrap()
        };
        let (texts, ids) = (read("inp"), read("out"));
        // The texts have one more, empty, behind the last separator.
        let rows: Vec<(&str, &str)> = texts.split(SEPARATOR).zip(ids.lines()).collect();
        let mut good = 0;
        for (text, ids) in &rows {
            let want: Vec<u32> = ids
                .split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect();
            let got = tokenizer.encode(text, Specials::Plain);
            if got == want {
                good += 1;
            } else {
                wrong.push(format!("{name} {text:?}\n  want {want:?}\n  have {got:?}"));
            }
            assert_eq!(tokenizer.decode(&got), *text, "{name}");
        }
        println!(
            "{name}: {good}/{} right, loaded in {loaded:?}, {:?}",
            rows.len(),
            tokenizer.warnings()
        );
        assert!(rows.len() >= *count, "{name} has {} texts", rows.len());
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
