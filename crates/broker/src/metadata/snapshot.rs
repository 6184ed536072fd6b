//! All that is durable in all virtual hosts, as changes that make it anew.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | format version of the changes behind, as in an entry |
//! | 8 | index of the last entry that is contained |
//! | .. | changes |
//!
//! First come the virtual hosts, users, permissions and parameters, then what is in the virtual hosts. Of each virtual host first the exchanges, then the queues, oldest first, then the bindings, oldest first: each change finds what it
//! refers to. The file around it, with its checksums, is `storage::Snapshots`'.

use bytes::{Bytes, BytesMut};
use storage::Index;

use super::admin_op::{AdminOp, VhostInfo};
use super::op::{Binding, Change, Changes, DeclareQueue, ENTRY_FORMAT, Input, Op, OpError, check_format};
use crate::auth::Permission;
use crate::directory::Directory;
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

    /// Adds all that is in a directory. Users come before their permissions and parameters, policies before what they count for.
    pub(super) fn add_directory(&mut self, directory: &Directory) {
        let mut put = |vhost: &str, op: AdminOp| Change { vhost: vhost.into(), op: op.into() }.encode(&mut self.out);
        let mut vhosts = directory.vhosts();
        vhosts.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        for vhost in &vhosts {
            put(vhost.name(), AdminOp::PutVhost(vhost.info().as_deref().map_or_else(VhostInfo::default, Clone::clone)));
        }
        let access = directory.access();
        for user in access.users() {
            let (name, password, tags) = (user.name().into(), user.password().cloned(), user.tags().to_vec());
            put("", AdminOp::PutUser { name, password, tags });
        }
        for (user, vhost, permissions) in access.all_permissions() {
            let pattern = |permission| permissions.pattern(permission).as_str().into();
            let [configure, write, read] = [Permission::Configure, Permission::Write, Permission::Read].map(pattern);
            put(vhost, AdminOp::SetPermissions { user: user.into(), configure, write, read });
        }
        for (user, vhost, exchange, permissions) in access.all_topic_permissions() {
            let (write, read) = (permissions.write().as_str().into(), permissions.read().as_str().into());
            put(vhost, AdminOp::SetTopicPermissions { user: user.into(), exchange: exchange.into(), write, read });
        }
        drop(access);
        for (vhost, component, name, value) in directory.parameters().iter() {
            let value = value.to_string().into();
            put(vhost, AdminOp::SetParameter { component: component.into(), name: name.into(), value });
        }
        for vhost in vhosts {
            self.add(&vhost.read());
        }
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

/// Reads a snapshot: its format, the index of the last entry that it contains, and the changes.
///
/// # Errors
/// A newer format, or no snapshot.
pub(super) fn decode(contents: &[u8]) -> Result<(u8, Index, Changes<'_>), OpError> {
    let mut input = Input(contents);
    let version = input.u8()?;
    check_format(version)?;
    let applied = Index(input.u64()?);
    Ok((version, applied, Changes(input.0)))
}
