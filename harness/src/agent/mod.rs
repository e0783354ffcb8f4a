//! The agent: a loop free of I/O, the transcript it writes, and the driver that carries effects out.
//!
//! Read in this order: [`machine`] (the loop), [`transcript`] and [`view`] (what is kept, what the
//! model sees), [`driver`] (how effects become calls), then the rest.

pub mod budget;
pub mod compact;
pub mod driver;
pub mod finish_tool;
pub mod guards;
pub mod local;
pub mod machine;
pub mod memory_tools;
pub mod pieces;
pub mod prompt;
pub mod remote;
pub mod runtime;
pub mod session;
pub mod skills;
pub mod task_tool;
pub mod trace;
pub mod transcript;
pub mod transcript_tool;
pub mod undo;
pub mod view;
