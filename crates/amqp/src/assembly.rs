//! Assembly of a message from its frames on one channel: the method, one header, any number of body frames.
//!
//! ```text
//!               publish_started                header, size > 0
//!        ┌──────┐ ────────────▶ ┌──────────────┐ ────────────▶ ┌────────────┐ ──┐ body,
//!        │ Idle │               │ ExpectHeader │               │ ExpectBody │   │ more to come
//!        └──────┘ ◀──────────── └──────────────┘               └────────────┘ ◀─┘
//!            ▲      header, size 0                                   │
//!            └───────────────────────────────────────────────────────┘
//!                                    last body byte
//! ```
//!
//! The assembler owns no bytes: it says what a frame means, and its caller copies the body, once, to where the message
//! will live. So an announced size costs nothing until the bytes are there.

use crate::content::{self, ContentHeader};
use crate::properties::Properties;
use crate::reply::{Exception, MethodId, ReplyCode};

/// The class of all methods with content.
const BASIC_CLASS: u16 = 60;

/// Where a channel is within a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AssemblyState {
    /// Between messages: a method comes next.
    #[default]
    Idle,
    /// A method with content came.
    ExpectHeader,
    /// The header came.
    ExpectBody {
        /// Bytes of the body that are still to come; never 0.
        remaining: u64,
    },
}

/// What a frame added to the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The header.
    Header {
        /// Size and properties.
        header: ContentHeader<'a>,
        /// The body is empty: the message is complete.
        complete: bool,
    },
    /// The next piece of the body, possibly empty.
    Body {
        /// The bytes.
        fragment: &'a [u8],
        /// This was the last of it: the message is complete.
        complete: bool,
    },
}

/// Follows the frames of one channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Assembler {
    state: AssemblyState,
}

impl Assembler {
    /// Between messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the channel is.
    #[must_use]
    pub fn state(&self) -> AssemblyState {
        self.state
    }

    /// Whether a method may come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == AssemblyState::Idle
    }

    /// Forgets a message that was begun: the channel is closed.
    pub fn reset(&mut self) {
        self.state = AssemblyState::Idle;
    }

    /// A method frame came. To be called before the method is decoded, as a frame out of order goes before all that
    /// may be wrong with its contents.
    ///
    /// # Errors
    ///
    /// 505 for `basic.publish` where its content should come first.
    #[inline]
    pub fn method(&self) -> Result<(), Exception> {
        if self.is_idle() { Ok(()) } else { Err(self.out_of_order()) }
    }

    /// A `basic.publish` came, after [`Assembler::method`] let it through.
    #[inline]
    pub fn publish_started(&mut self) {
        self.state = AssemblyState::ExpectHeader;
    }

    /// A header frame came.
    ///
    /// # Errors
    ///
    /// 505 where no header is due, and for a header of another class; what [`ContentHeader::decode`] refuses.
    #[inline]
    pub fn header<'a>(&mut self, payload: &'a [u8]) -> Result<Step<'a>, Exception> {
        let (class, weight, body_size, properties) = content::split(payload)?;
        if self.state != AssemblyState::ExpectHeader || weight != 0 {
            return Err(self.out_of_order());
        }
        if class != BASIC_CLASS {
            return Err(wrong_class(class));
        }
        let properties = Properties::from_raw_checked(properties)?;
        let header = ContentHeader { class, weight, body_size, properties };
        let complete = body_size == 0;
        self.state = if complete { AssemblyState::Idle } else { AssemblyState::ExpectBody { remaining: body_size } };
        Ok(Step::Header { header, complete })
    }

    /// A body frame came.
    ///
    /// # Errors
    ///
    /// 505 where no body is due, 501 for more bytes than were announced.
    #[inline]
    pub fn body<'a>(&mut self, payload: &'a [u8]) -> Result<Step<'a>, Exception> {
        let AssemblyState::ExpectBody { remaining } = self.state else {
            return Err(self.out_of_order());
        };
        let Some(remaining) = remaining.checked_sub(payload.len() as u64) else {
            return Err(too_long(payload.len(), remaining));
        };
        let complete = remaining == 0;
        self.state = if complete { AssemblyState::Idle } else { AssemblyState::ExpectBody { remaining } };
        Ok(Step::Body { fragment: payload, complete })
    }

    /// 505: another kind of frame is due.
    #[cold]
    fn out_of_order(&self) -> Exception {
        let (text, method) = match self.state {
            AssemblyState::Idle => ("expected method frame, got non method frame instead".to_owned(), MethodId::NONE),
            AssemblyState::ExpectHeader => (
                format!("expected content header for class {BASIC_CLASS}, got non content header frame instead"),
                MethodId::BASIC_PUBLISH,
            ),
            AssemblyState::ExpectBody { .. } => {
                ("expected content body, got non content body frame instead".to_owned(), MethodId::BASIC_PUBLISH)
            }
        };
        Exception::new(ReplyCode::UnexpectedFrame, text, method)
    }
}

