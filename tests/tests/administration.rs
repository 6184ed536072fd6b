//! What operators change with `warrenmq ctl`: users, virtual hosts, permissions, policies, limits. All of it survives `kill -9`, and takes
//! effect on clients that are connected.

use amq_protocol::types::AMQPValue;
use warrenmq_tests::bytes::Options;
use warrenmq_tests::methods::{
    connection_open, consume, exchange_declare, get, publish, queue_bind, queue_declare, queue_delete, queue_purge,
};
use warrenmq_tests::{Node, Wire, With, eventually};

const USER: Options = options("anna", "/");

const fn options(user: &'static str, vhost: &'static str) -> Options {
    Options {
        user,
        password: "secret",
        vhost,
        capabilities: &["authentication_failure_close"],
        tune: |t| t.heartbeat = 0,
    }
}

/// A node with a user who may do everything in the default virtual host.
fn node_with_user() -> Node {
    let node = Node::start();
    node.ctl_ok(&["add_user", "anna", "secret"]);
    node.ctl_ok(&["set_permissions", "anna", ".*", ".*", ".*"]);
    node
}

fn durable(c: &mut Wire, queue: &str) {
    c.call(queue_declare(queue).with(|m| m.durable = true));
}

#[test]
fn users_vhosts_and_permissions_survive_a_kill() {
    let mut node = node_with_user();
    node.ctl_ok(&["add_vhost", "v", "--description", "for tests"]);
    node.ctl_ok(&["set_permissions", "-p", "v", "anna", "^a", "", ".*"]);
    node.ctl_ok(&["set_user_tags", "anna", "monitoring", "own"]);
    node.ctl_ok(&["change_password", "guest", "other"]);
    let everything = |node: &Node| {
        let commands: [&[&str]; 4] = [
            &["list_users"],
            &["list_vhosts", "name", "description"],
            &["list_permissions", "-p", "v"],
            &["list_permissions"],
        ];
        commands.map(|command| node.ctl_ok(command))
    };
    let before = everything(&node);
    assert!(before[0].contains("anna\t[monitoring, own]\n"), "{before:?}");
    node.restart();
    assert_eq!(everything(&node), before);
    let mut c = Wire::open_with(&node, &options("anna", "v"));
    durable(&mut c, "a1");
    c.send(queue_declare("b1"));
    c.fails_with(403, "ACCESS_REFUSED - access to queue 'b1' in vhost 'v' refused for user 'anna'", (50, 10));
    let mut c = Wire::greeted(&node);
    c.send_on(0, warrenmq_tests::bytes::start_ok(&Options::default()));
    assert_eq!(c.connection_close().reply_code, 403, "guest has another password");
}

#[test]
fn the_default_user_is_made_once() {
    let mut node = node_with_user();
    node.ctl_ok(&["delete_user", "guest"]);
    node.restart();
    assert_eq!(node.ctl_ok(&["list_users"]), "user\ttags\nanna\t[]\n");
}

