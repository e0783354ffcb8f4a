//! Layers with a window: what is passed gives way, and a prompt is gone on from wherever a window is left.

use super::files::MemoryFiles;
use super::rig::{Ask, Rig, Window, ids, layered_piece, prompt};
use crate::core::Limits;
use crate::piece::Layer;
use crate::prompt::Prompt;
use crate::report::{Between, Source, Why};
use std::sync::Arc;

/// Rows of a step; the window; the parts that one sequence needs.
const CHUNK: usize = 64;
const WINDOW: usize = 50;
const LEAST: usize = (WINDOW + CHUNK).div_ceil(32) + 3;

fn rig(parts: usize) -> Rig {
    let limits = Limits {
        sequences_max: 8,
        chunk_tokens: CHUNK,
    };
    let window = Window {
        tokens: WINDOW,
        parts,
    };
    Rig::with_window(1024, 128, limits, Some(window))
}

fn given_up(rig: &Rig) -> u64 {
    rig.core
        .stats()
        .windows
        .expect("layers with a window")
        .given_up
}

#[test]
fn while_there_is_room_everything_is_found_to_the_token() {
    for length in [1, 31, 32, 33, 49, 50, 51, 81, 82, 83, 200] {
        let mut rig = rig(128);
        let a = ids(length as u64, length);
        let cold = rig.answer(&prompt(&[&a]), 40);
        assert_eq!(cold.ids, rig.reference.reply(&a, 40));
        let warm = rig.answer(&prompt(&[&a]), 40);
        assert_eq!((warm.report.computed, &warm.ids), (1, &cold.ids));
        let more = ids(1000 + length as u64, 32);
        let appended = rig.answer(&prompt(&[&a, &cold.ids, &more]), 3);
        // The last token of the reply was never put through the model.
        assert_eq!(appended.report.computed, 33, "behind {length}");
        for at in (0..length).step_by(7) {
            let mut edited = a.clone();
            edited[at] = 1 + (edited[at] + 7) % 20;
            let edited = rig.answer(&prompt(&[&edited]), 3);
            assert_eq!(edited.report.computed, length - at, "edited at {at}");
            assert!(edited.report.between.is_empty());
        }
        assert_eq!(given_up(&rig), 0);
    }
}

/// The pool holds the whole prompt in the layers that see all, and 13 of its blocks in those with a window.
#[test]
fn what_is_passed_gives_way_and_the_reason_names_the_layers() {
    let mut rig = rig(13);
    let a = ids(1, 900);
    let cold = rig.answer(&prompt(&[&a[..500], &a[500..]]), 4);
    assert_eq!(cold.ids, rig.reference.reply(&a, 4));
    assert!(given_up(&rig) > 0, "13 blocks do not hold 900 positions");
    // The end is there.
    assert_eq!(rig.answer(&prompt(&[&a]), 4).report.computed, 1);
    // Within what is left an edit costs what it costs.
    let mut edited = a.clone();
    edited[850] = 1 + (edited[850] + 7) % 20;
    let near = rig.answer(&prompt(&[&edited]), 4);
    assert_eq!((near.report.computed, near.report.between), (50, vec![]));
    // Far before it there is nothing to go on from, though the other layers have it all.
    edited[400] = 1 + (edited[400] + 7) % 20;
    let far = rig.answer(&prompt(&[&edited]), 4);
    assert_eq!((far.plan.computed, far.report.computed), (900, 900));
    let (piece, broken) = far.report.broken().expect("broken");
    assert_eq!((broken.at_token, broken.why), (0, Why::WindowEvicted));
    assert_eq!(&*piece.name, "piece 0");
    assert_eq!(rig.core.stats().misses_by_why[1], (Why::WindowEvicted, 1));
    assert_eq!(far.ids, rig.reference.reply(&edited, 4));
}

/// With room for one sequence only, many take turns, and none waits for ever.
#[test]
fn the_least_that_one_sequence_needs_is_enough_for_many() {
    let mut rig = rig(LEAST);
    let texts: Vec<_> = (0..6).map(|i| ids(i, 150 + 20 * i as usize)).collect();
    let asked = texts.iter().map(|text| {
        let prompt = prompt(&[text]);
        rig.submit(&prompt, Ask::greedy(20))
    });
    let handles: Vec<_> = asked.collect();
    rig.run();
    for (handle, text) in handles.into_iter().zip(&texts) {
        let outcome = rig.check(handle);
        assert_eq!(outcome.ids, rig.reference.reply(text, 20));
    }
}

