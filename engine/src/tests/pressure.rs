//! When blocks run out, when a step fails, and what timelines hold.

use super::fake::{Fault, reference_reply};
use super::rig::{Ask, Rig, blocks, collect, ids, prompt};
use crate::error::{Blame, Error};
use crate::keys::Salt;
use crate::report::Between;
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

#[test]
fn a_pool_that_timelines_hold_is_full_and_says_so() {
    let mut rig = Rig::new(256, 9);
    rig.core.open_timeline(1, &Salt::default());
    let _done = rig.sync(1, &prompt(&[&ids(1, 150)]));
    rig.run();
    let outcome = rig.answer(&prompt(&[&ids(2, 140)]), 2);
    let Finish::Error(error) = outcome.reason else {
        panic!("{:?}", outcome.reason)
    };
    assert_eq!(error.blame(), Blame::Device);
    assert_eq!(
        error.to_string(),
        "KV pool full: need 5 blocks, have 4 of 9 (5 pinned by timelines); raise --kv-memory, \
         lower --context, or drop timelines"
    );
    assert_eq!(
        outcome.report.between,
        [Between::Unfinished { tokens: 140 }]
    );
    // Smaller ones still run; when the timeline goes, so does the error.
    rig.answer(&prompt(&[&ids(3, 60)]), 2);
    rig.core.close_timeline(1);
    assert_eq!(rig.answer(&prompt(&[&ids(2, 140)]), 2).ids.len(), 2);
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
