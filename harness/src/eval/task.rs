//! What a task is: a folder, goals, a grader that looks at the folder and the answers, and a script that solves it.

use std::path::{Path, PathBuf};

use super::script::Line;

/// A task. Its grader sees what the model left, never how it went about it.
pub struct Task {
    pub name: &'static str,
    /// Given one after the other, in one session.
    pub goals: &'static [&'static str],
    /// The folder's files, by path.
    pub files: fn() -> Vec<(&'static str, Vec<u8>)>,
    pub grade: fn(&Ended) -> Result<(), String>,
    /// What a model that solves it says.
    pub script: fn() -> Vec<Line>,
    /// What the script answers where a summary is asked for.
    pub summaries: &'static [&'static str],
    /// The first goal's run is killed while it begins the call after so many rounds; the second goal resumes it.
    pub killed_after: Option<usize>,
    /// Tools that are not offered.
    pub without: &'static [&'static str],
    /// Files that change before goal `.0`, counted from 0.
    pub later: &'static [(usize, &'static str, &'static str)],
}

impl Task {
    /// Nothing but a name: for the fields that a task leaves as they are.
    pub const PLAIN: Task = Task {
        name: "",
        goals: &[],
        files: Vec::new,
        grade: |_| Err("no grader".to_owned()),
        script: Vec::new,
        summaries: &[],
        killed_after: None,
        without: &[],
        later: &[],
    };
}

/// What a task left.
pub struct Ended {
    pub work: PathBuf,
    /// The answer to each goal.
    pub answers: Vec<String>,
}

impl Ended {
    /// The last answer says `words`, in whatever case.
    pub fn said(&self, words: &str) -> Result<(), String> {
        let answer = self.answers.last().map_or("", String::as_str);
        match answer.to_lowercase().contains(&words.to_lowercase()) {
            true => Ok(()),
            false => Err(format!("the answer does not say {words:?}: {answer:?}")),
        }
    }

    pub fn text(&self, path: &str) -> Result<String, String> {
        let bytes = std::fs::read(self.work.join(path)).map_err(|e| format!("{path}: {e}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file holds just this; a newline at its end may be missing.
    pub fn file(&self, path: &str, text: &str) -> Result<(), String> {
        let have = self.text(path)?;
        match have.trim_end_matches('\n') == text.trim_end_matches('\n') {
            true => Ok(()),
            false => Err(format!("{path} holds {have:?}, need {text:?}")),
        }
    }

    pub fn holds(&self, path: &str, text: &str) -> Result<(), String> {
        match self.text(path)?.contains(text) {
            true => Ok(()),
            false => Err(format!("{path} does not hold {text:?}")),
        }
    }

    pub fn lacks(&self, path: &str, text: &str) -> Result<(), String> {
        match self.text(path)?.contains(text) {
            true => Err(format!("{path} holds {text:?}")),
            false => Ok(()),
        }
    }

    /// A shell script of the folder gives exit code 0.
    pub fn passes(&self, script: &str) -> Result<(), String> {
        let run = std::process::Command::new("sh")
            .arg(script)
            .current_dir(&self.work)
            .output()
            .map_err(|e| format!("{script}: {e}"))?;
        match run.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{script} fails: {}",
                String::from_utf8_lossy(&run.stdout)
            )),
        }
    }
}

/// Puts the files of a task into `work`.
pub fn lay_out(task: &Task, work: &Path) -> std::io::Result<()> {
    for (path, bytes) in (task.files)() {
        put(work, path, &bytes)?;
    }
    Ok(())
}

pub fn put(work: &Path, path: &str, bytes: &[u8]) -> std::io::Result<()> {
    let path = work.join(path);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, bytes)
}
