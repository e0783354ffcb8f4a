//! One pass over a batch of sequences: checked, then flattened to rows.
//!
//! Invariant: every row of a `Batch` has a token of the vocabulary, a position within the context,
//! and a block of the KV store to be written to; no two steps write to one block. What follows
//! needs no further checks.

use std::ops::Range;

use kernels::{BLOCK_TOKENS, SeqSpan};

use crate::config::LayerGroup;
use crate::forward::{LogitRows, SeqStep};
use crate::limits::ROWS_PER_PASS_MAX;
use crate::{Config, Error, Result};

/// The rows of one pass, in step order.
pub(crate) struct Batch<'a> {
    /// [T] token ids.
    pub tokens: Vec<u32>,
    /// [T] positions, each counted in its own sequence.
    pub positions: Vec<u32>,
    /// One span for each step: where its rows lie in its sequence.
    spans: Vec<SeqSpan<'a>>,
    /// The same with the blocks of the layers with a window; empty where there are none.
    window_spans: Vec<SeqSpan<'a>>,
    /// The rows that the last layer has to finish: those whose logits were asked for.
    pub wanted: Vec<Wanted<'a>>,
}

/// Rows of one step whose logits were asked for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The first of them, as a row of the batch.
    pub row: usize,
    span: SeqSpan<'a>,
    /// Without a table where there are no layers with a window.
    window_span: SeqSpan<'a>,
}

impl<'a> Wanted<'a> {
    pub fn rows(&self) -> usize {
        self.span.rows
    }

    pub fn span(&self, group: LayerGroup) -> SeqSpan<'a> {
        match group {
            LayerGroup::All => self.span,
            LayerGroup::Window => self.window_span,
        }
    }
}

/// Blocks of a KV store: of the layers that see every position, and of those with a window.
#[derive(Clone, Copy, Default)]
pub(crate) struct KvRoom {
    pub blocks: usize,
    pub window_blocks: usize,
}

