//! Norms, activations, softmax, RoPE: against their plain twins on every path and thread count.

mod common;

use common::{Random, assert_same, paths, pool};
use kernels::{
    Activation, RopeSpec, RopeStyle, RopeTable, add, add_bias, argmax, gated_mul, plain, rms_norm,
    rms_norm_in_place, rope, scale, softmax,
};

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::Gelu];

#[test]
fn gelu_is_the_tanh_form() {
    let mut x = -12.0f64;
    while x < 12.0 {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        let exact = x * (1.0 + inner.tanh()) / 2.0;
        let ours = plain::gated_mul(Activation::Gelu, x as f32, 1.0);
        assert!(
            (f64::from(ours) - exact).abs() < 2e-6,
            "{x}: {ours} {exact}"
        );
        x += 0.0113;
    }
}

#[test]
fn row_kernels_follow_their_twins_to_the_bit() {
    let mut random = Random(21);
    for (t, d) in [(1, 1), (3, 17), (2, 576), (70, 300), (1, 1536), (40, 1031)] {
        let x = random.floats(t * d);
        let y: Vec<f32> = random.floats(t * d).iter().map(|y| y * 30.0).collect();
        let w = random.floats(d);
        let mut normed = vec![0.0; t * d];
        let mut soft = y.clone();
        for ((x, out), soft) in x
            .chunks_exact(d)
            .zip(normed.chunks_exact_mut(d))
            .zip(soft.chunks_exact_mut(d))
        {
            plain::rms_norm(x, &w, 1e-5, out);
            plain::softmax(soft);
        }
        let gated = ACTIVATIONS.map(|activation| -> Vec<f32> {
            let pairs = y.iter().zip(&x);
            pairs
                .map(|(g, u)| plain::gated_mul(activation, *g, *u))
                .collect()
        });
        let scaled: Vec<f32> = x.iter().map(|x| x * 25.3).collect();
        let summed: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
        let biased: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + w[i % d]).collect();
        for path in paths() {
            for threads in [1, 2, 4] {
                let pool = pool(threads, path);
                let what = format!("[{t}, {d}] {path:?} {threads}");
                let mut out = vec![f32::NAN; t * d];
                rms_norm(&pool, &x, &w, 1e-5, &mut out);
                assert_same(&out, &normed, &what);
                out.copy_from_slice(&x);
                rms_norm_in_place(&pool, &mut out, &w, 1e-5);
                assert_same(&out, &normed, &what);
                for (activation, gated) in ACTIVATIONS.into_iter().zip(&gated) {
                    out.copy_from_slice(&y);
                    gated_mul(&pool, activation, &mut out, &x);
                    assert_same(&out, gated, &what);
                }
                out.copy_from_slice(&x);
                scale(&pool, &mut out, 25.3);
                assert_same(&out, &scaled, &what);
                out.copy_from_slice(&y);
                softmax(&pool, &mut out, d);
                assert_same(&out, &soft, &what);
                out.copy_from_slice(&x);
                add(&pool, &mut out, &y);
                assert_same(&out, &summed, &what);
                out.copy_from_slice(&x);
                add_bias(&pool, &mut out, &w);
                assert_same(&out, &biased, &what);
            }
        }
    }
}

#[test]
fn extremes_stay_sane() {
    let pool = pool(1, kernels::kernel_path());
    for activation in ACTIVATIONS {
        let mut gate = vec![-200.0, -88.0, 0.0, 88.0, 200.0, f32::NAN];
        gated_mul(&pool, activation, &mut gate, &[1.0; 6]);
        assert!(gate[0].abs() < 1e-30 && gate[2] == 0.0 && gate[4] == 200.0 && gate[5].is_nan());
    }
    let mut x = vec![f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
    softmax(&pool, &mut x, 4);
    assert_same(&x, &[0.0, 0.5, 0.0, 0.5], "minus infinity is weight zero");
    assert_eq!(argmax(&[f32::NAN, 1.0, 3.0, 3.0]), Some(2));
    assert_eq!(argmax(&[f32::NAN]), None);
}

fn table(style: RopeStyle, dims: usize, factors: Option<&[f32]>, linear_scale: f64) -> RopeTable {
    let spec = RopeSpec {
        style,
        dims,
        base: 10_000.0,
        linear_scale,
        factors,
    };
    RopeTable::new(spec, 600).unwrap()
}

#[test]
fn rope_turns_pairs_by_their_angle() {
    let factors = [1.0, 2.0, 4.0, 8.0];
    for (style, pair) in [(RopeStyle::Norm, [4, 5]), (RopeStyle::Neox, [2, 6])] {
        for (factors, scale) in [(None, 1.0), (Some(&factors[..]), 1.0), (None, 4.0)] {
            let table = table(style, 8, factors, scale);
            // One head of 10, of which 8 turn.
            let mut x: Vec<f32> = (0..10).map(|i| i as f32).collect();
            rope(&pool(1, kernels::kernel_path()), &mut x, 10, &[7], &table);
            let angle = 7.0
                / (10_000f64.powf(4.0 / 8.0) * factors.map_or(1.0, |f| f64::from(f[2])) * scale);
            let (a, b) = (pair[0] as f64, pair[1] as f64);
            let want = [
                a * angle.cos() - b * angle.sin(),
                a * angle.sin() + b * angle.cos(),
            ];
            for (i, want) in pair.iter().zip(want) {
                assert!(
                    (f64::from(x[*i]) - want).abs() < 1e-5,
                    "{style:?}: {} {want}",
                    x[*i]
                );
            }
            assert_eq!(x[8..], [8.0, 9.0]);
        }
    }
}

#[test]
fn rope_of_many_rows_is_rope_of_each() {
    let mut random = Random(22);
    let table = table(RopeStyle::Neox, 64, None, 1.0);
    let x = random.floats(300 * 3 * 64);
    let positions: Vec<u32> = (0..300).map(|i| i * 2 % 599).collect();
    let mut want = x.clone();
    let one = pool(1, kernels::kernel_path());
    for (x, p) in want.chunks_exact_mut(192).zip(&positions) {
        rope(&one, x, 64, &[*p], &table);
    }
    for threads in [2, 4] {
        let mut got = x.clone();
        rope(
            &pool(threads, kernels::kernel_path()),
            &mut got,
            64,
            &positions,
            &table,
        );
        assert_same(&got, &want, "rope");
    }
}

#[test]
fn impossible_rope_is_refused() {
    let spec = |dims, base, factors| RopeSpec {
        style: RopeStyle::Norm,
        dims,
        base,
        linear_scale: 1.0,
        factors,
    };
    assert!(RopeTable::new(spec(7, 1e4, None), 1).is_err());
    assert!(RopeTable::new(spec(0, 1e4, None), 1).is_err());
    assert!(RopeTable::new(spec(8, f64::NAN, None), 1).is_err());
    assert!(RopeTable::new(spec(8, 1e4, Some(&[1.0, 2.0])), 1).is_err());
    assert!(RopeTable::new(spec(4, 1e4, Some(&[1.0, 0.0])), 1).is_err());
}
