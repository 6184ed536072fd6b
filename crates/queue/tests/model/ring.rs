//! Old messages in a queue through which very many others pass: order and counts hold although the table of live messages has long
//! moved the old ones aside.

use queue::{ConsumerId, Intervals, Machine, Message, Outcome, QueueId, Sequence, Settings};
use warrenmq_queue as queue;

const OLD: u64 = 8;

const SLOW: ConsumerId = ConsumerId { connection: 1, local: 1 };
const FAST: ConsumerId = ConsumerId { connection: 2, local: 1 };

/// A queue from which [`OLD`] messages are out, each with `passes` others between it and the next: many times what the table of live
/// messages keeps in one piece.
fn held(passes: u64) -> (Machine, Vec<Sequence>) {
    let mut machine = Machine::new(QueueId(1), Settings::default());
    let message = Message::from_parts(b"\0\0", b"\0\0", b"body");
    let mut old = Vec::new();
    for _ in 0..OLD {
        machine.enqueue(message.clone());
        old.push(machine.get(SLOW, false).expect("just enqueued").sequence);
        for _ in 0..passes {
            let sequence = machine.enqueue(message.clone());
            let got = machine.get(FAST, false).expect("just enqueued");
            assert_eq!((got.sequence, got.remaining), (sequence, 0));
            let settled = machine.settle(FAST, &Intervals::one(sequence), Outcome::Ack);
            assert_eq!(settled.count(), 1);
            machine.remove(&settled);
        }
    }
    let counts = machine.counts();
    assert_eq!((counts.ready, counts.unacked), (0, OLD));
    (machine, old)
}

#[test]
fn old_unacked_messages_come_back_in_their_order_after_a_million_others() {
    let (mut machine, old) = held(130_000);
    let last = machine.enqueue(Message::from_parts(b"\0\0", b"\0\0", b"last"));
    for &sequence in old.iter().rev() {
        machine.settle(SLOW, &Intervals::one(sequence), Outcome::Requeue);
    }
    assert_eq!(machine.counts().ready, OLD + 1);
    for (position, &sequence) in old.iter().enumerate() {
        let got = machine.get(FAST, false).expect("one of the old");
        assert_eq!((got.sequence, got.redelivered, got.remaining), (sequence, true, OLD - position as u64));
    }
    let got = machine.get(FAST, false).expect("the last");
    assert_eq!((got.sequence, got.redelivered), (last, false));
}

#[test]
fn old_unacked_messages_are_settled_after_very_many_others() {
    let (mut machine, old) = held(15_000);
    // One that passed long ago, as a confused client might: it is nobody's.
    assert!(machine.settle(SLOW, &Intervals::one(Sequence(old[1].0 + 1)), Outcome::Ack).is_empty());
    assert!(machine.settle(FAST, &Intervals::one(old[1]), Outcome::Ack).is_empty(), "it is out with another");
    let sequences: Intervals = old.iter().copied().collect();
    let settled = machine.settle(SLOW, &sequences, Outcome::Ack);
    assert_eq!(settled, sequences);
    machine.remove(&settled);
    assert_eq!(machine.counts().unacked, 0);
    assert!(machine.get(FAST, false).is_none());
}

#[test]
fn a_lost_holders_old_messages_come_back_after_very_many_others() {
    let (mut machine, old) = held(15_000);
    assert_eq!(machine.holders(SLOW.connection), [SLOW]);
    machine.detach(SLOW, true);
    assert_eq!(machine.ready_sequences(), old.iter().copied().collect());
    assert_eq!((machine.counts().ready, machine.counts().unacked), (OLD, 0));
}
