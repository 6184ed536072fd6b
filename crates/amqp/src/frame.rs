//! Frames: how one byte stream carries many channels (AMQP 0-9-1 section 4.2.3).
//!
//! ```text
//! 0      1         3           7                size+7   size+8
//! +------+---------+-----------+---- - - ----------+----------+
//! | kind | channel | size      | payload           | 0xCE     |
//! | u8   | u16     | u32       | size bytes        | u8       |
//! +------+---------+-----------+---- - - ----------+----------+
//! ```
//!
//! The decoder looks at the reader's buffer and borrows from it; it neither reads nor keeps bytes. All it says of a
//! bad frame is an exception that ends the connection, in RabbitMQ's words.

use crate::octets::snippet;
use crate::reply::{Exception, MethodId, ReplyCode};

/// Bytes of a frame before its payload.
pub const FRAME_HEADER_BYTES: usize = 7;
/// Bytes of a frame around its payload: the header and the end marker.
pub const FRAME_OVERHEAD_BYTES: usize = 8;
/// The last byte of every frame.
pub const FRAME_END: u8 = 0xCE;
/// The smallest frame-max that may be negotiated, in bytes (section 4.2.3: "frame-min-size").
pub const FRAME_MIN_SIZE: u32 = 4096;

/// Clients that take frame-max for the size of the payload send frames that are 8 bytes too long; RabbitMQ lets them.
const FRAME_MAX_TOLERANCE: u32 = 8;
/// Class id and method id.
const MIN_METHOD_BYTES: usize = 4;
/// Class id, weight and body size.
const MIN_HEADER_BYTES: usize = 12;

/// The kinds of frames, by their number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A method and its arguments.
    Method = 1,
    /// The header of a content: size of its body, and properties.
    Header = 2,
    /// A piece of a content's body.
    Body = 3,
    /// A sign of life, empty.
    Heartbeat = 8,
}

/// One frame, borrowed from the buffer it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload is.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// At least 4 bytes in a method frame, at least 12 in a header frame, none in a heartbeat.
    pub payload: &'a [u8],
}

/// Finds frames in a buffer, and refuses those that are malformed or larger than agreed.
#[derive(Clone, Copy, Debug)]
pub struct FrameDecoder {
    frame_max: u32,
}

impl FrameDecoder {
    /// A decoder for frames of at most `frame_max` bytes, counted with header and end marker. Anything below
    /// [`FRAME_MIN_SIZE`] counts as that.
    #[must_use]
    pub fn new(frame_max: u32) -> Self {
        Self { frame_max: frame_max.max(FRAME_MIN_SIZE) }
    }

    /// Sets the limit that was negotiated.
    pub fn set_frame_max(&mut self, frame_max: u32) {
        *self = Self::new(frame_max);
    }

