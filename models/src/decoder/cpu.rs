//! The decoder on the CPU, over our own kernels.
//!
//! Invariant (law 1): the logits of a row depend on the tokens of its sequence and nothing else, to
//! the bit. Each kernel keeps it for itself; here it holds because a row's way through the layers
//! is the same whichever rows stand beside it.

use std::sync::Arc;

use kernels::{AttnShape, KvArena, KvShape, RopeTable, Scratch, SeqSpan, ThreadPool, Weight};

use super::batch::Batch;
use super::embedding::Embedding;
use super::kernel_error;
use super::kv::KvShapes;
use super::rope::Rotations;
use super::weights::{DecoderWeights, LayerWeights};
use crate::config::{KvPlace, LayerGroup};
use crate::forward::{
    Forward, KvBlocks, KvStore, Logits, ModelIdentity, PassCost, SeqStep, WindowShape,
};
use crate::{Config, Error, Result};

/// A decoder whose weights are in memory.
pub(crate) struct CpuDecoder {
    config: Config,
    identity: ModelIdentity,
    kv: KvShapes,
    weights: DecoderWeights<Arc<Weight>, Vec<f32>>,
    embedding: Embedding,
    rotations: Rotations,
    pool: ThreadPool,
    rows: Rows,
}

/// Activations of one pass. They grow to the largest pass seen and stay.
#[derive(Default)]
struct Rows {
    /// [T, d_model] the residual stream
    x: Vec<f32>,
    /// [T, d_model] normed, and later what is added to `x`
    h: Vec<f32>,
    /// [T, q_heads * head_dim]
    q: Vec<f32>,
    /// [T, kv_heads * head_dim]
    k: Vec<f32>,
    /// [T, kv_heads * head_dim]
    v: Vec<f32>,
    /// [T, q_heads * head_dim]
    attended: Vec<f32>,
    /// [T, d_ff]
    gate: Vec<f32>,
    /// [T, d_ff]
    up: Vec<f32>,
    scratch: Scratch,
}

/// What [`CpuDecoder::new`] is made from.
pub(crate) struct CpuParts {
    pub config: Config,
    pub identity: ModelIdentity,
    pub kv: KvShapes,
    pub weights: DecoderWeights<Arc<Weight>, Vec<f32>>,
    pub embedding: Embedding,
    pub pool: ThreadPool,
}

impl CpuDecoder {
    pub fn new(parts: CpuParts) -> Result<Self> {
        let rotations = Rotations::new(&parts.config)?;
        Ok(Self {
            config: parts.config,
            identity: parts.identity,
            kv: parts.kv,
            weights: parts.weights,
            embedding: parts.embedding,
            rotations,
            pool: parts.pool,
            rows: Rows::default(),
        })
    }

    /// All layers for all rows, then the logits of the rows that were asked for.
    fn pass(&mut self, batch: &Batch<'_>, kv: &mut Arenas<'_>) -> Result<Logits> {
        let last = batch.last_position();
        let window_table = match &mut self.rotations.window {
            Some(rotation) => Some(rotation.table_up_to(last)?),
            None => None,
        };
        let step = LayerStep {
            config: &self.config,
            pool: &self.pool,
            table: self.rotations.all.table_up_to(last)?,
            window_table,
        };
        let rows = &mut self.rows;
        rows.fit(&self.config, batch.rows());
        self.embedding
            .rows(&batch.tokens, self.config.d_model, &mut rows.x);
        if let Some(factor) = self.config.embedding_scale() {
            kernels::scale(&self.pool, &mut rows.x, factor);
        }

        let (last, others) = self.weights.layers.split_last().ok_or_else(no_layers)?;
        for (layer, weights) in others.iter().enumerate() {
            let place = self.config.kv_place(layer);
            let kv = kv.of(place.group)?;
            step.project_and_append(weights, place, batch, kv, rows);
            step.attend_and_feed(weights, place, batch.spans(place.group), kv, rows);
        }
        // The last layer's keys and values are needed of every row, the rest of it only where
        // logits are.
        let place = self.config.kv_place(others.len());
        let kv = kv.of(place.group)?;
        step.project_and_append(last, place, batch, kv, rows);
        rows.keep_wanted(&self.config, batch);
        step.attend_and_feed(last, place, &batch.wanted_spans(place.group), kv, rows);
        Ok(self.logits(batch))
    }

