//! Rewrites the few constructs of Jinja2 templates that minijinja's parser does not know into ones it does.
//! Lines and white-space control stay as they are.
//!
//! - `{% generation %}` (transformers marks trained text with it) becomes `{% with %}`: the body is rendered,
//!   names set inside stay inside, as in transformers' own extension.
//! - `'text %s' % value` becomes `'text %s'|percent_format(value)`: minijinja's `%` knows numbers only.

/// The template with those constructs replaced.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (text, tail) = rest.split_at(start);
        out.push_str(text);
        rest = match tail.as_bytes().get(1) {
            Some(b'#') => copy_until(tail, "#}", &mut out),
            Some(b'%') if is_tag(tail, "raw") => copy_raw(tail, &mut out),
            Some(b'%') => copy_code(tail, "%}", &mut out),
            Some(b'{') => copy_code(tail, "}}", &mut out),
            _ => {
                out.push('{');
                &tail[1..]
            }
        };
    }
    out.push_str(rest);
    out
}

fn copy_until<'a>(text: &'a str, end: &str, out: &mut String) -> &'a str {
    let length = text.find(end).map_or(text.len(), |at| at + end.len());
    out.push_str(&text[..length]);
    &text[length..]
}

fn copy_raw<'a>(text: &'a str, out: &mut String) -> &'a str {
    let mut length = text.len();
    let mut from = 2;
    while let Some(at) = text[from..].find("{%") {
        from += at;
        if is_tag(&text[from..], "endraw") {
            length = from;
            break;
        }
        from += 2;
    }
    out.push_str(&text[..length]);
    let rest = &text[length..];
    if rest.is_empty() {
        rest
    } else {
        copy_until(rest, "%}", out)
    }
}

/// `{% name` with optional white-space control.
fn is_tag(text: &str, name: &str) -> bool {
    let inner = text[2..].trim_start_matches(['-', '+']).trim_start();
    inner.strip_prefix(name).is_some_and(|after| {
        let after = after.trim_start();
        after.starts_with("%}") || after.starts_with("-%}") || after.starts_with("+%}")
    })
}

/// Copies one `{{ … }}` or `{% … %}` and returns what follows it.
fn copy_code<'a>(text: &'a str, end: &str, out: &mut String) -> &'a str {
    let length = code_length(text, end);
    let code = &text[..length];
    for (name, ours) in [("generation", "with"), ("endgeneration", "endwith")] {
        if end == "%}" && is_tag(code, name) {
            out.push_str(&code.replacen(name, ours, 1));
            return &text[length..];
        }
    }
    rewrite_percent(code, out);
    &text[length..]
}

/// Bytes up to and including the closing delimiter, which does not count inside strings or brackets.
fn code_length(text: &str, end: &str) -> usize {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    let mut at = 2;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => {
                at += string_length(&text[at..]);
                continue;
            }
            _ if depth == 0 && text.as_bytes()[at..].starts_with(end.as_bytes()) => {
                return at + end.len();
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// Length of the string literal that `text` begins with, quotes included.
fn string_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == bytes[0] => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn rewrite_percent(code: &str, out: &mut String) {
    let bytes = code.as_bytes();
    let (mut copied, mut at) = (0, 0);
    while at < bytes.len() {
        if !matches!(bytes[at], b'\'' | b'"') {
            at += 1;
            continue;
        }
        at += string_length(&code[at..]);
        let operator = at + leading_space(&code[at..]);
        let is_percent =
            bytes.get(operator) == Some(&b'%') && bytes.get(operator + 1) != Some(&b'}');
        let operand = operator + 1;
        if is_percent && let Some(length) = operand_length(&code[operand..]) {
            out.push_str(&code[copied..at]);
            out.push_str("|percent_format(");
            rewrite_percent(&code[operand..operand + length], out);
            out.push(')');
            at = operand + length;
            copied = at;
        }
    }
    out.push_str(&code[copied..]);
}

fn leading_space(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Length of the operand after `%`: a primary expression with its attribute, index, call and filter suffixes,
/// which all bind tighter than `%`.
fn operand_length(text: &str) -> Option<usize> {
    let mut at = leading_space(text);
    at += match *text.as_bytes().get(at)? {
        b'\'' | b'"' => string_length(&text[at..]),
        b'(' | b'[' | b'{' => bracket_length(&text[at..]),
        _ => name_length(&text[at..])?,
    };
    loop {
        let next = at + leading_space(&text[at..]);
        match text.as_bytes().get(next) {
            Some(b'(' | b'[') => at = next + bracket_length(&text[next..]),
            Some(b'.') => at = next + 1 + name_length(&text[next + 1..])?,
            Some(b'|') => {
                let name = next + 1 + leading_space(&text[next + 1..]);
                at = name + name_length(&text[name..])?;
            }
            _ => return Some(at),
        }
    }
}

fn name_length(text: &str) -> Option<usize> {
    let length = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(text.len());
    (length > 0).then_some(length)
}

/// Length of the bracketed group that `text` begins with.
fn bracket_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => {
                at += string_length(&text[at..]);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        assert_eq!(
            rewrite("a {%- generation -%} b {% endgeneration%} {%+ generation %}"),
            "a {%- with -%} b {% endwith%} {%+ with %}"
        );
        let untouched = "{# {% generation %} #}{% raw %}{% generation %}{{ 'a' % b }}{% endraw %}{{ generation }} { % }";
        assert_eq!(rewrite(untouched), untouched);
    }

    #[test]
    fn percent_on_a_string_becomes_a_filter() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ '%s'|percent_format( x) }}"),
            (
                "{{ '%s-%d' % (a, b['c']) ~ 'd' }}",
                "{{ '%s-%d'|percent_format( (a, b['c'])) ~ 'd' }}",
            ),
            (
                "{{ \"%s\" % m.a[0]|trim + 'x' }}",
                "{{ \"%s\"|percent_format( m.a[0]|trim) + 'x' }}",
            ),
            (
                "{% set a = '%s' % x %}",
                "{% set a = '%s'|percent_format( x) %}",
            ),
            (
                "{{ '%s' % ('%s' % x) }}",
                "{{ '%s'|percent_format( ('%s'|percent_format( x))) }}",
            ),
        ] {
            assert_eq!(rewrite(source), expected);
        }
        for untouched in [
            "{% if a == 'x' %}",
            "{% if a == 'x' -%}",
            "{{ a['x'] % 2 }}",
            "{{ 'a}}b' }} '%' % x",
            "{{ 'open",
        ] {
            assert_eq!(rewrite(untouched), untouched);
        }
    }
}
