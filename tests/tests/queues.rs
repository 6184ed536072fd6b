//! Queues: declaring, inspecting, purging, deleting, and whose they are.

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, queue};
use amq_protocol::types::{AMQPValue, FieldTable};
use warrenmq_tests::methods::{
    ack, cancel, consume, get, publish, qos, queue_bind, queue_declare, queue_delete, queue_purge, queue_unbind, table,
    text,
};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Wire, With, eventually};

/// A queue with one argument.
fn with_argument(queue: &str, name: &str, value: AMQPValue) -> queue::Declare {
    queue_declare(queue).with(|m| m.arguments = table([(name, value)]))
}

/// The refusal of an exclusive queue of another connection.
fn locked(queue: &str) -> String {
    format!(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally \
         declared on another connection or the exclusive property value does not match that of the original declaration."
    )
}

#[test]
fn declare_tells_ready_messages_and_consumers() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let ok = c.call(queue_declare("q"));
    assert_eq!((ok.queue.as_str(), ok.message_count, ok.consumer_count), ("q", 0, 0));
    c.publish("", "q", "1").publish("", "q", "2");
    c.get("q").expect("a message, now unacknowledged");
    c.has_ready("q", 1);
    c.call(basic::Qos { prefetch_count: 1, ..Default::default() });
    c.call(consume("q", "tag"));
    c.delivery();
    let ok = c.call(queue_declare("q"));
    assert_eq!((ok.message_count, ok.consumer_count), (0, 1));
}

#[test]
fn redeclare_that_differs_names_what_differs() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q").with(|m| m.durable = true));
    c.send(queue_declare("q"));
    let durable = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but \
                   current is 'true'";
    c.fails_with(406, durable, (50, 10));
    c.send(queue_declare("q").with(|m| (m.durable, m.auto_delete) = (true, true)));
    let auto_delete = "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' \
                       but current is 'false'";
    c.fails_with(406, auto_delete, (50, 10));
    c.send(with_argument("q", "x-message-ttl", AMQPValue::LongInt(5000)).with(|m| m.durable = true));
    let ttl = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value \
               '5000' of type 'signedint' but current is none";
    c.fails_with(406, ttl, (50, 10));
}

#[test]
fn redeclare_compares_numbers_by_value() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(with_argument("q", "x-max-length", AMQPValue::LongInt(5)));
    c.call(with_argument("q", "x-max-length", AMQPValue::ShortShortInt(5)));
    c.call(with_argument("q", "x-max-length", AMQPValue::LongLongInt(5)));
    c.send(with_argument("q", "x-max-length", AMQPValue::LongInt(6)));
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '6' but \
                current is '5'";
    c.fails_with(406, text, (50, 10));
}

#[test]
fn unknown_arguments_and_the_default_type_do_not_count() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.call(with_argument("q", "x-unheard-of", AMQPValue::Boolean(true)));
    c.call(with_argument("q", "x-queue-type", text("classic")));
}

#[test]
fn bad_arguments_are_refused_with_their_reason() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let number = AMQPValue::LongInt;
    let big = || AMQPValue::LongLongInt(1_099_511_627_776);
    let cases = [
        ("x-message-ttl", text("5"), "\"expected integer, got longstr\""),
        ("x-expires", AMQPValue::Double(5.0), "\"expected integer, got double\""),
        ("x-message-ttl", number(-1), "{value_negative,-1}"),
        ("x-max-length", number(-1), "{value_negative,-1}"),
        ("x-expires", number(0), "{value_zero,0}"),
        ("x-message-ttl", big(), "{value_too_large,1099511627776}"),
        ("x-max-priority", number(256), "{max_value_exceeded,256}"),
        ("x-overflow", text("nonsense"), "invalid_overflow"),
        ("x-overflow", number(1), "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
        ("x-queue-mode", text("foo"), "\"unsupported queue mode 'foo'\""),
        ("x-queue-type", text("foo"), "\"unsupported queue type 'foo'\""),
        ("x-single-active-consumer", text("true"), "{unacceptable_type,longstr}"),
    ];
    for (name, value, reason) in cases {
        c.send(with_argument("q", name, value));
        let text = format!("PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/': {reason}");
        c.fails_with(406, &text, (50, 10));
    }
    c.send(with_argument("q", "x-dead-letter-exchange", number(1)));
    let text =
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'";
    c.fails_with(406, text, (50, 10));
    c.send(queue_declare("q").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'q' in vhost '/'", (50, 10));
}

#[test]
fn passive_declare_ignores_flags_but_wants_the_queue() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.call(queue_declare("q").with(|m| (m.passive, m.durable, m.auto_delete) = (true, true, true)));
    for name in ["missing", ""] {
        c.send(queue_declare(name).with(|m| m.passive = true));
        c.fails_with(404, &format!("NOT_FOUND - no queue '{name}' in vhost '/'"), (50, 10));
    }
}

