//! Publisher confirms: every publish on a confirm channel is answered, in the right order with its return.

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, tx};
use amq_protocol::types::AMQPValue;
use warrenmq_tests::methods::{publish, queue_declare, table, text};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Wire, With};

/// A connection in confirm mode with a durable queue `q`.
fn confirming(node: &Node) -> Wire {
    let mut c = Wire::open(node);
    c.call(queue_declare("q").with(|m| m.durable = true));
    c.call(confirm::Select::default());
    c
}

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

#[test]
fn routed_publish_is_acked() {
    let node = Node::start();
    let mut c = confirming(&node);
    c.publish_with(publish("", "q"), persistent(), "1");
    let ack: basic::Ack = c.expect();
    assert_eq!(ack.delivery_tag, 1);
    c.has_ready("q", 1);
}

#[test]
fn unroutable_publish_is_acked() {
    let node = Node::start();
    let mut c = confirming(&node);
    c.publish("", "nowhere", "");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
}

#[test]
fn return_comes_before_its_ack() {
    let node = Node::start();
    let mut c = confirming(&node);
    for sequence in 1..=20 {
        c.publish_with(publish("", "nowhere").with(|m| m.mandatory = true), persistent(), "body");
        assert_eq!(c.message::<basic::Return>().method.reply_code, 312);
        assert_eq!(c.expect::<basic::Ack>().delivery_tag, sequence);
    }
}

#[test]
fn returns_and_acks_of_a_burst_keep_their_order() {
    let node = Node::start();
    let mut c = confirming(&node);
    for number in 1..=100_u64 {
        let key = if number % 2 == 0 { "q" } else { "nowhere" };
        let properties = persistent().with_message_id(number.to_string().into());
        c.publish_with(publish("", key).with(|m| m.mandatory = true), properties, "");
    }
    let mut returned = 0;
    let mut acked = std::collections::BTreeSet::new();
    while acked.len() < 100 {
        match c.event().1 {
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Return(_))) => {
                let (_, Payload::Header(header, _)) = c.event() else { panic!("a header after basic.return") };
                let id: u64 =
                    header.properties.message_id().as_ref().expect("an id").as_str().parse().expect("a number");
                assert!(id > returned && !acked.contains(&id), "return {id} in order and before its ack");
                returned = id;
            }
            Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))) => {
                let first = if ack.multiple { 1 } else { ack.delivery_tag };
                for tag in first..=ack.delivery_tag {
                    assert!(tag % 2 == 0 || tag <= returned, "ack {tag} comes after its return");
                    acked.insert(tag);
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(returned, 99);
}

#[test]
fn thousand_publishes_are_all_acked() {
    let node = Node::start();
    let mut c = confirming(&node);
    for number in 0..1000 {
        c.publish_with(publish("", "q"), persistent(), number.to_string());
    }
    c.all_confirmed(1..=1000);
    c.has_ready("q", 1000);
}

#[test]
fn numbers_count_from_the_first_select() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    c.publish("", "q", "before");
    c.call(confirm::Select::default());
    c.publish("", "q", "1");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
    c.call(confirm::Select::default());
    c.publish("", "q", "2");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 2);
}

#[test]
fn numbers_start_again_in_a_reopened_channel() {
    let node = Node::start();
    let mut c = confirming(&node);
    c.publish("", "q", "");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
    c.close_channel();
    c.open_channel(1);
    c.call(confirm::Select::default());
    c.publish("", "q", "");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
}

#[test]
fn select_without_answer_works() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(confirm::Select { nowait: true });
    c.publish("", "nowhere", "");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
}

#[test]
fn publish_that_the_queue_rejects_is_nacked() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let arguments = table([("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))]);
    c.call(queue_declare("small").with(|m| m.arguments = arguments));
    c.call(confirm::Select::default());
    c.publish("", "small", "fits");
    assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
    c.publish("", "small", "too much");
    assert_eq!(c.expect::<basic::Nack>().delivery_tag, 2);
    assert_eq!(c.take_text("small").as_deref(), Some("fits"));
    assert!(c.get("small").is_none());
}

#[test]
fn confirms_and_transactions_exclude_each_other() {
    let node = Node::start();
    let mut c = confirming(&node);
    c.send(tx::Select {});
    c.fails_with(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", (90, 10));
    c.call(tx::Select {});
    c.send(confirm::Select::default());
    c.fails_with(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", (85, 10));
}

#[test]
fn confirmed_messages_survive_a_kill() {
    let mut node = Node::start();
    let mut c = confirming(&node);
    for number in 0..200 {
        c.publish_with(publish("", "q"), persistent(), number.to_string());
    }
    c.all_confirmed(1..=200);

    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 200);
    for number in 0..200 {
        assert_eq!(c.take_text("q"), Some(number.to_string()));
    }
}
