//! Binding and unbinding, and what is left when everything is gone.

use super::*;

const BIND: (u16, u16) = (50, 20);
const UNBIND: (u16, u16) = (50, 50);
const EXCHANGE_BIND: (u16, u16) = (40, 30);
const EXCHANGE_UNBIND: (u16, u16) = (40, 40);

#[test]
fn missing_ends_of_a_binding_are_not_found() {
    let mut v = Vhost::new();
    v.queue("q");
    let no_queue = "NOT_FOUND - no queue 'probe.nope' in vhost '/'";
    let no_exchange = "NOT_FOUND - no exchange 'probe.nope' in vhost '/'";
    refused(v.topology.bind_queue("probe.nope", "amq.direct", "k", &none(), ME), 404, no_queue, BIND);
    refused(v.topology.bind_queue("q", "probe.nope", "k", &none(), ME), 404, no_exchange, BIND);
    refused(v.topology.bind_queue("probe.nope", "probe.nope", "k", &none(), ME), 404, no_exchange, BIND);
    refused(v.topology.bind_exchange("amq.fanout", "probe.nope", "k", &none()), 404, no_exchange, EXCHANGE_BIND);
    refused(v.topology.bind_exchange("probe.nope", "amq.fanout", "k", &none()), 404, no_exchange, EXCHANGE_BIND);
}

#[test]
fn default_exchange_cannot_be_bound() {
    let mut v = Vhost::new();
    v.queue("q");
    let text = "ACCESS_REFUSED - operation not permitted on the default exchange";
    refused(v.topology.bind_queue("q", "", "k", &none(), ME), 403, text, BIND);
    refused(v.topology.unbind_queue("q", "", "k", &none(), ME), 403, text, UNBIND);
    for (destination, source) in [("amq.fanout", ""), ("", "amq.fanout")] {
        refused(v.topology.bind_exchange(destination, source, "k", &none()), 403, text, EXCHANGE_BIND);
        refused(v.topology.unbind_exchange(destination, source, "k", &none()), 403, text, EXCHANGE_UNBIND);
    }
}

#[test]
fn what_is_not_bound_is_unbound_already() {
    let mut v = Vhost::new();
    v.queue("q");
    v.bind("q", "amq.direct", "k", &none());
    let t = &mut v.topology;
    assert_eq!(t.unbind_queue("q", "amq.direct", "other", &none(), ME), Ok(()));
    assert_eq!(t.unbind_queue("q", "amq.direct", "k", &table([("x", int(1))]), ME), Ok(()));
    assert_eq!(t.unbind_queue("probe.nope", "amq.direct", "k", &none(), ME), Ok(()));
    assert_eq!(t.unbind_queue("q", "probe.nope", "k", &none(), ME), Ok(()));
    assert_eq!(t.unbind_exchange("amq.topic", "amq.direct", "k", &none()), Ok(()));
    assert_eq!(t.unbind_exchange("amq.topic", "probe.nope", "k", &none()), Ok(()));
    assert_eq!(t.unbind_exchange("probe.nope", "amq.topic", "k", &none()), Ok(()));
    assert_eq!(v.topology.bindings().count(), 1);
}

#[test]
fn bindings_differ_by_arguments() {
    let mut v = Vhost::new();
    v.queue("q");
    let arguments = [none(), table([("x", int(1))]), table([("x", int(2))]), table([("x", AMQPValue::LongLongInt(1))])];
    for exchange in ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"] {
        for round in 0..2 {
            for arguments in &arguments {
                v.bind("q", exchange, "k", arguments);
            }
            assert_eq!(v.topology.bindings_from(exchange).count(), 4, "{exchange} in round {round}");
        }
        for arguments in &arguments[1..] {
            v.unbind("q", exchange, "k", arguments);
        }
        assert_eq!(v.route(exchange, "k"), ["q"], "{exchange}");
        v.unbind("q", exchange, "k", &arguments[0]);
        assert_eq!(v.route(exchange, "k"), Vec::<String>::new(), "{exchange}");
    }
}

