//! The decoder over candle's tensors: for CUDA and Metal, and tested on candle's CPU device.
//!
//! The recipe is that of [`super::cpu`], step by step. Quantised matrices stay quantised; activations
//! and attention are f32; K and V are read back in their stored precision. candle's products may
//! differ in the last bits between one row and many, so here law 1 holds within a margin only.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, Module as _, Tensor};
use kernels::{Activation, KvShape, MatrixShape, RopeStyle, SeqSpan, WeightType};

use super::batch::Batch;
use super::embedding::Embedding;
use super::kv::KvShapes;
use super::manifest;
use super::rope::{Rotation, Rotations};
use super::tensor_kv::TensorKv;
use super::weights::{DecoderWeights, LayerWeights, MakeWeights, NormsInside};
use super::{foreign_kv, tensor_error};
use crate::config::{KvPlace, LayerGroup};
use crate::forward::{Forward, KvBlocks, KvStore, Logits, ModelIdentity, SeqStep, WindowShape};
use crate::gguf::Gguf;
use crate::limits::ATTENTION_SCORES_BYTES_MAX;
use crate::{Config, Result};

type TensorResult<T> = candle_core::Result<T>;

/// A decoder whose weights are on candle's device.
pub(crate) struct TensorDecoder {
    pub config: Config,
    pub identity: ModelIdentity,
    pub kv: KvShapes,
    pub weights: DecoderWeights<QMatMul, Tensor>,
    /// On the host: a row of it is all that a token needs.
    pub embedding: Embedding,
    pub rotations: Rotations,
    pub device: candle_core::Device,
}

impl Forward for TensorDecoder {
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

    fn new_kv(&self, blocks: usize, window_blocks: usize) -> Result<KvStore> {
        self.kv.store(blocks, window_blocks, |shape, blocks| {
            TensorKv::new(shape, blocks, &self.device).map(KvBlocks::Tensor)
        })
    }

    fn forward(&mut self, steps: &[SeqStep<'_>], kv: &mut KvStore) -> Result<Logits> {
        let batch = Batch::new(&self.config, self.kv.room(kv)?, steps)?;
        let tensors = |blocks| match blocks {
            &mut KvBlocks::Tensor(ref mut tensors) => Ok(tensors),
            KvBlocks::Cpu(_) => Err(foreign_kv()),
        };
        let mut stores = Stores {
            all: tensors(&mut kv.all)?,
            window: kv.window.as_mut().map(tensors).transpose()?,
        };
        let device = self.device.clone();
        let angles = |rotation: &mut Rotation| Angles::new(rotation, &batch.positions, &device);
        let all = angles(&mut self.rotations.all)?;
        let window = self.rotations.window.as_mut().map(angles).transpose()?;
        let data = self.pass(&batch, (all, window), &mut stores);
        let data = data.map_err(tensor_error)?;
        Ok(Logits {
            vocab: self.config.vocab,
            data,
            rows_computed: batch.rows(),
        })
    }
}

impl TensorDecoder {
    fn pass(
        &self,
        batch: &Batch<'_>,
        (angles, window_angles): (Angles, Option<Angles>),
        kv: &mut Stores<'_>,
    ) -> TensorResult<Vec<f32>> {
        let (config, rows) = (&self.config, batch.rows());
        let mut x = vec![0.0; rows * config.d_model];
        self.embedding.rows(&batch.tokens, config.d_model, &mut x);
        let mut x = Tensor::from_vec(x, (rows, config.d_model), &self.device)?;
        if let Some(factor) = config.embedding_scale() {
            x = (x * f64::from(factor))?;
        }
        let step = LayerStep {
            config,
            angles,
            window_angles,
        };
        let last_place = config.kv_place(self.weights.layers.len() - 1);
        let wanted_spans = batch.wanted_spans(last_place.group);
        let attended = |spans: &[SeqSpan<'_>], group: LayerGroup| {
            let window = config
                .window
                .as_ref()
                .filter(|_| group == LayerGroup::Window);
            let window = window.map(|window| window.tokens);
            Attended::new(spans, window, &self.device)
        };
        let of_all = attended(batch.spans(LayerGroup::All), LayerGroup::All)?;
        let of_window = attended(batch.spans(LayerGroup::Window), LayerGroup::Window)?;
        let wanted = attended(&wanted_spans, last_place.group)?;
        let last = self.weights.layers.len() - 1;
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            let place = config.kv_place(layer);
            let kv = kv.of(place.group)?;
            let mut q = step.project_and_append(weights, place, batch, kv, &x)?;
            // As on the CPU: after the last keys and values only the rows with logits go on.
            let attended = if layer == last {
                if batch.wanted.is_empty() {
                    return Ok(Vec::new());
                }
                let rows = wanted_rows(batch, &self.device)?;
                x = x.index_select(&rows, 0)?;
                q = q.index_select(&rows, 1)?;
                &wanted
            } else {
                match place.group {
                    LayerGroup::All => &of_all,
                    LayerGroup::Window => &of_window,
                }
            };
            x = step.attend_and_feed(weights, place.index, attended, kv, &x, &q)?;
        }
        let h = norm(&x, &self.weights.norm, config)?;
        self.weights.output.forward(&h)?.flatten_all()?.to_vec1()
    }
}

