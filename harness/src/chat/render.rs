//! One render of a template with marks, and where its pieces begin.

use std::ops::Range;

use engine::Layer;
use models::template::{ChatTemplate, RenderInput};
use regex::Regex;
use serde_json::{Value, json};

use super::marks::{self, Marked, Marker, Marking};
use super::message::{Conversation, Message, SystemPart, Tool};
use super::runs::Start;
use crate::error::Error;

/// Content numbers: system parts, then the tools, then the messages.
const TOOLS: usize = 999;
const MESSAGES_FROM: usize = 1_000;
/// The number of a message that stands for all that came before.
pub const OPENER: usize = 0xF_FFFF - MESSAGES_FROM;
const JOIN: &str = "\n\n";

/// What one render is made of: a slice of a conversation.
#[derive(Clone)]
pub struct Slice<'a> {
    pub system: &'a [SystemPart],
    pub tools: &'a [Tool],
    /// A message and its number in the whole conversation.
    pub messages: Vec<(usize, &'a Message)>,
    pub generation: bool,
}

/// Renders slices of one conversation.
pub struct Renderer<'a> {
    pub template: &'a ChatTemplate,
    pub literals: Option<&'a Regex>,
    pub conversation: &'a Conversation,
}

impl Renderer<'_> {
    /// The slice with its marks taken out. Where the template transforms texts so that the marks
    /// cannot be followed, there are fewer of them, and a message may have no span: its text then
    /// belongs to the piece before it.
    pub fn render(&self, slice: &Slice<'_>) -> Result<Marked, Error> {
        let plain = self.render_with(slice, Marking::Nothing)?;
        for marking in [Marking::All, Marking::Contents, Marking::Breaks] {
            if let Ok(text) = self.render_with(slice, marking) {
                let marked = marks::unmark(&text);
                if marked.text == plain {
                    return Ok(marked);
                }
            }
        }
        Ok(self.without_controls_of_content(slice, plain))
    }

    /// The slice as text alone.
    pub fn plain(&self, slice: &Slice<'_>) -> Result<String, Error> {
        self.render_with(slice, Marking::Nothing)
    }

    /// The last resort: every control literal that also stands in what came from outside is treated
    /// as text, wherever it is.
    fn without_controls_of_content(&self, slice: &Slice<'_>, plain: String) -> Marked {
        let mut marked = Marked::plain(plain);
        let Some(literals) = self.literals else {
            return marked;
        };
        let marker = Marker {
            marking: Marking::Nothing,
            literals: None,
        };
        let mut outside = String::new();
        for part in slice.system {
            outside.push_str(&part.text);
        }
        for (_, message) in &slice.messages {
            collect_texts(&message.to_value(marker, 0), &mut outside);
        }
        for tool in slice.tools {
            collect_texts(&tool.to_value(), &mut outside);
        }
        let hits = literals
            .find_iter(&marked.text)
            .filter(|hit| outside.contains(hit.as_str()));
        let breaks: Vec<usize> = hits.map(|hit| hit.start() + 1).collect();
        marked.breaks = breaks;
        marked
    }

    fn render_with(&self, slice: &Slice<'_>, marking: Marking) -> Result<String, Error> {
        let marker = Marker {
            marking,
            literals: self.literals,
        };
        let messages = self.template.adapt(&self.messages(slice, marker));
        let tools: Vec<Value> = slice
            .tools
            .iter()
            .map(|tool| tool.to_marked_value(marker, TOOLS))
            .collect();
        let mut extra = self.conversation.extra.clone();
        // Templates that take the day from here have a stale one of their own otherwise.
        if !extra.contains_key("date_string") {
            let today = self.conversation.clock.format("%d %b %Y");
            extra.insert("date_string".into(), today.into());
        }
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            add_generation_prompt: slice.generation,
            now: &self.conversation.clock,
            extra: &extra,
        };
        Ok(self.template.render(&input)?)
    }

    /// The messages before adaptation. Memory is a second system message where the template shows
    /// one, so that it stands behind the tools; else it opens the first user message; else it ends
    /// the system message.
    fn messages(&self, slice: &Slice<'_>, marker: Marker<'_>) -> Vec<Value> {
        let (mut system, mut memory) = (Vec::new(), Vec::new());
        for (index, part) in slice.system.iter().enumerate() {
            let group = if part.layer == Layer::Memory {
                &mut memory
            } else {
                &mut system
            };
            group.push(marker.content(index, &part.text));
        }
        let mut messages = Vec::with_capacity(slice.messages.len() + 2);
        for (number, message) in &slice.messages {
            messages.push(message.to_value(marker, MESSAGES_FROM + number));
        }
        let user = messages
            .iter_mut()
            .find(|message| message["role"] == "user");
        let separate = self.template.features().second_system && !system.is_empty();
        match user {
            Some(user) if !memory.is_empty() && !separate => {
                let content = user["content"].as_str().unwrap_or_default();
                user["content"] = format!("{}{JOIN}{content}", memory.join(JOIN)).into();
                memory.clear();
            }
            Some(_) | None => {}
        }
        let memory = (!memory.is_empty()).then(
            || json!({ "role": "system", "content": memory.join(JOIN), "separate": separate }),
        );
        let system =
            (!system.is_empty()).then(|| json!({ "role": "system", "content": system.join(JOIN) }));
        system.into_iter().chain(memory).chain(messages).collect()
    }

    /// Where the pieces of a rendered slice begin. `closing` is what the template writes behind an
    /// assistant's words; `first` names the piece that begins at 0 where no content says better.
    pub fn starts(
        &self,
        marked: &Marked,
        slice: &Slice<'_>,
        closing: &str,
        first: Start,
    ) -> Vec<Start> {
        let mut starts = vec![first];
        // From here on a piece may begin.
        let mut free = 0;
        for (index, range) in areas(marked) {
            let gap = free..range.start;
            let at = if starts.len() == 1 && free == 0 {
                0
            } else {
                self.piece_start(marked, &gap, index, closing)
            };
            let (name, layer) = name_of(index, slice);
            push(&mut starts, Start { at, name, layer });
            free = range.end;
        }
        starts
    }

    /// Where in the gap before content `index` its piece begins: behind the closing of the message
    /// before, else at the last control token that the template wrote there. Without either, tools
    /// take what introduces them, and any other content begins where it begins.
    fn piece_start(
        &self,
        marked: &Marked,
        gap: &Range<usize>,
        index: usize,
        closing: &str,
    ) -> usize {
        let text = &marked.text[gap.clone()];
        let behind_closing = (!closing.is_empty()).then(|| text.rfind(closing)).flatten();
        if let Some(at) = behind_closing {
            return gap.start + at + closing.len();
        }
        let hits = self.literals.iter().flat_map(|l| l.find_iter(text));
        let last = hits
            .map(|hit| gap.start + hit.start()..gap.start + hit.end())
            .filter(|range| !marked.is_content(range))
            .last();
        match last {
            Some(range) => range.start,
            None if index == TOOLS => gap.start,
            None => gap.end,
        }
    }

    /// The first place from byte `from` on where the template wrote `closing`.
    pub fn find_closing(&self, marked: &Marked, from: usize, closing: &str) -> Option<usize> {
        let holds_control = self
            .literals
            .is_some_and(|literals| literals.is_match(closing));
        if !holds_control {
            return marked.text[from..].starts_with(closing).then_some(from);
        }
        let places = marked.text[from..]
            .match_indices(closing)
            .map(|(at, _)| from + at);
        places
            .into_iter()
            .find(|at| !marked.is_content(&(*at..at + closing.len())))
    }

    /// Where the marked texts of message `number` end.
    pub fn end_of(&self, marked: &Marked, number: usize) -> Option<usize> {
        let own = marked
            .spans
            .iter()
            .filter(|(index, _)| *index == MESSAGES_FROM + number);
        own.map(|(_, range)| range.end).max()
    }
}

