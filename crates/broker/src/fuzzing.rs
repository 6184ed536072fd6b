//! Doors for the fuzz targets in `fuzz/`: decoders that nothing outside the crate calls, as checks of any bytes.

use bytes::Bytes;
use queue::Settings;

use crate::durable::{entry, snapshot};

/// Any payload of a log entry of a durable shard: what is read can be written, and is then read as the same.
///
/// # Panics
/// If it is not.
pub fn shard_entry(payload: &[u8]) {
    let payload = Bytes::copy_from_slice(payload);
    let Some(decoded) = entry::decode(&payload) else { return };
    let mut again = payload.to_vec();
    let mut ops = entry::Ops::new(decoded.now_ms);
    for op in &decoded.ops {
        match op {
            entry::Logged::Enqueue { targets, message, timed } => ops.enqueue(targets, message, *timed),
            entry::Logged::Failed { queue, sequences } => ops.failed(*queue, sequences),
            entry::Logged::Remove { queue, sequences } => ops.remove(*queue, sequences),
            entry::Logged::Delivered { queue, up_to } => ops.delivered(*queue, *up_to),
        }
    }
    ops.finish(&mut again);
    assert_eq!(entry::decode(&Bytes::from(again)), Some(decoded));
}

/// Any snapshot of a durable shard whose checksum is right: `body` is what the checksum covers. The queues of a readable one can be restored
/// and looked at.
pub fn shard_snapshot(body: &[u8]) {
    let mut bytes = body.to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let Some((_, queues)) = snapshot::decode(&bytes) else { return };
    for queue in queues {
        let machine = queue.into_machine(Settings { durable: true, ..Settings::default() });
        let _ = (machine.counts(), machine.next_sequence(), machine.wanted_chunk());
        machine.cold_chunks().for_each(|chunk| drop(machine.cold_alive(chunk)));
    }
}
