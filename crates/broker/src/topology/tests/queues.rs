//! Declaration, lookup and removal of queues.

use super::*;

const DECLARE: (u16, u16) = (50, 10);
const LOCKED: &str = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'probe.ex' in vhost '/'. It could be \
                      originally declared on another connection or the exclusive property value does not match that of \
                      the original declaration.";

/// A topology with the durable queue `probe.q`.
fn probe() -> Vhost {
    let mut v = Vhost::new();
    v.declare(probe_declare()).expect("a plain queue can be declared");
    v
}

fn probe_declare() -> QueueDeclare<'static> {
    QueueDeclare { durable: true, ..queue("probe.q") }
}

#[track_caller]
fn inequivalent(d: QueueDeclare<'_>, rest: &str) {
    let text = format!("PRECONDITION_FAILED - inequivalent arg {rest}");
    refused(probe().declare(d), 406, &text, DECLARE);
}

#[track_caller]
fn bad_argument<const N: usize>(arguments: [(&str, AMQPValue); N], name: &str, reason: &str) {
    let text = format!("PRECONDITION_FAILED - invalid arg '{name}' for queue 'probe.bad' in vhost '/'{reason}");
    let arguments = table(arguments);
    refused(Vhost::new().declare(QueueDeclare { arguments: &arguments, ..queue("probe.bad") }), 406, &text, DECLARE);
}

#[track_caller]
fn good_argument(name: &str, value: AMQPValue) -> QueueSettings {
    let arguments = table([(name, value)]);
    let record = Vhost::new().declare(QueueDeclare { arguments: &arguments, ..queue("q") });
    record.expect("the argument is taken").settings.clone()
}

fn quorum() -> (&'static str, AMQPValue) {
    ("x-queue-type", text("quorum"))
}

fn stream() -> (&'static str, AMQPValue) {
    ("x-queue-type", text("stream"))
}

#[test]
fn declare_again_finds_the_queue_that_is_there() {
    let mut v = probe();
    let first = v.declare(probe_declare()).expect("equivalent");
    let unknown = table([("foo", int(5)), ("x-foo", int(5))]);
    let again = v.declare(QueueDeclare { arguments: &unknown, ..probe_declare() }).expect("equivalent");
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(v.topology.queue_count(), 1);
    let classic = table([("x-queue-type", text("classic"))]);
    assert!(v.declare(QueueDeclare { arguments: &classic, ..probe_declare() }).is_ok(), "classic is the default");
}

#[test]
fn declare_again_with_other_properties_is_refused() {
    let d = probe_declare();
    let q = "for queue 'probe.q' in vhost '/'";
    let other = QueueDeclare { durable: false, auto_delete: true, ..d };
    inequivalent(other, &format!("'durable' {q}: received 'false' but current is 'true'"));
    let other = QueueDeclare { auto_delete: true, ..d };
    inequivalent(other, &format!("'auto_delete' {q}: received 'true' but current is 'false'"));
    for (name, value, kind) in [
        ("x-message-ttl", int(5000), "signedint"),
        ("x-expires", int(5000), "signedint"),
        ("x-dead-letter-exchange", text("a"), "longstr"),
        ("x-dead-letter-routing-key", text("a"), "longstr"),
        ("x-max-length", int(5), "signedint"),
        ("x-max-length-bytes", AMQPValue::LongLongInt(5), "long"),
        ("x-max-priority", AMQPValue::ShortShortInt(5), "byte"),
        ("x-overflow", text("drop-head"), "longstr"),
        ("x-queue-mode", text("lazy"), "longstr"),
        ("x-queue-version", int(2), "signedint"),
        ("x-single-active-consumer", AMQPValue::Boolean(true), "bool"),
        ("x-queue-type", text("quorum"), "longstr"),
        ("x-queue-master-locator", text("random"), "longstr"),
    ] {
        let written = value::text(&value);
        let arguments = table([(name, value)]);
        inequivalent(
            QueueDeclare { arguments: &arguments, ..d },
            &format!("'{name}' {q}: received the value '{written}' of type '{kind}' but current is none"),
        );
    }
}

