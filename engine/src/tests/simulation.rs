//! Seeded random runs of everything at once, the disk and its faults included, against a model without a
//! cache.
//!
//! After every step the blocks must add up and the tree's invariants hold (the engine audits itself
//! in debug); every so often each resident position is compared with what a cold run puts there and
//! lookups with a plain search. A failure prints its seed; `OSTLER_SIM_SEEDS=17..18` runs it alone,
//! `0..100000` runs many.

use super::fake::{Fault, in_window, mix, read};
use super::files::MemoryFiles;
use super::rig::{Ask, Handle, Rig, Window, assert_counts, collect, prompt};
use crate::core::Limits;
use crate::error::Error;
use crate::keys::Salt;
use crate::prompt::Prompt;
use crate::request::{Finish, Priority};
use kernels::KvArena;
use models::forward::KvBlocks;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Seeds of a run that nobody asked to be longer.
const SEEDS: std::ops::Range<u64> = 0..60;
const STEPS: usize = 400;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0, 0x5eed);
        (self.0 >> 16) as usize % n
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[test]
fn random_runs_agree_with_a_model_without_a_cache() {
    let (mut answers, mut from_disk, mut passed) = (0, 0, 0);
    let seeds = seeds();
    let runs = seeds.clone().count();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| simulate(seed))) {
            Ok(ran) => {
                answers += ran.checked;
                from_disk += ran.from_disk;
                passed += ran.parts_given_up;
            }
            Err(panic) => {
                eprintln!("the simulation failed with seed {seed}");
                resume_unwind(panic);
            }
        }
    }
    assert!(answers > 20 * runs, "only {answers} answers");
    assert!(from_disk > 0, "nothing came from disk");
    assert!(passed > 0, "the layers with a window gave up nothing");
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("OSTLER_SIM_SEEDS") else {
        return SEEDS;
    };
    let ends = range
        .split_once("..")
        .and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    ends.unwrap_or_else(|| panic!("OSTLER_SIM_SEEDS is {range:?}; need FIRST..END"))
}

struct Simulation {
    rig: Rig,
    random: Random,
    /// Ids that prompts are cut from, so that prefixes are shared.
    texts: Vec<Vec<u32>>,
    live: Vec<(Handle, usize)>,
    timelines: Vec<u64>,
    files: Arc<MemoryFiles>,
    bytes_max: u64,
    reused: usize,
    ran: Ran,
}

/// What a simulation has seen.
#[derive(Default)]
struct Ran {
    /// Answers that were compared.
    checked: usize,
    /// Tokens that came from disk.
    from_disk: u64,
    parts_given_up: u64,
}

fn simulate(seed: u64) -> Ran {
    let mut random = Random(seed ^ 0x0b5e_55ed);
    let context = 160 + random.below(200);
    let blocks = context / 32 + 2 + random.below(30);
    let limits = Limits {
        sequences_max: 1 + random.below(6),
        chunk_tokens: 17 + random.below(100),
    };
    let window = random.one_in(2).then(|| {
        let tokens = 1 + random.below(90);
        let one = (tokens + limits.chunk_tokens).div_ceil(32) + 3;
        Window {
            tokens,
            parts: (one + random.below(12)).min(blocks),
        }
    });
    let mut simulation = Simulation {
        rig: Rig::with_window(context, blocks, limits, window),
        random,
        texts: vec![super::rig::ids(seed, context)],
        live: Vec::new(),
        timelines: Vec::new(),
        files: Arc::default(),
        bytes_max: 0,
        reused: 0,
        ran: Ran::default(),
    };
    simulation.bytes_max = match simulation.random.below(4) {
        0 => 1 << 16,
        1 => 1 << 18,
        _ => 1 << 30,
    };
    if simulation.random.one_in(2) {
        let one_in = 2 + simulation.random.below(40) as u64;
        simulation.files.fail(one_in, seed);
    }
    simulation.start_over();
    for _ in 0..STEPS {
        simulation.act(context);
    }
    simulation.settle();
    assert!(simulation.reused > 0, "the cache never hit");
    simulation.ran
}

impl Simulation {
    fn act(&mut self, context: usize) {
        match self.random.below(40) {
            0..10 => self.submit(context),
            10 => self.cancel(),
            11 => self.hang_up(),
            12 => {
                let (prompt, salt) = (self.prompt(context), self.salt());
                self.rig.core.plan(prompt, &salt);
            }
            13 => self.timeline(context),
            14 => self.rig.clock.advance_ms(self.random.below(8000) as u64),
            15 if self.random.one_in(4) => drop(self.rig.core.clear_cache()),
            18 => self.files.pass_seconds(self.random.below(100) as u64),
            19 if self.random.one_in(8) => self.spoil_a_file(),
            20 if self.random.one_in(20) => self.restart(),
            21..24 => self.rig.core.write_behind(),
            16 if self.random.one_in(3) => self.break_a_step(),
            17 => {
                check_resident(&self.rig);
                self.check_lookup(context);
            }
            _ => {
                self.rig.core.step();
            }
        }
        self.rig.core.audit().expect("the blocks add up");
        self.collect_finished();
    }

