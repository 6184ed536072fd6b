//! Bindings: the record of each, found by its content and by both its ends, and the methods that make and remove them.
//!
//! Everything about one binding takes constant or logarithmic time, so that a queue with one binding goes as quickly from
//! an exchange with 100,000 bindings as from one with two.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use amqp::{Exception, FieldTable, MethodId, ReplyCode};
use queue::QueueId;
use rustc_hash::FxHashMap;

use super::exchange::{ExchangeId, ExchangeKind};
use super::targets::Target;
use super::{ConnectionId, Exchange, Topology, headers, method, value};

/// A binding's number: they are walked in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BindingId(u64);

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Destination {
    Queue(QueueId),
    Exchange(ExchangeId),
}

/// One binding.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) id: BindingId,
    pub(super) source: ExchangeId,
    pub(super) destination: Destination,
    pub(super) routing_key: Arc<str>,
    pub(super) arguments: FieldTable,
}

/// What makes two bindings the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BindingKey {
    source: ExchangeId,
    destination: Destination,
    routing_key: Arc<str>,
    arguments: Box<[u8]>,
}

/// All bindings.
///
/// Invariants: each binding is found by its key, by its source and by its destination; no index holds an empty set.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    all: BTreeMap<BindingId, Binding>,
    by_key: HashMap<BindingKey, BindingId>,
    by_source: FxHashMap<ExchangeId, BTreeSet<BindingId>>,
    by_queue: FxHashMap<QueueId, BTreeSet<BindingId>>,
    by_exchange: FxHashMap<ExchangeId, BTreeSet<BindingId>>,
    made: u64,
}

impl Bindings {
    /// Notes a binding; nothing when it is there already.
    fn insert(
        &mut self,
        source: ExchangeId,
        destination: Destination,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Option<&Binding> {
        let routing_key: Arc<str> = routing_key.into();
        let key = BindingKey {
            source,
            destination,
            routing_key: Arc::clone(&routing_key),
            arguments: value::content_key(arguments),
        };
        if self.by_key.contains_key(&key) {
            return None;
        }
        let id = BindingId(self.made);
        self.made += 1;
        self.by_key.insert(key, id);
        self.by_source.entry(source).or_default().insert(id);
        match destination {
            Destination::Queue(queue) => self.by_queue.entry(queue).or_default().insert(id),
            Destination::Exchange(exchange) => self.by_exchange.entry(exchange).or_default().insert(id),
        };
        let binding = Binding { id, source, destination, routing_key, arguments: arguments.clone() };
        Some(self.all.entry(id).or_insert(binding))
    }

    fn find(
        &self,
        source: ExchangeId,
        destination: Destination,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Option<BindingId> {
        let arguments = value::content_key(arguments);
        self.by_key.get(&BindingKey { source, destination, routing_key: routing_key.into(), arguments }).copied()
    }

    /// Forgets a binding. The source's routing table is not touched.
    pub(super) fn remove(&mut self, id: BindingId) -> Binding {
        let binding = self.all.remove(&id).expect("a binding that is removed is there");
        self.by_key.remove(&BindingKey {
            source: binding.source,
            destination: binding.destination,
            routing_key: Arc::clone(&binding.routing_key),
            arguments: value::content_key(&binding.arguments),
        });
        remove_from(&mut self.by_source, &binding.source, id);
        match binding.destination {
            Destination::Queue(queue) => remove_from(&mut self.by_queue, &queue, id),
            Destination::Exchange(exchange) => remove_from(&mut self.by_exchange, &exchange, id),
        }
        binding
    }

    /// The bindings whose source is the exchange.
    pub(super) fn from(&self, source: ExchangeId) -> Vec<BindingId> {
        self.by_source.get(&source).into_iter().flatten().copied().collect()
    }

    /// The bindings that lead to the queue or exchange.
    fn to(&self, destination: Destination) -> Vec<BindingId> {
        match destination {
            Destination::Queue(queue) => self.by_queue.get(&queue),
            Destination::Exchange(exchange) => self.by_exchange.get(&exchange),
        }
        .into_iter()
        .flatten()
        .copied()
        .collect()
    }

    /// Whether a binding has the exchange as its source.
    pub(super) fn is_source(&self, exchange: ExchangeId) -> bool {
        self.by_source.contains_key(&exchange)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
            && self.by_key.is_empty()
            && self.by_source.is_empty()
            && self.by_queue.is_empty()
            && self.by_exchange.is_empty()
    }
}

fn remove_from<K: std::hash::Hash + Eq>(index: &mut FxHashMap<K, BTreeSet<BindingId>>, key: &K, id: BindingId) {
    let ids = index.get_mut(key).expect("a binding is in the index of each of its ends");
    ids.remove(&id);
    if ids.is_empty() {
        index.remove(key);
    }
}

/// Whether a binding leads to a queue or to an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationKind {
    /// To a queue.
    Queue,
    /// To another exchange (an extension of RabbitMQ).
    Exchange,
}

/// A binding as it is listed.
#[derive(Clone, Copy, Debug)]
pub struct BindingView<'a> {
    /// The name of the exchange that routes by it.
    pub source: &'a str,
    /// The name of what it leads to.
    pub destination: &'a str,
    /// What that is.
    pub destination_kind: DestinationKind,
    /// The binding key.
    pub routing_key: &'a str,
    /// Its arguments.
    pub arguments: &'a FieldTable,
}

