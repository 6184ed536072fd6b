//! The whole store under power loss, used as a shard uses it: bodies in the log, copied out into segments, segments
//! rewritten, state snapshots, compaction. After each crash a shard that restores its last snapshot and replays the log has
//! exactly the messages that its operations left alive, each with its body.
//!
//! A failing seed is printed; `WARRENMQ_STORAGE_SEED=n` runs that one alone, `WARRENMQ_STORAGE_SEEDS=n` that many.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use common::{Event, Events, append, small_options, submission};
use warrenmq_storage::{
    Alive, FileKind, FileNumber, GroupId, HEAD_BYTES, Index, Interval, Location, Operation, QueueKey, Run,
    SegmentNumber, SegmentOptions, SimFs, SimRng, StorageError, Store, StoreOptions, Survivor, Term, Writer,
};

const GROUP: GroupId = GroupId(1);
const QUEUES: u64 = 3;
const CRASHES: u32 = 10;
const DEFAULT_SEEDS: u64 = 60;

#[derive(Clone, Debug)]
enum Op {
    Enqueue { queue: u64, sequence: u64, body: Bytes },
    Remove { queue: u64, sequence: u64 },
}

/// Queue and sequence before the body, or before nothing.
const OP_BYTES: usize = 17;

impl Op {
    fn encode(&self) -> Vec<u8> {
        let (kind, queue, sequence, body) = match self {
            Op::Enqueue { queue, sequence, body } => (1, queue, sequence, &body[..]),
            Op::Remove { queue, sequence } => (2, queue, sequence, &[][..]),
        };
        [&[kind], &queue.to_le_bytes()[..], &sequence.to_le_bytes()[..], body].concat()
    }