    /// The first frame in `input` and the number of bytes it takes there, or `None` while it is incomplete.
    ///
    /// # Errors
    ///
    /// All end the connection: 501 for a frame that is too large (known from the first 7 bytes), not ended by 0xCE, of
    /// an unknown kind or too short for its kind; 505 for a heartbeat on a channel and for content on channel 0.
    pub fn decode<'a>(&self, input: &'a [u8]) -> Result<Option<(Frame<'a>, usize)>, Exception> {
        let Some(&[kind, channel_high, channel_low, s0, s1, s2, s3]) = input.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        if size > self.max_payload() {
            return Err(self.too_large(kind, size));
        }
        let payload_end = FRAME_HEADER_BYTES + size as usize;
        let Some(&end_marker) = input.get(payload_end) else {
            return Ok(None);
        };
        let payload = &input[FRAME_HEADER_BYTES..payload_end];
        if end_marker != FRAME_END {
            return Err(malformed(kind, payload, &format!("{{invalid_frame_end_marker,{end_marker}}}")));
        }
        let channel = u16::from_be_bytes([channel_high, channel_low]);
        let kind = match kind {
            1 if payload.len() >= MIN_METHOD_BYTES => FrameKind::Method,
            2 if payload.len() >= MIN_HEADER_BYTES => FrameKind::Header,
            3 => FrameKind::Body,
            8 if payload.is_empty() => FrameKind::Heartbeat,
            _ => return Err(malformed(kind, payload, "unknown_frame")),
        };
        let belongs_to_a_channel = matches!(kind, FrameKind::Header | FrameKind::Body);
        let belongs_to_the_connection = kind == FrameKind::Heartbeat;
        if (channel == 0 && belongs_to_a_channel) || (channel != 0 && belongs_to_the_connection) {
            return Err(unexpected(kind, payload));
        }
        Ok(Some((Frame { kind, channel, payload }, payload_end + 1)))
    }

    /// Bytes the next frame needs in total, once the 7 bytes of its header are in `input`: what the reader's buffer must
    /// hold. Never more than the limit plus [`FRAME_OVERHEAD_BYTES`]; a frame above the limit needs no more than its
    /// header to be refused.
    #[must_use]
    pub fn needed(&self, input: &[u8]) -> Option<usize> {
        let &[_, _, _, s0, s1, s2, s3] = input.first_chunk::<FRAME_HEADER_BYTES>()?;
        let size = u32::from_be_bytes([s0, s1, s2, s3]);
        if size > self.max_payload() {
            return Some(FRAME_HEADER_BYTES);
        }
        Some(size as usize + FRAME_OVERHEAD_BYTES)
    }

    /// Largest payload that is let through, in bytes.
    fn max_payload(&self) -> u32 {
        self.frame_max - FRAME_OVERHEAD_BYTES as u32 + FRAME_MAX_TOLERANCE
    }

    #[cold]
    fn too_large(&self, kind: u8, size: u32) -> Exception {
        let agreed = self.frame_max - FRAME_OVERHEAD_BYTES as u32;
        malformed(kind, &[], &format!("{{frame_too_large,{size},{agreed}}}"))
    }
}

/// 501: the frame itself is bad.
#[cold]
pub(crate) fn malformed(kind: u8, payload: &[u8], reason: &str) -> Exception {
    Exception::new(ReplyCode::FrameError, format!("type {kind}, {}: {reason}", snippet(payload)), MethodId::NONE)
}