#[test]
fn arguments_are_compared_by_value_and_written_out() {
    let mut v = Vhost::new();
    let (five, zero) = (table([("x-max-length", int(5))]), table([("x-max-length", int(0))]));
    v.declare(QueueDeclare { arguments: &five, ..queue("storm") }).expect("new");
    v.declare(QueueDeclare { arguments: &zero, ..queue("zero") }).expect("new");
    for same in [AMQPValue::ShortShortInt(5), AMQPValue::ShortInt(5), AMQPValue::LongLongInt(5)] {
        let arguments = table([("x-max-length", same)]);
        assert!(v.declare(QueueDeclare { arguments: &arguments, ..queue("storm") }).is_ok(), "{arguments:?}");
    }
    for (name, value, rest) in [
        ("storm", int(6), "received '6' but current is '5'"),
        ("storm", AMQPValue::Double(5.0), "received '5.0' but current is '5'"),
        ("storm", text("5"), "received '5' but current is '5'"),
        ("storm", AMQPValue::Void, "received none but current is '5'"),
        ("zero", AMQPValue::Double(1.5), "received '1.5' but current is '0'"),
    ] {
        let arguments = table([("x-max-length", value)]);
        let text =
            format!("PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': {rest}");
        refused(v.declare(QueueDeclare { arguments: &arguments, ..queue(name) }), 406, &text, DECLARE);
    }
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'storm' in vhost '/': \
                received none but current is the value '5' of type 'signedint'";
    refused(v.declare(queue("storm")), 406, text, DECLARE);
}

#[test]
fn passive_declare_only_looks_whether_it_is_there() {
    let mut v = probe();
    let d = QueueDeclare { passive: true, exclusive: true, auto_delete: true, ..queue("probe.q") };
    assert!(v.declare(d).is_ok());
    for name in ["probe.nope", "", "amq.foo"] {
        let text = format!("NOT_FOUND - no queue '{name}' in vhost '/'");
        refused(v.declare(QueueDeclare { passive: true, ..queue(name) }), 404, &text, DECLARE);
    }
}

#[test]
fn reserved_names_are_refused_unless_the_server_made_them_up() {
    let mut v = Vhost::new();
    for name in ["amq.foo", "amq.gen-abc"] {
        let text = format!("ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'");
        refused(v.declare(queue(name)), 403, &text, DECLARE);
    }
    let d = QueueDeclare { server_named: true, exclusive: true, ..queue("amq.gen-abc") };
    v.declare(d).expect("a made-up name is taken");
    let text = "ACCESS_REFUSED - queue name 'amq.gen-abc' contains reserved prefix 'amq.*'";
    refused(v.declare(QueueDeclare { exclusive: true, ..queue("amq.gen-abc") }), 403, text, DECLARE);
    v.declare(QueueDeclare { passive: true, ..queue("amq.gen-abc") }).expect("to look whether it is there is fine");
    for (kind, module) in [(quorum(), "rabbit_quorum_queue"), (stream(), "rabbit_stream_queue")] {
        let arguments = table([kind]);
        let d = QueueDeclare { server_named: true, durable: true, arguments: &arguments, ..queue("amq.gen-b") };
        let text = format!("PRECONDITION_FAILED - Cannot declare a server-named queue for type {module}");
        refused(v.declare(d), 406, &text, DECLARE);
    }
}

#[test]
fn exclusive_queue_is_locked_for_other_connections() {
    let mut v = Vhost::new();
    v.declare(QueueDeclare { exclusive: true, ..queue("probe.ex") }).expect("new");
    let other = QueueDeclare { connection: OTHER, ..queue("probe.ex") };
    for d in [QueueDeclare { exclusive: true, ..other }, other, QueueDeclare { passive: true, ..other }] {
        refused(v.declare(d), 405, LOCKED, DECLARE);
    }
    for method in [(60, 20), (60, 70), (50, 30), (50, 40)] {
        let access = v.topology.access_queue("probe.ex", OTHER, MethodId::new(method.0, method.1));
        refused(access, 405, LOCKED, method);
    }
    refused(v.topology.bind_queue("probe.ex", "amq.direct", "k", &none(), OTHER), 405, LOCKED, (50, 20));
    assert_eq!(v.topology.unbind_queue("probe.ex", "amq.direct", "k", &none(), OTHER), Ok(()), "there is no binding");
    assert_eq!(v.route("", "probe.ex"), ["probe.ex"], "a publish to it works");

    assert!(v.topology.access_queue("probe.ex", ME, MethodId::new(60, 20)).is_ok());
    assert!(v.declare(QueueDeclare { passive: true, ..queue("probe.ex") }).is_ok());
    assert!(v.declare(QueueDeclare { exclusive: true, durable: true, ..queue("probe.ex") }).is_ok());
}

