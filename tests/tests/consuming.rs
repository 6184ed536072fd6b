//! Getting and consuming: deliveries, acknowledgements, prefetch, cancellation, order.

use amq_protocol::protocol::{AMQPClass, basic, channel};
use amq_protocol::types::AMQPValue;
use warrenmq_tests::bytes::Options;
use warrenmq_tests::methods::{
    ack, cancel, consume, get, nack, publish, qos, queue_declare, queue_delete, reject, table, text,
};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Wire, With};

/// A connection with a queue `q` that holds the messages "1" to `count`.
fn with_messages(node: &Node, count: u32) -> Wire {
    let mut c = Wire::open(node);
    c.call(queue_declare("q"));
    for number in 1..=count {
        c.publish("", "q", number.to_string());
    }
    c.has_ready("q", count);
    c
}

/// Reads deliveries and returns their bodies.
fn bodies(c: &mut Wire, count: usize) -> Vec<String> {
    (0..count).map(|_| c.delivery().text().to_owned()).collect()
}

#[test]
fn get_tells_how_many_are_left() {
    let node = Node::start();
    let mut c = with_messages(&node, 2);
    let first = c.get("q").expect("a message");
    assert_eq!((first.text(), first.method.message_count, first.method.redelivered), ("1", 1, false));
    assert_eq!((first.method.exchange.as_str(), first.method.routing_key.as_str()), ("", "q"));
    let second = c.get("q").expect("a message");
    assert_eq!((second.method.delivery_tag, second.method.message_count), (2, 0));
    assert!(c.get("q").is_none());
}

#[test]
fn got_message_without_ack_mode_is_gone() {
    let node = Node::start();
    let mut c = with_messages(&node, 1);
    c.send(get("q").with(|m| m.no_ack = true));
    assert_eq!(c.message::<basic::GetOk>().text(), "1");
    c.close_channel();
    c.open_channel(1);
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn consume_ok_comes_before_the_first_delivery() {
    let node = Node::start();
    let mut c = with_messages(&node, 3);
    assert_eq!(c.call(consume("q", "tag")).consumer_tag.as_str(), "tag");
    for (number, body) in ["1", "2", "3"].iter().enumerate() {
        let delivery = c.delivery();
        assert_eq!(delivery.text(), *body);
        assert_eq!(delivery.method.consumer_tag.as_str(), "tag");
        assert_eq!(delivery.method.delivery_tag, number as u64 + 1);
        assert!(!delivery.method.redelivered);
    }
}

#[test]
fn broker_makes_up_consumer_tags() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    let tag = c.call(consume("q", "")).consumer_tag.to_string();
    assert_eq!(tag.strip_prefix("amq.ctag-").map(str::len), Some(22), "{tag}");
    c.publish("", "q", "1");
    assert_eq!(c.delivery().method.consumer_tag.as_str(), tag);
}

#[test]
fn tag_in_use_breaks_the_connection_but_other_channels_may_use_it() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    c.call(consume("q", "tag"));
    c.open_channel(2);
    c.call(consume("q", "tag"));
    c.send(consume("q", "tag"));
    c.breaks_with(530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'", (60, 20));
}

#[test]
fn consume_from_a_missing_queue_is_refused() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(consume("missing", ""));
    c.fails_with(404, "NOT_FOUND - no queue 'missing' in vhost '/'", (60, 20));
}

#[test]
fn exclusive_consumer_stays_alone() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    let refused = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use";
    c.call(consume("q", "a").with(|m| m.exclusive = true));
    c.open_channel(2);
    c.send(consume("q", "b"));
    c.fails_with(403, refused, (60, 20));
    c.on(1).call(cancel("a"));
    c.call(consume("q", "a"));
    c.on(2).send(consume("q", "b").with(|m| m.exclusive = true));
    c.fails_with(403, refused, (60, 20));
}

#[test]
fn prefetch_limits_each_consumer() {
    let node = Node::start();
    let mut c = with_messages(&node, 6);
    c.call(qos(2));
    c.call(consume("q", "tag"));
    assert_eq!(bodies(&mut c, 2), ["1", "2"]);
    c.has_ready("q", 4);
    c.send(ack(1));
    assert_eq!(bodies(&mut c, 1), ["3"]);
    c.send(basic::Ack { delivery_tag: 3, multiple: true });
    assert_eq!(bodies(&mut c, 2), ["4", "5"]);
    c.has_ready("q", 1);
}

