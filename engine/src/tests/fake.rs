//! A model that is nothing but memory: each position stores a hash of all positions before it as
//! read back from KV, and the logits are a hash of all of them. A wrong block, a stale copy or a
//! wrong order anywhere changes every answer after it.
//!
//! With a window it has a second layer, which stores another hash of what the first stores. A position sees
//! those before it in its window, and what they say goes into what it stores: so every position depends on all
//! of them, as in a real model, and what lies before a window cannot be computed from what lies in it.

use crate::vocab::TokenBytes;
use kernels::{BLOCK_TOKENS, KvArena, KvShape, KvType};
use models::config::Config;
use models::forward::{
    Forward, KvBlocks, KvStore, LogitRows, Logits, ModelIdentity, SeqStep, WindowShape,
};
use models::tiny::TinySpec;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

pub const VOCAB: usize = 24;
/// The one end token.
pub const END: u32 = 0;

/// One layer, one head of 8 f32: V of a position is 32 bytes, of which the hash takes 8.
const SHAPE: KvShape = KvShape {
    layers: 1,
    kv_heads: 1,
    head_dim: 8,
    ty: KvType::F32,
};
const ROW_BYTES: usize = 32;
const V_OFFSET: usize = BLOCK_TOKENS * ROW_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Error,
    Panic,
    /// Claims a row more than it computed.
    Miscount,
}

/// What the fake saw, and what it shall do next.
#[derive(Debug, Default)]
pub struct Log {
    /// Rows per sequence of each step.
    pub steps: Vec<Vec<usize>>,
    pub rows: usize,
    pub next_fault: Option<Fault>,
    /// Whether the likeliest token follows from the last one alone, so that replies go round in a circle.
    pub circles: bool,
}

pub struct FakeForward {
    config: Config,
    identity: ModelIdentity,
    window: Option<NonZeroUsize>,
    pub log: Arc<Mutex<Log>>,
}

impl FakeForward {
    pub fn new(context: usize) -> Self {
        Self::windowed(context, None)
    }

    /// With a layer of which each position sees `window` positions.
    pub fn windowed(context: usize, window: Option<usize>) -> Self {
        FakeForward {
            config: config(context),
            identity: ModelIdentity::from_bytes([9; 32]),
            window: window.and_then(NonZeroUsize::new),
            log: Arc::default(),
        }
    }
}

impl Forward for FakeForward {
    fn config(&self) -> &Config {
        &self.config
    }

    fn identity_seed(&self) -> &ModelIdentity {
        &self.identity
    }

    fn kv_shape(&self) -> KvShape {
        SHAPE
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn window(&self) -> Option<WindowShape> {
        self.window.map(|tokens| WindowShape { kv: SHAPE, tokens })
    }

    fn new_kv(&self, blocks: usize, window_blocks: usize) -> models::Result<KvStore> {
        let new = |blocks| KvBlocks::Cpu(KvArena::new(SHAPE, blocks).expect("small"));
        Ok(KvStore {
            all: new(blocks),
            window: self.window.map(|_| new(window_blocks)),
        })
    }

    fn forward(&mut self, steps: &[SeqStep<'_>], kv: &mut KvStore) -> models::Result<Logits> {
        let kv_window = kv.window.as_mut();
        let (kv, mut kv_window) = (arena_mut(&mut kv.all), kv_window.map(arena_mut));
        let (fault, circles) = {
            let mut log = self.log.lock().expect("unpoisoned");
            (log.next_fault.take(), log.circles)
        };
        let logits_after = |fold, token: u32| {
            let mut row = logits(fold);
            if circles {
                row[token as usize % 5 + 1] += 100.0;
            }
            row
        };
        let mut data = Vec::new();
        let mut rows = 0;
        for (index, step) in steps.iter().enumerate() {
            assert!(step.start + step.tokens.len() <= step.table.len() * BLOCK_TOKENS);
            let mut fold = (0..step.start).fold(SEED, |f, p| mix(f, read(kv, step.table, p)));
            for (offset, token) in step.tokens.iter().enumerate() {
                let position = step.start + offset;
                let mut before = fold;
                if let (Some(kv), Some(window)) = (&kv_window, self.window) {
                    let seen = (position + 1).saturating_sub(window.get())..position;
                    before = seen.fold(fold, |f, p| mix(f, read(kv, step.window_table, p)));
                }
                let state = state(before, *token, position);
                write(kv, step.table, position, state);
                if let Some(kv) = &mut kv_window {
                    write(kv, step.window_table, position, in_window(state));
                }
                fold = mix(fold, read(kv, step.table, position));
                rows += 1;
                if step.logits == LogitRows::All {
                    data.extend(logits_after(fold, *token));
                }
            }
            if fault.is_some() && index == steps.len() / 2 {
                match fault {
                    Some(Fault::Error) => return Err(models::Error::device("injected")),
                    Some(Fault::Panic) => panic!("injected panic"),
                    Some(Fault::Miscount) | None => rows += 1,
                }
            }
            if step.logits == LogitRows::Last {
                let token = step.tokens[step.tokens.len() - 1];
                data.extend(logits_after(fold, token));
            }
        }
        let mut log = self.log.lock().expect("unpoisoned");
        log.rows += rows;
        log.steps
            .push(steps.iter().map(|s| s.tokens.len()).collect());
        Ok(Logits {
            vocab: VOCAB,
            data,
            rows_computed: rows,
        })
    }
}

/// The same model without any KV.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference {
    /// Positions that one sees in the layer with a window.
    pub window: Option<usize>,
}

impl Reference {
    /// logits [VOCAB] after all of `ids`.
    pub fn logits(&self, ids: &[u32]) -> Vec<f32> {
        logits(self.states(ids).iter().fold(SEED, |f, s| mix(f, *s)))
    }

