//! The tokenizers of real models against an independent reference: `tests/golden/tokenizer`.

mod common;

use std::path::Path;

use models::gguf::Gguf;
use models::tokenizer::{Specials, Tokenizer};

fn check(path: &Path, golden: &str) -> Tokenizer {
    let texts: Vec<String> =
        serde_json::from_str(include_str!("golden/tokenizer/texts.json")).unwrap();
    let ids: Vec<Vec<u32>> = serde_json::from_str(golden).unwrap();
    assert_eq!(texts.len(), ids.len());
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap();
    for (text, want) in texts.iter().zip(&ids) {
        assert_eq!(tokenizer.encode(text, Specials::Parse), *want, "{text:?}");
        assert_eq!(tokenizer.decode(want), *text);
        let plain = tokenizer.encode(text, Specials::Plain);
        assert!(
            plain.iter().all(|&id| !tokenizer.is_control(id)),
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(&plain), *text);
    }
    tokenizer
}

#[test]
fn smollm2_agrees_with_the_reference() {
    let tokenizer = check(
        &common::smollm2(),
        include_str!("golden/tokenizer/smollm2.json"),
    );
    assert_eq!(tokenizer.vocab_size(), 49_152);
    // True of this vocabulary: eight bytes that text can hold have no token in it.
    assert!(
        matches!(tokenizer.warnings(), [one] if one.contains("8 bytes of text")),
        "{:?}",
        tokenizer.warnings()
    );
    let end = tokenizer.control_id("<|im_end|>").unwrap();
    assert!(tokenizer.is_end(end) && tokenizer.eos() == Some(end));
    assert!(tokenizer.is_end(tokenizer.control_id("<|endoftext|>").unwrap()));
    assert!(!tokenizer.adds_bos());

    // A megabyte of mixed text; half a second would be slow on one core.
    let text = include_str!("golden/tokenizer/texts.json").repeat(300);
    let started = std::time::Instant::now();
    let ids = tokenizer.encode(&text, Specials::Plain);
    println!(
        "{} bytes, {} ids in {:?}",
        text.len(),
        ids.len(),
        started.elapsed()
    );
    assert!(started.elapsed().as_secs() < 10, "far too slow");
}

#[test]
#[ignore = "needs OSTLER_TEST_QWEN2, the path of a Qwen2.5 GGUF"]
fn qwen2_agrees_with_the_reference() {
    let path = std::env::var_os("OSTLER_TEST_QWEN2").expect("OSTLER_TEST_QWEN2 names a GGUF");
    let tokenizer = check(
        Path::new(&path),
        include_str!("golden/tokenizer/qwen2.json"),
    );
    assert!(tokenizer.is_end(tokenizer.control_id("<|im_end|>").unwrap()));
}
