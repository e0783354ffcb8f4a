//! One memory, as a Markdown file with front matter: read by people, changed by people.

use std::fmt::Write as _;

use serde::Serialize;

/// Where a memory came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// The user said these words; the text is what the model made of them.
    User { quote: String },
    /// The model noted it, after these calls: what a file or a page says is not the user's word.
    Noted { after: Vec<String> },
    /// A person wrote the file.
    Person,
}

/// Something remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub id: String,
    pub text: String,
    pub origin: Origin,
    /// 1 to 5.
    pub importance: u8,
    pub replaces: Option<String>,
    /// The memory that took its place.
    pub replaced_by: Option<String>,
    /// Seconds since 1970.
    pub time: u64,
}

const FENCE: &str = "---";

impl Memory {
    /// Reads a file; `id` is its name.
    pub fn parse(id: &str, text: &str) -> Result<Memory, String> {
        let begins = text.strip_prefix(FENCE).and_then(|t| t.strip_prefix('\n'));
        let Some((front, body)) = begins.and_then(|t| t.split_once("\n---\n")) else {
            return Err("it has no front matter between two lines of ---".into());
        };
        let mut memory = Memory {
            id: id.to_owned(),
            text: body.trim().to_owned(),
            origin: Origin::Person,
            importance: 3,
            replaces: None,
            replaced_by: None,
            time: 0,
        };
        let (mut origin, mut quote, mut after) = ("person", None, Vec::new());
        for line in front.lines().filter(|line| !line.trim().is_empty()) {
            let Some((key, value)) = line.split_once(':') else {
                return Err(format!("`{line}` is no `key: value`"));
            };
            let value = value.trim();
            match key.trim() {
                "origin" => origin = value,
                "quote" => quote = Some(value.to_owned()),
                "after" => after.push(value.to_owned()),
                "importance" => match value.parse() {
                    Ok(n @ 1..=5) => memory.importance = n,
                    _ => return Err(format!("importance {value}: need 1 to 5")),
                },
                "replaces" => memory.replaces = Some(value.to_owned()),
                "time" => {
                    let time: jiff::Timestamp =
                        value.parse().map_err(|e| format!("time {value}: {e}"))?;
                    memory.time = u64::try_from(time.as_second()).unwrap_or(0);
                }
                // A person's own.
                _ => {}
            }
        }
        memory.origin = match (origin, quote) {
            ("user", Some(quote)) => Origin::User { quote },
            ("user", None) => return Err("origin user needs a quote: the user's own words".into()),
            ("noted", _) => Origin::Noted { after },
            ("person", _) => Origin::Person,
            (other, _) => return Err(format!("origin {other}: need user, noted or person")),
        };
        match memory.text.is_empty() {
            true => Err("it has no text".into()),
            false => Ok(memory),
        }
    }

    pub fn to_file(&self) -> String {
        let mut text = format!("{FENCE}\n");
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key}: {}", one_line(value));
        };
        match &self.origin {
            Origin::User { quote } => {
                line("origin", "user");
                line("quote", quote);
            }
            Origin::Noted { after } => {
                line("origin", "noted");
                after.iter().for_each(|call| line("after", call));
            }
            Origin::Person => line("origin", "person"),
        }
        line("time", &timestamp(self.time));
        line("importance", &self.importance.to_string());
        if let Some(old) = &self.replaces {
            line("replaces", old);
        }
        let _ = write!(text, "{FENCE}\n{}\n", self.text);
        text
    }

    /// As the model sees it: one line, with where it came from.
    pub fn line(&self) -> String {
        let day = timestamp(self.time);
        let day = day.split('T').next().unwrap_or_default();
        let from = match &self.origin {
            Origin::User { quote } => format!("when the user said {:?}", one_line(quote)),
            Origin::Noted { after } if after.is_empty() => "noted by the model".into(),
            Origin::Noted { after } => {
                format!(
                    "noted after {}, not the user's word",
                    one_line(&after.join(", "))
                )
            }
            Origin::Person => "written by the user".into(),
        };
        format!("- {} ({day}, {from}): {}", self.id, one_line(&self.text))
    }
}

/// A text cannot pretend to be a line of ours.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn timestamp(seconds: u64) -> String {
    let at = i64::try_from(seconds).unwrap_or_default();
    jiff::Timestamp::from_second(at)
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_is_read_as_it_was_written() {
        let memory = Memory {
            id: "m4".into(),
            text: "Two lines.\n---\nThe second.".into(),
            origin: Origin::User {
                quote: "I take my tea\nwithout milk".into(),
            },
            importance: 5,
            replaces: Some("m2".into()),
            replaced_by: None,
            time: 1_700_000_000,
        };
        let text = memory.to_file();
        let mut read = Memory::parse("m4", &text).unwrap();
        assert_eq!(
            read.origin,
            Origin::User {
                quote: "I take my tea without milk".into()
            }
        );
        read.origin = memory.origin.clone();
        assert_eq!(read, memory);
        let line = memory.line();
        assert!(
            line.starts_with("- m4 (2023-11-14, when the user said") && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        for (text, why) in [
            ("hello", "front matter"),
            ("---\nimportance: 9\n---\nx\n", "1 to 5"),
            ("---\norigin: user\n---\nx\n", "quote"),
            ("---\norigin: god\n---\nx\n", "need user"),
            ("---\ntime: soon\n---\nx\n", "time soon"),
            ("---\nrubbish\n---\nx\n", "key: value"),
            ("---\norigin: person\n---\n\n", "no text"),
        ] {
            let error = Memory::parse("m1", text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let own = "---\ntags: home\n---\nThe key is under the mat.\n";
        assert_eq!(Memory::parse("m1", own).unwrap().origin, Origin::Person);
    }
}