impl<'a> Batch<'a> {
    /// Checks the steps against the model and the room of a KV store.
    pub fn new(config: &Config, room: KvRoom, steps: &[SeqStep<'a>]) -> Result<Self> {
        if steps.is_empty() {
            return Err(Error::bug("empty batch: need at least one step, have 0"));
        }
        let rows = steps.iter().map(|step| step.tokens.len()).sum::<usize>();
        if rows > ROWS_PER_PASS_MAX {
            return Err(Error::bug(format!(
                "batch of {rows} rows: at most {ROWS_PER_PASS_MAX} go through one pass; send long \
                 prompts in chunks"
            )));
        }
        let mut batch = Batch {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            spans: Vec::with_capacity(steps.len()),
            window_spans: Vec::new(),
            wanted: Vec::with_capacity(steps.len()),
        };
        for (index, step) in steps.iter().enumerate() {
            let step_error = |e: Error| e.within(&format!("step {index} of the batch"));
            check_step(config, room, step).map_err(step_error)?;
            batch.push(step);
        }
        check_writes_are_disjoint(&batch.spans)?;
        if config.window.is_some() {
            let spans = batch.spans.iter().zip(steps);
            let spans = spans.map(|(span, step)| SeqSpan {
                table: step.window_table,
                ..*span
            });
            batch.window_spans = spans.collect();
            check_writes_are_disjoint(&batch.window_spans)?;
        }
        Ok(batch)
    }

    fn push(&mut self, step: &SeqStep<'a>) {
        let (row, rows) = (self.tokens.len(), step.tokens.len());
        let span = |table, start, rows| SeqSpan { table, start, rows };
        self.spans.push(span(step.table, step.start, rows));
        let wanted = match step.logits {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => rows,
        };
        if wanted > 0 {
            let skipped = rows - wanted;
            let span = |table| span(table, step.start + skipped, wanted);
            self.wanted.push(Wanted {
                row: row + skipped,
                span: span(step.table),
                window_span: span(step.window_table),
            });
        }
        self.tokens.extend_from_slice(step.tokens);
        self.positions
            .extend((step.start..step.start + rows).map(|p| p as u32));
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Where the rows lie in their sequences, with the blocks of a group of layers.
    pub fn spans(&self, group: LayerGroup) -> &[SeqSpan<'a>] {
        match group {
            LayerGroup::All => &self.spans,
            LayerGroup::Window => &self.window_spans,
        }
    }

    /// The same of the rows whose logits were asked for.
    pub fn wanted_spans(&self, group: LayerGroup) -> Vec<SeqSpan<'a>> {
        self.wanted
            .iter()
            .map(|wanted| wanted.span(group))
            .collect()
    }

    pub fn wanted_rows(&self) -> usize {
        self.wanted.iter().map(Wanted::rows).sum()
    }

    /// The highest position of the batch.
    pub fn last_position(&self) -> usize {
        self.positions.iter().max().map_or(0, |&p| p as usize)
    }
}

fn check_step(config: &Config, room: KvRoom, step: &SeqStep<'_>) -> Result<()> {
    let rows = step.tokens.len();
    if rows == 0 {
        return Err(Error::bug("empty step: need at least one token, have 0"));
    }
    let vocab = config.vocab;
    if let Some(id) = step.tokens.iter().find(|&&id| id as usize >= vocab) {
        return Err(Error::caller(format!(
            "token id {id} is outside the vocabulary of {vocab}; use ids from 0 to {}",
            vocab - 1
        )));
    }
    let context = config.context_train;
    let end = step.start.checked_add(rows).filter(|&end| end <= context);
    let Some(end) = end else {
        return Err(Error::caller(format!(
            "{rows} tokens from position {} do not fit the model's context of {context}; shorten \
             the prompt",
            step.start
        )));
    };
    check_table(step.table, 0..end, room.blocks)?;
    match &config.window {
        Some(window) => {
            let first = kernels::first_seen(step.start, window.tokens);
            let checked = check_table(step.window_table, first..end, room.window_blocks);
            checked.map_err(|e| e.within("layers with a window"))
        }
        None => Ok(()),
    }
}

/// A table has blocks of the store for `positions`.
fn check_table(table: &[u32], positions: Range<usize>, kv_blocks: usize) -> Result<()> {
    let end = positions.end;
    let blocks = positions.start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
    let (need, have) = (blocks.end, table.len());
    if have < need {
        return Err(Error::bug(format!(
            "block table too short: positions up to {end} need {need} blocks, have {have}; lease \
             more blocks before the pass"
        )));
    }
    match table[blocks].iter().find(|&&b| b as usize >= kv_blocks) {
        None => Ok(()),
        Some(block) => Err(Error::bug(format!(
            "block {block} is outside the KV store of {kv_blocks} blocks"
        ))),
    }
}

/// Two sequences may read one block; two that write to it would each overwrite the other's rows.
fn check_writes_are_disjoint(spans: &[SeqSpan<'_>]) -> Result<()> {
    let mut written: Vec<u32> = Vec::new();
    for span in spans {
        let blocks = span.start / BLOCK_TOKENS..(span.start + span.rows).div_ceil(BLOCK_TOKENS);
        written.extend_from_slice(&span.table[blocks]);
    }
    written.sort_unstable();
    match written.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Error::bug(format!(
            "block {} would be written twice in one pass; copy a shared block before writing",
            pair[0]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blame;
    use crate::config::Family;
    use crate::tiny::TinySpec;

    fn refusal(steps: &[SeqStep<'_>]) -> Error {
        let config = TinySpec::default().config();
        assert_eq!(
            (config.vocab, config.context_train),
            (384, 1024),
            "what the cases count on"
        );
        Batch::new(&config, ROOM, steps).err().expect("a refusal")
    }

    const ROOM: KvRoom = KvRoom {
        blocks: 4,
        window_blocks: 3,
    };

    fn step<'a>(tokens: &'a [u32], start: usize, table: &'a [u32]) -> SeqStep<'a> {
        SeqStep {
            tokens,
            start,
            table,
            window_table: &[],
            logits: LogitRows::Last,
        }
    }

    #[test]
    fn a_window_needs_its_own_blocks_and_none_before_it() {
        let spec = TinySpec {
            family: Family::Gemma3,
            window: Some((40, 2)),
            ..TinySpec::default()
        };
        let config = spec.config();
        let none = u32::MAX;
        let table = [0, 1, 2, 3];
        let with = |start, window_table: &[u32]| {
            let steps = [SeqStep {
                window_table,
                ..step(&[1, 1], start, &table)
            }];
            let made = Batch::new(&config, ROOM, &steps).map(|b| b.spans(LayerGroup::Window).len());
            made.map_err(|error| error.to_string())
        };
        // The row at 70 sees from 31 on, the one at 71 from 32 on.
        assert_eq!(with(71, &[none, 2, 0]), Ok(1));
        let refused = [
            (70, &[none, 2, 0][..], "outside the KV store of 3 blocks"),
            (71, &[none, 3, 0], "outside the KV store of 3 blocks"),
            (71, &[none, 2], "need 3 blocks, have 2"),
            (0, &[], "layers with a window"),
        ];
        for (start, table, why) in refused {
            let error = with(start, table).unwrap_err();
            assert!(error.contains(why), "{error} lacks {why}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_need_and_have() {
        let table = [0, 1, 2, 3];
        let long = vec![1; 1025];
        let cases: &[(&[SeqStep<'_>], &str, Blame)] = &[
            (&[], "need at least one step", Blame::Bug),
            (
                &[step(&[], 0, &table)],
                "need at least one token",
                Blame::Bug,
            ),
            (
                &[step(&[384], 0, &table)],
                "token id 384 is outside the vocabulary",
                Blame::Caller,
            ),
            (
                &[step(&[1], 1024, &table)],
                "context of 1024",
                Blame::Caller,
            ),
            (&[step(&long, 0, &table)], "context of 1024", Blame::Caller),
            (
                &[step(&[1], usize::MAX, &table)],
                "context of 1024",
                Blame::Caller,
            ),
            (
                &[step(&[1, 1], 31, &table[..1])],
                "need 2 blocks, have 1",
                Blame::Bug,
            ),
            (&[step(&[1], 0, &[])], "need 1 blocks, have 0", Blame::Bug),
            (
                &[step(&[1], 0, &[4])],
                "block 4 is outside the KV store of 4",
                Blame::Bug,
            ),
            (
                &[step(&[1], 0, &[2]), step(&[1], 3, &[2])],
                "block 2 would be written",
                Blame::Bug,
            ),
            (
                &[step(&[1], 0, &[1]), step(&[500], 0, &[2])],
                "step 1 of the batch",
                Blame::Caller,
            ),
        ];
        for (steps, fragment, blame) in cases {
            let error = refusal(steps);
            assert!(
                error.to_string().contains(fragment),
                "{error} lacks {fragment}"
            );
            assert_eq!(error.blame(), *blame, "{error}");
        }
    }

    #[test]
    fn a_shared_block_may_be_read_by_two() {
        let config = TinySpec::default().config();
        let steps = [step(&[1], 32, &[0, 1]), step(&[1], 32, &[0, 2])];
        assert!(Batch::new(&config, ROOM, &steps).is_ok());
    }

    #[test]
    fn rows_and_wanted_rows_are_counted_in_step_order() {
        let config = TinySpec::default().config();
        let with = |tokens, start, table, logits| SeqStep {
            tokens,
            start,
            table,
            window_table: &[],
            logits,
        };
        let steps = [
            with(&[1, 2, 3], 30, &[0, 1], LogitRows::Last),
            with(&[4, 5], 0, &[2], LogitRows::None),
            with(&[6, 7], 5, &[3], LogitRows::All),
        ];
        let batch = Batch::new(&config, ROOM, &steps).unwrap();
        assert_eq!(batch.tokens, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(batch.positions, [30, 31, 32, 0, 1, 5, 6]);
        assert_eq!(batch.last_position(), 32);
        let start = |w: &Wanted<'_>| w.span(LayerGroup::All).start;
        let wanted: Vec<_> = batch.wanted.iter().map(|w| (w.row, start(w))).collect();
        assert_eq!(wanted, [(2, 32), (5, 5)]);
        assert_eq!(batch.wanted_rows(), 3);
    }
}
