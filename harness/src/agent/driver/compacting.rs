//! Compaction, as the driver carries it out: the letter is asked for, checked, and put in the place of what it
//! replaces. What is kept and what is refused is decided in [`crate::agent::compact`].

use super::{Agent, check_fixed, sections};
use crate::agent::compact::{self, Cut, Kept};
use crate::agent::machine::{CompactReason, Event};
use crate::agent::pieces::{Frozen, Section};
use crate::agent::runtime::{Ask, Calls, Reply};
use crate::agent::transcript::{Entry, Record, dangling_calls};
use crate::agent::view::{Turn, View};
use crate::error::Error;

impl Agent<'_> {
    /// Asks the same model for a letter to its successor, as one more message on the warm prefix.
    pub(super) fn summarise(&mut self, reason: CompactReason) -> Result<Event, Error> {
        let before = self.measure()?;
        self.watch
            .told(&format!("compacting: {}", reason.describe()));
        let mut view = View::of(self.session.records());
        drop_unanswered_calls(&mut view);
        view.turns.push(Turn::User {
            text: self.setup.domain.instruction().into(),
        });
        if !self.make_room(&mut view)? {
            let why = "the request for a summary does not fit, even without any result".into();
            return Ok(Event::CompactFailed { why });
        }
        let mut reply = match self.ask_for_summary(&view, true) {
            Ok(reply) => reply,
            Err(why) => return Ok(Event::CompactFailed { why }),
        };
        if reply.answer.text.trim().is_empty() && !reply.interrupted {
            self.record_step(&reply)?;
            self.watch
                .told("the summary was empty; it is asked for once more, without thinking");
            reply = match self.ask_for_summary(&view, false) {
                Ok(reply) => reply,
                Err(why) => return Ok(Event::CompactFailed { why }),
            };
        }
        if reply.interrupted {
            return Ok(Event::Interrupt { partial: None });
        }
        self.record_step(&reply)?;
        let verbatim = match reason {
            CompactReason::OverThreshold { .. } | CompactReason::Asked => self.budget.verbatim,
            CompactReason::NoRoomForResult { .. } => 0,
        };
        let mut summary = reply.answer.text;
        if reply.answer.cut {
            summary.push_str(&format!(
                "\n[The summary was cut at its limit of {} tokens. What it does not say is in the transcript.]",
                self.budget.summary
            ));
        }
        self.replace_history(&summary, verbatim, before)
    }

    fn ask_for_summary(&mut self, view: &View, thinking: bool) -> Result<Reply, String> {
        let ask = Ask {
            view,
            tools: &self.specs,
            reply_max: self.budget.summary,
            calls: Calls::Barred,
            thinking,
            cancel: &self.cancel,
        };
        let reply = self.runtime.ask(&ask, &mut |_| {});
        reply.map_err(|failed| failed.error.to_string())
    }

    /// Where the request for a summary is too large, the oldest results are left out of it, and it says so. False
    /// when that does not help.
    fn make_room(&mut self, view: &mut View) -> Result<bool, Error> {
        let most = self.budget.window - self.budget.summary;
        let mut tokens = self.runtime.measure(view, &self.specs)?;
        let mut left_out = Vec::new();
        for at in 0..view.turns.len() {
            if tokens <= most {
                break;
            }
            if let Turn::Result { name, text, .. } = &mut view.turns[at] {
                let size = self.runtime.count(text);
                let note = format!("[{size} tokens, left out to make room]");
                if self.runtime.count(&note) >= size {
                    continue;
                }
                left_out.push(format!("{name} ({size} tokens)"));
                *text = note;
                tokens = self.runtime.measure(view, &self.specs)?;
            }
        }
        if !left_out.is_empty() {
            self.watch.told(&format!(
                "the summary is made without the oldest results: {}",
                left_out.join(", ")
            ));
        }
        Ok(tokens <= most)
    }

    fn replace_history(
        &mut self,
        summary: &str,
        verbatim: usize,
        before: usize,
    ) -> Result<Event, Error> {
        let pending = dangling_calls(self.session.records());
        let cut = self.cut(verbatim, !pending.is_empty());
        let fits = |text: &str| self.runtime.count(text) <= self.budget.verbatim;
        let kept = Kept::of(self.session.records(), cut, fits);
        let text = compact::letter(summary, &kept, cut.keep_from);
        let fixed: usize = self
            .frozen
            .sent()
            .iter()
            .map(|s| self.runtime.count(&s.text))
            .sum();
        let summary_tokens = self.runtime.count(&text);
        if let Err(why) = compact::check(summary, summary_tokens, before.saturating_sub(fixed)) {
            return Ok(Event::CompactFailed { why });
        }
        let sections = self.sections_now();
        let mut entry = Entry::Compaction {
            summary: text,
            keep_from: cut.keep_from,
            tokens_before: before,
            tokens_after: 0,
            sections: sections.clone(),
        };
        let after = self.measure_with(&entry)?;
        if after >= before {
            let why =
                format!("the summary would make {before} tokens {after}; nothing was dropped");
            return Ok(Event::CompactFailed { why });
        }
        self.tokens_at_most = None;
        if let Entry::Compaction { tokens_after, .. } = &mut entry {
            *tokens_after = after;
        }
        self.frozen = Frozen::new(sections);
        self.session.append(entry)?;
        Ok(Event::Compacted { before, after })
    }

    /// The sections as their sources read now; those that were sent, where a source cannot be read or
    /// would not fit: a run does not end because a file was changed in the middle of it.
    fn sections_now(&mut self) -> Vec<Section> {
        let fits = |sections: Vec<Section>| {
            let frozen = Frozen::new(sections);
            check_fixed(&self.budget, &frozen, &self.specs, &*self.runtime)?;
            Ok(frozen.sent().to_vec())
        };
        let now = sections(&self.setup, &*self.runtime);
        match now.and_then(fits) {
            Ok(sections) => sections,
            Err(error) => {
                self.watch
                    .told(&format!("the earlier instructions stay: {error}"));
                self.frozen.sent().to_vec()
            }
        }
    }

    /// With a call pending, its turn is kept: the result has to follow it.
    fn cut(&self, verbatim: usize, pending: bool) -> Cut {
        let records = self.session.records();
        let count = |r: &Record| tokens_shown(&r.entry, &|text| self.runtime.count(text));
        let mut cut = compact::choose_cut(records, verbatim, count);
        if pending {
            let last_turn = records
                .iter()
                .rev()
                .find(|r| matches!(r.entry, Entry::Assistant { .. }));
            cut.keep_from = cut.keep_from.min(last_turn.map_or(cut.keep_from, |r| r.id));
        }
        cut
    }

    /// What the context would be with `entry` behind it.
    fn measure_with(&mut self, entry: &Entry) -> Result<usize, Error> {
        let mut records = self.session.records().to_vec();
        let last = records.last().map(|r| r.id);
        records.push(Record {
            id: last.map_or(0, |id| id + 1),
            parent: last,
            time_ms: 0,
            entry: entry.clone(),
        });
        self.runtime.measure(&View::of(&records), &self.specs)
    }
}

