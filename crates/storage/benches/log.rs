//! What a group commit costs next to a bare write and fdatasync of the same size, in the same run on the same disk:
//! `cargo bench -p warrenmq-storage --bench log`. A batch is 64 messages of 1 KiB in one entry.

#![allow(missing_docs)] // criterion's macros make functions without

use std::{
    collections::HashMap,
    io::IoSlice,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use parking_lot::{Condvar, Mutex};
use warrenmq_storage::{
    Completion, DiskFs, Entry, FileSystem, GroupId, Identity, Index, Log, LogOptions, LogThreads, Operation,
    StorageError, Submission, Term, Ticket, Written,
};

const BATCH_BYTES: usize = 64 << 10;
const FILE_BYTES: u64 = 64 << 20;

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

    fn failed(&self, _: GroupId, _: Ticket, error: &StorageError) {
        panic!("{error}");
    }
}

/// Batches of one group, each waiting for the one before.
struct Submitter {
    log: Log,
    waiting: Arc<Waiting>,
    group: GroupId,
    next: u64,
    payload: Bytes,
}

impl Submitter {
    fn batch(&mut self) {
        let index = Index(self.next);
        let entry = Entry { index, term: Term(1), tag: 0, payload: self.payload.clone() };
        let mut operations = vec![Operation::Append(entry)];
        if self.next > 1 {
            operations.push(Operation::CompactTo { index: index.previous(), term: Term(1) });
        }
        let ticket = Ticket(self.next);
        self.log.submit(Submission { group: self.group, ticket, critical: false, lazy: false, operations });
        let mut written = self.waiting.written.lock();
        while written.get(&self.group).is_none_or(|&up_to| up_to < ticket) {
            self.waiting.changed.wait(&mut written);
        }
        self.next += 1;
    }
}

fn bare(dir: &Path, batches: u64) -> Duration {
    let path = dir.join("bare");
    let file = DiskFs.create(&path).expect("a file");
    file.preallocate(FILE_BYTES).and_then(|()| file.sync()).expect("space");
    let bytes = vec![7; BATCH_BYTES];
    let began = Instant::now();
    for batch in 0..batches {
        let offset = batch * BATCH_BYTES as u64 % (FILE_BYTES - BATCH_BYTES as u64);
        file.write_at(&[IoSlice::new(&bytes)], offset).and_then(|()| file.sync()).expect("a working disk");
    }
    let took = began.elapsed();
    DiskFs.remove(&path).expect("just made");
    took
}

fn log(dir: &Path, submitters: u32, batches: u64) -> Duration {
    let identity = Identity { node: [1; 16], cluster: [0; 16] };
    let waiting = Arc::new(Waiting::default());
    let opened = Log::open(Arc::new(DiskFs), dir, identity, LogOptions::default(), waiting.clone());
    let (log, writer, _) = opened.expect("an empty directory");
    log.accounting_complete();
    // The reserve is made once in the life of a node.
    log.maintain().expect("space");
    let threads = LogThreads::start(log.clone(), writer).expect("threads");
    let submitter = |group| Submitter {
        log: log.clone(),
        waiting: waiting.clone(),
        group: GroupId(group),
        next: 1,
        payload: Bytes::from(vec![7; BATCH_BYTES]),
    };
    submitter(submitters).batch();
    let began = Instant::now();
    thread::scope(|scope| {
        for group in 0..submitters {
            let mut submitter = submitter(group);
            let share = batches / u64::from(submitters) + u64::from(u64::from(group) < batches % u64::from(submitters));
            scope.spawn(move || (0..share).for_each(|_| submitter.batch()));
        }
    });
    let took = began.elapsed();
    threads.close();
    took
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("64 KiB, durable");
    group.throughput(Throughput::Bytes(BATCH_BYTES as u64)).sample_size(20);
    let dir = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    group.bench_function("bare write and fdatasync", |bench| {
        let dir = dir();
        bench.iter_custom(|batches| bare(dir.path(), batches));
    });
    for submitters in [1, 8] {
        group.bench_function(format!("log, {submitters} submitting"), |bench| {
            bench.iter_custom(|batches| log(dir().path(), submitters, batches));
        });
    }
    group.finish();
}

criterion_group!(log_benches, benches);
criterion_main!(log_benches);
