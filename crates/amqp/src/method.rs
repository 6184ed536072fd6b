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

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(payload: &[u8]) -> Exception {
        match Method::decode(payload) {
            Err(DecodeError::Exception(exception)) => exception,
            other => panic!("no exception but {other:?}"),
        }
    }

    fn dropped(payload: &[u8]) -> MethodId {
        match Method::decode(payload) {
            Err(DecodeError::Drop { method, .. }) => method,
            other => panic!("not dropped but {other:?}"),
        }
    }

    #[test]
    fn publish_borrows_names_and_envelope() {
        let payload = b"\0\x3c\0\x28\0\0\x02ex\x03k.1\x01";
        let expected = Publish {
            exchange: "ex",
            routing_key: "k.1",
            mandatory: true,
            immediate: false,
            envelope: b"\x02ex\x03k.1",
        };
        assert_eq!(Method::decode(payload), Ok(Method::Publish(expected)));
        let Ok(Method::Publish(publish)) = Method::decode(b"\0\x3c\0\x28\0\0\0\0\x02") else { panic!() };
        assert_eq!((publish.exchange, publish.routing_key, publish.envelope), ("", "", b"\0\0".as_slice()));
        assert!(publish.immediate && !publish.mandatory);
    }

    #[test]
    fn publish_with_lengths_that_do_not_meet_the_end_is_501() {
        for arguments in [
            b"\0\0\xffex\x03k.1\x01".as_slice(),
            b"\0\0\x02ex\xffk.1\x01",
            b"\0\0\x02ex\x02k.1\x01",
            b"\0\0\x02ex\x04k.1\x01",
            b"\0\0\x02ex",
            b"\0\0",
            b"",
        ] {
            let payload = [b"\0\x3c\0\x28", arguments].concat();
            assert_eq!(exception(&payload).method, MethodId::BASIC_PUBLISH, "{arguments:?}");
        }
    }

    #[test]
    fn settlements_and_get_carry_their_bits() {
        let tag = b"\0\0\0\0\0\0\x01\0";
        let decode = |id: &[u8; 4], bits: u8| {
            let payload = [id.as_slice(), tag, &[bits]].concat();
            format!("{:?}", Method::decode(&payload).unwrap())
        };
        assert_eq!(decode(b"\0\x3c\0\x50", 1), "Ack { delivery_tag: 256, multiple: true }");
        assert_eq!(decode(b"\0\x3c\0\x78", 2), "Nack { delivery_tag: 256, multiple: false, requeue: true }");
        assert_eq!(decode(b"\0\x3c\0\x78", 1), "Nack { delivery_tag: 256, multiple: true, requeue: false }");
        assert_eq!(decode(b"\0\x3c\0\x5a", 1), "Reject { delivery_tag: 256, requeue: true }");
        let get = Method::decode(b"\0\x3c\0\x46\0\0\x01q\x01").unwrap();
        assert_eq!(get, Method::Get { queue: "q", no_ack: true });
    }

    #[test]
    fn method_cut_short_quotes_its_arguments() {
        let cut = exception(b"\0\x32\0\x0a\0\0\x09abc");
        assert_eq!(cut.reply_text(), "FRAME_ERROR - cannot decode <<0,0,9,97,98,99>>");
        assert_eq!((cut.code, cut.method), (ReplyCode::FrameError, MethodId::QUEUE_DECLARE));
    }

    #[test]
    fn cut_short_goes_before_names_that_are_not_utf8() {
        assert_eq!(exception(b"\0\x32\0\x0a\0\0\x01\xff").method, MethodId::QUEUE_DECLARE);
        assert_eq!(exception(b"\0\x3c\0\x28\0\0\x01\xff\x05k\0").method, MethodId::BASIC_PUBLISH);
    }

    #[test]
    fn reply_text_for_a_megabyte_of_trailing_bytes_stays_short() {
        let payload = [b"\0\x5a\0\x0a".as_slice(), &vec![7; 1 << 20]].concat();
        let refused = exception(&payload);
        assert!(refused.text.len() < 1000 && refused.reply_text().len() == 255);
        assert!(refused.reply_text().ends_with(",7,7,..."));
    }

    #[test]
    fn unknown_classes_and_methods_are_dropped() {
        assert_eq!(dropped(&[0, 77, 0, 10]), MethodId::new(77, 10));
        assert_eq!(dropped(&[0, 60, 0, 99]), MethodId::new(60, 99));
        assert_eq!(dropped(&[255, 255, 255, 255]), MethodId::new(65535, 65535));
    }

    /// `queue.declare` with these arguments in its table.
    fn declare(entries: &[u8]) -> Vec<u8> {
        let length = (entries.len() as u32).to_be_bytes();
        [b"\0\x32\0\x0a\0\0\x01q\0".as_slice(), &length, entries].concat()
    }

    #[test]
    fn tables_that_cannot_be_parsed_are_dropped() {
        assert_eq!(dropped(&declare(b"\x01aZ")), MethodId::QUEUE_DECLARE);
        assert_eq!(dropped(&declare(b"\x01aS\0\0\0\x09abc")), MethodId::QUEUE_DECLARE);
        assert_eq!(dropped(&declare(b"\x01\xfft\x01")), MethodId::QUEUE_DECLARE);
    }

    #[test]
    fn table_longer_than_the_method_is_cut_short() {
        assert_eq!(exception(b"\0\x32\0\x0a\0\0\x01q\0\x7f\xff\xff\xff\x01at\x01").code, ReplyCode::FrameError);
    }

    #[test]
    fn lengths_that_no_frame_holds_are_502() {
        let refused = exception(&declare(b"\x01aS\xff\xff\xff\xffabc"));
        assert_eq!((refused.code, refused.method), (ReplyCode::SyntaxError, MethodId::QUEUE_DECLARE));
    }

    #[test]
    fn nesting_bomb_is_502_and_32_levels_are_taken() {
        let nested = |levels: usize| {
            let mut entries = Vec::new();
            for level in (0..levels).rev() {
                entries.extend_from_slice(b"\x01aF");
                entries.extend_from_slice(&(7 * level as u32).to_be_bytes());
            }
            entries
        };
        let refused = exception(&declare(&nested(18_000)));
        assert_eq!((refused.code, refused.method), (ReplyCode::SyntaxError, MethodId::QUEUE_DECLARE));
        // Before login, in connection.start-ok.
        let properties = nested(1_100);
        let length = (properties.len() as u32).to_be_bytes();
        let start_ok = [b"\0\x0a\0\x0b".as_slice(), &length, &properties, b"\x05PLAIN\0\0\0\0\x05en_US"].concat();
        assert_eq!(exception(&start_ok).code, ReplyCode::SyntaxError);
        assert!(matches!(Method::decode(&declare(&nested(32))), Ok(Method::Other(..))));
    }
}
