//! Which messages came: per queue and publisher the set of sequence numbers seen, so that lost and doubled ones are
//! noticed. Numbers come nearly in order, so the set is "all below `next`" and a few bits ahead of it.

use std::collections::VecDeque;
use std::ops::Range;

/// How far ahead of the first missing number one may be, in numbers: 8 MiB of bits. Beyond it is counted as foreign.
const MAX_AHEAD: u64 = 1 << 26;

/// What a number was when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// For the first time.
    New,
    /// It was there before.
    Again,
    /// Too far ahead to be remembered.
    TooFar,
}

/// A set of numbers that fills up from 0.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    /// All below were seen, itself was not.
    next: u64,
    /// Bits from the multiple of 64 at or below `next`; those below `next` in the first word are without meaning.
    /// Empty: nothing above `next` was seen.
    ahead: VecDeque<u64>,
}

impl Sequences {
    /// Takes a number in.
    #[inline]
    pub(crate) fn see(&mut self, number: u64) -> Seen {
        if number == self.next && self.ahead.is_empty() {
            self.next += 1;
            return Seen::New;
        }
        if number < self.next {
            return Seen::Again;
        }
        self.see_ahead(number)
    }

    #[cold]
    fn see_ahead(&mut self, number: u64) -> Seen {
        if number - self.next > MAX_AHEAD {
            return Seen::TooFar;
        }
        let (word, bit) = self.place(number);
        if word >= self.ahead.len() {
            self.ahead.resize(word + 1, 0);
        }
        if self.ahead[word] & bit != 0 {
            return Seen::Again;
        }
        self.ahead[word] |= bit;
        self.advance();
        Seen::New
    }

    /// Moves `next` over all that is there.
    fn advance(&mut self) {
        while let Some(word) = self.ahead.front() {
            let from = self.next % 64;
            let run = u64::from((!(word >> from)).trailing_zeros()).min(64 - from);
            self.next += run;
            if run + from < 64 {
                break;
            }
            self.ahead.pop_front();
        }
        // Bits of the last word may all lie below `next`; then nothing is ahead.
        if self.ahead.len() == 1 && self.ahead[0] >> (self.next % 64) == 0 {
            self.ahead.clear();
        }
    }

    fn place(&self, number: u64) -> (usize, u64) {
        ((number / 64 - self.next / 64) as usize, 1 << (number % 64))
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        if number < self.next {
            return true;
        }
        if number - self.next > MAX_AHEAD {
            return false;
        }
        let (word, bit) = self.place(number);
        self.ahead.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many numbers below `end` were not seen, leaving out those in `except` (which do not overlap).
    pub(crate) fn missing(&self, end: u64, except: &[Range<u64>]) -> u64 {
        let is_missing = |number: &u64| !self.contains(*number);
        // Beyond the last bit all are missing; no need to look at each.
        let known_end = ((self.next / 64 + self.ahead.len() as u64) * 64).max(self.next).min(end);
        let missing =
            (self.next..known_end).filter(is_missing).count() as u64 + end.saturating_sub(known_end.max(self.next));
        let excused: u64 = except
            .iter()
            .map(|range| {
                let range = range.start..range.end.min(end);
                let beyond = range.end.saturating_sub(known_end.max(range.start));
                (range.start..range.end.min(known_end)).filter(is_missing).count() as u64 + beyond
            })
            .sum();
        missing - excused
    }
}

/// A value per publisher, for few publishers: a queue's publishers send in turns, so the last one is looked at first.
#[derive(Debug)]
pub(crate) struct PerPublisher<T> {
    /// Sorted by publisher.
    entries: Vec<(u16, T)>,
    last: usize,
}

impl<T> Default for PerPublisher<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), last: 0 }
    }
}

impl<T: Default> PerPublisher<T> {
    /// The publisher's value, made if there is none yet.
    #[inline]
    pub(crate) fn of(&mut self, publisher: u16) -> &mut T {
        if self.entries.get(self.last).is_none_or(|(p, _)| *p != publisher) {
            self.last = match self.entries.binary_search_by_key(&publisher, |(p, _)| *p) {
                Ok(index) => index,
                Err(index) => {
                    self.entries.insert(index, (publisher, T::default()));
                    index
                }
            };
        }
        &mut self.entries[self.last].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_order_and_doubled_are_told_apart() {
        let mut seen = Sequences::default();
        for (number, expected) in [
            (0, Seen::New),
            (2, Seen::New),
            (2, Seen::Again),
            (0, Seen::Again),
            (130, Seen::New),
            (1, Seen::New),
            (3, Seen::New),
            (1, Seen::Again),
            (4 + MAX_AHEAD + 1, Seen::TooFar),
        ] {
            assert_eq!(seen.see(number), expected, "{number}");
        }
        assert_eq!(seen.next, 4);
        assert_eq!(seen.missing(131, &[]), 126);
        assert_eq!(seen.missing(200, &[]), 195);
        assert_eq!(seen.missing(200, &[0..3, 100..150, 190..300]), 195 - 49 - 10);
        assert_eq!(seen.missing(3, &[]), 0);
    }

    #[test]
    fn any_order_ends_with_nothing_missing_and_no_bits_kept() {
        // Steps of 7 in a ring of 1000 visit every number once.
        let mut seen = Sequences::default();
        let mut naive = std::collections::BTreeSet::new();
        for step in 0..1000 {
            let number = step * 7 % 1000;
            assert_eq!(seen.see(number), Seen::New, "{number}");
            naive.insert(number);
            assert_eq!(seen.missing(1000, &[]), 1000 - naive.len() as u64);
            assert_eq!(seen.see(number), Seen::Again, "{number}");
        }
        assert_eq!((seen.next, seen.ahead.len()), (1000, 0));
        assert_eq!(seen.see(1000), Seen::New);
    }

    #[test]
    fn each_publisher_has_a_value_of_its_own() {
        let mut values = PerPublisher::<u32>::default();
        for publisher in [3, 1, 3, 2, 1, 3] {
            *values.of(publisher) += 1;
        }
        assert_eq!(values.entries, [(1, 2), (2, 1), (3, 3)]);
    }
}
