//! Dead letters: why messages leave, where they go, what they tell of it, and that none is lost on the way.

use amq_protocol::protocol::{BasicProperties, basic, confirm, queue};
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};
use warrenmq_tests::methods::{exchange_declare, publish, queue_bind, queue_declare, queue_delete, table, text};
use warrenmq_tests::wire::Message;
use warrenmq_tests::{Node, Wire, With, eventually};

fn int(number: i32) -> AMQPValue {
    AMQPValue::LongInt(number)
}

fn declare(name: &str, durable: bool, arguments: FieldTable) -> queue::Declare {
    queue_declare(name).with(|m| (m.durable, m.arguments) = (durable, arguments))
}

fn persistent() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}

/// The arguments of a queue whose letters go to the queue `to`, with some more.
fn letters_to<const N: usize>(to: &str, more: [(&str, AMQPValue); N]) -> FieldTable {
    let mut arguments = table(more);
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(to));
    arguments
}

/// Waits for a message, and takes it.
#[track_caller]
fn take(c: &mut Wire, queue: &str) -> Message<basic::GetOk> {
    let mut found = None;
    eventually(&format!("a message in {queue}"), || {
        found = c.get(queue);
        found.is_some()
    });
    let message = found.expect("just found");
    c.send(basic::Ack { delivery_tag: message.method.delivery_tag, multiple: false });
    message
}

fn header<'a>(message: &'a Message<basic::GetOk>, name: &str) -> Option<&'a AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name)
}

fn shown(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(shown).collect::<Vec<_>>().join("+"),
        other => format!("{other:?}"),
    }
}

/// The history of a letter: queue, reason, count, exchange and keys of each entry, newest first.
fn deaths(message: &Message<basic::GetOk>) -> Vec<String> {
    let Some(AMQPValue::FieldArray(deaths)) = header(message, "x-death") else { panic!("no x-death in {message:?}") };
    let entry = |death: &AMQPValue| {
        let AMQPValue::FieldTable(death) = death else { panic!("{death:?} is no table") };
        let field = |name: &str| shown(death.inner().get(name).unwrap_or_else(|| panic!("no {name} in {death:?}")));
        assert!(matches!(death.inner().get("time"), Some(AMQPValue::Timestamp(time)) if *time > 1_600_000_000));
        let keys = field("routing-keys");
        format!("{} {} {} {}/{keys}", field("queue"), field("reason"), field("count"), field("exchange"))
    };
    deaths.as_slice().iter().map(entry).collect()
}

#[test]
fn letters_say_why_they_died_and_of_what_first_and_last() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    for (kind, durable) in [("transient", false), ("durable", true)] {
        let name = |what: &str| format!("{kind}-{what}");
        let (rejected, expired, maxlen, limit) = (name("rejected"), name("expired"), name("maxlen"), name("limit"));
        c.call(declare(&name("dead"), durable, FieldTable::default()));
        let dead = name("dead");
        c.call(declare(&rejected, durable, letters_to(&dead, [])));
        c.call(declare(&expired, durable, letters_to(&dead, [("x-message-ttl", int(10))])));
        c.call(declare(&maxlen, durable, letters_to(&dead, [("x-max-length", int(0))])));

        let properties = persistent().with_headers(table([("own", int(7))])).with_priority(3);
        c.publish_with(publish("", &rejected), properties, "body");
        c.has_ready(&rejected, 1);
        let got = c.get(&rejected).expect("a message");
        c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: false });
        let letter = take(&mut c, &dead);
        assert_eq!(
            (letter.text(), letter.method.redelivered, letter.method.routing_key.as_str()),
            ("body", false, &*dead)
        );
        assert_eq!(deaths(&letter), [format!("{rejected} rejected 1 /{rejected}")]);
        assert_eq!(*letter.properties.priority(), Some(3));
        assert_eq!(header(&letter, "own"), Some(&int(7)));
        for place in ["first", "last"] {
            let of = |what: &str| header(&letter, &format!("x-{place}-death-{what}")).map(shown);
            assert_eq!(of("queue").as_deref(), Some(&*rejected));
            assert_eq!((of("reason").as_deref(), of("exchange").as_deref()), (Some("rejected"), Some("")));
        }

        c.publish_with(publish("", &expired), persistent().with_expiration("600000".into()), "");
        let letter = take(&mut c, &dead);
        assert_eq!(deaths(&letter), [format!("{expired} expired 1 /{expired}")]);
        assert_eq!(*letter.properties.expiration(), None, "it does not expire again");

        c.publish_with(publish("", &maxlen), persistent(), "");
        assert_eq!(deaths(&take(&mut c, &dead)), [format!("{maxlen} maxlen 1 /{maxlen}")]);

        if durable {
            let quorum = [("x-queue-type", text("quorum")), ("x-delivery-limit", int(0))];
            c.call(declare(&limit, durable, letters_to(&dead, quorum)));
            c.publish_with(publish("", &limit), persistent(), "");
            c.has_ready(&limit, 1);
            let got = c.get(&limit).expect("a message");
            c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: true });
            assert_eq!(deaths(&take(&mut c, &dead)), [format!("{limit} delivery_limit 1 /{limit}")]);
        }
    }
}

