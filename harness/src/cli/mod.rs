//! The commands. Each parses its arguments into valid types, does one thing, and returns what to exit with.
//!
//! What a command computes goes to stdout; figures, notes and progress go to stderr.

mod agent;
mod answer;
mod args;
mod bench_against;
mod bench_cache;
mod bench_call;
mod bench_speed;
mod cache;
mod chat;
mod eval;
mod figures;
mod inspect;
mod interrupt;
mod loading;
mod memory;
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

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use crate::env::Env;
use crate::error::{Blame, Error, Result};
use args::{BenchCommand, Cli, Command};
use output::{Out, note};

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// Ctrl-C; what there was of an answer has been printed.
    Interrupted,
    /// The agent stopped before the goal was reached; the reason has been printed.
    Unfinished,
    /// Something could not be done, the rest was; told already, with what was to blame.
    Partly(Blame),
}

/// Runs the command line and returns the exit code (`ostler --help` lists them).
pub fn main(env: Result<Env>, args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(mut error) => {
            suggest_command(&mut error);
            // Help and version go to stdout and are no failure. A closed stdout is none either.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    log_to_stderr();
    match env.and_then(|env| dispatch(&env, cli)) {
        Ok(Exit::Done) => 0,
        Ok(Exit::Partly(blame)) => crate::error::exit_code(blame),
        Ok(Exit::Unfinished) => crate::error::EXIT_UNFINISHED,
        Ok(Exit::Interrupted) => crate::error::EXIT_INTERRUPTED,
        Err(Error::OutputClosed) => 0,
        Err(error) => {
            note(&format!("ostler: {error}"));
            error.exit_code()
        }
    }
}

/// What should not happen and does no harm (a report that differs from its plan, logits that are no
/// numbers) is told where a person looks.
fn log_to_stderr() {
    // Whoever runs commands in its own process may have a subscriber already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .try_init();
}

/// Names the commands that are one slip away: clap's own measure misses them in short words.
fn suggest_command(error: &mut clap::Error) {
    let Some(ContextValue::String(wanted)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let command = Cli::command();
    let known = command.get_subcommands().map(clap::Command::get_name);
    let near = crate::store::nearest(wanted, known);
    if !near.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(near),
        );
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
        Some(Command::Memory(command)) => memory::run(env, &command, &mut out),
        Some(Command::Eval(args)) => eval::run(env, &args, &mut out),
        Some(Command::Serve(args)) => serve::run(env, &args, &mut out),
        Some(Command::Inspect(args)) => inspect::run(env, &args, &mut out),
        Some(Command::Cache(args)) => cache::run(env, &args, &mut out),
        Some(Command::Bench(BenchCommand::Cache(args))) => bench_cache::run(env, &args, &mut out),
        Some(Command::Bench(BenchCommand::Speed(args))) => bench_speed::run(env, &args, &mut out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_slip_in_a_command_gets_a_suggestion() {
        for (typed, meant) in [("rnu", "'run'"), ("sevre", "'serve'"), ("lst", "'list'")] {
            let mut error = Cli::try_parse_from(["ostler", typed]).unwrap_err();
            suggest_command(&mut error);
            assert!(error.to_string().contains(meant), "{typed}: {error}");
        }
        let mut error = Cli::try_parse_from(["ostler", "zebra"]).unwrap_err();
        suggest_command(&mut error);
        assert!(!error.to_string().contains("tip:"), "{error}");
    }
}
