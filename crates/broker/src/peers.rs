//! The connections that a shard deals with: what is on its way to each, and whether it can take more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use queue::{Admission, Chunk, ConsumerId, Effect, Paged, QueueId};
use rustc_hash::FxHashMap;

use crate::broker::Broker;
use crate::connection::{ConnectionHandle, Event, Limiter};
use crate::durable::Reader;

/// The connections that a shard deals with.
pub(crate) struct Peers {
    connections: FxHashMap<u64, Peer>,
    /// Connections that have something in `outgoing`, each once.
    touched: Vec<u64>,
    /// Where the messages of durable queues are read back from.
    reader: Option<Reader>,
}

struct Peer {
    handle: Arc<ConnectionHandle>,
    outgoing: Vec<Event>,
    limiters: FxHashMap<u32, Arc<Limiter>>,
}

impl Admission for Peers {
    fn admit(&mut self, consumer: ConsumerId, bytes: usize) -> bool {
        let Some(peer) = self.connections.get(&consumer.connection) else { return false };
        if !peer.limiters.is_empty()
            && let Some(limiter) = peer.limiters.get(&consumer.local)
            && !limiter.take()
        {
            return false;
        }
        if peer.handle.reserve(bytes) {
            return true;
        }
        if let Some(limiter) = peer.limiters.get(&consumer.local) {
            limiter.give_back(1);
        }
        false
    }

    fn read_chunk(&mut self, queue: QueueId, chunk: &Chunk) -> Vec<Option<Paged>> {
        let reader = self.reader.as_ref().expect("only queues of a shard with a log have chunks");
        reader.read_chunk(queue, chunk)
    }
}

impl Peers {
    pub(crate) fn new(reader: Option<Reader>) -> Self {
        Self { connections: FxHashMap::default(), touched: Vec::new(), reader }
    }

    pub(crate) fn register(&mut self, handle: Arc<ConnectionHandle>) {
        let peer = Peer { handle, outgoing: Vec::new(), limiters: FxHashMap::default() };
        self.connections.insert(peer.handle.id.0, peer);
    }

    pub(crate) fn unregister(&mut self, connection: u64) {
        self.connections.remove(&connection);
    }

    pub(crate) fn limit(&mut self, consumer: ConsumerId, limiter: Arc<Limiter>) {
        if let Some(peer) = self.connections.get_mut(&consumer.connection) {
            peer.limiters.insert(consumer.local, limiter);
        }
    }

    /// Carries out effects; each connection gets all that is for it at once.
    pub(crate) fn dispatch(&mut self, broker: &Broker, shard: u32, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Deliver(delivery) => self.send(delivery.consumer.connection, Event::Deliver(delivery)),
                Effect::BatchDone { connection, number } => {
                    self.send(connection, Event::BatchDone { shard, number });
                }
                Effect::Rejected { connection, number, publish } => {
                    self.send(connection, Event::Rejected { shard, number, publish });
                }
                Effect::DeadLetter(letter) => broker.post(shard, *letter),
                Effect::Reply { connection, token, reply } => self.send(connection, Event::Reply { token, reply }),
                Effect::CancelConsumer { consumer } => {
                    if let Some(peer) = self.connections.get_mut(&consumer.connection) {
                        peer.limiters.remove(&consumer.local);
                    }
                    self.send(consumer.connection, Event::Cancelled { consumer: consumer.local });
                }
                Effect::QueueGone { queue } => broker.forget_queue(queue),
            }
        }
        self.flush();
    }

    fn send(&mut self, connection: u64, event: Event) {
        let Some(peer) = self.connections.get_mut(&connection) else { return };
        if peer.outgoing.is_empty() {
            self.touched.push(connection);
        }
        peer.outgoing.push(event);
    }

    fn flush(&mut self) {
        for connection in self.touched.drain(..) {
            if let Some(peer) = self.connections.get_mut(&connection) {
                peer.handle.mailbox.send_all(&mut peer.outgoing);
            }
        }
    }
}

impl ConnectionHandle {
    /// Counts `bytes` as on their way to the client, unless too much is already. The check after raising the flag closes the gap in
    /// which the connection may have drained meanwhile and seen no flag.
    fn reserve(&self, bytes: usize) -> bool {
        let cost = bytes + Self::DELIVERY_OVERHEAD;
        if self.outstanding.load(Ordering::Relaxed) >= Self::OUTSTANDING_HIGH {
            self.parked.store(true, Ordering::SeqCst);
            // The flag stays up: it may be another consumer's too, and a resume too many does no harm.
            if self.outstanding.load(Ordering::SeqCst) >= Self::OUTSTANDING_LOW {
                return false;
            }
        }
        self.outstanding.fetch_add(cost, Ordering::Relaxed);
        true
    }
}
