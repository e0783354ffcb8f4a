//! Causal attention with grouped query heads over block tables: the work of one call cut up.
//!
//! Softmax runs over tiles of 128 positions at absolute positions, and tiles are merged in
//! order (`attention_tile.rs`). A unit of work is some query rows of one sequence against one
//! KV head; when those are too few for the threads, tiles become units of their own and the same
//! merge runs afterwards. Either way a row's bits are the same. After FlashAttention and
//! flash-decoding, with the split fixed.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::attention_tile::{Partial, Queries, finish, merge, tile, wide_floats};
use crate::isa::{Isa, Job, dispatch};
use crate::limits::{ATTENTION_ROWS, TILE_TOKENS};
use crate::share::Parts;
use crate::stored::{F16, F32, I8, Stored};
use crate::{KvArena, KvType, Scratch, SeqSpan, ThreadPool};

/// Heads of one attention layer. Query head `h` reads KV head `h / (q_heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnShape {
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Multiplies the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Positions that a row sees, its own included; `None` for all up to its own. What lies before the
    /// window of every row of a call is not read: its blocks need not be there.
    pub window: Option<NonZeroUsize>,
}

impl AttnShape {
    /// First position that the row at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| first_seen(position, window))
    }
}

/// First position that the row at `position` sees in a layer with a window.
pub fn first_seen(position: usize, window: NonZeroUsize) -> usize {
    (position + 1).saturating_sub(window.get())
}

/// `q` [T, Hq, D] f32, K and V already appended -> `out` [T, Hq, D] f32, T the rows of all `seqs`.
///
/// # Panics
/// When the shapes do not fit each other or the arena, or a table does not cover its rows.
#[expect(clippy::too_many_arguments)]
pub fn attention(
    pool: &ThreadPool,
    kv: &KvArena,
    layer: usize,
    seqs: &[SeqSpan<'_>],
    q: &[f32],
    shape: AttnShape,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    check(kv, layer, seqs, q, shape, out);
    let positions = seqs.iter().map(|s| s.rows).max().unwrap_or(0);
    if positions == 0 {
        return;
    }
    let call = Call::new(kv, layer, seqs, q, shape, positions);
    let tiles = call.tiles();
    let split = pool.threads() > 1 && tiles > 1 && call.units() < 2 * pool.threads();
    let out = Parts::new(out);
    let tiles = split.then_some(tiles);
    match kv.shape().ty {
        KvType::F32 => run::<F32>(pool, &call, tiles, out, scratch),
        KvType::F16 => run::<F16>(pool, &call, tiles, out, scratch),
        KvType::Q8_0 => run::<I8>(pool, &call, tiles, out, scratch),
    }
}

fn check(
    kv: &KvArena,
    layer: usize,
    seqs: &[SeqSpan<'_>],
    q: &[f32],
    shape: AttnShape,
    out: &[f32],
) {
    let stored = kv.shape();
    assert!(layer < stored.layers, "layer {layer} of {}", stored.layers);
    assert!(
        shape.kv_heads == stored.kv_heads && shape.head_dim == stored.head_dim,
        "attention and arena agree on heads"
    );
    assert!(
        shape.q_heads > 0 && shape.q_heads.is_multiple_of(shape.kv_heads),
        "query heads are a multiple of KV heads"
    );
    let rows: usize = seqs.iter().map(|s| s.rows).sum();
    assert_eq!(
        q.len(),
        rows * shape.q_heads * shape.head_dim,
        "q is [T, Hq, D]"
    );
    assert_eq!(q.len(), out.len(), "out is [T, Hq, D]");
    for seq in seqs {
        seq.check(kv, shape.first_seen(seq.start));
    }
}

/// A call cut into chunks of at most `chunk` positions of one sequence.
struct Call<'a> {
    kv: &'a KvArena,
    layer: usize,
    seqs: &'a [SeqSpan<'a>],
    q: &'a [f32],
    shape: AttnShape,
    chunk: usize,
    chunks: usize,
}

