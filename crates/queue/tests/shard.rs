//! Stories of a shard: batches in, effects out.

use bytes::Bytes;
use queue::{
    Admission, Batch, ConsumerId, ConsumerSpec, Effect, Enqueue, Intervals, Message, MessageRef, Op, Outcome, QueueId,
    Reply, Sequence, Settings, Shard, Targets, Token,
};
use warrenmq_queue as queue;

const QUEUE: QueueId = QueueId(7);

/// Takes everything, but for the consumers that it was told to turn away.
#[derive(Default)]
struct Gate {
    shut: Vec<ConsumerId>,
}

impl Admission for Gate {
    fn admit(&mut self, consumer: ConsumerId, _bytes: usize) -> bool {
        !self.shut.contains(&consumer)
    }
}

/// A shard with one queue, and what it did.
struct Story {
    shard: Shard,
    gate: Gate,
    number: u64,
}

impl Story {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let mut story = Self { shard: Shard::new(), gate: Gate::default(), number: 0 };
        story.run(vec![Op::Create { queue: QUEUE, settings }]);
        story
    }

    fn run(&mut self, ops: Vec<Op>) -> Vec<Effect> {
        self.run_with(ops, Vec::new())
    }

    fn run_with(&mut self, ops: Vec<Op>, buffers: Vec<Bytes>) -> Vec<Effect> {
        self.number += 1;
        let mut effects = Vec::new();
        self.shard.apply(
            Batch { connection: 1, number: self.number, urgent: false, ops, buffers },
            &mut self.gate,
            &mut effects,
        );
        self.shard.deliver(&mut self.gate, &mut effects);
        effects.retain(|effect| !matches!(effect, Effect::BatchDone { .. }));
        effects
    }

    fn publish(&mut self, bodies: &[&str]) -> Vec<String> {
        let mut data = Vec::new();
        let mut ops = Vec::new();
        for body in bodies {
            let start = data.len() as u32;
            data.extend_from_slice(b"\0\0\0\0");
            data.extend_from_slice(body.as_bytes());
            let message =
                MessageRef { buffer: 0, start, len: data.len() as u32 - start, envelope_bytes: 2, properties_bytes: 2 };
            ops.push(Op::Enqueue(Enqueue::plain(Targets::One(QUEUE), message)));
        }
        show(&self.run_with(ops, vec![Bytes::from(data)]))
    }

    fn consume(&mut self, local: u32, spec: ConsumerSpec) -> Vec<String> {
        let op = Op::Attach { queue: QUEUE, consumer: consumer(local), spec, token: Some(Token(0)) };
        show(&self.run(vec![op]))
    }

    fn settle(&mut self, local: u32, outcome: Outcome, sequences: &[u64]) -> Vec<String> {
        let sequences: Intervals = sequences.iter().copied().map(Sequence).collect();
        show(&self.run(vec![Op::Settle { queue: QUEUE, consumer: consumer(local), outcome, sequences }]))
    }

    fn detach(&mut self, local: u32, requeue: bool) -> Vec<String> {
        show(&self.run(vec![Op::Detach { queue: QUEUE, consumer: consumer(local), requeue, token: None }]))
    }

    fn get(&mut self, no_ack: bool) -> Vec<String> {
        show(&self.run(vec![Op::Get { queue: QUEUE, holder: consumer(99), no_ack, token: Token(0) }]))
    }

    fn ready_and_unacked(&self) -> (u64, u64) {
        let counts = self.shard.queue(QUEUE).expect("the queue is there").counts();
        (counts.ready, counts.unacked)
    }
}

fn consumer(local: u32) -> ConsumerId {
    ConsumerId { connection: 1, local }
}

fn prefetch(prefetch: u32) -> ConsumerSpec {
    ConsumerSpec { prefetch, ..ConsumerSpec::default() }
}

fn body(message: &Message, redelivered: bool) -> String {
    let again = if redelivered { "!" } else { "" };
    format!("{}{again}", String::from_utf8_lossy(message.body_bytes()))
}

