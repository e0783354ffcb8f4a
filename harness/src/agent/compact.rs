//! Compaction: the text that asks for a summary, what of the history stays word for word, and the
//! checks that keep a failed summary from being dressed up as one (law 11).

use serde_json::Value;

use super::finish_tool;
use super::transcript::{Call, Entry, Record};
use crate::limits;

/// What the message that asks for the summary dwells on. It is written to a successor that has seen nothing of
/// the tool results, and it is sent as one more message on the warm prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    /// Work on files.
    #[default]
    Coding,
    /// Letters, plans, questions of a person's life.
    Personal,
    /// The user's own words.
    Own(String),
}

const CODING: &str = "\
Stop here. Your context is nearly full and a successor will continue. It has not seen the files or tool \
results. Write it a letter, without calling a tool:
1. Goal: what the user asked for, in their words.
2. Done: files changed, commands run and what they showed (names, paths, numbers, exact errors).
3. Known: facts needed to go on.
4. Open: what remains, the next step, questions asked, options offered with their labels.
Be short and exact.";

const PERSONAL: &str = "\
Stop here. Your context is nearly full and a successor will continue. It has not seen this conversation. \
Write it a letter, without calling a tool:
1. Wish: what the user wants, in their words, and for whom.
2. Agreed: decisions, names, dates, sums, preferences, what was turned down.
3. Texts: drafts and their newest wording, word for word.
4. Open: questions asked, options offered with their labels, promises made.
Be short and exact.";

impl Domain {
    pub fn instruction(&self) -> &str {
        match self {
            Domain::Coding => CODING,
            Domain::Personal => PERSONAL,
            Domain::Own(text) => text,
        }
    }
}

/// What stands behind the summary when it is put back.
pub const CONTINUE: &str = "Continue the task from here. Do not mention this summary.";

/// Which records stay as they are: those from `keep_from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub keep_from: u64,
}

/// Keeps the newest messages within `verbatim_tokens`, never splitting a call from its result, and
/// keeps nothing when `verbatim_tokens` is 0. `tokens_of` counts one record.
pub fn choose_cut(
    records: &[Record],
    verbatim_tokens: usize,
    tokens_of: impl Fn(&Record) -> usize,
) -> Cut {
    let end = records.last().map_or(0, |r| r.id + 1);
    let mut keep_from = end;
    let mut used = 0;
    for record in records.iter().rev() {
        used += tokens_of(record);
        if used > verbatim_tokens {
            break;
        }
        match &record.entry {
            // Only a user's words and an assistant's turn may begin what is kept: a result or a
            // correction belongs to the turn before it.
            Entry::User { .. } | Entry::Assistant { .. } => keep_from = record.id,
            Entry::Opened { .. } | Entry::Compaction { .. } => break,
            Entry::ToolResult { .. }
            | Entry::Correction { .. }
            | Entry::Change { .. }
            | Entry::OtherModel { .. }
            | Entry::Step { .. }
            | Entry::End { .. }
            | Entry::FileChanged { .. }
            | Entry::Given { .. }
            | Entry::Undone { .. } => {}
        }
    }
    Cut { keep_from }
}

/// What stays word for word whatever the letter says: it survives by structure, not by the model's care.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// What the user has asked for since the last answer, oldest first.
    pub requests: Vec<String>,
    /// What the user was told last: "option B" means nothing without it.
    pub said: Option<String>,
    /// Files, by what was done to them.
    pub changed: Vec<String>,
    pub read: Vec<String>,
}

