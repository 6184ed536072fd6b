//! Answers from shards: each ends what a channel waited for.

use amqp::methods::{AMQPClass, basic, queue as queue_class};
use amqp::{Exception, MethodId, ReplyCode, encode};
use queue::{GetReply, Reply, Token};

use super::channel::{Fault, Pending};
use super::consume::with_failures;
use super::queue_methods::delete_ok;
use super::session::Session;
use super::unacked::Unacked;
use crate::metadata::Earlier;

impl Session {
    /// The channel waits for an answer from now on. The token names the channel and which use of its number it is.
    pub(super) fn pend(&mut self, number: u16, pending: Pending) -> Token {
        let channel = self.open(number);
        debug_assert!(channel.pending.is_none(), "a channel that waits handles no method");
        channel.pending = Some(pending);
        Token(u64::from(channel.epoch) << 16 | u64::from(number))
    }

    /// An answer. One to a channel that was closed meanwhile is passed over.
    pub(super) fn reply(&mut self, token: Token, reply: Reply) {
        let Some((number, pending)) = self.take_pending(token) else { return };
        if let Err(fault) = self.answer(number, pending, reply) {
            self.fault(number, fault);
        }
    }

    /// What the channel waited for that gave this token, if it is still open.
    pub(super) fn take_pending(&mut self, token: Token) -> Option<(u16, Pending)> {
        let number = u16::try_from(token.0 & 0xFFFF).expect("16 bits");
        let channel = self.channels.get_mut(&number)?;
        if u64::from(channel.epoch) != token.0 >> 16 {
            return None;
        }
        let pending = channel.pending.take()?;
        self.unstall(number);
        Some((number, pending))
    }

    fn answer(&mut self, number: u16, pending: Pending, reply: Reply) -> Result<(), Fault> {
        match (pending, reply) {
            (Pending::Declare(declare), Reply::Counts(counts)) => {
                if !declare.nowait {
                    // A queue that was declared by its name: made-up names are never there already.
                    let name = crate::topology::strip_crlf(declare.queue.as_str());
                    self.declare_ok(number, &name, counts.ready, counts.consumers);
                }
            }
            // The queue went between the look-up and the count: its record is gone too, or on its way.
            (Pending::Declare(declare), Reply::Gone) => {
                let declare = AMQPClass::Queue(queue_class::AMQPMethod::Declare(*declare));
                self.wait_for_metadata(number, Earlier::Removals, Pending::Retry(Box::new(declare)));
            }
            (Pending::Purge { nowait, .. }, Reply::Purged(messages)) => {
                if !nowait {
                    let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
                    let ok = queue_class::PurgeOk { message_count };
                    self.send(number, AMQPClass::Queue(queue_class::AMQPMethod::PurgeOk(ok)));
                }
            }
            (Pending::Purge { name, .. }, _) => return Err(self.no_queue(&name, MethodId::QUEUE_PURGE)),
            (Pending::Delete { nowait, durable, .. }, Reply::Deleted(messages)) => {
                self.deleted(number, nowait, durable, messages);
            }
            (Pending::Delete { nowait, durable, .. }, Reply::Gone) => self.deleted(number, nowait, durable, 0),
            (Pending::Delete { name, .. }, Reply::InUse) => {
                return Err(self.precondition(&name, "in use", MethodId::QUEUE_DELETE));
            }
            (Pending::Delete { name, .. }, Reply::NotEmpty) => {
                return Err(self.precondition(&name, "not empty", MethodId::QUEUE_DELETE));
            }
            (Pending::Get { shard, holder, .. }, Reply::Get(Some(got))) => {
                self.get_ok(number, shard, holder.map(|(_, holder)| holder), &got);
            }
            (Pending::Get { .. }, Reply::Get(None)) => {
                self.send(number, AMQPClass::Basic(basic::AMQPMethod::GetEmpty(basic::GetEmpty {})));
            }
            (Pending::Get { name, .. }, _) => return Err(self.no_queue(&name, MethodId::BASIC_GET)),
            (Pending::Consume { local, nowait, .. }, Reply::Attached) => {
                if !nowait && let Some(consumer) = self.consumers.get(&local) {
                    let consumer_tag = (&*consumer.tag).into();
                    let ok = basic::ConsumeOk { consumer_tag };
                    self.send(number, AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(ok)));
                }
            }
            (Pending::Consume { name, local, .. }, reply) => {
                self.forget_consumer(number, local);
                if reply == Reply::Gone {
                    return Err(self.no_queue(&name, MethodId::BASIC_CONSUME));
                }
                let text = format!("{} in exclusive use", self.vhost().read().queue_text(&name));
                return Err(Exception::new(ReplyCode::AccessRefused, text, MethodId::BASIC_CONSUME).into());
            }
            (Pending::Cancel { tag, local, nowait }, _) => {
                self.forget_consumer(number, local);
                if !nowait {
                    self.cancel_ok(number, &tag);
                }
            }
            (pending, reply) => {
                tracing::error!(?pending, ?reply, "a shard's answer does not fit the question");
                return Err(Exception::new(ReplyCode::InternalError, "", MethodId::NONE).into());
            }
        }
        Ok(())
    }

    /// A shard has removed a queue. The client is told when the record is gone for good, too, and with it the durable exchanges that
    /// were used up.
    fn deleted(&mut self, number: u16, nowait: bool, durable: bool, messages: u64) {
        if durable || self.vhost().claims().any_unused() {
            let ok = (!nowait).then(|| Box::new(delete_ok(messages)));
            self.wait_for_metadata(number, Earlier::Removals, Pending::Change { ok });
        } else {
            self.delete_ok(number, nowait, messages);
        }
    }

    fn get_ok(&mut self, number: u16, shard: u32, holder: Option<u32>, got: &GetReply) {
        let channel = self.open(number);
        let tag = channel.delivery_tag();
        if let Some(consumer) = holder {
            channel.unacked.push(Unacked { tag, queue: got.queue, shard, consumer, sequence: got.sequence });
        }
        let message = &got.message;
        let remaining = u32::try_from(got.remaining).unwrap_or(u32::MAX);
        encode::get_ok_method(self.outbox.buffer(), number, tag, got.redelivered, message.envelope(), remaining);
        let properties = with_failures(message.properties(), got.failures);
        self.outbox.content(number, self.frame_max, &properties, &message.body());
    }

    fn forget_consumer(&mut self, number: u16, local: u32) {
        if let Some(consumer) = self.consumers.remove(&local) {
            self.open(number).consumers.remove(&consumer.tag);
        }
    }

    fn no_queue(&self, name: &str, method: MethodId) -> Fault {
        let text = format!("no {}", self.vhost().read().queue_text(name));
        Exception::new(ReplyCode::NotFound, text, method).into()
    }

    fn precondition(&self, name: &str, what: &str, method: MethodId) -> Fault {
        let text = format!("{} {what}", self.vhost().read().queue_text(name));
        Exception::new(ReplyCode::PreconditionFailed, text, method).into()
    }
}