/// What prompts share ends where others part from them: its last window outlives what was passed later.
#[test]
fn the_end_of_what_is_shared_is_kept() {
    let mut rig = rig(20);
    let rules = ids(1, 200);
    let conversation = |seed: u64, length: usize| {
        let pieces = vec![
            layered_piece("rules", Layer::Instructions, &rules),
            layered_piece("talk", Layer::History, &ids(seed, length)),
        ];
        Prompt::new(pieces).expect("one layer after the other")
    };
    rig.answer(&conversation(2, 700), 2);
    assert!(given_up(&rig) > 0);
    let other = rig.answer(&conversation(3, 90), 2);
    assert_eq!((other.report.reused, other.report.computed), (200, 90));
}

#[test]
fn plans_and_timelines_keep_the_window_they_go_on_from() {
    let mut rig = rig(LEAST + 4);
    let a = ids(1, 300);
    let timeline = rig.new_id();
    rig.core.open_timeline(timeline, &Default::default());
    let synced = rig.sync(timeline, &prompt(&[&a]));
    rig.run();
    drop(synced);
    rig.answer(&prompt(&[&ids(2, 90)]), 2);
    let goes_on = prompt(&[&a, &ids(3, 10)]);
    let plan = rig.core.plan(goes_on.clone(), &Default::default());
    assert_eq!(plan.computed, 10);
    // Another passes by and takes what it can.
    rig.core.close_timeline(timeline);
    rig.answer(&prompt(&[&ids(4, 90)]), 2);
    let outcome = rig.answer(&goes_on, 2);
    assert_eq!(
        (outcome.report.computed, outcome.report.between),
        (10, vec![])
    );
}

/// Ends an engine as a program does that is told to.
fn stop(mut rig: Rig) {
    rig.core.shut_down(&crate::Error::Stopped);
}

fn restarted(files: &Arc<MemoryFiles>, parts: usize) -> Rig {
    let mut rig = rig(parts);
    assert!(rig.try_disk(files, 1 << 30));
    rig
}

#[test]
fn the_disk_keeps_the_windows_too() {
    let files = Arc::default();
    let a = ids(1, 400);
    let mut rig = restarted(&files, 128);
    let cold = rig.answer(&prompt(&[&a]), 4);
    stop(rig);
    // With fewer parts than the prefix has blocks: only the last window is loaded.
    for parts in [LEAST, 128] {
        let mut rig = restarted(&files, parts);
        let warm = rig.answer(&prompt(&[&a]), 4);
        assert_eq!(
            warm.report.sources,
            [(Source::Disk, 399), (Source::Computed, 1)]
        );
        assert_eq!((&warm.ids, warm.report.between), (&cold.ids, vec![]));
        let windows = rig.core.stats().windows.unwrap();
        assert!(windows.total - windows.free <= 4, "{windows:?}");
        // Anything before it comes from disk again, in the layers with a window.
        let mut edited = a.clone();
        edited[200] = 1 + (edited[200] + parts as u32) % 20;
        let edited = rig.answer(&prompt(&[&edited]), 4);
        assert_eq!(edited.report.computed, 200);
        assert!(
            edited
                .report
                .sources
                .iter()
                .any(|(source, _)| *source == Source::Disk)
        );
    }
}

/// What the memory gave up before it was written is not on disk, and is not counted on.
#[test]
fn windows_that_were_never_written_are_not_counted_on() {
    let files = Arc::default();
    let a = ids(1, 900);
    let mut rig = restarted(&files, 10);
    let cold = rig.answer(&prompt(&[&a]), 4);
    stop(rig);
    let mut rig = restarted(&files, 128);
    let warm = rig.answer(&prompt(&[&a]), 4);
    assert_eq!((warm.report.computed, &warm.ids), (1, &cold.ids));
    let mut edited = a.clone();
    edited[300] = 1 + (edited[300] + 7) % 20;
    let far = rig.answer(&prompt(&[&edited]), 4);
    assert_eq!(far.plan.computed, far.report.computed);
    assert!(far.report.computed > 600, "{:?}", far.report.sources);
    assert_eq!(far.ids, rig.reference.reply(&edited, 4));
}

