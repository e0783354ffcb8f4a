//! The seam between a model and the engine: token ids and a block table in, logits out.
//!
//! Invariant: a [`Forward`] owns weights and scratch memory and nothing of any sequence. Keys and
//! values live in a [`KvStore`] that the caller owns and addresses through block tables, so a
//! sequence can be shared, copied and dropped without asking the model. On the CPU the logits of a
//! row depend on its sequence alone, to the bit: not on chunks, batch mates or threads.

use std::num::NonZeroUsize;

use kernels::{KvArena, KvShape};

pub use crate::decoder::TensorKv;
pub use crate::identity::ModelIdentity;
use crate::{Config, Error, Result};

/// Which rows of a step the caller wants logits of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    None,
    Last,
    All,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct SeqStep<'a> {
    /// At least one.
    pub tokens: &'a [u32],
    /// Position of the first of them; the positions before it are in the KV store already.
    pub start: usize,
    /// `table[i]` is the block of positions `32 i .. 32 i + 32`, up to the last of `tokens`.
    pub table: &'a [u32],
    /// The same for the layers with a window, from the block of the first position that the first of
    /// `tokens` sees there; entries before it stand for nothing. Empty for a model without such layers.
    pub window_table: &'a [u32],
    pub logits: LogitRows,
}

/// What a pass gives back.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    pub vocab: usize,
    /// [rows asked for, vocab], in step order.
    pub data: Vec<f32>,
    /// Rows that really went through the layers.
    pub rows_computed: usize,
}

impl Logits {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab).unwrap_or(0)
    }

    /// The logits of row `row`: [vocab].
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab..(row + 1) * self.vocab]
    }
}

/// What one pass costs whatever executes it, for comparing a speed with the machine's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassCost {
    /// Weights that every pass reads, however many rows it has.
    pub weight_bytes: u64,
    /// Multiply-adds of weight products that every row takes.
    pub multiply_adds_a_row: u64,
    /// Multiply-adds that a row takes besides when its logits are wanted: the end of the last layer
    /// and the output matrix.
    pub multiply_adds_of_logits: u64,
    /// Bytes of keys and values that attention reads for each position before a row, in the layers that see
    /// every position.
    pub kv_bytes_a_position: u64,
    /// The same in the layers with a window, for each position in it; 0 where there are none.
    pub window_kv_bytes_a_position: u64,
    /// Positions of that window.
    pub window_tokens: usize,
}

impl PassCost {
    /// Bytes of keys and values that attention reads for a row behind `depth` positions.
    pub fn kv_bytes(&self, depth: f64) -> f64 {
        let in_window = depth.min(self.window_tokens as f64);
        self.kv_bytes_a_position as f64 * depth + self.window_kv_bytes_a_position as f64 * in_window
    }
}

/// A model that can be run.
pub trait Forward: Send {
    fn config(&self) -> &Config;

    /// Digest over all that the KV depends on.
    fn identity_seed(&self) -> &ModelIdentity;

    /// Keys and values of the layers that see every position.
    fn kv_shape(&self) -> KvShape;

    /// Those of the layers with a window, where there are some.
    fn window(&self) -> Option<WindowShape> {
        None
    }

    /// Whether a row's logits are the same to the bit whatever stands beside it (law 1).
    fn is_exact(&self) -> bool {
        false
    }

    /// What a pass costs; `None` where that is not known.
    fn cost(&self) -> Option<PassCost> {
        None
    }

    /// Allocates memory for keys and values, for this model and on its device: `blocks` for the layers that
    /// see every position, `window_blocks` for those with a window, if there are some.
    ///
    /// # Errors
    /// Blames the device when there is not enough memory.
    fn new_kv(&self, blocks: usize, window_blocks: usize) -> Result<KvStore>;

    /// Runs all steps in one pass and writes their keys and values.
    ///
    /// # Errors
    /// An empty step, a token id outside the vocabulary, a position outside the context, a table
    /// that is too short, a block outside the store or written by two steps. Nothing was written
    /// then.
    fn forward(&mut self, steps: &[SeqStep<'_>], kv: &mut KvStore) -> Result<Logits>;
}

/// Layers with a window, as far as their keys and values go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowShape {
    pub kv: KvShape,
    /// Positions that a row sees, its own included.
    pub tokens: NonZeroUsize,
}

/// Keys and values of all sequences, where the model can reach them.
pub struct KvStore {
    /// Of the layers that see every position.
    pub all: KvBlocks,
    /// Of the layers with a window. Its blocks are counted apart.
    pub window: Option<KvBlocks>,
}

/// Blocks of keys and values of a group of layers.
pub enum KvBlocks {
    Cpu(KvArena),
    Tensor(TensorKv),
}

impl KvBlocks {
    pub fn shape(&self) -> KvShape {
        match self {
            KvBlocks::Cpu(arena) => arena.shape(),
            KvBlocks::Tensor(tensors) => tensors.shape(),
        }
    }

    pub fn blocks(&self) -> usize {
        match self {
            KvBlocks::Cpu(arena) => arena.blocks(),
            KvBlocks::Tensor(tensors) => tensors.blocks(),
        }
    }

    /// Makes the first `tokens` positions of block `to` those of block `from`.
    pub fn copy_block(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        self.check_block(from)?;
        self.check_block(to)?;
        if from == to || tokens > kernels::BLOCK_TOKENS {
            return Err(Error::bug(format!(
                "cannot copy {tokens} positions of block {from} to block {to}: need two blocks and \
                 at most {} positions",
                kernels::BLOCK_TOKENS
            )));
        }
        match self {
            KvBlocks::Cpu(arena) => arena.copy_block(from, to, tokens),
            KvBlocks::Tensor(tensors) => tensors.copy_block(from, to)?,
        }
        Ok(())
    }

    /// The bytes of the first `tokens` positions of a block, for another tier; what stands for the other
    /// positions means nothing. Only a store of the same model identity can take them: their order
    /// belongs to the executor.
    pub fn read_block(&self, block: u32, tokens: usize) -> Result<Vec<u8>> {
        self.check_block(block)?;
        match self {
            KvBlocks::Cpu(arena) => Ok(arena.block_prefix(block, tokens)),
            KvBlocks::Tensor(tensors) => tensors.read_block(block),
        }
    }

    /// Lets `fill` put what [`KvBlocks::read_block`] gave into a block, without a copy where the block is
    /// in memory. When it fails, what the block holds means nothing.
    pub fn fill_block<E: From<Error>>(
        &mut self,
        block: u32,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.check_block(block)?;
        if let KvBlocks::Cpu(arena) = self {
            return fill(arena.block_bytes_mut(block));
        }
        let mut bytes = vec![0; self.shape().block_bytes()];
        fill(&mut bytes)?;
        Ok(self.write_block(block, &bytes)?)
    }

    /// Fills a block with what [`KvBlocks::read_block`] gave.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<()> {
        self.check_block(block)?;
        let need = self.shape().block_bytes();
        if bytes.len() != need {
            return Err(Error::input(format!(
                "a KV block of this model has {need} bytes, this has {}; ignore it and compute \
                 again",
                bytes.len()
            )));
        }
        match self {
            KvBlocks::Cpu(arena) => arena.block_bytes_mut(block).copy_from_slice(bytes),
            KvBlocks::Tensor(tensors) => tensors.write_block(block, bytes)?,
        }
        Ok(())
    }

    fn check_block(&self, block: u32) -> Result<()> {
        let blocks = self.blocks();
        if (block as usize) < blocks {
            return Ok(());
        }
        Err(Error::bug(format!(
            "block {block} is outside the KV store of {blocks} blocks"
        )))
    }
}