#[test]
fn prefetch_is_taken_when_the_consumer_starts() {
    let node = Node::start();
    let mut c = with_messages(&node, 5);
    c.call(qos(1));
    c.call(consume("q", "one"));
    assert_eq!(bodies(&mut c, 1), ["1"]);
    c.call(qos(2));
    c.call(consume("q", "two"));
    assert_eq!(bodies(&mut c, 2), ["2", "3"]);
    c.has_ready("q", 2);
}

#[test]
fn global_prefetch_limits_the_channel() {
    let node = Node::start();
    let mut c = with_messages(&node, 5);
    c.call(qos(3).with(|m| m.global = true));
    c.call(consume("q", "a"));
    c.call_after_deliveries(consume("q", "b"), 3);
    c.has_ready("q", 2);
    c.send(ack(1));
    c.delivery();
    c.has_ready("q", 1);
}

#[test]
fn prefetch_does_not_limit_automatic_acknowledgement() {
    let node = Node::start();
    let mut c = with_messages(&node, 3);
    c.call(qos(1));
    c.call(consume("q", "tag").with(|m| m.no_ack = true));
    assert_eq!(bodies(&mut c, 3), ["1", "2", "3"]);
}

#[test]
fn prefetch_size_is_not_implemented() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    // As bytes, because amq-protocol has no such field.
    c.send_frame(1, 1, &[0, 60, 0, 10, 0, 0, 0, 10, 0, 0, 0]);
    c.breaks_with(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)", (60, 10));
}

#[test]
fn acknowledged_messages_do_not_come_back() {
    let node = Node::start();
    let mut c = with_messages(&node, 4);
    c.call(consume("q", "tag"));
    bodies(&mut c, 4);
    c.send(basic::Ack { delivery_tag: 2, multiple: true });
    c.send(ack(4));
    c.close_channel();
    c.open_channel(1);
    let message = c.get("q").expect("the third");
    assert_eq!((message.text(), message.method.redelivered, message.method.message_count), ("3", true, 0));
}

#[test]
fn unknown_tags_are_refused() {
    let node = Node::start();
    let mut c = with_messages(&node, 1);
    let unknown = |tag: u64| format!("PRECONDITION_FAILED - unknown delivery tag {tag}");
    c.send(ack(99));
    c.fails_with(406, &unknown(99), (60, 80));
    c.send(reject(99, true));
    c.fails_with(406, &unknown(99), (60, 90));
    c.send(nack(99, true));
    c.fails_with(406, &unknown(99), (60, 120));
    c.send(ack(0));
    c.fails_with(406, &unknown(0), (60, 80));

    let tag = c.get("q").expect("the message").method.delivery_tag;
    c.send(ack(tag)).send(ack(tag));
    c.fails_with(406, &unknown(tag), (60, 80));
}

