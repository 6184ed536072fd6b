//! The bytes of a segment file.
//!
//! Header, 64 bytes, written last, so that a file without one is unfinished:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `WRNMQSEG` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC32C of bytes 0..12 and 16..64 |
//! | 16 | 16 | node id |
//! | 32 | 8 | segment number |
//! | 40 | 4 | group |
//! | 44 | 4 | number of records |
//! | 48 | 4 | end of the records, start of the index |
//! | 52 | 4 | length of the index |
//! | 56 | 4 | CRC32C of the index |
//! | 60 | 4 | zeros |
//!
//! Records, sorted by queue and sequence:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | length of the body |
//! | 4 | 4 | CRC32C of the segment number, bytes 8..24 and the body |
//! | 8 | 8 | queue |
//! | 16 | 8 | sequence |
//! | 24 | .. | body |
//!
//! Index: the number of replaced segments (u32) and their numbers (u64 each); then per queue a *run*: queue u64, start of its
//! first record u32, end of its last u32, number of points u32, the points (sequence u64, offset u32), number of intervals
//! u32, the intervals (first u64, last u64). Points stand at most [`POINT_SPACING`] bytes apart.
//!
//! The file is written aside, synced and renamed, so nothing of it is ever torn. A bad index is rebuilt from the records;
//! a bad record is damage, and concerns that message alone.

use crate::{
    codec::{Input, Output, Short, set},
    interval::{self, Interval},
    types::{GroupId, QueueKey, SegmentNumber},
};

/// Version of the segment format.
pub const SEGMENT_FORMAT: u32 = 1;
/// Length of the header.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Length of a record before its body.
pub const SEGMENT_RECORD_BYTES: usize = 24;
/// Bytes of records between two points of a run: what has to be read at most before a wanted message. At 12 bytes in
/// memory per point, 100 GB of backlog cost 19 MB.
pub const POINT_SPACING: u32 = 64 << 10;

const MAGIC: [u8; 8] = *b"WRNMQSEG";

/// Why bytes are not a segment's header or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentFault {
    /// Too short, or magic, checksum or structure wrong.
    Damaged,
    /// A later format, with a good checksum.
    Newer(u32),
}

impl From<Short> for SegmentFault {
    fn from(Short: Short) -> SegmentFault {
        SegmentFault::Damaged
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The node that wrote it.
    pub node: [u8; 16],
    /// Its number.
    pub number: SegmentNumber,
    /// The group whose messages it holds.
    pub group: GroupId,
    /// Number of records.
    pub records: u32,
    /// End of the records.
    pub records_end: u32,
    /// Length of the index.
    pub index_length: u32,
    /// CRC32C of the index.
    pub index_crc: u32,
}

impl SegmentHeader {
    /// The 64 bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        set(&mut bytes, 0, MAGIC);
        set(&mut bytes, 8, SEGMENT_FORMAT.to_le_bytes());
        set(&mut bytes, 16, self.node);
        set(&mut bytes, 32, self.number.0.to_le_bytes());
        set(&mut bytes, 40, self.group.0.to_le_bytes());
        set(&mut bytes, 44, self.records.to_le_bytes());
        set(&mut bytes, 48, self.records_end.to_le_bytes());
        set(&mut bytes, 52, self.index_length.to_le_bytes());
        set(&mut bytes, 56, self.index_crc.to_le_bytes());
        let crc = header_checksum(&bytes);
        set(&mut bytes, 12, crc.to_le_bytes());
        bytes
    }

    /// Reads and checks a header.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, SegmentFault> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES).ok_or(SegmentFault::Damaged)?;
        let mut input = Input(bytes);
        let magic = input.array::<8>()?;
        let (format, crc) = (input.u32()?, input.u32()?);
        if magic != MAGIC || crc != header_checksum(bytes) {
            return Err(SegmentFault::Damaged);
        }
        if format > SEGMENT_FORMAT {
            return Err(SegmentFault::Newer(format));
        }
        Ok(SegmentHeader {
            node: input.array()?,
            number: SegmentNumber(input.u64()?),
            group: GroupId(input.u32()?),
            records: input.u32()?,
            records_end: input.u32()?,
            index_length: input.u32()?,
            index_crc: input.u32()?,
        })
    }
}

