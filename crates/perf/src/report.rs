//! Results: one line of JSON, or a summary to read.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::meters::percentiles;
use crate::publisher::{Published, PublisherShared, TENTHS};

/// What a run under load came to.
pub(crate) struct LoadReport {
    pub(crate) label: String,
    pub(crate) run: u16,
    pub(crate) queues: Vec<String>,
    pub(crate) publishers: usize,
    pub(crate) confirms: bool,
    pub(crate) published: Vec<Published>,
    /// Messages that must have been delivered and were not; `None` if nobody could tell.
    pub(crate) lost: Option<u64>,
    /// From the start of the clock to the first publish.
    pub(crate) started_us: u64,
    pub(crate) shared: Arc<PublisherShared>,
    pub(crate) confirm_times: Histogram<u64>,
    pub(crate) latencies: Histogram<u64>,
    pub(crate) server: Option<Value>,
    pub(crate) errors: Vec<String>,
}

/// What a mode answers.
pub(crate) struct Outcome {
    /// For programs.
    pub(crate) json: Value,
    /// For people.
    pub(crate) text: String,
    /// Whether the run went through and every message is accounted for.
    pub(crate) verdict: Verdict,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Good,
    /// Connections failed, or nothing could be measured.
    Failed,
    /// Messages were lost, or came twice without saying so.
    Miscounted,
}

impl LoadReport {
    pub(crate) fn outcome(self) -> Outcome {
        let sums = &self.shared.sums;
        let get = |sum: &AtomicU64| sum.load(Relaxed);
        let seconds = |us: u64| us.saturating_sub(self.started_us) as f64 / 1e6;
        let (published, received) = (get(&sums.published), get(&sums.received));
        let published_s = seconds(get(&sums.last_published_us));
        let received_s = seconds(get(&sums.last_received_us));
        let unflagged = get(&sums.duplicated_unflagged);
        let unconfirmed: u64 = self.published.iter().map(|one| one.unconfirmed).sum();
        let [first_tenth, last_tenth] = self.tenths();
        let json = json!({
            "mode": "load",
            "label": self.label,
            "run": self.run,
            "queues": self.queues.len(),
            "publishers": self.publishers,
            "published": published,
            "published_bytes": get(&sums.published_bytes),
            "confirmed": get(&sums.confirmed),
            "nacked": get(&sums.nacked),
            "unconfirmed": unconfirmed,
            "returned": get(&sums.returned),
            "received": received,
            "received_bytes": get(&sums.received_bytes),
            "distinct": get(&sums.distinct),
            "lost": self.lost,
            "redelivered": get(&sums.redelivered),
            "duplicated": get(&sums.duplicated),
            "duplicated_unflagged": unflagged,
            "out_of_order": get(&sums.out_of_order),
            "foreign": get(&sums.foreign),
            "blocked": get(&sums.blocked),
            "publish_s": published_s,
            "publish_rate": per_second(published, published_s),
            "publish_rate_first_tenth": first_tenth,
            "publish_rate_last_tenth": last_tenth,
            "first_delivery_s": if received > 0 { json!(get(&sums.first_received_us) as f64 / 1e6) } else { Value::Null },
            "receive_s": received_s,
            "receive_rate": per_second(received, received_s),
            "confirm_us": percentiles(&self.confirm_times),
            "latency_us": percentiles(&self.latencies),
            "server": self.server,
            "errors": self.errors,
        });
        let mut text = String::new();
        line(&mut text, "published", &json, &["published", "publish_rate"]);
        if self.confirms {
            line(&mut text, "confirmed", &json, &["confirmed", "nacked", "unconfirmed"]);
            times(&mut text, "confirm", &json["confirm_us"]);
        }
        line(&mut text, "received", &json, &["received", "receive_rate", "redelivered", "returned"]);
        times(&mut text, "latency", &json["latency_us"]);
        line(&mut text, "checked", &json, &["lost", "duplicated", "duplicated_unflagged", "out_of_order", "foreign"]);
        server(&mut text, &json["server"]);
        errors(&mut text, &self.errors);
        let verdict = if self.lost.unwrap_or(0) > 0 || unflagged > 0 {
            Verdict::Miscounted
        } else if !self.errors.is_empty() || unconfirmed > 0 {
            Verdict::Failed
        } else {
            Verdict::Good
        };
        Outcome { json, text, verdict }
    }

    /// Messages per second of one publisher in the first and in the last tenth of what it had to send.
    fn tenths(&self) -> [Value; 2] {
        let Some(one) = self.published.first().filter(|one| one.tenths.len() == TENTHS) else {
            return [Value::Null, Value::Null];
        };
        let part = one.sent as f64 / TENTHS as f64;
        let rate = |seconds: f64| if seconds > 0.0 { json!((part / seconds).round()) } else { Value::Null };
        let last = one.tenths[TENTHS - 1] - one.tenths[TENTHS - 2];
        [rate(one.tenths[0].as_secs_f64()), rate(last.as_secs_f64())]
    }
}

pub(crate) fn per_second(number: u64, seconds: f64) -> Value {
    if number > 0 && seconds > 0.0 { json!((number as f64 / seconds).round()) } else { Value::Null }
}

/// Appends `name: key value, key value`.
pub(crate) fn line(text: &mut String, name: &str, json: &Value, keys: &[&str]) {
    let values: Vec<String> = keys
        .iter()
        .filter(|key| !json[**key].is_null())
        .map(|key| format!("{} {}", key.replace('_', " "), json[*key]))
        .collect();
    let _ = writeln!(text, "{name:<10} {}", values.join(", "));
}

/// Appends a line of percentiles.
pub(crate) fn times(text: &mut String, name: &str, json: &Value) {
    if json.is_object() {
        let keys = ["min", "p50", "p75", "p95", "p99", "p999", "max"];
        let values: Vec<String> = keys.iter().map(|key| format!("{key} {}", json[*key])).collect();
        let _ = writeln!(text, "{name:<10} {} µs", values.join(", "));
    }
}

/// Appends what the broker used.
pub(crate) fn server(text: &mut String, json: &Value) {
    if let Some(cpu_s) = json["cpu_s"].as_f64() {
        let mib = |key: &str| json[key].as_f64().unwrap_or(0.0) / f64::from(1 << 20);
        let _ = writeln!(
            text,
            "{:<10} {cpu_s:.2} s of CPU, {:.0} messages per CPU second, memory {:.1} MiB (highest {:.1}), written {:.1} MiB",
            "broker",
            json["messages_per_cpu_s"].as_f64().unwrap_or(0.0),
            mib("rss_bytes"),
            mib("rss_peak_bytes"),
            mib("written_bytes"),
        );
    }
}

pub(crate) fn errors(text: &mut String, errors: &[String]) {
    for error in errors {
        let _ = writeln!(text, "error      {error}");
    }
}
