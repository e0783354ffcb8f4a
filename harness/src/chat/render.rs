//! One render of a template with marks, and where its pieces begin.

use std::ops::Range;

use engine::Layer;
use models::template::{ChatTemplate, RenderInput};
use regex::Regex;
use serde_json::Value;

use super::marks::{self, Marked};
use super::message::{Conversation, Message, SystemPart};
use super::runs::Start;
use crate::error::Error;

/// Content numbers of system parts; messages follow from [`MESSAGES_FROM`].
const MESSAGES_FROM: usize = 1_000;

/// What one render is made of: a slice of a conversation.
pub struct Slice<'a> {
    pub system: &'a [SystemPart],
    pub tools: &'a [Value],
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
    /// The slice with its marks taken out. Where the template transforms content so that the marks
    /// cannot be followed, the text has no spans (it becomes one piece).
    pub fn render(&self, slice: &Slice<'_>) -> Result<Marked, Error> {
        let plain = self.render_with(slice, &|_, text| text.to_owned())?;
        let wrapped = self.render_with(slice, &|i, text| marks::wrap(i, text, self.literals));
        if let Ok(marked) = wrapped.map(|text| marks::unmark(&text))
            && marked.text == plain
        {
            return Ok(marked);
        }
        // Without spans; what content wrote must still not become a control token.
        let broken =
            self.render_with(slice, &|_, text| marks::break_literals(text, self.literals))?;
        let marked = marks::unmark(&broken);
        Ok(if marked.text == plain {
            marked
        } else {
            self.without_controls_of_content(slice, plain)
        })
    }

    /// The last resort: every control literal that also stands in some content is treated as content.
    fn without_controls_of_content(&self, slice: &Slice<'_>, plain: String) -> Marked {
        let mut marked = Marked::plain(plain);
        let Some(literals) = self.literals else {
            return marked;
        };
        let in_content = |literal: &str| {
            slice.system.iter().any(|p| p.text.contains(literal))
                || slice
                    .messages
                    .iter()
                    .any(|(_, m)| m.content.contains(literal))
        };
        let hits = literals
            .find_iter(&marked.text)
            .filter(|hit| in_content(hit.as_str()));
        let breaks: Vec<usize> = hits.map(|hit| hit.start() + 1).collect();
        marked.breaks = breaks;
        marked
    }

    fn render_with(
        &self,
        slice: &Slice<'_>,
        mark: &dyn Fn(usize, &str) -> String,
    ) -> Result<String, Error> {
        let mut messages = Vec::with_capacity(slice.messages.len() + 1);
        if !slice.system.is_empty() {
            let parts: Vec<String> = slice
                .system
                .iter()
                .enumerate()
                .map(|(i, p)| mark(i, &p.text))
                .collect();
            messages.push(serde_json::json!({ "role": "system", "content": parts.join("\n\n") }));
        }
        for (number, message) in &slice.messages {
            messages.push(message.to_value(&mut |text| mark(MESSAGES_FROM + number, text)));
        }
        let messages = self.template.adapt(&messages);
        let input = RenderInput {
            messages: &messages,
            tools: (!slice.tools.is_empty()).then_some(slice.tools),
            add_generation_prompt: slice.generation,
            now: &self.conversation.clock,
            extra: &self.conversation.extra,
        };
        Ok(self.template.render(&input)?)
    }

    /// Where the pieces of a rendered slice begin. `closing` is what the template writes behind a
    /// message; `first` names the piece that begins at 0 where no content says better.
    pub fn starts(
        &self,
        marked: &Marked,
        slice: &Slice<'_>,
        closing: &str,
        first: Start,
    ) -> Vec<Start> {
        let mut starts = vec![first];
        let mut spans = marked.spans.clone();
        spans.sort_by_key(|(_, range)| range.start);
        let mut gap_start = 0;
        for (index, range) in &spans {
            let gap = gap_start..range.start;
            let begins = self.content_piece_start(
                marked,
                &gap,
                closing,
                starts.len() == 1 && gap_start == 0,
            );
            let (name, layer) = name_of(*index, slice);
            self.push_tools(marked, &gap, begins, slice, &mut starts);
            push(
                &mut starts,
                Start {
                    at: begins,
                    name,
                    layer,
                },
            );
            gap_start = range.end;
        }
        let tail = gap_start..marked.text.len();
        self.push_tools(marked, &tail, tail.end, slice, &mut starts);
        starts
    }

    /// Where in the gap before a content its piece begins: behind the closing of the message before,
    /// else at the last control token that the template wrote there, else at the content.
    fn content_piece_start(
        &self,
        marked: &Marked,
        gap: &Range<usize>,
        closing: &str,
        first: bool,
    ) -> usize {
        if first {
            return 0;
        }
        let text = &marked.text[gap.clone()];
        if !closing.is_empty()
            && let Some(at) = text.rfind(closing)
        {
            return gap.start + at + closing.len();
        }
        let hits = self.literals.iter().flat_map(|l| l.find_iter(text));
        hits.map(|hit| gap.start + hit.start())
            .filter(|at| !marked.is_content(&(*at..at + 2)))
            .last()
            .unwrap_or(gap.end)
    }

    /// Tools are written by the template into some gap: the piece begins there.
    fn push_tools(
        &self,
        marked: &Marked,
        gap: &Range<usize>,
        end: usize,
        slice: &Slice<'_>,
        starts: &mut Vec<Start>,
    ) {
        if starts.iter().any(|s| s.layer == Layer::Tools) {
            return;
        }
        let Some(name) = slice
            .tools
            .first()
            .and_then(|t| t.pointer("/function/name"))
            .and_then(Value::as_str)
        else {
            return;
        };
        let end = end.clamp(gap.start, gap.end);
        if marked.text[gap.start..end].contains(name) {
            push(
                starts,
                Start {
                    at: gap.start,
                    name: "tools".into(),
                    layer: Layer::Tools,
                },
            );
        }
    }
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
    match index.checked_sub(MESSAGES_FROM) {
        None => {
            let part = slice.system.get(index);
            (
                part.map_or_else(|| "system".into(), |p| p.name.clone()),
                part.map_or(Layer::Instructions, |p| p.layer),
            )
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
