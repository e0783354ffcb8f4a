//! The other side of `ostler bench … --against URL`: an OpenAI-compatible server, timed from outside.
//!
//! `bench speed` streams chat completions, since every such server has them; `bench cache` streams plain
//! completions, where a prompt is what is sent and no template adds to it. What a prompt cost comes from the
//! server's own `usage`, with the template's few tokens in it; of a server whose stream has none, the words
//! sent and the pieces of text that came are counted. A server that does not say what it reused is taken to have
//! reused what it was sent just before.

use std::time::Instant;

use serde_json::{Value, json};

use super::bench_speed::{Test, Work};
use crate::error::{Error, Result};
use crate::peer;

/// An answer in fewer pieces has no time between the first and the last.
const PIECES_MIN: u64 = 2;

pub struct Server {
    address: String,
    agent: ureq::Agent,
    model: String,
}

/// One answer, as it came.
pub struct Answer {
    pub text: String,
    pub prompt_tokens: Option<u64>,
    /// `None` where the server does not say.
    pub cached_tokens: Option<u64>,
    pub answer_tokens: u64,
    /// Events with text in them.
    pieces: u64,
    pub first_token_seconds: f64,
    /// From the first piece of text to the last.
    pub rest_seconds: f64,
}

impl Server {
    /// Asks the server at `url` (with or without `/v1`) for its first model.
    pub fn new(url: &str) -> Result<Server> {
        let address = peer::root("--against", url)?;
        let agent = peer::agent();
        let path = format!("{address}/v1/models");
        let mut answer = agent.get(&path).call().map_err(|e| failed(&path, &e))?;
        let models: Value = answer
            .body_mut()
            .read_json()
            .map_err(|e| failed(&path, &e))?;
        let model = models["data"][0]["id"].as_str().ok_or_else(|| {
            Error::device(format!("{path} lists no model; load one in that server"))
        })?;
        Ok(Server {
            model: model.to_owned(),
            address,
            agent,
        })
    }

    pub fn name(&self) -> String {
        self.address.clone()
    }

    /// Tokens a second of `work`: new text after `base`, or an answer to both.
    pub fn measure(&self, work: &Work, base: &str, fresh: &str) -> Result<f64> {
        match work.test {
            Test::Prefill => {
                let before = match base.is_empty() {
                    true => Some(0),
                    false => self.ask(base, 1)?.prompt_tokens,
                };
                let answer = self.ask(&format!("{base}{fresh}"), 1)?;
                let reused = answer.cached_tokens.or(before);
                let new = match (answer.prompt_tokens, reused) {
                    (Some(all), Some(reused)) => all.saturating_sub(reused),
                    _ => work.tokens as u64,
                };
                Ok(new as f64 / answer.first_token_seconds)
            }
            Test::Decode => self.decode(work, &format!("{base}{fresh}")),
        }
    }

    fn decode(&self, work: &Work, prompt: &str) -> Result<f64> {
        let answers: Vec<Result<Answer>> = std::thread::scope(|scope| {
            let one = |i: usize| {
                // No two alike, or the server would answer from one.
                let prompt = format!("{prompt} {i}");
                scope.spawn(move || self.ask(&prompt, work.tokens + 1))
            };
            let running: Vec<_> = (0..work.sequences).map(one).collect();
            running
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(Error::bug("a request panicked")))
                })
                .collect()
        });
        let (mut tokens, mut seconds) = (0, 0f64);
        for answer in answers {
            let answer = answer?;
            if answer.pieces < PIECES_MIN {
                return Err(Error::device(format!(
                    "{} answered in {} pieces, need {PIECES_MIN} to time them; ask for a longer --decode, \
                     or load a model there that has more to say",
                    self.address, answer.pieces
                )));
            }
            tokens += answer.answer_tokens - 1;
            seconds = seconds.max(answer.rest_seconds);
        }
        Ok(tokens as f64 / seconds)
    }

    fn ask(&self, prompt: &str, tokens_max: usize) -> Result<Answer> {
        let messages = json!([{"role": "user", "content": prompt}]);
        self.stream("chat/completions", "messages", messages, tokens_max)
    }

    /// What the model says after `prompt`, as it is: `tokens_max` tokens, if the server lets it go on past an
    /// end.
    pub fn complete(&self, prompt: &str, tokens_max: usize) -> Result<Answer> {
        self.stream("completions", "prompt", prompt.into(), tokens_max)
    }

    fn stream(&self, path: &str, key: &str, prompt: Value, tokens_max: usize) -> Result<Answer> {
        let path = format!("{}/v1/{path}", self.address);
        let mut request = json!({
            "model": self.model,
            "max_tokens": tokens_max,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
            // Of llama-server and vLLM; others pass over it.
            "ignore_eos": true,
        });
        request[key] = prompt;
        let clock = Instant::now();
        let response = self.agent.post(&path).send_json(&request);
        let mut response = response.map_err(|e| failed(&path, &e))?;
        peer::check_status(&path, &mut response)?;
        let (mut first, mut last, mut pieces) = (None, 0.0, 0);
        let mut text = String::new();
        let (mut usage, mut timings) = (Value::Null, Value::Null);
        for event in peer::events(&path, response) {
            let event = event?;
            let choice = &event["choices"][0];
            let delta = &choice["delta"];
            let said = [
                &choice["text"],
                &delta["content"],
                &delta["reasoning_content"],
            ];
            let said = said.iter().filter_map(|said| said.as_str());
            let before = text.len();
            text.extend(said);
            if text.len() > before {
                last = clock.elapsed().as_secs_f64();
                first.get_or_insert(last);
                pieces += 1;
            }
            if event["usage"].is_object() {
                usage = event["usage"].clone();
            }
            if event["timings"].is_object() {
                timings = event["timings"].clone();
            }
        }
        // The first piece of text of some servers is empty; then the end is when it came.
        let first = first.unwrap_or_else(|| clock.elapsed().as_secs_f64());
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        Ok(Answer {
            text,
            prompt_tokens: usage["prompt_tokens"].as_u64(),
            // llama-server tells it of plain completions in its own place only.
            cached_tokens: cached.as_u64().or(timings["cache_n"].as_u64()),
            answer_tokens: usage["completion_tokens"].as_u64().unwrap_or(pieces),
            pieces,
            first_token_seconds: first,
            rest_seconds: last - first,
        })
    }
}

fn failed(path: &str, why: &dyn std::fmt::Display) -> Error {
    Error::device(format!(
        "{path}: {why}; start the server, or correct --against"
    ))
}
