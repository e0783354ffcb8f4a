//! Models: weights, architectures, tokenizers, chat templates and tool dialects. Text and tokens
//! meet here, and nothing here knows of prompts, caches or conversations.

#![deny(unsafe_code)]

pub mod config;
pub mod error;
pub mod gguf;
pub mod limits;
pub mod template;
pub mod tiny;
pub mod tokenizer;

pub use error::{Blame, Error, Result};
