//! Direct reply-to: answers that reach a requester without a queue.
//!
//! A requester consumes from [`PSEUDO_QUEUE`] and publishes requests with that name as `reply-to`. The name is replaced by an
//! *address*, the name and a [`ReplyKey`] that stands for the requester's channel. Whoever publishes to the default exchange with
//! the address as routing key has the message put straight into the mailbox of the requester's connection. No queue exists,
//! nothing is stored, and a requester that does not read its answers loses them: replies are delivered at most once.
//!
//! An address tells nobody anything but the node that made it: 128 random bits, looked up in [`DirectReplies`]. What is not found
//! there reaches nobody, whatever it looks like.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amqp::methods::AMQPClass;
use amqp::methods::basic::{AMQPMethod, Consume, ConsumeOk};
use amqp::methods::queue::Declare;
use amqp::{Exception, MethodId, Properties, PropertiesBuilder, ReplyCode, encode};
use parking_lot::RwLock;
use queue::{Message, MessageRef};
use rustc_hash::FxHashMap;

use super::channel::Fault;
use super::handle::{ConnectionHandle, Event};
use super::session::Session;
use super::staging::Record;
use crate::names;

/// What a requester consumes from and puts in `reply-to`.
pub(super) const PSEUDO_QUEUE: &str = "amq.rabbitmq.reply-to";
/// What the addresses begin with.
const ADDRESS_PREFIX: &str = "amq.rabbitmq.reply-to.";
/// 16 random bytes in base64.
const KEY_BYTES: usize = 22;
/// Replies on the way to one requester, in bytes with their overhead: what comes on top is dropped. A client that reads
/// has far less waiting; one that does not must not fill the node's memory with the help of others.
const WAITING_REPLIES_BYTES: usize = 16 * 1024 * 1024;

/// The secret part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReplyKey([u8; KEY_BYTES]);

impl ReplyKey {
    /// The key of an address. `None` for all that cannot be one.
    fn of_address(name: &str) -> Option<Self> {
        let key = name.strip_prefix(ADDRESS_PREFIX)?;
        Some(Self(key.as_bytes().try_into().ok()?))
    }
}

/// A channel that takes replies.
#[derive(Clone, Debug)]
struct Requester {
    connection: Arc<ConnectionHandle>,
    channel: u16,
}

/// The node's requesters. The keys are made here, so no peer can choose them to make the map slow.
#[derive(Debug, Default)]
pub(crate) struct DirectReplies {
    requesters: RwLock<FxHashMap<ReplyKey, Requester>>,
}

impl DirectReplies {
    fn register(self: &Arc<Self>, tag: Arc<str>, requester: Requester) -> ReplyConsumer {
        let address: Box<str> = names::server_named(ADDRESS_PREFIX).into();
        let key = ReplyKey::of_address(&address).expect("made-up names have 22 characters behind their prefix");
        self.requesters.write().insert(key, requester);
        ReplyConsumer { tag, address, key, replies: Arc::clone(self) }
    }

    fn is_live(&self, key: ReplyKey) -> bool {
        self.requesters.read().contains_key(&key)
    }

    fn deliver(&self, key: ReplyKey, message: &Message) {
        let Some(Requester { connection, channel }) = self.requesters.read().get(&key).cloned() else { return };
        if connection.reserve_reply(message) {
            connection.mailbox.send(Event::DirectReply { channel, key, message: message.clone() });
        } else {
            tracing::debug!(connection = connection.id.0, channel, "reply dropped: the requester does not read");
        }
    }
}

/// The consumer of a channel's replies. The address ends with it.
#[derive(Debug)]
pub(crate) struct ReplyConsumer {
    tag: Arc<str>,
    address: Box<str>,
    key: ReplyKey,
    replies: Arc<DirectReplies>,
}

impl Drop for ReplyConsumer {
    fn drop(&mut self) {
        self.replies.requesters.write().remove(&self.key);
    }
}

