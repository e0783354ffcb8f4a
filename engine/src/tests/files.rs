//! A folder in memory that can fail in every way a disk can: when told to, or by a seed.

use super::fake::mix;
use crate::disk::{Entry, Files, Name};
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

#[derive(Default)]
pub struct MemoryFiles(Mutex<State>);

#[derive(Default)]
struct State {
    files: BTreeMap<String, (Vec<u8>, u64)>,
    now: u64,
    /// One operation in so many fails; 0: none.
    fail_one_in: u64,
    full: bool,
    random: u64,
}

impl MemoryFiles {
    /// Operations fail from now on, one in `one_in`, as `seed` has it.
    pub fn fail(&self, one_in: u64, seed: u64) {
        let mut state = self.lock();
        (state.fail_one_in, state.random) = (one_in, seed);
    }

    pub fn fails(&self) -> bool {
        self.lock().fail_one_in > 0
    }

    /// Nothing more can be written.
    pub fn fill_up(&self) {
        self.lock().full = true;
    }

    pub fn pass_seconds(&self, seconds: u64) {
        self.lock().now += seconds;
    }

    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        state.files.values().map(|(b, _)| b.len() as u64).sum()
    }

    pub fn names(&self) -> Vec<String> {
        self.lock().files.keys().cloned().collect()
    }

    /// What a crash, a bad sector or a hand with an editor may do to a file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        change(&mut state.files.get_mut(name).expect("a file of that name").0);
    }

    pub fn swap(&self, a: &str, b: &str) {
        let mut state = self.lock();
        let (old_a, old_b) = (state.files[a].clone(), state.files[b].clone());
        state.files.insert(a.into(), old_b);
        state.files.insert(b.into(), old_a);
    }

    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.lock();
        let now = state.now;
        state.files.insert(name.into(), (bytes, now));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("unpoisoned")
    }
}

impl State {
    fn try_luck(&mut self) -> io::Result<()> {
        self.random = mix(self.random, 0xd15c);
        match self.fail_one_in > 0 && (self.random >> 9).is_multiple_of(self.fail_one_in) {
            true => Err(io::Error::other("injected")),
            false => Ok(()),
        }
    }

    fn file(&mut self, name: &str) -> io::Result<&mut (Vec<u8>, u64)> {
        let file = self.files.get_mut(name);
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Files for MemoryFiles {
    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut state = self.lock();
        state.try_luck()?;
        let entry = |(name, (bytes, used)): (&String, &(Vec<u8>, u64))| Entry {
            name: Name::from(name.as_str()),
            bytes: bytes.len() as u64,
            used: *used,
        };
        Ok(state.files.iter().map(entry).collect())
    }

    fn read(&self, name: &str, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock();
        let luck = state.try_luck();
        let (bytes, _) = state.file(name)?;
        let end = offset as usize + to.len();
        let from = bytes.get(offset as usize..end);
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        if luck.is_err() && to.len() > 128 {
            // A bad sector that nobody notices, rather than an error.
            to[77] ^= 4;
            return Ok(());
        }
        luck
    }

    fn write(&self, name: &str, parts: &[Vec<u8>]) -> io::Result<()> {
        let mut state = self.lock();
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut bytes = parts.concat();
        if state.try_luck().is_err() {
            // A medium that lies about what it has synced.
            let length = bytes.len() as u64;
            bytes.truncate((state.random % length) as usize);
        }
        let now = state.now;
        state.files.insert(name.into(), (bytes, now));
        Ok(())
    }

    fn note(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.try_luck()?;
        let now = state.now;
        let (file, used) = state.file(name)?;
        *used = now;
        let end = offset as usize + bytes.len();
        let to = file.get_mut(offset as usize..end);
        to.ok_or(io::ErrorKind::UnexpectedEof)?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.try_luck()?;
        let removed = state.files.remove(name);
        removed
            .map(|_| ())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn now(&self) -> u64 {
        self.lock().now
    }
}
