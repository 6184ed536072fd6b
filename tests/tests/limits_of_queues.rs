//! Time to live, length limits, priorities and delivery limits of queues, durable and not.

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, queue};
use amq_protocol::types::{AMQPValue, FieldTable};
use warrenmq_tests::methods::{ack, consume, publish, qos, queue_declare, table, text};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Wire, With, eventually};

fn int(number: i32) -> AMQPValue {
    AMQPValue::LongInt(number)
}

fn declare(name: &str, durable: bool, arguments: FieldTable) -> queue::Declare {
    queue_declare(name).with(|m| (m.durable, m.arguments) = (durable, arguments))
}

fn expiring(ms: u32) -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2).with_expiration(ms.to_string().into())
}

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

/// What the broker says to publishes, until all are answered: numbers that were acknowledged, and those that were not.
fn answers(c: &mut Wire, count: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut acked, mut nacked): (Vec<u64>, Vec<u64>) = Default::default();
    while (acked.len() + nacked.len()) < usize::try_from(count).expect("a small number") {
        match c.event().1 {
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => {
                let first = if ack.multiple { 1 } else { ack.delivery_tag };
                let open: Vec<u64> = (first..=ack.delivery_tag).filter(|n| !acked.contains(n)).collect();
                acked.extend(open.into_iter().filter(|n| !nacked.contains(n)));
            }
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Nack(nack))) => {
                assert!(!nack.multiple && !acked.contains(&nack.delivery_tag), "{nack:?} is told once");
                nacked.push(nack.delivery_tag);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    acked.sort_unstable();
    (acked, nacked)
}

// ---- time to live -------------------------------------------------------------------------------------------------------

#[test]
fn a_message_expires_after_the_queues_or_its_own_time_whichever_is_less() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for durable in [false, true] {
        let (plain, timed) = (format!("plain-{durable}"), format!("timed-{durable}"));
        c.call(declare(&plain, durable, FieldTable::default()));
        c.call(declare(&timed, durable, table([("x-message-ttl", int(50))])));
        c.publish_with(publish("", &plain), expiring(50), "own");
        c.publish_with(publish("", &timed), persistent(), "the queue's");
        c.publish_with(publish("", &timed), expiring(600_000), "the queue's is less");
        c.has_ready(&plain, 0);
        c.has_ready(&timed, 0);
        assert_eq!(c.take_text(&plain), None);
        c.call(declare("long", false, table([("x-message-ttl", int(600_000))])));
        c.publish_with(publish("", "long"), expiring(50), "its own is less");
        c.has_ready("long", 0);
    }
}

#[test]
fn a_message_behind_one_that_lives_longer_expires_when_it_is_at_the_head() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.call(declare(name, durable, FieldTable::default()));
        c.publish_with(publish("", name), persistent(), "stays");
        c.publish_with(publish("", name), expiring(1), "behind");
        c.publish_with(publish("", name), persistent(), "last");
        c.has_ready(name, 3);
        // Its time is over for certain when another with the same time is gone.
        c.call(declare("clock", false, FieldTable::default()));
        c.publish_with(publish("", "clock"), expiring(50), "");
        c.has_ready("clock", 0);
        assert_eq!(c.ready(name), 3, "only the head expires");
        assert_eq!(c.take_text(name).as_deref(), Some("stays"));
        assert_eq!(c.take_text(name).as_deref(), Some("last"));
        assert_eq!(c.take_text(name), None);
    }
}

#[test]
fn without_any_time_a_message_reaches_a_consumer_that_waits_and_else_nobody() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.call(declare(name, durable, table([("x-message-ttl", int(0))])));
        c.publish_with(publish("", name), persistent(), "nobody");
        assert_eq!(c.take_text(name), None);
        c.call(qos(1));
        c.call(consume(name, name));
        c.publish_with(publish("", name), persistent(), "somebody");
        let delivery = c.delivery();
        assert_eq!(delivery.text(), "somebody");
        c.publish_with(publish("", name), persistent(), "its hands are full");
        c.has_ready(name, 0);
        c.send(ack(delivery.method.delivery_tag));
        c.publish_with(publish("", name), persistent(), "again");
        assert_eq!(c.delivery().text(), "again", "what could not be delivered at once is gone");
    }
}

#[test]
fn time_goes_on_while_the_node_is_down() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    c.call(declare("q", true, FieldTable::default()));
    c.call(declare("long", true, table([("x-message-ttl", int(600_000))])));
    c.call(confirm::Select::default());
    c.publish_with(publish("", "q"), expiring(1500), "short");
    c.publish_with(publish("", "long"), persistent(), "long");
    c.all_confirmed(1..=2);
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 0);
    assert_eq!(c.ready("long"), 1);
    assert_eq!(c.take_text("long").as_deref(), Some("long"));
}

