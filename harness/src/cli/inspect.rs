//! `ostler inspect`: the calls of an agent's session, each beside the call before: which pieces stayed, changed,
//! moved or were evicted, where the reused prefix ended and why, and what that cost; plan beside report.

use std::collections::HashSet;

use engine::{Source, Why};
use serde_json::{Value, json};

use super::Exit;
use super::args::InspectArgs;
use super::models::columns;
use super::output::{Out, note};
use super::pieces::between_line;
use crate::agent::session::{self, Session};
use crate::agent::trace::{Trace, TracedPiece};
use crate::agent::transcript::{Entry, Record};
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};

pub fn run(env: &Env, args: &InspectArgs, out: &mut Out) -> Result<Exit> {
    let sessions = env.data_dir()?.join("sessions");
    let id = match &args.session {
        Some(id) => id.clone(),
        None => session::newest(&sessions)?.ok_or_else(|| {
            Error::caller("there is no session yet; `ostler agent \"...\"` makes one")
        })?,
    };
    let records = Session::read(&sessions, &id)?;
    let calls = calls(&records);
    if args.json {
        let calls: Vec<Value> = calls.iter().map(Call::json).collect();
        let all = json!({"session": id, "calls": calls});
        out.line(&serde_json::to_string_pretty(&all).expect("plain JSON"))?;
        return Ok(Exit::Done);
    }
    if calls.is_empty() {
        note(&format!(
            "session {id} has no call to inspect: none was made, or by a version that did not record them"
        ));
        return Ok(Exit::Done);
    }
    out.line(&format!("session {id}"))?;
    for call in &calls {
        out.line("")?;
        call.lines().iter().try_for_each(|line| out.line(line))?;
    }
    Ok(Exit::Done)
}

/// What became of a piece since the call before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unchanged,
    /// The same in the same place, and yet it had to be computed.
    Evicted,
    /// Another text under the same name.
    Changed,
    /// The same text in another place.
    Moved,
    New,
    /// It stood in the call before only.
    Gone,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Unchanged => "unchanged",
            State::Evicted => "evicted",
            State::Changed => "changed",
            State::Moved => "moved",
            State::New => "new",
            State::Gone => "gone",
        }
    }

    /// Whether its tokens were there in the call before, so that computing them is a loss.
    fn was_there(self) -> bool {
        matches!(self, State::Unchanged | State::Evicted | State::Moved)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    state: State,
    piece: TracedPiece,
    /// Tokens of the piece of this name, or this text, in the call before.
    before: Option<usize>,
    reused: usize,
    computed: usize,
}

struct Call<'a> {
    number: usize,
    time_ms: u64,
    tokens: usize,
    reused: usize,
    computed: usize,
    generated: usize,
    ttft_ms: f64,
    trace: &'a Trace,
    rows: Vec<Row>,
}

fn calls(records: &[Record]) -> Vec<Call<'_>> {
    let mut calls = Vec::new();
    let mut before: Vec<TracedPiece> = Vec::new();
    // Of those, how many the call came to the end of.
    let mut had = 0;
    for record in records {
        let Entry::Step {
            prompt_tokens,
            reused,
            computed,
            generated,
            ttft_ms,
            trace: Some(trace),
        } = &record.entry
        else {
            continue;
        };
        let pieces = trace.pieces(&before);
        calls.push(Call {
            number: calls.len() + 1,
            time_ms: record.time_ms,
            tokens: *prompt_tokens,
            reused: *reused,
            computed: *computed,
            generated: *generated,
            ttft_ms: *ttft_ms,
            trace,
            rows: compare(&before[..had], &pieces, trace),
        });
        let mut end = 0;
        let ends = pieces.iter().map(|piece| {
            end += piece.tokens;
            end
        });
        had = ends.take_while(|end| *end <= trace.reached()).count();
        before = pieces;
    }
    calls
}

