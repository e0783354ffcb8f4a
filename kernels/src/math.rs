//! Scalar arithmetic with a fixed order: the definition the vector code repeats lane by lane.

/// Below this the exponential is zero.
pub(crate) const EXP_MIN: f32 = -87.0;
/// Above this the exponential stays at its largest value.
pub(crate) const EXP_MAX: f32 = 88.0;
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has trailing zeros, so `n * LN2_HIGH` is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Polynomial of `(e^r - 1 - r) / r^2` on |r| <= ln 2 / 2, highest power first (Cephes `expf`).
pub(crate) const EXP_POLY: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

/// GELU in its tanh form is `x / (1 + exp(-x (GELU_LINE + GELU_CUBE x^2)))`, since
/// `(1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))`: 2 sqrt(2 / pi), and 0.044715 times that.
pub(crate) const GELU_LINE: f32 = 1.595_769_2;
pub(crate) const GELU_CUBE: f32 = 0.071_354_814;

/// e to the `x`, within 2 ULP; 0 below -87, held at 88; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    if x < EXP_MIN {
        return 0.0;
    }
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = EXP_POLY[0];
    for c in &EXP_POLY[1..] {
        p = p.mul_add(r, *c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    p * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

/// Sum in sixteen lanes, element `i` into lane `i % 16`, lanes then folded in halves.
pub fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for (i, x) in x.iter().enumerate() {
        lanes[i % 16] += x;
    }
    fold(lanes)
}

/// Folds sixteen lanes: halves of 8, 4, 2, 1.
pub(crate) fn fold(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_follows_the_library() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let (ours, theirs) = (exp(x) as f64, (x as f64).exp());
            assert!(((ours - theirs) / theirs).abs() < 3e-7, "{x}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
