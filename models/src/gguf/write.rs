//! Writes GGUF version 3 files: for tests, benchmarks and the tiny models of [`crate::tiny`].
//!
//! The writer does as it is told and checks nothing, so that a test can make a damaged file with it.

use std::path::Path;

use kernels::WeightType;

use super::tensor::type_id;
use super::value::{Array, Value, ValueType};

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    U64(u64),
    I64(i64),
    F64(f64),
    /// An array: its element type, and elements that should be of that type.
    Array(ValueType, Vec<Meta>),
    /// An array as another file has it.
    Copied(Array),
}

impl Meta {
    pub fn strings<S: Into<String>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::Array(
            ValueType::String,
            items.into_iter().map(|s| Meta::Str(s.into())).collect(),
        )
    }

    pub fn i32s(items: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(ValueType::I32, items.into_iter().map(Meta::I32).collect())
    }

    pub fn f32s(items: impl IntoIterator<Item = f32>) -> Self {
        Self::Array(ValueType::F32, items.into_iter().map(Meta::F32).collect())
    }

    fn ty(&self) -> ValueType {
        match self {
            Meta::U8(_) => ValueType::U8,
            Meta::I8(_) => ValueType::I8,
            Meta::U16(_) => ValueType::U16,
            Meta::I16(_) => ValueType::I16,
            Meta::U32(_) => ValueType::U32,
            Meta::I32(_) => ValueType::I32,
            Meta::F32(_) => ValueType::F32,
            Meta::Bool(_) => ValueType::Bool,
            Meta::Str(_) => ValueType::String,
            Meta::U64(_) => ValueType::U64,
            Meta::I64(_) => ValueType::I64,
            Meta::F64(_) => ValueType::F64,
            Meta::Array(..) | Meta::Copied(_) => ValueType::Array,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Meta::U8(v) => out.extend(v.to_le_bytes()),
            Meta::I8(v) => out.extend(v.to_le_bytes()),
            Meta::U16(v) => out.extend(v.to_le_bytes()),
            Meta::I16(v) => out.extend(v.to_le_bytes()),
            Meta::U32(v) => out.extend(v.to_le_bytes()),
            Meta::I32(v) => out.extend(v.to_le_bytes()),
            Meta::F32(v) => out.extend(v.to_le_bytes()),
            Meta::Bool(v) => out.push(u8::from(*v)),
            Meta::Str(v) => write_string(out, v),
            Meta::U64(v) => out.extend(v.to_le_bytes()),
            Meta::I64(v) => out.extend(v.to_le_bytes()),
            Meta::F64(v) => out.extend(v.to_le_bytes()),
            Meta::Array(element, items) => {
                out.extend(element.id().to_le_bytes());
                out.extend((items.len() as u64).to_le_bytes());
                items.iter().for_each(|item| item.write(out));
            }
            Meta::Copied(array) => {
                out.extend(array.element().id().to_le_bytes());
                out.extend((array.len() as u64).to_le_bytes());
                out.extend(array.raw());
            }
        }
    }
}

impl From<u32> for Meta {
    fn from(v: u32) -> Self {
        Meta::U32(v)
    }
}

impl From<f32> for Meta {
    fn from(v: f32) -> Self {
        Meta::F32(v)
    }
}

impl From<bool> for Meta {
    fn from(v: bool) -> Self {
        Meta::Bool(v)
    }
}

/// The same value in another file. A string that is not UTF-8 loses what is not.
impl From<&Value> for Meta {
    fn from(value: &Value) -> Self {
        match value {
            Value::U8(v) => Meta::U8(*v),
            Value::I8(v) => Meta::I8(*v),
            Value::U16(v) => Meta::U16(*v),
            Value::I16(v) => Meta::I16(*v),
            Value::U32(v) => Meta::U32(*v),
            Value::I32(v) => Meta::I32(*v),
            Value::F32(v) => Meta::F32(*v),
            Value::Bool(v) => Meta::Bool(*v),
            Value::String(v) => Meta::Str(String::from_utf8_lossy(v).into_owned()),
            Value::Array(v) => Meta::Copied(v.clone()),
            Value::U64(v) => Meta::U64(*v),
            Value::I64(v) => Meta::I64(*v),
            Value::F64(v) => Meta::F64(*v),
        }
    }
}

