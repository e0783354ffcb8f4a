//! A conversation before it is text: parts of the system message, tools, messages.

use std::sync::Arc;

use engine::{Layer, Salt};
use models::template::FrozenClock;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::marks::Marker;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A tool call in an earlier assistant message. `arguments` is a JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallText {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
    pub calls: Vec<CallText>,
    /// Of a tool's result: the call it answers, and the tool.
    pub call_id: Option<String>,
    pub name: Option<String>,
    /// Of an assistant message that was generated here: its ids as sampled.
    pub sampled: Option<Arc<[u32]>>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
            calls: Vec::new(),
            call_id: None,
            name: None,
            sampled: None,
        }
    }

    pub fn user(content: impl Into<String>) -> Message {
        Message::new(Role::User, content)
    }

    pub fn assistant(content: impl Into<String>, calls: Vec<CallText>) -> Message {
        Message {
            calls,
            ..Message::new(Role::Assistant, content)
        }
    }

    pub fn tool(
        call_id: impl Into<String>,
        name: impl Into<String>,
        content: impl Into<String>,
    ) -> Message {
        Message {
            call_id: Some(call_id.into()),
            name: Some(name.into()),
            ..Message::new(Role::Tool, content)
        }
    }

    /// The message as templates take it, marked as content number `index`.
    pub(super) fn to_value(&self, marker: Marker<'_>, index: usize) -> Value {
        let mut map = Map::new();
        map.insert("role".into(), self.role.name().into());
        map.insert(
            "content".into(),
            marker.content(index, &self.content).into(),
        );
        if !self.calls.is_empty() {
            let calls: Vec<Value> = self
                .calls
                .iter()
                .map(|call| call.to_value(marker, index))
                .collect();
            map.insert("tool_calls".into(), calls.into());
        }
        if let Some(id) = &self.call_id {
            map.insert("tool_call_id".into(), marker.inner(id).into());
        }
        if let Some(name) = &self.name {
            map.insert("name".into(), marker.inner(name).into());
        }
        Value::Object(map)
    }

    /// Adds to `hasher` what tells this message from others: the ids it was sampled as, else its words, as a
    /// client sends them back: trimmed, arguments with other white space, call ids of its own.
    fn digest_into(&self, hasher: &mut Sha256) {
        hasher.update(self.role.name());
        if let Some(ids) = &self.sampled {
            hasher.update([0xfe]);
            hasher.update((ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
            return;
        }
        let content = self.content.as_str();
        field(
            hasher,
            if self.role == Role::Assistant {
                content.trim()
            } else {
                content
            },
        );
        for call in &self.calls {
            field(hasher, &call.name);
            let arguments =
                serde_json::from_str::<Value>(&call.arguments).map(|value| value.to_string());
            field(hasher, arguments.as_deref().unwrap_or(&call.arguments));
        }
        hasher.update([0xff]);
    }
}

impl CallText {
    /// Arguments that are a JSON object go in as one: only then can each text in it be marked, whatever escapes it
    /// was written with.
    fn to_value(&self, marker: Marker<'_>, index: usize) -> Value {
        let arguments = match serde_json::from_str::<Value>(&self.arguments) {
            Ok(object @ Value::Object(_)) => marker.inner_value(&object),
            _ => marker.inner(&self.arguments).into(),
        };
        json!({
            "id": marker.inner(&self.id),
            "type": "function",
            "function": { "name": marker.beacon(index, &self.name), "arguments": arguments }
        })
    }
}

/// A part of the system message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemPart {
    pub name: String,
    pub layer: Layer,
    pub text: String,
}

/// A tool as the model is told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, in the order its author gave it.
    pub parameters: Value,
    /// What a call may hold, where that is more than `parameters` shows.
    pub accepted: Option<Value>,
}

impl Tool {
    pub fn accepted(&self) -> &Value {
        self.accepted.as_ref().unwrap_or(&self.parameters)
    }

    pub fn to_value(&self) -> Value {
        json!({
            "type": "function",
            "function": { "name": self.name, "description": self.description, "parameters": self.parameters }
        })
    }

    /// The same with marks; the description, else the name, tells where the tools stand.
    pub(super) fn to_marked_value(&self, marker: Marker<'_>, index: usize) -> Value {
        let described = !self.description.trim().is_empty();
        let name = if described {
            marker.inner(&self.name)
        } else {
            marker.beacon(index, &self.name)
        };
        let description = marker.beacon(index, &self.description);
        let parameters = marker.inner_value(&self.parameters);
        json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters }
        })
    }
}

/// All that a prompt is made from.
#[derive(Clone, Debug)]
pub struct Conversation {
    pub system: Vec<SystemPart>,
    /// Sorted by name when they are sent.
    pub tools: Vec<Tool>,
    pub messages: Vec<Message>,
    /// What `strftime_now` tells a template: taken once, at the conversation's start.
    pub clock: FrozenClock,
    /// Further names a template may ask for, such as `enable_thinking`.
    pub extra: Map<String, Value>,
    /// Whose it is: neither cached keys and values nor remembered replies are shared between two salts.
    pub salt: Salt,
}

impl Conversation {
    /// What tells this conversation's beginnings from others.
    pub(super) fn digests(&self) -> Digests {
        let mut hasher = Sha256::new();
        field(&mut hasher, self.salt.as_str());
        for part in &self.system {
            field(&mut hasher, &part.name);
            field(&mut hasher, &part.text);
        }
        for tool in &self.tools {
            field(&mut hasher, &tool.to_value().to_string());
        }
        field(&mut hasher, &Value::Object(self.extra.clone()).to_string());
        let mut upto = vec![hasher.clone().finalize().into()];
        for message in &self.messages {
            message.digest_into(&mut hasher);
            upto.push(hasher.clone().finalize().into());
        }
        Digests {
            upto,
            whole: hasher,
        }
    }
}

/// Digests over a conversation, message by message.
#[derive(Clone, Debug)]
pub(super) struct Digests {
    /// `upto[k]` stands for the system parts, the tools and the first `k` messages.
    pub upto: Vec<[u8; 32]>,
    whole: Sha256,
}

impl Digests {
    /// The digest of the conversation with `next` behind it.
    pub fn with(&self, next: &Message) -> [u8; 32] {
        let mut hasher = self.whole.clone();
        next.digest_into(&mut hasher);
        hasher.finalize().into()
    }
}

fn field(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text);
}
