//! Values as Python writes them: `str()`, `repr()` and `json.dumps`. A chat template was tested by its authors
//! under CPython, and one different space changes every token after it.
//! Source: CPython's `float.__repr__`, `json.encoder`, and transformers' `tojson` (ensure_ascii off, no HTML escape).

use std::fmt::Write;

use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::limits::VALUE_DEPTH_MAX;

/// `str(value)`: what `{{ value }}` prints.
pub(super) fn str_of(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    write_repr(value, 0, &mut out)?;
    Ok(out)
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float_repr(f64::try_from(value.clone())?))
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut items = 0;
            for item in value.try_iter()?.checked() {
                if items > 0 {
                    out.push_str(", ");
                }
                write_repr(&item?, depth + 1, out)?;
                items += 1;
            }
            out.push_str(match (tuple, items) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::String => {
            let _ = write!(out, "{value:?}");
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// `repr(float)`: the shortest digits that read back, in scientific form below 1e-4 and from 1e16 on.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// The `tojson` filter as transformers defines it.
pub(super) fn tojson(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = match kwargs
        .get::<Option<Value>>("indent")?
        .filter(|value| !value.is_none())
    {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(number) => Some(" ".repeat(usize::try_from(number)?.min(64))),
    };
    let separators: Option<(String, String)> = match kwargs.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => Some((
            pair.get_item_by_index(0)?.to_string(),
            pair.get_item_by_index(1)?.to_string(),
        )),
        _ => None,
    };
    kwargs.assert_all_used()?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
    let mut writer = JsonWriter {
        ensure_ascii,
        sort_keys,
        indent,
        item,
        key,
        out: String::new(),
    };
    writer.value(value, 0)?;
    state.consume_fuel(writer.out.len() as u64 / 4)?;
    Ok(Value::from(writer.out))
}

/// `json.dumps(value, ensure_ascii=False)` of plain JSON.
pub(super) fn dumps(value: &serde_json::Value) -> String {
    let mut writer = JsonWriter {
        ensure_ascii: false,
        sort_keys: false,
        indent: None,
        item: ", ".to_owned(),
        key: ": ".to_owned(),
        out: String::new(),
    };
    // Only depth can fail; a value that deep is not worth showing to a model.
    match writer.value(&Value::from(minijinja::value::Serde(value)), 0) {
        Ok(()) => writer.out,
        Err(_) => "null".to_owned(),
    }
}

/// `json.dumps` with its options.
struct JsonWriter {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
    out: String,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self
                .out
                .push_str(&json_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut items = 0;
                for item in value.try_iter()?.checked() {
                    self.before_item(items, depth);
                    self.value(&item?, depth + 1)?;
                    items += 1;
                }
                self.close(']', items, depth);
            }
            ValueKind::Map => {
                let mut keys = value
                    .try_iter()?
                    .checked()
                    .collect::<Result<Vec<Value>, Error>>()?;
                if self.sort_keys {
                    keys.sort();
                }
                self.out.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.before_item(index, depth);
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            self.out.push('"');
                            self.value(key, depth + 1)?;
                            self.out.push('"');
                        }
                        kind => return Err(not_serializable(kind)),
                    }
                    self.out.push_str(&self.key);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close('}', keys.len(), depth);
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn before_item(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.item);
        }
        self.new_line(depth + 1);
    }

    fn close(&mut self, bracket: char, items: usize, depth: usize) {
        if items > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// `json.dumps(float)`: like `repr`, with JavaScript's names for what is not finite.
fn json_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float_repr(value)
    }
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > VALUE_DEPTH_MAX {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "value is nested too deeply to be written",
        ));
    }
    Ok(())
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("Object of type {kind} is not JSON serializable"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right column is what CPython 3.11's `repr` prints.
    #[test]
    fn floats_print_as_python_prints_them() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }
}
