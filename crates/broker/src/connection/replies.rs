//! Answers from shards: each ends what a channel waited for.

use amqp::methods::{AMQPClass, basic, queue as queue_class};
use amqp::{Exception, MethodId, ReplyCode, encode};
use queue::{GetReply, Reply, Token};

use super::channel::{Fault, Pending};
use super::session::Session;
use super::unacked::Unacked;

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
        let number = u16::try_from(token.0 & 0xFFFF).expect("16 bits");
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if u64::from(channel.epoch) != token.0 >> 16 {
            return;
        }
        let Some(pending) = channel.pending.take() else { return };
        self.unstall(number);
        if let Err(fault) = self.answer(number, pending, reply) {
            self.fault(number, fault);
        }
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
            // The queue went between the look-up and the count: its record is gone too by now.
            (Pending::Declare(declare), Reply::Gone) => self.queue_declare(number, *declare)?,
            (Pending::Purge { nowait, .. }, Reply::Purged(messages)) => {
                if !nowait {
                    let message_count = u32::try_from(messages).unwrap_or(u32::MAX);
                    let ok = queue_class::PurgeOk { message_count };
                    self.send(number, AMQPClass::Queue(queue_class::AMQPMethod::PurgeOk(ok)));
                }
            }
            (Pending::Purge { name, .. }, _) => return Err(self.no_queue(&name, MethodId::QUEUE_PURGE)),
            (Pending::Delete { nowait, .. }, Reply::Deleted(messages)) => self.delete_ok(number, nowait, messages),
            (Pending::Delete { nowait, .. }, Reply::Gone) => self.delete_ok(number, nowait, 0),
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

    fn get_ok(&mut self, number: u16, shard: u32, holder: Option<u32>, got: &GetReply) {
        let channel = self.open(number);
        let tag = channel.delivery_tag();
        if let Some(consumer) = holder {
            channel.unacked.push(Unacked { tag, queue: got.queue, shard, consumer, sequence: got.sequence });
        }
        let message = &got.message;
        let remaining = u32::try_from(got.remaining).unwrap_or(u32::MAX);
        encode::get_ok_method(self.outbox.buffer(), number, tag, got.redelivered, message.envelope(), remaining);
        self.outbox.content(number, self.frame_max, message.properties(), &message.body());
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
