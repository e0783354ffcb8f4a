//! The frozen sections above History. Each is written once and replayed byte for byte; when its
//! source changes, a call of a declared tool and its result in the newest turn say what it is now and
//! that it wins (law 5). Only a compaction writes the sections anew.

use engine::Layer;
use serde::{Deserialize, Serialize};

use super::memory_tools;
use super::transcript::{Call, Entry};

/// A named part of the prompt above History.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub name: String,
    pub layer: Layer,
    pub text: String,
    /// The file it was read from, relative to the workspace, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What was sent, and what the sources say now.
pub struct Frozen {
    /// As sent in the prompt.
    sent: Vec<Section>,
    /// The newest text the model was told of: `sent`, or a later change note.
    told: Vec<Section>,
}

impl Frozen {
    pub fn new(sections: Vec<Section>) -> Frozen {
        Frozen {
            told: sections.clone(),
            sent: sections,
        }
    }

    /// Rebuilt from a transcript: the sections of the last opening or compaction, and the changes since.
    pub fn replay<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Option<Frozen> {
        let mut frozen: Option<Frozen> = None;
        for entry in entries {
            match entry {
                Entry::Opened { sections, .. } | Entry::Compaction { sections, .. } => {
                    frozen = Some(Frozen::new(sections.clone()));
                }
                Entry::Change {
                    section, result, ..
                } => {
                    if let Some(frozen) = &mut frozen {
                        frozen.note_told(section, result);
                    }
                }
                Entry::User { .. }
                | Entry::OtherModel { .. }
                | Entry::Assistant { .. }
                | Entry::ToolResult { .. }
                | Entry::Correction { .. }
                | Entry::Step { .. }
                | Entry::End { .. }
                | Entry::FileChanged { .. }
                | Entry::Given { .. }
                | Entry::Undone { .. } => {}
            }
        }
        frozen
    }

    /// The sections to send, byte for byte as they were first sent.
    pub fn sent(&self) -> &[Section] {
        &self.sent
    }

    /// One change entry for every section whose source now differs from what the model was last told.
    pub fn changes(
        &mut self,
        now: &[Section],
        next_call_id: &mut dyn FnMut() -> String,
    ) -> Vec<Entry> {
        let mut entries = Vec::new();
        for section in now {
            let told = self.told.iter().position(|t| t.name == section.name);
            if told.is_some_and(|i| self.told[i].text == section.text) {
                continue;
            }
            let result = change_text(&section.name, &section.text);
            entries.push(change(section, next_call_id(), result));
            self.is_told(section.clone());
        }
        for told in &mut self.told {
            let gone = now.iter().all(|section| section.name != told.name);
            if !gone || told.text.is_empty() {
                continue;
            }
            let result = format!(
                "[`{}` has been removed since this conversation began. The earlier version holds no more.]\n",
                told.name
            );
            entries.push(change(told, next_call_id(), result));
            told.text.clear();
        }
        entries
    }

    /// The model knows already what `section` is now.
    pub fn is_told(&mut self, section: Section) {
        match self.told.iter_mut().find(|t| t.name == section.name) {
            Some(told) => *told = section,
            None => self.told.push(section),
        }
    }

    fn note_told(&mut self, name: &str, result: &str) {
        let text = result
            .split_once('\n')
            .map_or("", |(_, text)| text)
            .to_owned();
        match self.told.iter_mut().find(|t| t.name == name) {
            Some(told) => told.text = text,
            None => self.told.push(Section {
                name: name.to_owned(),
                layer: Layer::Instructions,
                text,
                file: None,
            }),
        }
    }
}

/// As if the model had read the section's source again.
fn change(section: &Section, call_id: String, result: String) -> Entry {
    let file = section.file.as_deref().unwrap_or(&section.name);
    let (name, arguments) = match section.layer {
        Layer::Memory => (memory_tools::SEARCH, serde_json::json!({ "query": "*" })),
        _ => ("read", serde_json::json!({ "path": file })),
    };
    Entry::Change {
        section: section.name.clone(),
        call: Call {
            id: call_id,
            name: name.into(),
            arguments: arguments.to_string(),
        },
        result,
    }
}

/// The first line is the note, the rest the text that now holds.
fn change_text(name: &str, text: &str) -> String {
    format!(
        "[`{name}` has changed since this conversation began. What follows replaces the earlier version and wins over it.]\n{text}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &str, text: &str) -> Section {
        Section {
            name: name.into(),
            layer: Layer::Instructions,
            text: text.into(),
            file: Some("AGENTS.md".into()),
        }
    }

    /// A rule file edited in the middle of a conversation used to rewrite the system prompt, and with
    /// it every cached token behind it.
    #[test]
    fn a_source_that_is_gone_is_told_once_and_so_is_its_return() {
        let mut frozen = Frozen::new(vec![section("rules", "tabs")]);
        let mut next = || "c".to_owned();
        let gone = frozen.changes(&[], &mut next);
        let [Entry::Change { result, .. }] = &gone[..] else {
            panic!("{gone:?}")
        };
        assert!(result.contains("removed"), "{result}");
        assert_eq!(frozen.changes(&[], &mut next), []);
        let opened = Entry::Opened {
            version: 1,
            model: "m".into(),
            workspace: "w".into(),
            sections: vec![section("rules", "tabs")],
        };
        let mut replayed = Frozen::replay([&opened, &gone[0]]).expect("opened");
        assert_eq!(replayed.changes(&[], &mut next), []);
        assert_eq!(
            replayed
                .changes(&[section("rules", "tabs")], &mut next)
                .len(),
            1
        );
    }

    #[test]
    fn a_changed_source_is_told_once_and_never_rewritten() {
        let mut frozen = Frozen::new(vec![
            section("instructions", "be kind"),
            section("rules", "tabs"),
        ]);
        let mut n = 0;
        let mut next = || {
            n += 1;
            format!("change_{n}")
        };
        let now = [
            section("instructions", "be kind"),
            section("rules", "spaces\nnot tabs"),
        ];
        let told = frozen.changes(&now, &mut next);
        assert_eq!(told.len(), 1);
        let Entry::Change {
            section: name,
            call,
            result,
        } = &told[0]
        else {
            panic!("a change")
        };
        assert_eq!((name.as_str(), call.name.as_str()), ("rules", "read"));
        assert!(result.ends_with("spaces\nnot tabs") && result.contains("wins"));
        assert_eq!(frozen.sent()[1].text, "tabs", "what was sent stays");
        assert!(frozen.changes(&now, &mut next).is_empty(), "told once");

        let opened = Entry::Opened {
            version: 1,
            model: String::new(),
            workspace: String::new(),
            sections: frozen.sent().to_vec(),
        };
        let mut replayed = Frozen::replay([&opened, &told[0]]).expect("opened");
        assert!(
            replayed.changes(&now, &mut next).is_empty(),
            "a resumed session remembers what was told"
        );
        assert_eq!(replayed.sent(), frozen.sent());
    }
}
