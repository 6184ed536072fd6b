//! Keeps the disk that durable queues use near what is alive in them: decides which files of the log are to be emptied and when, has
//! shards store their state so that the log can forget, and lets dead segments go.

use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use storage::{FileNumber, SegmentNumber, StorageError};

use super::moving::{Files, Guard};
use crate::broker::Broker;
use crate::shard::ShardInput;
use crate::store::shard_group;

/// How often it looks. A fast device fills a file of the log in a quarter of a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Without an entry for so long, the node is at rest: it then gives up all space that it does not need.
const REST_AFTER: Duration = Duration::from_secs(10);
/// Files that could not be emptied are tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// How often it looks for segments that are mostly dead, which takes longer.
const REWRITE_INTERVAL: Duration = Duration::from_secs(2);

/// The task.
pub(crate) struct LogKeeper {
    broker: Arc<Broker>,
    /// Whether a shard still moves messages.
    moving: Weak<()>,
    /// The last files that were to be emptied, and when.
    emptied: Option<(RangeInclusive<FileNumber>, Instant)>,
    rewritten: Instant,
    /// Segments that were mostly dead at the last look, and how many messages were alive in each.
    due: FxHashMap<SegmentNumber, u64>,
    /// Where the log ended at the last look, and since when.
    end: (FileNumber, u32),
    quiet_since: Instant,
    /// Since the node is at rest, its free files have been given up.
    at_rest: bool,
}

impl LogKeeper {
    pub(crate) fn new(broker: Arc<Broker>) -> Self {
        let now = Instant::now();
        let end = broker.store().log().end();
        Self {
            broker,
            moving: Weak::new(),
            emptied: None,
            rewritten: now,
            due: FxHashMap::default(),
            end,
            quiet_since: now,
            at_rest: false,
        }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut interval = tokio::time::interval(LOOK_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.look(Instant::now());
        }
    }

    fn look(&mut self, now: Instant) {
        let log = self.broker.store().log();
        if log.stopped().is_some() {
            return;
        }
        let end = log.end();
        if end != self.end {
            (self.end, self.quiet_since) = (end, now);
            self.at_rest = false;
        }
        let rests = now.duration_since(self.quiet_since) >= REST_AFTER;
        if self.moving.strong_count() > 0 {
            return;
        }
        if self.delete_dead() || self.empty_files(now, rests) || self.rewrite(now) {
            return;
        }
        self.shorten(rests);
        if rests && !self.at_rest {
            self.at_rest = true;
            self.in_background("free files of the log cannot be given up", |broker| {
                broker.store().log().release_free_files()
            });
        }
    }

    fn delete_dead(&mut self) -> bool {
        let dead = self.broker.store().segments().has_dead();
        if dead {
            self.in_background("dead segments cannot be deleted", |broker| {
                broker.store().segments().delete_dead().map(drop)
            });
        }
        dead
    }

    /// Has what is alive in the oldest files of the log copied out, if that is due.
    fn empty_files(&mut self, now: Instant, rests: bool) -> bool {
        let Some(files) = self.broker.store().log().copy_out_due(rests.then_some(0)) else { return false };
        let again = self.emptied.as_ref().is_some_and(|(last, when)| *last == files && now < *when + RETRY_AFTER);
        if again {
            return false;
        }
        let guard = self.guard();
        for durable_shard in 0..self.broker.settings().durable_shards {
            self.send(durable_shard, Files::Log(files.clone()), &guard);
        }
        self.emptied = Some((files, now));
        true
    }

    fn rewrite(&mut self, now: Instant) -> bool {
        if now < self.rewritten + REWRITE_INTERVAL {
            return false;
        }
        self.rewritten = now;
        let guard = self.guard();
        let mut seen = FxHashMap::default();
        for durable_shard in 0..self.broker.settings().durable_shards {
            let due = self.broker.store().segments().rewrite_due(shard_group(durable_shard));
            seen.extend(due.iter().copied());
            // What changed since the last look is being drained.
            let unchanged = |&(segment, alive): &(SegmentNumber, u64)| self.due.get(&segment) == Some(&alive);
            let due: Vec<SegmentNumber> = due.into_iter().filter(unchanged).map(|(segment, _)| segment).collect();
            if !due.is_empty() {
                self.send(durable_shard, Files::Segments(due), &guard);
            }
        }
        self.due = seen;
        Arc::strong_count(&guard) > 1
    }

    /// A file of the log stays while any group needs an entry in it: the group that needs the oldest stores its state. The metadata looks
    /// after itself.
    fn shorten(&self, rests: bool) {
        let log = self.broker.store().log();
        if log.excess_bytes(rests.then_some(0)) == 0 {
            return;
        }
        let Some((group, file)) = log.most_retentive_group() else { return };
        if let (Some(durable_shard), true) = (group.0.checked_sub(1), file < self.end.0) {
            self.broker.shard(self.broker.durable_shard(durable_shard)).send(ShardInput::MakeSnapshot);
        }
    }

    fn guard(&mut self) -> Guard {
        let guard = Guard::default();
        self.moving = Arc::downgrade(&guard);
        guard
    }

    fn send(&self, durable_shard: u32, files: Files, guard: &Guard) {
        let guard = Arc::clone(guard);
        self.broker.shard(self.broker.durable_shard(durable_shard)).send(ShardInput::Leave { files, guard });
    }

    fn in_background<F>(&mut self, failure: &'static str, work: F)
    where
        F: FnOnce(&Broker) -> Result<(), StorageError> + Send + 'static,
    {
        let guard = self.guard();
        let broker = Arc::clone(&self.broker);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = work(&broker) {
                tracing::error!(%error, "{failure}");
            }
            drop(guard);
        });
    }
}
