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

/// The methods of AMQP 0-9-1 with RabbitMQ's extensions, by class.
impl MethodId {
    /// `connection.start`
    pub const CONNECTION_START: Self = Self::new(10, 10);
    /// `connection.start-ok`
    pub const CONNECTION_START_OK: Self = Self::new(10, 11);
    /// `connection.secure`
    pub const CONNECTION_SECURE: Self = Self::new(10, 20);
    /// `connection.secure-ok`
    pub const CONNECTION_SECURE_OK: Self = Self::new(10, 21);
    /// `connection.tune`
    pub const CONNECTION_TUNE: Self = Self::new(10, 30);
    /// `connection.tune-ok`
    pub const CONNECTION_TUNE_OK: Self = Self::new(10, 31);
    /// `connection.open`
    pub const CONNECTION_OPEN: Self = Self::new(10, 40);
    /// `connection.open-ok`
    pub const CONNECTION_OPEN_OK: Self = Self::new(10, 41);
    /// `connection.close`
    pub const CONNECTION_CLOSE: Self = Self::new(10, 50);
    /// `connection.close-ok`
    pub const CONNECTION_CLOSE_OK: Self = Self::new(10, 51);
    /// `connection.blocked`
    pub const CONNECTION_BLOCKED: Self = Self::new(10, 60);
    /// `connection.unblocked`
    pub const CONNECTION_UNBLOCKED: Self = Self::new(10, 61);
    /// `connection.update-secret`
    pub const CONNECTION_UPDATE_SECRET: Self = Self::new(10, 70);
    /// `connection.update-secret-ok`
    pub const CONNECTION_UPDATE_SECRET_OK: Self = Self::new(10, 71);
    /// `channel.open`
    pub const CHANNEL_OPEN: Self = Self::new(20, 10);
    /// `channel.open-ok`
    pub const CHANNEL_OPEN_OK: Self = Self::new(20, 11);
    /// `channel.flow`
    pub const CHANNEL_FLOW: Self = Self::new(20, 20);
    /// `channel.flow-ok`
    pub const CHANNEL_FLOW_OK: Self = Self::new(20, 21);
    /// `channel.close`
    pub const CHANNEL_CLOSE: Self = Self::new(20, 40);
    /// `channel.close-ok`
    pub const CHANNEL_CLOSE_OK: Self = Self::new(20, 41);
    /// `access.request`
    pub const ACCESS_REQUEST: Self = Self::new(30, 10);
    /// `access.request-ok`
    pub const ACCESS_REQUEST_OK: Self = Self::new(30, 11);
    /// `exchange.declare`
    pub const EXCHANGE_DECLARE: Self = Self::new(40, 10);
    /// `exchange.declare-ok`
    pub const EXCHANGE_DECLARE_OK: Self = Self::new(40, 11);
    /// `exchange.delete`
    pub const EXCHANGE_DELETE: Self = Self::new(40, 20);
    /// `exchange.delete-ok`
    pub const EXCHANGE_DELETE_OK: Self = Self::new(40, 21);
    /// `exchange.bind`
    pub const EXCHANGE_BIND: Self = Self::new(40, 30);
    /// `exchange.bind-ok`
    pub const EXCHANGE_BIND_OK: Self = Self::new(40, 31);
    /// `exchange.unbind`
    pub const EXCHANGE_UNBIND: Self = Self::new(40, 40);
    /// `exchange.unbind-ok`
    pub const EXCHANGE_UNBIND_OK: Self = Self::new(40, 51);
    /// `queue.declare`
    pub const QUEUE_DECLARE: Self = Self::new(50, 10);
    /// `queue.declare-ok`
    pub const QUEUE_DECLARE_OK: Self = Self::new(50, 11);
    /// `queue.bind`
    pub const QUEUE_BIND: Self = Self::new(50, 20);
    /// `queue.bind-ok`
    pub const QUEUE_BIND_OK: Self = Self::new(50, 21);
    /// `queue.purge`
    pub const QUEUE_PURGE: Self = Self::new(50, 30);
    /// `queue.purge-ok`
    pub const QUEUE_PURGE_OK: Self = Self::new(50, 31);
    /// `queue.delete`
    pub const QUEUE_DELETE: Self = Self::new(50, 40);
    /// `queue.delete-ok`
    pub const QUEUE_DELETE_OK: Self = Self::new(50, 41);
    /// `queue.unbind`
    pub const QUEUE_UNBIND: Self = Self::new(50, 50);
    /// `queue.unbind-ok`
    pub const QUEUE_UNBIND_OK: Self = Self::new(50, 51);
    /// `basic.qos`
    pub const BASIC_QOS: Self = Self::new(60, 10);
    /// `basic.qos-ok`
    pub const BASIC_QOS_OK: Self = Self::new(60, 11);
    /// `basic.consume`
    pub const BASIC_CONSUME: Self = Self::new(60, 20);
    /// `basic.consume-ok`
    pub const BASIC_CONSUME_OK: Self = Self::new(60, 21);
    /// `basic.cancel`
    pub const BASIC_CANCEL: Self = Self::new(60, 30);
    /// `basic.cancel-ok`
    pub const BASIC_CANCEL_OK: Self = Self::new(60, 31);
    /// `basic.publish`
    pub const BASIC_PUBLISH: Self = Self::new(60, 40);
    /// `basic.return`
    pub const BASIC_RETURN: Self = Self::new(60, 50);
    /// `basic.deliver`
    pub const BASIC_DELIVER: Self = Self::new(60, 60);
    /// `basic.get`
    pub const BASIC_GET: Self = Self::new(60, 70);
    /// `basic.get-ok`
    pub const BASIC_GET_OK: Self = Self::new(60, 71);
    /// `basic.get-empty`
    pub const BASIC_GET_EMPTY: Self = Self::new(60, 72);
    /// `basic.ack`
    pub const BASIC_ACK: Self = Self::new(60, 80);
    /// `basic.reject`
    pub const BASIC_REJECT: Self = Self::new(60, 90);
    /// `basic.recover-async`
    pub const BASIC_RECOVER_ASYNC: Self = Self::new(60, 100);
    /// `basic.recover`
    pub const BASIC_RECOVER: Self = Self::new(60, 110);
    /// `basic.recover-ok`
    pub const BASIC_RECOVER_OK: Self = Self::new(60, 111);
    /// `basic.nack`
    pub const BASIC_NACK: Self = Self::new(60, 120);
    /// `confirm.select`
    pub const CONFIRM_SELECT: Self = Self::new(85, 10);
    /// `confirm.select-ok`
    pub const CONFIRM_SELECT_OK: Self = Self::new(85, 11);
    /// `tx.select`
    pub const TX_SELECT: Self = Self::new(90, 10);
    /// `tx.select-ok`
    pub const TX_SELECT_OK: Self = Self::new(90, 11);
    /// `tx.commit`
    pub const TX_COMMIT: Self = Self::new(90, 20);
    /// `tx.commit-ok`
    pub const TX_COMMIT_OK: Self = Self::new(90, 21);
    /// `tx.rollback`
    pub const TX_ROLLBACK: Self = Self::new(90, 30);
    /// `tx.rollback-ok`
    pub const TX_ROLLBACK_OK: Self = Self::new(90, 31);
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
