//! The records of a frame. They lie together in the frame's *records part*; the payloads of entries follow in the *payload
//! part*, in the same order, so that a body is written from where it is and can be read by its place alone.
//!
//! | kind | fields after the kind byte |
//! |---|---|
//! | 1 entry | group u32, index u64, term u64, tag u8, payload length u32, CRC32C of the payload u32 |
//! | 2 hard state | group u32, length u16, bytes |
//! | 3 truncate | group u32, from index u64 |
//! | 4 compact | group u32, index u64, term u64 |
//! | 5 snapshot mark | group u32, index u64, term u64 |
//! | 6 forget | group u32 |
//! | 7 group state | group u32, compacted index u64, its term u64, last index u64, its term u64, length u16, hard state |
//! | 8 oldest file | file number u64 |
//! | 9 sealed | next file number u64 |

use bytes::Bytes;

use crate::{
    codec::{Input, Output, Short},
    types::{FileNumber, GroupId, Index, Term},
};

/// Largest hard state: raft's is some 30 bytes; the rest is room for a configuration. Each file begins with one per group.
pub const MAX_HARD_STATE_BYTES: usize = 4096;

/// Bytes of an entry's record, without its payload.
pub(crate) const ENTRY_RECORD_BYTES: usize = 30;

/// One record, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry of a group's log; its payload lies in the payload part.
    Entry(EntryRecord),
    /// The group's hard state from here on.
    HardState {
        /// Whose.
        group: GroupId,
        /// Opaque to the log.
        state: Bytes,
    },
    /// Entries from an index on are void.
    Truncate {
        /// Whose.
        group: GroupId,
        /// The first void one.
        from: Index,
    },
    /// Entries up to an index are no longer needed.
    Compact {
        /// Whose.
        group: GroupId,
        /// The last one not needed.
        index: Index,
        /// Its term.
        term: Term,
    },
    /// The group's log was replaced by a snapshot that ends at an index.
    SnapshotMark {
        /// Whose.
        group: GroupId,
        /// The last index that the snapshot contains.
        index: Index,
        /// Its term.
        term: Term,
    },
    /// The group is no longer of this node.
    Forget {
        /// Which.
        group: GroupId,
    },
    /// Where a group stood when the file began, so that the files before need not be there.
    GroupState(GroupState),
    /// Files before this one are not needed and may be gone.
    OldestFile(FileNumber),
    /// The last record of a file: the named one follows.
    Sealed {
        /// The file after.
        next: FileNumber,
    },
}

/// The record of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Whose.
    pub group: GroupId,
    /// Its index.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// The caller's, stored as it is.
    pub tag: u8,
    /// Bytes of the payload.
    pub length: u32,
    /// CRC32C of the payload.
    pub crc: u32,
}

/// Where a group stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// Whose.
    pub group: GroupId,
    /// Entries up to here are not needed.
    pub compacted: (Index, Term),
    /// The last entry.
    pub last: (Index, Term),
    /// Opaque to the log.
    pub hard_state: Bytes,
}

/// The records part does not read as records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

impl From<Short> for BadRecord {
    fn from(Short: Short) -> BadRecord {
        BadRecord
    }
}

