//! Messages as the tool sends them: a stamp in the first bytes of the body says where and when it came from, and a
//! prepared copy of all frames makes a publish one copy and a few patched bytes.
//!
//! ```text
//! 0         2             4                10                16
//! +---------+-------------+----------------+-----------------+---- - -
//! | run     | publisher   | sequence       | sent            | filling
//! | u16     | u16         | u48            | u48, µs         |
//! +---------+-------------+----------------+-----------------+---- - -
//! ```
//!
//! Integers are big-endian. `sent` is the low part of the microseconds since 1970: 48 bits last for 8.9 years, and
//! differences are taken modulo that.

use std::ops::RangeInclusive;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use amqp::methods::basic;
use amqp::{FRAME_END, FRAME_HEADER_BYTES, FRAME_OVERHEAD_BYTES, FrameKind, encode};
use bytes::{BufMut as _, BytesMut};

/// Bytes of a stamp: the smallest body.
pub(crate) const STAMP_BYTES: usize = 16;
const SIX_BYTES: u64 = (1 << 48) - 1;
/// Where in a header frame the body size stands: behind the frame's header, class and weight.
const BODY_SIZE_AT: usize = FRAME_HEADER_BYTES + 4;

/// What the first bytes of a body say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Which run of the tool.
    pub(crate) run: u16,
    /// Which publisher of the run.
    pub(crate) publisher: u16,
    /// The publisher's count, from 0. Below 2^48.
    pub(crate) sequence: u64,
    /// When, as [`Clock::now`] had it.
    pub(crate) sent_us: u64,
}

impl Stamp {
    #[inline]
    pub(crate) fn encode(self) -> [u8; STAMP_BYTES] {
        let high = u64::from(self.run) << 48 | u64::from(self.publisher) << 32 | (self.sequence & SIX_BYTES) >> 16;
        let low = self.sequence << 48 | (self.sent_us & SIX_BYTES);
        (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8; STAMP_BYTES]) -> Self {
        let all = u128::from_be_bytes(*bytes);
        let (high, low) = ((all >> 64) as u64, all as u64);
        Self {
            run: (high >> 48) as u16,
            publisher: (high >> 32) as u16,
            sequence: (high << 16 & SIX_BYTES) | low >> 48,
            sent_us: low & SIX_BYTES,
        }
    }
}

/// The time on stamps: that of the system at the start of the run, plus what a clock that never steps says since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_us: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_us: since_1970.as_micros() as u64 }
    }

    /// Microseconds since 1970, modulo 2^48.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        (self.started_us + instant.saturating_duration_since(self.started).as_micros() as u64) & SIX_BYTES
    }

    /// From one stamp's time to a later one; zero if the clocks of two machines make it negative.
    #[inline]
    pub(crate) fn between_us(sent_us: u64, now_us: u64) -> u64 {
        let difference = now_us.wrapping_sub(sent_us) & SIX_BYTES;
        if difference > SIX_BYTES / 2 { 0 } else { difference }
    }

    /// When the clock was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }
}

/// Frames of a message, prepared: only sizes and the stamp are written anew.
#[derive(Debug)]
pub(crate) struct Template {
    /// `basic.publish` and the content header.
    head: Vec<u8>,
    /// Where the body size stands in `head`.
    body_size_at: usize,
    /// A body of the largest size; the stamp goes over its first bytes.
    filling: Vec<u8>,
    sizes: RangeInclusive<usize>,
    channel: u16,
    max_payload: usize,
    random: u64,
}

