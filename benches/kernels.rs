//! Speed of the kernels beside candle's, interleaved in one run, as CSV on standard output.
//!
//! Each figure is the median over rounds; in every round ours and candle's run one after
//! the other, so a busy moment hits both. Compare ratios: absolute figures of a shared
//! machine drift. `cargo bench --bench kernels -- [threads] [filter]`.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use candle_core::quantized::{GgmlDType, QMatMul, ggml_file};
use candle_core::{Device, Module, Tensor};
use kernels::{
    AttnShape, KvArena, KvShape, KvType, MatrixShape, Scratch, SeqSpan, ThreadPool, Weight,
    WeightType, append_kv, attention, kernel_path, matmul,
};

/// Rounds of every measurement.
const ROUNDS: usize = 9;
/// A round repeats the call until it has lasted about this long.
const ROUND_SECONDS: f64 = 0.02;

fn main() {
    let mut threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut filter = String::new();
    // `cargo bench` adds `--bench`.
    for arg in std::env::args().skip(1).filter(|a| a != "--bench") {
        match arg.parse() {
            Ok(n) => threads = n,
            Err(_) => filter = arg,
        }
    }
    let pool = ThreadPool::new(threads).expect("threads");
    println!("# path {}, {threads} threads", kernel_path().name());
    println!("kernel,type,shape,rows,ours_gflops,candle_gflops,ratio");
    for (ty, theirs) in TYPES {
        for (rows, cols) in [(2048usize, 2048usize), (576, 1536), (1536, 576)] {
            let name = format!("matmul,{},{rows}x{cols}", ty.name());
            if !name.contains(&filter) || !cols.is_multiple_of(ty.block_len()) {
                continue;
            }
            for t in [1, 8, 512] {
                let (ours, candle) = product(&pool, ty, theirs, MatrixShape { rows, cols }, t);
                println!("{name},{t},{ours:.1},{candle:.1},{:.2}", ours / candle);
            }
        }
    }
    for (q_heads, kv_heads, head_dim) in [(9, 3, 64), (12, 2, 128)] {
        let shape = AttnShape {
            q_heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            window: None,
        };
        for ty in [KvType::F16, KvType::F32, KvType::Q8_0] {
            let name = format!("attention,{ty:?},{q_heads}/{kv_heads}x{head_dim}");
            if !name.contains(&filter) {
                continue;
            }
            for (depth, rows) in [(0, 512), (1536, 512), (512, 1), (2048, 1)] {
                let ours = attend(&pool, shape, ty, depth, rows);
                println!("{name}@{depth},{rows},{ours:.1},,");
            }
        }
    }
}

const TYPES: [(WeightType, GgmlDType); 13] = [
    (WeightType::F32, GgmlDType::F32),
    (WeightType::F16, GgmlDType::F16),
    (WeightType::BF16, GgmlDType::BF16),
    (WeightType::Q4_0, GgmlDType::Q4_0),
    (WeightType::Q4_1, GgmlDType::Q4_1),
    (WeightType::Q5_0, GgmlDType::Q5_0),
    (WeightType::Q5_1, GgmlDType::Q5_1),
    (WeightType::Q8_0, GgmlDType::Q8_0),
    (WeightType::Q2K, GgmlDType::Q2K),
    (WeightType::Q3K, GgmlDType::Q3K),
    (WeightType::Q4K, GgmlDType::Q4K),
    (WeightType::Q5K, GgmlDType::Q5K),
    (WeightType::Q6K, GgmlDType::Q6K),
];

/// Numbers without meaning but of normal size.
fn floats(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 1001.0)
        .collect()
}

/// GFLOP/s of ours and candle's product of `t` rows; nothing is checked here, the tests do that.
fn product(
    pool: &ThreadPool,
    ty: WeightType,
    theirs: GgmlDType,
    shape: MatrixShape,
    t: usize,
) -> (f64, f64) {
    let MatrixShape { rows, cols } = shape;
    let source = Tensor::from_vec(floats(rows * cols), (rows, cols), &Device::Cpu).expect("tensor");
    let source = candle_core::quantized::QTensor::quantize(&source, theirs).expect("quantise");
    let bytes = source.data().expect("bytes").to_vec();
    let q = ggml_file::qtensor_from_ggml(theirs, &bytes, vec![rows, cols], &Device::Cpu);
    let candle = QMatMul::from_qtensor(q.expect("candle weight")).expect("candle product");
    let weight = Weight::new(Bytes::from(bytes), ty, shape).expect("weight");
    let x = floats(t * cols);
    let x_candle = Tensor::from_slice(&x, (t, cols), &Device::Cpu).expect("tensor");
    let mut out = vec![0.0; t * rows];
    let mut scratch = Scratch::new();
    let seconds = interleaved(
        &mut || matmul(pool, &x, &weight, black_box(&mut out), &mut scratch),
        &mut || {
            drop(black_box(
                candle.forward(&x_candle).expect("candle product"),
            ))
        },
    );
    let flops = 2.0 * (t * rows * cols) as f64 / 1e9;
    (flops / seconds.0, flops / seconds.1)
}

/// GFLOP/s of `rows` queries after `depth` positions, counting what the causal mask leaves.
fn attend(pool: &ThreadPool, shape: AttnShape, ty: KvType, depth: usize, rows: usize) -> f64 {
    let AttnShape {
        q_heads,
        kv_heads,
        head_dim,
        ..
    } = shape;
    let all = depth + rows;
    let blocks = all.div_ceil(kernels::BLOCK_TOKENS);
    let kv_shape = KvShape {
        layers: 1,
        kv_heads,
        head_dim,
        ty,
    };
    let mut kv = KvArena::new(kv_shape, blocks).expect("arena");
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let k = floats(all * kv_heads * head_dim);
    append_kv(
        pool,
        &mut kv,
        0,
        &[SeqSpan {
            table: &table,
            start: 0,
            rows: all,
        }],
        &k,
        &k,
    );
    let q = floats(rows * q_heads * head_dim);
    let mut out = vec![0.0; q.len()];
    let mut scratch = Scratch::new();
    let seqs = [SeqSpan {
        table: &table,
        start: depth,
        rows,
    }];
    let mut ours = || {
        attention(
            pool,
            &kv,
            0,
            &seqs,
            &q,
            shape,
            black_box(&mut out),
            &mut scratch,
        )
    };
    let (seconds, _) = interleaved(&mut ours, &mut || {});
    let keys: usize = (depth + 1..=all).sum();
    4.0 * (keys * q_heads * head_dim) as f64 / 1e9 / seconds
}

/// Median seconds of each of two closures, in alternating rounds.
fn interleaved(a: &mut dyn FnMut(), b: &mut dyn FnMut()) -> (f64, f64) {
    let (times_a, times_b) = (repeats(a), repeats(b));
    let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        all_a.push(seconds(a, times_a));
        all_b.push(seconds(b, times_b));
    }
    all_a.sort_by(f64::total_cmp);
    all_b.sort_by(f64::total_cmp);
    (all_a[ROUNDS / 2], all_b[ROUNDS / 2])
}

/// How often to call `f` in a round.
fn repeats(f: &mut dyn FnMut()) -> usize {
    f();
    (ROUND_SECONDS / seconds(f, 1).max(1e-9)).clamp(1.0, 1e5) as usize
}

/// Seconds of one call, over `n` calls.
fn seconds(f: &mut dyn FnMut(), n: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..n {
        f();
    }
    start.elapsed().as_secs_f64() / n as f64
}
