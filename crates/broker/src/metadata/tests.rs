//! The metadata as a state machine: what is applied live, what is applied again, what a snapshot makes of it, and the way to the disk.

use amqp::{AMQPValue, FieldTable};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use queue::{QueueId, Token};
use storage::{Index, Operation, StorageError, Submission, Ticket};

use super::apply::{Applied, apply};
use super::op::{Binding, Change, DeclareQueue, ENTRY_FORMAT, Op, decode_entry};
use super::pipeline::{Asker, Earlier, Item, Pipeline};
use super::snapshot;
use super::task::Input;
use crate::broker::Broker;
use crate::connection::{ConnectionHandle, Event};
use crate::settings::Settings;
use crate::topology::{ConnectionId, ExchangeDeclare, ExchangeKind, QueueDeclare, Topology};

const LOCAL_SHARDS: u32 = 2;
const DURABLE_SHARDS: u32 = 3;
const ME: ConnectionId = ConnectionId(7);

// ---- changes --------------------------------------------------------------------------------------------------------

fn change(op: Op) -> Change {
    Change { vhost: "/".into(), op }
}

fn declare_exchange(name: &str) -> Op {
    Op::DeclareExchange {
        name: name.into(),
        kind: ExchangeKind::Topic,
        auto_delete: name.starts_with("auto"),
        internal: false,
        arguments: FieldTable::default(),
    }
}

fn declare_queue(name: &str) -> Op {
    Op::DeclareQueue(DeclareQueue {
        id: QueueId(0),
        shard: 0,
        name: name.into(),
        auto_delete: false,
        arguments: FieldTable::default(),
    })
}

fn binding(destination: &str, source: &str, key: &str) -> Binding {
    let mut arguments = FieldTable::default();
    if key == "b" {
        arguments.insert("n".into(), AMQPValue::LongInt(1));
    }
    Binding { destination: destination.into(), source: source.into(), routing_key: key.into(), arguments }
}

/// What is durable, as text.
fn durable(topology: &Topology) -> Vec<String> {
    let exchanges = topology.durable_exchanges().map(|exchange| {
        let alternate = &exchange.alternate;
        format!("exchange {} {:?} {} {alternate:?}", exchange.name, exchange.kind, exchange.auto_delete)
    });
    let mut all: Vec<String> = exchanges.collect();
    // Places are used again, so exchanges have no order.
    all.sort();
    let queues = topology.queues().filter(|queue| queue.durable);
    all.extend(queues.map(|queue| format!("queue {} {:?} on {}", queue.name, queue.id, queue.shard)));
    all.extend(topology.durable_bindings().map(|binding| format!("{binding:?}")));
    all
}

fn apply_to(topology: &mut Topology, op: &Op) -> Result<Applied, amqp::Exception> {
    apply(topology, op, LOCAL_SHARDS, &mut |_| {})
}

// ---- live, again, and from a snapshot ---------------------------------------------------------------------------------

const EXCHANGES: [&str; 5] = ["x", "y", "auto-1", "auto-2", "amq.topic"];
const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];
const KEYS: [&str; 3] = ["a", "b", "c.#"];

