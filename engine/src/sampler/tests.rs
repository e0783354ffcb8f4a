//! The sampler's promises, on rows a person can check.

use super::*;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn draw(params: SamplingParams, logits: &[f32]) -> Result<Sampled, SampleError> {
    Sampler::new(params, logits.len(), &[])?.sample(logits, Allowed::default())
}

/// Which ids 2,000 draws give.
fn support(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..2_000 {
        seen.insert(
            draw(
                SamplingParams {
                    seed,
                    ..params.clone()
                },
                logits,
            )
            .unwrap()
            .id,
        );
    }
    seen.into_iter().collect()
}

/// One NaN made an engine answer token 0 for ever, and another panic; a masked row gave NaN weights.
#[test]
fn odd_rows_give_a_sensible_token_or_an_error() {
    let default = SamplingParams::default;
    let cold = SamplingParams {
        temperature: 1e-6,
        ..default()
    };
    let rows: &[(&[f32], SamplingParams, Option<u32>)] = &[
        (
            &[NAN, 1.0, 2.0, 3.0, 0.0],
            SamplingParams::greedy(),
            Some(3),
        ),
        (&[NAN; 5], SamplingParams::greedy(), None),
        (&[NAN; 5], default(), None),
        (&[-INF, -INF, 1.0], default(), Some(2)),
        (&[-INF; 5], default(), None),
        (&[-INF; 5], SamplingParams::greedy(), None),
        (&[INF, 0.0, 0.0], default(), Some(0)),
        (&[INF, 0.0, NAN], SamplingParams::greedy(), Some(0)),
        (&[1e30, -1e30, 0.0], cold, Some(0)),
        (&[0.0; 8], SamplingParams::greedy(), Some(0)),
        (&[1.0, 5.0, 5.0], SamplingParams::greedy(), Some(1)),
        (
            &[3.0, 2.0, 1.0],
            SamplingParams {
                top_p: 0.0,
                ..default()
            },
            Some(0),
        ),
        (
            &[3.0, 2.0, 1.0],
            SamplingParams {
                top_k: 1,
                ..default()
            },
            Some(0),
        ),
        (&[], default(), None),
    ];
    for (logits, params, want) in rows {
        let got = draw(params.clone(), logits);
        assert_eq!(
            got.as_ref().ok().map(|s| s.id),
            *want,
            "{logits:?} {params:?}"
        );
        let nan = logits.iter().filter(|l| l.is_nan()).count();
        match got {
            Ok(sampled) => assert_eq!(sampled.nan_logits, nan),
            Err(error) => assert!(matches!(error, SampleError::Nothing { nan: n, .. } if n == nan)),
        }
    }
}

#[test]
fn filters_keep_what_they_say() {
    let logits = [3.0, 2.0, 1.0, 0.0, 0.0];
    let default = SamplingParams::default;
    let rows: &[(SamplingParams, &[u32])] = &[
        (default(), &[0, 1, 2, 3, 4]),
        (
            SamplingParams {
                top_k: 100,
                ..default()
            },
            &[0, 1, 2, 3, 4],
        ),
        (
            SamplingParams {
                top_k: 2,
                ..default()
            },
            &[0, 1],
        ),
        (
            SamplingParams {
                top_k: 4,
                ..default()
            },
            &[0, 1, 2, 3],
        ),
        // Probabilities .613 .226 .083 .031 .031 (rounded).
        (
            SamplingParams {
                top_p: 0.6,
                ..default()
            },
            &[0],
        ),
        (
            SamplingParams {
                top_p: 0.7,
                ..default()
            },
            &[0, 1],
        ),
        (
            SamplingParams {
                min_p: 0.1,
                ..default()
            },
            &[0, 1, 2],
        ),
        (
            SamplingParams {
                min_p: 1.0,
                ..default()
            },
            &[0],
        ),
        // A hot row: top-p looks at the tempered probabilities.
        (
            SamplingParams {
                temperature: 100.0,
                top_p: 0.5,
                ..default()
            },
            &[0, 1, 2],
        ),
    ];
    for (params, want) in rows {
        assert_eq!(support(params.clone(), &logits), *want, "{params:?}");
    }
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [1.0f32, 0.0, -1.0, f32::NEG_INFINITY];
    let sum: f32 = logits.iter().map(|l| l.exp()).sum();
    let mut counts = [0u32; 4];
    let mut sampler = Sampler::new(
        SamplingParams {
            seed: 3,
            ..Default::default()
        },
        4,
        &[],
    )
    .unwrap();
    for _ in 0..20_000 {
        let id = sampler.sample(&logits, Allowed::default()).unwrap().id;
        counts[id as usize] += 1;
        sampler.accept(id);
    }
    for (count, logit) in counts.iter().zip(logits) {
        let (got, want) = (*count as f32 / 20_000.0, logit.exp() / sum);
        assert!((got - want).abs() < 0.015, "{counts:?}");
    }
}

