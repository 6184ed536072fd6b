//! What is durable survives `kill -9`: every confirmed message, in order; what was settled stays gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, tx};
use warrenmq_tests::methods::{
    ack, consume, exchange_declare, get, publish, qos, queue_bind, queue_declare, queue_delete, queue_purge,
};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Wire, With, eventually};

/// Rounds of killing under load; `WARRENMQ_KILL_ROUNDS` asks for more.
const KILL_ROUNDS: usize = 12;
/// A log of small files, so that messages are moved out of it soon; and little memory, so that they are read back.
const SMALL_LOG: &str = "message_log.file_size = 1MiB\nmessage_log.budget = 4MiB\nbody_budget.absolute = 1MB\n";
/// Messages a publisher keeps unconfirmed.
const WINDOW: u64 = 200;

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

fn durable(c: &mut Wire, queue: &str) {
    c.call(queue_declare(queue).with(|m| m.durable = true));
}

/// Publishes `bodies` and waits until all are confirmed.
fn confirmed(c: &mut Wire, queue: &str, bodies: impl IntoIterator<Item = String>) {
    c.call(confirm::Select::default());
    let mut count = 0;
    for body in bodies {
        c.publish_with(publish("", queue), persistent(), body);
        count += 1;
    }
    c.all_confirmed(1..=count);
}

#[test]
fn confirmed_messages_survive_a_kill_in_order() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", (0..5000).map(|n| format!("message {n}")));
    node.restart();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    c.has_ready("q", 5000);
    for n in 0..5000 {
        assert_eq!(c.take_text("q"), Some(format!("message {n}")));
    }
    assert_eq!(c.take_text("q"), None);
}

#[test]
fn large_messages_and_properties_survive_a_kill() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    let large: Vec<u8> = (0..20 << 20).map(|n: u32| (n % 251) as u8).collect();
    c.call(confirm::Select::default());
    c.publish_with(publish("", "q"), persistent().with_message_id("id 1".into()), "");
    c.publish_with(publish("", "q"), persistent().with_correlation_id("c".into()), &large);
    c.all_confirmed(1..=2);
    node.restart();
    let mut c = Wire::open(&node);
    let first = c.get("q").expect("the empty message");
    assert_eq!(first.properties.message_id().as_ref().map(|id| id.as_str()), Some("id 1"));
    assert!(first.body.is_empty());
    let second = c.get("q").expect("the large message");
    assert_eq!(second.properties.correlation_id().as_ref().map(|id| id.as_str()), Some("c"));
    assert!(second.body == large, "20 MiB come back byte for byte");
}

#[test]
fn durable_queues_exchanges_and_bindings_come_back_and_transient_ones_do_not() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "kept");
    c.call(queue_declare("gone"));
    c.call(exchange_declare("x", "topic").with(|m| m.durable = true));
    c.call(exchange_declare("y", "fanout"));
    c.call(queue_bind("kept", "x", "a.#"));
    c.call(queue_bind("kept", "y", ""));
    node.restart();
    let mut c = Wire::open(&node);
    c.call(queue_declare("kept").with(|m| m.passive = true));
    c.call(exchange_declare("x", "topic").with(|m| m.passive = true));
    c.publish("x", "a.b", "routed");
    c.has_ready("kept", 1);
    c.send(queue_declare("gone").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no queue 'gone' in vhost '/'", (50, 10));
    c.send(exchange_declare("y", "fanout").with(|m| m.passive = true));
    c.fails_with(404, "NOT_FOUND - no exchange 'y' in vhost '/'", (40, 10));
}

#[test]
fn delivered_and_unacked_messages_come_back_redelivered_in_their_old_order() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", (0..6).map(|n| n.to_string()));
    c.call(qos(3));
    c.call(consume("q", "t"));
    for n in 0..3 {
        assert_eq!(c.delivery().text(), n.to_string());
    }
    // What was handed out is noted with the next thing that is written.
    c.publish_with(publish("", "q"), persistent(), "6");
    c.expect::<basic::Ack>();
    node.restart();
    let mut c = Wire::open(&node);
    for n in 0..7 {
        let message = c.get("q").expect("seven messages");
        assert_eq!(message.text(), n.to_string());
        assert!(n < 3 || !message.method.redelivered, "message {n} was never delivered");
    }
}

