//! Compaction: the text that asks for a summary, what of the history stays word for word, and the
//! checks that keep a failed summary from being dressed up as one (law 11).

use super::transcript::{Entry, Record};

/// The message that asks for the summary. It is written to a successor that has seen nothing of the
/// tool results, and it is sent as one more message on the warm prefix.
pub const INSTRUCTION: &str = "\
Stop here. Your context is nearly full and a successor will continue. It has not seen the files or tool \
results. Write it a letter, without calling a tool:
1. Goal: what the user asked for, in their words.
2. Done: files changed, commands run and what they showed (names, paths, numbers, exact errors).
3. Known: facts needed to go on.
4. Open: what remains, the next step, questions asked, options offered with their labels.
Be short and exact.";

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
            | Entry::End { .. } => {}
        }
    }
    Cut { keep_from }
}

/// The user's goal: their newest words before the cut. It survives by structure, not by the model's care.
pub fn goal<'a>(records: &'a [Record], cut: Cut) -> Option<&'a str> {
    let user = |r: &'a Record| match &r.entry {
        Entry::User { text } => Some(text.as_str()),
        Entry::Opened { .. }
        | Entry::OtherModel { .. }
        | Entry::Assistant { .. }
        | Entry::ToolResult { .. }
        | Entry::Correction { .. }
        | Entry::Change { .. }
        | Entry::Compaction { .. }
        | Entry::Step { .. }
        | Entry::End { .. } => None,
    };
    records
        .iter()
        .filter(|r| r.id < cut.keep_from)
        .rev()
        .find_map(user)
}

/// The summary as it re-enters: the goal word for word, the model's letter, where the rest can be
/// read, and the instruction to go on.
pub fn letter(summary: &str, goal: Option<&str>, earlier_entries: u64) -> String {
    let mut text = String::new();
    if let Some(goal) = goal.filter(|goal| !summary.contains(*goal)) {
        text.push_str("The user asked, word for word:\n");
        text.push_str(goal);
        text.push_str("\n\n");
    }
    text.push_str(summary.trim());
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
        let cut = choose_cut(&all, 3, |_| 1);
        assert_eq!(goal(&all, cut), Some("goal"));
    }

    #[test]
    fn the_goal_survives_a_summary_that_forgot_it() {
        let text = letter("I listed files.", Some("Fix the parser, option B"), 7);
        assert!(text.contains("Fix the parser, option B") && text.contains("Entries 0 to 6"));
        let text = letter("Goal: Fix it. Done: nothing.", Some("Fix it."), 7);
        assert_eq!(text.matches("Fix it.").count(), 1);
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