fn header_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..SEGMENT_HEADER_BYTES])
}

/// A message in a segment, its checksum good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRecord<'a> {
    /// Its queue.
    pub queue: QueueKey,
    /// Its sequence.
    pub sequence: u64,
    /// As the queue stored it.
    pub body: &'a [u8],
}

impl<'a> SegmentRecord<'a> {
    /// The header of the record; the body follows it in the file.
    pub fn encode_header(&self, segment: SegmentNumber) -> [u8; SEGMENT_RECORD_BYTES] {
        let mut bytes = [0; SEGMENT_RECORD_BYTES];
        set(&mut bytes, 0, (self.body.len() as u32).to_le_bytes());
        set(&mut bytes, 8, self.queue.0.to_le_bytes());
        set(&mut bytes, 16, self.sequence.to_le_bytes());
        let crc = record_checksum(segment, &bytes[8..], self.body);
        set(&mut bytes, 4, crc.to_le_bytes());
        bytes
    }

    /// Reads and checks the record that `bytes` begin with.
    pub fn decode(bytes: &'a [u8], segment: SegmentNumber) -> Result<SegmentRecord<'a>, SegmentFault> {
        let mut input = Input(bytes);
        let (length, crc) = (input.u32()?, input.u32()?);
        let names = input.0.get(..16).ok_or(SegmentFault::Damaged)?;
        let (queue, sequence) = (QueueKey(input.u64()?), input.u64()?);
        let body = input.take(length as usize)?;
        let good = crc == record_checksum(segment, names, body);
        good.then_some(SegmentRecord { queue, sequence, body }).ok_or(SegmentFault::Damaged)
    }

    /// Bytes of the record in the file.
    pub fn encoded_length(&self) -> usize {
        SEGMENT_RECORD_BYTES + self.body.len()
    }
}

fn record_checksum(segment: SegmentNumber, names: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&segment.0.to_le_bytes()), names);
    crc32c::crc32c_append(crc, body)
}

/// One queue's messages in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRun {
    /// The queue.
    pub queue: QueueKey,
    /// Start of its first record.
    pub start: u32,
    /// End of its last record.
    pub end: u32,
    /// Sequences and offsets of some records, the first always; both rise.
    pub points: Vec<(u64, u32)>,
    /// The sequences of its records.
    pub intervals: Vec<Interval>,
}

impl IndexRun {
    /// The first sequence.
    pub fn first(&self) -> u64 {
        self.intervals.first().map_or(0, |interval| interval.first)
    }

    /// The last sequence.
    pub fn last(&self) -> u64 {
        self.intervals.last().map_or(0, |interval| interval.last)
    }

    /// Number of records.
    pub fn count(&self) -> u64 {
        self.intervals.iter().fold(0, |count, interval| count.saturating_add(interval.count()))
    }
}

/// What a segment holds, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentIndex {
    /// Segments whose live messages are all here or in segments before: they are superfluous.
    pub replaces: Vec<SegmentNumber>,
    /// One run per queue, sorted by queue.
    pub runs: Vec<IndexRun>,
}

impl SegmentIndex {
    /// Takes a record into account that lies at `offset`. False if it is not above the last one in queue and sequence.
    pub(crate) fn add(&mut self, queue: QueueKey, sequence: u64, offset: u32, length: u32) -> bool {
        match self.runs.last_mut() {
            Some(run) if run.queue == queue => {
                if run.last() >= sequence {
                    return false;
                }
                let last_point = run.points.last().map_or(0, |&(_, offset)| offset);
                if offset - last_point >= POINT_SPACING {
                    run.points.push((sequence, offset));
                }
                interval::push(&mut run.intervals, sequence);
                run.end = offset + length;
            }
            Some(run) if run.queue > queue => return false,
            _ => self.runs.push(IndexRun {
                queue,
                start: offset,
                end: offset + length,
                points: vec![(sequence, offset)],
                intervals: vec![Interval { first: sequence, last: sequence }],
            }),
        }
        true
    }

