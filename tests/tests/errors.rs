//! What breaks the protocol, and what the broker says about it.

use amq_protocol::protocol::{basic, channel, connection, queue};
use warrenmq_tests::bytes::{Options, frame_bytes, method_bytes};
use warrenmq_tests::methods::{connection_close, publish, queue_declare, tune_ok};
use warrenmq_tests::{Node, Wire, With};

/// `queue.declare-ok`, which only a broker may send.
fn declare_ok() -> queue::DeclareOk {
    queue::DeclareOk { queue: "q".into(), message_count: 0, consumer_count: 0 }
}

/// A content header of class `class` for a body of `size` octets without properties.
fn content_header(class: u8, weight: u8, size: u8) -> [u8; 14] {
    [0, class, 0, weight, 0, 0, 0, 0, 0, 0, 0, size, 0, 0]
}

/// The broker must close the connection with this code and ids, and a text that starts so.
#[track_caller]
fn breaks_starting(mut c: Wire, code: u16, text: &str, ids: (u16, u16)) {
    let close = c.connection_close();
    assert_eq!((close.reply_code, (close.class_id, close.method_id)), (code, ids), "{}", close.reply_text);
    assert!(close.reply_text.as_str().starts_with(text), "{} should start with {text}", close.reply_text);
}

#[test]
fn channel_error_leaves_the_connection_and_other_channels_alone() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.open_channel(2);
    c.send(queue_declare("missing").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'missing' in vhost '/'", (50, 10));
    c.on(1).publish("", "q", "still here");
    assert_eq!(c.take_text("q").as_deref(), Some("still here"));
}

#[test]
fn closing_channel_ignores_what_still_comes() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.publish("missing", "", "").publish("", "q", "lost").send(queue_declare("never"));
    c.send(basic::Ack { delivery_tag: 99, multiple: false });
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (60, 40));
    assert_eq!(c.ready("q"), 0);
    c.send(queue_declare("never").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'never' in vhost '/'", (50, 10));
}

#[test]
fn publishes_before_the_error_are_kept() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.publish("", "q", "1").publish("", "q", "2").publish("missing", "", "").publish("", "q", "3");
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (60, 40));
    c.has_ready("q", 2);
}

#[test]
fn method_on_a_closed_channel_breaks_the_connection() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_on(5, queue_declare("q"));
    c.breaks_with(504, "CHANNEL_ERROR - expected 'channel.open'", (50, 10));
}

#[test]
fn channel_cannot_be_opened_twice() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_on(1, channel::Open {});
    c.breaks_with(504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10));
}

#[test]
fn connection_methods_come_once_and_on_channel_0() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_on(0, tune_ok(2047, 131_072, 0));
    c.breaks_with(504, "CHANNEL_ERROR - unexpected method in connection state running", (10, 31));

    let mut c = Wire::open(&node);
    c.send_on(0, queue_declare("q"));
    c.breaks_with(504, "CHANNEL_ERROR - unexpected method in connection state running", (50, 10));

    let mut c = Wire::open(&node);
    c.send_on(1, connection_close());
    c.breaks_with(503, "COMMAND_INVALID - unimplemented method", (10, 50));
}

#[test]
fn answers_that_only_a_broker_gives_are_refused() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(declare_ok());
    c.breaks_with(503, "COMMAND_INVALID - unimplemented method", (50, 11));
}

#[test]
fn bad_frame_end_is_a_frame_error() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let mut bytes = method_bytes(2, channel::Open {});
    *bytes.last_mut().expect("a frame end") = 0;
    c.send_bytes(&bytes);
    breaks_starting(c, 501, "FRAME_ERROR - type 1, all octets = <<", (0, 0));
}

#[test]
fn unknown_frame_types_are_frame_errors() {
    let node = Node::start();
    for kind in [4, 5, 9, 255] {
        let mut c = Wire::open(&node);
        c.send_frame(kind, 1, &[]);
        let text = format!("FRAME_ERROR - type {kind}, all octets = <<>>: unknown_frame");
        c.breaks_with(501, &text, (0, 0));
    }
}

