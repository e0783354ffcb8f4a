//! Who is measured: this engine, or a server. Both are sent the same scripts and timed in the same way, from
//! the sending to the first piece of the answer and to its end.
//!
//! Of ours every call is checked: the plan must agree with the report, and both with the longest prefix that
//! the prompt shares with anything that was there before.

use std::sync::Arc;
use std::time::Instant;

use engine::{Generation, Layer, Piece, Plan, Prompt, Report, Salt};

use super::super::bench_against::{Answer, Server};
use super::super::bench_call::{Words, finish, follow, request};
use crate::chat::ChatModel;
use crate::error::{Error, Result};

/// A prompt as both sides can send it.
#[derive(Clone, Default)]
pub struct Script {
    pieces: Vec<(Layer, Vec<u32>)>,
    text: String,
}

impl Script {
    /// Goes on with words of ours.
    pub fn words(self, words: &Words, layer: Layer, ids: &[u32]) -> Script {
        self.go_on(layer, ids, &words.spell(ids))
    }

    /// Goes on with any text.
    pub fn text(self, words: &Words, layer: Layer, ids: &[u32]) -> Script {
        self.go_on(layer, ids, &words.write(ids))
    }

    /// Goes on with what the model said: the ids it sampled, or its text where the ids are not known.
    pub fn said(self, told: &Told) -> Script {
        self.go_on(Layer::History, &told.ids, &told.text)
    }

    fn go_on(mut self, layer: Layer, ids: &[u32], text: &str) -> Script {
        self.text.push_str(text);
        self.pieces.push((layer, ids.to_vec()));
        self
    }

    pub fn ids(&self) -> Vec<u32> {
        self.pieces
            .iter()
            .flat_map(|(_, ids)| ids.clone())
            .collect()
    }

    fn prompt(&self) -> Result<Prompt> {
        let pieces = self.pieces.iter().enumerate();
        let pieces = pieces
            .map(|(i, (layer, ids))| Piece::new(format!("piece {i}"), *layer, ids.as_slice(), b""));
        Ok(Prompt::new(pieces.collect())?)
    }
}

/// What one call cost. What a server does not say is `None`.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub prompt_tokens: Option<usize>,
    pub cached_tokens: Option<usize>,
    pub generated_tokens: usize,
    pub ttft_ms: f64,
    pub total_ms: f64,
    pub ids: Vec<u32>,
    pub text: String,
    /// What is wrong with the counts.
    pub wrong: Option<String>,
}

pub trait Side {
    /// What follows shares nothing with what came before.
    fn begin(&mut self) -> Result<()>;

    /// Sends all scripts at the same moment and waits for all answers, of `tokens` tokens each. Returns them
    /// in order, and the milliseconds until the last has ended.
    fn ask_all(&mut self, scripts: &[Script], tokens: usize) -> Result<(Vec<Told>, f64)>;

    /// Bytes of memory that keys and values take, where that is known.
    fn kv_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether tokens may be guessed ahead. Where a step is timed, they may not: those that happen to be right
    /// would measure the text.
    fn set_drafts(&mut self, _on: bool) {}

    /// Ends the program and starts it again, as far as the cache can tell. False where that cannot be done.
    fn restart(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// How long the last start took.
    fn load_ms(&self) -> Option<f64> {
        None
    }

    fn ask(&mut self, script: &Script, tokens: usize) -> Result<Told> {
        let (mut told, _) = self.ask_all(std::slice::from_ref(script), tokens)?;
        told.pop()
            .ok_or_else(|| Error::bug("a call was not answered"))
    }
}

type Load = Box<dyn Fn() -> Result<Arc<ChatModel>>>;

/// This engine.
pub struct Here {
    load: Load,
    /// `None` only between a stop and a start.
    model: Option<Arc<ChatModel>>,
    load_ms: f64,
    drafts: bool,
    namespaces: usize,
    /// Everything whose keys and values this namespace has had.
    sent: Vec<Vec<u32>>,
    /// All of that should be there still.
    keeps_all: bool,
}

impl Here {
    pub fn start(load: Load, keeps_all: bool) -> Result<Here> {
        let mut here = Here {
            load,
            model: None,
            load_ms: 0.0,
            drafts: false,
            namespaces: 0,
            sent: Vec::new(),
            keeps_all,
        };
        here.restart()?;
        Ok(here)
    }

    pub fn model(&self) -> Result<&Arc<ChatModel>> {
        let stopped = || Error::bug("the engine is not running");
        self.model.as_ref().ok_or_else(stopped)
    }

    fn salt(&self) -> Salt {
        Salt::new(&format!("bench cache {}", self.namespaces))
    }

    /// The longest prefix that is there, less the last token, whose logits are needed.
    fn expected(&self, ids: &[u32]) -> usize {
        let shared = self.sent.iter().map(|sent| common_prefix(sent, ids));
        shared.max().unwrap_or(0).min(ids.len() - 1)
    }

