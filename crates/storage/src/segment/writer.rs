//! Writes messages, sorted, into segment files.

use std::{io::IoSlice, path::Path, sync::Arc};

use super::{
    format::{SEGMENT_HEADER_BYTES, SEGMENT_RECORD_BYTES, SegmentHeader, SegmentIndex, SegmentRecord},
    segment_path,
};
use crate::{
    error::StorageError,
    fs::{File, FileSystem},
    types::{GroupId, QueueKey, SegmentNumber},
};

/// Written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A segment in the making: `N.new` until it is finished.
pub(super) struct SegmentWriter<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    node: [u8; 16],
    number: SegmentNumber,
    group: GroupId,
    file: Arc<dyn File>,
    buffer: Vec<u8>,
    /// Where the buffer begins in the file.
    flushed: u64,
    records: u32,
    index: SegmentIndex,
}

impl<'a> SegmentWriter<'a> {
    pub(super) fn create(
        fs: &'a dyn FileSystem,
        dir: &'a Path,
        node: [u8; 16],
        number: SegmentNumber,
        group: GroupId,
    ) -> Result<SegmentWriter<'a>, StorageError> {
        let path = unfinished(dir, number);
        let file = fs.create(&path).map_err(StorageError::io("create", path))?;
        let buffer = vec![0; SEGMENT_HEADER_BYTES];
        let index = SegmentIndex::default();
        Ok(SegmentWriter { fs, dir, node, number, group, file, buffer, flushed: 0, records: 0, index })
    }

    pub(super) fn number(&self) -> SegmentNumber {
        self.number
    }

    /// Bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Adds a message, which must be above the last one in queue and sequence.
    pub(super) fn add(&mut self, queue: QueueKey, sequence: u64, body: [&[u8]; 2]) -> Result<(), StorageError> {
        let offset = self.length() as u32;
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; SEGMENT_RECORD_BYTES]);
        body.iter().for_each(|part| self.buffer.extend_from_slice(part));
        let (header, body) = self.buffer[start..].split_at_mut(SEGMENT_RECORD_BYTES);
        let record = SegmentRecord { queue, sequence, body };
        let length = record.encoded_length() as u32;
        header.copy_from_slice(&record.encode_header(self.number));
        assert!(self.index.add(queue, sequence, offset, length), "messages come sorted");
        self.records += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Makes the segment durable under its name. `replaces` names segments that are superfluous from then on.
    pub(super) fn finish(
        mut self,
        replaces: Vec<SegmentNumber>,
    ) -> Result<(SegmentHeader, SegmentIndex), StorageError> {
        self.index.replaces = replaces;
        let records_end = self.length() as u32;
        let index = self.index.encode();
        let header = SegmentHeader {
            node: self.node,
            number: self.number,
            group: self.group,
            records: self.records,
            records_end,
            index_length: index.len() as u32,
            index_crc: crc32c::crc32c(&index),
        };
        self.buffer.extend_from_slice(&index);
        self.flush()?;
        let aside = unfinished(self.dir, self.number);
        self.file.write_at(&[IoSlice::new(&header.encode())], 0).map_err(StorageError::io("write", &aside))?;
        self.file.sync().map_err(StorageError::io("sync", &aside))?;
        let path = segment_path(self.dir, self.number);
        self.fs.rename(&aside, &path).map_err(StorageError::io("rename", &aside))?;
        self.fs.sync_dir(self.dir).map_err(StorageError::io("sync", self.dir))?;
        Ok((header, self.index))
    }

    /// Removes what was written.
    pub(super) fn discard(self) {
        // Best effort: opening the store removes it, too.
        let _ = self.fs.remove(&unfinished(self.dir, self.number));
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.file
            .write_at(&[IoSlice::new(&self.buffer)], self.flushed)
            .map_err(StorageError::io("write", unfinished(self.dir, self.number)))?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

fn unfinished(dir: &Path, number: SegmentNumber) -> std::path::PathBuf {
    segment_path(dir, number).with_extension("new")
}
