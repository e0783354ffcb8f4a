//! Any OpenAI-compatible server as the agent's runtime: llama-server, Ollama, vLLM, a cloud, or another Ostler.
//!
//! It has no tokenizer of ours, no mask and no plan: tokens are estimated from what the server has counted so far,
//! calls are read leniently, and what could not be read is told to the model, which can mend it.

use serde_json::{Value, json};

use super::finish_tool;
use super::machine::Answer;
use super::runtime::{Ask, Calls, Reply, Runtime, StepError, Streamed};
use super::transcript::Call;
use super::view::{Turn, View};
use crate::error::{Error, Result};
use crate::limits;
use crate::peer;
use crate::tools::ToolSpec;

/// Which server, and how.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    pub url: String,
    /// `None`: the first that the server lists.
    pub model: Option<String>,
    /// `None`: what the server says that it has loaded.
    pub context_tokens: Option<usize>,
    pub key: Option<String>,
    pub temperature: f32,
}

/// A model on a server.
pub struct Remote {
    address: String,
    model: String,
    window: usize,
    key: Option<String>,
    temperature: f32,
    agent: ureq::Agent,
    estimate: Estimate,
}

/// Tokens of a text, told from its bytes: at first by what is rather too few bytes a token, then by what the server
/// has counted.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    bytes_a_token: f64,
}

impl Default for Estimate {
    fn default() -> Estimate {
        Estimate {
            bytes_a_token: limits::REMOTE_BYTES_A_TOKEN,
        }
    }
}

impl Estimate {
    pub fn tokens(&self, bytes: usize) -> usize {
        (bytes as f64 / self.bytes_a_token).ceil() as usize
    }

    /// The server counted `tokens` where we sent `bytes`. A tenth is left for text that has more.
    fn learn(&mut self, bytes: usize, tokens: usize) {
        if tokens > 0 && bytes > limits::REMOTE_LEARN_BYTES_MIN {
            let seen = bytes as f64 / tokens as f64 * 0.9;
            self.bytes_a_token = seen.clamp(1.0, limits::REMOTE_BYTES_A_TOKEN_MAX);
        }
    }
}

impl Remote {
    /// Asks the server what it has.
    pub fn connect(options: RemoteOptions) -> Result<Remote> {
        let address = peer::root("--runtime", &options.url)?;
        let mut remote = Remote {
            address,
            model: options.model.unwrap_or_default(),
            window: 0,
            key: options.key,
            temperature: options.temperature,
            agent: peer::agent(),
            estimate: Estimate::default(),
        };
        let models = remote.get("/v1/models")?;
        let listed = models["data"].as_array().map_or(&[][..], Vec::as_slice);
        let ids: Vec<&str> = listed.iter().filter_map(|m| m["id"].as_str()).collect();
        if remote.model.is_empty() {
            let Some(first) = ids.first() else {
                return Err(Error::device(format!(
                    "{}/v1/models lists no model; load one in that server, or name it with --model",
                    remote.address
                )));
            };
            remote.model = (*first).to_owned();
        }
        let about = listed.iter().find(|m| m["id"] == remote.model.as_str());
        let loaded = options
            .context_tokens
            .or_else(|| remote.loaded_window(about.unwrap_or(&Value::Null)));
        remote.window = loaded.ok_or_else(|| {
            Error::caller(format!(
                "{} does not say how long a context it has loaded; say it with --context",
                remote.address
            ))
        })?;
        Ok(remote)
    }

    pub fn estimate(&self) -> Estimate {
        self.estimate
    }

    /// What is really allocated there, not what the model was trained for: each server says it in a place of its own.
    fn loaded_window(&self, about: &Value) -> Option<usize> {
        let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        // vLLM and SGLang; Ostler.
        let listed = ["max_model_len", "context_length", "n_ctx"];
        if let Some(tokens) = listed.iter().find_map(|key| number(&about[*key])) {
            return Some(tokens);
        }
        // llama-server.
        if let Ok(props) = self.get("/props")
            && let Some(tokens) = number(&props["default_generation_settings"]["n_ctx"])
        {
            return Some(tokens);
        }
        // Ollama, of models that are loaded.
        let running = self.get("/api/ps").ok()?;
        let models = running["models"].as_array()?;
        let ours = models
            .iter()
            .find(|m| m["name"] == self.model.as_str() || m["model"] == self.model.as_str())?;
        number(&ours["context_length"])
    }

