//! What waits to be written to one socket.
//!
//! Small things are encoded into one buffer, the tail. A large piece of a body is not copied: it is queued as a slice
//! of the batch it lives in, between what was encoded before and after it, and the socket gathers them in one call.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::encode;
use crate::frame::{FRAME_END, FRAME_HEADER_BYTES, FRAME_OVERHEAD_BYTES, FrameKind};

/// Pieces of a body below this many bytes are copied: that is then cheaper than one more slice for the system call, and
/// a small message does not keep the whole batch it came in alive.
pub const COPY_BELOW: usize = 4096;

/// Encoded frames and large bodies, in the order in which they go out.
#[derive(Debug, Default)]
pub struct Outbox {
    /// What goes out before the tail, none of it empty.
    queue: VecDeque<Bytes>,
    /// Bytes in the queue.
    queued_bytes: usize,
    /// What was encoded last.
    tail: BytesMut,
}

impl Outbox {
    /// Nothing waits, nothing is allocated.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where encoded frames are appended.
    #[inline]
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Appends a content header and the body, in frames of at most `frame_max` bytes. `properties` are flags and values
    /// as in [`Properties::raw`](crate::Properties::raw).
    #[inline]
    pub fn content(&mut self, channel: u16, frame_max: u32, properties: &[u8], body: &Bytes) {
        let fragment_max = (frame_max as usize).saturating_sub(FRAME_OVERHEAD_BYTES).max(1);
        if body.len() < COPY_BELOW && body.len() <= fragment_max {
            encode::content_header(&mut self.tail, channel, body.len(), properties, body.len() + FRAME_OVERHEAD_BYTES);
            if !body.is_empty() {
                self.copy_fragment(channel, body);
            }
            return;
        }
        encode::content_header(&mut self.tail, channel, body.len(), properties, FRAME_HEADER_BYTES);
        self.fragments(channel, fragment_max, body);
    }

