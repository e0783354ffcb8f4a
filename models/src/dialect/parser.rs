//! The streaming parser. Text is buffered until it is certain what it is; certainty depends on the text alone,
//! never on how it was cut, so any chunking gives the same events.

use super::emit::Emitter;
use super::json::{self, Opening, Scan};
use super::xml::Function;
use super::{Event, ToolDialect, ToolSpec, gemma};

pub(super) const CALL_END: &str = "</tool_call>";
/// Closing marks that may be left over behind a call.
const LEFTOVERS: [&str; 3] = [CALL_END, "<tool_call|>", LIST_END];
/// Between these Hermes templates list the tools. Small models echo the list, empty or around a call.
const LIST: &str = "<tools>";
pub(super) const LIST_END: &str = "</tools>";
pub(super) const FENCE: &str = "```";
/// A fence whose first line is longer is no fence around a call.
const FENCE_LINE_MAX: usize = 32;

/// Reads one reply.
#[derive(Debug)]
pub struct Parser {
    dialect: ToolDialect,
    pub(super) tools: Vec<ToolSpec>,
    /// What came and was not yet given out; states look at its beginning.
    pub(super) buffer: String,
    pub(super) state: State,
    pub(super) out: Emitter,
    /// Only white space stands before the buffer on its line.
    line_start: bool,
    /// Inside a code fence, where bare JSON is an example.
    pub(super) fenced: bool,
    /// A call opened a fence that is not closed yet.
    pub(super) fence_left: bool,
}

#[derive(Debug)]
pub(super) enum State {
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
pub(super) enum JsonKind {
    /// Behind an opening mark.
    Marked,
    /// Behind `[TOOL_CALLS]name[ARGS]`, whose name ends before `name_end`.
    Arguments {
        name_end: usize,
    },
    Bare,
    /// Bare, inside a ``` fence.
    Fenced,
    /// Bare, between the marks of the list of tools.
    Listed,
}

/// What a step did.
#[derive(PartialEq, Eq)]
pub(super) enum Went {
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
    pub(super) fn give_text(&mut self, length: usize) {
        let text: String = self.buffer.drain(..length).collect();
        for c in text.chars() {
            self.line_start = c == '\n' || (self.line_start && c.is_whitespace());
        }
        self.out.text(&text);
    }

    pub(super) fn drop_front(&mut self, length: usize) {
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
                Special::Markup(length) => {
                    self.give_text(at);
                    self.drop_front(length);
                    self.out.boundary();
                    self.state = State::AfterCall;
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
        if first == '<' && self.dialect == ToolDialect::Hermes && self.calls_possible() {
            match self.list(rest, last) {
                Special::Nothing => {}
                listed => return listed,
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

    /// `rest` begins with `<`.
    fn list(&self, rest: &str, last: bool) -> Special {
        let unknown = if last {
            Special::Nothing
        } else {
            Special::Unknown
        };
        if self.fenced || !rest.starts_with(LIST) {
            return if LIST.starts_with(rest) {
                unknown
            } else {
                Special::Nothing
            };
        }
        let inner = rest[LIST.len()..].trim_start();
        let start = rest.len() - inner.len();
        if inner.starts_with(LIST_END) {
            return Special::Markup(start + LIST_END.len());
        }
        if LIST_END.starts_with(inner) {
            return unknown;
        }
        match json::opening(inner) {
            Opening::MaybeCall => Special::State(State::Json {
                start,
                scan: Scan::default(),
                kind: JsonKind::Listed,
            }),
            Opening::Unknown => unknown,
            Opening::NotJson | Opening::OtherObject => Special::Nothing,
        }
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
            Special::Markup(length) => {
                self.drop_front(skipped + length);
                self.out.boundary();
                self.state = State::AfterCall;
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
    /// So many bytes that are neither text nor a call.
    Markup(usize),
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
