//! The one place where text becomes tokens. The agent and the server both come here, so the two
//! cannot drift apart.
//!
//! 1. `message`: a conversation as data. 2. `marks`: marks in all that did not come from the template.
//! 3. `render`: the template's text with its marks taken out again, and where pieces begin. 4. `runs`: the
//!    text cut at the control tokens that the template wrote, each run encoded whole. 5. `thread`: the ids of a
//!    conversation so far. 6. `format`: the whole, with these rules:
//!
//! - What was sent stays. A later call is the ids of the call before, the ids sampled then, and a *delta*: what the
//!   template writes behind an assistant message, seen on a short conversation of a user's word, that message
//!   and the new ones. What a template makes of turns long past (dropped thinking, moved tools) is not followed.
//! - A system text or tools that a template writes into the newest user message are held to the first.
//! - A reply is known again by the digest of the conversation up to it: its ids where they are given, else its
//!   words. A conversation not known is one render of the template.
//! - Memory is a second system message where the template shows one in its place, else it opens the first user
//!   message. Tools of a template without tools end the system message.
//! - Where no delta can be had, the conversation is rendered afresh and `Composed::rewritten` says so.

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
