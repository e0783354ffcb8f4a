//! The streaming parser. Text is buffered until it is certain what it is; certainty depends on the text alone,
//! never on how it was cut, so any chunking gives the same events.

use super::emit::Emitter;
use super::json::{self, Opening, Reach, Read, Scan, Trust};
use super::xml::{Function, Step};
use super::{Event, ToolDialect, ToolSpec, gemma};

const CALL_END: &str = "</tool_call>";
/// Closing marks that may be left over behind a call.
const LEFTOVERS: [&str; 2] = [CALL_END, "<tool_call|>"];
/// Longest tool name, with its call id, in front of Mistral's arguments.
const NAME_BYTES_MAX: usize = 256;
const NO_JSON: &str = "there is no JSON object behind the mark";
const FENCE: &str = "```";
/// A fence whose first line is longer is no fence around a call.
const FENCE_LINE_MAX: usize = 32;

/// Reads one reply.
#[derive(Debug)]
pub struct Parser {
    dialect: ToolDialect,
    tools: Vec<ToolSpec>,
    /// What came and was not yet given out; states look at its beginning.
    buffer: String,
    state: State,
    out: Emitter,
    /// Only white space stands before the buffer on its line.
    line_start: bool,
    /// Inside a code fence, where bare JSON is an example.
    fenced: bool,
    /// A call opened a fence that is not closed yet.
    fence_left: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// Behind a call: separators, leftovers, or the next call.
    AfterCall,
    Thinking {
        close: &'static str,
        first: bool,
    },
    /// The buffer begins with `opener`, then white space.
    Marked {
        opener: &'static str,
    },
    /// `start` is where the JSON begins in the buffer.
    Json {
        start: usize,
        scan: Scan,
        kind: JsonKind,
    },
    /// A bare object that is no call, passed on to its end.
    OtherObject {
        scan: Scan,
    },
    Xml {
        start: usize,
        function: Function,
    },
    Gemma {
        start: usize,
        scan: gemma::Scan,
    },
    /// A call that cannot be read: it ends behind `close`.
    Unreadable {
        close: &'static str,
        why: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonKind {
    /// Behind an opening mark.
    Marked,
    /// Behind `[TOOL_CALLS]name[ARGS]`, whose name ends before `name_end`.
    Arguments {
        name_end: usize,
    },
    Bare,
    /// Bare, inside a ``` fence.
    Fenced,
}

/// What a step did.
#[derive(PartialEq, Eq)]
enum Went {
    On,
    /// More text is needed, or the buffer is used up.
    Waits,
}

impl Parser {
    /// `opening` is what the template wrote to open the reply; a thinking block opened there is open here.
    /// Without tools nothing is a call.
    pub fn new(dialect: ToolDialect, tools: Vec<ToolSpec>, opening: &str) -> Parser {
        let opened = dialect.thinking().iter().find(|(open, close)| {
            let from = opening.rfind(open.trim_end());
            from.is_some_and(|from| !opening[from..].contains(close))
        });
        let state = opened.map_or(State::Text, |(_, close)| State::Thinking {
            close,
            first: true,
        });
        Parser {
            dialect,
            tools,
            buffer: String::new(),
            state,
            out: Emitter::default(),
            line_start: true,
            fenced: false,
            fence_left: false,
        }
    }

    /// Takes the next piece of text; gives what became certain.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.buffer.push_str(text);
        self.run(false);
        self.out.take()
    }

    /// The reply is over; gives the rest.
    pub fn finish(&mut self) -> Vec<Event> {
        self.run(true);
        self.out.finish();
        self.out.take()
    }

    fn run(&mut self, last: bool) {
        while !self.buffer.is_empty() {
            let state = std::mem::replace(&mut self.state, State::Text);
            let went = match state {
                State::Text => self.text(last),
                State::AfterCall => self.after_call(last),
                State::Thinking { close, first } => self.thinking(close, first, last),
                State::Marked { opener } => self.marked(opener, last),
                State::Json { start, scan, kind } => self.json(start, scan, kind, last),
                State::OtherObject { scan } => self.other_object(scan, last),
                State::Xml { start, function } => self.xml(start, function, last),
                State::Gemma { start, scan } => self.gemma(start, scan, last),
                State::Unreadable { close, why } => self.unreadable(close, why, last),
            };
            if went == Went::Waits {
                break;
            }
        }
    }

    /// Removes `length` bytes from the buffer and gives them out as text.
    fn give_text(&mut self, length: usize) {
        let text: String = self.buffer.drain(..length).collect();
        for c in text.chars() {
            self.line_start = c == '\n' || (self.line_start && c.is_whitespace());
        }
        self.out.text(&text);
    }

    fn drop_front(&mut self, length: usize) {
        self.buffer.drain(..length);
    }

    fn calls_possible(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Looks for whatever is not text, gives out what stands before it.
    fn text(&mut self, last: bool) -> Went {
        let mut line_start = self.line_start;
        let mut texted = self.out.has_text();
        for (at, c) in self.buffer.char_indices() {
            let rest = &self.buffer[at..];
            match self.special(rest, Before { line_start, texted }, last) {
                Special::Nothing => {}
                Special::Unknown => {
                    self.give_text(at);
                    return Went::Waits;
                }
                Special::State(state) => {
                    self.give_text(at);
                    self.state = state;
                    return Went::On;
                }
                Special::Fence => {
                    let end = at + FENCE.len();
                    self.give_text(end);
                    self.fenced = !self.fenced;
                    return Went::On;
                }
            }
            line_start = c == '\n' || (line_start && c.is_whitespace());
            texted |= !c.is_whitespace();
        }
        self.give_text(self.buffer.len());
        Went::Waits
    }

    /// What begins at `rest`.
    fn special(&self, rest: &str, before: Before, last: bool) -> Special {
        let Some(first) = rest.chars().next() else {
            return Special::Nothing;
        };
        let mut unknown = false;
        if matches!(first, '<' | '[') {
            if !before.texted {
                for (open, close) in self.dialect.thinking() {
                    if rest.starts_with(open) {
                        return Special::State(State::Thinking { close, first: true });
                    }
                    unknown |= open.starts_with(rest);
                }
            }
            if self.calls_possible() {
                for opener in self.dialect.openers() {
                    if rest.starts_with(opener) {
                        return Special::State(State::Marked { opener });
                    }
                    unknown |= opener.starts_with(rest);
                }
            }
        }
        if unknown && !last {
            return Special::Unknown;
        }
        if before.line_start && first == '`' {
            return self.fence(rest, last);
        }
        if before.line_start && matches!(first, '{' | '[') && self.calls_possible() && !self.fenced
        {
            return match json::opening(rest) {
                Opening::Unknown if !last => Special::Unknown,
                Opening::Unknown | Opening::NotJson => Special::Nothing,
                Opening::OtherObject => Special::State(State::OtherObject {
                    scan: Scan::default(),
                }),
                Opening::MaybeCall => Special::State(State::Json {
                    start: 0,
                    scan: Scan::default(),
                    kind: JsonKind::Bare,
                }),
            };
        }
        Special::Nothing
    }

    /// `rest` begins a line with a back quote.
    fn fence(&self, rest: &str, last: bool) -> Special {
        if !rest.starts_with(FENCE) {
            return if FENCE.starts_with(rest) && !last {
                Special::Unknown
            } else {
                Special::Nothing
            };
        }
        if self.fenced || !self.calls_possible() {
            return Special::Fence;
        }
        let Some(line) = rest.find('\n') else {
            let short = rest.len() <= FENCE_LINE_MAX && !last;
            return if short {
                Special::Unknown
            } else {
                Special::Fence
            };
        };
        let language = rest[FENCE.len()..line].trim();
        let inner = rest[line..].trim_start();
        let start = rest.len() - inner.len();
        if !matches!(language, "" | "json" | "JSON" | "tool_call") || line > FENCE_LINE_MAX {
            return Special::Fence;
        }
        if inner.is_empty() && !last {
            return Special::Unknown;
        }
        let opening = if inner.starts_with(['{', '[']) {
            json::opening(inner)
        } else {
            Opening::NotJson
        };
        match opening {
            Opening::Unknown if !last => Special::Unknown,
            Opening::MaybeCall => Special::State(State::Json {
                start,
                scan: Scan::default(),
                kind: JsonKind::Fenced,
            }),
            Opening::Unknown | Opening::NotJson | Opening::OtherObject => Special::Fence,
        }
    }

    fn thinking(&mut self, close: &'static str, first: bool, last: bool) -> Went {
        let opened = self
            .dialect
            .thinking()
            .iter()
            .find(|(_, their)| *their == close)
            .map_or("", |(open, _)| open);
        if first && !opened.is_empty() {
            let begun = self.buffer.trim_start();
            if begun.starts_with(opened) {
                let space = self.buffer.len() - begun.len();
                self.drop_front(space + opened.len());
                self.state = State::Thinking { close, first: true };
                self.out.boundary();
                return Went::On;
            }
            if opened.starts_with(begun) && !last {
                self.state = State::Thinking { close, first };
                return Went::Waits;
            }
        }
        if let Some(at) = self.buffer.find(close) {
            let text: String = self.buffer.drain(..at).collect();
            self.out.thinking(&text, first);
            self.drop_front(close.len());
            self.out.boundary();
            self.line_start = true;
            return Went::On;
        }
        let keep = if last {
            0
        } else {
            overlap(&self.buffer, close)
        };
        let text: String = self.buffer.drain(..self.buffer.len() - keep).collect();
        let blank = text.trim().is_empty();
        self.out.thinking(&text, first);
        self.state = State::Thinking {
            close,
            first: first && blank,
        };
        if last {
            self.out.boundary();
        }
        Went::Waits
    }

    /// Behind a call: the next one, or text.
    fn after_call(&mut self, last: bool) -> Went {
        let rest = self
            .buffer
            .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ','));
        let skipped = self.buffer.len() - rest.len();
        let fence = self.fence_left.then_some(FENCE);
        let mut leftovers = LEFTOVERS.into_iter().chain(fence);
        if let Some(mark) = leftovers.clone().find(|mark| rest.starts_with(mark)) {
            self.fence_left &= mark != FENCE;
            self.drop_front(skipped + mark.len());
            self.state = State::AfterCall;
            return Went::On;
        }
        if !last && leftovers.any(|mark| mark.starts_with(rest)) {
            self.state = State::AfterCall;
            return Went::Waits;
        }
        let before = Before {
            line_start: true,
            texted: self.out.has_text(),
        };
        match self.special(rest, before, last) {
            Special::Unknown => {
                self.state = State::AfterCall;
                Went::Waits
            }
            Special::State(state) => {
                self.drop_front(skipped);
                self.state = state;
                Went::On
            }
            Special::Nothing | Special::Fence if rest.is_empty() => {
                self.buffer.clear();
                Went::Waits
            }
            Special::Nothing | Special::Fence => {
                self.line_start = false;
                self.fenced = std::mem::take(&mut self.fence_left);
                Went::On
            }
        }
    }

