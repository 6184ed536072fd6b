//! Exchanges: declaring and deleting them, and where they send messages.

use amq_protocol::protocol::{BasicProperties, basic, exchange, queue};
use amq_protocol::types::{AMQPValue, FieldTable};
use warrenmq_tests::methods::{
    exchange_bind, exchange_declare, exchange_delete, exchange_unbind, publish, queue_bind, queue_declare,
    queue_delete, queue_unbind, table, text,
};
use warrenmq_tests::{Node, Wire, With};

fn passive(name: &str) -> exchange::Declare {
    exchange_declare(name, "").with(|m| m.passive = true)
}

/// Publishes `key` to `exchange` and tells which of `queues` got a message.
fn routed<'a>(c: &mut Wire, exchange: &str, key: &str, headers: FieldTable, queues: &[&'a str]) -> Vec<&'a str> {
    c.publish_with(publish(exchange, key), BasicProperties::default().with_headers(headers), "");
    queues.iter().copied().filter(|queue| c.take_text(queue).is_some()).collect()
}

#[test]
fn predeclared_exchanges_are_there() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let exchanges = [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ];
    for (name, kind) in exchanges {
        c.call(exchange_declare(name, kind).with(|m| m.durable = true));
        c.call(passive(name));
    }
    c.call(exchange_declare("amq.rabbitmq.trace", "topic").with(|m| (m.durable, m.internal) = (true, true)));
}

#[test]
fn redeclare_that_differs_names_what_differs() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_declare("x", "direct"));
    c.call(exchange_declare("x", "direct"));
    let direct = || exchange_declare("x", "direct");
    let declares = [
        ("type", "fanout", "direct", exchange_declare("x", "fanout")),
        ("durable", "true", "false", direct().with(|m| m.durable = true)),
        ("auto_delete", "true", "false", direct().with(|m| m.auto_delete = true)),
        ("internal", "true", "false", direct().with(|m| m.internal = true)),
    ];
    for (name, received, current, declare) in declares {
        c.send(declare);
        let text = format!(
            "PRECONDITION_FAILED - inequivalent arg '{name}' for exchange 'x' in vhost '/': received '{received}' but \
             current is '{current}'"
        );
        c.fails_with(406, &text, (40, 10));
    }
    c.send(exchange_declare("x", "direct").with(|m| m.arguments = table([("alternate-exchange", text("y"))])));
    let alternate = "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received \
                     the value 'y' of type 'longstr' but current is none";
    c.fails_with(406, alternate, (40, 10));
}

#[test]
fn passive_declare_only_wants_the_exchange() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_declare("x", "direct"));
    c.call(passive("x").with(|m| (m.kind, m.durable) = ("fanout".into(), true)));
    for name in ["missing", "amq.missing"] {
        c.send(passive(name));
        c.fails_with(404, &format!("NOT_FOUND - no exchange '{name}' in vhost '/'"), (40, 10));
    }
}

#[test]
fn unknown_type_breaks_the_connection() {
    let node = Node::start();
    for (kind, reason) in [("nonsense", "unknown exchange type 'nonsense'"), ("", "invalid exchange type ''")] {
        let mut c = Wire::open(&node);
        c.send(exchange_declare("x", kind));
        c.breaks_with(503, &format!("COMMAND_INVALID - {reason}"), (40, 10));
    }
}

#[test]
fn reserved_names_are_refused() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(exchange_declare("amq.mine", "direct"));
    c.fails_with(403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'", (40, 10));
    for name in ["amq.direct", "amq.missing"] {
        c.send(exchange_delete(name));
        let text = format!("ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed");
        c.fails_with(403, &text, (40, 20));
    }
}

#[test]
fn default_exchange_is_untouchable() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let text = "ACCESS_REFUSED - operation not permitted on the default exchange";
    c.call(queue_declare("q"));
    c.send(exchange_declare("", "direct"));
    c.fails_with(403, text, (40, 10));
    c.send(exchange_delete(""));
    c.fails_with(403, text, (40, 20));
    c.send(queue_bind("q", "", "k"));
    c.fails_with(403, text, (50, 20));
    c.send(queue_unbind("q", "", "q"));
    c.fails_with(403, text, (50, 50));
    c.send(exchange_bind("", "amq.direct", "k"));
    c.fails_with(403, text, (40, 30));
    c.send(exchange_bind("amq.direct", "", "k"));
    c.fails_with(403, text, (40, 30));
}