    /// Stops at once, as a crash does, or in good order.
    fn restart(&mut self) {
        if self.random.one_in(2) {
            self.rig.write_all();
        }
        self.rig.core.shut_down(&Error::Stopped);
        for (handle, _) in std::mem::take(&mut self.live) {
            drop(self.rig.rows.lock().expect("unpoisoned").drain(..));
            let outcome = collect(handle);
            assert!(matches!(outcome.reason, Finish::Error(Error::Stopped)));
        }
        self.collect_finished();
        self.timelines.clear();
        self.rig.core.clear_cache();
        self.start_over();
    }

    /// Opens the disk anew. A folder that cannot be listed is none.
    fn start_over(&mut self) {
        self.ran.from_disk += self.loaded();
        for _ in 0..100 {
            if self.rig.try_disk(&self.files, self.bytes_max) {
                return;
            }
        }
    }

    fn loaded(&self) -> u64 {
        let disk = self.rig.core.stats().disk;
        disk.map_or(0, |d| d.tokens_loaded)
    }

    fn spoil_a_file(&mut self) {
        let names = self.files.names();
        if names.is_empty() {
            return;
        }
        let name = &names[self.random.below(names.len())];
        let (cut, at) = (self.random.one_in(2), self.random.below(1 << 20));
        self.files.change(name, |bytes| {
            let at = at % bytes.len().max(1);
            match cut {
                true => bytes.truncate(at),
                false => bytes.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1),
            }
        });
    }

    fn salt(&mut self) -> Salt {
        Salt::new(if self.random.one_in(5) { "other" } else { "" })
    }

    /// A cut of something that was used before, perhaps edited, in random pieces.
    fn prompt(&mut self, context: usize) -> Prompt {
        let mut ids = self.texts[self.random.below(self.texts.len())].clone();
        let length = 1 + self.random.below(context - 1);
        ids.truncate(length);
        let length = ids.len();
        match self.random.below(4) {
            0 => ids[self.random.below(length)] = 1 + self.random.below(23) as u32,
            1 => {
                let more = self.random.below(context - length);
                ids.extend(super::rig::ids(self.random.0, more));
            }
            _ => {}
        }
        if self.texts.len() > 12 {
            self.texts.remove(1);
        }
        self.texts.push(ids.clone());
        let cut = self.random.below(ids.len() + 1);
        prompt(&[&ids[..cut], &ids[cut..]])
    }

    fn submit(&mut self, context: usize) {
        let prompt = self.prompt(context);
        let salt = self.salt();
        if self.random.one_in(4) {
            self.rig.core.plan(prompt.clone(), &salt);
        }
        let room = context - prompt.len();
        let max = self.random.below(room.min(70) + 1);
        let timeline = match self.random.one_in(6) {
            true => self.timelines.last().copied(),
            false => None,
        };
        let ask = Ask {
            salt,
            timeline,
            priority: match self.random.one_in(3) {
                true => Priority::Background,
                false => Priority::Interactive,
            },
            ..Ask::greedy(max)
        };
        let handle = self.rig.submit(&prompt, ask);
        self.live.push((handle, max));
    }

    fn cancel(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.below(self.live.len());
            self.live[index].0.cancel.store(true, Ordering::Relaxed);
        }
    }

    fn hang_up(&mut self) {
        if !self.live.is_empty() {
            let index = self.random.below(self.live.len());
            drop(self.live.remove(index));
        }
    }

    fn timeline(&mut self, context: usize) {
        let new = self.rig.new_id();
        match self.timelines.last().copied() {
            Some(old) if self.random.one_in(3) => {
                self.rig.core.hold_timeline(old, self.random.one_in(2));
            }
            Some(old) if self.timelines.len() > 3 || self.random.one_in(3) => {
                self.timelines.retain(|t| *t != old);
                self.rig.core.close_timeline(old);
            }
            Some(old) => {
                self.rig.core.fork_timeline(old, new);
                self.timelines.push(new);
            }
            None => {
                self.rig.core.open_timeline(new, &Salt::default());
                self.timelines.push(new);
                let prompt = self.prompt(context / 2);
                drop(self.rig.sync(new, &prompt).try_recv());
                // Dropped: it is cancelled before or after it has run.
                if self.random.one_in(2) {
                    let mut done = self.rig.sync(new, &prompt);
                    (0..9).for_each(|_| _ = self.rig.core.step());
                    drop(done.try_recv());
                }
            }
        }
    }

    fn break_a_step(&mut self) {
        let faults = [Fault::Error, Fault::Panic, Fault::Miscount];
        let fault = faults[self.random.below(3)];
        self.rig.log.lock().expect("unpoisoned").next_fault = Some(fault);
    }

    fn collect_finished(&mut self) {
        let ids: Vec<u64> = self
            .rig
            .core
            .active
            .iter()
            .chain(&self.rig.core.waiting)
            .map(|s| s.id)
            .collect();
        let finished: Vec<_> = self
            .live
            .extract_if(.., |(h, _)| !ids.contains(&h.id))
            .collect();
        for (handle, max) in finished {
            self.rig.check_logits(&handle);
            let prompt = handle.prompt.clone();
            let outcome = collect(handle);
            assert_counts(&outcome);
            let whole = self.rig.reference.reply(&prompt, max);
            match &outcome.reason {
                Finish::Cancelled => assert!(whole.starts_with(&outcome.ids)),
                Finish::Error(error) => {
                    let text = error.to_string();
                    assert!(text.contains("inject") || text.contains("rows"), "{text}");
                }
                _ => {
                    assert_eq!(outcome.ids, whole, "{:?}", outcome.reason);
                    self.ran.checked += 1;
                    self.reused += outcome.report.reused;
                    let next = [prompt, outcome.ids].concat();
                    if next.len() < self.texts[0].len() {
                        self.texts.push(next);
                    }
                }
            }
        }
    }

    /// The lookup finds exactly the longest prefix that is resident on any path.
    fn check_lookup(&mut self, context: usize) {
        let (prompt, salt) = (self.prompt(context), self.salt());
        let keyed = self.rig.core.cache.key(prompt, &salt);
        let found = self
            .rig
            .core
            .cache
            .lookup(keyed.root, &keyed.ids, &keyed.marks);
        let unaided = self.rig.core.cache.lookup(keyed.root, &keyed.ids, &[]);
        assert_eq!(found.tokens, unaided.tokens, "chain keys change nothing");
        let paths = self.rig.core.cache.tree().paths();
        let windows = self.rig.core.cache.pool().windows();
        let longest = paths
            .iter()
            .filter(|(key, _, _)| *key == keyed.root_key)
            .map(|(_, ids, blocks)| {
                let pairs = ids.iter().zip(&keyed.ids);
                let common = pairs.take_while(|(a, b)| a == b).count();
                // Where a window is there, looked for position by position.
                let seen = |tokens: usize| {
                    let window = self.rig.reference.window.unwrap_or(0);
                    (tokens + 1).saturating_sub(window)..tokens
                };
                let there = |p: usize| windows.is_none_or(|w| w.part(blocks[p / 32]).is_some());
                let usable = |tokens: &usize| *tokens == 0 || seen(*tokens).all(there);
                (0..=common).rev().find(usable).unwrap_or(0)
            })
            .max();
        match windows {
            None => assert_eq!(found.tokens, longest.unwrap_or(0)),
            // Of siblings that begin alike one may be taken that lacks the window which the other has; and a
            // block that is copied in part has its part.
            Some(_) => assert!(found.tokens <= longest.unwrap_or(0)),
        }
        assert_eq!(found.blocks.len(), found.tokens.div_ceil(32));
    }

    fn settle(&mut self) {
        self.rig.log.lock().expect("unpoisoned").next_fault = None;
        self.rig.run();
        self.collect_finished();
        assert!(self.live.is_empty(), "everything was answered");
        for timeline in std::mem::take(&mut self.timelines) {
            self.rig.core.close_timeline(timeline);
        }
        self.rig.clock.advance_ms(1 << 30);
        self.rig.core.expire();
        check_resident(&self.rig);
        self.rig.write_all();
        let counts = self.rig.core.stats().blocks;
        assert_eq!(counts.leased, 0);
        self.ran.from_disk += self.loaded();
        self.ran.parts_given_up += self.rig.core.stats().windows.map_or(0, |w| w.given_up);
        assert!(
            self.files.bytes() <= self.bytes_max || self.files.fails(),
            "{} bytes on disk, {} allowed: {:?}",
            self.files.bytes(),
            self.bytes_max,
            self.rig.core.stats().disk
        );
        self.rig.core.clear_cache();
        assert_eq!(self.rig.core.stats().blocks.free, counts.total);
        let windows = self.rig.core.stats().windows;
        assert!(windows.is_none_or(|w| w.free == w.total));
        let stats = self.rig.core.stats();
        assert!(stats.rows_forwarded as usize <= self.rig.log.lock().unwrap().rows);
    }
}

/// Every resident position holds what a run without a cache puts there.
pub fn check_resident(rig: &Rig) {
    let pool = rig.core.cache.pool();
    let kv = arena(&pool.kv().all);
    let in_windows = pool.windows().zip(pool.kv().window.as_ref().map(arena));
    for (_, ids, blocks) in rig.core.cache.tree().paths() {
        let table: Vec<u32> = blocks.iter().map(|b| b.0).collect();
        for (position, state) in rig.reference.states(&ids).into_iter().enumerate() {
            let what = format!("position {position} of {ids:?}");
            assert_eq!(read(kv, &table, position), state, "{what}");
            let Some((windows, kv)) = in_windows else {
                continue;
            };
            if let Some(part) = windows.part(blocks[position / 32]) {
                let part = read(kv, &[part], position % 32);
                assert_eq!(part, in_window(state), "{what}, in its window");
            }
        }
    }
}

fn arena(kv: &KvBlocks) -> &KvArena {
    match kv {
        KvBlocks::Cpu(arena) => arena,
        KvBlocks::Tensor(_) => panic!("the fake runs on the CPU"),
    }
}