    /// Final norm and output matrix over the rows that are left.
    fn logits(&mut self, batch: &Batch<'_>) -> Logits {
        let (rows, vocab) = (&mut self.rows, self.config.vocab);
        let mut data = vec![0.0; batch.wanted_rows() * vocab];
        if !data.is_empty() {
            let eps = self.config.norm_eps;
            kernels::rms_norm(&self.pool, &rows.x, &self.weights.norm, eps, &mut rows.h);
            let output = &self.weights.output;
            kernels::matmul(&self.pool, &rows.h, output, &mut data, &mut rows.scratch);
        }
        Logits {
            vocab,
            data,
            rows_computed: batch.rows(),
        }
    }
}

impl Forward for CpuDecoder {
    fn config(&self) -> &Config {
        &self.config
    }

    fn identity_seed(&self) -> &ModelIdentity {
        &self.identity
    }

    fn kv_shape(&self) -> KvShape {
        self.kv.all
    }

    fn window(&self) -> Option<WindowShape> {
        self.kv.window
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn cost(&self) -> Option<PassCost> {
        let (last, others) = self.weights.layers.split_last()?;
        let work = |w: &Arc<Weight>| (w.shape().rows * w.shape().cols) as u64;
        let every = others.iter().flat_map(LayerWeights::matrices);
        let every = every.chain([&last.q, &last.k, &last.v]);
        let ending = [&last.attention_output, &last.gate, &last.up, &last.down];
        let ending = ending.into_iter().chain([&self.weights.output]);
        let all = every.clone().chain(ending.clone());
        let bytes_a_position = |kv: KvShape| (kv.block_bytes() / kernels::BLOCK_TOKENS) as u64;
        let window = self.kv.window;
        Some(PassCost {
            weight_bytes: all.map(|w| w.resident_bytes() as u64).sum(),
            multiply_adds_a_row: every.map(work).sum(),
            multiply_adds_of_logits: ending.map(work).sum(),
            kv_bytes_a_position: bytes_a_position(self.kv.all),
            window_kv_bytes_a_position: window.map_or(0, |w| bytes_a_position(w.kv)),
            window_tokens: window.map_or(0, |w| w.tokens.get()),
        })
    }

    fn new_kv(&self, blocks: usize, window_blocks: usize) -> Result<KvStore> {
        let new = |shape, blocks| KvArena::new(shape, blocks).map(KvBlocks::Cpu);
        self.kv.store(blocks, window_blocks, |shape, blocks| {
            new(shape, blocks).map_err(kernel_error)
        })
    }

    fn forward(&mut self, steps: &[SeqStep<'_>], kv: &mut KvStore) -> Result<Logits> {
        let batch = Batch::new(&self.config, self.kv.room(kv)?, steps)?;
        let arena = |blocks| match blocks {
            &mut KvBlocks::Cpu(ref mut arena) => Ok(arena),
            KvBlocks::Tensor(_) => Err(super::foreign_kv()),
        };
        let mut arenas = Arenas {
            all: arena(&mut kv.all)?,
            window: kv.window.as_mut().map(arena).transpose()?,
        };
        self.pass(&batch, &mut arenas)
    }
}

/// Where the keys and values of either group of layers are.
struct Arenas<'a> {
    all: &'a mut KvArena,
    window: Option<&'a mut KvArena>,
}

impl Arenas<'_> {
    fn of(&mut self, group: LayerGroup) -> Result<&mut KvArena> {
        match group {
            LayerGroup::All => Ok(self.all),
            LayerGroup::Window => self.window.as_deref_mut().ok_or_else(super::foreign_kv),
        }
    }
}

/// What every layer of one pass shares.
struct LayerStep<'a> {
    config: &'a Config,
    pool: &'a ThreadPool,
    /// Of layers that see every position.
    table: &'a RopeTable,
    window_table: Option<&'a RopeTable>,
}

