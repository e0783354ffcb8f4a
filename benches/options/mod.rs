//! The command line of a benchmark: one file, then pairs of a name and a value.

use std::path::PathBuf;
use std::str::FromStr;

/// What was given. Names are given once each; of two the last counts.
pub struct Options {
    pub file: PathBuf,
    pairs: Vec<(String, String)>,
}

impl Options {
    /// Ends the program with a message where the arguments make no sense, and quietly where there are
    /// none: `cargo bench` runs every benchmark, and these need a file.
    pub fn read_or_exit(bench: &str, known: &[&str]) -> Self {
        match Self::read(&arguments(), known) {
            Ok(Some(options)) => options,
            Ok(None) => {
                println!("{bench}: no file given, nothing done");
                std::process::exit(0);
            }
            Err(message) => refuse(&message),
        }
    }

    fn read(args: &[String], known: &[&str]) -> Result<Option<Self>, String> {
        let Some((file, rest)) = args.split_first() else {
            return Ok(None);
        };
        if file.starts_with('-') {
            return Err(format!("need a file first, have {file}"));
        }
        let mut pairs = Vec::new();
        for pair in rest.chunks(2) {
            match pair {
                [name, _] if !known.contains(&name.as_str()) => {
                    return Err(format!("{name}: need one of {}", known.join(", ")));
                }
                [name, value] => pairs.push((name.clone(), value.clone())),
                _ => return Err(format!("{} needs a value", pair[0])),
            }
        }
        Ok(Some(Self {
            file: file.into(),
            pairs,
        }))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        let given = self.pairs.iter().rev().find(|(n, _)| n == name);
        given.map(|(_, value)| value.as_str())
    }

    /// Ends the program where `name` was given something that is no number above zero.
    pub fn number_or_exit(&self, name: &str, default: usize) -> usize {
        let Some(value) = self.text(name) else {
            return default;
        };
        match usize::from_str(value) {
            Ok(number) if number > 0 => number,
            _ => refuse(&format!("{name}: need a number above zero, have {value}")),
        }
    }
}

/// What was given, without the name that `cargo bench` adds.
pub fn arguments() -> Vec<String> {
    let given = std::env::args().skip(1);
    given.filter(|arg| arg != "--bench").collect()
}

/// Ends the program with a message.
pub fn refuse(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2);
}