/// The rows of the batch whose logits were asked for, [rows] u32.
fn wanted_rows(batch: &Batch<'_>, device: &candle_core::Device) -> TensorResult<Tensor> {
    let rows = batch.wanted.iter().flat_map(|w| w.row..w.row + w.rows());
    let rows: Vec<u32> = rows.map(|row| row as u32).collect();
    Tensor::new(rows, device)
}

fn norm(x: &Tensor, weight: &Tensor, config: &Config) -> TensorResult<Tensor> {
    candle_nn::ops::rms_norm(x, weight, config.norm_eps)
}

/// Where the keys and values of either group of layers are.
struct Stores<'a> {
    all: &'a mut TensorKv,
    window: Option<&'a mut TensorKv>,
}

impl Stores<'_> {
    fn of(&mut self, group: LayerGroup) -> TensorResult<&mut TensorKv> {
        let missing = || candle_core::Error::msg("no keys and values of layers with a window");
        match group {
            LayerGroup::All => Ok(self.all),
            LayerGroup::Window => self.window.as_deref_mut().ok_or_else(missing),
        }
    }
}

/// Sequences that attention runs over, with what does not change from layer to layer of a group.
struct Attended {
    sequences: Vec<AttendedSeq>,
    /// Positions that a row sees, its own included; `None` for all.
    window: Option<NonZeroUsize>,
}

/// Positions count from the beginning of the first block that any of the rows sees.
struct AttendedSeq {
    start: usize,
    rows: usize,
    /// [blocks] u32, exactly those of positions `0 .. start + rows`.
    table: Tensor,
}

impl Attended {
    fn new(
        spans: &[SeqSpan<'_>],
        window: Option<NonZeroUsize>,
        device: &candle_core::Device,
    ) -> TensorResult<Self> {
        let sequence = |span: &SeqSpan<'_>| {
            let seen = window.map_or(0, |window| kernels::first_seen(span.start, window));
            let first = seen / kernels::BLOCK_TOKENS;
            let end = (span.start + span.rows).div_ceil(kernels::BLOCK_TOKENS);
            let table = Tensor::new(&span.table[first..end], device)?;
            Ok(AttendedSeq {
                start: span.start - first * kernels::BLOCK_TOKENS,
                rows: span.rows,
                table,
            })
        };
        Ok(Self {
            sequences: spans.iter().map(sequence).collect::<TensorResult<_>>()?,
            window,
        })
    }
}

/// What every layer of one pass shares.
struct LayerStep<'a> {
    config: &'a Config,
    /// Of layers that see every position.
    angles: Angles,
    window_angles: Option<Angles>,
}

/// By how much each row is turned: each [T, rope.dims / 2].
struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    fn new(
        rotation: &mut Rotation,
        positions: &[u32],
        device: &candle_core::Device,
    ) -> Result<Self> {
        let (cos, sin) = rotation.rows(positions)?;
        let tensor = |values: Vec<f32>| {
            let shape = (positions.len(), values.len() / positions.len());
            Tensor::from_vec(values, shape, device).map_err(tensor_error)
        };
        Ok(Self {
            cos: tensor(cos)?,
            sin: tensor(sin)?,
        })
    }
}