#[test]
fn tag_zero_with_multiple_means_all() {
    let node = Node::start();
    let mut c = with_messages(&node, 2);
    c.send(basic::Ack { delivery_tag: 0, multiple: true });
    c.get("q").expect("the first");
    c.get("q").expect("the second");
    c.send(basic::Ack { delivery_tag: 0, multiple: true });
    c.close_channel();
    c.open_channel(1);
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn requeued_message_goes_back_to_its_place() {
    let node = Node::start();
    let mut c = with_messages(&node, 4);
    let tags: Vec<u64> = (0..3).map(|_| c.get("q").expect("a message").method.delivery_tag).collect();
    // In another order than they came.
    c.send(reject(tags[1], true)).send(nack(tags[2], true)).send(nack(tags[0], true));
    for (body, redelivered) in [("1", true), ("2", true), ("3", true), ("4", false)] {
        let message = c.get("q").expect("a message");
        assert_eq!((message.text(), message.method.redelivered), (body, redelivered));
        c.send(ack(message.method.delivery_tag));
    }
}

#[test]
fn nack_of_several_requeues_them_in_order() {
    let node = Node::start();
    let mut c = with_messages(&node, 10);
    c.call(qos(5));
    c.call(consume("q", "tag"));
    assert_eq!(bodies(&mut c, 5), ["1", "2", "3", "4", "5"]);
    c.call(cancel("tag"));
    c.send(basic::Nack { delivery_tag: 5, multiple: true, requeue: true });
    c.call(qos(0));
    c.call(consume("q", "next").with(|m| m.no_ack = true));
    for number in 1..=10 {
        let delivery = c.delivery();
        assert_eq!((delivery.text(), delivery.method.redelivered), (number.to_string().as_str(), number <= 5));
    }
}

#[test]
fn rejected_message_is_dropped() {
    let node = Node::start();
    let mut c = with_messages(&node, 3);
    for requeue in [false, false] {
        let tag = c.get("q").expect("a message").method.delivery_tag;
        c.send(reject(tag, requeue));
    }
    assert_eq!(c.take_text("q").as_deref(), Some("3"));
    c.close_channel();
    c.open_channel(1);
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn closing_channel_and_connection_requeue_in_order() {
    let node = Node::start();
    let mut c = with_messages(&node, 4);
    let mut other = Wire::open(&node);
    other.get("q").expect("the first");
    other.open_channel(2);
    other.get("q").expect("the second");
    other.get("q").expect("the third");
    other.close_channel();
    c.has_ready("q", 3);
    drop(other);
    c.has_ready("q", 4);
    for (body, redelivered) in [("1", true), ("2", true), ("3", true), ("4", false)] {
        let message = c.get("q").expect("a message");
        assert_eq!((message.text(), message.method.redelivered), (body, redelivered));
    }
}

#[test]
fn recover_brings_unacknowledged_messages_back() {
    let node = Node::start();
    let mut c = with_messages(&node, 2);
    c.get("q").expect("the first");
    c.call(basic::Recover { requeue: true });
    let message = c.get("q").expect("the first again");
    assert_eq!((message.text(), message.method.redelivered), ("1", true));
    c.send(basic::RecoverAsync { requeue: true });
    c.has_ready("q", 2);
    c.send(basic::Recover { requeue: false });
    c.breaks_with(540, "NOT_IMPLEMENTED - requeue=false", (60, 110));
}

#[test]
fn cancelled_consumer_gets_nothing_more_but_may_still_ack() {
    let node = Node::start();
    let mut c = with_messages(&node, 3);
    c.call(qos(1));
    c.call(consume("q", "tag"));
    c.delivery();
    assert_eq!(c.call(cancel("tag")).consumer_tag.as_str(), "tag");
    c.send(ack(1));
    c.has_ready("q", 2);
    assert_eq!(c.call(cancel("unknown")).consumer_tag.as_str(), "unknown");
    c.call(consume("q", "tag"));
    assert_eq!(c.delivery().text(), "2");
}

#[test]
fn consumer_is_told_when_its_queue_is_deleted() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    c.call(consume("q", "tag"));
    Wire::open(&node).call(queue_delete("q"));
    let told: basic::Cancel = c.expect();
    assert_eq!((told.consumer_tag.as_str(), told.nowait), ("tag", true));

    c.call(queue_declare("q"));
    c.call(consume("q", "own"));
    c.call(queue_delete("q"));
    assert_eq!(c.expect::<basic::Cancel>().consumer_tag.as_str(), "own");
}

#[test]
fn consumer_without_the_capability_is_not_told() {
    let node = Node::start();
    let mut c = Wire::open_with(&node, &Options { capabilities: &[], ..Options::default() });
    c.call(queue_declare("q"));
    c.call(consume("q", "tag"));
    c.call(queue_delete("q"));
    c.call(queue_declare("q"));
    assert_eq!(c.ready("q"), 0);
}

#[test]
fn consumers_take_turns() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    for tag in ["a", "b", "c"] {
        c.call(consume("q", tag));
    }
    for number in 0..9 {
        c.publish("", "q", number.to_string());
    }
    let tags: Vec<String> = (0..9).map(|_| c.delivery().method.consumer_tag.to_string()).collect();
    for tag in ["a", "b", "c"] {
        assert_eq!(tags.iter().filter(|got| *got == tag).count(), 3, "{tags:?}");
    }
}

#[test]
fn higher_priority_consumer_is_served_first() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    c.call(qos(2));
    c.call(consume("q", "low"));
    let priority = table([("x-priority", AMQPValue::LongInt(10))]);
    c.call(consume("q", "high").with(|m| m.arguments = priority));
    for number in 0..3 {
        c.publish("", "q", number.to_string());
    }
    let tags: Vec<String> = (0..3).map(|_| c.delivery().method.consumer_tag.to_string()).collect();
    assert_eq!(tags, ["high", "high", "low"]);
    c.send(consume("q", "bad").with(|m| m.arguments = table([("x-priority", text("1"))])));
    let refused =
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"";
    c.fails_with(406, refused, (60, 20));
}

#[test]
fn single_active_consumer_hands_over_in_order() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let arguments = table([("x-single-active-consumer", AMQPValue::Boolean(true))]);
    c.call(queue_declare("q").with(|m| m.arguments = arguments));
    for tag in ["a", "b", "c"] {
        c.call(consume("q", tag).with(|m| m.no_ack = true));
    }
    for active in ["a", "b", "c"] {
        for _ in 0..2 {
            c.publish("", "q", "");
            assert_eq!(c.delivery().method.consumer_tag.as_str(), active);
        }
        c.call(cancel(active));
    }
}

