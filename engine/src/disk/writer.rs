//! What is done behind decode: sums, headers and writes, on a thread of their own.
//!
//! Invariant: jobs are carried out in the order they were given; a run is known to the index only after
//! its outcome has come back.

use super::folder::{Files, Name};
use super::format::{HITS_OFFSET, Header, block_sum};
use crate::clock::thread_cpu;
use crate::keys::BlockKey;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Blocks to be written as one file.
#[derive(Debug)]
pub struct Run {
    pub name: Name,
    /// Complete but for the sums.
    pub header: Header,
    /// One a block.
    pub keys: Vec<BlockKey>,
    /// The bytes of each block; all of one length.
    pub blocks: Vec<Vec<u8>>,
    /// Those of its part in layers with a window, or nothing.
    pub parts: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub enum Job {
    Write(Box<Run>),
    Remove(Name),
    Note { name: Name, hits: u64 },
}

/// What has been done.
pub enum Outcome {
    Written(Box<Written>),
    /// It was tried, at least.
    Removed(Name),
}

/// What became of a write.
pub struct Written {
    pub name: Name,
    pub header: Header,
    pub keys: Vec<BlockKey>,
    pub written: io::Result<()>,
    /// CPU time that it took.
    pub cpu: Duration,
}

pub struct Writer {
    files: Arc<dyn Files>,
    /// `None`: each job is carried out where it is given.
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    /// For jobs that are carried out at once.
    done: Sender<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// With a thread.
    pub fn start(files: Arc<dyn Files>) -> io::Result<Writer> {
        let (jobs, inbox) = channel();
        let (done, outcomes) = channel();
        let (its_files, its_done) = (files.clone(), done.clone());
        let work = move || {
            for job in inbox {
                carry_out(&*its_files, job, &its_done);
            }
        };
        let thread = std::thread::Builder::new()
            .name("ostler-disk".into())
            .spawn(work)?;
        Ok(Writer {
            files,
            jobs: Some(jobs),
            outcomes,
            done,
            thread: Some(thread),
        })
    }

    /// Without one: for tests, which must go the same way each time.
    #[cfg(test)]
    pub fn at_once(files: Arc<dyn Files>) -> Writer {
        let (done, outcomes) = channel();
        Writer {
            files,
            jobs: None,
            outcomes,
            done,
            thread: None,
        }
    }

    pub fn give(&self, job: Job) {
        match &self.jobs {
            // It ends only after the sender has gone.
            Some(jobs) => drop(jobs.send(job)),
            None => carry_out(&*self.files, job, &self.done),
        }
    }

    /// What has been done since the last time; with `wait`, after waiting that long for something.
    pub fn outcomes(&self, wait: Option<Duration>) -> Vec<Outcome> {
        let first = wait.and_then(|wait| self.outcomes.recv_timeout(wait).ok());
        first.into_iter().chain(self.outcomes.try_iter()).collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn carry_out(files: &dyn Files, job: Job, done: &Sender<Outcome>) {
    match job {
        Job::Write(run) => {
            // Nobody listens any more when the engine has gone; the file is there all the same.
            let _ = done.send(Outcome::Written(Box::new(write(files, run))));
        }
        Job::Remove(name) => {
            // Another process may have been first.
            let _ = files.remove(&name);
            let _ = done.send(Outcome::Removed(name));
        }
        Job::Note { name, hits } => drop(files.note(&name, HITS_OFFSET, &hits.to_le_bytes())),
    }
}

fn write(files: &dyn Files, run: Box<Run>) -> Written {
    let Run {
        name,
        mut header,
        keys,
        blocks,
        parts,
    } = *run;
    let before = thread_cpu();
    let sums = |all: &[Vec<u8>]| -> Vec<u128> {
        let named = keys.iter().zip(all);
        named.map(|(key, bytes)| block_sum(key, bytes)).collect()
    };
    (header.sums, header.part_sums) = (sums(&blocks), sums(&parts));
    let head = [header.encode()].into_iter();
    let all: Vec<Vec<u8>> = head.chain(blocks).chain(parts).collect();
    Written {
        written: files.write(&name, &all),
        cpu: thread_cpu().saturating_sub(before),
        name,
        header,
        keys,
    }
}
