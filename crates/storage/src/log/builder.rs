//! Builds a frame: what its header says, which records it holds, and the payloads, which stay where they are.

use std::io::IoSlice;

use bytes::Bytes;

use super::{
    Operation, Placed, Submission,
    frame::{FRAME_ALIGNMENT, FRAME_HEADER_BYTES, FrameHeader},
    record::{ENTRY_RECORD_BYTES, EntryRecord, Record},
    writer::CurrentFile,
};
use crate::types::{FileId, FrameNumber, GroupId, Location, Ticket};

/// A frame in the making.
#[derive(Default)]
pub(super) struct FrameBuilder {
    pub(super) records_bytes: usize,
    pub(super) payload_bytes: usize,
    pub(super) submissions: Vec<Submission>,
    /// The writer's own records, before those of submissions.
    pub(super) own: Vec<Record>,
    pub(super) first_of_file: bool,
}

/// A submission that waits for the sync.
pub(super) struct Done {
    pub(super) group: GroupId,
    pub(super) ticket: Ticket,
    pub(super) placed: Vec<Placed>,
    pub(super) payload_bytes: u64,
}

/// A frame ready to be written: header and records in one buffer, the payloads where they are.
pub(super) struct Built {
    pub(super) head: Vec<u8>,
    pub(super) payloads: Vec<Bytes>,
    padding: usize,
    pub(super) length: u32,
    pub(super) records: Vec<Record>,
}

const PADDING: [u8; FRAME_ALIGNMENT as usize] = [0; FRAME_ALIGNMENT as usize];

impl Built {
    pub(super) fn slices(&self) -> Vec<IoSlice<'_>> {
        let head = std::iter::once(IoSlice::new(&self.head));
        let payloads = self.payloads.iter().map(|payload| IoSlice::new(payload));
        head.chain(payloads).chain([IoSlice::new(&PADDING[..self.padding])]).filter(|slice| !slice.is_empty()).collect()
    }
}

impl FrameBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.submissions.is_empty() && self.own.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.records_bytes + self.payload_bytes
    }

    pub(super) fn add(&mut self, submission: Submission, records_bytes: usize, payload_bytes: usize) {
        self.records_bytes += records_bytes;
        self.payload_bytes += payload_bytes;
        self.submissions.push(submission);
    }

    pub(super) fn add_own(&mut self, record: Record) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.records_bytes += bytes.len();
        self.own.push(record);
    }

    pub(super) fn build(&self, file: &CurrentFile, number: FrameNumber, session: u32, first_of_session: bool) -> Built {
        let mut head = Vec::with_capacity(FRAME_HEADER_BYTES as usize + self.records_bytes);
        head.resize(FRAME_HEADER_BYTES as usize, 0);
        let mut payloads = Vec::new();
        let mut records = self.own.clone();
        for submission in &self.submissions {
            for operation in &submission.operations {
                records.push(operation.record(submission.group));
                if let Operation::Append(entry) = operation {
                    payloads.push(entry.payload.clone());
                }
            }
        }
        for record in &records {
            record.encode(&mut head);
        }
        let payload_length: usize = payloads.iter().map(Bytes::len).sum();
        let header = FrameHeader {
            salt: file.salt,
            file: file.number,
            number,
            session,
            synced: file.synced,
            records_length: (head.len() - FRAME_HEADER_BYTES as usize) as u32,
            records_crc: crc32c::crc32c(&head[FRAME_HEADER_BYTES as usize..]),
            payload_length: payload_length as u32,
            first_of_session,
            first_of_file: self.first_of_file,
        };
        header.encode(&mut head);
        let length = header.frame_length() as u32;
        let padding = length as usize - head.len() - payload_length;
        Built { head, payloads, padding, length, records }
    }

    /// The submissions of the frame just written at the end of `file`, with the places of their entries.
    pub(super) fn done(&self, file: &CurrentFile, built: &Built) -> Vec<Done> {
        let mut offset = file.end + built.head.len() as u32;
        let done = self.submissions.iter().map(|submission| {
            let mut placed = Vec::new();
            for operation in &submission.operations {
                let Operation::Append(entry) = operation else { continue };
                let length = entry.payload.len() as u32;
                let location = Location { file: FileId::log(file.number), offset, length };
                placed.push(Placed { index: entry.index, location });
                offset += length;
            }
            Done {
                group: submission.group,
                ticket: submission.ticket,
                placed,
                payload_bytes: submission.payload_bytes(),
            }
        });
        done.collect()
    }
}

impl Operation {
    fn record(&self, group: GroupId) -> Record {
        match self {
            Operation::Append(entry) => Record::Entry(EntryRecord {
                group,
                index: entry.index,
                term: entry.term,
                tag: entry.tag,
                length: entry.payload.len() as u32,
                crc: crc32c::crc32c(&entry.payload),
            }),
            Operation::HardState(state) => Record::HardState { group, state: state.clone() },
            Operation::Truncate { from } => Record::Truncate { group, from: *from },
            Operation::CompactTo { index, term } => Record::Compact { group, index: *index, term: *term },
            Operation::SnapshotMark { index, term } => Record::SnapshotMark { group, index: *index, term: *term },
            Operation::Forget => Record::Forget { group },
        }
    }
}

impl Submission {
    /// Bytes of records and of payloads.
    pub(super) fn sizes(&self) -> (usize, usize) {
        self.operations.iter().fold((0, 0), |(records, payloads), operation| match operation {
            Operation::Append(entry) => (records + ENTRY_RECORD_BYTES, payloads + entry.payload.len()),
            Operation::HardState(state) => (records + 7 + state.len(), payloads),
            _ => (records + 21, payloads),
        })
    }
}
