//! The engine as others hold it: a handle to one thread that owns the model and the KV.
//!
//! 1. [`Engine::start`] chooses the effective context, allocates the pool, starts the thread.
//! 2. [`Engine::plan`] says what a call will reuse and compute, and holds it for a while.
//! 3. [`Engine::generate`] checks a request and queues it; its events come through [`Generation`].
//! 4. Dropping the last handle, generation and timeline stops the thread.
//!
//! Invariant: nothing here waits for a forward pass but the calls that say so.

use crate::clock::{Clock, SystemClock};
use crate::context::{ContextModel, ContextOptions, EffectiveContext};
use crate::core::{Core, Limits, Submission, Trace};
use crate::disk::{BlockFormat, Disk, DiskOptions};
use crate::error::{Error, Result};
use crate::grammar::{Constraint, GrammarVocabulary};
use crate::keys::Salt;
use crate::limits::{
    DISK_CATCH_UP_MS, IDLE_TURNS_MAX, PREFILL_CHUNK_TOKENS, QUEUE_MAX, SEQUENCES_MAX,
};
use crate::prompt::Prompt;
use crate::reply::Reply;
use crate::report::{Plan, Report};
use crate::request::{Generation, Priority, Request};
use crate::sampler::Sampler;
use crate::sequence::{Load, Outlet, Task};
use crate::stats::{ResidentPiece, Stats};
use crate::stop::StopMatcher;
use crate::timeline::Timeline;
use crate::vocab::TokenBytes;
use models::forward::{Forward, PassCost};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

#[derive(Clone)]
pub struct EngineConfig {
    pub context: ContextOptions,
    /// Sequences in one batch, at most and at least 1.
    pub sequences_max: usize,
    /// Rows of prompt in one step.
    pub chunk_tokens: usize,
    pub clock: Arc<dyn Clock>,
    /// Where KV blocks outlive the process; `None` keeps them in memory only.
    pub disk: Option<DiskOptions>,
    /// Sees every row of logits; for tests.
    pub trace: Option<Trace>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            context: ContextOptions::default(),
            sequences_max: SEQUENCES_MAX,
            chunk_tokens: PREFILL_CHUNK_TOKENS,
            clock: Arc::new(SystemClock::default()),
            disk: None,
            trace: None,
        }
    }
}

/// A handle; clones share the engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    commands: Option<Sender<Command>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    vocab: Arc<dyn TokenBytes>,
    grammars: Arc<GrammarVocabulary>,
    context: EffectiveContext,
    disk_bytes_max: Option<u64>,
    model_vocab: usize,
    cost: Option<PassCost>,
    load: Arc<AtomicUsize>,
    load_max: usize,
    next_id: AtomicU64,
}

pub(crate) enum Command {
    Plan {
        prompt: Prompt,
        salt: Salt,
        answer: oneshot::Sender<Plan>,
    },
    Submit(Box<Submission>),
    OpenTimeline {
        id: u64,
        salt: Salt,
    },
    ForkTimeline {
        id: u64,
        new: u64,
    },
    HoldTimeline {
        id: u64,
        held: bool,
    },
    CloseTimeline {
        id: u64,
    },
    ClearCache {
        answer: oneshot::Sender<usize>,
    },
    Stats {
        answer: oneshot::Sender<Stats>,
    },
    Resident {
        answer: oneshot::Sender<Vec<ResidentPiece>>,
    },
}

