//! The disk tier: blocks that outlive the process.
//!
//! `format` (one file) · `folder` (files, as a seam) · `index` (what is there) · `writer` (behind decode)
//! · `save` (what is still to be copied) · `allowance` (the write budget). This file ties them together for one
//! model and keeps the budgets.
//!
//! Invariants: a block is given out only after its sum was found right under the key it was asked for
//! by; a file that is short, old, foreign or corrupt is left out with a reason, and the answer is
//! computed. Trouble with the disk costs time, never an answer.

mod allowance;
mod folder;
mod format;
mod index;
mod save;
mod survey;
mod writer;

pub use folder::{Entry, Files, Folder, Name};
pub use format::{About, AboutPiece, Unfit};
pub use index::Found;
pub use save::Save;
pub use survey::{KeptFile, bytes_in, remove, survey};

use crate::keys::BlockKey;
use crate::limits::{
    DISK_FLIGHT_BYTES_MAX, DISK_FLIGHT_SHARE, DISK_LOOK_AGAIN_MS, DISK_NOTE_SECONDS,
    DISK_RUN_BYTES_MAX,
};
use allowance::Allowance;
use format::{BlockBytes, FIXED_BYTES, Header};
use index::Index;
use models::forward::Forward;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use writer::{Job, Outcome, Run, Writer, Written};

/// Where blocks are kept on disk, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    pub folder: PathBuf,
    /// Bytes of all files in the folder, of all models.
    pub bytes_max: u64,
    /// What people call the model.
    pub model: String,
}

/// The disk tier as it is now; counts are since the start of the engine.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
pub struct DiskStats {
    /// Files and bytes of this model.
    pub files: usize,
    pub bytes: u64,
    /// Bytes of the files of other models.
    pub bytes_of_others: u64,
    pub bytes_max: u64,
    pub tokens_loaded: u64,
    pub bytes_loaded: u64,
    pub bytes_written: u64,
    /// CPU seconds that copying, summing and writing took, on both threads.
    pub cpu_seconds: f64,
    /// Bytes that were not written, for want of room or because of the write budget.
    pub bytes_skipped: u64,
    pub files_removed: u64,
    /// Files that were left out because something was wrong with them.
    pub files_unfit: u64,
    /// Why nothing is written any more.
    pub read_only: Option<String>,
}

/// Whose blocks are kept.
#[derive(Debug, Clone, Copy)]
pub struct BlockFormat {
    identity: [u8; 32],
    bytes: BlockBytes,
}

impl BlockFormat {
    pub fn of(forward: &dyn Forward) -> Self {
        let part = forward.window().map_or(0, |window| window.kv.block_bytes());
        BlockFormat {
            identity: *forward.identity_seed().as_bytes(),
            bytes: BlockBytes {
                all: forward.kv_shape().block_bytes() as u64,
                part: part as u64,
            },
        }
    }
}

pub struct Disk {
    folder: PathBuf,
    files: Arc<dyn Files>,
    writer: Writer,
    index: Index,
    /// Files of other models, and those of this one that do not fit.
    others: HashMap<Name, Entry>,
    /// Files that the writer has been told to remove.
    leaving: HashSet<Name>,
    format: BlockFormat,
    model: String,
    flight: Flight,
    /// Bytes that may be on their way to the disk.
    flight_max: u64,
    allowance: Allowance,
    looked: Duration,
    /// Files that the index has lost.
    gone: u64,
    stats: DiskStats,
}

/// What the writer has not finished.
#[derive(Default)]
struct Flight {
    bytes: u64,
    keys: HashSet<BlockKey>,
    /// What each run follows.
    parents: Vec<BlockKey>,
}

/// Blocks of one sequence that are to be written as one file.
pub struct NewRun {
    pub parent: BlockKey,
    pub ids: Vec<u32>,
    pub keys: Vec<BlockKey>,
    pub blocks: Vec<Vec<u8>>,
    /// Of each block its part in layers with a window, or nothing.
    pub parts: Vec<Vec<u8>>,
    pub pieces: Vec<AboutPiece>,
}

