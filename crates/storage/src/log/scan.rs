//! Reading a log file from its beginning, frame by frame, when the log opens; and, where the frames end, the search for
//! traces of more.

use std::path::Path;

use super::{
    frame::{FRAME_ALIGNMENT, FRAME_HEADER_BYTES, Frame, FrameHeader, may_be_frame},
    header::FileHeader,
    record::Record,
};
use crate::{
    error::StorageError,
    fs::{File, read_up_to},
    types::FrameNumber,
};

/// Read at once when every byte is looked at.
const WINDOW_BYTES: usize = 256 << 10;
/// Read at once when payloads are skipped and the last frame was large: a header and records, then the next place.
const SKIPPING_WINDOW_BYTES: usize = 4 << 10;
/// A frame that is large in this sense.
const LARGE_FRAME_BYTES: u64 = 16 << 10;

/// What lies behind the last good frame of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traces {
    /// A frame there says that more of the file had been synced when it was written.
    pub(super) synced_beyond: bool,
    /// End of what can be told from an unwritten rest; 0 if there is nothing.
    pub(super) end: u64,
    /// The highest session of any frame there.
    pub(super) session: u32,
}

/// A file being read.
pub(super) struct Scan<'a> {
    file: &'a dyn File,
    path: &'a Path,
    header: &'a FileHeader,
    /// Bytes that can hold frames.
    limit: u64,
    verify_payloads: bool,
    /// Bytes to read at once.
    ahead: usize,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        file: &'a dyn File,
        path: &'a Path,
        header: &'a FileHeader,
        verify_payloads: bool,
    ) -> Result<Scan<'a>, StorageError> {
        let size = file.size().map_err(StorageError::io("read", path))?;
        let limit = size.min(u64::from(header.capacity));
        Ok(Scan {
            file,
            path,
            header,
            limit,
            verify_payloads,
            ahead: WINDOW_BYTES,
            window: Vec::new(),
            window_start: 0,
        })
    }

    /// The frame at an offset, if it is good, is the one expected, and continues the session or begins a later one.
    pub(super) fn frame(
        &mut self,
        offset: u32,
        number: FrameNumber,
        session: u32,
    ) -> Result<Option<(FrameHeader, Vec<Record>)>, StorageError> {
        let at = u64::from(offset);
        let Some(header) = self.header_at(at)? else { return Ok(None) };
        let continues = header.session == session || (header.first_of_session && header.session > session);
        if header.number != number || !continues || at + header.frame_length() > self.limit {
            return Ok(None);
        }
        if self.verify_payloads {
            let bytes = self.bytes(at, header.frame_length() as usize)?;
            return Ok(Frame::decode(bytes).ok().map(|frame| (header, frame.records)));
        }
        self.ahead = if header.frame_length() > LARGE_FRAME_BYTES { SKIPPING_WINDOW_BYTES } else { WINDOW_BYTES };
        let records = self.bytes(at + u64::from(FRAME_HEADER_BYTES), header.records_length as usize)?;
        Ok(header.decode_records(records).ok().map(|records| (header, records)))
    }

    /// Looks through the rest of the file behind the last good frame. `number` and `session` are those that the next frame
    /// would have.
    pub(super) fn traces(&mut self, offset: u32, number: FrameNumber, session: u32) -> Result<Traces, StorageError> {
        let mut traces = Traces { session, ..Traces::default() };
        let step = FRAME_ALIGNMENT as usize;
        let mut at = u64::from(offset);
        while at < self.limit {
            // Windows overlap by a header, so that none is missed at their seam.
            let length = (WINDOW_BYTES as u64).min(self.limit - at) as usize;
            let bytes = self.bytes(at, length)?.to_vec();
            for from in (0..bytes.len()).step_by(step) {
                let place = at + from as u64;
                if !may_be_frame(&bytes[from..]) {
                    continue;
                }
                let Ok(header) = FrameHeader::decode(&bytes[from..]) else { continue };
                if !header.is_of(self.header) {
                    continue;
                }
                traces.session = traces.session.max(header.session);
                traces.synced_beyond |= header.synced > offset;
                if header.number >= number && header.session >= session {
                    traces.end = traces.end.max((place + header.frame_length()).min(self.limit));
                }
            }
            if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
                let end = at + last as u64 + 1;
                if end > u64::from(self.header.dirty_end) {
                    traces.end = traces.end.max(end);
                }
            }
            if at + length as u64 >= self.limit {
                break;
            }
            at += (length - FRAME_HEADER_BYTES as usize) as u64;
        }
        Ok(traces)
    }

    fn header_at(&mut self, at: u64) -> Result<Option<FrameHeader>, StorageError> {
        if at + u64::from(FRAME_HEADER_BYTES) > self.limit {
            return Ok(None);
        }
        let bytes = self.bytes(at, FRAME_HEADER_BYTES as usize)?;
        let header = FrameHeader::decode(bytes).ok();
        Ok(header.filter(|header| header.is_of(self.header)))
    }

    /// Bytes of the file; fewer than asked for only at its end.
    fn bytes(&mut self, at: u64, length: usize) -> Result<&[u8], StorageError> {
        let inside = at >= self.window_start && at + length as u64 <= self.window_start + self.window.len() as u64;
        if !inside {
            let window = if self.verify_payloads { WINDOW_BYTES } else { SKIPPING_WINDOW_BYTES };
            self.window = read_up_to(self.file, at, length.max(window)).map_err(StorageError::io("read", self.path))?;
            self.window_start = at;
        }
        let from = (at - self.window_start) as usize;
        Ok(&self.window[from..self.window.len().min(from + length)])
    }
}
