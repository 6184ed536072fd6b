//! From the first byte of a connection to `open-ok`, and how it ends.

use amq_protocol::protocol::{AMQPClass, channel, connection};
use amq_protocol::types::{AMQPValue, FieldTable};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use warrenmq_tests::bytes::{Options, frame_bytes, start_ok};
use warrenmq_tests::methods::{connection_open, queue_declare, table, text};
use warrenmq_tests::wire::{PROTOCOL_HEADER, Payload};
use warrenmq_tests::{Node, Wire, With};

fn start(node: &Node) -> connection::Start {
    let mut c = Wire::connect(node.addr());
    c.send_bytes(PROTOCOL_HEADER);
    c.expect_on(0)
}

#[test]
fn ready_line_names_the_real_port() {
    let node = Node::start();
    assert_ne!(node.addr().port(), 0);
    Wire::open(&node).close();
}

#[test]
fn protocol_header_is_answered_with_start() {
    let node = Node::start();
    let start = start(&node);
    assert_eq!((start.version_major, start.version_minor), (0, 9));
    let mechanisms = start.mechanisms.to_string();
    let mut mechanisms: Vec<&str> = mechanisms.split(' ').collect();
    mechanisms.sort_unstable();
    assert_eq!(mechanisms, ["AMQPLAIN", "PLAIN"]);
    assert_eq!(start.locales.to_string(), "en_US");
}

#[test]
fn server_properties_are_those_that_clients_look_at() {
    let node = Node::start();
    let properties = start(&node).server_properties;
    for name in ["cluster_name", "copyright", "information", "platform", "product", "version"] {
        assert!(matches!(properties.inner().get(name), Some(AMQPValue::LongString(_))), "{name} is a long string");
    }
    assert_eq!(properties.inner().get("product"), Some(&text("RabbitMQ")));

    let Some(AMQPValue::FieldTable(capabilities)) = properties.inner().get("capabilities") else {
        panic!("capabilities is a table")
    };
    let yes = || AMQPValue::Boolean(true);
    let expected = table([
        ("authentication_failure_close", yes()),
        ("basic.nack", yes()),
        ("connection.blocked", yes()),
        ("consumer_cancel_notify", yes()),
        ("consumer_priorities", yes()),
        ("direct_reply_to", yes()),
        ("exchange_exchange_bindings", yes()),
        ("per_consumer_qos", yes()),
        ("publisher_confirms", yes()),
    ]);
    assert_eq!(capabilities, &expected);
}

#[test]
fn foreign_protocol_headers_are_answered_with_ours_and_closed() {
    let node = Node::start();
    for header in [b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HT", &[0; 8]] {
        let mut c = Wire::connect(node.addr());
        c.send_bytes(header);
        assert_eq!(c.bytes(8), PROTOCOL_HEADER, "answer to {header:?}");
        c.is_dropped();
    }
}

#[test]
fn older_spelling_of_the_header_is_taken() {
    let node = Node::start();
    let mut c = Wire::connect(node.addr());
    c.send_bytes(b"AMQP\x01\x01\x00\x09");
    let _: connection::Start = c.expect_on(0);
}

#[test]
fn header_may_come_byte_by_byte() {
    let node = Node::start();
    let mut c = Wire::connect(node.addr());
    for byte in PROTOCOL_HEADER {
        c.send_bytes(&[*byte]);
    }
    let _: connection::Start = c.expect_on(0);
}

#[test]
fn tune_proposes_the_usual_limits() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    c.send_on(0, start_ok(&Options::default()));
    let tune: connection::Tune = c.expect_on(0);
    assert_eq!((tune.channel_max, tune.frame_max, tune.heartbeat), (2047, 131_072, 60));
}

#[test]
fn amqplain_logs_in() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    // A table without its length: name, S, length, text.
    let response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest";
    c.send_on(
        0,
        start_ok(&Options::default()).with(|m| {
            m.mechanism = "AMQPLAIN".into();
            m.response = response.as_slice().into();
        }),
    );
    let _: connection::Tune = c.expect_on(0);
}

#[test]
fn wrong_password_is_told_to_clients_that_understand() {
    let node = Node::start();
    for (user, password) in [("guest", "wrong"), ("nobody", "guest"), ("guest", "")] {
        let mut c = Wire::greeted(&node);
        c.send_on(0, start_ok(&Options { user, password, ..Options::default() }));
        let close: connection::Close = c.expect_on(0);
        assert_eq!((close.reply_code, close.class_id, close.method_id), (403, 0, 0));
        assert_eq!(
            close.reply_text.as_str(),
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
        );
        c.is_dropped();
    }
}

#[test]
fn wrong_password_just_drops_clients_without_the_capability() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    c.send_on(0, start_ok(&Options { password: "wrong", capabilities: &[], ..Options::default() }));
    c.is_dropped();
}

#[test]
fn unknown_mechanism_and_bad_responses_are_dropped() {
    let node = Node::start();
    let cases = [("NONSENSE", "\0guest\0guest"), ("PLAIN", "guest"), ("AMQPLAIN", "\x7fx")];
    let refused = cases.map(|(mechanism, response)| {
        let mut c = Wire::greeted(&node);
        c.send_on(
            0,
            start_ok(&Options::default()).with(|m| {
                m.mechanism = mechanism.into();
                m.response = response.as_bytes().into();
            }),
        );
        c
    });
    refused.into_iter().for_each(Wire::is_dropped);
}