#[test]
fn binding_of_an_exclusive_queue_cannot_be_removed_by_others() {
    let mut v = Vhost::new();
    v.declare(QueueDeclare { exclusive: true, ..queue("probe.ex") }).expect("new");
    v.bind("probe.ex", "amq.direct", "k", &none());
    refused(v.topology.unbind_queue("probe.ex", "amq.direct", "k", &none(), OTHER), 405, LOCKED, (50, 50));
    v.unbind("probe.ex", "amq.direct", "k", &none());
    assert_eq!(v.topology.bindings().count(), 0);
}

#[test]
fn exclusive_property_is_part_of_the_declaration() {
    let mut v = Vhost::new();
    v.queue("probe.ex");
    refused(v.declare(QueueDeclare { exclusive: true, ..queue("probe.ex") }), 405, LOCKED, DECLARE);
    v.delete_queue("probe.ex");
    v.declare(QueueDeclare { exclusive: true, ..queue("probe.ex") }).expect("new");
    refused(v.declare(queue("probe.ex")), 405, LOCKED, DECLARE);
}

#[test]
fn exclusive_queues_are_listed_by_their_connection() {
    let mut v = Vhost::new();
    let exclusive = |name, connection| QueueDeclare { exclusive: true, connection, ..queue(name) };
    v.queue("plain");
    v.declare(exclusive("b", ME)).expect("new");
    v.declare(exclusive("c", OTHER)).expect("new");
    v.declare(exclusive("a", ME)).expect("new");
    let listed = |v: &Vhost, connection| -> Vec<String> {
        v.topology.exclusive_queues_of(connection).iter().map(|record| record.name.to_string()).collect()
    };
    assert_eq!(listed(&v, ME), ["b", "a"]);
    v.delete_queue("b");
    assert_eq!((listed(&v, ME), listed(&v, OTHER)), (vec!["a".to_owned()], vec!["c".to_owned()]));
    assert!(listed(&v, ConnectionId(3)).is_empty());
}

#[test]
fn access_to_a_missing_queue_is_not_found() {
    let v = Vhost::new();
    for method in [(60, 70), (60, 20), (50, 30)] {
        let access = v.topology.access_queue("probe.nope", ME, MethodId::new(method.0, method.1));
        refused(access, 404, "NOT_FOUND - no queue 'probe.nope' in vhost '/'", method);
    }
}

#[test]
fn a_name_that_is_taken_keeps_its_record() {
    let mut v = Vhost::new();
    let id = v.queue("q");
    let second = v.topology.create_queue(QueueId(77), 3, &queue("q"));
    assert_eq!((second.id, second.shard), (id, 0));
    assert!(v.topology.find_queue_by_id(QueueId(77)).is_none());
}

#[test]
fn numbers_out_of_range_are_refused() {
    let huge = || AMQPValue::LongLongInt(1 << 40);
    for name in ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"] {
        bad_argument([(name, text("60"))], name, ": \"expected integer, got longstr\"");
        bad_argument([(name, AMQPValue::Double(1.5))], name, ": \"expected integer, got double\"");
        bad_argument([(name, AMQPValue::Timestamp(5))], name, ": \"expected integer, got timestamp\"");
        bad_argument([(name, int(-1))], name, ": {value_negative,-1}");
    }
    bad_argument([("x-message-ttl", huge())], "x-message-ttl", ": {value_too_large,1099511627776}");
    bad_argument([("x-expires", huge())], "x-expires", ": {value_too_large,1099511627776}");
    bad_argument([("x-expires", int(0))], "x-expires", ": {value_zero,0}");
    bad_argument([("x-max-priority", int(256))], "x-max-priority", ": {max_value_exceeded,256}");
    bad_argument([("x-queue-version", int(3))], "x-queue-version", ": \"unsupported queue version '3'\"");

    assert_eq!(good_argument("x-message-ttl", int(0)).message_ttl_ms, Some(0));
    assert_eq!(good_argument("x-message-ttl", AMQPValue::LongUInt(u32::MAX)).message_ttl_ms, Some(4_294_967_295));
    assert_eq!(good_argument("x-max-length", huge()).max_length, Some(1 << 40));
    assert_eq!(good_argument("x-max-length-bytes", int(0)).max_length_bytes, Some(0));
    assert_eq!(good_argument("x-max-priority", int(0)).max_priority, Some(0));
    assert_eq!(good_argument("x-max-priority", int(255)).max_priority, Some(255));
    assert_eq!(good_argument("x-expires", AMQPValue::ShortInt(1)).expires_ms, Some(1));
}

