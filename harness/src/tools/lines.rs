//! The lines of a text that may be too long to hold, and which of them fit a budget.
//!
//! Whole lines from the start and from the end, long lines cut inside, the rest counted.
//! Invariant: shown and left-out characters add up to the whole, through any number of cuts.

use super::bound::{Keep, Source, grouped};
use crate::limits::{LINE_CHARS, TOKEN_SAMPLE_CHARS};

/// A line, of which the middle may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    start: String,
    hidden: usize,
    end: String,
}

impl Line {
    fn full(text: &str) -> Line {
        Line {
            start: text.to_owned(),
            hidden: 0,
            end: String::new(),
        }
    }

    pub(super) fn shown_chars(&self) -> usize {
        self.start.chars().count() + self.end.chars().count()
    }

    pub(super) fn chars(&self) -> usize {
        self.shown_chars() + self.hidden
    }

    fn render(&self, out: &mut String) {
        out.push_str(&self.start);
        if self.hidden > 0 {
            out.push_str(&inside_marker(self.hidden));
            out.push_str(&self.end);
        }
    }

    fn rendered_chars(&self) -> usize {
        let marker = if self.hidden > 0 {
            inside_marker(self.hidden).chars().count()
        } else {
            0
        };
        self.shown_chars() + marker
    }

    /// The line in at most `limit` characters.
    fn shortened(&self, limit: usize, keep: Keep) -> Line {
        if self.rendered_chars() <= limit {
            return self.clone();
        }
        let room = limit.saturating_sub(inside_marker(self.chars()).chars().count());
        let half_gone = self.hidden > 0;
        let (for_start, for_end) = match keep {
            Keep::HeadAndTail if half_gone && self.start.is_empty() => (0, room),
            Keep::HeadAndTail if half_gone && self.end.is_empty() => (room, 0),
            Keep::HeadAndTail => (room - room / 2, room / 2),
            Keep::Head => (room, 0),
        };
        let (start, after_start) = split_chars(&self.start, for_start);
        // A line that is still whole has its end in `start`.
        let end_source = if self.hidden == 0 {
            after_start
        } else {
            &self.end
        };
        let end_chars = end_source.chars().count();
        let (_, end) = split_chars(end_source, end_chars.saturating_sub(for_end));
        let hidden = self.chars() - start.chars().count() - end.chars().count();
        Line {
            start: start.to_owned(),
            hidden,
            end: end.to_owned(),
        }
    }

    /// What of this line its shortened form does not show, as far as it is at hand.
    fn left_out(&self, short: &Line) -> (&str, &str) {
        let after_start = &self.start[short.start.len()..];
        if self.hidden == 0 {
            (&after_start[..after_start.len() - short.end.len()], "")
        } else {
            (after_start, &self.end[..self.end.len() - short.end.len()])
        }
    }
}

fn inside_marker(hidden: usize) -> String {
    format!("[... {} characters of this line cut ...]", grouped(hidden))
}

fn split_chars(text: &str, chars: usize) -> (&str, &str) {
    match text.char_indices().nth(chars) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    }
}

/// As much of the omitted text as is counted in tokens.
#[derive(Default)]
struct Sample {
    text: String,
    chars: usize,
}

impl Sample {
    fn add(&mut self, text: &str) {
        let room = TOKEN_SAMPLE_CHARS.saturating_sub(self.chars);
        let (taken, _) = split_chars(text, room);
        self.chars += taken.chars().count();
        self.text.push_str(taken);
    }

