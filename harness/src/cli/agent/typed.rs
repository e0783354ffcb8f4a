//! What a person types while the agent works: answers to its questions, words that steer it, the next goal.

use std::cell::{OnceCell, RefCell};
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::super::output::note;
use crate::tools::clean::for_terminal;
use crate::tools::{Answer, Asker, Cancel, Question};

/// How often a wait for a person looks for Ctrl-C.
const CANCEL_POLL: Duration = Duration::from_millis(50);

/// The lines of a terminal. A read does not end at Ctrl-C: the thread that reads is left to wait.
pub struct Typed {
    terminal: bool,
    /// Read from when a person is first listened to: a job in the background that reads is stopped.
    lines: OnceCell<Receiver<String>>,
    /// Typed before a question was asked, and no answer to it.
    early: RefCell<Vec<String>>,
    cancel: Cancel,
}

impl Typed {
    pub fn new(terminal: bool, cancel: Cancel) -> Rc<Typed> {
        Rc::new(Typed {
            terminal,
            lines: OnceCell::new(),
            early: RefCell::default(),
            cancel,
        })
    }

    /// Answers questions with these lines.
    pub fn asker(self: &Rc<Typed>) -> Terminal {
        Terminal(Rc::clone(self))
    }

    /// What is to be done next; `None` at the end of the input, after an empty line and after Ctrl-C.
    pub fn goal(&self) -> Option<String> {
        {
            let mut screen = std::io::stderr().lock();
            let _ = write!(
                screen,
                "\nWhat is to be done? (/context shows the window, an empty line ends) "
            );
            let _ = screen.flush();
        }
        self.early.borrow_mut().extend(self.typed());
        let early = std::mem::take(&mut *self.early.borrow_mut());
        let goal = match early.is_empty() {
            true => self.line()?,
            false => early.join("\n"),
        };
        (!goal.trim().is_empty()).then(|| goal.trim().to_owned())
    }

    /// Lines that are there already.
    fn typed(&self) -> Vec<String> {
        if self.lines.get().is_none() && !in_foreground() {
            return Vec::new();
        }
        let lines = self.lines().into_iter();
        lines.flat_map(Receiver::try_iter).collect()
    }

    fn lines(&self) -> Option<&Receiver<String>> {
        let lines = || self.lines.get_or_init(read_lines);
        self.terminal.then(lines)
    }

    /// The next line; `None` at the end of the input and after Ctrl-C.
    fn line(&self) -> Option<String> {
        let lines = self.lines()?;
        loop {
            match lines.recv_timeout(CANCEL_POLL) {
                Ok(line) => return Some(line),
                Err(RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// Whether the terminal's input is ours.
fn in_foreground() -> bool {
    let group = rustix::termios::tcgetpgrp(std::io::stdin());
    group.is_ok_and(|group| group == rustix::process::getpgrp())
}

fn read_lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Asks on the terminal, until an answer or Ctrl-C.
pub struct Terminal(Rc<Typed>);

impl Asker for Terminal {
    fn said(&mut self) -> Vec<String> {
        let mut said = std::mem::take(&mut *self.0.early.borrow_mut());
        said.extend(self.0.typed());
        said.retain(|line| !line.trim().is_empty());
        if !said.is_empty() {
            note("· taken; the model sees it at its next step");
        }
        said
    }

    fn ask(&mut self, question: &Question) -> Answer {
        let early = self.0.typed();
        self.0.early.borrow_mut().extend(early);
        let prefix = question.prefix.as_ref().map(|words| words.join(" "));
        let mut offer = String::new();
        if question.repeatable {
            offer.push_str(", a = always this one");
        }
        if let Some(words) = &prefix {
            offer.push_str(&format!(", p = always `{}`", for_terminal(words)));
        }
        {
            // Held no longer than it takes: whoever has a note to write meanwhile waits for it.
            let mut screen = std::io::stderr().lock();
            let _ = write!(
                screen,
                "\nThe agent wants to {}, because it {}:\n\n{}\n\ny = yes{offer}, n = no, or say what to do instead: ",
                question.what, question.why, question.shown
            );
            let _ = screen.flush();
        }
        let Some(line) = self.0.line() else {
            return Answer::No(None);
        };
        match line.trim() {
            "y" | "yes" => Answer::Once,
            "a" | "always" if question.repeatable => Answer::AlwaysThis,
            "p" if prefix.is_some() => Answer::AlwaysPrefix,
            "" | "n" | "no" => Answer::No(None),
            instead => Answer::No(Some(instead.to_owned())),
        }
    }
}
