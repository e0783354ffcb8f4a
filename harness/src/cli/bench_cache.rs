//! `ostler bench cache`: what the prefix cache saves, case by case, each checking itself.
//!
//! A case knows what it must reuse: the longest prefix that its prompt shares with anything sent before,
//! less the last token, whose logits are needed. Plan and report must both say exactly that.

use engine::{Engine, Plan, Report, Salt};
use serde_json::{Value, json};

use super::Exit;
use super::args::BenchCacheArgs;
use super::bench_call::{Draws, finish, request};
use super::loading;
use super::output::Out;
use crate::chat::ChatModel;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::load::{KvDisk, KvRoom};

/// Tokens that are appended, inserted or deleted.
const APPEND_TOKENS: usize = 32;
const SHIFT_TOKENS: usize = 64;
/// Sequences that lie in the cache together at the end, in prompt lengths: the pool must hold them all.
const PROMPTS_RESIDENT: usize = 6;

pub fn run(env: &Env, args: &BenchCacheArgs, out: &mut Out) -> Result<Exit> {
    let length = args.prompt_tokens as usize;
    let mut options = loading::options(&args.model)?;
    // What an earlier run left on disk would be measured along.
    options.kv_disk = KvDisk::Off;
    let longest = length + APPEND_TOKENS.max(SHIFT_TOKENS) + 1;
    options
        .kv_room
        .get_or_insert(KvRoom::Tokens(longest * PROMPTS_RESIDENT));
    let loaded = loading::load(env, &options, false)?;
    let have = loaded.model.engine.context().tokens;
    if have < longest {
        let fits = have - (longest - length);
        return Err(Error::caller(format!(
            "the cases need a context of {longest} tokens, have {have}; use --prompt-tokens {fits} or less"
        )));
    }
    let mut bench = Bench::new(&loaded.model, length)?;
    bench.warm_up()?;
    let mut rows = Vec::new();
    for case in cases(length) {
        let row = bench.measure(&case)?;
        if !args.json && !args.csv && rows.is_empty() {
            out.line(&Row::heading())?;
        }
        if !args.json && !args.csv {
            out.line(&row.line())?;
        }
        rows.push(row);
    }
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        out.line(&serde_json::to_string_pretty(&rows).expect("plain JSON"))?;
    }
    if args.csv {
        out.line("scenario,prompt_tokens,cached_tokens,computed_tokens,ttft_ms")?;
        for row in &rows {
            out.line(&row.csv())?;
        }
    }
    match rows
        .iter()
        .find_map(|row| row.wrong.as_deref().map(|why| (row.scenario, why)))
    {
        Some((scenario, why)) => Err(Error::bug(format!("scenario {scenario}: {why}"))),
        None => Ok(Exit::Done),
    }
}

/// What is sent, told by how it differs from the base prompt.
enum Change {
    None,
    /// Another prompt altogether, to have been elsewhere in between.
    Other,
    Append,
    EditAt(usize),
    InsertAt(usize),
    DeleteAt(usize),
}

struct Case {
    scenario: &'static str,
    change: Change,
    /// Sent first, unmeasured.
    before: Option<Change>,
}

fn cases(length: usize) -> Vec<Case> {
    let case = |scenario, change| Case {
        scenario,
        change,
        before: None,
    };
    vec![
        case("cold", Change::None),
        case("repeat", Change::None),
        case("append-32", Change::Append),
        case("edit-75", Change::EditAt(length * 3 / 4)),
        case("edit-50", Change::EditAt(length / 2)),
        case("edit-25", Change::EditAt(length / 4)),
        case("insert-64-at-25", Change::InsertAt(length / 4)),
        case("delete-64-at-25", Change::DeleteAt(length / 4)),
        Case {
            scenario: "alternate",
            change: Change::None,
            before: Some(Change::Other),
        },
    ]
}

struct Bench<'m> {
    engine: &'m Engine,
    /// Ids that are plain text in this vocabulary.
    plain: Vec<u32>,
    base: Vec<u32>,
    salt: Salt,
    /// Everything the cache has seen in this namespace.
    sent: Vec<Vec<u32>>,
    draws: Draws,
}

impl<'m> Bench<'m> {
    fn new(model: &'m ChatModel, length: usize) -> Result<Bench<'m>> {
        let tokenizer = model.format.tokenizer();
        let plain: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|id| !tokenizer.is_control(*id))
            .collect();
        if plain.len() < 1000 {
            return Err(Error::input(format!(
                "the vocabulary has {} plain tokens, too few to tell prompts apart",
                plain.len()
            )));
        }
        let mut bench = Bench {
            engine: &model.engine,
            plain,
            base: Vec::new(),
            salt: Salt::new("bench"),
            sent: Vec::new(),
            draws: Draws::new(),
        };
        bench.base = bench.text(length);
        Ok(bench)
    }

