//! The log as the product runs it: a real disk, a writer thread, a maintenance thread, many submitters.

mod common;

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use common::{Model, append, submission};
use parking_lot::{Condvar, Mutex};
use warrenmq_storage::{
    Completion, DiskFs, GroupId, Identity, Index, Log, LogOptions, LogThreads, Operation, StorageError, Submission,
    Term, Ticket, Written,
};

const IDENTITY: Identity = Identity { node: [1; 16], cluster: [0; 16] };
/// Long enough for the slowest disk; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The last ticket written, per group.
#[derive(Default)]
struct Waiting {
    written: Mutex<HashMap<GroupId, Ticket>>,
    changed: Condvar,
}

impl Completion for Waiting {
    fn written(&self, written: Written<'_>) {
        self.written.lock().insert(written.group, written.up_to);
        self.changed.notify_all();
    }

    fn failed(&self, group: GroupId, ticket: Ticket, error: &StorageError) {
        panic!("{group} {ticket}: {error}");
    }
}

impl Waiting {
    fn wait(&self, group: GroupId, ticket: Ticket) {
        let deadline = Instant::now() + PATIENCE;
        let mut written = self.written.lock();
        while written.get(&group).is_none_or(|&up_to| up_to < ticket) {
            assert!(!self.changed.wait_until(&mut written, deadline).timed_out(), "no answer for {group} {ticket}");
        }
    }
}

fn start(dir: &Path) -> (Log, LogThreads, Arc<Waiting>) {
    let options =
        LogOptions { file_bytes: 256 << 10, reserve_bytes: 64 << 10, chunk_bytes: 16 << 10, ..LogOptions::default() };
    let waiting = Arc::new(Waiting::default());
    let (log, writer, recovered) = Log::open(Arc::new(DiskFs), dir, IDENTITY, options, waiting.clone()).unwrap();
    assert_eq!((recovered.torn, recovered.damage), (None, None));
    let threads = LogThreads::start(log.clone(), writer).unwrap();
    (log, threads, waiting)
}

#[test]
fn many_submitters_are_all_answered_and_found_after_a_restart() {
    const ENTRIES: u64 = 60;
    let dir = tempfile::tempdir().unwrap();
    let (log, threads, waiting) = start(dir.path());
    thread::scope(|scope| {
        for group in 1..=4u32 {
            let (log, waiting) = (log.clone(), waiting.clone());
            scope.spawn(move || {
                for index in 1..=ENTRIES {
                    log.submit(submission(group, index, vec![append(index, 1, vec![group as u8; 5000])]));
                    if index % 10 == 0 {
                        waiting.wait(GroupId(group), Ticket(index));
                    }
                }
            });
        }
    });
    threads.close();
    drop(log);
    let (log, threads, _) = start(dir.path());
    for group in 1..=4u32 {
        let model = Model::read(&log, GroupId(group)).unwrap();
        assert_eq!(model.last(), Index(ENTRIES));
        assert!(model.entries.iter().all(|entry| entry.payload == vec![group as u8; 5000]));
    }
    threads.close();
}

#[test]
fn compacted_files_are_recycled_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let (log, threads, waiting) = start(dir.path());
    log.accounting_complete();
    for index in 1..=200u64 {
        let compact = Operation::CompactTo { index: Index(index), term: Term(1) };
        log.submit(submission(1, index, vec![append(index, 1, vec![0; 20_000]), compact]));
        waiting.wait(GroupId(1), Ticket(index));
    }
    // The last files may still be on their way.
    let deadline = Instant::now() + PATIENCE;
    while log.usage().files > 3 {
        assert!(Instant::now() < deadline, "{:?}", log.usage());
        thread::yield_now();
    }
    assert!(log.oldest_file().0 > 10, "four megabytes went through files of 256 KiB");
    threads.close();
}

#[test]
fn lazy_submissions_need_no_urgent_one_to_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let (log, threads, waiting) = start(dir.path());
    let lazy = Submission { lazy: true, ..submission(1, 1, vec![append(1, 1, "lazy")]) };
    log.submit(lazy);
    waiting.wait(GroupId(1), Ticket(1));
    threads.close();
}
