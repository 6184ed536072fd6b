//! Publishing: properties, bodies, mandatory returns, and what a publish may not ask for.

use amq_protocol::protocol::{BasicProperties, basic};
use amq_protocol::types::{AMQPValue, DecimalValue, FieldArray};
use warrenmq_tests::bytes::{frame_bytes, method_bytes};
use warrenmq_tests::methods::{consume, publish, queue_declare, table, text};
use warrenmq_tests::wire::FRAME_END;
use warrenmq_tests::{Node, Wire, With};

/// Octets of body that fit into one frame of the default frame_max.
const FRAME_BODY: usize = 131_072 - 8;

/// A connection with a transient queue `q`.
fn with_queue(node: &Node) -> Wire {
    let mut c = Wire::open(node);
    c.call(queue_declare("q"));
    c
}

/// Every property, with every type that a table can hold.
fn full_properties() -> BasicProperties {
    let mut array = FieldArray::default();
    array.push(AMQPValue::LongInt(1));
    array.push(text("two"));
    let headers = table([
        ("bool", AMQPValue::Boolean(true)),
        ("int8", AMQPValue::ShortShortInt(-8)),
        ("uint8", AMQPValue::ShortShortUInt(200)),
        ("int16", AMQPValue::ShortInt(-1600)),
        ("uint16", AMQPValue::ShortUInt(60_000)),
        ("int32", AMQPValue::LongInt(-320_000)),
        ("uint32", AMQPValue::LongUInt(4_000_000_000)),
        ("int64", AMQPValue::LongLongInt(i64::MIN)),
        ("float", AMQPValue::Float(1.5)),
        ("double", AMQPValue::Double(-2.25)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("text", text("Grüße")),
        ("timestamp", AMQPValue::Timestamp(1_700_000_000)),
        ("table", AMQPValue::FieldTable(table([("nested", AMQPValue::Void)]))),
        ("array", AMQPValue::FieldArray(array)),
        ("bytes", AMQPValue::ByteArray(vec![0, 255, 1].into())),
        ("void", AMQPValue::Void),
    ]);
    BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("identity".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(7)
        .with_correlation_id("correlation".into())
        .with_reply_to("somewhere".into())
        .with_expiration("600000".into())
        .with_message_id("message".into())
        .with_timestamp(1_700_000_001)
        .with_type("kind".into())
        .with_user_id("guest".into())
        .with_app_id("app".into())
        .with_cluster_id("cluster".into())
}

#[test]
fn all_properties_come_back() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish_with(publish("", "q"), full_properties(), "body");
    let message = c.get("q").expect("the message");
    assert_eq!(message.properties, full_properties());
    assert_eq!(message.text(), "body");
}

#[test]
fn property_bytes_come_back_as_sent() {
    let node = Node::start();
    let mut c = with_queue(&node);
    // Only headers: an empty key, types whose letters differ between dialects, and keys out of order.
    let fields = [
        b"\x01zt\x01".as_slice(),
        b"\x00I\x00\x00\x00\x05",
        b"\x01ab\xff",
        b"\x01bB\xff",
        b"\x01cs\x00\x07",
        b"\x01du\xff\xff",
        b"\x01ei\xff\xff\xff\xff",
        b"\x01fl\x00\x00\x00\x00\x00\x00\x00\x09",
        b"\x01gL\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x01hD\x03\x00\x00\x00\x2a",
        b"\x01ix\x00\x00\x00\x02\x00\xff",
        b"\x01jV",
        b"\x01kA\x00\x00\x00\x02t\x00",
        b"\x01lF\x00\x00\x00\x00",
        b"\x01mT\x00\x00\x00\x00\x00\x00\x00\x01",
    ]
    .concat();
    let mut properties = vec![0x20, 0x00];
    properties.extend_from_slice(&u32::try_from(fields.len()).expect("small").to_be_bytes());
    properties.extend_from_slice(&fields);

    let header = [b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02".as_slice(), &properties].concat();
    c.send(publish("", "q"));
    c.send_frame(2, 1, &header);
    c.send_frame(3, 1, b"hi");

    c.send(consume("q", "tag").with(|m| m.no_ack = true));
    let _: basic::ConsumeOk = c.expect();
    // The raw frame, as this client's own decoder does not keep the order of keys.
    let (_, frame) = delivery_header(&mut c);
    assert_eq!(&frame[12..], properties);
}

/// Reads `basic.deliver` and the content header after it as bytes, past any decoder.
fn delivery_header(c: &mut Wire) -> (u16, Vec<u8>) {
    let mut frame = || {
        let head = c.bytes(7);
        let size = u32::from_be_bytes(head[3..7].try_into().expect("four bytes")) as usize;
        let mut payload = c.bytes(size + 1);
        assert_eq!(payload.pop(), Some(FRAME_END));
        (u16::from(head[0]), payload)
    };
    assert_eq!(frame().1[..4], [0, 60, 0, 60], "basic.deliver");
    frame()
}

#[test]
fn bodies_are_split_at_frame_max() {
    let node = Node::start();
    let mut c = with_queue(&node);
    for (size, frames) in [(0, 0), (1, 1), (FRAME_BODY, 1), (FRAME_BODY + 1, 2), (3 * FRAME_BODY, 3)] {
        let body: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        c.publish("", "q", &body);
        let message = c.get("q").expect("the message");
        assert!(message.body == body, "a body of {size} octets is unchanged");
        assert_eq!(message.body_frames, frames, "frames of a body of {size} octets");
    }
}

#[test]
fn body_of_20_mib_passes() {
    let node = Node::start();
    let mut c = with_queue(&node);
    let body: Vec<u8> = (0..20 * 1024 * 1024_u32).map(|index| (index >> 3) as u8).collect();
    c.publish("", "q", &body);
    assert!(c.get("q").expect("the message").body == body);
}

#[test]
fn body_may_come_in_any_number_of_frames() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.send(publish("", "q"));
    c.send_frame(2, 1, b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00");
    for part in [b"h".as_slice(), b"", b"ell", b"", b"o"] {
        c.send_frame(3, 1, part);
    }
    assert_eq!(c.get("q").expect("the message").text(), "hello");
}

#[test]
fn frames_may_come_in_any_pieces() {
    let node = Node::start();
    let mut c = with_queue(&node);
    let bytes = [
        method_bytes(1, publish("", "q")),
        frame_bytes(2, 1, b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00"),
        frame_bytes(3, 1, b"hello"),
    ]
    .concat();
    for byte in &bytes {
        c.send_bytes(&[*byte]);
    }
    assert_eq!(c.get("q").expect("the message").text(), "hello");
}

#[test]
fn contents_of_different_channels_may_interleave() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.open_channel(2);
    c.send_on(1, publish("", "q")).send_on(2, publish("", "q"));
    for channel in [2, 1] {
        c.send_frame(2, channel, b"\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00");
    }
    c.send_frame(3, 1, b"a");
    c.send_frame(3, 2, b"bb");
    c.send_frame(3, 1, b"a");
    c.has_ready("q", 2);
    let mut bodies = [c.take_text("q"), c.take_text("q")];
    bodies.sort();
    assert_eq!(bodies, [Some("aa".into()), Some("bb".into())]);
}

#[test]
fn unroutable_mandatory_message_is_returned_whole() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.publish_with(publish("amq.direct", "nowhere").with(|m| m.mandatory = true), full_properties(), "body");
    let returned = c.message::<basic::Return>();
    let method = &returned.method;
    assert_eq!((method.reply_code, method.reply_text.as_str()), (312, "NO_ROUTE"));
    assert_eq!((method.exchange.as_str(), method.routing_key.as_str()), ("amq.direct", "nowhere"));
    assert_eq!(returned.properties, full_properties());
    assert_eq!(returned.text(), "body");
}

#[test]
fn unroutable_message_without_mandatory_vanishes() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish("", "nowhere", "lost");
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn immediate_is_not_implemented() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish_with(publish("", "q").with(|m| m.immediate = true), BasicProperties::default(), "");
    c.breaks_with(540, "NOT_IMPLEMENTED - immediate=true", (60, 40));
}

