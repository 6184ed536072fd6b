//! The ends: exceptions, closes from either side, and what becomes of everything a channel or connection held.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use amqp::methods::AMQPClass;
use amqp::{Exception, MethodId, ReplyCode, encode};
use queue::{ConsumerId, Intervals, Op, Outcome, QueueId};

use super::channel::{ChannelState, Consumer, Fault, Pending};
use super::session::{Phase, Session, close_ok};
use super::unacked::Unacked;
use crate::shard::ShardInput;

/// Who consumes or holds messages of a queue for a channel that ends.
///
/// The order is that in which they are detached. Of a queue's consumers those without acknowledgements go first: what the others
/// give back would be delivered to them, and be lost with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    shard: u32,
    queue: QueueId,
    acknowledges: bool,
    local: u32,
}

impl Session {
    /// A frame of `channel` could not be handled.
    pub(super) fn fault(&mut self, channel: u16, fault: Fault) {
        match fault {
            Fault::Exception(exception) if exception.whole_connection || channel == 0 => {
                self.connection_exception(exception);
            }
            Fault::Exception(exception) => self.channel_exception(channel, &exception),
            Fault::Drop(reason) => {
                tracing::warn!(connection = %self.log_name(), reason, "cannot decode what the client sent: closed");
                self.release_everything();
                self.phase = Phase::Gone;
            }
        }
    }

    /// Ends a channel with `channel.close`.
    pub(super) fn channel_exception(&mut self, number: u16, exception: &Exception) {
        tracing::warn!(connection = %self.log_name(), channel = number, %exception, "channel exception");
        self.release_channel(number);
        encode::channel_close(self.outbox.buffer(), number, exception);
        if let Some(channel) = self.channels.get_mut(&number) {
            let epoch = channel.epoch;
            *channel = super::channel::Channel::new(ChannelState::Closing, epoch);
        }
        self.unstall(number);
    }

    /// Ends the connection with `connection.close`.
    pub(super) fn connection_exception(&mut self, exception: Exception) {
        tracing::warn!(connection = %self.log_name(), %exception, "connection exception");
        let opened = self.phase == Phase::Running;
        self.release_everything();
        if opened || self.user.is_some() {
            encode::connection_close(self.outbox.buffer(), &exception);
            self.phase = Phase::Closing { until: self.close_deadline(), deaf: false };
        } else {
            // Before the login nobody is told anything: the socket goes, late enough to slow down a guesser.
            self.drop_later(&exception.to_string());
        }
    }

    /// The client sent `channel.close`.
    pub(super) fn client_closes_channel(&mut self, number: u16) {
        self.release_channel(number);
        let settled_in = self.channels.get_mut(&number).map(|channel| std::mem::take(&mut channel.settled_in));
        if let Some(settled_in) = settled_in.filter(|shards| !shards.is_empty()) {
            self.await_settled(&settled_in);
            let turn = self.turns.current();
            let channel = self.open(number);
            channel.pending = Some(Pending::Close { turn });
            // Whoever closes a channel hears no more of what it published there.
            channel.confirms = None;
        } else {
            self.forget_channel(number);
            self.send(number, close_ok());
        }
    }

    /// Makes this turn's batches urgent, with one for each of these shards: they are done when all that was settled before is on
    /// disk.
    fn await_settled(&mut self, shards: &[u32]) {
        let consumer = ConsumerId { connection: self.handle.id.0, local: 0 };
        for &shard in shards {
            // It settles nothing: what counts is its place behind what did.
            self.staging.op(
                shard,
                Op::Settle { queue: QueueId(0), consumer, outcome: Outcome::Ack, sequences: Intervals::default() },
            );
        }
        self.urgent = true;
    }

    /// The client sent `connection.close`.
    pub(super) fn client_closes(&mut self) {
        let settled_in: BTreeSet<u32> =
            self.channels.values().flat_map(|channel| channel.settled_in.iter().copied()).collect();
        self.release_everything();
        if settled_in.is_empty() {
            self.send_connection_close_ok();
        } else {
            let settled_in: Vec<u32> = settled_in.into_iter().collect();
            self.await_settled(&settled_in);
            self.closing = Some(self.turns.current());
        }
        self.phase = Phase::Lingering { until: self.close_deadline() };
    }

    pub(super) fn send_connection_close_ok(&mut self) {
        use amqp::methods::connection::{AMQPMethod, CloseOk};
        self.send(0, AMQPClass::Connection(AMQPMethod::CloseOk(CloseOk {})));
    }

