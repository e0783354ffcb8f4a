//! The JSON of `/v1/chat/completions`, as clients really send it. `null` means absent, unknown
//! fields are ignored, a wrong type is an error that names its place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request. Fields that only change accounting (`user`, `store`, `metadata`, …) are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(expecting = "an object with `messages`")]
pub struct ChatRequest {
    pub model: Option<String>,
    pub messages: Vec<WireMessage>,
    pub tools: Option<Vec<WireTool>>,
    pub tool_choice: Option<WireChoice>,
    pub parallel_tool_calls: Option<bool>,
    pub response_format: Option<WireFormat>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<u64>,
    pub max_completion_tokens: Option<u64>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u64>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
    pub seed: Option<i64>,
    pub stop: Option<OneOrMany>,
    pub n: Option<u64>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
    /// Requests share cached blocks only within one salt.
    pub cache_salt: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `role` and `content`")]
pub struct WireMessage {
    pub role: String,
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub tool_calls: Option<Vec<WireCall>>,
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

/// A text, or parts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[serde(expecting = "a string, or an array of parts")]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `type`")]
pub struct Part {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(expecting = "an object with `function`")]
pub struct WireCall {
    #[serde(default)]
    pub id: Option<String>,
    pub function: WireFunction,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(expecting = "an object with `name` and `arguments`")]
pub struct WireFunction {
    pub name: String,
    /// A JSON text; some clients send the object itself.
    #[serde(default)]
    pub arguments: Value,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `type` and `function`")]
pub struct WireTool {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub function: Option<WireToolFunction>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `name` and `parameters`")]
pub struct WireToolFunction {
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub parameters: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[serde(expecting = "\"auto\", \"none\", \"required\", or an object that names a function")]
pub enum WireChoice {
    Word(String),
    Named { function: NamedFunction },
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `name`")]
pub struct NamedFunction {
    pub name: String,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `type`")]
pub struct WireFormat {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub json_schema: Option<WireSchema>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with `schema`")]
pub struct WireSchema {
    #[serde(default)]
    pub schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[serde(expecting = "a string, or an array of strings")]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        }
    }
}

/// Token counts of one answer. `cached_tokens` is what the report says was reused, never a guess.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptDetails,
    pub completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PromptDetails {
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CompletionDetails {
    pub reasoning_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: CompletionDetails::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<ChatRequest, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    /// Clients fill every field they know with null; servers refused them.
    #[test]
    fn null_means_absent_and_unknown_is_ignored() {
        let request = parse(
            r#"{"messages": [{"role": "user", "content": "hi"}], "tools": null, "tool_choice": null,
                "response_format": null, "stop": null, "stream_options": null, "max_tokens": null,
                "temperature": null, "seed": null, "user": null, "logit_bias": null, "n": null,
                "store": false, "reasoning_effort": "low", "prompt_cache_key": "k", "unknown": {"x": 1}}"#,
        )
        .expect("taken");
        assert!(
            request.tools.is_none() && request.temperature.is_none() && request.messages.len() == 1
        );
    }

    #[test]
    fn content_has_three_forms() {
        let request = parse(
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
                 "function": {"name": "run", "arguments": "{}"}}]},
                {"role": "assistant", "tool_calls": []}]}"#,
        )
        .expect("taken");
        assert!(
            matches!(&request.messages[0].content, Some(Content::Parts(parts)) if parts.len() == 1)
        );
        assert!(request.messages[1].content.is_none() && request.messages[2].content.is_none());
    }

    #[test]
    fn a_wrong_type_is_refused() {
        for bad in [
            r#"{"temperature": "hot"}"#,
            r#"{"messages": "hi"}"#,
            r#"{"n": -1}"#,
            r#"{"max_tokens": 1.5}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
