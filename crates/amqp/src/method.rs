//! Methods: what a peer asks for (AMQP 0-9-1 sections 1.2 to 1.8).
//!
//! The methods that come once per message are decoded here, without allocation and borrowed from the frame. All others
//! go through [`layout::check`](crate::layout) and then through `amq-protocol`: its one error for everything cannot
//! tell what RabbitMQ tells apart, and its recursive table parser must never see a nesting bomb.

use crate::layout;
use crate::methods::{AMQPClass, parse_class};
use crate::octets::numbers;
use crate::reply::{Exception, MethodId, ReplyCode};

/// A decoded method.
#[derive(Clone, Debug, PartialEq)]
pub enum Method<'a> {
    /// `basic.publish`
    Publish(Publish<'a>),
    /// `basic.ack`
    Ack {
        /// The delivery, 0 with `multiple` for all.
        delivery_tag: u64,
        /// Also all deliveries before it.
        multiple: bool,
    },
    /// `basic.nack`
    Nack {
        /// The delivery, 0 with `multiple` for all.
        delivery_tag: u64,
        /// Also all deliveries before it.
        multiple: bool,
        /// Back to the queue rather than dropped or dead-lettered.
        requeue: bool,
    },
    /// `basic.reject`
    Reject {
        /// The delivery.
        delivery_tag: u64,
        /// Back to the queue rather than dropped or dead-lettered.
        requeue: bool,
    },
    /// `basic.get`
    Get {
        /// The queue's name, empty for the last one declared on the channel.
        queue: &'a str,
        /// Settled as soon as it is sent.
        no_ack: bool,
    },
    /// Every other method.
    Other(MethodId, AMQPClass),
}

/// The arguments of `basic.publish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The exchange's name, empty for the default exchange.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Return the message if no queue gets it.
    pub mandatory: bool,
    /// Return the message if no consumer gets it at once (not implemented, as in RabbitMQ).
    pub immediate: bool,
    /// Exchange and routing key as two adjacent short strings, as on the wire: `basic.deliver`, `basic.get-ok` and
    /// `basic.return` carry them in the same form.
    pub envelope: &'a [u8],
}

/// Why a method cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The connection ends with `connection.close`.
    Exception(Exception),
    /// The socket is closed without a frame, as RabbitMQ does for an unknown class or method and for a table that
    /// cannot be parsed. The reason is for the log.
    Drop {
        /// Class and method number as they were sent.
        method: MethodId,
        /// What is wrong.
        reason: String,
    },
}

impl From<Exception> for DecodeError {
    fn from(exception: Exception) -> Self {
        Self::Exception(exception)
    }
}

impl<'a> Method<'a> {
    /// Decodes the payload of a method frame.
    ///
    /// # Errors
    ///
    /// 501 with the method's id for arguments that are too short or too long, 501 with 0/0 for short strings that are
    /// not UTF-8, 502 for tables nested too deep; or the connection is dropped, see [`DecodeError::Drop`].
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let Some((&[c0, c1, m0, m1], arguments)) = payload.split_first_chunk::<4>() else {
            return Err(crate::frame::malformed(1, payload, "unknown_frame").into());
        };
        let id = MethodId::new(u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1]));
        let decoded = match id {
            MethodId::BASIC_PUBLISH => decode_publish(arguments)?.map(Self::Publish),
            MethodId::BASIC_ACK => decode_tag_and_bits(arguments)
                .map(|(delivery_tag, bits)| Self::Ack { delivery_tag, multiple: bits & 1 != 0 }),
            MethodId::BASIC_NACK => decode_tag_and_bits(arguments).map(|(delivery_tag, bits)| Self::Nack {
                delivery_tag,
                multiple: bits & 1 != 0,
                requeue: bits & 2 != 0,
            }),
            MethodId::BASIC_REJECT => decode_tag_and_bits(arguments)
                .map(|(delivery_tag, bits)| Self::Reject { delivery_tag, requeue: bits & 1 != 0 }),
            MethodId::BASIC_GET => {
                decode_get(arguments)?.map(|(queue, bits)| Self::Get { queue, no_ack: bits & 1 != 0 })
            }
            _ => return decode_other(id, payload, arguments),
        };
        decoded.ok_or_else(|| cannot_decode(id, arguments).into())
    }

    /// The method's id.
    #[must_use]
    pub fn id(&self) -> MethodId {
        match self {
            Self::Publish(_) => MethodId::BASIC_PUBLISH,
            Self::Ack { .. } => MethodId::BASIC_ACK,
            Self::Nack { .. } => MethodId::BASIC_NACK,
            Self::Reject { .. } => MethodId::BASIC_REJECT,
            Self::Get { .. } => MethodId::BASIC_GET,
            Self::Other(id, _) => *id,
        }
    }
}

