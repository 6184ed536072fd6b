//! A disk that gets full: publishers are held up, nobody is refused, consumers go on and make space, publishing goes on
//! without a restart, and what was confirmed is there after `kill -9`.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, connection, tx};
use warrenmq_tests::disk::SmallDisk;
use warrenmq_tests::methods::{consume, publish, qos, queue_declare};
use warrenmq_tests::wire::{Next, Payload};
use warrenmq_tests::{Node, Setup, Wire, With};

/// Size of the disk in MiB: room for a few files of the log and little else.
const DISK_MIB: u32 = 200;
const BODY_BYTES: usize = 32 * 1024;
/// Without an answer for so long, a publisher whose window is full publishes all the same.
const HELD_UP: Duration = Duration::from_millis(200);
/// A publisher that has so many unconfirmed waits for confirms.
const WINDOW: usize = 64;

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

fn setup(disk: &SmallDisk, config: &str) -> Setup {
    Setup { config: Some(config.to_owned()), ..Setup::on(&disk.data_dir()) }
}

fn body(number: u64) -> String {
    format!("{number:010} {}", "x".repeat(BODY_BYTES))
}

fn number_in(body: &[u8]) -> u64 {
    std::str::from_utf8(&body[..10]).expect("digits").parse().expect("digits")
}

/// A publisher of numbered messages.
struct Publisher {
    c: Wire,
    queue: String,
    next: u64,
    open: BTreeSet<u64>,
    blocked: bool,
}

impl Publisher {
    fn new(node: &Node, queue: &str) -> Publisher {
        let mut c = Wire::open(node);
        c.call(queue_declare(queue).with(|m| m.durable = true));
        c.call(confirm::Select::default());
        Publisher { c, queue: queue.to_owned(), next: 1, open: BTreeSet::new(), blocked: false }
    }

    /// Publishes until the broker holds it up, at most `limit` messages. Messages are numbered as their confirms are.
    fn publish_until_blocked(&mut self, limit: u64) {
        let end = self.next + limit;
        while !self.blocked && self.next < end {
            // Held up with its window full, it hears of it with the next publish.
            if self.open.len() < WINDOW || !self.c.comes_within(HELD_UP) {
                let sent = self.c.try_publish_with(publish("", &self.queue), persistent(), body(self.next).as_bytes());
                sent.expect("the broker takes bytes");
                self.open.insert(self.next);
                self.next += 1;
            } else {
                self.take();
            }
        }
    }

    /// Takes in one method of the broker.
    fn take(&mut self) {
        match self.c.event() {
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))) if ack.multiple => {
                self.open = self.open.split_off(&(ack.delivery_tag + 1));
            }
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))) => {
                assert!(self.open.remove(&ack.delivery_tag), "{} is confirmed once", ack.delivery_tag);
            }
            (0, Payload::Method(AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)))) => {
                assert_eq!(blocked.reason.as_str(), "low on disk");
                self.blocked = true;
            }
            (0, Payload::Method(AMQPClass::Connection(connection::AMQPMethod::Unblocked(_)))) => self.blocked = false,
            (_, other) => panic!("expected a confirm or a notice, got {other:?}"),
        }
    }

    /// Waits until publishing goes on and all is confirmed.
    fn finish(&mut self) {
        while self.blocked || !self.open.is_empty() {
            self.take();
        }
    }

    /// Numbers that were confirmed.
    fn confirmed(&self) -> BTreeSet<u64> {
        (1..self.next).filter(|number| !self.open.contains(number)).collect()
    }
}

/// Consumes and acknowledges `count` messages, which must come in order from `first` on.
fn drain(node: &Node, queue: &str, first: u64, count: u64) {
    let mut c = Wire::open(node);
    c.call(qos(100));
    c.call(consume(queue, "drain"));
    for number in first..first + count {
        let message = c.delivery();
        assert_eq!(number_in(&message.body), number, "in order");
        c.send(basic::Ack { delivery_tag: message.method.delivery_tag, multiple: false });
    }
    c.close();
}

/// What is in a queue.
fn numbers_in(node: &Node, queue: &str) -> Vec<u64> {
    let mut c = Wire::open(node);
    let count = c.ready(queue);
    c.call(consume(queue, "look"));
    (0..count)
        .map(|_| match c.try_next() {
            Some(Next::Delivery(message)) => number_in(&message.body),
            other => panic!("expected a delivery, got {other:?}"),
        })
        .collect()
}