impl<'a> Call<'a> {
    fn new(
        kv: &'a KvArena,
        layer: usize,
        seqs: &'a [SeqSpan<'a>],
        q: &'a [f32],
        shape: AttnShape,
        positions: usize,
    ) -> Call<'a> {
        let group = shape.q_heads / shape.kv_heads;
        let chunk = (ATTENTION_ROWS / group).clamp(1, positions);
        Call {
            kv,
            layer,
            seqs,
            q,
            shape,
            chunk,
            chunks: seqs.iter().map(|s| s.rows.div_ceil(chunk)).sum(),
        }
    }

    /// Chunks times KV heads.
    fn units(&self) -> usize {
        self.chunks * self.shape.kv_heads
    }

    /// Most rows of a unit.
    fn rows(&self) -> usize {
        self.chunk * (self.shape.q_heads / self.shape.kv_heads)
    }

    /// Most tiles of a unit.
    fn tiles(&self) -> usize {
        let tiles = |s: &SeqSpan<'_>| {
            let first = self.shape.first_seen(s.start) / TILE_TOKENS;
            (s.start + s.rows).div_ceil(TILE_TOKENS) - first
        };
        self.seqs.iter().map(tiles).max().unwrap_or(0)
    }

    /// The queries of unit `unit` and where their positions begin in `q` and `out`.
    fn unit(&self, unit: usize) -> (Queries<'a>, usize) {
        let (mut chunk, head) = (unit / self.shape.kv_heads, unit % self.shape.kv_heads);
        let width = self.shape.q_heads * self.shape.head_dim;
        let mut row = 0;
        for seq in self.seqs {
            let chunks = seq.rows.div_ceil(self.chunk);
            if chunk >= chunks {
                chunk -= chunks;
                row += seq.rows;
                continue;
            }
            // The last chunk sees the most keys, so it goes first.
            let from = (chunks - 1 - chunk) * self.chunk;
            let to = (from + self.chunk).min(seq.rows);
            let queries = Queries {
                kv: self.kv,
                layer: self.layer,
                head,
                table: seq.table,
                shape: self.shape,
                q: &self.q[(row + from) * width..(row + to) * width],
                first: seq.start + from,
            };
            return (queries, (row + from) * width);
        }
        unreachable!("a unit beyond the call")
    }
}

/// Some tiles of some queries, then perhaps the result.
struct Work<'a, S> {
    queries: Queries<'a>,
    tiles: Range<usize>,
    /// [rows, D], for the queries gathered.
    q: &'a mut [f32],
    scores: &'a mut [f32],
    wide: &'a mut [f32],
    part: &'a mut [f32],
    /// Merge into this and write the result here; else one tile's part is all.
    total: Option<(&'a mut [f32], *mut f32)>,
    stored: std::marker::PhantomData<S>,
}

impl<S: Stored> Job for Work<'_, S> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let (rows, d) = (self.queries.rows(), self.queries.shape.head_dim);
        self.queries.gather(self.q);
        let mut part = Partial::new(self.part, rows, d);
        let mut total = self
            .total
            .map(|(buffer, out)| (Partial::new(buffer, rows, d), out));
        for t in self.tiles {
            // SAFETY: the arena stores `S` (matched in `attention`), its blocks were checked.
            unsafe {
                tile::<I, S>(&self.queries, self.q, t, self.scores, self.wide, &mut part);
                if let Some((total, _)) = &mut total {
                    merge::<I>(total, &part, &self.queries, t);
                }
            }
        }
        if let Some((total, out)) = &total {
            // SAFETY: `out` is this unit's part of the output.
            unsafe { finish::<I>(&self.queries, total, *out) }
        }
    }
}

/// `tiles`: how many there are at most, when each becomes work of its own.
fn run<S: Stored>(
    pool: &ThreadPool,
    call: &Call<'_>,
    tiles: Option<usize>,
    out: Parts<'_, f32>,
    scratch: &mut Scratch,
) {
    match tiles {
        Some(tiles) => by_tile::<S>(pool, call, tiles, out, scratch),
        None => whole::<S>(pool, call, out, scratch),
    }
}

