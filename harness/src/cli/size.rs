//! Sizes as people write them.

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

#[cfg(test)]
mod tests {
    use super::parse;

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
