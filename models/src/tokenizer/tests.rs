//! Tokenizers as a whole, on small vocabularies written here.

use super::*;
use proptest::prelude::*;

/// A byte-level vocabulary: the 256 bytes by value, then merges, then added tokens with their types.
struct ByteLevel {
    tokens: Vec<String>,
    merges: Vec<String>,
    types: Vec<i32>,
}

fn byte_level() -> ByteLevel {
    let mut tokens: Vec<String> = (0..=255)
        .map(|b| byte_level::char_of(b).to_string())
        .collect();
    let merges: Vec<String> = [
        "t h", "th e", "Ġ the", "i n", "in g", "Ġ s", "1 2", "12 3", "- >", "Ã ©", "a a", "aa aa",
    ]
    .map(String::from)
    .to_vec();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (text, ty) in [
        ("<|endoftext|>", 3),
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("<tool_call>", 4),
        ("[PAD]", 5),
    ] {
        tokens.push(text.to_owned());
        types.push(ty);
    }
    ByteLevel {
        tokens,
        merges,
        types,
    }
}

impl ByteLevel {
    fn parts(&self, pre: &'static str) -> Parts<'_> {
        Parts {
            pre: Some(pre),
            merges: self.merges.iter().map(String::as_str).collect(),
            types: Some(self.types.clone()),
            eos: Some(270),
            ..Parts::new(Model::Bpe, self.tokens.iter().map(String::as_str).collect())
        }
    }

    /// The same vocabulary as a `tokenizer.json`.
    fn json(&self, pre_tokenizer: serde_json::Value) -> serde_json::Value {
        let vocab: serde_json::Map<_, _> = self.tokens[..268]
            .iter()
            .enumerate()
            .map(|(i, t)| (t.clone(), i.into()))
            .collect();
        let added: Vec<_> = (268..272)
            .map(|id| {
                serde_json::json!({"id": id, "content": self.tokens[id], "special": self.types[id] == 3,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
            })
            .collect();
        serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": false, "vocab": vocab, "merges": self.merges}
        })
    }
}

fn from_json(value: &serde_json::Value, config: Option<&serde_json::Value>) -> Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, value.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    }
    Tokenizer::from_json_file(&path)
}

/// `<unk> <s> </s>`, 256 bytes, then pieces; scores fall with the id, as trained vocabularies have it.
fn sentence_piece() -> (Vec<String>, Vec<f32>, Vec<i32>) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    types.extend([6; 256]);
    let pieces = [
        "▁t", "he", "▁the", "in", "ing", "▁s", "▁si", "▁sing", "▁", "e", "t", "a", "i", "n", "s",
        "h", "g", "<", ">", "<s", "é",
    ];
    tokens.extend(pieces.map(String::from));
    types.extend([1; 21]);
    tokens.push("<mask>".into());
    types.push(4);
    let scores = (0..tokens.len()).map(|i| 259.0 - i as f32).collect();
    (tokens, scores, types)
}