#[test]
fn broker_makes_up_names() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let name = c.call(queue_declare("")).queue.to_string();
    let random = name.strip_prefix("amq.gen-").expect("the prefix");
    assert_eq!(random.len(), 22);
    assert!(random.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'), "{random}");
    assert_ne!(c.call(queue_declare("")).queue.as_str(), name);
    assert_eq!(c.ready(&name), 0);
    c.send(queue_declare(&name));
    let text = format!("ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'");
    c.fails_with(403, &text, (50, 10));
}

#[test]
fn reserved_names_are_refused() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(queue_declare("amq.mine"));
    let text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'";
    c.fails_with(403, text, (50, 10));
}

#[test]
fn line_ends_are_taken_out_of_names() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    assert_eq!(c.call(queue_declare("b\r\nc")).queue.as_str(), "bc");
    assert_eq!(c.ready("bc"), 0);
}

#[test]
fn empty_name_means_the_last_declared_queue() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(get(""));
    c.fails_with(404, "NOT_FOUND - no previously declared queue", (60, 70));
    c.send(queue_purge(""));
    c.fails_with(404, "NOT_FOUND - no previously declared queue", (50, 30));
    c.call(queue_declare("q"));
    c.call(queue_bind("", "amq.direct", ""));
    c.publish("amq.direct", "q", "by the queue's name");
    assert_eq!(c.take_text("").as_deref(), Some("by the queue's name"));
    c.call(consume("", "tag"));
    assert_eq!(c.call(queue_delete("")).message_count, 0);
}

#[test]
fn purge_leaves_unacknowledged_messages() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    for body in ["held", "1", "2"] {
        c.publish("", "q", body);
    }
    let tag = c.get("q").expect("a message").method.delivery_tag;
    assert_eq!(c.call(queue_purge("q")).message_count, 2);
    c.send(basic::Reject { delivery_tag: tag, requeue: true });
    assert_eq!(c.take_text("q").as_deref(), Some("held"));
}

#[test]
fn missing_queues_can_be_deleted_and_unbound_but_not_purged_or_bound() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    assert_eq!(c.call(queue_delete("missing")).message_count, 0);
    c.call(queue_unbind("missing", "amq.direct", "k"));
    c.send(queue_purge("missing"));
    c.fails_with(404, "NOT_FOUND - no queue 'missing' in vhost '/'", (50, 30));
    c.send(queue_bind("missing", "amq.direct", "k"));
    c.fails_with(404, "NOT_FOUND - no queue 'missing' in vhost '/'", (50, 20));
}

#[test]
fn conditional_delete_refuses() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.publish("", "q", "1");
    c.send(queue_delete("q").with(|m| m.if_empty = true));
    c.fails_with(406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty", (50, 40));
    c.call(consume("q", "tag").with(|m| m.no_ack = true));
    c.delivery();
    c.send(queue_delete("q").with(|m| m.if_unused = true));
    c.fails_with(406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use", (50, 40));
    c.call(queue_delete("q").with(|m| (m.if_empty, m.if_unused) = (true, true)));
}

#[test]
fn deleted_queue_takes_its_messages_and_bindings_along() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.call(queue_bind("q", "amq.direct", "k"));
    c.publish("", "q", "1").publish("", "q", "2");
    assert_eq!(c.call(queue_delete("q")).message_count, 2);
    c.call(queue_declare("q"));
    c.publish_with(publish("amq.direct", "k").with(|m| m.mandatory = true), Default::default(), "");
    assert_eq!(c.message::<basic::Return>().method.reply_code, 312);
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn exclusive_queue_is_locked_for_other_connections() {
    let node = Node::start();
    let mut owner = Wire::open(&node);
    owner.call(queue_declare("mine").with(|m| m.exclusive = true));
    owner.open_channel(2);
    assert_eq!(owner.ready("mine"), 0, "other channels of the connection may");

    let mut c = Wire::open(&node);
    let refused = locked("mine");
    c.send(queue_declare("mine"));
    c.fails_with(405, &refused, (50, 10));
    c.send(queue_declare("mine").with(|m| m.passive = true));
    c.fails_with(405, &refused, (50, 10));
    c.send(get("mine"));
    c.fails_with(405, &refused, (60, 70));
    c.send(consume("mine", "tag"));
    c.fails_with(405, &refused, (60, 20));
    c.send(queue_purge("mine"));
    c.fails_with(405, &refused, (50, 30));
    c.send(queue_delete("mine"));
    c.fails_with(405, &refused, (50, 40));
    c.send(queue_bind("mine", "amq.direct", "k"));
    c.fails_with(405, &refused, (50, 20));
    c.publish("", "mine", "publishing is free");
    c.call(basic::Qos::default());
    assert_eq!(owner.take_text("mine").as_deref(), Some("publishing is free"));
}

#[test]
fn exclusive_property_must_match() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("shared"));
    c.send(queue_declare("shared").with(|m| m.exclusive = true));
    c.fails_with(405, &locked("shared"), (50, 10));
}