    fn check(&self, expected: usize, alone: bool, plan: &Plan, report: &Report) -> Option<String> {
        let same = (plan.reused, plan.computed) == (report.reused, report.computed);
        if !same && report.between.is_empty() {
            return Some(format!(
                "the plan said {} reused and {} computed, the report {} and {}",
                plan.reused, plan.computed, report.reused, report.computed
            ));
        }
        if report.reused + report.computed != report.tokens {
            return Some(format!(
                "{} reused and {} computed of {}",
                report.reused, report.computed, report.tokens
            ));
        }
        let exact = self.keeps_all && alone;
        if (exact && report.reused != expected) || (alone && report.reused > expected) {
            return Some(format!(
                "{expected} tokens were seen before, but {} were reused",
                report.reused
            ));
        }
        None
    }
}

impl Side for Here {
    fn begin(&mut self) -> Result<()> {
        self.model()?.engine.clear_cache()?;
        self.namespaces += 1;
        self.sent.clear();
        Ok(())
    }

    fn ask_all(&mut self, scripts: &[Script], tokens: usize) -> Result<(Vec<Told>, f64)> {
        let mut requests = Vec::new();
        for script in scripts {
            let mut request = request(&script.ids(), tokens, self.salt())?;
            request.prompt = script.prompt()?;
            request.no_drafts = !self.drafts;
            requests.push(request);
        }
        let engine = &self.model()?.engine;
        let clock = Instant::now();
        let mut running = Vec::new();
        for request in requests {
            running.push(engine.generate(request)?);
        }
        // Each is read on a thread of its own, so that each first token is seen when it comes.
        let answers = together(running, |generation| read(generation, clock));
        let total_ms = ms_since(clock);
        let mut told = Vec::new();
        for (script, answer) in scripts.iter().zip(answers) {
            let (mut one, plan, report) = answer?;
            let ids = script.ids();
            one.wrong = self.check(self.expected(&ids), scripts.len() == 1, &plan, &report);
            // The last token sampled was not forwarded.
            let forwarded = &one.ids[..one.ids.len().saturating_sub(1)];
            self.sent.push([&ids, forwarded].concat());
            told.push(one);
        }
        Ok((told, total_ms))
    }

    fn kv_bytes(&self) -> Option<u64> {
        let stats = self.model().ok()?.engine.stats().ok()?;
        Some(stats.bytes_used())
    }

    fn set_drafts(&mut self, on: bool) {
        self.drafts = on;
    }

    fn restart(&mut self) -> Result<bool> {
        self.model = None;
        let clock = Instant::now();
        self.model = Some((self.load)()?);
        self.load_ms = ms_since(clock);
        // Touches the weights and the kernels once, in a namespace of its own.
        let ids: Vec<u32> = (100..132).collect();
        finish(
            self.model()?
                .engine
                .generate(request(&ids, 2, Salt::new("bench warm-up"))?)?,
        )?;
        Ok(true)
    }

    fn load_ms(&self) -> Option<f64> {
        Some(self.load_ms)
    }
}

fn read(generation: Generation, clock: Instant) -> Result<(Told, Plan, Report)> {
    let mut first = None;
    let (plan, report, ids) = follow(generation, || {
        first.get_or_insert_with(|| ms_since(clock));
    })?;
    let total_ms = ms_since(clock);
    let told = Told {
        prompt_tokens: Some(report.tokens),
        cached_tokens: Some(report.reused),
        generated_tokens: report.generated,
        ttft_ms: first.unwrap_or(total_ms),
        total_ms,
        ids,
        text: String::new(),
        wrong: None,
    };
    Ok((told, plan, report))
}

/// A server, told apart by its address.
pub struct There<'s> {
    pub server: &'s Server,
}

impl Side for There<'_> {
    fn begin(&mut self) -> Result<()> {
        Ok(()) // No two scenarios begin alike.
    }

    fn ask_all(&mut self, scripts: &[Script], tokens: usize) -> Result<(Vec<Told>, f64)> {
        let clock = Instant::now();
        let texts: Vec<&str> = scripts.iter().map(|script| script.text.as_str()).collect();
        let answers = together(texts, |text| self.server.complete(text, tokens));
        let total_ms = ms_since(clock);
        let told = answers.into_iter().map(|answer| answer.map(told_by_server));
        Ok((told.collect::<Result<_>>()?, total_ms))
    }
}

fn told_by_server(answer: Answer) -> Told {
    let count = |tokens: Option<u64>| tokens.map(|tokens| tokens as usize);
    let ttft_ms = answer.first_token_seconds * 1000.0;
    Told {
        prompt_tokens: count(answer.prompt_tokens),
        cached_tokens: count(answer.cached_tokens),
        generated_tokens: answer.answer_tokens as usize,
        ttft_ms,
        total_ms: ttft_ms + answer.rest_seconds * 1000.0,
        ids: Vec::new(),
        text: answer.text,
        wrong: None,
    }
}

/// Does `work` for each item on a thread of its own. Results in order.
fn together<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads = items
            .into_iter()
            .map(|item| scope.spawn(move || work(item)));
        let threads: Vec<_> = threads.collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<R>>| {
            let panicked = || Err(Error::bug("a request panicked"));
            thread.join().unwrap_or_else(|_| panicked())
        };
        threads.into_iter().map(join).collect()
    })
}

pub fn ms_since(clock: Instant) -> f64 {
    clock.elapsed().as_secs_f64() * 1000.0
}

pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4]), 2);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 4]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
    }
}