    /// What each position of `ids` must hold in KV.
    pub fn states(&self, ids: &[u32]) -> Vec<u64> {
        let mut fold = SEED;
        let mut states: Vec<u64> = Vec::with_capacity(ids.len());
        for (position, token) in ids.iter().enumerate() {
            let seen = self
                .window
                .map_or(position, |w| (position + 1).saturating_sub(w));
            let before = states[seen..]
                .iter()
                .fold(fold, |f, s| mix(f, in_window(*s)));
            let state = state(before, *token, position);
            fold = mix(fold, state);
            states.push(state);
        }
        states
    }

    /// The greedy reply to `prompt`, at most `max` tokens, the end token included.
    pub fn reply(&self, prompt: &[u32], max: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        while ids.len() < prompt.len() + max {
            let id = argmax(&self.logits(&ids));
            ids.push(id);
            if id == END {
                break;
            }
        }
        ids.split_off(prompt.len())
    }
}

/// The greedy reply without a window.
pub fn reference_reply(prompt: &[u32], max: usize) -> Vec<u32> {
    Reference::default().reply(prompt, max)
}

/// What the layer with a window holds of a position that has this state.
pub fn in_window(state: u64) -> u64 {
    mix(state, 0x77_69_6e_64_6f_77)
}

fn arena_mut(kv: &mut KvBlocks) -> &mut KvArena {
    match kv {
        KvBlocks::Cpu(arena) => arena,
        KvBlocks::Tensor(_) => panic!("the fake runs on the CPU"),
    }
}

/// What position `position` of a sequence with these blocks holds.
pub fn read(kv: &KvArena, table: &[u32], position: usize) -> u64 {
    let at = V_OFFSET + position % BLOCK_TOKENS * ROW_BYTES;
    let bytes = &kv.block_bytes_ref(table[position / BLOCK_TOKENS])[at..at + 8];
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn write(kv: &mut KvArena, table: &[u32], position: usize, state: u64) {
    let at = V_OFFSET + position % BLOCK_TOKENS * ROW_BYTES;
    let block = kv.block_bytes_mut(table[position / BLOCK_TOKENS]);
    block[at..at + 8].copy_from_slice(&state.to_le_bytes());
}

const SEED: u64 = 0x6f73_746c_6572;

fn state(fold: u64, token: u32, position: usize) -> u64 {
    mix(fold, (u64::from(token) << 32) | position as u64)
}

fn logits(fold: u64) -> Vec<f32> {
    let row = |id| (mix(fold, id as u64) >> 40) as f32 / (1 << 20) as f32;
    let mut row: Vec<f32> = (0..VOCAB).map(row).collect();
    // Replies shall not end at once.
    row[END as usize] -= 1.0;
    row
}

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
    best.expect("a vocabulary") as u32
}

/// splitmix64's finaliser over both words.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Token n is the n-th letter, doubled: "aa", "bb", ...; the end token is a control token.
pub struct FakeVocab(Vec<Vec<u8>>);

impl Default for FakeVocab {
    fn default() -> Self {
        let word = |id: usize| vec![b'a' + id as u8 - 1; 2];
        let mut words: Vec<Vec<u8>> = vec![b"<end>".to_vec()];
        words.extend((1..VOCAB).map(word));
        FakeVocab(words)
    }
}

impl TokenBytes for FakeVocab {
    fn vocab_size(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self, id: u32) -> &[u8] {
        &self.0[id as usize]
    }
    fn is_control(&self, id: u32) -> bool {
        id == END
    }
    fn is_end(&self, id: u32) -> bool {
        id == END
    }
    fn eos(&self) -> Option<u32> {
        Some(END)
    }
}

/// Of a model that exists, but for what the engine looks at.
fn config(context: usize) -> Config {
    let model = TinySpec::default().gguf().expect("a tiny model");
    Config {
        context_train: context,
        vocab: VOCAB,
        ..Config::from_gguf(&model).expect("a good model")
    }
}
