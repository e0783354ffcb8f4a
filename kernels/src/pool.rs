//! A pool of threads for fork-join work of a few microseconds.
//!
//! A worker that waits spins briefly, then yields, then parks, so that a busy
//! neighbour gets the core. A worker that has not woken up by the time the caller
//! has done all the work is let off: it never delays the caller.
//!
//! Invariant: when a call returns, no worker still touches its closure. Each
//! worker's slot goes `IDLE -> POSTED -> RUNNING -> IDLE`, or `POSTED -> IDLE` when let off.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{JoinHandle, Thread};

use crate::limits::{SPINS_MAX, THREADS_MAX, YIELDS_MAX};
use crate::{Error, KernelPath, kernel_path};

const IDLE: u32 = 0;
const POSTED: u32 = 1;
const RUNNING: u32 = 2;
const QUIT: u32 = 3;

type Job = *const (dyn Fn(usize) + Sync);

/// One worker's mailbox, on cache lines of its own.
#[repr(align(128))]
struct Slot {
    state: AtomicU32,
    parked: AtomicBool,
    /// Written by the caller while the slot is `IDLE`, read by the worker while it is `RUNNING`.
    job: std::cell::UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is only touched under the protocol of `state` above.
unsafe impl Sync for Slot {}
// SAFETY: the pointer inside is to a `Sync` closure.
unsafe impl Send for Slot {}

struct Shared {
    slots: Vec<Slot>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Threads that share the work of one caller at a time. The caller is worker 0.
pub struct ThreadPool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    workers: Vec<Thread>,
    busy: Mutex<()>,
    path: KernelPath,
}

impl ThreadPool {
    /// Starts `threads - 1` workers.
    ///
    /// # Errors
    /// `Request` when `threads` is 0 or above [`THREADS_MAX`]; `Threads` when the system refuses one.
    pub fn new(threads: usize) -> Result<ThreadPool, Error> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(Error::Request {
                what: "thread pool",
                need: format!("1..={THREADS_MAX} threads"),
                have: threads.to_string(),
                fix: "ask for as many threads as the machine has cores",
            });
        }
        let slots = (1..threads).map(|_| Slot {
            state: AtomicU32::new(IDLE),
            parked: AtomicBool::new(false),
            job: std::cell::UnsafeCell::new(None),
        });
        let mut pool = ThreadPool {
            shared: Arc::new(Shared {
                slots: slots.collect(),
                panic: Mutex::new(None),
            }),
            handles: Vec::new(),
            workers: Vec::new(),
            busy: Mutex::new(()),
            path: kernel_path(),
        };
        for worker in 1..threads {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("kernel-{worker}"))
                .spawn(move || work(&shared, worker))
                .map_err(|cause| Error::Threads {
                    need: threads,
                    cause,
                })?;
            pool.workers.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// The same pool with the kernels forced onto `path`: for tests and benchmarks.
    ///
    /// # Errors
    /// `Request` when this machine lacks the instructions.
    pub fn with_path(mut self, path: KernelPath) -> Result<ThreadPool, Error> {
        if !path.available() {
            return Err(Error::Request {
                what: "kernel path",
                need: path.name().into(),
                have: kernel_path().name().into(),
                fix: "choose a path this machine has",
            });
        }
        self.path = path;
        Ok(self)
    }

    /// The instructions that kernels run on this pool use.
    pub fn path(&self) -> KernelPath {
        self.path
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.slots.len() + 1
    }

    /// Calls `f(worker)` once on every thread and waits for all of them. A panic in any is
    /// raised again here.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        let _one_at_a_time = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        self.dispatch(f, self.shared.slots.len(), false);
    }

    /// Calls `f(unit, worker)` for every `unit` below `units`, each once, shared out
    /// through a cursor. A call from inside another runs on the calling thread alone.
    pub fn for_units(&self, units: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        let helpers = self.shared.slots.len().min(units.saturating_sub(1));
        let guard = if helpers == 0 {
            None
        } else {
            match self.busy.try_lock() {
                Ok(guard) => Some(guard),
                // A panic of an earlier job left nothing behind.
                Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        };
        if guard.is_none() {
            (0..units).for_each(|unit| f(unit, 0));
            return;
        }
        let cursor = AtomicUsize::new(0);
        let share = |worker: usize| {
            loop {
                let unit = cursor.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    return;
                }
                f(unit, worker);
            }
        };
        self.dispatch(&share, helpers, true);
    }

    /// Posts `f` to the first `helpers` workers, runs it here, waits.
    fn dispatch(&self, f: &(dyn Fn(usize) + Sync), helpers: usize, let_off: bool) {
        // SAFETY: only the lifetime changes. `Join` below waits, also while unwinding, until
        // no worker holds the pointer.
        let job: Job = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(std::ptr::from_ref(f))
        };
        // A worker's panic that a panic of the caller overtook belongs to that call.
        drop(self.take_panic());
        let join = Join {
            shared: &self.shared,
            helpers,
            let_off,
        };
        for (slot, thread) in self.shared.slots.iter().zip(&self.workers).take(helpers) {
            // SAFETY: the slot is `IDLE` (every dispatch ends so, and `busy` admits one at a
            // time), so its worker does not read `job`.
            unsafe { *slot.job.get() = Some(job) };
            slot.state.store(POSTED, Ordering::SeqCst);
            if slot.parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        f(0);
        drop(join);
        if helpers > 0
            && let Some(payload) = self.take_panic()
        {
            resume_unwind(payload);
        }
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.shared
            .panic
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for (slot, thread) in self.shared.slots.iter().zip(&self.workers) {
            slot.state.store(QUIT, Ordering::SeqCst);
            thread.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker catches every panic of a job, so it ends normally.
            let _ = handle.join();
        }
    }
}

