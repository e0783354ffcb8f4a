//! The scenarios: what is sent, in which order, and which calls count.
//!
//! Invariant: a scenario sends the same to every side. Nothing depends on what a side answers but that its
//! answer goes into the next prompt, where a scenario says so.

use engine::Layer;

use super::super::bench_call::Words;
use super::row::Row;
use super::side::{Script, Side, Told};
use crate::error::{Error, Result};

/// Tokens that are appended, inserted or deleted.
const APPEND_TOKENS: usize = 32;
const SHIFT_TOKENS: usize = 64;
/// Tokens of an answer from which the time of one decode step is told.
const STEP_TOKENS: usize = 9;
/// What each child of a fork is told.
const BRIEF_TOKENS: usize = 64;
/// Conversations that take turns, those of them that there is room for, and how often all have their turn.
const CONVERSATIONS: usize = 8;
const CONVERSATIONS_FIT: usize = 5;
const ROUNDS: usize = 3;
/// Of how many of their tokens one is reused at least.
const BUDGET_REUSE_LEAST: usize = 5;
/// What a turn of theirs adds, and what is answered.
const TURN_TOKENS: usize = 64;
const TURN_REPLY_TOKENS: usize = 8;
/// What the model says at each step of the agent: a call.
const CALL_TOKENS: usize = 32;
const NOTE_TOKENS: usize = 48;

/// What was asked, and what the tools said, when a failing test of this program was mended.
const RECORDING: &str = include_str!("agent-30.json");

#[derive(serde::Deserialize)]
struct Recording {
    goal: String,
    steps: Vec<RecordedStep>,
}

#[derive(serde::Deserialize)]
struct RecordedStep {
    result: String,
}

/// Tokens that are taken of each recorded result, for a prompt of 2,048 tokens to begin with: all that SmolLM2
/// makes of it, of whose vocabulary it takes the most.
const RESULTS: [usize; 29] = [
    420, 231, 327, 157, 508, 304, 67, 324, 278, 189, 178, 72, 271, 226, 78, 138, 116, 96, 102, 281,
    51, 57, 11, 95, 327, 14, 448, 44, 16,
];

/// What an engine must have room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Everything that the scenario sends.
    All,
    /// So many conversations of so many tokens each, and no more.
    Conversations { number: usize, tokens: usize },
    /// Everything, and a folder that outlives the engine.
    Disk,
}

type Run = fn(&mut dyn Side, &mut Words, usize) -> Result<Vec<Row>>;

/// Scenarios that go together.
pub struct Group {
    pub names: &'static [&'static str],
    /// Tokens of context that the longest call needs, by the tokens of the prompt.
    pub context: fn(usize) -> usize,
    pub room: fn(usize) -> Room,
    pub run: Run,
}

pub const GROUPS: [Group; 8] = [
    Group {
        names: &[
            "cold",
            "repeat",
            "append-32",
            "edit-75",
            "edit-50",
            "edit-25",
            "insert-64-at-25",
            "delete-64-at-25",
            "alternate",
        ],
        context: |prompt| prompt + SHIFT_TOKENS + STEP_TOKENS,
        room: |_| Room::All,
        run: prompts,
    },
    Group {
        names: &["append-32-deep"],
        context: |prompt| deep(prompt) + APPEND_TOKENS + 1,
        room: |_| Room::All,
        run: append_deep,
    },
    Group {
        names: &["fork-4"],
        context: |prompt| 2 * prompt + BRIEF_TOKENS + 1,
        room: |_| Room::All,
        run: |side, words, prompt| fork(side, words, prompt, "fork-4", 4),
    },
    Group {
        names: &["fork-16"],
        context: |prompt| 2 * prompt + BRIEF_TOKENS + 1,
        room: |_| Room::All,
        run: |side, words, prompt| fork(side, words, prompt, "fork-16", 16),
    },
    Group {
        names: &["agent-30"],
        context: agent_tokens,
        room: |_| Room::All,
        run: agent,
    },
    Group {
        names: &["memory-note"],
        context: |prompt| prompt + 2 * NOTE_TOKENS,
        room: |_| Room::All,
        run: memory_note,
    },
    Group {
        names: &["budget-8"],
        context: |prompt| conversation(prompt),
        room: |prompt| Room::Conversations {
            number: CONVERSATIONS_FIT,
            tokens: conversation(prompt),
        },
        run: budget,
    },
    Group {
        names: &["restart"],
        context: |prompt| 2 * prompt + 1,
        room: |_| Room::Disk,
        run: restart,
    },
];

