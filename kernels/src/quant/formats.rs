//! The repacked form of the quantised formats: tiles of 16 rows, one row to a lane.
//!
//! A tile holds 16 rows over all columns: first the numbers of its blocks (32 columns x 16
//! rows each), then the scales of its groups (one source block x 16 rows each). In a block,
//! word `g` of a row is its columns `4 g .. 4 g + 4`, a byte each; lane `r` of a 64-byte vector
//! is row `r`. Numbers stay in their on-disk width:
//!
//! ```text
//! 4 low bits   4 vectors: vector g holds word g in its low, word g + 4 in its high halves
//! 2 low bits   2 vectors: vector z holds words 4 z .. 4 z + 4 at bits 0, 2, 4, 6
//! 1 high bit   1 vector:  bit g of a byte belongs to word g
//! 2 high bits  2 vectors: as the 2 low bits
//! 8 bits       8 vectors: word g
//! scales       d [16] f16, (minimum [16] f16), then per block of a 256-column group 32 bytes
//! ```

use half::f16;

use super::WeightType;
use super::blocks::Block32;
use crate::isa::Isa;
use crate::limits::TILE_ROWS;

/// Bytes of one vector.
const VECTOR: usize = 64;

/// How the numbers of a repacked type are laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bits kept in the first vectors: 2, 4 or 8.
    low: usize,
    /// Bits kept beside them: 0, 1 or 2.
    high: usize,
    /// 32-column blocks that share one scale group.
    pub group_blocks: usize,
    /// Bytes of the numbers of one block.
    pub block_bytes: usize,
    /// Bytes of the scales of one group.
    pub group_bytes: usize,
}

/// The layout of a quantised type.
pub(crate) const fn layout(ty: WeightType) -> Layout {
    let (low, high) = match ty {
        WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q4K => (4, 0),
        WeightType::Q5_0 | WeightType::Q5_1 | WeightType::Q5K => (4, 1),
        WeightType::Q6K => (4, 2),
        WeightType::Q2K => (2, 0),
        WeightType::Q3K => (2, 1),
        WeightType::Q8_0 => (8, 0),
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => panic!("not quantised"),
    };
    let group_blocks = ty.block_len() / 32;
    let halves = if ty.has_min() { 2 } else { 1 };
    let per_block = if group_blocks > 1 { 2 * TILE_ROWS } else { 0 };
    Layout {
        low,
        high,
        group_blocks,
        block_bytes: VECTOR * (low + high),
        group_bytes: halves * 2 * TILE_ROWS + group_blocks * per_block,
    }
}

/// Writes the numbers of row `r` into a block: `out` [block_bytes].
#[inline(always)]
pub(crate) fn pack_numbers(layout: Layout, q: &[u8; 32], r: usize, out: &mut [u8]) {
    let mut words = [0u32; 8];
    for (word, q) in words.iter_mut().zip(q.chunks_exact(4)) {
        *word = u32::from_le_bytes([q[0], q[1], q[2], q[3]]);
    }
    let mut put = |vector: usize, word: u32| {
        let at = vector * VECTOR + 4 * r;
        out[at..at + 4].copy_from_slice(&word.to_le_bytes());
    };
    match layout.low {
        8 => (0..8).for_each(|g| put(g, words[g])),
        4 => (0..4).for_each(|g| {
            put(
                g,
                words[g] & 0x0f0f_0f0f | (words[g + 4] & 0x0f0f_0f0f) << 4,
            );
        }),
        _ => (0..2).for_each(|z| put(z, crumbs(&words[4 * z..], 0))),
    }
    match layout.high {
        0 => {}
        1 => {
            let bit = layout.low;
            let word = |(g, w): (usize, &u32)| (w >> bit & 0x0101_0101) << g;
            let all = words.iter().enumerate().map(word).fold(0, |a, b| a | b);
            put(layout.low, all);
        }
        _ => (0..2).for_each(|z| put(layout.low + z, crumbs(&words[4 * z..], layout.low))),
    }
}

/// Two bits from `bit` of each byte of four words, side by side.
#[inline(always)]
fn crumbs(words: &[u32], bit: usize) -> u32 {
    (0..4).fold(0, |a, i| a | (words[i] >> bit & 0x0303_0303) << (2 * i))
}

/// Reads the numbers of row `r` back.
fn unpack_numbers(layout: Layout, block: &[u8], r: usize) -> [u8; 32] {
    let byte = |vector: usize, j: usize| block[vector * VECTOR + 4 * r + j];
    std::array::from_fn(|c| {
        let (g, j) = (c / 4, c % 4);
        let low = match layout.low {
            8 => byte(g, j),
            4 => byte(g % 4, j) >> (4 * (g / 4)) & 15,
            _ => byte(g / 4, j) >> (2 * (g % 4)) & 3,
        };
        let high = match layout.high {
            0 => 0,
            1 => byte(layout.low, j) >> g & 1,
            _ => byte(layout.low + g / 4, j) >> (2 * (g % 4)) & 3,
        };
        // Eight low bits have no high ones.
        low | if layout.high == 0 {
            0
        } else {
            high << layout.low
        }
    })
}

/// Writes the scales of row `r`, block `sub` of its group: `out` [group_bytes].
#[inline(always)]
pub(crate) fn pack_scales(ty: WeightType, block: &Block32, r: usize, sub: usize, out: &mut [u8]) {
    let mut at = 0;
    let mut half = |x: f16| {
        out[at + 2 * r..at + 2 * r + 2].copy_from_slice(&x.to_le_bytes());
        at += 2 * TILE_ROWS;
    };
    half(block.d);
    if ty.has_min() {
        half(block.m);
    }
    if layout(ty).group_blocks == 1 {
        return;
    }
    let at = at + 2 * TILE_ROWS * sub + r;
    let (first, second) = match ty {
        WeightType::Q2K => (
            block.sc[0] | block.mn[0] << 4,
            block.sc[1] | block.mn[1] << 4,
        ),
        WeightType::Q4K | WeightType::Q5K => (block.sc[0], block.mn[0]),
        _ => (block.sc[0], block.sc[1]),
    };
    out[at] = first as u8;
    out[at + TILE_ROWS] = second as u8;
}

