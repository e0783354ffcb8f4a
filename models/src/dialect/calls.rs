//! The parser's states inside a call: JSON, XML and Gemma bodies, and what cannot be read.

use super::gemma;
use super::json::{self, Reach, Read, Scan, Trust};
use super::parser::{CALL_END, FENCE, JsonKind, LIST_END, Parser, State, Went};
use super::xml::{Function, Step};

/// Longest tool name, with its call id, in front of Mistral's arguments.
const NAME_BYTES_MAX: usize = 256;
const NO_JSON: &str = "there is no JSON object behind the mark";

impl Parser {
    /// Behind an opening mark: which form does the call have?
    pub(super) fn marked(&mut self, opener: &'static str, last: bool) -> Went {
        if opener == "<function=" {
            self.state = State::Xml {
                start: 0,
                function: Function::default(),
            };
            return Went::On;
        }
        let rest = self.buffer[opener.len()..].trim_start();
        let start = self.buffer.len() - rest.len();
        let function = "<function=";
        self.state = match rest.chars().next() {
            Some('{' | '[') => State::Json {
                start,
                scan: Scan::default(),
                kind: JsonKind::Marked,
            },
            Some('<') if rest.starts_with(function) => State::Xml {
                start,
                function: Function::default(),
            },
            Some('<') if function.starts_with(rest) && !last => {
                self.state = State::Marked { opener };
                return Went::Waits;
            }
            None if !last => {
                self.state = State::Marked { opener };
                return Went::Waits;
            }
            _ if opener == "<|tool_call>" => State::Gemma {
                start,
                scan: gemma::Scan::default(),
            },
            _ if opener == "[TOOL_CALLS]" => return self.mistral_name(start, last),
            // `<|python_tag|>` also opens code for a built-in interpreter: text to us.
            _ if opener == "<|python_tag|>" => {
                self.drop_front(start);
                self.out.boundary();
                State::Text
            }
            _ => State::Unreadable {
                close: CALL_END,
                why: NO_JSON.to_owned(),
            },
        };
        Went::On
    }

    /// `[TOOL_CALLS]name[ARGS]{…}`, with an optional `[CALL_ID]…` between.
    fn mistral_name(&mut self, start: usize, last: bool) -> Went {
        let opener = "[TOOL_CALLS]";
        let rest = &self.buffer[start..];
        // The first bytes decide alone, so that the cut of the stream does not.
        let stop = rest
            .char_indices()
            .find(|(at, c)| matches!(c, '{' | '\n') || *at >= NAME_BYTES_MAX);
        let brace = match stop {
            Some((at, '{')) => at,
            None if !last => {
                self.state = State::Marked { opener };
                return Went::Waits;
            }
            Some(_) | None => {
                self.state = State::Unreadable {
                    close: "\n",
                    why: NO_JSON.to_owned(),
                };
                return Went::On;
            }
        };
        let head = &rest[..brace];
        let name = head.split("[CALL_ID]").next().unwrap_or(head);
        let name = name.split("[ARGS]").next().unwrap_or(name).trim();
        if name.is_empty()
            || !name
                .chars()
                .all(|c| c.is_alphanumeric() || "_-.:".contains(c))
        {
            self.state = State::Unreadable {
                close: "\n",
                why: "there is no tool's name behind the mark".to_owned(),
            };
            return Went::On;
        }
        let from = start + rest.find(name).unwrap_or(0);
        let kind = JsonKind::Arguments {
            name_end: from + name.len(),
        };
        self.state = State::Json {
            start: start + brace,
            scan: Scan::default(),
            kind,
        };
        Went::On
    }

    pub(super) fn json(
        &mut self,
        start: usize,
        mut scan: Scan,
        kind: JsonKind,
        last: bool,
    ) -> Went {
        let markers: &[&str] = match kind {
            JsonKind::Marked | JsonKind::Arguments { .. } => &[CALL_END, "<tool_call>"],
            JsonKind::Bare => &["<tool_call>", FENCE],
            JsonKind::Fenced => &[FENCE],
            JsonKind::Listed => &[LIST_END],
        };
        let trust = match kind {
            JsonKind::Marked | JsonKind::Arguments { .. } => Trust::Marked,
            JsonKind::Bare | JsonKind::Fenced | JsonKind::Listed => Trust::Bare,
        };
        let end = match scan.advance(&self.buffer[start..], markers, last) {
            Reach::End(end) | Reach::Marker(end) => start + end,
            Reach::More if last => return self.json_cut_off(start, kind, trust),
            Reach::More => {
                self.state = State::Json { start, scan, kind };
                return Went::Waits;
            }
        };
        let text = &self.buffer[start..end];
        let read = match kind {
            JsonKind::Arguments { name_end } => self.read_arguments(name_end, text),
            JsonKind::Marked | JsonKind::Bare | JsonKind::Fenced | JsonKind::Listed => {
                json::read(text, &self.tools, trust)
            }
        };
        let behind = match self.behind_json(end, kind, last) {
            Some(behind) => behind,
            None => {
                // The scan is redone: what it found stands at the end of the buffer.
                self.state = State::Json {
                    start,
                    scan: Scan::default(),
                    kind,
                };
                return Went::Waits;
            }
        };
        match read {
            Read::Calls(calls) => {
                self.fence_left |= kind == JsonKind::Fenced && behind == end;
                self.drop_front(behind);
                for (name, arguments) in calls {
                    self.out.call(name, arguments);
                }
                self.state = State::AfterCall;
            }
            Read::Broken(why) => self.give_broken(behind, why),
            Read::Other => {
                // The fence stays open: its end is text as well.
                self.fenced |= kind == JsonKind::Fenced;
                self.give_text(end);
            }
        }
        Went::On
    }

