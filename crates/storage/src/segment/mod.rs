//! Segments: where bodies live that outlived their log file.
//!
//! A segment belongs to a group and holds messages of its queues, sorted by queue and sequence; so all that a queue has in
//! a segment is one *run*, and an untouched backlog needs no record per message in memory. Messages arrive in two ways:
//! copied out of the oldest log files ([`Segments::copy_out`]), or out of segments that are mostly dead
//! ([`Segments::rewrite`]). Both write new files first; then the shard, at one moment of its own choosing, moves its queues
//! to the new places and says with [`Segments::adopt`] how much is alive in them. A segment with nothing alive is
//! deleted.
//!
//! After a start nothing is known to be alive: each shard restores its queues and calls [`Segments::recount`].

pub mod format;

mod reading;
mod rewriting;
mod writer;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::{
    error::{Damage, StorageError},
    fs::{FileSystem, read_up_to},
    interval::{self, Interval},
    types::{GroupId, Location, QueueKey, SegmentNumber},
};

pub use reading::Message;
pub use rewriting::RUN_BYTES;

use format::{
    SEGMENT_FORMAT, SEGMENT_HEADER_BYTES, SEGMENT_RECORD_BYTES, SegmentFault, SegmentHeader, SegmentIndex,
    SegmentRecord,
};

/// How segments are written. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// A segment ends when it has this size: large enough for few files (1,600 for 100 GB), small enough to rewrite at once.
    pub segment_bytes: u32,
    /// Segments smaller than a quarter of that are merged when a group has so many of them.
    pub merge_files: usize,
    /// Open in spite of damage; what is lost is reported.
    pub accept_damage: bool,
}

impl Default for SegmentOptions {
    fn default() -> SegmentOptions {
        SegmentOptions { segment_bytes: 64 << 20, merge_files: 8, accept_damage: false }
    }
}

/// Length of a [`Survivor`]'s head.
pub const HEAD_BYTES: usize = 14;

/// A message to be copied out of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its queue.
    pub queue: QueueKey,
    /// Its sequence in the queue.
    pub sequence: u64,
    /// Its body, in the log.
    pub location: Location,
    /// Put before the body: what the owner must know to take it apart.
    pub head: Option<[u8; HEAD_BYTES]>,
    /// A run of its own begins here: none goes over this boundary.
    pub starts_run: bool,
}

/// Where runs of a queue are to begin, and which of its sequences are alive, when segments are rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Sequences, sorted and disjoint. Two that touch are two runs.
    pub intervals: Vec<Interval>,
    /// Sequences at which a run of its own begins, sorted.
    pub starts: Vec<u64>,
}

/// What a queue has in one segment, or a part of it: sequences from first to last, perhaps with gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The queue.
    pub queue: QueueKey,
    /// The lowest sequence.
    pub first: u64,
    /// The highest sequence.
    pub last: u64,
    /// Number of messages, dead ones included.
    pub count: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The segment.
    pub segment: SegmentNumber,
}

/// What opening the segments found to mend or to report.
#[derive(Clone, Debug, Default)]
pub struct SegmentsRecovered {
    /// Segments.
    pub segments: usize,
    /// Files whose index was rebuilt from the records, without a loss.
    pub rebuilt: Vec<PathBuf>,
    /// Damage that was accepted.
    pub damage: Vec<Damage>,
}

/// The segments of a node. Cheap to clone.
#[derive(Clone)]
pub struct Segments {
    shared: Arc<Shared>,
}

struct Shared {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    node: [u8; 16],
    options: SegmentOptions,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    segments: BTreeMap<SegmentNumber, Segment>,
    /// Which segments have something of a queue.
    of_queue: BTreeMap<(GroupId, QueueKey), Vec<SegmentNumber>>,
    next_number: u64,
}

struct Segment {
    group: GroupId,
    records: u64,
    /// Messages alive; `None` until somebody has counted.
    live: Option<u64>,
    bytes: u64,
    runs: Vec<KnownRun>,
}