fn show(effects: &[Effect]) -> Vec<String> {
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Deliver(d) => format!("{}<{}", d.consumer.local, body(&d.message, d.redelivered)),
            Effect::Reply { reply: Reply::Get(Some(got)), .. } => {
                format!("got {} left {}", body(&got.message, got.redelivered), got.remaining)
            }
            Effect::Reply { reply, .. } => format!("{reply:?}"),
            Effect::CancelConsumer { consumer } => format!("cancel {}", consumer.local),
            Effect::QueueGone { .. } => "gone".to_owned(),
            Effect::Rejected { publish, .. } => format!("rejected {publish}"),
            Effect::DeadLetter(letter) => format!("{:?}>{}", letter.reason, body(&letter.message, false)),
            Effect::BatchDone { .. } => "done".to_owned(),
        })
        .collect()
}

#[test]
fn messages_go_round_robin_and_consumers_without_room_are_passed_over() {
    let mut story = Story::new();
    story.consume(1, prefetch(1));
    story.consume(2, prefetch(0));
    story.consume(3, prefetch(2));
    assert_eq!(story.publish(&["a", "b", "c", "d", "e", "f", "g"]), ["1<a", "2<b", "3<c", "2<d", "3<e", "2<f", "2<g"]);
    assert_eq!(story.settle(1, Outcome::Ack, &[0]), Vec::<String>::new());
    assert_eq!(story.publish(&["h", "i"]), ["2<h", "1<i"]);
}

#[test]
fn the_reply_to_attach_comes_before_its_first_delivery() {
    let mut story = Story::new();
    story.publish(&["a", "b"]);
    assert_eq!(story.consume(1, prefetch(1)), ["Attached", "1<a"]);
}

#[test]
fn requeued_messages_take_their_old_places_in_whatever_order_they_come_back() {
    let mut story = Story::new();
    story.publish(&["0", "1", "2", "3", "4"]);
    story.consume(1, prefetch(3));
    story.detach(1, false);
    assert_eq!(story.ready_and_unacked(), (2, 3));
    story.settle(1, Outcome::Requeue, &[2]);
    story.settle(1, Outcome::Requeue, &[0, 1]);
    assert_eq!(story.consume(2, prefetch(0)), ["Attached", "2<0!", "2<1!", "2<2!", "2<3", "2<4"]);
}

#[test]
fn a_lost_consumers_messages_go_back_and_stale_settles_are_passed_over() {
    let mut story = Story::new();
    story.consume(1, prefetch(2));
    story.publish(&["a", "b", "c"]);
    story.consume(2, prefetch(1));
    assert_eq!(story.detach(1, true), Vec::<String>::new());
    assert_eq!(story.ready_and_unacked(), (2, 1));
    assert_eq!(story.settle(1, Outcome::Ack, &[0, 1]), Vec::<String>::new(), "they are not out with 1 any more");
    assert_eq!(story.settle(2, Outcome::Ack, &[2]), ["2<a!"]);
    assert_eq!(story.settle(2, Outcome::Discard, &[0]), ["2<b!"]);
    story.settle(2, Outcome::Ack, &[1, 1]);
    assert_eq!(story.ready_and_unacked(), (0, 0));
}

#[test]
fn a_settle_counts_once() {
    let mut story = Story::new();
    story.consume(1, prefetch(1));
    story.publish(&["a", "b", "c"]);
    assert_eq!(story.settle(1, Outcome::Ack, &[0, 0]), ["1<b"]);
    assert_eq!(story.settle(1, Outcome::Ack, &[0]), Vec::<String>::new());
    assert_eq!(story.ready_and_unacked(), (1, 1));
}

#[test]
fn an_exclusive_consumer_is_alone() {
    let mut story = Story::new();
    let exclusive = ConsumerSpec { exclusive: true, ..ConsumerSpec::default() };
    assert_eq!(story.consume(1, prefetch(0)), ["Attached"]);
    assert_eq!(story.consume(2, exclusive), ["InUse"]);
    story.detach(1, false);
    assert_eq!(story.consume(2, exclusive), ["Attached"]);
    assert_eq!(story.consume(3, prefetch(0)), ["InUse"]);
}

#[test]
fn a_single_active_consumer_is_followed_in_order_of_arrival() {
    let mut story = Story::with(Settings { single_active_consumer: true, ..Settings::default() });
    for local in 1..=3 {
        story.consume(local, prefetch(1));
    }
    assert_eq!(story.publish(&["a", "b"]), ["1<a"], "the others wait although the active one is full");
    assert_eq!(story.detach(1, true), ["2<a!"]);
    assert_eq!(story.detach(3, true), Vec::<String>::new());
    assert_eq!(story.settle(2, Outcome::Ack, &[0]), ["2<b"]);
}