#[test]
fn foreign_user_id_is_refused() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish_with(publish("", "q"), BasicProperties::default().with_user_id("other".into()), "");
    c.fails_with(
        406,
        "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
        (60, 40),
    );
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn expiration_must_be_an_unsigned_number() {
    let node = Node::start();
    let mut c = with_queue(&node);
    let cases = [
        ("abc", "no_integer"),
        ("", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("10.5", "{leftover_string,\".5\"}"),
        ("10x", "{leftover_string,\"x\"}"),
        ("1099511627776", "{value_too_large,1099511627776}"),
    ];
    for (expiration, reason) in cases {
        c.publish_with(publish("", "q"), BasicProperties::default().with_expiration(expiration.into()), "");
        let text = format!("PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}");
        c.fails_with(406, &text, (60, 40));
    }
}

#[test]
fn cc_and_bcc_add_routing_keys_and_bcc_stays_secret() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.call(queue_declare("copy"));
    c.call(queue_declare("blind"));
    let keys = |key: &str| AMQPValue::FieldArray(vec![text(key)].into());
    let headers = table([("CC", keys("copy")), ("BCC", keys("blind")), ("other", text("stays"))]);
    c.publish_with(publish("", "q"), BasicProperties::default().with_headers(headers), "body");
    let expected = table([("CC", keys("copy")), ("other", text("stays"))]);
    for queue in ["q", "copy", "blind"] {
        let message = c.get(queue).expect("a copy in each queue");
        assert_eq!(message.method.routing_key.as_str(), "q");
        assert_eq!(message.properties.headers().as_ref(), Some(&expected), "headers in {queue}");
    }
}

#[test]
fn cc_must_be_an_array() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish_with(publish("", "q"), BasicProperties::default().with_headers(table([("CC", text("q"))])), "");
    c.fails_with(406, "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",longstr}", (60, 40));
}

#[test]
fn expired_message_is_not_delivered() {
    let node = Node::start();
    let mut c = with_queue(&node);
    c.publish_with(publish("", "q"), BasicProperties::default().with_expiration("0".into()), "gone");
    c.publish("", "q", "stays");
    assert_eq!(c.take_text("q").as_deref(), Some("stays"));
}
