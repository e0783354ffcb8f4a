//! Drives a [`Core`] by hand: one step at a time, on a clock that stands still.

use super::fake::{FakeForward, FakeVocab, Log, Reference, VOCAB};
use super::files::MemoryFiles;
use crate::clock::Clock;
use crate::context::{Bound, EffectiveContext};
use crate::core::{Core, Limits, Submission, TraceRow};
use crate::disk::{BlockFormat, Disk};
use crate::error::Result;
use crate::keys::Salt;
use crate::piece::{Layer, Piece};
use crate::prompt::Prompt;
use crate::reply::Reply;
use crate::report::{Plan, Report};
use crate::request::{Event, Finish, Priority};
use crate::sampler::{Sampler, SamplingParams};
use crate::sequence::{Load, Outlet, Task};
use crate::stop::StopMatcher;
use kernels::BLOCK_TOKENS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Rows of logits that were traced: request, position, logits.
type Rows = Arc<Mutex<Vec<(u64, usize, Vec<f32>)>>>;

pub struct Rig {
    pub core: Core,
    pub clock: Arc<ManualClock>,
    pub log: Arc<Mutex<Log>>,
    pub rows: Rows,
    pub reference: Reference,
    next_id: u64,
}

/// A layer with a window: positions that one sees there, and how many blocks can have a part.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub tokens: usize,
    pub parts: usize,
}

pub struct Ask {
    pub salt: Salt,
    pub sampling: SamplingParams,
    pub max: usize,
    pub stop: Vec<Vec<u8>>,
    pub priority: Priority,
    pub timeline: Option<u64>,
    pub no_drafts: bool,
}

impl Ask {
    pub fn greedy(max: usize) -> Self {
        Ask {
            salt: Salt::default(),
            sampling: SamplingParams::greedy(),
            max,
            stop: Vec::new(),
            priority: Priority::Interactive,
            timeline: None,
            no_drafts: false,
        }
    }
}

pub struct Handle {
    pub id: u64,
    pub prompt: Vec<u32>,
    pub events: mpsc::UnboundedReceiver<Event>,
    pub cancel: Arc<AtomicBool>,
}

#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub text: Vec<u8>,
    pub reason: Finish,
    pub report: Report,
    pub ids: Vec<u32>,
}

impl Rig {
    pub fn new(context: usize, blocks: usize) -> Self {
        Self::with_limits(
            context,
            blocks,
            Limits {
                sequences_max: 8,
                chunk_tokens: 64,
            },
        )
    }

    /// With a disk tier over `files`, of `bytes_max`.
    pub fn with_disk(
        context: usize,
        blocks: usize,
        files: &Arc<MemoryFiles>,
        bytes_max: u64,
    ) -> Self {
        let mut rig = Self::new(context, blocks);
        assert!(rig.try_disk(files, bytes_max), "the folder can be listed");
        rig
    }

    /// False when the folder cannot be listed.
    pub fn try_disk(&mut self, files: &Arc<MemoryFiles>, bytes_max: u64) -> bool {
        let format = BlockFormat::of(&*self.core.forward);
        let disk = Disk::at_once(files.clone(), bytes_max, format);
        disk.map(|disk| self.core.use_disk(disk)).is_ok()
    }

    /// Lets all that is to be written be written.
    pub fn write_all(&mut self) {
        while self.core.is_saving() || self.core.waits_for_disk() {
            self.core.write_behind();
        }
        self.core.write_behind();
    }

    pub fn with_limits(context: usize, blocks: usize, limits: Limits) -> Self {
        Self::with_window(context, blocks, limits, None)
    }

