//! `ostler bench speed`: prompt and answer tokens a second at several depths of context, and which share of
//! the machine's limit that is.
//!
//! Invariant: a figure counts only what was computed. Every prompt is new from its depth on, and the engine's
//! report must say so; a run that reused more or less ends with an error instead of a figure.

use std::time::Instant;

use engine::{Between, Engine, Generation, Report, Salt, Timeline};
use models::device::{Device, MachineLimits};
use models::forward::PassCost;
use serde_json::{Value, json};

use super::Exit;
use super::args::BenchSpeedArgs;
use super::bench_against::Server;
use super::bench_call::{Words, finish, prompt, request};
use super::loading;
use super::output::{Out, note};
use crate::chat::ChatModel;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::limits::{BENCH_DECODE_TOKENS, BENCH_PREFILL_TOKENS};
use crate::load::{KvDisk, KvRoom};

/// Tokens that a prompt needs beside its depth to be new.
const FRESH_TOKENS: usize = 1;

pub fn run(env: &Env, args: &BenchSpeedArgs, out: &mut Out) -> Result<Exit> {
    let work = work(args);
    let mut options = loading::options(&args.model)?;
    // What an earlier run left on disk would be measured along.
    options.kv_disk = KvDisk::Off;
    let deepest = args.depth.iter().copied().max().unwrap_or(0);
    let longest = work.iter().map(|w| w.tokens).max().unwrap_or(0) + FRESH_TOKENS;
    // What earlier rounds leave behind may be evicted.
    let lines = args.sequences + 2;
    options
        .kv_room
        .get_or_insert(KvRoom::Tokens(deepest + lines * (longest + 64)));
    let loaded = loading::load(env, &options, false)?;
    let engine = &loaded.model.engine;
    let have = engine.context().tokens;
    let threads = match options.device {
        Device::Cpu { threads } => Some(threads),
        _ => None,
    };
    let marks = Marks {
        limits: options.device.limits()?,
        cost: engine.pass_cost(),
    };
    marks.tell();
    let mut bench = Bench::new(&loaded.model, deepest)?;
    let server = args.against.as_deref().map(Server::new).transpose()?;
    let mut rows = Vec::new();
    for &depth in &args.depth {
        for work in &work {
            let need = depth + work.tokens + FRESH_TOKENS;
            if need > have {
                note(&format!(
                    "note: {} {} at {depth} left out: needs a context of {need} tokens, have {have}",
                    work.test.name(),
                    work.tokens
                ));
                continue;
            }
            let figures = bench.measure(work, depth, args.rounds, server.as_ref())?;
            for (engine, tokens_a_second) in figures {
                let ours = engine.is_none();
                let row = Row {
                    engine: engine.unwrap_or_else(|| "ostler".to_owned()),
                    work: *work,
                    depth,
                    threads: threads.filter(|_| ours),
                    tokens_a_second,
                    fraction: marks
                        .fraction(work, depth, tokens_a_second)
                        .filter(|_| ours),
                };
                if !args.json && !args.csv {
                    if rows.is_empty() {
                        out.line(&Row::heading())?;
                    }
                    out.line(&row.line())?;
                }
                rows.push(row);
            }
        }
    }
    print(&rows, args, out)?;
    Ok(Exit::Done)
}

fn print(rows: &[Row], args: &BenchSpeedArgs, out: &mut Out) -> Result<()> {
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        out.line(&serde_json::to_string_pretty(&rows).expect("plain JSON"))?;
    }
    if args.csv {
        out.line("engine,test,tokens,depth,sequences,threads,tok_per_s,fraction_of_limit")?;
        for row in rows {
            out.line(&row.csv())?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    Prefill,
    Decode,
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Test::Prefill => "prefill",
            Test::Decode => "decode",
        }
    }
}

/// What is measured at each depth.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub test: Test,
    /// New tokens: of the prompt, or of each answer.
    pub tokens: usize,
    /// Sequences at once.
    pub sequences: usize,
}

fn work(args: &BenchSpeedArgs) -> Vec<Work> {
    let both = args.prefill.is_none() && args.decode.is_none();
    let prefill = args.prefill.or(both.then_some(BENCH_PREFILL_TOKENS));
    let decode = args.decode.or(both.then_some(BENCH_DECODE_TOKENS));
    let work = |test, sequences| {
        move |tokens| Work {
            test,
            tokens,
            sequences,
        }
    };
    let prefill = prefill.map(work(Test::Prefill, 1));
    let decode = decode.map(work(Test::Decode, args.sequences));
    prefill.into_iter().chain(decode).collect()
}

/// What the machine could do, and what the model asks of it.
struct Marks {
    limits: Option<MachineLimits>,
    cost: Option<PassCost>,
}

