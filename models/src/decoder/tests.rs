//! Law 1 on tiny models: on the CPU the logits of a row have the same bits however its prompt was
//! cut, whoever else was in the batch, on any number of threads, in whichever blocks its keys lie.
//! And the tensor executor agrees with the CPU within a margin.

use kernels::{BLOCK_TOKENS, KvType, WeightType};

use super::{LoadParts, load};
use crate::config::Family;
use crate::device::Device;
use crate::forward::{Forward, KvStore, LogitRows, SeqStep};
use crate::tiny::TinySpec;
use crate::{Blame, Config};

const PROMPT_TOKENS: usize = 70;

/// A tied llama; wide enough for the types with blocks of 256.
fn llama(weights: WeightType) -> TinySpec {
    let wide = weights.block_len() > 64;
    let (d_model, d_ff, q_heads) = if wide { (256, 256, 8) } else { (64, 128, 4) };
    TinySpec {
        weights,
        d_model,
        d_ff,
        q_heads,
        ..TinySpec::default()
    }
}

/// An untied qwen2, with biases and the other style of rotation.
fn qwen2(weights: WeightType) -> TinySpec {
    TinySpec {
        family: Family::Qwen2,
        tied: false,
        ..llama(weights)
    }
}

/// An untied gemma3: norms inside its layers, and every second layer with a window that begins within a block.
fn gemma3(weights: WeightType) -> TinySpec {
    TinySpec {
        family: Family::Gemma3,
        layers: 3,
        tied: false,
        rope_base: 1_000_000.0,
        window: Some((21, 2)),
        ..llama(weights)
    }
}

/// A tiny model with its KV and a table that is in no order.
struct Model {
    forward: Box<dyn Forward>,
    kv: KvStore,
    blocks: Vec<u32>,
    /// Of the layers with a window: a table of its own.
    window_blocks: Vec<u32>,
}

const KV_BLOCKS: usize = 40;

fn loaded(
    spec: &TinySpec,
    device: Device,
    kv_type: KvType,
    force_tensor: bool,
) -> crate::Result<Box<dyn Forward>> {
    let gguf = spec.gguf().unwrap();
    let config = Config::from_gguf(&gguf).unwrap();
    load(&LoadParts {
        gguf: &gguf,
        config: &config,
        device,
        force_tensor,
        kv_type,
        digest_cache: None,
        progress: &|_, _| {},
    })
}

impl Model {
    fn new(spec: &TinySpec, threads: usize, kv_type: KvType) -> Self {
        Self::on(spec, Device::Cpu { threads }, kv_type, false)
    }

    fn on(spec: &TinySpec, device: Device, kv_type: KvType, force_tensor: bool) -> Self {
        let forward = loaded(spec, device, kv_type, force_tensor).unwrap();
        let mut kv = forward.new_kv(KV_BLOCKS, KV_BLOCKS).unwrap();
        spoil(&mut kv);
        // 7 and 40 have no common factor, so every block comes once.
        let table = |from: u32| {
            let all = 0..KV_BLOCKS as u32;
            all.map(|i| (i * 7 + from) % KV_BLOCKS as u32).collect()
        };
        Self {
            forward,
            kv,
            blocks: table(3),
            window_blocks: table(20),
        }
    }

    /// Logits of all rows of a prompt that comes in chunks ending at `cuts`, in fresh blocks.
    fn cold(&mut self, prompt: &[u32], cuts: &[usize]) -> Vec<f32> {
        spoil(&mut self.kv);
        let mut all = Vec::new();
        let mut start = 0;
        for &end in cuts.iter().chain([&prompt.len()]) {
            let tokens = &prompt[start..end];
            let step = SeqStep {
                tokens,
                start,
                table: &self.blocks,
                window_table: &self.window_blocks,
                logits: LogitRows::All,
            };
            let logits = self.forward.forward(&[step], &mut self.kv).unwrap();
            assert_eq!(
                (logits.rows(), logits.rows_computed),
                (end - start, end - start)
            );
            all.extend(logits.data);
            start = end;
        }
        all
    }

    fn one_by_one(&mut self, prompt: &[u32]) -> Vec<f32> {
        self.cold(prompt, &(1..prompt.len()).collect::<Vec<_>>())
    }
}

/// Fills the store with large numbers, as blocks have them that were used before: what reads beyond
/// its own positions does not go unnoticed.
fn spoil(kv: &mut KvStore) {
    for kv in [Some(&mut kv.all), kv.window.as_mut()]
        .into_iter()
        .flatten()
    {
        let junk = vec![0x7B; kv.shape().block_bytes()];
        for block in 0..kv.blocks() as u32 {
            kv.write_block(block, &junk).unwrap();
        }
    }
}