#[test]
fn publishers_are_held_up_at_the_limit_and_go_on_when_consumers_have_made_space() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    let setup = setup(&disk, "disk_free_limit.absolute = 80MB\nmessage_log.file_size = 4MiB\n");
    let mut node = Node::start_as(setup.clone());
    let mut publisher = Publisher::new(&node, "q");
    publisher.publish_until_blocked(u64::MAX / 2);
    let before = publisher.confirmed().len() as u64;
    assert!(before > 0, "some fitted");

    drain(&node, "q", 1, before);
    publisher.finish();
    publisher.publish_until_blocked(200);
    publisher.finish();
    let confirmed = publisher.confirmed();
    assert!(confirmed.len() as u64 >= before + WINDOW as u64, "publishing went on");

    node.restart_as(setup).expect("a sound data directory");
    let there = numbers_in(&node, "q");
    assert!(there.is_sorted(), "in order");
    let there: BTreeSet<u64> = there.into_iter().collect();
    let lost: Vec<_> = confirmed.iter().filter(|&&number| number > before && !there.contains(&number)).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
}

#[test]
#[ignore = "publishers sometimes stay blocked for longer than the test waits, although consumers made space"]
fn a_log_without_space_holds_publishers_up_and_goes_on_when_consumers_have_made_some() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    // No limit: the log itself runs into the end of the disk.
    let setup = setup(&disk, "disk_free_limit.absolute = 0\nmessage_log.file_size = 4MiB\n");
    let mut node = Node::start_as(setup.clone());
    let queues: Vec<String> = (0..6).map(|n| format!("q{n}")).collect();
    let publishers: Vec<_> = queues
        .iter()
        .map(|queue| {
            let mut publisher = Publisher::new(&node, queue);
            thread::spawn(move || {
                publisher.publish_until_blocked(u64::MAX / 2);
                publisher
            })
        })
        .collect();
    let mut publishers: Vec<Publisher> = publishers.into_iter().map(|thread| thread.join().expect("blocked")).collect();

    let before: Vec<u64> = publishers.iter().map(|publisher| publisher.confirmed().len() as u64).collect();
    for (queue, &count) in queues.iter().zip(&before) {
        drain(&node, queue, 1, count);
    }
    for publisher in &mut publishers {
        publisher.finish();
        publisher.publish_until_blocked(20);
        publisher.finish();
    }
    node.restart_as(setup).expect("a sound data directory");
    for ((queue, publisher), before) in queues.iter().zip(&publishers).zip(before) {
        let there = numbers_in(&node, queue);
        assert!(there.is_sorted(), "in order");
        let there: BTreeSet<u64> = there.into_iter().collect();
        let confirmed = publisher.confirmed();
        let lost: Vec<_> = confirmed.iter().filter(|&&number| number > before && !there.contains(&number)).collect();
        assert!(lost.is_empty(), "{queue}: confirmed and lost: {lost:?}");
    }
}

#[test]
fn another_process_that_fills_the_disk_holds_publishers_up_until_it_makes_space() {
    let Some(disk) = SmallDisk::mount(DISK_MIB) else { return };
    let setup = setup(&disk, "disk_free_limit.absolute = 20MB\nmessage_log.file_size = 4MiB\n");
    let mut node = Node::start_as(setup.clone());
    let mut publisher = Publisher::new(&node, "q");
    publisher.publish_until_blocked(100);
    for _ in 0..3 {
        disk.fill(0);
        publisher.publish_until_blocked(u64::MAX / 2);
        let mut c = Wire::open(&node);
        c.get("q").expect("consumers go on");
        disk.empty();
        publisher.finish();
    }
    publisher.publish_until_blocked(100);
    publisher.finish();
    let confirmed = publisher.confirmed();
    node.restart_as(setup.clone()).expect("a sound data directory");
    assert_eq!(numbers_in(&node, "q"), confirmed.into_iter().collect::<Vec<_>>());

    // Full to the last byte, it still starts, and acknowledgements still count.
    disk.fill(0);
    node.restart_as(setup.clone()).expect("a full disk is no reason not to start");
    let mut c = Wire::open(&node);
    c.call(tx::Select {});
    let message = c.get("q").expect("the first message");
    c.send(basic::Ack { delivery_tag: message.method.delivery_tag, multiple: false });
    c.call(tx::Commit {});
    node.restart_as(setup).expect("a sound data directory");
    assert_eq!(numbers_in(&node, "q").first(), Some(&2), "the acknowledged message is gone");
}
