//! The HTTP API as clients really use it: a server in this process over a tiny random model, spoken
//! to in plain HTTP/1.1. What a random model says is nonsense; what the API says about it must not be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::load::{ModelFile, ModelOptions, load_file};
use harness::server::{Listen, Service, serve};
use harness::store::StderrProgress;
use models::tiny::{TinySpec, tiny_model};
use serde_json::{Value, json};

struct Server {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    serving: Option<tokio::task::JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
    engine: engine::Engine,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(key: Option<&str>) -> Server {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tiny.gguf");
        tiny_model(
            &path,
            &TinySpec {
                context: 2048,
                ..TinySpec::default()
            },
        )
        .expect("a tiny model");
        let options = ModelOptions::new("tiny");
        let progress = StderrProgress::new(false);
        let file = ModelFile {
            path: &path,
            name: "tiny".into(),
            digest_cache: None,
            disk: None,
        };
        let loaded = load_file(file, &options, &progress).expect("it loads");
        let engine = loaded.model.engine.clone();
        let service = Service::new(
            loaded.model,
            harness::clock::freeze,
            harness::clock::now_s,
            7,
        );
        let listen = Listen {
            host: "127.0.0.1".into(),
            port: 0,
            api_key: key.map(str::to_owned),
        };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = runtime.block_on(listen.bind()).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = runtime.spawn(async move {
            let until = async {
                let _ = stopped.await;
            };
            serve(Arc::new(service), &listen, listener, until)
                .await
                .expect("it serves");
        });
        Server {
            address,
            stop: Some(stop),
            serving: Some(serving),
            runtime,
            engine,
            _dir: dir,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream
    }

    /// Sends raw bytes, reads to the end of the connection.
    fn raw(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn post_text(&self, body: &str) -> (u16, String) {
        let answer = self.raw(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let body = if head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            dechunk(body)
        } else {
            body.to_owned()
        };
        (status(head), body)
    }

    fn post(&self, body: &Value) -> (u16, Value) {
        let (status, text) = self.post_text(&body.to_string());
        (
            status,
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")),
        )
    }

    /// The events of a streamed answer, `[DONE]` as a string.
    fn stream(&self, body: &Value) -> Vec<Value> {
        let (status, text) = self.post_text(&body.to_string());
        assert_eq!(status, 200, "{text}");
        let events = text
            .split("\n\n")
            .filter_map(|block| block.strip_prefix("data: "));
        events
            .map(|data| {
                if data == "[DONE]" {
                    json!("[DONE]")
                } else {
                    serde_json::from_str(data).expect("one line of JSON")
                }
            })
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let runtime = std::mem::replace(
            &mut self.runtime,
            tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime"),
        );
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

fn status(head: &str) -> u16 {
    head.split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0)
}

fn dechunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
            break;
        };
        if size == 0 {
            break;
        }
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}

fn hi() -> Value {
    json!({ "model": "any", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 8, "temperature": 0 })
}

fn with(mut request: Value, fields: &Value) -> Value {
    for (key, value) in fields.as_object().expect("an object") {
        request[key] = value.clone();
    }
    request
}

fn tool(name: &str, key: &str) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": {
        "type": "object", "properties": { key: { "type": "string", "maxLength": 8 } }, "required": [key],
        "additionalProperties": false } } })
}

/// A second turn computed the whole conversation again, because the answer that came back was
/// tokenised in another way than it had been sampled.
#[test]
fn a_second_turn_reuses_the_whole_first() {
    let server = Server::start(None);
    let (_, first) = server.post(&with(
        hi(),
        &json!({ "max_tokens": 20, "temperature": 0.9, "seed": 3 }),
    ));
    let usage = &first["usage"];
    let (prompt, generated) = (
        usage["prompt_tokens"].as_u64().expect("a count"),
        usage["completion_tokens"].as_u64().expect("a count"),
    );
    assert!(generated > 1, "{first}");
    let answer = first["choices"][0]["message"]["content"].clone();
    let messages = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": answer }, { "role": "user", "content": "more" }]);
    let (_, second) = server.post(&with(hi(), &json!({ "messages": messages })));
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .expect("a count");
    assert!(
        cached >= prompt + generated - 1,
        "{cached} of {prompt} + {generated}: {second}"
    );
    assert!(server.engine.stats().expect("stats").hits > 0);
}

