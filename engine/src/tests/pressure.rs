//! When blocks run out, when a step fails, and what timelines hold.

use super::fake::{Fault, reference_reply};
use super::rig::{Ask, Rig, blocks, collect, ids, layered_piece, prompt};
use crate::error::Error;
use crate::keys::Salt;
use crate::piece::Layer;
use crate::prompt::Prompt;
use crate::request::Finish;

#[test]
fn old_prefixes_go_first_and_from_their_ends() {
    // Room for three prompts of 3 blocks and the copy.
    let mut rig = Rig::new(256, 10);
    let (a, b, c, d) = (ids(1, 90), ids(2, 90), ids(3, 90), ids(4, 90));
    for p in [&a, &b, &c] {
        rig.answer(&prompt(&[p]), 1);
    }
    rig.answer(&prompt(&[&a]), 1);
    let first = rig.answer(&prompt(&[&d]), 1);
    assert_eq!(first.report.reused, 0);
    // `a` was used again, so `b` was the oldest; `c` is whole.
    assert_eq!(rig.answer(&prompt(&[&c]), 1).report.computed, 1);
    assert_eq!(rig.answer(&prompt(&[&a]), 1).report.computed, 1);
    let part = rig.answer(&prompt(&[&b]), 1).report;
    assert!(part.computed > 1, "{part:?}");
    assert!(rig.core.stats().evicted_blocks > 0);
}

/// Replies that together outgrow the pool: the youngest waits, none is wrong, none is cut.
#[test]
fn replies_that_outgrow_the_pool_all_finish() {
    let mut rig = Rig::new(480, 24);
    let asks: Vec<_> = (0..4).map(|i| (ids(20 + i, 64), 300)).collect();
    let handles: Vec<_> = asks
        .iter()
        .map(|(p, max)| {
            let mut ask = Ask::greedy(*max);
            ask.sampling.logit_bias = vec![(super::fake::END, -100.0)];
            rig.submit(&prompt(&[p]), ask)
        })
        .collect();
    rig.run();
    assert!(rig.core.stats().preemptions > 0, "the pool was short");
    let mut again = 0;
    for handle in handles {
        let outcome = collect(handle);
        assert!(
            matches!(outcome.reason, Finish::Length),
            "{:?}",
            outcome.reason
        );
        assert_eq!(outcome.ids.len(), 300);
        again += outcome.report.between.len();
        assert_eq!(outcome.report.decode_rows, 299);
    }
    assert!(again > 0);
    assert_eq!(rig.core.stats().blocks.leased, 0);
}

/// The same, greedy and checked row for row.
#[test]
fn a_sequence_that_was_sent_back_goes_on_as_if_it_had_not_been() {
    let mut rig = Rig::new(300, 11);
    let prompts: Vec<_> = (0..3).map(|i| ids(70 + i, 90)).collect();
    let handles: Vec<_> = prompts
        .iter()
        .map(|p| rig.submit(&prompt(&[p]), Ask::greedy(100)))
        .collect();
    rig.run();
    for (handle, p) in handles.into_iter().zip(&prompts) {
        let outcome = rig.check(handle);
        assert_eq!(outcome.ids, reference_reply(p, 100));
    }
}

#[test]
fn a_timeline_is_not_evicted_and_a_fork_costs_no_block() {
    let mut rig = Rig::new(256, 14);
    let a = ids(1, 100);
    rig.core.open_timeline(1, &Salt::default());
    let mut done = rig.sync(1, &prompt(&[&a]));
    rig.run();
    let report = done.try_recv().expect("done").expect("no error");
    assert_eq!((report.computed, report.generated), (100, 0));
    assert_eq!(rig.core.stats().blocks.leased, blocks(100));

    rig.core.fork_timeline(1, 2);
    assert_eq!(rig.core.stats().blocks.leased, blocks(100));
    rig.core.close_timeline(1);
    for seed in 30..40 {
        rig.answer(&prompt(&[&ids(seed, 120)]), 1);
    }
    let children: Vec<_> = (0..3)
        .map(|i| rig.submit(&prompt(&[&a, &ids(60 + i, 4)]), Ask::greedy(2)))
        .collect();
    rig.run();
    for child in children {
        let report = rig.check(child).report;
        assert_eq!((report.reused, report.computed), (100, 4));
    }

    let mut done = rig.sync(2, &prompt(&[&a]));
    rig.run();
    assert_eq!(
        done.try_recv().expect("done").expect("no error").computed,
        0
    );
    rig.core.close_timeline(2);
    assert_eq!(rig.core.stats().blocks.leased, 0);
}