fn prompt(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * i + seed).wrapping_mul(2_654_435_761) % 260)
        .collect()
}

#[track_caller]
fn assert_same_bits(ours: &[f32], expected: &[f32], what: &str) {
    assert_eq!(ours.len(), expected.len(), "{what}");
    assert!(expected.iter().all(|v| v.is_finite()), "{what}: not finite");
    if let Some(i) = (0..ours.len()).find(|&i| ours[i].to_bits() != expected[i].to_bits()) {
        panic!(
            "{what}: value {i} is {} instead of {}",
            ours[i], expected[i]
        );
    }
}

#[test]
fn every_split_of_a_prompt_gives_the_same_bits() {
    let prompt = prompt(PROMPT_TOKENS, 1);
    let specs = [
        llama(WeightType::F32),
        qwen2(WeightType::Q8_0),
        llama(WeightType::Q4_1),
        gemma3(WeightType::Q8_0),
    ];
    for (spec, kv_type) in specs
        .iter()
        .flat_map(|s| [KvType::F16, KvType::F32, KvType::Q8_0].map(|kv| (s, kv)))
    {
        let expected = Model::new(spec, 1, kv_type).one_by_one(&prompt);
        for threads in [1, 2, 4] {
            let mut model = Model::new(spec, threads, kv_type);
            for split in 1..PROMPT_TOKENS {
                let logits = model.cold(&prompt, &[split]);
                let what = format!(
                    "{:?} {kv_type:?} {threads} threads, cut at {split}",
                    spec.weights
                );
                assert_same_bits(&logits, &expected, &what);
            }
        }
    }
}

#[test]
fn every_weight_type_gives_the_same_bits_in_any_chunks() {
    use WeightType::*;
    let prompt = prompt(PROMPT_TOKENS, 2);
    for ty in [
        F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K,
    ] {
        for spec in [llama(ty), qwen2(ty), gemma3(ty)] {
            let expected = Model::new(&spec, 1, KvType::F16).one_by_one(&prompt);
            let mut model = Model::new(&spec, 2, KvType::F16);
            for cuts in [&[][..], &[1], &[5, 10, 15, 32, 64], &[33]] {
                let what = format!("{ty:?} {:?}, cuts {cuts:?}", spec.family);
                assert_same_bits(&model.cold(&prompt, cuts), &expected, &what);
            }
        }
    }
}

/// Sequences of a batch: how much of each is in the KV store already, and how much is new.
const MATES: [(usize, usize); 8] = [
    (69, 1),
    (0, 40),
    (31, 1),
    (32, 33),
    (5, 1),
    (0, 1),
    (63, 7),
    (20, 50),
];

#[test]
fn batch_mates_do_not_change_a_bit() {
    for spec in [
        llama(WeightType::Q4_1),
        qwen2(WeightType::F32),
        gemma3(WeightType::F16),
    ] {
        for (threads, kv_type) in [(1, KvType::F16), (2, KvType::F32), (4, KvType::Q8_0)] {
            let mut model = Model::new(&spec, threads, kv_type);
            let prompts: Vec<_> = (0..8).map(|seed| prompt(PROMPT_TOKENS, seed)).collect();
            let expected: Vec<_> = prompts.iter().map(|p| model.one_by_one(p)).collect();
            for count in 1..=MATES.len() {
                spoil(&mut model.kv);
                check_batch(&mut model, &prompts[..count], &expected);
            }
        }
    }
}

fn check_batch(model: &mut Model, prompts: &[Vec<u32>], expected: &[Vec<f32>]) {
    let blocks_each = PROMPT_TOKENS.div_ceil(BLOCK_TOKENS);
    let tables: Vec<&[u32]> = model.blocks.chunks(blocks_each).collect();
    let window_tables: Vec<&[u32]> = model.window_blocks.chunks(blocks_each).collect();
    let step = |i: usize, from: usize, to: usize, logits| SeqStep {
        tokens: &prompts[i][from..to],
        start: from,
        table: tables[i],
        window_table: window_tables[i],
        logits,
    };
    let sequences = 0..prompts.len();
    let before = sequences.clone().filter(|&i| MATES[i].0 > 0);
    let before: Vec<_> = before
        .map(|i| step(i, 0, MATES[i].0, LogitRows::None))
        .collect();
    if !before.is_empty() {
        let logits = model.forward.forward(&before, &mut model.kv).unwrap();
        assert_eq!(logits.rows(), 0);
        assert_eq!(
            logits.rows_computed,
            before.iter().map(|s| s.tokens.len()).sum::<usize>()
        );
    }
    let wants = |i: usize| {
        if i.is_multiple_of(2) {
            LogitRows::All
        } else {
            LogitRows::Last
        }
    };
    let steps: Vec<_> = sequences
        .clone()
        .map(|i| step(i, MATES[i].0, MATES[i].0 + MATES[i].1, wants(i)))
        .collect();
    let logits = model.forward.forward(&steps, &mut model.kv).unwrap();
    let vocab = logits.vocab;
    let mut row = 0;
    for i in sequences {
        let (held, new) = MATES[i];
        let first = if wants(i) == LogitRows::All {
            held
        } else {
            held + new - 1
        };
        let rows = held + new - first;
        let got = &logits.data[row * vocab..(row + rows) * vocab];
        let what = format!("sequence {i} of {}", prompts.len());
        assert_same_bits(
            got,
            &expected[i][first * vocab..(held + new) * vocab],
            &what,
        );
        row += rows;
    }
    assert_eq!(row, logits.rows());
}

