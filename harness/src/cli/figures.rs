//! The line of figures that closes an answer.

use engine::Report;
use serde_json::{Value, json};

/// What the line tells. A figure that was not measured is left out, never shown as 0.
pub struct Figures<'a> {
    pub model: &'a str,
    pub report: &'a Report,
    /// Tokens the engine has really allocated for one sequence.
    pub context_tokens: usize,
}

impl Figures<'_> {
    pub fn line(&self) -> String {
        let report = self.report;
        let mut parts = vec![
            self.model.to_owned(),
            format!("prompt {} tokens, {} cached", report.tokens, report.reused),
        ];
        if let Some(ms) = report.ttft_ms {
            parts.push(format!("first token {}", duration(ms)));
        }
        if let Some(rate) = report.prefill_per_second() {
            parts.push(format!("prefill {} tok/s", rounded(rate)));
        }
        match report.decode_per_second() {
            Some(rate) => parts.push(format!(
                "decode {} tok/s, {} tokens",
                rounded(rate),
                report.generated
            )),
            None => parts.push(format!("answer {} tokens", report.generated)),
        }
        if report.drafted > 0 {
            parts.push(format!(
                "guessed {} of {} right",
                report.drafts_taken, report.drafted
            ));
        }
        parts.push(format!(
            "context {} of {}",
            self.context_used(),
            self.context_tokens
        ));
        parts.join(" | ")
    }

    pub fn json(&self) -> Value {
        let report = self.report;
        json!({
            "prompt_tokens": report.tokens,
            "cached_tokens": report.reused,
            "computed_tokens": report.computed,
            "generated_tokens": report.generated,
            "drafted_tokens": report.drafted,
            "drafts_taken": report.drafts_taken,
            "ttft_ms": report.ttft_ms,
            "prefill_tokens_per_second": report.prefill_per_second(),
            "decode_tokens_per_second": report.decode_per_second(),
            "context_used": self.context_used(),
            "context_tokens": self.context_tokens,
        })
    }

    fn context_used(&self) -> usize {
        self.report.tokens + self.report.generated
    }
}

fn duration(ms: f64) -> String {
    if ms < 10_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

/// Two digits that mean something: 9.7, 61, 310.
fn rounded(rate: f64) -> String {
    if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}
