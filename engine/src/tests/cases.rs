//! What is reused, exactly, and why the rest is not.

use super::fake::reference_reply;
use super::rig::{Ask, Rig, ids, piece, prompt};
use crate::keys::Salt;
use crate::piece::{Layer, Piece};
use crate::prompt::Prompt;
use crate::report::{Between, Source, Why};
use crate::request::Finish;
use std::sync::atomic::Ordering;

#[test]
fn a_repeat_computes_one_token_and_an_append_its_own() {
    for length in [1, 2, 31, 32, 33, 64, 95, 200] {
        let mut rig = Rig::new(512, 64);
        let a = ids(length as u64, length);
        let cold = rig.answer(&prompt(&[&a]), 4);
        assert_eq!((cold.report.reused, cold.report.computed), (0, length));
        let warm = rig.answer(&prompt(&[&a]), 4);
        assert_eq!((warm.report.reused, warm.report.computed), (length - 1, 1));
        assert_eq!(warm.ids, cold.ids);
        assert_eq!(warm.ids, reference_reply(&a, 4));

        let more = ids(1000 + length as u64, 5);
        let appended = rig.answer(&prompt(&[&a, &more]), 1);
        // The reply may have begun like the appended tokens.
        assert!(appended.report.reused >= length && appended.report.computed <= 5);
        let stats = rig.core.stats();
        assert_eq!(stats.rows_forwarded as usize, rig.log.lock().unwrap().rows);
        let reports = [cold.report, warm.report, appended.report];
        let rows: usize = reports
            .iter()
            .map(|r| r.computed + r.decode_rows + r.drafted - r.drafts_taken)
            .sum();
        assert_eq!(rows as u64, stats.rows_forwarded);
    }
}

/// An edit at n of p computes p − n, for every n, in every cut.
#[test]
fn an_edit_at_n_computes_the_rest() {
    let (length, cut) = (100, 37);
    for n in 0..length {
        let mut rig = Rig::new(256, 32);
        let a = ids(7, length);
        rig.answer(&prompt(&[&a[..cut], &a[cut..]]), 3);
        let mut b = a.clone();
        b[n] = b[n] % 20 + 2;
        if b[n] == a[n] {
            b[n] += 1;
        }
        let edited = rig.answer(&prompt(&[&b[..cut], &b[cut..]]), 3);
        assert_eq!(
            (edited.report.reused, edited.report.computed),
            (n, length - n)
        );
        assert_eq!(edited.report.between, []);
        let (broken, at) = edited.report.broken().expect("broken");
        assert_eq!((at.at_token, at.why), (n, Why::Edited));
        assert_eq!(&*broken.name, if n < cut { "piece 0" } else { "piece 1" });
        // And back again: nothing of the first was overwritten.
        let again = rig.answer(&prompt(&[&a[..cut], &a[cut..]]), 3);
        assert_eq!(again.report.computed, 1);
    }
}

#[test]
fn an_insertion_computes_from_where_it_stands() {
    for n in [0, 1, 31, 32, 33, 50, 99] {
        let mut rig = Rig::new(256, 32);
        let a = ids(3, 100);
        rig.answer(&prompt(&[&a]), 2);
        let mut b = a.clone();
        b.splice(n..n, [22, 23, 22]);
        let inserted = rig.answer(&prompt(&[&b]), 2);
        let common = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        assert_eq!(inserted.report.reused, common, "at {n}");
        assert_eq!(inserted.report.computed, b.len() - common);
    }
}

#[test]
fn the_second_turn_reuses_prompt_and_reply() {
    let mut rig = Rig::new(512, 64);
    let system = ids(1, 40);
    let user = ids(2, 21);
    let first = rig.answer(&prompt(&[&system, &user]), 17);
    let reply = first.ids.clone();
    let next = ids(3, 9);
    let second = rig.answer(&prompt(&[&system, &user, &reply, &next]), 5);
    let had = system.len() + user.len() + reply.len();
    // All but the reply's last token, which was sampled and never forwarded.
    assert_eq!(second.report.reused, had - 1);
    assert_eq!(second.report.computed, next.len() + 1);
}

#[test]
fn two_conversations_alternate_without_computing_again() {
    let mut rig = Rig::new(512, 64);
    let (a, b) = (ids(1, 150), ids(2, 170));
    rig.answer(&prompt(&[&a]), 2);
    rig.answer(&prompt(&[&b]), 2);
    for _ in 0..3 {
        assert_eq!(rig.answer(&prompt(&[&a]), 2).report.computed, 1);
        assert_eq!(rig.answer(&prompt(&[&b]), 2).report.computed, 1);
    }
    assert_eq!(rig.core.stats().hits, 6);
}

