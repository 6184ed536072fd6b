//! What a change does to a topology.
//!
//! Durable things change here and nowhere else, and what becomes of them follows from the changes alone: only durable things are looked
//! at, never those in memory, which are not there any more when the changes are applied again after a restart. Arguments and
//! names were checked before the change was written, by the rules of that day, and are not checked again.

use std::sync::Arc;

use amqp::{Exception, FieldTable, MethodId};

use super::op::{Binding, DeclareQueue, Op};
use crate::topology::{
    ConnectionId, Declared, ExchangeDeclare, ExchangeKind, Presence, QueueDeclare, QueueRecord, Topology,
};

/// Nobody: durable things belong to no connection.
const NOBODY: ConnectionId = ConnectionId(0);

/// Whether a change that was not refused changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It did.
    Changed,
    /// All was as wanted already.
    Unchanged,
}

/// Applies a change.
///
/// # Errors
/// What the client is told that asked for it. Nothing changed then.
pub(super) fn apply(
    topology: &mut Topology,
    op: &Op,
    local_shards: u32,
    created: &mut dyn FnMut(&Arc<QueueRecord>),
) -> Result<Applied, Exception> {
    let before = topology.version();
    match op {
        Op::DeclareExchange { name, kind, auto_delete, internal, arguments } => {
            declare_exchange(topology, *kind, name, *auto_delete, *internal, arguments)?;
        }
        Op::DeleteExchange { name, if_unused } => {
            if is_durable_exchange(topology, name) {
                // Bindings that end in memory do not count: while the change was on its way there were none, and none could be made.
                let in_use = *if_unused && topology.is_durable_source(name);
                topology.check_delete_exchange(name, in_use)?;
                topology.delete_exchange(name, false)?;
            }
        }
        Op::BindQueue(binding) => {
            check_source(topology, binding, MethodId::QUEUE_BIND)?;
            if !topology.find_queue(&binding.destination).is_some_and(|record| record.durable) {
                return Err(topology.no_queue(&binding.destination, MethodId::QUEUE_BIND));
            }
            let Binding { destination, source, routing_key, arguments } = binding;
            topology.bind_queue(destination, source, routing_key, arguments, NOBODY)?;
        }
        Op::UnbindQueue(binding) => {
            let Binding { destination, source, routing_key, arguments } = binding;
            let found = topology.check_unbind_queue(destination, source, routing_key, arguments, NOBODY)?;
            if found.is_some_and(|place| place.durable) {
                topology.unbind_queue(destination, source, routing_key, arguments, NOBODY)?;
            }
        }
        Op::BindExchange(binding) => {
            check_source(topology, binding, MethodId::EXCHANGE_BIND)?;
            if !is_durable_exchange(topology, &binding.destination) {
                return Err(topology.no_exchange(&binding.destination, MethodId::EXCHANGE_BIND));
            }
            let Binding { destination, source, routing_key, arguments } = binding;
            topology.bind_exchange(destination, source, routing_key, arguments)?;
        }
        Op::UnbindExchange(binding) => {
            let Binding { destination, source, routing_key, arguments } = binding;
            let found = topology.check_unbind_exchange(destination, source, routing_key, arguments)?;
            if found.is_some_and(|place| place.durable) {
                topology.unbind_exchange(destination, source, routing_key, arguments)?;
            }
        }
        Op::DeclareQueue(declare) => declare_queue(topology, declare, local_shards, created)?,
        Op::DeleteQueue { id } => {
            topology.delete_queue(*id);
        }
        Op::Admin(_) => unreachable!("changes of the directory are applied to it"),
    }
    Ok(if topology.version() == before { Applied::Unchanged } else { Applied::Changed })
}

fn is_durable_exchange(topology: &Topology, name: &str) -> bool {
    topology.find_exchange(name).is_some_and(|exchange| exchange.durable)
}

fn check_source(topology: &Topology, binding: &Binding, method: MethodId) -> Result<(), Exception> {
    if is_durable_exchange(topology, &binding.source) {
        return Ok(());
    }
    Err(topology.no_exchange(&binding.source, method))
}

fn declare_exchange(
    topology: &mut Topology,
    kind: ExchangeKind,
    name: &str,
    auto_delete: bool,
    internal: bool,
    arguments: &FieldTable,
) -> Result<(), Exception> {
    let kind_name = kind.name();
    let declare =
        ExchangeDeclare { name, kind: kind_name, passive: false, durable: true, auto_delete, internal, arguments };
    if topology.find_exchange(name).is_some() {
        // Another declare of the name was written first.
        let presence = topology.check_declare_exchange(&declare)?;
        debug_assert_eq!(presence, Presence::There);
    } else {
        topology.create_exchange(kind, &declare);
    }
    Ok(())
}

fn declare_queue(
    topology: &mut Topology,
    declare: &DeclareQueue,
    local_shards: u32,
    created: &mut dyn FnMut(&Arc<QueueRecord>),
) -> Result<(), Exception> {
    let request = QueueDeclare {
        name: &declare.name,
        server_named: false,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: declare.auto_delete,
        arguments: &declare.arguments,
        connection: NOBODY,
    };
    if topology.find_queue(&declare.name).is_some() {
        let declared = topology.check_declare_queue(&request)?;
        debug_assert!(matches!(declared, Declared::Existing(_)));
    } else {
        created(&topology.create_queue(declare.id, local_shards + declare.shard, &request));
    }
    Ok(())
}
