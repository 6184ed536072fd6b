//! What a client declared durable is there after a restart, and what it removed is not.

mod support;

use std::path::{Path, PathBuf};
use std::time::Instant;

use amqp::{AMQPValue, FieldTable};
use support::{Client, Declare, node, settings};
use warrenmq_broker as broker;

fn table(name: &str, value: i32) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert(name.into(), AMQPValue::LongInt(value));
    table
}

fn none() -> FieldTable {
    FieldTable::default()
}

#[test]
fn durable_exchanges_queues_and_bindings_are_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let with_ttl = Declare { arguments: table("x-message-ttl", 60_000), ..Declare::durable() };
    node(settings(dir.path()), |address| {
        let with_ttl = with_ttl.clone();
        async move {
            let mut client = Client::connect(address).await;
            client.exchange("x", "topic", Declare::durable()).await.expect("declared");
            client.exchange("y", "headers", Declare::durable()).await.expect("declared");
            client.exchange("transient", "fanout", Declare::default()).await.expect("declared");
            client.queue("q", with_ttl).await.expect("declared");
            client.queue("transient", Declare::default()).await.expect("declared");
            client.queue("mine", Declare { exclusive: true, ..Declare::durable() }).await.expect("declared");
            client.bind("q", "x", "a.*", none()).await.expect("bound");
            client.bind("q", "y", "", table("h", 1)).await.expect("bound");
            client.bind("q", "transient", "", none()).await.expect("bound");
            client.bind("transient", "x", "b", none()).await.expect("bound");
            client.bind_exchange("y", "x", "#").await.expect("bound");
            client.queue("gone", Declare::durable()).await.expect("declared");
            client.delete_queue("gone").await.expect("deleted");
            client.exchange("gone", "direct", Declare::durable()).await.expect("declared");
            client.bind("q", "gone", "k", none()).await.expect("bound");
            client.delete_exchange("gone", false).await.expect("deleted");
        }
    });
    node(settings(dir.path()), |address| {
        let with_ttl = with_ttl.clone();
        async move {
            let mut client = Client::connect(address).await;
            for (name, there) in [("x", true), ("y", true), ("transient", false), ("gone", false), ("amq.topic", true)]
            {
                assert_eq!(client.has_exchange(name).await, there, "exchange {name}");
            }
            for (name, there) in [("q", true), ("transient", false), ("mine", false), ("gone", false)] {
                assert_eq!(client.has_queue(name).await, there, "queue {name}");
            }
            assert_eq!(client.exchange("x", "direct", Declare::durable()).await, Err(406), "its type is known");
            assert_eq!(client.queue("q", Declare::durable()).await, Err(406), "its arguments are known");
            client.queue("q", with_ttl).await.expect("as it was declared");
            assert_eq!(client.delete_exchange("x", true).await, Err(406), "its bindings are there");
            client.unbind("q", "y", "", table("h", 1)).await.expect("unbound");
            client.delete_exchange("y", true).await.expect("that was its only binding");
            client.unbind("q", "x", "a.*", none()).await.expect("unbound");
            client.delete_exchange("x", true).await.expect("the binding to y went with y");
        }
    });
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        assert!(!client.has_exchange("x").await && !client.has_exchange("y").await && client.has_queue("q").await);
    });
}

#[test]
fn a_durable_auto_delete_exchange_goes_with_its_last_binding_for_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let auto_delete = || Declare { auto_delete: true, ..Declare::durable() };
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        client.queue("q", Declare::durable()).await.expect("declared");
        client.queue("transient", Declare::default()).await.expect("declared");
        for exchange in ["by-unbind", "in-memory", "by-queue", "chain-1", "chain-2", "kept"] {
            client.exchange(exchange, "fanout", auto_delete()).await.expect("declared");
        }
        client.bind("q", "by-unbind", "", none()).await.expect("bound");
        client.unbind("q", "by-unbind", "", none()).await.expect("unbound");
        assert!(!client.has_exchange("by-unbind").await);

        client.bind("transient", "in-memory", "", none()).await.expect("bound");
        client.unbind("transient", "in-memory", "", none()).await.expect("unbound");
        assert!(!client.has_exchange("in-memory").await);

        client.bind("transient", "by-queue", "", none()).await.expect("bound");
        client.bind_exchange("by-queue", "chain-1", "").await.expect("bound");
        client.bind_exchange("chain-1", "chain-2", "").await.expect("bound");
        client.bind("transient", "kept", "", none()).await.expect("bound");
        client.bind("q", "kept", "", none()).await.expect("bound");
        client.delete_queue("transient").await.expect("deleted");
        for exchange in ["by-queue", "chain-1", "chain-2"] {
            assert!(!client.has_exchange(exchange).await, "{exchange}");
        }
        assert!(client.has_exchange("kept").await, "a durable binding is left");
    });
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        for exchange in ["by-unbind", "in-memory", "by-queue", "chain-1", "chain-2"] {
            assert!(!client.has_exchange(exchange).await, "{exchange}");
        }
        client.delete_queue("q").await.expect("deleted");
        assert!(!client.has_exchange("kept").await);
    });
}

