//! stdout as commands use it: a reader that goes away ends the command quietly, and what a model or a file
//! says cannot drive the terminal.

use std::io::{self, Write};

use crate::env::Env;
use crate::error::{Error, Result};
use crate::tools::clean::for_terminal;

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
            for_terminal(text)
        } else {
            text.into()
        };
        self.sink
            .write_all(text.as_bytes())
            .and_then(|()| self.sink.flush())
            .map_err(Error::output)
    }
}

/// A line on stderr, safe for a terminal: an error may quote a model's file. That nobody reads it is no
/// reason to stop.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", for_terminal(text));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_sees_signs_and_a_pipe_gets_the_bytes() {
        for (terminal, expect) in [(true, "␛[31mred\n"), (false, "\x1b[31mred\n")] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            Out::to(Box::new(Shared(Arc::clone(&seen))), terminal)
                .model_text("\x1b[31mred\n")
                .unwrap();
            assert_eq!(
                String::from_utf8(seen.lock().unwrap().clone()).unwrap(),
                expect
            );
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_gone_is_told_from_a_full_disk() {
        let error = Out::to(Box::new(Closed), false).line("text").unwrap_err();
        assert!(matches!(error, Error::OutputClosed), "{error}");
        assert_eq!(error.exit_code(), 0);
        let error = Error::output(io::ErrorKind::StorageFull.into());
        assert_eq!(error.exit_code(), 4);
    }
}
