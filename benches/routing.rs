//! What it costs to ask a topology where a message goes, without the connection's cache in front of it.

use std::hint::black_box;

use amqp::{AMQPValue, FieldTable};
use broker::topology::{ConnectionId, ExchangeDeclare, HeaderSource, NoHeaders, QueueDeclare, RouteSet, Topology};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use queue::QueueId;

const CONNECTION: ConnectionId = ConnectionId(1);
const EXCHANGE: &str = "events";
/// Queues of the fan-out: some hundred consumers of one broadcast.
const FANOUT_QUEUES: u64 = 600;
/// Headers bindings are compared one by one, so they are few in practice.
const HEADERS_BINDINGS: u64 = 100;
/// Keys that are asked for in turn, so that no single path stays in the cache.
const KEYS: usize = 1024;

/// A virtual host under construction.
struct Host {
    topology: Topology,
    queues: u64,
}

impl Host {
    fn with_exchange(kind: &str) -> Self {
        let mut topology = Topology::new("/");
        let declare = ExchangeDeclare {
            name: EXCHANGE,
            kind,
            passive: false,
            durable: false,
            auto_delete: false,
            internal: false,
            arguments: &FieldTable::default(),
        };
        topology.declare_exchange(&declare).expect("a new exchange");
        Self { topology, queues: 0 }
    }

    fn queue(&mut self, name: &str) {
        self.queues += 1;
        let declare = QueueDeclare {
            name,
            server_named: false,
            passive: false,
            durable: false,
            exclusive: false,
            auto_delete: false,
            arguments: &FieldTable::default(),
            connection: CONNECTION,
        };
        self.topology.create_queue(QueueId(self.queues), 0, &declare);
    }

    fn bind(&mut self, queue: &str, key: &str, arguments: &FieldTable) {
        self.topology.bind_queue(queue, EXCHANGE, key, arguments, CONNECTION).expect("both ends are there");
    }
}

/// Asks for one key after the other; every answer has at least one queue.
fn measure(c: &mut Criterion, name: &str, host: &Host, exchange: &str, keys: &[String], headers: &dyn HeaderSource) {
    let mut routes = RouteSet::new();
    let mut next = keys.iter().cycle();
    let mut group = c.benchmark_group("routing");
    group.throughput(Throughput::Elements(1));
    group.bench_function(name, |b| {
        b.iter(|| {
            let key = next.next().expect("a cycle has no end");
            routes.clear();
            host.topology.route(exchange, black_box(key), headers, &mut routes).expect("the exchange is there");
            assert!(!routes.is_empty());
            black_box(routes.len())
        });
    });
}

/// `count` keys spread evenly over `of` different ones.
fn keys(of: u64, key: impl Fn(u64) -> String) -> Vec<String> {
    (0..KEYS as u64).map(|n| key(n * 7919 % of)).collect()
}

fn direct(c: &mut Criterion) {
    for bindings in [1, 100_000] {
        let mut host = Host::with_exchange("direct");
        for n in 0..bindings {
            let name = format!("queue-{n}");
            host.queue(&name);
            host.bind(&name, &name, &FieldTable::default());
        }
        let asked = keys(bindings, |n| format!("queue-{n}"));
        measure(c, &format!("default exchange, {bindings} queues"), &host, "", &asked, &NoHeaders);
        measure(c, &format!("direct, {bindings} bindings"), &host, EXCHANGE, &asked, &NoHeaders);
    }
}

/// Keys of three words; a quarter of the bindings has a `*`, and one in a hundred a `#`.
fn topic(c: &mut Criterion) {
    let key = |n: u64| format!("region{}.site{n}.temperature", n % 50);
    for bindings in [100, 100_000] {
        let mut host = Host::with_exchange("topic");
        for n in 0..bindings {
            let name = format!("queue-{n}");
            host.queue(&name);
            let pattern = match n % 100 {
                0 => format!("region{}.site{n}.#", n % 50),
                1..=25 => format!("*.site{n}.temperature"),
                _ => key(n),
            };
            host.bind(&name, &pattern, &FieldTable::default());
        }
        measure(c, &format!("topic, {bindings} bindings"), &host, EXCHANGE, &keys(bindings, key), &NoHeaders);
    }
}

fn headers(c: &mut Criterion) {
    let table = |n: u64| {
        let mut table = FieldTable::default();
        table.insert("tenant".into(), AMQPValue::LongString(format!("t{n}").into()));
        table.insert("kind".into(), AMQPValue::LongString("order".into()));
        table
    };
    let mut host = Host::with_exchange("headers");
    for n in 0..HEADERS_BINDINGS {
        let name = format!("queue-{n}");
        host.queue(&name);
        let mut arguments = table(n);
        arguments.insert("x-match".into(), AMQPValue::LongString("all".into()));
        host.bind(&name, "", &arguments);
    }
    let name = format!("headers, {HEADERS_BINDINGS} bindings of two conditions");
    measure(c, &name, &host, EXCHANGE, &[String::new()], &table(HEADERS_BINDINGS / 2));
}

fn fanout(c: &mut Criterion) {
    let mut host = Host::with_exchange("fanout");
    for n in 0..FANOUT_QUEUES {
        let name = format!("queue-{n}");
        host.queue(&name);
        host.bind(&name, "", &FieldTable::default());
    }
    measure(c, &format!("fanout, {FANOUT_QUEUES} queues"), &host, EXCHANGE, &[String::new()], &NoHeaders);
}

criterion_group!(routing, direct, topic, headers, fanout);
criterion_main!(routing);
