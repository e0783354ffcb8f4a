//! The disk tier: warm after a restart, never wrong, never over its budget.

use super::files::MemoryFiles;
use super::rig::{Ask, Outcome, Rig, ids, prompt};
use crate::keys::Salt;
use crate::report::{Between, Source};
use crate::request::Finish;
use std::sync::Arc;

const PLENTY: u64 = 1 << 30;

fn files() -> Arc<MemoryFiles> {
    Arc::default()
}

/// An engine that has just been started over what is in `files`.
fn started(files: &Arc<MemoryFiles>) -> Rig {
    Rig::with_disk(512, 64, files, PLENTY)
}

/// Answers in an engine of its own, which is stopped properly afterwards.
fn answer(files: &Arc<MemoryFiles>, ids: &[u32], max: usize) -> Outcome {
    let mut rig = started(files);
    let outcome = rig.answer(&prompt(&[ids]), max);
    rig.core.shut_down(&crate::Error::Stopped);
    drop(rig);
    outcome
}

#[test]
fn the_first_call_after_a_restart_computes_one_token() {
    for length in [1, 2, 31, 32, 33, 64, 65, 100, 256, 300] {
        let files = files();
        let text = ids(length as u64, length);
        let cold = answer(&files, &text, 5);
        assert_eq!(cold.report.computed, length);
        let warm = answer(&files, &text, 5);
        assert_eq!((warm.plan.computed, warm.report.computed), (1, 1));
        assert_eq!(warm.ids, cold.ids);
        assert!(warm.report.between.is_empty(), "{:?}", warm.report.between);
        let from_disk = (Source::Disk, length - 1);
        match length {
            1 => assert_eq!(warm.report.sources, [(Source::Computed, 1)]),
            _ => assert_eq!(warm.report.sources, [from_disk, (Source::Computed, 1)]),
        }
        assert_eq!(warm.plan.sources, warm.report.sources);
    }
}

/// What the reply said is kept too, and an edit at n of p computes p - n.
#[test]
fn conversations_go_on_and_edits_are_found_to_the_token() {
    let files = files();
    let text = ids(1, 150);
    let first = answer(&files, &text, 40);
    let said = [text.clone(), first.ids.clone(), ids(2, 20)].concat();
    let next = answer(&files, &said, 3);
    // The last token of the reply was never put through the model.
    assert_eq!(next.report.computed, 21);
    for at in [0, 1, 31, 32, 40, 95, 96, 149] {
        let mut edited = text.clone();
        edited[at] = 1 + edited[at] % 20;
        let outcome = answer(&files, &edited, 3);
        assert_eq!(outcome.report.computed, 150 - at, "edited at {at}");
        assert_eq!(outcome.plan.reused, at);
    }
}

#[test]
fn memory_and_disk_together_hold_a_prefix_once() {
    let files = files();
    let text = ids(3, 320);
    answer(&files, &text[..200], 1);
    let bytes = files.bytes();
    let mut rig = started(&files);
    // The beginning comes to memory, the rest of the first prompt stays on disk.
    let part = rig.answer(&prompt(&[&text[..100]]), 1);
    assert_eq!(part.report.computed, 1);
    let whole = rig.answer(&prompt(&[&text]), 1);
    assert_eq!(whole.report.computed, 120);
    let sources = [
        (Source::Memory, 96),
        (Source::Disk, 104),
        (Source::Computed, 120),
    ];
    assert_eq!(whole.report.sources, sources);
    rig.write_all();
    let disk = rig.core.stats().disk.expect("a disk");
    let more = disk.bytes_written;
    assert_eq!(files.bytes(), disk.bytes);
    assert!(
        more < bytes,
        "120 tokens cost less than 200: {more} {bytes}"
    );
    // In other pieces, the same ids are the same blocks.
    let cut = prompt(&[&text[..7], &text[7..290], &text[290..]]);
    let mut again = started(&files);
    assert_eq!(again.answer(&cut, 1).report.computed, 1);
}

#[test]
fn namespaces_do_not_share_what_is_on_disk() {
    let files = files();
    let text = prompt(&[&ids(4, 100)]);
    let ask = |salt: &str| Ask {
        salt: Salt::new(salt),
        ..Ask::greedy(1)
    };
    for (salt, computed) in [("a", 100), ("b", 100), ("a", 1), ("", 100), ("b", 1)] {
        let mut rig = started(&files);
        let handle = rig.submit(&text, ask(salt));
        rig.run();
        assert_eq!(rig.check(handle).report.computed, computed, "{salt:?}");
    }
}