/// A part on disk that is spoilt: what was loaded before it may lack its window, so all is looked up anew.
#[test]
fn a_spoilt_window_on_disk_costs_time_only() {
    let files: Arc<MemoryFiles> = Arc::default();
    let a = ids(1, 400);
    let mut rig = restarted(&files, 128);
    let cold = rig.answer(&prompt(&[&a]), 4);
    stop(rig);
    for name in files.names() {
        files.change(&name, |bytes| {
            let at = bytes.len() - 3000;
            bytes[at] ^= 1;
        });
    }
    let mut rig = restarted(&files, 128);
    let warm = rig.answer(&prompt(&[&a]), 4);
    assert_eq!(warm.ids, cold.ids);
    assert!(warm.report.computed > 1);
    let lost = |between: &Between| matches!(between, Between::Unreadable { .. });
    assert!(
        warm.report.between.iter().any(lost),
        "{:?}",
        warm.report.between
    );
}

/// Conversations that take turns: the layers that see all hold them all, those with a window the ends of five.
#[test]
fn ends_that_do_not_fit_do_not_thrash() {
    const CONVERSATIONS: usize = 8;
    // Each end takes three blocks or four, and one that is computed needs more beside them.
    let mut rig = rig(LEAST + 18);
    let texts: Vec<_> = (0..CONVERSATIONS as u64).map(|i| ids(i, 120)).collect();
    let mut reused = Vec::new();
    for _ in 0..8 {
        let asked = texts.iter().map(|text| {
            let report = rig.answer(&prompt(&[text]), 1).report;
            usize::from(report.reused > 100)
        });
        reused.push(asked.sum::<usize>());
    }
    let later: usize = reused[3..].iter().sum();
    assert!(later >= 10, "{reused:?} of {CONVERSATIONS} in a round");
}

/// A block that a plan counts on is replaced in the tree by one from disk that lacks its part, and takes that
/// one's place again when its own sequence has filled it.
#[test]
fn a_part_changes_blocks_under_a_plan_that_holds_it() {
    let files = Arc::default();
    let start = ids(1, 42);
    let mut rig = restarted(&files, 128);
    let reply = rig.reference.reply(&start, 60);
    let whole = [&start[..], &reply, &ids(2, 300)].concat();
    let cold = rig.answer(&prompt(&[&whole]), 4);
    stop(rig);

    let mut rig = restarted(&files, 128);
    let first = rig.submit(&prompt(&[&start]), Ask::greedy(60));
    (0..4).for_each(|_| _ = rig.core.step());
    let plan = rig.core.plan(prompt(&[&start]), &Default::default());
    let second = rig.submit(&prompt(&[&whole]), Ask::greedy(4));
    while !rig.core.is_idle() {
        rig.core.step();
        rig.core.audit().expect("the parts add up");
    }
    assert_eq!(rig.check(first).ids, reply);
    assert_eq!(rig.check(second).ids, cold.ids);
    let again = rig.answer(&prompt(&[&start]), 4);
    assert_eq!(again.report.computed, plan.computed);
    rig.clock.advance_ms(1 << 20);
    rig.core.expire();
    rig.core.audit().expect("the parts add up");
}

/// What was written without its window is written again once the window is there.
#[test]
fn the_disk_learns_what_it_lacked() {
    let files = Arc::default();
    let a = ids(1, 900);
    let computed_of_an_edit = |rig: &mut Rig, seed: u32| {
        let mut edited = a.clone();
        edited[300] = 1 + (edited[300] + seed) % 20;
        rig.answer(&prompt(&[&edited]), 1).report.computed
    };
    let mut small = restarted(&files, LEAST);
    small.answer(&prompt(&[&a]), 1);
    stop(small);
    // With room for it all, but nothing to go on from so far back: computed, and written this time.
    let mut large = restarted(&files, 128);
    assert!(computed_of_an_edit(&mut large, 5) > 600);
    large.write_all();
    stop(large);
    let mut again = restarted(&files, 128);
    assert_eq!(computed_of_an_edit(&mut again, 11), 600);
}