/// `None`: too short or too long. Reserved u16, two short strings, one octet of bits.
#[inline]
fn decode_publish(arguments: &[u8]) -> Result<Option<Publish<'_>>, Exception> {
    let Some((_reserved, rest)) = arguments.split_first_chunk::<2>() else { return Ok(None) };
    let Some(&exchange_bytes) = rest.first() else { return Ok(None) };
    let key_at = 1 + usize::from(exchange_bytes);
    let Some(&key_bytes) = rest.get(key_at) else { return Ok(None) };
    let bits_at = key_at + 1 + usize::from(key_bytes);
    let Some((&bits, envelope)) = rest.split_last() else { return Ok(None) };
    if envelope.len() != bits_at {
        return Ok(None);
    }
    Ok(Some(Publish {
        exchange: utf8(&envelope[1..key_at])?,
        routing_key: utf8(&envelope[key_at + 1..])?,
        mandatory: bits & 1 != 0,
        immediate: bits & 2 != 0,
        envelope,
    }))
}

/// `None`: too short or too long. A u64 and one octet of bits.
#[inline]
fn decode_tag_and_bits(arguments: &[u8]) -> Option<(u64, u8)> {
    let (tag, rest) = arguments.split_first_chunk::<8>()?;
    match rest {
        [bits] => Some((u64::from_be_bytes(*tag), *bits)),
        _ => None,
    }
}

/// `None`: too short or too long. Reserved u16, a short string, one octet of bits.
#[inline]
fn decode_get(arguments: &[u8]) -> Result<Option<(&str, u8)>, Exception> {
    let [_, _, queue_bytes, queue @ .., bits] = arguments else { return Ok(None) };
    if queue.len() != usize::from(*queue_bytes) {
        return Ok(None);
    }
    Ok(Some((utf8(queue)?, *bits)))
}

fn decode_other<'a>(id: MethodId, payload: &[u8], arguments: &[u8]) -> Result<Method<'a>, DecodeError> {
    layout::check(id, arguments)?;
    match parse_class(payload) {
        Ok(([], class)) => Ok(Method::Other(id, class)),
        // The layout is right; what is left is a table with a name that is not UTF-8.
        _ => Err(DecodeError::Drop { method: id, reason: "a field table with a name that is not UTF-8".to_owned() }),
    }
}

#[inline]
fn utf8(bytes: &[u8]) -> Result<&str, Exception> {
    std::str::from_utf8(bytes).map_err(|_| malformed_utf8())
}

/// 501 0/0: a short string that is not UTF-8.
#[cold]
pub(crate) fn malformed_utf8() -> Exception {
    Exception::new(ReplyCode::FrameError, "Malformed UTF-8 in shortstr", MethodId::NONE)
}

/// 501: the arguments are too short, or there are bytes after the last.
#[cold]
pub(crate) fn cannot_decode(id: MethodId, arguments: &[u8]) -> Exception {
    Exception::new(ReplyCode::FrameError, format!("cannot decode {}", numbers(arguments)), id)
}