/// Tokens of what the model sees of an entry.
fn tokens_shown(entry: &Entry, count: &dyn Fn(&str) -> usize) -> usize {
    match entry {
        Entry::Assistant { sampled, .. } if !sampled.is_empty() => sampled.len(),
        Entry::Assistant { text, calls, .. } => {
            let calls = calls.iter().map(|c| count(&c.name) + count(&c.arguments));
            count(text) + calls.sum::<usize>()
        }
        Entry::User { text } | Entry::Correction { text } => count(text),
        Entry::ToolResult { output, .. } => count(&output.text),
        Entry::Change { call, result, .. } | Entry::Given { call, result } => {
            count(&call.arguments) + count(result)
        }
        Entry::Opened { .. }
        | Entry::OtherModel { .. }
        | Entry::Compaction { .. }
        | Entry::Step { .. }
        | Entry::End { .. }
        | Entry::FileChanged { .. }
        | Entry::Undone { .. } => 0,
    }
}

/// A summary is asked for with no call open: the fork is taken before the pending one.
fn drop_unanswered_calls(view: &mut View) {
    let open = |turns: &[Turn]| {
        let last = turns
            .iter()
            .rposition(|t| matches!(t, Turn::Assistant { .. }))?;
        let Turn::Assistant { calls, .. } = &turns[last] else {
            return None;
        };
        let answered = turns[last + 1..]
            .iter()
            .filter(|t| matches!(t, Turn::Result { .. }))
            .count();
        (answered < calls.len()).then_some(last)
    };
    if let Some(last) = open(&view.turns) {
        view.turns.truncate(last);
    }
}

impl CompactReason {
    fn describe(&self) -> String {
        match self {
            CompactReason::OverThreshold { tokens, threshold } => {
                format!("{tokens} tokens, {threshold} at most before the next call")
            }
            CompactReason::NoRoomForResult { tokens, threshold } => {
                format!("no room for a result at {tokens} of {threshold} tokens")
            }
            CompactReason::Asked => "asked for".into(),
        }
    }
}
