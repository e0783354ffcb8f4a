//! Makes an OpenAI-shaped conversation fit one template. The rules, in order:
//!
//! 1. `developer` is `system`. Leading system messages become one, joined by a blank line (unless one is marked
//!    `"separate": true` and the template shows a second one). A later one that the template would refuse or
//!    drop is sent in the user's name.
//! 2. Where the template refuses a system message, its text opens the first user message, with a blank line after.
//! 3. Content that is null or missing is the empty string. Text parts are joined, or made where a template wants them.
//! 4. Arguments of earlier calls reach the template as it wants them, mapping or text. Empty text is no arguments;
//!    text that is not a JSON object becomes `{"arguments": "<the text>"}`, so a broken call never stops a session.
//! 5. Where the template shows calls only beside null content, words and calls become two messages. Where it does
//!    not show calls at all, they are written into the content as
//!    `<tool_call>` JSON; where it does not show results, they come in the user's name as `<tool_response>`.
//! 6. Where the template wants strict alternation, neighbours of one role are joined by a blank line, and a user
//!    message that follows a tool result gets an assistant message "(no reply)" before it.
//!
//! Whatever a template refuses after that is an error with the template's own words.

use serde_json::{Map, Value, json};

use super::ChatTemplate;
use super::features::{ArgumentsForm, Features};

const JOIN: &str = "\n\n";
const NO_REPLY: &str = "(no reply)";

impl ChatTemplate {
    /// The messages as this template wants them.
    pub fn adapt(&self, messages: &[Value]) -> Vec<Value> {
        let features = self.features();
        let mut out = lead_with_one_system(messages, features);
        if !features.system {
            fold_system(&mut out);
        }
        name_results(&mut out);
        for message in &mut out {
            adapt_content(message);
            adapt_calls(message, features);
            adapt_result(message, features);
        }
        if features.null_content {
            out = out
                .into_iter()
                .flat_map(|message| part_words_from_calls(message, features))
                .collect();
        }
        if !features.user_after_tool && features.tool_role {
            reply_between_result_and_user(&mut out);
        }
        if !features.same_role_twice {
            out = merge_neighbours(out);
        }
        for message in &mut out {
            shape_content(message, features);
        }
        out
    }

    /// The system text that tells a model about tools when its template has no place for them.
    pub fn tools_prompt(tools: &[Value]) -> String {
        let mut text = String::from(
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>",
        );
        for tool in tools {
            text.push('\n');
            text.push_str(&super::python::dumps(tool));
        }
        text.push_str("\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
        text
    }
}

fn role(message: &Value) -> &str {
    message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or("user")
}

/// The text of a content; `None` when it has parts that are not text.
fn text_of(message: &Value) -> Option<String> {
    match message.get("content") {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part_text).collect(),
        Some(other) => Some(other.to_string()),
    }
}

fn part_text(part: &Value) -> Option<String> {
    match part {
        Value::String(text) => Some(text.clone()),
        part => part.get("text").and_then(Value::as_str).map(str::to_owned),
    }
}

fn lead_with_one_system(messages: &[Value], features: &Features) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        let separate = message
            .as_object_mut()
            .and_then(|map| map.remove("separate"))
            == Some(Value::Bool(true));
        if !matches!(role(&message), "system" | "developer") {
            out.push(message);
            continue;
        }
        message["role"] = json!("system");
        let leading = out.iter().all(|earlier| role(earlier) == "system");
        let stands_alone = separate && features.second_system && out.len() == 1;
        match out.last_mut() {
            Some(system) if leading && !stands_alone => {
                let joined = [text_of(system), text_of(&message)].map(Option::unwrap_or_default);
                let joined: Vec<&str> = joined
                    .iter()
                    .map(String::as_str)
                    .filter(|text| !text.is_empty())
                    .collect();
                system["content"] = json!(joined.join(JOIN));
            }
            _ => {
                if !leading && !features.later_system {
                    message["role"] = json!("user");
                }
                out.push(message);
            }
        }
    }
    out
}

fn fold_system(messages: &mut Vec<Value>) {
    if messages.first().map(role) != Some("system") {
        return;
    }
    let mut system = messages.remove(0);
    let text = text_of(&system).unwrap_or_default();
    match messages.iter_mut().find(|message| role(message) == "user") {
        Some(_) if text.is_empty() => {}
        Some(user) => match user.get_mut("content") {
            Some(Value::Array(parts)) => {
                parts.insert(0, json!({"type": "text", "text": text + JOIN}))
            }
            _ => user["content"] = json!(text + JOIN + &text_of(user).unwrap_or_default()),
        },
        None => {
            system["role"] = json!("user");
            messages.insert(0, system);
        }
    }
}

/// A tool message says which tool it comes from; clients leave that out and some templates need it.
fn name_results(messages: &mut [Value]) {
    let mut names: Map<String, Value> = Map::new();
    for message in messages {
        for call in message
            .get("tool_calls")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if let (Some(id), Some(name)) = (call["id"].as_str(), call["function"].get("name")) {
                names.insert(id.to_owned(), name.clone());
            }
        }
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let name = id.and_then(|id| names.get(id)).cloned();
        let unnamed = message.get("name").is_none_or(Value::is_null);
        if role(message) == "tool"
            && unnamed
            && let Some(name) = name
        {
            message["name"] = name;
        }
    }
}

