//! The log over a disk that loses power: whatever was reported as written is there afterwards, bit for bit and in order,
//! and nothing that was reported as truncated, compacted or superseded comes back.
//!
//! Groups submit in order, so what a group finds after a crash must be exactly its state after some submission that is not
//! older than the last one reported. A failing seed is printed; `WARRENMQ_STORAGE_SEED=n` runs that one alone, and
//! `WARRENMQ_STORAGE_SEEDS=n` that many.

mod common;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use bytes::Bytes;
use common::{Event, Events, Model, small_options};
use warrenmq_storage::{
    Entry, FileKind, GroupId, Identity, Index, Location, Log, LogOptions, Operation, SimFault, SimFs, SimRng,
    StorageError, Submission, Term, Ticket, Verify, Writer,
};

const GROUPS: u32 = 3;
/// Each seed loses power about this often.
const CRASHES: u32 = 12;
const DEFAULT_SEEDS: u64 = 250;

/// A group's states after each submission that may be on disk, oldest first; the first is the last one reported.
struct Group {
    states: Vec<(Ticket, Model)>,
    next_ticket: u64,
    term: u64,
    stalled: bool,
}

impl Group {
    fn now(&self) -> &Model {
        &self.states.last().expect("there is always one").1
    }
}

struct Run {
    fs: SimFs,
    rng: SimRng,
    options: LogOptions,
    identity: Identity,
    groups: BTreeMap<GroupId, Group>,
    /// Payloads that a queue still needs, retained in their file.
    live: Vec<(Location, Bytes)>,
}

struct Opened {
    log: Log,
    writer: Writer,
    events: Arc<Events>,
}

const DIR: &str = "data/log";

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = SimRng::new(seed);
        let group = |_| Group { states: vec![(Ticket(0), Model::default())], next_ticket: 1, term: 1, stalled: false };
        Run {
            fs: SimFs::new(rng.next_u64()),
            options: LogOptions { verify: if rng.one_in(2) { Verify::All } else { Verify::Newest }, ..small_options() },
            identity: Identity { node: [7; 16], cluster: [0; 16] },
            groups: (1..=GROUPS).map(|id| (GroupId(id), group(id))).collect(),
            live: Vec::new(),
            rng,
        }
    }

    fn open(&mut self) -> Result<Opened, StorageError> {
        let events = Events::new();
        let (log, writer, _) =
            Log::open(Arc::new(self.fs.clone()), Path::new(DIR), self.identity, self.options.clone(), events.clone())?;
        Ok(Opened { log, writer, events })
    }

    /// Compares what is on disk with what may be, and goes on from there.
    fn check(&mut self, opened: &Opened) {
        for (&id, group) in &mut self.groups {
            let found = Model::read(&opened.log, id).unwrap_or_else(|error| panic!("group {id}: {error}"));
            let Some(at) = group.states.iter().rposition(|(_, state)| *state == found) else {
                let states: Vec<_> = group.states.iter().map(|(ticket, state)| (ticket, summary(state))).collect();
                panic!("group {id}: found {:?}, expected one of {states:?}", summary(&found));
            };
            let ticket = group.states[at].0;
            group.states = vec![(ticket, found)];
            group.stalled = false;
        }
        for (location, payload) in &self.live {
            let FileKind::Log(file) = location.file.kind() else { panic!("only log files here") };
            opened.log.retain(file, needed(payload));
            let read = opened.log.read(*location).unwrap_or_else(|error| panic!("{location:?}: {error}"));
            assert_eq!(read, payload, "{location:?}");
        }
        opened.log.accounting_complete();
    }

    fn submit(&mut self, log: &Log) {
        let id = GroupId(1 + self.rng.below(u64::from(GROUPS)) as u32);
        let group = self.groups.get_mut(&id).expect("all groups exist");
        if std::mem::take(&mut group.stalled) {
            log.resume(id);
        }
        let mut model = group.now().clone();
        let mut operations = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let operation = operation(&mut self.rng, &model, &mut group.term);
            model.apply(&operation);
            operations.push(operation);
        }
        let ticket = Ticket(group.next_ticket);
        group.next_ticket += 1;
        group.states.push((ticket, model));
        let (critical, lazy) = (self.rng.one_in(8), self.rng.one_in(8));
        log.submit(Submission { group: id, ticket, critical, lazy, operations });
    }

    fn take_events(&mut self, opened: &Opened) {
        for event in opened.events.take() {
            match event {
                Event::Written { group, up_to, placed } => {
                    let group = self.groups.get_mut(&group).expect("known");
                    let at =
                        group.states.iter().position(|(ticket, _)| *ticket == up_to).expect("submitted, not failed");
                    group.states.drain(..at);
                    for (index, location) in placed {
                        // What was overwritten in the same turn is of no use to a queue.
                        let Some(at) = index.0.checked_sub(group.now().compacted.0.0 + 1) else { continue };
                        let Some(entry) = group.states[0].1.entries.get(at as usize) else { continue };
                        let read = opened.log.read(location);
                        if self.rng.one_in(6) && read.as_ref().is_ok_and(|read| *read == entry.payload) {
                            let FileKind::Log(file) = location.file.kind() else { panic!("written to the log") };
                            opened.log.retain(file, needed(&entry.payload));
                            self.live.push((location, entry.payload.clone()));
                        }
                    }
                }
                Event::Failed { group, ticket, error } => {
                    let group = self.groups.get_mut(&group).expect("known");
                    match error {
                        StorageError::Full { .. } | StorageError::Io { .. } => {
                            let at = group.states.iter().position(|(known, _)| *known >= ticket);
                            group.states.truncate(at.unwrap_or(group.states.len()));
                            group.stalled = true;
                        }
                        StorageError::Stopped { .. } => {}
                        error => panic!("{error}"),
                    }
                }
            }
        }
    }

    fn release_some(&mut self, log: &Log) {
        while self.live.len() > 20 || (!self.live.is_empty() && self.rng.one_in(4)) {
            let at = self.rng.below(self.live.len() as u64) as usize;
            let (location, payload) = self.live.swap_remove(at);
            let FileKind::Log(file) = location.file.kind() else { panic!("only log files here") };
            log.release(file, needed(&payload));
        }
    }

    /// Works until the power goes or the log stops.
    fn work(&mut self, opened: &mut Opened) {
        if self.rng.one_in(10) {
            self.fs.fail_after(SimFault::Sync, self.rng.below(20));
        }
        if self.rng.one_in(10) {
            self.fs.fail_after(SimFault::Write, self.rng.below(20));
        }
        self.fs.lose_power_after(1 + self.rng.below(150));
        let full_from = self.rng.one_in(3).then(|| self.rng.below(30));
        for step in 0..60 {
            if full_from == Some(step) {
                self.fs.set_capacity(self.fs.used_bytes() + self.rng.below(40 << 10));
            }
            for _ in 0..self.rng.below(4) {
                self.submit(&opened.log);
            }
            opened.writer.turn();
            self.take_events(opened);
            if self.fs.is_without_power() || opened.log.stopped().is_some() {
                break;
            }
            if self.rng.one_in(4) {
                opened.writer.idle();
            }
            self.release_some(&opened.log);
            if self.rng.one_in(2) {
                let _ = opened.log.maintain();
            }
            if full_from.is_some_and(|from| step == from + 10) {
                self.fs.set_capacity(1 << 40);
            }
        }
        self.fs.set_capacity(1 << 40);
    }
}