#[test]
fn an_unused_queue_goes_and_a_used_one_stays() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.call(declare(name, durable, table([("x-expires", int(300))])));
        let used = format!("{name}-used");
        c.call(declare(&used, durable, table([("x-expires", int(300))])));
        c.call(consume(&used, &used));
        eventually("the unused queue goes", || !node.ctl_ok(&["list_queues", "name"]).lines().any(|line| line == name));
        assert!(node.ctl_ok(&["list_queues", "name"]).lines().any(|line| line == used), "a consumer is a use");
        c.call(basic::Cancel { consumer_tag: used.as_str().into(), nowait: false });
        eventually("it goes too, now", || !node.ctl_ok(&["list_queues", "name"]).lines().any(|line| line == used));
    }
    c.send(queue_declare("durable").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'durable' in vhost '/'", (50, 10));
}

// ---- length -------------------------------------------------------------------------------------------------------------

#[test]
fn the_oldest_ready_messages_go_when_there_are_too_many() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.call(declare(name, durable, table([("x-max-length", int(3))])));
        for number in 0..10 {
            c.publish_with(publish("", name), persistent(), number.to_string());
        }
        c.has_ready(name, 3);
        for number in 7..10 {
            let got = c.get(name).expect("a message");
            assert_eq!(got.text(), number.to_string());
        }
        // Those that are out do not count.
        for number in 10..13 {
            c.publish_with(publish("", name), persistent(), number.to_string());
        }
        c.has_ready(name, 3);
        c.call(basic::Recover { requeue: true });
        c.has_ready(name, 3);
        assert_eq!(c.take_text(name).as_deref(), Some("10"), "the three that came back were the oldest");
    }
}

#[test]
fn bytes_are_those_of_bodies_and_exact_after_a_restart() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    c.call(declare("q", true, table([("x-max-length-bytes", int(10))])));
    c.call(confirm::Select::default());
    let properties = || persistent().with_message_id("an identifier that is longer than all bodies".into());
    for body in ["aaaa", "bbbb", "cc"] {
        c.publish_with(publish("", "q"), properties(), body);
    }
    c.all_confirmed(1..=3);
    c.has_ready("q", 3);
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 3);
    c.publish_with(publish("", "q"), properties(), "d");
    eventually("the oldest goes", || c.ready("q") == 3);
    assert_eq!(c.take_text("q").as_deref(), Some("bbbb"));
}

#[test]
fn a_full_queue_that_refuses_publishes_nacks_them() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(confirm::Select::default());
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.open_channel(if durable { 3 } else { 2 }).call(confirm::Select::default());
        c.call(declare(name, durable, table([("x-max-length", int(2)), ("x-overflow", text("reject-publish"))])));
        for number in 1..=5 {
            c.publish_with(publish("", name), persistent(), number.to_string());
        }
        assert_eq!(answers(&mut c, 5), (vec![1, 2], vec![3, 4, 5]));
        assert_eq!(c.ready(name), 2);
        assert_eq!(c.take_text(name).as_deref(), Some("1"));
        c.publish_with(publish("", name), persistent(), "6");
        assert_eq!(c.expect::<basic::Ack>().delivery_tag, 6);
        assert_eq!(c.take_text(name).as_deref(), Some("2"));
        assert_eq!(c.take_text(name).as_deref(), Some("6"));
        assert_eq!(c.take_text(name), None);
    }
}

#[test]
fn what_was_refused_does_not_come_back_with_a_restart() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    c.call(confirm::Select::default());
    c.call(declare("q", true, table([("x-max-length", int(1)), ("x-overflow", text("reject-publish"))])));
    for number in 1..=3 {
        c.publish_with(publish("", "q"), persistent(), number.to_string());
    }
    assert_eq!(answers(&mut c, 3), (vec![1], vec![2, 3]));
    // The removal of what was refused is on disk with whatever is confirmed after it.
    c.call(declare("other", true, FieldTable::default()));
    c.publish_with(publish("", "other"), persistent(), "");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 4);
    assert_eq!(c.take_text("q").as_deref(), Some("1"));
    c.close();
    node.restart();
    let mut c = Wire::open(&node);
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn a_message_of_a_burst_that_a_consumer_takes_at_once_is_not_one_too_many() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(declare("q", false, table([("x-max-length", int(1)), ("x-overflow", text("reject-publish"))])));
    c.call(confirm::Select::default());
    c.open_channel(2).call(consume("q", "tag").with(|m| m.no_ack = true));
    c.on(1);
    for number in 1..=50 {
        c.publish("", "q", number.to_string());
    }
    let (mut delivered, mut acked) = (0, 0);
    while delivered < 50 || acked < 50 {
        match c.event().1 {
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => acked = ack.delivery_tag,
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Deliver(_))) => delivered += 1,
            Payload::Method(other) => panic!("unexpected {other:?}"),
            _ => {}
        }
    }
}

