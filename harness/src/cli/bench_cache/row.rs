//! A row of the table: what a scenario cost here, and on the other side.

use serde_json::{Value, json};

use super::side::Told;

/// What a scenario cost on one side. Sums over its calls, but for the first token's time, which is the mean.
#[derive(Clone, Debug)]
pub struct Row {
    pub scenario: &'static str,
    calls: usize,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    generated_tokens: usize,
    pub ttft_ms: f64,
    pub total_ms: f64,
    /// One decode step at this depth.
    pub step_ms: Option<f64>,
    /// Loading the model, apart from the call.
    pub load_ms: Option<f64>,
    /// What keys and values take more than before.
    pub kv_bytes_added: Option<u64>,
    pub wrong: Option<String>,
}

impl Row {
    pub fn one(scenario: &'static str, told: Told) -> Row {
        let total_ms = told.total_ms;
        Row::at_once(scenario, &[told], total_ms)
    }

    /// Calls one after another.
    pub fn in_turn(scenario: &'static str, told: &[Told]) -> Row {
        let total_ms = told.iter().map(|t| t.total_ms).sum();
        Row::at_once(scenario, told, total_ms)
    }

    /// Calls that took `total_ms` together.
    pub fn at_once(scenario: &'static str, told: &[Told], total_ms: f64) -> Row {
        let first: f64 = told.iter().map(|t| t.ttft_ms).sum();
        Row {
            scenario,
            calls: told.len(),
            prompt_tokens: told.iter().map(|t| t.prompt_tokens).sum(),
            cached_tokens: told.iter().map(|t| t.cached_tokens).sum(),
            generated_tokens: told.iter().map(|t| t.generated_tokens).sum(),
            ttft_ms: first / told.len() as f64,
            total_ms,
            step_ms: None,
            load_ms: None,
            kv_bytes_added: None,
            wrong: told.iter().find_map(|t| t.wrong.clone()),
        }
    }

    /// The same scenario in several rounds: the round whose total is the median, with the median of each time.
    pub fn median(mut rounds: Vec<Row>) -> Option<Row> {
        let wrong = rounds.iter().find_map(|row| row.wrong.clone());
        let middle = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied()
        };
        let times =
            |time: fn(&Row) -> Option<f64>| middle(rounds.iter().filter_map(time).collect());
        let ttft_ms = times(|row| Some(row.ttft_ms))?;
        let total_ms = times(|row| Some(row.total_ms))?;
        let (step_ms, load_ms) = (times(|row| row.step_ms), times(|row| row.load_ms));
        rounds.sort_by(|a, b| a.total_ms.total_cmp(&b.total_ms));
        let row = rounds.swap_remove(rounds.len() / 2);
        Some(Row {
            ttft_ms,
            total_ms,
            step_ms,
            load_ms,
            wrong,
            ..row
        })
    }

    pub fn prompt_tokens(&self) -> Option<usize> {
        self.prompt_tokens
    }

    pub fn computed(&self) -> Option<usize> {
        Some(self.prompt_tokens?.saturating_sub(self.cached_tokens?))
    }

    fn json(&self) -> Value {
        json!({
            "scenario": self.scenario,
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed(),
            "generated_tokens": self.generated_tokens,
            "ttft_ms": self.ttft_ms,
            "total_ms": self.total_ms,
            "step_ms": self.step_ms,
            "load_ms": self.load_ms,
            "kv_bytes_added": self.kv_bytes_added,
        })
    }

    fn remark(&self) -> String {
        let mut parts = Vec::new();
        if let Some(ms) = self.step_ms {
            parts.push(format!("a decode step takes {ms:.1} ms"));
        }
        if let Some(ms) = self.load_ms {
            parts.push(format!("after loading the model in {ms:.0} ms"));
        }
        if let Some(bytes) = self.kv_bytes_added {
            parts.push(format!(
                "{:.1} MiB of keys and values",
                bytes as f64 / (1 << 20) as f64
            ));
        }
        if let Some(why) = &self.wrong {
            parts.push(format!("WRONG: {why}"));
        }
        parts.join("; ")
    }
}

/// A scenario on both sides.
pub struct Pair {
    pub ours: Row,
    pub theirs: Option<Row>,
}