impl Topology {
    /// All bindings that were made, oldest first. That every queue is bound to the default exchange goes without saying.
    pub fn bindings(&self) -> impl Iterator<Item = BindingView<'_>> {
        self.bindings.all.values().map(|binding| self.view(binding))
    }

    /// The bindings from an exchange, oldest first.
    pub fn bindings_from(&self, exchange: &str) -> impl Iterator<Item = BindingView<'_>> {
        let ids = self.exchanges.find(exchange).and_then(|id| self.bindings.by_source.get(&id));
        ids.into_iter().flatten().map(|id| self.view(&self.bindings.all[id]))
    }

    /// The bindings to an exchange, oldest first.
    pub fn bindings_to_exchange(&self, exchange: &str) -> impl Iterator<Item = BindingView<'_>> {
        let ids = self.exchanges.find(exchange).and_then(|id| self.bindings.by_exchange.get(&id));
        ids.into_iter().flatten().map(|id| self.view(&self.bindings.all[id]))
    }

    /// The bindings to a queue, oldest first.
    pub fn bindings_to_queue(&self, id: QueueId) -> impl Iterator<Item = BindingView<'_>> {
        let ids = self.bindings.by_queue.get(&id);
        ids.into_iter().flatten().map(|id| self.view(&self.bindings.all[id]))
    }

    fn view<'a>(&'a self, binding: &'a Binding) -> BindingView<'a> {
        let (destination, destination_kind) = match binding.destination {
            Destination::Queue(id) => (&*self.queues.get(id).name, DestinationKind::Queue),
            Destination::Exchange(id) => (&*self.exchanges.get(id).name, DestinationKind::Exchange),
        };
        BindingView {
            source: &self.exchanges.get(binding.source).name,
            destination,
            destination_kind,
            routing_key: &binding.routing_key,
            arguments: &binding.arguments,
        }
    }

    /// `queue.bind`: makes the binding unless it is there.
    ///
    /// # Errors
    /// The default exchange (403), a missing exchange or queue (404), arguments that make no sense to the exchange (406),
    /// another connection's exclusive queue (405).
    pub fn bind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<(), Exception> {
        self.refuse_default_exchange(exchange, method::QUEUE_BIND)?;
        let source = self.source(exchange, method::QUEUE_BIND)?;
        let Some(record) = self.find_queue(queue) else { return Err(self.no_queue(queue, method::QUEUE_BIND)) };
        check_arguments(self.exchanges.get(source), arguments, method::QUEUE_BIND)?;
        let record = Arc::clone(record);
        self.refuse_locked(&record, connection, method::QUEUE_BIND)?;
        self.add_binding(source, Destination::Queue(record.id), routing_key, arguments);
        Ok(())
    }

    /// `queue.unbind`: removes the binding. What is not there is unbound already.
    ///
    /// # Errors
    /// The default exchange (403); a binding of another connection's exclusive queue (405).
    pub fn unbind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &FieldTable,
        connection: ConnectionId,
    ) -> Result<(), Exception> {
        self.refuse_default_exchange(exchange, method::QUEUE_UNBIND)?;
        let (Some(source), Some(record)) = (self.exchanges.find(exchange), self.find_queue(queue)) else {
            return Ok(());
        };
        let Some(id) = self.bindings.find(source, Destination::Queue(record.id), routing_key, arguments) else {
            return Ok(());
        };
        self.refuse_locked(record, connection, method::QUEUE_UNBIND)?;
        self.unbind(id);
        Ok(())
    }

    /// `exchange.bind`: makes a binding between two exchanges unless it is there. They may form circles.
    ///
    /// # Errors
    /// The default exchange at either end (403), a missing exchange (404), arguments that make no sense to the source (406).
    pub fn bind_exchange(
        &mut self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<(), Exception> {
        self.refuse_default_exchange(destination, method::EXCHANGE_BIND)?;
        self.refuse_default_exchange(source, method::EXCHANGE_BIND)?;
        let source = self.source(source, method::EXCHANGE_BIND)?;
        let Some(destination) = self.exchanges.find(destination) else {
            return Err(self.no_exchange(destination, method::EXCHANGE_BIND));
        };
        check_arguments(self.exchanges.get(source), arguments, method::EXCHANGE_BIND)?;
        self.add_binding(source, Destination::Exchange(destination), routing_key, arguments);
        Ok(())
    }

    /// `exchange.unbind`: removes the binding. What is not there is unbound already.
    ///
    /// # Errors
    /// The default exchange at either end (403).
    pub fn unbind_exchange(
        &mut self,
        destination: &str,
        source: &str,
        routing_key: &str,
        arguments: &FieldTable,
    ) -> Result<(), Exception> {
        self.refuse_default_exchange(destination, method::EXCHANGE_UNBIND)?;
        self.refuse_default_exchange(source, method::EXCHANGE_UNBIND)?;
        let (Some(source), Some(destination)) = (self.exchanges.find(source), self.exchanges.find(destination)) else {
            return Ok(());
        };
        if let Some(id) = self.bindings.find(source, Destination::Exchange(destination), routing_key, arguments) {
            self.unbind(id);
        }
        Ok(())
    }

    fn source(&self, name: &str, method: MethodId) -> Result<ExchangeId, Exception> {
        self.exchanges.find(name).ok_or_else(|| self.no_exchange(name, method))
    }

    fn target(&self, destination: Destination) -> Target {
        match destination {
            Destination::Queue(id) => Target::Queue(Arc::clone(self.queues.get(id))),
            Destination::Exchange(id) => Target::Exchange(id),
        }
    }

    fn add_binding(&mut self, source: ExchangeId, destination: Destination, routing_key: &str, arguments: &FieldTable) {
        let target = self.target(destination);
        if let Some(binding) = self.bindings.insert(source, destination, routing_key, arguments) {
            self.exchanges.get_mut(source).table.add(binding, target);
            self.changed();
        }
    }

    fn unbind(&mut self, id: BindingId) {
        let used_up = self.remove_binding(id);
        self.drop_exchanges(used_up.into_iter().collect());
    }

    /// Removes one binding; the source if that is auto-delete and used up by it.
    fn remove_binding(&mut self, id: BindingId) -> Option<ExchangeId> {
        let binding = self.bindings.remove(id);
        let target = self.target(binding.destination);
        let source = self.exchanges.get_mut(binding.source);
        source.table.remove(&binding, &target);
        let used_up = source.auto_delete && !self.bindings.is_source(binding.source);
        self.changed();
        used_up.then_some(binding.source)
    }

    /// Removes all bindings to a queue or exchange that goes; those auto-delete sources that are used up by it.
    pub(super) fn remove_bindings_to(&mut self, destination: Destination) -> Vec<ExchangeId> {
        self.bindings.to(destination).into_iter().filter_map(|id| self.remove_binding(id)).collect()
    }
}

fn check_arguments(source: &Exchange, arguments: &FieldTable, method: MethodId) -> Result<(), Exception> {
    if source.kind != ExchangeKind::Headers {
        return Ok(());
    }
    headers::check_arguments(arguments).map_err(|text| Exception::new(ReplyCode::PreconditionFailed, text, method))
}