/// A step of a live node.
#[derive(Clone, Debug)]
enum Step {
    Change(Op),
    /// Deletes the durable queue of this name, if there is one.
    DeleteQueue(&'static str),
    /// Something in memory: an exclusive queue bound, or gone with its bindings.
    BindInMemory(&'static str),
    ForgetInMemory,
}

fn step() -> impl Strategy<Value = Step> {
    let exchange = || proptest::sample::select(EXCHANGES.to_vec());
    let queue = || proptest::sample::select(QUEUES.to_vec());
    let key = || proptest::sample::select(KEYS.to_vec());
    let to_queue = || (queue(), exchange(), key()).prop_map(|(queue, exchange, key)| binding(queue, exchange, key));
    let to_exchange = || (exchange(), exchange(), key()).prop_map(|(to, from, key)| binding(to, from, key));
    prop_oneof![
        3 => exchange().prop_map(|name| Step::Change(declare_exchange(name))),
        1 => (exchange(), any::<bool>())
            .prop_map(|(name, if_unused)| Step::Change(Op::DeleteExchange { name: name.into(), if_unused })),
        3 => queue().prop_map(|name| Step::Change(declare_queue(name))),
        1 => queue().prop_map(Step::DeleteQueue),
        5 => to_queue().prop_map(|binding| Step::Change(Op::BindQueue(binding))),
        3 => to_queue().prop_map(|binding| Step::Change(Op::UnbindQueue(binding))),
        3 => to_exchange().prop_map(|binding| Step::Change(Op::BindExchange(binding))),
        2 => to_exchange().prop_map(|binding| Step::Change(Op::UnbindExchange(binding))),
        2 => exchange().prop_map(Step::BindInMemory),
        1 => Just(Step::ForgetInMemory),
    ]
}

/// A live node, in short: changes take effect at once, and what they use up is deleted by changes of their own.
struct Live {
    topology: Topology,
    entries: Vec<Bytes>,
}

impl Live {
    fn new() -> Self {
        Self { topology: Topology::new("/"), entries: Vec::new() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change(op) => self.change(op.clone()),
            Step::DeleteQueue(name) => {
                if let Some(record) = self.topology.find_queue(name) {
                    self.change(Op::DeleteQueue { id: record.id });
                }
            }
            Step::BindInMemory(exchange) => {
                let exclusive = QueueDeclare {
                    name: "mine",
                    server_named: false,
                    passive: false,
                    durable: true,
                    exclusive: true,
                    auto_delete: false,
                    arguments: &FieldTable::default(),
                    connection: ME,
                };
                if self.topology.find_queue("mine").is_none() {
                    self.topology.create_queue(QueueId(1 << 63 | self.entries.len() as u64), 0, &exclusive);
                }
                let _ = self.topology.bind_queue("mine", exchange, "k", &FieldTable::default(), ME);
            }
            Step::ForgetInMemory => {
                if let Some(record) = self.topology.find_queue("mine").cloned() {
                    self.topology.delete_queue(record.id);
                }
            }
        }
        loop {
            let used_up = self.topology.take_used_up();
            if used_up.is_empty() {
                break;
            }
            used_up.into_iter().for_each(|name| self.change(Op::DeleteExchange { name, if_unused: true }));
        }
    }

    fn change(&mut self, mut op: Op) {
        // As a connection does it: an exchange that something in memory is bound to is in use.
        if let Op::DeleteExchange { name, if_unused: true } = &op
            && self.topology.check_delete_exchange(name, true).is_err()
        {
            return;
        }
        if let Op::DeclareQueue(declare) = &mut op {
            declare.id = QueueId((self.entries.len() as u64 + 1) << 16);
            declare.shard = self.entries.len() as u32 % DURABLE_SHARDS;
        }
        let mut entry = BytesMut::from(&[ENTRY_FORMAT][..]);
        change(op.clone()).encode(&mut entry);
        self.entries.push(entry.freeze());
        let _ = apply_to(&mut self.topology, &op);
    }

    fn snapshot(&self) -> Bytes {
        let mut builder = snapshot::Builder::new(Index(self.entries.len() as u64), LOCAL_SHARDS);
        builder.add(&self.topology);
        builder.finish()
    }
}

fn replay(topology: &mut Topology, entries: &[Bytes]) {
    for entry in entries {
        for change in decode_entry(entry).expect("the entry is as it was written") {
            let _ = apply_to(topology, &change.op);
            topology.take_used_up();
        }
    }
}

fn restore(contents: &[u8]) -> (Index, Topology) {
    let (_, index, changes) = snapshot::decode(contents).expect("the snapshot is as it was written");
    let mut topology = Topology::new("/");
    for change in changes {
        let change = change.expect("the snapshot is as it was written");
        let applied = apply_to(&mut topology, &change.op);
        assert_eq!(applied, Ok(Applied::Changed), "every change of a snapshot makes something: {change:?}");
    }
    (index, topology)
}

proptest! {
    #[test]
    fn entries_applied_again_and_snapshots_give_what_was_live(steps in proptest::collection::vec(step(), 1..60), at in 0..60_usize) {
        let mut live = Live::new();
        let mut taken = live.snapshot();
        for (number, step) in steps.iter().enumerate() {
            live.step(step);
            if number == at {
                taken = live.snapshot();
            }
        }
        let expected = durable(&live.topology);

        let mut again = Topology::new("/");
        replay(&mut again, &live.entries);
        prop_assert_eq!(&durable(&again), &expected, "from the entries alone");

        let (index, mut topology) = restore(&taken);
        replay(&mut topology, &live.entries[index.0 as usize..]);
        prop_assert_eq!(&durable(&topology), &expected, "from a snapshot and the entries behind it");

        let (_, topology) = restore(&live.snapshot());
        prop_assert_eq!(&durable(&topology), &expected, "from a snapshot alone");
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok((.., changes)) = snapshot::decode(&bytes) {
            changes.for_each(drop);
        }
    }
}

#[test]
fn only_durable_things_are_looked_at() {
    let mut topology = Topology::new("/");
    let none = FieldTable::default();
    let exchange = ExchangeDeclare {
        name: "x",
        kind: "direct",
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: &none,
    };
    topology.declare_exchange(&exchange).expect("declared");
    let queue = QueueDeclare {
        name: "q",
        server_named: false,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        arguments: &none,
        connection: ME,
    };
    topology.create_queue(QueueId(1 << 63), 0, &queue);
    let refused = |topology: &mut Topology, op: Op| apply_to(topology, &op).expect_err("refused").reply_text();
    let bind = |to: &str, from: &str| binding(to, from, "k");
    let text = "NOT_FOUND - no exchange 'x' in vhost '/'";
    assert_eq!(refused(&mut topology, Op::BindQueue(bind("q", "x"))), text);
    assert_eq!(refused(&mut topology, Op::BindExchange(bind("x", "amq.topic"))), text);
    assert_eq!(refused(&mut topology, Op::BindQueue(bind("q", "amq.topic"))), "NOT_FOUND - no queue 'q' in vhost '/'");
    let delete = Op::DeleteExchange { name: "x".into(), if_unused: false };
    assert_eq!(apply_to(&mut topology, &delete), Ok(Applied::Unchanged));
    assert!(topology.find_exchange("x").is_some());
    let predeclared = Op::DeleteExchange { name: "amq.topic".into(), if_unused: false };
    assert!(refused(&mut topology, predeclared).starts_with("ACCESS_REFUSED"));
}

// ---- the way to the disk ------------------------------------------------------------------------------------------------

fn asker(token: u64) -> Asker {
    Asker { handle: ConnectionHandle::new(ME), token: Token(token) }
}

fn item(op: Op, token: u64) -> Item {
    Item::Change { change: change(op), asker: Some(asker(token)), cascade: false }
}

fn barrier(after: Earlier, token: u64) -> Item {
    Item::Answer { after, asker: asker(token), applied: Applied::Unchanged }
}

fn unbind() -> Op {
    Op::UnbindQueue(binding("q", "x", "k"))
}

/// The tokens of those who asked, in order.
fn tokens<'a>(items: impl IntoIterator<Item = &'a Item>) -> Vec<u64> {
    let token = |item: &Item| match item {
        Item::Change { asker, .. } => asker.as_ref().expect("somebody asked").token.0,
        Item::Answer { asker, .. } => asker.token.0,
    };
    items.into_iter().map(token).collect()
}

fn submit(pipeline: &mut Pipeline) -> Vec<Submission> {
    let mut due = Vec::new();
    let submissions = pipeline.submissions(&mut due);
    assert!(due.is_empty(), "something is before it");
    submissions
}

fn changes(submission: &Submission) -> (Index, Vec<Op>) {
    let [Operation::Append(entry)] = &submission.operations[..] else { panic!("one entry") };
    let changes = decode_entry(&entry.payload).expect("well made");
    (entry.index, changes.into_iter().map(|change| change.op).collect())
}

#[test]
fn all_that_waits_is_one_entry_and_queues_are_named_by_their_place_in_it() {
    let mut pipeline = Pipeline::new(Index(4), DURABLE_SHARDS);
    pipeline.add(item(declare_exchange("x"), 1));
    pipeline.add(item(declare_queue("q"), 2));
    pipeline.add(barrier(Earlier::All, 3));
    let submissions = submit(&mut pipeline);
    assert_eq!(submissions.len(), 1);
    let (index, ops) = changes(&submissions[0]);
    let Op::DeclareQueue(declare) = &ops[1] else { panic!("the second is the queue") };
    assert_eq!((index, declare.id), (Index(5), QueueId(5 << 16 | 1)));
    assert!(!submissions[0].critical);
    pipeline.add(barrier(Earlier::Removals, 4));
    assert!(submit(&mut pipeline).is_empty(), "an answer needs no entry");
    assert!(pipeline.written(Ticket(0)).is_empty());
    let written = pipeline.written(submissions[0].ticket);
    assert_eq!(written[0].0, Index(5));
    assert_eq!(tokens(&written[0].1), [1, 2, 3, 4]);
    let mut due = Vec::new();
    pipeline.add(barrier(Earlier::All, 5));
    assert!(pipeline.submissions(&mut due).is_empty());
    assert_eq!(tokens(&due), [5], "nothing is before it");
}

#[test]
fn a_flood_is_cut_into_entries() {
    let mut pipeline = Pipeline::new(Index(0), DURABLE_SHARDS);
    for token in 0..10_000 {
        pipeline.add(item(declare_queue(&format!("{token:0>60}")), token));
    }
    let submissions = submit(&mut pipeline);
    assert!((3..10).contains(&submissions.len()), "{}", submissions.len());
    let last = submissions.last().expect("several");
    assert_eq!(changes(last).0, Index(submissions.len() as u64));
    let written = pipeline.written(last.ticket);
    let all: Vec<u64> = written.iter().flat_map(|(_, items)| tokens(items)).collect();
    assert_eq!(all, (0..10_000).collect::<Vec<u64>>());
}

#[test]
fn on_a_full_disk_removals_go_on_and_the_rest_waits_in_order() {
    let mut pipeline = Pipeline::new(Index(0), DURABLE_SHARDS);
    pipeline.add(item(declare_queue("a"), 1));
    let first = submit(&mut pipeline);
    pipeline.add(item(declare_queue("b"), 2));
    pipeline.add(item(unbind(), 3));
    let second = submit(&mut pipeline);
    pipeline.add(barrier(Earlier::All, 4));
    pipeline.add(barrier(Earlier::Removals, 5));
    pipeline.add(item(unbind(), 6));
    let third = submit(&mut pipeline);
    assert!(!second[0].critical && third[0].critical);

    assert!(pipeline.no_space(second[0].ticket), "the log is to be resumed");
    assert!(!pipeline.no_space(third[0].ticket), "once");
    let removals = submit(&mut pipeline);
    assert!(removals[0].critical);
    assert_eq!(changes(&removals[0]).0, Index(2), "nothing is written over a gap");
    assert_eq!(tokens(&pipeline.written(first[0].ticket)[0].1), [1]);
    assert_eq!(tokens(&pipeline.written(removals[0].ticket)[0].1), [3, 5, 6]);
    pipeline.add(item(declare_queue("c"), 7));
    assert!(submit(&mut pipeline).is_empty() && pipeline.is_short_of_space());

    pipeline.look_for_space(false);
    assert!(submit(&mut pipeline).is_empty() && pipeline.is_short_of_space());
    pipeline.look_for_space(true);
    let rest = submit(&mut pipeline);
    let (index, ops) = changes(&rest[0]);
    let Op::DeclareQueue(declare) = &ops[0] else { panic!("b is first") };
    assert_eq!((index, declare.id), (Index(3), QueueId(3 << 16)), "its identity is that of the place it got");
    assert_eq!(tokens(&pipeline.written(rest[0].ticket)[0].1), [2, 4, 7]);
    assert!(!pipeline.is_short_of_space());
}

#[test]
fn when_the_reserve_is_used_up_everything_waits() {
    let mut pipeline = Pipeline::new(Index(0), DURABLE_SHARDS);
    pipeline.add(item(unbind(), 1));
    let submitted = submit(&mut pipeline);
    assert!(pipeline.no_space(submitted[0].ticket));
    assert!(submit(&mut pipeline).is_empty(), "not at once again: it would fail for ever");
    pipeline.look_for_space(false);
    let again = submit(&mut pipeline);
    assert_eq!(changes(&again[0]).0, Index(1));
    assert_eq!(tokens(&pipeline.written(again[0].ticket)[0].1), [1]);
}

#[test]
fn when_the_log_stops_all_are_given_up() {
    let mut pipeline = Pipeline::new(Index(0), DURABLE_SHARDS);
    pipeline.add(item(declare_queue("a"), 1));
    submit(&mut pipeline);
    pipeline.add(barrier(Earlier::All, 2));
    submit(&mut pipeline);
    pipeline.add(item(unbind(), 3));
    assert_eq!(tokens(&pipeline.give_up()), [1, 2, 3]);
    assert!(pipeline.is_idle());
}

#[test]
fn queues_are_spread_over_the_shards() {
    let mut pipeline = Pipeline::new(Index(0), DURABLE_SHARDS);
    let mut counts = [0; DURABLE_SHARDS as usize];
    for token in 0..300 {
        pipeline.add(item(declare_queue("q"), token));
        let (_, ops) = changes(&submit(&mut pipeline)[0]);
        let Op::DeclareQueue(declare) = &ops[0] else { panic!("a queue") };
        counts[declare.shard as usize] += 1;
    }
    assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
}

// ---- the task ---------------------------------------------------------------------------------------------------------

/// Waits for what a connection is told about a change.
async fn answer_to(handle: &ConnectionHandle) -> Result<Applied, amqp::Exception> {
    let mut events = Vec::new();
    std::future::poll_fn(|context| handle.mailbox.poll_take(context, &mut events)).await;
    match events.pop() {
        Some(Event::Metadata { result, .. }) if events.is_empty() => result,
        other => panic!("one answer is expected: {other:?}"),
    }
}

#[test]
fn when_the_log_stops_whoever_asks_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let data_dir = dir.path().to_path_buf();
        let settings = Settings { data_dir, shards: 1, durable_shards: 1, ..Settings::default() };
        let broker = Broker::start(settings).expect("the node starts");
        let vhost = broker.vhost("/").expect("it is there from the start");
        let asker = asker(1);
        let ask = |op: Op| {
            vhost.claims().make(&op);
            broker.metadata().send(Input::Change { change: change(op), asker: Some(asker.clone()) });
        };
        ask(declare_exchange("x"));
        assert_eq!(answer_to(&asker.handle).await, Ok(Applied::Changed));
        ask(declare_exchange("x"));
        assert_eq!(answer_to(&asker.handle).await, Ok(Applied::Unchanged));
        let error = StorageError::Stopped { reason: "cannot sync: it is gone".into() };
        broker.metadata().send(Input::Failed(Ticket(99), error));
        ask(declare_exchange("y"));
        let exception = answer_to(&asker.handle).await.expect_err("refused");
        assert!(
            exception.whole_connection
                && exception.reply_text().starts_with("RESOURCE_ERROR - the node's log has stopped")
        );
        broker.metadata().send(Input::Barrier { after: Earlier::All, asker: asker.clone() });
        assert!(answer_to(&asker.handle).await.is_err(), "what it waits for does not happen");
        assert!(vhost.read().find_exchange("y").is_none());
    });
}
