//! What a configuration takes from a file. What it refuses is in `tests/hostile_files.rs`.

use std::path::Path;

use super::*;
use crate::gguf::write::Writer;
use crate::tiny::TinySpec;

fn read(change: impl FnOnce(&mut Writer)) -> Config {
    let mut writer = TinySpec::default().writer().unwrap();
    change(&mut writer);
    let model = Gguf::from_bytes(Path::new("m.gguf"), writer.to_bytes().into()).unwrap();
    Config::from_gguf(&model).unwrap()
}

fn with(key: &str, value: impl Into<crate::gguf::write::Meta>) -> Config {
    read(|writer| {
        writer.set(key, value);
    })
}

#[test]
fn the_sizes_of_a_model() {
    let config = TinySpec::default().config();
    assert_eq!((config.layers, config.d_model, config.d_ff), (2, 64, 128));
    assert_eq!(
        (config.q_heads, config.kv_heads, config.head_dim),
        (4, 2, 16)
    );
    assert_eq!((config.vocab, config.context_train), (384, 1024));
    assert_eq!((config.rope.base, config.rope.dims), (10_000.0, 16));
    assert_eq!(config.rope.style, RopeStyle::Norm);
    assert!(config.tied_output && !config.qkv_bias && config.rope.factors.is_none());
    assert_eq!(
        config.outer_tensors().len() + 2 * config.layer_tensors(0).len(),
        20
    );
    let qwen = TinySpec {
        family: Family::Qwen2,
        tied: false,
        ..TinySpec::default()
    }
    .config();
    assert_eq!(qwen.rope.style, RopeStyle::Neox);
    assert!(qwen.qkv_bias && !qwen.tied_output);
    assert_eq!(qwen.layer_tensors(1).len(), 12);
}

#[test]
fn gemma3_has_windows_between_layers_that_see_all() {
    let spec = TinySpec {
        family: Family::Gemma3,
        layers: 12,
        rope_base: 1_000_000.0,
        window: Some((512, 6)),
        ..TinySpec::default()
    };
    let read = |change: &dyn Fn(&mut Writer)| {
        let mut writer = spec.writer().unwrap();
        change(&mut writer);
        let model = Gguf::from_bytes(Path::new("m.gguf"), writer.to_bytes().into()).unwrap();
        Config::from_gguf(&model).unwrap()
    };
    let config = read(&|_| ());
    assert_eq!(config.context_train, 1024, "not limited to the window");
    assert_eq!(
        (config.rope.base, config.rope.style),
        (1e6, RopeStyle::Neox)
    );
    assert_eq!(
        (config.embedding_scale(), config.attention_scale()),
        (Some(8.0), 0.25)
    );
    assert_eq!(config.layer_tensors(0).len(), 13);
    let all: Vec<_> = (0..12)
        .filter(|&l| config.kv_place(l).group == LayerGroup::All)
        .collect();
    assert_eq!(all, [5, 11]);
    let places: Vec<_> = (0..12).map(|l| config.kv_place(l)).collect();
    let index = |group| {
        let of = places.iter().filter(move |place| place.group == group);
        of.map(|place| place.index).collect::<Vec<_>>()
    };
    assert_eq!(index(LayerGroup::All), [0, 1]);
    assert_eq!(index(LayerGroup::Window), (0..10).collect::<Vec<_>>());
    let window = config.window.clone().unwrap();
    assert_eq!((window.tokens.get(), window.rope.base), (512, 10_000.0));

    // What most files leave out is the same; what is stretched is not the window.
    let usual = read(&|writer| {
        writer
            .unset("gemma3.attention.sliding_window_pattern")
            .set("gemma3.rope.scaling.type", "linear")
            .set("gemma3.rope.scaling.factor", 8.0);
    });
    assert_eq!(usual.window, config.window);
    assert_eq!(usual.rope.linear_scale, 8.0);
    let other = read(&|writer| {
        writer.set("gemma3.rope.freq_base_swa", 5000.0);
    });
    assert_eq!(other.window.unwrap().rope.base, 5000.0);
    for (key, value) in [("", 0u32), ("_pattern", 1)] {
        let none = read(&|writer| {
            let key = format!("gemma3.attention.sliding_window{key}");
            writer.set(&key, crate::gguf::write::Meta::U32(value));
        });
        assert_eq!(none.window, None, "{key} {value}");
    }
}

#[test]
fn keys_that_are_absent_have_their_usual_meaning() {
    let config = read(|writer| {
        writer
            .unset("llama.rope.freq_base")
            .unset("llama.rope.dimension_count")
            .unset("llama.vocab_size")
            .unset("general.name");
    });
    assert_eq!((config.rope.base, config.rope.dims), (10_000.0, 16));
    assert_eq!(config.name, "m");
}

#[test]
fn rope_scaling_is_honoured() {
    assert_eq!(
        with("llama.rope.scaling.factor", 4.0).rope.linear_scale,
        4.0
    );
    assert_eq!(with("llama.rope.scale_linear", 2.0).rope.linear_scale, 2.0);
    let off = read(|writer| {
        writer
            .set("llama.rope.scaling.type", "none")
            .set("llama.rope.scaling.factor", 4.0);
    });
    assert_eq!(off.rope.linear_scale, 1.0);
    let factors: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    let spec = TinySpec {
        rope_factors: Some(factors.clone()),
        ..TinySpec::default()
    };
    assert_eq!(spec.config().rope.factors, Some(factors));
}

#[test]
fn part_of_a_head_can_be_turned() {
    assert_eq!(with("llama.rope.dimension_count", 8).rope.dims, 8);
}

#[test]
fn a_window_shortens_the_context_and_says_so() {
    let config = with("llama.attention.sliding_window", 256);
    assert_eq!(config.context_train, 256);
    assert_eq!(config.warnings.len(), 1);
    assert!(
        config.warnings[0].contains("256 of 1024"),
        "{:?}",
        config.warnings
    );
    assert_eq!(
        with("llama.attention.sliding_window", 4096).context_train,
        1024
    );
}

#[test]
fn what_is_not_known_is_named() {
    let config = with("llama.attention.sparkle", 3);
    assert!(
        config.warnings[0].contains("llama.attention.sparkle"),
        "{:?}",
        config.warnings
    );
    let config = with("tokenizer.ggml.padding_token_id", u32::MAX);
    assert!(
        config.warnings[0].contains("padding_token_id"),
        "{:?}",
        config.warnings
    );
}

#[test]
fn settings_at_their_neutral_value_are_no_hindrance() {
    let config = read(|writer| {
        writer
            .set("llama.expert_count", 0)
            .set("llama.attention.scale", 0.25)
            .set("llama.attention.causal", true)
            .set("llama.logit_scale", 1.0)
            .set("llama.rope.scaling.attn_factor", 1.0)
            .set("llama.attention.key_length", 16)
            .set("llama.attention.value_length", 16);
    });
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}
