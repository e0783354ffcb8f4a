//! A session on disk: one JSON record a line, appended and flushed before anything acts on it.
//! Valid after a crash at any byte: a torn last line is dropped on load, a call without a result
//! gets one (law 9). After the append-only logs of pi and mini-swe-agent.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::transcript::{Entry, Record, dangling_calls};
use crate::error::Error;
use crate::limits;

/// Says what time it is; passed in, so that tests decide.
pub type ClockMs = fn() -> u64;

/// An open session: the records in memory, the file they are appended to.
pub struct Session {
    pub id: String,
    path: PathBuf,
    file: File,
    /// The path from the first record to the newest: what was undone stands on other branches of the file.
    records: Vec<Record>,
    next_id: u64,
    clock: ClockMs,
    /// Made here, not resumed.
    created: bool,
}

/// What loading had to mend.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Bytes of a last line that was never finished.
    pub torn_bytes: u64,
    /// Calls that had no result and got a synthetic one.
    pub dangling_calls: usize,
}

impl Session {
    /// Starts a session `id` under `dir`. The name must be new.
    pub fn create(dir: &Path, id: &str, clock: ClockMs) -> Result<Session, Error> {
        private_folder(dir).map_err(|e| Error::io("create the session folder", dir, &e))?;
        let path = dir.join(format!("{id}.jsonl"));
        let file = private_file()
            .create_new(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|e| Error::io("create the session file", &path, &e))?;
        lock(&file, &path)?;
        Ok(Session {
            id: id.to_owned(),
            path,
            file,
            records: Vec::new(),
            next_id: 0,
            clock,
            created: true,
        })
    }

    /// Opens session `id` under `dir` and mends what a crash left.
    pub fn resume(dir: &Path, id: &str, clock: ClockMs) -> Result<(Session, Mended), Error> {
        let path = dir.join(format!("{id}.jsonl"));
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Error::caller(format!(
                    "there is no session {id} in {}; --resume alone takes the newest, and a goal comes \
                     before it: ostler agent \"...\" --resume",
                    dir.display()
                )),
                _ => Error::io("open the session file", &path, &e),
            })?;
        lock(&file, &path)?;
        let (records, whole_bytes) = read_records(&file, &path)?;
        let length = file
            .metadata()
            .map_err(|e| Error::io("read the session file", &path, &e))?
            .len();
        let torn_bytes = length - whole_bytes;
        if torn_bytes > 0 {
            file.set_len(whole_bytes)
                .map_err(|e| Error::io("mend the session file", &path, &e))?;
        }
        let mut session = Session {
            id: id.to_owned(),
            path,
            file,
            next_id: records.iter().map(|r| r.id + 1).max().unwrap_or(0),
            records: newest_path(records),
            clock,
            created: false,
        };
        let dangling = dangling_calls(&session.records);
        for call in &dangling {
            let why = "the program ended before this call finished; check what it had done";
            session.append(Entry::not_run(call, why))?;
        }
        Ok((
            session,
            Mended {
                torn_bytes,
                dangling_calls: dangling.len(),
            },
        ))
    }

    /// The records of session `id` under `dir`, as they are, also while another process appends.
    pub fn read(dir: &Path, id: &str) -> Result<Vec<Record>, Error> {
        let path = dir.join(format!("{id}.jsonl"));
        let file = File::open(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::caller(format!("there is no session {id} in {}", dir.display()))
            }
            _ => Error::io("open the session file", &path, &e),
        })?;
        Ok(newest_path(read_records(&file, &path)?.0))
    }

    /// Appends one entry; it is on disk when this returns.
    pub fn append(&mut self, entry: Entry) -> Result<&Record, Error> {
        let id = self.next_id;
        let parent = self.records.last().map(|last| last.id);
        let record = Record {
            id,
            parent,
            time_ms: (self.clock)(),
            entry,
        };
        let mut line = serde_json::to_vec(&record)
            .map_err(|e| Error::bug(format!("a session record does not serialise: {e}")))?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .and_then(|()| self.file.sync_data())
            .map_err(|e| Error::io("append to the session file", &self.path, &e))?;
        self.next_id += 1;
        self.records.push(record);
        Ok(self.records.last().expect("just pushed"))
    }

    /// What is appended next goes on from record `last`: a branch begins there. Calls that have their results behind
    /// it get others.
    pub fn rewind(&mut self, last: u64) -> Result<(), Error> {
        let Some(at) = self.records.iter().position(|r| r.id == last) else {
            let newest = self.records.last().map_or(0, |r| r.id);
            return Err(Error::caller(format!(
                "session {} has no entry {last}; have 0 to {newest}",
                self.id
            )));
        };
        self.records.truncate(at + 1);
        for call in dangling_calls(&self.records) {
            let why = "the session goes on from before its result";
            self.append(Entry::not_run(&call, why))?;
        }
        Ok(())
    }

    /// Where what belongs to this session is kept.
    pub fn folder(&self) -> PathBuf {
        self.path.with_extension("")
    }

    /// The id of what is appended next: no branch has one as high.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    pub fn clock(&self) -> ClockMs {
        self.clock
    }

    /// The time that the next entry would bear.
    pub fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    pub fn records(&self) -> &[Record] {
        &self.records
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A session that nothing was written to leaves no file: there is nothing to resume.
impl Drop for Session {
    fn drop(&mut self) {
        if self.created && self.records.is_empty() {
            // A file that stays is ignored by `newest`.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What was said and read is the person's own.
fn private_folder(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The id of the newest session under `dir`, by the time its file was last written.
pub fn newest(dir: &Path) -> Result<Option<String>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("list the sessions", dir, &e)),
    };
    let mut sessions: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|x| x == "jsonl"))
        .filter_map(|entry| {
            let about = entry.metadata().ok().filter(|about| about.len() > 0)?;
            let modified = about.modified().ok()?;
            let id = entry.path().file_stem()?.to_str()?.to_owned();
            Some((modified, id))
        })
        .collect();
    sessions.sort();
    Ok(sessions.pop().map(|(_, id)| id))
}

