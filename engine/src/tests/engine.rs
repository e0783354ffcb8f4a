//! The threaded handle: checks before the queue, streams, cancellation by dropping, shutting down.

use super::fake::{END, FakeForward, FakeVocab, reference_reply};
use super::rig::{ids, prompt};
use crate::context::ContextOptions;
use crate::engine::{Engine, EngineConfig};
use crate::error::{Blame, Error};
use crate::grammar::{GrammarSpec, Rule};
use crate::keys::Salt;
use crate::report::Report;
use crate::request::{Event, Finish, Generation, Request};
use crate::sampler::SamplingParams;
use std::sync::Arc;

fn engine(context: usize) -> Engine {
    let config = EngineConfig {
        context: ContextOptions {
            context_tokens: Some(context),
            free_bytes: Some(1 << 24),
            ..ContextOptions::default()
        },
        ..EngineConfig::default()
    };
    let forward = Box::new(FakeForward::new(4096));
    Engine::start(forward, Arc::new(FakeVocab::default()), config).expect("starts")
}

fn greedy(prompt: crate::Prompt, max: usize) -> Request {
    Request {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max),
        ..Request::new(prompt)
    }
}

fn read(mut generation: Generation) -> (Vec<u8>, Finish, Report, Vec<u32>) {
    let mut text = Vec::new();
    while let Some(event) = generation.recv() {
        match event {
            Event::Plan(_) => {}
            Event::Token { bytes, .. } => text.extend(bytes),
            Event::Done {
                reason,
                report,
                ids,
            } => {
                assert!(generation.recv().is_none(), "the stream ends");
                return (text, reason, report, ids);
            }
        }
    }
    panic!("no Done");
}

#[test]
fn a_conversation_through_the_handle() {
    let engine = engine(512);
    let a = ids(1, 60);
    let salt = Salt::default();
    let plan = engine.plan(&prompt(&[&a]), &salt).unwrap();
    assert_eq!(
        (plan.reused, plan.computed, plan.estimate_ms),
        (0, 60, None)
    );
    let generation = engine.generate(greedy(prompt(&[&a]), 10)).unwrap();
    let (_, _, report, reply) = read(generation);
    assert_eq!(reply, reference_reply(&a, 10));
    assert_eq!(
        (report.generated, report.decode_rows),
        (reply.len(), reply.len() - 1)
    );
    assert!(report.ttft_ms.is_some());

    let next = prompt(&[&a, &reply, &[4, 5]]);
    let plan = engine.plan(&next, &salt).unwrap();
    assert_eq!(plan.computed, 3);
    assert!(plan.estimate_ms.is_some());
    let (_, _, report, _) = read(engine.generate(greedy(next, 1)).unwrap());
    assert_eq!(report.computed, 3);

    let timeline = engine.timeline(salt);
    assert_eq!(timeline.sync(&prompt(&[&a])).unwrap().computed, 0);
    let fork = timeline.fork();
    assert_eq!(fork.ancestors(), [timeline.id()]);
    assert_eq!(fork.fork().ancestors(), [timeline.id(), fork.id()]);
    fork.set_held(true);
    drop(timeline);
    let (_, _, report, _) = read(fork.generate(greedy(prompt(&[&a, &[9]]), 1)).unwrap());
    assert_eq!(report.reused, 60);
    drop(fork);
    let stats = engine.stats().unwrap();
    assert_eq!(
        (stats.timelines, stats.blocks.leased, stats.requests),
        (0, 0, 4)
    );
    assert!(engine.clear_cache().unwrap() > 0);
}

