//! Attention and KV memory: against the plain twin, against themselves, over poisoned blocks.

mod common;

use std::num::NonZeroUsize;

use common::{Random, assert_same, paths, pool};
use kernels::{
    AttnShape, BLOCK_TOKENS, KernelPath, KvArena, KvShape, KvType, Scratch, SeqSpan, append_kv,
    attention, kernel_path, plain,
};

/// A sequence with its own scattered blocks.
struct Sequence {
    table: Vec<u32>,
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
}

struct Case {
    kv: KvArena,
    shape: AttnShape,
    sequences: Vec<Sequence>,
}

const LAYER: usize = 1;

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

/// `lengths` sequences whose keys and values are in the arena. Every byte that was not
/// written is NaN.
fn case(random: &mut Random, shape: AttnShape, ty: KvType, lengths: &[usize]) -> Case {
    let blocks = |n: usize| n.div_ceil(BLOCK_TOKENS);
    let total: usize = lengths.iter().map(|n| blocks(*n)).sum();
    let kv_shape = KvShape {
        layers: 2,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        ty,
    };
    let mut kv = KvArena::new(kv_shape, total + 1).unwrap();
    for b in 0..kv.blocks() {
        kv.block_bytes_mut(b as u32).fill(0xff);
    }
    let mut free: Vec<u32> = (0..=total as u32).collect();
    let mut sequences = Vec::new();
    for n in lengths {
        let table = (0..blocks(*n))
            .map(|_| free.swap_remove(random.below(free.len())))
            .collect();
        let width = shape.kv_heads * shape.head_dim;
        sequences.push(Sequence {
            table,
            k: random.floats(n * width),
            v: random.floats(n * width),
            q: random
                .floats(n * shape.q_heads * shape.head_dim)
                .iter()
                .map(|x| x * 4.0)
                .collect(),
        });
    }
    let pool = pool(1, kernel_path());
    for s in &sequences {
        let rows = s.k.len() / (shape.kv_heads * shape.head_dim);
        let span = SeqSpan {
            table: &s.table,
            start: 0,
            rows,
        };
        append_kv(&pool, &mut kv, LAYER, &[span], &s.k, &s.v);
    }
    Case {
        kv,
        shape,
        sequences,
    }
}

/// Rows `start .. start + rows` of some sequences in one call.
fn run(case: &Case, spans: &[(usize, usize, usize)], threads: usize, path: KernelPath) -> Vec<f32> {
    let width = case.shape.q_heads * case.shape.head_dim;
    let mut q = Vec::new();
    let mut seqs = Vec::new();
    for &(i, start, rows) in spans {
        let s = &case.sequences[i];
        q.extend_from_slice(&s.q[start * width..(start + rows) * width]);
        seqs.push(SeqSpan {
            table: &s.table,
            start,
            rows,
        });
    }
    let mut out = vec![f32::NAN; q.len()];
    let pool = pool(threads, path);
    // Twice on one scratch: what the first call left behind must not matter.
    let mut scratch = Scratch::new();
    for _ in 0..2 {
        attention(
            &pool,
            &case.kv,
            LAYER,
            &seqs,
            &q,
            case.shape,
            &mut out,
            &mut scratch,
        );
    }
    out
}

fn heads(q_heads: usize, kv_heads: usize, head_dim: usize) -> AttnShape {
    AttnShape {
        q_heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        window: None,
    }
}

/// The same heads, of which every row sees `window` positions.
fn windowed(shape: AttnShape, window: usize) -> AttnShape {
    AttnShape {
        window: NonZeroUsize::new(window),
        ..shape
    }
}

