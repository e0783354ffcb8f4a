//! From a wire request to a conversation and options: every field is checked once, here.

use std::collections::HashMap;

use engine::limits::TOOLS_MAX;
use engine::{Layer, Salt, SamplingParams};
use models::template::FrozenClock;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::wire::{ChatRequest, Content, WireCall, WireChoice, WireFormat, WireMessage, WireTool};
use crate::chat::{CallText, Choice, Conversation, Message, ReplyOptions, Role, SystemPart, Tool};
use crate::limits;

/// A request that can be carried out.
#[derive(Debug)]
pub struct Job {
    pub conversation: Conversation,
    pub options: ReplyOptions,
    pub stream: bool,
    pub include_usage: bool,
}

/// What a server adds of its own.
pub struct Surroundings {
    pub clock: FrozenClock,
    /// A seed for requests that bring none.
    pub random_seed: u64,
}

impl Job {
    pub fn from_wire(request: ChatRequest, around: Surroundings) -> Result<Job, ApiError> {
        if request.messages.is_empty() {
            return Err(ApiError::bad(
                "messages",
                "`messages` is empty; send at least one message",
            ));
        }
        if request.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad(
                "n",
                format!(
                    "n is {}, only 1 is served; send the request again for another answer",
                    request.n.unwrap_or(0)
                ),
            ));
        }
        let tools = tools(request.tools.as_deref().unwrap_or_default())?;
        let choice = choice(request.tool_choice.as_ref(), &tools)?;
        let schema = schema(request.response_format.as_ref())?;
        let options = ReplyOptions {
            sampling: sampling(&request, around.random_seed)?,
            max_tokens: max_tokens(&request)?,
            stop: stops(request.stop)?,
            parallel: request.parallel_tool_calls.unwrap_or(true),
            logprobs: logprobs(request.logprobs, request.top_logprobs)?,
            choice: choice.clone(),
            schema,
            ..ReplyOptions::default()
        };
        let salt = Salt::new(request.cache_salt.as_deref().unwrap_or_default());
        let (system, messages) = messages(request.messages)?;
        // `none` leaves the tools out of the prompt, as the API's documentation has it.
        let tools = if choice == Choice::Barred {
            Vec::new()
        } else {
            tools
        };
        Ok(Job {
            conversation: Conversation {
                system,
                tools,
                messages,
                clock: around.clock,
                extra: Map::new(),
                salt,
            },
            options,
            stream: request.stream.unwrap_or(false),
            include_usage: request
                .stream_options
                .and_then(|o| o.include_usage)
                .unwrap_or(false),
        })
    }
}

/// Leading system and developer messages are the system parts; the others stay where they are.
fn messages(wire: Vec<WireMessage>) -> Result<(Vec<SystemPart>, Vec<Message>), ApiError> {
    // The tool that each call named, by the call's id.
    let mut called: HashMap<String, String> = HashMap::new();
    let mut system = Vec::new();
    let mut messages: Vec<Message> = Vec::new();
    for (i, message) in wire.into_iter().enumerate() {
        let text = text_of(message.content, i)?;
        match message.role.as_str() {
            "system" | "developer" if messages.is_empty() => {
                let name = if system.is_empty() {
                    "instructions".to_owned()
                } else {
                    format!("instructions {}", system.len() + 1)
                };
                system.push(SystemPart {
                    name,
                    layer: Layer::Instructions,
                    text,
                });
            }
            "system" | "developer" => messages.push(Message::new(Role::System, text)),
            "user" => messages.push(Message::user(text)),
            "assistant" => {
                let calls = calls(message.tool_calls.unwrap_or_default());
                called.extend(calls.iter().map(|c| (c.id.clone(), c.name.clone())));
                messages.push(Message::assistant(text, calls));
            }
            "tool" | "function" => {
                let id = message.tool_call_id.unwrap_or_default();
                let name = message
                    .name
                    .or_else(|| called.get(&id).cloned())
                    .unwrap_or_else(|| "tool".into());
                messages.push(Message::tool(id, name, text));
            }
            other => {
                return Err(ApiError::bad(
                    "messages",
                    format!(
                        "messages[{i}].role is {other:?}; have system, developer, user, assistant, tool"
                    ),
                ));
            }
        }
    }
    if messages.is_empty() {
        messages.push(Message::user(""));
    }
    Ok((system, messages))
}