/// Every unit walks over all its tiles.
fn whole<S: Stored>(
    pool: &ThreadPool,
    call: &Call<'_>,
    out: Parts<'_, f32>,
    scratch: &mut Scratch,
) {
    let (rows, d) = (call.rows(), call.shape.head_dim);
    let part = Partial::len(rows, d).next_multiple_of(16);
    let wide = wide_floats(d);
    let each = (rows * (TILE_TOKENS + d)).next_multiple_of(16) + wide + 2 * part;
    let buffers = Parts::new(scratch.attention_floats(each * pool.threads()));
    pool.for_units(call.units(), &|unit, worker| {
        // SAFETY: each worker has buffers of its own.
        let buffer = unsafe { buffers.part(worker * each, each) };
        let (wide, rest) = buffer.split_at_mut(wide);
        let (scores, rest) = rest.split_at_mut(rows * TILE_TOKENS);
        let (part, rest) = rest.split_at_mut(part);
        let (total, q) = rest.split_at_mut(part.len());
        let (queries, at) = call.unit(unit);
        let work = Work::<S> {
            tiles: queries.tiles(),
            total: Some((total, out.at(at, queries.q.len()))),
            queries,
            q,
            scores,
            wide,
            part,
            stored: std::marker::PhantomData,
        };
        // SAFETY: no other unit has these positions of this head.
        unsafe { dispatch(pool.path(), work) }
    });
}

/// Every (unit, tile) computes its part; then every unit merges its parts in order.
fn by_tile<S: Stored>(
    pool: &ThreadPool,
    call: &Call<'_>,
    tiles: usize,
    out: Parts<'_, f32>,
    scratch: &mut Scratch,
) {
    let (rows, d) = (call.rows(), call.shape.head_dim);
    let part = Partial::len(rows, d).next_multiple_of(16);
    let (scores, units) = (rows * TILE_TOKENS, call.units());
    let wide = wide_floats(d);
    // A worker's own: scores, then the queries or the total, then a block.
    let each = scores + part + wide;
    let buffer = scratch.attention_floats(pool.threads() * each + units * tiles * part);
    let (workers, parts) = buffer.split_at_mut(pool.threads() * each);
    let (workers, parts) = (Parts::new(workers), Parts::new(parts));
    pool.for_units(units * tiles, &|i, worker| {
        let (queries, _) = call.unit(i / tiles);
        let Some(tile) = queries.tiles().nth(i % tiles) else {
            return;
        };
        // SAFETY: each worker has its own.
        let buffer = unsafe { workers.part(worker * each, each) };
        let (scores, rest) = buffer.split_at_mut(scores);
        let (q, wide) = rest.split_at_mut(part);
        let work = Work::<S> {
            queries,
            tiles: tile..tile + 1,
            q,
            scores,
            wide,
            // SAFETY: each (unit, tile) has its own.
            part: unsafe { parts.part(i * part, part) },
            total: None,
            stored: std::marker::PhantomData,
        };
        // SAFETY: nothing is written but the part.
        unsafe { dispatch(pool.path(), work) }
    });
    pool.for_units(units, &|unit, worker| {
        let (queries, at) = call.unit(unit);
        let work = Merge {
            // SAFETY: the parts of this unit, all computed; no other unit touches them.
            parts: unsafe { parts.part(unit * tiles * part, queries.tiles().len() * part) },
            part,
            // SAFETY: each worker has one.
            total: unsafe { workers.part(worker * each + scores, part) },
            out: out.at(at, queries.q.len()),
            queries,
        };
        // SAFETY: no other unit has these positions of this head.
        unsafe { dispatch(pool.path(), work) }
    });
}

/// The parts of one unit, merged.
struct Merge<'a> {
    queries: Queries<'a>,
    parts: &'a mut [f32],
    part: usize,
    total: &'a mut [f32],
    out: *mut f32,
}

impl Job for Merge<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn on<I: Isa>(self) {
        let (rows, d) = (self.queries.rows(), self.queries.shape.head_dim);
        let mut total = Partial::new(self.total, rows, d);
        let parts = self.parts.chunks_exact_mut(self.part);
        for (t, part) in self.queries.tiles().zip(parts) {
            let part = Partial::new(part, rows, d);
            // SAFETY: no pointers.
            unsafe { merge::<I>(&mut total, &part, &self.queries, t) }
        }
        // SAFETY: `out` is this unit's part of the output.
        unsafe { finish::<I>(&self.queries, &total, self.out) }
    }
}
