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
