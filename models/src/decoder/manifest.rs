//! The matrices that a decoder multiplies with, listed before any of them is read.
//!
//! That they are all there in the right shapes was checked by [`Config::from_gguf`].

use bytes::Bytes;
use kernels::{MatrixShape, WeightType};

use super::weights::{self, MakeWeights};
use crate::gguf::{Gguf, TensorInfo};
use crate::{Config, Error, Result};

/// A matrix of the file.
pub(crate) struct Entry {
    pub name: String,
    pub shape: MatrixShape,
    pub bytes: usize,
}

/// Walks the recipe and notes what it asks for.
pub(crate) struct Manifest<'a> {
    gguf: &'a Gguf,
    pub matrices: Vec<Entry>,
    vector_bytes: usize,
}

impl<'a> Manifest<'a> {
    pub fn new(config: &Config, gguf: &'a Gguf) -> Result<Self> {
        let mut manifest = Self {
            gguf,
            matrices: Vec::new(),
            vector_bytes: 0,
        };
        weights::read(config, &mut manifest)?;
        Ok(manifest)
    }

    /// Bytes that the weights take in memory, quantised as they are.
    pub fn weight_bytes(&self) -> usize {
        self.vector_bytes + self.matrices.iter().map(|entry| entry.bytes).sum::<usize>()
    }
}

impl MakeWeights for Manifest<'_> {
    type Matrix = ();
    type Vector = ();

    fn matrix(&mut self, name: &str, shape: MatrixShape) -> Result<()> {
        let bytes = info(self.gguf, name)?.bytes;
        self.matrices.push(Entry {
            name: name.to_owned(),
            shape,
            bytes,
        });
        Ok(())
    }

    fn vector(&mut self, _name: &str, length: usize) -> Result<()> {
        self.vector_bytes += length * size_of::<f32>();
        Ok(())
    }
}

/// Type and data of a matrix.
pub(crate) fn matrix(gguf: &Gguf, name: &str) -> Result<(WeightType, Bytes)> {
    Ok((info(gguf, name)?.ty, gguf.bytes(name)?))
}

/// A vector, as f32 whatever it is stored as.
pub(crate) fn vector(gguf: &Gguf, name: &str, length: usize) -> Result<Vec<f32>> {
    let mut values = vec![0.0; length];
    kernels::dequantise(info(gguf, name)?.ty, &gguf.bytes(name)?, &mut values);
    Ok(values)
}

fn info<'a>(gguf: &'a Gguf, name: &str) -> Result<&'a TensorInfo> {
    let missing = || {
        Error::bug(format!(
            "tensor \"{name}\" is missing, though it was checked"
        ))
    };
    gguf.tensor(name).ok_or_else(missing)
}