#[test]
fn match_argument_of_a_headers_binding_is_checked() {
    let mut v = Vhost::new();
    v.queue("q");
    let bad = |value| table([("x-match", value)]);
    for (arguments, rest) in [
        (bad(text("foo")), "value <<\"foo\">>; expected all, any, all-with-x, or any-with-x"),
        (bad(int(5)), "type signedint (value 5); expected longstr"),
        (bad(AMQPValue::Boolean(true)), "type bool (value true); expected longstr"),
    ] {
        let text = format!("PRECONDITION_FAILED - Invalid x-match field {rest}");
        refused(v.topology.bind_queue("q", "amq.headers", "", &arguments, ME), 406, &text, BIND);
        refused(v.topology.bind_exchange("amq.topic", "amq.match", "", &arguments), 406, &text, EXCHANGE_BIND);
        v.bind("q", "amq.direct", "", &arguments);
    }
    for good in ["all", "any", "all-with-x", "any-with-x"] {
        v.bind("q", "amq.headers", "", &bad(text(good)));
    }
    v.bind("q", "amq.headers", "", &none());
}

#[test]
fn bindings_are_listed_from_every_side() {
    let mut v = Vhost::new();
    let id = v.queue("q");
    v.exchange("x", "topic");
    v.bind("q", "x", "a.#", &table([("n", int(1))]));
    v.bind_exchange("x", "amq.fanout", "k");
    let all: Vec<_> = v.topology.bindings().map(|b| (b.source, b.destination, b.routing_key)).collect();
    assert_eq!(all, [("x", "q", "a.#"), ("amq.fanout", "x", "k")]);
    let to_queue: Vec<_> = v.topology.bindings_to_queue(id).collect();
    assert_eq!((to_queue.len(), to_queue[0].source, to_queue[0].arguments.inner().len()), (1, "x", 1));
    let to_exchange: Vec<_> = v.topology.bindings_to_exchange("x").collect();
    assert_eq!((to_exchange.len(), to_exchange[0].destination_kind), (1, DestinationKind::Exchange));
    assert_eq!(v.topology.bindings_from("x").count(), 1);
    assert_eq!(v.topology.bindings_from("missing").count(), 0);
}

#[test]
fn nothing_is_left_when_everything_is_deleted() {
    let mut v = Vhost::new();
    for kind in ["direct", "fanout", "topic", "headers"] {
        v.exchange(kind, kind);
    }
    for n in 0..100 {
        let name = format!("q{n}");
        v.declare(QueueDeclare { exclusive: n % 2 == 0, ..queue(&name) }).expect("new");
        for kind in ["direct", "fanout", "topic", "headers", "amq.topic"] {
            v.bind(&name, kind, &format!("a.*.{}.#", n % 7), &table([("n", int(n))]));
            v.bind(&name, kind, "same", &none());
        }
    }
    v.bind_exchange("topic", "direct", "k");
    v.bind_exchange("direct", "amq.topic", "k");
    assert!(!is_bare(&v.topology));
    for n in 0..100 {
        v.delete_queue(&format!("q{n}"));
    }
    for kind in ["direct", "fanout", "topic", "headers"] {
        v.topology.delete_exchange(kind, false).expect("deleted");
    }
    assert!(is_bare(&v.topology));
}

/// 20,000 of each take a second of unoptimized code. Were any of them to look at all the others, it would be many minutes.
#[test]
fn many_queues_and_bindings_cost_the_same_each() {
    const MANY: u64 = 20_000;
    let mut topology = Topology::new("/");
    let mut routes = RouteSet::new();
    for n in 0..MANY {
        let name = format!("q{n}");
        topology.create_queue(QueueId(n), 0, &queue(&name));
        topology.bind_queue(&name, "amq.fanout", "", &none(), ME).expect("bound");
        topology.bind_queue(&name, "amq.topic", &format!("a.{n}.#"), &none(), ME).expect("bound");
    }
    topology.route("amq.fanout", "", &NoHeaders, &mut routes).expect("routed");
    assert_eq!(routes.len() as u64, MANY);
    for n in 0..MANY {
        routes.clear();
        topology.route("amq.topic", &format!("a.{n}.b"), &NoHeaders, &mut routes).expect("routed");
        assert_eq!(routes.as_slice()[0].id, QueueId(n));
    }
    for n in 0..MANY {
        topology.delete_queue(QueueId(n)).expect("there");
    }
    assert!(is_bare(&topology));
}

/// Whether nothing is left but the predeclared exchanges: no entry in any index, no node in any trie.
pub(super) fn is_bare(topology: &Topology) -> bool {
    topology.queues.is_empty()
        && topology.bindings.is_empty()
        && topology.exchanges().all(|exchange| exchange.table.is_empty())
        && topology.exchanges().count() == 7
}
