//! A sync that the device refuses (EIO) is final: what the device holds is unknown from then on, so nothing more is
//! confirmed, even if later syncs succeed, until the broker is started again and has read what is there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, confirm, connection};
use warrenmq_tests::methods::{publish, queue_declare};
use warrenmq_tests::power::{Failure, environment, shim};
use warrenmq_tests::wire::Payload;
use warrenmq_tests::{Node, Options, Setup, Wire, With, eventually};

/// How long nothing may come, where nothing must.
const SILENCE: Duration = Duration::from_millis(500);

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

/// Reads until `connection.blocked`; a confirm on the way fails the test.
fn is_blocked(c: &mut Wire) -> connection::Blocked {
    match c.event() {
        (0, Payload::Method(AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)))) => blocked,
        (_, other) => panic!("expected connection.blocked, got {other:?}"),
    }
}

/// A broker whose syncs fail while a file is there, and that file's path. `None`: no shim can be made here.
fn node_with_failing_syncs() -> Option<(Node, PathBuf)> {
    let shim = shim()?;
    let mut node = Node::start();
    let failing = node.directory().join("syncs fail while this is here");
    let failure = Failure { after: 0, seed: 1, some: false, delay_us: 0, lies: false };
    let mut variables = environment(shim, &node.data_dir(), &node.directory().join("attic"), &failure);
    variables.push(("PF_FAIL_SYNC".into(), failing.clone().into()));
    node.restart_as(Setup { environment: variables, ..Setup::default() }).expect("a sound data directory");
    Some((node, failing))
}

#[test]
fn nothing_is_confirmed_after_a_failed_sync_and_everything_confirmed_is_there_after_a_restart() {
    let Some((mut node, failing)) = node_with_failing_syncs() else { return };
    let mut c = Wire::open(&node);
    for queue in ["a", "b", "c", "d"] {
        c.call(queue_declare(queue).with(|m| m.durable = true));
    }
    c.call(confirm::Select::default());
    for n in 0..100 {
        c.publish_with(publish("", ["a", "b", "c", "d"][n % 4]), persistent(), format!("confirmed {n}"));
    }
    c.all_confirmed(1..=100);

    fs::write(&failing, "").expect("the test's own file");
    for n in 0..8 {
        c.publish_with(publish("", ["a", "b", "c", "d"][n % 4]), persistent(), format!("unconfirmed {n}"));
    }
    eventually("the broker to say that its log has stopped", || node.log().contains("the log takes no more writes"));
    eventually("the alarm", || node.log().contains("alarm: publishers are blocked"));
    // Publishers on this connection and on others are told to stop.
    c.publish_with(publish("", "a"), persistent(), "unconfirmed");
    assert_eq!(is_blocked(&mut c).reason.as_str(), "low on disk");

    // The device works again: that proves nothing about what was not synced.
    fs::remove_file(&failing).expect("the test's own file");
    let mut other = Wire::open_with(&node, &Options::default());
    other.call(confirm::Select::default());
    other.publish_with(publish("", "b"), persistent(), "unconfirmed");
    is_blocked(&mut other);
    other.stays_silent(SILENCE);
    c.stays_silent(SILENCE);

    // What would have to be durable is refused with a reason; consumers go on.
    let mut third = Wire::open(&node);
    third.send(queue_declare("new").with(|m| m.durable = true));
    let close = third.connection_close();
    assert_eq!(close.reply_code, 506);
    let text = close.reply_text.as_str();
    assert!(text.starts_with("RESOURCE_ERROR - the node's log has stopped"), "{text}");
    let mut fourth = Wire::open(&node);
    assert_eq!(fourth.get("a").expect("a confirmed message").text(), "confirmed 0");

    let log = node.log();
    let said = log.lines().filter(|line| line.contains("the log takes no more writes")).count();
    assert_eq!(said, 1, "once:\n{log}");

    node.restart_as(Setup::default()).expect("a sound data directory");
    let mut c = Wire::open(&node);
    for (number, queue) in ["a", "b", "c", "d"].into_iter().enumerate() {
        for n in (number..100).step_by(4) {
            assert_eq!(c.take_text(queue), Some(format!("confirmed {n}")));
        }
        // What was not confirmed may be there, behind it, and once.
        let mut rest: Vec<String> = std::iter::from_fn(|| c.take_text(queue)).collect();
        assert!(rest.iter().all(|text| text.starts_with("unconfirmed")), "{rest:?}");
        rest.dedup();
        assert!(rest.len() <= 3, "{rest:?}");
    }
    c.call(confirm::Select::default());
    c.publish_with(publish("", "a"), persistent(), "again");
    c.expect::<basic::Ack>();
}

#[test]
fn a_broker_whose_log_has_stopped_ends_when_it_is_told_to() {
    let Some((mut node, failing)) = node_with_failing_syncs() else { return };
    let mut c = Wire::open(&node);
    c.call(queue_declare("q").with(|m| m.durable = true));
    fs::write(&failing, "").expect("the test's own file");
    c.publish_with(publish("", "q"), persistent(), "lost");
    eventually("the broker to say that its log has stopped", || node.log().contains("the log takes no more writes"));
    node.terminate();
    node.wait();
}
