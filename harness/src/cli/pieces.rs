//! The table of pieces: what a call reuses and computes, and where reuse ended.

use engine::{Between, PieceUse, Plan, Report};

/// One line a piece, a line of sums, and the reason of the break.
/// The columns: name, layer, tokens, fingerprint (8 hex digits), reused, computed.
pub fn table(pieces: &[PieceUse]) -> String {
    let name_width = pieces
        .iter()
        .map(|piece| piece.name.chars().count())
        .max()
        .unwrap_or(0)
        .max("piece".len());
    let mut out = format!(
        "{:name_width$}  {:12}  {:>7}  {:11}  {:>7}  {:>8}",
        "piece", "layer", "tokens", "fingerprint", "reused", "computed"
    );
    for piece in pieces {
        out.push_str(&format!(
            "\n{:name_width$}  {:12}  {:>7}  {:11}  {:>7}  {:>8}{}",
            piece.name,
            piece.layer.name(),
            piece.tokens,
            piece.fingerprint.short(),
            piece.reused,
            piece.computed,
            broken(piece),
        ));
    }
    let sum = |count: fn(&PieceUse) -> usize| pieces.iter().map(count).sum::<usize>();
    out.push_str(&format!(
        "\n{:name_width$}  {:12}  {:>7}  {:11}  {:>7}  {:>8}",
        "",
        "",
        sum(|p| p.tokens),
        "",
        sum(|p| p.reused),
        sum(|p| p.computed)
    ));
    out
}

/// What a plan foretells, in a line.
pub fn forecast(plan: &Plan) -> String {
    let estimate = plan.estimate_ms.map(|ms| format!(", about {ms:.0} ms"));
    format!(
        "foretold: {} of {} tokens reused, {} computed{}",
        plan.reused,
        plan.tokens,
        plan.computed,
        estimate.unwrap_or_default()
    )
}

/// What came between plan and report; nothing when they agree.
pub fn between(report: &Report) -> Vec<String> {
    report.between.iter().map(between_line).collect()
}

pub fn between_line(event: &Between) -> String {
    match event {
        Between::Evicted { tokens } => {
            format!("{tokens} planned tokens were evicted before the call")
        }
        Between::Unreadable { tokens } => {
            format!("{tokens} planned tokens could not be read from disk and were computed")
        }
        Between::SharedPrefill { tokens } => {
            format!("{tokens} tokens were computed by another call meanwhile")
        }
        Between::Preempted { rows } => {
            format!("the call gave way to an older one; {rows} rows were computed twice")
        }
        Between::Unfinished { tokens } => {
            format!("the call ended before {tokens} tokens of its prompt were computed")
        }
    }
}

fn broken(piece: &PieceUse) -> String {
    piece.broken.map_or(String::new(), |at| {
        format!("  <- from token {}: {}", at.at_token, at.why.name())
    })
}