impl Marks {
    fn tell(&self) {
        if let Some(limits) = self.limits {
            note(&format!(
                "this machine, these threads: memory read {:.1} GB/s, int8 dots {:.0} GOP/s",
                limits.read_bytes_per_second / 1e9,
                limits.dot_ops_per_second / 1e9
            ));
        }
    }

    /// Decode: the time to read the weights, and the keys and values before the row, once from memory.
    /// Prefill: the time of the weights' multiply-adds at the peak. Each over the time it took.
    fn fraction(&self, work: &Work, depth: usize, tokens_a_second: f64) -> Option<f64> {
        let (limits, cost) = (self.limits?, self.cost?);
        let tokens = work.tokens as f64;
        Some(match work.test {
            Test::Prefill => {
                let row = cost.multiply_adds_a_row as f64;
                let dots = row * tokens + cost.multiply_adds_of_logits as f64;
                2.0 * dots / limits.dot_ops_per_second / (tokens / tokens_a_second)
            }
            Test::Decode => {
                let sequences = work.sequences as f64;
                let kv = cost.kv_bytes(depth as f64 + tokens / 2.0);
                let bytes = cost.weight_bytes as f64 + sequences * kv;
                bytes / limits.read_bytes_per_second * tokens_a_second / sequences
            }
        })
    }
}

struct Bench<'m> {
    engine: &'m Engine,
    words: Words,
    /// What every prompt begins with, to its depth.
    base: Vec<u32>,
    /// Holds the base at the depth that is measured.
    timeline: Timeline,
    salt: Salt,
}

