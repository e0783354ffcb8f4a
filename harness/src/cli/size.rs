//! Sizes and times as people write them.

/// `512MiB`, `2GiB`, `1.5G`, `4096`: bytes. K, M, G and T count in 1024s, as KiB does; KB in 1000s.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "kb" => 1e3,
        "m" | "mib" => 1024f64.powi(2),
        "mb" => 1e6,
        "g" | "gib" => 1024f64.powi(3),
        "gb" => 1e9,
        "t" | "tib" => 1024f64.powi(4),
        "tb" => 1e12,
        other => {
            return Err(format!(
                "'{other}' is no unit; write for example 512MiB or 2GiB"
            ));
        }
    };
    let bytes = number
        .parse::<f64>()
        .map_err(|_| format!("'{text}' is no size; write for example 512MiB or 2GiB"))?
        * factor;
    if bytes < 1.0 || bytes >= u64::MAX as f64 {
        return Err(format!("'{text}' is out of range"));
    }
    Ok(bytes as u64)
}

/// As [`parse`]; `off` and `0` are none.
pub fn parse_or_off(text: &str) -> Result<u64, String> {
    match text.trim() {
        "off" | "0" => Ok(0),
        size => parse(size).map_err(|error| format!("{error}, or off")),
    }
}

/// `90s`, `30m`, `12h`, `7d`: seconds.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let no_time = || format!("'{text}' is no time; write for example 30m, 12h or 7d");
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[number.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(no_time()),
    };
    let number: u64 = number.trim().parse().map_err(|_| no_time())?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("'{text}' is out of range"))
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_or_off, parse_time};

    #[test]
    fn none_and_times() {
        assert_eq!(parse_or_off("off"), Ok(0));
        assert_eq!(parse_or_off("0"), Ok(0));
        assert_eq!(parse_or_off("1k"), Ok(1024));
        assert!(parse_or_off("on").unwrap_err().contains("off"));
        let cases = [
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("12 h", Some(43_200)),
            ("7d", Some(604_800)),
            ("7", None),
            ("d", None),
            ("7w", None),
            ("-1d", None),
            ("1.5h", None),
            ("99999999999999999d", None),
        ];
        for (text, expect) in cases {
            assert_eq!(parse_time(text).ok(), expect, "{text}");
        }
    }

    #[test]
    fn sizes() {
        let cases = [
            ("4096", Some(4096)),
            ("512MiB", Some(512 << 20)),
            ("1.5g", Some(3 << 29)),
            ("2 GiB", Some(2 << 30)),
            ("10MB", Some(10_000_000)),
            ("", None),
            ("0", None),
            ("-1", None),
            ("1.2.3", None),
            ("5 apples", None),
            ("99999999999T", None),
        ];
        for (text, expect) in cases {
            assert_eq!(parse(text).ok(), expect, "{text}");
        }
    }
}
