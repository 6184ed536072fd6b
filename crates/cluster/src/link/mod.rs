//! A link between two nodes, without the socket: who is at the other end ([`Handshake`]), and messages of several classes over
//! one stream ([`Outbox`], [`Inbox`]). Bytes in, bytes out; a task drives it.
//!
//! One connection per pair of nodes carries everything. Whoever has the larger node id keeps the connection that it made, if
//! both connect at once ([`keeps_connection_of`]). The driver closes a link when anything here returns an error.

mod frame;
mod handshake;

pub use frame::{FRAGMENT_BYTES, Inbox, Outbox, OutboxLimits};
pub use handshake::{Established, Handshake, HandshakeError, Local, NONCE_BYTES, Role, Secret};

/// Two nodes have connected to each other at the same time: whose connection stays.
pub fn keeps_connection_of(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
    a.max(b)
}