    fn get(&self, path: &str) -> Result<Value> {
        let path = format!("{}{path}", self.address);
        let failed = |why: &dyn std::fmt::Display| {
            Error::device(format!(
                "{path}: {why}; start the server, or correct --runtime"
            ))
        };
        let mut request = self.agent.get(&path);
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().map_err(|e| failed(&e))?;
        peer::check_status(&path, &mut response)?;
        response.body_mut().read_json().map_err(|e| failed(&e))
    }

    fn request(&self, ask: &Ask<'_>) -> Value {
        let tools: Vec<Value> = ask.tools.iter().map(ToolSpec::to_function).collect();
        let choice = match ask.calls {
            Calls::AnyBut(_) => json!("auto"),
            Calls::Finish => {
                json!({ "type": "function", "function": { "name": finish_tool::NAME } })
            }
            Calls::Barred => json!("none"),
        };
        json!({
            "model": self.model,
            "messages": messages(ask.view),
            "tools": tools,
            "tool_choice": choice,
            "max_tokens": ask.reply_max,
            "temperature": self.temperature,
            "stream": true,
            "stream_options": { "include_usage": true },
        })
    }

    fn stream(
        &mut self,
        ask: &Ask<'_>,
        watch: &mut dyn FnMut(Streamed),
    ) -> std::result::Result<Reply, StepError> {
        let path = format!("{}/v1/chat/completions", self.address);
        let body = self.request(ask);
        let sent_bytes = content_bytes(ask.view, ask.tools);
        let again = |error| StepError {
            error,
            worth_retrying: true,
        };
        let mut request = self.agent.post(&path);
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send_json(&body);
        let mut response = response.map_err(|e| again(Error::device(format!("{path}: {e}"))))?;
        let status = response.status().as_u16();
        peer::check_status(&path, &mut response).map_err(|error| StepError {
            worth_retrying: status >= 500 || status == 429,
            error,
        })?;
        let mut read = Reading::default();
        for event in peer::events(&path, response) {
            read.take(&event.map_err(again)?, watch);
            if ask.cancel.is_cancelled() {
                break;
            }
        }
        let interrupted = ask.cancel.is_cancelled();
        if !read.finished && !interrupted {
            let why = format!("{path}: the answer broke off");
            return Err(again(Error::device(why)));
        }
        if let Some(prompt) = read.prompt_tokens {
            self.estimate.learn(sent_bytes, prompt);
        }
        let prompt = read
            .prompt_tokens
            .unwrap_or_else(|| self.estimate.tokens(sent_bytes));
        let answer = read.answer(ask.tools);
        let said = answer.text.len()
            + answer
                .calls
                .iter()
                .map(|c| c.arguments.len())
                .sum::<usize>();
        Ok(Reply {
            tokens: prompt + self.estimate.tokens(said),
            answer,
            plan: None,
            report: None,
            interrupted,
        })
    }
}

impl Runtime for Remote {
    fn model(&self) -> &str {
        &self.model
    }

    fn window(&self) -> usize {
        self.window
    }

    fn count(&self, text: &str) -> usize {
        self.estimate.tokens(text.len())
    }

    fn measure(&mut self, view: &View, tools: &[ToolSpec]) -> Result<usize> {
        Ok(self.estimate.tokens(content_bytes(view, tools)))
    }

    fn ask(
        &mut self,
        ask: &Ask<'_>,
        watch: &mut dyn FnMut(Streamed),
    ) -> std::result::Result<Reply, StepError> {
        self.stream(ask, watch)
    }
}

/// Bytes that a template makes tokens of, and what it writes around each message.
fn content_bytes(view: &View, tools: &[ToolSpec]) -> usize {
    const FRAME: usize = 24;
    let turns = view.turns.iter().map(|turn| match turn {
        Turn::User { text } | Turn::Result { text, .. } => text.len() + FRAME,
        Turn::Assistant { text, calls, .. } => {
            let calls = calls
                .iter()
                .map(|c| c.name.len() + c.arguments.len() + FRAME);
            text.len() + FRAME + calls.sum::<usize>()
        }
    });
    let sections: usize = view.sections.iter().map(|s| s.text.len() + 2).sum();
    let tools: usize = tools
        .iter()
        .map(|t| t.to_function().to_string().len())
        .sum();
    turns.sum::<usize>() + sections + tools
}

