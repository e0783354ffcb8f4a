//! What the model sees, derived from the records: the frozen sections, the last summary, and the
//! turns since. Between two compactions it only grows at its end (law 3).

use super::pieces::Section;
use super::transcript::{Call, Entry, Record};

/// One turn as a model reads it.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    User {
        text: String,
    },
    Assistant {
        text: String,
        calls: Vec<Call>,
        sampled: Vec<u32>,
    },
    Result {
        call: String,
        name: String,
        text: String,
    },
}

/// A conversation as the next call sends it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub sections: Vec<Section>,
    pub turns: Vec<Turn>,
}

impl View {
    /// The view of a whole session.
    pub fn of(records: &[Record]) -> View {
        let mut view = View::default();
        let last_compaction = records
            .iter()
            .rposition(|r| matches!(r.entry, Entry::Compaction { .. }));
        let start = match last_compaction.map(|i| (i, &records[i])) {
            Some((
                i,
                Record {
                    id,
                    entry:
                        Entry::Compaction {
                            summary,
                            keep_from,
                            sections,
                            ..
                        },
                    ..
                },
            )) => {
                view.sections = sections.clone();
                view.push_summary(*id, summary);
                // Kept word for word: they come before the compaction's own record.
                let kept = records[..i]
                    .iter()
                    .filter(|r| r.id >= *keep_from || matches!(r.entry, Entry::OtherModel { .. }));
                kept.for_each(|r| view.push(r));
                i + 1
            }
            Some(_) | None => 0,
        };
        records[start..].iter().for_each(|r| view.push(r));
        view
    }

    /// Another model reads from here on: its turns so far are words.
    fn forget_sampled(&mut self) {
        for turn in &mut self.turns {
            if let Turn::Assistant { sampled, .. } = turn {
                sampled.clear();
            }
        }
    }

    fn push(&mut self, record: &Record) {
        let id = record.id;
        match &record.entry {
            Entry::Opened { sections, .. } => self.sections = sections.clone(),
            Entry::User { text } | Entry::Correction { text } => {
                self.turns.push(Turn::User { text: text.clone() });
            }
            Entry::Assistant {
                text,
                calls,
                sampled,
                ..
            } => self.turns.push(Turn::Assistant {
                text: text.clone(),
                calls: calls.clone(),
                sampled: sampled.clone(),
            }),
            Entry::ToolResult { call, name, output } => self.turns.push(Turn::Result {
                call: call.clone(),
                name: name.clone(),
                text: output.text.clone(),
            }),
            Entry::Change { call, result, .. } | Entry::Given { call, result } => {
                self.push_pair(call.clone(), result.clone())
            }
            Entry::Compaction { summary, .. } => self.push_summary(id, summary),
            Entry::OtherModel { .. } => self.forget_sampled(),
            Entry::Step { .. }
            | Entry::End { .. }
            | Entry::FileChanged { .. }
            | Entry::Undone { .. } => {}
        }
    }

    /// A summary re-enters as a call of the declared `transcript` tool and its result.
    fn push_summary(&mut self, id: u64, summary: &str) {
        let call = Call {
            id: format!("summary{id:04}"),
            name: "transcript".into(),
            arguments: format!("{{\"from\": 0, \"to\": {}}}", id.saturating_sub(1)),
        };
        self.push_pair(call, summary.to_owned());
    }

    /// A call that the model did not make, and its result. A history that starts with it needs a
    /// user's words first: templates refuse an assistant turn at the start.
    fn push_pair(&mut self, call: Call, result: String) {
        if self.turns.is_empty() {
            self.turns.push(Turn::User {
                text: "Continue.".into(),
            });
        }
        let (id, name) = (call.id.clone(), call.name.clone());
        self.turns.push(Turn::Assistant {
            text: String::new(),
            calls: vec![call],
            sampled: Vec::new(),
        });
        self.turns.push(Turn::Result {
            call: id,
            name,
            text: result,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::transcript::ToolOutput;
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

    fn answer(text: &str) -> Entry {
        Entry::Assistant {
            text: text.into(),
            thinking: String::new(),
            calls: vec![],
            sampled: vec![7],
            cut: false,
        }
    }

    /// Ids of one vocabulary were sent to a model of another: words it never saw, or an unknown token.
    #[test]
    fn another_model_reads_the_words_and_not_the_ids() {
        let opened = Entry::Opened {
            version: 1,
            model: "m".into(),
            workspace: "w".into(),
            sections: vec![],
        };
        let other = Entry::OtherModel { model: "n".into() };
        let all = records(vec![
            opened,
            user("a"),
            answer("b"),
            other,
            user("c"),
            answer("d"),
        ]);
        let turns = View::of(&all).turns;
        let sampled = turns.into_iter().filter_map(|turn| match turn {
            Turn::Assistant { sampled, .. } => Some(sampled),
            Turn::User { .. } | Turn::Result { .. } => None,
        });
        assert_eq!(sampled.collect::<Vec<_>>(), [vec![], vec![7]]);
    }

    /// Law 3, at the level of turns: until a compaction, each view begins with the one before.
    #[test]
    fn a_view_grows_at_its_end() {
        let output = ToolOutput {
            text: "ok".into(),
            ok: true,
            artifact: None,
        };
        let entries = vec![
            Entry::Opened {
                version: 1,
                model: "m".into(),
                workspace: "w".into(),
                sections: vec![],
            },
            user("a"),
            answer("b"),
            Entry::Step {
                prompt_tokens: 1,
                reused: 0,
                computed: 1,
                generated: 1,
                ttft_ms: 1.0,
                trace: None,
            },
            Entry::ToolResult {
                call: "c".into(),
                name: "bash".into(),
                output,
            },
            Entry::Correction {
                text: "again".into(),
            },
            Entry::End {
                outcome: "answered".into(),
            },
            user("d"),
        ];
        let all = records(entries);
        let mut before = View::default();
        for n in 1..=all.len() {
            let view = View::of(&all[..n]);
            assert_eq!(
                view.turns[..before.turns.len()],
                before.turns[..],
                "{n} records"
            );
            before = view;
        }
        assert_eq!(before.turns.len(), 5);
    }

    #[test]
    fn after_a_compaction_come_the_summary_what_was_kept_and_what_followed() {
        let all = records(vec![
            user("goal"),
            answer("one"),
            user("newest"),
            Entry::Compaction {
                summary: "S".into(),
                keep_from: 2,
                tokens_before: 9,
                tokens_after: 3,
                sections: vec![],
            },
            answer("after"),
        ]);
        let view = View::of(&all);
        let shapes: Vec<String> = view
            .turns
            .iter()
            .map(|turn| match turn {
                Turn::User { text } => format!("user {text}"),
                Turn::Assistant { calls, text, .. } => {
                    format!("assistant {text}{}", calls.first().map_or("", |c| &c.name))
                }
                Turn::Result { text, .. } => format!("result {text}"),
            })
            .collect();
        let expected = [
            "user Continue.",
            "assistant transcript",
            "result S",
            "user newest",
            "assistant after",
        ];
        assert_eq!(shapes, expected);
    }
}