/// A seed must give the same text whatever else the engine does: the draw depends on the position,
/// not on how often anything was drawn before.
#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let params = SamplingParams {
        temperature: 0.9,
        seed: 7,
        ..Default::default()
    };
    let text = |noisy: bool| {
        let mut sampler = Sampler::new(params.clone(), 50, &[]).unwrap();
        let mut ids = Vec::new();
        for _ in 0..30 {
            if noisy {
                sampler
                    .sample(
                        &logits,
                        Allowed {
                            mask: None,
                            vetoed: &[1, 2],
                        },
                    )
                    .unwrap();
            }
            let id = sampler.sample(&logits, Allowed::default()).unwrap().id;
            sampler.accept(id);
            ids.push(id);
        }
        ids
    };
    assert_eq!(text(false), text(true));
}

#[test]
fn masks_and_vetoes_hold_whatever_the_bias() {
    let mask = TokenMask::from_ids(&[2, 3]);
    let params = SamplingParams {
        logit_bias: vec![(0, 1e6)],
        ..Default::default()
    };
    let logits = [9.0, 9.0, 1.0, 0.0, 9.0];
    let mut sampler = Sampler::new(params, 5, &[]).unwrap();
    for vetoed in [&[][..], &[2], &[3]] {
        for _ in 0..200 {
            let id = sampler
                .sample(
                    &logits,
                    Allowed {
                        mask: Some(&mask),
                        vetoed,
                    },
                )
                .unwrap()
                .id;
            assert!(mask.allows(id) && !vetoed.contains(&id));
            sampler.accept(id);
        }
    }
    let error = sampler
        .sample(
            &logits,
            Allowed {
                mask: Some(&mask),
                vetoed: &[2, 3],
            },
        )
        .unwrap_err();
    assert_eq!(
        error,
        SampleError::Nothing {
            vocab: 5,
            nan: 0,
            masked: 3
        }
    );
}

#[test]
fn penalties_look_back_as_far_as_they_say() {
    let greedy = SamplingParams::greedy;
    // The repetition penalty halves what stands in the last two ids, the end of the prompt included:
    // 0 0 -> 1; 0 1 -> both halved, 0 is the better; 1 0 -> the same; 0 0 -> 1; 0 1 -> 0.
    let params = SamplingParams {
        repetition_penalty: 2.0,
        repetition_window: 2,
        ..greedy()
    };
    let mut sampler = Sampler::new(params, 3, &[1, 0, 0]).unwrap();
    let row = [4.0, 3.0, -1.0];
    let mut ids = Vec::new();
    for _ in 0..5 {
        let id = sampler.sample(&row, Allowed::default()).unwrap().id;
        sampler.accept(id);
        ids.push(id);
    }
    assert_eq!(ids, [1, 0, 0, 1, 0], "0 is punished first, then both");
    // Frequency and presence count the answer only.
    let params = SamplingParams {
        frequency_penalty: 0.4,
        presence_penalty: 0.3,
        ..greedy()
    };
    let mut sampler = Sampler::new(params, 2, &[0, 0, 0]).unwrap();
    let mut ids = Vec::new();
    for _ in 0..4 {
        let id = sampler.sample(&[1.0, 0.4], Allowed::default()).unwrap().id;
        sampler.accept(id);
        ids.push(id);
    }
    // 1.0 and 0.4; 0.3 and 0.4; 0.3 and -0.3; -0.1 and -0.3.
    assert_eq!(ids, [0, 1, 0, 0]);
}