/// A run as kept in memory.
struct KnownRun {
    run: Run,
    end: u32,
    points: Vec<(u64, u32)>,
}

/// `00000000000000000001.segment`
fn segment_path(dir: &Path, number: SegmentNumber) -> PathBuf {
    dir.join(format!("{:020}.segment", number.0))
}

/// Higher numbers are not ours.
const MAX_SEGMENT_NUMBER: u64 = 1 << 62;

fn parse_name(name: &str) -> Option<SegmentNumber> {
    let digits = name.strip_suffix(".segment")?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| canonical)?;
    (number <= MAX_SEGMENT_NUMBER).then_some(SegmentNumber(number))
}

impl Segments {
    /// Opens the segments in `dir`, which the caller has locked.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        node: [u8; 16],
        options: SegmentOptions,
    ) -> Result<(Segments, SegmentsRecovered), StorageError> {
        fs.create_dir(dir).map_err(StorageError::io("create", dir))?;
        let mut recovered = SegmentsRecovered::default();
        let mut state = State { next_number: 1, ..State::default() };
        let mut replaced = Vec::new();
        for listed in fs.list(dir).map_err(StorageError::io("list", dir))? {
            let path = dir.join(&listed.name);
            if listed.name.ends_with(".new") {
                fs.remove(&path).map_err(StorageError::io("remove", &path))?;
                continue;
            }
            let Some(number) = parse_name(&listed.name) else { continue };
            state.next_number = state.next_number.max(number.0 + 1);
            let loaded = load(&*fs, &path, number, listed.bytes, node)?;
            if loaded.rebuilt {
                tracing::warn!(file = %path.display(), "rebuilt the index of a segment from its records");
                recovered.rebuilt.push(path.clone());
            }
            if let Some(damage) = loaded.damage {
                if !options.accept_damage {
                    return Err(StorageError::Damaged(Arc::new(damage)));
                }
                tracing::error!(file = %path.display(), lost = %damage.lost, "opened a damaged segment");
                recovered.damage.push(damage);
            }
            replaced.extend_from_slice(&loaded.index.replaces);
            if let Some(group) = loaded.group {
                state.add(number, group, listed.bytes, loaded.index);
            }
        }
        for number in replaced {
            if state.remove(number) {
                let path = segment_path(dir, number);
                fs.remove(&path).map_err(StorageError::io("remove", &path))?;
            }
        }
        recovered.segments = state.segments.len();
        let shared = Shared { fs, dir: dir.to_path_buf(), node, options, state: RwLock::new(state) };
        Ok((Segments { shared: Arc::new(shared) }, recovered))
    }

    /// What a queue has in segments, by first sequence.
    pub fn runs(&self, group: GroupId, queue: QueueKey) -> Vec<Run> {
        let state = self.shared.state.read();
        let numbers = state.of_queue.get(&(group, queue)).map(Vec::as_slice).unwrap_or_default();
        let runs = numbers.iter().filter_map(|number| state.segments[number].run(queue).map(|known| known.run));
        let mut runs: Vec<Run> = runs.collect();
        runs.sort_by_key(|run| (run.first, run.segment));
        runs
    }

    /// The group's segments, oldest first.
    pub fn of_group(&self, group: GroupId) -> Vec<SegmentNumber> {
        let state = self.shared.state.read();
        state.segments.iter().filter(|(_, segment)| segment.group == group).map(|(&number, _)| number).collect()
    }

    /// Messages of a segment are dead. Ignored if the segment is gone or not counted yet.
    ///
    /// # Panics
    /// If more die than were alive: the next step would be to lose one.
    pub fn release(&self, segment: SegmentNumber, messages: u64) {
        let mut state = self.shared.state.write();
        if let Some(live) = state.segments.get_mut(&segment).and_then(|segment| segment.live.as_mut()) {
            assert!(*live >= messages, "segment {segment}: {messages} messages released of {live}");
            *live -= messages;
        }
    }

    /// Counts what is alive in the group's segments: after a start, or whenever the shard wants to be sure. `live` says which
    /// sequences of a queue are alive *and* are to be found in segments, sorted and disjoint.
    pub fn recount(&self, group: GroupId, live: &mut dyn FnMut(QueueKey) -> Vec<Interval>) -> Result<(), StorageError> {
        self.count(&self.of_group(group), live)
    }

    /// Says how many messages are alive in segments, which are deletable from then on. Those of the caller's that are not
    /// named keep their count.
    pub fn adopt(&self, alive: impl IntoIterator<Item = (SegmentNumber, u64)>) {
        let mut state = self.shared.state.write();
        for (number, alive) in alive {
            if let Some(segment) = state.segments.get_mut(&number) {
                segment.live = Some(alive);
            }
        }
    }

    /// Whether there is such a segment, of this group.
    pub fn has(&self, group: GroupId, number: SegmentNumber) -> bool {
        self.shared.state.read().segments.get(&number).is_some_and(|segment| segment.group == group)
    }

    /// A segment's index, read from disk: which sequences of which queues it has.
    ///
    /// # Errors
    /// `Gone` if there is no such segment; a file that cannot be read.
    pub fn index(&self, number: SegmentNumber) -> Result<SegmentIndex, StorageError> {
        self.shared.index(number)
    }

    fn count(
        &self,
        numbers: &[SegmentNumber],
        live: &mut dyn FnMut(QueueKey) -> Vec<Interval>,
    ) -> Result<(), StorageError> {
        for &number in numbers {
            let index = self.shared.index(number)?;
            let of_run = |run: &format::IndexRun| interval::common(&run.intervals, &live(run.queue));
            let alive = index.runs.iter().map(of_run).sum();
            if let Some(segment) = self.shared.state.write().segments.get_mut(&number) {
                segment.live = Some(alive);
            }
        }
        Ok(())
    }

    /// Whether there are segments with nothing alive.
    pub fn has_dead(&self) -> bool {
        self.shared.state.read().segments.values().any(|segment| segment.live == Some(0))
    }

    /// Deletes segments with nothing alive. Returns how many.
    pub fn delete_dead(&self) -> Result<usize, StorageError> {
        let dead: Vec<SegmentNumber> = {
            let state = self.shared.state.read();
            state.segments.iter().filter(|(_, segment)| segment.live == Some(0)).map(|(&number, _)| number).collect()
        };
        for &number in &dead {
            self.shared.delete(number)?;
        }
        Ok(dead.len())
    }

    /// The group leaves this node: its segments are deleted.
    pub fn forget(&self, group: GroupId) -> Result<(), StorageError> {
        self.of_group(group).into_iter().try_for_each(|number| self.shared.delete(number))
    }

    /// Bytes on disk, and messages alive where counted.
    pub fn usage(&self) -> (u64, u64) {
        let state = self.shared.state.read();
        let live = state.segments.values().filter_map(|segment| segment.live).sum();
        (state.segments.values().map(|segment| segment.bytes).sum(), live)
    }
}

