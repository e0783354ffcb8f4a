//! Python methods on strings, lists and mappings that minijinja-contrib lacks or does otherwise than CPython:
//! what counts as white space, `maxsplit` by name, `rsplit`, `partition`, `removeprefix` and the like.
//! Methods that change a value in place are refused, as in transformers' sandbox.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python;

/// Adds filters, tests and methods to what minijinja has built in.
pub(super) fn install(env: &mut Environment<'_>) {
    minijinja_contrib::add_to_environment(env);
    env.set_unknown_method_callback(call_method);
    env.add_filter("tojson", python::tojson);
    env.add_filter("percent_format", percent_format);
    env.add_filter(
        "trim",
        |value: &Value, chars: Option<&str>| -> Result<String, Error> {
            Ok(strip(&python::str_of(value)?, chars, Ends::Both).to_owned())
        },
    );
    env.add_filter("string", |value: &Value| -> Result<Value, Error> {
        if value.as_str().is_some() {
            Ok(value.clone())
        } else {
            python::str_of(value).map(Value::from)
        }
    });
    // Jinja2: anything with a length and items, so also strings and mappings.
    env.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map
        )
    });
    // Jinja2: None is not iterable, an undefined value is (and empty).
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Iterable
                | ValueKind::Map
                | ValueKind::String
                | ValueKind::Undefined
        )
    });
}

/// `'…' % value` (see `source`): a tuple holds the arguments, anything else is the only one.
/// The built-in `format` filter does the work, since it pays for wide fields before it makes them.
fn percent_format(state: &mut State, text: &Value, value: &Value) -> Result<Value, Error> {
    let mut arguments = vec![text.clone()];
    match value.downcast_object_ref::<Tuple>() {
        Some(tuple) => arguments.extend(tuple.iter().cloned()),
        None => arguments.push(value.clone()),
    }
    state.apply_filter("format", &arguments)
}

/// `str.format` does not pay for wide fields; none that a chat template means is wider than this.
fn check_field_widths(format: &str) -> Result<(), Error> {
    let digits = format
        .split(|c: char| !c.is_ascii_digit())
        .map(|run| run.trim_start_matches('0').len());
    match digits.max() {
        Some(longest) if longest > 4 => {
            Err(invalid("a field of a format string is too wide".to_owned()))
        }
        _ => Ok(()),
    }
}

fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let ours = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        ValueKind::Seq => list_method(value, method, args)?,
        _ => None,
    };
    if let Some(result) = ours {
        return Ok(result);
    }
    if matches!(
        method,
        "append"
            | "extend"
            | "insert"
            | "pop"
            | "remove"
            | "clear"
            | "update"
            | "setdefault"
            | "sort"
    ) {
        return Err(invalid(format!(
            "{method}() would change a value in place, which chat templates may not"
        )));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn list_method(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => Ok(Some(list.clone())),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (index, item) in list.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Some(Value::from(index)));
                }
            }
            Err(invalid(format!("{wanted:?} is not in list")))
        }
        _ => Ok(None),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Left,
    Right,
    Both,
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let ends = match method {
                "strip" => Ends::Both,
                "lstrip" => Ends::Left,
                _ => Ends::Right,
            };
            Value::from(strip(text, chars, ends))
        }
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "splitlines" => splitlines(text, args)?,
        "format" => {
            check_field_widths(text)?;
            return Ok(None);
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if method == "index" {
                text.find(part)
            } else {
                text.rfind(part)
            };
            let at = found.ok_or_else(|| invalid("substring not found".to_owned()))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_numeric()))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let missing = padding(text, width)?;
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = padding(text, width)?;
            let left = match method {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            let fill = fill.unwrap_or(" ");
            Value::from(format!(
                "{}{text}{}",
                fill.repeat(left),
                fill.repeat(missing - left)
            ))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn padding(text: &str, width: usize) -> Result<usize, Error> {
    if width > 1 << 16 {
        return Err(invalid(format!("width {width} is too large")));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

/// Python counts the four ASCII separators as white space, Unicode's property does not.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn strip<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let unwanted = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if ends == Ends::Right {
        text
    } else {
        text.trim_start_matches(unwanted)
    };
    if ends == Ends::Left {
        text
    } else {
        text.trim_end_matches(unwanted)
    }
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(value) => Some(value),
        None => kwargs.get::<Option<Value>>("sep")?,
    };
    let limit = match limit {
        Some(limit) => Some(limit),
        None => kwargs.get::<Option<i64>>("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let limit = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let separator = separator.filter(|value| !value.is_none());
    let parts: Vec<&str> = match &separator {
        None => split_spaces(text, limit, from_right),
        Some(value) => {
            let separator = value
                .as_str()
                .ok_or_else(|| invalid("split() needs a string".to_owned()))?;
            if separator.is_empty() {
                return Err(invalid("empty separator".to_owned()));
            }
            if from_right {
                let mut parts: Vec<&str> =
                    text.rsplitn(limit.saturating_add(1), separator).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(limit.saturating_add(1), separator).collect()
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Splits at runs of white space, at most `limit` times.
fn split_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    // With room for all parts both ends are stripped; else the last part keeps its outer white space.
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        let gap = if from_right {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        match gap.filter(|_| parts.len() < limit) {
            None => {
                parts.push(rest);
                break;
            }
            Some(at) if from_right => {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            Some(at) => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// Python's line ends: CR LF counts as one.
fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep
        .or(kwargs.get::<Option<bool>>("keepends")?)
        .unwrap_or(false);
    kwargs.assert_all_used()?;
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines: Vec<Value> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(Value::from(&rest[..if keep { at + width } else { at }]));
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator".to_owned()));
    }
    let parts = if from_right {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match parts {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right column is what CPython 3.11 gives.
    #[test]
    fn methods_do_what_python_does() {
        let mut env = Environment::new();
        install(&mut env);
        for (expression, expected) in [
            ("'a  b c'.split()", "['a', 'b', 'c']"),
            ("' a b c '.split(None, 1)", "['a', 'b c ']"),
            ("' a b c '.rsplit(maxsplit=1)", "[' a b', 'c']"),
            ("'a.b.c'.rsplit('.', 1)", "['a.b', 'c']"),
            ("'a.b.c'.split(sep='.', maxsplit=1)", "['a', 'b.c']"),
            ("'k=v=w'.partition('=')", "('k', '=', 'v=w')"),
            ("'kv'.rpartition('=')", "('', '', 'kv')"),
            ("'xxabxx'.strip('x') ~ '|' ~ ' \\n a '.lstrip()", "ab|a "),
            ("'<a>'.removeprefix('<').removesuffix('>')", "a"),
            ("'a\\r\\nb\\rc'.splitlines()", "['a', 'b', 'c']"),
            (
                "'7'.zfill(3) ~ '-7'.zfill(4) ~ 'a'.center(4, '*')",
                "007-007*a**",
            ),
            ("'abc'.startswith(('x', 'a'))", "True"),
            ("'a' is sequence and {} is sequence", "True"),
            ("[1, 2].index(2)", "1"),
            ("'%s=%03d' | percent_format(('a', 7))", "a=007"),
        ] {
            let rendered = env
                .render_str(&format!("{{{{ {expression} }}}}"), ())
                .expect(expression);
            assert_eq!(rendered, expected, "{expression}");
        }
        assert!(env.render_str("{{ [].append(1) }}", ()).is_err());
    }
}
