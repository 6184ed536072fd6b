//! Encoders: frames of ours, appended to the caller's buffer.
//!
//! Those that go out with every message are written by hand: room is made once, and all that lies between two strings
//! is written as one array.

use bytes::{BufMut, BytesMut};

use crate::frame::{FRAME_END, FRAME_HEADER_BYTES, FRAME_OVERHEAD_BYTES, FrameKind};
use crate::methods::{AMQPClass, gen_class};
use crate::reply::{Exception, MethodId, ReplyCode};

/// Header of a method frame, class id and method id.
const METHOD_HEAD_BYTES: usize = FRAME_HEADER_BYTES + 4;
/// Class, weight and body size of a content header.
const CONTENT_HEAD_BYTES: usize = 12;

/// A method frame of any method: for those that are not sent per message.
pub fn method(out: &mut BytesMut, channel: u16, method: &AMQPClass) {
    let payload = match gen_class(method)(Vec::new().into()) {
        Ok(context) => context.write,
        // Writing to a vector fails for no input; an empty frame would only confuse the peer.
        Err(_) => return,
    };
    out.reserve(payload.len() + FRAME_OVERHEAD_BYTES);
    out.put_slice(&frame_head(FrameKind::Method, channel, payload.len()));
    out.put_slice(&payload);
    out.put_u8(FRAME_END);
}

/// `connection.start`. `properties` are the entries of the server properties in wire form, so that their order is the caller's.
pub fn start(out: &mut BytesMut, major: u8, minor: u8, properties: &[u8], mechanisms: &str, locales: &str) {
    let arguments = 2 + 4 + properties.len() + 4 + mechanisms.len() + 4 + locales.len();
    out.reserve(METHOD_HEAD_BYTES + arguments + 1);
    out.put_slice(&method_head(0, MethodId::CONNECTION_START, arguments));
    out.put_slice(&[major, minor]);
    for long in [properties, mechanisms.as_bytes(), locales.as_bytes()] {
        out.put_u32(long.len() as u32);
        out.put_slice(long);
    }
    out.put_u8(FRAME_END);
}

/// A heartbeat.
pub fn heartbeat(out: &mut BytesMut) {
    out.put_slice(&[FrameKind::Heartbeat as u8, 0, 0, 0, 0, 0, 0, FRAME_END]);
}

/// `basic.ack`: a confirm.
#[inline]
pub fn ack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    tag_and_bits(out, channel, MethodId::BASIC_ACK, delivery_tag, u8::from(multiple));
}

/// `basic.nack`: a refused message.
#[inline]
pub fn nack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool, requeue: bool) {
    let bits = u8::from(multiple) | u8::from(requeue) << 1;
    tag_and_bits(out, channel, MethodId::BASIC_NACK, delivery_tag, bits);
}

/// `connection.close` because of an exception.
pub fn connection_close(out: &mut BytesMut, exception: &Exception) {
    close(out, 0, MethodId::CONNECTION_CLOSE, exception);
}

/// `channel.close` because of an exception.
pub fn channel_close(out: &mut BytesMut, channel: u16, exception: &Exception) {
    close(out, channel, MethodId::CHANNEL_CLOSE, exception);
}

/// `basic.deliver`. The envelope is exchange and routing key as two short strings.
#[inline]
pub fn deliver_method(
    out: &mut BytesMut,
    channel: u16,
    consumer_tag: &str,
    delivery_tag: u64,
    redelivered: bool,
    envelope: &[u8],
) {
    let consumer_tag = short(consumer_tag);
    let arguments = 1 + consumer_tag.len() + 9 + envelope.len();
    out.reserve(METHOD_HEAD_BYTES + arguments + 1);
    out.put_slice(&method_head(channel, MethodId::BASIC_DELIVER, arguments));
    out.put_u8(consumer_tag.len() as u8);
    out.put_slice(consumer_tag);
    out.put_slice(&tag_then_octet(delivery_tag, u8::from(redelivered)));
    out.put_slice(envelope);
    out.put_u8(FRAME_END);
}

/// `basic.get-ok`. `message_count` is the number of messages that are still ready.
#[inline]
pub fn get_ok_method(
    out: &mut BytesMut,
    channel: u16,
    delivery_tag: u64,
    redelivered: bool,
    envelope: &[u8],
    message_count: u32,
) {
    let arguments = 9 + envelope.len() + 4;
    out.reserve(METHOD_HEAD_BYTES + arguments + 1);
    out.put_slice(&method_head(channel, MethodId::BASIC_GET_OK, arguments));
    out.put_slice(&tag_then_octet(delivery_tag, u8::from(redelivered)));
    out.put_slice(envelope);
    let [c0, c1, c2, c3] = message_count.to_be_bytes();
    out.put_slice(&[c0, c1, c2, c3, FRAME_END]);
}

