//! Definitions: what RabbitMQ exported is imported, and what was exported is the same again.

use serde_json::{Value, json};
use warrenmq_tests::bytes::Options;
use warrenmq_tests::methods::{exchange_declare, queue_bind, queue_declare};
use warrenmq_tests::{Node, Wire, With};

/// As RabbitMQ 3.8 writes them (tags as text, limits as lists), with what later versions have, and a few things that are not there any more.
fn document() -> Value {
    json!({
        "rabbit_version": "3.8.9",
        "rabbitmq_version": "3.8.9",
        "users": [
            {
                // `test12` with the salt 908DC60A, from RabbitMQ's guide on passwords.
                "name": "old", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "administrator,own"
            },
            {"name": "new", "password": "secret", "hashing_algorithm": "rabbit_password_hashing_sha256",
             "tags": ["monitoring"], "limits": {"max-channels": 7}}
        ],
        "vhosts": [
            {"name": "/"},
            {"name": "v", "limits": [{"name": "max-queues", "value": 20}],
             "metadata": {"description": "imported", "tags": ["a"], "default_queue_type": "quorum"}}
        ],
        "permissions": [
            {"user": "old", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"},
            {"user": "nobody", "vhost": "v", "configure": "", "write": "", "read": ""}
        ],
        "topic_permissions": [{"user": "old", "vhost": "v", "exchange": "amq.topic", "write": "^a", "read": ""}],
        "parameters": [
            {"vhost": "v", "component": "shovel", "name": "s", "value": {"src-queue": "q"}},
            {"vhost": "v", "component": "operator_policy", "name": "o",
             "value": {"pattern": ".*", "definition": {"max-length": 5}, "priority": 0, "apply-to": "queues"}}
        ],
        "global_parameters": [{"name": "cluster_name", "value": "c"}],
        "policies": [
            {"vhost": "v", "name": "ha", "pattern": "^q", "apply-to": "queues", "priority": 1,
             "definition": {"ha-mode": "all", "queue-mode": "lazy", "max-length": 9}}
        ],
        "queues": [
            {"name": "q1", "vhost": "v", "durable": true, "auto_delete": false, "arguments": {"x-max-length": 10}},
            {"name": "q2", "vhost": "v", "type": "quorum", "durable": true, "auto_delete": false,
             "arguments": {"x-queue-type": "quorum"}},
            {"name": "bad", "vhost": "v", "durable": true, "auto_delete": false, "arguments": {"x-expires": 0}}
        ],
        "exchanges": [
            {"name": "x", "vhost": "v", "type": "topic", "durable": true, "auto_delete": false, "internal": false,
             "arguments": {"alternate-exchange": "amq.fanout"}}
        ],
        "bindings": [
            {"source": "x", "vhost": "v", "destination": "q1", "destination_type": "queue", "routing_key": "a.#",
             "arguments": {"n": 1}},
            {"source": "x", "vhost": "v", "destination": "amq.direct", "destination_type": "exchange",
             "routing_key": "b", "arguments": {}},
            {"source": "x", "vhost": "v", "destination": "missing", "destination_type": "queue", "routing_key": "",
             "arguments": {}}
        ]
    })
}

const OLD: Options =
    Options { user: "old", password: "test12", vhost: "v", capabilities: &[], tune: |tune| tune.heartbeat = 0 };

/// What of the document is there.
fn is_imported(node: &Node) {
    let mut c = Wire::open_with(node, &OLD);
    c.publish("x", "a.1", "routed");
    c.has_ready("q1", 1);
    let users = node.ctl_ok(&["list_users"]);
    assert!(users.contains("old\t[administrator, own]\n") && users.contains("new\t[monitoring]\n"), "{users}");
    let vhosts = node.ctl_ok(&["list_vhosts", "name", "description", "tags", "default_queue_type", "-s"]);
    assert!(vhosts.contains("v\timported\t[a]\tquorum\n"), "{vhosts}");
    assert_eq!(node.ctl_ok(&["list_vhost_limits", "-p", "v"]), "{\"max-queues\":20}\n");
    assert_eq!(node.ctl_ok(&["list_user_limits", "--user", "new"]), "{\"max-channels\":7}\n");
    let queues = node.ctl_ok(&["list_queues", "-p", "v", "name", "type", "policy", "operator_policy", "-s"]);
    let mut queues: Vec<&str> = queues.lines().collect();
    queues.sort_unstable();
    assert_eq!(queues, ["q1\tclassic\tha\to", "q2\tquorum\tha\to"]);
    assert_eq!(node.ctl_ok(&["list_topic_permissions", "-p", "v", "-s"]), "old\tamq.topic\t^a\t\n");
    assert_eq!(node.ctl_ok(&["list_global_parameters", "-s"]), "cluster_name\t\"c\"\n");
}

#[test]
fn definitions_are_imported_but_for_what_cannot_be() {
    let mut node = Node::start();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("definitions.json");
    std::fs::write(&file, format!("\u{FEFF}{}", document())).expect("written");
    let (code, text) = node.ctl_fails(&["import_definitions", file.to_str().expect("text")]);
    assert_eq!(code, 69);
    assert!(text.starts_with("Error:\n3 items were not imported:\n"), "{text}");
    for part in ["permissions 'nobody' in vhost 'v'", "queues 'bad' in vhost 'v'", "bindings 'missing' in vhost 'v'"] {
        assert!(text.contains(part), "{part} is named in {text}");
    }
    is_imported(&node);
    node.restart();
    is_imported_after_restart(&node);
}

/// As [`is_imported`], without a message.
fn is_imported_after_restart(node: &Node) {
    let bindings = node.ctl_ok(&["list_bindings", "-p", "v", "-s"]);
    assert!(bindings.contains("x\texchange\tq1\tqueue\ta.#\t[{\"n\",1}]\n"), "{bindings}");
    assert!(bindings.contains("x\texchange\tamq.direct\texchange\tb\t[]\n"), "{bindings}");
    Wire::open_with(node, &OLD);
}

#[test]
fn exported_definitions_make_the_same_node() {
    let (first, second) = (Node::start(), Node::start());
    let mut c = Wire::open(&first);
    c.call(queue_declare("q").with(|m| m.durable = true));
    c.call(queue_declare("passing"));
    c.call(queue_declare("mine").with(|m| m.exclusive = true));
    c.call(exchange_declare("x", "fanout").with(|m| m.durable = true));
    c.call(queue_bind("q", "x", "k"));
    first.ctl_ok(&["add_user", "u", "p"]);
    first.ctl_ok(&["set_policy", "p", "^q", r#"{"max-length":3}"#]);
    first.ctl_ok(&["set_vhost_limits", r#"{"max-queues":9}"#]);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("definitions.json");
    let path = file.to_str().expect("text");
    first.ctl_ok(&["export_definitions", path]);
    let exported: Value = serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    let names: Vec<&str> =
        exported["queues"].as_array().expect("a list").iter().filter_map(|queue| queue["name"].as_str()).collect();
    assert!(names.contains(&"q") && names.contains(&"passing") && !names.contains(&"mine"), "{names:?}");
    second.ctl_ok(&["import_definitions", path]);
    second.ctl_ok(&["import_definitions", path]);
    let mut again: Value = serde_json::from_str(&second.ctl_ok(&["export_definitions", "-"])).expect("JSON");
    let mut exported = exported;
    for document in [&mut exported, &mut again] {
        document["queues"].as_array_mut().expect("a list").sort_by_key(|queue| queue["name"].to_string());
    }
    assert_eq!(again, exported);
}

#[test]
fn definitions_of_the_configuration_come_in_place_of_the_default_user() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("definitions.json");
    std::fs::write(&file, document().to_string()).expect("written");
    let mut node = Node::start_with(&format!("load_definitions = {}\n", file.display()));
    is_imported(&node);
    assert!(!node.ctl_ok(&["list_users"]).contains("guest"));
    node.restart();
    is_imported_after_restart(&node);
}

#[test]
fn what_is_no_document_changes_nothing() {
    let node = Node::start();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("definitions.json");
    for bad in ["[]", "{\"users\": 3}", "{", &"[".repeat(100_000)] {
        std::fs::write(&file, bad).expect("written");
        let (code, text) = node.ctl_fails(&["import_definitions", file.to_str().expect("text")]);
        assert!(code == 65 && text.contains("no definitions"), "{text}");
    }
    assert_eq!(node.ctl_fails(&["import_definitions", "/nowhere/x.json"]).0, 65);
}
