//! Durable shards: queues whose ops go through the node's log before they take effect.
//!
//! A durable shard is a group of the log. What changes a queue for good is an *entry*: the messages of a batch with the queues they go
//! to, or the removals of a turn. An entry is handed to the log's writer and waits in line; when the writer reports it synced it
//! is applied, and only then is the batch done (so publishers get their confirms) and are its messages delivered.
//! Settlements take effect at once as far as consumers are concerned; the removal of the settled messages rides along with
//! the next entry.
//!
//! [`entry`] is the format of entries, [`snapshot`] that of the state which lets the log forget them, [`task`] the task,
//! [`recovery`] what happens at a start, [`keeper`] what decides which files go, and [`moving`] how messages leave them.

pub(crate) mod entry;
mod keeper;
mod moving;
mod reader;
mod recovery;
pub(crate) mod snapshot;
mod task;
mod varint;

pub(crate) use keeper::LogKeeper;
pub(crate) use moving::{Files, Guard, Moved};
pub(crate) use reader::Reader;
pub(crate) use recovery::{Recovered, recover};
pub(crate) use task::DurableShardTask;