impl Engine {
    /// Allocates the KV pool (memory is touched as it is used) and starts the thread. `vocab` gives
    /// the bytes of the ids that `forward` speaks.
    pub fn start(
        forward: Box<dyn Forward>,
        vocab: Arc<dyn TokenBytes>,
        config: EngineConfig,
    ) -> Result<Engine> {
        let chunk_tokens = config.chunk_tokens.max(SEQUENCES_MAX + 1);
        let model = ContextModel::new(&*forward, chunk_tokens);
        let context = EffectiveContext::choose(model, config.context)?;
        let (model_vocab, cost) = (forward.config().vocab, forward.cost());
        let limits = Limits {
            sequences_max: config.sequences_max.clamp(1, SEQUENCES_MAX),
            chunk_tokens,
        };
        let load_max = QUEUE_MAX + limits.sequences_max;
        let format = BlockFormat::of(&*forward);
        let mut core = Core::new(forward, context.clone(), config.clock, limits, config.trace)?;
        let disk = config.disk.and_then(|options| {
            let opened = Disk::open(&options, format);
            let disk = opened.inspect_err(|error| {
                let folder = options.folder.display();
                tracing::warn!(%error, %folder, "the KV cache is kept in memory only");
            });
            core.use_disk(disk.ok()?);
            Some(options.bytes_max)
        });
        let (commands, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("ostler-engine".into())
            .spawn(move || run(core, inbox))
            .map_err(|e| Error::Thread(e.to_string()))?;
        Ok(Engine {
            shared: Arc::new(Shared {
                commands: Some(commands),
                thread: Mutex::new(Some(thread)),
                grammars: Arc::new(GrammarVocabulary::new(vocab.clone())),
                vocab,
                context,
                disk_bytes_max: disk,
                model_vocab,
                cost,
                load: Arc::default(),
                load_max,
                next_id: AtomicU64::new(1),
            }),
        })
    }

    /// What a call would reuse and compute now. What it counts on is held until the call comes, or
    /// for [`crate::limits::PLAN_PIN_MS`]. Waits for the step that is running; not for async code.
    pub fn plan(&self, prompt: &Prompt, salt: &Salt) -> Result<Plan> {
        let answer = self.ask_plan(prompt, salt)?;
        answer.blocking_recv().map_err(|_| Error::Stopped)
    }

    pub async fn plan_async(&self, prompt: &Prompt, salt: &Salt) -> Result<Plan> {
        let answer = self.ask_plan(prompt, salt)?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Checks and queues a request. Waits for nothing, but compiles the grammar if there is one.
    pub fn generate(&self, request: Request) -> Result<Generation> {
        self.shared.generate(request, None)
    }

    /// A pinned conversation: empty until it is synced.
    pub fn timeline(&self, salt: Salt) -> Timeline {
        let id = self.shared.new_id();
        let open = Command::OpenTimeline {
            id,
            salt: salt.clone(),
        };
        // A stopped engine says so when the timeline is used.
        let _ = self.shared.send(open);
        Timeline::new(self.clone(), id, salt, Vec::new())
    }

    /// Tokens that a sequence may hold, and why.
    pub fn context(&self) -> &EffectiveContext {
        &self.shared.context
    }

    /// Bytes that KV blocks may take on disk, where they are kept there.
    pub fn disk_bytes_max(&self) -> Option<u64> {
        self.shared.disk_bytes_max
    }

    /// What one pass of the model costs, where that is known.
    pub fn pass_cost(&self) -> Option<PassCost> {
        self.shared.cost
    }

    pub fn vocab(&self) -> &Arc<dyn TokenBytes> {
        &self.shared.vocab
    }

    /// Whether `prompt` can be computed at all: it has tokens, they exist, and it fits.
    pub fn check(&self, prompt: &Prompt) -> Result<()> {
        self.shared.check(prompt)
    }

    /// Waits for the step that is running; not for async code.
    pub fn stats(&self) -> Result<Stats> {
        let answer = self.ask(|answer| Command::Stats { answer })?;
        answer.blocking_recv().map_err(|_| Error::Stopped)
    }

    pub async fn stats_async(&self) -> Result<Stats> {
        let answer = self.ask(|answer| Command::Stats { answer })?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// What is in memory, piece by piece. A piece that two conversations have in common is told once.
    pub async fn resident_async(&self) -> Result<Vec<ResidentPiece>> {
        let answer = self.ask(|answer| Command::Resident { answer })?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Forgets all that is in memory and that no sequence and no timeline holds; what is on disk stays.
    /// Returns the blocks given up.
    pub fn clear_cache(&self) -> Result<usize> {
        let answer = self.ask(|answer| Command::ClearCache { answer })?;
        answer.blocking_recv().map_err(|_| Error::Stopped)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn ask_plan(&self, prompt: &Prompt, salt: &Salt) -> Result<oneshot::Receiver<Plan>> {
        self.shared.check(prompt)?;
        self.ask(|answer| Command::Plan {
            prompt: prompt.clone(),
            salt: salt.clone(),
            answer,
        })
    }

    fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<oneshot::Receiver<T>> {
        let (answer, receiver) = oneshot::channel();
        self.shared.send(command(answer))?;
        Ok(receiver)
    }
}

impl Shared {
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub fn send(&self, command: Command) -> Result<()> {
        let commands = self.commands.as_ref().ok_or(Error::Stopped)?;
        commands.send(command).map_err(|_| Error::Stopped)
    }

    pub fn generate(
        self: &Arc<Self>,
        request: Request,
        timeline: Option<u64>,
    ) -> Result<Generation> {
        let reply = self.reply(&request)?;
        let load = self.take_load()?;
        let id = self.new_id();
        let cancel = Arc::new(AtomicBool::new(false));
        let (sender, events) = mpsc::unbounded_channel();
        let outlet = Outlet {
            events: sender,
            cancel: cancel.clone(),
        };
        self.send(Command::Submit(Box::new(Submission {
            id,
            prompt: request.prompt,
            salt: request.salt,
            priority: request.priority,
            task: Task::Reply {
                reply: Box::new(reply),
                outlet,
                timeline,
            },
            load,
        })))?;
        Ok(Generation {
            id,
            events,
            cancel,
            _engine: self.clone(),
        })
    }

    pub fn sync(
        &self,
        timeline: u64,
        prompt: &Prompt,
        salt: &Salt,
    ) -> Result<oneshot::Receiver<Result<Report>>> {
        self.check(prompt)?;
        let load = self.take_load()?;
        let (done, receiver) = oneshot::channel();
        self.send(Command::Submit(Box::new(Submission {
            id: self.new_id(),
            prompt: prompt.clone(),
            salt: salt.clone(),
            priority: Priority::Interactive,
            task: Task::Sync {
                timeline,
                done: Some(done),
            },
            load,
        })))?;
        Ok(receiver)
    }

    pub fn check(&self, prompt: &Prompt) -> Result<()> {
        let tokens = prompt.len();
        if tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        if tokens + 1 > self.context.tokens {
            return Err(Error::PromptTooLong {
                prompt: tokens,
                need: tokens + 1,
                have: self.context.tokens,
                bound: self.context.bound,
                pieces: prompt.piece_tokens(),
            });
        }
        let ids = prompt.pieces.iter().flat_map(|p| p.ids.iter());
        match ids
            .enumerate()
            .find(|(_, id)| **id as usize >= self.model_vocab)
        {
            None => Ok(()),
            Some((position, id)) => Err(Error::UnknownToken {
                id: *id,
                position,
                vocab: self.model_vocab,
            }),
        }
    }

    fn reply(&self, request: &Request) -> Result<Reply> {
        self.check(&request.prompt)?;
        let mut params = request.sampling.clone();
        params.top_logprobs = request.logprobs.or(params.top_logprobs);
        let prompt = request.prompt.ids();
        let sampler = Sampler::new(params, self.model_vocab, &prompt).map_err(Error::sampling)?;
        let stop = StopMatcher::new(&request.stop).map_err(|e| Error::BadRequest(e.to_string()))?;
        let compile = |spec| Constraint::new(&self.grammars, spec).map_err(Error::grammar);
        let constraint = request.grammar.as_ref().map(compile).transpose()?;
        let room = self.context.tokens - prompt.len();
        let mut reply = Reply::new(self.vocab.clone(), sampler, stop, constraint);
        reply.ignore_end = request.ignore_end;
        reply.no_drafts = request.no_drafts;
        reply.tokens_max = request.max_tokens.unwrap_or(room).min(room);
        Ok(reply)
    }

    fn take_load(&self) -> Result<Load> {
        Load::take(&self.load, self.load_max).ok_or(Error::QueueFull {
            have: self.load_max,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.commands = None;
        let thread = self.thread.get_mut().map(Option::take);
        if let Ok(Some(thread)) = thread {
            let _ = thread.join();
        }
    }
}

/// The thread: what was asked for first, then one step, until nobody holds the engine any more.
fn run(mut core: Core, inbox: Receiver<Command>) {
    let mut idle_turns = 0;
    loop {
        while let Some(command) = match next_command(&core, &inbox) {
            Ok(command) => command,
            Err(Gone) => return,
        } {
            obey(&mut core, command);
        }
        core.expire();
        if core.is_idle() {
            core.write_behind();
        }
        let ran = !core.is_idle() && core.step();
        idle_turns = if ran || core.is_idle() {
            0
        } else {
            idle_turns + 1
        };
        if idle_turns > IDLE_TURNS_MAX {
            let error = Error::Bug("requests wait and none can run".into());
            tracing::error!(%error);
            core.shut_down(&error);
        }
    }
}

struct Gone;

/// Waits for a command while there is nothing else to do. Between requests, blocks are copied for the
/// disk.
fn next_command(
    core: &Core,
    inbox: &Receiver<Command>,
) -> std::result::Result<Option<Command>, Gone> {
    if !core.is_idle() || core.is_saving() {
        return match inbox.try_recv() {
            Ok(command) => Ok(Some(command)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        };
    }
    let catch_up = core
        .waits_for_disk()
        .then_some(Duration::from_millis(DISK_CATCH_UP_MS));
    let deadline = core.next_deadline();
    match catch_up.into_iter().chain(deadline).min() {
        None => inbox.recv().map(Some).map_err(|_| Gone),
        Some(wait) => match inbox.recv_timeout(wait) {
            Ok(command) => Ok(Some(command)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        },
    }
}

fn obey(core: &mut Core, command: Command) {
    // Where an answer is not waited for any more, it is not missed.
    match command {
        Command::Plan {
            prompt,
            salt,
            answer,
        } => {
            let _ = answer.send(core.plan(prompt, &salt));
        }
        Command::Submit(submission) => core.submit(*submission),
        Command::OpenTimeline { id, salt } => core.open_timeline(id, &salt),
        Command::ForkTimeline { id, new } => core.fork_timeline(id, new),
        Command::HoldTimeline { id, held } => core.hold_timeline(id, held),
        Command::CloseTimeline { id } => core.close_timeline(id),
        Command::ClearCache { answer } => {
            let _ = answer.send(core.clear_cache());
        }
        Command::Stats { answer } => {
            let _ = answer.send(core.stats());
        }
        Command::Resident { answer } => {
            let _ = answer.send(core.resident());
        }
    }
}
