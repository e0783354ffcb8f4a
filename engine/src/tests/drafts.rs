//! Guessed tokens change how many steps a reply takes, and nothing else.

use super::rig::{Ask, Outcome, Rig, collect, ids, prompt};
use crate::sampler::SamplingParams;

const MAX: usize = 90;

fn ask(no_drafts: bool, sampling: SamplingParams) -> Ask {
    Ask {
        no_drafts,
        sampling,
        ..Ask::greedy(MAX)
    }
}

/// The replies to `prompts`, sent at once, and the steps they took.
fn replies(
    prompts: &[Vec<u32>],
    no_drafts: bool,
    sampling: &SamplingParams,
) -> (Vec<Outcome>, usize) {
    let mut rig = Rig::new(512, 128);
    rig.log.lock().unwrap().circles = true;
    let handles: Vec<_> = prompts
        .iter()
        .map(|ids| rig.submit(&prompt(&[ids]), ask(no_drafts, sampling.clone())))
        .collect();
    rig.run();
    let log = rig.log.lock().unwrap();
    assert_eq!(rig.core.stats().rows_forwarded as usize, log.rows);
    let steps = log.steps.len();
    drop(log);
    (handles.into_iter().map(collect).collect(), steps)
}

#[test]
fn a_reply_that_repeats_itself_takes_fewer_steps_and_is_the_same() {
    let seeded = SamplingParams {
        temperature: 1.5,
        seed: 7,
        ..SamplingParams::default()
    };
    for sampling in [SamplingParams::greedy(), seeded] {
        for count in [1, 3] {
            let prompts: Vec<_> = (0..count)
                .map(|i| ids(70 + i, 20 + 11 * i as usize))
                .collect();
            let (alone, alone_steps) = replies(&prompts, true, &sampling);
            let (drafted, steps) = replies(&prompts, false, &sampling);
            for (alone, drafted) in alone.iter().zip(&drafted) {
                assert_eq!(alone.ids, drafted.ids);
                assert_eq!(alone.text, drafted.text);
                assert_eq!((alone.report.drafted, alone.report.drafts_taken), (0, 0));
                let report = &drafted.report;
                assert_eq!(report.decode_rows, alone.report.decode_rows);
                assert!(report.drafts_taken > MAX / 3, "{report:?}");
            }
            assert!(3 * steps < 2 * alone_steps, "{steps} of {alone_steps}");
        }
    }
}

/// Eight rows are as many as a step takes at the price of little more than one.
#[test]
fn a_full_step_guesses_nothing() {
    let mut rig = Rig::new(512, 128);
    rig.log.lock().unwrap().circles = true;
    let mut submit = |i| {
        let ask = ask(false, SamplingParams::greedy());
        rig.submit(&prompt(&[&ids(i, 20)]), ask)
    };
    // A request whose reader has gone is not answered.
    let _readers: Vec<_> = (0..8).map(&mut submit).collect();
    rig.run();
    let log = rig.log.lock().unwrap();
    // The other steps hold prompts, or fewer sequences.
    let full = log.steps.iter().filter(|step| **step == [1; 8]).count();
    assert!(full > MAX / 2, "{:?}", log.steps);
}

/// Where a reply ends does not depend on what was guessed beyond its end.
#[test]
fn a_reply_ends_where_it_would_without_guesses() {
    let greedy = SamplingParams::greedy();
    for max in [1, 2, 3, 4, 33] {
        // Tokens go round "aa".."ee".
        for stop in [None, Some(b"ddee".to_vec()), Some(b"ea".to_vec())] {
            let reply = |no_drafts| {
                let mut rig = Rig::new(512, 64);
                rig.log.lock().unwrap().circles = true;
                let ask = Ask {
                    max,
                    stop: stop.iter().cloned().collect(),
                    ..ask(no_drafts, greedy.clone())
                };
                // The prompt has gone round already, so the first step guesses.
                let handle = rig.submit(&prompt(&[&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]]), ask);
                rig.run();
                let counts = rig.core.stats().blocks;
                assert_eq!(counts.leased, 0);
                collect(handle)
            };
            let (alone, drafted) = (reply(true), reply(false));
            assert_eq!((&alone.ids, &alone.text), (&drafted.ids, &drafted.text));
            assert_eq!(alone.reason.name(), drafted.reason.name(), "{max} {stop:?}");
            assert!(max < 3 || drafted.report.drafts_taken > 0);
        }
    }
}

/// Sequences that have to give up their blocks lose no token and gain none.
#[test]
fn guesses_survive_a_lack_of_blocks() {
    let replies = |no_drafts| {
        let mut rig = Rig::new(256, 10);
        rig.log.lock().unwrap().circles = true;
        let mut submit = |i: u64| {
            let ask = ask(no_drafts, SamplingParams::greedy());
            rig.submit(&prompt(&[&ids(i, 40 + 9 * i as usize)]), ask)
        };
        let handles: Vec<_> = (0..3).map(&mut submit).collect();
        rig.run();
        let stats = rig.core.stats();
        let outcomes: Vec<_> = handles.into_iter().map(collect).collect();
        (outcomes, stats)
    };
    let ((alone, _), (drafted, stats)) = (replies(true), replies(false));
    assert!(
        stats.drafts_taken > 0 && stats.preemptions + stats.evicted_blocks > 0,
        "{stats:?}"
    );
    for (alone, drafted) in alone.iter().zip(&drafted) {
        assert_eq!(alone.ids, drafted.ids);
    }
}