/// 7,600 for a prompt of 2,048.
fn deep(prompt: usize) -> usize {
    prompt * 475 / 128
}

fn conversation(prompt: usize) -> usize {
    prompt / 2 + ROUNDS * (TURN_TOKENS + TURN_REPLY_TOKENS)
}

fn agent_tokens(prompt: usize) -> usize {
    let results: usize = (0..RESULTS.len()).map(|step| result(step, prompt)).sum();
    prompt / 2 + results + CALL_TOKENS * (RESULTS.len() + 1)
}

fn result(step: usize, prompt: usize) -> usize {
    (RESULTS[step] * prompt / 2048).max(1)
}

/// Tokens that must fit into memory together for everything to be found again.
pub fn resident_tokens(prompt: usize) -> usize {
    let agent = agent_tokens(prompt);
    let forks = 2 * prompt + 16 * 2 * BRIEF_TOKENS;
    let prompts = 7 * (prompt + 2 * SHIFT_TOKENS);
    let append = deep(prompt) + 4 * APPEND_TOKENS;
    agent.max(forks).max(prompts).max(append)
}

/// One prompt, then what a person or a harness does to it.
fn prompts(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    side.begin()?;
    let base = words.text(prompt);
    let mut rows = Vec::new();
    let cold = ask(side, words, &base, 1)?;
    rows.push(Row::one("cold", cold));

    let repeat = ask(side, words, &base, 1)?;
    let longer = ask(side, words, &base, STEP_TOKENS)?;
    let steps = longer.generated_tokens.saturating_sub(1).max(1);
    let mut row = Row::one("repeat", repeat);
    row.step_ms = Some((longer.total_ms - longer.ttft_ms) / steps as f64);
    rows.push(row);

    let more = words.text(APPEND_TOKENS);
    let appended = ask(side, words, &[&base[..], &more].concat(), 1)?;
    rows.push(Row::one("append-32", appended));

    for (name, at) in [
        ("edit-75", prompt * 3 / 4),
        ("edit-50", prompt / 2),
        ("edit-25", prompt / 4),
    ] {
        let mut edited = base.clone();
        edited[at] = words.other_than(&base[at..=at]);
        rows.push(Row::one(name, ask(side, words, &edited, 1)?));
    }

    let at = prompt / 4;
    // Other than what stood there and than what an edit has put there.
    let first = words.text(1);
    let rest = words.text(SHIFT_TOKENS - 1);
    let inserted = [&base[..at], &first, &rest, &base[at..]].concat();
    rows.push(Row::one("insert-64-at-25", ask(side, words, &inserted, 1)?));
    let deleted = [&base[..at], &base[at + SHIFT_TOKENS..]].concat();
    rows.push(Row::one("delete-64-at-25", ask(side, words, &deleted, 1)?));

    let other = words.text(prompt);
    ask(side, words, &other, 1)?;
    let mut turns = Vec::new();
    for text in [&base, &other, &base, &other] {
        turns.push(ask(side, words, text, 1)?);
    }
    rows.push(Row::in_turn("alternate", &turns));
    Ok(rows)
}

fn append_deep(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    side.begin()?;
    let base = words.text(deep(prompt));
    ask(side, words, &base, 1)?;
    let more = words.text(APPEND_TOKENS);
    let appended = ask(side, words, &[base, more].concat(), 1)?;
    Ok(vec![Row::one("append-32-deep", appended)])
}

/// Children of one prefix, all at the same moment, nothing of it computed before.
fn fork(
    side: &mut dyn Side,
    words: &mut Words,
    prompt: usize,
    name: &'static str,
    children: usize,
) -> Result<Vec<Row>> {
    side.begin()?;
    let before = side.kv_bytes();
    let prefix = words.text(2 * prompt);
    let prefix = Script::default().words(words, Layer::Instructions, &prefix);
    let mut scripts = Vec::new();
    for _ in 0..children {
        let brief = words.text(BRIEF_TOKENS);
        scripts.push(prefix.clone().words(words, Layer::Turn, &brief));
    }
    let (told, total_ms) = side.ask_all(&scripts, 1)?;
    let mut row = Row::at_once(name, &told, total_ms);
    row.kv_bytes_added = side
        .kv_bytes()
        .zip(before)
        .map(|(now, before)| now.saturating_sub(before));
    // What a lone call would say of itself is not asked of those that share: the sum is.
    let least = 2 * prompt + children * BRIEF_TOKENS;
    if let Some(computed) = row.computed().filter(|computed| *computed != least)
        && row.kv_bytes_added.is_some()
    {
        row.wrong
            .get_or_insert(format!("{computed} tokens were computed, need {least}"));
    }
    Ok(vec![row])
}

