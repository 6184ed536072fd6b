//! Deliveries of a channel that the client has not settled, in the order of their tags.

use std::collections::VecDeque;

use queue::{QueueId, Sequence};

/// A delivery that is out with the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacked {
    pub(crate) tag: u64,
    pub(crate) queue: QueueId,
    pub(crate) shard: u32,
    /// The consumer, or the channel's holder for what came by `basic.get`.
    pub(crate) consumer: u32,
    pub(crate) sequence: Sequence,
}

/// The table of unsettled deliveries. Invariant: tags rise.
#[derive(Debug, Default)]
pub(crate) struct UnackedTable {
    entries: VecDeque<Unacked>,
}

impl UnackedTable {
    pub(crate) fn push(&mut self, entry: Unacked) {
        debug_assert!(self.entries.back().is_none_or(|last| last.tag < entry.tag), "tags rise");
        self.entries.push_back(entry);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unacked> {
        self.entries.iter()
    }

    /// Takes what an ack, nack or reject of `tag` settles, oldest first, into `taken`. Tag 0 with `multiple` is all.
    /// `false` when the tag is unknown.
    pub(crate) fn take(&mut self, tag: u64, multiple: bool, taken: &mut Vec<Unacked>) -> bool {
        if multiple && tag == 0 {
            taken.extend(self.entries.drain(..));
            self.shrink();
            return true;
        }
        // Acks come mostly in order: the first entry is the first guess.
        let found = match self.entries.front() {
            Some(first) if first.tag == tag => Ok(0),
            _ => self.entries.binary_search_by_key(&tag, |entry| entry.tag),
        };
        match (found, multiple) {
            (Ok(0), _) => taken.extend(self.entries.pop_front()),
            (Ok(at), false) => taken.extend(self.entries.remove(at)),
            (Ok(at), true) => taken.extend(self.entries.drain(..=at)),
            (Err(_), _) => return false,
        }
        self.shrink();
        true
    }

    /// Puts back what was taken.
    pub(crate) fn restore(&mut self, taken: Vec<Unacked>) {
        self.entries.extend(taken);
        self.entries.make_contiguous().sort_by_key(|entry| entry.tag);
    }

    /// A channel that held many deliveries once does not keep the room for ever.
    fn shrink(&mut self) {
        const KEEP: usize = 1024;
        if self.entries.is_empty() && self.entries.capacity() > KEEP {
            self.entries.shrink_to(KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(tags: &[u64]) -> UnackedTable {
        let mut table = UnackedTable::default();
        for &tag in tags {
            table.push(Unacked { tag, queue: QueueId(1), shard: 0, consumer: 0, sequence: Sequence(tag) });
        }
        table
    }

    fn take(table: &mut UnackedTable, tag: u64, multiple: bool) -> Option<Vec<u64>> {
        let mut taken = Vec::new();
        table.take(tag, multiple, &mut taken).then(|| taken.iter().map(|entry| entry.tag).collect())
    }

    #[test]
    fn tags_settle_once_alone_or_up_to() {
        let mut table = table(&[1, 3, 4, 7, 9]);
        assert_eq!(take(&mut table, 4, false), Some(vec![4]));
        assert_eq!(take(&mut table, 4, false), None);
        assert_eq!(take(&mut table, 8, true), None, "a tag that was never out is unknown");
        assert_eq!(take(&mut table, 7, true), Some(vec![1, 3, 7]));
        assert_eq!(take(&mut table, 0, false), None);
        assert_eq!(take(&mut table, 0, true), Some(vec![9]));
        assert_eq!(take(&mut table, 0, true), Some(vec![]), "all of nothing is fine");
    }

    #[test]
    fn what_is_restored_stands_where_it_was() {
        let mut table = table(&[1, 2, 3, 4]);
        let mut taken = Vec::new();
        assert!(table.take(2, false, &mut taken) && table.take(4, false, &mut taken));
        table.restore(taken);
        assert_eq!(table.iter().map(|entry| entry.tag).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
