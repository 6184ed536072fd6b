//! How much memory messages take: counted in whole buffers, because a buffer lives as long as any message in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Bytes of all message buffers of the node.
#[derive(Debug, Default)]
pub(crate) struct MessageMemory {
    bytes: AtomicU64,
}

impl MessageMemory {
    /// What is held now, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Makes `buffer` shareable and counts it until its last slice is gone.
    pub(crate) fn hold(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        self.bytes.fetch_add(buffer.capacity() as u64, Ordering::Relaxed);
        Bytes::from_owner(Held { buffer, memory: Arc::clone(self) })
    }
}

struct Held {
    buffer: Vec<u8>,
    memory: Arc<MessageMemory>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.buffer.capacity() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_as_long_as_a_slice_of_it_lives() {
        let memory = Arc::new(MessageMemory::default());
        let buffer = memory.hold(Vec::with_capacity(1000));
        let other = memory.hold(vec![1; 10]);
        let slice = other.slice(3..5);
        assert_eq!(memory.bytes(), 1010);
        drop((buffer, other));
        assert_eq!(memory.bytes(), 10);
        drop(slice);
        assert_eq!(memory.bytes(), 0);
    }
}