fn messages(view: &View) -> Vec<Value> {
    let sections: Vec<&str> = view.sections.iter().map(|s| s.text.as_str()).collect();
    let mut messages = vec![json!({ "role": "system", "content": sections.join("\n\n") })];
    messages.extend(view.turns.iter().map(|turn| match turn {
        Turn::User { text } => json!({ "role": "user", "content": text }),
        Turn::Assistant { text, calls, .. } => {
            let mut message = json!({ "role": "assistant", "content": text });
            let call = |c: &Call| {
                json!({
                    "id": c.id,
                    "type": "function",
                    "function": { "name": c.name, "arguments": c.arguments },
                })
            };
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(call).collect();
            }
            message
        }
        Turn::Result { call, name, text } => {
            json!({ "role": "tool", "tool_call_id": call, "name": name, "content": text })
        }
    }));
    messages
}

/// An answer as far as it has come.
#[derive(Default)]
struct Reading {
    text: String,
    thinking: String,
    /// By the index that the server gives them.
    calls: Vec<(u64, Call)>,
    prompt_tokens: Option<usize>,
    finished: bool,
    cut: bool,
}

impl Reading {
    fn take(&mut self, event: &Value, watch: &mut dyn FnMut(Streamed)) {
        if let Some(tokens) = event["usage"]["prompt_tokens"].as_u64() {
            self.prompt_tokens = usize::try_from(tokens).ok();
        }
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str().filter(|t| !t.is_empty()) {
            self.text.push_str(text);
            watch(Streamed::Text(text.to_owned()));
        }
        let thinking = ["reasoning_content", "reasoning"];
        let thinking = thinking.iter().find_map(|key| delta[*key].as_str());
        if let Some(text) = thinking.filter(|t| !t.is_empty()) {
            self.thinking.push_str(text);
            watch(Streamed::Thinking(text.to_owned()));
        }
        for (at, part) in delta["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            self.take_call(at, part);
        }
        match choice["finish_reason"].as_str() {
            None | Some("") => {}
            Some(reason) => {
                self.finished = true;
                self.cut = reason == "length";
            }
        }
    }

    fn take_call(&mut self, at: usize, part: &Value) {
        let index = part["index"].as_u64().unwrap_or(at as u64);
        let function = &part["function"];
        let known = self.calls.iter().position(|(i, _)| *i == index);
        let call = match known {
            Some(known) => &mut self.calls[known].1,
            None => {
                let call = Call {
                    id: String::new(),
                    name: String::new(),
                    arguments: String::new(),
                };
                self.calls.push((index, call));
                &mut self.calls.last_mut().expect("just pushed").1
            }
        };
        call.name
            .push_str(function["name"].as_str().unwrap_or_default());
        match &function["arguments"] {
            Value::String(text) => call.arguments.push_str(text),
            // Some servers send the object itself.
            object @ Value::Object(_) => call.arguments = object.to_string(),
            _ => {}
        }
    }

    /// The answer, with calls that leaked into its text.
    fn answer(self, tools: &[ToolSpec]) -> Answer {
        let mut answer = Answer {
            text: self.text,
            thinking: self.thinking,
            cut: self.cut,
            ..Answer::default()
        };
        for (_, mut call) in self.calls {
            if call.arguments.trim().is_empty() {
                call.arguments = "{}".into();
            }
            match serde_json::from_str::<Value>(&call.arguments) {
                Ok(Value::Object(_)) => answer.calls.push(call),
                Ok(_) => answer.broken = Some((call.arguments, "it is no object".into())),
                Err(e) => answer.broken = Some((call.arguments, e.to_string())),
            }
        }
        if answer.calls.is_empty() && answer.broken.is_none() {
            leaked(&mut answer, tools);
        }
        answer
    }
}

