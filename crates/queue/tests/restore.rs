//! A queue that comes back from a snapshot goes on numbering where it stopped.

use warrenmq_queue::{Chunk, Machine, QueueId, Sequence, Settings};

fn chunk(first: u64, count: u32) -> Chunk {
    Chunk { first, count, bytes: count * 10, file: 1, offset: 4096, length: 500, ..Chunk::default() }
}

/// The last messages of a queue were settled before its snapshot was made, so no chunk has their numbers. Entries in the log behind the
/// snapshot name messages by the numbers that they got at the time: if the restored queue gives other ones, a removal takes out the
/// wrong message.
#[test]
fn the_next_message_gets_the_number_of_the_snapshot_even_if_the_last_ones_are_gone() {
    let settings = Settings { durable: true, ..Settings::default() };
    let machine = Machine::restore(QueueId(1), settings, Sequence(10), Sequence(0), vec![chunk(0, 5)], &[]);
    assert_eq!(machine.next_sequence(), Sequence(10));
    assert_eq!(machine.counts().ready, 5);
}

#[test]
fn a_message_behind_removed_ones_keeps_its_number_after_restoring() {
    let settings = Settings { durable: true, ..Settings::default() };
    let mut machine = Machine::restore(QueueId(1), settings, Sequence(10), Sequence(0), vec![chunk(0, 5)], &[]);
    machine.enqueue_cold(chunk(0, 1), 0);
    assert_eq!(machine.next_sequence(), Sequence(11));
    // The removal that the log has of message 10 takes out that one, and none of the first five.
    let removed: warrenmq_queue::Intervals = [Sequence(10)].into_iter().collect();
    machine.remove(&removed, &mut Vec::new());
    assert_eq!(machine.counts().ready, 5);
}

#[test]
fn numbers_behind_the_last_chunk_are_not_given_again_when_it_is_brought_back() {
    let settings = Settings { durable: true, ..Settings::default() };
    let mut machine = Machine::restore(QueueId(1), settings, Sequence(10), Sequence(0), vec![chunk(0, 5)], &[]);
    machine.page_in(vec![None; 5], &mut Vec::new());
    assert_eq!(machine.next_sequence(), Sequence(10));
}
