//! A message as it lies in a queue: the bytes as they came over the wire, never taken apart and put together again.

use bytes::Bytes;

/// One message: envelope (exchange and routing key as two adjacent short strings), properties (flags and list) and body, one
/// after the other in a slice of the batch buffer that they were copied into when they were read. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    data: Bytes,
    envelope_bytes: u16,
    properties_bytes: u32,
}

/// What of a message decides when it goes and what goes before it. Given when it enters a queue, kept for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When it entered, in milliseconds since 1970.
    pub enqueued_at_ms: u64,
    /// Its own time to live in milliseconds; [`Stamp::NO_TTL`]: none.
    pub ttl_ms: u32,
    /// Its priority; means nothing in a queue without priorities.
    pub priority: u8,
}

impl Stamp {
    /// The message itself says nothing of how long it lives.
    pub const NO_TTL: u32 = u32::MAX;

    /// When it expires in a queue with this time to live: the lower of the two counts.
    #[must_use]
    pub fn deadline(&self, queue_ttl_ms: Option<u32>) -> Option<u64> {
        let ttl = queue_ttl_ms.map_or(self.ttl_ms, |ttl| ttl.min(self.ttl_ms));
        (ttl != Self::NO_TTL).then(|| self.enqueued_at_ms.saturating_add(u64::from(ttl)))
    }
}

impl Default for Stamp {
    fn default() -> Self {
        Self { enqueued_at_ms: 0, ttl_ms: Self::NO_TTL, priority: 0 }
    }
}

/// Where a message lies in the buffers of its [`Batch`](crate::Batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRef {
    /// Which of the batch's buffers.
    pub buffer: u32,
    /// Where the envelope begins in it.
    pub start: u32,
    /// Length of envelope, properties and body together.
    pub len: u32,
    /// Length of the envelope.
    pub envelope_bytes: u16,
    /// Length of the properties.
    pub properties_bytes: u32,
}

impl MessageRef {
    /// Length of the body; 0 if the parts before it do not fit.
    #[must_use]
    pub fn body_len(&self) -> u32 {
        self.len.saturating_sub(u32::from(self.envelope_bytes)).saturating_sub(self.properties_bytes)
    }

    /// The message, sharing the buffer it lies in. `None` if it does not lie in `buffers`.
    #[must_use]
    pub fn resolve(&self, buffers: &[Bytes]) -> Option<Message> {
        let buffer = buffers.get(self.buffer as usize)?;
        let end = self.start.checked_add(self.len)?;
        let head = u32::from(self.envelope_bytes).checked_add(self.properties_bytes)?;
        if end as usize > buffer.len() || head > self.len {
            return None;
        }
        Some(Message {
            data: buffer.slice(self.start as usize..end as usize),
            envelope_bytes: self.envelope_bytes,
            properties_bytes: self.properties_bytes,
        })
    }
}

impl Message {
    /// A message from its three parts, copied.
    #[must_use]
    pub fn from_parts(envelope: &[u8], properties: &[u8], body: &[u8]) -> Self {
        let data = [envelope, properties, body].concat();
        Self {
            data: Bytes::from(data),
            envelope_bytes: u16::try_from(envelope.len()).expect("two short strings are at most 512 bytes"),
            properties_bytes: u32::try_from(properties.len()).expect("properties fit in a frame"),
        }
    }

    /// The same message in a buffer of its own: for one that stays while those around it go.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { data: Bytes::copy_from_slice(&self.data), ..*self }
    }

    /// Exchange and routing key, as two adjacent short strings.
    #[must_use]
    pub fn envelope(&self) -> &[u8] {
        &self.data[..usize::from(self.envelope_bytes)]
    }

    /// Property flags and property list.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        let start = usize::from(self.envelope_bytes);
        &self.data[start..start + self.properties_bytes as usize]
    }

    /// The body, sharing this message's buffer.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.data.slice(self.body_start()..)
    }

    /// The body's bytes.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        &self.data[self.body_start()..]
    }

    /// Length of the body.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.data.len() - self.body_start()
    }

    /// Length of everything: what the message is counted with in budgets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// A message is never without its envelope.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    fn body_start(&self) -> usize {
        usize::from(self.envelope_bytes) + self.properties_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_outside_its_buffers_is_no_message() {
        let buffers = [Bytes::from_static(b"\x00\x01q\x00\x00body")];
        let good = MessageRef { buffer: 0, start: 0, len: 9, envelope_bytes: 3, properties_bytes: 2 };
        let message = good.resolve(&buffers).expect("lies in the buffer");
        assert_eq!(message.envelope(), b"\x00\x01q");
        assert_eq!(message.properties(), b"\x00\x00");
        assert_eq!(message.body_bytes(), b"body");
        for bad in [
            MessageRef { buffer: 1, ..good },
            MessageRef { len: 10, ..good },
            MessageRef { start: u32::MAX, ..good },
            MessageRef { properties_bytes: 7, ..good },
        ] {
            assert_eq!(bad.resolve(&buffers), None);
        }
    }
}
