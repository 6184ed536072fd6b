//! A frame: what one group commit (or a part of one) writes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `FRAM` |
//! | 4 | 4 | CRC32C of bytes 8..64 |
//! | 8 | 8 | salt of the file |
//! | 16 | 8 | file number |
//! | 24 | 8 | frame number |
//! | 32 | 4 | session: rises by one or more with each opening of the log |
//! | 36 | 4 | synced: everything in this file below this offset was synced when the frame was written |
//! | 40 | 4 | length of the records part |
//! | 44 | 4 | CRC32C of the records part |
//! | 48 | 4 | length of the payload part |
//! | 52 | 4 | flags: 1 = first frame of its session, 2 = first frame of its file |
//! | 56 | 8 | zeros |
//! | 64 | .. | records part, payload part, zeros up to a multiple of 8 |
//!
//! The checksum of each payload stands in its entry's record, so the three checksums cover the frame without a gap, and
//! a single payload can be checked alone. File number and salt make frames of the file's earlier lives invalid, and no
//! client can forge one inside a message, because it does not know the salt. The session makes frames invalid that an
//! earlier run wrote behind a torn one and that recovery has cut off.

use crate::{
    codec::{Input, Short, set},
    log::{
        header::FileHeader,
        record::{Record, decode_records},
    },
    types::{FileNumber, FrameNumber},
};

/// Length of a frame's header.
pub const FRAME_HEADER_BYTES: u32 = 64;
/// Frames start at multiples of this, so that a search for frames need not try every byte.
pub const FRAME_ALIGNMENT: u32 = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"FRAM");
const FIRST_OF_SESSION: u32 = 1;
const FIRST_OF_FILE: u32 = 2;

/// A quick look, for a search through a whole file.
pub(crate) fn may_be_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Why bytes are not a (whole, good) frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameFault {
    /// The bytes end within the frame.
    Short,
    /// Not a frame header: garbage or zeros.
    NotAFrame,
    /// The header is good, the records part is not.
    Records,
    /// Header and records are good, the payload of this entry is not.
    Payload {
        /// Which record of the frame, from 0.
        record: usize,
    },
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Salt of the file it was written to.
    pub salt: u64,
    /// The file it was written to.
    pub file: FileNumber,
    /// Its number.
    pub number: FrameNumber,
    /// The opening of the log that wrote it.
    pub session: u32,
    /// Offset below which the file was synced before.
    pub synced: u32,
    /// Bytes of the records part.
    pub records_length: u32,
    /// CRC32C of the records part.
    pub records_crc: u32,
    /// Bytes of the payload part.
    pub payload_length: u32,
    /// Whether it is the first frame of its session.
    pub first_of_session: bool,
    /// Whether it is the first frame of its file, which tells where each group stands.
    pub first_of_file: bool,
}

