//! Gemma 4's calls: `call:name{key:value,…}`, where text stands between `<|"|>` marks and keys are bare.

use serde_json::{Map, Value};

const QUOTE: &str = "<|\"|>";
/// As deep as `serde_json` reads.
const DEPTH_MAX: usize = 128;

/// Finds the end of the bracketed part in a growing text.
#[derive(Debug, Default)]
pub(super) struct Scan {
    at: usize,
    depth: usize,
    quoted: bool,
}

impl Scan {
    /// The byte behind the last bracket, once it is there.
    pub(super) fn advance(&mut self, text: &str) -> Option<usize> {
        while self.at < text.len() {
            let rest = &text[self.at..];
            if rest.starts_with(QUOTE) {
                self.quoted = !self.quoted;
                self.at += QUOTE.len();
                continue;
            }
            if QUOTE.starts_with(rest) {
                return None;
            }
            match rest.as_bytes()[0] {
                b'{' | b'[' if !self.quoted => self.depth += 1,
                b'}' | b']' if !self.quoted => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at + 1);
                    }
                }
                _ => {}
            }
            self.at += rest.chars().next().map_or(1, char::len_utf8);
        }
        None
    }
}

/// `call:name{…}` as name and arguments.
pub(super) fn read(text: &str) -> Result<(String, Value), String> {
    let body = text.trim().strip_prefix("call:").unwrap_or(text.trim());
    let brace = body
        .find('{')
        .ok_or("the call has no arguments in braces")?;
    let mut reader = Reader {
        text: &body[brace..],
        at: 0,
    };
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at < reader.text.len() {
        return Err("text stands behind the arguments".to_owned());
    }
    Ok((body[..brace].trim().to_owned(), value))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, mark: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(mark);
        if found {
            self.at += mark.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err("the arguments are nested too deeply".to_owned());
        }
        if self.take("{") {
            let mut map = Map::new();
            while !self.take("}") {
                let key = if self.take(QUOTE) {
                    self.quoted()?
                } else {
                    self.bare(":")?
                };
                if !self.take(":") {
                    return Err(format!("a colon is missing behind {key:?}"));
                }
                map.insert(key, self.value(depth + 1)?);
                self.separator("}")?;
            }
            return Ok(Value::Object(map));
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                items.push(self.value(depth + 1)?);
                self.separator("]")?;
            }
            return Ok(Value::Array(items));
        }
        if self.take(QUOTE) {
            return Ok(Value::String(self.quoted()?));
        }
        let word = self.bare(",}]")?;
        Ok(match serde_json::from_str::<Value>(&word) {
            Ok(value) => value,
            Err(_) => match word.as_str() {
                "True" => Value::Bool(true),
                "False" => Value::Bool(false),
                "None" => Value::Null,
                _ => Value::String(word),
            },
        })
    }

    fn separator(&mut self, end: &str) -> Result<(), String> {
        self.skip_space();
        if self.take(",") || self.rest().starts_with(end) {
            Ok(())
        } else {
            Err("a comma is missing".to_owned())
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let (text, _) = self
            .rest()
            .split_once(QUOTE)
            .ok_or("a text is not closed")?;
        self.at += text.len() + QUOTE.len();
        Ok(text.to_owned())
    }

    fn bare(&mut self, ends: &str) -> Result<String, String> {
        let length = self
            .rest()
            .find(|c| ends.contains(c))
            .ok_or("the call was cut off before its end")?;
        let word = self.rest()[..length].trim();
        self.at += length;
        Ok(word.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_values_are_read() {
        let text = "call:send{arguments:{m:<|\"|>How are {you}, \"A\"?<|\"|>,n:[1,{x:true}],e:{},l:[]},to:<|\"|>bob<|\"|>, f:1.5}";
        let value = json!({"arguments": {"m": "How are {you}, \"A\"?", "n": [1, {"x": true}], "e": {}, "l": []}, "to": "bob", "f": 1.5});
        assert_eq!(read(text), Ok(("send".to_owned(), value)));
        for bad in [
            "call:x",
            "call:x{a:1",
            "call:x{a}",
            "call:x{a:<|\"|>b}",
            &format!("call:x{}", "{a:".repeat(300)),
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
