//! Messages of several classes over one stream. A message is cut into fragments of at most 64 KiB, and before each fragment it
//! is decided anew whose turn it is: so a heartbeat waits for one fragment at most, however much of other things is to be
//! sent. Messages of one class stay in order.
//!
//! | bytes | field of a fragment |
//! |---|---|
//! | 4 | length of what follows the header |
//! | 1 | class |
//! | 1 | 1 in the last fragment of a message, else 0 |
//! | 2 | zeros |
//! | .. | bytes of the message |

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    input::Malformed,
    wire::{Class, MAX_MESSAGE_BYTES, Outgoing},
};

/// Largest fragment, without its header: half a millisecond at a gigabit per second.
pub const FRAGMENT_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 8;

/// How many fragments each class may send before the others get a turn, if all have something to send. Control goes before
/// all others anyway.
const SHARES: [u32; 4] = [u32::MAX, 8, 8, 1];

/// Bytes that may wait, by class. What comes beyond is refused; raft sends it again, and so must others.
#[derive(Clone, Copy, Debug)]
pub struct OutboxLimits(pub [usize; 4]);

impl Default for OutboxLimits {
    fn default() -> OutboxLimits {
        // A message more than the limit may wait, so that a large one is not refused for ever.
        OutboxLimits([1 << 20, 16 << 20, 16 << 20, 2 << 20])
    }
}

/// What is to be sent.
#[derive(Debug, Default)]
pub struct Outbox {
    lanes: [Lane; 4],
    limits: OutboxLimits,
}

#[derive(Debug, Default)]
struct Lane {
    messages: VecDeque<VecDeque<Bytes>>,
    bytes: usize,
    sent: u32,
}

impl Outbox {
    /// An empty one.
    pub fn new(limits: OutboxLimits) -> Outbox {
        Outbox { limits, ..Outbox::default() }
    }

    /// Puts a message in line. False if too much waits already: it is dropped.
    pub fn push(&mut self, message: Outgoing) -> bool {
        let length = message.len();
        let lane = &mut self.lanes[message.class as usize];
        if lane.bytes >= self.limits.0[message.class as usize] || length == 0 || length > MAX_MESSAGE_BYTES {
            return false;
        }
        lane.bytes += length;
        lane.messages.push_back(message.parts.into_iter().filter(|part| !part.is_empty()).collect());
        true
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    /// The next fragment, as parts to be written one after the other; empty if nothing waits.
    pub fn next_fragment(&mut self) -> Vec<Bytes> {
        let Some(class) = self.choose() else { return Vec::new() };
        let lane = &mut self.lanes[class];
        lane.sent = lane.sent.saturating_add(1);
        let message = lane.messages.front_mut().expect("it was chosen for its message");
        let mut parts = vec![Bytes::new()];
        let mut room = FRAGMENT_BYTES;
        while room > 0
            && let Some(mut part) = message.pop_front()
        {
            let piece = part.split_to(part.len().min(room));
            room -= piece.len();
            parts.push(piece);
            if !part.is_empty() {
                message.push_front(part);
            }
        }
        let last = message.is_empty();
        if last {
            lane.messages.pop_front();
        }
        let length = FRAGMENT_BYTES - room;
        lane.bytes -= length;
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(length as u32).to_le_bytes());
        (header[4], header[5]) = (class as u8, u8::from(last));
        parts[0] = Bytes::copy_from_slice(&header);
        parts
    }

    fn choose(&mut self) -> Option<usize> {
        let waits = |lane: &Lane| !lane.messages.is_empty();
        if waits(&self.lanes[0]) {
            return Some(0);
        }
        for _ in 0..2 {
            let due = (1..self.lanes.len()).find(|&at| waits(&self.lanes[at]) && self.lanes[at].sent < SHARES[at]);
            if due.is_some() {
                return due;
            }
            // All that have something to send have had their share.
            self.lanes.iter_mut().for_each(|lane| lane.sent = 0);
        }
        None
    }
}

/// What has come.
#[derive(Debug, Default)]
pub struct Inbox {
    input: BytesMut,
    /// Messages that are not whole yet, by class.
    partial: [BytesMut; 4],
}