/// A file that was tampered with, cut, exchanged or is not ours costs time and nothing else.
#[test]
fn attacked_files_never_change_an_answer() {
    type Attack = fn(&MemoryFiles, &str, usize);
    let attacks: &[(&str, Attack)] = &[
        ("truncated", |files, name, i| {
            files.change(name, |bytes| bytes.truncate(bytes.len() * (i % 7) / 7));
        }),
        ("extended", |files, name, _| {
            files.change(name, |bytes| bytes.extend([0; 4096]));
        }),
        ("a bit of the header", |files, name, i| {
            files.change(name, |bytes| bytes[(i * 37) % 112] ^= 1 << (i % 8));
        }),
        ("a bit of an id or a sum", |files, name, i| {
            files.change(name, |bytes| bytes[128 + i % 100] ^= 1 << (i % 8));
        }),
        ("a bit of a block", |files, name, i| {
            files.change(name, |bytes| {
                let at = 4096 + (i * 977) % (bytes.len() - 4096);
                bytes[at] ^= 1 << (i % 8);
            });
        }),
        ("huge lengths", |files, name, i| {
            files.change(name, |bytes| bytes[12 + i % 16..][..4].fill(0xff));
        }),
        ("blocks exchanged", |files, name, _| {
            files.change(name, |bytes| bytes[4096..].rotate_left(2048));
        }),
        ("emptied", |files, name, _| files.change(name, Vec::clear)),
        ("noise", |files, name, i| {
            files.change(name, |bytes| bytes.fill(i as u8));
        }),
        ("another version", |files, name, _| {
            files.change(name, |bytes| bytes[8] = 77);
        }),
    ];
    let (a, b) = (ids(5, 150), ids(6, 100));
    for (what, attack) in attacks {
        for i in 0..8 {
            let files = files();
            answer(&files, &a, 5);
            answer(&files, &b, 5);
            let names = files.names();
            attack(&files, &names[i % names.len()], i);
            // `answer` compares every row of logits with a model without a cache.
            let outcome = answer(&files, &a, 5);
            assert!(
                matches!(outcome.reason, Finish::Length | Finish::Stop),
                "{what} {i}"
            );
            answer(&files, &b, 5);
            // What was lost was written again.
            assert_eq!(answer(&files, &a, 1).report.computed, 1, "{what} {i}");
        }
    }
}

#[test]
fn exchanged_names_and_strange_files_do_no_harm() {
    let files = files();
    let (a, b) = (ids(7, 200), ids(8, 200));
    answer(&files, &a, 1);
    answer(&files, &b, 1);
    let names = files.names();
    for pair in names.windows(2) {
        files.swap(&pair[0], &pair[1]);
    }
    files.put(&format!("{}x.kv", &names[0][..33]), vec![0; 100_000]);
    files.put("another-model/1-2.kv", vec![1; 5000]);
    // A name says nothing, so nothing was lost either.
    assert_eq!(answer(&files, &a, 1).report.computed, 1);
    assert_eq!(answer(&files, &b, 1).report.computed, 1);
}

/// What is damaged goes at the first start that meets it; what another version wrote is that version's.
#[test]
fn damaged_headers_are_met_once() {
    let files = files();
    answer(&files, &ids(7, 200), 1);
    let names = files.names();
    files.put(&format!("{}x.kv", &names[0][..33]), vec![7; 5000]);
    files.change(&names[0], |bytes| bytes[8] = 77);
    let unfit = |rig: &Rig| rig.core.stats().disk.expect("a disk").files_unfit;
    assert_eq!(unfit(&started(&files)), 2);
    assert_eq!(unfit(&started(&files)), 1);
    assert_eq!(files.names(), names);
}

