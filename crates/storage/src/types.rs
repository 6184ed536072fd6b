//! The names of things on disk: groups, indexes, terms, files and places in files. Each is a type of its own, so that an
//! index is never taken for a term, nor a log file for a segment.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A replicated shard, or the metadata group: whoever has a log of its own inside the node's log.
    GroupId(u32)
}
number! {
    /// Position of an entry in its group's log, from 1. 0 means "before the first".
    Index(u64)
}
number! {
    /// Raft term of an entry.
    Term(u64)
}
number! {
    /// The caller's number for a submission, rising within a group (raft's `Ready` number).
    Ticket(u64)
}
number! {
    /// Number of a log file, from 1, without gaps. A recycled file gets a new one.
    FileNumber(u64)
}
number! {
    /// Number of a frame, from 1, without gaps over all files.
    FrameNumber(u64)
}
number! {
    /// Number of a segment file, from 1, never used twice.
    SegmentNumber(u64)
}
number! {
    /// A queue, as the shard names it.
    QueueKey(u64)
}

impl Index {
    /// The index after this one. The last of all numbers, which only a forged file can contain, stays itself.
    pub fn next(self) -> Index {
        Index(self.0.saturating_add(1))
    }

    /// The index before this one; 0 stays 0.
    pub fn previous(self) -> Index {
        Index(self.0.saturating_sub(1))
    }
}

impl FileNumber {
    /// The file after this one.
    pub fn next(self) -> FileNumber {
        FileNumber(self.0.saturating_add(1))
    }
}

/// Which file a [`Location`] lies in: a log file or a segment, in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u64);

/// A [`FileId`] taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file of the log.
    Log(FileNumber),
    /// A segment file.
    Segment(SegmentNumber),
}

const SEGMENT_BIT: u64 = 1 << 63;

impl FileId {
    /// The id of a log file.
    pub fn log(number: FileNumber) -> FileId {
        assert!(number.0 & SEGMENT_BIT == 0, "file numbers are far below 2^63");
        FileId(number.0)
    }

    /// The id of a segment.
    pub fn segment(number: SegmentNumber) -> FileId {
        assert!(number.0 & SEGMENT_BIT == 0, "segment numbers are far below 2^63");
        FileId(number.0 | SEGMENT_BIT)
    }

    /// Log file or segment.
    pub fn kind(self) -> FileKind {
        match self.0 & SEGMENT_BIT {
            0 => FileKind::Log(FileNumber(self.0)),
            _ => FileKind::Segment(SegmentNumber(self.0 & !SEGMENT_BIT)),
        }
    }

    /// As one word, for tables and snapshots.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// From [`FileId::to_raw`]; every word names some file, though perhaps one that does not exist.
    pub fn from_raw(raw: u64) -> FileId {
        FileId(raw)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

/// Where bytes lie on disk: a file, an offset and a length. Sixteen bytes, so that a queue can keep one per message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file.
    pub file: FileId,
    /// Bytes from the start of the file.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

impl Location {
    /// Length of [`Location::to_bytes`].
    pub const ENCODED_BYTES: usize = 16;

    /// The place of a part of what lies here: of one body inside an entry, say.
    ///
    /// # Panics
    /// If the part does not lie within.
    pub fn slice(self, start: u32, length: u32) -> Location {
        assert!(
            start.checked_add(length).is_some_and(|end| end <= self.length),
            "a part of a location lies within it: {start}+{length} of {}",
            self.length
        );
        Location { file: self.file, offset: self.offset + start, length }
    }

    /// First byte after it. Wide, because the fields may come from a damaged snapshot.
    pub fn end(self) -> u64 {
        u64::from(self.offset) + u64::from(self.length)
    }

    /// For tables and snapshots: file, offset, length, little-endian.
    pub fn to_bytes(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..8].copy_from_slice(&self.file.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// The inverse of [`Location::to_bytes`].
    pub fn from_bytes(bytes: [u8; Self::ENCODED_BYTES]) -> Location {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Location { file: FileId(u64::from(word(0)) | u64::from(word(4)) << 32), offset: word(8), length: word(12) }
    }
}

const _: () = assert!(size_of::<Location>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_survives_its_encoding() {
        for file in [FileId::log(FileNumber(7)), FileId::segment(SegmentNumber(1 << 40))] {
            let location = Location { file, offset: 4096, length: 77 };
            assert_eq!(Location::from_bytes(location.to_bytes()), location);
        }
        assert_eq!(FileId::segment(SegmentNumber(9)).kind(), FileKind::Segment(SegmentNumber(9)));
        assert_eq!(FileId::log(FileNumber(9)).kind(), FileKind::Log(FileNumber(9)));
    }

    #[test]
    #[should_panic(expected = "a part of a location lies within it")]
    fn slice_beyond_the_end_is_refused() {
        let location = Location { file: FileId::log(FileNumber(1)), offset: 0, length: 10 };
        location.slice(8, 3);
    }
}
