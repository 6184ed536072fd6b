//! The files of the log in use: what each holds and how much of it is still needed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    fs::File,
    log::{
        header::{FileHeader, HEADER_BYTES},
        index::GroupIndex,
    },
    types::{FileNumber, GroupId, Index},
};

/// A file of the log.
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) header: FileHeader,
    /// End of the last synced frame.
    pub(crate) end: u32,
    /// Starts of the pieces in which the file is read: frames at least the size of a chunk apart.
    chunks: Vec<u32>,
    /// The last entry of each group in this file.
    last_of_group: BTreeMap<GroupId, Index>,
    /// Bytes that queues still need, as they reported them.
    live: AtomicU64,
}

impl LogFile {
    pub(crate) fn new(path: PathBuf, file: Arc<dyn File>, header: FileHeader) -> LogFile {
        LogFile {
            path,
            file,
            header,
            end: HEADER_BYTES,
            chunks: vec![HEADER_BYTES],
            last_of_group: BTreeMap::new(),
            live: AtomicU64::new(0),
        }
    }

    /// Notes where a frame is.
    pub(crate) fn note_frame(&mut self, offset: u32, length: u32, chunk_bytes: u32) {
        assert!(offset >= self.end, "frames follow one another");
        if self.chunks.last().is_some_and(|&last| offset - last >= chunk_bytes) {
            self.chunks.push(offset);
        }
        self.end = offset + length;
    }

    /// Notes that an entry is in the file.
    pub(crate) fn note_entry(&mut self, group: GroupId, index: Index) {
        self.last_of_group.insert(group, index);
    }

    /// Notes that the group's entries from an index on are void.
    pub(crate) fn forget_from(&mut self, group: GroupId, from: Index) {
        if let Some(last) = self.last_of_group.get_mut(&group) {
            *last = (*last).min(from.previous());
        }
    }

    /// The piece of the file in which an offset lies: its first byte and the one after its last.
    pub(crate) fn chunk(&self, offset: u32) -> Option<(u32, u32)> {
        if offset >= self.end {
            return None;
        }
        let next = self.chunks.partition_point(|&start| start <= offset);
        let start = *self.chunks.get(next.checked_sub(1)?)?;
        Some((start, self.chunks.get(next).copied().unwrap_or(self.end)))
    }

    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn retain(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns whether nothing is live any more.
    pub(crate) fn release(&self, bytes: u64) -> bool {
        let before = self.live.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "{}: {bytes} bytes released of {before} retained", self.path.display());
        before == bytes
    }

    /// Whether every group has compacted past its entries here.
    pub(crate) fn is_compacted(&self, groups: &BTreeMap<GroupId, GroupIndex>) -> bool {
        self.last_of_group.iter().all(|(group, &last)| groups.get(group).is_none_or(|log| log.compacted().0 >= last))
    }
}

const EXTENSION: &str = "log";
/// Higher numbers are not ours: at a file per second they would last for longer than there are seconds.
const MAX_FILE_NUMBER: u64 = 1 << 62;

/// `00000000000000000001.log`
pub(crate) fn log_path(dir: &Path, number: FileNumber) -> PathBuf {
    dir.join(format!("{:020}.{EXTENSION}", number.0))
}

/// The number in the name of a log file; `None` for any other name.
pub(crate) fn parse_name(name: &str) -> Option<FileNumber> {
    let digits = name.strip_suffix(".log")?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| canonical)?;
    (number <= MAX_FILE_NUMBER).then_some(FileNumber(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_log_files() {
        let path = log_path(Path::new("x"), FileNumber(12));
        assert_eq!(parse_name(path.file_name().unwrap().to_str().unwrap()), Some(FileNumber(12)));
        for other in ["12.log", "0000000000000000012x.log", "free-1", "00000000000000000012.log.lost"] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