impl Template {
    /// Messages to `exchange` and `routing_key`. `properties` in wire form ([`amqp::PropertiesBuilder::build`]).
    /// `sizes` of bodies, in bytes, are at least [`STAMP_BYTES`]; they are drawn evenly.
    pub(crate) fn new(
        channel: u16,
        frame_max: u32,
        publish: basic::Publish,
        properties: &[u8],
        sizes: RangeInclusive<usize>,
        seed: u64,
    ) -> Self {
        debug_assert!(*sizes.start() >= STAMP_BYTES, "a body holds its stamp");
        let mut head = BytesMut::new();
        encode::method(&mut head, channel, &amqp::methods::AMQPClass::Basic(basic::AMQPMethod::Publish(publish)));
        let body_size_at = head.len() + BODY_SIZE_AT;
        put_frame_head(&mut head, FrameKind::Header, channel, 12 + properties.len());
        head.put_slice(&[0, 60, 0, 0]);
        head.put_u64(0);
        head.put_slice(properties);
        head.put_u8(FRAME_END);
        // What compresses well would flatter a broker or a file system that compresses.
        let mut random = seed | 1;
        let filling = (0..*sizes.end()).map(|_| next_random(&mut random) as u8).collect();
        let max_payload = frame_max as usize - FRAME_OVERHEAD_BYTES;
        Self { head: head.to_vec(), body_size_at, filling, sizes, channel, max_payload, random }
    }

    /// Appends a message with this stamp, and says how large its body is, in bytes.
    #[inline]
    pub(crate) fn write(&mut self, out: &mut BytesMut, stamp: Stamp) -> usize {
        let (least, most) = (*self.sizes.start(), *self.sizes.end());
        let size =
            if least == most { most } else { least + (next_random(&mut self.random) as usize) % (most - least + 1) };
        self.filling[..STAMP_BYTES].copy_from_slice(&stamp.encode());
        self.head[self.body_size_at..self.body_size_at + 8].copy_from_slice(&(size as u64).to_be_bytes());
        out.reserve(self.head.len() + size + FRAME_OVERHEAD_BYTES);
        out.put_slice(&self.head);
        for piece in self.filling[..size].chunks(self.max_payload) {
            put_frame_head(out, FrameKind::Body, self.channel, piece.len());
            out.put_slice(piece);
            out.put_u8(FRAME_END);
        }
        size
    }
}

#[inline]
fn put_frame_head(out: &mut BytesMut, kind: FrameKind, channel: u16, payload_bytes: usize) {
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = (payload_bytes as u32).to_be_bytes();
    out.put_slice(&[kind as u8, c0, c1, s0, s1, s2, s3]);
}

/// xorshift64: enough for sizes and filling.
#[inline]
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::{FrameDecoder, Method};

    #[test]
    fn a_stamp_comes_back_as_it_was() {
        for stamp in [
            Stamp { run: 0, publisher: 0, sequence: 0, sent_us: 0 },
            Stamp { run: 0xFFFF, publisher: 1, sequence: SIX_BYTES, sent_us: 1 },
            Stamp { run: 1, publisher: 0xFFFF, sequence: 0x0102_0304_0506, sent_us: SIX_BYTES },
        ] {
            assert_eq!(Stamp::decode(&stamp.encode()), stamp);
        }
    }

    #[test]
    fn time_between_stamps_survives_a_wrap_and_is_never_negative() {
        assert_eq!(Clock::between_us(SIX_BYTES, 9), 10);
        assert_eq!(Clock::between_us(100, 90), 0);
    }

    #[test]
    fn a_template_writes_frames_that_a_broker_reads() {
        let publish =
            basic::Publish { exchange: "".into(), routing_key: "q".into(), mandatory: true, immediate: false };
        let mut template = Template::new(3, 4096, publish, &[0, 0], 16..=10_000, 1);
        let stamp = Stamp { run: 1, publisher: 2, sequence: 3, sent_us: 4 };
        for _ in 0..50 {
            let mut out = BytesMut::new();
            let size = template.write(&mut out, stamp);
            let (mut rest, mut frames) = (&out[..], Vec::new());
            while let Some((frame, bytes)) = FrameDecoder::new(4096).decode(rest).expect("well formed") {
                frames.push(frame);
                rest = &rest[bytes..];
            }
            assert!(rest.is_empty() && (16..=10_000).contains(&size));
            assert!(matches!(Method::decode(frames[0].payload), Ok(Method::Publish(p)) if p.routing_key == "q"));
            let header = amqp::ContentHeader::decode(frames[1].payload).expect("a header");
            let body: Vec<u8> = frames[2..].iter().flat_map(|frame| frame.payload).copied().collect();
            assert_eq!((header.body_size as usize, body.len()), (size, size));
            assert_eq!(Stamp::decode(body.first_chunk().expect("a stamp")), stamp);
        }
    }
}
