//! What the prefix cache holds and has done: `/cache` for `ostler cache --server`, `/metrics` for Prometheus.

use std::fmt::Write;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use engine::{ResidentPiece, ReuseGaps, Stats};
use serde::{Deserialize, Serialize};

use super::{Service, openai};
use crate::error::Error;

/// The version of the text format, as Prometheus wants it named.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What `/cache` answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Held {
    pub model: String,
    /// Of keys and values in memory.
    pub bytes_used: u64,
    pub bytes_total: u64,
    pub pieces: Vec<ResidentPiece>,
}

pub async fn held(State(service): State<Arc<Service>>) -> Response {
    let engine = &service.model.engine;
    let answers = async { Ok((engine.stats_async().await?, engine.resident_async().await?)) };
    match answers.await {
        Ok((stats, pieces)) => Json(Held {
            model: service.model.name.clone(),
            bytes_used: stats.bytes_used(),
            bytes_total: stats.bytes_total(),
            pieces,
        })
        .into_response(),
        Err(error) => refused(error),
    }
}

pub async fn metrics(State(service): State<Arc<Service>>) -> Response {
    match service.model.engine.stats_async().await {
        Ok(stats) => ([(CONTENT_TYPE, PROMETHEUS_TEXT)], exposition(&stats)).into_response(),
        Err(error) => refused(error),
    }
}

fn refused(error: engine::Error) -> Response {
    openai::error::ApiError::from(Error::from(error)).into_response()
}

/// The text format of Prometheus.
struct Exposition(String);

impl Exposition {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(
            self.0,
            "# HELP ostler_{name} {help}\n# TYPE ostler_{name} {kind}"
        );
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "ostler_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.value(name, "", value);
    }
}

fn exposition(stats: &Stats) -> String {
    let mut text = Exposition(String::new());
    text.gauge(
        "requests_running",
        "Requests being computed.",
        stats.active as u64,
    );
    text.gauge(
        "requests_waiting",
        "Requests in the queue.",
        stats.waiting as u64,
    );
    text.counter("requests_total", "Requests accepted.", stats.requests);
    text.counter(
        "prefix_cache_hits_total",
        "Requests that reused at least one token.",
        stats.hits,
    );
    text.head(
        "prefix_cache_misses_total",
        "counter",
        "Requests that reused none, by reason.",
    );
    for (why, count) in &stats.misses_by_why {
        let why = why.name().replace(' ', "_");
        text.value(
            "prefix_cache_misses_total",
            &format!("{{reason=\"{why}\"}}"),
            count,
        );
    }
    text.head(
        "prompt_tokens_total",
        "counter",
        "Prompt tokens, by where they came from.",
    );
    text.value(
        "prompt_tokens_total",
        "{source=\"reused\"}",
        stats.tokens_reused,
    );
    text.value(
        "prompt_tokens_total",
        "{source=\"computed\"}",
        stats.tokens_computed,
    );
    text.counter(
        "generated_tokens_total",
        "Tokens sampled.",
        stats.tokens_generated,
    );
    text.counter(
        "forward_rows_total",
        "Rows that went through the forward pass.",
        stats.rows_forwarded,
    );
    text.counter(
        "preemptions_total",
        "Requests that gave way to older ones.",
        stats.preemptions,
    );
    text.counter(
        "kv_blocks_evicted_total",
        "Blocks of keys and values given up in memory.",
        stats.evicted_blocks,
    );
    text.counter(
        "timelines_given_up_total",
        "Conversations that let go of their blocks because others needed them.",
        stats.timelines_given_up,
    );
    tiers(&mut text, stats);
    reuse_gaps(&mut text, &stats.reuse_gaps);
    text.0
}

fn tiers(text: &mut Exposition, stats: &Stats) {
    let bytes = |blocks: usize| blocks as u64 * stats.block_bytes;
    text.head(
        "kv_bytes",
        "gauge",
        "Bytes of keys and values, by tier and state.",
    );
    for (state, blocks) in [
        ("leased", stats.blocks.leased),
        ("cached", stats.blocks.cached),
        ("free", stats.blocks.free),
    ] {
        let labels = format!("{{tier=\"memory\",state=\"{state}\"}}");
        text.value("kv_bytes", &labels, bytes(blocks));
    }
    if let Some(parts) = &stats.windows {
        for (state, count) in [("held", parts.total - parts.free), ("free", parts.free)] {
            let labels = format!("{{tier=\"memory\",state=\"{state}\",layers=\"window\"}}");
            text.value("kv_bytes", &labels, count as u64 * parts.bytes);
        }
    }
    let Some(disk) = &stats.disk else { return };
    text.value("kv_bytes", "{tier=\"disk\",state=\"cached\"}", disk.bytes);
    text.counter(
        "kv_disk_read_bytes_total",
        "Bytes loaded from disk.",
        disk.bytes_loaded,
    );
    text.counter(
        "kv_disk_written_bytes_total",
        "Bytes written to disk.",
        disk.bytes_written,
    );
    text.counter(
        "kv_disk_skipped_bytes_total",
        "Bytes not written, for want of room or because of the write budget.",
        disk.bytes_skipped,
    );
    text.head(
        "kv_disk_cpu_seconds_total",
        "counter",
        "CPU time spent on writing to disk.",
    );
    text.value("kv_disk_cpu_seconds_total", "", disk.cpu_seconds);
    text.counter(
        "kv_disk_files_removed_total",
        "Files given up on disk.",
        disk.files_removed,
    );
}

fn reuse_gaps(text: &mut Exposition, gaps: &ReuseGaps) {
    text.head(
        "reuse_gap_seconds",
        "histogram",
        "How long before a request what it goes on from was used.",
    );
    let mut sum = 0;
    for (bound, count) in ReuseGaps::BOUNDS_SECONDS.iter().zip(gaps.counts) {
        sum += count;
        text.value(
            "reuse_gap_seconds_bucket",
            &format!("{{le=\"{bound}\"}}"),
            sum,
        );
    }
    let all: u64 = gaps.counts.iter().sum();
    text.value("reuse_gap_seconds_bucket", "{le=\"+Inf\"}", all);
    text.value("reuse_gap_seconds_sum", "", gaps.seconds);
    text.value("reuse_gap_seconds_count", "", all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Why;

    #[test]
    fn buckets_add_up_and_reasons_have_no_spaces() {
        let stats = Stats {
            misses_by_why: vec![(Why::FirstCall, 3)],
            reuse_gaps: ReuseGaps {
                counts: [1, 2, 0, 0, 0, 0, 4],
                seconds: 7.5,
            },
            ..Stats::default()
        };
        let text = exposition(&stats);
        for line in [
            "ostler_prefix_cache_misses_total{reason=\"first_call\"} 3",
            "ostler_reuse_gap_seconds_bucket{le=\"10\"} 3",
            "ostler_reuse_gap_seconds_bucket{le=\"+Inf\"} 7",
            "ostler_reuse_gap_seconds_sum 7.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains("tier=\"disk\""));
    }
}
