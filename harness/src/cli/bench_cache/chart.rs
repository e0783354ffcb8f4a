//! The table as a picture: for each scenario a bar as long as its prompt, the reused part light and the computed
//! part dark, the time beside it; under it the other server's.

use std::fmt::Write;

use super::row::{Pair, Row};

const WIDTH: usize = 900;
const LABEL: usize = 150;
const BAR: usize = 400;
const BAR_HEIGHT: usize = 14;
const HEAD: usize = 74;

struct Colours {
    reused: &'static str,
    computed: &'static str,
}

const OURS: Colours = Colours {
    reused: "#cfe3d6",
    computed: "#1f6f43",
};
const THEIRS: Colours = Colours {
    reused: "#dcdcdc",
    computed: "#6b6b6b",
};

/// An SVG document.
pub fn draw(pairs: &[Pair], model: &str, against: Option<&str>) -> String {
    let row_height = match against {
        Some(_) => 3 * BAR_HEIGHT,
        None => 2 * BAR_HEIGHT,
    };
    let height = HEAD + pairs.len() * row_height + BAR_HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let title = format!("Prompt tokens reused and computed, {model}");
    text(
        &mut svg,
        16,
        26,
        "font-size=\"16\" font-weight=\"bold\"",
        &title,
    );
    let mut x = 16;
    let sides = [Some(("ostler", &OURS)), against.map(|name| (name, &THEIRS))];
    for (name, colours) in sides.into_iter().flatten() {
        rect(&mut svg, x, 42, 12, colours.reused);
        text(&mut svg, x + 18, 52, "", &format!("{name}: reused"));
        x += 90 + 7 * name.len();
        rect(&mut svg, x, 42, 12, colours.computed);
        text(&mut svg, x + 18, 52, "", "computed");
        x += 110;
    }
    for (index, pair) in pairs.iter().enumerate() {
        let y = HEAD + index * row_height;
        text(
            &mut svg,
            16,
            y + 11,
            "font-weight=\"bold\"",
            pair.ours.scenario,
        );
        bar(&mut svg, y, &pair.ours, &OURS);
        if let Some(theirs) = &pair.theirs {
            bar(&mut svg, y + BAR_HEIGHT + 2, theirs, &THEIRS);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, y: usize, row: &Row, colours: &Colours) {
    let prompt = row.prompt_tokens().filter(|tokens| *tokens > 0);
    let counts = prompt.zip(row.computed());
    if let Some((prompt, computed)) = counts {
        let dark = (BAR * computed).div_ceil(prompt).min(BAR);
        rect(svg, LABEL, y, BAR - dark, colours.reused);
        rect(svg, LABEL + BAR - dark, y, dark, colours.computed);
    }
    let computed = match counts {
        Some((prompt, computed)) => format!("{computed} of {prompt}"),
        None => "not told".to_owned(),
    };
    let label = format!("{computed}, {}", duration(row.total_ms));
    text(svg, LABEL + BAR + 10, y + 11, "", &label);
}

fn duration(ms: f64) -> String {
    match ms {
        ..1_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1_000.0),
    }
}

fn rect(svg: &mut String, x: usize, y: usize, width: usize, colour: &str) {
    let height = BAR_HEIGHT - 2;
    // Writing into a string does not fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
    );
}

fn text(svg: &mut String, x: usize, y: usize, style: &str, content: &str) {
    let content = content
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" {style}>{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::side::Told;
    use super::*;

    #[test]
    fn bars_have_the_proportions_of_the_counts() {
        let told = |cached| Told {
            prompt_tokens: Some(200),
            cached_tokens: cached,
            total_ms: 1500.0,
            ..Told::default()
        };
        let pair = Pair {
            ours: Row::one("repeat", told(Some(150))),
            theirs: Some(Row::one("repeat", told(None))),
        };
        let svg = draw(&[pair], "a<b", Some("http://x"));
        assert!(
            svg.contains("width=\"300\"") && svg.contains("width=\"100\""),
            "{svg}"
        );
        assert!(
            svg.contains("50 of 200, 1.5 s") && svg.contains("not told, 1.5 s"),
            "{svg}"
        );
        assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"));
    }
}
