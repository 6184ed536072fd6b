//! Client connections: from bytes on a socket to ops for the shards, and back.
//!
//! [`Session`] is the rules: it is given bytes, events and the time, and fills an outbox and batches of ops. It knows no socket.
//! [`task::serve`] is the task around it: it owns the socket, reads when the session can take more, and writes the outbox.
//!
//! The way of a publish: [`Session::input`] decodes frames; `publish.rs` copies envelope, properties and body into the turn's buffer
//! ([`staging::Staging`]), routes, and stages an op per shard; at the end of the turn the batches go to the shards.
//! A shard's answer comes as an [`Event`]: deliveries are encoded at once (`consume.rs`), the end of a batch becomes
//! publisher confirms (`confirms.rs`).
//!
//! Nothing here waits. A method whose answer comes from a shard leaves a [`channel::Pending`] behind, and the channel takes nothing
//! more from the socket until the answer is there; publishes and acks are never answered and so never wait.

mod changes;
mod channel;
mod close;
mod confirms;
mod consume;
mod describe;
mod direct_reply;
mod exchange_methods;
mod handle;
mod handshake;
mod pool;
mod publish;
mod queue_methods;
mod replies;
mod routes;
mod session;
mod settle;
mod staging;
mod task;
mod transaction;
mod unacked;

pub(crate) use confirms::Turns;
pub(crate) use direct_reply::DirectReplies;
pub(crate) use handle::{
    ChannelDescription, ConnectionHandle, ConnectionInfo, ConsumerDescription, Description, Event, Limiter,
};
pub(crate) use publish::{MessageHeaders, split_envelope};
pub(crate) use routes::Route;
pub(crate) use staging::Staging;
pub use task::serve;