/// An agent's run: each prompt is the one before, what was said to it, and the result of a tool.
/// The goal and the results were recorded; what the model says in between is its own.
fn agent(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    let recording: Recording = serde_json::from_str(RECORDING)
        .map_err(|error| Error::bug(format!("the recorded run: {error}")))?;
    side.begin()?;
    side.set_drafts(true);
    let rules = words.text(prompt / 2 - BRIEF_TOKENS);
    let goal = words.read(&recording.goal, BRIEF_TOKENS);
    let mut script = Script::default()
        .words(words, Layer::Instructions, &rules)
        .text(words, Layer::Turn, &goal);
    let mut steps = vec![side.ask(&script, CALL_TOKENS)?];
    for (step, recorded) in recording.steps.iter().enumerate() {
        let result = words.read(&recorded.result, result(step, prompt));
        script = script.said(&steps[step]).text(words, Layer::Turn, &result);
        steps.push(side.ask(&script, CALL_TOKENS)?);
    }
    side.set_drafts(false);
    Ok(vec![Row::in_turn("agent-30", &steps)])
}

/// A memory was edited while the conversation goes on: its section stays as it was sent, and a note in the
/// newest turn says what has changed.
fn memory_note(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    side.begin()?;
    let parts = [
        (Layer::Instructions, prompt / 4),
        (Layer::Memory, prompt / 4),
        (Layer::Turn, prompt / 2),
    ];
    let mut script = Script::default();
    for (layer, tokens) in parts {
        let text = words.text(tokens);
        script = script.words(words, layer, &text);
    }
    let before = side.ask(&script, TURN_REPLY_TOKENS)?;
    let note = words.text(NOTE_TOKENS);
    let script = script.said(&before).words(words, Layer::Turn, &note);
    let told = side.ask(&script, 1)?;
    Ok(vec![Row::one("memory-note", told)])
}

/// Conversations that take turns, more than there is room for.
fn budget(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    side.begin()?;
    let mut scripts = Vec::new();
    for _ in 0..CONVERSATIONS {
        let text = words.text(prompt / 2);
        scripts.push(Script::default().words(words, Layer::Turn, &text));
    }
    let mut turns = Vec::new();
    for round in 0..ROUNDS {
        for script in &mut scripts {
            let more = words.text(TURN_TOKENS);
            *script = script.clone().words(words, Layer::Turn, &more);
            let told = side.ask(script, TURN_REPLY_TOKENS)?;
            *script = script.clone().said(&told);
            // The first round is computed by anyone.
            if round > 0 {
                turns.push(told);
            }
        }
    }
    let mut row = Row::in_turn("budget-8", &turns);
    // Of what takes turns some is kept whole: in the order of last use nothing would be.
    let cached: usize = turns.iter().filter_map(|told| told.cached_tokens).sum();
    let prompts: usize = turns.iter().filter_map(|told| told.prompt_tokens).sum();
    if side.kv_bytes().is_some() && cached < prompts / BUDGET_REUSE_LEAST {
        row.wrong.get_or_insert(format!(
            "{cached} of {prompts} tokens were reused: it thrashes"
        ));
    }
    Ok(vec![row])
}

/// The first call after a stop and a start.
fn restart(side: &mut dyn Side, words: &mut Words, prompt: usize) -> Result<Vec<Row>> {
    side.begin()?;
    let text = words.text(2 * prompt);
    ask(side, words, &text, 1)?;
    if !side.restart()? {
        return Ok(Vec::new());
    }
    let told = ask(side, words, &text, 1)?;
    let mut row = Row::one("restart", told);
    row.load_ms = side.load_ms();
    Ok(vec![row])
}

fn ask(side: &mut dyn Side, words: &Words, ids: &[u32], tokens: usize) -> Result<Told> {
    let script = Script::default().words(words, Layer::Turn, ids);
    side.ask(&script, tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_run_is_whole() {
        let recording: Recording = serde_json::from_str(RECORDING).unwrap();
        assert_eq!(recording.steps.len(), RESULTS.len());
        let results = recording.steps.iter().map(|step| step.result.len());
        // A token is not longer than a line, nor shorter than a character.
        assert!(
            results
                .zip(RESULTS)
                .all(|(bytes, tokens)| (1..60).contains(&(bytes / tokens)))
        );
    }
}