impl LayerStep<'_> {
    /// Norm, projections, bias, rotation: gives `q` [Hq, T, D], and leaves K and V in the KV store.
    fn project_and_append(
        &self,
        weights: &LayerWeights<QMatMul, Tensor>,
        place: KvPlace,
        batch: &Batch<'_>,
        kv: &mut TensorKv,
        x: &Tensor,
    ) -> TensorResult<Tensor> {
        let config = self.config;
        let h = norm(x, &weights.attention_norm, config)?;
        let (mut q, mut k, mut v) = (
            weights.q.forward(&h)?,
            weights.k.forward(&h)?,
            weights.v.forward(&h)?,
        );
        if let Some(bias) = &weights.bias {
            q = q.broadcast_add(&bias.q)?;
            k = k.broadcast_add(&bias.k)?;
            v = v.broadcast_add(&bias.v)?;
        }
        let heads_first = |t: Tensor, heads: usize| {
            t.reshape((batch.rows(), heads, config.head_dim))?
                .transpose(0, 1)?
                .contiguous()
        };
        let (mut q, mut k) = (
            heads_first(q, config.q_heads)?,
            heads_first(k, config.kv_heads)?,
        );
        if let Some(inside) = &weights.inside {
            q = norm(&q, &inside.q, config)?;
            k = norm(&k, &inside.k, config)?;
        }
        let angles = match place.group {
            LayerGroup::All => &self.angles,
            LayerGroup::Window => self.window_angles.as_ref().unwrap_or(&self.angles),
        };
        let (q, k) = (self.rotate(&q, angles)?, self.rotate(&k, angles)?);
        let v = heads_first(v, config.kv_heads)?;
        kv.append(place.index, batch.spans(place.group), &k, &v)?;
        Ok(q)
    }

    /// Rotates the first `rope.dims` of each head: `x` [H, T, D] -> [H, T, D].
    fn rotate(&self, x: &Tensor, Angles { cos, sin }: &Angles) -> TensorResult<Tensor> {
        let (dims, head_dim) = (self.config.rope.dims, self.config.head_dim);
        let rotated = x.narrow(D::Minus1, 0, dims)?.contiguous()?.unsqueeze(0)?;
        let rotated = match self.config.rope.style {
            RopeStyle::Norm => candle_nn::rotary_emb::rope_i(&rotated, cos, sin)?,
            RopeStyle::Neox => candle_nn::rotary_emb::rope(&rotated, cos, sin)?,
        };
        let rotated = rotated.squeeze(0)?;
        if dims == head_dim {
            return Ok(rotated);
        }
        Tensor::cat(
            &[rotated, x.narrow(D::Minus1, dims, head_dim - dims)?],
            D::Minus1,
        )
    }

    /// Attention and its output, then the feed-forward network, each added to the residual stream:
    /// `x` [T, d_model], `q` [Hq, T, D] -> [T, d_model].
    fn attend_and_feed(
        &self,
        weights: &LayerWeights<QMatMul, Tensor>,
        layer: usize,
        attended: &Attended,
        kv: &TensorKv,
        x: &Tensor,
        q: &Tensor,
    ) -> TensorResult<Tensor> {
        let mut parts = Vec::with_capacity(attended.sequences.len());
        let mut row = 0;
        for sequence in &attended.sequences {
            let q = q.narrow(1, row, sequence.rows)?;
            let [k, v] = kv.gather(layer, &sequence.table, sequence.start + sequence.rows)?;
            parts.push(self.attend(sequence, attended.window, [k, v], &q)?);
            row += sequence.rows;
        }
        let inside = |h: Tensor, weight: fn(&NormsInside<Tensor>) -> &Tensor| match &weights.inside
        {
            Some(inside) => norm(&h, weight(inside), self.config),
            None => Ok(h),
        };
        let h = weights.attention_output.forward(&Tensor::cat(&parts, 0)?)?;
        let x = (x + inside(h, |norms| &norms.attended)?)?;
        let h = norm(&x, &weights.ffn_norm, self.config)?;
        let gate = weights.gate.forward(&h)?;
        let gate = match self.config.family.activation() {
            Activation::Silu => candle_nn::ops::silu(&gate)?,
            Activation::Gelu => gate.gelu()?,
        };
        let h = weights.down.forward(&(gate * weights.up.forward(&h)?)?)?;
        x + inside(h, |norms| &norms.fed)?
    }

    /// Causal attention of one sequence over its K and V [Hkv, L, D]: `q` [Hq, n, D] -> [n, Hq * D]. Long
    /// prompts go in several passes over their rows, so that the scores stay within a bound.
    fn attend(
        &self,
        sequence: &AttendedSeq,
        window: Option<NonZeroUsize>,
        [k, v]: [Tensor; 2],
        q: &Tensor,
    ) -> TensorResult<Tensor> {
        let positions = sequence.start + sequence.rows;
        let (k, v) = (k.transpose(1, 2)?.contiguous()?, v.contiguous()?);
        let row_bytes = self.config.q_heads * positions * size_of::<f32>();
        let rows_at_once = (ATTENTION_SCORES_BYTES_MAX / row_bytes).max(1);
        let mut parts = Vec::new();
        for first in (0..sequence.rows).step_by(rows_at_once) {
            let rows = rows_at_once.min(sequence.rows - first);
            let q = q.narrow(1, first, rows)?.contiguous()?;
            let seen = Seen {
                first: sequence.start + first,
                positions,
                window,
            };
            parts.push(self.attend_rows(&q, &seen, &k, &v)?);
        }
        Tensor::cat(&parts, 0)
    }

    /// `q` [Hq, n, D]; `k` [Hkv, D, L], `v` [Hkv, L, D] -> [n, Hq * D].
    fn attend_rows(&self, q: &Tensor, seen: &Seen, k: &Tensor, v: &Tensor) -> TensorResult<Tensor> {
        let (q_heads, rows, head_dim) = q.dims3()?;
        let (kv_heads, positions, _) = v.dims3()?;
        // The query heads of one KV head stand beside each other: one product serves them all.
        let grouped = q.reshape((kv_heads, q_heads / kv_heads * rows, head_dim))?;
        let scale = f64::from(self.config.attention_scale());
        let scores = (grouped.matmul(k)? * scale)?.reshape((q_heads, rows, positions))?;
        let scores = match seen.mask(rows, q.device())? {
            Some(mask) => scores.broadcast_add(&mask)?,
            None => scores,
        };
        let weights = candle_nn::ops::softmax_last_dim(&scores)?;
        let weights = weights.reshape((kv_heads, q_heads / kv_heads * rows, positions))?;
        let out = weights.matmul(v)?.reshape((q_heads, rows, head_dim))?;
        out.transpose(0, 1)?.reshape((rows, q_heads * head_dim))
    }
}

