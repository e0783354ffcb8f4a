//! Weights and products: against candle's numbers, against the plain twin, against themselves.

mod common;

use bytes::Bytes;
use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file};
use common::{Random, assert_same, paths, pool};
use kernels::{
    Error, MatrixShape, Scratch, Weight, WeightType, dequantise, matmul, matmul_each, plain,
};

fn candle_type(ty: WeightType) -> GgmlDType {
    match ty {
        WeightType::F32 => GgmlDType::F32,
        WeightType::F16 => GgmlDType::F16,
        WeightType::BF16 => GgmlDType::BF16,
        WeightType::Q4_0 => GgmlDType::Q4_0,
        WeightType::Q4_1 => GgmlDType::Q4_1,
        WeightType::Q5_0 => GgmlDType::Q5_0,
        WeightType::Q5_1 => GgmlDType::Q5_1,
        WeightType::Q8_0 => GgmlDType::Q8_0,
        WeightType::Q2K => GgmlDType::Q2K,
        WeightType::Q3K => GgmlDType::Q3K,
        WeightType::Q4K => GgmlDType::Q4K,
        WeightType::Q5K => GgmlDType::Q5K,
        WeightType::Q6K => GgmlDType::Q6K,
    }
}

fn weight(random: &mut Random, ty: WeightType, rows: usize, cols: usize) -> (Vec<u8>, Weight) {
    let bytes = random.weight(ty, rows * cols);
    let shape = MatrixShape { rows, cols };
    let weight = Weight::new(Bytes::from(bytes.clone()), ty, shape).unwrap();
    (bytes, weight)
}

#[test]
fn every_type_means_what_candle_says() {
    let mut random = Random(1);
    for ty in WeightType::ALL {
        let (rows, cols) = (19, 512);
        let (bytes, weight) = weight(&mut random, ty, rows, cols);
        let theirs =
            ggml_file::qtensor_from_ggml(candle_type(ty), &bytes, vec![rows, cols], &Device::Cpu)
                .unwrap();
        let theirs = theirs.dequantize(&Device::Cpu).unwrap();
        let theirs = theirs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut ours = vec![0.0; rows * cols];
        dequantise(ty, &bytes, &mut ours);
        assert_same(&ours, &theirs, ty.name());
        // The repacked form lost nothing.
        let mut row = vec![f32::NAN; cols];
        for (r, want) in theirs.chunks_exact(cols).enumerate() {
            weight.dequantise_row(r, &mut row);
            assert_same(&row, want, ty.name());
        }
    }
}

#[test]
fn every_path_follows_the_plain_twin_to_the_bit() {
    let mut random = Random(2);
    for ty in WeightType::ALL {
        for (rows, blocks) in [(1, 1), (16, 2), (37, 1), (70, 3)] {
            let cols = blocks * ty.block_len().max(32) + if ty.is_quantised() { 0 } else { 5 };
            let (bytes, w) = weight(&mut random, ty, rows, cols);
            for t in [1, 3, 34] {
                let x = random.floats(t * cols);
                let mut want = vec![0.0; t * rows];
                plain::matmul(&x, &bytes, ty, w.shape(), &mut want);
                for path in paths() {
                    let mut got = vec![f32::NAN; t * rows];
                    matmul(&pool(1, path), &x, &w, &mut got, &mut Scratch::new());
                    assert_same(&got, &want, &format!("{ty} {path:?} {rows}x{cols} T={t}"));
                }
            }
        }
    }
}

/// A prefix cache may only reuse what a cold run would compute again bit for bit. Stock
/// products differ between one row and 64; these must not.
/// Sums of products of bytes were kept in sixteen bits for longer than they fit: only the largest
/// weights with the largest activations show it, and random ones hardly ever are.
#[test]
fn the_largest_numbers_do_not_overflow() {
    let (rows, cols) = (20, 512);
    let mut random = Random(15);
    for ty in WeightType::ALL.into_iter().filter(|ty| ty.is_quantised()) {
        let bytes = random.largest(ty, rows * cols);
        let shape = MatrixShape { rows, cols };
        let weight = Weight::new(Bytes::from(bytes.clone()), ty, shape).unwrap();
        let signs: [fn(usize) -> f32; 3] =
            [|_| 1.0, |_| -1.0, |k| if k % 2 == 0 { 1.0 } else { -1.0 }];
        // One row, and enough for the kernel of four rows and its remainder.
        for t in [1, 5] {
            let row = |t: usize| (0..cols).map(move |k| signs[t % 3](k));
            let x: Vec<f32> = (0..t).flat_map(row).collect();
            let mut want = vec![0.0; t * rows];
            plain::matmul(&x, &bytes, ty, shape, &mut want);
            for path in paths() {
                let mut got = vec![f32::NAN; t * rows];
                matmul(&pool(1, path), &x, &weight, &mut got, &mut Scratch::new());
                assert_same(&got, &want, &format!("{ty}, {t} rows, {}", path.name()));
            }
        }
    }
}

