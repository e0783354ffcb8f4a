//! Arithmetic. Knows shapes and bytes; no model, no text, no I/O.

mod blame;

pub use blame::Blame;
