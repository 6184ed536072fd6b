//! Every decoder of what is on disk, given the bytes as they are and, where a checksum would stop nearly all of them, behind
//! a good checksum. What is decoded is written again as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use storage::{
    Identity, SegmentNumber,
    log::{
        frame::{FRAME_HEADER_BYTES, Frame, FrameHeader},
        header::UnverifiedHeader,
        record::decode_records,
    },
    segment::format::{SegmentHeader, SegmentIndex, SegmentRecord},
    snapshot::decode_snapshot,
};

fuzz_target!(|input: &[u8]| {
    let _ = Identity::decode(input);
    let _ = UnverifiedHeader::decode(input);
    let _ = Frame::decode(input);
    let _ = SegmentHeader::decode(input);
    let _ = SegmentRecord::decode(input, SegmentNumber(1));
    let _ = decode_snapshot(input);
    if let Ok(records) = decode_records(input) {
        let mut again = Vec::new();
        records.iter().for_each(|record| record.encode(&mut again));
        assert_eq!(again, input);
    }
    if let Ok(index) = SegmentIndex::decode(input) {
        assert_eq!(index.encode(), input);
    }
    behind_a_good_header(input);
});

/// The first byte says how much of the rest is the records part; what follows is the payload part.
fn behind_a_good_header(input: &[u8]) {
    let Some((length, rest)) = input.split_first() else { return };
    let (records, payload) = rest.split_at(rest.len().min(usize::from(*length)));
    let header = FrameHeader {
        salt: 1,
        file: Default::default(),
        number: Default::default(),
        session: 1,
        synced: 4096,
        records_length: records.len() as u32,
        records_crc: crc32c::crc32c(records),
        payload_length: payload.len() as u32,
        first_of_session: false,
        first_of_file: false,
    };
    let mut bytes = vec![0; FRAME_HEADER_BYTES as usize];
    header.encode(&mut bytes);
    bytes.extend_from_slice(rest);
    assert_eq!(FrameHeader::decode(&bytes), Ok(header));
    let _ = Frame::decode(&bytes);
}