impl Kept {
    /// Of what stands before the cut. `fits` tells whether a text is short enough to stay whole.
    pub fn of(records: &[Record], cut: Cut, fits: impl Fn(&str) -> bool) -> Kept {
        let answered = |r: &Record| matches!(&r.entry, Entry::End { outcome } if outcome.starts_with("answered"));
        let open = records.iter().rposition(answered).map_or(0, |at| at + 1);
        let dropped = |r: &&Record| r.id < cut.keep_from;
        let mut requests = asked(records[open..].iter().filter(dropped), &fits);
        if requests.is_empty() && asked(records[open..].iter(), &fits).is_empty() {
            // Nothing is open: the last request is what there is to go on from.
            requests = asked(records.iter().filter(dropped), &fits);
            requests.drain(..requests.len().saturating_sub(1));
        }
        let newest = records
            .iter()
            .rposition(|r| matches!(r.entry, Entry::User { .. }));
        let before = &records[..newest.unwrap_or(records.len())];
        let said = before.iter().rev().find_map(|record| {
            let text = said_to_user(&record.entry)?;
            Some((record.id < cut.keep_from).then_some(text))
        });
        let (changed, read) = files(records.iter().filter(dropped));
        Kept {
            requests,
            said: said.flatten().map(|text| essentials(text, &fits)),
            changed,
            read,
        }
    }
}

/// The user's words among `records`; a long text beside others is named and stays in the transcript.
fn asked<'a>(
    records: impl Iterator<Item = &'a Record>,
    fits: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut asked = Vec::new();
    for record in records {
        if let Entry::User { text } = &record.entry {
            asked.push(match asked.is_empty() || fits(text) {
                true => text.clone(),
                false => format!("[a long message: entry {} of the transcript]", record.id),
            });
        }
    }
    asked
}

/// Words that ended a run.
fn said_to_user(entry: &Entry) -> Option<String> {
    let Entry::Assistant { text, calls, .. } = entry else {
        return None;
    };
    let finish = calls.iter().find_map(finish_tool::words);
    match (finish, calls.is_empty()) {
        (Some(Ok(words)), _) => Some(words),
        (_, true) if !text.trim().is_empty() => Some(text.clone()),
        _ => None,
    }
}

/// A text that is too long as a whole, down to what the next message may point at: labelled options, fenced
/// drafts, the last question.
fn essentials(text: String, fits: &dyn Fn(&str) -> bool) -> String {
    if fits(&text) {
        return text;
    }
    let mut kept = Vec::new();
    let (mut fenced, mut left_out) = (false, 0);
    let lines: Vec<&str> = text.lines().collect();
    let question = lines
        .iter()
        .rposition(|line| line.trim_end().ends_with('?'));
    for (at, line) in lines.into_iter().enumerate() {
        let fence = line.trim_start().starts_with("```");
        let wanted = fenced || fence || is_labelled(line) || Some(at) == question;
        fenced ^= fence;
        let whole = [&kept[..], &[line]].concat().join("\n");
        match wanted && fits(&whole) {
            true => kept.push(line),
            false => left_out += 1,
        }
    }
    let note = format!("[{left_out} lines left out]");
    kept.push(&note);
    kept.join("\n")
}

/// `A) …`, `2. …`, `- **B**: …`, `Option C: …`.
fn is_labelled(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '-', '*', '#', '(', '\t']);
    let line = line.strip_prefix("Option ").unwrap_or(line);
    let label: String = line.chars().take_while(|c| c.is_alphanumeric()).collect();
    let is_number = label.len() <= 2 && label.parse::<u8>().is_ok();
    let rest = &line[label.len()..];
    // `e.g.` is no label.
    let has_point = rest.starts_with('.') && label.chars().all(|c| !c.is_lowercase());
    (is_number || label.len() == 1) && (has_point || rest.starts_with([')', ':', '*']))
}

/// Files that tools have changed and read, each once, in the order of the first time.
fn files<'a>(records: impl Iterator<Item = &'a Record>) -> (Vec<String>, Vec<String>) {
    let (mut changed, mut read) = (Vec::new(), Vec::new());
    let mut calls: Vec<&Call> = Vec::new();
    for record in records {
        match &record.entry {
            Entry::Assistant { calls: made, .. } => calls.extend(made),
            Entry::ToolResult { call, output, .. } if output.ok => {
                let Some(call) = calls.iter().find(|c| c.id == *call) else {
                    continue;
                };
                let list = match call.name.as_str() {
                    "write" | "edit" => &mut changed,
                    "read" => &mut read,
                    _ => continue,
                };
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
                if let Some(path) = arguments["path"].as_str()
                    && !list.iter().any(|known| known == path)
                {
                    list.push(path.to_owned());
                }
            }
            _ => {}
        }
    }
    read.retain(|path| !changed.contains(path));
    (changed, read)
}

