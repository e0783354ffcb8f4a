//! The commands. Each parses its arguments into valid types, does one thing, and returns what to exit with.
//!
//! What a command computes goes to stdout; figures, notes and progress go to stderr.

mod agent;
mod answer;
mod args;
mod bench_cache;
mod chat;
mod figures;
mod interrupt;
mod loading;
mod models;
mod output;
mod pieces;
mod prompt_input;
mod run;
mod sampling;
mod serve;
mod show;
mod size;
mod turn_input;
mod visible;

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;

use crate::env::Env;
use crate::error::{Error, Result};
use args::{BenchCommand, Cli, Command};
use output::Out;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// Ctrl-C; what there was of an answer has been printed.
    Interrupted,
    /// The agent stopped before the goal was reached; the reason has been printed.
    Unfinished,
}

/// Runs the command line and returns the exit code (`ostler --help` lists them).
pub fn main(env: Result<Env>, args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and are no failure. A closed stdout is none either.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    match env.and_then(|env| dispatch(&env, cli)) {
        Ok(Exit::Done) => 0,
        Ok(Exit::Unfinished) => crate::error::EXIT_UNFINISHED,
        Ok(Exit::Interrupted) => crate::error::EXIT_INTERRUPTED,
        Err(Error::OutputClosed) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ostler: {error}");
            error.exit_code()
        }
    }
}

fn dispatch(env: &Env, cli: Cli) -> Result<Exit> {
    let mut out = Out::stdout(env);
    match cli.command {
        None => chat::run(env, &cli.chat, &mut out),
        Some(Command::Chat(args)) => chat::run(env, &args, &mut out),
        Some(Command::Run(args)) => run::run(env, &args, &mut out),
        Some(Command::Pull(args)) => models::pull(env, &args, &mut out),
        Some(Command::List(args)) => models::list(env, &args, &mut out),
        Some(Command::Show(args)) => show::run(env, &args, &mut out),
        Some(Command::Rm(args)) => models::rm(env, &args, &mut out),
        Some(Command::Agent(args)) => agent::run(env, &args, &mut out),
        Some(Command::Serve(args)) => serve::run(env, &args, &mut out),
        Some(Command::Bench(BenchCommand::Cache(args))) => bench_cache::run(env, &args, &mut out),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