/// Each piece of a call, then those of the call before that it lacks.
fn compare(before: &[TracedPiece], now: &[TracedPiece], trace: &Trace) -> Vec<Row> {
    let mut matched = HashSet::new();
    let mut rows = Vec::new();
    let mut start = 0;
    let mut same_so_far = true;
    let reached = trace.reached();
    for (index, piece) in now.iter().enumerate() {
        let end = start + piece.tokens;
        let computed = trace.computed_within(start, end);
        let reused = reached.min(end) - reached.min(start) - computed;
        start = end;
        let alike = |old: &TracedPiece| old.fingerprint == piece.fingerprint;
        let find = |wanted: &dyn Fn(&TracedPiece) -> bool| {
            let mut open = before
                .iter()
                .enumerate()
                .filter(|(i, _)| !matched.contains(i));
            open.find(|(_, old)| wanted(old)).map(|(i, _)| i)
        };
        let here =
            (before.get(index).is_some_and(alike) && !matched.contains(&index)).then_some(index);
        // The opening of the reply ends every prompt; that it stands elsewhere now is no loss.
        let ends = |place: &usize| place + 1 == before.len() && index + 1 == now.len();
        let (state, old) = match here {
            // The last token is computed for its logits, whatever is kept.
            Some(_) if same_so_far && computed > 0 && !only_for_logits(trace) => {
                (State::Evicted, here)
            }
            Some(_) => (State::Unchanged, here),
            None => match (find(&alike), find(&|old| old.name == piece.name)) {
                (Some(place), _) if ends(&place) => (State::New, Some(place)),
                (Some(place), _) => (State::Moved, Some(place)),
                (None, Some(place)) => (State::Changed, Some(place)),
                (None, None) => (State::New, None),
            },
        };
        same_so_far &= here.is_some();
        matched.extend(old);
        rows.push(Row {
            state,
            piece: piece.clone(),
            before: old.map(|place| before[place].tokens),
            reused,
            computed,
        });
    }
    let gone = before
        .iter()
        .enumerate()
        .filter(|(i, _)| !matched.contains(i));
    rows.extend(gone.map(|(_, piece)| Row {
        state: State::Gone,
        piece: piece.clone(),
        before: Some(piece.tokens),
        reused: 0,
        computed: 0,
    }));
    rows
}

fn only_for_logits(trace: &Trace) -> bool {
    trace
        .broken
        .as_ref()
        .is_some_and(|b| b.why == Why::LastToken)
}