#[test]
fn copied_and_stored_blocks_are_as_good_as_computed_ones() {
    for (force_tensor, kv_type) in [
        (false, KvType::F16),
        (false, KvType::F32),
        (false, KvType::Q8_0),
        (true, KvType::F16),
    ] {
        let spec = llama(WeightType::F32);
        let mut model = Model::on(&spec, Device::Cpu { threads: 1 }, kv_type, force_tensor);
        let prompt = prompt(PROMPT_TOKENS, 3);
        let expected = model.cold(&prompt, &[40]);
        let vocab = spec.vocab;

        // Fork after 40 positions: block 0 is shared, 8 positions of block 1 are copied. Block 0
        // goes through its bytes into another store.
        let (shared, partial) = (model.blocks[0], model.blocks[1]);
        let fork = [model.blocks[10], model.blocks[11], model.blocks[12]];
        let bytes = model
            .kv
            .all
            .read_block(shared, kernels::BLOCK_TOKENS)
            .unwrap();
        assert_eq!(bytes.len(), model.kv.all.shape().block_bytes());
        model.kv.all.write_block(fork[0], &bytes).unwrap();
        model.kv.all.copy_block(partial, fork[1], 8).unwrap();
        let step = SeqStep {
            tokens: &prompt[40..],
            start: 40,
            table: &fork,
            window_table: &[],
            logits: LogitRows::All,
        };
        let logits = model.forward.forward(&[step], &mut model.kv).unwrap();
        assert_eq!(logits.rows_computed, PROMPT_TOKENS - 40);
        assert_same_bits(&logits.data, &expected[40 * vocab..], "after a fork");
    }
}

#[test]
fn tied_and_untied_output_of_the_same_numbers_give_the_same_bits() {
    let tied = llama(WeightType::Q8_0);
    let mut writer = tied.writer().unwrap();
    let mut output = writer.tensor_mut("token_embd.weight").unwrap().clone();
    output.name = "output.weight".to_owned();
    writer.tensors.push(output);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("untied.gguf");
    writer.write(&path).unwrap();
    let untied = crate::load::load_forward(&path, &Default::default(), &|_| {}).unwrap();
    assert!(!untied.config.tied_output);

    let prompt = prompt(PROMPT_TOKENS, 4);
    let mut model = Model::new(&tied, 1, KvType::F16);
    let expected = model.cold(&prompt, &[]);
    model.forward = untied.forward;
    assert_same_bits(&model.cold(&prompt, &[]), &expected, "untied");
}

#[test]
fn the_tensor_executor_agrees_with_the_cpu() {
    let factors = (0..8).map(|i| 1.0 + i as f32 / 4.0).collect();
    let specs = [
        (llama(WeightType::F32), 1e-4),
        (qwen2(WeightType::F32), 1e-4),
        (
            TinySpec {
                rope_factors: Some(factors),
                ..llama(WeightType::F32)
            },
            1e-4,
        ),
        (gemma3(WeightType::F32), 1e-4),
        (qwen2(WeightType::F16), 1e-2),
        (llama(WeightType::Q8_0), 5e-2),
        (qwen2(WeightType::Q4K), 5e-2),
    ];
    let prompt = prompt(PROMPT_TOKENS, 5);
    for ((spec, tolerance), kv_type) in specs
        .iter()
        .flat_map(|s| [KvType::F16, KvType::F32].map(|kv| (s, kv)))
    {
        let expected = Model::new(spec, 1, kv_type).cold(&prompt, &[]);
        let mut tensor = Model::on(spec, Device::Cpu { threads: 1 }, kv_type, true);
        let range = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        for cuts in [&[][..], &[1, 2, 3], &[33, 64], &[32]] {
            let logits = tensor.cold(&prompt, cuts);
            let worst = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0f32, f32::max) / range;
            assert!(
                worst <= *tolerance,
                "{:?} {kv_type:?} {cuts:?}: {worst}",
                spec.weights
            );
        }
    }
}