#[test]
fn committed_acks_and_publishes_survive_a_kill() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", (0..4).map(|n| n.to_string()));
    c.open_channel(2).on(2);
    c.call(tx::Select {});
    for _ in 0..2 {
        let message = c.get("q").expect("a message");
        c.send(ack(message.method.delivery_tag));
    }
    c.publish_with(publish("", "q"), persistent(), "new");
    c.call(tx::Commit {});
    node.restart();
    let mut c = Wire::open(&node);
    let left: Vec<String> = std::iter::from_fn(|| c.take_text("q")).collect();
    assert_eq!(left, ["2", "3", "new"]);
}

#[test]
fn an_orderly_stop_keeps_every_ack() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", (0..100).map(|n| n.to_string()));
    for _ in 0..60 {
        let message = c.get("q").expect("a message");
        c.send(ack(message.method.delivery_tag));
    }
    c.close();
    node.terminate();
    assert!(node.wait().success());
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 40);
    assert_eq!(c.take_text("q").as_deref(), Some("60"));
}

#[test]
fn a_purged_or_deleted_queue_stays_so() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    for queue in ["purged", "deleted", "again"] {
        durable(&mut c, queue);
        for n in 0..10 {
            c.publish_with(publish("", queue), persistent(), n.to_string());
        }
        c.has_ready(queue, 10);
    }
    c.call(queue_purge("purged"));
    c.call(queue_delete("deleted"));
    c.call(queue_delete("again"));
    durable(&mut c, "again");
    confirmed(&mut c, "again", ["new".to_owned()]);
    c.close();
    node.terminate();
    node.wait();
    node.restart();
    let mut c = Wire::open(&node);
    assert_eq!(c.take_text("purged"), None);
    assert_eq!(c.take_text("again").as_deref(), Some("new"), "the new queue, not the old one's messages");
    assert_eq!(c.take_text("again"), None);
    c.send(get("deleted"));
    c.fails_with(404, "NOT_FOUND - no queue 'deleted' in vhost '/'", (60, 70));
}

#[test]
fn a_backlog_beyond_the_memory_budget_drains_in_order() {
    let mut node = Node::start_with("body_budget.absolute = 1MB\n");
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    let body = |n: usize| format!("{n:06} {}", "x".repeat(1000));
    confirmed(&mut c, "q", (0..20_000).map(body));
    c.call(qos(500));
    c.call(consume("q", "t"));
    for n in 0..10_000 {
        let message = c.delivery();
        assert_eq!(message.text()[..6], format!("{n:06}"));
        c.send(ack(message.method.delivery_tag));
    }
    c.close();
    node.terminate();
    node.wait();
    node.restart();
    let mut c = Wire::open(&node);
    c.has_ready("q", 10_000);
    c.call(consume("q", "t").with(|m| m.no_ack = true));
    for n in 10_000..20_000 {
        assert_eq!(c.delivery().text()[..6], format!("{n:06}"));
    }
}

/// Bytes of all files of the node.
fn disk_bytes(node: &Node) -> u64 {
    let files = |dir: &str| std::fs::read_dir(node.data_dir().join(dir)).into_iter().flatten();
    // A file may go while it is looked at.
    let sizes = ["", "log", "segments", "snapshots"].iter().flat_map(|dir| files(dir));
    sizes.filter_map(|file| file.ok()?.metadata().ok()).filter(|file| file.is_file()).map(|file| file.len()).sum()
}

fn segments(node: &Node) -> usize {
    std::fs::read_dir(node.data_dir().join("segments")).map_or(0, Iterator::count)
}

#[test]
fn one_unacked_message_does_not_keep_the_disk_that_later_ones_used() {
    let mut node = Node::start_with(SMALL_LOG);
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", ["old".to_owned()]);
    assert_eq!(c.get("q").map(|message| message.text().to_owned()).as_deref(), Some("old"));
    let mut other = Wire::open(&node);
    other.call(consume("q", "t"));
    let body = "x".repeat(10_000);
    let mut published = 1;
    let mut pass = |count: u64| {
        for _ in 0..count {
            c.publish_with(publish("", "q"), persistent(), &body);
        }
        c.all_confirmed(published + 1..=published + count);
        published += count;
        for _ in 0..count {
            let tag = other.delivery().method.delivery_tag;
            other.send(ack(tag));
        }
    };
    for _ in 0..6 {
        pass(1000);
        // Traffic goes on, so that this is not what a node at rest does.
        eventually("10 MB more passed, and their disk is free again", || {
            pass(1);
            disk_bytes(&node) < 10 << 20
        });
    }
    eventually("a node at rest keeps one file of its log and its reserve", || disk_bytes(&node) < 2 << 20);
    assert_eq!(segments(&node), 1, "the old message");
    node.restart();
    let mut c = Wire::open(&node);
    let old = c.get("q").expect("the old message");
    assert_eq!((old.text(), old.method.redelivered), ("old", true));
    c.send(ack(old.method.delivery_tag));
    assert_eq!(c.take_text("q"), None);
    eventually("its segment goes with it", || segments(&node) == 0);
}