#[test]
fn a_row_does_not_see_its_neighbours_or_the_threads() {
    let mut random = Random(3);
    for ty in WeightType::ALL {
        let (rows, cols) = (203, 256);
        let (_, a) = weight(&mut random, ty, rows, cols);
        let (_, b) = weight(&mut random, WeightType::Q8_0, 40, cols);
        let x = random.floats(64 * cols);
        let alone = pool(1, kernels::kernel_path());
        let mut want = vec![0.0; 64 * rows];
        for (x, out) in x.chunks_exact(cols).zip(want.chunks_exact_mut(rows)) {
            matmul(&alone, x, &a, out, &mut Scratch::new());
        }
        for threads in [1, 2, 4] {
            let pool = pool(threads, kernels::kernel_path());
            let mut scratch = Scratch::new();
            for t in [64, 1, 2, 3, 7, 33] {
                let from = random.below(65 - t);
                let mut out_a = vec![f32::NAN; t * rows];
                let mut out_b = vec![f32::NAN; t * 40];
                matmul_each(
                    &pool,
                    &x[from * cols..(from + t) * cols],
                    &[&b, &a],
                    &mut [&mut out_b, &mut out_a],
                    &mut scratch,
                );
                let what = format!("{ty} rows {from}+{t} on {threads} threads");
                assert_same(&out_a, &want[from * rows..(from + t) * rows], &what);
            }
        }
    }
}

#[test]
fn the_product_is_near_the_exact_one() {
    let mut random = Random(4);
    for ty in WeightType::ALL {
        let (rows, cols) = (32, 1024);
        let (bytes, w) = weight(&mut random, ty, rows, cols);
        let x = random.floats(cols);
        let mut values = vec![0.0; rows * cols];
        dequantise(ty, &bytes, &mut values);
        let mut got = vec![0.0; rows];
        let pool = pool(1, kernels::kernel_path());
        matmul(&pool, &x, &w, &mut got, &mut Scratch::new());
        for (got, row) in got.iter().zip(values.chunks_exact(cols)) {
            let dot = |f: fn(f64) -> f64| -> f64 {
                row.iter()
                    .zip(&x)
                    .map(|(w, x)| f(f64::from(*w) * f64::from(*x)))
                    .sum()
            };
            let (exact, size) = (dot(|p| p), dot(|p| p * p).sqrt());
            let bound = if ty.is_quantised() { 0.02 } else { 1e-5 };
            assert!(
                (f64::from(*got) - exact).abs() < bound * size,
                "{ty}: {got} {exact}"
            );
        }
    }
}

#[test]
fn a_bad_activation_is_seen_not_hidden() {
    let mut random = Random(5);
    let pool = pool(1, kernels::kernel_path());
    for ty in [
        WeightType::Q4_1,
        WeightType::Q6K,
        WeightType::Q8_0,
        WeightType::F16,
    ] {
        let (_, w) = weight(&mut random, ty, 20, 512);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = random.floats(2 * 512);
            x[512 + 100] = bad;
            let mut out = vec![0.0; 40];
            matmul(&pool, &x, &w, &mut out, &mut Scratch::new());
            assert!(out[..20].iter().all(|v| v.is_finite()));
            assert!(out[20..].iter().all(|v| !v.is_finite()), "{ty}");
        }
        let tiny = vec![1e-38; 512];
        let mut out = vec![f32::NAN; 20];
        matmul(&pool, &tiny, &w, &mut out, &mut Scratch::new());
        assert!(out.iter().all(|v| v.abs() < 1e-30));
    }
}

#[test]
fn resident_size_stays_near_the_file() {
    let mut random = Random(6);
    for ty in WeightType::ALL {
        let (bytes, w) = weight(&mut random, ty, 64, 1024);
        let ratio = w.resident_bytes() as f64 / bytes.len() as f64;
        assert!(ratio <= 1.05, "{ty}: {ratio}");
    }
}

#[test]
fn impossible_weights_are_refused() {
    let new = |rows, cols, bytes: usize| {
        let shape = MatrixShape { rows, cols };
        Weight::new(Bytes::from(vec![0; bytes]), WeightType::Q4_0, shape)
    };
    assert!(new(2, 32, 36).is_ok());
    assert!(matches!(new(2, 32, 35), Err(Error::WeightBytes { .. })));
    assert!(matches!(new(2, 33, 36), Err(Error::WeightShape { .. })));
    assert!(matches!(new(0, 32, 0), Err(Error::WeightShape { .. })));
    assert!(matches!(
        new(usize::MAX / 4, 32, 0),
        Err(Error::WeightShape { .. })
    ));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// Any shape, any number of rows, any threads, any path: the plain twin's bits.
    #[test]
    fn any_shape_follows_the_plain_twin(
        seed: u64,
        ty in proptest::sample::select(WeightType::ALL.to_vec()),
        rows in 1usize..80,
        blocks in 1usize..4,
        t in 1usize..40,
        threads in 1usize..4,
    ) {
        let mut random = Random(seed);
        let cols = blocks * ty.block_len().max(19);
        let (bytes, w) = weight(&mut random, ty, rows, cols);
        let x = random.floats(t * cols);
        let mut want = vec![0.0; t * rows];
        plain::matmul(&x, &bytes, ty, w.shape(), &mut want);
        for path in paths() {
            let mut got = vec![f32::NAN; t * rows];
            matmul(&pool(threads, path), &x, &w, &mut got, &mut Scratch::new());
            assert_same(&got, &want, &format!("{ty} {path:?} {rows}x{cols} T={t}"));
        }
    }
}
