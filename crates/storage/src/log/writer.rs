//! The writing side: one turn takes all that was submitted, writes it as few frames, syncs once, and reports.
//!
//! What a turn must never do: report what is not synced; leave half of a submission; write a submission of a group after
//! one that failed; write anything after a failed write or sync.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Completion, Entry, Message, Operation, Placed, Shared, Submission, Written,
    builder::{Done, FrameBuilder},
    files::{LogFile, log_path},
    frame::{FRAME_ALIGNMENT, FRAME_HEADER_BYTES},
    header::{FileHeader, HEADER_BYTES, MAX_FILE_BYTES},
    index::FramePlace,
    pool::FreeFile,
    record::{MAX_HARD_STATE_BYTES, Record},
};
use crate::{
    error::StorageError,
    fs::{File, FileSystem},
    types::{FileNumber, FrameNumber, GroupId, Index, Ticket},
};

/// After so long without work the writer adds an empty frame, whose presence proves that the one before was synced.
const IDLE: Duration = Duration::from_millis(50);

/// Room kept at the end of each file for the frame that names the next one.
const SEAL_BYTES: u32 = 2 * FRAME_HEADER_BYTES;

/// What of a file is not for submissions at most, but for the groups' states in its first frame.
const FILE_OVERHEAD: u32 = HEADER_BYTES + 2 * (FRAME_HEADER_BYTES + FRAME_ALIGNMENT) + SEAL_BYTES;

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing was submitted.
    Idle,
    /// Something was, and has been reported.
    Worked,
    /// The log was closed and everything submitted before has been reported.
    Closed,
}

/// The writing side of the log.
pub struct Writer {
    shared: Arc<Shared>,
    completion: Arc<dyn Completion>,
    file: CurrentFile,
    next_frame: FrameNumber,
    session: u32,
    session_begun: bool,
    /// The last frame is an empty one, or there is none yet: nothing to prove.
    proven: bool,
    /// Groups with a submission that failed, and why: nothing more of them until they resume.
    stalled: BTreeMap<GroupId, StorageError>,
    /// Groups as they will be when all that is written is synced.
    planned: BTreeMap<GroupId, Plan>,
    frame: FrameBuilder,
    /// Frames written since the last sync.
    unsynced: Vec<UnsyncedFrame>,
}

pub(super) struct CurrentFile {
    pub(super) number: FileNumber,
    pub(super) file: Arc<dyn File>,
    pub(super) path: PathBuf,
    pub(super) salt: u64,
    pub(super) capacity: u32,
    pub(super) end: u32,
    pub(super) synced: u32,
}

impl CurrentFile {
    pub(super) fn again(&self) -> CurrentFile {
        CurrentFile { file: self.file.clone(), path: self.path.clone(), ..*self }
    }
}

/// How far a group's log goes, for the order of submissions.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    compacted: Index,
    last: Index,
}

