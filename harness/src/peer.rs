//! Another server that speaks the OpenAI API: how it is addressed, refused, and read as it streams.

use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::error::{Error, Result};

/// The address of a server that was given to `option`, with `/v1` or without.
pub fn root(option: &str, url: &str) -> Result<String> {
    let root = url.trim_end_matches('/').trim_end_matches("/v1");
    match root.starts_with("http://") || root.starts_with("https://") {
        true => Ok(root.to_owned()),
        false => Err(Error::caller(format!(
            "{option} {url}: need an address such as http://127.0.0.1:8080"
        ))),
    }
}

/// What asks a server directly: it is on a machine of one's own, and a proxy would be timed along with it.
pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None);
    config.build().into()
}

/// An answer that is a refusal becomes an error, with what the server said.
pub fn check_status(path: &str, response: &mut ureq::http::Response<ureq::Body>) -> Result<()> {
    if response.status().is_success() {
        return Ok(());
    }
    let said = response.body_mut().read_to_string().unwrap_or_default();
    let said: String = said.chars().take(300).collect();
    let status = response.status();
    Err(Error::device(format!("{path} answered {status}: {said}")))
}

/// The events of a stream, until `[DONE]` or its end. An event that says `error` is one.
pub fn events(
    path: &str,
    response: ureq::http::Response<ureq::Body>,
) -> impl Iterator<Item = Result<Value>> {
    let failed = move |why: &dyn std::fmt::Display| Error::device(format!("{path}: {why}"));
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    lines
        .map(move |line| {
            let line = line.map_err(|e| failed(&e))?;
            // A comment, the name of an event, or the space between two.
            let Some(data) = line.strip_prefix("data:").map(str::trim) else {
                return Ok(None);
            };
            if data == "[DONE]" {
                return Ok(Some(Value::Null));
            }
            let event: Value = serde_json::from_str(data).map_err(|e| failed(&e))?;
            match event["error"].is_null() {
                true => Ok(Some(event)),
                false => Err(failed(&event["error"])),
            }
        })
        .filter_map(Result::transpose)
        .take_while(|event| !matches!(event, Ok(Value::Null)))
}