impl Disk {
    /// Opens the folder, makes it if need be, and reads the header of every file of this model.
    ///
    /// # Errors
    /// A folder that cannot be made or read.
    pub fn open(options: &DiskOptions, format: BlockFormat) -> io::Result<Disk> {
        let files: Arc<dyn Files> = Arc::new(Folder::open(&options.folder)?);
        let writer = Writer::start(files.clone())?;
        Self::with(files, writer, options, format)
    }

    #[cfg(test)]
    pub fn at_once(files: Arc<dyn Files>, bytes_max: u64, format: BlockFormat) -> io::Result<Disk> {
        let options = DiskOptions {
            folder: PathBuf::new(),
            bytes_max,
            model: "fake".into(),
        };
        let writer = Writer::at_once(files.clone());
        Self::with(files, writer, &options, format)
    }

    fn with(
        files: Arc<dyn Files>,
        writer: Writer,
        options: &DiskOptions,
        format: BlockFormat,
    ) -> io::Result<Disk> {
        let mut disk = Disk {
            folder: options.folder.clone(),
            files,
            writer,
            index: Index::default(),
            others: HashMap::new(),
            leaving: HashSet::new(),
            format,
            model: options.model.clone(),
            flight: Flight::default(),
            flight_max: DISK_FLIGHT_BYTES_MAX,
            allowance: Allowance::default(),
            looked: Duration::ZERO,
            gone: 0,
            stats: DiskStats {
                bytes_max: options.bytes_max,
                ..DiskStats::default()
            },
        };
        disk.read_folder()?;
        Ok(disk)
    }

    pub fn stats(&self) -> DiskStats {
        DiskStats {
            files: self.index.len(),
            bytes: self.index.bytes(),
            bytes_of_others: self.others.values().map(|e| e.bytes).sum(),
            ..self.stats.clone()
        }
    }

    /// Files that are not counted on any more, for whatever reason.
    pub fn given_up(&self) -> u64 {
        self.gone
    }

    /// The blocks that go on from `key` with `ids`.
    pub fn follow(&self, key: BlockKey, ids: &[u32]) -> Vec<Found> {
        self.index.follow(key, ids)
    }

