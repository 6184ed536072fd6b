//! A durable shard at a start: its snapshot, then what the log has after it.

use queue::{Chunk, Machine, QueueId, Settings, Shard};
use rustc_hash::FxHashMap;
use storage::{
    FileId, FileKind, FileNumber, GroupId, Index, Interval, QueueKey, RUN_BYTES, Run, SegmentNumber, StorageError,
};

use super::entry::{self, Logged};
use super::moving::chunk_of_run;
use super::snapshot;
use crate::store::{Store, shard_group};

/// How much of the log is read at once.
const READ_BYTES: u64 = 8 * 1024 * 1024;

/// A shard as it was when the node stopped.
pub(crate) struct Recovered {
    pub(crate) shard: Shard,
    /// The last entry of the log; all are applied.
    pub(crate) last: u64,
    /// Bytes of the log since the snapshot.
    pub(crate) bytes_since_snapshot: u64,
}

/// Recovers a shard. `queues` are those that exist; what the log has for others is passed over.
///
/// # Errors
/// A log that cannot be read, or a snapshot that is damaged while the log no longer has what led to it.
pub(crate) fn recover(
    store: &Store,
    durable_shard: u32,
    queues: Vec<(QueueId, Settings)>,
) -> Result<Recovered, StorageError> {
    let log = store.log();
    let group = shard_group(durable_shard);
    let status = log.status(group);
    let compacted = status.as_ref().map_or(0, |status| status.compacted.0.0);
    let last = status.as_ref().map_or(0, |status| status.last.0);
    let (applied, mut shard) = restore(store, durable_shard, queues, compacted)?;
    let mut bytes = 0;
    let mut next = applied.max(compacted) + 1;
    while next <= last {
        let entries = log.entries(group, Index(next), READ_BYTES)?;
        if entries.is_empty() {
            break;
        }
        for stored in entries {
            next = stored.index.0 + 1;
            bytes += u64::from(stored.location.length);
            apply(&mut shard, &stored)?;
        }
    }
    for queue in shard.queues().map(|(queue, _)| queue).collect::<Vec<_>>() {
        shard.queue_mut(queue).expect("just listed").forget_dead_chunks();
    }
    locate(store, group, &mut shard)?;
    account(store, group, &shard);
    Ok(Recovered { shard, last, bytes_since_snapshot: bytes })
}

fn restore(
    store: &Store,
    durable_shard: u32,
    queues: Vec<(QueueId, Settings)>,
    compacted: u64,
) -> Result<(u64, Shard), StorageError> {
    let path = snapshot::path(store.dir(), durable_shard);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(StorageError::Io { action: "read", path, source: std::sync::Arc::new(error) });
        }
    };
    let decoded = bytes.as_deref().map(|bytes| snapshot::decode(bytes).ok_or(bytes.len()));
    let (applied, saved) = match decoded {
        Some(Ok((applied, saved))) if applied >= compacted => (applied, saved),
        None if compacted == 0 => (0, Vec::new()),
        // The log starts later than what is here: the state in between is lost.
        _ => {
            let what = format!("the state of durable shard {durable_shard} up to entry {compacted}");
            return Err(StorageError::damaged(path, 0, what));
        }
    };
    let mut settings: FxHashMap<QueueId, Settings> = queues.into_iter().collect();
    let mut shard = Shard::new();
    for queue in saved {
        if let Some(settings) = settings.remove(&queue.id) {
            shard.restore(queue.id, queue.into_machine(settings));
        }
    }
    for (id, settings) in settings {
        shard.restore(id, Machine::new(id, settings));
    }
    Ok((applied, shard))
}

fn apply(shard: &mut Shard, stored: &storage::StoredEntry) -> Result<(), StorageError> {
    let Some(decoded) = entry::decode(&stored.payload) else {
        let what = format!("entry {} of a durable shard is of a format that this version does not know", stored.index);
        return Err(StorageError::damaged("log", u64::from(stored.location.offset), what));
    };
    for op in decoded.ops {
        match op {
            Logged::Enqueue { targets, message, timed } => {
                let timed = timed || decoded.now_ms == 0;
                let chunk = entry::chunk_of(stored.location, &message, decoded.now_ms, timed);
                for queue in targets {
                    if let Some(machine) = shard.queue_mut(queue) {
                        let skip = machine.count_in_entry(chunk.file, chunk.offset);
                        machine.enqueue_cold(chunk, skip);
                    }
                }
            }
            Logged::Remove { queue, sequences } => {
                if let Some(machine) = shard.queue_mut(queue) {
                    // What was never retained need not be released.
                    machine.remove(&sequences, &mut Vec::new());
                }
            }
            Logged::Failed { queue, sequences } => {
                if let Some(machine) = shard.queue_mut(queue) {
                    machine.note_failures(&sequences);
                }
            }
            Logged::Delivered { queue, up_to } => {
                if let Some(machine) = shard.queue_mut(queue) {
                    machine.set_delivered_up_to(up_to);
                }
            }
        }
    }
    Ok(())
}