impl<'m> Bench<'m> {
    fn new(model: &'m ChatModel, deepest: usize) -> Result<Bench<'m>> {
        let salt = Salt::new("bench speed");
        let mut bench = Bench {
            engine: &model.engine,
            words: Words::of(model.format.tokenizer().clone())?,
            base: Vec::new(),
            timeline: model.engine.timeline(salt.clone()),
            salt,
        };
        bench.base = bench.words.text(deepest);
        // Touches the weights and the kernels once.
        let ids = bench.words.text(64);
        finish(bench.start(ids, 2, Salt::new("bench warm-up"))?)?;
        Ok(bench)
    }

    /// Medians over the rounds: ours, then the server's. Within a round they take turns, so that a slow
    /// moment hits both.
    fn measure(
        &mut self,
        work: &Work,
        depth: usize,
        rounds: usize,
        server: Option<&Server>,
    ) -> Result<Vec<(Option<String>, f64)>> {
        if depth > 0 {
            self.timeline.sync(&prompt(&self.base[..depth])?)?;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(match work.test {
                Test::Prefill => self.prefill(work.tokens, depth)?,
                Test::Decode => self.decode(work, depth)?,
            });
            if let Some(server) = server {
                let count = match work.test {
                    Test::Prefill => work.tokens,
                    Test::Decode => FRESH_TOKENS,
                };
                let fresh = self.fresh(count, depth);
                let (base, fresh) = (
                    self.words.spell(&self.base[..depth]),
                    self.words.spell(&fresh),
                );
                theirs.push(server.measure(work, &base, &fresh)?);
            }
        }
        let mut figures = vec![(None, median(&mut ours))];
        if let Some(server) = server {
            figures.push((Some(server.name()), median(&mut theirs)));
        }
        Ok(figures)
    }

    /// A text that differs from what was sent at `depth` before in its first word.
    fn fresh(&mut self, count: usize, depth: usize) -> Vec<u32> {
        let text = self.words.text(count);
        match self.base.get(depth) == text.first() {
            true => self.words.text(count),
            false => text,
        }
    }

    /// Tokens a second of a prompt's last `tokens`, from submission to the first token of the answer.
    fn prefill(&mut self, tokens: usize, depth: usize) -> Result<f64> {
        let fresh = self.fresh(tokens, depth);
        let ids = [&self.base[..depth], &fresh].concat();
        let (_, report) = finish(self.start(ids, 1, self.salt.clone())?)?;
        check(&report, depth, tokens)?;
        let ms = report.ttft_ms.ok_or_else(|| Error::bug("no first token"))?;
        Ok(tokens as f64 * 1000.0 / ms)
    }

    /// Tokens a second of all answers together, from the first token of any to the end of the last.
    fn decode(&mut self, work: &Work, depth: usize) -> Result<f64> {
        let clock = Instant::now();
        let mut running = Vec::new();
        for _ in 0..work.sequences {
            let fresh = self.fresh(FRESH_TOKENS, depth);
            let ids = [&self.base[..depth], &fresh].concat();
            let begun = clock.elapsed().as_secs_f64() * 1000.0;
            running.push((begun, self.start(ids, work.tokens + 1, self.salt.clone())?));
        }
        let (mut rows, mut from_ms, mut to_ms) = (0, f64::INFINITY, 0f64);
        for (begun, generation) in running {
            let (_, report) = finish(generation)?;
            check(&report, depth, FRESH_TOKENS)?;
            let ttft = report.ttft_ms.ok_or_else(|| Error::bug("no first token"))?;
            rows += report.decode_rows;
            from_ms = from_ms.min(begun + ttft);
            to_ms = to_ms.max(begun + ttft + report.decode_ms);
        }
        Ok(rows as f64 * 1000.0 / (to_ms - from_ms))
    }

    fn start(&self, ids: Vec<u32>, tokens_max: usize, salt: Salt) -> Result<Generation> {
        Ok(self.engine.generate(request(&ids, tokens_max, salt)?)?)
    }
}

fn check(report: &Report, reused: usize, computed: usize) -> Result<()> {
    if (report.reused, report.computed) == (reused, computed) {
        return Ok(());
    }
    let evicted = |b: &Between| matches!(b, Between::Evicted { .. });
    if report.between.iter().any(evicted) || report.reused < reused {
        return Err(Error::caller(format!(
            "the keys and values of {} of {reused} tokens had to make room; raise --kv-memory or lower --depth",
            reused - report.reused.min(reused)
        )));
    }
    Err(Error::bug(format!(
        "{reused} tokens were to be reused and {computed} computed, but it was {} and {} ({:?})",
        report.reused, report.computed, report.between
    )))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Row {
    engine: String,
    work: Work,
    depth: usize,
    /// Ours only; a server's are not known.
    threads: Option<usize>,
    tokens_a_second: f64,
    fraction: Option<f64>,
}

impl Row {
    fn heading() -> String {
        format!(
            "{:8} {:>6} {:>6} {:>9} {:>10} {:>8}  engine",
            "test", "tokens", "depth", "sequences", "tok/s", "of limit"
        )
    }

    fn line(&self) -> String {
        let Work {
            test,
            tokens,
            sequences,
        } = self.work;
        let fraction = self.fraction.map_or("-".to_owned(), |fraction| {
            format!("{:.0}%", fraction * 100.0)
        });
        format!(
            "{:8} {tokens:>6} {:>6} {sequences:>9} {:>10.1} {fraction:>8}  {}",
            test.name(),
            self.depth,
            self.tokens_a_second,
            self.engine
        )
    }

    fn json(&self) -> Value {
        json!({
            "engine": self.engine,
            "test": self.work.test.name(),
            "tokens": self.work.tokens,
            "depth": self.depth,
            "sequences": self.work.sequences,
            "threads": self.threads,
            "tok_per_s": self.tokens_a_second,
            "fraction_of_limit": self.fraction,
        })
    }

    fn csv(&self) -> String {
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        format!(
            "{},{},{},{},{},{},{:.2},{}",
            self.engine,
            self.work.test.name(),
            self.work.tokens,
            self.depth,
            self.work.sequences,
            or_empty(self.threads.map(|n| n.to_string())),
            self.tokens_a_second,
            or_empty(self.fraction.map(|f| format!("{f:.3}")))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_compare_the_least_time_with_the_time_taken() {
        let marks = Marks {
            limits: Some(MachineLimits {
                read_bytes_per_second: 1e9,
                dot_ops_per_second: 1e12,
            }),
            cost: Some(PassCost {
                weight_bytes: 90_000_000,
                multiply_adds_a_row: 1_000_000_000,
                multiply_adds_of_logits: 0,
                kv_bytes_a_position: 900,
                window_kv_bytes_a_position: 1_000,
                window_tokens: 1_000,
            }),
        };
        let work = |test, sequences| Work {
            test,
            tokens: 100,
            sequences,
        };
        // 90 MB of weights and 10 MB of keys and values take 100 ms at 1 GB/s; it took 200.
        let decode = marks.fraction(&work(Test::Decode, 1), 9_950, 5.0).unwrap();
        assert!((decode - 0.5).abs() < 1e-9, "{decode}");
        // Two sequences read the weights once and 10 MB each: 110 ms a pass; it took 220.
        let both = marks.fraction(&work(Test::Decode, 2), 9_950, 2.0 / 0.22);
        assert!((both.unwrap() - 0.5).abs() < 1e-9);
        // 2 GOP a row allow 500 rows a second.
        let prefill = marks.fraction(&work(Test::Prefill, 1), 0, 250.0).unwrap();
        assert!((prefill - 0.5).abs() < 1e-9, "{prefill}");
    }
}