#[test]
fn a_timeline_follows_the_reply_that_continues_it() {
    let mut rig = Rig::new(256, 12);
    let a = ids(1, 40);
    rig.core.open_timeline(1, &Salt::default());
    let handle = rig.submit(
        &prompt(&[&a]),
        Ask {
            timeline: Some(1),
            ..Ask::greedy(30)
        },
    );
    rig.run();
    let reply = rig.check(handle).ids;
    for seed in 30..40 {
        rig.answer(&prompt(&[&ids(seed, 120)]), 1);
    }
    let next = rig.answer(&prompt(&[&a, &reply, &[3, 4]]), 1);
    assert_eq!(next.report.computed, 3);
    rig.core.close_timeline(1);
}

/// What timelines hold is kept as long as it can be, and no request fails because of it.
#[test]
fn timelines_let_go_before_a_request_fails() {
    let mut rig = Rig::new(256, 9);
    rig.core.open_timeline(1, &Salt::default());
    let _done = rig.sync(1, &prompt(&[&ids(1, 150)]));
    rig.run();
    let outcome = rig.answer(&prompt(&[&ids(2, 140)]), 2);
    assert_eq!(outcome.ids, reference_reply(&ids(2, 140), 2));
    assert_eq!(rig.core.stats().timelines_given_up, 1);
    // The timeline goes on, from what the cache kept.
    let ask = Ask {
        timeline: Some(1),
        ..Ask::greedy(2)
    };
    let handle = rig.submit(&prompt(&[&ids(1, 150), &[5]]), ask);
    rig.run();
    let report = rig.check(handle).report;
    assert!(report.computed > 1 && report.reused > 0, "{report:?}");
    assert_eq!(rig.core.stats().blocks.leased, blocks(152));
}

/// Of a family of forks the children let go first, the one unused for longest before the others, and the one
/// whose tool runs last; the parent keeps what all of them begin with.
#[test]
fn forks_let_go_before_what_they_were_forked_from() {
    // Blocks in the pool, then how many of the brief's tokens each child still has.
    for (pool, left) in [(15, [64, 0, 64]), (13, [64, 0, 0])] {
        let mut rig = Rig::new(256, pool);
        let a = ids(1, 96);
        let child_prompt = |child: u64| prompt(&[&a, &ids(40 + child, 64)]);
        rig.core.open_timeline(1, &Salt::default());
        let _done = rig.sync(1, &prompt(&[&a]));
        rig.run();
        for child in [2, 3, 4] {
            rig.core.fork_timeline(1, child);
            let _done = rig.sync(child, &child_prompt(child));
            rig.run();
        }
        rig.core.hold_timeline(2, true);
        assert_eq!(rig.core.stats().blocks.leased, 3 + 3 * 2);
        assert_eq!(rig.core.stats().blocks.free, pool - 9);

        assert_eq!(
            rig.answer(&prompt(&[&ids(70, 250)]), 1).report.computed,
            250
        );
        let kept = [2, 3, 4].map(|child| {
            let reused = rig.core.plan(child_prompt(child), &Salt::default()).reused;
            // All but the last token, which is computed for its logits.
            (reused + 1).saturating_sub(96) / 32 * 32
        });
        assert_eq!(kept, left, "in {pool} blocks");
        let parent = rig.core.plan(prompt(&[&a, &[1]]), &Salt::default());
        assert_eq!(parent.reused, 96);
    }
}