/// The contents of a render with all their marked texts: from the first mark to the last.
fn areas(marked: &Marked) -> Vec<(usize, Range<usize>)> {
    let mut areas: Vec<(usize, Range<usize>)> = Vec::new();
    for (index, range) in &marked.spans {
        match areas.last_mut() {
            Some((last, area)) if last == index => area.end = range.end,
            Some(_) | None => areas.push((*index, range.clone())),
        }
    }
    // A template may show a content twice: the first place counts.
    let mut seen = std::collections::HashSet::new();
    areas.retain(|(index, _)| seen.insert(*index));
    areas
}

fn push(starts: &mut Vec<Start>, start: Start) {
    match starts.last_mut() {
        // Nothing lies between: the later name is the truer one.
        Some(last) if last.at >= start.at => {
            *last = Start {
                at: last.at,
                ..start
            }
        }
        Some(_) | None => starts.push(start),
    }
}

fn name_of(index: usize, slice: &Slice<'_>) -> (String, Layer) {
    if index == TOOLS {
        return ("tools".into(), Layer::Tools);
    }
    match index.checked_sub(MESSAGES_FROM) {
        None => {
            let part = slice.system.get(index);
            let name = part.map_or_else(|| "system".into(), |p| p.name.clone());
            (name, part.map_or(Layer::Instructions, |p| p.layer))
        }
        Some(number) => {
            let message = slice
                .messages
                .iter()
                .find(|(n, _)| *n == number)
                .map(|(_, m)| *m);
            (message_name(number, message), Layer::Turn)
        }
    }
}

fn collect_texts(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => {
            out.push_str(text);
            out.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, out)),
        Value::Object(map) => {
            for (key, value) in map {
                out.push_str(key);
                out.push('\n');
                collect_texts(value, out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `3.user`, `5.tool bash`: the place of a message is part of its name.
pub fn message_name(number: usize, message: Option<&Message>) -> String {
    match message {
        Some(Message {
            role,
            name: Some(name),
            ..
        }) => format!("{number}.{} {name}", role.name()),
        Some(message) => format!("{number}.{}", message.role.name()),
        None => format!("{number}"),
    }
}
