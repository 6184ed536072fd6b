//! Any snapshot of a durable shard with a good checksum: it is refused, or its queues can be restored and looked at. Half of the inputs get the
//! header that snapshots begin with, so that their contents are looked at, too.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// Magic, format 2, no entry applied.
const HEADER: &[u8] = b"WMQSHARD\x02\0\0\0\0\0\0\0\0\0\0\0";

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((first, contents)) if first & 1 == 1 => broker::fuzzing::shard_snapshot(&[HEADER, contents].concat()),
        _ => broker::fuzzing::shard_snapshot(input),
    }
});