    pub fn with_window(
        context: usize,
        blocks: usize,
        limits: Limits,
        window: Option<Window>,
    ) -> Self {
        let reference = Reference {
            window: window.map(|window| window.tokens),
        };
        let forward = FakeForward::windowed(context, reference.window);
        let log = forward.log.clone();
        let clock = Arc::new(ManualClock::default());
        let rows = Rows::default();
        let sink = rows.clone();
        let trace = move |row: TraceRow<'_>| {
            let row = (row.request, row.position, row.logits.to_vec());
            sink.lock().expect("unpoisoned").push(row);
        };
        let effective = EffectiveContext {
            tokens: context,
            blocks,
            window_parts: window.map_or(0, |window| window.parts),
            bytes: (blocks * 2048) as u64,
            why: "the test says so".into(),
            bound: Bound::Asked,
        };
        let core = Core::new(
            Box::new(forward),
            effective,
            clock.clone(),
            limits,
            Some(Arc::new(trace)),
        );
        Rig {
            core: core.expect("a small pool"),
            clock,
            log,
            rows,
            reference,
            next_id: 1,
        }
    }

    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn submit(&mut self, prompt: &Prompt, ask: Ask) -> Handle {
        let id = self.new_id();
        let (sender, events) = mpsc::unbounded_channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let ids = prompt.ids();
        let sampler = Sampler::new(ask.sampling, VOCAB, &ids).expect("good parameters");
        let stop = StopMatcher::new(&ask.stop).expect("good stop strings");
        let mut reply = Reply::new(Arc::new(FakeVocab::default()), sampler, stop, None);
        reply.tokens_max = ask.max;
        reply.no_drafts = ask.no_drafts;
        self.core.submit(Submission {
            id,
            prompt: prompt.clone(),
            salt: ask.salt,
            priority: ask.priority,
            task: Task::Reply {
                reply: Box::new(reply),
                outlet: Outlet {
                    events: sender,
                    cancel: cancel.clone(),
                },
                timeline: ask.timeline,
            },
            load: Load::take(&Arc::default(), 1).expect("one"),
        });
        Handle {
            id,
            prompt: ids,
            events,
            cancel,
        }
    }

    pub fn sync(&mut self, timeline: u64, prompt: &Prompt) -> oneshot::Receiver<Result<Report>> {
        let (done, receiver) = oneshot::channel();
        let id = self.new_id();
        self.core.submit(Submission {
            id,
            prompt: prompt.clone(),
            salt: Salt::default(),
            priority: Priority::Interactive,
            task: Task::Sync {
                timeline,
                done: Some(done),
            },
            load: Load::take(&Arc::default(), 1).expect("one"),
        });
        receiver
    }

    /// Steps until nothing is left to do; panics when that takes too long.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            self.core.step();
            if self.core.is_idle() {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Submits, runs, and checks what must hold for every greedy answer.
    pub fn answer(&mut self, prompt: &Prompt, max: usize) -> Outcome {
        let handle = self.submit(prompt, Ask::greedy(max));
        self.run();
        self.check(handle)
    }

    pub fn check(&mut self, handle: Handle) -> Outcome {
        self.check_logits(&handle);
        let outcome = collect(handle);
        assert_counts(&outcome);
        outcome
    }

    /// Law 1: every row of logits that was traced for `handle` is the one that a model without a
    /// cache computes, bit for bit.
    pub fn check_logits(&mut self, handle: &Handle) {
        let mut rows = self.rows.lock().expect("unpoisoned");
        let mut ids = handle.prompt.clone();
        let mine: Vec<_> = rows.extract_if(.., |row| row.0 == handle.id).collect();
        for (_, position, logits) in mine {
            assert_eq!(position + 1, ids.len(), "rows come in order");
            assert_eq!(logits, self.reference.logits(&ids), "at {position}");
            let best = (0..VOCAB).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
            ids.push(best.expect("a vocabulary") as u32);
        }
    }
}

/// What came through, which must be: a plan, tokens, one `Done`.
pub fn collect(mut handle: Handle) -> Outcome {
    let mut plan = None;
    let mut text = Vec::new();
    while let Ok(event) = handle.events.try_recv() {
        match event {
            Event::Plan(p) => assert!(plan.replace(p).is_none(), "one plan"),
            Event::Token { bytes, .. } => text.extend(bytes),
            Event::Done {
                reason,
                report,
                ids,
            } => {
                assert!(handle.events.try_recv().is_err(), "nothing after Done");
                return Outcome {
                    plan: plan.expect("the plan comes first"),
                    text,
                    reason,
                    report,
                    ids,
                };
            }
        }
    }
    panic!("no Done for request {}", handle.id);
}

/// Law 2, and that the tables add up.
pub fn assert_counts(outcome: &Outcome) {
    use crate::report::Between;
    let (plan, report) = (&outcome.plan, &outcome.report);
    assert_eq!(plan.reused + plan.computed, plan.tokens);
    let (mut gone, mut shared, mut open) = (0, 0, 0);
    for between in &report.between {
        match between {
            Between::Evicted { tokens } | Between::Unreadable { tokens } => gone += tokens,
            Between::SharedPrefill { tokens } => shared += tokens,
            Between::Unfinished { tokens } => open += tokens,
            Between::Preempted { .. } => {}
        }
    }
    if open == 0 {
        assert_eq!(
            plan.computed + gone,
            report.computed + shared,
            "{plan:?}\n{report:?}"
        );
    }
    assert_eq!(report.reused + report.computed + open, report.tokens);
    for (pieces, reused, computed) in [
        (&plan.pieces, plan.reused, plan.computed),
        (&report.pieces, report.reused, report.computed),
    ] {
        assert_eq!(pieces.iter().map(|p| p.reused).sum::<usize>(), reused);
        assert_eq!(pieces.iter().map(|p| p.computed).sum::<usize>(), computed);
        let broken = pieces.iter().filter(|p| p.broken.is_some()).count();
        assert_eq!(broken, usize::from(computed > 0), "{pieces:?}");
    }
}

/// Pieces of History named by their place.
pub fn prompt(pieces: &[&[u32]]) -> Prompt {
    let named = pieces.iter().enumerate();
    let made = named.map(|(i, ids)| piece(&format!("piece {i}"), ids));
    Prompt::new(made.collect()).expect("one layer")
}

pub fn piece(name: &str, ids: &[u32]) -> Piece {
    layered_piece(name, Layer::History, ids)
}

pub fn layered_piece(name: &str, layer: Layer, ids: &[u32]) -> Piece {
    let text: Vec<u8> = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
    Piece::new(name, layer, ids.to_vec(), &text)
}

/// `length` ids that follow from `seed`.
pub fn ids(seed: u64, length: usize) -> Vec<u32> {
    let id = |i| 1 + (super::fake::mix(seed, i as u64) % (VOCAB as u64 - 1)) as u32;
    (0..length).map(id).collect()
}

/// Blocks for `tokens` positions.
pub fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}