/// `basic.return`, with the code's name as the text.
pub fn return_method(out: &mut BytesMut, channel: u16, code: ReplyCode, envelope: &[u8]) {
    let text = short(code.name());
    let arguments = 2 + 1 + text.len() + envelope.len();
    out.reserve(METHOD_HEAD_BYTES + arguments + 1);
    out.put_slice(&method_head(channel, MethodId::BASIC_RETURN, arguments));
    out.put_u16(code as u16);
    out.put_u8(text.len() as u8);
    out.put_slice(text);
    out.put_slice(envelope);
    out.put_u8(FRAME_END);
}

/// The content header of a `basic` content, with room made for `body_room` more bytes.
#[inline]
pub(crate) fn content_header(out: &mut BytesMut, channel: u16, body_size: usize, properties: &[u8], body_room: usize) {
    let payload = CONTENT_HEAD_BYTES + properties.len();
    out.reserve(payload + FRAME_OVERHEAD_BYTES + body_room);
    let mut head = [0; FRAME_HEADER_BYTES + CONTENT_HEAD_BYTES];
    head[..FRAME_HEADER_BYTES].copy_from_slice(&frame_head(FrameKind::Header, channel, payload));
    head[FRAME_HEADER_BYTES + 1] = 60;
    head[FRAME_HEADER_BYTES + 4..].copy_from_slice(&(body_size as u64).to_be_bytes());
    out.put_slice(&head);
    out.put_slice(properties);
    out.put_u8(FRAME_END);
}

/// A frame's first 7 bytes. Payloads of ours are far below 4 GiB.
#[inline]
pub(crate) fn frame_head(kind: FrameKind, channel: u16, payload_bytes: usize) -> [u8; FRAME_HEADER_BYTES] {
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = (payload_bytes as u32).to_be_bytes();
    [kind as u8, c0, c1, s0, s1, s2, s3]
}

/// The head of a method frame up to its arguments.
#[inline]
fn method_head(channel: u16, id: MethodId, argument_bytes: usize) -> [u8; METHOD_HEAD_BYTES] {
    let [kind, h0, h1, s0, s1, s2, s3] = frame_head(FrameKind::Method, channel, argument_bytes + 4);
    let [c0, c1] = id.class.to_be_bytes();
    let [m0, m1] = id.method.to_be_bytes();
    [kind, h0, h1, s0, s1, s2, s3, c0, c1, m0, m1]
}

#[inline]
fn tag_then_octet(tag: u64, octet: u8) -> [u8; 9] {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = tag.to_be_bytes();
    [t0, t1, t2, t3, t4, t5, t6, t7, octet]
}

#[inline]
fn tag_and_bits(out: &mut BytesMut, channel: u16, id: MethodId, delivery_tag: u64, bits: u8) {
    let mut frame = [0; METHOD_HEAD_BYTES + 10];
    frame[..METHOD_HEAD_BYTES].copy_from_slice(&method_head(channel, id, 9));
    frame[METHOD_HEAD_BYTES..METHOD_HEAD_BYTES + 9].copy_from_slice(&tag_then_octet(delivery_tag, bits));
    frame[METHOD_HEAD_BYTES + 9] = FRAME_END;
    out.put_slice(&frame);
}

fn close(out: &mut BytesMut, channel: u16, id: MethodId, exception: &Exception) {
    let text = exception.reply_text();
    let text = short(&text);
    let arguments = 2 + 1 + text.len() + 4;
    out.reserve(METHOD_HEAD_BYTES + arguments + 1);
    out.put_slice(&method_head(channel, id, arguments));
    out.put_u16(exception.code as u16);
    out.put_u8(text.len() as u8);
    out.put_slice(text);
    out.put_u16(exception.method.class);
    out.put_u16(exception.method.method);
    out.put_u8(FRAME_END);
}