#[test]
fn frame_too_large_is_refused_by_its_header() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_bytes(&[3, 0, 1, 0x7f, 0xff, 0xff, 0xff]);
    let text = "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,2147483647,131064}";
    c.breaks_with(501, text, (0, 0));
}

#[test]
fn frame_before_login_is_held_to_a_small_limit() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    c.send_bytes(&[1, 0, 0, 0x7f, 0xff, 0xff, 0xff]);
    match c.frame_or_end() {
        None => {}
        Some(frame) => assert_eq!(frame.0, 0, "{frame:?}"),
    }
    Wire::open(&node).close();
}

#[test]
fn heartbeat_belongs_on_channel_0() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_frame(8, 1, &[]);
    c.breaks_with(505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", (0, 0));
}

#[test]
fn content_does_not_belong_on_channel_0() {
    let node = Node::start();
    for kind in [2, 3] {
        let mut c = Wire::open(&node);
        c.send_frame(kind, 0, &content_header(60, 0, 0));
        breaks_starting(c, 505, &format!("UNEXPECTED_FRAME - type {kind}, all octets = <<"), (0, 0));
    }
}

#[test]
fn content_without_a_publish_is_unexpected() {
    let node = Node::start();
    for kind in [2, 3] {
        let mut c = Wire::open(&node);
        c.send_frame(kind, 1, &content_header(60, 0, 0));
        c.breaks_with(505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead", (0, 0));
    }
}

#[test]
fn publish_must_be_followed_by_its_header() {
    let node = Node::start();
    let other = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead";
    let cases = [
        (method_bytes(1, queue_declare("q")), other),
        (frame_bytes(3, 1, b"body"), other),
        (
            frame_bytes(2, 1, &content_header(10, 0, 0)),
            "UNEXPECTED_FRAME - expected content header for class 60, got one for class 10 instead",
        ),
    ];
    for (bytes, text) in cases {
        let mut c = Wire::open(&node);
        c.send(publish("", "q"));
        c.send_bytes(&bytes);
        c.breaks_with(505, text, (60, 40));
    }
}

#[test]
fn header_must_be_followed_by_its_body() {
    let node = Node::start();
    for bytes in [method_bytes(1, queue_declare("q")), frame_bytes(2, 1, &content_header(60, 0, 4))] {
        let mut c = Wire::open(&node);
        c.send(publish("", "q"));
        c.send_frame(2, 1, &content_header(60, 0, 4));
        c.send_bytes(&bytes);
        let text = "UNEXPECTED_FRAME - expected content body, got non content body frame instead";
        c.breaks_with(505, text, (60, 40));
    }
}

#[test]
fn method_cut_short_names_the_method() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_frame(1, 1, &[0, 50, 0, 10, 0]);
    breaks_starting(c, 501, "FRAME_ERROR - cannot decode <<", (50, 10));
}

#[test]
fn names_must_be_utf8() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send_frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x02\xff\xfe\x00\x00\x00\x00\x00");
    c.breaks_with(501, "FRAME_ERROR - Malformed UTF-8 in shortstr", (0, 0));
}