#[test]
fn a_backlog_that_was_moved_to_segments_drains_in_order_after_a_kill() {
    let mut node = Node::start_with(SMALL_LOG);
    let mut c = Wire::open(&node);
    c.call(confirm::Select::default());
    let (queues, each) = (5_usize, 4000_usize);
    for queue in 0..queues {
        durable(&mut c, &format!("q{queue}"));
    }
    let body = |n: usize| format!("{n:05} {}", "x".repeat(n * 7 % 1500));
    for n in 0..each {
        for queue in 0..queues {
            c.publish_with(publish("", &format!("q{queue}")), persistent(), body(n));
        }
    }
    c.all_confirmed(1..=(queues * each) as u64);
    eventually("messages were moved", || segments(&node) > 0);
    for pass in 0..2 {
        node.restart();
        let mut c = Wire::open(&node);
        for queue in 0..queues {
            let queue = format!("q{queue}");
            c.has_ready(&queue, (each / (pass + 1)) as u32);
            for n in pass * each / 2..(pass + 1) * each / 2 {
                assert!(c.take_text(&queue).is_some_and(|text| text == body(n)), "message {n} of {queue}");
            }
        }
        c.close();
        node.terminate();
        node.wait();
    }
    node.restart();
    eventually("nothing is left", || segments(&node) == 0);
}

#[test]
fn messages_larger_than_a_file_of_the_log_survive_a_kill() {
    let mut node = Node::start_with(SMALL_LOG);
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    let large = |n: usize| n.to_string().repeat(5 << 20);
    confirmed(&mut c, "q", (1..4).map(large));
    node.restart();
    let mut c = Wire::open(&node);
    for n in 1..4 {
        assert!(c.take_text("q").is_some_and(|text| text == large(n)), "message {n}");
    }
    assert_eq!(c.take_text("q"), None);
}

/// The last messages of a queue were settled when its shard stored its state. The numbers of later ones must not be given anew when the
/// log is replayed behind that state, or removals in the log take out others than those that were settled.
#[test]
fn messages_keep_their_numbers_when_the_last_ones_were_settled_before_a_snapshot() {
    let mut node = Node::start_with("message_log.file_size = 1MiB\n");
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    confirmed(&mut c, "q", (0..10).map(|n| format!("early {n}")));
    c.open_channel(2).on(2);
    c.call(tx::Select {});
    for n in 0..10 {
        let message = c.get("q").expect("ten messages");
        if n >= 5 {
            c.send(ack(message.method.delivery_tag));
        }
    }
    c.call(tx::Commit {});
    c.close_channel();

    // Other queues fill the log until its first file goes: then the state of every shard is stored.
    let first = node.data_dir().join("log/00000000000000000001.log");
    let mut other = Wire::open(&node);
    durable(&mut other, "churn");
    other.call(confirm::Select::default());
    let mut sent = 0;
    eventually("the first log file to go", || {
        for _ in 0..10 {
            other.publish_with(publish("", "churn"), persistent(), vec![b'x'; 100_000]);
            sent += 1;
            other.all_confirmed(sent..=sent);
        }
        other.call(queue_purge("churn"));
        !first.exists()
    });

    c.open_channel(3).on(3);
    confirmed(&mut c, "q", (0..20).map(|n| format!("late {n}")));
    c.open_channel(4).on(4);
    c.call(tx::Select {});
    for _ in 0..8 {
        let message = c.get("q").expect("early ones and late ones");
        c.send(ack(message.method.delivery_tag));
    }
    c.call(tx::Commit {});
    node.restart();
    let mut c = Wire::open(&node);
    let left: Vec<String> = std::iter::from_fn(|| c.take_text("q")).collect();
    assert_eq!(left, (3..20).map(|n| format!("late {n}")).collect::<Vec<_>>());
}

