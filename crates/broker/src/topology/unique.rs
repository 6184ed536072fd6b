//! A list without duplicates that keeps the order of insertion and its memory between uses.

use rustc_hash::FxHashSet;

/// Up to this many items the list itself is searched: quicker than hashing, and most routes are this short.
const SEARCHED: usize = 16;

/// What tells one item of a [`Unique`] list from another.
pub(super) trait Keyed {
    fn key(&self) -> u64;
}

impl Keyed for u32 {
    fn key(&self) -> u64 {
        u64::from(*self)
    }
}

/// Items in order of insertion, each once. Inserting takes constant time.
#[derive(Debug)]
pub(super) struct Unique<T> {
    items: Vec<T>,
    /// The keys of the first `hashed` items. Filled only once the list is too long to be searched and is added to.
    keys: FxHashSet<u64>,
    hashed: usize,
}

impl<T> Default for Unique<T> {
    fn default() -> Self {
        Self { items: Vec::new(), keys: FxHashSet::default(), hashed: 0 }
    }
}

impl<T: Keyed + Clone> Unique<T> {
    /// Adds the item unless it is there; true when it was added.
    pub(super) fn insert(&mut self, item: &T) -> bool {
        let key = item.key();
        if self.items.len() < SEARCHED {
            if self.items.iter().any(|present| present.key() == key) {
                return false;
            }
            self.items.push(item.clone());
            return true;
        }
        self.keys.extend(self.items[self.hashed..].iter().map(Keyed::key));
        self.hashed = self.items.len();
        if !self.keys.insert(key) {
            return false;
        }
        self.items.push(item.clone());
        self.hashed += 1;
        true
    }

    /// Adds items that differ from each other. Into an empty list, which is what a plain fan-out is, nothing is looked up.
    pub(super) fn insert_distinct<'a>(&mut self, items: impl Iterator<Item = &'a T>)
    where
        T: 'a,
    {
        if self.items.is_empty() {
            self.items.extend(items.cloned());
        } else {
            items.for_each(|item| {
                self.insert(item);
            });
        }
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        if self.hashed > 0 {
            self.keys.clear();
            self.hashed = 0;
        }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        &self.items
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_once_and_in_order_however_many_there_are() {
        let mut list = Unique::default();
        for round in 0..3 {
            for item in 0..100_u32 {
                assert_eq!(list.insert(&item), round == 0, "item {item} in round {round}");
            }
        }
        assert_eq!(list.as_slice(), (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn items_added_in_bulk_are_known_afterwards() {
        let mut list = Unique::default();
        list.insert_distinct((0..50_u32).collect::<Vec<_>>().iter());
        list.insert_distinct((40..60_u32).collect::<Vec<_>>().iter());
        assert_eq!(list.as_slice(), (0..60).collect::<Vec<u32>>());
        list.clear();
        assert!(list.insert(&7) && !list.insert(&7));
        assert_eq!(list.len(), 1);
    }
}
