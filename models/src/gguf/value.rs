//! Metadata values. Strings and arrays stay in the mapped file: reading a vocabulary of 150,000
//! tokens allocates nothing. Whatever is in a [`Value`] has been checked to lie within the file.
//!
//! After the GGUF specification (ggml, `docs/gguf.md`).

use bytes::Bytes;

use super::cursor::Cursor;
use crate::limits::ARRAY_DEPTH_MAX;
use crate::{Error, Result};

/// The type of a metadata value, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [
            U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64,
        ]
    };

    fn from_id(id: u32) -> Result<Self> {
        Self::ALL.get(id as usize).copied().ok_or_else(|| {
            Error::input(format!(
                "value type {id} is unknown: GGUF has types 0 to 12; the file is damaged or newer \
                 than this reader"
            ))
        })
    }

    /// The number of the type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes of one value, or the least number of them where values differ in length.
    fn bytes_min(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

/// One metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Should be UTF-8; the typed getters check that it is.
    String(Bytes),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let ty = ValueType::from_id(cursor.u32("the type of the value")?)?;
        let what = "the value";
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(what)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(what)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
            ValueType::Bool => Value::Bool(bool_of(cursor.array::<1>(what)?[0])?),
            ValueType::String => Value::String(cursor.string("the string")?),
            ValueType::Array => Value::Array(Array::read(cursor, 1)?),
        })
    }

    pub fn ty(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// What the value is, for an error: `u32`, `array of string`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.element().name()),
            other => other.ty().name().to_owned(),
        }
    }

    /// The value of any integer type, where it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                None
            }
        }
    }
}

/// An array inside the file. Elements are decoded when they are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    element: ValueType,
    count: usize,
    raw: Bytes,
}

impl Array {
    fn read(cursor: &mut Cursor<'_>, depth: u32) -> Result<Self> {
        let (element, count) = read_array_head(cursor, depth)?;
        let start = cursor.position();
        skip_elements(cursor, element, count, depth)?;
        let raw = cursor.since(start);
        Ok(Self {
            element,
            count,
            raw,
        })
    }

    pub fn element(&self) -> ValueType {
        self.element
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The strings of an array of strings, as bytes; nothing for any other array.
    pub fn strings(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest: &[u8] = match self.element {
            ValueType::String => &self.raw,
            _ => &[],
        };
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<8>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (string, tail) = tail.split_at_checked(length)?;
            rest = tail;
            Some(string)
        })
    }

    /// The elements as they stand in the file.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Elements of `N` bytes each, of an array whose element type has that size.
    pub(super) fn chunks<const N: usize>(&self) -> impl Iterator<Item = [u8; N]> {
        self.raw.as_chunks::<N>().0.iter().copied()
    }
}

fn read_array_head(cursor: &mut Cursor<'_>, depth: u32) -> Result<(ValueType, usize)> {
    if depth > ARRAY_DEPTH_MAX {
        return Err(Error::input(format!(
            "arrays are nested more than {ARRAY_DEPTH_MAX} deep; the file is damaged or not a model"
        )));
    }
    let element = ValueType::from_id(cursor.u32("the element type of the array")?)?;
    let count = cursor.u64("the length of the array")?;
    let what = format!("array elements of type {}", element.name());
    let count = cursor.check_count(count, element.bytes_min(), &what)?;
    Ok((element, count))
}

/// Walks over the elements. Recursion ends at [`ARRAY_DEPTH_MAX`].
fn skip_elements(
    cursor: &mut Cursor<'_>,
    element: ValueType,
    count: usize,
    depth: u32,
) -> Result<()> {
    match element {
        ValueType::String => {
            for _ in 0..count {
                cursor.skip_string("a string in the array")?;
            }
        }
        ValueType::Array => {
            for _ in 0..count {
                let (element, count) = read_array_head(cursor, depth + 1)?;
                skip_elements(cursor, element, count, depth + 1)?;
            }
        }
        ValueType::Bool => {
            let values = cursor.take(count as u64, "the array")?;
            values.iter().try_for_each(|&b| bool_of(b).map(drop))?;
        }
        fixed => {
            // Cannot overflow: `check_count` found that many bytes in the file.
            cursor.advance(count as u64 * fixed.bytes_min(), "the array")?;
        }
    }
    Ok(())
}

fn bool_of(byte: u8) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::input(format!(
            "a bool is stored as 0 or 1, found {other}; the file is damaged"
        ))),
    }
}