#[test]
fn the_same_ids_in_other_pieces_hit_the_same_blocks() {
    let mut rig = Rig::new(512, 64);
    let a = ids(5, 120);
    rig.answer(&prompt(&[&a[..50], &a[50..]]), 1);
    for cut in [1, 31, 32, 64, 119] {
        let other = rig.answer(&prompt(&[&a[..cut], &a[cut..]]), 1);
        assert_eq!(other.report.computed, 1, "cut at {cut}");
    }
}

#[test]
fn salts_do_not_share_and_one_salt_does() {
    let mut rig = Rig::new(512, 64);
    let a = prompt(&[&ids(5, 70)]);
    let ask = |salt: &str| Ask {
        salt: Salt::new(salt),
        ..Ask::greedy(2)
    };
    for (salt, reused) in [("", 0), ("x", 0), ("x", 69), ("y", 0), ("", 69)] {
        let handle = rig.submit(&a, ask(salt));
        rig.run();
        assert_eq!(rig.check(handle).report.reused, reused, "salt {salt:?}");
    }
}

#[test]
fn why_a_prefix_broke() {
    let mut rig = Rig::new(512, 64);
    let (a, b, c) = (
        piece("a", &ids(1, 20)),
        piece("b", &ids(2, 20)),
        piece("c", &ids(3, 9)),
    );
    let edited = piece("b", &ids(4, 20));
    let rendered = Piece {
        text_hash: b.text_hash,
        ..piece("b", &ids(6, 22))
    };
    let rows: &[(&[&Piece], Why, &str)] = &[
        (&[&a, &b], Why::FirstCall, "a"),
        (&[&a, &b], Why::LastToken, "b"),
        (&[&a, &b, &c], Why::NewPiece, "c"),
        (&[&a, &edited, &c], Why::Edited, "b"),
        (&[&a, &rendered], Why::Edited, "b"),
        (&[&b, &a], Why::Reordered, "b"),
        (&[&c, &a], Why::Reordered, "c"),
    ];
    for (pieces, why, name) in rows {
        let pieces = pieces.iter().map(|p| (*p).clone()).collect();
        let outcome = rig.answer(&Prompt::new(pieces).unwrap(), 1);
        let (piece, broken) = outcome.report.broken().expect("broken");
        assert_eq!((broken.why, &*piece.name), (*why, *name));
        assert_eq!(outcome.plan.broken().expect("broken").1, broken);
    }

    let same_text = Piece {
        text_hash: rendered.text_hash,
        ..piece("b", &ids(8, 20))
    };
    let outcome = rig.answer(&Prompt::new(vec![a.clone(), same_text]).unwrap(), 1);
    assert_eq!(outcome.report.broken().unwrap().1.why, Why::Template);

    rig.core.clear_cache();
    let outcome = rig.answer(&Prompt::new(vec![a, b]).unwrap(), 1);
    assert_eq!(outcome.report.broken().unwrap().1.why, Why::Evicted);
    assert_eq!(outcome.report.between, [], "the plan knew");
}

/// The plan counted on what was thrown away before the call: the report says so, with the count.
#[test]
fn an_eviction_between_plan_and_call_is_named() {
    let mut rig = Rig::new(512, 64);
    let a = prompt(&[&ids(1, 100)]);
    rig.answer(&a, 1);
    let plan = rig.core.plan(a.clone(), &Salt::default());
    assert_eq!(plan.computed, 1);
    assert!(rig.core.clear_cache() > 0);
    let outcome = rig.answer(&a, 1);
    assert_eq!(
        outcome.plan, plan,
        "the caller's plan is the one that is compared"
    );
    assert_eq!(outcome.report.computed, 100);
    assert_eq!(outcome.report.between, [Between::Evicted { tokens: 99 }]);
}

#[test]
fn a_plan_holds_what_it_counts_on_until_it_expires() {
    let (context, pool) = (256, 9);
    let a = prompt(&[&ids(1, 100)]);
    let flood = |rig: &mut Rig| {
        for seed in 10..20 {
            rig.answer(&prompt(&[&ids(seed, 120)]), 1);
        }
    };
    let mut rig = Rig::new(context, pool);
    rig.answer(&a, 1);
    rig.core.plan(a.clone(), &Salt::default());
    assert_eq!(rig.core.stats().blocks.leased, 4);
    flood(&mut rig);
    let held = rig.answer(&a, 1);
    assert_eq!((held.report.computed, held.report.between.len()), (1, 0));

    rig.core.plan(a.clone(), &Salt::default());
    rig.clock.advance_ms(crate::limits::PLAN_PIN_MS);
    rig.core.expire();
    assert_eq!(rig.core.stats().blocks.leased, 0);
    flood(&mut rig);
    let expired = rig.answer(&a, 1);
    let [Between::Evicted { tokens }] = expired.report.between[..] else {
        panic!("{:?}", expired.report.between)
    };
    assert_eq!(tokens, expired.report.computed - 1);
}