#[test]
fn an_expired_letter_tells_its_original_expiration() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    c.call(declare("q", false, letters_to("dead", [])));
    c.publish_with(publish("", "q"), persistent().with_expiration("25".into()), "");
    let letter = take(&mut c, "dead");
    let Some(AMQPValue::FieldArray(deaths)) = header(&letter, "x-death") else { panic!("no x-death") };
    let Some(AMQPValue::FieldTable(death)) = deaths.as_slice().first() else { panic!("no death") };
    assert_eq!(death.inner().get("original-expiration"), Some(&text("25")));
}

#[test]
fn without_a_key_of_the_queue_letters_keep_theirs_and_reach_whom_their_copies_would() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(exchange_declare("graveyard", "direct"));
    for (queue, key) in [("by-key", "k"), ("by-copy", "copy")] {
        c.call(queue_declare(queue));
        c.call(queue_bind(queue, "graveyard", key));
    }
    c.call(exchange_declare("in", "fanout"));
    c.call(declare("q", false, table([("x-dead-letter-exchange", text("graveyard")), ("x-max-length", int(0))])));
    c.call(queue_bind("q", "in", ""));
    let mut copies = FieldArray::default();
    copies.push(text("copy"));
    let headers = table([("CC", AMQPValue::FieldArray(copies))]);
    c.publish_with(publish("in", "k"), persistent().with_headers(headers), "letter");
    for queue in ["by-key", "by-copy"] {
        let letter = take(&mut c, queue);
        assert_eq!((letter.method.exchange.as_str(), letter.method.routing_key.as_str()), ("graveyard", "k"));
        assert_eq!(deaths(&letter), ["q maxlen 1 in/k+copy"]);
        assert!(header(&letter, "CC").is_some());
    }
}

#[test]
fn a_message_goes_round_by_refusals_and_is_counted_but_not_by_expiry_alone() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    // work refuses to wait, wait expires back to work: the retry that everybody builds.
    c.call(declare("work", true, letters_to("wait", [])));
    c.call(declare("wait", true, letters_to("work", [("x-message-ttl", int(20))])));
    c.publish_with(publish("", "work"), persistent(), "job");
    for round in 0..3 {
        let mut got = None;
        eventually("the job is there", || {
            got = c.get("work");
            got.is_some()
        });
        let got = got.expect("just got");
        if round > 0 {
            let expected = [format!("wait expired {round} /wait"), format!("work rejected {round} /work")];
            assert_eq!(deaths(&got), expected);
        }
        c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: false });
    }
    // Without a refusal a circle ends.
    c.call(declare("a", false, letters_to("b", [("x-message-ttl", int(10))])));
    c.call(declare("b", false, letters_to("a", [("x-message-ttl", int(10))])));
    c.call(declare("self", false, letters_to("self", [("x-max-length", int(0))])));
    c.publish("", "a", "goes round");
    c.publish("", "self", "goes round");
    for queue in ["a", "b", "self"] {
        eventually("the circle ends", || {
            node.ctl_ok(&["list_queues", "-q", "name", "messages"]).contains(&format!("{queue}\t0"))
        });
    }
}

#[test]
fn a_missing_exchange_drops_letters_and_a_policy_sets_one() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    let limited = || table([("x-dead-letter-exchange", text("nowhere")), ("x-max-length", int(0))]);
    c.call(declare("q", true, limited()));
    c.publish_with(publish("", "q"), persistent(), "lost");
    c.has_ready("q", 0);
    c.call(queue_declare("p"));
    let policy = r#"{"dead-letter-exchange":"","dead-letter-routing-key":"dead","max-length":0}"#;
    node.ctl_ok(&["set_policy", "letters", "^p$", policy]);
    c.publish("", "p", "kept");
    assert_eq!(take(&mut c, "dead").text(), "kept");
    assert_eq!(c.take_text("dead"), None);
}

