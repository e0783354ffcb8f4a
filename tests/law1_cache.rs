//! Law 1: a hit never changes an answer. On the CPU the logits after any hit are those of a cold
//! run, bit for bit: at every split of a prompt, inside blocks, after a fork, after eviction, from disk, in any
//! chunks, beside any neighbours, on any number of threads. Law 2 beside it: each test asserts what
//! was reused and what went through the forward pass, so none passes because the cache never hit.

mod common;

use engine::{
    Between, ContextOptions, DiskOptions, Engine, EngineConfig, Event, Finish, Generation, Layer,
    Piece, Prompt, Report, Request, Salt, SamplingParams, Timeline, TokenBytes, TraceRow,
};
use kernels::{KvType, WeightType};
use models::config::Family;
use models::device::Device;
use models::load::{LoadOptions, load_forward};
use models::tiny::{TinySpec, tiny_model};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Rows of logits of one request: position, bits.
type Rows = BTreeMap<usize, Vec<u32>>;

/// The engine needs no text here.
struct NoText(usize);

impl TokenBytes for NoText {
    fn vocab_size(&self) -> usize {
        self.0
    }
    fn bytes(&self, _id: u32) -> &[u8] {
        b""
    }
    fn is_control(&self, _id: u32) -> bool {
        false
    }
    fn is_end(&self, _id: u32) -> bool {
        false
    }
    fn eos(&self) -> Option<u32> {
        None
    }
}

/// An engine on one model that keeps every row of logits.
struct Lab {
    engine: Engine,
    rows: Arc<Mutex<BTreeMap<u64, Rows>>>,
    vocab: usize,
    salts: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Setup {
    threads: usize,
    chunk_tokens: usize,
    kv: KvType,
    context: usize,
    /// `None` for what the engine takes by itself.
    kv_bytes: Option<u64>,
}

const SETUP: Setup = Setup {
    threads: 2,
    chunk_tokens: 64,
    kv: KvType::F16,
    context: 512,
    kv_bytes: None,
};

#[derive(Debug)]
struct Answer {
    ids: Vec<u32>,
    report: Report,
    rows: Rows,
}

impl Lab {
    fn new(model: &Path, setup: Setup) -> Lab {
        Lab::start(model, setup, None)
    }

    /// Blocks outlive it in `folder`.
    fn with_disk(model: &Path, setup: Setup, folder: &Path) -> Lab {
        let disk = DiskOptions {
            folder: folder.to_owned(),
            bytes_max: 1 << 30,
            model: "lab".into(),
        };
        Lab::start(model, setup, Some(disk))
    }

    fn start(model: &Path, setup: Setup, disk: Option<DiskOptions>) -> Lab {
        let options = LoadOptions {
            device: Device::Cpu {
                threads: setup.threads,
            },
            kv_type: setup.kv,
            ..LoadOptions::default()
        };
        let loaded = load_forward(model, &options, &|_| {}).expect("the model loads");
        let vocab = loaded.config.vocab;
        let rows: Arc<Mutex<BTreeMap<u64, Rows>>> = Arc::default();
        let sink = rows.clone();
        let trace = move |row: TraceRow<'_>| {
            let bits = row.logits.iter().map(|l| l.to_bits()).collect();
            let mut rows = sink.lock().expect("unpoisoned");
            let of_request = rows.entry(row.request).or_default();
            assert!(
                of_request.insert(row.position, bits).is_none(),
                "one row a position"
            );
        };
        let config = EngineConfig {
            context: ContextOptions {
                context_tokens: Some(setup.context),
                kv_bytes: setup.kv_bytes,
                free_bytes: Some(4 << 30),
                window_ends: 0,
            },
            chunk_tokens: setup.chunk_tokens,
            trace: Some(Arc::new(trace)),
            disk,
            ..EngineConfig::default()
        };
        let engine = Engine::start(loaded.forward, Arc::new(NoText(vocab)), config);
        Lab {
            engine: engine.expect("the engine starts"),
            rows,
            vocab,
            salts: AtomicUsize::new(0),
        }
    }

    /// A namespace that nobody has used: everything in it is cold.
    fn new_salt(&self) -> Salt {
        Salt::new(&format!(
            "salt {}",
            self.salts.fetch_add(1, Ordering::Relaxed)
        ))
    }

    fn ids(&self, seed: u32, length: usize) -> Vec<u32> {
        let id = |i: u32| (seed.wrapping_mul(7919) + i * i * 31 + i * 17 + 5) % self.vocab as u32;
        (0..length as u32).map(id).collect()
    }

