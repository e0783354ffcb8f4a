//! One file over HTTP: resumed where it stopped, checked by size and sha256 before anyone sees it.
//!
//! Invariant: the half-finished file holds a prefix of the target, as far as we know; what is wrong with it
//! shows in the checksum at the end, and then it is deleted.

use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::disk::{Disk, hash_prefix, hex, length_or_zero, remove_if_there, write_failed};
use super::error::StoreError;
use super::http::{Answer, Http, NoAnswer, header};
use super::progress::Progress;
use crate::limits::{COPY_CHUNK_BYTES, FRUITLESS_ATTEMPTS_MAX};

/// What to fetch and what it must turn out to be.
pub struct Job<'a> {
    pub address: &'a str,
    /// The half-finished file; it stays when the job fails and serves the next try.
    pub part: &'a Path,
    pub size_bytes: Option<u64>,
    pub sha256: Option<&'a str>,
    /// For messages: `file.gguf of org/repo`.
    pub what: &'a str,
}

/// Everything a download leans on.
pub struct Means<'a> {
    pub http: &'a Http,
    pub disk: &'a dyn Disk,
    pub progress: &'a dyn Progress,
    pub retry_wait: Duration,
}

/// How one attempt ended without failing for good.
enum Attempt {
    Complete,
    /// The connection ended early; there may be more bytes now.
    Interrupted(String),
    /// What lies there cannot be continued.
    StartOver,
}

/// Fetches until the part file is complete and right. Returns its sha256.
pub fn download(means: &Means<'_>, job: &Job<'_>) -> Result<String, StoreError> {
    let mut fruitless = 0;
    let mut resumed = length_or_zero(job.part)? > 0;
    loop {
        let before = length_or_zero(job.part)?;
        let mut hasher = Sha256::new();
        let attempt = attempt(means, job, before, &mut hasher);
        means.progress.end();
        match attempt? {
            Attempt::Complete => {
                let have = hex(&hasher.finalize());
                let Some(need) = job.sha256.filter(|need| **need != *have) else {
                    return Ok(have);
                };
                remove_if_there(job.part)?;
                if !resumed {
                    return Err(StoreError::Checksum {
                        what: job.what.to_owned(),
                        need: need.to_owned(),
                        have,
                    });
                }
                // The half that was there may be to blame: once more from nothing.
                means.progress.note(&format!(
                    "{}: the half-finished file was wrong; starting over",
                    job.what
                ));
                resumed = false;
            }
            Attempt::StartOver => {
                remove_if_there(job.part)?;
                fruitless += 1;
                if fruitless >= FRUITLESS_ATTEMPTS_MAX {
                    return Err(network(
                        job,
                        "the server does not serve the same file twice".to_owned(),
                    ));
                }
            }
            Attempt::Interrupted(why) => {
                let gained = length_or_zero(job.part)? > before;
                fruitless = if gained { 0 } else { fruitless + 1 };
                if fruitless >= FRUITLESS_ATTEMPTS_MAX {
                    return Err(network(job, why));
                }
                std::thread::sleep(means.retry_wait * (fruitless + 1));
            }
        }
    }
}

fn network(job: &Job<'_>, why: String) -> StoreError {
    StoreError::Network {
        what: job.what.to_owned(),
        why,
    }
}

fn attempt(
    means: &Means<'_>,
    job: &Job<'_>,
    have: u64,
    hasher: &mut Sha256,
) -> Result<Attempt, StoreError> {
    match job.size_bytes {
        Some(size) if have > size => return Ok(Attempt::StartOver),
        Some(size) if have == size => {
            hash_prefix(job.part, have, hasher)?;
            return Ok(Attempt::Complete);
        }
        _ => {}
    }
    let range = (have > 0).then(|| format!("bytes={have}-"));
    let answer = match means.http.get(job.address, range.as_deref()) {
        Ok(answer) => answer,
        Err(NoAnswer {
            why,
            transient: true,
        }) => return Ok(Attempt::Interrupted(why)),
        Err(NoAnswer {
            why,
            transient: false,
        }) => return Err(network(job, why)),
    };
    let start = match answer.status {
        200 => 0,
        206 => match content_range_start(&answer) {
            Some(start) if start == have => have,
            _ => return Ok(Attempt::StartOver),
        },
        416 => return Ok(Attempt::StartOver),
        401 | 403 => {
            return Err(StoreError::Refused {
                what: job.what.to_owned(),
                status: answer.status,
                token_sent: means.http.sends_token(),
            });
        }
        408 | 429 | 500..=599 => {
            return Ok(Attempt::Interrupted(format!("HTTP {}", answer.status)));
        }
        status => return Err(network(job, format!("HTTP {status}"))),
    };
    hash_prefix(job.part, start, hasher)
        .or_else(|error| if start == 0 { Ok(()) } else { Err(error) })?;
    copy(means, job, answer, start, hasher)
}

fn copy(
    means: &Means<'_>,
    job: &Job<'_>,
    answer: Answer,
    start: u64,
    hasher: &mut Sha256,
) -> Result<Attempt, StoreError> {
    let total = job
        .size_bytes
        .or(answer.body.content_length().map(|rest| start + rest));
    let mut done = start;
    let full = |done: u64| {
        write_failed(
            job.what,
            job.part,
            total.map_or(0, |total| total - done.min(total)),
        )
    };
    let mut part = means.disk.open_part(job.part, start).map_err(full(done))?;
    means.progress.begin(job.what, total, start);
    let mut reader = answer.body.into_with_config().limit(u64::MAX).reader();
    let mut chunk = vec![0; COPY_CHUNK_BYTES];
    let ended = loop {
        match std::io::Read::read(&mut reader, &mut chunk) {
            Ok(0) => break None,
            Ok(count) => {
                part.write_all(&chunk[..count]).map_err(full(done))?;
                hasher.update(&chunk[..count]);
                done += count as u64;
                means.progress.advance_to(done);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error.to_string()),
        }
    };
    part.sync().map_err(full(done))?;
    Ok(match (ended, total) {
        (Some(why), _) => Attempt::Interrupted(why),
        (None, Some(total)) if done < total => Attempt::Interrupted(format!(
            "the connection ended after {done} of {total} bytes"
        )),
        (None, Some(total)) if done > total => Attempt::StartOver,
        (None, _) => Attempt::Complete,
    })
}

/// `bytes 100-199/200` starts at 100.
fn content_range_start(answer: &Answer) -> Option<u64> {
    header(&answer.headers, "content-range")?
        .strip_prefix("bytes ")?
        .split('-')
        .next()?
        .trim()
        .parse()
        .ok()
}