#[test]
fn acknowledgements_before_close_ok_survive_a_kill() {
    let mut node = Node::start();
    let closes: [fn(Wire); 2] = [|mut c| c.close_channel(), Wire::close];
    for close in closes {
        let mut c = Wire::open(&node);
        durable(&mut c, "q");
        confirmed(&mut c, "q", (0..10).map(|n| n.to_string()));
        for _ in 0..10 {
            let message = c.get("q").expect("ten messages");
            c.send(ack(message.method.delivery_tag));
        }
        close(c);
        node.restart();
        let mut c = Wire::open(&node);
        assert_eq!(c.take_text("q"), None);
    }
}

#[test]
fn nothing_confirmed_is_lost_when_the_node_is_killed_under_load() {
    kill_rounds(Node::start(), KILL_ROUNDS, 1);
}

#[test]
fn nothing_confirmed_is_lost_when_the_node_is_killed_while_messages_move() {
    let node = kill_rounds(Node::start_with(SMALL_LOG), KILL_ROUNDS, 1500);
    assert!(segments(&node) > 0, "messages moved");
}

/// `digits` of each message are its number, with zeros in front.
fn kill_rounds(mut node: Node, rounds: usize, digits: usize) -> Node {
    let rounds = std::env::var("WARRENMQ_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(rounds);
    let mut next = 0_u64;
    let mut open: BTreeSet<u64> = BTreeSet::new();
    let mut settled: BTreeSet<u64> = BTreeSet::new();
    for round in 0..rounds {
        let mut c = Wire::open(&node);
        durable(&mut c, "q");
        check(&mut c, round, &mut open, &mut settled);
        let published = publish_until_killed(&mut node, c, &mut next, &mut open, round, digits);
        assert!(published > 0, "round {round} published something");
    }
    let mut c = Wire::open(&node);
    check(&mut c, rounds, &mut open, &mut settled);
    node
}

/// Everything that is confirmed and not settled is in the queue, in order; half of it is settled for good.
fn check(c: &mut Wire, round: usize, open: &mut BTreeSet<u64>, settled: &mut BTreeSet<u64>) {
    c.open_channel(2).on(2);
    c.call(tx::Select {});
    let mut last = None;
    let mut found = BTreeSet::new();
    let mut acked = Vec::new();
    while let Some(message) = c.get("q") {
        let number: u64 = message.text().parse().expect("a number");
        assert!(!settled.contains(&number), "round {round}: {number} was settled for good");
        assert!(last.is_none_or(|last| last < number), "round {round}: {number} after {last:?}");
        last = Some(number);
        found.insert(number);
        if number.is_multiple_of(2) {
            c.send(ack(message.method.delivery_tag));
            acked.push(number);
        }
    }
    let lost: Vec<u64> = open.difference(&found).copied().collect();
    assert!(lost.is_empty(), "round {round}: confirmed and lost: {lost:?}");
    c.call(tx::Commit {});
    settled.extend(acked);
    *open = found.into_iter().filter(|number| !settled.contains(number)).collect();
    c.close_channel();
    c.on(1);
}

/// Publishes until the node is killed at a moment that depends on the round, and notes what was confirmed.
fn publish_until_killed(
    node: &mut Node,
    mut c: Wire,
    next: &mut u64,
    open: &mut BTreeSet<u64>,
    round: usize,
    digits: usize,
) -> u64 {
    c.call(confirm::Select::default());
    let first = *next;
    let kill_at = 300 + 371 * (round as u64 % 7);
    let killed = Arc::new(AtomicBool::new(false));
    let mut confirmed_up_to = 0;
    let publisher = {
        let killed = Arc::clone(&killed);
        thread::spawn(move || {
            let (mut sent, mut reached) = (0_u64, false);
            loop {
                while sent - confirmed_up_to < WINDOW {
                    sent += 1;
                    if !c.try_publish("q", persistent(), &format!("{:0digits$}", first + sent - 1)) {
                        return (sent, confirmed_up_to);
                    }
                }
                match c.frame_or_end() {
                    Some((_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack))))) => {
                        // Confirms of one queue come in order, so the last one stands for all before it.
                        confirmed_up_to = confirmed_up_to.max(ack.delivery_tag);
                    }
                    Some(_) => {}
                    None => return (sent, confirmed_up_to),
                }
                if !reached && confirmed_up_to >= kill_at {
                    reached = true;
                    killed.store(true, Ordering::SeqCst);
                }
            }
        })
    };
    eventually("the publisher to be under way", || killed.load(Ordering::SeqCst));
    node.restart();
    let (sent, confirmed) = publisher.join().expect("the publisher ends with its connection");
    open.extend(first..first + confirmed);
    *next = first + sent;
    confirmed
}
