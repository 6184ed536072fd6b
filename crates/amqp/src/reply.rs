//! Reply codes, method ids and exceptions: what a peer is told when something goes wrong (AMQP 0-9-1 section 1.1,
//! "constants", and sections 2.2.4 and 4.2.7 of the specification).

use std::fmt;

/// A reply code of the specification, with RabbitMQ's additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ReplyCode {
    /// 200: nothing went wrong.
    Success = 200,
    /// 311: a message is larger than the peer takes.
    ContentTooLarge = 311,
    /// 312: a mandatory message reached no queue.
    NoRoute = 312,
    /// 313: an immediate message found no consumer.
    NoConsumers = 313,
    /// 320: an operator, or the node's own stop, closed the connection.
    ConnectionForced = 320,
    /// 402: an unknown virtual host, in the words of the specification (RabbitMQ says 530).
    InvalidPath = 402,
    /// 403: no permission, or a reserved name.
    AccessRefused = 403,
    /// 404: no such exchange or queue.
    NotFound = 404,
    /// 405: a queue that is exclusive to another connection.
    ResourceLocked = 405,
    /// 406: a precondition does not hold.
    PreconditionFailed = 406,
    /// 501: a frame that cannot be decoded.
    FrameError = 501,
    /// 502: a field with an illegal value.
    SyntaxError = 502,
    /// 503: a method in a state in which it is not allowed.
    CommandInvalid = 503,
    /// 504: a method on a channel that is not open.
    ChannelError = 504,
    /// 505: a frame that was not expected here.
    UnexpectedFrame = 505,
    /// 506: out of some resource.
    ResourceError = 506,
    /// 530: forbidden by the rules of the server.
    NotAllowed = 530,
    /// 540: not implemented.
    NotImplemented = 540,
    /// 541: a fault of the server.
    InternalError = 541,
}

impl ReplyCode {
    /// The constant's name, as it stands in front of a reply text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::ContentTooLarge => "CONTENT_TOO_LARGE",
            Self::NoRoute => "NO_ROUTE",
            Self::NoConsumers => "NO_CONSUMERS",
            Self::ConnectionForced => "CONNECTION_FORCED",
            Self::InvalidPath => "INVALID_PATH",
            Self::AccessRefused => "ACCESS_REFUSED",
            Self::NotFound => "NOT_FOUND",
            Self::ResourceLocked => "RESOURCE_LOCKED",
            Self::PreconditionFailed => "PRECONDITION_FAILED",
            Self::FrameError => "FRAME_ERROR",
            Self::SyntaxError => "SYNTAX_ERROR",
            Self::CommandInvalid => "COMMAND_INVALID",
            Self::ChannelError => "CHANNEL_ERROR",
            Self::UnexpectedFrame => "UNEXPECTED_FRAME",
            Self::ResourceError => "RESOURCE_ERROR",
            Self::NotAllowed => "NOT_ALLOWED",
            Self::NotImplemented => "NOT_IMPLEMENTED",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// Whether the code ends the connection ("hard error") or only the channel ("soft error").
    #[must_use]
    pub fn closes_connection(self) -> bool {
        !matches!(
            self,
            Self::Success
                | Self::ContentTooLarge
                | Self::NoRoute
                | Self::NoConsumers
                | Self::AccessRefused
                | Self::NotFound
                | Self::ResourceLocked
                | Self::PreconditionFailed
        )
    }
}

/// The class and method number of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodId {
    /// Class number, for example 60 for `basic`.
    pub class: u16,
    /// Method number within the class.
    pub method: u16,
}

impl MethodId {
    /// 0/0: an exception that no method caused.
    pub const NONE: Self = Self::new(0, 0);

    /// The id with these two numbers.
    #[must_use]
    pub const fn new(class: u16, method: u16) -> Self {
        Self { class, method }
    }
}

/// Longest reply text that fits a short string.
const MAX_REPLY_TEXT: usize = 255;

/// An error that the peer is told about: `channel.close` or `connection.close` with code, text and method id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The reply code.
    pub code: ReplyCode,
    /// The explanation, without the constant's name. Empty: the name stands alone.
    pub text: String,
    /// The method that failed, or [`MethodId::NONE`].
    pub method: MethodId,
    /// Set where a code that usually ends the channel ends the connection (a refused login).
    pub whole_connection: bool,
}

impl Exception {
    /// An exception whose scope follows from its code.
    #[must_use]
    pub fn new(code: ReplyCode, text: impl Into<String>, method: MethodId) -> Self {
        Self { code, text: text.into(), method, whole_connection: code.closes_connection() }
    }

    /// An exception that ends the connection whatever its code says.
    #[must_use]
    pub fn connection(code: ReplyCode, text: impl Into<String>, method: MethodId) -> Self {
        Self { code, text: text.into(), method, whole_connection: true }
    }

    /// The text on the wire: `NAME - explanation`, cut to what a short string holds, with `...` where it was cut.
    #[must_use]
    pub fn reply_text(&self) -> String {
        let mut text = if self.text.is_empty() {
            self.code.name().to_owned()
        } else {
            format!("{} - {}", self.code.name(), self.text)
        };
        if text.len() > MAX_REPLY_TEXT {
            let mut end = MAX_REPLY_TEXT - 3;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push_str("...");
        }
        text
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code as u16, self.reply_text())
    }
}

impl std::error::Error for Exception {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reply_text_is_cut_at_a_character_and_marked() {
        let exception = Exception::new(ReplyCode::NotFound, "ä".repeat(200), MethodId::NONE);
        let text = exception.reply_text();
        assert!(text.len() <= 255 && text.len() > 250);
        assert!(text.starts_with("NOT_FOUND - ää") && text.ends_with("ä..."));
    }

    #[test]
    fn internal_error_has_no_explanation() {
        assert_eq!(Exception::new(ReplyCode::InternalError, "", MethodId::NONE).reply_text(), "INTERNAL_ERROR");
    }
}
