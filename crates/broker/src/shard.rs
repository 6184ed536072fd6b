//! The task that owns the queues of one shard: takes what waits in its inbox, applies it, and hands each connection what is for it,
//! all at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use queue::{Admission, Batch, ConsumerId, Effect, Op, Shard};
use rustc_hash::FxHashMap;

use crate::broker::Broker;
use crate::connection::{ConnectionHandle, Event, Limiter};
use crate::mailbox::Mailbox;

/// Effects are handed to connections at least this often within a turn, so that a long inbox does not hold them back.
const DISPATCH_AT: usize = 4096;

/// What a shard can be sent.
#[derive(Debug)]
pub(crate) enum ShardInput {
    /// Ops of a connection.
    Batch(Batch),
    /// Ops that nobody waits for.
    Ops(Vec<Op>),
    /// A connection that will send batches; comes before its first one.
    Register(Arc<ConnectionHandle>),
    /// A connection is gone; comes after its last batch.
    Unregister(u64),
    /// A connection is gone without having given back what it held.
    Lost(u64),
    /// A consumer shares a limit with the others of its channel.
    Limit(ConsumerId, Arc<Limiter>),
}

/// The task.
pub(crate) struct ShardTask {
    broker: Arc<Broker>,
    index: u32,
    inbox: Arc<Mailbox<ShardInput>>,
    shard: Shard,
    peers: Peers,
    effects: Vec<Effect>,
}

/// The connections that a shard deals with.
#[derive(Default)]
struct Peers {
    connections: FxHashMap<u64, Peer>,
    /// Connections that have something in `outgoing`, each once.
    touched: Vec<u64>,
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
}

impl Peers {
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

impl ShardTask {
    pub(crate) fn new(broker: Arc<Broker>, index: usize) -> Self {
        let inbox = broker.shard_inbox(index);
        let index = u32::try_from(index).expect("a handful of shards");
        Self { broker, index, inbox, shard: Shard::new(), peers: Peers::default(), effects: Vec::new() }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut inputs = Vec::new();
        loop {
            poll_fn(|context| self.inbox.poll_take(context, &mut inputs)).await;
            self.turn(&mut inputs);
            // The connections that were woken run before the next turn, even under a flood.
            tokio::task::yield_now().await;
        }
    }

    /// Applies all inputs and hands out the effects.
    fn turn(&mut self, inputs: &mut Vec<ShardInput>) {
        for input in inputs.drain(..) {
            match input {
                ShardInput::Batch(batch) => self.shard.apply(batch, &mut self.peers, &mut self.effects),
                ShardInput::Ops(ops) => {
                    // Connection 0 is nobody: its replies go nowhere.
                    let batch = Batch { connection: 0, number: 0, ops, buffers: Vec::new() };
                    self.shard.apply(batch, &mut self.peers, &mut self.effects);
                }
                ShardInput::Register(handle) => {
                    let peer = Peer { handle, outgoing: Vec::new(), limiters: FxHashMap::default() };
                    self.peers.connections.insert(peer.handle.id.0, peer);
                }
                ShardInput::Unregister(connection) => {
                    self.dispatch();
                    self.peers.connections.remove(&connection);
                }
                ShardInput::Lost(connection) => {
                    self.shard.forget_connection(connection, &mut self.effects);
                    self.dispatch();
                    self.peers.connections.remove(&connection);
                }
                ShardInput::Limit(consumer, limiter) => {
                    if let Some(peer) = self.peers.connections.get_mut(&consumer.connection) {
                        peer.limiters.insert(consumer.local, limiter);
                    }
                }
            }
            if self.effects.len() >= DISPATCH_AT {
                self.shard.deliver(&mut self.peers, &mut self.effects);
                self.dispatch();
            }
        }
        self.shard.deliver(&mut self.peers, &mut self.effects);
        self.dispatch();
    }

    fn dispatch(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Deliver(delivery) => {
                    self.peers.send(delivery.consumer.connection, Event::Deliver(delivery));
                }
                Effect::BatchDone { connection, number } => {
                    self.peers.send(connection, Event::BatchDone { shard: self.index, number });
                }
                Effect::Reply { connection, token, reply } => {
                    self.peers.send(connection, Event::Reply { token, reply });
                }
                Effect::CancelConsumer { consumer } => {
                    if let Some(peer) = self.peers.connections.get_mut(&consumer.connection) {
                        peer.limiters.remove(&consumer.local);
                    }
                    self.peers.send(consumer.connection, Event::Cancelled { consumer: consumer.local });
                }
                Effect::QueueGone { queue } => self.broker.forget_queue(queue),
            }
        }
        self.peers.flush();
    }
}

impl ConnectionHandle {
    /// Counts `bytes` as on their way to the client, unless too much is already. The check after raising the flag closes the gap in
    /// which the connection may have drained meanwhile and seen no flag.
    fn reserve(&self, bytes: usize) -> bool {
        let cost = bytes + Self::DELIVERY_OVERHEAD;
        if self.outstanding.load(Ordering::Relaxed) >= Self::OUTSTANDING_HIGH {
            self.parked.store(true, Ordering::SeqCst);
            if self.outstanding.load(Ordering::SeqCst) >= Self::OUTSTANDING_LOW {
                return false;
            }
            self.parked.store(false, Ordering::SeqCst);
        }
        self.outstanding.fetch_add(cost, Ordering::Relaxed);
        true
    }
}
