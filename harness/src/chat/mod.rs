//! The one place where text becomes tokens. The agent and the server both come here, so the two
//! cannot drift apart.

mod format;
mod marks;
mod message;
mod render;
mod reply;
mod runs;
mod thread;

pub use format::{ChatFormat, Composed};
pub use message::{CallText, Conversation, Message, Role, SystemPart, Tool};
pub use reply::{ChatModel, Choice, Reply, ReplyEvent, ReplyOptions};
