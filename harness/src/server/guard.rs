//! Who may talk to the server. A page in a browser can send requests to loopback (a foreign origin)
//! or make its own host name point here (DNS rebinding); neither may reach a model.
//!
//! - The `Host` must be a loopback name, or the name that was bound, unless a key is required.
//! - A request that carries a foreign `Origin` is refused; no `Access-Control-Allow-Origin` is sent.
//! - With a key: every route but `/health` wants it, as `Authorization: Bearer` or `x-api-key`.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::openai::error::refuse;

/// The rules of one server.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The host name or address that was bound, as the user wrote it.
    bound_host: String,
    /// sha256 of the key, so that the comparison takes the same time for every wrong key.
    key_digest: Option<[u8; 32]>,
}

impl Guard {
    pub fn new(bound_host: impl Into<String>, key: Option<&str>) -> Guard {
        let digest = |key: &str| Sha256::digest(key.as_bytes()).into();
        Guard {
            bound_host: bound_host.into(),
            key_digest: key.map(digest),
        }
    }

    /// Why a request is refused, if it is.
    fn verdict(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, String)> {
        self.check_framing(headers)?;
        self.check_host(headers)?;
        self.check_origin(headers)?;
        if path == "/health" && method == Method::GET {
            return Ok(());
        }
        self.check_key(headers)
    }

    /// Two ways of saying how long the body is are a way of smuggling a second request (RFC 9112 §6.1).
    fn check_framing(&self, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
        let both = headers.contains_key(header::TRANSFER_ENCODING)
            && headers.contains_key(header::CONTENT_LENGTH);
        if both {
            return Err((
                StatusCode::BAD_REQUEST,
                "both Content-Length and Transfer-Encoding; send one".into(),
            ));
        }
        Ok(())
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
        let Some(host) = headers
            .get(header::HOST)
            .and_then(|h| h.to_str().ok())
            .filter(|h| !h.is_empty())
        else {
            return Err((
                StatusCode::BAD_REQUEST,
                "the request has no Host header".into(),
            ));
        };
        // With a key, a page that does not know it gets nowhere, whatever name it uses.
        if self.key_digest.is_some() {
            return Ok(());
        }
        let name = host_name(host);
        if is_loopback(name) || name.eq_ignore_ascii_case(&self.bound_host) {
            return Ok(());
        }
        Err((
            StatusCode::FORBIDDEN,
            format!(
                "host {name:?} is not this machine's own name; use 127.0.0.1, or start with --api-key to allow other names"
            ),
        ))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let own = origin
            .to_str()
            .ok()
            .and_then(|o| o.split_once("://"))
            .is_some_and(|(scheme, rest)| {
                matches!(scheme, "http" | "https") && is_loopback(host_name(rest))
            });
        if own {
            return Ok(());
        }
        Err((
            StatusCode::FORBIDDEN,
            format!(
                "origin {} may not use this server",
                String::from_utf8_lossy(origin.as_bytes())
            ),
        ))
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
        let Some(expected) = &self.key_digest else {
            return Ok(());
        };
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| {
                v.strip_prefix("Bearer ")
                    .or_else(|| v.strip_prefix("bearer "))
            });
        let given = bearer.or_else(|| headers.get("x-api-key").and_then(|v| v.to_str().ok()));
        match given.map(|key| Sha256::digest(key.trim().as_bytes())) {
            Some(digest) if digest.as_slice() == expected => Ok(()),
            Some(_) => Err((StatusCode::UNAUTHORIZED, "the API key is wrong".into())),
            None => Err((
                StatusCode::UNAUTHORIZED,
                "this server wants an API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`".into(),
            )),
        }
    }
}

/// Middleware: refuses before any handler sees the request.
pub async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.verdict(request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, text)) => {
            let mut response = refuse(status, &text);
            response.headers_mut().insert(
                header::CONNECTION,
                header::HeaderValue::from_static("close"),
            );
            response
        }
    }
}

/// `name:port` without the port; brackets of an IPv6 address taken off.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.split(':').next().unwrap_or(host)
}

/// A name or address that can only be this machine.
fn is_loopback(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(guard: &Guard, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = header::HeaderName::from_bytes(name.as_bytes()).expect("a header name");
            map.insert(name, value.parse().expect("a header value"));
        }
        guard
            .verdict(&Method::POST, path, &map)
            .map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    /// Pages on the web reached local model servers by rebinding their own name to loopback, and by
    /// posting `text/plain`, which needs no preflight.
    #[test]
    fn foreign_names_and_origins_are_refused() {
        let open = Guard::new("127.0.0.1", None);
        let cases: &[(&[(&str, &str)], u16)] = &[
            (&[("host", "127.0.0.1:8080")], 200),
            (&[("host", "localhost:8080")], 200),
            (&[("host", "LOCALHOST.:8080")], 200),
            (&[("host", "[::1]:8080")], 200),
            (&[("host", "127.8.8.8")], 200),
            (&[("host", "evil.example:8080")], 403),
            (&[("host", "localhost.evil.example")], 403),
            (&[("host", "127.0.0.1.evil.example")], 403),
            (&[("host", "10.0.0.7")], 403),
            (&[("host", "")], 400),
            (&[], 400),
            (
                &[("host", "localhost"), ("origin", "https://evil.example")],
                403,
            ),
            (&[("host", "localhost"), ("origin", "null")], 403),
            (&[("host", "localhost"), ("origin", "file://")], 403),
            (
                &[("host", "localhost"), ("origin", "http://localhost:3000")],
                200,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("origin", "http://localhost@evil.example"),
                ],
                403,
            ),
            (
                &[
                    ("host", "localhost"),
                    ("content-length", "5"),
                    ("transfer-encoding", "chunked"),
                ],
                400,
            ),
        ];
        for (headers, expected) in cases {
            assert_eq!(
                verdict(&open, "/v1/chat/completions", headers),
                *expected,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn with_a_key_only_the_key_counts() {
        let keyed = Guard::new("0.0.0.0", Some("secret"));
        /// Host, headers, status.
        type Case = (&'static str, &'static [(&'static str, &'static str)], u16);
        let cases: &[Case] = &[
            (
                "/v1/models",
                &[("host", "box.lan"), ("authorization", "Bearer secret")],
                200,
            ),
            (
                "/v1/models",
                &[("host", "box.lan"), ("x-api-key", "secret")],
                200,
            ),
            (
                "/v1/models",
                &[("host", "box.lan"), ("authorization", "Bearer secre")],
                401,
            ),
            (
                "/v1/models",
                &[("host", "box.lan"), ("authorization", "secret")],
                401,
            ),
            ("/v1/models", &[("host", "box.lan")], 401),
        ];
        for (path, headers, expected) in cases {
            assert_eq!(verdict(&keyed, path, headers), *expected, "{headers:?}");
        }
    }
}