/// 505: the frame is on a channel on which its kind has no place.
#[cold]
fn unexpected(kind: FrameKind, payload: &[u8]) -> Exception {
    Exception::new(ReplyCode::UnexpectedFrame, format!("type {}, {}", kind as u8, snippet(payload)), MethodId::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&channel.to_be_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes.push(FRAME_END);
        bytes
    }

    fn refused(bytes: &[u8]) -> (u16, String) {
        let exception = FrameDecoder::new(131_072).decode(bytes).expect_err("should be refused");
        assert!(exception.whole_connection && exception.method == MethodId::NONE);
        (exception.code as u16, exception.reply_text())
    }

    #[test]
    fn frame_is_found_only_when_its_last_byte_is_there() {
        let mut bytes = frame(1, 7, b"\0\x3c\0\x0a\x01");
        let total = bytes.len();
        bytes.extend_from_slice(&frame(8, 0, b""));
        let decoder = FrameDecoder::new(4096);
        for length in 0..total {
            assert_eq!(decoder.decode(&bytes[..length]), Ok(None), "{length} bytes");
            assert_eq!(decoder.needed(&bytes[..length]), (length >= FRAME_HEADER_BYTES).then_some(total));
        }
        for length in total..=bytes.len() {
            let expected = Frame { kind: FrameKind::Method, channel: 7, payload: b"\0\x3c\0\x0a\x01" };
            assert_eq!(decoder.decode(&bytes[..length]), Ok(Some((expected, total))));
        }
        let heartbeat = Frame { kind: FrameKind::Heartbeat, channel: 0, payload: b"" };
        assert_eq!(decoder.decode(&bytes[total..]), Ok(Some((heartbeat, 8))));
    }

    #[test]
    fn wrong_end_marker_is_501_with_the_octets() {
        let mut bytes = frame(1, 1, &[0, 60, 0, 10, 0, 0, 0, 0, 0, 1, 0]);
        *bytes.last_mut().unwrap() = 0;
        let text = "FRAME_ERROR - type 1, all octets = <<0,60,0,10,0,0,0,0,0,1,0>>: {invalid_frame_end_marker,0}";
        assert_eq!(refused(&bytes), (501, text.to_owned()));
    }

    #[test]
    fn unknown_kinds_are_501() {
        let text = "FRAME_ERROR - type 5, all octets = <<>>: unknown_frame";
        assert_eq!(refused(&frame(5, 1, b"")), (501, text.to_owned()));
        let text = "FRAME_ERROR - type 9, all octets = <<\"abc\">>: unknown_frame";
        assert_eq!(refused(&frame(9, 1, b"abc")), (501, text.to_owned()));
        let text = "FRAME_ERROR - type 8, all octets = <<\"abc\">>: unknown_frame";
        assert_eq!(refused(&frame(8, 0, b"abc")), (501, text.to_owned()));
    }

    #[test]
    fn method_and_header_too_short_for_their_ids_are_501() {
        let text = "FRAME_ERROR - type 1, all octets = <<0,60,0>>: unknown_frame";
        assert_eq!(refused(&frame(1, 1, &[0, 60, 0])), (501, text.to_owned()));
        let text = "FRAME_ERROR - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,1>>: unknown_frame";
        assert_eq!(refused(&frame(2, 1, &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1])), (501, text.to_owned()));
    }

    #[test]
    fn frame_above_the_limit_is_refused_on_its_header_alone() {
        let bytes = frame(1, 1, &vec![0; 131_085]);
        let text = "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,131085,131064}";
        assert_eq!(refused(&bytes[..7]), (501, text.to_owned()));
        assert_eq!(FrameDecoder::new(131_072).decode(&bytes[..6]), Ok(None));
        assert_eq!(FrameDecoder::new(131_072).needed(&bytes), Some(7), "no buffer grows for a refused frame");
        assert_eq!(refused(&frame(3, 1, &[])[..3].iter().chain(&[255; 4]).copied().collect::<Vec<_>>()).0, 501);
    }

    #[test]
    fn payload_up_to_frame_max_is_let_through() {
        for (payload, let_through) in [(131_064, true), (131_065, true), (131_072, true), (131_073, false)] {
            let bytes = frame(3, 1, &vec![1; payload]);
            let decoded = FrameDecoder::new(131_072).decode(&bytes);
            assert_eq!(decoded.is_ok(), let_through, "payload of {payload}");
            if let_through {
                assert_eq!(decoded.unwrap().unwrap().1, payload + 8);
                assert_eq!(FrameDecoder::new(131_072).needed(&bytes), Some(payload + 8));
            }
        }
    }

    #[test]
    fn limit_changes_when_it_is_negotiated_and_never_falls_below_the_minimum() {
        let bytes = frame(3, 1, &[1; 5000]);
        let mut decoder = FrameDecoder::new(0);
        assert!(decoder.decode(&bytes).unwrap_err().text.ends_with("{frame_too_large,5000,4088}"));
        decoder.set_frame_max(8192);
        assert!(decoder.decode(&bytes).is_ok());
    }

    #[test]
    fn heartbeat_on_a_channel_is_505() {
        let text = "UNEXPECTED_FRAME - type 8, all octets = <<>>";
        assert_eq!(refused(&frame(8, 1, b"")), (505, text.to_owned()));
    }

    #[test]
    fn content_on_channel_0_is_505() {
        let header = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        let text = "UNEXPECTED_FRAME - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,1,0,0>>";
        assert_eq!(refused(&frame(2, 0, &header)), (505, text.to_owned()));
        let text = "UNEXPECTED_FRAME - type 3, first 16 octets = <<\"aaaaaaaaaaaaaaaa\">>";
        assert_eq!(refused(&frame(3, 0, &[b'a'; 17])), (505, text.to_owned()));
    }
}