#[test]
fn nonsense_ends_the_connection_and_no_other() {
    let node = Node::start();
    let mut bystander = Wire::open(&node);
    let queue_with_table = |table: &[u8]| {
        let head = b"\x00\x32\x00\x0a\x00\x00\x01q\x00".as_slice();
        frame_bytes(1, 1, &[head, table].concat())
    };
    let cases = [
        ("unknown class", frame_bytes(1, 1, &[0, 99, 0, 10])),
        ("unknown method", frame_bytes(1, 1, &[0, 50, 0, 99])),
        ("empty method frame", frame_bytes(1, 1, &[])),
        ("unknown field type", queue_with_table(b"\x00\x00\x00\x04\x01aQ\x00")),
        ("string beyond the table", queue_with_table(b"\x00\x00\x00\x07\x01aS\xff\xff\xff\xff")),
        ("table beyond the frame", queue_with_table(b"\x7f\xff\xff\xff")),
    ];
    for (what, bytes) in cases {
        let mut c = Wire::open(&node);
        c.send_bytes(&bytes);
        // Dropped, or told why: both are fine, as long as nothing is declared and nobody else is touched.
        if let Some(frame) = c.frame_or_end() {
            assert_eq!(frame.0, 0, "{what}: {frame:?}");
        }
        bystander.send(queue_declare("q").with(|m| m.passive = true));
        bystander.fails_with(404, "NOT_FOUND - no queue 'q' in vhost '/'", (50, 10));
    }
}

#[test]
fn broken_property_table_ends_the_connection_and_no_other() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(publish("", "q"));
    let mut header = content_header(60, 0, 0);
    header[12] = 0x20;
    c.send_frame(2, 1, &[header.as_slice(), b"\x7f\xff\xff\xff\x01"].concat());
    let close: connection::Close = c.expect_on(0);
    assert!((500..=541).contains(&close.reply_code), "{close:?}");
    Wire::open(&node).close();
}

#[test]
fn announced_body_reserves_no_memory() {
    let node = Node::start();
    let before = node.resident_bytes();
    let mut connections: Vec<Wire> = (0..50).map(|_| Wire::open(&node)).collect();
    for c in &mut connections {
        c.send(publish("", "q"));
        // 128 MiB, the largest body that may be announced.
        c.send_frame(2, 1, &[0, 60, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0]);
        c.send_frame(3, 1, b"the first few octets");
        c.on(2).open_channel(2);
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} octets for 50 announcements");
}

#[test]
fn peers_that_hang_up_anywhere_do_no_harm() {
    let node = Node::start();
    let mut bystander = Wire::open(&node);
    bystander.call(queue_declare("q"));
    let whole =
        [method_bytes(1, publish("", "q")), frame_bytes(2, 1, &content_header(60, 0, 5)), frame_bytes(3, 1, b"hello")]
            .concat();
    for length in 0..whole.len() {
        let mut c = Wire::open(&node);
        c.send_bytes(&whole[..length]);
    }
    assert_eq!(bystander.ready("q"), 0, "a message without its end is no message");
}

#[test]
fn exception_texts_are_cut_to_255_octets() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let name = "n".repeat(255);
    c.send(queue_declare(&name).with(|m| m.passive = true));
    let close: channel::Close = c.expect();
    let text = close.reply_text.as_str();
    assert_eq!(text.len(), 255);
    assert!(text.starts_with("NOT_FOUND - no queue 'nnn") && text.ends_with("..."), "{text}");
}

#[test]
fn both_sides_may_close_a_channel_at_once() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.publish("missing", "", "").send(channel::Close { reply_code: 200, ..Default::default() });
    let _: channel::Close = c.expect();
    let _: channel::CloseOk = c.expect();
    c.send(channel::CloseOk {});
    c.open_channel(1);
    c.call(queue_declare("q"));
}

#[test]
fn connection_error_requeues_and_drops_what_the_connection_held() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options::default());
    c.call(queue_declare("q"));
    c.call(queue_declare("mine").with(|m| m.exclusive = true));
    c.publish("", "q", "held");
    c.get("q").expect("the message");
    c.send_frame(9, 1, &[]);
    let _: connection::Close = c.expect_on(0);
    // The close was said, so its effects are there before anyone else looks.
    let mut other = Wire::open(&node);
    let message = other.get("q").expect("the message is back");
    assert!(message.method.redelivered);
    other.send(queue_declare("mine").with(|m| m.passive = true));
    other.fails_with(404, "NOT_FOUND - no queue 'mine' in vhost '/'", (50, 10));
}
