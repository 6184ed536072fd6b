//! What is durable of exchanges, queues and bindings, of virtual hosts, users, permissions and runtime parameters: a state machine whose
//! changes go through the node's log.
//!
//! A connection that wants to change something durable checks first what it can answer from the topology as it is. Else it sends an
//! [`Op`] to the `Metadata` task and waits. The task puts all that waits into one entry of the log (`pipeline`), and when the entry
//! is on disk applies its changes, in order, to the topologies (`apply`), and answers. So one sync serves all who declare
//! at the same time, nobody sees what could still be lost, and the changes in the log, applied again after a restart (`recovery`),
//! give the same exchanges, queues and bindings.
//!
//! What lives in memory only (other queues and exchanges, and bindings that have one of these at an end) connections change themselves
//! under the topology's lock. The two meet in two places. A name can be wanted for something in memory while a durable thing of that name
//! is on its way: see `claims`. And a durable auto-delete exchange can be used up because a binding in memory went: the
//! topology then keeps it, and `Vhost` asks for its deletion here.
//!
//! Virtual hosts, users and parameters (`admin`, `admin_op`) are changed in the same way; they are in the `Directory`, beside the topologies.
//!
//! Entries pile up; a snapshot of everything now and then lets the log forget them (`snapshot`).

mod admin;
mod admin_op;
mod apply;
mod claims;
mod op;
mod pipeline;
mod recovery;
mod snapshot;
mod task;

#[cfg(test)]
mod directory_tests;
#[cfg(test)]
mod tests;

pub use admin_op::{AdminOp, VhostInfo};
pub use op::{Binding, Change, DeclareQueue, ENTRY_FORMAT, Op, OpError, decode_entry};
pub use recovery::RecoveryError;

pub(crate) use admin::{Consequences, Gone, apply_early, author};
pub(crate) use apply::Applied;
pub(crate) use claims::{Claim, Claims};
pub(crate) use pipeline::{Asker, Earlier};
pub(crate) use recovery::{RecoveredQueues, recover, recovered_queues};
pub(crate) use task::{Input, Metadata};