#[test]
fn changed_permissions_count_on_open_channels() {
    let node = node_with_user();
    let mut c = Wire::open_with(&node, &USER);
    c.call(queue_declare("q"));
    c.publish("", "q", "1");
    c.has_ready("q", 1);
    node.ctl_ok(&["set_permissions", "anna", ".*", "^x", ".*"]);
    c.publish("", "q", "2");
    c.fails_with(
        403,
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'anna'",
        (60, 40),
    );
    node.ctl_ok(&["clear_permissions", "anna"]);
    c.send(get("q"));
    c.fails_with(403, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'anna'", (60, 70));
}

#[test]
fn topic_permissions_limit_routing_keys() {
    let node = node_with_user();
    node.ctl_ok(&["set_topic_permissions", "anna", "amq.topic", "^{username}\\.", "^open\\."]);
    let mut c = Wire::open_with(&node, &USER);
    c.call(queue_declare("q"));
    c.call(queue_bind("q", "amq.topic", "open.#"));
    c.send(queue_bind("q", "amq.topic", "#"));
    let refused = |key: &str| {
        format!("ACCESS_REFUSED - access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'anna'")
    };
    c.fails_with(403, &refused("#"), (50, 20));
    c.publish("amq.topic", "anna.1", "allowed");
    c.publish("amq.topic", "bad.key", "refused");
    c.fails_with(403, &refused("bad.key"), (60, 40));
    c.publish("amq.direct", "bad.key", "another exchange");
    node.ctl_ok(&["clear_topic_permissions", "anna", "amq.topic"]);
    c.publish("amq.topic", "open.1", "allowed now");
    c.has_ready("q", 1);
}

#[test]
fn a_deleted_user_is_thrown_out() {
    let node = node_with_user();
    let c = Wire::open_with(&node, &USER);
    node.ctl_ok(&["delete_user", "anna"]);
    c.breaks_with(320, "CONNECTION_FORCED - user 'anna' is deleted", (0, 0));
}

#[test]
fn a_deleted_vhost_takes_connections_queues_and_permissions_with_it() {
    let mut node = node_with_user();
    node.ctl_ok(&["add_vhost", "v"]);
    node.ctl_ok(&["set_permissions", "-p", "v", "anna", ".*", ".*", ".*"]);
    let mut c = Wire::open_with(&node, &options("anna", "v"));
    durable(&mut c, "kept");
    c.call(queue_declare("in-memory"));
    node.ctl_ok(&["delete_vhost", "v"]);
    c.breaks_with(320, "CONNECTION_FORCED - vhost 'v' is deleted", (0, 0));
    node.ctl_ok(&["add_vhost", "v"]);
    let mut c = Wire::tuned(&node, &options("anna", "v"));
    c.send_on(0, connection_open("v"));
    c.breaks_with(530, "NOT_ALLOWED - access to vhost 'v' refused for user 'anna'", (10, 40));
    node.restart();
    node.ctl_ok(&["set_permissions", "-p", "v", "anna", ".*", ".*", ".*"]);
    assert_eq!(node.ctl_ok(&["list_queues", "-p", "v", "-s"]), "");
    // A queue of the name is a new one.
    let mut c = Wire::open_with(&node, &options("anna", "v"));
    durable(&mut c, "kept");
    c.has_ready("kept", 0);
}

#[test]
fn policies_are_shown_and_survive_a_kill() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q1");
    durable(&mut c, "other");
    node.ctl_ok(&["set_policy", "low", "^q", r#"{"max-length":100}"#, "--apply-to", "queues"]);
    node.ctl_ok(&["set_policy", "high", "^q1$", r#"{"max-length":50,"overflow":"reject-publish"}"#, "--priority", "9"]);
    node.ctl_ok(&["set_operator_policy", "bound", ".*", r#"{"max-length":10}"#]);
    durable(&mut c, "q2");
    let shown = |node: &Node| {
        let listing = node.ctl_ok(&["list_queues", "name", "policy", "operator_policy", "effective_policy_definition"]);
        let mut lines: Vec<String> = listing.lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = [
        "other\t\tbound\t[{\"max-length\",10}]",
        "q1\thigh\tbound\t[{\"max-length\",10},{\"overflow\",\"reject-publish\"}]",
        "q2\tlow\tbound\t[{\"max-length\",10}]",
    ];
    assert_eq!(shown(&node), expected);
    node.restart();
    assert_eq!(shown(&node), expected);
    node.ctl_ok(&["clear_policy", "high"]);
    node.ctl_ok(&["clear_operator_policy", "bound"]);
    assert_eq!(shown(&node)[1], "q1\tlow\t\t[{\"max-length\",100}]");
    assert_eq!(node.ctl_fails(&["clear_policy", "high"]).0, 69);
}

#[test]
fn an_alternate_exchange_can_come_from_a_policy() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_declare("x", "direct").with(|m| m.durable = true));
    durable(&mut c, "lost");
    c.call(queue_bind("lost", "amq.fanout", ""));
    c.publish("x", "nowhere", "dropped");
    node.ctl_ok(&["set_policy", "ae", "^x$", r#"{"alternate-exchange":"amq.fanout"}"#, "--apply-to", "exchanges"]);
    c.publish("x", "nowhere", "kept");
    c.has_ready("lost", 1);
    assert_eq!(c.take_text("lost").as_deref(), Some("kept"));
    node.restart();
    let mut c = Wire::open(&node);
    // The kill may have come before the removal of the first one was on disk.
    c.call(queue_purge("lost"));
    c.publish("x", "nowhere", "kept again");
    c.has_ready("lost", 1);
}

#[test]
fn bad_policies_are_refused_in_rabbitmqs_words() {
    let node = Node::start();
    let (code, text) = node.ctl_fails(&["set_policy", "p", "^q", r#"{"nokey":10}"#]);
    let expected = "Error:\nValidation failed\n\n[{<<\"nokey\">>,10}] are not recognised policy settings\n\n";
    assert_eq!((code, text.as_str()), (69, expected));
    let (code, text) = node.ctl_fails(&["set_policy", "p", "^q", "{bad"]);
    assert!(code == 69 && text.starts_with("Error:\nJSON decoding error. Reason: "), "{text}");
    assert_eq!(node.ctl_fails(&["set_policy", "p", "^q", "{}", "--priority", "x"]).0, 64);
    assert_eq!(node.ctl_ok(&["list_policies", "-s"]), "");
}

#[test]
fn vhost_limits_bound_connections_and_queues() {
    let mut node = node_with_user();
    let mut c = Wire::open_with(&node, &USER);
    durable(&mut c, "q1");
    node.ctl_ok(&["set_vhost_limits", r#"{"max-queues":2,"max-connections":1}"#]);
    node.restart();
    let mut c = Wire::open_with(&node, &USER);
    durable(&mut c, "q1");
    c.call(queue_declare("q2"));
    let text = |queue: &str| {
        format!("PRECONDITION_FAILED - cannot declare queue '{queue}': queue limit in vhost '/' (2) is reached")
    };
    c.send(queue_declare("q3"));
    c.fails_with(406, &text("q3"), (50, 10));
    c.send(queue_declare("q4").with(|m| m.durable = true));
    c.fails_with(406, &text("q4"), (50, 10));
    c.call(queue_delete("q2"));
    c.call(queue_declare("q3"));
    let mut second = Wire::tuned(&node, &USER);
    second.send_on(0, connection_open("/"));
    let refused = "NOT_ALLOWED - access to vhost '/' refused for user 'anna': connection limit (1) is reached";
    second.breaks_with(530, refused, (10, 40));
    node.ctl_ok(&["clear_vhost_limits"]);
    Wire::open_with(&node, &USER);
}

#[test]
fn user_limits_bound_connections_and_channels() {
    let mut node = node_with_user();
    node.ctl_ok(&["set_user_limits", "anna", r#"{"max-connections":2,"max-channels":3}"#]);
    node.restart();
    let mut c = Wire::open_with(&node, &USER);
    let mut second = Wire::open_with(&node, &USER);
    let mut third = Wire::tuned(&node, &USER);
    third.send_on(0, connection_open("/"));
    let refused = "NOT_ALLOWED - connection refused for user 'anna': user connection limit (2) is reached";
    third.breaks_with(530, refused, (10, 40));
    c.open_channel(2);
    second.send_on(7, amq_protocol::protocol::channel::Open {});
    let text =
        "NOT_ALLOWED - number of channels opened for user 'anna' has reached the maximum allowed user limit of (3)";
    second.breaks_with(530, text, (0, 0));
    c.close_channel();
    c.open_channel(3);
    node.ctl_ok(&["clear_user_limits", "anna", "max-channels"]);
    c.open_channel(4);
    c.open_channel(5);
    assert_eq!(node.ctl_ok(&["list_user_limits", "--user", "anna"]), "{\"max-connections\":2}\n");
}

#[test]
fn queues_are_listed_with_their_counts() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let arguments = warrenmq_tests::methods::table([("x-max-length", AMQPValue::LongInt(10))]);
    c.call(queue_declare("durable").with(|m| (m.durable, m.arguments) = (true, arguments)));
    c.call(queue_declare("passing").with(|m| m.auto_delete = true));
    for body in ["1", "2", "3"] {
        c.publish("", "durable", body);
    }
    c.has_ready("durable", 3);
    c.get("durable");
    c.call(consume("passing", "tag"));
    let columns =
        ["messages", "messages_ready", "messages_unacknowledged", "consumers", "durable", "auto_delete", "type"];
    let listing = node.ctl_ok(&[&["list_queues", "name"][..], &columns, &["arguments"]].concat());
    let mut lines: Vec<&str> = listing.lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(
        lines,
        [
            "name\tmessages\tmessages_ready\tmessages_unacknowledged\tconsumers\tdurable\tauto_delete\ttype\targuments",
            "durable\t3\t2\t1\t0\ttrue\tfalse\tclassic\t[{\"x-max-length\",10}]",
            "passing\t0\t0\t0\t1\tfalse\ttrue\tclassic\t[]",
        ]
    );
    let json = node.ctl_ok(&["list_queues", "name,messages", "--formatter", "json"]);
    assert!(json.contains("{\"name\":\"durable\",\"messages\":3}"), "{json}");
    assert_eq!(node.ctl_fails(&["list_queues", "nonsense"]).0, 64);
    assert_eq!(node.ctl_fails(&["list_queues", "-p", "nowhere"]).0, 65);
    let bindings = node.ctl_ok(&["list_bindings"]);
    assert!(bindings.contains("\texchange\tdurable\tqueue\tdurable\t[]\n"), "{bindings}");
}

#[test]
fn queues_are_purged_and_deleted() {
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    durable(&mut c, "q");
    c.publish("", "q", "1");
    c.has_ready("q", 1);
    assert_eq!(node.ctl_fails(&["delete_queue", "q", "--if-empty"]), (64, "Error:\nQueue is not empty\n".to_owned()));
    node.ctl_ok(&["purge_queue", "q"]);
    c.has_ready("q", 0);
    c.call(consume("q", "tag"));
    assert_eq!(node.ctl_fails(&["delete_queue", "q", "--if-unused"]), (64, "Error:\nQueue is in use\n".to_owned()));
    node.ctl_ok(&["delete_queue", "q"]);
    assert_eq!(node.ctl_fails(&["delete_queue", "q"]), (64, "Error:\nQueue not found\n".to_owned()));
    assert_eq!(node.ctl_fails(&["purge_queue", "q"]), (69, "Error:\nnot_found\n".to_owned()));
    node.restart();
    assert_eq!(node.ctl_ok(&["list_queues", "-s"]), "");
}

#[test]
fn connections_channels_and_consumers_are_listed_and_closed() {
    let node = node_with_user();
    let mut c = Wire::open_with(&node, &USER);
    let other = Wire::open(&node);
    c.call(queue_declare("q"));
    c.call(consume("q", "tag"));
    c.open_channel(2);
    let listing = node.ctl_ok(&["list_connections", "user", "vhost", "channels", "state", "peer_host", "pid"]);
    let mine = listing.lines().find(|line| line.starts_with("anna\t")).expect("it is listed");
    let fields: Vec<&str> = mine.split('\t').collect();
    assert_eq!(fields[..5], ["anna", "/", "2", "running", "127.0.0.1"]);
    let channels = node.ctl_ok(&["list_channels", "user", "number", "consumer_count", "-s"]);
    assert!(channels.contains("anna\t1\t1\n") && channels.contains("anna\t2\t0\n"), "{channels}");
    let consumers = node.ctl_ok(&["list_consumers", "queue_name", "consumer_tag", "ack_required", "-s"]);
    assert_eq!(consumers, "q\ttag\ttrue\n");
    node.ctl_ok(&["close_connection", fields[5], "go away"]);
    c.breaks_with(320, "CONNECTION_FORCED - go away", (0, 0));
    let output = node.ctl(&["close_all_connections", "all of you"]);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("Closed 1 connections\n"), "{output:?}");
    other.breaks_with(320, "CONNECTION_FORCED - all of you", (0, 0));
    eventually("no connection is left", || node.ctl_ok(&["list_connections", "-s"]).is_empty());
    assert_eq!(node.ctl_fails(&["close_connection", "<a@b.1.99.0>", "x"]).0, 69);
}

#[test]
fn a_vhost_has_a_default_queue_type() {
    let node = node_with_user();
    node.ctl_ok(&["add_vhost", "v", "--default-queue-type", "quorum"]);
    node.ctl_ok(&["set_permissions", "-p", "v", "anna", ".*", ".*", ".*"]);
    let mut c = Wire::open_with(&node, &options("anna", "v"));
    durable(&mut c, "by-default");
    durable(&mut c, "by-default");
    let classic = warrenmq_tests::methods::table([("x-queue-type", warrenmq_tests::methods::text("classic"))]);
    c.call(queue_declare("classic").with(|m| (m.durable, m.arguments) = (true, classic)));
    durable(&mut c, "classic");
    c.call(queue_declare("passing"));
    c.call(queue_declare("mine").with(|m| (m.durable, m.exclusive) = (true, true)));
    let listing = node.ctl_ok(&["list_queues", "-p", "v", "name", "type", "-s"]);
    let mut lines: Vec<&str> = listing.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["by-default\tquorum", "classic\tclassic", "mine\tclassic", "passing\tclassic"]);
    assert_eq!(node.ctl_fails(&["add_vhost", "w", "--default-queue-type", "nonsense"]).0, 69);
}

#[test]
fn who_may_publish_may_not_declare() {
    let node = node_with_user();
    node.ctl_ok(&["set_permissions", "anna", "", "^amq.default$", ""]);
    let mut c = Wire::open_with(&node, &USER);
    c.send(publish("", "q"));
    c.send_frame(2, 1, &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    c.send(queue_declare("q"));
    c.fails_with(403, "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'anna'", (50, 10));
}
