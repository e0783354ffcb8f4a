//! Names and sizes of the weight formats, after the GGML specification (`ggml-common.h`).

use std::fmt;

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl WeightType {
    /// Every type, for tests and tables.
    pub const ALL: [WeightType; 13] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q2K,
        WeightType::Q3K,
        WeightType::Q4K,
        WeightType::Q5K,
        WeightType::Q6K,
    ];

    /// Columns in one source block.
    pub const fn block_len(self) -> usize {
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => 1,
            WeightType::Q4_0
            | WeightType::Q4_1
            | WeightType::Q5_0
            | WeightType::Q5_1
            | WeightType::Q8_0 => 32,
            WeightType::Q2K
            | WeightType::Q3K
            | WeightType::Q4K
            | WeightType::Q5K
            | WeightType::Q6K => 256,
        }
    }

    /// Bytes of one source block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::BF16 => 2,
            WeightType::Q4_0 => 18,
            WeightType::Q4_1 => 20,
            WeightType::Q5_0 => 22,
            WeightType::Q5_1 => 24,
            WeightType::Q8_0 => 34,
            WeightType::Q2K => 84,
            WeightType::Q3K => 110,
            WeightType::Q4K => 144,
            WeightType::Q5K => 176,
            WeightType::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` columns; `None` when `cols` is not a whole number of blocks.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name GGUF tools print.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "F32",
            WeightType::F16 => "F16",
            WeightType::BF16 => "BF16",
            WeightType::Q4_0 => "Q4_0",
            WeightType::Q4_1 => "Q4_1",
            WeightType::Q5_0 => "Q5_0",
            WeightType::Q5_1 => "Q5_1",
            WeightType::Q8_0 => "Q8_0",
            WeightType::Q2K => "Q2_K",
            WeightType::Q3K => "Q3_K",
            WeightType::Q4K => "Q4_K",
            WeightType::Q5K => "Q5_K",
            WeightType::Q6K => "Q6_K",
        }
    }

    /// Whether activations are rounded to int8 for this type.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// What is subtracted from a stored number to get the signed one.
    pub(crate) const fn offset(self) -> i32 {
        match self {
            WeightType::Q4_0 => 8,
            WeightType::Q5_0 => 16,
            WeightType::Q8_0 => 128,
            WeightType::Q3K => 4,
            WeightType::Q6K => 32,
            WeightType::F32
            | WeightType::F16
            | WeightType::BF16
            | WeightType::Q4_1
            | WeightType::Q5_1
            | WeightType::Q2K
            | WeightType::Q4K
            | WeightType::Q5K => 0,
        }
    }

    /// Whether a scale covers 16 columns (else 32).
    pub(crate) const fn scales_by_16(self) -> bool {
        matches!(self, WeightType::Q2K | WeightType::Q3K | WeightType::Q6K)
    }

    /// Whether a block carries a minimum beside its scale.
    pub(crate) const fn has_min(self) -> bool {
        matches!(
            self,
            WeightType::Q4_1
                | WeightType::Q5_1
                | WeightType::Q2K
                | WeightType::Q4K
                | WeightType::Q5K
        )
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
