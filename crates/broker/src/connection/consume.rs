//! Consumers: `basic.qos`, `basic.consume`, `basic.cancel`, deliveries, `basic.get`.

use std::borrow::Cow;
use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::methods::basic::{AMQPMethod, Cancel, CancelOk, Consume, Qos, QosOk};
use amqp::{
    AMQPValue, Exception, FieldTable, MethodId, Properties, PropertiesBuilder, RawValue, ReplyCode, TableWriter, encode,
};
use queue::{ConsumerId, ConsumerSpec, Delivery, Op};

use super::channel::{Consumer, Fault, Pending};
use super::direct_reply;
use super::handle::{ConnectionHandle, Limiter};
use super::session::Session;
use super::unacked::Unacked;
use crate::auth::{Permission, Resource};
use crate::names;
use crate::shard::ShardInput;
use crate::topology::{QueueKind, type_name};

impl Session {
    /// `basic.qos`. `payload` is the whole method: the codec drops `prefetch-size`.
    pub(super) fn qos(&mut self, number: u16, qos: &Qos, payload: &[u8]) -> Result<(), Fault> {
        let prefetch_size =
            payload.get(4..8).map_or(0, |size| u32::from_be_bytes(size.try_into().expect("four bytes")));
        if prefetch_size != 0 {
            let text = format!("prefetch_size!=0 ({prefetch_size})");
            return Err(Exception::new(ReplyCode::NotImplemented, text, MethodId::BASIC_QOS).into());
        }
        let limit = u32::from(qos.prefetch_count);
        if qos.global {
            self.limit_channel(number, limit);
        } else {
            self.open(number).prefetch = limit;
            // As with RabbitMQ this lifts a limit of the whole channel: who wants both sets that one last.
            if self.open(number).limiter.is_some() {
                self.limit_channel(number, 0);
            }
        }
        self.send(number, AMQPClass::Basic(AMQPMethod::QosOk(QosOk {})));
        Ok(())
    }

    /// One limit for all consumers of the channel, those that are there included.
    fn limit_channel(&mut self, number: u16, limit: u32) {
        let channel = self.open(number);
        if let Some(limiter) = &channel.limiter {
            limiter.set_limit(limit);
        } else if limit != 0 {
            let held = channel.unacked.iter().filter(|entry| Some(entry.consumer) != channel.holder).count();
            channel.limiter = Some(Limiter::new(limit, u32::try_from(held).unwrap_or(u32::MAX)));
            let locals: Vec<u32> = channel.consumers.values().copied().collect();
            for local in locals {
                self.share_limiter(number, local);
            }
        }
        self.resume_consumers(Some(number));
    }

    /// Tells the shard of a consumer that it shares its channel's limit.
    fn share_limiter(&mut self, number: u16, local: u32) {
        let Some(limiter) = self.open(number).limiter.clone() else { return };
        let Some(consumer) = self.consumers.get(&local).filter(|consumer| !consumer.no_ack) else { return };
        let id = ConsumerId { connection: self.handle.id.0, local };
        self.staging.register(consumer.shard, &self.broker, &self.handle);
        self.broker.shard(consumer.shard).send(ShardInput::Limit(id, limiter));
    }

    /// Consumers that were turned away can take messages again: of one channel, or of all.
    pub(super) fn resume_consumers(&mut self, channel: Option<u16>) {
        let connection = self.handle.id.0;
        for (&local, consumer) in &self.consumers {
            if channel.is_none_or(|channel| channel == consumer.channel) {
                let resume = Op::Resume { queue: consumer.queue, consumer: ConsumerId { connection, local } };
                self.staging.op(consumer.shard, resume);
            }
        }
    }

    /// `basic.consume`.
    pub(super) fn consume(&mut self, number: u16, consume: &Consume) -> Result<(), Fault> {
        let method = MethodId::BASIC_CONSUME;
        if consume.queue.as_str() == direct_reply::PSEUDO_QUEUE {
            return self.consume_replies(number, consume);
        }
        let name = self.queue_name(number, consume.queue.as_str(), method)?;
        let tag = consume.consumer_tag.as_str();
        if self.open(number).consumers.contains_key(tag) {
            let text = format!("attempt to reuse consumer tag '{tag}'");
            return Err(Exception::new(ReplyCode::NotAllowed, text, method).into());
        }
        self.authorize(Resource::Queue(&name), Permission::Read, method)?;
        let record = self.vhost().read().access_queue(&name, self.handle.id, method)?;
        let priority = self.consumer_priority(&consume.arguments, &name)?;
        let channel = self.open(number);
        if record.kind == QueueKind::Quorum && channel.limiter.as_ref().is_some_and(|limiter| limiter.is_limited()) {
            let text = format!("{} does not support global qos", self.vhost().read().queue_text(&name));
            return Err(Exception::new(ReplyCode::NotImplemented, text, method).into());
        }
        let spec =
            ConsumerSpec { no_ack: consume.no_ack, exclusive: consume.exclusive, prefetch: channel.prefetch, priority };
        let tag: Arc<str> = if tag.is_empty() { names::server_named("amq.ctag-").into() } else { tag.into() };
        let local = self.new_local();
        let consumer = Consumer {
            channel: number,
            tag: Arc::clone(&tag),
            no_ack: consume.no_ack,
            exclusive: spec.exclusive,
            prefetch: spec.prefetch,
            arguments: consume.arguments.clone(),
            queue: record.id,
            shard: record.shard,
        };
        self.consumers.insert(local, consumer);
        self.open(number).consumers.insert(tag, local);
        self.share_limiter(number, local);
        let pending = Pending::Consume { name: name.into(), local, nowait: consume.nowait };
        let token = Some(self.pend(number, pending));
        let id = ConsumerId { connection: self.handle.id.0, local };
        self.staging.op(record.shard, Op::Attach { queue: record.id, consumer: id, spec, token });
        Ok(())
    }

