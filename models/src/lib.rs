//! Models: weights, architectures, tokenizers, chat templates and tool dialects. Text and tokens
//! meet here, and nothing here knows of prompts, caches or conversations.

#![deny(unsafe_code)]

pub mod config;
pub mod decoder;
pub mod device;
pub mod dialect;
pub mod error;
pub mod forward;
pub mod gguf;
mod identity;
pub mod limits;
pub mod load;
pub mod template;
pub mod tiny;

pub use config::Config;
pub use error::{Blame, Error, Result};
