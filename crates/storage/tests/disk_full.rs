//! A full disk, failing writes and syncs: nothing is confirmed that is not kept, nothing is corrupted, and work goes on when
//! there is space.

mod common;

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use common::{Event, Events, Model, append, small_options, submission};
use warrenmq_storage::{
    Admission, FileKind, GroupId, Identity, Index, Location, Log, LogOptions, Operation, QueueKey, SegmentOptions,
    Segments, SimFault, SimFs, StorageError, Submission, Survivor, Term, Ticket, Writer,
};

const DIR: &str = "data/log";
const IDENTITY: Identity = Identity { node: [1; 16], cluster: [0; 16] };

struct Opened {
    log: Log,
    writer: Writer,
    events: Arc<Events>,
}

fn open(fs: &SimFs, options: LogOptions) -> Opened {
    let events = Events::new();
    let fs = Arc::new(fs.clone());
    let (log, writer, _) = Log::open(fs, Path::new(DIR), IDENTITY, options, events.clone()).unwrap();
    Opened { log, writer, events }
}

impl Opened {
    /// Submits and writes; the error if it failed.
    fn write(&mut self, submission: Submission) -> Result<Vec<(Index, Location)>, StorageError> {
        let (group, ticket) = (submission.group, submission.ticket);
        self.log.submit(submission);
        self.writer.turn();
        let mut result = None;
        for event in self.events.take() {
            match event {
                Event::Written { group: whose, up_to, placed } if (whose, up_to) == (group, ticket) => {
                    result = Some(Ok(placed));
                }
                Event::Failed { group: whose, ticket: which, error } if (whose, which) == (group, ticket) => {
                    result = Some(Err(error));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        result.expect("every submission is answered")
    }

    /// Appends until there is no space. Returns the index that failed.
    fn fill(&mut self, group: u32, from: u64) -> u64 {
        for index in from..from + 1000 {
            match self.write(submission(group, index, vec![append(index, 1, vec![index as u8; 3000])])) {
                Ok(_) => {}
                Err(StorageError::Full { .. }) => return index,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the disk never ran full");
    }
}

fn critical(group: u32, index: u64, payload: Bytes) -> Submission {
    Submission { critical: true, ..submission(group, index, vec![append(index, 1, payload)]) }
}

#[test]
fn on_a_full_disk_acks_are_still_written_and_publishing_resumes_with_space() {
    let fs = SimFs::new(1);
    fs.set_capacity(200 << 10);
    let mut opened = open(&fs, small_options());
    opened.log.maintain().unwrap();
    let failed = opened.fill(1, 1);
    assert_eq!(opened.log.admission(), Admission::CriticalOnly);
    // What follows a failed submission fails as well, whatever it is, until the group resumes.
    let after = submission(1, failed + 1, vec![Operation::HardState(Bytes::from_static(b"commit"))]);
    assert!(opened.write(after).unwrap_err().is_full());
    // Other groups' acks go to what is left of the file, then to the reserve.
    for index in 1..=35 {
        opened.write(critical(2, index, Bytes::from(vec![1; 300]))).unwrap();
    }
    // A restart on the full disk keeps all of that, and the reserve is still of use.
    drop(opened);
    fs.kill_process();
    let mut opened = open(&fs, small_options());
    assert_eq!(opened.log.status(GroupId(1)).unwrap().last, Index(failed - 1));
    assert_eq!(opened.log.status(GroupId(2)).unwrap().last, Index(35));
    for index in 36..=40 {
        opened.write(critical(2, index, Bytes::from(vec![1; 300]))).unwrap();
    }
    let again = |index: u64| submission(1, index, vec![append(index, 1, vec![index as u8; 3000])]);
    assert!(opened.write(again(failed)).unwrap_err().is_full());
    // Space returns.
    fs.set_capacity(1 << 30);
    opened.log.maintain().unwrap();
    assert_eq!(opened.log.admission(), Admission::Open);
    opened.log.resume(GroupId(1));
    for index in failed..failed + 30 {
        opened.write(again(index)).unwrap();
    }
    let model = Model::read(&opened.log, GroupId(1)).unwrap();
    assert!(model.entries.iter().all(|entry| entry.payload.len() == 3000 && entry.payload[0] == entry.index.0 as u8));
    assert_eq!(model.last(), Index(failed + 29));
}

#[test]
fn compaction_frees_space_on_a_full_disk() {
    let fs = SimFs::new(1);
    fs.set_capacity(200 << 10);
    let mut opened = open(&fs, small_options());
    opened.log.accounting_complete();
    opened.log.maintain().unwrap();
    let failed = opened.fill(1, 1);
    opened.log.resume(GroupId(1));
    let compact = Operation::CompactTo { index: Index(failed - 1), term: Term(1) };
    let compact = Submission { critical: true, ..submission(1, failed, vec![compact]) };
    opened.write(compact).unwrap();
    // One call finds what can go and announces it, the writer makes that durable, the next call lets it go.
    opened.log.maintain().unwrap();
    opened.writer.turn();
    opened.log.maintain().unwrap();
    assert_eq!(opened.log.admission(), Admission::Open);
    let next = submission(1, failed + 1, vec![append(failed, 1, vec![7; 3000])]);
    opened.write(next).unwrap();
    assert!(opened.log.usage().log_bytes < 100 << 10);
}

#[test]
fn a_failed_sync_is_final() {
    let fs = SimFs::new(3);
    let mut opened = open(&fs, small_options());
    opened.write(submission(1, 1, vec![append(1, 1, "kept")])).unwrap();
    fs.fail_after(SimFault::Sync, 0);
    let error = opened.write(submission(1, 2, vec![append(2, 1, "doubtful")])).unwrap_err();
    assert!(matches!(&error, StorageError::Stopped { reason } if reason.contains("sync")), "{error}");
    assert_eq!(opened.log.admission(), Admission::Stopped);
    // The disk works again, but what it holds is unknown: no more writes, for any group, not even critical ones.
    let error = opened.write(critical(2, 1, Bytes::new())).unwrap_err();
    assert!(matches!(error, StorageError::Stopped { .. }));
    assert_eq!(opened.log.status(GroupId(1)).unwrap().last, Index(1), "readers see what was durable");
    drop(opened);
    fs.lose_power();
    let opened = open(&fs, small_options());
    let model = Model::read(&opened.log, GroupId(1)).unwrap();
    assert_eq!(model.entries[0].payload, "kept");
    assert!(model.entries.len() <= 2);
}

#[test]
fn a_failed_write_is_final() {
    let fs = SimFs::new(4);
    let mut opened = open(&fs, small_options());
    fs.fail_after(SimFault::Write, 0);
    let error = opened.write(submission(1, 1, vec![append(1, 1, "x")])).unwrap_err();
    assert!(matches!(&error, StorageError::Stopped { reason } if reason.contains(".log")), "{error}");
    let error = opened.write(submission(2, 1, vec![append(1, 1, "y")])).unwrap_err();
    assert!(matches!(error, StorageError::Stopped { .. }));
}

#[test]
fn a_failed_read_is_reported_and_passes() {
    let fs = SimFs::new(5);
    let mut opened = open(&fs, small_options());
    let placed = opened.write(submission(1, 1, vec![append(1, 1, "body")])).unwrap();
    fs.fail_after(SimFault::Read, 0);
    assert!(matches!(opened.log.read(placed[0].1), Err(StorageError::Io { .. })));
    assert_eq!(opened.log.read(placed[0].1).unwrap(), "body");
}

#[test]
fn a_submission_that_leaves_a_gap_is_refused_alone() {
    let fs = SimFs::new(6);
    let mut opened = open(&fs, small_options());
    let error = opened.write(submission(1, 1, vec![append(2, 1, "gap")])).unwrap_err();
    assert!(matches!(error, StorageError::OutOfOrder { .. }), "{error}");
    opened.write(submission(2, 1, vec![append(1, 1, "fine")])).unwrap();
}

#[test]
fn an_entry_larger_than_a_file_gets_a_file_of_its_own_and_waits_for_space() {
    const GROUP: GroupId = GroupId(1);
    let fs = SimFs::new(8);
    let options = small_options();
    let mut opened = open(&fs, options.clone());
    opened.log.accounting_complete();
    let large = vec![7; 3 * options.file_bytes as usize];
    fs.set_capacity(fs.used_bytes() + u64::from(options.file_bytes));
    let error = opened.write(submission(1, 1, vec![append(1, 1, large.clone())])).unwrap_err();
    assert!(error.is_full(), "{error}");
    fs.set_capacity(u64::MAX);
    opened.log.resume(GROUP);
    let placed = opened.write(submission(1, 2, vec![append(1, 1, large.clone())])).unwrap();
    assert_eq!(opened.log.read(placed[0].1).unwrap(), large);
    opened.write(submission(1, 3, vec![append(2, 1, "small")])).unwrap();
    drop(opened);
    fs.lose_power();
    let mut opened = open(&fs, options.clone());
    let entries = opened.log.entries(GROUP, Index(1), u64::MAX).unwrap();
    assert_eq!(entries.iter().map(|entry| entry.payload.len()).collect::<Vec<_>>(), [large.len(), 5]);
    // It leaves like any other file, and is not kept.
    opened.log.accounting_complete();
    for index in 3..60u64 {
        opened.write(submission(1, 2 * index, vec![append(index, 1, vec![1; 2000])])).unwrap();
        let compact = Operation::CompactTo { index: Index(index), term: Term(1) };
        opened.write(submission(1, 2 * index + 1, vec![compact])).unwrap();
        opened.log.maintain().unwrap();
        opened.writer.turn();
        opened.events.take();
    }
    assert!(opened.log.usage().disk_bytes < 5 * u64::from(options.file_bytes), "{:?}", opened.log.usage());
}

/// One message is never consumed, four megabytes pass through the same log.
#[test]
fn one_old_message_pins_one_record_not_the_log() {
    const GROUP: GroupId = GroupId(1);
    let fs = SimFs::new(7);
    let options = small_options();
    let mut opened = open(&fs, options.clone());
    opened.log.accounting_complete();
    let segments = Arc::new(fs.clone());
    let (segments, _) =
        Segments::open(segments, Path::new("data/segments"), IDENTITY.node, SegmentOptions::default()).unwrap();
    let mut old = None;
    let mut segment = None;
    let mut peak = 0;
    for index in 1..=2000u64 {
        let placed = opened.write(submission(1, 2 * index, vec![append(index, 1, vec![index as u8; 2000])])).unwrap();
        if index == 1 {
            let FileKind::Log(file) = placed[0].1.file.kind() else { panic!("in the log") };
            opened.log.retain(file, 2000);
            old = Some((file, placed[0].1));
        }
        opened
            .write(submission(1, 2 * index + 1, vec![Operation::CompactTo { index: Index(index), term: Term(1) }]))
            .unwrap();
        opened.log.maintain().unwrap();
        opened.writer.turn();
        opened.events.take();
        if let (Some(files), Some((file, location))) = (opened.log.copy_out_due(None), old)
            && files.contains(&file)
        {
            let queue = QueueKey(1);
            let survivor = Survivor { queue, sequence: 1, location, head: None, starts_run: false };
            let runs = segments.copy_out(&opened.log, GROUP, vec![survivor]).unwrap();
            segments.adopt([(runs[0].segment, 1)]);
            opened.log.release(file, 2000);
            segment = Some(runs[0].segment);
            old = None;
        }
        peak = peak.max(opened.log.usage().log_bytes);
    }
    assert!(segment.is_some(), "it was copied out");
    let limit = options.slack_bytes + 3 * u64::from(options.file_bytes);
    assert!(peak <= limit, "the log grew to {peak}");
    let location = segments.find(GROUP, QueueKey(1), 1).unwrap().unwrap();
    assert_eq!(segments.read(location).unwrap().body, vec![1; 2000]);
    // And when it is consumed at last, nothing of it remains.
    segments.release(segment.unwrap(), 1);
    segments.delete_dead().unwrap();
    assert_eq!(segments.usage(), (0, 0));
    assert_eq!(segments.find(GROUP, QueueKey(1), 1).unwrap(), None);
}

#[test]
fn tickets_of_one_turn_are_reported_once_per_group() {
    let fs = SimFs::new(8);
    let mut opened = open(&fs, small_options());
    for index in 1..=10 {
        opened.log.submit(submission(1, index, vec![append(index, 1, "a")]));
        opened.log.submit(submission(2, index, vec![append(index, 1, "b")]));
    }
    let syncs = fs.syncs();
    opened.writer.turn();
    assert_eq!(fs.syncs() - syncs, 1, "one sync serves all");
    let events = opened.events.take();
    assert_eq!(events.len(), 2);
    for event in events {
        let Event::Written { up_to, placed, .. } = event else { panic!("{event:?}") };
        assert_eq!((up_to, placed.len()), (Ticket(10), 10));
    }
}
