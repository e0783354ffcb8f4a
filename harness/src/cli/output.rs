//! stdout as commands use it: a reader that goes away ends the command quietly, and what a model or a file
//! says cannot drive the terminal.

use std::io::{self, Write};

use super::visible::visible;
use crate::env::Env;
use crate::error::{Error, Result};

pub struct Out {
    sink: Box<dyn Write + Send>,
    /// Whether control characters could act on something.
    terminal: bool,
}

impl Out {
    pub fn stdout(env: &Env) -> Out {
        Out {
            sink: Box::new(io::stdout()),
            terminal: env.terminals.stdout,
        }
    }

    #[cfg(test)]
    pub fn to(sink: Box<dyn Write + Send>, terminal: bool) -> Out {
        Out { sink, terminal }
    }

    /// Text of ours, on a line of its own.
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.sink
            .write_all(text.as_bytes())
            .and_then(|()| self.sink.write_all(b"\n"))
            .map_err(Error::output)
    }

    /// Text of a model's, shown at once. On a terminal control characters are made visible; into a pipe
    /// or a file goes exactly what the model said.
    pub fn model_text(&mut self, text: &str) -> Result<()> {
        let text = if self.terminal {
            visible(text)
        } else {
            text.into()
        };
        self.sink
            .write_all(text.as_bytes())
            .and_then(|()| self.sink.flush())
            .map_err(Error::output)
    }
}

/// A line on stderr. That nobody reads it is no reason to stop.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
