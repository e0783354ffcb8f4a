//! The parser's output: events with their white space put in order.
//!
//! White space that stands between text and a call, or beside a thinking block, belongs to the layout and is
//! dropped; any other is kept. It is held back until it is known which it is.

use super::Event;

#[derive(Debug, Default)]
pub(super) struct Emitter {
    events: Vec<Event>,
    /// White space not yet given out.
    held: String,
    calls: usize,
    /// Some text of the reply was given out.
    texted: bool,
    /// Something else than text came before: leading white space is layout.
    layout_before: bool,
}

impl Emitter {
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn has_text(&self) -> bool {
        self.texted
    }

    pub(super) fn text(&mut self, text: &str) {
        let core = text.trim_end();
        if core.is_empty() {
            self.held.push_str(text);
            return;
        }
        let held = std::mem::take(&mut self.held);
        let mut out = held + core;
        if self.layout_before && !self.texted {
            out = out.trim_start().to_owned();
        }
        self.texted = true;
        self.held.push_str(&text[core.len()..]);
        if let Some(Event::Text(last)) = self.events.last_mut() {
            last.push_str(&out);
        } else {
            self.events.push(Event::Text(out));
        }
    }

    /// `first`: this opens a block, so its leading white space is layout.
    pub(super) fn thinking(&mut self, text: &str, first: bool) {
        let core = text.trim_end();
        if core.is_empty() {
            if !first {
                self.held.push_str(text);
            }
            return;
        }
        let held = std::mem::take(&mut self.held);
        let out = if first {
            core.trim_start().to_owned()
        } else {
            held + core
        };
        self.held.push_str(&text[core.len()..]);
        if let Some(Event::Thinking(last)) = self.events.last_mut() {
            last.push_str(&out);
        } else {
            self.events.push(Event::Thinking(out));
        }
    }

    /// Text gave way to something else, or the other way round.
    pub(super) fn boundary(&mut self) {
        self.held.clear();
        self.layout_before = true;
    }

    pub(super) fn call(&mut self, name: String, arguments: String) {
        self.boundary();
        self.events.push(Event::Call {
            index: self.calls,
            name,
            arguments,
        });
        self.calls += 1;
    }

    pub(super) fn broken(&mut self, raw: &str, why: String) {
        self.boundary();
        self.events.push(Event::Broken {
            raw: raw.trim().to_owned(),
            why,
        });
    }

    /// The end: white space behind plain text is the model's own.
    pub(super) fn finish(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() || self.calls > 0 || (self.layout_before && !self.texted) {
            return;
        }
        match self.events.last_mut() {
            Some(Event::Text(last)) => last.push_str(&held),
            _ => self.events.push(Event::Text(held)),
        }
    }
}
