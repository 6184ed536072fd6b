//! Content as it comes in: a header, then the body in pieces, of which only the stamp in front is kept.

use crate::error::Error;
use crate::message::{STAMP_BYTES, Stamp};

/// Follows the content of one message.
#[derive(Debug, Default)]
pub(crate) struct Content {
    state: State,
    size: u64,
    stamp: [u8; STAMP_BYTES],
    stamp_bytes: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// No message is under way.
    #[default]
    Idle,
    /// A method with content came.
    Header,
    /// So many bytes of the body are due.
    Body(u64),
}

/// A message that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Complete {
    /// What it says of itself; `None` if it is too short.
    pub(crate) stamp: Option<Stamp>,
    /// Bytes of the body.
    pub(crate) size: u64,
}

impl Content {
    /// A method with content came.
    #[inline]
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        if self.state != State::Idle {
            return Err(out_of_place("a message within a message"));
        }
        self.state = State::Header;
        self.stamp_bytes = 0;
        Ok(())
    }

    /// The payload of a header frame came. `Some` if there is no body.
    #[inline]
    pub(crate) fn header(&mut self, payload: &[u8]) -> Result<Option<Complete>, Error> {
        let size = payload.get(4..).and_then(|rest| rest.first_chunk::<8>()).map(|bytes| u64::from_be_bytes(*bytes));
        match (&self.state, size) {
            (State::Header, Some(size)) => {
                self.size = size;
                self.state = State::Body(size);
                Ok(if size == 0 { Some(self.complete()) } else { None })
            }
            _ => Err(out_of_place("a content header")),
        }
    }

    /// A piece of the body came. `Some` if it was the last.
    #[inline]
    pub(crate) fn body(&mut self, piece: &[u8]) -> Result<Option<Complete>, Error> {
        let State::Body(due) = self.state else { return Err(out_of_place("a body")) };
        let Some(left) = due.checked_sub(piece.len() as u64) else {
            return Err(out_of_place("more of a body than was announced"));
        };
        if self.stamp_bytes < STAMP_BYTES {
            let taken = piece.len().min(STAMP_BYTES - self.stamp_bytes);
            self.stamp[self.stamp_bytes..self.stamp_bytes + taken].copy_from_slice(&piece[..taken]);
            self.stamp_bytes += taken;
        }
        self.state = State::Body(left);
        Ok(if left == 0 { Some(self.complete()) } else { None })
    }

    #[inline]
    fn complete(&mut self) -> Complete {
        self.state = State::Idle;
        let stamp = (self.stamp_bytes == STAMP_BYTES).then(|| Stamp::decode(&self.stamp));
        Complete { stamp, size: self.size }
    }
}

#[cold]
fn out_of_place(what: &str) -> Error {
    Error::Protocol(format!("{what} came where it has no place"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(size: u64) -> Vec<u8> {
        [&[0, 60, 0, 0], &size.to_be_bytes()[..], &[0, 0]].concat()
    }

    #[test]
    fn a_stamp_in_pieces_is_put_together() {
        let stamp = Stamp { run: 1, publisher: 2, sequence: 3, sent_us: 4 };
        let body = [&stamp.encode()[..], b"rest"].concat();
        for cut in 0..body.len() {
            let mut content = Content::default();
            content.begin().expect("idle");
            assert_eq!(content.header(&header(20)).expect("due"), None);
            assert_eq!(content.body(&body[..cut]).expect("due"), None);
            let complete = content.body(&body[cut..]).expect("due");
            assert_eq!(complete, Some(Complete { stamp: Some(stamp), size: 20 }), "cut at {cut}");
        }
    }

    #[test]
    fn frames_out_of_place_and_too_long_are_errors() {
        let mut content = Content::default();
        assert!(content.header(&header(1)).is_err());
        assert!(content.body(b"x").is_err());
        content.begin().expect("idle");
        assert!(content.begin().is_err());
        assert!(content.header(&[0; 5]).is_err());
        content.header(&header(1)).expect("due");
        assert!(content.body(b"xy").is_err());
    }
}
