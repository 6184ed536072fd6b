//! A list of sequence numbers, kept as inclusive intervals: what acknowledgements come to when they are gathered.

use crate::Sequence;

/// Sequence numbers in the order in which they were added; neighbours are merged, so a run of acks is one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    runs: Vec<(u64, u64)>,
}

impl Intervals {
    /// The list with one number.
    #[must_use]
    pub fn one(sequence: Sequence) -> Self {
        Self { runs: vec![(sequence.0, sequence.0)] }
    }

    /// Adds a number at the end.
    pub fn push(&mut self, sequence: Sequence) {
        match self.runs.last_mut() {
            Some((_, last)) if *last + 1 == sequence.0 => *last = sequence.0,
            _ => self.runs.push((sequence.0, sequence.0)),
        }
    }

    /// How many intervals there are: what the list costs to hold or to send.
    #[must_use]
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// Whether no number was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many numbers there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Each number, in the order of adding.
    pub fn iter(&self) -> impl Iterator<Item = Sequence> + '_ {
        self.runs.iter().flat_map(|&(first, last)| (first..=last).map(Sequence))
    }
}

impl FromIterator<Sequence> for Intervals {
    fn from_iter<I: IntoIterator<Item = Sequence>>(sequences: I) -> Self {
        let mut intervals = Self::default();
        for sequence in sequences {
            intervals.push(sequence);
        }
        intervals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_numbers_is_one_interval() {
        let intervals: Intervals = [1, 2, 3, 7, 5, 6].map(Sequence).into_iter().collect();
        assert_eq!(intervals.runs(), &[(1, 3), (7, 7), (5, 6)]);
        assert_eq!(intervals.count(), 6);
        assert_eq!(intervals.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3, 7, 5, 6]);
    }
}
