//! What the harness is worth, measured: tasks with graders, played by a model or by a script.
//!
//! `task` (what a task is) · `tasks` (the tasks) · `play` (one run, counted) · `script` (a runtime without a model).

pub mod play;
pub mod script;
pub mod task;
pub mod tasks;

pub use play::{Played, play, play_script};
pub use task::Task;
pub use tasks::TASKS;