    fn add_line(&mut self, line: &Line) {
        self.add(&line.start);
        self.add(&line.end);
        if self.chars < TOKEN_SAMPLE_CHARS {
            self.text.push('\n');
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Middle {
    pub(super) lines: usize,
    pub(super) chars: usize,
}

/// The lines of a text: from its start, those that are missing, from its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) head: Vec<Line>,
    pub(super) middle: Middle,
    pub(super) tail: Vec<Line>,
}

impl Lines {
    pub(super) fn of(source: &Source) -> Lines {
        let mut head: Vec<Line> = split_lines(&source.head).map(Line::full).collect();
        if source.is_whole() {
            return Lines {
                head,
                ..Lines::default()
            };
        }
        let gap = source.gap;
        let mut tail: Vec<Line> = split_lines(&source.tail).map(Line::full).collect();
        let head_open = !source.head.ends_with('\n') && !source.head.is_empty();
        let first_of_tail = || split_lines(&source.tail).next().unwrap_or("").to_owned();
        let mut middle = Middle {
            lines: gap.newlines,
            chars: gap.chars,
        };
        if gap.newlines == 0 {
            // One line runs through the gap.
            let end = first_of_tail();
            if !tail.is_empty() {
                tail.remove(0);
            }
            let start = if head_open {
                head.pop().map(|l| l.start)
            } else {
                None
            };
            let start = start.unwrap_or_default();
            head.push(Line {
                start,
                hidden: gap.chars,
                end,
            });
            head.append(&mut tail);
            return Lines {
                head,
                ..Lines::default()
            };
        }
        if head_open && let Some(last) = head.last_mut() {
            last.hidden = gap.head_line_rest;
            middle.chars -= gap.head_line_rest;
            middle.lines -= 1;
        }
        if gap.tail_line_before > 0 {
            let line = Line {
                start: String::new(),
                hidden: gap.tail_line_before,
                end: first_of_tail(),
            };
            match tail.first_mut() {
                Some(first) => *first = line,
                None => tail.push(line),
            }
            middle.chars -= gap.tail_line_before;
        }
        Lines { head, middle, tail }
    }

    pub(super) fn count(&self) -> usize {
        self.head.len() + self.middle.lines + self.tail.len()
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &Line> {
        self.head.iter().chain(&self.tail)
    }

    pub(super) fn chars(&self) -> usize {
        self.all().map(Line::chars).sum::<usize>() + self.middle.chars
    }

    pub(super) fn shown_chars(&self) -> usize {
        self.all().map(Line::shown_chars).sum()
    }

    pub(super) fn shortened(&self) -> usize {
        self.all().filter(|l| l.hidden > 0).count()
    }

    /// What is shown, without any marker: for counting.
    pub(super) fn plain_text(&self) -> String {
        let mut out = String::new();
        for line in self.all() {
            out.push_str(&line.start);
            out.push_str(&line.end);
            out.push('\n');
        }
        out
    }

    pub(super) fn render(&self, marker: &str) -> String {
        let mut out = String::new();
        for line in &self.head {
            line.render(&mut out);
            out.push('\n');
        }
        out.push_str(marker);
        for line in &self.tail {
            out.push('\n');
            line.render(&mut out);
        }
        out
    }

    /// As many lines as fit `budget` characters, line ends included, and a sample of the others.
    pub(super) fn cut_to(&self, budget: usize, keep: Keep) -> (Lines, String) {
        let (head_budget, line_most) = match keep {
            Keep::HeadAndTail => (budget / 2, budget / 2),
            Keep::Head => (budget, budget),
        };
        let line_limit = LINE_CHARS
            .max(budget / (2 * self.count().max(1)))
            .min(line_most.saturating_sub(1));
        let short: Vec<Line> = self.all().map(|l| l.shortened(line_limit, keep)).collect();
        let costs: Vec<usize> = short.iter().map(|l| l.rendered_chars() + 1).collect();

        let (mut used, mut head, mut tail) = (0, 0, short.len());
        let all_fit = self.middle.lines == 0 && costs.iter().sum::<usize>() <= budget;
        while head < self.head.len() && (all_fit || used + costs[head] <= head_budget) {
            used += costs[head];
            head += 1;
        }
        if keep == Keep::HeadAndTail {
            // With nothing missing in the middle, the end of the text is the end of `head`.
            let least = if self.tail.is_empty() {
                head
            } else {
                self.head.len().max(head)
            };
            while tail > least && used + costs[tail - 1] <= budget {
                used += costs[tail - 1];
                tail -= 1;
            }
        }
        let mut middle = self.middle;
        let mut dropped = Sample::default();
        for (i, line) in self.all().enumerate() {
            if (head..tail).contains(&i) {
                middle.lines += 1;
                middle.chars += line.chars();
                dropped.add_line(line);
            } else {
                let (first, second) = line.left_out(&short[i]);
                dropped.add(first);
                dropped.add(second);
            }
        }
        let kept_tail = short[tail..].to_vec();
        let mut kept_head = short;
        kept_head.truncate(head);
        (
            Lines {
                head: kept_head,
                middle,
                tail: kept_tail,
            },
            dropped.text,
        )
    }
}

/// Lines without their ends; a text that ends in a newline has no empty last line.
fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .map(|line| line.strip_suffix('\n').unwrap_or(line))
}
