//! Rotary position embedding as a file describes it.
//!
//! Scaling `none` and `linear`, and per-pair factors from the tensor `rope_freqs.weight` (how GGUF
//! stores Llama 3's scaling). YaRN and others are refused: ignoring them gives a model that is right
//! on short prompts and wrong on long ones.

use kernels::{RopeSpec, RopeStyle, WeightType};

use super::keys::Keys;
use crate::error::quote;
use crate::gguf::Gguf;
use crate::{Error, Result};

pub(super) const FACTORS: &str = "rope_freqs.weight";
const BASE_DEFAULT: f32 = 10_000.0;

/// Position `p` turns pair `i` of a head by `p / (linear_scale * factors[i] * base^(2 i / dims))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub base: f32,
    pub style: RopeStyle,
    /// Values at the start of each head that are turned; even, at most the head.
    pub dims: usize,
    /// 1 for none.
    pub linear_scale: f32,
    /// [dims / 2].
    pub factors: Option<Vec<f32>>,
}

impl Rope {
    /// As the kernels take it.
    pub fn spec(&self) -> RopeSpec<'_> {
        RopeSpec {
            style: self.style,
            dims: self.dims,
            base: f64::from(self.base),
            linear_scale: f64::from(self.linear_scale),
            factors: self.factors.as_deref(),
        }
    }

    pub(super) fn read(
        keys: &Keys<'_>,
        model: &Gguf,
        style: RopeStyle,
        head_dim: usize,
    ) -> Result<Self> {
        const DIMS: &str = "rope.dimension_count";
        let dims = keys.positive_or(DIMS, head_dim)?;
        if dims % 2 != 0 || dims > head_dim {
            let why = format!("need an even number up to the head's {head_dim}, have {dims}");
            return Err(keys.fault(DIMS, &why));
        }
        Ok(Self {
            base: keys
                .optional_positive_f32("rope.freq_base")?
                .unwrap_or(BASE_DEFAULT),
            style,
            dims,
            linear_scale: linear_scale(keys)?,
            factors: factors(model, dims)?,
        })
    }
}

/// As in llama.cpp, a factor without a type means linear scaling.
fn linear_scale(keys: &Keys<'_>) -> Result<f32> {
    const TYPE: &str = "rope.scaling.type";
    let factor = match keys.optional_positive_f32("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.optional_positive_f32("rope.scale_linear")?,
    };
    match keys.optional::<&str>(TYPE)? {
        None | Some("linear") => Ok(factor.unwrap_or(1.0)),
        Some("none") => Ok(1.0),
        Some(other) => {
            let why = format!(
                "scaling {} is not supported: need \"none\" or \"linear\"; take the model as \
                 published without context extension",
                quote(other)
            );
            Err(keys.fault(TYPE, &why))
        }
    }
}

fn factors(model: &Gguf, dims: usize) -> Result<Option<Vec<f32>>> {
    let fail = |why: String| Error::input(format!("tensor {FACTORS}: {why}")).in_file(model.path());
    let Some(info) = model.tensor(FACTORS) else {
        return Ok(None);
    };
    if info.ty != WeightType::F32 || info.dims != [dims / 2] {
        return Err(fail(format!(
            "need [{}] F32, have {}",
            dims / 2,
            info.describe()
        )));
    }
    let bytes = model.bytes(FACTORS)?;
    let values: Vec<f32> = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    match values
        .iter()
        .position(|value| !(value.is_finite() && *value > 0.0))
    {
        None => Ok(Some(values)),
        Some(i) => Err(fail(format!(
            "factor {i} is {}: need a number above 0",
            values[i]
        ))),
    }
}