fn adapt_content(message: &mut Value) {
    if let Some(text) = text_of(message) {
        message["content"] = json!(text);
    }
}

fn adapt_calls(message: &mut Value, features: &Features) {
    let no_calls = message
        .get("tool_calls")
        .is_some_and(|calls| calls.as_array().is_none_or(Vec::is_empty));
    if no_calls && let Some(map) = message.as_object_mut() {
        map.remove("tool_calls");
    }
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else {
        return;
    };
    for call in calls.iter_mut() {
        if features.short_call_ids
            && let Some(id) = call.get("id").and_then(Value::as_str)
        {
            call["id"] = json!(short_id(id));
        }
        if call.get("type").is_none() {
            call["type"] = json!("function");
        }
        let arguments = call["function"]["arguments"].take();
        call["function"]["arguments"] = match features.arguments {
            ArgumentsForm::Mapping => arguments_mapping(arguments),
            ArgumentsForm::Text => json!(arguments_text(arguments)),
        };
    }
    if !features.tool_calls {
        write_calls_out(message);
    }
}

/// The calls as text behind the words.
fn write_calls_out(message: &mut Value) {
    let Some(Value::Array(calls)) = message
        .as_object_mut()
        .and_then(|map| map.remove("tool_calls"))
    else {
        return;
    };
    let text = text_of(message).unwrap_or_default();
    let words = (!text.is_empty()).then_some(text);
    let parts: Vec<String> = words
        .into_iter()
        .chain(calls.iter().map(|call| write_call(&call["function"])))
        .collect();
    message["content"] = json!(parts.join("\n"));
}

/// Where calls are shown only with null content, words and calls in one message become two messages, or, where two
/// are refused, the calls become words.
fn part_words_from_calls(mut message: Value, features: &Features) -> Vec<Value> {
    let words = text_of(&message).is_some_and(|text| !text.is_empty());
    if !words || message.get("tool_calls").is_none() {
        return vec![message];
    }
    if !features.same_role_twice {
        write_calls_out(&mut message);
        return vec![message];
    }
    let mut calls = message.clone();
    calls["content"] = json!("");
    if let Some(map) = message.as_object_mut() {
        map.remove("tool_calls");
    }
    vec![message, calls]
}

fn arguments_mapping(arguments: Value) -> Value {
    match arguments {
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(map)) => Value::Object(map),
            _ => json!({"arguments": text}),
        },
        Value::Null => json!({}),
        mapping => mapping,
    }
}

fn arguments_text(arguments: Value) -> String {
    match arguments {
        Value::String(text) if serde_json::from_str::<Map<String, Value>>(&text).is_ok() => text,
        other => super::python::dumps(&arguments_mapping(other)),
    }
}

fn write_call(function: &Value) -> String {
    let call = json!({"name": function["name"], "arguments": arguments_mapping(function["arguments"].clone())});
    format!("<tool_call>\n{}\n</tool_call>", super::python::dumps(&call))
}

fn adapt_result(message: &mut Value, features: &Features) {
    if role(message) != "tool" {
        return;
    }
    if features.short_call_ids
        && let Some(id) = message.get("tool_call_id").and_then(Value::as_str)
    {
        message["tool_call_id"] = json!(short_id(id));
    }
    if !features.tool_role {
        let text = text_of(message).unwrap_or_default();
        *message = json!({"role": "user", "content": format!("<tool_response>\n{text}\n</tool_response>")});
    }
}

/// Nine letters and digits that follow from the id: itself where it has that form, else a hash of it.
fn short_id(id: &str) -> String {
    if id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a, 64 bits.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (0..9u32)
        .map(|place| char::from(digits[(hash / 36u64.pow(place) % 36) as usize]))
        .collect()
}

fn reply_between_result_and_user(messages: &mut Vec<Value>) {
    let mut at = 1;
    while at < messages.len() {
        if role(&messages[at]) == "user" && role(&messages[at - 1]) == "tool" {
            messages.insert(at, json!({"role": "assistant", "content": NO_REPLY}));
        }
        at += 1;
    }
}

fn merge_neighbours(messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        match out.last_mut() {
            Some(last)
                if role(last) == role(&message)
                    && matches!(role(&message), "user" | "assistant") =>
            {
                merge_into(last, message);
            }
            _ => out.push(message),
        }
    }
    out
}

fn merge_into(last: &mut Value, mut message: Value) {
    let texts = [text_of(last), text_of(&message)];
    last["content"] = match texts {
        [Some(before), Some(after)] => {
            let parts: Vec<&str> = [before.as_str(), after.as_str()]
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect();
            json!(parts.join(JOIN))
        }
        // Parts that are not text stay parts.
        _ => json!(
            [last["content"].take(), message["content"].take()]
                .into_iter()
                .flat_map(into_parts)
                .collect::<Vec<_>>()
        ),
    };
    if let Some(Value::Array(more)) = message.get_mut("tool_calls").map(Value::take) {
        match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.extend(more),
            None => last["tool_calls"] = json!(more),
        }
    }
}

fn into_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

fn shape_content(message: &mut Value, features: &Features) {
    let calls_only = message.get("tool_calls").is_some() && message["content"] == json!("");
    if calls_only && features.null_content {
        message["content"] = Value::Null;
    } else if features.typed_content {
        let content = message["content"].take();
        message["content"] = json!(into_parts(content));
    }
}
