//! Sorted, disjoint ranges of message sequences: what of a queue is alive, and what a segment holds.

/// A range of sequences, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The first sequence.
    pub first: u64,
    /// The last sequence, not below the first.
    pub last: u64,
}

impl Interval {
    /// How many sequences it has; saturates for the range of all numbers.
    pub fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

/// Appends a sequence that is above all before, extending the last range if it follows.
pub(crate) fn push(intervals: &mut Vec<Interval>, sequence: u64) {
    match intervals.last_mut() {
        Some(interval) if interval.last.checked_add(1) == Some(sequence) => interval.last = sequence,
        _ => intervals.push(Interval { first: sequence, last: sequence }),
    }
}

/// How many sequences two sorted, disjoint lists have in common.
pub(crate) fn common(left: &[Interval], right: &[Interval]) -> u64 {
    let (mut l, mut r, mut count) = (0, 0, 0u64);
    while let (Some(a), Some(b)) = (left.get(l), right.get(r)) {
        let (first, last) = (a.first.max(b.first), a.last.min(b.last));
        if first <= last {
            count = count.saturating_add(Interval { first, last }.count());
        }
        if a.last < b.last { l += 1 } else { r += 1 }
    }
    count
}

/// Whether a sorted, disjoint list has a sequence.
pub(crate) fn contains(intervals: &[Interval], sequence: u64) -> bool {
    let next = intervals.partition_point(|interval| interval.first <= sequence);
    next > 0 && intervals[next - 1].last >= sequence
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn intervals(sequences: &BTreeSet<u64>) -> Vec<Interval> {
        let mut intervals = Vec::new();
        sequences.iter().for_each(|&sequence| push(&mut intervals, sequence));
        intervals
    }

    proptest! {
        #[test]
        fn lists_of_intervals_agree_with_sets(
            left in proptest::collection::btree_set(0u64..60, 0..40),
            right in proptest::collection::btree_set(0u64..60, 0..40),
        ) {
            let (a, b) = (intervals(&left), intervals(&right));
            prop_assert_eq!(common(&a, &b), left.intersection(&right).count() as u64);
            prop_assert!(a.windows(2).all(|pair| pair[0].last + 1 < pair[1].first));
            for sequence in 0..60 {
                prop_assert_eq!(contains(&a, sequence), left.contains(&sequence));
            }
        }
    }

    #[test]
    fn the_ends_of_the_number_range_do_not_overflow() {
        let all = [Interval { first: 0, last: u64::MAX }];
        assert_eq!(common(&all, &all), u64::MAX);
        let mut top = vec![Interval { first: 5, last: u64::MAX }];
        push(&mut top, u64::MAX);
        assert!(contains(&top, u64::MAX));
    }
}