// ---- priorities ---------------------------------------------------------------------------------------------------------

#[test]
fn the_highest_priority_comes_first_and_what_is_above_the_highest_counts_as_that() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    let queues = [("transient", false), ("durable", true)];
    for (name, durable) in queues {
        c.call(declare(name, durable, table([("x-max-priority", int(5))])));
    }
    c.call(confirm::Select::default());
    let mut published = 0;
    for (name, _) in queues {
        for (priority, body) in [(0, "f"), (5, "a"), (1, "e"), (9, "b"), (3, "d"), (5, "c")] {
            c.publish_with(publish("", name), persistent().with_priority(priority), body);
            published += 1;
        }
    }
    c.all_confirmed(1..=published);
    let first = c.get("durable").expect("a message");
    assert_eq!(first.text(), "a");
    c.send(basic::Nack { delivery_tag: first.method.delivery_tag, multiple: false, requeue: true });
    let order =
        |c: &mut Wire, name: &str| -> String { (0..6).map(|_| c.take_text(name).expect("a message")).collect() };
    assert_eq!(order(&mut c, "transient"), "abcdef");
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("durable", 6);
    assert_eq!(order(&mut c, "durable"), "abcdef");
}

// ---- delivery limit -----------------------------------------------------------------------------------------------------

fn delivery_count(properties: &BasicProperties) -> Option<i64> {
    match properties.headers().as_ref()?.inner().get("x-delivery-count")? {
        AMQPValue::LongLongInt(count) => Some(*count),
        other => panic!("{other:?} is no count"),
    }
}

#[test]
fn a_message_that_comes_back_too_often_goes() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    let arguments = || table([("x-queue-type", text("quorum")), ("x-delivery-limit", int(3))]);
    c.call(declare("q", true, arguments()));
    c.publish_with(publish("", "q"), persistent(), "poison");
    c.has_ready("q", 1);
    for count in 0..2 {
        let got = c.get("q").expect("a message");
        assert_eq!(delivery_count(&got.properties), (count > 0).then_some(count));
        c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: true });
        c.has_ready("q", 1);
    }
    c.close();
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 1);
    for count in 2..4 {
        let got = c.get("q").expect("a message");
        assert_eq!(delivery_count(&got.properties), Some(count), "counted on over the restart");
        c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: true });
        c.has_ready("q", u32::from(count < 3));
    }
    assert_eq!(c.take_text("q"), None);
}

#[test]
fn a_quorum_queue_lets_a_message_come_back_twenty_times() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(declare("q", true, table([("x-queue-type", text("quorum"))])));
    c.publish_with(publish("", "q"), persistent(), "poison");
    c.call(consume("q", "tag"));
    for count in 0..=20 {
        let delivery = c.delivery();
        assert_eq!(delivery_count(&delivery.properties), (count > 0).then_some(count));
        c.send(basic::Reject { delivery_tag: delivery.method.delivery_tag, requeue: true });
    }
    c.publish_with(publish("", "q"), persistent(), "next");
    assert_eq!(c.delivery().text(), "next");
}

// ---- policies -----------------------------------------------------------------------------------------------------------

#[test]
fn policies_count_for_queues_that_are_there_and_for_new_ones_and_the_lower_number_wins() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (name, durable) in [("q-transient", false), ("q-durable", true)] {
        c.call(declare(name, durable, table([("x-max-length", int(8))])));
        for number in 0..10 {
            c.publish_with(publish("", name), persistent(), number.to_string());
        }
        c.has_ready(name, 8);
    }
    node.ctl_ok(&["set_policy", "short", "^q-", r#"{"max-length":5}"#]);
    c.has_ready("q-transient", 5);
    c.has_ready("q-durable", 5);
    node.ctl_ok(&["set_operator_policy", "shorter", "^q-", r#"{"max-length":2,"message-ttl":600000}"#]);
    c.has_ready("q-transient", 2);
    c.has_ready("q-durable", 2);
    c.call(declare("q-new", false, FieldTable::default()));
    for number in 0..10 {
        c.publish("", "q-new", number.to_string());
    }
    c.has_ready("q-new", 2);
    node.ctl_ok(&["clear_operator_policy", "shorter"]);
    node.ctl_ok(&["set_policy", "short", "^q-", r#"{"message-ttl":1}"#]);
    for name in ["q-transient", "q-durable", "q-new"] {
        c.has_ready(name, 0);
    }
}
