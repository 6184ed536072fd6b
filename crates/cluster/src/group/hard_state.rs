//! What a member must not forget: term, vote, and the members of its group. It is the group's hard state record in the log.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version, 1 |
//! | 8 | term |
//! | 8 | vote: a member, or 0 |
//! | 8 | commit index |
//! | 8 | index of the entry that made the configuration |
//! | .. | configuration: voters, learners, outgoing, next learners, each a count (u8) and so many members (u64) |

use bytes::Bytes;

use crate::{
    input::{Input, Malformed},
    member::Configuration,
};

const VERSION: u8 = 1;

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HardState {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    /// Not to be relied on as the newest: it is written with other things.
    pub(crate) commit: u64,
    /// The entry that made the configuration; changes up to it are contained.
    pub(crate) configured_at: u64,
    pub(crate) configuration: Configuration,
}

impl HardState {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        for number in [self.term, self.vote, self.commit, self.configured_at] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        self.configuration.encode(&mut out);
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<HardState, Malformed> {
        let mut input = Input::new(bytes);
        if input.u8()? != VERSION {
            return Err(Malformed("an unknown version of the hard state"));
        }
        let state = HardState {
            term: input.u64()?,
            vote: input.u64()?,
            commit: input.u64()?,
            configured_at: input.u64()?,
            configuration: Configuration::decode(&mut input)?,
        };
        input.end()?;
        Ok(state)
    }
}

/// For the fuzzer: reads a hard state record and a change of members.
#[doc(hidden)]
pub fn fuzz_records(bytes: &[u8]) {
    if let Ok(state) = HardState::decode(bytes) {
        assert_eq!(HardState::decode(&state.encode()), Ok(state));
    }
    if let Ok(change) = crate::member::ConfigurationChange::decode(bytes)
        && !bytes.is_empty()
    {
        assert_eq!(crate::member::ConfigurationChange::decode(&change.encode()), Ok(change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::MemberId;

    #[test]
    fn a_hard_state_survives_its_encoding_and_nothing_shorter_does() {
        let voters = [3, 1, 2].into_iter().filter_map(MemberId::from_raw);
        let state = HardState {
            term: 7,
            vote: 2,
            commit: 99,
            configured_at: 5,
            configuration: Configuration::of_voters(voters),
        };
        let bytes = state.encode();
        assert_eq!(HardState::decode(&bytes), Ok(state));
        (0..bytes.len()).for_each(|end| assert!(HardState::decode(&bytes[..end]).is_err(), "{end}"));
    }
}