/// One writer a session: two processes appending would interleave two histories. A command that is
/// just being started holds a copy of our lock between fork and exec, so it is tried for a moment.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    for _ in 0..limits::LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(limits::LOCK_WAIT),
            Err(TryLockError::Error(e)) => {
                return Err(Error::io("lock the session file", path, &e));
            }
        }
    }
    Err(Error::caller(format!(
        "session file {} is in use by another process; close that one, or start a new session",
        path.display()
    )))
}

/// The records from the first to the newest, along their parents. A parent that is not there ends it: the rest is
/// a beginning.
fn newest_path(mut records: Vec<Record>) -> Vec<Record> {
    let mut path = Vec::new();
    let mut wanted = records.last().map(|r| r.id);
    while let Some(record) = records.pop() {
        if Some(record.id) == wanted {
            wanted = record.parent;
            path.push(record);
        }
    }
    path.reverse();
    path
}

/// All whole records, and where the last of them ends. A broken line that is not the last is an error.
fn read_records(mut file: &File, path: &Path) -> Result<(Vec<Record>, u64), Error> {
    let read_error = |e: std::io::Error| Error::io("read the session file", path, &e);
    file.seek(SeekFrom::Start(0)).map_err(read_error)?;
    let mut reader = BufReader::new(file);
    let mut records: Vec<Record> = Vec::new();
    let mut whole_bytes = 0u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        let n = reader.read_until(b'\n', &mut line).map_err(read_error)?;
        if n == 0 || line.last() != Some(&b'\n') {
            return Ok((records, whole_bytes));
        }
        match serde_json::from_slice::<Record>(&line) {
            Ok(record) => records.push(record),
            // A crash can leave a block of zeros or half a line before a later append's newline only
            // at the very end; anything after it means the file was edited by another hand.
            Err(e) => {
                let rest = reader.fill_buf().map_err(read_error)?;
                if rest.is_empty() {
                    return Ok((records, whole_bytes));
                }
                return Err(Error::input(format!(
                    "{}: line {} is not a session record ({e}); repair or remove that line",
                    path.display(),
                    records.len() + 1
                )));
            }
        }
        whole_bytes += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::transcript::{Call, Entry};
    use super::*;

    fn noon() -> u64 {
        1_700_000_000_000
    }

    fn call(id: &str) -> Call {
        Call {
            id: id.into(),
            name: "bash".into(),
            arguments: "{\"command\":\"ls\"}".into(),
        }
    }

    fn assistant(calls: Vec<Call>) -> Entry {
        Entry::Assistant {
            text: "on it".into(),
            thinking: String::new(),
            calls,
            sampled: vec![1, 2],
            cut: false,
        }
    }

    /// A process killed between two writes left half a line; the next start refused the whole session.
    #[test]
    fn every_cut_of_a_session_file_loads() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut session = Session::create(dir.path(), "s", noon).expect("created");
        session
            .append(Entry::User {
                text: "hej ☃ \n\u{0}".into(),
            })
            .expect("appended");
        session
            .append(assistant(vec![call("c1"), call("c2")]))
            .expect("appended");
        session
            .append(Entry::result(
                &call("c1"),
                super::super::transcript::ToolOutput {
                    text: "ok".into(),
                    ok: true,
                    artifact: None,
                },
            ))
            .expect("appended");
        let whole = std::fs::read(session.path()).expect("read");
        drop(session);
        let mut mended_calls = 0;
        for cut in 0..=whole.len() {
            let name = format!("cut{cut}");
            std::fs::write(dir.path().join(format!("{name}.jsonl")), &whole[..cut])
                .expect("written");
            let (session, mended) =
                Session::resume(dir.path(), &name, noon).expect("every prefix loads");
            assert!(dangling_calls(session.records()).is_empty(), "cut {cut}");
            mended_calls += mended.dangling_calls;
            let lines = whole[..cut].iter().filter(|b| **b == b'\n').count();
            assert_eq!(
                session.records().len(),
                lines + mended.dangling_calls,
                "cut {cut}"
            );
            drop(session);
            let (again, nothing) = Session::resume(dir.path(), &name, noon).expect("loads again");
            assert_eq!(
                nothing,
                Mended::default(),
                "mending is done once, cut {cut}"
            );
            assert!(
                again
                    .records()
                    .windows(2)
                    .all(|w| w[1].parent == Some(w[0].id))
            );
        }
        assert!(mended_calls > 0, "some cut left a call without its result");
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut session = Session::create(dir.path(), "s", noon).expect("created");
        session
            .append(Entry::User { text: "one".into() })
            .expect("appended");
        session
            .append(Entry::User { text: "two".into() })
            .expect("appended");
        let text = std::fs::read_to_string(session.path()).expect("read");
        let path = session.path().to_owned();
        drop(session);
        std::fs::write(&path, text.replacen("\"id\":0", "\"id\":oops", 1)).expect("written");
        let error = Session::resume(dir.path(), "s", noon)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn two_writers_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut first = Session::create(dir.path(), "s", noon).expect("created");
        let said = Entry::User { text: "one".into() };
        first.append(said).expect("appended");
        let error = Session::resume(dir.path(), "s", noon)
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("in use"), "{error}");
        drop(first);
        Session::resume(dir.path(), "s", noon).expect("free again");
    }

    #[test]
    fn a_session_that_was_refused_before_it_began_is_not_the_newest() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut real = Session::create(dir.path(), "real", noon).expect("created");
        let said = Entry::User { text: "one".into() };
        real.append(said).expect("appended");
        drop(Session::create(dir.path(), "refused", noon).expect("created"));
        assert!(!dir.path().join("refused.jsonl").exists());
        std::fs::write(dir.path().join("crashed.jsonl"), "").expect("written");
        let newest = newest(dir.path()).expect("listed");
        assert_eq!(newest.as_deref(), Some("real"));
    }
}