    /// The bytes of the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32_le(self.replaces.len() as u32);
        self.replaces.iter().for_each(|number| bytes.put_u64_le(number.0));
        for run in &self.runs {
            bytes.put_u64_le(run.queue.0);
            bytes.put_u32_le(run.start);
            bytes.put_u32_le(run.end);
            bytes.put_u32_le(run.points.len() as u32);
            for &(sequence, offset) in &run.points {
                bytes.put_u64_le(sequence);
                bytes.put_u32_le(offset);
            }
            bytes.put_u32_le(run.intervals.len() as u32);
            for interval in &run.intervals {
                bytes.put_u64_le(interval.first);
                bytes.put_u64_le(interval.last);
            }
        }
        bytes
    }

    /// Reads the bytes of an index and checks its order; the checksum is the caller's. Memory is bounded by the input.
    pub fn decode(bytes: &[u8]) -> Result<SegmentIndex, SegmentFault> {
        let mut input = Input(bytes);
        let mut index = SegmentIndex::default();
        for _ in 0..input.u32()? {
            index.replaces.push(SegmentNumber(input.u64()?));
        }
        while !input.is_empty() {
            let run = decode_run(&mut input)?;
            if index.runs.last().is_some_and(|last| last.queue >= run.queue || last.end > run.start) {
                return Err(SegmentFault::Damaged);
            }
            index.runs.push(run);
        }
        Ok(index)
    }
}

fn decode_run(input: &mut Input<'_>) -> Result<IndexRun, SegmentFault> {
    let (queue, start, end) = (QueueKey(input.u64()?), input.u32()?, input.u32()?);
    let mut points: Vec<(u64, u32)> = Vec::new();
    for _ in 0..input.u32()? {
        let point = (input.u64()?, input.u32()?);
        if points.last().is_some_and(|last| last.0 >= point.0 || last.1 >= point.1) {
            return Err(SegmentFault::Damaged);
        }
        points.push(point);
    }
    let mut intervals: Vec<Interval> = Vec::new();
    for _ in 0..input.u32()? {
        let interval = Interval { first: input.u64()?, last: input.u64()? };
        let above = intervals.last().is_none_or(|last| last.last < interval.first);
        if !above || interval.last < interval.first {
            return Err(SegmentFault::Damaged);
        }
        intervals.push(interval);
    }
    let first = intervals.first().map(|interval| (interval.first, start));
    let whole = first.is_some() && points.first().copied() == first && points.iter().all(|point| point.1 < end);
    if whole { Ok(IndexRun { queue, start, end, points, intervals }) } else { Err(SegmentFault::Damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_record_survive_their_encoding_and_notice_flips() {
        let header = SegmentHeader {
            node: [1; 16],
            number: SegmentNumber(2),
            group: GroupId(3),
            records: 4,
            records_end: 5,
            index_length: 6,
            index_crc: 7,
        };
        let good = header.encode();
        assert_eq!(SegmentHeader::decode(&good), Ok(header));
        let record = SegmentRecord { queue: QueueKey(1), sequence: 2, body: b"body" };
        let mut bytes = record.encode_header(SegmentNumber(9)).to_vec();
        bytes.extend_from_slice(record.body);
        assert_eq!(SegmentRecord::decode(&bytes, SegmentNumber(9)), Ok(record));
        assert!(SegmentRecord::decode(&bytes, SegmentNumber(8)).is_err(), "of another segment");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(SegmentRecord::decode(&bad, SegmentNumber(9)).is_err(), "byte {at}");
        }
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 1;
            assert!(SegmentHeader::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn index_survives_its_encoding_and_refuses_every_cut() {
        let mut index = SegmentIndex { replaces: vec![SegmentNumber(3)], runs: Vec::new() };
        for (queue, sequence, offset) in [(1, 5, 64), (1, 6, 100), (1, 9, 70_000), (4, 1, 80_000)] {
            assert!(index.add(QueueKey(queue), sequence, offset, 30));
        }
        assert!(!index.add(QueueKey(4), 1, 90_000, 30), "not above the last");
        assert_eq!(index.runs[0].points, [(5, 64), (9, 70_000)]);
        assert_eq!(index.runs[0].count(), 3);
        let bytes = index.encode();
        assert_eq!(SegmentIndex::decode(&bytes), Ok(index.clone()));
        for length in 0..bytes.len() {
            // A cut between two runs reads well: the checksum in the header is for that.
            assert_ne!(SegmentIndex::decode(&bytes[..length]), Ok(index.clone()), "cut to {length}");
        }
    }
}
