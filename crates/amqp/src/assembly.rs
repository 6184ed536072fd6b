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