    fn consumer_priority(&self, arguments: &FieldTable, queue: &str) -> Result<i32, Fault> {
        let value = match arguments.inner().get("x-priority") {
            None => return Ok(0),
            Some(value) => value,
        };
        let priority = match value {
            AMQPValue::ShortShortInt(v) => i64::from(*v),
            AMQPValue::ShortShortUInt(v) => i64::from(*v),
            AMQPValue::ShortInt(v) => i64::from(*v),
            AMQPValue::ShortUInt(v) => i64::from(*v),
            AMQPValue::LongInt(v) => i64::from(*v),
            AMQPValue::LongUInt(v) => i64::from(*v),
            AMQPValue::LongLongInt(v) => *v,
            other => {
                let queue = self.vhost().read().queue_text(queue);
                let kind = type_name(other);
                let text = format!("invalid arg 'x-priority' for {queue}: \"expected integer, got {kind}\"");
                return Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_CONSUME).into());
            }
        };
        // Priorities only order consumers: beyond 32 bits the nearest value orders the same.
        Ok(i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX }))
    }

    /// `basic.cancel`. What is on its way is delivered before `cancel-ok`.
    pub(super) fn cancel(&mut self, number: u16, cancel: &Cancel) -> Result<(), Fault> {
        let tag = cancel.consumer_tag.as_str();
        if self.cancel_replies(number, tag) {
            if !cancel.nowait {
                self.cancel_ok(number, tag);
            }
            return Ok(());
        }
        let Some((tag, &local)) = self.open(number).consumers.get_key_value(tag) else {
            if !cancel.nowait {
                self.cancel_ok(number, tag);
            }
            return Ok(());
        };
        let pending = Pending::Cancel { tag: Arc::clone(tag), local, nowait: cancel.nowait };
        let token = Some(self.pend(number, pending));
        let consumer = &self.consumers[&local];
        let id = ConsumerId { connection: self.handle.id.0, local };
        let detach = Op::Detach { queue: consumer.queue, consumer: id, requeue: false, token };
        self.staging.op(consumer.shard, detach);
        Ok(())
    }

    pub(super) fn cancel_ok(&mut self, number: u16, tag: &str) {
        self.send(number, AMQPClass::Basic(AMQPMethod::CancelOk(CancelOk { consumer_tag: tag.into() })));
    }

    /// A queue is gone under a consumer: those who asked for it are told.
    pub(super) fn consumer_cancelled(&mut self, local: u32) {
        // Perhaps it is this connection that deletes the queue: then delete-ok comes first.
        if self.waits_for_change() {
            self.held_cancels.push(local);
            return;
        }
        let Some(consumer) = self.consumers.remove(&local) else { return };
        if let Some(channel) = self.channels.get_mut(&consumer.channel) {
            channel.consumers.remove(&consumer.tag);
        }
        if self.client.consumer_cancel_notify {
            let cancel = Cancel { consumer_tag: (&*consumer.tag).into(), nowait: true };
            self.send(consumer.channel, AMQPClass::Basic(AMQPMethod::Cancel(cancel)));
        }
    }

    /// A message for a consumer. One that went meanwhile does not get it: the detach that ended it sends it back.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let Delivery { consumer: id, queue, sequence, redelivered, failures, message } = delivery;
        let cost = message.len() + ConnectionHandle::DELIVERY_OVERHEAD;
        self.unwritten_deliveries += cost;
        let Some(consumer) = self.consumers.get(&id.local) else { return };
        let Some(channel) = self.channels.get_mut(&consumer.channel) else { return };
        let tag = channel.delivery_tag();
        if !consumer.no_ack {
            let shard = consumer.shard;
            channel.unacked.push(Unacked { tag, queue, shard, consumer: id.local, sequence });
        }
        let out = self.outbox.buffer();
        encode::deliver_method(out, consumer.channel, &consumer.tag, tag, redelivered, message.envelope());
        let properties = with_failures(message.properties(), failures);
        self.outbox.content(consumer.channel, self.frame_max, &properties, &message.body());
    }

    /// `basic.get`.
    pub(super) fn get(&mut self, number: u16, queue: &str, no_ack: bool) -> Result<(), Fault> {
        let method = MethodId::BASIC_GET;
        let name = self.queue_name(number, queue, method)?;
        self.authorize(Resource::Queue(&name), Permission::Read, method)?;
        let record = self.vhost().read().access_queue(&name, self.handle.id, method)?;
        let holder = match self.open(number).holder {
            Some(holder) => holder,
            None => self.new_local(),
        };
        self.open(number).holder = Some(holder);
        let holds = (!no_ack).then_some((record.id, holder));
        let token = self.pend(number, Pending::Get { name: name.into(), shard: record.shard, holder: holds });
        let id = ConsumerId { connection: self.handle.id.0, local: holder };
        self.staging.op(record.shard, Op::Get { queue: record.id, holder: id, no_ack, token });
        Ok(())
    }
}

/// The properties of a message as they are delivered: one that came back to a queue that counts that says how often.
pub(super) fn with_failures(properties: &[u8], failures: u32) -> Cow<'_, [u8]> {
    const DELIVERY_COUNT: &str = "x-delivery-count";
    if failures == 0 {
        return Cow::Borrowed(properties);
    }
    let properties = Properties::from_raw_trusted(properties);
    let mut writer = TableWriter::new();
    writer.copy_without(properties.headers().unwrap_or_default(), &[DELIVERY_COUNT]);
    writer.put(DELIVERY_COUNT, RawValue::I64(i64::from(failures)));
    Cow::Owned(PropertiesBuilder::from(properties).set_headers_raw(&writer.finish()).build())
}