#[test]
fn higher_priority_is_served_while_it_has_room() {
    let mut story = Story::new();
    story.consume(1, ConsumerSpec { prefetch: 2, priority: -1, ..ConsumerSpec::default() });
    story.consume(2, ConsumerSpec { prefetch: 2, priority: 5, ..ConsumerSpec::default() });
    story.consume(3, prefetch(2));
    assert_eq!(story.publish(&["a", "b", "c", "d", "e", "f", "g"]), ["2<a", "2<b", "3<c", "3<d", "1<e", "1<f"]);
    assert_eq!(story.settle(3, Outcome::Ack, &[2]), ["3<g"]);
}

#[test]
fn a_consumer_that_is_turned_away_gets_nothing_until_it_is_resumed() {
    let mut story = Story::new();
    story.consume(1, ConsumerSpec { no_ack: true, ..ConsumerSpec::default() });
    story.gate.shut.push(consumer(1));
    assert_eq!(story.publish(&["a", "b"]), Vec::<String>::new());
    story.gate.shut.clear();
    assert_eq!(story.publish(&["c"]), Vec::<String>::new());
    let effects = story.run(vec![Op::Resume { queue: QUEUE, consumer: consumer(1) }]);
    assert_eq!(show(&effects), ["1<a", "1<b", "1<c"]);
    assert_eq!(story.ready_and_unacked(), (0, 0));
}

#[test]
fn get_sees_what_consumers_left_and_holds_it_until_settled() {
    let mut story = Story::new();
    story.publish(&["a", "b", "c"]);
    assert_eq!(story.get(false), ["got a left 2"]);
    assert_eq!(story.get(true), ["got b left 1"]);
    story.settle(99, Outcome::Requeue, &[0]);
    assert_eq!(story.get(false), ["got a! left 1"]);
    story.detach(99, true);
    assert_eq!(story.ready_and_unacked(), (2, 0));
}

#[test]
fn purge_drops_the_ready_and_leaves_the_unacked() {
    let mut story = Story::new();
    story.publish(&["a", "b", "c", "d"]);
    story.get(false);
    story.get(false);
    story.settle(99, Outcome::Requeue, &[1]);
    let effects = story.run(vec![Op::Purge { queue: QUEUE, token: Some(Token(3)) }]);
    assert_eq!(show(&effects), ["Purged(3)"]);
    assert_eq!(story.ready_and_unacked(), (0, 1));
    assert_eq!(story.get(false), ["Get(None)"]);
}

#[test]
fn a_deleted_queue_answers_first_and_then_cancels_its_consumers() {
    let mut story = Story::new();
    story.consume(1, prefetch(1));
    story.publish(&["a", "b"]);
    let delete = |if_unused, if_empty| Op::Delete { queue: QUEUE, if_unused, if_empty, token: Some(Token(1)) };
    assert_eq!(show(&story.run(vec![delete(true, false)])), ["InUse"]);
    assert_eq!(show(&story.run(vec![delete(false, true)])), ["NotEmpty"]);
    assert_eq!(show(&story.run(vec![delete(false, false)])), ["gone", "Deleted(1)", "cancel 1"]);
    assert_eq!(show(&story.run(vec![delete(false, false)])), ["Gone"]);
    assert_eq!(story.publish(&["late"]), Vec::<String>::new());
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer_but_not_before_the_first() {
    let mut story = Story::with(Settings { auto_delete: true, ..Settings::default() });
    story.publish(&["a"]);
    story.get(false);
    story.detach(99, true);
    assert_eq!(story.ready_and_unacked(), (1, 0), "a holder is no consumer");
    story.consume(1, prefetch(0));
    story.consume(2, prefetch(0));
    assert_eq!(story.detach(1, true), ["2<a!"]);
    assert_eq!(story.detach(2, true), ["gone"]);
}

#[test]
fn a_consumer_cancelled_with_messages_out_can_still_settle_them() {
    let mut story = Story::new();
    story.consume(1, prefetch(0));
    story.publish(&["a", "b"]);
    story.detach(1, false);
    story.settle(1, Outcome::Ack, &[0]);
    story.settle(1, Outcome::Requeue, &[1]);
    assert_eq!(story.get(true), ["got b! left 0"]);
}