impl Shared {
    fn delete(&self, number: SegmentNumber) -> Result<(), StorageError> {
        if self.state.write().remove(number) {
            let path = segment_path(&self.dir, number);
            self.fs.remove(&path).map_err(StorageError::io("remove", path))?;
        }
        Ok(())
    }

    /// Reads a segment's index from disk: the intervals are not kept in memory.
    fn index(&self, number: SegmentNumber) -> Result<SegmentIndex, StorageError> {
        let path = segment_path(&self.dir, number);
        let file = self.fs.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StorageError::Gone { what: format!("segment {number}") },
            _ => StorageError::io("open", &path)(error),
        })?;
        let size = file.size().map_err(StorageError::io("read", &path))?;
        Ok(load(&*self.fs, &path, number, size, self.node)?.index)
    }
}

impl State {
    fn add(&mut self, number: SegmentNumber, group: GroupId, bytes: u64, index: SegmentIndex) {
        let mut runs = Vec::with_capacity(index.runs.len());
        for run in index.runs {
            self.of_queue.entry((group, run.queue)).or_default().push(number);
            let (queue, first, last, count) = (run.queue, run.first(), run.last(), run.count());
            let start = run.points.first().map_or(run.end, |&(_, offset)| offset);
            let bytes = u64::from(run.end.saturating_sub(start))
                .saturating_sub(count.saturating_mul(SEGMENT_RECORD_BYTES as u64));
            let run_known = Run { queue, first, last, count, bytes, segment: number };
            runs.push(KnownRun { run: run_known, end: run.end, points: run.points });
        }
        let records = runs.iter().map(|known| known.run.count).sum();
        self.segments.insert(number, Segment { group, records, live: None, bytes, runs });
    }

