//! A log whose frames have good checksums and any contents: opening it, reading every group and going on writing either works
//! or is refused. The input is a row of frames, each with the length of its records part (u8), that of its payload part (u8),
//! a byte of flags, and the bytes.

#![no_main]

use std::{io::IoSlice, path::Path, sync::Arc};

use libfuzzer_sys::fuzz_target;
use storage::{
    Completion, Entry, FileNumber, FileSystem, FrameNumber, GroupId, Identity, Log, LogOptions, Operation, SimFs,
    StorageError, Submission, Term, Ticket, Verify, Written,
    log::{
        frame::{FRAME_HEADER_BYTES, FrameHeader},
        header::FileHeader,
    },
};

const FILE_BYTES: u32 = 32 << 10;
const IDENTITY: Identity = Identity { node: [1; 16], cluster: [0; 16] };

struct Silent;

impl Completion for Silent {
    fn written(&self, _: Written<'_>) {}
    fn failed(&self, _: GroupId, _: Ticket, _: &StorageError) {}
}

fuzz_target!(|input: &[u8]| {
    let fs = SimFs::new(1);
    let file = fs.create(Path::new("log/00000000000000000001.log")).expect("an empty disk");
    file.preallocate(FILE_BYTES.into()).expect("space");
    file.write_at(&[IoSlice::new(&file_bytes(input))], 0).expect("a working disk");
    let options = LogOptions {
        file_bytes: FILE_BYTES,
        reserve_bytes: 16 << 10,
        chunk_bytes: 1 << 10,
        verify: Verify::All,
        ..LogOptions::default()
    };
    let opened = Log::open(Arc::new(fs), Path::new("log"), IDENTITY, options, Arc::new(Silent));
    let Ok((log, mut writer, _)) = opened else { return };
    for group in log.groups() {
        let status = log.status(group).expect("listed");
        let first = status.compacted.0.next();
        let _ = log.entries(group, first, u64::MAX);
        let entry = Entry { index: status.last.next(), term: Term(9), tag: 0, payload: b"next".as_slice().into() };
        let operations = vec![Operation::Append(entry)];
        log.submit(Submission { group, ticket: Ticket(1), critical: false, lazy: false, operations });
    }
    writer.turn();
    log.accounting_complete();
    log.maintain().expect("a working disk");
});

fn file_bytes(mut input: &[u8]) -> Vec<u8> {
    let header = FileHeader {
        identity: IDENTITY,
        number: FileNumber(1),
        salt: 7,
        first_frame: FrameNumber(1),
        capacity: FILE_BYTES,
        previous_end: 0,
        session: 1,
        dirty_end: 0,
        previous: FileNumber(0),
    };
    let mut bytes = header.encode();
    let mut number = 1;
    while let [records_length, payload_length, flags, rest @ ..] = input {
        let records = &rest[..rest.len().min(usize::from(*records_length))];
        let rest = &rest[records.len()..];
        let payload = &rest[..rest.len().min(usize::from(*payload_length))];
        let start = bytes.len();
        let frame = FrameHeader {
            salt: 7,
            file: FileNumber(1),
            number: FrameNumber(number),
            session: 1 + u32::from(flags >> 6),
            synced: start as u32 & !u32::from(*flags),
            records_length: records.len() as u32,
            records_crc: crc32c::crc32c(records),
            payload_length: payload.len() as u32,
            first_of_session: flags & 1 != 0,
            first_of_file: flags & 2 != 0,
        };
        if start + frame.frame_length() as usize > FILE_BYTES as usize {
            break;
        }
        bytes.resize(start + FRAME_HEADER_BYTES as usize, 0);
        frame.encode(&mut bytes[start..]);
        bytes.extend_from_slice(records);
        bytes.extend_from_slice(payload);
        bytes.resize(start + frame.frame_length() as usize, 0);
        number += 1;
        input = &rest[payload.len()..];
    }
    bytes
}