/// The summary as it re-enters: what stays word for word, the model's letter, where the rest can be
/// read, and the instruction to go on.
pub fn letter(summary: &str, kept: &Kept, earlier_entries: u64) -> String {
    let mut text = String::new();
    if let Some(said) = &kept.said {
        text.push_str("The user was told last, word for word:\n");
        text.push_str(said);
        text.push_str("\n\n");
    }
    let requests: Vec<&str> = kept
        .requests
        .iter()
        .map(String::as_str)
        .filter(|request| !summary.contains(*request))
        .collect();
    if !requests.is_empty() {
        text.push_str("The user asked, word for word:\n");
        text.push_str(&requests.join("\n"));
        text.push_str("\n\n");
    }
    text.push_str(summary.trim());
    for (what, paths) in [("changed", &kept.changed), ("read", &kept.read)] {
        if paths.is_empty() {
            continue;
        }
        let shown = paths.len().min(limits::COMPACTION_FILES_MAX);
        text.push_str(&format!("\n\nFiles {what}: {}", paths[..shown].join(", ")));
        if shown < paths.len() {
            text.push_str(&format!(" and {} more", paths.len() - shown));
        }
    }
    text.push_str(&format!(
        "\n\n[Entries 0 to {} of the transcript are summarised above; `transcript` reads and searches them.]\n{CONTINUE}",
        earlier_entries.saturating_sub(1)
    ));
    text
}

