//! The eval tasks, played from their scripts: each asserts what every request held. And what they are for: with a
//! part of the harness left out, the tasks that need it fail.

use harness::agent::driver::Ablation;
use harness::eval::{Played, TASKS, play_script};

fn played(ablation: Ablation) -> Vec<Played> {
    let environment = [("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())];
    let play = |task| play_script(task, 4_096, ablation, &environment).expect("a folder");
    TASKS.iter().map(play).collect()
}

fn failed(played: &[Played]) -> Vec<&str> {
    let failed = played.iter().filter(|task| !task.passed);
    failed.map(|task| task.task).collect()
}

#[test]
fn every_script_solves_its_task() {
    assert!(TASKS.len() >= 20);
    let played = played(Ablation::default());
    assert_eq!(failed(&played), [""; 0], "{played:#?}");
    for task in played {
        assert!(
            task.steps > 0 && task.tokens_sent > task.tokens_computed,
            "{task:?}"
        );
    }
}

#[test]
fn without_compaction_long_runs_fail() {
    let played = played(Ablation {
        compaction: true,
        ..Ablation::default()
    });
    let need = [
        "option-b-late",
        "recall",
        "recall-by-letter",
        "goal-at-the-end",
        "empty-letter",
    ];
    assert_eq!(failed(&played), need);
}

#[test]
fn without_bounding_long_outputs_fail() {
    let played = played(Ablation {
        bounding: true,
        ..Ablation::default()
    });
    let failed = failed(&played);
    for task in ["long-log", "long-output", "artifact"] {
        assert!(failed.contains(&task), "{failed:?}");
    }
}