/// A call that the server's parser has let through as text: `<tool_call>{…}</tool_call>`, a fenced object, or one
/// that is the whole text. One that cannot be read is told to the model.
fn leaked(answer: &mut Answer, tools: &[ToolSpec]) {
    let text = answer.text.trim();
    let tagged = text.split_once("<tool_call>").map(|(before, rest)| {
        let inner = rest
            .split_once("</tool_call>")
            .map_or(rest, |(inner, _)| inner);
        (before, inner)
    });
    let fenced = || {
        let rest = text.strip_prefix("```json").or(text.strip_prefix("```"))?;
        Some(("", rest.strip_suffix("```").unwrap_or(rest)))
    };
    let bare = || (text.starts_with('{') && text.contains("\"name\"")).then_some(("", text));
    let is_tagged = tagged.is_some();
    let Some((before, inner)) = tagged.or_else(fenced).or_else(bare) else {
        return;
    };
    let read: std::result::Result<Value, _> = serde_json::from_str(inner.trim());
    let known = |name: &str| tools.iter().any(|tool| tool.name == name);
    match read {
        Ok(object) => {
            let arguments = match (&object["arguments"], &object["parameters"]) {
                (Value::Null, Value::Null) => json!({}),
                (Value::Null, parameters) => parameters.clone(),
                (Value::String(text), _) => serde_json::from_str(text).unwrap_or(json!({})),
                (arguments, _) => arguments.clone(),
            };
            // An object that is no call is an answer.
            if let Some(name) = object["name"]
                .as_str()
                .filter(|name| known(name) || is_tagged)
            {
                let call = Call {
                    id: String::new(),
                    name: name.to_owned(),
                    arguments: arguments.to_string(),
                };
                answer.text = before.trim().to_owned();
                answer.calls.push(call);
            }
        }
        Err(e) if is_tagged => answer.broken = Some((inner.to_owned(), e.to_string())),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use crate::tools::Cancel;

    /// Answers requests in order, whatever they are for, and keeps what was posted.
    fn server(answers: Vec<(u16, String)>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                kept.lock().expect("unpoisoned").push(request(&mut stream));
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(body.as_bytes());
            }
        });
        (url, asked)
    }

    fn request(stream: &mut std::net::TcpStream) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let n = stream.read(&mut chunk).expect("a request");
            bytes.extend_from_slice(&chunk[..n]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_lowercase();
                let length = head.split("content-length: ").nth(1);
                let length = length.and_then(|l| l.lines().next()?.trim().parse().ok());
                let chunked = head.contains("transfer-encoding: chunked");
                let whole = match chunked {
                    true => body.ends_with("0\r\n\r\n"),
                    false => body.len() >= length.unwrap_or(0),
                };
                if whole || n == 0 {
                    return text;
                }
            }
        }
    }

    fn events(all: &[Value]) -> String {
        let line = |event: &Value| format!("data: {event}\n\n");
        all.iter().map(line).collect::<String>() + "data: [DONE]\n\n"
    }

    fn delta(delta: Value) -> Value {
        json!({ "choices": [{ "delta": delta, "finish_reason": null }] })
    }

    fn end(reason: &str) -> Value {
        json!({
            "choices": [{ "delta": {}, "finish_reason": reason }],
            "usage": { "prompt_tokens": 321 },
        })
    }

    fn options(url: &str) -> RemoteOptions {
        RemoteOptions {
            url: url.to_owned(),
            model: None,
            context_tokens: None,
            key: Some("secret".into()),
            temperature: 0.0,
        }
    }

    fn ask(remote: &mut Remote) -> std::result::Result<Reply, StepError> {
        let view = View {
            turns: vec![Turn::User {
                text: "what is there? ".repeat(100),
            }],
            ..View::default()
        };
        let tools = [finish_tool::spec()];
        let ask = Ask {
            view: &view,
            tools: &tools,
            reply_max: 64,
            calls: Calls::AnyBut(&[]),
            thinking: true,
            cancel: &Cancel::new(),
        };
        remote.ask(&ask, &mut |_| {})
    }

    fn listing(model: Value) -> (u16, String) {
        (200, json!({ "data": [model] }).to_string())
    }

    /// A harness that planned with 131,072 tokens met a server that had loaded 4,096.
    #[test]
    fn the_window_is_what_the_server_has_loaded() {
        let no = || (404, String::new());
        let (url, _) = server(vec![
            listing(json!({ "id": "m" })),
            no(),
            (
                200,
                json!({ "models": [{ "name": "m", "context_length": 4096 }] }).to_string(),
            ),
        ]);
        assert_eq!(
            Remote::connect(options(&url)).expect("connected").window(),
            4096
        );
        let props = json!({ "default_generation_settings": { "n_ctx": 2048 } });
        let (url, _) = server(vec![
            listing(json!({ "id": "m" })),
            (200, props.to_string()),
        ]);
        assert_eq!(
            Remote::connect(options(&url)).expect("connected").window(),
            2048
        );
        let (url, asked) = server(vec![listing(json!({ "id": "m", "max_model_len": 8192 }))]);
        assert_eq!(
            Remote::connect(options(&url)).expect("connected").window(),
            8192
        );
        assert!(asked.lock().unwrap()[0].contains("Bearer secret"));
        let (url, _) = server(vec![listing(json!({ "id": "m" })), no(), no()]);
        let error = Remote::connect(options(&url))
            .err()
            .expect("refused")
            .to_string();
        assert!(error.contains("--context"), "{error}");
    }

    #[test]
    fn an_answer_is_put_together_from_its_parts() {
        let stream = events(&[
            delta(json!({ "role": "assistant", "content": "I " })),
            delta(json!({ "content": "look." })),
            delta(
                json!({ "tool_calls": [{ "index": 0, "id": "x", "function": { "name": "finish", "arguments": "{\"te" } }] }),
            ),
            delta(
                json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "xt\": \"ok\"}" } }] }),
            ),
            end("tool_calls"),
        ]);
        let (url, asked) = server(vec![
            listing(json!({ "id": "m", "max_model_len": 8192 })),
            (200, stream),
            (500, "busy".into()),
            (400, "too long".into()),
            (200, events(&[delta(json!({ "content": "half" }))])),
        ]);
        let mut remote = Remote::connect(options(&url)).expect("connected");
        let before = remote.count(&"x".repeat(1000));
        let reply = ask(&mut remote).expect("answered");
        assert_eq!(reply.answer.text, "I look.");
        assert_eq!(reply.answer.calls[0].arguments, "{\"text\": \"ok\"}");
        assert!(reply.tokens > 321 && reply.tokens < 340, "{}", reply.tokens);
        // It has learnt how this server counts.
        assert!(remote.count(&"x".repeat(1000)) < before);
        assert!(ask(&mut remote).expect_err("busy").worth_retrying);
        assert!(!ask(&mut remote).expect_err("refused").worth_retrying);
        let broken = ask(&mut remote).expect_err("broken off");
        assert!(broken.worth_retrying && broken.error.to_string().contains("broke off"));
        let posted = asked.lock().unwrap()[1].clone();
        assert!(posted.contains("\"tool_choice\": \"auto\""), "{posted}");
    }

    #[test]
    fn calls_that_leaked_are_read_and_broken_ones_are_told() {
        let read = |text: &str| {
            let reading = Reading {
                text: text.into(),
                ..Reading::default()
            };
            reading.answer(&[finish_tool::spec()])
        };
        for text in [
            "<tool_call>\n{\"name\": \"finish\", \"arguments\": {\"text\": \"hi\"}}\n</tool_call>",
            "```json\n{\"name\": \"finish\", \"arguments\": {\"text\": \"hi\"}}\n```",
            "{\"name\": \"finish\", \"parameters\": {\"text\": \"hi\"}}",
            "{\"name\": \"finish\", \"arguments\": \"{\\\"text\\\": \\\"hi\\\"}\"}",
        ] {
            let answer = read(text);
            assert_eq!(answer.calls.len(), 1, "{text}");
            assert_eq!(answer.calls[0].arguments, "{\"text\":\"hi\"}", "{text}");
        }
        let broken = read("Well: <tool_call>{\"name\": \"finish\", </tool_call>");
        assert!(broken.calls.is_empty() && broken.broken.is_some());
        for text in [
            "{\"name\": \"Mira\", \"age\": 4}",
            "plain words",
            "{not json",
        ] {
            let answer = read(text);
            assert!(answer.calls.is_empty() && answer.broken.is_none(), "{text}");
            assert_eq!(answer.text, text);
        }
    }
}