impl Inbox {
    /// Takes bytes from the socket.
    pub fn input(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// Bytes that are no fragment, or a message that is too long: close the link.
    pub fn next_message(&mut self) -> Result<Option<(Class, Bytes)>, Malformed> {
        loop {
            let Some(header) = self.input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let class = Class::from_raw(header[4]).ok_or(Malformed("an unknown class"))?;
            let last = header[5];
            if length > FRAGMENT_BYTES || length == 0 || last > 1 || header[6..] != [0, 0] {
                return Err(Malformed("no fragment"));
            }
            if self.input.len() < HEADER_BYTES + length {
                return Ok(None);
            }
            self.input.advance(HEADER_BYTES);
            let fragment = self.input.split_to(length);
            let partial = &mut self.partial[class as usize];
            if partial.len() + length > MAX_MESSAGE_BYTES {
                return Err(Malformed("a message that is too long"));
            }
            // A buffer of its own, of just the size: what is kept of the message keeps nothing else in memory.
            partial.extend_from_slice(&fragment);
            if last == 1 {
                return Ok(Some((class, std::mem::take(partial).freeze())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(class: Class, length: usize, fill: u8) -> Outgoing {
        let half = length / 2;
        Outgoing { class, parts: vec![vec![fill; half].into(), Bytes::new(), vec![fill; length - half].into()] }
    }

    #[test]
    fn messages_arrive_whole_and_in_order_however_the_bytes_come() {
        let mut outbox = Outbox::new(OutboxLimits::default());
        let lengths = [1, 2, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, 300_000];
        for (fill, length) in lengths.into_iter().enumerate() {
            assert!(outbox.push(message(Class::Append, length, fill as u8)));
        }
        let mut stream = Vec::new();
        loop {
            let parts = outbox.next_fragment();
            if parts.is_empty() {
                break;
            }
            parts.iter().for_each(|part| stream.extend_from_slice(part));
        }
        assert_eq!(outbox.waiting(), 0);
        for piece in [1, 1000, 1 << 20] {
            let mut inbox = Inbox::default();
            let mut arrived = Vec::new();
            for bytes in stream.chunks(piece) {
                inbox.input(bytes);
                while let Some((class, bytes)) = inbox.next_message().unwrap() {
                    assert_eq!(class, Class::Append);
                    arrived.push((bytes[0], bytes.len()));
                }
            }
            let expected: Vec<_> = lengths.iter().enumerate().map(|(fill, length)| (fill as u8, *length)).collect();
            assert_eq!(arrived, expected);
        }
    }

    #[test]
    fn a_heartbeat_overtakes_whatever_else_waits() {
        let mut outbox = Outbox::new(OutboxLimits::default());
        outbox.push(message(Class::Bulk, 1 << 20, 1));
        outbox.push(message(Class::Append, 1 << 20, 2));
        outbox.next_fragment();
        outbox.push(message(Class::Control, 10, 3));
        assert_eq!(outbox.next_fragment()[0][4], Class::Control as u8);
    }

    #[test]
    fn bulk_is_not_starved_by_entries() {
        let mut outbox = Outbox::new(OutboxLimits::default());
        outbox.push(message(Class::Bulk, 1 << 20, 1));
        outbox.push(message(Class::Append, 4 << 20, 2));
        let classes: Vec<u8> = (0..18).map(|_| outbox.next_fragment()[0][4]).collect();
        assert_eq!(classes.iter().filter(|class| **class == Class::Bulk as u8).count(), 2);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut outbox = Outbox::new(OutboxLimits([100; 4]));
        assert!(outbox.push(message(Class::User, 90, 1)));
        assert!(outbox.push(message(Class::User, 90, 1)));
        assert!(!outbox.push(message(Class::User, 1, 1)));
        assert!(outbox.push(message(Class::Control, 1, 1)), "the others have room");
    }

    #[test]
    fn forged_fragments_are_refused() {
        let too_long = ((FRAGMENT_BYTES + 1) as u32).to_le_bytes();
        for header in [[1, 0, 0, 0, 9, 1, 0, 0], [1, 0, 0, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]] {
            let mut inbox = Inbox::default();
            inbox.input(&header);
            assert!(inbox.next_message().is_err(), "{header:?}");
        }
        let mut inbox = Inbox::default();
        inbox.input(&[&too_long[..], &[0, 1, 0, 0]].concat());
        assert!(inbox.next_message().is_err());
    }
}