impl Call<'_> {
    /// Tokens that the call before had and that were computed again.
    fn lost(&self) -> usize {
        if only_for_logits(self.trace) {
            return 0;
        }
        let lost = self.rows.iter().filter(|row| row.state.was_there());
        lost.map(|row| row.computed).sum()
    }

    fn lost_ms(&self) -> f64 {
        self.trace.prefill_ms * self.lost() as f64 / self.computed.max(1) as f64
    }

    fn lines(&self) -> Vec<String> {
        let sources: Vec<String> = self
            .trace
            .sources
            .iter()
            .map(|(source, tokens)| format!("{tokens} {}", source_name(*source)))
            .collect();
        let mut lines = vec![
            format!(
                "call {}, {}: {} tokens, {} reused, {} computed, {} generated; first token after {:.0} ms",
                self.number,
                clock::time_of_day(self.time_ms),
                self.tokens,
                self.reused,
                self.computed,
                self.generated,
                self.ttft_ms
            ),
            format!("  in order: {}", sources.join(", ")),
            self.plan_line(),
        ];
        if let Some(broken) = &self.trace.broken {
            lines.push(format!(
                "  reuse ended at token {}, in {}: {}",
                broken.at_token,
                broken.piece,
                broken.why.name()
            ));
        }
        if self.number > 1 {
            lines.push(match self.lost() {
                0 => "  lost: nothing that the call before had".to_owned(),
                tokens => format!(
                    "  lost: {tokens} tokens that the call before had, {:.0} ms",
                    self.lost_ms()
                ),
            });
        }
        lines.extend(self.table());
        lines
    }

    fn plan_line(&self) -> String {
        let trace = self.trace;
        let estimate = trace
            .estimate_ms
            .map_or(String::new(), |ms| format!(", {ms:.0} ms"));
        let plan = format!(
            "  plan: {} reused, {} computed{estimate}",
            trace.planned_reused, trace.planned_computed
        );
        match trace.between.is_empty() {
            true => format!("{plan}; the report agrees"),
            false => {
                let between: Vec<String> = trace.between.iter().map(between_line).collect();
                format!("{plan}; then {}", between.join(", "))
            }
        }
    }

    /// A run of unchanged pieces that were reused whole is one line.
    fn table(&self) -> Vec<String> {
        let headings = [
            "", "STATE", "PIECE", "LAYER", "BEFORE", "NOW", "REUSED", "COMPUTED",
        ];
        let mut table = vec![headings.map(str::to_owned)];
        let quiet = |row: &Row| row.state == State::Unchanged && row.computed == 0;
        for run in self.rows.chunk_by(|a, b| quiet(a) && quiet(b)) {
            if run.len() < 3 {
                table.extend(run.iter().map(Row::cells));
                continue;
            }
            let tokens: usize = run.iter().map(|row| row.piece.tokens).sum();
            table.push([
                String::new(),
                State::Unchanged.name().to_owned(),
                format!("{} pieces", run.len()),
                String::new(),
                tokens.to_string(),
                tokens.to_string(),
                tokens.to_string(),
                "0".to_owned(),
            ]);
        }
        columns(&table)
    }

    fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({
            "call": self.number,
            "time_ms": self.time_ms,
            "prompt_tokens": self.tokens,
            "cached_tokens": self.reused,
            "computed_tokens": self.computed,
            "generated_tokens": self.generated,
            "ttft_ms": self.ttft_ms,
            "sources": self.trace.sources,
            "plan": {
                "cached_tokens": self.trace.planned_reused,
                "computed_tokens": self.trace.planned_computed,
                "estimate_ms": self.trace.estimate_ms,
            },
            "between": self.trace.between,
            "broken": self.trace.broken,
            "lost_tokens": self.lost(),
            "lost_ms": self.lost_ms(),
            "pieces": rows,
        })
    }
}

impl Row {
    fn tokens_now(&self) -> Option<usize> {
        (self.state != State::Gone).then_some(self.piece.tokens)
    }

    fn cells(&self) -> [String; 8] {
        let or_dash = |tokens: Option<usize>| tokens.map_or("-".to_owned(), |t| t.to_string());
        let now = self.tokens_now();
        [
            String::new(),
            self.state.name().to_owned(),
            self.piece.name.clone(),
            self.piece.layer.name().to_owned(),
            or_dash(self.before),
            or_dash(now),
            or_dash(now.map(|_| self.reused)),
            or_dash(now.map(|_| self.computed)),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "state": self.state.name(),
            "name": self.piece.name,
            "layer": self.piece.layer,
            "fingerprint": self.piece.fingerprint,
            "tokens_before": self.before,
            "tokens": self.tokens_now(),
            "computed": self.computed,
        })
    }
}

