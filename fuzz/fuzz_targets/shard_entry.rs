//! Any payload of a log entry of a durable shard: what is read can be written, and is then read as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| broker::fuzzing::shard_entry(payload));