    /// Looks for files that other processes have made or removed, but not too often. Whether it did.
    pub fn look_again(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.looked) < Duration::from_millis(DISK_LOOK_AGAIN_MS) {
            return false;
        }
        self.looked = now;
        if let Err(error) = self.read_folder() {
            tracing::debug!(%error, "the folder of the KV cache cannot be listed");
        }
        true
    }

    /// A call counts on these blocks.
    pub fn used(&mut self, found: &[Found]) {
        let now = self.files.now();
        for (i, block) in found.iter().enumerate() {
            let name = &block.slot.file;
            if i > 0 && found[i - 1].slot.file == *name {
                continue;
            }
            let Some(stored) = self.index.get_mut(name) else {
                continue;
            };
            stored.used = now;
            stored.header.hits += 1;
            if now.saturating_sub(stored.noted) >= DISK_NOTE_SECONDS
                && self.stats.read_only.is_none()
            {
                stored.noted = now;
                let (name, hits) = (name.clone(), stored.header.hits);
                self.writer.give(Job::Note { name, hits });
            }
        }
    }

    /// Bytes of a block in all layers.
    pub fn block_bytes_max(&self) -> u64 {
        self.format.bytes.all + self.format.bytes.part
    }

    /// Fills `to` with a block. What is wrong with it is told once; its file is not asked again.
    pub fn load(&mut self, found: &Found, to: &mut [u8]) -> Result<(), Unfit> {
        self.load_one(found, to, |header, block| {
            (header.block_offset(block), header.sums[block])
        })
    }

    /// A block was loaded, with all that was needed of it.
    pub fn loaded(&mut self, found: &Found) {
        self.stats.tokens_loaded += found.tokens as u64;
    }

    /// The same with the part of a block in layers with a window, which was found to be there.
    pub fn load_part(&mut self, found: &Found, to: &mut [u8]) -> Result<(), Unfit> {
        self.load_one(found, to, |header, block| {
            let sum = header.part_sums.get(block).copied();
            (header.part_offset(block), sum.unwrap_or_default())
        })
    }

    /// `place`: where it begins, and its sum.
    fn load_one(
        &mut self,
        found: &Found,
        to: &mut [u8],
        place: impl Fn(&Header, usize) -> (u64, u128),
    ) -> Result<(), Unfit> {
        let read = self.read_one(found, to, place);
        match &read {
            Ok(()) => self.stats.bytes_loaded += to.len() as u64,
            Err(reason) => {
                let name = &found.slot.file;
                let bytes = self.index.get(name).map(|s| s.header.file_bytes());
                self.leave_out(name, bytes.unwrap_or_default(), reason);
            }
        }
        read
    }

    fn read_one(
        &self,
        found: &Found,
        to: &mut [u8],
        place: impl Fn(&Header, usize) -> (u64, u128),
    ) -> Result<(), Unfit> {
        let block = found.slot.block;
        let stored = self.index.get(&found.slot.file).ok_or(Unfit::Gone)?;
        let (offset, sum) = place(&stored.header, block);
        let read = self.files.read(&found.slot.file, offset, to);
        read.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Unfit::Gone,
            io::ErrorKind::UnexpectedEof => Unfit::Block(block),
            _ => Unfit::Io(e.to_string()),
        })?;
        match format::block_sum(&stored.keys[block], to) == sum {
            true => Ok(()),
            false => Err(Unfit::Block(block)),
        }
    }

    fn leave_out(&mut self, name: &Name, bytes: u64, reason: &Unfit) {
        self.stats.files_unfit += 1;
        self.forget(name);
        match reason {
            // Another process needed the room, or the person cleared the cache.
            Unfit::Gone => tracing::debug!(file = %name, "a file of KV blocks was lost"),
            // It may be read again some day, or by another version. Until then its bytes count, and it goes first.
            Unfit::Io(_) | Unfit::Version(_) => {
                tracing::warn!(file = %name, %reason, "a file of KV blocks is left out");
                let (name, used) = (name.clone(), 0);
                self.others
                    .insert(name.clone(), Entry { name, bytes, used });
            }
            _ => {
                tracing::warn!(file = %name, %reason, "a file of KV blocks is removed");
                self.remove(name);
            }
        }
    }

    /// Work for the disk has taken so much CPU time.
    pub fn took(&mut self, cpu: Duration) {
        self.stats.cpu_seconds += cpu.as_secs_f64();
    }

    /// Whether a copy for the disk is worth making now.
    pub fn takes_more(&self) -> bool {
        self.stats.read_only.is_none() && self.flight.bytes < self.flight_max
    }

    /// Copies on their way to the disk take no more than a share of the memory that `kv_bytes` of keys and
    /// values take.
    pub fn limit_flight(&mut self, kv_bytes: u64) {
        self.flight_max = (kv_bytes / DISK_FLIGHT_SHARE).clamp(1, DISK_FLIGHT_BYTES_MAX);
    }

    /// Bytes of blocks in one file, at most.
    pub fn run_bytes_max(&self) -> u64 {
        DISK_RUN_BYTES_MAX.min(self.flight_max)
    }

    /// Tells the files of uses that they do not know of.
    pub fn note_uses(&mut self) {
        if self.stats.read_only.is_some() {
            return;
        }
        for (name, hits) in self.index.note_all() {
            self.writer.give(Job::Note { name, hits });
        }
    }

    /// Nothing will be written any more, whatever comes.
    pub fn is_read_only(&self) -> bool {
        self.stats.read_only.is_some()
    }

    /// Whether the block that follows `parent` with these ids, and is called `key`, is on disk or on its
    /// way there, with its part in layers with a window if `part`. Its file is as good as used.
    pub fn has(&mut self, parent: &BlockKey, ids: &[u32], key: &BlockKey, part: bool) -> bool {
        if self.flight.keys.contains(key) {
            return true;
        }
        let found = self.index.after(parent, ids);
        let as_good = |f: &Found| f.tokens == ids.len() && (f.window || !part);
        let Some(found) = found.filter(as_good) else {
            return false;
        };
        if let Some(stored) = self.index.get_mut(&found.slot.file) {
            stored.used = self.files.now();
        }
        true
    }

    /// Whether the block that follows `parent` with these ids can be read back.
    pub fn holds(&self, parent: &BlockKey, ids: &[u32]) -> bool {
        let found = self.index.after(parent, ids);
        found.is_some_and(|f| f.tokens == ids.len())
    }

    /// The same of its part in layers with a window.
    pub fn holds_part(&self, parent: &BlockKey, ids: &[u32]) -> bool {
        let found = self.index.after(parent, ids);
        found.is_some_and(|f| f.tokens == ids.len() && f.window)
    }

    /// Gives a run to the writer, if the budgets allow it. `now` is the engine's clock.
    pub fn write(&mut self, run: NewRun, now: Duration) {
        let Some(last) = run.keys.last() else { return };
        let name = format!(
            "{}/{}-{}.kv",
            self.folder_name(),
            &run.parent.hex()[..16],
            &last.hex()[..16]
        );
        let about = About {
            model: self.model.clone(),
            created: self.files.now(),
            pieces: run.pieces,
        };
        let mut size = self.format.bytes;
        if run.parts.is_empty() {
            size.part = 0;
        }
        let header = Header::new(self.format.identity, run.parent, run.ids, size, about);
        let bytes = header.file_bytes();
        // Others write to the same budget.
        self.look_again(now);
        if !self.allowance.take(bytes, now) || !self.make_room(bytes, &run.parent, now) {
            self.stats.bytes_skipped += bytes;
            return;
        }
        self.flight.bytes += bytes;
        self.flight.keys.extend(&run.keys);
        self.flight.parents.push(run.parent);
        self.writer.give(Job::Write(Box::new(Run {
            name: name.into(),
            header,
            keys: run.keys,
            blocks: run.blocks,
            parts: run.parts,
        })));
    }

    /// Takes in what the writer has done; with `wait`, after waiting that long for something.
    pub fn settle(&mut self, wait: Option<Duration>) {
        for outcome in self.writer.outcomes(wait) {
            match outcome {
                Outcome::Written(written) => self.settle_one(*written),
                Outcome::Removed(name) => drop(self.leaving.remove(&name)),
            }
        }
    }

    fn settle_one(&mut self, outcome: Written) {
        self.took(outcome.cpu);
        let header = outcome.header;
        self.flight.bytes -= header.file_bytes();
        let mut parents = self.flight.parents.iter();
        if let Some(at) = parents.position(|p| *p == header.parent) {
            self.flight.parents.swap_remove(at);
        }
        for key in &outcome.keys {
            self.flight.keys.remove(key);
        }
        match outcome.written {
            Ok(()) => {
                self.stats.bytes_written += header.file_bytes();
                self.others.remove(&outcome.name);
                let useless = self.index.insert(outcome.name, header, self.files.now());
                useless.iter().for_each(|name| self.remove(name));
            }
            // The person cleared the cache while it was written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::debug!(file = %outcome.name, "a file of KV blocks was lost");
            }
            Err(error) if self.stats.read_only.is_none() => {
                let folder = self.folder.display();
                tracing::warn!(
                    "the KV cache is kept in memory only from now on: cannot write into {folder}: {error}; make \
                     room there or let it be written to, then start again"
                );
                self.stats.read_only = Some(error.to_string());
            }
            Err(_) => {}
        }
    }

    /// Makes room for `bytes` by removing what was used longest ago. False when there is not enough that
    /// may go.
    fn make_room(&mut self, bytes: u64, parent: &BlockKey, now: Duration) -> bool {
        let most = self.stats.bytes_max;
        if bytes > most {
            return false;
        }
        if self.bytes() + bytes > most {
            self.look_again(now);
        }
        while self.bytes() + bytes > most {
            let kept = |key: &BlockKey| key == parent || self.flight.parents.contains(key);
            let own = self.index.victim(kept);
            let other = self.others.values().min_by_key(|e| (e.used, &e.name));
            let name = match (own, other) {
                (Some((name, used)), Some(other)) if used < other.used => name.clone(),
                (_, Some(other)) => other.name.clone(),
                (Some((name, _)), None) => name.clone(),
                (None, None) => return false,
            };
            self.remove(&name);
        }
        true
    }

    /// Bytes in the folder, and on their way there.
    fn bytes(&self) -> u64 {
        let others: u64 = self.others.values().map(|e| e.bytes).sum();
        self.index.bytes() + others + self.flight.bytes
    }

    fn remove(&mut self, name: &Name) {
        self.forget(name);
        self.others.remove(name);
        self.stats.files_removed += 1;
        self.leaving.insert(name.clone());
        self.writer.give(Job::Remove(name.clone()));
    }

    fn forget(&mut self, name: &Name) {
        self.gone += u64::from(self.index.remove(name));
    }

    fn folder_name(&self) -> String {
        BlockKey::from_bytes(self.format.identity).hex()[..32].to_owned()
    }

    fn read_folder(&mut self) -> io::Result<()> {
        let entries = self.files.list()?;
        let prefix = format!("{}/", self.folder_name());
        let there: HashSet<&Name> = entries.iter().map(|e| &e.name).collect();
        let gone: Vec<Name> = self
            .index
            .names()
            .filter(|name| !there.contains(name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.forget(name));
        self.others.retain(|name, _| there.contains(name));
        for entry in entries {
            if let Some(stored) = self.index.get_mut(&entry.name) {
                // Others use it too.
                stored.used = stored.used.max(entry.used);
                continue;
            }
            if self.others.contains_key(&entry.name) || self.leaving.contains(&entry.name) {
                continue;
            }
            if !entry.name.starts_with(&prefix) {
                self.others.insert(entry.name.clone(), entry);
                continue;
            }
            match read_header(&*self.files, &entry).and_then(|h| self.fits(h)) {
                Ok(header) => {
                    // What a tail of another process has too much is removed by that process.
                    self.index.insert(entry.name, header, entry.used);
                }
                Err(reason) => self.leave_out(&entry.name, entry.bytes, &reason),
            }
        }
        Ok(())
    }

    fn fits(&self, header: Header) -> Result<Header, Unfit> {
        let BlockFormat { identity, bytes } = self.format;
        let part = header.bytes.part;
        let fits = header.identity == identity && header.bytes.all == bytes.all;
        match fits && (part == 0 || part == bytes.part) {
            true => Ok(header),
            false => Err(Unfit::OtherModel),
        }
    }
}

/// Reads and checks what a file says of itself.
fn read_header(files: &dyn Files, entry: &Entry) -> Result<Header, Unfit> {
    let io = |e: io::Error| Unfit::Io(e.to_string());
    if entry.bytes < FIXED_BYTES as u64 {
        return Err(Unfit::Foreign);
    }
    let mut fixed = [0; FIXED_BYTES];
    files.read(&entry.name, 0, &mut fixed).map_err(io)?;
    let len = format::header_len(&fixed)?;
    if entry.bytes < len as u64 {
        return Err(Unfit::Length {
            need: len as u64,
            have: entry.bytes,
        });
    }
    let mut bytes = vec![0; len];
    files.read(&entry.name, 0, &mut bytes).map_err(io)?;
    format::decode(&bytes, entry.bytes)
}