fn source_name(source: Source) -> &'static str {
    match source {
        Source::Computed => "computed",
        Source::Memory => "from memory",
        Source::Partial => "copied of a block",
        Source::InFlight => "from a call beside it",
        Source::Disk => "from disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Layer;

    fn piece(name: &str, fingerprint: &str, tokens: usize) -> Value {
        json!({"name": name, "layer": "history", "fingerprint": fingerprint, "tokens": tokens})
    }

    fn step(
        id: u64,
        same: usize,
        pieces: Vec<Value>,
        reused: usize,
        computed: usize,
        why: &str,
    ) -> Record {
        let trace = json!({
            "same": same,
            "pieces": pieces,
            "sources": [["memory", reused], ["computed", computed]],
            "broken": {"piece": "p", "at_token": reused, "why": why},
            "planned_reused": reused,
            "planned_computed": computed,
            "prefill_ms": 2.0 * computed as f64,
        });
        Record {
            id,
            parent: None,
            time_ms: 0,
            entry: Entry::Step {
                prompt_tokens: reused + computed,
                reused,
                computed,
                generated: 1,
                ttft_ms: 1.0,
                trace: Some(Box::new(serde_json::from_value(trace).expect("a trace"))),
            },
        }
    }

    /// Ctrl-C in the middle of a prompt: what was not reached was not reused, and is no loss to the next call.
    #[test]
    fn what_a_call_did_not_reach_it_did_not_have() {
        let pieces = vec![
            piece("a", "1", 30),
            piece("b", "2", 50),
            piece("c", "3", 40),
        ];
        let records = [
            step(0, 0, pieces, 20, 25, "first_call"),
            step(1, 3, vec![], 30, 90, "new_piece"),
        ];
        let calls = calls(&records);
        let told = |call: usize| -> Vec<(&str, usize, usize)> {
            let rows = calls[call].rows.iter();
            rows.map(|row| (row.state.name(), row.reused, row.computed))
                .collect()
        };
        assert_eq!(told(0), [("new", 20, 10), ("new", 0, 15), ("new", 0, 0)]);
        let next = [("unchanged", 30, 0), ("new", 0, 50), ("new", 0, 40)];
        assert_eq!((told(1), calls[1].lost()), (next.to_vec(), 0));
    }

    #[test]
    fn each_piece_is_told_by_what_became_of_it() {
        let records = [
            step(
                0,
                0,
                vec![
                    piece("rules", "1", 10),
                    piece("memory", "2", 20),
                    piece("a", "3", 30),
                    piece("b", "4", 40),
                ],
                0,
                100,
                "first_call",
            ),
            // The memory was edited: what stood behind it is computed again.
            step(
                1,
                1,
                vec![
                    piece("memory", "5", 21),
                    piece("a", "3", 30),
                    piece("b", "4", 40),
                ],
                10,
                91,
                "edited",
            ),
            // Two changed places, one is new, one is gone.
            step(
                2,
                2,
                vec![piece("b", "4", 40), piece("c", "6", 5)],
                31,
                45,
                "reordered",
            ),
            step(3, 4, vec![], 20, 56, "evicted"),
            step(4, 4, vec![], 75, 1, "last_token"),
        ];
        let calls = calls(&records);
        let told = |call: usize| -> Vec<(&str, usize)> {
            let rows = calls[call].rows.iter();
            rows.map(|row| (row.state.name(), row.computed)).collect()
        };
        assert_eq!(
            told(0),
            [("new", 10), ("new", 20), ("new", 30), ("new", 40)]
        );
        assert_eq!(
            told(1),
            [
                ("unchanged", 0),
                ("changed", 21),
                ("unchanged", 30),
                ("unchanged", 40)
            ]
        );
        assert_eq!((calls[1].lost(), calls[1].lost_ms()), (70, 140.0));
        assert_eq!(
            told(2),
            [
                ("unchanged", 0),
                ("unchanged", 0),
                ("moved", 40),
                ("new", 5),
                ("gone", 0)
            ]
        );
        assert_eq!(
            told(3),
            [
                ("unchanged", 0),
                ("evicted", 11),
                ("evicted", 40),
                ("evicted", 5)
            ]
        );
        assert_eq!(calls[4].lost(), 0);
        assert_eq!(calls[4].rows[0].piece.layer, Layer::History);
        let appended = [
            step(
                0,
                0,
                vec![piece("a", "1", 10), piece("reply", "9", 3)],
                0,
                13,
                "first_call",
            ),
            step(
                1,
                1,
                vec![piece("b", "2", 5), piece("reply", "9", 3)],
                10,
                8,
                "new_piece",
            ),
        ];
        assert_eq!(super::calls(&appended)[1].lost(), 0);
        let lines = calls[1].lines().join("\n");
        assert!(
            lines.contains("lost: 70 tokens that the call before had, 140 ms"),
            "{lines}"
        );
        assert!(lines.contains("the report agrees"), "{lines}");
    }
}
