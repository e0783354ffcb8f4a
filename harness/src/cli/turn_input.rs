//! What a person types in the chat, line by line, made into turns and commands.
//!
//! Invariant: no line is lost; a block that is still open at the end of the input is sent as it is.

use std::io::BufRead;
use std::path::Path;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use crate::error::{Error, Result};
use crate::limits::HISTORY_LINES_MAX;
use crate::store::nearest;

/// Lines, from a terminal or from anything else.
pub trait Lines {
    /// The next line without its end, after showing `prompt` where there is someone to see it.
    fn next(&mut self, prompt: &str) -> Result<Line>;
}

pub enum Line {
    Text(String),
    /// Bytes that are no text; the line is gone, the chat goes on.
    NotText,
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// A terminal with editing and a history that outlives the session.
pub struct TerminalLines {
    editor: Editor<(), FileHistory>,
    history: std::path::PathBuf,
}

impl TerminalLines {
    pub fn open(data_dir: &Path) -> Result<TerminalLines> {
        let trouble =
            |error: ReadlineError| Error::device(format!("cannot use the terminal: {error}"));
        let config = Config::builder()
            .max_history_size(HISTORY_LINES_MAX)
            .map_err(trouble)?
            .auto_add_history(true)
            .build();
        let mut editor = Editor::with_config(config).map_err(trouble)?;
        let history = data_dir.join("chat-history.txt");
        // No history yet, or one that cannot be read: the chat works without.
        let _ = std::fs::create_dir_all(data_dir);
        let _ = editor.load_history(&history);
        Ok(TerminalLines { editor, history })
    }
}

impl Lines for TerminalLines {
    fn next(&mut self, prompt: &str) -> Result<Line> {
        match self.editor.readline(prompt) {
            Ok(text) => {
                let _ = self.editor.append_history(&self.history);
                Ok(Line::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                Ok(Line::NotText)
            }
            Err(error) => Err(Error::device(format!(
                "cannot read from the terminal: {error}"
            ))),
        }
    }
}

/// Any stream: one turn a line.
pub struct PlainLines<R> {
    pub reader: R,
}

impl<R: BufRead> Lines for PlainLines<R> {
    fn next(&mut self, _prompt: &str) -> Result<Line> {
        let mut bytes = Vec::new();
        let count = self
            .reader
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Error::device(format!("cannot read standard input: {error}")))?;
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(match std::str::from_utf8(line) {
            Ok(_) if count == 0 => Line::End,
            Ok(text) => Line::Text(text.to_owned()),
            Err(_) => Line::NotText,
        })
    }
}

/// What was typed, complete.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    Turn(String),
    Command(ChatCommand),
    /// A command that there is not; the text says which there are.
    Mistyped(String),
    Interrupted,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatCommand {
    Help,
    Context,
    Plan(String),
    New,
    Undo,
    System(String),
    Save(String),
    Quit,
}

/// The commands, with what `/help` says of them.
pub const COMMANDS: [(&str, &str); 9] = [
    ("/help", "this list"),
    (
        "/context",
        "the pieces of the conversation so far, and how much of the context they take",
    ),
    (
        "/plan TEXT",
        "what sending TEXT would reuse and compute, without sending it",
    ),
    ("/new", "a new conversation with the same instructions"),
    ("/undo", "take back the last turn and its answer"),
    (
        "/system TEXT",
        "new instructions, and a new conversation; without TEXT: show them",
    ),
    ("/save FILE", "write the conversation to a Markdown file"),
    ("/quit", "end; Ctrl-D does too"),
    ("//...", "a turn that begins with a slash"),
];

const FENCE: &str = "\"\"\"";

/// The next turn or command. A line that ends in `\` goes on in the next one; between two lines of `"""`
/// anything goes.
pub fn read(lines: &mut dyn Lines) -> Result<Typed> {
    let first = match lines.next("> ")? {
        Line::Text(text) => text,
        Line::NotText => return Ok(not_text()),
        Line::Interrupted => return Ok(Typed::Interrupted),
        Line::End => return Ok(Typed::End),
    };
    if let Some(rest) = first.trim_start().strip_prefix(FENCE) {
        return read_fenced(lines, rest);
    }
    let mut text = String::new();
    let mut line = first;
    while let Some(kept) = line.strip_suffix('\\') {
        text.push_str(kept);
        text.push('\n');
        line = match lines.next(". ")? {
            Line::Text(next) => next,
            Line::NotText => return Ok(not_text()),
            Line::Interrupted => return Ok(Typed::Interrupted),
            Line::End => String::new(),
        };
    }
    text.push_str(&line);
    Ok(classify(text))
}

fn read_fenced(lines: &mut dyn Lines, rest_of_first: &str) -> Result<Typed> {
    let mut text = String::new();
    let mut line = rest_of_first.to_owned();
    loop {
        if let Some(last) = line.trim_end().strip_suffix(FENCE) {
            text.push_str(last);
            break;
        }
        text.push_str(&line);
        if !(text.is_empty() && line.is_empty()) {
            text.push('\n');
        }
        line = match lines.next(". ")? {
            Line::Text(next) => next,
            Line::NotText => return Ok(not_text()),
            Line::Interrupted => return Ok(Typed::Interrupted),
            Line::End => break,
        };
    }
    // The line feed before the closing fence belongs to the fence.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Typed::Turn(text.to_owned()))
}

fn not_text() -> Typed {
    Typed::Mistyped("that was not valid UTF-8 and was not sent; type it again".to_owned())
}

fn classify(text: String) -> Typed {
    let Some(command) = text.trim_start().strip_prefix('/') else {
        return Typed::Turn(text);
    };
    if command.starts_with('/') {
        return Typed::Turn(command.to_owned());
    }
    let (name, rest) = command
        .split_once(char::is_whitespace)
        .unwrap_or((command, ""));
    let rest = rest.trim().to_owned();
    Typed::Command(match name {
        "help" | "?" => ChatCommand::Help,
        "context" => ChatCommand::Context,
        "plan" => ChatCommand::Plan(rest),
        "new" => ChatCommand::New,
        "undo" => ChatCommand::Undo,
        "system" => ChatCommand::System(rest),
        "save" => ChatCommand::Save(unquoted(&rest).to_owned()),
        "quit" | "exit" | "bye" => ChatCommand::Quit,
        _ => {
            let known = COMMANDS
                .iter()
                .filter_map(|(name, _)| name.split(' ').next());
            let near = nearest(&format!("/{name}"), known);
            let hint = near
                .first()
                .map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Typed::Mistyped(format!(
                "there is no command /{name}{hint} (/help lists them; begin with // to say something that starts with a slash)"
            ));
        }
    })
}

/// A file's name as a shell would take it.
fn unquoted(text: &str) -> &str {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &str) -> Vec<Typed> {
        let mut lines = PlainLines {
            reader: input.as_bytes(),
        };
        let mut typed = Vec::new();
        loop {
            match read(&mut lines).unwrap() {
                Typed::End => return typed,
                other => typed.push(other),
            }
        }
    }

