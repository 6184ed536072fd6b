//! What queues need to know of a message's properties: its time to live and its priority.

use amqp::Properties;
use queue::Stamp;

use crate::clock;

/// Property flags (AMQP 0-9-1 section 4.2.6.1) of `priority` and `expiration`.
const PRIORITY: u16 = 1 << 11;
const EXPIRATION: u16 = 1 << 8;

/// Time to live in milliseconds and priority. Most messages have neither, and are told from others by two bits.
#[inline]
pub(crate) fn ttl_and_priority(properties: &[u8]) -> (u32, u8) {
    match properties {
        [high, low, ..] if u16::from_be_bytes([*high, *low]) & (PRIORITY | EXPIRATION) != 0 => look(properties),
        _ => (Stamp::NO_TTL, 0),
    }
}

#[cold]
fn look(properties: &[u8]) -> (u32, u8) {
    let properties = Properties::from_raw_trusted(properties);
    let text = properties.expiration().and_then(|expiration| std::str::from_utf8(expiration).ok());
    // The largest that may be asked for is one more than what is kept apart for "none": 49 days, less a millisecond.
    let ttl = text.and_then(|text| text.parse::<u32>().ok()).map(|ttl| ttl.min(Stamp::NO_TTL - 1));
    (ttl.unwrap_or(Stamp::NO_TTL), properties.priority().unwrap_or(0))
}

/// What a message with these properties says that entered at this time; 0: that is not known, and taken to be now.
pub(crate) fn stamp_of(properties: &[u8], enqueued_at_ms: u64) -> Stamp {
    let (ttl_ms, priority) = ttl_and_priority(properties);
    let enqueued_at_ms = if enqueued_at_ms == 0 { clock::now_ms() } else { enqueued_at_ms };
    Stamp { enqueued_at_ms, ttl_ms, priority }
}

#[cfg(test)]
mod tests {
    use amqp::PropertiesBuilder;

    use super::*;

    #[test]
    fn expiration_and_priority_are_found_and_most_messages_have_neither() {
        assert_eq!(ttl_and_priority(&[0, 0]), (Stamp::NO_TTL, 0));
        assert_eq!(ttl_and_priority(&[]), (Stamp::NO_TTL, 0));
        let plain = PropertiesBuilder::new().set_content_type(b"text/plain").build();
        assert_eq!(ttl_and_priority(&plain), (Stamp::NO_TTL, 0));
        let both = PropertiesBuilder::new().set_content_type(b"x").set_priority(7).set_expiration(b"1500").build();
        assert_eq!(ttl_and_priority(&both), (1500, 7));
        let longest = PropertiesBuilder::new().set_expiration(b"4294967295").build();
        assert_eq!(ttl_and_priority(&longest), (Stamp::NO_TTL - 1, 0));
    }
}