    /// Bytes that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.queued_bytes + self.tail.len()
    }

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `slices` with what goes out next, and says how many were filled.
    pub fn io_slices<'s>(&'s self, slices: &mut [IoSlice<'s>]) -> usize {
        let tail = Some(self.tail.as_ref()).filter(|tail| !tail.is_empty());
        let waiting = self.queue.iter().map(AsRef::as_ref).chain(tail);
        let mut filled = 0;
        for (slice, bytes) in slices.iter_mut().zip(waiting) {
            *slice = IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    /// Drops the first `written` bytes: the socket has taken them.
    ///
    /// # Panics
    ///
    /// If more was written than waits.
    pub fn advance(&mut self, mut written: usize) {
        assert!(written <= self.len(), "more was written than was waiting");
        while let Some(first) = self.queue.front_mut() {
            if written < first.len() {
                first.advance(written);
                self.queued_bytes -= written;
                return;
            }
            written -= first.len();
            self.queued_bytes -= first.len();
            self.queue.pop_front();
        }
        self.tail.advance(written);
    }

    /// Gives buffers back when nothing waits, so that an idle connection costs nothing.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }

    fn fragments(&mut self, channel: u16, fragment_max: usize, body: &Bytes) {
        let mut start = 0;
        while start < body.len() {
            let end = body.len().min(start + fragment_max);
            if end - start < COPY_BELOW {
                self.copy_fragment(channel, &body[start..end]);
            } else {
                self.tail.put_slice(&encode::frame_head(FrameKind::Body, channel, end - start));
                self.queue_tail();
                self.queued_bytes += end - start;
                self.queue.push_back(body.slice(start..end));
                self.tail.put_u8(FRAME_END);
            }
            start = end;
        }
    }

    #[inline]
    fn copy_fragment(&mut self, channel: u16, fragment: &[u8]) {
        self.tail.reserve(fragment.len() + FRAME_OVERHEAD_BYTES);
        self.tail.put_slice(&encode::frame_head(FrameKind::Body, channel, fragment.len()));
        self.tail.put_slice(fragment);
        self.tail.put_u8(FRAME_END);
    }

    /// Closes what was encoded so far, so that a slice can follow it.
    fn queue_tail(&mut self) {
        let encoded = self.tail.split().freeze();
        self.queued_bytes += encoded.len();
        self.queue.push_back(encoded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assembler, FrameDecoder, Step};

    /// Everything that waits, taken in writes of at most `step` bytes over at most `slices` slices.
    fn drain(outbox: &mut Outbox, step: usize, slices: usize) -> Vec<u8> {
        let mut written = Vec::new();
        while !outbox.is_empty() {
            let before = outbox.len();
            let mut io = vec![IoSlice::new(&[]); slices];
            let filled = outbox.io_slices(&mut io);
            assert!(io[..filled].iter().all(|slice| !slice.is_empty()));
            let taken = written.len();
            written.extend(io[..filled].iter().flat_map(|slice| slice.iter()).take(step));
            let taken = written.len() - taken;
            outbox.advance(taken);
            assert_eq!(outbox.len(), before - taken);
        }
        written
    }

    /// The body, and how many frames it came in.
    fn read_back(mut stream: &[u8], frame_max: u32) -> (Vec<u8>, usize) {
        let mut assembler = Assembler::new();
        assembler.publish_started();
        let (mut body, mut frames) = (Vec::new(), 0);
        while !stream.is_empty() {
            let (frame, consumed) = FrameDecoder::new(frame_max).decode(stream).unwrap().unwrap();
            assert!(consumed <= frame_max as usize && frame.channel == 5);
            stream = &stream[consumed..];
            match frame.kind {
                FrameKind::Header => {
                    let Ok(Step::Header { header, .. }) = assembler.header(frame.payload) else { panic!() };
                    assert_eq!(header.properties.delivery_mode(), Some(2));
                }
                _ => {
                    assert_eq!(frame.kind, FrameKind::Body);
                    assembler.body(frame.payload).unwrap();
                    body.extend_from_slice(frame.payload);
                    frames += 1;
                }
            }
        }
        assert!(assembler.is_idle(), "the body is shorter than announced");
        (body, frames)
    }

    fn body(bytes: usize) -> Bytes {
        (0..bytes).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn bodies_are_split_at_frame_max() {
        for (bytes, frame_max, frames) in [
            (0, 4096, 0),
            (1, 4096, 1),
            (4088, 4096, 1),
            (4089, 4096, 2),
            (10_000, 4096, 3),
            (4095, 131_072, 1),
            (4096, 131_072, 1),
            (131_064, 131_072, 1),
            (131_065, 131_072, 2),
            (1_000_000, 131_072, 8),
        ] {
            let body = body(bytes);
            let mut outbox = Outbox::new();
            outbox.content(5, frame_max, &[0x10, 0, 2], &body);
            let stream = drain(&mut outbox, usize::MAX, 64);
            assert_eq!(read_back(&stream, frame_max), (body.to_vec(), frames), "{bytes} bytes at {frame_max}");
        }
    }

    #[test]
    fn partial_writes_lose_and_repeat_nothing() {
        let filled = || {
            let mut outbox = Outbox::new();
            for bytes in [10, 5000, 0, 9000, 4096, 3] {
                encode::ack(outbox.buffer(), 1, bytes as u64, false);
                outbox.content(5, 6000, &[0x10, 0, 2], &body(bytes));
            }
            outbox
        };
        let whole = drain(&mut filled(), usize::MAX, 64);
        assert_eq!(whole.len(), filled().len());
        for (step, slices) in [(1, 1), (1, 64), (7, 2), (1000, 3), (4097, 64)] {
            assert_eq!(drain(&mut filled(), step, slices), whole, "writes of {step} over {slices} slices");
        }
    }

    #[test]
    fn frames_appended_between_partial_writes_keep_their_place() {
        let mut outbox = Outbox::new();
        outbox.content(5, 131_072, &[0x10, 0, 2], &body(5000));
        let waiting = outbox.len();
        outbox.advance(100);
        encode::heartbeat(outbox.buffer());
        assert_eq!(outbox.len(), waiting - 100 + 8);
        assert!(drain(&mut outbox, 33, 4).ends_with(b"\x08\0\0\0\0\0\0\xce"));
    }

    #[test]
    fn large_bodies_are_not_copied_and_small_ones_are() {
        for bytes in [COPY_BELOW - 1, COPY_BELOW] {
            let body = body(bytes);
            let mut outbox = Outbox::new();
            outbox.content(5, 131_072, &[0, 0], &body);
            let mut io = [IoSlice::new(&[]); 8];
            let filled = outbox.io_slices(&mut io);
            let shared = io[..filled].iter().any(|slice| std::ptr::eq(slice.as_ptr(), body.as_ptr()));
            assert_eq!(shared, bytes >= COPY_BELOW);
        }
    }

    #[test]
    fn shrink_gives_memory_back_only_when_nothing_waits() {
        let mut outbox = Outbox::new();
        encode::heartbeat(outbox.buffer());
        outbox.shrink();
        assert_eq!(outbox.len(), 8);
        outbox.advance(8);
        outbox.shrink();
        assert_eq!(outbox.buffer().capacity(), 0);
    }
}
