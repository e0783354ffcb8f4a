//! The machine's own pip, used as a downloader and for nothing else.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::error::StoreError;
use crate::limits::{HELPER_STDERR_LINES_MAX, PROGRESS_POLL_MS};

/// The commands that may be pip on this machine, best first.
pub struct Pip {
    candidates: Vec<Vec<String>>,
}

impl Default for Pip {
    fn default() -> Pip {
        Pip::from_candidates(&[
            &["pip"],
            &["pip3"],
            &["python3", "-m", "pip"],
            &["python", "-m", "pip"],
            // uv downloads no wheels itself, but brings a pip that does.
            &["uv", "tool", "run", "--quiet", "pip"],
        ])
    }
}

impl Pip {
    pub fn from_candidates(candidates: &[&[&str]]) -> Pip {
        let own = |words: &&[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Pip {
            candidates: candidates.iter().map(own).collect(),
        }
    }

    /// Downloads one requirement, without what it depends on, as a wheel into `folder`.
    /// `watch` hears the bytes so far: pip has no progress that a program can read, so we look at the files.
    pub fn download(
        &self,
        requirement: &str,
        folder: &Path,
        watch: &dyn Fn(u64),
    ) -> Result<PathBuf, StoreError> {
        for candidate in &self.candidates {
            let mut command = Command::new(&candidate[0]);
            command
                .args(&candidate[1..])
                .args([
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--only-binary=:all:",
                    "--no-input",
                ])
                // The wheel is unpacked at once; a second copy in pip's cache would only fill the disk.
                .args([
                    "--no-cache-dir",
                    "--disable-pip-version-check",
                    "--progress-bar",
                    "off",
                    "--dest",
                ])
                .arg(folder)
                .arg(requirement)
                // pip downloads to its temporary folder first: ours, so that it is on the right disk and can be watched.
                .env("TMPDIR", folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            let child = match command.spawn() {
                Ok(child) => child,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(StoreError::io("start", Path::new(&candidate[0]))(error)),
            };
            let (success, stderr) = wait(child, folder, watch)
                .map_err(StoreError::io("run", Path::new(&candidate[0])))?;
            if success {
                return wheel_in(folder).ok_or_else(|| StoreError::BadPackage {
                    package: requirement.to_owned(),
                    why: "pip brought no wheel".to_owned(),
                });
            }
            // A Python without pip, or a launcher whose Python is gone: the next one may do.
            if stderr.contains("No module named pip") || stderr.contains("command not found") {
                continue;
            }
            let command = format!("{} download {requirement}", candidate.join(" "));
            return Err(StoreError::PipFailed { command, stderr });
        }
        let tried = self
            .candidates
            .iter()
            .map(|words| words.join(" "))
            .collect::<Vec<_>>()
            .join(", ");
        Err(StoreError::NoPip { tried })
    }
}

/// Waits for the end, looking at the growing files. Returns success and the last words.
fn wait(mut child: Child, folder: &Path, watch: &dyn Fn(u64)) -> io::Result<(bool, String)> {
    let mut pipe = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(pipe) = &mut pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        text
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        watch(largest_file(folder, 4));
        std::thread::sleep(Duration::from_millis(PROGRESS_POLL_MS));
    };
    let text = reader.join().unwrap_or_default();
    Ok((
        status.success(),
        last_lines(&String::from_utf8_lossy(&text)),
    ))
}

/// The wheel in the making: pip copies it once more at the end, so a sum would count it twice.
fn largest_file(folder: &Path, depth: u32) -> u64 {
    let mut largest = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let bytes = match meta.is_dir() {
            true if depth > 0 => largest_file(&entry.path(), depth - 1),
            true => 0,
            false => meta.len(),
        };
        largest = largest.max(bytes);
    }
    largest
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
}

/// The end of what a helper wrote, without control characters.
fn last_lines(text: &str) -> String {
    let clean = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
    let lines: Vec<String> = text
        .lines()
        .map(clean)
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(HELPER_STDERR_LINES_MAX);
    lines[from..].join("\n")
}