#[test]
fn what_a_full_queue_refuses_is_nacked_and_dead_lettered_if_it_says_so() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    let overflow = || [("x-max-length", int(1)), ("x-overflow", text("reject-publish-dlx"))];
    for (name, durable) in [("transient", false), ("durable", true)] {
        c.call(declare(name, durable, letters_to("dead", overflow())));
        c.open_channel(if durable { 3 } else { 2 }).call(confirm::Select::default());
        c.publish_with(publish("", name), persistent(), "fits");
        assert_eq!(c.expect::<basic::Ack>().delivery_tag, 1);
        c.publish_with(publish("", name), persistent(), "does not");
        assert_eq!(c.expect::<basic::Nack>().delivery_tag, 2);
        let letter = take(&mut c, "dead");
        assert_eq!((letter.text(), deaths(&letter)), ("does not", vec![format!("{name} maxlen 1 /{name}")]));
        assert_eq!(c.take_text(name).as_deref(), Some("fits"));
        assert_eq!(c.take_text(name), None);
    }
}

#[test]
fn a_hundred_thousand_messages_expire_at_the_head_and_arrive_in_order() {
    const COUNT: u32 = 100_000;
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    c.call(declare("q", false, letters_to("dead", [])));
    for number in 0..COUNT {
        let ttl = 500 + number / 100;
        let properties = BasicProperties::default().with_expiration(ttl.to_string().into());
        c.publish_with(publish("", "q"), properties, number.to_string());
    }
    c.has_ready("dead", COUNT);
    assert_eq!(c.ready("q"), 0);
    c.call(warrenmq_tests::methods::consume("dead", "tag").with(|m| m.no_ack = true));
    for number in 0..COUNT {
        assert_eq!(c.delivery().text(), number.to_string());
    }
}

#[test]
fn letters_of_a_durable_queue_survive_kills_on_their_way() {
    const COUNT: u32 = 3000;
    let mut node = Node::start();
    let mut c = Wire::open(&node);
    c.call(declare("dead", true, FieldTable::default()));
    c.call(declare("q", true, letters_to("dead", [])));
    c.call(confirm::Select::default());
    for number in 0..COUNT {
        c.publish_with(publish("", "q"), persistent(), number.to_string());
    }
    c.all_confirmed(1..=u64::from(COUNT));
    node.ctl_ok(&["set_policy", "expire", "^q$", r#"{"message-ttl":1}"#]);
    for _ in 0..4 {
        // Some are there, some on their way, some not yet.
        node.restart();
    }
    let mut c = Wire::open(&node);
    c.has_ready("q", 0);
    let mut seen = vec![0; COUNT as usize];
    eventually("every letter arrives", || {
        while let Some(body) = c.take_text("dead") {
            seen[body.parse::<usize>().expect("a number")] += 1;
        }
        seen.iter().all(|count| *count > 0)
    });
}

#[test]
fn at_least_once_letters_wait_until_somebody_takes_them() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    c.call(declare("q", true, letters_to("later", arguments)));
    let dies = |c: &mut Wire, body: &str| {
        c.publish_with(publish("", "q"), persistent(), body);
        c.has_ready("q", 1);
        let got = c.get("q").expect("a message");
        c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: false });
    };
    dies(&mut c, "to nobody");
    // The next one is through: so the first one has been tried.
    c.call(declare("other", true, letters_to("dead", [])));
    c.call(queue_declare("dead"));
    c.publish_with(publish("", "other"), persistent(), "");
    c.has_ready("other", 1);
    let got = c.get("other").expect("a message");
    c.send(basic::Reject { delivery_tag: got.method.delivery_tag, requeue: false });
    take(&mut c, "dead");
    c.call(declare("later", false, table([("x-max-length", int(1)), ("x-overflow", text("reject-publish"))])));
    c.has_ready("later", 1);
    dies(&mut c, "to one that is full");
    assert_eq!(take(&mut c, "later").text(), "to nobody");
    assert_eq!(take(&mut c, "later").text(), "to one that is full");
}

#[test]
fn a_queue_that_is_deleted_with_letters_on_their_way_is_gone() {
    let node = Node::start();
    let mut c = Wire::open(&node);
    c.call(queue_declare("dead"));
    c.call(declare("q", true, letters_to("dead", [("x-message-ttl", int(0))])));
    for number in 0..500 {
        c.publish_with(publish("", "q"), persistent(), number.to_string());
    }
    c.call(queue_delete("q"));
    c.call(declare("q", true, FieldTable::default()));
    c.publish_with(publish("", "q"), persistent(), "new");
    c.has_ready("q", 1);
}