fn spm(change: impl FnOnce(&mut Parts<'_>)) -> Tokenizer {
    let (tokens, scores, types) = sentence_piece();
    let mut parts = Parts {
        scores: Some(scores),
        types: Some(types),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..Parts::new(
            Model::SentencePiece,
            tokens.iter().map(String::as_str).collect(),
        )
    };
    change(&mut parts);
    Tokenizer::from_parts(&parts).unwrap()
}

#[test]
fn byte_level_ids() {
    let vocabulary = byte_level();
    let tokenizer = Tokenizer::from_parts(&vocabulary.parts("gpt-2")).unwrap();
    let rows: &[(&str, &[u32])] = &[
        ("the thing", &[257, 32, 256, 260]),
        (" the", &[258]),
        ("the  the", &[257, 32, 258]),
        ("12345", &[263, 52, 53]),
        ("->", &[264]),
        ("é", &[265]),
        ("e\u{301}", &[101, 204, 129]),
        ("", &[]),
        ("\u{0}\n", &[0, 10]),
        ("<tool_call>the", &[271, 257]),
        ("aaaaaaa", &[267, 266, 97]),
        ("[PAD]", &[91, 80, 65, 68, 93]),
        ("😀", &[240, 159, 152, 128]),
    ];
    for (text, want) in rows {
        assert_eq!(tokenizer.encode(text, Specials::Parse), *want, "{text:?}");
        assert_eq!(tokenizer.decode(want), *text);
    }
    let smollm = Tokenizer::from_parts(&vocabulary.parts("smollm")).unwrap();
    assert_eq!(
        smollm.encode("123", Specials::Plain),
        [49, 50, 51],
        "digits one by one"
    );
    assert!(
        tokenizer.warnings().is_empty(),
        "{:?}",
        tokenizer.warnings()
    );
}

/// A marker glued to other text was not recognised; and a marker that a user wrote became one.
#[test]
fn markers_are_control_tokens_only_when_parsed() {
    let vocabulary = byte_level();
    let t = Tokenizer::from_parts(&vocabulary.parts("qwen2")).unwrap();
    assert_eq!(t.encode("x<|im_end|>y", Specials::Parse), [120, 270, 121]);
    assert_eq!(
        t.encode("你<|im_start|>", Specials::Parse).last(),
        Some(&269)
    );
    let plain = t.encode("x<|im_end|>y<tool_call>", Specials::Plain);
    assert!(plain.iter().all(|&id| !t.is_control(id)));
    assert_eq!(plain.last(), Some(&271), "added text is matched either way");
    assert_eq!(t.decode(&plain), "x<|im_end|>y<tool_call>");
    assert_eq!(t.control_id("<|im_end|>"), Some(270));
    assert_eq!(t.control_id("<tool_call>"), None);
    assert_eq!(t.controls().len(), 3);
    assert_eq!(t.ends(), [268, 270]);
    assert!(t.is_end(270) && !t.is_end(269) && !t.is_end(u32::MAX));
    assert_eq!(
        (t.vocab_size(), t.kind(272), t.kind(273)),
        (273, Kind::Unused, Kind::Unused)
    );
}

#[test]
fn sentence_piece_ids() {
    let t = spm(|_| {});
    let id = |text: &str| sentence_piece().0.iter().position(|t| t == text).unwrap() as u32;
    let rows: &[(&str, &[&str])] = &[
        ("the sing", &["▁the", "▁sing"]),
        ("the", &["▁the"]),
        (" the", &["▁", "▁the"]),
        ("a\nt", &["▁", "a", "<0x0A>", "t"]),
        ("é", &["▁", "é"]),
        ("😀", &["▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]),
        ("t<mask>t", &["▁t", "<mask>", "▁t"]),
        // Joining would make the control token of it.
        ("<s>", &["▁", "<s", ">"]),
        (
            "<0x0A>",
            &["▁", "<", "<0x30>", "<0x78>", "<0x30>", "<0x41>", ">"],
        ),
        ("", &[]),
    ];
    for (text, want) in rows {
        let want: Vec<u32> = want.iter().map(|t| id(t)).collect();
        assert_eq!(t.encode(text, Specials::Plain), want, "{text:?}");
        assert_eq!(t.decode(&want), *text);
    }
    assert_eq!(
        t.encode("the<s>the", Specials::Parse),
        [id("▁the"), 1, id("▁the")]
    );
    assert_eq!(t.decode(&[id("▁the"), 1, id("▁the")]), "the<s>the");
    let bare = spm(|p| p.space_prefix = Some(false));
    assert_eq!(bare.encode("he", Specials::Plain), [id("he")]);
    assert_eq!(bare.decode(&[id("▁the")]), " the");
    let mut stream = t.text_stream();
    let said: String = ["▁the", "▁sing"]
        .iter()
        .map(|x| stream.push(t.token_bytes(id(x))))
        .collect();
    assert_eq!(said, "the sing");
}

/// Template and tokenizer both added BOS, or neither did.
#[test]
fn a_raw_prompt_has_one_bos() {
    let t = spm(|_| {});
    assert_eq!(t.encode_raw_prompt("the"), [1, 261]);
    assert_eq!(t.encode_raw_prompt("<s>the"), [1, 261]);
    assert_eq!(t.encode_raw_prompt(""), [1]);
    assert_eq!(t.encode("the", Specials::Parse), [261]);
    let without = spm(|p| p.add_bos = Some(false));
    assert_eq!(without.encode_raw_prompt("the"), [261]);
    assert!(t.adds_bos() && !without.adds_bos());
    let vocabulary = byte_level();
    let gpt2 = Tokenizer::from_parts(&vocabulary.parts("gpt-2")).unwrap();
    assert!(!gpt2.adds_bos());
    let llama3 = Parts {
        bos: Some(268),
        ..vocabulary.parts("llama-bpe")
    };
    let llama3 = Tokenizer::from_parts(&llama3).unwrap();
    assert_eq!(llama3.encode_raw_prompt("<|endoftext|>a"), [268, 97]);
    assert_eq!(llama3.encode_raw_prompt("a"), [268, 97]);
}

/// A missing or unknown pre-tokeniser was taken for another in silence.
#[test]
fn odd_files_load_with_a_warning() {
    let vocabulary = byte_level();
    let warnings = |change: &dyn Fn(&mut Parts<'_>)| {
        let mut parts = vocabulary.parts("gpt-2");
        change(&mut parts);
        Tokenizer::from_parts(&parts).unwrap().warnings().join("\n")
    };
    assert!(warnings(&|p| p.pre = None).contains("tokenizer.ggml.pre is missing"));
    assert!(warnings(&|p| p.pre = Some("vulcan")).contains("UNKNOWN PRE-TOKENIZER \"vulcan\""));
    assert!(warnings(&|p| p.types = None).contains("token_type is missing"));
    assert!(warnings(&|p| p.eos = Some(65)).contains("typed as text"));
    assert!(warnings(&|p| p.tokens[7] = "").contains("of text have no token"));
    assert!(warnings(&|p| p.types.as_mut().unwrap()[268] = 1).contains("ends a turn"));
    assert_eq!(warnings(&|_| {}), "");
}

#[test]
fn damaged_vocabularies_are_refused_by_key() {
    let vocabulary = byte_level();
    type Change = fn(&mut Parts<'_>);
    let rows: &[(&str, Change)] = &[
        ("tokenizer.ggml.tokens", |p| p.tokens.clear()),
        ("tokenizer.ggml.token_type", |p| {
            p.types.as_mut().unwrap().truncate(9)
        }),
        ("tokenizer.ggml.token_type", |p| {
            p.types.as_mut().unwrap()[3] = 6
        }),
        ("tokenizer.ggml.scores", |p| p.scores = Some(vec![0.0; 5])),
        ("tokenizer.ggml.scores", |p| p.model = Model::SentencePiece),
        ("tokenizer.ggml.bos_token_id", |p| p.bos = Some(273)),
        ("tokenizer.ggml.eos_token_id", |p| p.eos = Some(u32::MAX)),
        ("tokenizer.ggml.unknown_token_id", |p| {
            p.unknown = Some(99_999)
        }),
        ("tokenizer.ggml.eot_token_id", |p| p.ends = vec![99_999]),
        ("tokenizer.ggml.merges: element 0", |p| {
            p.merges = vec!["th"]
        }),
        ("tokenizer.ggml.merges: element 1", |p| {
            p.merges = vec!["t h", "q x"]
        }),
        ("tokenizer.ggml.merges: element 0", |p| p.merges = vec![" "]),
        ("tokenizer.ggml.merges: element 0", |p| {
            p.merges = vec!["th  e"]
        }),
        ("tokenizer.ggml.merges: element 0", |p| {
            p.merges = vec!["<tool_call> <tool_call>"]
        }),
    ];
    for (key, change) in rows {
        let mut parts = vocabulary.parts("gpt-2");
        change(&mut parts);
        let error = Tokenizer::from_parts(&parts).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
        assert_eq!(error.blame(), crate::Blame::Input);
    }
}

#[test]
fn hostile_vocabularies_neither_panic_nor_stall() {
    let started = std::time::Instant::now();
    // 2^20 merges of one pair; every token the same; scores that are no numbers.
    let vocabulary = byte_level();
    let parts = Parts {
        merges: vec!["a a"; 1 << 20],
        ..vocabulary.parts("gpt-2")
    };
    let t = Tokenizer::from_parts(&parts).unwrap();
    assert_eq!(t.encode(&"a".repeat(5), Specials::Plain), [266, 266, 97]);
    let same = Parts {
        types: Some(vec![4; 5_000]),
        ..Parts::new(Model::Bpe, vec!["x"; 5_000])
    };
    let t = Tokenizer::from_parts(&same).unwrap();
    assert_eq!(t.encode("xyx", Specials::Plain).len(), 2);
    for score in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0] {
        let t = spm(|p| p.scores = Some(vec![score; p.tokens.len()]));
        assert_eq!(t.decode(&t.encode("the sing", Specials::Plain)), "the sing");
    }
    let bytes: Vec<u32> = (0..100).collect();
    assert!(!t.decode(&bytes).contains('y'));
    assert!(started.elapsed().as_secs() < 20);
}

/// Two implementations that share nothing but the vocabulary: ours and the `tokenizers` crate.
#[test]
fn a_tokenizer_json_gives_what_the_same_gguf_gives() {
    let vocabulary = byte_level();
    let ours = Tokenizer::from_parts(&vocabulary.parts("gpt-2")).unwrap();
    let theirs = from_json(
        &vocabulary.json(serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true})),
        Some(&serde_json::json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>", "add_bos_token": true})),
    )
    .unwrap();
    assert_eq!(
        (theirs.eos(), theirs.bos(), theirs.adds_bos()),
        (Some(270), Some(268), true)
    );
    assert_eq!(theirs.ends(), [268, 270]);
    assert_eq!(theirs.vocab_size(), 272);
    for id in 0..272 {
        assert_eq!(ours.token_bytes(id), theirs.token_bytes(id), "token {id}");
        assert_eq!(ours.kind(id), theirs.kind(id), "token {id}");
    }
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    runner
        .run(&texts(), |text| {
            for specials in [Specials::Plain, Specials::Parse] {
                let ids = ours.encode(&text, specials);
                prop_assert_eq!(&ids, &theirs.encode(&text, specials), "{:?}", text);
                prop_assert_eq!(ours.decode(&ids), text.clone());
                if specials == Specials::Plain {
                    prop_assert!(ids.iter().all(|&id| !ours.is_control(id)));
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_qwen_and_llama_patterns_agree_with_the_tokenizers_crate() {
    let vocabulary = byte_level();
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": false});
    for (name, pattern) in [
        (
            "qwen2",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        (
            "llama-bpe",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ] {
        let split = serde_json::json!({"type": "Split", "pattern": {"Regex": pattern},
            "behavior": "Isolated", "invert": false});
        let pre = serde_json::json!({"type": "Sequence", "pretokenizers": [split, byte_level]});
        let theirs = from_json(&vocabulary.json(pre), None).unwrap();
        let ours = Tokenizer::from_parts(&vocabulary.parts(name)).unwrap();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        runner
            .run(&texts(), |text| {
                let (a, b) = (
                    ours.encode(&text, Specials::Plain),
                    theirs.encode(&text, Specials::Plain),
                );
                prop_assert_eq!(a, b, "{} {:?}", name, text);
                Ok(())
            })
            .unwrap();
    }
    let digits = serde_json::json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let theirs = from_json(&vocabulary.json(digits), None).unwrap();
    let ours = Tokenizer::from_parts(&vocabulary.parts("smollm")).unwrap();
    for text in ["the 123 thing12 ", "a1\n\n2  b", "½ ٣"] {
        assert_eq!(
            ours.encode(text, Specials::Plain),
            theirs.encode(text, Specials::Plain)
        );
    }
}

/// Text where pre-tokenisers and merges have something to decide.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("the".to_owned()),
        Just(" ".to_owned()),
        Just("aa".to_owned()),
        Just("\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("123".to_owned()),
        Just("'s".to_owned()),
        Just("'LL".to_owned()),
        Just("->".to_owned()),
        Just("é".to_owned()),
        Just("\u{301}".to_owned()),
        Just("日本".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<tool_call>".to_owned()),
        Just("\t".to_owned()),
        Just("\u{a0}".to_owned()),
        Just("\u{3000}".to_owned()),
        Just("👩\u{200d}👧".to_owned()),
        Just("'ſ".to_owned()),
        ".{0,4}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

#[test]
fn broken_json_files_are_refused() {
    let vocabulary = byte_level();
    let good = vocabulary.json(serde_json::Value::Null);
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        from_json(&value, None)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(changed(&|_| {}), Ok(()));
    for (want, change) in [
        (
            "decoder",
            (&|v: &mut serde_json::Value| v["decoder"] = serde_json::Value::Null)
                as &dyn Fn(&mut serde_json::Value),
        ),
        ("added_tokens", &|v| {
            v["added_tokens"][0]["id"] = (1u64 << 40).into()
        }),
        ("added_tokens", &|v| {
            v["added_tokens"][0]["content"] = 7.into()
        }),
        ("unk_token", &|v| v["model"]["unk_token"] = "<nope>".into()),
        ("tokenizer", &|v| v["model"] = "x".into()),
        ("tokenizer", &|v| v["model"]["merges"][0] = "q x".into()),
        ("model.vocab", &|v| {
            v["model"]["vocab"]["a"] = u32::MAX.into()
        }),
    ] {
        let error = changed(change).unwrap_err();
        assert!(
            error.contains(want) && error.contains("tokenizer.json"),
            "{want}: {error}"
        );
    }
    assert!(from_json(&serde_json::json!([1]), None).is_err());
}

#[test]
fn a_llama_tokenizer_json_falls_back_to_bytes() {
    let (tokens, _, _) = sentence_piece();
    let vocab: serde_json::Map<_, _> = tokens[..280]
        .iter()
        .enumerate()
        .map(|(i, t)| (t.clone(), i.into()))
        .collect();
    let value = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            {"id": 1, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
            {"id": 2, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": true, "normalized": false}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": ["▁ t", "h e", "▁t he", "i n", "in g", "▁ s", "▁s i", "▁s ing"]}
    });
    let t = from_json(&value, None).unwrap();
    let ours = spm(|_| {});
    for text in ["the sing", " the", "a\nt", "é😀", "the<s>the", ""] {
        assert_eq!(
            t.encode(text, Specials::Parse),
            ours.encode(text, Specials::Parse),
            "{text:?}"
        );
        assert_eq!(t.decode(&t.encode(text, Specials::Parse)), text);
    }
    assert_eq!(t.encode_raw_prompt("the"), [1, 261]);
    assert_eq!(t.kind(3 + 10), Kind::Byte);
    assert_eq!(
        t.encode("a</s> \n the", Specials::Parse),
        ours.encode("a</s>the", Specials::Parse),
        "rstrip"
    );
}

/// A vocabulary that the SentencePiece library trained, and its own ids: `tests/golden/tokenizer`.
#[test]
fn sentence_piece_agrees_with_the_library() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/golden/tokenizer/spm.json")).unwrap();
    let texts: Vec<String> =
        serde_json::from_str(include_str!("../../../tests/golden/tokenizer/texts.json")).unwrap();
    let list = |key: &str| golden[key].as_array().unwrap();
    let parts = Parts {
        scores: Some(
            list("scores")
                .iter()
                .map(|s| s.as_f64().unwrap() as f32)
                .collect(),
        ),
        types: Some(
            list("types")
                .iter()
                .map(|t| t.as_i64().unwrap() as i32)
                .collect(),
        ),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..Parts::new(
            Model::SentencePiece,
            list("tokens").iter().map(|t| t.as_str().unwrap()).collect(),
        )
    };
    let tokenizer = Tokenizer::from_parts(&parts).unwrap();
    assert!(list("texts").len() > 50);
    for (index, ids) in list("texts").iter().zip(list("ids")) {
        let text = &texts[index.as_u64().unwrap() as usize];
        let want: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
        assert_eq!(tokenizer.encode(text, Specials::Plain), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want), *text);
    }
}