#[test]
fn logprobs_are_of_the_raw_row() {
    let logits = [2.0, 1.0, 0.0, NAN];
    let params = SamplingParams {
        top_logprobs: Some(2),
        logit_bias: vec![(2, 50.0)],
        temperature: 0.3,
        ..Default::default()
    };
    let got = draw(params, &logits).unwrap();
    let log_sum = (2.0f32.exp() + 1.0f32.exp() + 1.0).ln();
    let logprobs = got.logprobs.unwrap();
    assert_eq!(got.id, 2);
    assert!((logprobs.chosen + log_sum).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert!((logprobs.top[0].1 - (2.0 - log_sum)).abs() < 1e-6);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let default = SamplingParams::default;
    let rows = [
        (
            SamplingParams {
                temperature: -0.1,
                ..default()
            },
            "temperature",
        ),
        (
            SamplingParams {
                temperature: NAN,
                ..default()
            },
            "temperature",
        ),
        (
            SamplingParams {
                top_p: 1.1,
                ..default()
            },
            "top_p",
        ),
        (
            SamplingParams {
                min_p: -0.1,
                ..default()
            },
            "min_p",
        ),
        (
            SamplingParams {
                repetition_penalty: 0.0,
                ..default()
            },
            "repetition_penalty",
        ),
        (
            SamplingParams {
                frequency_penalty: INF,
                ..default()
            },
            "frequency_penalty",
        ),
        (
            SamplingParams {
                presence_penalty: NAN,
                ..default()
            },
            "presence_penalty",
        ),
        (
            SamplingParams {
                logit_bias: vec![(999_999_999, 5.0)],
                ..default()
            },
            "logit_bias",
        ),
        (
            SamplingParams {
                logit_bias: vec![(1, NAN)],
                ..default()
            },
            "logit_bias",
        ),
        (
            SamplingParams {
                top_logprobs: Some(101),
                ..default()
            },
            "top_logprobs",
        ),
    ];
    for (params, name) in rows {
        let error = params.validate(100).unwrap_err();
        assert!(error.to_string().starts_with(name), "{error}");
        assert_eq!(error.blame(), kernels::Blame::Caller);
    }
    SamplingParams::default().validate(1).unwrap();
    SamplingParams::greedy().validate(1).unwrap();
}

/// The slow twin: sorts everything.
fn plain_top_p(row: &[f32], temperature: f32, top_p: f64) -> Vec<u32> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut all: Vec<(u32, f64)> = row
        .iter()
        .zip(0..)
        .map(|(&l, id)| (id, f64::from(((l - max) / temperature).exp())))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let wanted = top_p * all.iter().map(|c| c.1).sum::<f64>();
    let mut sum = 0.0;
    let count = all
        .iter()
        .position(|c| {
            sum += c.1;
            sum >= wanted
        })
        .map_or(all.len(), |i| i + 1);
    all.truncate(count);
    all.into_iter().map(|c| c.0).collect()
}

#[test]
fn the_fast_top_p_keeps_what_a_full_sort_keeps() {
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    for (size, spread) in [(10, 5.0), (3_000, 1.0), (3_000, 20.0), (3_000, 0.0)] {
        let row: Vec<f32> = (0..size).map(|_| noise() * spread).collect();
        for top_p in [0.1f32, 0.5, 0.9, 0.999] {
            let params = SamplingParams {
                top_p,
                temperature: 0.8,
                ..Default::default()
            };
            let (_, max) = candidates::argmax(&row).unwrap();
            let mut candidates = Candidates::default();
            candidates.collect(&row, max, &params);
            let want = plain_top_p(&row, 0.8, f64::from(top_p));
            assert_eq!(candidates.ids(), want, "{size} {spread} {top_p}");
        }
    }
}

/// Not a limit to rely on, but a sort of the vocabulary would show.
#[test]
fn a_large_vocabulary_is_not_sorted() {
    let row: Vec<f32> = (0..151_936u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 6_553.6)
        .collect();
    for params in [
        SamplingParams::greedy(),
        SamplingParams {
            top_k: 40,
            top_p: 0.95,
            ..Default::default()
        },
        SamplingParams {
            top_p: 0.9,
            ..Default::default()
        },
        SamplingParams::default(),
    ] {
        let mut sampler = Sampler::new(params.clone(), row.len(), &[]).unwrap();
        let started = std::time::Instant::now();
        for _ in 0..20 {
            sampler.sample(&row, Allowed::default()).unwrap();
        }
        let each = started.elapsed() / 20;
        println!("{each:?} for {params:?}");
        assert!(each.as_millis() < 100);
    }
}