/// Waits for the workers when dropped.
struct Join<'a> {
    shared: &'a Shared,
    helpers: usize,
    let_off: bool,
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        for slot in &self.shared.slots[..self.helpers] {
            let mut patience = 0;
            loop {
                let state = slot.state.load(Ordering::Acquire);
                if state == IDLE {
                    break;
                }
                let may_let_off = self.let_off && state == POSTED;
                if may_let_off
                    && slot
                        .state
                        .compare_exchange(POSTED, IDLE, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    break;
                }
                patience += 1;
                if patience < SPINS_MAX {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// The life of a worker.
fn work(shared: &Shared, worker: usize) {
    let slot = &shared.slots[worker - 1];
    loop {
        if wait(slot) == QUIT {
            return;
        }
        let claimed =
            slot.state
                .compare_exchange(POSTED, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            continue;
        }
        // SAFETY: `RUNNING` is this worker's; the caller wrote the job before `POSTED` and
        // keeps the closure alive until the slot is `IDLE` again.
        let job = unsafe { (*slot.job.get()).map(|job| &*job) };
        if let Some(job) = job
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(worker)))
        {
            *shared.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(payload);
        }
        // `QUIT` cannot be overwritten: the pool is not dropped during a dispatch.
        slot.state.store(IDLE, Ordering::Release);
    }
}

/// Waits until the slot is neither idle nor running: spins, yields, parks.
fn wait(slot: &Slot) -> u32 {
    let mut patience = 0;
    loop {
        let state = slot.state.load(Ordering::Acquire);
        if state != IDLE {
            return state;
        }
        patience += 1;
        if patience < SPINS_MAX {
            std::hint::spin_loop();
        } else if patience < SPINS_MAX + YIELDS_MAX {
            std::thread::yield_now();
        } else {
            slot.parked.store(true, Ordering::SeqCst);
            // The poster stores the state, then looks at `parked`; here the order is the
            // other way round, so one of the two sees the other.
            while slot.state.load(Ordering::SeqCst) == IDLE {
                std::thread::park();
            }
            slot.parked.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_runs_once() {
        for threads in [1, 2, 4] {
            let pool = ThreadPool::new(threads).unwrap();
            for units in [0, 1, 2, 7, 1000] {
                let seen: Vec<AtomicU32> = (0..units).map(|_| AtomicU32::new(0)).collect();
                pool.for_units(units, &|unit, worker| {
                    assert!(worker < threads);
                    seen[unit].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn run_reaches_every_thread_also_after_they_parked() {
        let pool = ThreadPool::new(3).unwrap();
        for round in 0..200 {
            if round % 50 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let seen: Vec<AtomicU32> = (0..3).map(|_| AtomicU32::new(0)).collect();
            pool.run(&|worker| {
                seen[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::new(2).unwrap();
        for who in [0, 1] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker| assert!(worker != who, "worker {who} fails"));
            }));
            assert!(caught.is_err());
        }
        let count = AtomicU32::new(0);
        pool.run(&|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    /// A panicking caller poisons the lock that admits one job at a time; a pool that took that
    /// for "busy" would run everything on one thread ever after.
    #[test]
    fn after_a_panic_the_workers_still_help() {
        let pool = ThreadPool::new(2).unwrap();
        let both_fail = catch_unwind(AssertUnwindSafe(|| pool.run(&|_| panic!("both"))));
        assert!(both_fail.is_err());
        // Each unit waits for the other: one thread alone could not end this.
        let (started, patience) = (AtomicU32::new(0), std::time::Duration::from_secs(20));
        let begin = std::time::Instant::now();
        pool.for_units(2, &|_, _| {
            started.fetch_add(1, Ordering::SeqCst);
            while started.load(Ordering::SeqCst) < 2 {
                assert!(begin.elapsed() < patience, "no worker came");
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_call_inside_a_call_runs_alone() {
        let pool = ThreadPool::new(2).unwrap();
        let count = AtomicU32::new(0);
        pool.for_units(4, &|_, _| {
            pool.for_units(4, &|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.load(Ordering::Relaxed), 16);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(ThreadPool::new(0).is_err());
        assert!(ThreadPool::new(THREADS_MAX + 1).is_err());
    }
}