struct UnsyncedFrame {
    offset: u32,
    length: u32,
    records: Vec<Record>,
    done: Vec<Done>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        completion: Arc<dyn Completion>,
        file: CurrentFile,
        next_frame: FrameNumber,
        session: u32,
    ) -> Writer {
        // A crash may have left a file whose first frame was torn off.
        let frame = if file.end == HEADER_BYTES { first_frame(&shared) } else { FrameBuilder::default() };
        Writer {
            shared,
            completion,
            file,
            next_frame,
            session,
            session_begun: false,
            proven: false,
            stalled: BTreeMap::new(),
            planned: BTreeMap::new(),
            frame,
            unsynced: Vec::new(),
        }
    }

    /// Works until the log is closed: the writer thread.
    pub fn run(&mut self) {
        loop {
            if self.wait_for_work() {
                if self.turn() == Turn::Closed {
                    return;
                }
            } else {
                self.idle();
            }
        }
    }

    /// Sleeps until there is something to write. Returns false after [`IDLE`] without, if the last frame is unproven.
    fn wait_for_work(&self) -> bool {
        let mut inbox = self.shared.inbox.lock();
        while inbox.messages.is_empty() && !inbox.closed {
            if !self.can_prove() {
                self.shared.wake_writer.wait(&mut inbox);
            } else if self.shared.wake_writer.wait_for(&mut inbox, IDLE).timed_out() && inbox.messages.is_empty() {
                return false;
            }
        }
        // What is not urgent waits for company, but not for ever.
        let deadline = Instant::now() + IDLE;
        while !inbox.urgent && !inbox.closed {
            if self.shared.wake_writer.wait_until(&mut inbox, deadline).timed_out() {
                break;
            }
        }
        true
    }

    /// Writes, syncs and reports all that has been submitted.
    pub fn turn(&mut self) -> Turn {
        let (messages, closed) = {
            let mut inbox = self.shared.inbox.lock();
            inbox.urgent = false;
            (std::mem::take(&mut inbox.messages), inbox.closed)
        };
        let idle = messages.is_empty();
        for message in messages {
            match message {
                Message::Submit(submission) => self.take(submission),
                Message::Resume(group) => self.resume(group),
                Message::Oldest(file) => self.announce_oldest(file),
            }
        }
        self.flush();
        self.sync();
        match (idle, closed) {
            (true, true) => Turn::Closed,
            (true, false) => Turn::Idle,
            _ => Turn::Worked,
        }
    }

    /// Adds an empty frame if the last one has none after it. It need not be synced: wherever it is found later, it proves
    /// that the frame before was, so damage to that frame is not mistaken for a torn tail.
    pub fn idle(&mut self) {
        if self.can_prove() {
            self.write_frame();
            self.unsynced.clear();
        }
    }

    fn can_prove(&self) -> bool {
        let full = self.file.end + FRAME_HEADER_BYTES + SEAL_BYTES > self.file.capacity;
        !self.proven && !full && self.frame.is_empty() && self.unsynced.is_empty() && self.stopped().is_none()
    }

    fn stopped(&self) -> Option<StorageError> {
        self.shared.stopped.read().clone()
    }

    /// Why nothing of the group can be written at present.
    fn refusal(&self, group: GroupId) -> Option<StorageError> {
        self.stopped().or_else(|| self.stalled.get(&group).cloned())
    }

    fn resume(&mut self, group: GroupId) {
        if self.stalled.contains_key(&group) {
            // The failed submissions are no longer planned; what was written before them has to be known again.
            self.flush();
            self.sync();
            self.stalled.remove(&group);
        }
    }

    /// Puts a submission into the frame in the making, or fails it.
    fn take(&mut self, submission: Submission) {
        if let Err(error) = self.try_take(&submission) {
            self.stalled.insert(submission.group, error.clone());
            return self.fail(&submission, &error);
        }
        let (records_bytes, payload_bytes) = submission.sizes();
        self.frame.add(submission, records_bytes, payload_bytes);
    }

    /// Makes room for a submission and plans it.
    fn try_take(&mut self, submission: &Submission) -> Result<(), StorageError> {
        let group = submission.group;
        self.refusal(group).map_or(Ok(()), Err)?;
        let plan = self.check(submission)?;
        let (records_bytes, payload_bytes) = submission.sizes();
        let bytes = records_bytes + payload_bytes;
        if !self.frame.is_empty() && self.frame.bytes() + bytes > self.shared.options.frame_bytes as usize {
            self.flush();
        }
        // What is left of a reserve file is for critical submissions alone.
        let reserved = self.file.capacity < self.shared.options.file_bytes && !submission.critical;
        if reserved || !self.fits(bytes) {
            self.flush();
            self.switch_file(submission.critical, bytes)?;
        }
        // Writing earlier frames may have stopped the log or stalled the group.
        self.refusal(group).map_or(Ok(()), Err)?;
        self.planned.insert(group, plan);
        Ok(())
    }

    /// Whether the submission continues its group's log, and how the group stands after it.
    fn check(&self, submission: &Submission) -> Result<Plan, StorageError> {
        if let Some(bytes) = submission.oversized_state() {
            return Err(StorageError::TooLarge { bytes, limit: MAX_HARD_STATE_BYTES as u64 });
        }
        let limit = u64::from(MAX_FILE_BYTES - FILE_OVERHEAD) / 2;
        let (records_bytes, payload_bytes) = submission.sizes();
        let bytes = (records_bytes + payload_bytes) as u64;
        if bytes > limit {
            return Err(StorageError::TooLarge { bytes, limit });
        }
        let mut plan = self.planned.get(&submission.group).copied().unwrap_or_else(|| {
            let state = self.shared.state.read();
            state
                .groups
                .get(&submission.group)
                .map_or(Plan::default(), |log| Plan { compacted: log.compacted().0, last: log.last() })
        });
        for operation in &submission.operations {
            let wrong = |got| Err(StorageError::OutOfOrder { group: submission.group, got, last: plan.last });
            match operation {
                Operation::Append(Entry { index, .. }) => {
                    if *index > plan.last.next() || *index <= plan.compacted {
                        return wrong(*index);
                    }
                    plan.last = *index;
                }
                Operation::HardState(_) => {}
                Operation::Truncate { from } => {
                    if *from <= plan.compacted {
                        return wrong(*from);
                    }
                    plan.last = plan.last.min(from.previous());
                }
                Operation::CompactTo { index, .. } => {
                    if *index > plan.last {
                        return wrong(*index);
                    }
                    plan.compacted = plan.compacted.max(*index);
                }
                Operation::SnapshotMark { index, .. } => plan = Plan { compacted: *index, last: *index },
                Operation::Forget => plan = Plan::default(),
            }
        }
        Ok(plan)
    }

    fn announce_oldest(&mut self, file: FileNumber) {
        let record = Record::OldestFile(file);
        // If there is no room, maintenance asks again in the next file.
        if self.fits(FRAME_HEADER_BYTES as usize) && self.stopped().is_none() {
            self.frame.add_own(record);
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        let frame = self.frame.bytes() + bytes + (FRAME_HEADER_BYTES + FRAME_ALIGNMENT + SEAL_BYTES) as usize;
        self.file.end as usize + frame <= self.file.capacity as usize
    }

    /// Writes the frame in the making.
    fn flush(&mut self) {
        if self.frame.is_empty() {
            return;
        }
        match self.stopped() {
            Some(error) => self.fail_frame(&error),
            None => self.write_frame(),
        }
    }

    fn write_frame(&mut self) {
        let built = self.frame.build(&self.file, self.next_frame, self.session, !self.session_begun);
        match self.file.file.write_at(&built.slices(), u64::from(self.file.end)) {
            Ok(()) => {
                let done = self.frame.done(&self.file, &built);
                self.proven = built.records.is_empty();
                self.unsynced.push(UnsyncedFrame {
                    offset: self.file.end,
                    length: built.length,
                    records: built.records,
                    done,
                });
                self.file.end += built.length;
                self.next_frame.0 += 1;
                self.session_begun = true;
                self.frame = FrameBuilder::default();
            }
            Err(error) if crate::error::is_full(&error) && !self.frame.first_of_file => {
                // Only a file system that copies on write runs out of space inside an allocated file. What was written
                // of the frame will be overwritten by the next one, which has the same number and place.
                self.fail_frame(&StorageError::Full { dir: self.shared.dir.clone() });
            }
            Err(error) => {
                let error = self.stop("write", &error);
                self.fail_frame(&error);
            }
        }
    }

    /// Makes the frames written so far durable and reports them.
    fn sync(&mut self) {
        if let Some(error) = self.stopped() {
            return self.fail_unsynced(&error);
        }
        if self.file.synced == self.file.end {
            return;
        }
        if let Err(error) = self.file.file.sync() {
            let error = self.stop("sync", &error);
            return self.fail_unsynced(&error);
        }
        self.file.synced = self.file.end;
        let frames = std::mem::take(&mut self.unsynced);
        if !frames.is_empty() {
            self.publish(&frames);
            self.report(frames);
        }
    }

    /// Lets readers see what is durable.
    fn publish(&mut self, frames: &[UnsyncedFrame]) {
        let mut state = self.shared.state.write();
        let mut look = false;
        for frame in frames {
            let place = FramePlace { file: self.file.number, offset: frame.offset };
            state.note_frame(place, frame.length);
            for record in &frame.records {
                look |= record.frees_space();
                state.apply(record, place).expect("the order was checked before writing");
            }
        }
        drop(state);
        self.planned.clear();
        if look {
            self.shared.wake_maintenance();
        }
    }

    fn report(&mut self, frames: Vec<UnsyncedFrame>) {
        let mut groups: BTreeMap<GroupId, (Ticket, Vec<Placed>)> = BTreeMap::new();
        let mut bytes = 0;
        for done in frames.into_iter().flat_map(|frame| frame.done) {
            bytes += done.payload_bytes;
            let (ticket, placed) = groups.entry(done.group).or_default();
            *ticket = done.ticket;
            if placed.is_empty() { *placed = done.placed } else { placed.extend(done.placed) }
        }
        self.shared.inbox.lock().pending_bytes -= bytes;
        for (group, (up_to, placed)) in &groups {
            self.completion.written(Written { group: *group, up_to: *up_to, placed });
        }
    }

    /// Ends the current file and goes on in the next, which must have room for so many bytes.
    fn switch_file(&mut self, critical: bool, bytes: usize) -> Result<(), StorageError> {
        self.sync();
        self.stopped().map_or(Ok(()), Err)?;
        let frame = first_frame(&self.shared);
        let free = self.next_file(critical, frame.bytes() + bytes)?;
        let left = match self.begin_file(free) {
            Ok(left) => left,
            Err((what, error)) => return Err(self.stop(what, &error)),
        };
        if let Err(error) = self.seal(&left) {
            return Err(self.stop("seal the predecessor of", &error));
        }
        self.frame = frame;
        self.write_frame();
        self.shared.wake_maintenance();
        self.stopped().map_or(Ok(()), Err)
    }

    /// A file with room for so many bytes; from the reserve only for what is critical.
    fn next_file(&self, critical: bool, bytes: usize) -> Result<FreeFile, StorageError> {
        let pool = &self.shared.pool;
        let needed = bytes as u64 + u64::from(FILE_OVERHEAD);
        if needed > u64::from(self.shared.options.file_bytes) {
            let limit = u64::from(MAX_FILE_BYTES - FILE_OVERHEAD);
            let too_large = StorageError::TooLarge { bytes: bytes as u64, limit };
            return pool
                .make_large(u32::try_from(needed).ok().filter(|&needed| needed <= MAX_FILE_BYTES).ok_or(too_large)?);
        }
        let taken = pool.take();
        if taken.as_ref().is_err_and(StorageError::is_full) {
            // It may sleep, and from now on it is to look for space again and again.
            self.shared.wake_maintenance();
        }
        let free = match taken {
            Err(error) if error.is_full() && critical => pool.take_reserve().ok_or(error)?,
            other => other?,
        };
        let limit = u64::from(free.capacity - FILE_OVERHEAD);
        if bytes as u64 > limit {
            pool.put_back(free);
            return Err(StorageError::TooLarge { bytes: bytes as u64, limit });
        }
        Ok(free)
    }

    /// Gives a free file its header, then its name, and returns the one that is left.
    fn begin_file(&mut self, free: FreeFile) -> Result<CurrentFile, (&'static str, io::Error)> {
        let number = self.file.number.next();
        let header = FileHeader {
            identity: self.shared.identity,
            number,
            salt: salt(&*self.shared.fs)?,
            first_frame: self.next_frame,
            capacity: free.capacity,
            previous: self.file.number,
            previous_end: self.file.end,
            session: self.session,
            dirty_end: free.dirty_end,
        };
        let (current, listed) = start_file(&*self.shared.fs, &self.shared.dir, free, header)?;
        self.shared.state.write().files.insert(number, listed);
        Ok(std::mem::replace(&mut self.file, current))
    }

    /// Adds the last frame of the file that is left: it says that another follows, so a missing newest file is noticed. It
    /// has the number of the next file's first frame and is read only when that file is not there.
    fn seal(&self, left: &CurrentFile) -> io::Result<()> {
        let mut frame = FrameBuilder::default();
        frame.add_own(Record::Sealed { next: self.file.number });
        let built = frame.build(left, self.next_frame, self.session, !self.session_begun);
        left.file.write_at(&built.slices(), u64::from(left.end))?;
        left.file.sync()
    }

    fn stop(&self, what: &str, error: &io::Error) -> StorageError {
        let reason: Arc<str> = format!("cannot {what} {}: {error}", self.file.path.display()).into();
        tracing::error!(%reason, "the log takes no more writes until the node restarts");
        let error = StorageError::Stopped { reason };
        *self.shared.stopped.write() = Some(error.clone());
        error
    }

    fn fail(&self, submission: &Submission, error: &StorageError) {
        self.shared.inbox.lock().pending_bytes -= submission.payload_bytes();
        self.completion.failed(submission.group, submission.ticket, error);
    }

    fn fail_frame(&mut self, error: &StorageError) {
        let frame = std::mem::take(&mut self.frame);
        for submission in &frame.submissions {
            self.planned.remove(&submission.group);
            self.stalled.insert(submission.group, error.clone());
            self.fail(submission, error);
        }
    }

    fn fail_unsynced(&mut self, error: &StorageError) {
        for done in std::mem::take(&mut self.unsynced).into_iter().flat_map(|frame| frame.done) {
            self.shared.inbox.lock().pending_bytes -= done.payload_bytes;
            self.completion.failed(done.group, done.ticket, error);
        }
    }
}