    /// Behind an opening mark: which form does the call have?
    fn marked(&mut self, opener: &'static str, last: bool) -> Went {
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

    fn json(&mut self, start: usize, mut scan: Scan, kind: JsonKind, last: bool) -> Went {
        let markers: &[&str] = match kind {
            JsonKind::Marked | JsonKind::Arguments { .. } => &[CALL_END, "<tool_call>"],
            JsonKind::Bare => &["<tool_call>", FENCE],
            JsonKind::Fenced => &[FENCE],
        };
        let trust = match kind {
            JsonKind::Marked | JsonKind::Arguments { .. } => Trust::Marked,
            JsonKind::Bare | JsonKind::Fenced => Trust::Bare,
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
            JsonKind::Marked | JsonKind::Bare | JsonKind::Fenced => {
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

    fn other_object(&mut self, mut scan: Scan, last: bool) -> Went {
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

    fn xml(&mut self, start: usize, mut function: Function, last: bool) -> Went {
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

    fn gemma(&mut self, start: usize, mut scan: gemma::Scan, last: bool) -> Went {
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
    fn unreadable(&mut self, close: &'static str, why: String, last: bool) -> Went {
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

/// What stands before a place in text.
#[derive(Clone, Copy)]
struct Before {
    /// Only white space on the same line.
    line_start: bool,
    /// Something else than white space in the reply's text.
    texted: bool,
}

/// What begins at a place in text.
enum Special {
    Nothing,
    /// Too short to tell.
    Unknown,
    State(State),
    /// A code fence opens or closes.
    Fence,
}

/// How many bytes at the end of `text` may be the beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let longest = mark.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(&mark.as_bytes()[..*length]))
        .unwrap_or(0)
}
