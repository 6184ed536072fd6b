//! Any payload of an entry of the metadata: what is read can be written, and is then read as the same changes.

#![no_main]

use broker::metadata::{ENTRY_FORMAT, decode_entry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    if let Ok(changes) = decode_entry(payload) {
        let mut out = bytes::BytesMut::from(&[ENTRY_FORMAT][..]);
        changes.iter().for_each(|change| change.encode(&mut out));
        // Compared as text: a NaN in a table is not equal to itself.
        assert_eq!(format!("{:?}", decode_entry(&out)), format!("{:?}", Ok::<_, broker::metadata::OpError>(changes)));
    }
});
