//! All that is durable in all virtual hosts, as changes that make it anew.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | format version of the changes behind, as in an entry |
//! | 8 | index of the last entry that is contained |
//! | .. | changes |
//!
//! Of each virtual host first the exchanges, then the queues, oldest first, then the bindings, oldest first: each change finds what it
//! refers to. The file around it, with its checksums, is `storage::Snapshots`'.

use bytes::{Bytes, BytesMut};
use storage::Index;

use super::op::{Binding, Change, Changes, DeclareQueue, ENTRY_FORMAT, Input, Op, OpError, check_format};
use crate::topology::{BindingView, DestinationKind, Topology};

/// The name of the metadata's snapshots.
pub(super) const NAME: &str = "metadata";

/// A snapshot in the making.
pub(super) struct Builder {
    out: BytesMut,
    local_shards: u32,
}

impl Builder {
    pub(super) fn new(applied: Index, local_shards: u32) -> Self {
        let mut out = BytesMut::from(&[ENTRY_FORMAT][..]);
        out.extend_from_slice(&applied.0.to_le_bytes());
        Self { out, local_shards }
    }

    /// Adds what is durable in a virtual host.
    pub(super) fn add(&mut self, topology: &Topology) {
        let vhost: Box<str> = topology.vhost().into();
        let mut put = |op: Op| Change { vhost: vhost.clone(), op }.encode(&mut self.out);
        for exchange in topology.durable_exchanges() {
            put(Op::DeclareExchange {
                name: exchange.name.as_ref().into(),
                kind: exchange.kind,
                auto_delete: exchange.auto_delete,
                internal: exchange.internal,
                arguments: exchange.arguments.clone(),
            });
        }
        for queue in topology.queues().filter(|queue| queue.durable) {
            put(Op::DeclareQueue(DeclareQueue {
                id: queue.id,
                shard: queue.shard - self.local_shards,
                name: queue.name.as_ref().into(),
                auto_delete: queue.auto_delete,
                arguments: queue.arguments.clone(),
            }));
        }
        for binding in topology.durable_bindings() {
            put(match binding.destination_kind {
                DestinationKind::Queue => Op::BindQueue(copy(binding)),
                DestinationKind::Exchange => Op::BindExchange(copy(binding)),
            });
        }
    }

    pub(super) fn finish(self) -> Bytes {
        self.out.freeze()
    }
}

fn copy(binding: BindingView<'_>) -> Binding {
    Binding {
        destination: binding.destination.into(),
        source: binding.source.into(),
        routing_key: binding.routing_key.into(),
        arguments: binding.arguments.clone(),
    }
}

/// Reads a snapshot: the index of the last entry that it contains, and the changes.
///
/// # Errors
/// A newer format, or no snapshot.
pub(super) fn decode(contents: &[u8]) -> Result<(Index, Changes<'_>), OpError> {
    let mut input = Input(contents);
    check_format(input.u8()?)?;
    let applied = Index(input.u64()?);
    Ok((applied, Changes(input.0)))
}
