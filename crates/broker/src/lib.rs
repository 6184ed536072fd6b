//! Everything between a client's socket and the queues: connections, channels, exchanges, bindings, routing, confirms, users and
//! permissions, memory limits.
//!
//! [`Broker`] is what all tasks share. [`serve`] runs one client connection; the rules of a connection are a state machine without
//! I/O (`connection`). [`topology`] is the pure data structure of exchanges, queues and bindings of a virtual host. Queues themselves
//! live in the `queue` crate and are owned by shard tasks (`shard`), which connections reach only by batches of ops.

pub mod admin;
pub mod auth;
mod broker;
mod budget;
mod clock;
mod connection;
mod directory;
mod durable;
#[doc(hidden)]
pub mod fuzzing;
mod letters;
mod limits;
mod mailbox;
pub mod memory;
pub mod metadata;
mod names;
mod peers;
pub mod policy;
mod settings;
mod shard;
mod stamps;
mod store;
pub mod topology;
mod vhost;

pub use broker::{Broker, StartError};
pub use connection::serve;
pub use settings::Settings;
