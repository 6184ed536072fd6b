//! What all connections of a run count together: sums, and histograms of times.
//!
//! A connection adds to them once per turn, not per message. Histograms are few and shared, so that their size does not
//! depend on the number of connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest time that is told apart, in microseconds: an hour. Longer ones count as that.
const MAX_US: u64 = 3_600_000_000;
/// Decimal digits of times that are kept.
const DIGITS: u8 = 3;
/// Parts of a [`Times`]: as many threads can add at the same time.
const PARTS: usize = 8;

/// Sums of a run.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) published: AtomicU64,
    pub(crate) published_bytes: AtomicU64,
    pub(crate) confirmed: AtomicU64,
    pub(crate) nacked: AtomicU64,
    pub(crate) returned: AtomicU64,
    /// All deliveries.
    pub(crate) received: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    /// Deliveries of this run's messages that came for the first time.
    pub(crate) distinct: AtomicU64,
    /// Deliveries that say they may not be the first.
    pub(crate) redelivered: AtomicU64,
    /// Deliveries of what the queue had delivered before.
    pub(crate) duplicated: AtomicU64,
    /// Those of them that do not say so.
    pub(crate) duplicated_unflagged: AtomicU64,
    /// New messages, not marked as redelivered, with a lower number than the consumer has seen of the publisher.
    pub(crate) out_of_order: AtomicU64,
    /// Deliveries without a stamp, or with that of another run.
    pub(crate) foreign: AtomicU64,
    /// Times that the broker said it was blocked.
    pub(crate) blocked: AtomicU64,
    /// Microseconds from the start to the first and the latest delivery, and to the latest publish.
    pub(crate) first_received_us: AtomicU64,
    pub(crate) last_received_us: AtomicU64,
    pub(crate) last_published_us: AtomicU64,
    /// Whether anything was received.
    pub(crate) any_received: AtomicBool,
}

impl Sums {
    pub(crate) fn add(to: &AtomicU64, number: u64) {
        if number > 0 {
            to.fetch_add(number, Relaxed);
        }
    }

    /// Notes when deliveries came, in microseconds since the start.
    pub(crate) fn received_at(&self, us: u64) {
        if !self.any_received.load(Relaxed) && !self.any_received.swap(true, Relaxed) {
            self.first_received_us.store(us, Relaxed);
        }
        self.last_received_us.fetch_max(us, Relaxed);
    }
}

/// Times in microseconds, of all connections.
#[derive(Debug)]
pub(crate) struct Times {
    parts: Vec<Mutex<Histogram<u64>>>,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| Mutex::new(histogram())).collect() }
    }

    /// The part that the client with this number adds to. To be held for a turn at most.
    pub(crate) fn part(&self, client: usize) -> MutexGuard<'_, Histogram<u64>> {
        // A histogram is never left half changed.
        self.parts[client % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all times out.
    pub(crate) fn take(&self) -> Histogram<u64> {
        let mut all = histogram();
        for client in 0..PARTS {
            let mut part = self.part(client);
            // Equal bounds, so nothing can be out of range.
            let _ = all.add(&*part);
            part.reset();
        }
        all
    }
}

/// An empty histogram of microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_US, DIGITS).expect("the bounds are constants that fit")
}

/// What is told of a histogram: microseconds.
pub(crate) fn percentiles(times: &Histogram<u64>) -> Value {
    if times.is_empty() {
        return Value::Null;
    }
    json!({
        "count": times.len(),
        "min": times.min(),
        "mean": (times.mean() * 10.0).round() / 10.0,
        "p50": times.value_at_quantile(0.5),
        "p75": times.value_at_quantile(0.75),
        "p95": times.value_at_quantile(0.95),
        "p99": times.value_at_quantile(0.99),
        "p999": times.value_at_quantile(0.999),
        "max": times.max(),
    })
}