    fn text(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.draw()).collect()
    }

    fn draw(&mut self) -> u32 {
        self.draws.one_of(&self.plain)
    }

    /// An id that no sequence sent so far has at `position`, so that a change is a change.
    fn draw_new(&mut self, position: usize) -> u32 {
        loop {
            let id = self.draw();
            let taken = |sent: &Vec<u32>| sent.get(position) == Some(&id);
            if self.base.get(position) != Some(&id) && !self.sent.iter().any(taken) {
                return id;
            }
        }
    }

    fn changed(&mut self, change: &Change) -> Vec<u32> {
        let base = self.base.clone();
        match *change {
            Change::None => base,
            Change::Other => {
                let first = self.draw_new(0);
                [vec![first], self.text(base.len() - 1)].concat()
            }
            Change::Append => {
                let first = self.draw_new(base.len());
                [base, vec![first], self.text(APPEND_TOKENS - 1)].concat()
            }
            Change::EditAt(at) => {
                let id = self.draw_new(at);
                [&base[..at], &[id], &base[at + 1..]].concat()
            }
            Change::InsertAt(at) => {
                let first = self.draw_new(at);
                [
                    &base[..at],
                    &[first],
                    &self.text(SHIFT_TOKENS - 1),
                    &base[at..],
                ]
                .concat()
            }
            Change::DeleteAt(at) => [&base[..at], &base[at + SHIFT_TOKENS..]].concat(),
        }
    }

    /// Touches the weights and the kernels once, in a namespace of its own.
    fn warm_up(&mut self) -> Result<()> {
        let ids = self.text(APPEND_TOKENS);
        call(self.engine, &ids, Salt::new("bench warm-up")).map(|_| ())
    }

    fn measure(&mut self, case: &Case) -> Result<Row> {
        if let Some(before) = &case.before {
            let ids = self.changed(before);
            self.send(ids)?;
        }
        let ids = self.changed(&case.change);
        let shared = self
            .sent
            .iter()
            .map(|sent| common_prefix(sent, &ids))
            .max()
            .unwrap_or(0);
        let expected = shared.min(ids.len() - 1);
        let (plan, report) = self.send(ids)?;
        Ok(Row {
            scenario: case.scenario,
            prompt_tokens: report.tokens,
            cached_tokens: report.reused,
            computed_tokens: report.computed,
            ttft_ms: report.ttft_ms.unwrap_or(f64::NAN),
            wrong: wrong(expected, &plan, &report),
        })
    }

    fn send(&mut self, ids: Vec<u32>) -> Result<(Plan, Report)> {
        let answer = call(self.engine, &ids, self.salt.clone())?;
        self.sent.push(ids);
        Ok(answer)
    }
}

/// Prefills `ids` and samples one token.
fn call(engine: &Engine, ids: &[u32], salt: Salt) -> Result<(Plan, Report)> {
    finish(engine.generate(request(ids, 1, salt)?)?)
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn wrong(expected: usize, plan: &Plan, report: &Report) -> Option<String> {
    if (plan.reused, plan.computed) != (report.reused, report.computed) {
        return Some(format!(
            "the plan said {} reused and {} computed, the report {} and {} ({:?})",
            plan.reused, plan.computed, report.reused, report.computed, report.between
        ));
    }
    if report.reused != expected {
        return Some(format!(
            "{expected} tokens were seen before, but {} were reused",
            report.reused
        ));
    }
    (report.reused + report.computed != report.tokens).then(|| {
        format!(
            "{} reused and {} computed of {}",
            report.reused, report.computed, report.tokens
        )
    })
}

struct Row {
    scenario: &'static str,
    prompt_tokens: usize,
    cached_tokens: usize,
    computed_tokens: usize,
    ttft_ms: f64,
    wrong: Option<String>,
}

impl Row {
    fn heading() -> String {
        format!(
            "{:16} {:>13} {:>13} {:>15} {:>9}",
            "scenario", "prompt_tokens", "cached_tokens", "computed_tokens", "ttft_ms"
        )
    }

    fn line(&self) -> String {
        let wrong = self
            .wrong
            .as_deref()
            .map_or(String::new(), |why| format!("  WRONG: {why}"));
        format!(
            "{:16} {:>13} {:>13} {:>15} {:>9.1}{wrong}",
            self.scenario,
            self.prompt_tokens,
            self.cached_tokens,
            self.computed_tokens,
            self.ttft_ms
        )
    }

    fn json(&self) -> Value {
        json!({
            "scenario": self.scenario,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed_tokens,
            "ttft_ms": self.ttft_ms,
        })
    }

    fn csv(&self) -> String {
        format!(
            "{},{},{},{},{:.1}",
            self.scenario,
            self.prompt_tokens,
            self.cached_tokens,
            self.computed_tokens,
            self.ttft_ms
        )
    }
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