impl Pair {
    pub fn heading(against: bool) -> String {
        let ours = format!(
            "{:16} {:>5} {:>13} {:>13} {:>15} {:>9} {:>9}",
            "scenario",
            "calls",
            "prompt_tokens",
            "cached_tokens",
            "computed_tokens",
            "ttft_ms",
            "total_ms"
        );
        match against {
            true => format!(
                "{ours} | theirs: computed {:>9} {:>9} {:>5}",
                "ttft_ms", "total_ms", "ratio"
            ),
            false => ours,
        }
    }

    pub fn line(&self) -> String {
        let row = &self.ours;
        let ours = format!(
            "{:16} {:>5} {:>13} {:>13} {:>15} {:>9.1} {:>9.1}",
            row.scenario,
            row.calls,
            or_dash(row.prompt_tokens),
            or_dash(row.cached_tokens),
            or_dash(row.computed()),
            row.ttft_ms,
            row.total_ms
        );
        let theirs = self.theirs.as_ref().map(|theirs| {
            format!(
                " | {:>16} {:>9.1} {:>9.1} {:>5.2}",
                or_dash(theirs.computed()),
                theirs.ttft_ms,
                theirs.total_ms,
                row.total_ms / theirs.total_ms
            )
        });
        let line = format!("{ours}{}  {}", theirs.unwrap_or_default(), row.remark());
        line.trim_end().to_owned()
    }

    pub fn json(&self, against: Option<&str>) -> Value {
        let mut value = self.ours.json();
        if let (Some(theirs), Some(name)) = (&self.theirs, against) {
            value["against"] = theirs.json();
            value["against"]["server"] = name.into();
        }
        value
    }

    pub const CSV_HEADING: &'static str = "engine,scenario,calls,prompt_tokens,cached_tokens,\
        computed_tokens,generated_tokens,ttft_ms,total_ms,step_ms,load_ms,kv_bytes_added";

    /// A line for each side.
    pub fn csv(&self, against: Option<&str>) -> Vec<String> {
        let theirs = self.theirs.as_ref().zip(against);
        let sides = [Some((&self.ours, "ostler")), theirs];
        let line = |(row, engine): (&Row, &str)| {
            format!(
                "{engine},{},{},{},{},{},{},{:.1},{:.1},{},{},{}",
                row.scenario,
                row.calls,
                or_empty(row.prompt_tokens),
                or_empty(row.cached_tokens),
                or_empty(row.computed()),
                row.generated_tokens,
                row.ttft_ms,
                row.total_ms,
                or_empty(row.step_ms.map(|ms| format!("{ms:.1}"))),
                or_empty(row.load_ms.map(|ms| format!("{ms:.0}"))),
                or_empty(row.kv_bytes_added)
            )
        };
        sides.into_iter().flatten().map(line).collect()
    }
}

fn or_dash(count: Option<usize>) -> String {
    count.map_or("-".to_owned(), |count| count.to_string())
}

fn or_empty<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(prompt: usize, cached: Option<usize>, ms: f64) -> Told {
        Told {
            prompt_tokens: Some(prompt),
            cached_tokens: cached,
            generated_tokens: 1,
            ttft_ms: ms,
            total_ms: 2.0 * ms,
            ..Told::default()
        }
    }

    #[test]
    fn sums_means_and_what_is_not_known() {
        let row = Row::in_turn("x", &[told(10, Some(4), 1.0), told(20, Some(6), 3.0)]);
        assert_eq!(
            (row.computed(), row.ttft_ms, row.total_ms),
            (Some(20), 2.0, 8.0)
        );
        let row = Row::in_turn("x", &[told(10, Some(4), 1.0), told(20, None, 3.0)]);
        assert_eq!(row.computed(), None);
        let pair = Pair {
            ours: row,
            theirs: None,
        };
        assert!(pair.line().contains(" - "), "{}", pair.line());
        assert!(pair.csv(None)[0].starts_with("ostler,x,2,30,,,2,2.0,8.0"));
        assert_eq!(pair.json(None)["cached_tokens"], Value::Null);
    }

    #[test]
    fn medians_over_rounds() {
        let rows = [5.0, 1.0, 3.0].map(|ms| Row::one("x", told(10, Some(4), ms)));
        let row = Row::median(rows.to_vec()).expect("three rounds");
        assert_eq!((row.ttft_ms, row.total_ms), (3.0, 6.0));
        assert!(Row::median(Vec::new()).is_none());
    }
}
