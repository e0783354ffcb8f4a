//! A timeline: a conversation that the engine holds on to.
//!
//! Invariant: what a timeline was last synced to, or what a reply last made of it, stays in memory while the
//! timeline lives, unless live requests need the room: then forks go before what they were forked from, and
//! those that are held go last. What went is computed again when it is asked for, or read from disk. Dropping a
//! timeline leaves the KV in the cache.

use crate::engine::{Command, Engine};
use crate::error::{Error, Result};
use crate::keys::Salt;
use crate::prompt::Prompt;
use crate::report::{Plan, Report};
use crate::request::{Generation, Request};

pub struct Timeline {
    engine: Engine,
    id: u64,
    salt: Salt,
    /// From the first timeline to the one it was forked from.
    ancestors: Vec<u64>,
}

impl Timeline {
    pub(crate) fn new(engine: Engine, id: u64, salt: Salt, ancestors: Vec<u64>) -> Self {
        Timeline {
            engine,
            id,
            salt,
            ancestors,
        }
    }

    /// Tells the timelines of one engine apart.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it was forked from, and that from, the first timeline first. Those may have been dropped.
    pub fn ancestors(&self) -> &[u64] {
        &self.ancestors
    }

    /// Computes what is missing of `prompt` and holds all of it in place of what was held before.
    /// Waits until it is done; not for async code.
    pub fn sync(&self, prompt: &Prompt) -> Result<Report> {
        let done = self.engine.shared().sync(self.id, prompt, &self.salt)?;
        done.blocking_recv().map_err(|_| Error::Stopped)?
    }

    /// As [`Self::sync`]. Dropping the future cancels it.
    pub async fn sync_async(&self, prompt: &Prompt) -> Result<Report> {
        let done = self.engine.shared().sync(self.id, prompt, &self.salt)?;
        done.await.map_err(|_| Error::Stopped)?
    }

    /// A second timeline that holds the same blocks. Costs counts, no copy: the first write of
    /// either into a shared partial block copies that block.
    pub fn fork(&self) -> Timeline {
        let new = self.engine.shared().new_id();
        let fork = Command::ForkTimeline { id: self.id, new };
        // A stopped engine says so when the fork is used.
        let _ = self.engine.shared().send(fork);
        let ancestors = [&self.ancestors[..], &[self.id]].concat();
        Timeline::new(self.engine.clone(), new, self.salt.clone(), ancestors)
    }

    /// Says whether the conversation will go on soon: its tool runs, or a person is asked. While it is held it
    /// gives up its blocks last.
    pub fn set_held(&self, held: bool) {
        let hold = Command::HoldTimeline { id: self.id, held };
        // A stopped engine says so when the timeline is used.
        let _ = self.engine.shared().send(hold);
    }

    /// As [`Engine::plan`], in this timeline's namespace.
    pub fn plan(&self, prompt: &Prompt) -> Result<Plan> {
        self.engine.plan(prompt, &self.salt)
    }

    pub async fn plan_async(&self, prompt: &Prompt) -> Result<Plan> {
        self.engine.plan_async(prompt, &self.salt).await
    }

    /// As [`Engine::generate`], in this timeline's namespace. Afterwards it holds prompt and reply in place of
    /// what it held before; [`Self::fork`] first to keep both.
    pub fn generate(&self, request: Request) -> Result<Generation> {
        let request = Request {
            salt: self.salt.clone(),
            ..request
        };
        self.engine.shared().generate(request, Some(self.id))
    }

    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let close = Command::CloseTimeline { id: self.id };
        let _ = self.engine.shared().send(close);
    }
}
