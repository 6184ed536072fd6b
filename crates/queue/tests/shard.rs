//! Stories of a shard: batches in, effects out.

use std::collections::BTreeMap;

use bytes::Bytes;
use queue::{
    Admission, Batch, Chunk, ConsumerId, ConsumerSpec, Effect, Enqueue, Intervals, LETTERS_IN_FLIGHT, Logged, Machine,
    Message, MessageRef, Op, Outcome, Overflow, Paged, Place, QueueId, Reply, Rules, Sequence, Settings, Shard, Stamp,
    Targets, Token,
};
use warrenmq_queue as queue;

const QUEUE: QueueId = QueueId(7);

/// Takes everything, but for the consumers that it was told to turn away.
#[derive(Default)]
struct Gate {
    shut: Vec<ConsumerId>,
    /// What entries of the log have, by offset.
    disk: BTreeMap<u32, Vec<(Message, Stamp)>>,
}

impl Admission for Gate {
    fn admit(&mut self, consumer: ConsumerId, _bytes: usize) -> bool {
        !self.shut.contains(&consumer)
    }

    fn read_chunk(&mut self, _queue: QueueId, chunk: &Chunk) -> Vec<Option<Paged>> {
        let place = Place { file: chunk.file, offset: chunk.offset };
        let messages = self.disk[&chunk.offset].iter().skip(chunk.skip as usize).take(chunk.count as usize);
        messages.map(|(message, stamp)| Some(Paged { message: message.clone(), place, stamp: *stamp })).collect()
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

// ---- what a queue does by itself ----------------------------------------------------------------------------------------

fn with_rules(durable: bool, rules: Rules) -> Settings {
    Settings { durable, rules: Some(Box::new(rules)), ..Settings::default() }
}

impl Story {
    /// Takes what a log brought: one entry with these bodies, published at this time.
    fn logged(&mut self, at_ms: u64, bodies: &[&str], hot: bool) -> (Vec<Effect>, Vec<bool>) {
        let mut effects = Vec::new();
        let mut refused = Vec::new();
        self.number += 1;
        for body in bodies {
            let message = Message::from_parts(b"\0\0", b"\0\0", body.as_bytes());
            let bytes = message.len() as u32;
            let offset = self.number as u32 * 4096;
            let chunk = Chunk {
                count: 1,
                bytes,
                body_bytes: body.len() as u32,
                file: 1,
                offset,
                length: 100,
                enqueued_at_ms: at_ms,
                ..Chunk::default()
            };
            let stamp = Stamp { enqueued_at_ms: at_ms, ..Stamp::default() };
            let place = Place { file: 1, offset };
            let targets = &[QUEUE];
            let logged = Logged { targets, message: &message, stamp, place, chunk, hot };
            self.gate.disk.entry(offset).or_default().push((message.clone(), stamp));
            refused.push(self.shard.enqueue_logged(&logged, &mut self.gate, &mut effects).refused);
        }
        self.shard.deliver(&mut self.gate, &mut effects);
        (effects, refused)
    }

    fn at(&mut self, now_ms: u64) -> Vec<String> {
        self.shard.set_now(now_ms);
        let mut effects = Vec::new();
        self.shard.deliver(&mut self.gate, &mut effects);
        show(&effects)
    }

    fn removed(&mut self) -> Vec<u64> {
        let mut removed = Vec::new();
        self.shard.take_journals(|_, journal| removed.extend(journal.removed.iter().map(|sequence| sequence.0)));
        removed
    }
}

#[test]
fn not_more_letters_than_the_limit_are_on_their_way_and_what_waits_is_not_delivered() {
    let rules = Rules { message_ttl_ms: Some(10), dead_letters: true, ..Rules::default() };
    let mut story = Story::with(with_rules(false, rules));
    let bodies: Vec<String> = (0..LETTERS_IN_FLIGHT + 5).map(|number| number.to_string()).collect();
    story.publish(&bodies.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(story.at(10).len(), LETTERS_IN_FLIGHT);
    assert_eq!(story.ready_and_unacked(), (5, 0));
    assert_eq!(story.shard.next_timer(), None, "the arrival of letters is what goes on from");
    assert_eq!(story.consume(1, prefetch(0)), ["Attached"]);
    assert_eq!(story.get(true), ["Get(None)"]);
    let arrived = [Sequence(0), Sequence(1)].into_iter().collect();
    let effects = story.run(vec![Op::Posted { queue: QUEUE, sequences: arrived }]);
    assert_eq!(show(&effects), ["Expired>1000", "Expired>1001"]);
    assert_eq!(story.ready_and_unacked(), (3, 0));
}

#[test]
fn what_is_on_disk_only_expires_when_it_is_at_the_head_and_is_removed() {
    let rules = Rules { message_ttl_ms: Some(10), ..Rules::default() };
    let mut story = Story::with(with_rules(true, rules));
    story.logged(0, &["a", "b"], false);
    story.logged(5, &["c"], false);
    assert_eq!(story.ready_and_unacked(), (3, 0));
    assert_eq!(story.shard.next_timer(), Some(10), "the head was looked at");
    assert_eq!(story.at(10), Vec::<String>::new());
    assert_eq!((story.ready_and_unacked(), story.removed()), ((1, 0), vec![0, 1]));
    assert_eq!(story.shard.next_timer(), Some(15));
    story.at(15);
    assert_eq!((story.ready_and_unacked(), story.removed()), ((0, 0), vec![2]));
}

#[test]
fn what_has_expired_behind_one_that_was_too_many_goes_with_it() {
    let rules = Rules { message_ttl_ms: Some(10), max_length: Some(1), ..Rules::default() };
    let mut story = Story::with(with_rules(true, rules));
    story.at(10);
    story.logged(5, &["a"], true);
    story.logged(0, &["b"], true);
    assert_eq!((story.ready_and_unacked(), story.removed()), ((0, 0), vec![0, 1]));
    assert_eq!(story.shard.next_timer(), None);
}

#[test]
fn a_message_of_the_log_that_is_refused_keeps_its_number_and_is_removed() {
    let rules = Rules { max_length: Some(2), overflow: Overflow::RejectPublish, ..Rules::default() };
    for hot in [true, false] {
        let mut story = Story::with(with_rules(true, rules.clone()));
        let (_, refused) = story.logged(0, &["a", "b", "c", "d"], hot);
        assert_eq!(refused, [false, false, true, true]);
        assert_eq!((story.ready_and_unacked(), story.removed()), ((2, 0), vec![2, 3]), "hot: {hot}");
        assert_eq!(story.get(true), ["got a left 1"]);
        let (_, refused) = story.logged(0, &["e", "f"], hot);
        assert_eq!(refused, [false, true]);
        assert_eq!(story.get(true), ["got b left 1"]);
        assert_eq!(story.get(true), ["got e left 0"]);
        assert_eq!(story.get(true), ["Get(None)"]);
        assert_eq!(story.removed(), [0, 5, 1, 4]);
    }
}

#[test]
fn a_refused_message_that_is_dead_lettered_is_removed_when_it_has_arrived() {
    let rules =
        Rules { max_length: Some(1), overflow: Overflow::RejectPublishDlx, dead_letters: true, ..Rules::default() };
    for hot in [true, false] {
        let mut story = Story::with(with_rules(true, rules.clone()));
        let (effects, refused) = story.logged(0, &["a", "b"], hot);
        assert_eq!((show(&effects), refused), (vec!["MaxLen>b".to_owned()], vec![false, true]));
        assert_eq!((story.ready_and_unacked(), story.removed()), ((1, 0), vec![]));
        story.run(vec![Op::Posted { queue: QUEUE, sequences: Intervals::one(Sequence(1)) }]);
        assert_eq!(story.removed(), [1]);
        assert_eq!(story.get(true), ["got a left 0"]);
        assert_eq!(story.get(true), ["Get(None)"]);
    }
}

#[test]
fn messages_of_a_queue_with_priorities_come_back_from_disk_before_any_is_delivered() {
    let mut story = Story::with(with_rules(true, Rules { max_priority: Some(9), ..Rules::default() }));
    let message = |body: &[u8]| Message::from_parts(b"\0\0", b"\0\0", body);
    let low = (message(b"low"), Stamp { priority: 1, ..Stamp::default() });
    let high = (message(b"high"), Stamp { priority: 8, ..Stamp::default() });
    story.gate.disk.insert(1, vec![low]);
    story.gate.disk.insert(2, vec![high]);
    let chunk = |first, offset| Chunk { first, count: 1, bytes: 8, file: 1, offset, length: 9, ..Chunk::default() };
    let settings = story.shard.queue(QUEUE).expect("it is there").settings().clone();
    let chunks = vec![chunk(0, 1), chunk(1, 2)];
    story.shard.restore(QUEUE, Machine::restore(QUEUE, settings, Sequence(2), Sequence(0), chunks, &[]));
    story.shard.begin(0);
    assert_eq!(story.get(false), ["got high left 1"]);
    assert_eq!(story.get(false), ["got low left 0"]);
}