    fn submit(
        &self,
        pieces: &[&[u32]],
        salt: &Salt,
        sampling: SamplingParams,
        max: usize,
    ) -> Generation {
        let request = Request {
            salt: salt.clone(),
            sampling,
            max_tokens: Some(max),
            ..Request::new(prompt(pieces))
        };
        self.engine.generate(request).expect("accepted")
    }

    fn ask(&self, pieces: &[&[u32]], salt: &Salt, max: usize) -> Answer {
        self.read(self.submit(pieces, salt, SamplingParams::greedy(), max))
    }

    /// Without any hit, which is asserted.
    fn cold(&self, pieces: &[&[u32]], max: usize) -> Answer {
        let answer = self.ask(pieces, &self.new_salt(), max);
        assert_eq!(answer.report.reused, 0);
        answer
    }

    fn read(&self, mut generation: Generation) -> Answer {
        while let Some(event) = generation.recv() {
            if let Event::Done {
                reason,
                report,
                ids,
            } = event
            {
                assert!(matches!(reason, Finish::Length), "{reason:?}");
                let rows = self
                    .rows
                    .lock()
                    .expect("unpoisoned")
                    .remove(&generation.id());
                return Answer {
                    ids,
                    report,
                    rows: rows.unwrap_or_default(),
                };
            }
        }
        panic!("a stream without an end");
    }

    fn rows_forwarded(&self) -> usize {
        self.engine.stats().expect("running").rows_forwarded as usize
    }
}

fn prompt(pieces: &[&[u32]]) -> Prompt {
    let pieces = pieces.iter().enumerate();
    let made =
        pieces.map(|(i, ids)| Piece::new(format!("piece {i}"), Layer::History, ids.to_vec(), b""));
    Prompt::new(made.collect()).expect("one layer")
}

fn assert_same(what: &str, hit: &Answer, cold: &Answer) {
    assert_eq!(hit.ids, cold.ids, "{what}: tokens");
    assert!(!cold.rows.is_empty());
    let positions = |a: &Answer| a.rows.keys().copied().collect::<Vec<_>>();
    assert_eq!(positions(hit), positions(cold), "{what}: positions");
    for (position, row) in &hit.rows {
        assert!(
            row == &cold.rows[position],
            "{what}: logits at {position} differ in bits"
        );
    }
}

/// The counts of a report, which must also be the rows that the engine counted in the meantime.
fn assert_counts(lab: &Lab, before: usize, answer: &Answer, reused: usize) {
    let report = &answer.report;
    assert_eq!(report.reused, reused, "{report:?}");
    assert_eq!(report.reused + report.computed, report.tokens);
    assert_eq!(
        lab.rows_forwarded() - before,
        report.computed + report.decode_rows + report.drafted - report.drafts_taken
    );
}

fn every_split(lab: &Lab, length: usize, max: usize) {
    let ids = lab.ids(1, length);
    let cold = lab.cold(&[&ids], max);
    for n in 1..length {
        let salt = lab.new_salt();
        lab.ask(&[&ids[..n]], &salt, 0);
        let before = lab.rows_forwarded();
        let hit = lab.ask(&[&ids[..n], &ids[n..]], &salt, max);
        assert_counts(lab, before, &hit, n);
        assert_same(&format!("split at {n}"), &hit, &cold);
    }
    let before = lab.rows_forwarded();
    let salt = lab.new_salt();
    lab.ask(&[&ids], &salt, max);
    let first = lab.rows_forwarded();
    assert_eq!(first - before, length + max - 1);
    let repeat = lab.ask(&[&ids], &salt, max);
    assert_counts(lab, first, &repeat, length - 1);
    assert_same("repeat", &repeat, &cold);
}

/// The tokens common with a longer, different prompt are copied out of its blocks.
fn edits(lab: &Lab, length: usize, at: impl Iterator<Item = usize>) {
    let ids = lab.ids(2, length);
    let salt = lab.new_salt();
    lab.ask(&[&ids], &salt, 1);
    for n in at {
        let mut edited = ids.clone();
        edited[n] = (edited[n] + 1) % lab.vocab as u32;
        let before = lab.rows_forwarded();
        let hit = lab.ask(&[&edited], &salt, 2);
        assert_counts(lab, before, &hit, n);
        assert_same(&format!("edit at {n}"), &hit, &lab.cold(&[&edited], 2));
    }
    let again = lab.ask(&[&ids], &salt, 2);
    assert_eq!(again.report.computed, 1);
    assert_same("the first again", &again, &lab.cold(&[&ids], 2));
}

