//! stdout as commands use it: a reader that goes away ends the command quietly, and what a model or a file
//! says cannot drive the terminal.

use std::io::{self, Write};

use crate::env::Env;
use crate::error::{Error, Result};

pub struct Out {
    sink: Box<dyn Write + Send>,
}

impl Out {
    pub fn stdout(_env: &Env) -> Out {
        Out {
            sink: Box::new(io::stdout()),
        }
    }

    /// Text of ours, on a line of its own.
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.sink
            .write_all(text.as_bytes())
            .and_then(|()| self.sink.write_all(b"\n"))
            .map_err(Error::output)
    }
}

/// A line on stderr. That nobody reads it is no reason to stop.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
