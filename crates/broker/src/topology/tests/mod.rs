//! Stories told at the boundary of [`Topology`], by subject. The facts about texts, order of checks and matches are
//! RabbitMQ 3.10.8's answers to the same methods.

mod bindings;
mod exchanges;
mod model;
mod queues;
mod routing;

use amqp::{AMQPValue, Exception, FieldTable, ShortString};
use std::sync::Arc;

use queue::QueueId;

use super::*;

const ME: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);

/// Shorthands for a topology under test.
struct Vhost {
    topology: Topology,
    next_id: u64,
}

impl Vhost {
    fn new() -> Self {
        Self { topology: Topology::new("/"), next_id: 1 }
    }

    /// Declares an exchange with nothing set but its type.
    fn exchange(&mut self, name: &str, kind: &str) {
        self.topology.declare_exchange(&exchange(name, kind)).expect("a plain exchange can be declared");
    }

    /// Declares a queue; its record.
    fn declare(&mut self, d: QueueDeclare<'_>) -> Result<Arc<QueueRecord>, Exception> {
        match self.topology.check_declare_queue(&d)? {
            Declared::Existing(record) => Ok(record),
            Declared::New => {
                self.next_id += 1;
                Ok(self.topology.create_queue(QueueId(self.next_id), 0, &d))
            }
        }
    }

    /// Declares a queue with nothing set.
    fn queue(&mut self, name: &str) -> QueueId {
        self.declare(queue(name)).expect("a plain queue can be declared").id
    }

    fn bind(&mut self, queue: &str, exchange: &str, key: &str, arguments: &FieldTable) {
        self.topology.bind_queue(queue, exchange, key, arguments, ME).expect("the binding can be made");
    }

    fn unbind(&mut self, queue: &str, exchange: &str, key: &str, arguments: &FieldTable) {
        self.topology.unbind_queue(queue, exchange, key, arguments, ME).expect("the binding can be removed");
    }

    fn bind_exchange(&mut self, destination: &str, source: &str, key: &str) {
        self.topology.bind_exchange(destination, source, key, &none()).expect("the binding can be made");
    }

    fn delete_queue(&mut self, name: &str) {
        let id = self.topology.find_queue(name).expect("the queue is there").id;
        self.topology.delete_queue(id).expect("the queue is there");
    }

    fn has_exchange(&self, name: &str) -> bool {
        self.topology.find_exchange(name).is_some()
    }

    /// The names of the queues that a message goes to, sorted.
    fn route(&self, exchange: &str, key: &str) -> Vec<String> {
        self.route_headers(exchange, key, &NoHeaders)
    }

    fn route_headers(&self, exchange: &str, key: &str, headers: &dyn HeaderSource) -> Vec<String> {
        let mut routes = RouteSet::new();
        self.topology.route(exchange, key, headers, &mut routes).expect("the exchange takes messages");
        names(&routes)
    }
}

fn names(routes: &RouteSet) -> Vec<String> {
    let mut names: Vec<String> = routes.as_slice().iter().map(|record| record.name.to_string()).collect();
    names.sort();
    names
}

fn none() -> FieldTable {
    FieldTable::default()
}

fn table<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(ShortString::from(name), value);
    }
    table
}

fn int(value: i32) -> AMQPValue {
    AMQPValue::LongInt(value)
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

static NO_ARGUMENTS: std::sync::LazyLock<FieldTable> = std::sync::LazyLock::new(FieldTable::default);

fn exchange<'a>(name: &'a str, kind: &'a str) -> ExchangeDeclare<'a> {
    ExchangeDeclare {
        name,
        kind,
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: &NO_ARGUMENTS,
    }
}

fn queue(name: &str) -> QueueDeclare<'_> {
    QueueDeclare {
        name,
        server_named: false,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        arguments: &NO_ARGUMENTS,
        connection: ME,
    }
}

/// Asserts that something was refused with this code, wire text and method, and that the connection lives on or not as
/// the code says.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Exception>, code: u16, text: &str, (class, method): (u16, u16)) {
    let exception = result.expect_err("refused");
    assert_eq!(exception.reply_text(), text);
    assert_eq!(exception.code as u16, code);
    assert_eq!(exception.method, MethodId::new(class, method));
    assert_eq!(exception.whole_connection, code >= 500);
}

#[test]
fn carriage_returns_and_line_feeds_are_stripped_from_names() {
    assert_eq!(strip_crlf("a\nb\r\n"), "ab");
    assert!(matches!(strip_crlf("ab"), Cow::Borrowed("ab")));
}

#[test]
fn version_goes_up_with_changes_only() {
    let mut v = Vhost::new();
    let mut last = v.topology.version();
    let mut went_up = |v: &Vhost| {
        let now = v.topology.version();
        let up = now > last;
        last = now;
        up
    };
    v.exchange("x", "direct");
    assert!(went_up(&v), "exchange declared");
    v.queue("q");
    assert!(went_up(&v), "queue declared");
    v.bind("q", "x", "k", &none());
    assert!(went_up(&v), "bound");

    v.exchange("x", "direct");
    v.queue("q");
    v.bind("q", "x", "k", &none());
    v.unbind("q", "x", "other", &none());
    v.topology.delete_exchange("missing", false).expect("a missing exchange is deleted already");
    assert!(v.topology.delete_queue(QueueId(99)).is_none());
    assert!(!went_up(&v), "nothing changed");

    v.unbind("q", "x", "k", &none());
    assert!(went_up(&v), "unbound");
    v.delete_queue("q");
    assert!(went_up(&v), "queue deleted");
    v.topology.delete_exchange("x", true).expect("an unused exchange can be deleted");
    assert!(went_up(&v), "exchange deleted");
}