impl FrameHeader {
    /// Reads a header: magic and checksum are good. Which file it belongs to is not checked yet.
    pub fn decode(bytes: &[u8]) -> Result<FrameHeader, FrameFault> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES as usize).ok_or(FrameFault::Short)?;
        let mut input = Input(bytes);
        let mut fields = || -> Result<_, Short> {
            if input.u32()? != MAGIC {
                return Ok(None);
            }
            let crc = input.u32()?;
            let mut header = FrameHeader {
                salt: input.u64()?,
                file: FileNumber(input.u64()?),
                number: FrameNumber(input.u64()?),
                session: input.u32()?,
                synced: input.u32()?,
                records_length: input.u32()?,
                records_crc: input.u32()?,
                payload_length: input.u32()?,
                first_of_session: false,
                first_of_file: false,
            };
            let flags = input.u32()?;
            header.first_of_session = flags & FIRST_OF_SESSION != 0;
            header.first_of_file = flags & FIRST_OF_FILE != 0;
            Ok((crc == crc32c::crc32c(&bytes[8..])).then_some(header))
        };
        fields().map_err(|Short| FrameFault::Short)?.ok_or(FrameFault::NotAFrame)
    }

    /// Writes the header over the first 64 bytes of `bytes`.
    pub fn encode(&self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..FRAME_HEADER_BYTES as usize];
        bytes.fill(0);
        set(bytes, 0, MAGIC.to_le_bytes());
        set(bytes, 8, self.salt.to_le_bytes());
        set(bytes, 16, self.file.0.to_le_bytes());
        set(bytes, 24, self.number.0.to_le_bytes());
        set(bytes, 32, self.session.to_le_bytes());
        set(bytes, 36, self.synced.to_le_bytes());
        set(bytes, 40, self.records_length.to_le_bytes());
        set(bytes, 44, self.records_crc.to_le_bytes());
        set(bytes, 48, self.payload_length.to_le_bytes());
        let flags = if self.first_of_session { FIRST_OF_SESSION } else { 0 }
            | if self.first_of_file { FIRST_OF_FILE } else { 0 };
        set(bytes, 52, flags.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[8..]);
        set(bytes, 4, crc.to_le_bytes());
    }

    /// Bytes of the whole frame, padding included. Wide: the fields may be anything.
    pub fn frame_length(&self) -> u64 {
        let length = u64::from(FRAME_HEADER_BYTES) + u64::from(self.records_length) + u64::from(self.payload_length);
        length.next_multiple_of(u64::from(FRAME_ALIGNMENT))
    }

    /// Bytes before the payload part.
    pub fn payload_start(&self) -> u64 {
        u64::from(FRAME_HEADER_BYTES) + u64::from(self.records_length)
    }

    /// Whether it belongs to this life of this file.
    pub fn is_of(&self, file: &FileHeader) -> bool {
        self.file == file.number && self.salt == file.salt
    }

    /// Checks and reads the records part. The payload lengths of the entries add up to the payload part.
    pub fn decode_records(&self, bytes: &[u8]) -> Result<Vec<Record>, FrameFault> {
        let bytes = bytes.get(..self.records_length as usize).ok_or(FrameFault::Short)?;
        if crc32c::crc32c(bytes) != self.records_crc {
            return Err(FrameFault::Records);
        }
        let records = decode_records(bytes).map_err(|_| FrameFault::Records)?;
        let payload: u64 = records
            .iter()
            .map(|record| if let Record::Entry(entry) = record { u64::from(entry.length) } else { 0 })
            .sum();
        if payload != u64::from(self.payload_length) { Err(FrameFault::Records) } else { Ok(records) }
    }
}

/// A whole frame whose three kinds of checksums are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// Its records, in order.
    pub records: Vec<Record>,
}

impl Frame {
    /// Reads and checks the frame that `bytes` begin with.
    pub fn decode(bytes: &[u8]) -> Result<Frame, FrameFault> {
        let header = FrameHeader::decode(bytes)?;
        let records = header.decode_records(&bytes[FRAME_HEADER_BYTES as usize..])?;
        // The records fitted, so the lengths are those of real bytes and the sums stay small.
        let mut at = header.payload_start() as usize;
        for (number, record) in records.iter().enumerate() {
            if let Record::Entry(entry) = record {
                let end = at + entry.length as usize;
                let payload = bytes.get(at..end).ok_or(FrameFault::Short)?;
                if crc32c::crc32c(payload) != entry.crc {
                    return Err(FrameFault::Payload { record: number });
                }
                at = end;
            }
        }
        Ok(Frame { header, records })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        log::record::EntryRecord,
        types::{GroupId, Index, Term},
    };

    pub(crate) fn frame_bytes(payload: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        Record::Entry(EntryRecord {
            group: GroupId(1),
            index: Index(1),
            term: Term(1),
            tag: 0,
            length: payload.len() as u32,
            crc: crc32c::crc32c(payload),
        })
        .encode(&mut records);
        let header = FrameHeader {
            salt: 7,
            file: FileNumber(3),
            number: FrameNumber(9),
            session: 1,
            synced: 4096,
            records_length: records.len() as u32,
            records_crc: crc32c::crc32c(&records),
            payload_length: payload.len() as u32,
            first_of_session: true,
            first_of_file: false,
        };
        let mut bytes = vec![0; 64];
        header.encode(&mut bytes);
        bytes.extend_from_slice(&records);
        bytes.extend_from_slice(payload);
        bytes.resize(header.frame_length() as usize, 0);
        bytes
    }

    #[test]
    fn frame_survives_its_encoding() {
        let bytes = frame_bytes(b"hello");
        let frame = Frame::decode(&bytes).unwrap();
        assert_eq!(frame.header.number, FrameNumber(9));
        assert!(frame.header.first_of_session && !frame.header.first_of_file);
        assert_eq!(frame.records.len(), 1);
    }

    #[test]
    fn every_flipped_or_missing_byte_is_noticed() {
        let good = frame_bytes(b"hello");
        let content = 64 + crate::log::record::ENTRY_RECORD_BYTES + 5;
        for at in 0..content {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Frame::decode(&bad).is_err(), "byte {at}");
            assert_eq!(Frame::decode(&good[..at]), Err(FrameFault::Short), "cut to {at}");
        }
    }
}