/// A file that goes bad between the plan and the call is told in the report.
#[test]
fn what_cannot_be_read_is_computed_and_told() {
    let files = files();
    let text = ids(9, 300);
    answer(&files, &text, 1);
    let mut rig = started(&files);
    for name in files.names() {
        files.change(&name, |bytes| *bytes.last_mut().expect("not empty") ^= 1);
    }
    let outcome = rig.answer(&prompt(&[&text]), 1);
    assert_eq!(outcome.plan.reused, 299);
    let [Between::Unreadable { tokens }] = outcome.report.between[..] else {
        panic!("{:?}", outcome.report.between);
    };
    assert_eq!(outcome.report.computed, 1 + tokens);
    assert!(outcome.report.computed >= 12);
    let disk = rig.core.stats().disk.expect("a disk");
    assert!(disk.files_unfit > 0, "{disk:?}");
}

#[test]
fn the_budget_holds_and_the_least_recently_used_goes() {
    let files = files();
    // Six prompts of 100 tokens: three whole blocks and a tail each, 8 KiB and two headers.
    let budget = 80 << 10;
    let texts: Vec<_> = (0..6).map(|i| ids(100 + i, 100)).collect();
    for text in &texts {
        let mut rig = Rig::with_disk(512, 64, &files, budget);
        rig.answer(&prompt(&[text]), 1);
        rig.write_all();
        assert!(files.bytes() <= budget, "{}", files.bytes());
        files.pass_seconds(1);
    }
    let removed = |text: &Vec<u32>| {
        let mut rig = Rig::with_disk(512, 64, &files, budget);
        let plan = rig.core.plan(prompt(&[text]), &Salt::default());
        plan.computed > 1
    };
    assert!(removed(&texts[0]), "the first is the oldest");
    assert!(
        !removed(&texts[5]) && !removed(&texts[4]),
        "the last are there"
    );
    // No room at all is no error.
    let mut rig = Rig::with_disk(512, 64, &self::files(), 100);
    rig.answer(&prompt(&[&texts[0]]), 1);
    rig.write_all();
    let disk = rig.core.stats().disk.expect("a disk");
    assert!(disk.files == 0 && disk.bytes_skipped > 0, "{disk:?}");
}

#[test]
fn a_full_disk_leaves_memory_and_says_so_once() {
    let files = files();
    files.fill_up();
    let mut rig = started(&files);
    let text = prompt(&[&ids(10, 200)]);
    rig.answer(&text, 5);
    rig.write_all();
    assert_eq!(rig.answer(&text, 5).report.computed, 1);
    let disk = rig.core.stats().disk.expect("a disk");
    assert!(disk.read_only.is_some() && disk.files == 0, "{disk:?}");
    assert!(!rig.core.is_saving() && !rig.core.waits_for_disk());
}

/// Two engines over one folder: the second finds what the first wrote while both run.
#[test]
fn another_process_is_noticed() {
    let files = files();
    let mut one = started(&files);
    let mut two = started(&files);
    let text = ids(11, 400);
    one.answer(&prompt(&[&text]), 1);
    one.write_all();
    two.clock.advance_ms(2_000);
    let outcome = two.answer(&prompt(&[&text]), 1);
    assert_eq!(outcome.report.computed, 1);
    // One removes everything; the other has lost its memory too and computes.
    two.core.clear_cache();
    for name in files.names() {
        crate::disk::Files::remove(&*files, &name).expect("there");
    }
    let outcome = two.answer(&prompt(&[&text]), 1);
    assert_eq!(outcome.report.computed, 400);
}

/// A decoding neighbour gets its row in every step while blocks come from disk, and callers that start
/// at once share what one of them loads.
#[test]
fn loading_shares_and_does_not_stall() {
    let files = files();
    let text = ids(12, 400);
    answer(&files, &text, 1);
    let mut rig = started(&files);
    let neighbour = rig.submit(&prompt(&[&ids(13, 10)]), Ask::greedy(30));
    rig.core.step();
    let more = [text.clone(), ids(14, 9)].concat();
    let handles: Vec<_> = [&text, &more, &text]
        .map(|ids| rig.submit(&prompt(&[ids]), Ask::greedy(4)))
        .into();
    rig.run();
    rig.check(neighbour);
    let computed: Vec<usize> = handles
        .into_iter()
        .map(|h| rig.check(h).report.computed)
        .collect();
    assert_eq!(computed, [1, 9, 1]);
    let disk = rig.core.stats().disk.expect("a disk");
    // Each block once, but for the last: the longer prompt wants one token more of it.
    assert_eq!(disk.tokens_loaded, 399 + 16);
}