    fn read_arguments(&self, name_end: usize, text: &str) -> Read {
        let name = self.buffer[..name_end]
            .trim_start_matches("[TOOL_CALLS]")
            .trim();
        if !self.tools.iter().any(|tool| tool.name == name) {
            return Read::Broken(json::unknown_tool(name, &self.tools));
        }
        json::read_object(text).map_or_else(Read::Broken, |arguments| {
            Read::Calls([(name.to_owned(), arguments)].into())
        })
    }

    /// Where the text goes on behind a JSON value that ends at `end`: behind its closing mark, if it has one, and
    /// behind surplus brackets before that. `None`: more text is needed to tell.
    fn behind_json(&self, end: usize, kind: JsonKind, last: bool) -> Option<usize> {
        let close = match kind {
            JsonKind::Marked => CALL_END,
            JsonKind::Fenced => FENCE,
            JsonKind::Listed => LIST_END,
            JsonKind::Arguments { .. } | JsonKind::Bare => return Some(end),
        };
        let rest = self.buffer[end..]
            .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '}' | ']'));
        if rest.starts_with(close) {
            return Some(self.buffer.len() - rest.len() + close.len());
        }
        if close.starts_with(rest) && !last {
            return None;
        }
        Some(end)
    }

    /// The reply ended inside the value.
    fn json_cut_off(&mut self, start: usize, kind: JsonKind, trust: Trust) -> Went {
        let text = &self.buffer[start..];
        // An unclosed quote swallows the mark that ends the call: what stands behind it is still read.
        let close = if trust == Trust::Marked {
            text.find(CALL_END)
        } else {
            None
        };
        let end = close.map_or(self.buffer.len(), |at| start + at);
        let read = match close {
            Some(_) => Read::Broken(
                "the call is not valid JSON: a quote or bracket is not closed".to_owned(),
            ),
            None => json::read_cut_off(text, &self.tools, trust),
        };
        match read {
            Read::Broken(why) => self.give_broken(end, why),
            Read::Calls(_) | Read::Other => {
                self.fenced |= kind == JsonKind::Fenced;
                self.give_text(end);
            }
        }
        Went::On
    }

    pub(super) fn other_object(&mut self, mut scan: Scan, last: bool) -> Went {
        match scan.advance(&self.buffer, &["<tool_call>"], last) {
            Reach::End(at) | Reach::Marker(at) => {
                self.give_text(at);
                Went::On
            }
            Reach::More if last => {
                self.give_text(self.buffer.len());
                Went::On
            }
            Reach::More => {
                let given = scan.give();
                self.give_text(given);
                self.state = State::OtherObject { scan };
                Went::Waits
            }
        }
    }

    pub(super) fn xml(&mut self, start: usize, mut function: Function, last: bool) -> Went {
        match function.advance(&self.buffer[start..], last) {
            Step::More => {
                self.state = State::Xml { start, function };
                Went::Waits
            }
            Step::Done(end) => {
                let raw: String = self.buffer.drain(..start + end).collect();
                match function.finish(&self.tools) {
                    Ok((name, arguments)) => self.out.call(name, arguments),
                    Err(why) => self.out.broken(&raw, why),
                }
                self.state = State::AfterCall;
                Went::On
            }
            Step::CutOff => {
                self.give_broken(self.buffer.len(), json::CUT_OFF.to_owned());
                Went::On
            }
            Step::Malformed(why) => {
                self.state = State::Unreadable {
                    close: CALL_END,
                    why: why.to_owned(),
                };
                Went::On
            }
        }
    }

    pub(super) fn gemma(&mut self, start: usize, mut scan: gemma::Scan, last: bool) -> Went {
        let close = "<tool_call|>";
        let Some(end) = scan.advance(&self.buffer[start..]) else {
            if last {
                self.give_broken(self.buffer.len(), json::CUT_OFF.to_owned());
                return Went::On;
            }
            self.state = State::Gemma { start, scan };
            return Went::Waits;
        };
        let read = gemma::read(&self.buffer[start..start + end]).and_then(|(name, value)| {
            if !self.tools.iter().any(|tool| tool.name == name) {
                return Err(json::unknown_tool(&name, &self.tools));
            }
            Ok((name, json::arguments_text(Some(value))?))
        });
        let raw: String = self.buffer.drain(..start + end).collect();
        match read {
            Ok((name, arguments)) => self.out.call(name, arguments),
            Err(why) => self.out.broken(&format!("{raw}{close}"), why),
        }
        self.state = State::AfterCall;
        Went::On
    }

    /// Up to the closing mark it was meant as a call. Without one, a mark that is a token of its own still means a
    /// call; one that is spelled in letters was only mentioned.
    pub(super) fn unreadable(&mut self, close: &'static str, why: String, last: bool) -> Went {
        let end = match self.buffer.find(close) {
            Some(at) => at + close.len(),
            None if !last => {
                self.state = State::Unreadable { close, why };
                return Went::Waits;
            }
            None if close == CALL_END => {
                let opener = self.buffer.find('>').map_or(self.buffer.len(), |at| at + 1);
                self.give_text(opener);
                return Went::On;
            }
            None => self.buffer.len(),
        };
        self.give_broken(end, why);
        Went::On
    }

    fn give_broken(&mut self, end: usize, why: String) {
        let raw: String = self.buffer.drain(..end).collect();
        self.out.broken(&raw, why);
        self.state = State::AfterCall;
    }
}
