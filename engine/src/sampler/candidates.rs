//! From a row of logits to the tokens that may be drawn, without sorting the vocabulary.

use super::{Logprobs, SamplingParams};

/// Tokens whose weight is below `e^-FLOOR` of the best one's are never drawn: a vocabulary of 2^18 of
/// them weighs 2.5e-8 together, less than an f32 can tell from nothing.
const FLOOR: f32 = 30.0;

/// How many candidates top-p sorts at first; nearly always enough.
const SORTED_AT_FIRST: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f64,
}

/// Best first; of equals the lowest id.
fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    kept: Vec<Candidate>,
}

impl Candidates {
    /// Keeps what temperature, top-k, top-p and min-p leave. `max` is the best logit of `row`.
    pub fn collect(&mut self, row: &[f32], max: f32, params: &SamplingParams) {
        let temperature = params.temperature;
        let floor = match params.min_p > 0.0 {
            true => params.min_p.ln().max(-FLOOR),
            false => -FLOOR,
        };
        // An infinite best logit leaves the infinite ones only.
        let threshold = if max.is_finite() {
            max + temperature * floor
        } else {
            max
        };
        self.kept.clear();
        for (chunk, logits) in row.chunks(64).enumerate() {
            if max_of(logits) < threshold {
                continue;
            }
            let first = (chunk * 64) as u32;
            let above = logits
                .iter()
                .zip(first..)
                .filter(|(logit, _)| **logit >= threshold);
            self.kept.extend(above.map(|(&logit, id)| Candidate {
                id,
                logit,
                weight: 0.0,
            }));
        }
        if params.top_k > 0 && params.top_k < self.kept.len() {
            self.kept.select_nth_unstable_by(params.top_k, order);
            self.kept.truncate(params.top_k);
            self.kept.sort_unstable_by(order);
        }
        for candidate in &mut self.kept {
            let gap = if candidate.logit == max {
                0.0
            } else {
                (candidate.logit - max) / temperature
            };
            candidate.weight = f64::from(gap.exp());
        }
        if params.top_p < 1.0 {
            self.keep_top_p(f64::from(params.top_p), max, temperature);
        }
    }

    fn keep_top_p(&mut self, top_p: f64, max: f32, temperature: f32) {
        let wanted = top_p * self.kept.iter().map(|c| c.weight).sum::<f64>();
        // A narrower band often holds enough; then the rest need not be looked at again.
        for band in [3.0, 6.0, 12.0] {
            let threshold = max - temperature * band;
            let inside = self.kept.iter().filter(|c| c.logit >= threshold);
            if inside.map(|c| c.weight).sum::<f64>() >= wanted {
                self.kept.retain(|c| c.logit >= threshold);
                break;
            }
        }
        let (mut sorted, mut step, mut sum) = (0, SORTED_AT_FIRST, 0.0);
        while sorted < self.kept.len() {
            let end = self.kept.len().min(sorted + step);
            if end < self.kept.len() {
                self.kept[sorted..].select_nth_unstable_by(end - sorted, order);
            }
            self.kept[sorted..end].sort_unstable_by(order);
            for i in sorted..end {
                sum += self.kept[i].weight;
                if sum >= wanted {
                    self.kept.truncate(i + 1);
                    return;
                }
            }
            (sorted, step) = (end, step * 8);
        }
    }

    /// The kept tokens, in the order they are drawn from.
    #[cfg(test)]
    pub fn ids(&self) -> Vec<u32> {
        self.kept.iter().map(|c| c.id).collect()
    }

    /// The token at `draw` (in `0..1`) of the sum of weights.
    pub fn pick(&self, draw: f64) -> Option<u32> {
        let mut left = draw * self.kept.iter().map(|c| c.weight).sum::<f64>();
        for candidate in &self.kept {
            left -= candidate.weight;
            if left < 0.0 {
                return Some(candidate.id);
            }
        }
        // Rounding: the last one.
        self.kept.last().map(|c| c.id)
    }
}

/// The largest value; minus infinity for none. Lanes of their own make it vector code.
fn max_of(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let rest = chunks.remainder();
    lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m })
}

/// The lowest id with the largest logit, and that logit; `None` where all are minus infinity.
/// NaN is not looked at.
pub(super) fn argmax(row: &[f32]) -> Option<(u32, f32)> {
    let (mut best, mut at) = (f32::NEG_INFINITY, None);
    for (chunk, logits) in row.chunks(256).enumerate() {
        let max = max_of(logits);
        if max > best {
            (best, at) = (max, Some(chunk * 256));
        }
    }
    let start = at?;
    let offset = row[start..].iter().position(|&l| l == best)?;
    Some(((start + offset) as u32, best))
}

/// Log-probabilities of the raw logits; NaN has none.
pub(super) fn logprobs(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
    let finite_or_infinite = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l };
    let max = max_of(logits);
    let log_sum = match max.is_finite() {
        true => {
            let sum: f64 = logits
                .iter()
                .map(|&l| f64::from((finite_or_infinite(l) - max).exp()))
                .sum();
            f64::from(max) + sum.ln()
        }
        // Infinite logits share everything.
        false => (logits.iter().filter(|l| **l == max).count() as f64).ln(),
    };
    let logprob = |logit: f32| match max.is_finite() {
        true => (f64::from(finite_or_infinite(logit)) - log_sum) as f32,
        false if logit == max => -log_sum as f32,
        false => f32::NEG_INFINITY,
    };
    let mut best: Vec<Candidate> = Vec::with_capacity(2 * top + 1);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if top > 0 && logit > threshold {
            best.push(Candidate {
                id: id as u32,
                logit,
                weight: 0.0,
            });
            if best.len() > 2 * top {
                best.select_nth_unstable_by(top, order);
                best.truncate(top);
                threshold = best.iter().fold(f32::INFINITY, |m, c| m.min(c.logit));
            }
        }
    }
    best.sort_unstable_by(order);
    best.truncate(top);
    let chosen = logits
        .get(chosen as usize)
        .map_or(f32::NEG_INFINITY, |&l| logprob(l));
    Logprobs {
        chosen,
        top: best.iter().map(|c| (c.id, logprob(c.logit))).collect(),
    }
}
