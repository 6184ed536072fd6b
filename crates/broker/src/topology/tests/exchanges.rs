//! Declaration and deletion of exchanges.

use super::*;

const DECLARE: (u16, u16) = (40, 10);
const DELETE: (u16, u16) = (40, 20);

/// A topology with the durable direct exchange `probe.x`.
fn probe() -> Topology {
    let mut topology = Topology::new("/");
    topology.declare_exchange(&probe_declare()).expect("a plain exchange can be declared");
    topology
}

fn probe_declare() -> ExchangeDeclare<'static> {
    ExchangeDeclare { durable: true, ..exchange("probe.x", "direct") }
}

#[track_caller]
fn inequivalent(d: ExchangeDeclare<'_>, rest: &str) {
    let text = format!("PRECONDITION_FAILED - inequivalent arg {rest}");
    refused(probe().declare_exchange(&d), 406, &text, DECLARE);
}

#[test]
fn predeclared_exchanges_are_there_and_can_be_declared_as_they_are() {
    let mut topology = Topology::new("/");
    let listed: Vec<_> = topology.exchanges().map(|x| (x.name.to_string(), x.kind, x.internal)).collect();
    assert_eq!(
        listed,
        [
            ("", ExchangeKind::Direct, false),
            ("amq.direct", ExchangeKind::Direct, false),
            ("amq.fanout", ExchangeKind::Fanout, false),
            ("amq.headers", ExchangeKind::Headers, false),
            ("amq.match", ExchangeKind::Headers, false),
            ("amq.rabbitmq.trace", ExchangeKind::Topic, true),
            ("amq.topic", ExchangeKind::Topic, false),
        ]
        .map(|(name, kind, internal)| (name.to_owned(), kind, internal))
    );
    for (name, kind, internal) in &listed[1..] {
        let d = ExchangeDeclare { durable: true, internal: *internal, ..exchange(name, kind.name()) };
        assert_eq!(topology.declare_exchange(&d), Ok(()), "{name}");
    }
}

#[test]
fn declare_again_with_the_same_properties_is_fine() {
    let mut topology = probe();
    assert_eq!(topology.declare_exchange(&probe_declare()), Ok(()));
    let unknown = table([("foo", text("y"))]);
    assert_eq!(topology.declare_exchange(&ExchangeDeclare { arguments: &unknown, ..probe_declare() }), Ok(()));
}

#[test]
fn declare_again_with_other_properties_names_the_first_that_differs() {
    let d = probe_declare();
    let x = "for exchange 'probe.x' in vhost '/'";
    let with = table([("alternate-exchange", text("y"))]);
    let all =
        ExchangeDeclare { kind: "fanout", durable: false, auto_delete: true, internal: true, arguments: &with, ..d };
    inequivalent(all, &format!("'type' {x}: received 'fanout' but current is 'direct'"));
    let all = ExchangeDeclare { kind: "direct", ..all };
    inequivalent(all, &format!("'durable' {x}: received 'false' but current is 'true'"));
    let all = ExchangeDeclare { durable: true, ..all };
    inequivalent(all, &format!("'auto_delete' {x}: received 'true' but current is 'false'"));
    let all = ExchangeDeclare { auto_delete: false, ..all };
    inequivalent(all, &format!("'internal' {x}: received 'true' but current is 'false'"));
    let all = ExchangeDeclare { internal: false, ..all };
    inequivalent(
        all,
        &format!("'alternate-exchange' {x}: received the value 'y' of type 'longstr' but current is none"),
    );
}

#[test]
fn alternate_exchange_is_compared_both_ways() {
    let mut topology = Topology::new("/");
    let (y, z) = (table([("alternate-exchange", text("y"))]), table([("alternate-exchange", text("z"))]));
    let d = ExchangeDeclare { arguments: &y, ..exchange("x", "direct") };
    topology.declare_exchange(&d).expect("the alternate need not exist");
    assert_eq!(topology.declare_exchange(&d), Ok(()));
    let text = "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': \
                received none but current is the value 'y' of type 'longstr'";
    refused(topology.declare_exchange(&exchange("x", "direct")), 406, text, DECLARE);
    let text = "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': \
                received 'z' but current is 'y'";
    refused(topology.declare_exchange(&ExchangeDeclare { arguments: &z, ..d }), 406, text, DECLARE);
}