    /// The node stops, or somebody wants the connection to be closed.
    pub(super) fn shutdown(&mut self, text: &str) {
        match self.phase {
            Phase::Running => {
                self.connection_exception(Exception::new(ReplyCode::ConnectionForced, text, MethodId::NONE));
            }
            Phase::Closing { .. } => {}
            _ => self.phase = Phase::Gone,
        }
    }

    /// The task ends: what is held goes back, and the shards and the broker forget the connection.
    pub(super) fn end(&mut self) {
        self.release_everything();
        self.flush();
        self.staging.unregister(&self.broker);
        self.broker.unregister(self.handle.id);
    }

    /// The task ends in a panic, and nothing in here can be trusted: the shards find out what the connection held.
    pub(super) fn abandon(&mut self) {
        tracing::error!(connection = %self.peer, "a connection ends because of a fault of ours");
        if let Some(vhost) = &self.vhost {
            let queues = vhost.read().exclusive_queues_of(self.handle.id);
            for queue in queues {
                let delete = Op::Delete { queue: queue.id, if_unused: false, if_empty: false, token: None };
                self.broker.send_ops(queue.shard, vec![delete]);
            }
        }
        for shard in 0..self.broker.shard_count() {
            self.broker.shard(shard).send(ShardInput::Lost(self.handle.id.0));
        }
        self.broker.unregister(self.handle.id);
    }

    pub(super) fn forget_channel(&mut self, number: u16) {
        let removed = self.channels.remove(&number);
        if removed.is_some_and(|channel| channel.state != ChannelState::Unopened) {
            self.handle.channels.fetch_sub(1, Ordering::Relaxed);
        }
        self.unstall(number);
    }

    /// Gives back what all channels hold and deletes the connection's exclusive queues. Can be called again; does nothing then.
    pub(super) fn release_everything(&mut self) {
        let numbers: Vec<u16> = self.channels.keys().copied().collect();
        let mut holders = BTreeSet::new();
        for number in numbers {
            self.take_holders(number, &mut holders);
            self.forget_channel(number);
        }
        self.detach(holders);
        self.delete_exclusive_queues();
        self.blocked = None;
    }

    /// Stops a channel's consumers and sends what is out with it back to the queues, in order.
    fn release_channel(&mut self, number: u16) {
        let mut holders = BTreeSet::new();
        self.take_holders(number, &mut holders);
        self.detach(holders);
    }

    /// Takes from a channel who consumes or holds messages for it.
    fn take_holders(&mut self, number: u16, holders: &mut BTreeSet<Holder>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let holder = |entry: &Unacked| Holder {
            shard: entry.shard,
            queue: entry.queue,
            acknowledges: true,
            local: entry.consumer,
        };
        holders.extend(channel.unacked.iter().map(holder));
        if let Some(transaction) = channel.transaction.take() {
            for (_, settled) in &transaction.settled {
                holders.extend(settled.iter().map(holder));
            }
        }
        for (_, local) in channel.consumers.drain() {
            if let Some(Consumer { shard, queue, no_ack, .. }) = self.consumers.remove(&local) {
                holders.insert(Holder { shard, queue, acknowledges: !no_ack, local });
            }
        }
        // A get whose answer is on its way holds its message too.
        if let Some(Pending::Get { shard, holder: Some((queue, local)), .. }) = channel.pending {
            holders.insert(Holder { shard, queue, acknowledges: true, local });
        }
    }

    fn detach(&mut self, holders: BTreeSet<Holder>) {
        let connection = self.handle.id.0;
        for Holder { shard, queue, local, .. } in holders {
            let consumer = ConsumerId { connection, local };
            self.staging.op(shard, Op::Detach { queue, consumer, requeue: true, token: None });
        }
    }

    /// Exclusive queues end with their connection: their names at once, so that the next client can have them, and their messages
    /// when the shard gets to it.
    fn delete_exclusive_queues(&mut self) {
        let Some(vhost) = self.vhost.clone() else { return };
        let queues = vhost.read().exclusive_queues_of(self.handle.id);
        for queue in queues {
            vhost.change(|topology| topology.delete_queue(queue.id));
            let delete = Op::Delete { queue: queue.id, if_unused: false, if_empty: false, token: None };
            self.staging.op(queue.shard, delete);
        }
    }
}