    fn decode(bytes: &[u8]) -> Op {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (queue, sequence) = (number(1), number(9));
        match bytes[0] {
            1 => Op::Enqueue { queue, sequence, body: Bytes::copy_from_slice(&bytes[OP_BYTES..]) },
            _ => Op::Remove { queue, sequence },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Log(Location),
    Segment(SegmentNumber),
}

/// A shard as the broker will have one: what is alive, and where.
#[derive(Default)]
struct Shard {
    applied: u64,
    live: BTreeMap<(u64, u64), Place>,
}

impl Shard {
    fn apply(&mut self, store: &Store, index: Index, op: &Op, location: Location) {
        assert_eq!(index.0, self.applied + 1, "entries come in order");
        self.applied = index.0;
        match op {
            Op::Enqueue { queue, sequence, body } => {
                let place = location.slice(OP_BYTES as u32, body.len() as u32);
                store.log.retain(log_file(place), needed(place));
                self.live.insert((*queue, *sequence), Place::Log(place));
            }
            Op::Remove { queue, sequence } => match self.live.remove(&(*queue, *sequence)) {
                Some(Place::Log(place)) => store.log.release(log_file(place), needed(place)),
                Some(Place::Segment(segment)) => store.segments.release(segment, 1),
                None => panic!("removed twice: {queue} {sequence}"),
            },
        }
    }

    fn in_segments(&self, queue: QueueKey) -> Vec<Interval> {
        let mut intervals: Vec<Interval> = Vec::new();
        for (&(_, sequence), place) in self.live.range((queue.0, 0)..=(queue.0, u64::MAX)) {
            if let Place::Segment(_) = place {
                intervals.push(Interval { first: sequence, last: sequence });
            }
        }
        intervals
    }

    fn move_to(&mut self, store: &Store, runs: &[Run], candidates: &BTreeSet<(u64, u64)>) {
        let mut alive: BTreeMap<SegmentNumber, u64> = BTreeMap::new();
        for run in runs {
            alive.entry(run.segment).or_default();
            for (key, place) in self.live.range_mut((run.queue.0, run.first)..=(run.queue.0, run.last)) {
                if !candidates.contains(key) {
                    continue;
                }
                if let Place::Log(old) = *place {
                    store.log.release(log_file(old), needed(old));
                }
                *place = Place::Segment(run.segment);
                *alive.get_mut(&run.segment).unwrap() += 1;
            }
        }
        store.segments.adopt(alive);
    }

    fn snapshot(&self) -> Bytes {
        let mut bytes = self.applied.to_le_bytes().to_vec();
        for (&(queue, sequence), place) in &self.live {
            bytes.extend_from_slice(&queue.to_le_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
            let place = match *place {
                Place::Log(place) => place,
                Place::Segment(segment) => {
                    Location { file: warrenmq_storage::FileId::segment(segment), offset: 0, length: 0 }
                }
            };
            bytes.extend_from_slice(&place.to_bytes());
        }
        bytes.into()
    }

    /// The last snapshot, then the log behind it; then every message is looked for where it says it is, or in segments.
    fn restore(store: &Store) -> Result<Shard, StorageError> {
        let mut shard = Shard::default();
        let mut live: BTreeMap<(u64, u64), Location> = BTreeMap::new();
        if let Some(loaded) = store.snapshots.load("shard-1")? {
            let bytes = &loaded.contents[..];
            shard.applied = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            for row in bytes[8..].chunks(32) {
                let number = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
                live.insert((number(0), number(8)), Location::from_bytes(row[16..].try_into().unwrap()));
            }
        }
        loop {
            let entries = store.log.entries(GROUP, Index(shard.applied + 1), 10_000)?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                shard.applied = entry.index.0;
                match Op::decode(&entry.payload) {
                    Op::Enqueue { queue, sequence, body } => {
                        live.insert((queue, sequence), entry.location.slice(OP_BYTES as u32, body.len() as u32));
                    }
                    Op::Remove { queue, sequence } => {
                        live.remove(&(queue, sequence));
                    }
                }
            }
        }
        for ((queue, sequence), location) in live {
            let place = match location.file.kind() {
                FileKind::Log(file) if file >= store.log.oldest_file() => {
                    store.log.retain(file, needed(location));
                    Place::Log(location)
                }
                _ => {
                    let found = store.segments.find(GROUP, QueueKey(queue), sequence)?;
                    let found = found.unwrap_or_else(|| panic!("message {queue}/{sequence} of {location:?} is lost"));
                    let FileKind::Segment(segment) = found.file.kind() else { panic!("found in a segment") };
                    Place::Segment(segment)
                }
            };
            shard.live.insert((queue, sequence), place);
        }
        store.segments.recount(GROUP, &mut |queue| shard.in_segments(queue))?;
        store.log.accounting_complete();
        Ok(shard)
    }
}

/// What every third message has in front of its body in a segment.
fn head(sequence: u64) -> Option<[u8; HEAD_BYTES]> {
    sequence.is_multiple_of(3).then_some([sequence as u8; HEAD_BYTES])
}

fn log_file(location: Location) -> FileNumber {
    let FileKind::Log(file) = location.file.kind() else { panic!("not in the log: {location:?}") };
    file
}

fn needed(location: Location) -> u64 {
    u64::from(location.length.max(1))
}

struct Run_ {
    fs: SimFs,
    rng: SimRng,
    /// All operations that may be on disk, by index from 1, and what they leave alive.
    ops: Vec<Op>,
    alive: BTreeMap<(u64, u64), Bytes>,
    confirmed: u64,
    next_ticket: u64,
    next_sequence: u64,
    copied: u64,
    rewritten: u64,
}

impl Run_ {
    fn open(&self) -> Result<(Store, Writer, Arc<Events>), StorageError> {
        let events = Events::new();
        let options = StoreOptions {
            log: warrenmq_storage::LogOptions { budget_bytes: 96 << 10, slack_bytes: 32 << 10, ..small_options() },
            segments: SegmentOptions { segment_bytes: 16 << 10, merge_files: 4, accept_damage: false },
        };
        let (store, writer, _) = Store::open(Arc::new(self.fs.clone()), Path::new("data"), options, events.clone())?;
        Ok((store, writer, events))
    }

    fn note(&mut self, op: &Op) {
        match op {
            Op::Enqueue { queue, sequence, body } => self.alive.insert((*queue, *sequence), body.clone()),
            Op::Remove { queue, sequence } => self.alive.remove(&(*queue, *sequence)),
        };
    }

    fn check(&mut self, store: &Store, shard: &Shard) {
        assert!(shard.applied >= self.confirmed, "confirmed up to {}, found {}", self.confirmed, shard.applied);
        self.ops.truncate(shard.applied as usize);
        self.confirmed = shard.applied;
        self.alive.clear();
        self.ops.clone().iter().for_each(|op| self.note(op));
        let expected = &self.alive;
        assert!(expected.keys().eq(shard.live.keys()), "{:?} {:?}", expected.keys(), shard.live.keys());
        for (&(queue, sequence), body) in expected {
            let found = match shard.live[&(queue, sequence)] {
                Place::Log(location) => store.log.read(location).unwrap().to_vec(),
                Place::Segment(segment) => {
                    let location = store.segments.find(GROUP, QueueKey(queue), sequence).unwrap().unwrap();
                    assert!(matches!(location.file.kind(), FileKind::Segment(_)), "{segment}");
                    let body = store.segments.read(location).unwrap().body;
                    let head = head(sequence).map_or(0, |head| {
                        assert!(body.starts_with(&head), "{queue}/{sequence}");
                        head.len()
                    });
                    body.slice(head..).to_vec()
                }
            };
            assert_eq!(found, &body[..], "{queue}/{sequence}");
        }
        for queue in 1..=QUEUES {
            let messages = store.segments.read_queue(GROUP, QueueKey(queue), 0, u64::MAX).unwrap();
            assert!(messages.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "in order, each once");
        }
    }

    fn submit(&mut self, store: &Store) {
        let mut operations = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let keep = 20 + self.rng.below(60) as usize;
            let op = if self.alive.len() > keep || (!self.alive.is_empty() && self.rng.one_in(3)) {
                // Queue 1 is nearly never consumed: the old message that must not pin the disk.
                let choice: Vec<_> = self.alive.keys().filter(|key| key.0 != 1 || key.1 % 7 == 0).collect();
                let at = self.rng.below(choice.len().max(1) as u64) as usize;
                let Some(&&(queue, sequence)) = choice.get(at) else { continue };
                Op::Remove { queue, sequence }
            } else {
                self.next_sequence += 1;
                let queue = if self.rng.one_in(12) { 1 } else { 2 + self.rng.below(QUEUES - 1) };
                let sequence = self.next_sequence;
                let body = vec![sequence as u8; self.rng.below(1200) as usize];
                Op::Enqueue { queue, sequence, body: body.into() }
            };
            self.note(&op);
            self.ops.push(op.clone());
            operations.push(append(self.ops.len() as u64, 1, op.encode()));
        }
        self.next_ticket += 1;
        store.log.submit(submission(GROUP.0, self.next_ticket, operations));
    }

    fn take_events(&mut self, store: &Store, shard: &mut Shard, events: &Events) {
        for event in events.take() {
            match event {
                Event::Written { placed, .. } => {
                    for (index, location) in placed {
                        self.confirmed = index.0;
                        shard.apply(store, index, &self.ops[index.0 as usize - 1], location);
                    }
                }
                Event::Failed { error: StorageError::Stopped { .. } | StorageError::Io { .. }, .. }
                    if self.fs.is_without_power() => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }

    fn work(
        &mut self,
        store: &Store,
        writer: &mut Writer,
        events: &Events,
        shard: &mut Shard,
    ) -> Result<(), StorageError> {
        self.fs.lose_power_after(20 + self.rng.below(400));
        for _ in 0..80 {
            for _ in 0..self.rng.below(4) {
                self.submit(store);
            }
            writer.turn();
            self.take_events(store, shard, events);
            if self.fs.is_without_power() {
                return Ok(());
            }
            if self.rng.one_in(5) {
                store.snapshots.store("shard-1", &[shard.snapshot()])?;
                if shard.applied > 0 {
                    self.next_ticket += 1;
                    let compact = Operation::CompactTo { index: Index(shard.applied), term: Term(1) };
                    store.log.submit(submission(GROUP.0, self.next_ticket, vec![compact]));
                }
            }
            if self.rng.one_in(3) {
                store.log.maintain()?;
                store.segments.delete_dead()?;
            }
            if let Some(files) = store.log.copy_out_due(None) {
                let survivors = shard.live.iter().filter_map(|(&(queue, sequence), place)| match *place {
                    Place::Log(location) if files.contains(&log_file(location)) => {
                        let (queue, starts_run) = (QueueKey(queue), sequence.is_multiple_of(5));
                        Some(Survivor { queue, sequence, location, head: head(sequence), starts_run })
                    }
                    _ => None,
                });
                let survivors: Vec<_> = survivors.collect();
                let keys: BTreeSet<_> =
                    survivors.iter().map(|survivor| (survivor.queue.0, survivor.sequence)).collect();
                self.copied += survivors.len() as u64;
                let runs = store.segments.copy_out(&store.log, GROUP, survivors)?;
                let inner = |run: &Run| {
                    (run.first + 1..=run.last).any(|at| at.is_multiple_of(5) && keys.contains(&(run.queue.0, at)))
                };
                assert!(!runs.iter().any(inner), "no run goes over the start of one: {runs:?}");
                // Life goes on while the copy is made.
                self.submit(store);
                writer.turn();
                self.take_events(store, shard, events);
                shard.move_to(store, &runs, &keys);
            }
            let due: Vec<_> = store.segments.rewrite_due(GROUP).into_iter().map(|(segment, _)| segment).collect();
            if !due.is_empty() && self.rng.one_in(2) {
                let in_due = |place: &Place| matches!(place, Place::Segment(segment) if due.contains(segment));
                let keys = shard.live.iter().filter(|(_, place)| in_due(place)).map(|(key, _)| *key).collect();
                let runs = store.segments.rewrite(GROUP, &due, &mut |queue| {
                    let all = shard.live.range((queue.0, 0)..=(queue.0, u64::MAX));
                    let inside = all.filter(|(_, place)| in_due(place));
                    let sequences: Vec<u64> = inside.map(|(&(_, sequence), _)| sequence).collect();
                    Alive {
                        intervals: sequences.iter().map(|&first| Interval { first, last: first }).collect(),
                        starts: sequences.into_iter().filter(|&sequence| sequence.is_multiple_of(5)).collect(),
                    }
                })?;
                self.rewritten += 1;
                shard.move_to(store, &runs, &keys);
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> (u64, u64) {
    let mut rng = SimRng::new(seed);
    let mut run = Run_ {
        fs: SimFs::new(rng.next_u64()),
        rng,
        ops: Vec::new(),
        alive: BTreeMap::new(),
        confirmed: 0,
        next_ticket: 0,
        next_sequence: 0,
        copied: 0,
        rewritten: 0,
    };
    for _ in 0..CRASHES {
        let (store, mut writer, events) = run.open().unwrap_or_else(|error| panic!("{error}"));
        let mut shard = Shard::restore(&store).unwrap_or_else(|error| panic!("{error}"));
        run.check(&store, &shard);
        match run.work(&store, &mut writer, &events, &mut shard) {
            Err(error) if !run.fs.is_without_power() => panic!("{error}"),
            _ => {}
        }
        drop((store, writer));
        run.fs.clear_faults();
        if run.rng.one_in(4) { run.fs.kill_process() } else { run.fs.lose_power() }
    }
    (run.copied, run.rewritten)
}

#[test]
fn messages_survive_copy_out_rewrite_and_snapshots_under_power_loss() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = match number("WARRENMQ_STORAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WARRENMQ_STORAGE_SEEDS").unwrap_or(DEFAULT_SEEDS),
    };
    let (mut copied, mut rewritten) = (0, 0);
    for seed in seeds.clone() {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(counts) => (copied, rewritten) = (copied + counts.0, rewritten + counts.1),
            Err(panic) => {
                eprintln!("replay with WARRENMQ_STORAGE_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let runs = seeds.end - seeds.start;
    assert!(runs < 10 || (copied > runs && rewritten > runs), "the test tests: {copied} copied, {rewritten} rewritten");
}