#[test]
fn alternate_exchange_of_a_wrong_type_is_refused() {
    let bad = table([("alternate-exchange", int(5))]);
    let d = ExchangeDeclare { arguments: &bad, ..exchange("probe.ae", "direct") };
    let text = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'probe.ae' in \
                vhost '/'";
    refused(Topology::new("/").declare_exchange(&d), 406, text, DECLARE);
}

#[test]
fn passive_declare_only_looks_whether_it_is_there() {
    let mut topology = probe();
    for kind in ["", "fanout", "nonsense"] {
        let d = ExchangeDeclare { passive: true, durable: false, ..exchange("probe.x", kind) };
        assert_eq!(topology.declare_exchange(&d), Ok(()));
    }
    for name in ["probe.nope", "amq.foo"] {
        let d = ExchangeDeclare { passive: true, ..exchange(name, "topic") };
        let text = format!("NOT_FOUND - no exchange '{name}' in vhost '/'");
        refused(topology.declare_exchange(&d), 404, &text, DECLARE);
        assert!(topology.find_exchange(name).is_none());
    }
}

#[test]
fn unknown_types_end_the_connection_whatever_the_name() {
    let mut topology = probe();
    for name in ["probe.y", "probe.x", "", "amq.foo"] {
        for kind in ["nonsense", "x-consistent-hash", "x-delayed-message", "Direct"] {
            let text = format!("COMMAND_INVALID - unknown exchange type '{kind}'");
            refused(topology.declare_exchange(&exchange(name, kind)), 503, &text, DECLARE);
        }
        let text = "COMMAND_INVALID - invalid exchange type ''";
        refused(topology.declare_exchange(&exchange(name, "")), 503, text, DECLARE);
    }
}

#[test]
fn reserved_names_are_refused_unless_they_are_there() {
    let mut topology = Topology::new("/");
    let text = "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'";
    refused(topology.declare_exchange(&exchange("amq.foo", "direct")), 403, text, DECLARE);
    let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': \
                received 'fanout' but current is 'direct'";
    refused(topology.declare_exchange(&exchange("amq.direct", "fanout")), 406, text, DECLARE);
}

#[test]
fn default_exchange_cannot_be_touched() {
    let mut topology = Topology::new("/");
    let text = "ACCESS_REFUSED - operation not permitted on the default exchange";
    let d = ExchangeDeclare { durable: true, ..exchange("", "direct") };
    refused(topology.declare_exchange(&d), 403, text, DECLARE);
    refused(topology.declare_exchange(&ExchangeDeclare { passive: true, ..d }), 403, text, DECLARE);
    refused(topology.delete_exchange("", false), 403, text, DELETE);
}

#[test]
fn system_exchanges_cannot_be_deleted_present_or_not() {
    let mut topology = Topology::new("/");
    for name in ["amq.direct", "amq.foo"] {
        let text = format!("ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed");
        refused(topology.delete_exchange(name, false), 403, &text, DELETE);
    }
}

#[test]
fn missing_exchange_is_deleted_already() {
    let mut topology = probe();
    assert_eq!(topology.delete_exchange("probe.nope", true), Ok(()));
    assert_eq!(topology.delete_exchange("probe.x", true), Ok(()));
    assert!(topology.find_exchange("probe.x").is_none());
    assert_eq!(topology.delete_exchange("probe.x", true), Ok(()));
}

#[test]
fn exchange_with_bindings_from_it_is_in_use() {
    let mut v = Vhost::new();
    v.exchange("probe.x", "direct");
    v.exchange("source", "direct");
    v.queue("q");
    v.bind_exchange("probe.x", "source", "k");
    v.bind("q", "probe.x", "k", &none());
    let text = "PRECONDITION_FAILED - exchange 'probe.x' in vhost '/' in use";
    refused(v.topology.delete_exchange("probe.x", true), 406, text, DELETE);
    v.unbind("q", "probe.x", "k", &none());
    assert_eq!(v.topology.delete_exchange("probe.x", true), Ok(()), "bindings to it do not count");
    assert_eq!(v.topology.bindings().count(), 0);
}

