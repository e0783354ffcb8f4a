//! A hub of two servers on loopback: the hub proper and the file server that it redirects to.
//! It does what it is told, good or bad, and remembers every request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use sha2::{Digest, Sha256};

use crate::store::disk::hex;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the servers behave.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Files are on the other server, as on the public hub; else the hub serves them.
    pub redirect: bool,
    /// `/org/old` leads to `/org/repo` first.
    pub renamed: bool,
    /// Each answer with a body ends after this many bytes, without a word.
    pub cut_after_bytes: Option<usize>,
    /// How often that happens.
    pub cuts: usize,
    /// Range headers are not understood.
    pub ignore_range: bool,
    /// Every request for a file gets this status.
    pub status: Option<u16>,
    /// This token or 401.
    pub token: Option<&'static str>,
    /// The ETag is that of other content.
    pub wrong_etag: Option<String>,
}

pub struct State {
    pub behaviour: Behaviour,
    pub files: HashMap<String, Vec<u8>>,
    pub requests: Vec<Request>,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub file_server: bool,
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

pub struct SmallHub {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl SmallHub {
    /// Serves `files` of the repository `org/repo` until the test ends.
    pub fn start(files: &[(&str, &[u8])], behaviour: Behaviour) -> SmallHub {
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
            .collect();
        let state = Arc::new(Mutex::new(State {
            behaviour,
            files,
            requests: Vec::new(),
        }));
        let listen = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (hub, file_server) = (listen(), listen());
        let elsewhere = format!("http://{}", file_server.local_addr().unwrap());
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        for (listener, is_file_server) in [(hub, false), (file_server, true)] {
            let (state, elsewhere) = (Arc::clone(&state), elsewhere.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, elsewhere) = (Arc::clone(&state), elsewhere.clone());
                    std::thread::spawn(move || serve(stream, &state, &elsewhere, is_file_server));
                }
            });
        }
        SmallHub { endpoint, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Requests for bytes of a file, without the one-byte questions about it.
    pub fn downloads(&self) -> Vec<Request> {
        let wanted =
            |r: &&Request| !r.path.contains("/api/") && r.range.as_deref() != Some("bytes=0-0");
        let redirect = self.state().behaviour.redirect;
        self.state()
            .requests
            .iter()
            .filter(wanted)
            .filter(|r| r.file_server == redirect)
            .cloned()
            .collect()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>, elsewhere: &str, file_server: bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut out = stream;
    while let Some(request) = read_request(&mut reader, file_server) {
        let (head, body, cut) = answer(&request, &mut state.lock().unwrap(), elsewhere);
        let sent = cut.unwrap_or(body.len()).min(body.len());
        if out
            .write_all(head.as_bytes())
            .and_then(|()| out.write_all(&body[..sent]))
            .is_err()
            || cut.is_some()
        {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead, file_server: bool) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut request = Request {
        file_server,
        path,
        range: None,
        token: None,
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return Some(request);
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.token = Some(value.to_owned()),
            _ => {}
        }
    }
}

type Reply = (String, Vec<u8>, Option<usize>);

fn status(code: u16, headers: &str) -> Reply {
    (
        format!("HTTP/1.1 {code} Whatever\r\nContent-Length: 0\r\n{headers}\r\n"),
        Vec::new(),
        None,
    )
}

fn answer(request: &Request, state: &mut State, elsewhere: &str) -> Reply {
    state.requests.push(request.clone());
    let behaviour = state.behaviour.clone();
    let authorised = behaviour
        .token
        .is_none_or(|token| request.token == Some(format!("Bearer {token}")));
    if !request.file_server && !authorised {
        return status(401, "");
    }
    if behaviour.renamed && request.path.starts_with("/org/old/") {
        let to = request.path.replace("/org/old/", "/org/repo/");
        return status(307, &format!("Location: {to}\r\n"));
    }
    if request.path == "/api/models/org/repo/revision/main" {
        let mut names: Vec<&String> = state.files.keys().collect();
        names.sort();
        let siblings: Vec<_> = names
            .iter()
            .map(|name| serde_json::json!({ "rfilename": name }))
            .collect();
        let body = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        return (
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()),
            body.into_bytes(),
            None,
        );
    }
    let prefix = "/org/repo/resolve/main/";
    let Some(file) = request
        .path
        .strip_prefix(prefix)
        .and_then(|name| state.files.get(name))
        .cloned()
    else {
        return status(404, "");
    };
    if let Some(code) = behaviour.status {
        return status(code, "");
    }
    let etag = behaviour
        .wrong_etag
        .clone()
        .unwrap_or_else(|| hex(&Sha256::digest(&file)));
    let said = format!(
        "X-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {}\r\nETag: \"weak\"\r\n",
        file.len()
    );
    if behaviour.redirect && !request.file_server {
        return status(
            302,
            &format!("{said}Location: {elsewhere}{}\r\n", request.path),
        );
    }
    let said = if request.file_server {
        String::new()
    } else {
        said
    };
    bytes_of(&file, request, state, &said)
}

fn bytes_of(file: &[u8], request: &Request, state: &mut State, said: &str) -> Reply {
    let behaviour = &mut state.behaviour;
    let (first, last) = match request.range.as_deref().filter(|_| !behaviour.ignore_range) {
        None => (0, None),
        Some(range) => {
            let (first, last) = range
                .strip_prefix("bytes=")
                .unwrap()
                .split_once('-')
                .unwrap();
            (
                first.parse().unwrap(),
                Some(last.parse().unwrap_or(file.len() - 1)),
            )
        }
    };
    if first >= file.len() {
        return status(416, said);
    }
    let body = file[first..=last.unwrap_or(file.len() - 1)].to_vec();
    let (code, range) = match last {
        None => (200, String::new()),
        Some(last) => (
            206,
            format!("Content-Range: bytes {first}-{last}/{}\r\n", file.len()),
        ),
    };
    let cut = behaviour
        .cut_after_bytes
        .filter(|_| behaviour.cuts > 0 && body.len() > 1);
    if cut.is_some() {
        behaviour.cuts -= 1;
    }
    let head = format!(
        "HTTP/1.1 {code} Whatever\r\nContent-Length: {}\r\n{range}{said}\r\n",
        body.len()
    );
    (head, body, cut)
}