/// Prompts that take turns and do not fit together: in the order of last use each would be lost just before
/// it is needed. Their rhythm tells, and what is kept comes close to what can be: of eight where five fit,
/// four in seven.
#[test]
fn turns_that_do_not_fit_do_not_thrash() {
    // Room for five prompts of four blocks, and one for a copy.
    let mut rig = Rig::new(256, 21);
    let prompts: Vec<_> = (0..8).map(|i| prompt(&[&ids(200 + i, 120)])).collect();
    let mut reused = Vec::new();
    for _ in 0..6 {
        let round = prompts.iter().map(|p| rig.answer(p, 1).report.reused);
        reused.push(round.sum::<usize>());
    }
    let all = prompts.len() * 119;
    assert!(
        reused[2..].iter().all(|round| *round > all * 2 / 5),
        "{reused:?} of {all}"
    );
}

/// What other conversations begin with outlives what only one has said.
#[test]
fn instructions_outlive_history() {
    let mut rig = Rig::new(256, 13);
    let layered = |rules: u64, said: u64| {
        let pieces = vec![
            layered_piece("rules", Layer::Instructions, &ids(rules, 64)),
            layered_piece("said", Layer::History, &ids(said, 64)),
        ];
        Prompt::new(pieces).expect("in order")
    };
    rig.answer(&layered(1, 2), 1);
    // Five times as much history as there is room for.
    for seed in 10..20 {
        rig.answer(&prompt(&[&ids(seed, 120)]), 1);
    }
    let report = rig.answer(&layered(1, 3), 1).report;
    assert_eq!((report.reused, report.computed), (64, 64));
    assert!(rig.core.stats().evicted_blocks > 20);
}

/// A forward pass that fails or panics ends the sequences that were in it. Those that wait, and
/// those that come later, are answered; no block is lost; no count is believed that is wrong.
#[test]
fn a_step_that_fails_ends_its_own_sequences_only() {
    for fault in [Fault::Error, Fault::Panic, Fault::Miscount] {
        for at_step in 0..6 {
            let limits = crate::core::Limits {
                sequences_max: 2,
                chunk_tokens: 64,
            };
            let mut rig = Rig::with_limits(256, 40, limits);
            let prompts = [ids(1, 130), ids(2, 50), ids(3, 70)];
            let handles: Vec<_> = prompts
                .iter()
                .map(|p| rig.submit(&prompt(&[p]), Ask::greedy(8)))
                .collect();
            (0..at_step).for_each(|_| _ = rig.core.step());
            rig.log.lock().unwrap().next_fault = Some(fault);
            rig.run();
            let mut failed = 0;
            for (handle, p) in handles.into_iter().zip(&prompts) {
                let outcome = rig.check(handle);
                let whole = reference_reply(p, 8);
                match outcome.reason {
                    Finish::Error(error) => {
                        failed += 1;
                        let bug = !matches!(fault, Fault::Error);
                        assert_eq!(matches!(error, Error::Bug(_)), bug, "{error}");
                        assert!(whole.starts_with(&outcome.ids));
                    }
                    _ => assert_eq!(outcome.ids, whole),
                }
            }
            assert!((1..=2).contains(&failed), "{failed} failed");
            assert_eq!(rig.core.stats().failed_steps, 1);
            assert_eq!(rig.core.stats().blocks.leased, 0);
            for p in &prompts {
                assert_eq!(rig.answer(&prompt(&[p]), 8).ids, reference_reply(p, 8));
            }
        }
    }
}

/// What is cached is what was computed: each resident position holds what a cold run puts there.
#[test]
fn a_leaf_that_grows_keeps_its_block_and_siblings_their_own() {
    let mut rig = Rig::new(512, 64);
    let a = ids(1, 200);
    for end in [10, 20, 31, 32, 40, 64, 65, 100, 200] {
        rig.answer(&prompt(&[&a[..end]]), 0);
        let mut b = a[..end].to_vec();
        b[end - 1] = b[end - 1] % 20 + 2;
        rig.answer(&prompt(&[&b]), 0);
        super::simulation::check_resident(&rig);
    }
}