fn forks(lab: &Lab, length: usize) {
    let salt = lab.new_salt();
    let ids = lab.ids(3, length);
    let trunk = lab.engine.timeline(salt);
    assert_eq!(
        trunk.sync(&prompt(&[&ids])).expect("synced").computed,
        length
    );
    let leased = lab.engine.stats().expect("running").blocks.leased;
    let children: Vec<Timeline> = (0..4).map(|_| trunk.fork()).collect();
    assert_eq!(lab.engine.stats().expect("running").blocks.leased, leased);
    drop(trunk);
    lab.engine.clear_cache().expect("running");
    let briefs: Vec<Vec<u32>> = (0..4)
        .map(|i| lab.ids(30 + i, 5 + 9 * i as usize))
        .collect();
    let generations: Vec<_> = children
        .iter()
        .zip(&briefs)
        .map(|(child, brief)| {
            let request = Request {
                sampling: SamplingParams::greedy(),
                max_tokens: Some(3),
                ..Request::new(prompt(&[&ids, brief]))
            };
            child.generate(request).expect("accepted")
        })
        .collect();
    for (generation, brief) in generations.into_iter().zip(&briefs) {
        let child = lab.read(generation);
        assert_eq!(
            (child.report.reused, child.report.computed),
            (length, brief.len())
        );
        assert_same("fork", &child, &lab.cold(&[&ids, brief], 3));
    }
}

fn batches(lab: &Lab, length: usize) {
    let sampling = |seed| SamplingParams {
        temperature: 0.8,
        seed,
        ..SamplingParams::default()
    };
    let shared = lab.ids(39, length);
    let asks: Vec<(Vec<u32>, u64)> = (0..8)
        .map(|i| (lab.ids(40 + i, 5 + 7 * i as usize), u64::from(i)))
        .collect();
    let submit = |(own, seed): &(Vec<u32>, u64), salt: &Salt| {
        lab.submit(&[&shared, own], salt, sampling(*seed), 12)
    };
    let alone: Vec<Answer> = asks
        .iter()
        .map(|ask| {
            let answer = lab.read(submit(ask, &lab.new_salt()));
            assert_eq!(answer.report.reused, 0);
            answer
        })
        .collect();
    // Cold beside each other, and then behind a prefix that is resident.
    for (size, warm) in (1..=8).flat_map(|size| [(size, false), (size, true)]) {
        let salt = lab.new_salt();
        if warm {
            lab.ask(&[&shared], &salt, 1);
        }
        let generations: Vec<_> = asks[..size].iter().map(|ask| submit(ask, &salt)).collect();
        for (generation, alone) in generations.into_iter().zip(&alone) {
            let answer = lab.read(generation);
            if warm {
                assert_eq!(answer.report.reused, length, "batch of {size}");
            }
            assert_same(&format!("batch of {size}, warm {warm}"), &answer, alone);
        }
    }
    assert!(
        lab.engine.stats().expect("running").batch_max >= 7,
        "they ran together"
    );
}

fn after_eviction(lab: &Lab, length: usize) {
    let salt = lab.new_salt();
    let ids = lab.ids(5, length);
    let cold = lab.cold(&[&ids], 3);
    lab.ask(&[&ids], &salt, 3);
    let plan = lab.engine.plan(&prompt(&[&ids]), &salt).expect("fits");
    assert_eq!(plan.computed, 1);
    assert!(lab.engine.clear_cache().expect("running") > 0);
    let evicted = lab.ask(&[&ids], &salt, 3);
    assert_eq!(evicted.report.computed, length);
    let tokens = length - 1;
    assert_eq!(evicted.report.between, [Between::Evicted { tokens }]);
    assert_same("after eviction", &evicted, &cold);
    let warm = lab.ask(&[&ids], &salt, 3);
    assert_eq!((warm.report.computed, warm.report.between.len()), (1, 0));
    assert_same("warm again", &warm, &cold);
}

