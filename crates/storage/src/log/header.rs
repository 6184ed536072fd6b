//! The first 4 KiB of a log file: whose file it is, which number it has in this life, and where its predecessor ended.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `WRNMQLOG` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC32C of bytes 0..12 and 16..4096 |
//! | 16 | 16 | node id |
//! | 32 | 16 | cluster id |
//! | 48 | 8 | file number |
//! | 56 | 8 | salt: random, new in each life of the file |
//! | 64 | 8 | number of the first frame |
//! | 72 | 4 | capacity of the file in bytes |
//! | 76 | 4 | end of the previous file's last frame; 0 if there is no such file |
//! | 80 | 4 | session that writes the first frame |
//! | 84 | 4 | old bytes of an earlier life may lie below this offset |
//! | 88 | 8 | number of the previous file; 0 if none |
//! | 96 | .. | zeros |
//!
//! The header is synced before the file gets its `.log` name, so a `.log` file with a bad header is damaged, never torn.

use crate::{
    codec::{Input, set},
    identity::Identity,
    types::{FileNumber, FrameNumber},
};

/// Room of the header, so that frames start at a page.
pub const HEADER_BYTES: u32 = 4096;
/// Largest size of a log file: offsets stay far from the end of their 32 bits.
pub const MAX_FILE_BYTES: u32 = 1 << 30;
/// Version of the file format: header and frames.
pub const LOG_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"WRNMQLOG";

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderFault {
    /// Fewer than 4096 bytes.
    Short,
    /// Another magic.
    Magic,
    /// The checksum does not fit.
    Checksum,
    /// A later format, with a good checksum.
    Newer(u32),
    /// A capacity that no file of ours has.
    Capacity,
}

/// A header as read: checksum and version are good, but it may be another node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedHeader(FileHeader);

/// A header of this node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Whose file it is.
    pub identity: Identity,
    /// Its number in this life.
    pub number: FileNumber,
    /// Random; every frame repeats it.
    pub salt: u64,
    /// Number of the first frame.
    pub first_frame: FrameNumber,
    /// Bytes that may be written, header included.
    pub capacity: u32,
    /// End of the last frame of the file before.
    pub previous_end: u32,
    /// The session that writes the first frame.
    pub session: u32,
    /// Garbage of earlier lives may lie below this offset; beyond are zeros.
    pub dirty_end: u32,
    /// The file before; 0 if there was none. Numbers follow one another except where damage was accepted.
    pub previous: FileNumber,
}

impl FileHeader {
    /// The 4096 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES as usize];
        set(&mut bytes, 0, MAGIC);
        set(&mut bytes, 8, LOG_FORMAT.to_le_bytes());
        set(&mut bytes, 16, self.identity.node);
        set(&mut bytes, 32, self.identity.cluster);
        set(&mut bytes, 48, self.number.0.to_le_bytes());
        set(&mut bytes, 56, self.salt.to_le_bytes());
        set(&mut bytes, 64, self.first_frame.0.to_le_bytes());
        set(&mut bytes, 72, self.capacity.to_le_bytes());
        set(&mut bytes, 76, self.previous_end.to_le_bytes());
        set(&mut bytes, 80, self.session.to_le_bytes());
        set(&mut bytes, 84, self.dirty_end.to_le_bytes());
        set(&mut bytes, 88, self.previous.0.to_le_bytes());
        let crc = checksum(&bytes);
        set(&mut bytes, 12, crc.to_le_bytes());
        bytes
    }
}

impl UnverifiedHeader {
    /// Checks magic, checksum and version.
    pub fn decode(bytes: &[u8]) -> Result<UnverifiedHeader, HeaderFault> {
        let bytes = bytes.get(..HEADER_BYTES as usize).ok_or(HeaderFault::Short)?;
        if bytes[..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        let mut input = Input(&bytes[8..]);
        let mut fields = || -> Result<_, crate::codec::Short> {
            let (format, crc) = (input.u32()?, input.u32()?);
            let header = FileHeader {
                identity: Identity { node: input.array()?, cluster: input.array()? },
                number: FileNumber(input.u64()?),
                salt: input.u64()?,
                first_frame: FrameNumber(input.u64()?),
                capacity: input.u32()?,
                previous_end: input.u32()?,
                session: input.u32()?,
                dirty_end: input.u32()?,
                previous: FileNumber(input.u64()?),
            };
            Ok((format, crc, header))
        };
        let (format, crc, header) = fields().map_err(|_| HeaderFault::Short)?;
        if crc != checksum(bytes) {
            return Err(HeaderFault::Checksum);
        }
        if format > LOG_FORMAT {
            return Err(HeaderFault::Newer(format));
        }
        if !(HEADER_BYTES..=MAX_FILE_BYTES).contains(&header.capacity) {
            return Err(HeaderFault::Capacity);
        }
        Ok(UnverifiedHeader(header))
    }

    /// The header, if it is this node's; `None` if it is a foreigner's. A node that has joined no cluster yet has zeros
    /// as cluster id, and its files stay its own when it joins.
    pub fn verify(self, identity: &Identity) -> Option<FileHeader> {
        let header = self.0;
        let cluster = header.identity.cluster;
        let ours = header.identity.node == identity.node && (cluster == identity.cluster || cluster == [0; 16]);
        ours.then_some(header)
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FileHeader {
        FileHeader {
            identity: Identity { node: [1; 16], cluster: [2; 16] },
            number: FileNumber(3),
            salt: 4,
            first_frame: FrameNumber(5),
            capacity: 6 << 20,
            previous_end: 7,
            session: 8,
            dirty_end: 9,
            previous: FileNumber(2),
        }
    }

    #[test]
    fn header_survives_its_encoding() {
        let header = header();
        let read = UnverifiedHeader::decode(&header.encode()).unwrap();
        assert_eq!(read.verify(&header.identity), Some(header));
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let good = header().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(UnverifiedHeader::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_later_format_is_told_from_damage() {
        let mut bytes = header().encode();
        set(&mut bytes, 8, 2u32.to_le_bytes());
        let crc = checksum(&bytes);
        set(&mut bytes, 12, crc.to_le_bytes());
        assert_eq!(UnverifiedHeader::decode(&bytes), Err(HeaderFault::Newer(2)));
    }

    #[test]
    fn another_nodes_header_is_foreign() {
        let read = UnverifiedHeader::decode(&header().encode()).unwrap();
        assert_eq!(read.verify(&Identity { node: [9; 16], cluster: [2; 16] }), None);
    }
}