#[test]
fn any_method_before_start_ok_is_dropped() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    c.send_on(0, connection_open("/"));
    c.is_dropped();
}

#[test]
fn tune_ok_beyond_the_offer_is_dropped() {
    let node = Node::start();
    let changes: [fn(&mut connection::TuneOk); 5] = [
        |tune| tune.channel_max = 2048,
        |tune| tune.channel_max = 0,
        |tune| tune.frame_max = 131_073,
        |tune| tune.frame_max = 0,
        |tune| tune.frame_max = 4095,
    ];
    let refused = changes.map(|tune| Wire::tuned(&node, &Options { tune, ..Options::default() }));
    refused.into_iter().for_each(Wire::is_dropped);
}

#[test]
fn smallest_frame_max_is_honoured() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { tune: |tune| tune.frame_max = 4096, ..Options::default() });
    c.call(queue_declare("q"));
    c.publish("", "q", vec![7; 10_000]);
    let message = c.get("q").expect("the message");
    assert_eq!((message.body.len(), message.body_frames), (10_000, 3));
}

#[test]
fn missing_vhost_is_refused() {
    let node = Node::start();
    let mut c = Wire::tuned(&node, &Options::default());
    c.send_on(0, connection_open("nowhere"));
    c.breaks_with(530, "NOT_ALLOWED - vhost nowhere not found", (10, 40));
}

#[test]
fn close_is_answered_and_the_socket_left_to_the_client() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call_on(0, connection::Close { reply_code: 200, ..Default::default() });
    c.socket().shutdown(Shutdown::Write).expect("a TCP socket");
    assert_eq!(c.patience(Duration::from_secs(10)).frame_or_end(), None);
}

#[test]
fn secret_can_be_updated() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call_on(0, connection::UpdateSecret { new_secret: "new".into(), reason: "rotation".into() });
    c.close();
}

#[test]
fn channel_limit_counts_open_channels_whatever_their_numbers() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { tune: |tune| tune.channel_max = 10, ..Options::default() });
    for channel in [2, 3, 100, 2048, 4000, 5000, 6000, 7000, 65_535] {
        c.open_channel(channel);
    }
    c.close_channel();
    c.open_channel(12);
    c.send_on(13, channel::Open {});
    c.breaks_with(
        530,
        "NOT_ALLOWED - number of channels opened (10) has reached the negotiated channel_max (10)",
        (0, 0),
    );
}

#[test]
fn all_channels_of_the_default_limit_can_be_open() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for channel in 2..=2047 {
        c.open_channel(channel);
    }
    for channel in [1, 1000, 2047] {
        assert_eq!(c.on(channel).call(queue_declare("")).message_count, 0);
    }
}

#[test]
fn heartbeats_come_on_an_idle_connection() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { tune: |tune| tune.heartbeat = 1, ..Options::default() });
    c.patience(Duration::from_secs(5));
    assert_eq!(c.frame(), (0, Payload::Heartbeat));
}

#[test]
fn silent_client_is_dropped_after_two_missed_heartbeats() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { tune: |tune| tune.heartbeat = 1, ..Options::default() });
    let silent_since = Instant::now();
    while let Some(frame) = c.frame_or_end() {
        assert_eq!(frame, (0, Payload::Heartbeat));
    }
    let silence = silent_since.elapsed();
    assert!(silence > Duration::from_millis(1_500) && silence < Duration::from_secs(6), "dropped after {silence:?}");
}

#[test]
fn client_that_only_sends_heartbeats_stays() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { tune: |tune| tune.heartbeat = 1, ..Options::default() });
    // Each of the broker's own heartbeats is answered with one: the clock of this test is the broker's.
    for _ in 0..8 {
        assert_eq!(c.frame(), (0, Payload::Heartbeat));
        c.send_frame(8, 0, &[]);
    }
    c.close();
}

#[test]
fn nested_client_properties_do_not_hurt() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    let mut nested = FieldTable::default();
    for _ in 0..32 {
        nested = table([("k", AMQPValue::FieldTable(nested))]);
    }
    c.send_on(0, start_ok(&Options::default()).with(|m| m.client_properties = nested));
    let _: connection::Tune = c.expect_on(0);
    Wire::open(&node).close();
}

#[test]
fn deeply_nested_client_properties_are_refused_cleanly() {
    let node = Node::start();
    let mut c = Wire::greeted(&node);
    let frame = frame_bytes(1, 0, &start_ok_nested(1_200));
    c.send_bytes(&frame);
    // Taken or refused: either way in time, and the broker serves others.
    match c.frame_or_end() {
        None | Some((0, Payload::Method(AMQPClass::Connection(_)))) => {}
        other => panic!("unexpected {other:?}"),
    }
    Wire::open(&node).close();
}

/// A `start-ok` whose client properties are tables in tables.
fn start_ok_nested(levels: usize) -> Vec<u8> {
    let mut table = Vec::new();
    for _ in 0..levels {
        let mut outer = vec![1, b'k', b'F'];
        outer.extend_from_slice(&u32::try_from(table.len()).expect("small").to_be_bytes());
        outer.extend_from_slice(&table);
        table = outer;
    }
    let mut payload = vec![0, 10, 0, 11];
    payload.extend_from_slice(&u32::try_from(table.len()).expect("small").to_be_bytes());
    payload.extend_from_slice(&table);
    payload.extend_from_slice(b"\x05PLAIN\x00\x00\x00\x0c\0guest\0guest\x05en_US");
    payload
}