impl Record {
    /// Appends the record.
    ///
    /// # Panics
    /// If a hard state is longer than [`MAX_HARD_STATE_BYTES`]; `Log::submit` refuses those.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Entry(entry) => {
                out.push(1);
                out.put_u32_le(entry.group.0);
                out.put_u64_le(entry.index.0);
                out.put_u64_le(entry.term.0);
                out.push(entry.tag);
                out.put_u32_le(entry.length);
                out.put_u32_le(entry.crc);
            }
            Record::HardState { group, state } => {
                out.push(2);
                out.put_u32_le(group.0);
                put_state(out, state);
            }
            Record::Truncate { group, from } => {
                out.push(3);
                out.put_u32_le(group.0);
                out.put_u64_le(from.0);
            }
            Record::Compact { group, index, term } => put_position(out, 4, *group, *index, *term),
            Record::SnapshotMark { group, index, term } => put_position(out, 5, *group, *index, *term),
            Record::Forget { group } => {
                out.push(6);
                out.put_u32_le(group.0);
            }
            Record::GroupState(state) => {
                put_position(out, 7, state.group, state.compacted.0, state.compacted.1);
                out.put_u64_le(state.last.0.0);
                out.put_u64_le(state.last.1.0);
                put_state(out, &state.hard_state);
            }
            Record::OldestFile(file) => {
                out.push(8);
                out.put_u64_le(file.0);
            }
            Record::Sealed { next } => {
                out.push(9);
                out.put_u64_le(next.0);
            }
        }
    }

    /// Whether a file may become superfluous by it.
    pub(crate) fn frees_space(&self) -> bool {
        use Record::{Compact, Forget, OldestFile, SnapshotMark};
        matches!(self, Compact { .. } | SnapshotMark { .. } | Forget { .. } | OldestFile(_))
    }

    fn decode(input: &mut Input<'_>) -> Result<Record, BadRecord> {
        Ok(match input.u8()? {
            1 => Record::Entry(EntryRecord {
                group: GroupId(input.u32()?),
                index: Index(input.u64()?),
                term: Term(input.u64()?),
                tag: input.u8()?,
                length: input.u32()?,
                crc: input.u32()?,
            }),
            2 => Record::HardState { group: GroupId(input.u32()?), state: take_state(input)? },
            3 => Record::Truncate { group: GroupId(input.u32()?), from: Index(input.u64()?) },
            4 => Record::Compact { group: GroupId(input.u32()?), index: Index(input.u64()?), term: Term(input.u64()?) },
            5 => Record::SnapshotMark {
                group: GroupId(input.u32()?),
                index: Index(input.u64()?),
                term: Term(input.u64()?),
            },
            6 => Record::Forget { group: GroupId(input.u32()?) },
            7 => Record::GroupState(GroupState {
                group: GroupId(input.u32()?),
                compacted: (Index(input.u64()?), Term(input.u64()?)),
                last: (Index(input.u64()?), Term(input.u64()?)),
                hard_state: take_state(input)?,
            }),
            8 => Record::OldestFile(FileNumber(input.u64()?)),
            9 => Record::Sealed { next: FileNumber(input.u64()?) },
            _ => return Err(BadRecord),
        })
    }
}

/// Reads a whole records part. At most one record per byte, so the result is bounded by the input.
pub fn decode_records(bytes: &[u8]) -> Result<Vec<Record>, BadRecord> {
    let mut input = Input(bytes);
    let mut records = Vec::new();
    while !input.is_empty() {
        records.push(Record::decode(&mut input)?);
    }
    Ok(records)
}

fn put_position(out: &mut Vec<u8>, kind: u8, group: GroupId, index: Index, term: Term) {
    out.push(kind);
    out.put_u32_le(group.0);
    out.put_u64_le(index.0);
    out.put_u64_le(term.0);
}

fn put_state(out: &mut Vec<u8>, state: &[u8]) {
    assert!(state.len() <= MAX_HARD_STATE_BYTES, "submit refuses longer hard states");
    out.extend_from_slice(&(state.len() as u16).to_le_bytes());
    out.extend_from_slice(state);
}

fn take_state(input: &mut Input<'_>) -> Result<Bytes, BadRecord> {
    let length = usize::from(u16::from_le_bytes(input.array()?));
    if length > MAX_HARD_STATE_BYTES {
        return Err(BadRecord);
    }
    Ok(Bytes::copy_from_slice(input.take(length)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Record> {
        let (group, index, term) = (GroupId(1), Index(2), Term(3));
        let state = Bytes::from_static(b"vote");
        vec![
            Record::Entry(EntryRecord { group, index, term, tag: 4, length: 5, crc: 6 }),
            Record::HardState { group, state: state.clone() },
            Record::Truncate { group, from: index },
            Record::Compact { group, index, term },
            Record::SnapshotMark { group, index, term },
            Record::Forget { group },
            Record::GroupState(GroupState { group, compacted: (index, term), last: (index, term), hard_state: state }),
            Record::OldestFile(FileNumber(7)),
            Record::Sealed { next: FileNumber(8) },
        ]
    }

    #[test]
    fn every_record_survives_its_encoding() {
        let mut bytes = Vec::new();
        for record in one_of_each() {
            record.encode(&mut bytes);
        }
        assert_eq!(decode_records(&bytes), Ok(one_of_each()));
    }

    #[test]
    fn cut_records_are_refused() {
        for record in one_of_each() {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            for length in 1..bytes.len() {
                assert_eq!(decode_records(&bytes[..length]), Err(BadRecord), "{record:?} cut to {length}");
            }
        }
    }

    #[test]
    fn an_entry_record_has_the_size_that_the_planner_counts_on() {
        let mut bytes = Vec::new();
        one_of_each()[0].encode(&mut bytes);
        assert_eq!(bytes.len(), ENTRY_RECORD_BYTES);
    }
}
