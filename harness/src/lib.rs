//! Pieces, budget, loop, tools, sessions, the model store and the commands of `ostler`.
//!
//! Only `main.rs` reads the environment and the arguments; what it read arrives here as [`env::Env`].
#![forbid(unsafe_code)]

pub mod cli;
pub mod env;
pub mod error;
pub mod limits;
pub mod store;

pub use error::{Error, Result};