/// Refuses a summary that is none. `replaced_tokens` is what it stands for.
pub fn check(summary: &str, summary_tokens: usize, replaced_tokens: usize) -> Result<(), String> {
    if summary.trim().is_empty() {
        return Err("the model wrote an empty summary; nothing was dropped".into());
    }
    if summary_tokens >= replaced_tokens {
        return Err(format!(
            "the summary has {summary_tokens} tokens and would replace {replaced_tokens}; nothing was dropped"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::transcript::{Call, ToolOutput};
    use super::*;

    fn records(entries: Vec<Entry>) -> Vec<Record> {
        entries
            .into_iter()
            .enumerate()
            .map(|(i, entry)| Record {
                id: i as u64,
                parent: (i as u64).checked_sub(1),
                time_ms: 0,
                entry,
            })
            .collect()
    }

    fn user(text: &str) -> Entry {
        Entry::User { text: text.into() }
    }

    fn turn(id: &str) -> Entry {
        let call = Call {
            id: id.into(),
            name: "bash".into(),
            arguments: "{}".into(),
        };
        Entry::Assistant {
            text: String::new(),
            thinking: String::new(),
            calls: vec![call],
            sampled: vec![],
            cut: false,
        }
    }

    fn result(id: &str) -> Entry {
        let output = ToolOutput {
            text: "ok".into(),
            ok: true,
            artifact: None,
        };
        Entry::ToolResult {
            call: id.into(),
            name: "bash".into(),
            output,
        }
    }

    /// A cut between a call and its result left a history that every server refuses.
    #[test]
    fn a_cut_never_parts_a_call_from_its_result() {
        let all = records(vec![
            user("goal"),
            turn("a"),
            result("a"),
            turn("b"),
            result("b"),
            user("and?"),
        ]);
        for (verbatim, keep_from) in [
            (0, 6),
            (1, 5),
            (2, 5),
            (3, 3),
            (4, 3),
            (5, 1),
            (6, 0),
            (99, 0),
        ] {
            let cut = choose_cut(&all, verbatim, |_| 1);
            assert_eq!(cut.keep_from, keep_from, "verbatim {verbatim}");
        }
        let kept = Kept::of(&all, choose_cut(&all, 3, |_| 1), |_| true);
        assert_eq!(kept.requests, ["goal"]);
    }

    fn said(text: &str) -> Entry {
        match turn("") {
            Entry::Assistant {
                thinking,
                sampled,
                cut,
                ..
            } => Entry::Assistant {
                text: text.into(),
                thinking,
                calls: vec![],
                sampled,
                cut,
            },
            other => other,
        }
    }

    fn end() -> Entry {
        Entry::End {
            outcome: "answered".into(),
        }
    }

    #[test]
    fn the_goal_survives_a_summary_that_forgot_it() {
        let kept = |request: &str| Kept {
            requests: vec![request.into()],
            ..Kept::default()
        };
        let text = letter("I listed files.", &kept("Fix the parser, option B"), 7);
        assert!(text.contains("Fix the parser, option B") && text.contains("Entries 0 to 6"));
        let text = letter("Goal: Fix it. Done: nothing.", &kept("Fix it."), 7);
        assert_eq!(text.matches("Fix it.").count(), 1);
    }

    /// "Option B" was all that was left of a choice after a compaction, and nobody knew what B was.
    #[test]
    fn what_a_follow_up_points_at_stays() {
        let answer =
            "Long talk.\nA) tabs\nB) spaces\nMore talk.\n```\ndraft 1\n```\nWhich one?\nBye.";
        let all = records(vec![
            user("old"),
            said(answer),
            end(),
            user("option B"),
            turn("a"),
            result("a"),
            user("and tests"),
        ]);
        let cut = Cut { keep_from: 7 };
        let kept = Kept::of(&all, cut, |_| true);
        assert_eq!(kept.requests, ["option B", "and tests"]);
        assert_eq!(kept.said.as_deref(), Some(answer));
        let short = Kept::of(&all, cut, |text| text.len() < 60);
        assert_eq!(
            short.said.as_deref(),
            Some("A) tabs\nB) spaces\n```\ndraft 1\n```\nWhich one?\n[3 lines left out]")
        );
        // What stays in the history is not said twice.
        let recent = Kept::of(&all, Cut { keep_from: 1 }, |_| true);
        assert_eq!((recent.requests.len(), recent.said), (0, None));
        // A long message beside the first is named.
        let named = Kept::of(&all, cut, |text| text.len() < 5);
        assert_eq!(
            named.requests[1],
            "[a long message: entry 6 of the transcript]"
        );
    }

    #[test]
    fn files_are_listed_by_what_was_done_to_them() {
        let made = |id: &str, name: &str, path: &str| match turn(id) {
            Entry::Assistant {
                text,
                thinking,
                mut calls,
                sampled,
                cut,
            } => {
                calls[0].name = name.into();
                calls[0].arguments = format!("{{\"path\":\"{path}\"}}");
                Entry::Assistant {
                    text,
                    thinking,
                    calls,
                    sampled,
                    cut,
                }
            }
            other => other,
        };
        let failed = Entry::not_run(
            &Call {
                id: "e".into(),
                name: "write".into(),
                arguments: String::new(),
            },
            "no",
        );
        let all = records(vec![
            user("goal"),
            made("a", "read", "x"),
            result("a"),
            made("b", "read", "y"),
            result("b"),
            made("c", "edit", "x"),
            result("c"),
            made("d", "read", "y"),
            result("d"),
            made("e", "write", "z"),
            failed,
        ]);
        let kept = Kept::of(&all, Cut { keep_from: 99 }, |_| true);
        assert_eq!(
            (kept.changed, kept.read),
            (vec!["x".to_owned()], vec!["y".to_owned()])
        );
    }

    #[test]
    fn labels_are_told_from_words() {
        for line in ["A) x", "  2. y", "- **B**: z", "Option C: w", "(d) v"] {
            assert!(is_labelled(line), "{line}");
        }
        for line in ["A word", "Then: x", "2024. was", "", "e.g. this"] {
            assert!(!is_labelled(line), "{line}");
        }
    }

    #[test]
    fn a_summary_that_is_none_is_refused() {
        assert!(check("  \n", 1, 100).expect_err("empty").contains("empty"));
        assert!(
            check("long", 120, 100)
                .expect_err("inflated")
                .contains("120")
        );
        check("short", 10, 100).expect("a real one");
    }
}