/// Row `r` of one block of a tile, decoded: the inverse of packing.
pub(crate) fn unpack(ty: WeightType, block: &[u8], group: &[u8], r: usize, sub: usize) -> Block32 {
    let half = |at: usize| f16::from_le_bytes([group[at], group[at + 1]]);
    let has_min = ty.has_min();
    let layout = layout(ty);
    let mut out = Block32 {
        q: unpack_numbers(layout, block, r),
        d: half(2 * r),
        m: if has_min { half(32 + 2 * r) } else { f16::ZERO },
        sc: [1, 1],
        mn: [1, 1],
    };
    if layout.group_blocks == 1 {
        return out;
    }
    let at = if has_min { 64 } else { 32 } + 32 * sub + r;
    let (first, second) = (group[at], group[at + TILE_ROWS]);
    match ty {
        WeightType::Q2K => {
            out.sc = [first, second].map(|s| i32::from(s & 15));
            out.mn = [first, second].map(|s| i32::from(s >> 4));
        }
        WeightType::Q4K | WeightType::Q5K => {
            out.sc = [i32::from(first); 2];
            out.mn = [i32::from(second); 2];
        }
        _ => out.sc = [first, second].map(|s| i32::from(s as i8)),
    }
    out
}

/// A quantised type as the kernels see it.
pub(crate) trait Format: 'static {
    const TY: WeightType;
    const LAYOUT: Layout = layout(Self::TY);
    const OFFSET: i32 = Self::TY.offset();
    /// Whether a stored number needs all eight bits of its byte, six, five, ...
    const BITS: u32 = (Self::LAYOUT.low + Self::LAYOUT.high) as u32;

    /// The eight words of a block as bytes.
    ///
    /// # Safety
    /// `p` is good for `LAYOUT.block_bytes`; the machine has the instructions of `I`.
    #[inline(always)]
    unsafe fn numbers<I: Isa>(p: *const u8) -> [I::V; 8] {
        // SAFETY: every vector read is one of the `low + high` vectors of the block.
        unsafe {
            let mut w = match Self::LAYOUT.low {
                8 => std::array::from_fn(|g| I::load_bytes(p.add(VECTOR * g))),
                4 => {
                    let v: [I::V; 4] = std::array::from_fn(|g| I::load_bytes(p.add(VECTOR * g)));
                    std::array::from_fn(|g| {
                        let x = if g < 4 { v[g] } else { I::shr(v[g - 4], 4) };
                        I::mask(x, 15)
                    })
                }
                _ => {
                    let v: [I::V; 2] = std::array::from_fn(|z| I::load_bytes(p.add(VECTOR * z)));
                    std::array::from_fn(|g| I::mask(I::shr(v[g / 4], 2 * (g % 4) as u32), 3))
                }
            };
            let beside = p.add(VECTOR * Self::LAYOUT.low);
            match Self::LAYOUT.high {
                0 => {}
                1 => {
                    let h = I::load_bytes(beside);
                    let to = Self::LAYOUT.low as u32;
                    for (g, w) in w.iter_mut().enumerate() {
                        *w = I::or_mask(*w, moved::<I>(h, g as u32, to), 1 << to);
                    }
                }
                _ => {
                    let h = [I::load_bytes(beside), I::load_bytes(beside.add(VECTOR))];
                    let to = Self::LAYOUT.low as u32;
                    for (g, w) in w.iter_mut().enumerate() {
                        let bits = moved::<I>(h[g / 4], 2 * (g % 4) as u32, to);
                        *w = I::or_mask(*w, bits, 3 << to);
                    }
                }
            }
            w
        }
    }
}

/// Bit `from` of every byte moved to bit `to`; the other bits are anything.
///
/// # Safety
/// The machine has the instructions of `I`.
#[inline(always)]
unsafe fn moved<I: Isa>(x: I::V, from: u32, to: u32) -> I::V {
    // SAFETY: no pointers.
    unsafe {
        if from <= to {
            I::shl(x, to - from)
        } else {
            I::shr(x, from - to)
        }
    }
}

pub(crate) struct Q4_0;
pub(crate) struct Q4_1;
pub(crate) struct Q5_0;
pub(crate) struct Q5_1;
pub(crate) struct Q8_0;
pub(crate) struct Q2K;
pub(crate) struct Q3K;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;

impl Format for Q4_0 {
    const TY: WeightType = WeightType::Q4_0;
}
impl Format for Q4_1 {
    const TY: WeightType = WeightType::Q4_1;
}
impl Format for Q5_0 {
    const TY: WeightType = WeightType::Q5_0;
}
impl Format for Q5_1 {
    const TY: WeightType = WeightType::Q5_1;
}
impl Format for Q8_0 {
    const TY: WeightType = WeightType::Q8_0;
}
impl Format for Q2K {
    const TY: WeightType = WeightType::Q2K;
}
impl Format for Q3K {
    const TY: WeightType = WeightType::Q3K;
}
impl Format for Q4K {
    const TY: WeightType = WeightType::Q4K;
}
impl Format for Q5K {
    const TY: WeightType = WeightType::Q5K;
}
impl Format for Q6K {
    const TY: WeightType = WeightType::Q6K;
}