#[test]
fn a_prefill_that_finished_between_plan_and_call_is_named() {
    let mut rig = Rig::new(512, 64);
    let shared = ids(1, 90);
    let b = prompt(&[&shared, &ids(2, 10)]);
    let plan = rig.core.plan(b.clone(), &Salt::default());
    assert_eq!(plan.computed, 100);
    rig.answer(&prompt(&[&shared]), 1);
    let outcome = rig.answer(&b, 1);
    assert_eq!(
        outcome.report.between,
        [Between::SharedPrefill { tokens: 90 }]
    );
}

/// Four requests with one cold prefix, sent at once, compute it once.
#[test]
fn a_cold_prefix_that_several_share_is_computed_once() {
    let mut rig = Rig::new(1024, 64);
    let shared = ids(1, 400);
    let handles: Vec<_> = (0..4)
        .map(|i| {
            let own = ids(100 + i, 10);
            rig.submit(&prompt(&[&shared, &own]), Ask::greedy(6))
        })
        .collect();
    rig.run();
    let outcomes: Vec<_> = handles.into_iter().map(|h| rig.check(h)).collect();
    let computed: usize = outcomes.iter().map(|o| o.report.computed).sum();
    assert_eq!(computed, 400 + 4 * 10);
    for late in &outcomes[1..] {
        assert_eq!(
            late.report.between,
            [Between::SharedPrefill { tokens: 400 }]
        );
        assert_eq!(
            late.report.sources,
            [(Source::InFlight, 400), (Source::Computed, 10)]
        );
    }
}

#[test]
fn a_neighbour_that_decodes_waits_for_one_chunk_at_most() {
    let mut rig = Rig::new(1024, 80);
    let talker = rig.submit(&prompt(&[&ids(1, 8)]), Ask::greedy(30));
    rig.core.step();
    let long = rig.submit(&prompt(&[&ids(2, 900)]), Ask::greedy(1));
    rig.run();
    let log = rig.log.lock().unwrap();
    let mixed: Vec<_> = log.steps.iter().filter(|s| s.len() == 2).collect();
    assert!(mixed.len() >= 10, "{:?}", log.steps);
    for step in &log.steps {
        assert!(step.iter().sum::<usize>() <= 64, "{step:?}");
    }
    drop(log);
    assert_eq!(rig.check(talker).ids, reference_reply(&ids(1, 8), 30));
    rig.check(long);
}

/// Whatever runs beside it, a seeded request gives the same tokens.
#[test]
fn batch_mates_change_nothing() {
    let ask = |seed| Ask {
        sampling: crate::sampler::SamplingParams {
            temperature: 0.9,
            seed,
            logit_bias: vec![(super::fake::END, -100.0)],
            ..Default::default()
        },
        ..Ask::greedy(20)
    };
    let a = prompt(&[&ids(1, 50)]);
    let mut alone = Rig::new(512, 128);
    let handle = alone.submit(&a, ask(7));
    alone.run();
    let expected = super::rig::collect(handle).ids;
    for mates in 1..8 {
        let mut rig = Rig::new(512, 128);
        let mut handles = Vec::new();
        for mate in 0..mates {
            let other = ids(50 + mate, 20 + 13 * mate as usize);
            handles.push(rig.submit(&prompt(&[&other]), ask(100 + mate)));
        }
        let handle = rig.submit(&a, ask(7));
        rig.run();
        assert!(rig.core.stats().batch_max > mates as usize);
        assert_eq!(super::rig::collect(handle).ids, expected, "{mates} mates");
    }
}

#[test]
fn a_stop_string_ends_the_reply_before_its_first_byte() {
    let a = ids(1, 20);
    let reply = reference_reply(&a, 6);
    let text: Vec<u8> = reply
        .iter()
        .flat_map(|id| [b'a' + *id as u8 - 1; 2])
        .collect();
    // From every byte of the reply, over token edges.
    for from in 0..text.len() - 3 {
        let mut rig = Rig::new(256, 16);
        let stop = text[from..from + 3].to_vec();
        let first = text.windows(3).position(|w| w == stop).unwrap();
        let handle = rig.submit(
            &prompt(&[&a]),
            Ask {
                stop: vec![b"zzz".to_vec(), stop],
                ..Ask::greedy(6)
            },
        );
        rig.run();
        let outcome = rig.check(handle);
        assert!(matches!(outcome.reason, Finish::StopString(1)));
        assert_eq!(outcome.text, &text[..first], "stop at {from}");
        assert_eq!(outcome.ids, &reply[..(first + 2) / 2 + 1]);
    }
}