/// The frame that a file begins with: where each group stands, so that the files before need not be there.
fn first_frame(shared: &Shared) -> FrameBuilder {
    let mut frame = FrameBuilder { first_of_file: true, ..FrameBuilder::default() };
    let state = shared.state.read();
    for (&group, log) in &state.groups {
        frame.add_own(Record::GroupState(log.state(group)));
    }
    frame.add_own(Record::OldestFile(state.oldest));
    frame
}

/// A new salt.
pub(super) fn salt(fs: &dyn FileSystem) -> Result<u64, (&'static str, io::Error)> {
    let random = fs.random().map_err(|error| ("get random bytes for", error))?;
    Ok(u64::from_le_bytes(*random.first_chunk().expect("sixteen bytes")))
}

/// Writes the header, syncs it, and gives the file its name, durably: so a file of the log never has a torn header.
pub(super) fn start_file(
    fs: &dyn FileSystem,
    dir: &Path,
    free: FreeFile,
    header: FileHeader,
) -> Result<(CurrentFile, LogFile), (&'static str, io::Error)> {
    let path = log_path(dir, header.number);
    free.file.write_at(&[io::IoSlice::new(&header.encode())], 0).map_err(|error| ("write", error))?;
    free.file.sync().map_err(|error| ("sync", error))?;
    fs.rename(&free.path, &path).map_err(|error| ("rename", error))?;
    fs.sync_dir(dir).map_err(|error| ("sync the directory of", error))?;
    let current = CurrentFile {
        number: header.number,
        file: free.file.clone(),
        path: path.clone(),
        salt: header.salt,
        capacity: header.capacity,
        end: HEADER_BYTES,
        synced: HEADER_BYTES,
    };
    Ok((current, LogFile::new(path, free.file, header)))
}
