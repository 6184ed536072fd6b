//! What others hold of a connection: shards put deliveries and answers in its mailbox, the broker tells it of alarms and of the end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use amqp::{Exception, FieldTable};
use queue::{Delivery, Message, QueueId, Reply, Token};
use tokio::sync::oneshot;

use super::direct_reply::ReplyKey;
use crate::mailbox::Mailbox;
use crate::metadata::Applied;
use crate::topology::ConnectionId;

/// What a connection can be told.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message for a consumer.
    Deliver(Delivery),
    /// All ops of a batch took effect.
    BatchDone { shard: u32, number: u64 },
    /// A queue is full and refused a publish of a batch; comes before its end.
    Rejected { shard: u32, number: u64, publish: u64 },
    /// An answer to an op.
    Reply { token: Token, reply: Reply },
    /// A change of something durable has taken effect, or was refused.
    Metadata { token: Token, result: Result<Applied, Exception> },
    /// The queue of a consumer is gone.
    Cancelled { consumer: u32 },
    /// A reply for a channel that takes direct replies; its bytes count like a delivery's.
    DirectReply { channel: u16, key: ReplyKey, message: Message },
    /// An alarm was raised or cleared: look again.
    Alarm,
    /// The node stops.
    Shutdown,
    /// Somebody wants it closed, with `320 CONNECTION_FORCED` and this text.
    Close(Arc<str>),
    /// Somebody wants to know what is open on it.
    Describe(oneshot::Sender<Description>),
}

/// What is known of an open connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// The user's name.
    pub(crate) user: Box<str>,
    /// The virtual host's name.
    pub(crate) vhost: Box<str>,
    /// The client's end of the socket.
    pub(crate) peer: SocketAddr,
    /// The node's end.
    pub(crate) local: Option<SocketAddr>,
    /// The SASL mechanism.
    pub(crate) mechanism: Box<str>,
    /// Largest frame in bytes.
    pub(crate) frame_max: u32,
    /// Most channels.
    pub(crate) channel_max: u16,
    /// Heartbeat interval in seconds.
    pub(crate) heartbeat_secs: u64,
    /// What the client says of itself.
    pub(crate) client_properties: FieldTable,
    /// When it was opened, in milliseconds since 1970.
    pub(crate) connected_at_ms: u64,
}

impl ConnectionInfo {
    /// The name that RabbitMQ's tools show: both ends.
    pub(crate) fn name(&self) -> String {
        match self.local {
            Some(local) => format!("{} -> {local}", self.peer),
            None => self.peer.to_string(),
        }
    }
}

/// A channel, for listings.
#[derive(Clone, Debug)]
pub(crate) struct ChannelDescription {
    pub(crate) number: u16,
    pub(crate) confirm: bool,
    pub(crate) transactional: bool,
    pub(crate) prefetch: u32,
    pub(crate) global_prefetch: u32,
    pub(crate) unacked: usize,
    pub(crate) uncommitted_publishes: usize,
    pub(crate) uncommitted_acks: usize,
    pub(crate) unconfirmed: u64,
    pub(crate) consumers: usize,
}

/// A consumer, for listings.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerDescription {
    pub(crate) channel: u16,
    pub(crate) queue: QueueId,
    pub(crate) tag: Arc<str>,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) prefetch: u32,
    pub(crate) arguments: FieldTable,
}

/// What is open on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Description {
    /// Publishers are blocked, and it is one.
    pub(crate) blocked: bool,
    /// In the order of their numbers.
    pub(crate) channels: Vec<ChannelDescription>,
    /// In the order in which they were started.
    pub(crate) consumers: Vec<ConsumerDescription>,
}

/// The shared part of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    pub(crate) id: ConnectionId,
    /// Bounded by what causes its events: deliveries by `outstanding`, the rest by the ops that the connection has in flight.
    pub(crate) mailbox: Mailbox<Event>,
    /// Bytes of deliveries that were handed over and are not yet in the socket.
    pub(crate) outstanding: AtomicUsize,
    /// A shard turned a consumer of this connection away: resume all when `outstanding` is low again.
    pub(crate) parked: AtomicBool,
    /// Set when the connection is open.
    pub(crate) info: OnceLock<ConnectionInfo>,
    /// Open channels.
    pub(crate) channels: AtomicU32,
}

impl ConnectionHandle {
    /// From here on shards hold messages back. Half a megabyte keeps a socket busy for longer than a round over the shards takes.
    pub(crate) const OUTSTANDING_HIGH: usize = 512 * 1024;
    /// Below this the consumers are resumed.
    pub(crate) const OUTSTANDING_LOW: usize = Self::OUTSTANDING_HIGH / 2;
    /// What a delivery costs beside its bytes: its place in the mailbox and its frames.
    pub(crate) const DELIVERY_OVERHEAD: usize = 160;

    pub(crate) fn new(id: ConnectionId) -> Arc<Self> {
        Arc::new(Self {
            id,
            mailbox: Mailbox::default(),
            outstanding: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            info: OnceLock::new(),
            channels: AtomicU32::new(0),
        })
    }

    /// `bytes` of deliveries are in the socket. Answers whether consumers are to be resumed.
    pub(crate) fn written(&self, bytes: usize) -> bool {
        let before = self.outstanding.fetch_sub(bytes, Ordering::SeqCst);
        before - bytes < Self::OUTSTANDING_LOW && self.parked.swap(false, Ordering::SeqCst)
    }
}

/// `basic.qos` with `global`: one limit for all consumers of a channel, on whatever shards their queues are.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: AtomicU32,
    used: AtomicU32,
    parked: AtomicBool,
}

impl Limiter {
    pub(crate) fn new(limit: u32, used: u32) -> Arc<Self> {
        Arc::new(Self { limit: AtomicU32::new(limit), used: AtomicU32::new(used), parked: AtomicBool::new(false) })
    }

    /// Changes the limit; 0 is none. The caller resumes the consumers.
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::SeqCst);
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.load(Ordering::SeqCst) != 0
    }

    /// Takes a place. After a `false` the consumer waits to be resumed. As with [`ConnectionHandle::outstanding`], the
    /// second look closes the gap between finding no place and raising the flag.
    pub(crate) fn take(&self) -> bool {
        if self.try_take() {
            return true;
        }
        self.parked.store(true, Ordering::SeqCst);
        self.try_take()
    }

    fn try_take(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let take = |used: u32| (limit == 0 || used < limit).then(|| used + 1);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    /// The limit; 0 is none.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Gives places back. Answers whether the channel's consumers are to be resumed.
    pub(crate) fn give_back(&self, count: u32) -> bool {
        let give = |used: u32| Some(used.saturating_sub(count));
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, give);
        self.parked.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limiter_gives_out_as_many_places_as_its_limit() {
        let limiter = Limiter::new(2, 1);
        assert!(limiter.take());
        assert!(!limiter.take());
        assert!(limiter.give_back(1), "somebody was turned away");
        assert!(!limiter.give_back(0), "nobody since");
        assert!(limiter.take());
        assert!(!limiter.take());
        limiter.set_limit(0);
        assert!(limiter.take());
    }

    #[test]
    fn consumers_are_resumed_once_when_the_socket_has_drained() {
        let handle = ConnectionHandle::new(ConnectionId(1));
        handle.outstanding.store(ConnectionHandle::OUTSTANDING_HIGH, Ordering::SeqCst);
        handle.parked.store(true, Ordering::SeqCst);
        assert!(!handle.written(10), "still above the low mark");
        assert!(handle.written(ConnectionHandle::OUTSTANDING_LOW));
        assert!(!handle.written(10));
    }
}
