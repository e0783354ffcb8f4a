//! The key-value part of a GGUF file, with getters that check the type and name the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::value::{Value, ValueType};
use crate::error::quote;
use crate::{Error, Result};

/// Metadata of one model: unique keys, sorted.
#[derive(Clone, Debug)]
pub struct Metadata {
    path: PathBuf,
    pairs: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(path: &Path, pairs: BTreeMap<String, Value>) -> Self {
        Self {
            path: path.to_owned(),
            pairs,
        }
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.pairs.get(key)
    }

    pub fn contains(&self, key: &str) -> bool {
        self.pairs.contains_key(key)
    }

    /// All pairs, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key` as a `T`, or `None` where the key is absent. An error when the key is
    /// there and is not a `T`: `metadata.optional::<u64>("llama.vocab_size")?`.
    ///
    /// `T` is `u64`, `u32`, `usize` (any integer type that holds the value), `f32` (f32 or f64),
    /// `bool`, `&str`, or an array read as it is declared: `Vec<&str>`, `Vec<i32>`, `Vec<f32>`.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        T::from_value(value)
            .map(Some)
            .map_err(|why| self.fault(key, &why))
    }

    /// As [`Metadata::optional`], for a key that must be there.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.optional(key)?.ok_or_else(|| {
            Error::input(format!(
                "metadata key {} is missing: need {}; convert the model again",
                quote(key),
                T::WANTED
            ))
            .in_file(&self.path)
        })
    }

    /// An error about the value of `key`, for what a getter cannot check: names key and file.
    pub fn fault(&self, key: &str, why: &str) -> Error {
        Error::input(format!("metadata key {}: {why}", quote(key))).in_file(&self.path)
    }

    /// The file the metadata was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A Rust type that a metadata value can be read as without loss.
pub trait FromValue<'a>: Sized {
    /// What is needed, for an error.
    const WANTED: &'static str;

    /// The value, or what is wrong with it.
    fn from_value(value: &'a Value) -> Result<Self, String>;
}

fn mismatch<'a, T: FromValue<'a>>(value: &Value) -> String {
    format!(
        "need {}, have {}; convert the model again",
        T::WANTED,
        value.describe()
    )
}

macro_rules! unsigned {
    ($($t:ty),*) => {$(
        impl<'a> FromValue<'a> for $t {
            const WANTED: &'static str = "a whole number from 0 up";

            fn from_value(value: &'a Value) -> Result<Self, String> {
                let number = value.as_u64().ok_or_else(|| mismatch::<Self>(value))?;
                <$t>::try_from(number).map_err(|_| {
                    format!("need a number up to {}, have {number}; convert the model again", <$t>::MAX)
                })
            }
        }
    )*};
}
unsigned!(u16, u32, u64, usize);

impl<'a> FromValue<'a> for f32 {
    const WANTED: &'static str = "a number of type f32";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match *value {
            Value::F32(v) => Ok(v),
            Value::F64(v) => Ok(v as f32),
            _ => Err(mismatch::<Self>(value)),
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const WANTED: &'static str = "a bool";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match *value {
            Value::Bool(v) => Ok(v),
            _ => Err(mismatch::<Self>(value)),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::String(bytes) => std::str::from_utf8(bytes)
                .map_err(|e| format!("the string is not UTF-8 at byte {}", e.valid_up_to())),
            _ => Err(mismatch::<Self>(value)),
        }
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    const WANTED: &'static str = "an array of string";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Array(array) if array.element() == ValueType::String => array
                .strings()
                .enumerate()
                .map(|(i, s)| {
                    std::str::from_utf8(s).map_err(|_| format!("element {i} is not UTF-8"))
                })
                .collect(),
            _ => Err(mismatch::<Self>(value)),
        }
    }
}

impl<'a> FromValue<'a> for Vec<i32> {
    const WANTED: &'static str = "an array of i32";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Array(array) if array.element() == ValueType::I32 => {
                Ok(array.chunks().map(i32::from_le_bytes).collect())
            }
            _ => Err(mismatch::<Self>(value)),
        }
    }
}

impl<'a> FromValue<'a> for Vec<f32> {
    const WANTED: &'static str = "an array of f32";

    fn from_value(value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Array(array) if array.element() == ValueType::F32 => {
                Ok(array.chunks().map(f32::from_le_bytes).collect())
            }
            _ => Err(mismatch::<Self>(value)),
        }
    }
}