/// Finds messages whose file is gone: they were copied into a segment, or to another one, after the snapshot was made. Comes after
/// the replay, which says what of them is alive.
///
/// # Errors
/// Messages that are nowhere, unless that is accepted.
fn locate(store: &Store, group: GroupId, shard: &mut Shard) -> Result<(), StorageError> {
    let (log, segments) = (store.log(), store.segments());
    let gone = |file: u64| match FileId::from_raw(file).kind() {
        FileKind::Log(file) => !log.has_file(file),
        FileKind::Segment(segment) => !segments.has(group, segment),
    };
    let mut wanted: FxHashMap<QueueKey, Vec<Interval>> = FxHashMap::default();
    for (queue, machine) in shard.queues() {
        for chunk in machine.cold_chunks().filter(|chunk| gone(chunk.file)) {
            let alive = machine.cold_alive(chunk).into_iter().map(|(first, last)| Interval { first, last });
            wanted.entry(QueueKey(queue.0)).or_default().extend(alive);
        }
    }
    let mut found: FxHashMap<QueueKey, Vec<Chunk>> = FxHashMap::default();
    for segment in if wanted.is_empty() { Vec::new() } else { segments.of_group(group) } {
        for run in segments.index(segment)?.runs {
            if let Some(wanted) = wanted.get_mut(&run.queue) {
                let bytes = u64::from(run.end.saturating_sub(run.points.first().map_or(0, |&(_, offset)| offset)));
                let each = bytes.div_ceil(run.count().max(1));
                for interval in take_common(wanted, &run.intervals) {
                    found.entry(run.queue).or_default().extend(runs_of(run.queue, segment, interval, each));
                }
            }
        }
    }
    for queue in wanted.into_keys() {
        let mut runs = found.remove(&queue).unwrap_or_default();
        runs.sort_unstable_by_key(|run| run.first);
        let machine = shard.queue_mut(QueueId(queue.0)).expect("found above");
        let lost = machine.relocate(&gone, &runs, &mut Vec::new(), &mut FxHashMap::default());
        if lost > 0 {
            let lost = format!("{lost} messages of queue {queue}: they are neither in the log nor in a segment");
            let damaged = StorageError::damaged(store.dir().join("segments"), 0, lost);
            if !store.accepts_damage() {
                return Err(damaged);
            }
            tracing::error!(error = %damaged, "started without messages");
        }
    }
    Ok(())
}

/// A part of a segment as chunks of a size that is brought back at once. `each` is how many bytes a message has, about.
fn runs_of(queue: QueueKey, segment: SegmentNumber, interval: Interval, each: u64) -> Vec<Chunk> {
    let step = (RUN_BYTES / each.max(1)).clamp(1, u64::from(u32::MAX));
    let mut runs = Vec::new();
    let mut first = interval.first;
    loop {
        let last = interval.last.min(first.saturating_add(step - 1));
        let count = last - first + 1;
        runs.extend(chunk_of_run(&Run { queue, first, last, count, bytes: (count * each).min(RUN_BYTES), segment }));
        if last == interval.last {
            return runs;
        }
        first = last + 1;
    }
}

/// What two sorted, disjoint lists have in common; the first one keeps the rest.
fn take_common(wanted: &mut Vec<Interval>, have: &[Interval]) -> Vec<Interval> {
    let (mut common, mut rest) = (Vec::new(), Vec::with_capacity(wanted.len()));
    let mut at = 0;
    for mut interval in wanted.drain(..) {
        while have.get(at).is_some_and(|have| have.last < interval.first) {
            at += 1;
        }
        let mut left = true;
        for have in have[at..].iter().take_while(|have| have.first <= interval.last) {
            if interval.first < have.first {
                rest.push(Interval { first: interval.first, last: have.first - 1 });
            }
            let last = interval.last.min(have.last);
            common.push(Interval { first: interval.first.max(have.first), last });
            left = last < interval.last;
            interval.first = last.saturating_add(1);
        }
        if left {
            rest.push(interval);
        }
    }
    *wanted = rest;
    common
}

/// Tells the log and the segments what of theirs is needed.
fn account(store: &Store, group: GroupId, shard: &Shard) {
    let mut in_log: FxHashMap<FileNumber, u64> = FxHashMap::default();
    let mut in_segments: FxHashMap<SegmentNumber, u64> =
        store.segments().of_group(group).into_iter().map(|segment| (segment, 0)).collect();
    for chunk in shard.queues().flat_map(|(_, machine)| machine.cold_chunks()) {
        match FileId::from_raw(chunk.file).kind() {
            FileKind::Log(file) => *in_log.entry(file).or_default() += u64::from(chunk.bytes),
            FileKind::Segment(segment) => *in_segments.entry(segment).or_default() += u64::from(chunk.records()),
        }
    }
    in_log.into_iter().for_each(|(file, bytes)| store.log().retain(file, bytes));
    store.segments().adopt(in_segments);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(list: &[(u64, u64)]) -> Vec<Interval> {
        list.iter().map(|&(first, last)| Interval { first, last }).collect()
    }

    #[test]
    fn what_is_found_is_taken_once_and_the_rest_stays_wanted() {
        let mut wanted = intervals(&[(0, 9), (20, 29), (40, 40)]);
        let common = take_common(&mut wanted, &intervals(&[(2, 3), (5, 22), (40, 99)]));
        assert_eq!(common, intervals(&[(2, 3), (5, 9), (20, 22), (40, 40)]));
        assert_eq!(wanted, intervals(&[(0, 1), (4, 4), (23, 29)]));
        assert_eq!(take_common(&mut wanted, &intervals(&[(0, u64::MAX)])), intervals(&[(0, 1), (4, 4), (23, 29)]));
        assert!(wanted.is_empty());
    }

    #[test]
    fn a_part_of_a_segment_is_cut_into_chunks_that_follow_each_other() {
        let runs = runs_of(QueueKey(1), SegmentNumber(1), Interval { first: 5, last: 1504 }, 1024);
        assert_eq!(
            runs.iter().map(|run| (run.first, run.count)).collect::<Vec<_>>(),
            [(5, 512), (517, 512), (1029, 476)]
        );
    }
}