impl From<&str> for Meta {
    fn from(v: &str) -> Self {
        Meta::Str(v.to_owned())
    }
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct TensorData {
    pub name: String,
    /// The fastest first, as in the file: `[cols, rows]`.
    pub dims: Vec<u64>,
    /// ggml's number of the type.
    pub type_id: u32,
    pub bytes: Vec<u8>,
    /// Where the table says the data is; `None` puts it where it really is.
    pub offset: Option<u64>,
}

/// A file being put together.
#[derive(Clone, Debug)]
pub struct Writer {
    pub version: u32,
    /// Alignment of the data. Not written to the metadata: set `general.alignment` as well.
    pub alignment: u64,
    pub pairs: Vec<(String, Meta)>,
    pub tensors: Vec<TensorData>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key: a value that is there already is replaced.
    pub fn set(&mut self, key: &str, value: impl Into<Meta>) -> &mut Self {
        let value = value.into();
        match self.pairs.iter_mut().find(|(known, _)| known == key) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        self
    }

    /// Removes a key.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.pairs.retain(|(known, _)| known != key);
        self
    }

    /// Adds a tensor of raw data. `dims` are `[cols, rows]`.
    pub fn tensor(
        &mut self,
        name: &str,
        ty: WeightType,
        dims: &[u64],
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.tensors.push(TensorData {
            name: name.to_owned(),
            dims: dims.to_vec(),
            type_id: type_id(ty),
            bytes,
            offset: None,
        });
        self
    }

    /// Adds a tensor of f32 values. `dims` are `[cols, rows]`.
    pub fn tensor_f32(&mut self, name: &str, dims: &[u64], values: &[f32]) -> &mut Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, WeightType::F32, dims, bytes)
    }

    /// The tensor of that name, to be changed.
    pub fn tensor_mut(&mut self, name: &str) -> Option<&mut TensorData> {
        self.tensors.iter_mut().find(|tensor| tensor.name == name)
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            write_string(&mut out, key);
            out.extend(value.ty().id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            write_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor
                .dims
                .iter()
                .for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += (tensor.bytes.len() as u64).next_multiple_of(self.alignment);
        }
        self.pad(&mut out);
        for tensor in &self.tensors {
            out.extend(&tensor.bytes);
            self.pad(&mut out);
        }
        out
    }

    /// The model split into `parts` files, as llama.cpp's `gguf-split` does it: name and content of
    /// each, the metadata in the first.
    pub fn to_split(&self, stem: &str, parts: usize) -> Vec<(String, Vec<u8>)> {
        let per_part = self.tensors.len().div_ceil(parts).max(1);
        let part = |index: usize| {
            let mut part = Writer {
                version: self.version,
                alignment: self.alignment,
                ..Writer::new()
            };
            if index == 0 {
                part.pairs = self.pairs.clone();
            }
            part.set("split.no", Meta::U16(index as u16));
            part.set("split.count", Meta::U16(parts as u16));
            part.set("split.tensors.count", Meta::I32(self.tensors.len() as i32));
            part.tensors = self
                .tensors
                .chunks(per_part)
                .nth(index)
                .map(<[_]>::to_vec)
                .unwrap_or_default();
            (
                format!("{stem}-{:05}-of-{parts:05}.gguf", index + 1),
                part.to_bytes(),
            )
        };
        (0..parts).map(part).collect()
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    fn pad(&self, out: &mut Vec<u8>) {
        let length = (out.len() as u64).next_multiple_of(self.alignment);
        out.resize(length as usize, 0);
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