/// The bytes of a short string: names come from short strings, so nothing is cut in practice.
#[inline]
fn short(text: &str) -> &[u8] {
    let bytes = text.as_bytes();
    debug_assert!(bytes.len() <= 255, "short strings have at most 255 bytes");
    &bytes[..bytes.len().min(255)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{basic, channel, connection};
    use crate::{FrameDecoder, Method};

    /// The method in the one frame that `write` appends, as `amq-protocol` reads it.
    fn read_back(channel: u16, write: impl FnOnce(&mut BytesMut)) -> AMQPClass {
        let mut out = BytesMut::from(b"before".as_slice());
        write(&mut out);
        let (frame, consumed) = FrameDecoder::new(131_072).decode(&out[6..]).unwrap().unwrap();
        assert_eq!((frame.kind, frame.channel, consumed), (FrameKind::Method, channel, out.len() - 6));
        match crate::methods::parse_class(frame.payload) {
            Ok(([], class)) => class,
            other => panic!("cannot be parsed: {other:?}"),
        }
    }

    #[test]
    fn deliver_carries_the_envelope_as_it_was_published() {
        let class = read_back(3, |out| deliver_method(out, 3, "tag", 1 << 40, true, b"\x02ex\x03k.1"));
        let expected = basic::Deliver {
            consumer_tag: "tag".into(),
            delivery_tag: 1 << 40,
            redelivered: true,
            exchange: "ex".into(),
            routing_key: "k.1".into(),
        };
        assert_eq!(class, AMQPClass::Basic(basic::AMQPMethod::Deliver(expected)));
    }

    #[test]
    fn get_ok_carries_the_count_of_ready_messages() {
        let class = read_back(1, |out| get_ok_method(out, 1, 7, false, b"\0\x01q", 70_000));
        let expected = basic::GetOk {
            delivery_tag: 7,
            redelivered: false,
            exchange: "".into(),
            routing_key: "q".into(),
            message_count: 70_000,
        };
        assert_eq!(class, AMQPClass::Basic(basic::AMQPMethod::GetOk(expected)));
    }

    #[test]
    fn return_carries_code_and_name() {
        let class = read_back(1, |out| return_method(out, 1, ReplyCode::NoRoute, b"\0\x01q"));
        let expected = basic::Return {
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
            exchange: "".into(),
            routing_key: "q".into(),
        };
        assert_eq!(class, AMQPClass::Basic(basic::AMQPMethod::Return(expected)));
    }

    #[test]
    fn confirms_carry_tag_and_bits() {
        for (multiple, requeue) in [(false, false), (false, true), (true, false), (true, true)] {
            let class = read_back(9, |out| ack(out, 9, 77, multiple));
            assert_eq!(class, AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: 77, multiple })));
            let class = read_back(9, |out| nack(out, 9, 77, multiple, requeue));
            let expected = basic::Nack { delivery_tag: 77, multiple, requeue };
            assert_eq!(class, AMQPClass::Basic(basic::AMQPMethod::Nack(expected)));
        }
    }

    #[test]
    fn closes_carry_the_whole_exception() {
        let exception = Exception::new(ReplyCode::NotFound, "no queue 'q' in vhost '/'", MethodId::BASIC_GET);
        let text = "NOT_FOUND - no queue 'q' in vhost '/'";
        let class = read_back(4, |out| channel_close(out, 4, &exception));
        let expected = channel::Close { reply_code: 404, reply_text: text.into(), class_id: 60, method_id: 70 };
        assert_eq!(class, AMQPClass::Channel(channel::AMQPMethod::Close(expected)));
        let class = read_back(0, |out| connection_close(out, &exception));
        let expected = connection::Close { reply_code: 404, reply_text: text.into(), class_id: 60, method_id: 70 };
        assert_eq!(class, AMQPClass::Connection(connection::AMQPMethod::Close(expected)));
    }

    #[test]
    fn close_with_a_text_too_long_stays_a_short_string() {
        let exception = Exception::new(ReplyCode::NotFound, "x".repeat(1000), MethodId::NONE);
        let AMQPClass::Channel(channel::AMQPMethod::Close(close)) =
            read_back(4, |out| channel_close(out, 4, &exception))
        else {
            panic!("not a close");
        };
        assert_eq!(close.reply_text.as_str().len(), 255);
    }

    #[test]
    fn cold_methods_are_read_back_by_our_own_decoder() {
        let open_ok = AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}));
        let mut out = BytesMut::new();
        method(&mut out, 2, &open_ok);
        let (frame, _) = FrameDecoder::new(4096).decode(&out).unwrap().unwrap();
        assert_eq!(Method::decode(frame.payload), Ok(Method::Other(MethodId::CHANNEL_OPEN_OK, open_ok)));
    }

    #[test]
    fn heartbeat_is_eight_bytes() {
        let mut out = BytesMut::new();
        heartbeat(&mut out);
        assert_eq!(out.as_ref(), b"\x08\0\0\0\0\0\0\xce");
    }
}