#[test]
fn replies_end_at_the_limit_the_end_token_or_at_once() {
    let mut rig = Rig::new(256, 16);
    let a = ids(1, 20);
    let none = rig.answer(&prompt(&[&a]), 0);
    assert!(matches!(none.reason, Finish::Length));
    assert_eq!((none.ids.len(), none.report.computed), (0, 20));
    let long = rig.answer(&prompt(&[&a]), 200);
    assert!(matches!(long.reason, Finish::EndToken), "{:?}", long.reason);
    assert_eq!(long.ids, reference_reply(&a, 200));
    assert_eq!(
        long.text.len(),
        2 * (long.ids.len() - 1),
        "the end token has no text"
    );
    let short = rig.answer(&prompt(&[&a]), long.ids.len() - 1);
    assert!(matches!(short.reason, Finish::Length));
}

#[test]
fn a_prompt_of_empty_pieces_and_one_token_works() {
    let mut rig = Rig::new(256, 16);
    for _ in 0..2 {
        let outcome = rig.answer(&prompt(&[&[], &[5], &[]]), 2);
        assert_eq!(outcome.report.computed, 1);
    }
    let more = rig.answer(&prompt(&[&[], &[5], &[], &[6, 7]]), 2);
    assert!(more.report.reused >= 1);
}

/// Cancelled after any number of steps: blocks come back at once, the neighbour notices nothing,
/// and what was computed is still good.
#[test]
fn cancel_at_any_step() {
    for steps in 0..16 {
        for gone in [false, true] {
            let mut rig = Rig::new(512, 32);
            let a = prompt(&[&ids(1, 300)]);
            let neighbour = rig.submit(&prompt(&[&ids(2, 100)]), Ask::greedy(20));
            let mut handle = rig.submit(&a, Ask::greedy(9));
            (0..steps).for_each(|_| _ = rig.core.step());
            match gone {
                true => handle.events.close(),
                false => handle.cancel.store(true, Ordering::Relaxed),
            }
            rig.core.step();
            assert!(rig.core.stats().active <= 1, "ended within one step");
            rig.run();
            assert_eq!(rig.check(neighbour).ids, reference_reply(&ids(2, 100), 20));
            if !gone {
                let outcome = rig.check(handle);
                let whole = reference_reply(&ids(1, 300), 9);
                assert!(whole.starts_with(&outcome.ids));
            }
            let counts = rig.core.stats().blocks;
            assert_eq!(counts.leased, 0, "after {steps} steps");
            assert_eq!(rig.answer(&a, 9).ids, reference_reply(&ids(1, 300), 9));
        }
    }
}

#[test]
fn interactive_requests_go_before_background_ones() {
    use crate::request::Priority::{Background, Interactive};
    let mut rig = Rig::with_limits(
        256,
        16,
        crate::core::Limits {
            sequences_max: 1,
            chunk_tokens: 64,
        },
    );
    let mut ask = |seed, priority| {
        let ask = Ask {
            priority,
            ..Ask::greedy(2)
        };
        rig.submit(&prompt(&[&ids(seed, 30)]), ask).id
    };
    let order = [
        ask(1, Background),
        ask(2, Interactive),
        ask(3, Background),
        ask(4, Interactive),
    ];
    let waiting: Vec<u64> = rig.core.waiting.iter().map(|s| s.id).collect();
    assert_eq!(waiting, [order[1], order[3], order[0], order[2]]);
}

#[test]
fn layers_are_reported_as_they_were_given() {
    let mut rig = Rig::new(256, 16);
    let rules = Piece::new("rules", Layer::Instructions, ids(1, 12), b"rules");
    let turn = Piece::new("turn", Layer::Turn, ids(2, 5), b"turn");
    let outcome = rig.answer(&Prompt::new(vec![rules, turn]).unwrap(), 1);
    let layers: Vec<_> = outcome.report.pieces.iter().map(|p| p.layer).collect();
    assert_eq!(layers, [Layer::Instructions, Layer::Turn]);
}

/// Each step takes the long prompt on by most of a chunk, and the short one by a block.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut rig = Rig::new(2048, 128);
    let long = rig.submit(&prompt(&[&ids(1, 1500)]), Ask::greedy(2));
    let short = rig.submit(&prompt(&[&ids(2, 60)]), Ask::greedy(2));
    // 60 tokens are two blocks; then one more step for the second token.
    (0..3).for_each(|_| _ = rig.core.step());
    assert_eq!(rig.check(short).ids, reference_reply(&ids(2, 60), 2));
    let steps = rig.log.lock().unwrap().steps.clone();
    assert_eq!(steps[0], [32, 32], "a chunk is 64");
    rig.run();
    assert_eq!(rig.check(long).ids, reference_reply(&ids(1, 1500), 2));
}