/// Greedy answers changed after a cache hit in other servers.
#[test]
fn a_hit_answers_as_a_miss() {
    let server = Server::start(None);
    let long = "You are a careful assistant. ".repeat(6);
    let ask = |word: &str| {
        let messages = json!([{ "role": "system", "content": long }, { "role": "user", "content": format!("Count: one two {word}") }]);
        let request = json!({ "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 3 });
        let (status, answer) = server.post(&request);
        assert_eq!(status, 200, "{answer}");
        (
            answer["choices"].clone(),
            answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .expect("a count"),
        )
    };
    let (a, cold) = ask("three");
    let (b, repeated) = ask("three");
    let (c, edited) = ask("four");
    let (d, again) = ask("three");
    assert_eq!((cold, a == b, a == d), (0, true, true));
    assert!(
        repeated > edited && edited > 0 && again == repeated,
        "{repeated} {edited} {again}"
    );
    assert_eq!(
        a[0]["logprobs"]["content"].as_array().map(Vec::len),
        Some(12),
        "{c}"
    );
}

#[test]
fn seeds_decide_whatever_else_runs() {
    let server = Server::start(None);
    let ask = |seed: Value| {
        let (_, answer) = server.post(&with(
            hi(),
            &json!({ "temperature": 0.9, "seed": seed, "max_tokens": 16 }),
        ));
        answer["choices"][0]["message"]["content"].clone()
    };
    let alone = ask(json!(7));
    let together: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = [7, 8, 7, 9]
            .map(|seed| scope.spawn(move || ask(json!(seed))))
            .into_iter()
            .collect();
        asked
            .into_iter()
            .map(|h| h.join().expect("answered"))
            .collect()
    });
    assert_eq!((&together[0], &together[2]), (&alone, &alone));
    assert_ne!(
        ask(json!(null)),
        ask(json!(null)),
        "without a seed each answer is its own"
    );
    for odd in [json!(-1), json!(i64::MAX)] {
        assert!(ask(odd).is_string());
    }
}