#[test]
fn deletes_of_missing_exchanges_are_fine_and_if_unused_is_honoured() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_delete("missing"));
    c.call(exchange_declare("x", "direct"));
    c.call(queue_declare("q"));
    c.call(queue_bind("q", "x", "k"));
    c.send(exchange_delete("x").with(|m| m.if_unused = true));
    c.fails_with(406, "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use", (40, 20));
    c.call(queue_unbind("q", "x", "k"));
    c.call(exchange_delete("x").with(|m| m.if_unused = true));
    c.send(passive("x"));
    c.fails_with(404, "NOT_FOUND - no exchange 'x' in vhost '/'", (40, 10));
}

#[test]
fn publish_to_a_missing_or_internal_exchange_closes_the_channel() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.publish("missing", "", "");
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (60, 40));
    c.call(exchange_declare("inner", "direct").with(|m| m.internal = true));
    c.publish("inner", "", "");
    c.fails_with(403, "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'", (60, 40));
}

#[test]
fn direct_and_fanout_route() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for queue in ["a", "b"] {
        c.call(queue_declare(queue));
        c.call(queue_bind(queue, "amq.fanout", "ignored"));
        c.call(queue_bind(queue, "amq.direct", queue));
        c.call(queue_bind(queue, "amq.direct", "both"));
    }
    let both = ["a", "b"];
    assert_eq!(routed(&mut c, "amq.fanout", "x", FieldTable::default(), &both), ["a", "b"]);
    assert_eq!(routed(&mut c, "amq.direct", "a", FieldTable::default(), &both), ["a"]);
    assert_eq!(routed(&mut c, "amq.direct", "both", FieldTable::default(), &both), ["a", "b"]);
    assert!(routed(&mut c, "amq.direct", "A", FieldTable::default(), &both).is_empty());
}

#[test]
fn topic_patterns_match_words() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let patterns = ["a.b", "a.*", "*.b", "a.#", "#.b", "#", "*", "", "*.*", "#.*.#", "a.#.b", "ab*"];
    for pattern in patterns {
        let queue = format!("q {pattern}");
        c.call(queue_declare(&queue));
        c.call(queue_bind(&queue, "amq.topic", pattern));
    }
    let cases: [(&str, &[&str]); 8] = [
        ("a.b", &["a.b", "a.*", "*.b", "a.#", "#.b", "#", "*.*", "#.*.#", "a.#.b"]),
        ("a", &["a.#", "#", "*", "#.*.#"]),
        ("", &["#", ""]),
        ("a.", &["a.*", "a.#", "#", "*.*", "#.*.#"]),
        ("a.x.b", &["a.#", "#.b", "#", "#.*.#", "a.#.b"]),
        ("b", &["#.b", "#", "*", "#.*.#"]),
        ("ab*", &["#", "*", "#.*.#", "ab*"]),
        ("abc", &["#", "*", "#.*.#"]),
    ];
    let queues: Vec<String> = patterns.iter().map(|pattern| format!("q {pattern}")).collect();
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    for (key, expected) in cases {
        let got = routed(&mut c, "amq.topic", key, FieldTable::default(), &queues);
        let expected: Vec<String> = expected.iter().map(|pattern| format!("q {pattern}")).collect();
        assert_eq!(got, expected, "patterns that match {key:?}");
    }
}