    fn turn(text: &str) -> Typed {
        Typed::Turn(text.to_owned())
    }

    #[test]
    fn turns_and_commands() {
        let cases = [
            ("one\ntwo", vec![turn("one"), turn("two")]),
            ("crlf\r\n", vec![turn("crlf")]),
            ("a\\\nb\\\nc\nd\n", vec![turn("a\nb\nc"), turn("d")]),
            ("open\\", vec![turn("open\n")]),
            (
                "\"\"\"\nfn a() {\n\n}\n\"\"\"\nnext",
                vec![turn("fn a() {\n\n}"), turn("next")],
            ),
            ("\"\"\"one line\"\"\"", vec![turn("one line")]),
            (
                "\"\"\"never closed\nbut kept",
                vec![turn("never closed\nbut kept")],
            ),
            ("/quit", vec![Typed::Command(ChatCommand::Quit)]),
            (
                "/system be  brief ",
                vec![Typed::Command(ChatCommand::System("be  brief".into()))],
            ),
            ("//etc/hosts", vec![turn("/etc/hosts")]),
            ("  /quit", vec![Typed::Command(ChatCommand::Quit)]),
            (
                "/save \"my notes.md\"",
                vec![Typed::Command(ChatCommand::Save("my notes.md".into()))],
            ),
            ("", vec![]),
        ];
        for (input, expect) in cases {
            assert_eq!(all(input), expect, "{input:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_text_costs_that_line_only() {
        let mut lines = PlainLines {
            reader: &b"caf\xe9\nnext\n"[..],
        };
        assert!(matches!(read(&mut lines).unwrap(), Typed::Mistyped(why) if why.contains("UTF-8")));
        assert_eq!(read(&mut lines).unwrap(), turn("next"));
        assert_eq!(read(&mut lines).unwrap(), Typed::End);
    }

    #[test]
    fn a_mistyped_command_is_not_sent_to_the_model() {
        let typed = all("/contxt");
        let [Typed::Mistyped(why)] = &typed[..] else {
            panic!("{typed:?}")
        };
        assert!(why.contains("did you mean /context"), "{why}");
    }
}
