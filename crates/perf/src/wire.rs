//! What a broker sends, as a client sees it: the two methods that come with every message are decoded here without
//! allocation, all others by [`amqp::Method`].

use amqp::methods::AMQPClass;
use amqp::{DecodeError, Frame, FrameKind, Method, MethodId};

use crate::error::Error;

/// A frame from the broker.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming<'a> {
    /// `basic.deliver`; content follows.
    Deliver {
        /// The number by which the delivery is acknowledged.
        delivery_tag: u64,
        /// Whether the message was delivered before.
        redelivered: bool,
    },
    /// `basic.return`; content follows.
    Return,
    /// `basic.ack`: confirmed.
    Ack {
        /// The publish, counted from 1.
        delivery_tag: u64,
        /// Also all before it.
        multiple: bool,
    },
    /// `basic.nack`: refused.
    Nack {
        /// The publish, counted from 1.
        delivery_tag: u64,
        /// Also all before it.
        multiple: bool,
    },
    /// The payload of a content header.
    Header(&'a [u8]),
    /// A piece of a body.
    Body(&'a [u8]),
    /// A sign of life.
    Heartbeat,
    /// Any other method.
    Other(Box<AMQPClass>),
}

impl<'a> Incoming<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a method that cannot be decoded.
    #[inline]
    pub(crate) fn decode(frame: &Frame<'a>) -> Result<Self, Error> {
        Ok(match frame.kind {
            FrameKind::Header => Self::Header(frame.payload),
            FrameKind::Body => Self::Body(frame.payload),
            FrameKind::Heartbeat => Self::Heartbeat,
            FrameKind::Method => return decode_method(frame.payload),
        })
    }
}

#[inline]
fn decode_method(payload: &[u8]) -> Result<Incoming<'_>, Error> {
    if let Some(arguments) = payload.strip_prefix(&id_bytes(MethodId::BASIC_DELIVER)) {
        return deliver(arguments).ok_or_else(|| Error::Protocol("basic.deliver that cannot be decoded".to_owned()));
    }
    if payload.starts_with(&id_bytes(MethodId::BASIC_RETURN)) {
        return Ok(Incoming::Return);
    }
    match Method::decode(payload) {
        Ok(Method::Ack { delivery_tag, multiple }) => Ok(Incoming::Ack { delivery_tag, multiple }),
        Ok(Method::Nack { delivery_tag, multiple, .. }) => Ok(Incoming::Nack { delivery_tag, multiple }),
        Ok(Method::Other(_, class)) => Ok(Incoming::Other(Box::new(class))),
        Ok(method) => Err(Error::Protocol(format!("the broker sent {:?}, which is a client's method", method.id()))),
        Err(DecodeError::Exception(exception)) => Err(Error::Protocol(exception.to_string())),
        Err(DecodeError::Drop { method, reason }) => Err(Error::Protocol(format!("{method:?}: {reason}"))),
    }
}

/// A short string (consumer tag), a u64, one octet of bits; exchange and routing key follow and are of no interest.
#[inline]
fn deliver(arguments: &[u8]) -> Option<Incoming<'_>> {
    let (tag_bytes, rest) = arguments.split_first()?;
    let rest = rest.get(usize::from(*tag_bytes)..)?;
    let (delivery_tag, rest) = rest.split_first_chunk::<8>()?;
    let bits = rest.first()?;
    Some(Incoming::Deliver { delivery_tag: u64::from_be_bytes(*delivery_tag), redelivered: bits & 1 != 0 })
}

const fn id_bytes(id: MethodId) -> [u8; 4] {
    let [c0, c1] = id.class.to_be_bytes();
    let [m0, m1] = id.method.to_be_bytes();
    [c0, c1, m0, m1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::{FRAME_HEADER_BYTES, encode};
    use bytes::BytesMut;

    fn payload(frame: &BytesMut) -> &[u8] {
        &frame[FRAME_HEADER_BYTES..frame.len() - 1]
    }

    #[test]
    fn deliver_gives_tag_and_flag_whatever_the_names_are() {
        for (consumer_tag, envelope) in [("", &b"\0\0"[..]), ("c-1", b"\x02ex\x03key")] {
            let mut out = BytesMut::new();
            encode::deliver_method(&mut out, 7, consumer_tag, 0x0102_0304_0506, true, envelope);
            let expected = Incoming::Deliver { delivery_tag: 0x0102_0304_0506, redelivered: true };
            assert_eq!(decode_method(payload(&out)).expect("valid"), expected);
        }
    }

    #[test]
    fn methods_that_are_cut_are_errors() {
        let mut out = BytesMut::new();
        encode::deliver_method(&mut out, 1, "tag", 1, false, b"");
        let whole = payload(&out);
        for length in 4..whole.len() {
            assert!(decode_method(&whole[..length]).is_err(), "{length} bytes");
        }
        for bytes in [&[][..], &[0, 60], &[0, 60, 0, 80, 1], &[0, 99, 0, 1]] {
            assert!(decode_method(bytes).is_err(), "{bytes:?}");
        }
    }
}