/// What one engine wrote the next one reads: all of it, the part before an edit, and nothing of another salt.
fn after_restart(model: &Path, setup: Setup, length: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let start = || Lab::with_disk(model, setup, folder.path());
    let ask = |ids: &[u32], salt: &str, reused: usize| {
        let lab = start();
        let before = lab.rows_forwarded();
        let answer = lab.ask(&[ids], &Salt::new(salt), 3);
        assert_counts(&lab, before, &answer, reused);
        answer
    };
    // In memory only: nothing is warm there but what was asked before.
    let plain = Lab::new(model, setup);
    let ids = plain.ids(7, length);
    ask(&ids, "a", 0);
    let cold = plain.cold(&[&ids], 3);
    assert_same("from disk", &ask(&ids, "a", length - 1), &cold);
    assert_same("another salt", &ask(&ids, "b", 0), &cold);
    for n in [1, 31, 32, 33, length - 1] {
        let mut edited = ids.clone();
        edited[n] = (edited[n] + 1) % plain.vocab as u32;
        let what = format!("from disk, edited at {n}");
        let hit = ask(&edited, "a", n);
        assert_same(&what, &hit, &plain.cold(&[&edited], 3));
    }
}

struct TinyCase {
    name: &'static str,
    family: Family,
    window: Option<(usize, usize)>,
    weights: WeightType,
    kv: KvType,
}

/// Every weight type has its own kernel, so each takes the whole course.
const TINY: &[TinyCase] = &[
    TinyCase {
        name: "llama F32",
        family: Family::Llama,
        window: None,
        weights: WeightType::F32,
        kv: KvType::F32,
    },
    TinyCase {
        name: "llama Q4_1",
        family: Family::Llama,
        window: None,
        weights: WeightType::Q4_1,
        kv: KvType::F16,
    },
    TinyCase {
        name: "qwen2 Q8_0",
        family: Family::Qwen2,
        window: None,
        weights: WeightType::Q8_0,
        kv: KvType::F16,
    },
    TinyCase {
        name: "qwen2 Q4_K",
        family: Family::Qwen2,
        window: None,
        weights: WeightType::Q4K,
        kv: KvType::F16,
    },
    TinyCase {
        name: "llama Q6_K",
        family: Family::Llama,
        window: None,
        weights: WeightType::Q6K,
        kv: KvType::F32,
    },
    TinyCase {
        name: "qwen2 F16",
        family: Family::Qwen2,
        window: None,
        weights: WeightType::F16,
        kv: KvType::F32,
    },
    TinyCase {
        name: "gemma3 Q8_0",
        family: Family::Gemma3,
        window: Some((40, 2)),
        weights: WeightType::Q8_0,
        kv: KvType::F16,
    },
];

fn tiny(folder: &Path, case: &TinyCase) -> PathBuf {
    let path = folder.join(format!("{}.gguf", case.name.replace(' ', "-")));
    let spec = TinySpec {
        family: case.family,
        window: case.window,
        weights: case.weights,
        d_model: 256,
        d_ff: 256,
        q_heads: 4,
        kv_heads: 2,
        ..TinySpec::default()
    };
    tiny_model(&path, &spec).expect("written");
    path
}

#[test]
fn tiny_models_hit_and_miss_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    for case in TINY {
        eprintln!("{}", case.name);
        let setup = Setup {
            kv: case.kv,
            // Layers with a window get a share of it; everything here must be found again.
            kv_bytes: case.window.map(|_| 64 << 20),
            ..SETUP
        };
        let path = tiny(folder.path(), case);
        let lab = Lab::new(&path, setup);
        every_split(&lab, 97, 3);
        edits(&lab, 97, (0..97).step_by(3));
        forks(&lab, 75);
        batches(&lab, 20);
        after_eviction(&lab, 70);
        after_restart(&path, setup, 97);
    }
}

#[test]
fn threads_and_chunks_change_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for case in TINY {
        let path = tiny(folder.path(), case);
        let mut first: Option<Answer> = None;
        for threads in [1, 2, 3] {
            for chunk_tokens in [17, 33, 64, 256] {
                let setup = Setup {
                    threads,
                    chunk_tokens,
                    kv: case.kv,
                    ..SETUP
                };
                let lab = Lab::new(&path, setup);
                let answer = lab.cold(&[&lab.ids(6, 150)], 4);
                let what = format!("{}, {threads} threads, chunks of {chunk_tokens}", case.name);
                match &first {
                    Some(first) => assert_same(&what, &answer, first),
                    None => first = Some(answer),
                }
            }
        }
    }
}

#[test]
fn smollm2_hits_and_misses_alike() {
    let path = common::smollm2();
    let lab = Lab::new(&path, SETUP);
    every_split(&lab, 40, 2);
    edits(&lab, 70, [0, 1, 31, 32, 33, 69].into_iter());
    forks(&lab, 45);
    batches(&lab, 9);
    after_eviction(&lab, 50);
    after_restart(&path, SETUP, 70);
}
