//! A raft message. Sender and receiver are those of the link.

use bytes::{BufMut, Bytes, BytesMut};
use raft::{
    CAMPAIGN_TRANSFER,
    eraftpb::{Message, MessageType},
};
use storage::GroupId;

use crate::{
    group::{MAX_NUMBER, kind, payload, raft_entry, tag},
    input::{Input, Malformed},
    member::MemberId,
};

/// Kind, flags, group, term.
const HEAD_BYTES: usize = 1 + 1 + 4 + 8;
/// The shortest message: a request to take over.
pub(super) const LEAST_BYTES: usize = HEAD_BYTES;
/// Term, kind, length.
const ENTRY_BYTES: usize = 8 + 1 + 4;

const REJECT: u8 = 1;
const FORCED: u8 = 2;

const APPEND: u8 = 1;
const APPEND_RESPONSE: u8 = 2;
const HEARTBEAT: u8 = 3;
const HEARTBEAT_RESPONSE: u8 = 4;
const VOTE: u8 = 5;
const VOTE_RESPONSE: u8 = 6;
const PRE_VOTE: u8 = 7;
const PRE_VOTE_RESPONSE: u8 = 8;
const TIMEOUT_NOW: u8 = 9;

/// Appends a message's head, and returns the payloads that follow.
///
/// # Panics
/// For a kind of message that is never sent: raft's own notes, forwarded proposals, and snapshots, which go another way.
pub(super) fn encode(group: GroupId, message: &Message, out: &mut BytesMut) -> Vec<Bytes> {
    let code = match message.get_msg_type() {
        MessageType::MsgAppend => APPEND,
        MessageType::MsgAppendResponse => APPEND_RESPONSE,
        MessageType::MsgHeartbeat => HEARTBEAT,
        MessageType::MsgHeartbeatResponse => HEARTBEAT_RESPONSE,
        MessageType::MsgRequestVote => VOTE,
        MessageType::MsgRequestVoteResponse => VOTE_RESPONSE,
        MessageType::MsgRequestPreVote => PRE_VOTE,
        MessageType::MsgRequestPreVoteResponse => PRE_VOTE_RESPONSE,
        MessageType::MsgTimeoutNow => TIMEOUT_NOW,
        other => panic!("{other:?} is not sent as a raft message"),
    };
    let forced = message.context == CAMPAIGN_TRANSFER;
    out.put_u8(code);
    out.put_u8((u8::from(message.reject) * REJECT) | (u8::from(forced) * FORCED));
    out.put_u32_le(group.0);
    out.put_u64_le(message.term);
    let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|number| out.put_u64_le(*number));
    match code {
        APPEND => numbers(&[message.log_term, message.index, message.commit]),
        APPEND_RESPONSE => numbers(&[message.log_term, message.index, message.commit, message.reject_hint]),
        HEARTBEAT | HEARTBEAT_RESPONSE => numbers(&[message.commit, clock(message)]),
        VOTE | PRE_VOTE => numbers(&[message.log_term, message.index, message.commit, message.commit_term]),
        VOTE_RESPONSE | PRE_VOTE_RESPONSE => numbers(&[message.commit, message.commit_term]),
        _ => {}
    }
    if code != APPEND {
        return Vec::new();
    }
    let entries = message.get_entries();
    out.put_u32_le(u32::try_from(entries.len()).expect("entries of a message are few"));
    let mut payloads = Vec::with_capacity(entries.len());
    for entry in entries {
        let payload = payload(entry);
        out.put_u64_le(entry.term);
        out.put_u8(tag(entry.get_entry_type()));
        out.put_u32_le(u32::try_from(payload.len()).expect("a payload is far below 4 GiB"));
        if !payload.is_empty() {
            payloads.push(payload);
        }
    }
    payloads
}

fn clock(message: &Message) -> u64 {
    message.context.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Reads a message.
pub(super) fn decode(
    input: &mut Input<'_>,
    whole: &Bytes,
    from: MemberId,
    to: MemberId,
) -> Result<(GroupId, Message), Malformed> {
    let (code, flags) = (input.u8()?, input.u8()?);
    let group = GroupId(input.u32()?);
    let mut message = Message::default();
    (message.from, message.to) = (from.raw(), to.raw());
    message.term = number(input)?;
    if flags & !(REJECT | FORCED) != 0 {
        return Err(Malformed("unknown flags"));
    }
    message.reject = flags & REJECT != 0;
    let kind = match code {
        APPEND => {
            (message.log_term, message.index, message.commit) = (number(input)?, number(input)?, number(input)?);
            decode_entries(input, whole, &mut message)?;
            MessageType::MsgAppend
        }
        APPEND_RESPONSE => {
            (message.log_term, message.index) = (number(input)?, number(input)?);
            (message.commit, message.reject_hint) = (number(input)?, number(input)?);
            MessageType::MsgAppendResponse
        }
        HEARTBEAT | HEARTBEAT_RESPONSE => {
            message.commit = number(input)?;
            message.context = Bytes::copy_from_slice(input.take(8)?);
            if code == HEARTBEAT { MessageType::MsgHeartbeat } else { MessageType::MsgHeartbeatResponse }
        }
        VOTE | PRE_VOTE => {
            (message.log_term, message.index) = (number(input)?, number(input)?);
            (message.commit, message.commit_term) = (number(input)?, number(input)?);
            if flags & FORCED != 0 {
                message.context = Bytes::from_static(CAMPAIGN_TRANSFER);
            }
            if code == VOTE { MessageType::MsgRequestVote } else { MessageType::MsgRequestPreVote }
        }
        VOTE_RESPONSE | PRE_VOTE_RESPONSE => {
            (message.commit, message.commit_term) = (number(input)?, number(input)?);
            if code == VOTE_RESPONSE {
                MessageType::MsgRequestVoteResponse
            } else {
                MessageType::MsgRequestPreVoteResponse
            }
        }
        TIMEOUT_NOW => MessageType::MsgTimeoutNow,
        _ => return Err(Malformed("an unknown raft message")),
    };
    message.set_msg_type(kind);
    Ok((group, message))
}

/// A term or an index: never so large that adding to it could overflow.
fn number(input: &mut Input<'_>) -> Result<u64, Malformed> {
    input.u64().and_then(|number| if number <= MAX_NUMBER { Ok(number) } else { Err(Malformed("a huge number")) })
}

fn decode_entries(input: &mut Input<'_>, whole: &Bytes, message: &mut Message) -> Result<(), Malformed> {
    let count = input.u32()? as usize;
    if count.checked_mul(ENTRY_BYTES).is_none_or(|bytes| bytes > input.len()) {
        return Err(Malformed("more entries than bytes"));
    }
    let mut heads = Vec::with_capacity(count);
    for _ in 0..count {
        let term = number(input)?;
        let kind = kind(input.u8()?).ok_or(Malformed("an unknown kind of entry"))?;
        heads.push((term, kind, input.u32()? as usize));
    }
    let mut entries = Vec::with_capacity(count);
    for (at, (term, kind, length)) in heads.into_iter().enumerate() {
        let payload = input.shared(length, whole)?;
        entries.push(raft_entry(message.index + 1 + at as u64, term, kind, payload));
    }
    message.set_entries(entries.into());
    Ok(())
}