#[test]
fn names_are_fought_for_and_each_client_gets_an_honest_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    node(settings(dir.path()), |address| async move {
        let contenders: Vec<_> = (0..8)
            .map(|number| {
                tokio::spawn(async move {
                    let mut client = Client::connect(address).await;
                    for round in 0..30 {
                        let durable = (number + round) % 2 == 0;
                        let how = Declare { durable, ..Declare::default() };
                        match client.queue("q", how.clone()).await {
                            Ok((name, messages)) => assert_eq!((name.as_str(), messages), ("q", 0)),
                            Err(code) => assert_eq!(code, 406, "the other kind is there"),
                        }
                        match client.exchange("x", "direct", how).await {
                            Ok(()) => {}
                            Err(code) => assert_eq!(code, 406, "the other kind is there"),
                        }
                        match client.bind("q", "x", "k", none()).await {
                            Ok(()) => {}
                            Err(code) => assert_eq!(code, 404, "one of the two is gone"),
                        }
                        client.delete_queue("q").await.expect("deleted, by whomever");
                        match client.delete_exchange("x", true).await {
                            Ok(()) => {}
                            Err(code) => assert_eq!(code, 406, "in use"),
                        }
                    }
                })
            })
            .collect();
        for contender in contenders {
            contender.await.expect("no contender fails");
        }
        let mut client = Client::connect(address).await;
        client.delete_queue("q").await.expect("deleted");
        client.delete_exchange("x", false).await.expect("deleted");
        client.queue("q", Declare::durable()).await.expect("declared");
    });
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        assert!(client.has_queue("q").await && !client.has_exchange("x").await);
    });
}

#[test]
fn queues_of_a_virtual_host_that_is_no_longer_configured_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    node(settings(dir.path()), |address| async move {
        Client::connect(address).await.queue("q", Declare::durable()).await.expect("declared");
    });
    let elsewhere = broker::Settings { default_vhost: "elsewhere".to_owned(), ..settings(dir.path()) };
    node(elsewhere, |_| async {});
    node(settings(dir.path()), |address| async move {
        assert!(Client::connect(address).await.has_queue("q").await);
    });
}

#[test]
fn a_node_set_to_fewer_durable_shards_refuses_to_start() {
    let dir = tempfile::tempdir().expect("a directory");
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        for number in 0..20 {
            client.queue(&format!("q{number}"), Declare::durable()).await.expect("declared");
        }
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _context = runtime.enter();
    let fewer = broker::Settings { durable_shards: 1, ..settings(dir.path()) };
    let error = broker::Broker::start(fewer).expect_err("queues live on the shards that would be gone");
    assert!(error.to_string().contains("durable shard"), "{error}");
}

/// The snapshots of the metadata in a data directory, oldest first.
fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("snapshots")).expect("the directory is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let of_metadata = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("metadata.") && name.ends_with(".snapshot"))
    };
    let mut found: Vec<PathBuf> = paths.filter(of_metadata).collect();
    found.sort();
    found
}

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("it can be written");
}

#[test]
fn snapshots_take_the_place_of_entries_and_one_of_two_may_be_damaged() {
    const QUEUES: u32 = 180;
    let dir = tempfile::tempdir().expect("a directory");
    let large = || {
        let mut arguments = FieldTable::default();
        arguments.insert("note".into(), AMQPValue::LongString("n".repeat(100_000).into()));
        Declare { arguments, ..Declare::durable() }
    };
    node(settings(dir.path()), |address| async move {
        let mut client = Client::connect(address).await;
        client.exchange("x", "direct", Declare::durable()).await.expect("declared");
        for number in 0..QUEUES {
            let name = format!("q{number}");
            client.queue(&name, large()).await.expect("declared");
            client.bind(&name, "x", &name, none()).await.expect("bound");
        }
        client.delete_queue("q7").await.expect("deleted");
    });
    let all_there = |address| async move {
        let mut client = Client::connect(address).await;
        for number in 0..QUEUES {
            let name = format!("q{number}");
            assert_eq!(client.has_queue(&name).await, number != 7, "{name}");
        }
        assert_eq!(client.delete_exchange("x", true).await, Err(406), "the bindings are there");
    };
    let stored = snapshots(dir.path());
    assert_eq!(stored.len(), 2, "{stored:?}");
    node(settings(dir.path()), all_there);
    damage(&stored[1]);
    node(settings(dir.path()), all_there);

    damage(&stored[0]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _context = runtime.enter();
    let error = broker::Broker::start(settings(dir.path())).expect_err("the entries before are gone");
    assert!(error.to_string().contains("snapshots/metadata."), "{error}");
}

/// Not a test of correctness: run it by name, with `--ignored --nocapture`, to see the rates.
#[test]
#[ignore = "a measurement"]
fn declares_of_ten_connections() {
    let dir = tempfile::tempdir().expect("a directory");
    const EACH: usize = 2000;
    node(settings(dir.path()), |address| async move {
        let start = Instant::now();
        let clients: Vec<_> = (0..10)
            .map(|number| {
                tokio::spawn(async move {
                    let mut client = Client::connect(address).await;
                    for queue in 0..EACH {
                        client.queue(&format!("q-{number}-{queue}"), Declare::durable()).await.expect("declared");
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.expect("no client fails");
        }
        println!("{:.0} declares per second", (10 * EACH) as f64 / start.elapsed().as_secs_f64());
    });
    let start = Instant::now();
    node(settings(dir.path()), |_| async {});
    println!("start with {} queues: {:?}", 10 * EACH, start.elapsed());
}