#[test]
fn words_out_of_range_are_refused() {
    bad_argument([("x-overflow", text("foo"))], "x-overflow", ": invalid_overflow");
    bad_argument([("x-overflow", int(5))], "x-overflow", ": {unacceptable_type,signedint}");
    bad_argument([("x-queue-mode", text("foo"))], "x-queue-mode", ": \"unsupported queue mode 'foo'\"");
    bad_argument([("x-queue-type", text("foo"))], "x-queue-type", ": \"unsupported queue type 'foo'\"");
    bad_argument([("x-queue-type", int(5))], "x-queue-type", ": {unacceptable_type,signedint}");
    let sac = "x-single-active-consumer";
    bad_argument([(sac, text("true"))], sac, ": {unacceptable_type,longstr}");
    let locator = "x-queue-master-locator";
    bad_argument([(locator, text("foo"))], locator, ": \"unsupported queue master locator 'foo'\"");

    assert_eq!(
        good_argument("x-overflow", text("reject-publish-dlx")).overflow,
        Some(queue::Overflow::RejectPublishDlx)
    );
    assert!(good_argument(sac, AMQPValue::Boolean(true)).single_active_consumer);
    assert!(!good_argument(sac, AMQPValue::Boolean(false)).single_active_consumer);
    assert_eq!(good_argument("x-queue-mode", text("lazy")), QueueSettings::default());
    assert_eq!(good_argument("x-foo", int(3)), QueueSettings::default());
    assert_eq!(good_argument("x-queue-leader-locator", text("balanced")), QueueSettings::default());
}

#[test]
fn dead_letter_arguments_are_checked_together() {
    let (dlx, key) = ("x-dead-letter-exchange", "x-dead-letter-routing-key");
    let arguments = table([(dlx, int(5)), ("x-expires", int(0))]);
    let wrong_type = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'probe.bad' \
                      in vhost '/'";
    let d = QueueDeclare { arguments: &arguments, ..queue("probe.bad") };
    refused(Vhost::new().declare(d), 406, wrong_type, DECLARE);
    bad_argument([(key, text("k"))], key, ": routing_key_but_no_dlx_defined");
    bad_argument([(dlx, text("")), (key, int(5))], key, ": {unacceptable_type,signedint}");
    bad_argument([(dlx, text("")), (key, text(&"k".repeat(256)))], key, ": \"longer than 255 bytes\"");
    bad_argument([(dlx, AMQPValue::LongString(vec![0xff].into()))], dlx, ": \"not UTF-8\"");

    let arguments = table([(dlx, text("")), (key, text("k"))]);
    let record = Vhost::new().declare(QueueDeclare { arguments: &arguments, ..queue("q") }).expect("taken");
    assert_eq!(record.settings.dead_letter_exchange.as_deref(), Some(""));
    assert_eq!(record.settings.dead_letter_routing_key.as_deref(), Some("k"));
}

#[test]
fn arguments_of_another_type_are_refused() {
    bad_argument([("x-delivery-limit", int(3))], "x-delivery-limit", " of queue type rabbit_classic_queue");
    for (kind, module, name, value) in [
        (quorum(), "rabbit_quorum_queue", "x-max-priority", int(5)),
        (quorum(), "rabbit_quorum_queue", "x-queue-mode", text("lazy")),
        (stream(), "rabbit_stream_queue", "x-dead-letter-exchange", text("")),
    ] {
        let arguments = table([kind, (name, value)]);
        let text = format!(
            "PRECONDITION_FAILED - invalid arg '{name}' for queue 'probe.qq' in vhost '/' of queue type {module}"
        );
        let d = QueueDeclare { durable: true, arguments: &arguments, ..queue("probe.qq") };
        refused(Vhost::new().declare(d), 406, &text, DECLARE);
    }
}

#[test]
fn quorum_queues_are_durable_and_shared() {
    for kind in [quorum(), stream()] {
        let arguments = table([kind]);
        let good = QueueDeclare { durable: true, arguments: &arguments, ..queue("probe.qq") };
        for (d, property) in [
            (QueueDeclare { durable: false, ..good }, "non-durable"),
            (QueueDeclare { exclusive: true, ..good }, "exclusive-owner"),
            (QueueDeclare { auto_delete: true, exclusive: true, durable: false, ..good }, "auto-delete"),
        ] {
            let text = format!("PRECONDITION_FAILED - invalid property '{property}' for queue 'probe.qq' in vhost '/'");
            refused(Vhost::new().declare(d), 406, &text, DECLARE);
        }
    }
}