#[test]
fn deleted_exchange_takes_its_bindings_along() {
    let mut v = Vhost::new();
    v.queue("q");
    for name in ["x", "y"] {
        v.exchange(name, "fanout");
        v.bind("q", name, "k", &none());
    }
    v.bind_exchange("y", "x", "k");
    v.bind_exchange("x", "y", "k");
    v.bind_exchange("x", "x", "k");
    assert_eq!(v.topology.bindings().count(), 5);
    v.topology.delete_exchange("x", false).expect("an exchange with bindings can be deleted");
    let left: Vec<_> = v.topology.bindings().map(|b| (b.source, b.destination, b.destination_kind)).collect();
    assert_eq!(left, [("y", "q", DestinationKind::Queue)]);

    v.exchange("x", "fanout");
    assert_eq!(v.route("x", "k"), Vec::<String>::new(), "declared again, it has no bindings");
    assert_eq!(v.route("y", "k"), ["q"]);
}

fn auto_delete(v: &mut Vhost, name: &str) {
    let d = ExchangeDeclare { auto_delete: true, ..exchange(name, "direct") };
    v.topology.declare_exchange(&d).expect("an auto-delete exchange can be declared");
}

#[test]
fn auto_delete_exchange_goes_with_its_last_binding_as_a_source() {
    let mut v = Vhost::new();
    v.queue("q");
    v.exchange("dst", "fanout");

    auto_delete(&mut v, "unbound");
    v.bind("q", "unbound", "1", &none());
    v.bind("q", "unbound", "2", &none());
    v.unbind("q", "unbound", "1", &none());
    assert!(v.has_exchange("unbound"));
    v.unbind("q", "unbound", "2", &none());
    assert!(!v.has_exchange("unbound"));

    auto_delete(&mut v, "exchange unbound");
    v.bind_exchange("dst", "exchange unbound", "k");
    v.topology.unbind_exchange("dst", "exchange unbound", "k", &none()).expect("unbound");
    assert!(!v.has_exchange("exchange unbound"));

    auto_delete(&mut v, "destination deleted");
    v.bind_exchange("dst", "destination deleted", "k");
    v.topology.delete_exchange("dst", false).expect("deleted");
    assert!(!v.has_exchange("destination deleted"));

    auto_delete(&mut v, "queue deleted");
    v.bind("q", "queue deleted", "1", &none());
    v.bind("q", "queue deleted", "2", &none());
    v.delete_queue("q");
    assert!(!v.has_exchange("queue deleted"));
    assert_eq!(v.topology.bindings().count(), 0);
}

#[test]
fn auto_delete_exchange_that_was_never_a_source_stays() {
    let mut v = Vhost::new();
    auto_delete(&mut v, "x");
    v.exchange("source", "fanout");
    v.bind_exchange("x", "source", "k");
    v.topology.unbind_exchange("x", "source", "k", &none()).expect("unbound");
    assert!(v.has_exchange("x"), "it was a destination only");
}

#[test]
fn auto_delete_cascades_along_bindings_and_round_circles() {
    let mut v = Vhost::new();
    for name in ["a", "b", "c"] {
        auto_delete(&mut v, name);
    }
    v.queue("q");
    v.bind_exchange("b", "a", "k");
    v.bind_exchange("c", "b", "k");
    v.bind("q", "c", "k", &none());
    v.delete_queue("q");
    for name in ["a", "b", "c"] {
        assert!(!v.has_exchange(name), "{name}");
    }

    for name in ["a", "b"] {
        auto_delete(&mut v, name);
    }
    v.bind_exchange("b", "a", "k");
    v.bind_exchange("a", "b", "k");
    v.topology.unbind_exchange("b", "a", "k", &none()).expect("unbound");
    assert!(!v.has_exchange("a") && !v.has_exchange("b"));
    assert_eq!(v.topology.bindings().count(), 0);
}