    fn remove(&mut self, number: SegmentNumber) -> bool {
        let Some(segment) = self.segments.remove(&number) else { return false };
        for known in &segment.runs {
            let key = (segment.group, known.run.queue);
            if let Some(numbers) = self.of_queue.get_mut(&key) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.of_queue.remove(&key);
                }
            }
        }
        true
    }
}

impl Segment {
    fn run(&self, queue: QueueKey) -> Option<&KnownRun> {
        let at = self.runs.binary_search_by_key(&queue, |known| known.run.queue).ok()?;
        self.runs.get(at)
    }
}

/// A segment as found on disk.
struct Loaded {
    /// `None` if nothing of it is readable.
    group: Option<GroupId>,
    index: SegmentIndex,
    rebuilt: bool,
    damage: Option<Damage>,
}

fn load(
    fs: &dyn FileSystem,
    path: &Path,
    number: SegmentNumber,
    size: u64,
    node: [u8; 16],
) -> Result<Loaded, StorageError> {
    let file = fs.open(path).map_err(StorageError::io("open", path))?;
    let read = |offset, length| read_up_to(&*file, offset, length).map_err(StorageError::io("read", path));
    let header = match SegmentHeader::decode(&read(0, SEGMENT_HEADER_BYTES)?) {
        Ok(header) if header.node != node => return Err(StorageError::Foreign { file: path.to_path_buf() }),
        Ok(header) if header.number == number => header,
        Err(SegmentFault::Newer(found)) => {
            return Err(StorageError::NewerFormat { file: path.to_path_buf(), found, supported: SEGMENT_FORMAT });
        }
        _ => {
            let lost = "the header, and with it which group the messages are of".into();
            let damage = Some(Damage { file: path.to_path_buf(), offset: 0, lost });
            return Ok(Loaded { group: None, index: SegmentIndex::default(), rebuilt: false, damage });
        }
    };
    let group = Some(header.group);
    let index_end = u64::from(header.records_end) + u64::from(header.index_length);
    if index_end <= size {
        let bytes = read(u64::from(header.records_end), header.index_length as usize)?;
        if crc32c::crc32c(&bytes) == header.index_crc
            && let Ok(index) = SegmentIndex::decode(&bytes)
            && index.count() == u64::from(header.records)
        {
            return Ok(Loaded { group, index, rebuilt: false, damage: None });
        }
    }
    // Rebuild from the records, up to the first bad one.
    let bytes = read(0, size.min(u64::from(header.records_end)) as usize)?;
    let mut index = SegmentIndex::default();
    let mut offset = SEGMENT_HEADER_BYTES;
    let mut records = 0;
    while let Ok(record) = SegmentRecord::decode(bytes.get(offset..).unwrap_or_default(), number) {
        if !index.add(record.queue, record.sequence, offset as u32, record.encoded_length() as u32) {
            break;
        }
        offset += record.encoded_length();
        records += 1;
    }
    let missing = header.records - records.min(header.records);
    let damage = (missing > 0).then(|| Damage {
        file: path.to_path_buf(),
        offset: offset as u64,
        lost: format!("{missing} of {} messages", header.records),
    });
    Ok(Loaded { group, index, rebuilt: missing == 0, damage })
}