#[test]
fn usage_is_streamed_when_asked_for_and_only_then() {
    let server = Server::start(None);
    for options in [
        json!({}),
        json!({ "stream_options": {} }),
        json!({ "stream_options": null }),
    ] {
        let events = server.stream(&with(with(hi(), &json!({ "stream": true })), &options));
        assert!(events.iter().all(|e| e["usage"].is_null()), "{options}");
        assert!(
            events
                .iter()
                .all(|e| e.is_string() || e["choices"][0].is_object())
        );
        assert_eq!(events.last(), Some(&json!("[DONE]")));
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    }
    let events = server.stream(&with(
        hi(),
        &json!({ "stream": true, "stream_options": { "include_usage": true } }),
    ));
    let n = events.len();
    assert_eq!(events[n - 1], json!("[DONE]"));
    assert_eq!(events[n - 2]["choices"], json!([]));
    assert!(events[n - 2]["usage"]["total_tokens"].as_u64() > Some(0));
    assert!(
        ["length", "stop"].contains(
            &events[n - 3]["choices"][0]["finish_reason"]
                .as_str()
                .expect("a reason")
        )
    );
    let ids: Vec<&Value> = events[..n - 1].iter().map(|e| &e["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]) && ids[0].is_string());
    // The streamed text is the text that is not streamed.
    let streamed: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(
        streamed,
        server.post(&hi()).1["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
    );
}

#[test]
fn tool_choice_is_kept_even_by_a_random_model() {
    let server = Server::start(None);
    let tools = json!([tool("run", "command"), tool("get_weather", "city")]);
    let request = with(
        hi(),
        &json!({ "tools": tools, "max_tokens": 1200, "parallel_tool_calls": false }),
    );
    let named = json!({ "type": "function", "function": { "name": "run" } });
    for (choice, allowed) in [
        (json!("required"), vec!["run", "get_weather"]),
        (named, vec!["run"]),
    ] {
        let (status, answer) = server.post(&with(
            request.clone(),
            &json!({ "tool_choice": choice, "temperature": 1, "seed": 5 }),
        ));
        assert_eq!(status, 200, "{answer}");
        let call = &answer["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(
            answer["choices"][0]["finish_reason"], "tool_calls",
            "{answer}"
        );
        assert!(
            allowed.contains(&call["function"]["name"].as_str().expect("a name")),
            "{call}"
        );
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("text"))
                .expect("JSON");
        assert_eq!(
            arguments.as_object().map(serde_json::Map::len),
            Some(1),
            "{arguments}"
        );
    }
    let (status, answer) = server.post(&with(
        request.clone(),
        &json!({ "tool_choice": { "type": "function", "function": { "name": "nope" } } }),
    ));
    assert_eq!(status, 400);
    assert!(
        answer["error"]["message"]
            .as_str()
            .expect("text")
            .contains("nope")
    );
    let (status, answer) = server.post(&with(request, &json!({ "tool_choice": "none" })));
    assert_eq!(
        (status, answer["choices"][0]["message"].get("tool_calls")),
        (200, None)
    );
    assert_eq!(
        server
            .post(&with(hi(), &json!({ "tools": [], "tool_choice": "none" })))
            .0,
        200
    );
}

#[test]
fn a_schema_holds() {
    let server = Server::start(None);
    let schema = json!({ "type": "object", "properties": { "zeta": { "type": "boolean" }, "alpha": { "enum": ["x", "y"] } },
        "required": ["zeta", "alpha"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "P", "schema": schema } });
    let (status, answer) = server.post(&with(
        hi(),
        &json!({ "response_format": format, "max_tokens": 1200, "temperature": 1, "seed": 2 }),
    ));
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("text");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["zeta", "alpha"], "in the schema's order");
}

#[test]
fn bad_requests_get_a_400_that_names_the_place() {
    let server = Server::start(None);
    let deep = format!("{{\"tools\": {}{}}}", "[".repeat(3000), "]".repeat(3000));
    let words = "word ".repeat(2_000);
    let cases = [
        ("not json".to_owned(), "body"),
        (deep, "tools"),
        (with(hi(), &json!({ "n": 0 })).to_string(), "n"),
        (
            with(hi(), &json!({ "n": 2, "stream": true })).to_string(),
            "n",
        ),
        (
            with(hi(), &json!({ "temperature": "hot" })).to_string(),
            "temperature",
        ),
        (
            with(hi(), &json!({ "temperature": 9 })).to_string(),
            "temperature",
        ),
        (
            with(hi(), &json!({ "messages": [] })).to_string(),
            "messages",
        ),
        (
            with(
                hi(),
                &json!({ "messages": [{ "role": "wizard", "content": "x" }] }),
            )
            .to_string(),
            "wizard",
        ),
        (
            with(
                hi(),
                &json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            )
            .to_string(),
            "image_url",
        ),
        (
            with(hi(), &json!({ "max_tokens": 0 })).to_string(),
            "max_tokens",
        ),
        (
            with(hi(), &json!({ "logit_bias": { "x": 1 } })).to_string(),
            "logit_bias",
        ),
        (
            with(
                hi(),
                &json!({ "messages": [{ "role": "user", "content": words }] }),
            )
            .to_string(),
            "2048",
        ),
    ];
    for (body, place) in cases {
        let (status, answer) = server.post_text(&body);
        assert_eq!(status, 400, "{place}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("an error is JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(place), "{place}: {message}");
    }
    assert_eq!(server.post(&hi()).0, 200, "the server lives");
}

#[test]
fn more_tokens_than_the_window_holds_end_with_length() {
    let server = Server::start(None);
    let (status, answer) = server.post(&with(
        hi(),
        &json!({ "max_tokens": 100_000, "logit_bias": {} }),
    ));
    assert_eq!(status, 200);
    let reason = answer["choices"][0]["finish_reason"]
        .as_str()
        .expect("a reason");
    assert!(
        answer["usage"]["total_tokens"].as_u64().expect("a count") <= 2048
            && ["length", "stop"].contains(&reason)
    );
}

/// Generation went on for minutes after a client had left, and its slot with it.
#[test]
fn a_client_that_leaves_frees_its_sequence() {
    let server = Server::start(None);
    let body = with(hi(), &json!({ "stream": true, "max_tokens": 400 })).to_string();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    let mut some = [0u8; 256];
    assert!(stream.read(&mut some).expect("it began") > 0);
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.engine.stats().expect("stats").active > 0 {
        assert!(Instant::now() < deadline, "the sequence is still running");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.post(&hi()).0, 200);
}

#[test]
fn hosts_origins_and_keys() {
    let server = Server::start(None);
    let get = |headers: &str| {
        status(&server.raw(&format!(
            "GET /v1/models HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        )))
    };
    assert_eq!(get("Host: localhost\r\n"), 200);
    assert_eq!(get("Host: [::1]:8080\r\n"), 200);
    assert_eq!(get("Host: evil.example:8080\r\n"), 403);
    assert_eq!(
        get("Host: localhost\r\nOrigin: https://evil.example\r\n"),
        403
    );
    assert_eq!(get(""), 400);
    let answer = server.raw("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n");
    assert!(
        !answer
            .to_ascii_lowercase()
            .contains("access-control-allow-origin"),
        "{answer}"
    );

    let keyed = Server::start(Some("secret"));
    let get = |headers: &str| {
        status(&keyed.raw(&format!(
            "GET /v1/models HTTP/1.1\r\nHost: box.lan\r\n{headers}Connection: close\r\n\r\n"
        )))
    };
    assert_eq!(
        (
            get(""),
            get("Authorization: Bearer secret\r\n"),
            get("x-api-key: secret\r\n")
        ),
        (401, 200, 200)
    );
    let open = Listen {
        host: "0.0.0.0".into(),
        port: 0,
        api_key: None,
    };
    let error = keyed
        .runtime
        .block_on(open.bind())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("--api-key"), "{error}");
}

/// Asking the engine how busy it is blocked the thread it was asked on, and every `GET /health` was a
/// panic and an empty reply.
#[test]
fn health_says_how_busy_the_engine_is() {
    let server = Server::start(None);
    let reply = server.raw("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.contains(r#""status":"ok","running":0"#), "{reply}");
}

/// What the cache holds and has done can be asked from outside.
#[test]
fn the_cache_is_told_by_piece_and_to_prometheus() {
    let server = Server::start(None);
    let get = |path: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let reply = server.raw(&request);
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        reply
    };
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3});
    server.post(&body);
    server.post(&body);
    let held = get("/cache");
    let held: Value =
        serde_json::from_str(&held[held.find("\r\n\r\n").expect("a body")..]).expect("JSON");
    let pieces = held["pieces"].as_array().expect("pieces");
    assert!(!pieces.is_empty(), "{held}");
    assert!(
        pieces
            .iter()
            .all(|p| p["tokens"].is_u64() && p["bytes"].is_u64()),
        "{held}"
    );
    assert!(pieces.iter().any(|p| p["hits"] == 1), "{held}");
    assert!(held["bytes_used"].as_u64() > Some(0), "{held}");
    let metrics = get("/metrics");
    for line in [
        "ostler_requests_total 2",
        "ostler_prefix_cache_hits_total 1",
        "ostler_reuse_gap_seconds_count 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
}

/// A client that had sent half a request kept a server that was told to stop from stopping.
#[test]
fn half_a_request_does_not_keep_the_server() {
    let mut server = Server::start(None);
    let mut half = server.connect();
    half.write_all(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    )
    .expect("sent");
    // Answered, so the half request is with the server too.
    server.raw("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    server.stop.take().expect("running").send(()).expect("told");
    let serving = server.serving.take().expect("running");
    server
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), serving).await })
        .expect("it ends by itself")
        .expect("and well");
}

#[test]
fn a_wrong_field_is_named_in_words_of_json() {
    let server = Server::start(None);
    let cases = [
        (
            json!({"messages": ["hi"]}),
            "messages[0]",
            "an object with `role` and `content`",
        ),
        (
            json!({"messages": [{"role": "user", "content": 3}]}),
            "messages[0].content",
            "a string, or an array of parts",
        ),
        (json!({"messages": 1}), "messages", "a sequence"),
    ];
    for (body, param, words) in cases {
        let (status, answer) = server.post(&body);
        let error = &answer["error"];
        assert_eq!(status, 400, "{answer}");
        assert_eq!(error["param"], param, "{answer}");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains(words), "{message}");
        assert!(
            !message.contains("struct") && !message.contains("enum"),
            "{message}"
        );
    }
}