#[test]
fn exclusive_queue_goes_with_its_connection() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("polite", false), ("durable", true), ("abrupt", false)] {
        let mut owner = Wire::open(&node);
        owner.call(queue_declare(name).with(|m| (m.exclusive, m.durable) = (true, durable)));
        if name == "abrupt" {
            drop(owner)
        } else {
            owner.close()
        }
        eventually("the exclusive queue is gone", || {
            c.send(queue_declare(name).with(|m| m.passive = true));
            let close: channel::Close = c.expect();
            c.send(channel::CloseOk {});
            c.open_channel(1);
            close.reply_code == 404
        });
    }
}

#[test]
fn auto_delete_queue_goes_with_its_last_consumer_only() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q").with(|m| m.auto_delete = true));
    c.publish("", "q", "1");
    c.get("q").expect("basic.get does not count as a consumer");
    c.call(consume("q", "a"));
    c.call(consume("q", "b"));
    c.call(cancel("a"));
    assert_eq!(c.ready("q"), 0);
    c.call(cancel("b"));
    c.send(queue_declare("q").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'q' in vhost '/'", (50, 10));
}

#[test]
fn queue_limit_drops_the_oldest() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(with_argument("q", "x-max-length", AMQPValue::LongInt(2)));
    for body in ["1", "2", "3"] {
        c.publish("", "q", body);
    }
    c.has_ready("q", 2);
    assert_eq!(c.take_text("q").as_deref(), Some("2"));
    assert_eq!(c.take_text("q").as_deref(), Some("3"));
}

#[test]
fn priorities_come_first() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(with_argument("q", "x-max-priority", AMQPValue::LongInt(5)));
    for (priority, body) in [(0, "low 1"), (3, "mid"), (5, "high 1"), (9, "high 2"), (0, "low 2")] {
        let properties = BasicProperties::default().with_priority(priority);
        c.publish_with(publish("", "q"), properties, body);
    }
    for expected in ["high 1", "high 2", "mid", "low 1", "low 2"] {
        assert_eq!(c.take_text("q").as_deref(), Some(expected));
    }
}

#[test]
fn queue_ttl_lets_messages_expire() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(with_argument("q", "x-message-ttl", AMQPValue::LongInt(50)));
    c.publish("", "q", "1");
    eventually("the message has expired", || c.ready("q") == 0);
}

#[test]
fn unused_queue_expires() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(with_argument("q", "x-expires", AMQPValue::LongInt(50)));
    c.call(queue_bind("q", "amq.direct", "k"));
    // Asked by mandatory publishes, because a passive declare would count as use. A publish that is still routed is
    // followed by the answer to `qos` alone, any other by its return first.
    eventually("the queue has expired", || {
        c.publish_with(publish("amq.direct", "k").with(|m| m.mandatory = true), Default::default(), "");
        c.send(qos(0));
        match c.event().1 {
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::QosOk(_))) => false,
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Return(_))) => true,
            other => panic!("unexpected {other:?}"),
        }
    });
}

#[test]
fn rejected_message_is_dead_lettered_with_its_history() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    let arguments = table([("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))]);
    c.call(queue_declare("q").with(|m| m.arguments = arguments));
    c.publish("", "q", "bad");
    let tag = c.get("q").expect("the message").method.delivery_tag;
    c.send(basic::Reject { delivery_tag: tag, requeue: false });
    c.has_ready("dead", 1);

    let message = c.get("dead").expect("the message");
    c.send(ack(message.method.delivery_tag));
    assert_eq!((message.text(), message.method.routing_key.as_str()), ("bad", "dead"));
    let headers: &FieldTable = message.properties.headers().as_ref().expect("headers");
    for (name, value) in [("exchange", ""), ("queue", "q"), ("reason", "rejected")] {
        assert_eq!(headers.inner().get(format!("x-first-death-{name}").as_str()), Some(&text(value)));
    }
    let Some(AMQPValue::FieldArray(deaths)) = headers.inner().get("x-death") else { panic!("x-death is an array") };
    let [AMQPValue::FieldTable(death)] = deaths.as_slice() else { panic!("one entry: {deaths:?}") };
    assert_eq!(death.inner().get("count"), Some(&AMQPValue::LongLongInt(1)));
    assert_eq!(death.inner().get("reason"), Some(&text("rejected")));
    assert_eq!(death.inner().get("queue"), Some(&text("q")));
    assert_eq!(death.inner().get("routing-keys"), Some(&AMQPValue::FieldArray(vec![text("q")].into())));
    assert!(matches!(death.inner().get("time"), Some(AMQPValue::Timestamp(time)) if *time > 1_600_000_000));
}

#[test]
fn nowait_declares_and_binds_are_not_answered() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(queue_declare("q").with(|m| m.nowait = true));
    c.send(queue_bind("q", "amq.direct", "k").with(|m| m.nowait = true));
    c.publish("amq.direct", "k", "1");
    assert_eq!(c.take_text("q").as_deref(), Some("1"));
    c.send(queue_purge("q").with(|m| m.nowait = true));
    c.send(queue_delete("q").with(|m| m.nowait = true));
    c.send(queue_declare("q").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'q' in vhost '/'", (50, 10));
}

#[test]
fn nowait_errors_still_close_the_channel() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(queue_declare("amq.mine").with(|m| m.nowait = true));
    let text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'";
    c.fails_with(403, text, (50, 10));
}
