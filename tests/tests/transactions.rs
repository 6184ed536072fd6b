//! Transactions: publishes and acknowledgements held until commit.

use amq_protocol::protocol::{basic, tx};
use warrenmq_tests::methods::{ack, consume, publish, queue_declare};
use warrenmq_tests::{Node, Wire, With};

/// A connection in tx mode with a queue `q`, and another connection that looks on.
fn in_transaction(node: &Node) -> (Wire, Wire) {
    let mut c = Wire::open(node);
    c.call(queue_declare("q"));
    c.call(tx::Select {});
    (c, Wire::open(node))
}

#[test]
fn publishes_are_seen_after_commit_only() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    c.publish("", "q", "1").publish("", "q", "2");
    c.call(basic::Qos::default());
    assert_eq!(other.ready("q"), 0);
    c.call(tx::Commit {});
    assert_eq!(other.take_text("q").as_deref(), Some("1"));
    assert_eq!(other.take_text("q").as_deref(), Some("2"));
}

#[test]
fn rollback_drops_the_publishes() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    c.publish("", "q", "dropped");
    c.call(tx::Rollback {});
    c.publish("", "q", "kept");
    c.call(tx::Commit {});
    assert_eq!(other.take_text("q").as_deref(), Some("kept"));
    assert!(other.get("q").is_none());
}

#[test]
fn acks_take_effect_at_commit() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    other.publish("", "q", "1");
    other.has_ready("q", 1);
    let message = c.get("q").expect("the message");
    c.send(ack(message.method.delivery_tag));
    c.call(tx::Commit {});
    c.close();
    assert_eq!(other.ready("q"), 0);
}

#[test]
fn rollback_forgets_the_acks_but_requeues_nothing() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    other.publish("", "q", "1");
    other.has_ready("q", 1);
    let tag = c.get("q").expect("the message").method.delivery_tag;
    c.send(ack(tag));
    c.call(tx::Rollback {});
    assert_eq!(other.ready("q"), 0, "still held by the channel");
    c.send(ack(tag));
    c.call(tx::Commit {});
    c.close();
    assert_eq!(other.ready("q"), 0, "acknowledged in the end");
}

#[test]
fn closing_the_channel_rolls_back() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    other.publish("", "q", "stays");
    other.has_ready("q", 1);
    let tag = c.get("q").expect("the message").method.delivery_tag;
    c.send(ack(tag)).publish("", "q", "dropped");
    c.close_channel();
    let message = other.get("q").expect("the message is back");
    assert_eq!((message.text(), message.method.redelivered), ("stays", true));
    assert!(other.get("q").is_none());
}

#[test]
fn returns_come_before_commit_ok() {
    let node = Node::start();
    let (mut c, _) = in_transaction(&node);
    c.publish_with(publish("", "nowhere").with(|m| m.mandatory = true), Default::default(), "back");
    c.call(basic::Qos::default());
    c.send(tx::Commit {});
    assert_eq!(c.message::<basic::Return>().text(), "back");
    let _: tx::CommitOk = c.expect();
}

#[test]
fn deliveries_are_not_held() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    c.call(consume("q", "tag"));
    other.publish("", "q", "now");
    assert_eq!(c.delivery().text(), "now");
}

#[test]
fn bad_ack_and_missing_exchange_fail_at_once() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    c.publish("", "q", "1");
    c.send(ack(99));
    c.fails_with(406, "PRECONDITION_FAILED - unknown delivery tag 99", (60, 80));
    c.call(tx::Select {});
    c.publish("", "q", "2").publish("missing", "", "3");
    c.fails_with(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (60, 40));
    assert_eq!(other.ready("q"), 0);
}

#[test]
fn select_may_be_repeated() {
    let node = Node::start();
    let (mut c, mut other) = in_transaction(&node);
    c.publish("", "q", "1");
    c.call(tx::Select {});
    c.call(tx::Commit {});
    other.has_ready("q", 1);
}

#[test]
fn commit_and_rollback_need_select() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.send(tx::Commit {});
    c.fails_with(406, "PRECONDITION_FAILED - channel is not transactional", (90, 20));
    c.send(tx::Rollback {});
    c.fails_with(406, "PRECONDITION_FAILED - channel is not transactional", (90, 30));
}
