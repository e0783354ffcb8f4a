//! GET requests to the hub and to the file servers it points at.
//!
//! Invariant: the token goes to the hub's own origin and nowhere else, whatever the redirects say.

use std::time::Duration;

use ureq::http::{HeaderMap, Uri};

use super::error::StoreError;
use crate::limits::{CONNECT_MS_MAX, LISTING_BYTES_MAX, REDIRECTS_MAX, STALL_MS_MAX};

pub struct Http {
    agent: ureq::Agent,
    endpoint: Uri,
    token: Option<String>,
}

/// The last answer of a chain of redirects.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// What the hub itself said about the file, before it pointed elsewhere.
    pub hub_headers: Option<HeaderMap>,
    pub body: ureq::Body,
}

/// Why no answer came, and whether trying again may help.
#[derive(Debug)]
pub struct NoAnswer {
    pub why: String,
    pub transient: bool,
}

impl Http {
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Http, StoreError> {
        let uri: Uri = endpoint.parse().map_err(|_| bad_endpoint(endpoint))?;
        if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad_endpoint(endpoint));
        }
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("ostler/", env!("CARGO_PKG_VERSION")))
            // A compressed body would make byte ranges meaningless.
            .accept_encoding("identity")
            .timeout_connect(Some(Duration::from_millis(CONNECT_MS_MAX)))
            .timeout_recv_response(Some(Duration::from_millis(STALL_MS_MAX)))
            .timeout_per_read(Some(Duration::from_millis(STALL_MS_MAX)));
        if is_loopback(uri.host().unwrap_or_default()) {
            config = config.proxy(None);
        }
        Ok(Http {
            agent: config.build().into(),
            endpoint: uri,
            token,
        })
    }

    pub fn sends_token(&self) -> bool {
        self.token.is_some()
    }

    /// The hub's address, for messages.
    pub fn endpoint(&self) -> String {
        self.endpoint.to_string().trim_end_matches('/').to_owned()
    }

    /// `range` is a value of the Range header, such as `bytes=100-`.
    pub fn get(&self, address: &str, range: Option<&str>) -> Result<Answer, NoAnswer> {
        let mut uri: Uri = address
            .parse()
            .map_err(|_| NoAnswer::lasting(format!("'{address}' is no address")))?;
        let mut hub_headers = None;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(uri.clone());
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let (Some(token), true) = (&self.token, same_origin(&uri, &self.endpoint)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let (head, body) = request.call().map_err(NoAnswer::from_ureq)?.into_parts();
            if hub_headers.is_none() && head.headers.contains_key("x-repo-commit") {
                hub_headers = Some(head.headers.clone());
            }
            let status = head.status.as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer {
                    status,
                    headers: head.headers,
                    hub_headers,
                    body,
                });
            }
            let location = header(&head.headers, "location").ok_or_else(|| {
                NoAnswer::lasting(format!("redirect (HTTP {status}) without an address"))
            })?;
            uri = follow(&uri, location)?;
        }
        Err(NoAnswer::lasting(format!(
            "more than {REDIRECTS_MAX} redirects"
        )))
    }
}

impl Answer {
    /// The whole body, which must be JSON of a sensible size.
    pub fn json(mut self) -> Result<serde_json::Value, NoAnswer> {
        self.body
            .with_config()
            .limit(LISTING_BYTES_MAX)
            .read_json()
            .map_err(|error| NoAnswer::lasting(format!("the answer is not JSON: {error}")))
    }
}

impl NoAnswer {
    fn lasting(why: String) -> NoAnswer {
        NoAnswer {
            why,
            transient: false,
        }
    }

    fn from_ureq(error: ureq::Error) -> NoAnswer {
        let transient = matches!(
            error,
            ureq::Error::Io(_)
                | ureq::Error::Timeout(_)
                | ureq::Error::ConnectionFailed
                | ureq::Error::Protocol(_)
        );
        NoAnswer {
            why: error.to_string(),
            transient,
        }
    }
}

pub fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn bad_endpoint(endpoint: &str) -> StoreError {
    StoreError::Place(format!(
        "HF_ENDPOINT={endpoint} is not an http or https address"
    ))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16()
            .unwrap_or(if uri.scheme_str() == Some("https") {
                443
            } else {
                80
            })
    };
    a.scheme_str() == b.scheme_str() && a.host() == b.host() && port(a) == port(b)
}

/// Where a Location header leads: absolute, from the root, or beside the current path.
fn follow(from: &Uri, location: &str) -> Result<Uri, NoAnswer> {
    let bad = || NoAnswer::lasting(format!("redirect to '{location}', which is no address"));
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from
        .authority()
        .map(|authority| authority.as_str())
        .unwrap_or_default();
    let absolute = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let to: Uri = absolute.parse().map_err(|_| bad())?;
    match (from.scheme_str(), to.scheme_str()) {
        (Some("https"), Some("http")) => Err(NoAnswer::lasting(
            "redirect from https to http, which anyone on the way could change".to_owned(),
        )),
        (_, Some("http" | "https")) if to.host().is_some() => Ok(to),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let cases = [
            ("http://a/x/y?q", "http://b/z", Ok("http://b/z")),
            ("http://a:1/x/y", "/z?k=1", Ok("http://a:1/z?k=1")),
            ("http://a/x/y", "z", Ok("http://a/x/z")),
            ("https://a/x", "//b/z", Ok("https://b/z")),
            ("https://a/x", "http://a/x", Err("https to http")),
            ("http://a/x", "ftp://a/x", Err("no address")),
            ("http://a/x", "http://", Err("no address")),
        ];
        for (from, location, expect) in cases {
            let got = follow(&from.parse().unwrap(), location);
            match (got, expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got.to_string(), expect, "{from} {location}"),
                (Err(got), Err(expect)) => assert!(got.why.contains(expect), "{}", got.why),
                (got, _) => panic!("{from} {location}: {:?}", got.map_err(|e| e.why)),
            }
        }
    }

    #[test]
    fn origins() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a/x", "https://a:443/y"));
        assert!(!same("https://a/x", "http://a/x"));
        assert!(!same("http://127.0.0.1:1/x", "http://127.0.0.1:2/x"));
    }
}