fn text_of(content: Option<Content>, i: usize) -> Result<String, ApiError> {
    match content {
        None => Ok(String::new()),
        Some(Content::Text(text)) => Ok(text),
        Some(Content::Parts(parts)) => {
            let mut texts = Vec::new();
            for part in parts {
                match (part.kind.as_str(), part.text) {
                    ("text" | "input_text" | "output_text" | "refusal", Some(text)) => {
                        texts.push(text)
                    }
                    ("text" | "input_text" | "output_text" | "refusal", None) => {}
                    (kind, _) => {
                        return Err(ApiError::bad(
                            "messages",
                            format!(
                                "messages[{i}] has a part of type {kind:?}; this model reads text only"
                            ),
                        ));
                    }
                }
            }
            Ok(texts.join("\n"))
        }
    }
}

fn calls(wire: Vec<WireCall>) -> Vec<CallText> {
    wire.into_iter()
        .map(|call| CallText {
            id: call.id.unwrap_or_default(),
            name: call.function.name,
            arguments: match call.function.arguments {
                Value::String(text) => text,
                Value::Null => String::new(),
                other => other.to_string(),
            },
        })
        .collect()
}

fn tools(wire: &[WireTool]) -> Result<Vec<Tool>, ApiError> {
    if wire.len() > TOOLS_MAX {
        let message = format!(
            "`tools` has {} tools; at most {TOOLS_MAX} can be held to",
            wire.len()
        );
        return Err(ApiError::bad("tools", message));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(wire.len());
    for (i, tool) in wire.iter().enumerate() {
        let function = match (tool.kind.as_str(), &tool.function) {
            ("function", Some(function)) => function,
            ("function", None) => {
                return Err(ApiError::bad(
                    "tools",
                    format!("tools[{i}] has no `function`"),
                ));
            }
            (kind, _) => {
                return Err(ApiError::bad(
                    "tools",
                    format!("tools[{i}].type is {kind:?}; have \"function\""),
                ));
            }
        };
        if tools.iter().any(|t| t.name == function.name) {
            return Err(ApiError::bad(
                "tools",
                format!("tools[{i}]: a second tool is named {:?}", function.name),
            ));
        }
        tools.push(Tool {
            name: function.name.clone(),
            description: function.description.clone().unwrap_or_default(),
            parameters: function
                .parameters
                .clone()
                .unwrap_or_else(|| serde_json::json!({ "type": "object", "properties": {} })),
            accepted: None,
        });
    }
    Ok(tools)
}

fn choice(wire: Option<&WireChoice>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let needs_tools = |choice: Choice| {
        if tools.is_empty() {
            return Err(ApiError::bad(
                "tool_choice",
                "tool_choice asks for a call, but `tools` is empty",
            ));
        }
        Ok(choice)
    };
    match wire {
        None => Ok(Choice::Auto),
        Some(WireChoice::Word(word)) => match word.as_str() {
            "none" => Ok(Choice::Barred),
            "auto" => Ok(Choice::Auto),
            "required" | "any" => needs_tools(Choice::Required),
            other => Err(ApiError::bad(
                "tool_choice",
                format!("tool_choice is {other:?}; have none, auto, required, or a named function"),
            )),
        },
        Some(WireChoice::Named { function }) => {
            if tools.iter().any(|t| t.name == function.name) {
                return Ok(Choice::Named(function.name.clone()));
            }
            let have: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
            Err(ApiError::bad(
                "tool_choice",
                format!(
                    "tool_choice names {:?}; have {}",
                    function.name,
                    have.join(", ")
                ),
            ))
        }
    }
}

fn schema(format: Option<&WireFormat>) -> Result<Option<Value>, ApiError> {
    let Some(format) = format else {
        return Ok(None);
    };
    match format.kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(serde_json::json!({ "type": "object" }))),
        "json_schema" => match format.json_schema.as_ref().and_then(|s| s.schema.clone()) {
            Some(schema) => Ok(Some(schema)),
            None => Err(ApiError::bad(
                "response_format",
                "response_format.json_schema has no `schema`",
            )),
        },
        other => Err(ApiError::bad(
            "response_format",
            format!("response_format.type is {other:?}; have text, json_object, json_schema"),
        )),
    }
}

