//! A segment with a good header and any index and messages: opening it, reading every queue and counting what is alive either
//! works or is refused. The first two bytes say where the index begins.

#![no_main]

use std::{io::IoSlice, path::Path, sync::Arc};

use libfuzzer_sys::fuzz_target;
use storage::{
    Alive, FileSystem, GroupId, Interval, QueueKey, SegmentNumber, SegmentOptions, Segments, SimFs,
    segment::format::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentIndex},
};

const NODE: [u8; 16] = [1; 16];

fuzz_target!(|input: &[u8]| {
    let [low, high, rest @ ..] = input else { return };
    let (records, index) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
    let header = SegmentHeader {
        node: NODE,
        number: SegmentNumber(1),
        group: GroupId(1),
        records: SegmentIndex::decode(index).map_or(1, |index| index.count() as u32),
        records_end: (SEGMENT_HEADER_BYTES + records.len()) as u32,
        index_length: index.len() as u32,
        index_crc: crc32c::crc32c(index),
    };
    let fs = SimFs::new(1);
    let file = fs.create(Path::new("segments/00000000000000000001.segment")).expect("an empty disk");
    let header = header.encode();
    file.write_at(&[&header, records, index].map(IoSlice::new), 0).expect("a working disk");
    let options = SegmentOptions { accept_damage: true, ..SegmentOptions::default() };
    let Ok((segments, _)) = Segments::open(Arc::new(fs), Path::new("segments"), NODE, options) else { return };
    for queue in (0..4).map(QueueKey) {
        for run in segments.runs(GroupId(1), queue) {
            let _ = segments.find(GroupId(1), queue, run.last);
        }
        let _ = segments.read_queue(GroupId(1), queue, 0, 10_000);
    }
    let all = Interval { first: 0, last: u64::MAX };
    let _ = segments.recount(GroupId(1), &mut |_| vec![all]);
    let due: Vec<_> = segments.rewrite_due(GroupId(1)).into_iter().map(|(segment, _)| segment).collect();
    let _ = segments.rewrite(GroupId(1), &due, &mut |_| Alive { intervals: vec![all], starts: vec![1] });
});