#[test]
fn every_path_follows_the_plain_twin_to_the_bit() {
    let mut random = Random(11);
    for ty in TYPES {
        for shape in [
            heads(3, 1, 64),
            heads(4, 2, 80),
            heads(2, 2, 7),
            heads(14, 2, 32),
            heads(34, 1, 16),
            windowed(heads(4, 1, 24), 1),
            windowed(heads(3, 1, 64), 20),
            windowed(heads(4, 2, 80), 97),
            windowed(heads(34, 1, 16), 128),
            windowed(heads(2, 2, 7), 151),
        ] {
            for n in [1, 5, 33, 129, 150, 300] {
                let case = case(&mut random, shape, ty, &[n]);
                let s = &case.sequences[0];
                let span = SeqSpan {
                    table: &s.table,
                    start: 0,
                    rows: n,
                };
                let mut want = vec![0.0; s.q.len()];
                plain::attention(&case.kv, LAYER, &[span], &s.q, shape, &mut want);
                assert!(want.iter().all(|x| x.is_finite()));
                for path in paths() {
                    let got = run(&case, &[(0, 0, n)], 1, path);
                    assert_same(&got, &want, &format!("{ty:?} {shape:?} {path:?} n={n}"));
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_see_its_chunk_its_batch_or_the_threads() {
    let mut random = Random(12);
    let shape = heads(9, 3, 64);
    for ty in TYPES {
        rows_see_only_their_past(&mut random, shape, ty);
        for window in [3, 40, 130] {
            rows_see_only_their_past(&mut random, windowed(shape, window), ty);
        }
    }
}

/// Blocks before every row's window may have gone to others, or be none at all; what a row does not see does
/// not matter to it, were it infinite.
#[test]
fn what_lies_before_the_window_is_not_read() {
    let mut random = Random(17);
    for ty in TYPES {
        let shape = windowed(heads(4, 2, 32), 50);
        let width = shape.q_heads * shape.head_dim;
        let mut case = case(&mut random, shape, ty, &[300]);
        let whole = run(&case, &[(0, 0, 300)], 1, kernel_path());
        // The row at 200 sees from 151 on: blocks 0 to 3 go, and positions 128 to 150 of block 4 spoil.
        for block in &mut case.sequences[0].table[..4] {
            case.kv.block_bytes_mut(*block).fill(0xff);
            *block = u32::MAX;
        }
        let kv_width = shape.kv_heads * shape.head_dim;
        let bad = vec![f32::INFINITY; 23 * kv_width];
        let span = SeqSpan {
            table: &case.sequences[0].table,
            start: 128,
            rows: 23,
        };
        append_kv(
            &pool(1, kernel_path()),
            &mut case.kv,
            LAYER,
            &[span],
            &bad,
            &bad,
        );
        for threads in [1, 3] {
            for rows in [1, 2, 64, 100] {
                let got = run(&case, &[(0, 200, rows)], threads, kernel_path());
                let want = &whole[200 * width..(200 + rows) * width];
                assert_same(&got, want, &format!("{ty:?} {rows} rows"));
            }
        }
    }
}

fn rows_see_only_their_past(random: &mut Random, shape: AttnShape, ty: KvType) {
    let width = shape.q_heads * shape.head_dim;
    let case = case(random, shape, ty, &[410, 140, 1]);
    let whole: Vec<Vec<f32>> = [410, 140, 1]
        .iter()
        .enumerate()
        .map(|(i, n)| run(&case, &[(i, 0, *n)], 1, kernel_path()))
        .collect();
    for threads in [1, 2, 4] {
        for _ in 0..20 {
            let mut spans = Vec::new();
            for (i, n) in [410usize, 140, 1].iter().enumerate() {
                let rows = [1, 2, 3, 7, 64][random.below(5)].min(*n);
                spans.push((i, random.below(n - rows + 1), rows));
            }
            // Alone, then with others.
            for spans in [&spans[..1], &spans[1..2], &spans[..]] {
                let got = run(&case, spans, threads, kernel_path());
                let want: Vec<f32> = spans
                    .iter()
                    .flat_map(|(i, start, rows)| {
                        whole[*i][start * width..(start + rows) * width].to_vec()
                    })
                    .collect();
                assert_same(
                    &got,
                    &want,
                    &format!("{ty:?} {spans:?} on {threads} threads"),
                );
            }
        }
    }
}

#[test]
fn attention_is_near_the_exact_one() {
    let mut random = Random(13);
    let shape = heads(4, 2, 64);
    let case = case(&mut random, shape, KvType::F32, &[200]);
    let s = &case.sequences[0];
    let got = run(&case, &[(0, 0, 200)], 1, kernel_path());
    let (d, kvw, qw) = (64, 128, 256);
    for (t, h) in [(0, 0), (31, 1), (150, 2), (199, 3)] {
        let q = &s.q[t * qw + h * d..][..d];
        let kv = |x: &[f32], j: usize, i: usize| f64::from(x[j * kvw + h / 2 * d + i]);
        let score = |j: usize| -> f64 {
            let dot: f64 = (0..d).map(|i| kv(&s.k, j, i) * f64::from(q[i])).sum();
            (dot * 0.125).exp()
        };
        let weights: Vec<f64> = (0..=t).map(score).collect();
        let sum: f64 = weights.iter().sum();
        for i in 0..d {
            let exact: f64 = (0..=t).map(|j| weights[j] * kv(&s.v, j, i)).sum::<f64>() / sum;
            let ours = f64::from(got[t * qw + h * d + i]);
            assert!((ours - exact).abs() < 1e-5, "{ours} {exact}");
        }
    }
}

#[test]
fn what_is_appended_is_read_back_in_stored_precision() {
    let mut random = Random(14);
    for ty in TYPES {
        let shape = heads(2, 2, 24);
        let case = case(&mut random, shape, ty, &[70]);
        // With one visible key the output is its value.
        let got = run(&case, &[(0, 0, 1)], 1, kernel_path());
        let heads = case.sequences[0].v[..48].chunks(24);
        let want: Vec<f32> = heads.flat_map(|v| plain::stored(v, ty)).collect();
        assert_same(&got, &want, "first row");
    }
}

#[test]
fn a_large_append_is_the_sum_of_small_ones() {
    let mut random = Random(15);
    for ty in TYPES {
        append_in_parts(&mut random, ty);
    }
}

fn append_in_parts(random: &mut Random, ty: KvType) {
    let shape = KvShape {
        layers: 2,
        kv_heads: 3,
        head_dim: 64,
        ty,
    };
    let (k, v) = (random.floats(100 * 192), random.floats(100 * 192));
    let table = [3, 0, 1, 2];
    let mut at_once = KvArena::new(shape, 4).unwrap();
    let mut by_one = KvArena::new(shape, 4).unwrap();
    let pool = pool(2, kernel_path());
    append_kv(
        &pool,
        &mut at_once,
        1,
        &[SeqSpan {
            table: &table,
            start: 0,
            rows: 100,
        }],
        &k,
        &v,
    );
    for t in 0..100 {
        let span = SeqSpan {
            table: &table,
            start: t,
            rows: 1,
        };
        append_kv(
            &pool,
            &mut by_one,
            1,
            &[span],
            &k[t * 192..(t + 1) * 192],
            &v[t * 192..(t + 1) * 192],
        );
    }
    for b in 0..4 {
        assert!(at_once.block_bytes_ref(b) == by_one.block_bytes_ref(b));
    }
}

#[test]
fn a_copied_partial_block_holds_its_tokens_and_zeroes() {
    let mut random = Random(16);
    for ty in TYPES {
        copy_in_part(&mut random, ty);
    }
}

fn copy_in_part(random: &mut Random, ty: KvType) {
    let shape = KvShape {
        layers: 2,
        kv_heads: 2,
        head_dim: 8,
        ty,
    };
    let mut kv = KvArena::new(shape, 3).unwrap();
    let pool = pool(1, kernel_path());
    let (k, v) = (random.floats(32 * 16), random.floats(32 * 16));
    for layer in 0..2 {
        let full = SeqSpan {
            table: &[0],
            start: 0,
            rows: 32,
        };
        append_kv(&pool, &mut kv, layer, &[full], &k, &v);
        let part = SeqSpan {
            table: &[1],
            start: 0,
            rows: 5,
        };
        append_kv(&pool, &mut kv, layer, &[part], &k[..5 * 16], &v[..5 * 16]);
    }
    kv.block_bytes_mut(2).fill(0xff);
    kv.copy_block(0, 2, 5);
    assert!(kv.block_bytes_ref(2) == kv.block_bytes_ref(1));
    kv.copy_block(0, 2, 32);
    assert!(kv.block_bytes_ref(2) == kv.block_bytes_ref(0));
}

#[test]
fn impossible_arenas_are_refused() {
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_dim: 64,
        ty: KvType::F16,
    };
    assert_eq!(shape.block_bytes(), 2 * 32 * 64 * 2);
    assert!(
        KvArena::new(
            KvShape {
                head_dim: 0,
                ..shape
            },
            1
        )
        .is_err()
    );
    assert!(
        KvArena::new(
            KvShape {
                head_dim: 4096,
                ..shape
            },
            1
        )
        .is_err()
    );
    assert!(KvArena::new(shape, usize::MAX / 8).is_err());
    assert!(KvArena::new(shape, 1 << 31).is_err());
}

/// What eight bits cannot hold: a group of zeroes, of numbers near the smallest, of very large ones, and a
/// NaN, which must stay one and stay in its group.
#[test]
fn eight_bits_hold_the_extremes() {
    let shape = heads(1, 1, 64);
    let kv_shape = KvShape {
        layers: 2,
        kv_heads: 1,
        head_dim: 64,
        ty: KvType::Q8_0,
    };
    let of = |low: f32, high: f32| -> Vec<f32> {
        let sign = |i: usize| if i.is_multiple_of(3) { -1.0 } else { 1.0 };
        let half = |x: f32| (0..32).map(move |i| x * sign(i) * (i as f32 + 1.0) / 32.0);
        half(low).chain(half(high)).collect()
    };
    for (low, high) in [
        (0.0, 1.0),
        (1e-6, 7.5e-6),
        (1e-30, f32::MIN_POSITIVE),
        (8e6, 1.0),
        (1.0, f32::NAN),
        (f32::INFINITY, 1.0),
    ] {
        let v = of(low, high);
        let want = plain::stored(&v, KvType::Q8_0);
        for path in paths() {
            let mut kv = KvArena::new(kv_shape, 1).unwrap();
            let pool = pool(1, path);
            let span = SeqSpan {
                table: &[0],
                start: 0,
                rows: 1,
            };
            append_kv(&pool, &mut kv, LAYER, &[span], &[0.0; 64], &v);
            let mut out = [0.0; 64];
            let mut scratch = Scratch::new();
            attention(
                &pool,
                &kv,
                LAYER,
                &[span],
                &[1.0; 64],
                shape,
                &mut out,
                &mut scratch,
            );
            for (half, x) in [low, high].into_iter().enumerate() {
                let (got, want) = (&out[32 * half..][..32], &want[32 * half..][..32]);
                if x.is_finite() {
                    assert_same(got, want, &format!("{path:?} {x}"));
                    let worst = v[32 * half..].iter().zip(got).map(|(v, x)| (v - x).abs());
                    let worst = worst.fold(0f32, f32::max);
                    assert!(
                        worst <= x.abs() / 200.0 + 4e-6,
                        "{path:?} {x}: off by {worst}"
                    );
                } else {
                    assert!(got.iter().all(|x| x.is_nan()), "{path:?} {x}");
                }
            }
        }
    }
}
