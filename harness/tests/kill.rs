//! The agent killed at random moments, as a process, and resumed: each request it sends afterwards is one that every
//! server takes (law 9). The model is a server of the test's own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Rounds of tools before the model answers.
const ROUNDS: usize = 6;
/// Kills. Some hit the start of the program, some a call, some the session file.
const KILLS: u64 = 100;

/// A model that makes two calls a round, and answers when it has seen enough results. Gives its address, and what was
/// wrong with the requests it got.
fn model() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&wrong);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let told = Arc::clone(&told);
            // Whoever asks may be killed at any moment.
            std::thread::spawn(move || stream.map(|mut s| serve(&mut s, &told)));
        }
    });
    (url, wrong)
}

fn serve(stream: &mut TcpStream, wrong: &Mutex<Vec<String>>) -> Option<()> {
    let body = match request(stream)? {
        (head, _) if head.starts_with("GET") => {
            json!({ "data": [{ "id": "test", "max_model_len": 8192 }] }).to_string()
        }
        (_, body) => {
            let request: Value = serde_json::from_str(&body).ok()?;
            if let Err(why) = is_sound(&request) {
                wrong.lock().expect("unpoisoned").push(why);
            }
            answer(&request)
        }
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()
}

fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.to_lowercase();
        let length = length.split("content-length: ").nth(1);
        let length = length.and_then(|l| l.lines().next()?.trim().parse().ok());
        if body.len() >= length.unwrap_or(0usize) {
            return Some((head.to_owned(), body.to_owned()));
        }
    }
}

/// Every call has exactly one result, in order, right behind the turn that made it.
fn is_sound(request: &Value) -> Result<(), String> {
    let messages = request["messages"].as_array().ok_or("no messages")?;
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        match message["role"].as_str() {
            Some("tool") => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                if open.first() != Some(&id) {
                    return Err(format!("a result of {id}, open are {open:?}"));
                }
                open.remove(0);
            }
            role if !open.is_empty() => return Err(format!("{role:?} while {open:?} are open")),
            Some("assistant") => {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                open = calls.filter_map(|c| c["id"].as_str()).collect();
            }
            _ => {}
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("{open:?} have no result")),
    }
}

fn answer(request: &Value) -> String {
    let messages = request["messages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    // Of this run: a summary and what was resumed stand before its goal.
    let since = messages
        .iter()
        .rposition(|m| m["role"] == "user")
        .unwrap_or(0);
    let results = messages[since..].iter().filter(|m| m["role"] == "tool");
    let seen = results.count();
    let delta = match seen < 2 * ROUNDS {
        _ if request["tool_choice"] == "none" => json!({ "content": "Counting goes on." }),
        true => {
            let call = |index: usize, command: String| {
                json!({
                    "index": index,
                    "id": "same every time",
                    "function": {
                        "name": "bash",
                        "arguments": json!({ "command": command }).to_string(),
                    },
                })
            };
            let first = call(0, format!("echo {seen} >> log; sleep 0.02"));
            let second = call(1, format!("echo and {seen} >> log"));
            json!({ "content": "going on", "tool_calls": [first, second] })
        }
        false => json!({ "content": "all done" }),
    };
    let events = [
        json!({ "choices": [{ "delta": delta, "finish_reason": null }] }),
        json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] }),
    ];
    let line = |event: &Value| format!("data: {event}\n\n");
    events.iter().map(line).collect::<String>() + "data: [DONE]\n\n"
}

#[test]
fn an_agent_killed_at_any_moment_goes_on() {
    let (url, wrong) = model();
    let dir = tempfile::tempdir().expect("a folder");
    let work = dir.path().join("work");
    std::fs::create_dir(&work).expect("a workspace");
    let home = dir.path().join("home");
    let agent = |goal: &str, resume: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
        command
            .args(["agent", "--yes", "--runtime", &url, goal])
            .args(resume.then_some("--resume"))
            .current_dir(&work)
            .env("OSTLER_HOME", &home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let begun = || {
        let sessions = std::fs::read_dir(home.join("sessions"))
            .into_iter()
            .flatten();
        let files = sessions.flatten().map(|f| f.path());
        files
            .filter(|path| path.extension().is_some_and(|x| x == "jsonl"))
            .any(|path| path.metadata().is_ok_and(|about| about.len() > 0))
    };
    // How long one run takes says when to kill the others.
    let clock = std::time::Instant::now();
    let whole = agent("count", false).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&whole.stderr).into_owned();
    assert!(whole.status.success(), "{stderr}");
    assert!(
        String::from_utf8_lossy(&whole.stdout).contains("all done"),
        "{stderr}"
    );
    let whole_ms = clock.elapsed().as_millis() as u64;
    std::fs::remove_dir_all(&home).expect("a fresh start");

    let mut random = 0x9e37_79b9_u64;
    for _ in 0..KILLS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let after = Duration::from_millis((random >> 33) % (whole_ms + 1));
        let mut child = agent("go on", begun()).spawn().expect("it starts");
        std::thread::sleep(after);
        let _ = child.kill();
        child.wait().expect("it is dead");
    }
    let last = agent("finish", begun()).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&last.stderr).into_owned();
    assert!(last.status.success(), "{stderr}");
    assert!(
        String::from_utf8_lossy(&last.stdout).contains("all done"),
        "{stderr}"
    );
    let log = std::fs::read_to_string(work.join("log")).expect("written");
    assert!(
        log.lines().count() > 3 * 2 * ROUNDS,
        "most were killed at work: {log}"
    );
    let wrong = wrong.lock().expect("unpoisoned");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