impl LayerStep<'_> {
    /// Norm, projections, bias or norms, rotation: leaves `q` in `rows`, and K and V in the KV store.
    fn project_and_append(
        &self,
        weights: &LayerWeights<Arc<Weight>, Vec<f32>>,
        place: KvPlace,
        batch: &Batch<'_>,
        kv: &mut KvArena,
        rows: &mut Rows,
    ) {
        let pool = self.pool;
        let Rows {
            x,
            h,
            q,
            k,
            v,
            scratch,
            ..
        } = rows;
        kernels::rms_norm(pool, x, &weights.attention_norm, self.config.norm_eps, h);
        let projections = [&*weights.q, &*weights.k, &*weights.v];
        kernels::matmul_each(pool, h, &projections, &mut [q, k, v], scratch);
        if let Some(bias) = &weights.bias {
            kernels::add_bias(pool, q, &bias.q);
            kernels::add_bias(pool, k, &bias.k);
            kernels::add_bias(pool, v, &bias.v);
        }
        let (head_dim, eps) = (self.config.head_dim, self.config.norm_eps);
        if let Some(inside) = &weights.inside {
            kernels::rms_norm_in_place(pool, q, &inside.q, eps);
            kernels::rms_norm_in_place(pool, k, &inside.k, eps);
        }
        let table = match place.group {
            LayerGroup::All => self.table,
            LayerGroup::Window => self.window_table.unwrap_or(self.table),
        };
        kernels::rope(pool, q, head_dim, &batch.positions, table);
        kernels::rope(pool, k, head_dim, &batch.positions, table);
        kernels::append_kv(pool, kv, place.index, batch.spans(place.group), k, v);
    }

    /// Attention and its output, then the feed-forward network, each added to the residual stream.
    fn attend_and_feed(
        &self,
        weights: &LayerWeights<Arc<Weight>, Vec<f32>>,
        place: KvPlace,
        spans: &[SeqSpan<'_>],
        kv: &KvArena,
        rows: &mut Rows,
    ) {
        let (config, pool) = (self.config, self.pool);
        if rows.x.is_empty() {
            return;
        }
        let Rows {
            x,
            h,
            q,
            attended,
            gate,
            up,
            scratch,
            ..
        } = rows;
        let shape = AttnShape {
            q_heads: config.q_heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: config.attention_scale(),
            window: match place.group {
                LayerGroup::All => None,
                LayerGroup::Window => config.window.as_ref().map(|window| window.tokens),
            },
        };
        let inside = weights.inside.as_ref();
        kernels::attention(pool, kv, place.index, spans, q, shape, attended, scratch);
        kernels::matmul(pool, attended, &weights.attention_output, h, scratch);
        if let Some(inside) = inside {
            kernels::rms_norm_in_place(pool, h, &inside.attended, config.norm_eps);
        }
        kernels::add(pool, x, h);

        kernels::rms_norm(pool, x, &weights.ffn_norm, config.norm_eps, h);
        let projections = [&*weights.gate, &*weights.up];
        kernels::matmul_each(pool, h, &projections, &mut [gate, up], scratch);
        kernels::gated_mul(pool, config.family.activation(), gate, up);
        kernels::matmul(pool, gate, &weights.down, h, scratch);
        if let Some(inside) = inside {
            kernels::rms_norm_in_place(pool, h, &inside.fed, config.norm_eps);
        }
        kernels::add(pool, x, h);
    }
}

impl Rows {
    /// Gives every buffer room for `rows` rows.
    fn fit(&mut self, config: &Config, rows: usize) {
        let q_width = config.q_heads * config.head_dim;
        let kv_width = config.kv_heads * config.head_dim;
        self.x.resize(rows * config.d_model, 0.0);
        self.h.resize(rows * config.d_model, 0.0);
        self.q.resize(rows * q_width, 0.0);
        self.k.resize(rows * kv_width, 0.0);
        self.v.resize(rows * kv_width, 0.0);
        self.attended.resize(rows * q_width, 0.0);
        self.gate.resize(rows * config.d_ff, 0.0);
        self.up.resize(rows * config.d_ff, 0.0);
    }

    /// Moves the wanted rows of `x` and `q` to the front and forgets the others.
    fn keep_wanted(&mut self, config: &Config, batch: &Batch<'_>) {
        let q_width = config.q_heads * config.head_dim;
        let mut kept = 0;
        for wanted in &batch.wanted {
            let from = wanted.row..wanted.row + wanted.rows();
            for (buffer, width) in [(&mut self.x, config.d_model), (&mut self.q, q_width)] {
                buffer.copy_within(from.start * width..from.end * width, kept * width);
            }
            kept += wanted.rows();
        }
        self.fit(config, kept);
    }
}

fn no_layers() -> Error {
    Error::bug("a decoder without layers: the configuration should have been refused")
}
