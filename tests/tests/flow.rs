//! How the broker keeps its balance: memory under a backlog, idle connections, heartbeats, slow peers, an orderly end.

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, connection, queue};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use warrenmq_tests::bytes::{Options, method_bytes, publish_bytes, start_ok};
use warrenmq_tests::methods::{ack, consume, publish, qos, queue_declare};
use warrenmq_tests::wire::{PROTOCOL_HEADER, Payload};
use warrenmq_tests::{Node, PATIENCE, Wire, With, eventually, limits};

const MB: u64 = 1_000_000;

/// These tests measure time and memory, and load the machine: one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the reader who stops is sent: 1 GB in messages of 64 kB.
const BACKLOG_MESSAGES: u64 = 16_000;
const BACKLOG_BODY_BYTES: usize = 62_500;
/// Octets of one such message on the wire, roughly: enough to tell "stopped" from "flowing".
const BACKLOG_BYTES: u64 = BACKLOG_MESSAGES * BACKLOG_BODY_BYTES as u64;

/// Publishes the backlog on a connection of its own thread, and counts what the socket took.
fn publish_backlog(mut socket: TcpStream, written: &AtomicU64) {
    socket.set_write_timeout(None).expect("a TCP socket");
    let mut body = vec![0x5a; BACKLOG_BODY_BYTES];
    for number in 0..BACKLOG_MESSAGES {
        body[..8].copy_from_slice(&number.to_be_bytes());
        let bytes = publish_bytes(1, 131_072, publish("", "q"), BasicProperties::default(), &body);
        socket.write_all(&bytes).expect("the broker takes the backlog in the end");
        written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Waits until the socket has taken nothing for half a second, and returns how much that is.
fn standstill(written: &AtomicU64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut last = (written.load(Ordering::Relaxed), Instant::now());
    while last.1.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "the publisher is still being read");
        thread::sleep(Duration::from_millis(10));
        let now = written.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    last.0
}

#[test]
fn reader_who_stops_blocks_publishers_not_the_broker() {
    let _alone = alone();
    let node = Node::start_with("vm_memory_high_watermark.absolute = 200MB\n");

    // Work that is to go on meanwhile: 500 small messages for a consumer on a connection of its own.
    let mut other = Wire::open(&node);
    other.call(queue_declare("small"));
    for number in 0..500 {
        other.publish("", "small", number.to_string());
    }
    other.has_ready("small", 500);

    // The reader asks for everything, without acknowledgements, and reads nothing.
    let mut reader = Wire::open(&node);
    reader.call(queue_declare("q"));
    reader.call(consume("q", "stopped").with(|m| m.no_ack = true));

    let mut publisher = Wire::open(&node);
    let socket = publisher.socket().try_clone().expect("a second handle of the socket");
    let (written, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let peak = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(node.resident_bytes(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _done_at_the_end = SetOnDrop(&done);
        let backlog = scope.spawn(|| publish_backlog(socket, &written));

        // The publisher is told, and then no longer read.
        let blocked: connection::Blocked = publisher.expect_on(0);
        assert_eq!(blocked.reason.as_str(), "low on memory");
        let stopped_at = standstill(&written);
        assert!(stopped_at < BACKLOG_BYTES, "the publisher was held up");

        // One that does not understand `blocked` is held up without a word.
        let mut quiet = Wire::open_with(&node, &Options { capabilities: &[], ..Options::default() });
        quiet.publish("", "small", "last");
        // The alarm may end for a moment, when the allocator gives back what it no longer needs: then that is filled up, too.
        let held = (0..20).any(|_| quiet.is_held_up(Duration::from_millis(500)));
        assert!(held, "a publisher that does not understand `blocked` is not held up");

        // Consumers and acknowledgements of other connections go on.
        other.call(qos(10));
        other.call(consume("small", "worker"));
        for number in 0..500 {
            let delivery = other.delivery();
            assert_eq!(delivery.text(), number.to_string());
            other.send(ack(delivery.method.delivery_tag));
        }
        assert!(standstill(&written) < BACKLOG_BYTES, "the publisher is still held up");

        // The reader reads, everything flows, and nothing is lost or out of order.
        for number in 0..BACKLOG_MESSAGES {
            let delivery = reader.delivery();
            assert_eq!(delivery.body.len(), BACKLOG_BODY_BYTES);
            assert_eq!(delivery.body[..8], number.to_be_bytes(), "message {number}");
        }
        backlog.join().expect("the backlog was published");
        assert_eq!(other.delivery().text(), "last");
        publisher.send(queue_declare("q").with(|m| m.passive = true));
        assert_eq!(last_state(&mut publisher), Some(false), "the publisher was told that it may go on");
    });
    let peak = peak.into_inner();
    assert!(peak < 300 * MB, "{} MB at the peak", peak / MB);
}

/// Ends the watching thread also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads up to `declare-ok`; whether the connection was last said to be blocked.
fn last_state(c: &mut Wire) -> Option<bool> {
    let mut blocked = None;
    loop {
        match c.event().1 {
            Payload::Method(AMQPClass::Connection(connection::AMQPMethod::Blocked(_))) => blocked = Some(true),
            Payload::Method(AMQPClass::Connection(connection::AMQPMethod::Unblocked(_))) => blocked = Some(false),
            Payload::Method(AMQPClass::Queue(queue::AMQPMethod::DeclareOk(_))) => return blocked,
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// A connection that publishes during an alarm.
trait HeldUp {
    fn is_held_up(&mut self, duration: Duration) -> bool;
}

impl HeldUp for Wire {
    /// Publishes twice, each time with a question behind it. The first answer may still come: the broker takes the publish that found
    /// out about the alarm, or not even that. Answers whether there is silence after it.
    fn is_held_up(&mut self, duration: Duration) -> bool {
        for prefetch in [1, 2] {
            self.publish("", "nowhere", "").send(qos(prefetch));
        }
        for _ in 0..2 {
            thread::sleep(duration);
            let mut byte = [0];
            self.socket().set_nonblocking(true).expect("a TCP socket");
            let answered = self.socket().peek(&mut byte).is_ok();
            self.socket().set_nonblocking(false).expect("a TCP socket");
            if !answered {
                return true;
            }
            let _: basic::QosOk = self.expect();
        }
        false
    }
}

#[test]
fn five_thousand_idle_connections_are_cheap() {
    let _alone = alone();
    const CONNECTIONS: u64 = 5_000;
    let files = limits::raise_open_files(CONNECTIONS + 500);
    assert!(files >= CONNECTIONS + 100, "this test needs {CONNECTIONS} open files, the hard limit is {files}");
    let node = Node::start();
    let mut connections: Vec<Wire> = (0..CONNECTIONS).map(|_| Wire::open(&node)).collect();
    let resident = node.resident_bytes();
    assert!(resident < 120 * MB, "{} MB for {CONNECTIONS} idle connections", resident / MB);

    // They are all alive.
    for c in connections.iter_mut().step_by(500) {
        c.call(queue_declare("q"));
    }
    drop(connections);
    let mut c = Wire::open(&node);
    c.call(queue_declare("after"));
    c.close();
}

#[test]
fn heartbeats_are_sent_and_honoured_under_load() {
    let _alone = alone();
    const LOAD: Duration = Duration::from_secs(6);
    let node = Node::start();
    let every_second = Options { tune: |tune| tune.heartbeat = 1, ..Options::default() };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over_at_the_end = SetOnDrop(&over);
        // The load: pairs of a publisher, which never sends a heartbeat because traffic counts, and a consumer, which
        // must answer for being alive although it is sent more than it can read.
        for pair in 0..2 {
            let (mut publisher, mut consumer) = (Wire::open_with(&node, &every_second), Wire::open(&node));
            let (queue, over) = (format!("load {pair}"), &over);
            publisher.call(queue_declare(&queue));
            publisher.call(confirm::Select::default());
            consumer.call(consume(&queue, "tag").with(|m| m.no_ack = true));
            scope.spawn(move || {
                let bytes = publish_bytes(1, 131_072, publish("", &queue), BasicProperties::default(), &[1; 1000]);
                let burst = bytes.repeat(100);
                for first in (1..).step_by(100) {
                    publisher.send_bytes(&burst);
                    publisher.all_confirmed(first..=first + 99);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                publisher.publish("", &queue, "end").expect::<basic::Ack>();
            });
            scope.spawn(move || while consumer.delivery().body != b"end" {});
        }

        let started = Instant::now();
        let silent = scope.spawn(|| {
            let mut silent = Wire::open_with(&node, &every_second);
            let since = Instant::now();
            while silent.frame_or_end().is_some() {}
            since.elapsed()
        });
        let mut idle = Wire::open_with(&node, &every_second);
        let mut beats = 0;
        while started.elapsed() < LOAD {
            assert_eq!(idle.frame(), (0, Payload::Heartbeat));
            beats += 1;
            idle.send_frame(8, 0, &[]);
        }
        assert!(beats >= 5, "{beats} heartbeats in {LOAD:?}, where one is due at least every second");
        idle.call(queue_declare("alive"));
        let silence = silent.join().expect("the silent connection ends");
        assert!(silence > Duration::from_millis(1_500), "dropped too early: {silence:?}");
        assert!(silence < Duration::from_secs(8), "dropped too late: {silence:?}");
    });
}

#[test]
fn unfinished_handshakes_are_closed_in_time() {
    let _alone = alone();
    let node = Node::start_with("handshake_timeout = 1000\n");
    let start_ok = method_bytes(0, start_ok(&Options::default()));
    let beginnings: [&[u8]; 4] =
        [b"", b"AMQP", PROTOCOL_HEADER, &[PROTOCOL_HEADER.as_slice(), &start_ok[..20]].concat()];
    thread::scope(|scope| {
        for beginning in beginnings {
            let node = &node;
            scope.spawn(move || {
                let since = Instant::now();
                let mut c = Wire::connect(node.addr());
                c.send_bytes(beginning);
                while c.frame_or_end().is_some() {}
                let open = since.elapsed();
                assert!(open > Duration::from_millis(700), "closed too early after {beginning:?}: {open:?}");
                assert!(open < Duration::from_secs(5), "closed too late after {beginning:?}: {open:?}");
            });
        }
        // The time is for the handshake as a whole, not for each octet of it.
        scope.spawn(|| {
            let mut socket = TcpStream::connect(node.addr()).expect("the broker takes connections");
            let since = Instant::now();
            let slow = [PROTOCOL_HEADER.as_slice(), &start_ok].concat();
            for byte in slow.iter().cycle() {
                if socket.write_all(&[*byte]).is_err() {
                    break;
                }
                assert!(since.elapsed() < Duration::from_secs(5), "a peer that dribbles is still connected");
                thread::sleep(Duration::from_millis(50));
            }
        });
        // Whoever comes in time is served meanwhile.
        Wire::open(&node).close();
    });
    let mut c = Wire::open(&node);
    c.stays_silent(Duration::from_secs(1));
    c.close();
}

#[test]
fn orderly_stop_tells_every_client_and_exits_with_zero() {
    let _alone = alone();
    let mut node = Node::start_with("");
    let mut clients: Vec<Wire> = (0..3).map(|_| Wire::open(&node)).collect();
    clients[0].call(queue_declare("q"));
    clients[0].call(consume("q", "tag"));
    node.terminate();
    for mut client in clients {
        let close: connection::Close = client.expect_on(0);
        let got = (close.reply_code, close.reply_text.as_str(), close.class_id, close.method_id);
        assert_eq!(got, (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", 0, 0));
    }
    assert_eq!(node.wait().code(), Some(0));
}

#[test]
fn connection_that_vanishes_frees_what_it_held() {
    let _alone = alone();
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("q"));
    for number in 0..10 {
        c.publish("", "q", number.to_string());
    }
    c.has_ready("q", 10);
    for _ in 0..20 {
        let mut gone = Wire::open(&node);
        gone.call(consume("q", "tag"));
        gone.delivery();
        drop(gone);
        eventually("the messages are back", || {
            let ok = c.call(queue_declare("q"));
            (ok.message_count, ok.consumer_count) == (10, 0)
        });
    }
}
