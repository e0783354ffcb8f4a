//! The `ostler` binary: the only reader of the environment and of the arguments.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;

use harness::env::{Env, Terminals};

fn main() -> ExitCode {
    let terminals = Terminals {
        stdin: std::io::stdin().is_terminal(),
        stdout: std::io::stdout().is_terminal(),
        stderr: std::io::stderr().is_terminal(),
    };
    let env = Env::collect(|name| std::env::var_os(name), terminals).map(|env| Env {
        variables: std::env::vars_os().collect(),
        ..env
    });
    ExitCode::from(harness::cli::main(env, std::env::args_os()))
}