/// An empty body needs its place, too.
fn needed(payload: &Bytes) -> u64 {
    payload.len().max(1) as u64
}

fn summary(model: &Model) -> (Index, Vec<(Term, usize)>, Bytes) {
    let entries = model.entries.iter().map(|entry| (entry.term, entry.payload.len())).collect();
    (model.compacted.0, entries, model.hard_state.clone())
}

fn operation(rng: &mut SimRng, model: &Model, term: &mut u64) -> Operation {
    let (first, last) = (model.compacted.0, model.last());
    let some_index = |rng: &mut SimRng| Index(first.0 + 1 + rng.below(last.0 - first.0));
    match rng.below(20) {
        0 | 1 if last > first => {
            let index = some_index(rng);
            Operation::CompactTo { index, term: model.term(index) }
        }
        2 if last > first => Operation::Truncate { from: some_index(rng) },
        3 if last > first => {
            *term += 1;
            let index = some_index(rng);
            entry(rng, index, *term)
        }
        4 if rng.one_in(4) => {
            *term += 1;
            Operation::SnapshotMark { index: Index(last.0 + rng.below(5)), term: Term(*term) }
        }
        5 if rng.one_in(10) => Operation::Forget,
        6..8 => Operation::HardState(Bytes::from(rng.next_u64().to_le_bytes().to_vec())),
        _ => entry(rng, last.next(), *term),
    }
}

fn entry(rng: &mut SimRng, index: Index, term: u64) -> Operation {
    let length = match rng.below(40) {
        // Larger than a file of the log.
        0 => (32 << 10) + rng.below(20 << 10),
        1..8 => rng.below(3000),
        _ => rng.below(200),
    };
    let seed = rng.next_u64();
    let payload: Vec<u8> = (0..length).map(|at| (seed >> (at % 57)) as u8).collect();
    Operation::Append(Entry { index, term: Term(term), tag: seed as u8, payload: payload.into() })
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..CRASHES {
        // Power may go while the log opens, too.
        if run.rng.one_in(6) {
            run.fs.lose_power_after(run.rng.below(12));
            let opened = run.open();
            if run.fs.is_without_power() {
                drop(opened);
                run.fs.lose_power();
            } else {
                drop(opened);
                run.fs.kill_process();
            }
            run.fs.clear_faults();
        }
        let mut opened = match run.open() {
            Ok(opened) => opened,
            Err(error) => panic!("{error}"),
        };
        run.check(&opened);
        run.work(&mut opened);
        run.fs.clear_faults();
        if run.rng.one_in(4) { run.fs.kill_process() } else { run.fs.lose_power() }
    }
}

#[test]
fn what_was_reported_survives_power_loss() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = match number("WARRENMQ_STORAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WARRENMQ_STORAGE_SEEDS").unwrap_or(DEFAULT_SEEDS),
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("replay with WARRENMQ_STORAGE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