#[test]
fn what_is_refused_before_the_queue() {
    let engine = engine(128);
    let long = prompt(&[&ids(1, 90), &ids(2, 50)]);
    let error = engine
        .generate(greedy(long.clone(), 1))
        .err()
        .expect("too long");
    assert_eq!(error.blame(), Blame::Caller);
    let text = error.to_string();
    for word in [
        "need 141",
        "have 128",
        "piece 0",
        "90",
        "piece 1",
        "50",
        "--context",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(engine.plan(&long, &Salt::default()).is_err());
    // One token of reply must have room.
    assert!(engine.generate(greedy(prompt(&[&ids(1, 128)]), 1)).is_err());
    let (_, reason, _, reply) = read(engine.generate(greedy(prompt(&[&ids(1, 127)]), 9)).unwrap());
    assert_eq!(reply.len(), 1);
    assert!(matches!(reason, Finish::Length | Finish::EndToken));

    let rows = [
        (Request::new(prompt(&[])), "no tokens"),
        (
            Request::new(prompt(&[&[1, 77]])),
            "token id 77 at position 1",
        ),
        (
            Request {
                stop: vec![Vec::new()],
                ..Request::new(prompt(&[&[1]]))
            },
            "stop string 0 is empty",
        ),
        (
            Request {
                sampling: SamplingParams {
                    temperature: -1.0,
                    ..Default::default()
                },
                ..Request::new(prompt(&[&[1]]))
            },
            "temperature",
        ),
    ];
    for (request, words) in rows {
        let error = engine.generate(request).err().expect(words);
        assert_eq!(error.blame(), Blame::Caller, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// K04: a huge max_tokens is clamped to the window, and the stream still ends as it should.
#[test]
fn max_tokens_is_clamped_to_the_context() {
    let engine = engine(256);
    let request = Request {
        ignore_end: true,
        ..greedy(prompt(&[&ids(1, 40)]), 100_000)
    };
    let (text, reason, report, reply) = read(engine.generate(request).unwrap());
    assert!(matches!(reason, Finish::Length));
    assert_eq!((reply.len(), report.generated), (216, 216));
    assert!(text.len() >= 2 * 216);
}

/// A01: the reader goes away in the middle; the slot is free and the next request is answered.
#[test]
fn dropping_a_generation_cancels_it() {
    let engine = engine(4096);
    for wait in [0, 1, 3] {
        let request = Request {
            ignore_end: true,
            ..greedy(prompt(&[&ids(wait, 200)]), 3000)
        };
        let mut generation = engine.generate(request).unwrap();
        (0..wait).for_each(|_| drop(generation.recv()));
        drop(generation);
        read(engine.generate(greedy(prompt(&[&ids(9, 10)]), 2)).unwrap());
        let stats = engine.stats().unwrap();
        assert_eq!((stats.active, stats.blocks.leased), (0, 0));
        assert!(stats.tokens_generated < 3000);
    }
}

#[test]
fn cancelling_keeps_what_was_said() {
    let engine = engine(4096);
    let request = Request {
        ignore_end: true,
        ..greedy(prompt(&[&ids(1, 20)]), 3000)
    };
    let mut generation = engine.generate(request).unwrap();
    let canceller = generation.canceller();
    generation.recv();
    generation.recv();
    canceller.cancel();
    let (_, reason, _, reply) = read(generation);
    assert!(matches!(reason, Finish::Cancelled));
    assert!(!reply.is_empty() && reply.len() < 3000);
}

#[test]
fn a_generation_outlives_the_handle() {
    let engine = engine(512);
    let generation = engine.generate(greedy(prompt(&[&ids(1, 20)]), 5)).unwrap();
    drop(engine);
    assert_eq!(read(generation).3, reference_reply(&ids(1, 20), 5));
}

#[test]
fn the_queue_is_bounded() {
    let engine = engine(4096);
    let ask = |seed| Request {
        ignore_end: true,
        ..greedy(prompt(&[&ids(seed, 8)]), 2000)
    };
    let mut generations = Vec::new();
    let error = loop {
        match engine.generate(ask(generations.len() as u64)) {
            Ok(generation) => generations.push(generation),
            Err(error) => break error,
        }
        assert!(generations.len() < 1000, "a bound");
    };
    assert!(matches!(error, Error::QueueFull { .. }), "{error}");
    assert_eq!(error.blame(), Blame::Device);
    drop(generations);
    // Those that were dropped give their places back.
    let again = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        engine.generate(greedy(prompt(&[&ids(1, 8)]), 1)).ok()
    });
    read(again.expect("a place"));
}

#[test]
fn a_grammar_masks_what_the_model_may_say() {
    let engine = engine(512);
    let request = Request {
        grammar: Some(GrammarSpec::at_once(Rule::Regex("(aa|bb)(cc|dd)ee".into()))),
        ..greedy(prompt(&[&ids(1, 20)]), 50)
    };
    let (text, reason, _, _) = read(engine.generate(request).unwrap());
    assert!(
        matches!(reason, Finish::Stop | Finish::EndToken),
        "{reason:?}"
    );
    assert_eq!(text.len(), 6);
    assert!(text.ends_with(b"ee"));
}

#[test]
fn logprobs_are_given_when_asked_for() {
    let engine = engine(512);
    let request = Request {
        logprobs: Some(3),
        ignore_end: true,
        ..greedy(prompt(&[&ids(1, 20)]), 2)
    };
    let mut generation = engine.generate(request).unwrap();
    let mut seen = 0;
    while let Some(event) = generation.recv() {
        if let Event::Token { id, logprob, .. } = event {
            let logprob = logprob.expect("asked for");
            assert_eq!(
                (logprob.top.len(), logprob.top[0].0),
                (3, id),
                "greedy takes the best"
            );
            assert_eq!(logprob.top[0].1, logprob.logprob);
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
    let _ = END;
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_both_numbers() {
    let config = EngineConfig {
        context: ContextOptions {
            context_tokens: Some(4096),
            free_bytes: Some(100_000),
            ..ContextOptions::default()
        },
        ..EngineConfig::default()
    };
    let forward = Box::new(FakeForward::new(4096));
    let error = Engine::start(forward, Arc::new(FakeVocab::default()), config).err();
    let text = error.expect("no memory").to_string();
    assert!(
        text.contains("need") && text.contains("have 50000"),
        "{text}"
    );
}
