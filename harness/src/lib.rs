//! Pieces, budget, loop, tools, sessions, the model store and the commands of `ostler`.
//!
//! Only `main.rs` reads the environment and the arguments; what it read arrives here as [`env::Env`].
// Denied, not forbidden: `tools::os` alone may, for what runs between fork and exec.
#![deny(unsafe_code)]

pub mod agent;
pub mod chat;
pub mod cli;
pub mod clock;
pub mod env;
pub mod error;
pub mod eval;
pub mod limits;
pub mod load;
pub mod memory;
pub mod peer;
pub mod server;
pub mod store;
pub mod tools;

pub use error::{Error, Result};