#[test]
fn order_holds_from_one_publisher_to_one_consumer() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    let mut publisher = Wire::open(&node);
    c.call(qos(7));
    c.call(consume("q", "tag"));
    for number in 0..2_000 {
        publisher.publish("", "q", number.to_string());
    }
    for number in 0..2_000_u64 {
        let delivery = c.delivery();
        assert_eq!(delivery.text(), number.to_string());
        c.send(ack(delivery.method.delivery_tag));
    }
}

#[test]
fn delivery_tags_start_again_in_a_reopened_channel() {
    let node = Node::start();
    let mut c = with_messages(&node, 2);
    c.get("q").expect("a message");
    assert_eq!(c.get("q").expect("a message").method.delivery_tag, 2);
    c.close_channel();
    c.open_channel(1);
    assert_eq!(c.get("q").expect("a message").method.delivery_tag, 1);
}

#[test]
fn own_messages_are_delivered_despite_no_local() {
    let node = Node::start();
    let mut c = with_messages(&node, 0);
    c.call(consume("q", "tag").with(|m| m.no_local = true));
    c.publish("", "q", "own");
    assert_eq!(c.delivery().text(), "own");
}

#[test]
fn direct_reply_to_answers_without_a_queue() {
    let node = Node::start();
    let mut server = with_messages(&node, 0);
    server.call(consume("q", "server").with(|m| m.no_ack = true));
    let mut client = Wire::open(&node);
    client.call(consume("amq.rabbitmq.reply-to", "replies").with(|m| m.no_ack = true));
    let properties = amq_protocol::protocol::BasicProperties::default()
        .with_reply_to("amq.rabbitmq.reply-to".into())
        .with_correlation_id("7".into());
    client.publish_with(publish("", "q"), properties, "question");

    let question = server.delivery();
    let reply_to = question.properties.reply_to().as_ref().expect("a reply address").to_string();
    assert!(reply_to.starts_with("amq.rabbitmq.reply-to."), "{reply_to}");
    server.publish("", &reply_to, "answer");
    let answer = client.delivery();
    assert_eq!((answer.text(), answer.method.routing_key.as_str()), ("answer", reply_to.as_str()));
}

#[test]
fn direct_reply_to_has_its_rules() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(consume("amq.rabbitmq.reply-to", "replies"));
    c.fails_with(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", (60, 20));
    let properties = amq_protocol::protocol::BasicProperties::default().with_reply_to("amq.rabbitmq.reply-to".into());
    c.publish_with(publish("", "q"), properties, "");
    c.fails_with(406, "PRECONDITION_FAILED - fast reply consumer does not exist", (60, 40));
    c.call(consume("amq.rabbitmq.reply-to", "replies").with(|m| m.no_ack = true));
    c.send(consume("amq.rabbitmq.reply-to", "more").with(|m| m.no_ack = true));
    c.fails_with(406, "PRECONDITION_FAILED - reply consumer already set", (60, 20));
}

#[test]
fn channel_flow_is_answered_and_pausing_is_not_implemented() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    assert!(c.call(channel::Flow { active: true }).active);
    c.send(channel::Flow { active: false });
    c.breaks_with(540, "NOT_IMPLEMENTED - active=false", (20, 20));
}

/// For calls whose answer comes between deliveries.
trait BetweenDeliveries {
    fn call_after_deliveries(&mut self, method: basic::Consume, deliveries: usize);
}

impl BetweenDeliveries for Wire {
    /// Sends `consume` and reads its answer and `deliveries` messages, in whatever order they come.
    fn call_after_deliveries(&mut self, method: basic::Consume, deliveries: usize) {
        self.send(method);
        let (mut answered, mut delivered) = (false, 0);
        while !answered || delivered < deliveries {
            match self.event().1 {
                Payload::Method(AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(_))) => answered = true,
                Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Deliver(_))) => delivered += 1,
                Payload::Header(..) | Payload::Body(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        // The body of the last delivery, if the answer did not come after it.
        assert_eq!(delivered, deliveries);
    }
}

#[test]
fn who_deletes_a_queue_hears_delete_ok_before_the_cancel_of_its_own_consumer() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for durable in [false, true] {
        c.call(queue_declare("q").with(|m| m.durable = durable));
        c.call(consume("q", "tag"));
        c.call(queue_delete("q"));
        assert_eq!(c.expect::<basic::Cancel>().consumer_tag.as_str(), "tag", "durable: {durable}");
    }
}
