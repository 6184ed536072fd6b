//! Old messages in a queue through which very many others pass: order and counts hold although the table of live messages has long
//! moved the old ones aside.

use bytes::Bytes;
use queue::{
    Batch, ConsumerId, Effect, Enqueue, GetReply, Intervals, MessageRef, Op, Outcome, QueueId, Reply, Sequence,
    Settings, Shard, Targets, Token,
};
use warrenmq_queue as queue;

use crate::naive::Gate;

const QUEUE: QueueId = QueueId(1);
const SLOW: ConsumerId = ConsumerId { connection: 1, local: 1 };
const FAST: ConsumerId = ConsumerId { connection: 2, local: 1 };
/// Messages that are held by the slow one.
const OLD: u64 = 8;
const MESSAGE: &[u8] = b"\0\0\0\0body";

/// A queue, and what its shard answered last.
struct Story {
    shard: Shard,
    number: u64,
    effects: Vec<Effect>,
}

impl Story {
    fn new() -> Self {
        let mut story = Self { shard: Shard::new(), number: 0, effects: Vec::new() };
        story.run(vec![Op::Create { queue: QUEUE, settings: Settings::default() }]);
        story
    }

    /// A queue from which [`OLD`] messages are out, each with `passes` others between it and the next: many times what the
    /// table of live messages keeps in one piece. Answers their sequences, too.
    fn with_old(passes: u64) -> (Self, Vec<Sequence>) {
        let mut story = Self::new();
        let mut old = Vec::new();
        for _ in 0..OLD {
            story.publish();
            old.push(story.get(SLOW).expect("just published").sequence);
            for _ in 0..passes {
                story.publish();
                let got = story.get(FAST).expect("just published");
                assert!(got.sequence > old[old.len() - 1] && got.remaining == 0);
                story.settle(FAST, Outcome::Ack, &[got.sequence]);
            }
        }
        assert_eq!(story.ready_and_unacked(), (0, OLD));
        (story, old)
    }

    fn run(&mut self, ops: Vec<Op>) {
        self.number += 1;
        self.effects.clear();
        let batch = Batch {
            connection: 1,
            number: self.number,
            urgent: false,
            ops,
            buffers: vec![Bytes::from_static(MESSAGE)],
        };
        self.shard.apply(batch, &mut Gate::default(), &mut self.effects);
        self.shard.deliver(&mut Gate::default(), &mut self.effects);
    }

    fn publish(&mut self) {
        let len = MESSAGE.len() as u32;
        let message = MessageRef { buffer: 0, start: 0, len, envelope_bytes: 2, properties_bytes: 2 };
        self.run(vec![Op::Enqueue(Enqueue::plain(Targets::One(QUEUE), message))]);
    }

    fn get(&mut self, holder: ConsumerId) -> Option<GetReply> {
        self.run(vec![Op::Get { queue: QUEUE, holder, no_ack: false, token: Token(0) }]);
        match self.effects.swap_remove(0) {
            Effect::Reply { reply: Reply::Get(got), .. } => got,
            other => panic!("a get was answered by {other:?}"),
        }
    }

    fn settle(&mut self, consumer: ConsumerId, outcome: Outcome, sequences: &[Sequence]) {
        let sequences: Intervals = sequences.iter().copied().collect();
        self.run(vec![Op::Settle { queue: QUEUE, consumer, outcome, sequences }]);
    }

    fn ready_and_unacked(&self) -> (u64, u64) {
        let counts = self.shard.queue(QUEUE).expect("the queue is there").counts();
        (counts.ready, counts.unacked)
    }

    /// The old messages are ready again, in their order.
    fn finds_ready(&mut self, old: &[Sequence], behind: u64) {
        assert_eq!(self.ready_and_unacked(), (OLD + behind, 0));
        for (position, &sequence) in old.iter().enumerate() {
            let got = self.get(FAST).expect("one of the old");
            let left = OLD + behind - 1 - position as u64;
            assert_eq!((got.sequence, got.redelivered, got.remaining), (sequence, true, left));
        }
    }
}

#[test]
fn old_unacked_messages_come_back_in_their_order_after_a_million_others() {
    let (mut story, old) = Story::with_old(130_000);
    story.publish();
    for &sequence in old.iter().rev() {
        story.settle(SLOW, Outcome::Requeue, &[sequence]);
    }
    story.finds_ready(&old, 1);
    let last = story.get(FAST).expect("what was published last");
    assert!(last.sequence > old[old.len() - 1] && !last.redelivered);
}

#[test]
fn old_unacked_messages_are_settled_after_very_many_others() {
    let (mut story, old) = Story::with_old(15_000);
    // One that passed long ago, as a confused client might: it is nobody's.
    story.settle(SLOW, Outcome::Ack, &[Sequence(old[1].0 + 1)]);
    // Out with another.
    story.settle(FAST, Outcome::Ack, &old);
    assert_eq!(story.ready_and_unacked(), (0, OLD));
    story.settle(SLOW, Outcome::Ack, &old);
    assert_eq!(story.ready_and_unacked(), (0, 0));
    assert_eq!(story.get(FAST), None);
}

#[test]
fn a_lost_holders_old_messages_come_back_after_very_many_others() {
    let (mut story, old) = Story::with_old(15_000);
    let mut effects = Vec::new();
    story.shard.forget_connection(SLOW.connection, &mut effects);
    assert_eq!(effects, []);
    story.finds_ready(&old, 0);
}