fn sampling(request: &ChatRequest, random_seed: u64) -> Result<SamplingParams, ApiError> {
    let mut sampling = SamplingParams::default();
    let in_range = |name: &'static str, value: Option<f32>, low: f32, high: f32| match value {
        Some(v) if !(low..=high).contains(&v) => Err(ApiError::bad(
            name,
            format!("{name} is {v}; need {low} to {high}"),
        )),
        given => Ok(given),
    };
    sampling.temperature = in_range("temperature", request.temperature, 0.0, 2.0)?
        .unwrap_or(limits::SERVER_TEMPERATURE);
    sampling.top_p = in_range("top_p", request.top_p, 0.0, 1.0)?.unwrap_or(1.0);
    sampling.min_p = in_range("min_p", request.min_p, 0.0, 1.0)?.unwrap_or(0.0);
    sampling.presence_penalty =
        in_range("presence_penalty", request.presence_penalty, -2.0, 2.0)?.unwrap_or(0.0);
    sampling.frequency_penalty =
        in_range("frequency_penalty", request.frequency_penalty, -2.0, 2.0)?.unwrap_or(0.0);
    sampling.repetition_penalty =
        in_range("repetition_penalty", request.repetition_penalty, 0.01, 10.0)?.unwrap_or(1.0);
    sampling.top_k = request
        .top_k
        .map_or(0, |k| usize::try_from(k).unwrap_or(usize::MAX));
    // A negative seed asks for a random one, as other servers have it.
    sampling.seed = request
        .seed
        .and_then(|s| u64::try_from(s).ok())
        .unwrap_or(random_seed);
    for (id, bias) in request.logit_bias.iter().flatten() {
        let id: u32 = id.parse().map_err(|_| {
            ApiError::bad(
                "logit_bias",
                format!("logit_bias has the key {id:?}; need a token id"),
            )
        })?;
        sampling.logit_bias.push((id, bias.clamp(-100.0, 100.0)));
    }
    Ok(sampling)
}

fn max_tokens(request: &ChatRequest) -> Result<Option<usize>, ApiError> {
    let given = request.max_completion_tokens.or(request.max_tokens);
    match given {
        Some(0) => Err(ApiError::bad(
            "max_tokens",
            "max_tokens is 0; need at least 1",
        )),
        Some(n) => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX))),
        None => Ok(None),
    }
}

fn stops(stop: Option<super::wire::OneOrMany>) -> Result<Vec<String>, ApiError> {
    let stops = stop
        .map(super::wire::OneOrMany::into_vec)
        .unwrap_or_default();
    if stops.len() > limits::STOPS_MAX {
        return Err(ApiError::bad(
            "stop",
            format!(
                "{} stop strings; have at most {}",
                stops.len(),
                limits::STOPS_MAX
            ),
        ));
    }
    Ok(stops.into_iter().filter(|s| !s.is_empty()).collect())
}

fn logprobs(wanted: Option<bool>, top: Option<u64>) -> Result<Option<usize>, ApiError> {
    let top = top.unwrap_or(0);
    if top > limits::TOP_LOGPROBS_MAX {
        return Err(ApiError::bad(
            "top_logprobs",
            format!(
                "top_logprobs is {top}; need 0 to {}",
                limits::TOP_LOGPROBS_MAX
            ),
        ));
    }
    match wanted {
        Some(true) => Ok(Some(top as usize)),
        Some(false) | None if top > 0 => Err(ApiError::bad(
            "top_logprobs",
            "top_logprobs needs logprobs: true",
        )),
        Some(false) | None => Ok(None),
    }
}
