//! The `finish` tool: ends a run with the words for the user. A model may as well answer in plain
//! text; this is for small ones. Having called tools they go on writing calls and never come back
//! to prose (Qwen2.5-Coder-1.5B read the same file until it was stopped), so the way out is a call.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::transcript::Call;
use crate::limits;
use crate::tools::ToolSpec;

pub const NAME: &str = "finish";

/// What stands in the transcript as its result.
pub const DELIVERED: &str = "[The user has this answer.]";

/// What the model is told of it.
pub fn spec() -> ToolSpec {
    ToolSpec {
        name: NAME,
        description: "End the task and tell the user the result.".into(),
        parameters: json!({
            "type": "object",
            "properties": { "text": { "type": "string" } },
            "required": ["text"],
            "additionalProperties": false
        }),
        rare: Map::new(),
    }
}

/// The arguments of a call that a grammar demands: the grammar ends the text as well.
pub fn bounded() -> Value {
    let mut parameters = spec().parameters;
    parameters["properties"]["text"]["maxLength"] = limits::FORCED_ANSWER_CHARS_MAX.into();
    parameters
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    text: String,
}

/// The words for the user; `None` when `call` is of another tool.
pub fn words(call: &Call) -> Option<Result<String, String>> {
    if call.name != NAME {
        return None;
    }
    let read: Result<Arguments, _> = serde_json::from_str(&call.arguments);
    Some(match read {
        Ok(arguments) => Ok(arguments.text),
        Err(e) => Err(format!("cannot read the arguments: {e}; have text")),
    })
}