#[cold]
fn wrong_class(class: u16) -> Exception {
    let text = format!("expected content header for class {BASIC_CLASS}, got one for class {class} instead");
    Exception::new(ReplyCode::UnexpectedFrame, text, MethodId::BASIC_PUBLISH)
}

/// RabbitMQ does not notice and waits for ever; the specification wants a strict answer (section 4.2.6.2).
#[cold]
fn too_long(bytes: usize, remaining: u64) -> Exception {
    let text = format!("content body of {bytes} bytes where {remaining} were left of the announced size");
    Exception::new(ReplyCode::FrameError, text, MethodId::BASIC_PUBLISH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_payload(class: u16, weight: u16, body_size: u64) -> Vec<u8> {
        [&class.to_be_bytes()[..], &weight.to_be_bytes(), &body_size.to_be_bytes(), &[0, 0]].concat()
    }

    fn within_a_body(body_size: u64) -> Assembler {
        let mut assembler = Assembler::new();
        assembler.publish_started();
        assembler.header(&header_payload(60, 0, body_size)).unwrap();
        assembler
    }

    fn assert_505(result: Result<impl std::fmt::Debug, Exception>, text: &str, method: MethodId) {
        let exception = result.expect_err("should be refused");
        assert_eq!(exception.reply_text(), format!("UNEXPECTED_FRAME - {text}"));
        assert_eq!(exception.method, method);
    }

    #[test]
    fn body_in_any_number_of_frames_is_complete_at_its_last_byte() {
        let mut assembler = within_a_body(4);
        for (fragment, last) in [(b"".as_slice(), false), (b"a", false), (b"", false), (b"bcd", true)] {
            assert_eq!(assembler.body(fragment), Ok(Step::Body { fragment, complete: last }));
            assert_eq!(assembler.is_idle(), last);
        }
    }

    #[test]
    fn empty_message_is_complete_at_its_header() {
        let mut assembler = Assembler::new();
        assembler.publish_started();
        let payload = header_payload(60, 0, 0);
        assert!(matches!(assembler.header(&payload), Ok(Step::Header { complete: true, .. })));
        assert!(assembler.is_idle() && assembler.method().is_ok());
    }

    #[test]
    fn announced_size_is_counted_down_and_never_allocated() {
        let mut assembler = within_a_body(u64::MAX);
        assert_eq!(assembler.body(b"x"), Ok(Step::Body { fragment: b"x", complete: false }));
        assert_eq!(assembler.state(), AssemblyState::ExpectBody { remaining: u64::MAX - 1 });
    }

    #[test]
    fn content_without_a_publish_is_505() {
        let text = "expected method frame, got non method frame instead";
        assert_505(Assembler::new().header(&header_payload(60, 0, 1)), text, MethodId::NONE);
        assert_505(Assembler::new().body(b"abc"), text, MethodId::NONE);
        let mut complete = within_a_body(1);
        complete.body(b"x").unwrap();
        assert_505(complete.body(b""), text, MethodId::NONE);
    }

    #[test]
    fn anything_but_a_header_after_a_publish_is_505() {
        let text = "expected content header for class 60, got non content header frame instead";
        let mut assembler = Assembler::new();
        assembler.publish_started();
        assert_505(assembler.method(), text, MethodId::BASIC_PUBLISH);
        assert_505(assembler.body(b"abc"), text, MethodId::BASIC_PUBLISH);
        assert_505(assembler.header(&header_payload(60, 5, 0)), text, MethodId::BASIC_PUBLISH);
        assert_505(assembler.header(&header_payload(10, 5, 0)), text, MethodId::BASIC_PUBLISH);
    }

    #[test]
    fn header_of_another_class_is_505() {
        let mut assembler = Assembler::new();
        assembler.publish_started();
        let text = "expected content header for class 60, got one for class 10 instead";
        assert_505(assembler.header(&header_payload(10, 0, 1)), text, MethodId::BASIC_PUBLISH);
    }

    #[test]
    fn anything_but_a_body_within_a_body_is_505() {
        let text = "expected content body, got non content body frame instead";
        let mut assembler = within_a_body(1);
        assert_505(assembler.method(), text, MethodId::BASIC_PUBLISH);
        assert_505(assembler.header(&header_payload(60, 0, 1)), text, MethodId::BASIC_PUBLISH);
    }

    #[test]
    fn body_longer_than_announced_is_501() {
        let refused = within_a_body(1).body(b"abc").unwrap_err();
        assert_eq!((refused.code, refused.method), (ReplyCode::FrameError, MethodId::BASIC_PUBLISH));
    }

    #[test]
    fn reset_forgets_a_message_that_was_begun() {
        let mut assembler = within_a_body(10);
        assembler.reset();
        assert!(assembler.method().is_ok());
    }
}