/// What some rows see of the `positions` before and among them.
struct Seen {
    /// Position of the first row.
    first: usize,
    positions: usize,
    /// Positions that a row sees, its own included; `None` for all.
    window: Option<NonZeroUsize>,
}

impl Seen {
    /// [n, L]: 0 where row `i` may look, minus infinity elsewhere. `None` when every row may look
    /// everywhere.
    fn mask(&self, rows: usize, device: &candle_core::Device) -> TensorResult<Option<Tensor>> {
        let &Seen {
            first,
            positions,
            window,
        } = self;
        if first + 1 >= positions && window.is_none_or(|window| window.get() >= positions) {
            return Ok(None);
        }
        let mask = |row: usize| {
            let at = first + row;
            let seen = window.map_or(0, |window| kernels::first_seen(at, window))..at + 1;
            (0..positions).map(move |p| match seen.contains(&p) {
                true => 0.0,
                false => f32::NEG_INFINITY,
            })
        };
        let mask: Vec<f32> = (0..rows).flat_map(mask).collect();
        Tensor::from_vec(mask, (rows, positions), device).map(Some)
    }
}

/// Puts the tensors of a file on a device.
pub(crate) struct TensorWeights<'a> {
    pub gguf: &'a Gguf,
    pub device: &'a candle_core::Device,
    /// Called with the bytes of each matrix that has arrived.
    pub arrived: &'a dyn Fn(usize),
}

impl MakeWeights for TensorWeights<'_> {
    type Matrix = QMatMul;
    type Vector = Tensor;

    fn matrix(&mut self, name: &str, shape: MatrixShape) -> Result<QMatMul> {
        let (ty, bytes) = manifest::matrix(self.gguf, name)?;
        let storage = QStorage::from_data(Cow::Borrowed(&bytes), self.device, candle_type(ty));
        let tensor = storage.and_then(|s| QTensor::new(s, (shape.rows, shape.cols)));
        let matrix = tensor
            .and_then(QMatMul::from_qtensor)
            .map_err(tensor_error)?;
        (self.arrived)(bytes.len());
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Tensor> {
        let values = manifest::vector(self.gguf, name, length)?;
        Tensor::from_vec(values, length, self.device).map_err(tensor_error)
    }
}

/// candle's name of a type.
pub(crate) fn candle_type(ty: WeightType) -> GgmlDType {
    match ty {
        WeightType::F32 => GgmlDType::F32,
        WeightType::F16 => GgmlDType::F16,
        WeightType::BF16 => GgmlDType::BF16,
        WeightType::Q4_0 => GgmlDType::Q4_0,
        WeightType::Q4_1 => GgmlDType::Q4_1,
        WeightType::Q5_0 => GgmlDType::Q5_0,
        WeightType::Q5_1 => GgmlDType::Q5_1,
        WeightType::Q8_0 => GgmlDType::Q8_0,
        WeightType::Q2K => GgmlDType::Q2K,
        WeightType::Q3K => GgmlDType::Q3K,
        WeightType::Q4K => GgmlDType::Q4K,
        WeightType::Q5K => GgmlDType::Q5K,
        WeightType::Q6K => GgmlDType::Q6K,
    }
}