impl ConnectionHandle {
    /// Counts a reply as on its way to the client, as deliveries are. `false`: too much is already, the reply is to be dropped.
    fn reserve_reply(&self, message: &Message) -> bool {
        if self.outstanding.load(Ordering::Relaxed) >= WAITING_REPLIES_BYTES {
            return false;
        }
        self.outstanding.fetch_add(message.len() + Self::DELIVERY_OVERHEAD, Ordering::Relaxed);
        true
    }
}

/// Whether a message with this envelope is a reply: default exchange, and an address as its key.
pub(super) fn is_reply(envelope: &[u8]) -> bool {
    let key_start = 2;
    envelope.first() == Some(&0) && envelope[key_start..].starts_with(ADDRESS_PREFIX.as_bytes())
}

/// Whether properties ask for a direct reply.
pub(super) fn is_request(properties: &[u8]) -> bool {
    Properties::from_raw_trusted(properties).reply_to() == Some(PSEUDO_QUEUE.as_bytes())
}

/// The requesters among the routing keys of a message to `exchange`, each once.
pub(super) fn reply_keys(exchange: &str, keys: &[&str]) -> Vec<ReplyKey> {
    if !exchange.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<ReplyKey> = keys.iter().filter_map(|key| ReplyKey::of_address(key)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl Session {
    /// `basic.consume` of the pseudo-queue.
    pub(super) fn consume_replies(&mut self, number: u16, consume: &Consume) -> Result<(), Fault> {
        let tag = consume.consumer_tag.as_str();
        let channel = self.open(number);
        let (code, text) = if channel.consumers.contains_key(tag) {
            (ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{tag}'"))
        } else if !consume.no_ack {
            (ReplyCode::PreconditionFailed, "reply consumer cannot acknowledge".to_owned())
        } else if channel.reply_consumer.is_some() {
            (ReplyCode::PreconditionFailed, "reply consumer already set".to_owned())
        } else {
            let tag: Arc<str> = if tag.is_empty() { names::server_named("amq.ctag-").into() } else { tag.into() };
            let requester = Requester { connection: Arc::clone(&self.handle), channel: number };
            let consumer = self.broker.direct_replies().register(Arc::clone(&tag), requester);
            self.open(number).reply_consumer = Some(Box::new(consumer));
            if !consume.nowait {
                let ok = ConsumeOk { consumer_tag: (&*tag).into() };
                self.send(number, AMQPClass::Basic(AMQPMethod::ConsumeOk(ok)));
            }
            return Ok(());
        };
        Err(Exception::new(code, text, MethodId::BASIC_CONSUME).into())
    }

    /// `basic.cancel` of the channel's reply consumer. `false`: the tag is not its tag.
    pub(super) fn cancel_replies(&mut self, number: u16, tag: &str) -> bool {
        self.open(number).reply_consumer.take_if(|consumer| *consumer.tag == *tag).is_some()
    }

    /// `queue.declare` of the pseudo-queue or of an address: clients ask this way whether a requester still waits. `false`: it does not.
    pub(super) fn declare_replies(&mut self, number: u16, name: &str, declare: &Declare) -> Result<bool, Fault> {
        if !name.starts_with(PSEUDO_QUEUE) {
            return Ok(false);
        }
        let key = ReplyKey::of_address(name);
        if name != PSEUDO_QUEUE && !key.is_some_and(|key| self.broker.direct_replies().is_live(key)) {
            let text = format!("no {}", self.vhost().read().queue_text(name));
            return Err(Exception::new(ReplyCode::NotFound, text, MethodId::QUEUE_DECLARE).into());
        }
        self.open(number).last_queue = Some(name.into());
        if !declare.nowait {
            self.declare_ok(number, name, 0, 1);
        }
        Ok(true)
    }

    /// A request gets the address of its channel.
    pub(super) fn address_request(&mut self, number: u16, record: &mut Record) -> Result<(), Fault> {
        let start = usize::from(record.envelope_bytes);
        let end = start + record.properties_bytes as usize;
        let properties = &record.bytes[start..end];
        if !is_request(properties) {
            return Ok(());
        }
        let Some(consumer) = &self.open(number).reply_consumer else {
            let text = "fast reply consumer does not exist";
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_PUBLISH).into());
        };
        let rewritten = PropertiesBuilder::from(Properties::from_raw_trusted(properties))
            .set_reply_to(consumer.address.as_bytes())
            .build();
        record.properties_bytes = u32::try_from(rewritten.len()).expect("one short string longer than before");
        record.bytes.splice(start..end, rewritten);
        Ok(())
    }

    /// Hands a message to requesters.
    pub(super) fn send_replies(&self, keys: &[ReplyKey], record: &Record) {
        let replies = self.broker.direct_replies();
        if !keys.iter().any(|&key| replies.is_live(key)) {
            return;
        }
        let Record { bytes, envelope_bytes, properties_bytes } = record;
        let place = MessageRef {
            buffer: 0,
            start: 0,
            len: u32::try_from(bytes.len()).expect("messages are limited to less than 4 GiB"),
            envelope_bytes: *envelope_bytes,
            properties_bytes: *properties_bytes,
        };
        let buffer = self.broker.memory().hold(bytes.clone());
        let message = place.resolve(&[buffer]).expect("the whole buffer is the message");
        for &key in keys {
            replies.deliver(key, &message);
        }
    }

    /// A reply for a channel of this connection. If that went meanwhile, or consumes no more, nobody gets it.
    pub(super) fn direct_reply(&mut self, number: u16, key: ReplyKey, message: &Message) {
        self.unwritten_deliveries += message.len() + ConnectionHandle::DELIVERY_OVERHEAD;
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let Some(consumer) = channel.reply_consumer.as_ref().filter(|consumer| consumer.key == key) else { return };
        let consumer_tag = Arc::clone(&consumer.tag);
        let tag = channel.delivery_tag();
        encode::deliver_method(self.outbox.buffer(), number, &consumer_tag, tag, false, message.envelope());
        self.outbox.content(number, self.frame_max, message.properties(), &message.body());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::ConnectionId;

    #[test]
    fn an_address_lives_as_long_as_its_consumer() {
        let replies = Arc::new(DirectReplies::default());
        let connection = ConnectionHandle::new(ConnectionId(1));
        let consumer = replies.register("t".into(), Requester { connection, channel: 1 });
        let key = ReplyKey::of_address(&consumer.address).expect("an address");
        assert!(replies.is_live(key));
        drop(consumer);
        assert!(!replies.is_live(key));
    }

    #[test]
    fn what_is_not_exactly_an_address_has_no_key() {
        let long = format!("{ADDRESS_PREFIX}{}", "a".repeat(200));
        let short = format!("{ADDRESS_PREFIX}{}", "a".repeat(21));
        for name in ["", PSEUDO_QUEUE, ADDRESS_PREFIX, "q", &long, &short] {
            assert_eq!(ReplyKey::of_address(name), None, "{name}");
        }
        assert!(reply_keys("amq.direct", &[&format!("{ADDRESS_PREFIX}{}", "a".repeat(22))]).is_empty());
    }

    #[test]
    fn a_requester_that_does_not_read_loses_replies_and_takes_no_more_memory() {
        let connection = ConnectionHandle::new(ConnectionId(1));
        let message = Message::from_parts(b"\x00\x01k", b"\x00\x00", &vec![0; 1024 * 1024]);
        let taken = (0..100).filter(|_| connection.reserve_reply(&message)).count();
        assert_eq!(taken, 16);
        connection.written(2 * 1024 * 1024);
        assert!(connection.reserve_reply(&message), "it reads again");
    }
}