#[test]
fn headers_match_all_or_any() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let number = AMQPValue::LongInt;
    let conditions = [
        ("all", table([("a", number(1)), ("b", text("x"))])),
        ("any", table([("x-match", text("any")), ("a", number(1)), ("b", text("x"))])),
        ("present", table([("a", AMQPValue::Void)])),
        ("none", FieldTable::default()),
        ("any of none", table([("x-match", text("any"))])),
        ("x- ignored", table([("x-foo", number(9)), ("b", text("x"))])),
        ("with x", table([("x-match", text("all-with-x")), ("x-foo", number(9))])),
    ];
    let queues: Vec<&str> = conditions.iter().map(|(queue, _)| *queue).collect();
    for (queue, arguments) in conditions {
        c.call(queue_declare(queue));
        c.call(queue_bind(queue, "amq.headers", "").with(|m| m.arguments = arguments));
    }
    let cases: [(FieldTable, &[&str]); 6] = [
        (table([("a", number(1)), ("b", text("x"))]), &["all", "any", "present", "none", "x- ignored"]),
        (table([("a", AMQPValue::LongLongInt(1))]), &["any", "present", "none"]),
        (table([("a", text("1"))]), &["present", "none"]),
        (table([("b", text("x"))]), &["any", "none", "x- ignored"]),
        (table([("x-foo", number(9))]), &["none", "with x"]),
        (FieldTable::default(), &["none"]),
    ];
    for (headers, expected) in cases {
        assert_eq!(routed(&mut c, "amq.headers", "any key", headers.clone(), &queues), expected, "{headers:?}");
    }
    c.send(queue_bind("all", "amq.headers", "").with(|m| m.arguments = table([("x-match", text("foo"))])));
    let refused =
        "PRECONDITION_FAILED - Invalid x-match field value <<\"foo\">>; expected all, any, all-with-x, or any-with-x";
    c.fails_with(406, refused, (50, 20));
}

#[test]
fn many_matching_bindings_make_one_copy() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    for pattern in ["#", "a.*", "*.b", "a.b", "a.b"] {
        c.call(queue_bind("q", "amq.topic", pattern));
    }
    c.publish("amq.topic", "a.b", "");
    c.has_ready("q", 1);
    c.call(queue::Unbind { arguments: FieldTable::default(), ..queue_unbind("q", "amq.topic", "a.b") });
    c.call(queue_unbind("q", "amq.topic", "never bound"));
    c.publish("amq.topic", "a.b", "");
    c.has_ready("q", 2);
}

#[test]
fn exchanges_bound_to_exchanges_pass_on_and_loops_end() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    for name in ["one", "two"] {
        c.call(exchange_declare(name, "fanout"));
    }
    c.call(exchange_bind("two", "one", ""));
    c.call(exchange_bind("one", "two", ""));
    c.call(queue_bind("q", "two", ""));
    c.call(queue_bind("q", "one", ""));
    c.publish("one", "", "");
    c.has_ready("q", 1);
    c.call(exchange_unbind("two", "one", ""));
    c.call(queue_unbind("q", "one", ""));
    c.publish("one", "", "");
    c.has_ready("q", 1);
    c.call(exchange_unbind("two", "one", "never bound"));
    c.send(exchange_bind("missing", "one", ""));
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (40, 30));
    c.send(exchange_bind("one", "missing", ""));
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (40, 30));
}

#[test]
fn alternate_exchange_takes_what_has_no_route() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("rest"));
    c.call(queue_bind("rest", "amq.fanout", ""));
    let arguments = table([("alternate-exchange", text("amq.fanout"))]);
    c.call(exchange_declare("x", "direct").with(|m| m.arguments = arguments));
    c.publish_with(publish("x", "nowhere").with(|m| m.mandatory = true), Default::default(), "rest");
    assert_eq!(c.take_text("rest").as_deref(), Some("rest"));
    c.send(
        exchange_declare("y", "direct").with(|m| m.arguments = table([("alternate-exchange", AMQPValue::LongInt(1))])),
    );
    let refused =
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'y' in vhost '/'";
    c.fails_with(406, refused, (40, 10));
}

#[test]
fn auto_delete_exchange_goes_with_its_last_binding() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.call(exchange_declare("x", "direct").with(|m| m.auto_delete = true));
    c.call(passive("x"));
    c.call(queue_bind("q", "x", "1"));
    c.call(queue_bind("q", "x", "2"));
    c.call(queue_unbind("q", "x", "1"));
    c.call(passive("x"));
    c.call(queue_delete("q"));
    c.send(passive("x"));
    c.fails_with(404, "NOT_FOUND - no exchange 'x' in vhost '/'", (40, 10));
}

#[test]
fn deleted_exchange_returns_mandatory_messages_no_more() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_declare("x", "direct"));
    c.publish_with(publish("x", "k").with(|m| m.mandatory = true), Default::default(), "");
    assert_eq!(c.message::<basic::Return>().method.reply_text.as_str(), "NO_ROUTE");
    c.call(exchange_delete("x"));
    c.publish_with(publish("x", "k").with(|m| m.mandatory = true), Default::default(), "");
    c.fails_with(404, "NOT_FOUND - no exchange 'x' in vhost '/'", (60, 40));
}