#[test]
fn the_tensor_executor_takes_batches() {
    let spec = qwen2(WeightType::F32);
    let mut cpu = Model::new(&spec, 1, KvType::F32);
    let mut tensor = Model::on(&spec, Device::Cpu { threads: 1 }, KvType::F32, true);
    let prompts: Vec<_> = (0..3).map(|seed| prompt(PROMPT_TOKENS, seed)).collect();
    let run = |model: &mut Model| {
        let tables: Vec<Vec<u32>> = model.blocks.chunks(3).map(<[_]>::to_vec).collect();
        let step = |i: usize, from: usize, to: usize, logits| SeqStep {
            tokens: &prompts[i][from..to],
            start: from,
            table: &tables[i],
            window_table: &[],
            logits,
        };
        let first = [
            step(0, 0, 40, LogitRows::None),
            step(1, 0, 7, LogitRows::Last),
        ];
        let second = [
            step(0, 40, 41, LogitRows::Last),
            step(1, 7, 60, LogitRows::All),
            step(2, 0, 33, LogitRows::None),
        ];
        let mut data = model.forward.forward(&first, &mut model.kv).unwrap().data;
        data.extend(model.forward.forward(&second, &mut model.kv).unwrap().data);
        assert_eq!(data.len(), (1 + 1 + 53) * spec.vocab);
        data
    };
    let (expected, ours) = (run(&mut cpu), run(&mut tensor));
    let worst = ours
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0f32, f32::max);
    assert!(worst < 1e-3, "{worst}");
}

#[test]
fn kv_of_another_model_is_refused() {
    let spec = TinySpec::default();
    let mut model = Model::new(&spec, 1, KvType::F16);
    let mut other = Model::new(&spec, 1, KvType::F32);
    let step = SeqStep {
        tokens: &[1],
        start: 0,
        table: &[0],
        window_table: &[],
        logits: LogitRows::Last,
    };
    let error = model.forward.forward(&[step], &mut other.kv).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
    assert_eq!(error.blame(), Blame::Bug);
}

#[test]
fn keys_and_values_in_eight_bits_are_refused_where_they_cannot_be() {
    let cpu = Device::Cpu { threads: 1 };
    let Err(error) = loaded(&TinySpec::default(), cpu, KvType::Q8_0, true) else {
        panic!("loaded");
    };
    assert_eq!(error.blame(), Blame::Device);
    assert!(error.to_string().contains("use f16 or f32"), "{error}");
}

#[test]
fn an_identity_changes_with_all_that_kv_depends_on() {
    let base = TinySpec::default();
    let factors = Some(vec![2.0; base.d_model / base.q_heads / 2]);
    let cpu = Device::Cpu { threads: 1 };
    let of =
        |spec: &TinySpec, kv, tensor| *Model::on(spec, cpu, kv, tensor).forward.identity_seed();
    let identity = of(&base, KvType::F16, false);
    assert_eq!(identity, of(&base, KvType::F16, false), "the same model");
    let gemma = of(&gemma3(WeightType::F32), KvType::F16, false);
    let others = [
        (
            "weights",
            of(
                &TinySpec {
                    seed: 2,
                    ..base.clone()
                },
                KvType::F16,
                false,
            ),
        ),
        (
            "rotation",
            of(
                &TinySpec {
                    rope_factors: factors,
                    ..base.clone()
                },
                KvType::F16,
                false,
            ),
        ),
        (
            "window",
            of(
                &TinySpec {
                    window: Some((30, 2)),
                    ..gemma3(WeightType::F32)
                },
                KvType::F16,
                false,
            ),
        ),
        ("family", gemma),
        (
            "type",
            of(
                &TinySpec {
                    weights: WeightType::F16,
                    ..base.clone()
                },
                KvType::F16,
                false,
            ),
        ),
        ("KV type", of(&base, KvType::F32, false)),
        ("executor", of(&base, KvType::F16, true)),
    ];
    for (i, (what, other)) in others.iter().enumerate() {
        assert_ne!(identity, *other, "another {what}");
        let again = others[..i].iter().find(|(_, before)| before == other);
        assert_eq!(again, None, "as {what}");
    }
    let mut writer = base.writer().unwrap();
    writer
        .set("tokenizer.chat_template", "another")
        .set("general.name", "another");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("renamed.gguf");
    writer.write(&path).unwrap();
    let renamed = crate::load::load_forward(&path, &Default::default(), &|_| {}).unwrap();
    assert_eq!(
        &identity,
        renamed.forward.identity_seed(),
        "name and template do not count"
    );
}