#[test]
fn quorum_queue_takes_its_arguments() {
    let mut v = Vhost::new();
    let arguments = table([
        quorum(),
        ("x-overflow", text("reject-publish-dlx")),
        ("x-delivery-limit", int(-1)),
        ("x-dead-letter-exchange", text("dlx")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-quorum-initial-group-size", int(3)),
        ("x-max-in-memory-length", int(3)),
    ]);
    let d = QueueDeclare { durable: true, arguments: &arguments, ..queue("probe.qq") };
    let record = v.declare(d).expect("taken");
    assert_eq!(record.kind, QueueKind::Quorum);
    assert_eq!(record.settings.delivery_limit, Some(-1));
    assert_eq!(record.settings.dead_letter_strategy, Some(DeadLetterStrategy::AtLeastOnce));
    assert!(v.declare(d).is_ok());

    let arguments = table([quorum(), ("x-message-ttl", int(1000)), ("x-dead-letter-exchange", text("dlx"))]);
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-strategy' for queue 'probe.qq' in vhost '/': \
                received none but current is the value 'at-least-once' of type 'longstr'";
    refused(v.declare(QueueDeclare { arguments: &arguments, ..d }), 406, text, DECLARE);

    for (name, value, reason) in [
        ("x-delivery-limit", int(-2), "{value_negative,-2}"),
        ("x-quorum-initial-group-size", int(0), "{value_zero,0}"),
        ("x-dead-letter-strategy", int(0), "{unacceptable_type,signedint}"),
        ("x-queue-leader-locator", AMQPValue::LongString("moon".into()), "invalid_queue_locator_arg"),
    ] {
        let arguments = table([quorum(), (name, value)]);
        let text = format!("PRECONDITION_FAILED - invalid arg '{name}' for queue 'new' in vhost '/': {reason}");
        let d = QueueDeclare { durable: true, arguments: &arguments, ..queue("new") };
        refused(v.declare(d), 406, &text, DECLARE);
    }
}

#[test]
fn arguments_are_compared_in_the_order_of_the_type() {
    let mut v = Vhost::new();
    let before = table([quorum(), ("x-overflow", text("reject-publish-dlx"))]);
    let after = table([quorum(), ("x-message-ttl", int(1000))]);
    let d = QueueDeclare { durable: true, arguments: &before, ..queue("probe.qq") };
    v.declare(d).expect("taken");
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-overflow' for queue 'probe.qq' in vhost '/': \
                received none but current is the value 'reject-publish-dlx' of type 'longstr'";
    refused(v.declare(QueueDeclare { arguments: &after, ..d }), 406, text, DECLARE);
    let text = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'probe.qq' in vhost '/': \
                received none but current is the value 'quorum' of type 'longstr'";
    let untyped = table([("x-overflow", AMQPValue::LongString("reject-publish-dlx".into()))]);
    refused(v.declare(QueueDeclare { arguments: &untyped, ..d }), 406, text, DECLARE);
}

#[test]
fn valid_stream_is_not_implemented() {
    let arguments = table([stream(), ("x-max-age", text("7D")), ("x-max-length-bytes", int(1))]);
    let d = QueueDeclare { durable: true, arguments: &arguments, ..queue("s") };
    let text = "NOT_IMPLEMENTED - queue 's' in vhost '/': stream queues are not available in this version";
    refused(Vhost::new().declare(d), 540, text, DECLARE);
    for age in ["", "7", "D", "0D", "7w", "7DD"] {
        let arguments = table([stream(), ("x-max-age", AMQPValue::LongString(age.into()))]);
        let text = "PRECONDITION_FAILED - invalid arg 'x-max-age' for queue 's' in vhost '/': invalid_max_age";
        refused(Vhost::new().declare(QueueDeclare { arguments: &arguments, ..d }), 406, text, DECLARE);
    }
}

#[test]
fn record_says_what_was_declared() {
    let mut v = Vhost::new();
    let d = QueueDeclare { durable: true, auto_delete: true, ..queue("q") };
    let record = v.topology.create_queue(QueueId(9), 4, &d);
    assert_eq!((record.id, &*record.name, record.shard), (QueueId(9), "q", 4));
    assert_eq!((record.durable, record.auto_delete, record.exclusive_owner), (true, true, None));
    let d = QueueDeclare { durable: true, exclusive: true, ..queue("e") };
    let record = v.topology.create_queue(QueueId(10), 4, &d);
    assert_eq!((record.durable, record.exclusive_owner), (false, Some(ME)), "it ends with its connection");
}
