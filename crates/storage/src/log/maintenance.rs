//! Keeping files at hand and letting go of those that are not needed: what the maintenance thread does, or the simulator
//! between two turns.

use std::ops::RangeInclusive;

use super::{Log, Message, State, files::LogFile, pool::FreeFile};
use crate::{error::StorageError, types::FileNumber};

/// Files to copy out at once: enough for the segments that come of it to be of a good size, few enough to be quick.
const COPY_OUT_FILES: u64 = 8;
/// What is live in the files to copy out at once, in bytes, is hardly more than this: a segment's worth, so that the list of what is copied
/// stays small.
const COPY_OUT_BYTES: u64 = 64 << 20;

impl Log {
    /// Recycles what is not needed, prepares the next file, fills the reserve. Quick when there is nothing to do. Calls
    /// from several threads wait for each other.
    pub fn maintain(&self) -> Result<(), StorageError> {
        self.recycle()?;
        let shared = &*self.shared;
        let want_free = {
            let state = shared.state.read();
            let newest = state.files.values().next_back();
            newest.is_some_and(|file| file.end > file.header.capacity / 2)
        };
        shared.pool.fill(want_free)?;
        shared.pool.trim(shared.options.free_files)
    }

    /// Gives back the space of recycled files: for a node that has been idle for a while. The reserve stays.
    pub fn release_free_files(&self) -> Result<(), StorageError> {
        self.shared.pool.trim(0)
    }

    /// The oldest files, if it is time to copy what is live in them into segments: the log exceeds its budget, or is much
    /// larger than what is live in it. `slack_bytes` replaces the option when given (an idle node wants less).
    ///
    /// The caller writes the survivors of all groups, moves its queues to the new places, and releases the old ones; the
    /// files leave by themselves. Files whose entries are not compacted yet are not named: copying them would not free them.
    pub fn copy_out_due(&self, slack_bytes: Option<u64>) -> Option<RangeInclusive<FileNumber>> {
        let state = self.shared.state.read();
        if !state.accounted {
            return None;
        }
        let newest = *state.files.keys().next_back()?;
        let mut due = None;
        let mut excess = self.excess(&state, slack_bytes);
        let mut copied = 0;
        for (&number, file) in state.files.iter().take(COPY_OUT_FILES as usize) {
            if number == newest || excess == 0 || !file.is_compacted(&state.groups) {
                break;
            }
            copied += file.live();
            if due.is_some() && copied > COPY_OUT_BYTES {
                break;
            }
            excess = excess.saturating_sub(u64::from(file.header.capacity));
            due = Some(number);
        }
        due.map(|last| *state.files.keys().next().expect("there is one")..=last)
    }

    /// By how many bytes the log is larger than its budget, or than what is live in it allows. `slack_bytes` replaces the option when given.
    pub fn excess_bytes(&self, slack_bytes: Option<u64>) -> u64 {
        self.excess(&self.shared.state.read(), slack_bytes)
    }

    fn excess(&self, state: &State, slack_bytes: Option<u64>) -> u64 {
        let options = &self.shared.options;
        let live: u64 = state.files.values().map(LogFile::live).sum();
        let allowed = live.saturating_mul(2).saturating_add(slack_bytes.unwrap_or(options.slack_bytes));
        state.log_bytes().saturating_sub(allowed.min(options.budget_bytes))
    }

    /// Whether the log has such a file. One that is missing left it, or was lost in damage that was accepted.
    pub fn has_file(&self, file: FileNumber) -> bool {
        self.shared.state.read().files.contains_key(&file)
    }

    /// The oldest file of the log: what lies in earlier ones is in segments.
    pub fn oldest_file(&self) -> FileNumber {
        self.shared.state.read().files.keys().next().copied().unwrap_or_default()
    }

    /// Where the log ends, as far as it is durable: file and offset.
    pub fn end(&self) -> (FileNumber, u32) {
        let state = self.shared.state.read();
        state.files.last_key_value().map_or_else(Default::default, |(&number, file)| (number, file.end))
    }

    /// The file of the oldest entry that some group still needs, and that group: what to compact to free space.
    pub fn most_retentive_group(&self) -> Option<(crate::types::GroupId, FileNumber)> {
        let state = self.shared.state.read();
        state.groups.iter().filter_map(|(&group, log)| Some((group, log.oldest_file()?))).min_by_key(|&(_, file)| file)
    }

    /// Lets go of the oldest files in two steps: first a durable record says that they may be missing, then they leave.
    /// Otherwise a crash in between would look like damage.
    fn recycle(&self) -> Result<(), StorageError> {
        let shared = &*self.shared;
        let (leaving, announce) = {
            let mut state = shared.state.write();
            let oldest_needed = state.oldest_needed();
            let announced = state.oldest;
            let mut leaving = Vec::new();
            while let Some(entry) = state.files.first_entry().filter(|entry| *entry.key() < announced) {
                leaving.push(entry.remove());
            }
            (leaving, oldest_needed.filter(|&needed| needed > announced))
        };
        if let Some(oldest) = announce {
            let mut inbox = shared.inbox.lock();
            inbox.messages.push(Message::Oldest(oldest));
            inbox.urgent = true;
            drop(inbox);
            shared.wake_writer.notify_one();
        }
        if leaving.is_empty() {
            return Ok(());
        }
        let pool = &shared.pool;
        let mut free = Vec::new();
        for file in leaving {
            let capacity = file.header.capacity;
            match pool.name_for(capacity) {
                Some(path) => {
                    shared.fs.rename(&file.path, &path).map_err(StorageError::io("rename", &file.path))?;
                    free.push(FreeFile { path, file: file.file, capacity, dirty_end: capacity });
                }
                None => shared.fs.remove(&file.path).map_err(StorageError::io("remove", &file.path))?,
            }
        }
        // Only when the old names are gone for good may the contents be overwritten.
        shared.fs.sync_dir(&shared.dir).map_err(StorageError::io("sync", &shared.dir))?;
        for file in free {
            pool.put_back(file);
        }
        Ok(())
    }
}

impl State {
    /// The first file that cannot leave: the newest at the latest.
    fn oldest_needed(&self) -> Option<FileNumber> {
        let newest = *self.files.keys().next_back()?;
        if !self.accounted {
            return None;
        }
        let needed = |file: &&LogFile| file.live() > 0 || !file.is_compacted(&self.groups);
        Some(self.files.values().find(needed).map_or(newest, LogFile::number).min(newest))
    }
}
