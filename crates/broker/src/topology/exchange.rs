//! Exchanges: their records, their declaration and deletion, and the predeclared ones.

use std::collections::HashMap;
use std::sync::Arc;

use amqp::{AMQPValue, Exception, FieldTable, ReplyCode};

use super::bindings::{Binding, Destination};
use super::headers::HeadersTable;
use super::targets::{Target, Targets};
use super::topic::TopicTrie;
use super::{Presence, RESERVED_PREFIX, Topology, equivalence, method, value};
use crate::policy::Applied;

/// The name of the argument that names the exchange for what an exchange cannot route.
pub(super) const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
/// The same with the prefix that other arguments have: taken too, because clients of other brokers send it.
const X_ALTERNATE_EXCHANGE: &str = "x-alternate-exchange";

/// The exchange types (section 3.1 of the specification).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    /// The routing key equals the binding key.
    Direct,
    /// Everything goes everywhere.
    Fanout,
    /// The words of the routing key match the binding's pattern.
    Topic,
    /// The message's headers match the binding's arguments.
    Headers,
}

impl ExchangeKind {
    /// The name of the type on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }

    /// The type with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Direct, Self::Fanout, Self::Topic, Self::Headers].into_iter().find(|kind| kind.name() == name)
    }
}

/// The fields of `exchange.declare`.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeDeclare<'a> {
    /// The name, without `\r` and `\n`.
    pub name: &'a str,
    /// The type's name. Not looked at when passive.
    pub kind: &'a str,
    /// Only ask whether it exists.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last binding as a source.
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: &'a FieldTable,
}

/// The place of an exchange in the virtual host. Used again after the exchange is gone; nothing refers to it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExchangeId(pub(super) u32);

/// The default exchange: every queue is bound to it by its name.
pub(super) const DEFAULT_EXCHANGE: ExchangeId = ExchangeId(0);

/// An exchange as it was declared, with the table by which it routes.
#[derive(Debug)]
pub struct Exchange {
    /// Its name; empty for the default exchange.
    pub name: Arc<str>,
    /// Its type.
    pub kind: ExchangeKind,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last binding as a source.
    pub auto_delete: bool,
    /// Clients cannot publish to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: FieldTable,
    /// The policy that counts for it.
    pub policies: Applied,
    /// Where goes what it cannot route, by its arguments or else its policy. The exchange of this name need not exist.
    pub alternate: Option<Box<str>>,
    pub(super) table: RoutingTable,
}

impl Exchange {
    fn new(name: &str, kind: ExchangeKind, d: &ExchangeDeclare<'_>, policies: Applied) -> Self {
        Self {
            name: name.into(),
            kind,
            durable: d.durable,
            auto_delete: d.auto_delete,
            internal: d.internal,
            arguments: d.arguments.clone(),
            alternate: alternate(d.arguments, &policies),
            policies,
            table: RoutingTable::new(kind),
        }
    }

    /// Has other policies count for it. Answers whether that changes where messages go.
    pub(super) fn set_policies(&mut self, policies: Applied) -> bool {
        let alternate = alternate(&self.arguments, &policies);
        self.policies = policies;
        std::mem::replace(&mut self.alternate, alternate) != self.alternate
    }
}

fn alternate(arguments: &FieldTable, policies: &Applied) -> Option<Box<str>> {
    let argument = alternate_argument(arguments).and_then(|(_, value)| value::string(value));
    match argument {
        Some(name) => Some(String::from_utf8_lossy(name).into()),
        None => policies.policy.as_ref()?.definition().get(ALTERNATE_EXCHANGE)?.as_str().map(Into::into),
    }
}

fn alternate_argument(arguments: &FieldTable) -> Option<(&'static str, &AMQPValue)> {
    [ALTERNATE_EXCHANGE, X_ALTERNATE_EXCHANGE]
        .into_iter()
        .find_map(|name| arguments.inner().get(name).map(|value| (name, value)))
}

/// What an exchange's type needs to know of its bindings to route.
#[derive(Debug)]
pub(super) enum RoutingTable {
    Direct(HashMap<Arc<str>, Targets>),
    Fanout(Targets),
    Topic(TopicTrie),
    Headers(HeadersTable),
}

impl RoutingTable {
    fn new(kind: ExchangeKind) -> Self {
        match kind {
            ExchangeKind::Direct => Self::Direct(HashMap::new()),
            ExchangeKind::Fanout => Self::Fanout(Targets::default()),
            ExchangeKind::Topic => Self::Topic(TopicTrie::default()),
            ExchangeKind::Headers => Self::Headers(HeadersTable::default()),
        }
    }

    pub(super) fn add(&mut self, binding: &Binding, target: Target) {
        match self {
            Self::Direct(keys) => keys.entry(Arc::clone(&binding.routing_key)).or_default().add(&target),
            Self::Fanout(targets) => targets.add(&target),
            Self::Topic(trie) => trie.add(&binding.routing_key, &target),
            Self::Headers(table) => table.add(binding.id, &binding.arguments, target),
        }
    }

    pub(super) fn remove(&mut self, binding: &Binding, target: &Target) {
        match self {
            Self::Direct(keys) => {
                let targets = keys.get_mut(&binding.routing_key).expect("the key of a binding is in the table");
                targets.remove(target);
                if targets.is_empty() {
                    keys.remove(&binding.routing_key);
                }
            }
            Self::Fanout(targets) => targets.remove(target),
            Self::Topic(trie) => trie.remove(&binding.routing_key, target),
            Self::Headers(table) => table.remove(binding.id),
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Direct(keys) => keys.is_empty(),
            Self::Fanout(targets) => targets.is_empty(),
            Self::Topic(trie) => trie.is_empty(),
            Self::Headers(table) => table.is_empty(),
        }
    }
}

/// All exchanges, by name and by place.
#[derive(Debug)]
pub(super) struct Exchanges {
    places: Vec<Option<Exchange>>,
    free: Vec<ExchangeId>,
    by_name: HashMap<Arc<str>, ExchangeId>,
}

impl Exchanges {
    /// The exchanges that every virtual host has from the start, all durable.
    pub(super) fn predeclared() -> Self {
        let mut all = Self { places: Vec::new(), free: Vec::new(), by_name: HashMap::new() };
        for (name, kind) in [
            ("", ExchangeKind::Direct),
            ("amq.direct", ExchangeKind::Direct),
            ("amq.fanout", ExchangeKind::Fanout),
            ("amq.headers", ExchangeKind::Headers),
            ("amq.match", ExchangeKind::Headers),
            ("amq.rabbitmq.trace", ExchangeKind::Topic),
            ("amq.topic", ExchangeKind::Topic),
        ] {
            let declare = ExchangeDeclare {
                name,
                kind: kind.name(),
                passive: false,
                durable: true,
                auto_delete: false,
                internal: name == "amq.rabbitmq.trace",
                arguments: &FieldTable::default(),
            };
            all.insert(Exchange::new(name, kind, &declare, Applied::default()));
        }
        assert_eq!(all.find(""), Some(DEFAULT_EXCHANGE), "the default exchange comes first");
        all
    }

    fn insert(&mut self, exchange: Exchange) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            // A place per exchange: memory ends long before the numbers do.
            ExchangeId(u32::try_from(self.places.len() - 1).expect("fewer than 2^32 exchanges"))
        });
        self.by_name.insert(Arc::clone(&exchange.name), id);
        self.places[id.0 as usize] = Some(exchange);
    }

    fn remove(&mut self, id: ExchangeId) {
        let exchange = self.places[id.0 as usize].take().expect("a removed exchange was there");
        self.by_name.remove(&exchange.name);
        self.free.push(id);
    }

    pub(super) fn find(&self, name: &str) -> Option<ExchangeId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, id: ExchangeId) -> &Exchange {
        self.places[id.0 as usize].as_ref().expect("bindings and names lead to exchanges that exist")
    }

    pub(super) fn get_mut(&mut self, id: ExchangeId) -> &mut Exchange {
        self.places[id.0 as usize].as_mut().expect("bindings and names lead to exchanges that exist")
    }

    fn contains(&self, id: ExchangeId) -> bool {
        self.places[id.0 as usize].is_some()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Exchange> {
        self.places.iter_mut().flatten()
    }

    fn iter(&self) -> impl Iterator<Item = &Exchange> {
        self.places.iter().flatten()
    }
}

impl Topology {
    /// All exchanges, the predeclared ones first.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter()
    }

    /// The exchanges that survive a restart, without the predeclared ones, which are always there.
    pub(crate) fn durable_exchanges(&self) -> impl Iterator<Item = &Exchange> {
        let reserved = |exchange: &Exchange| exchange.name.is_empty() || exchange.name.starts_with(RESERVED_PREFIX);
        self.exchanges.iter().filter(move |exchange| exchange.durable && !reserved(exchange))
    }

    /// The exchange of this name.
    #[must_use]
    pub fn find_exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.find(name).map(|id| self.exchanges.get(id))
    }

    /// `exchange.declare`: makes the exchange, or checks that the one there is equivalent.
    ///
    /// # Errors
    /// An unknown type ends the connection (503). The default exchange and reserved names are refused (403), a passive
    /// declare of what is not there (404), other properties than those of the exchange there (406).
    pub fn declare_exchange(&mut self, d: &ExchangeDeclare<'_>) -> Result<(), Exception> {
        if let Presence::Missing = self.check_declare_exchange(d)? {
            let kind = ExchangeKind::from_name(d.kind).expect("an unknown type is refused");
            self.create_exchange(kind, d);
        }
        Ok(())
    }

    /// Checks an `exchange.declare` and changes nothing.
    ///
    /// # Errors
    /// As [`Topology::declare_exchange`].
    pub fn check_declare_exchange(&self, d: &ExchangeDeclare<'_>) -> Result<Presence, Exception> {
        if d.passive {
            self.refuse_default_exchange(d.name, method::EXCHANGE_DECLARE)?;
            let found = self.find_exchange(d.name);
            return found.map(|_| Presence::There).ok_or_else(|| self.no_exchange(d.name, method::EXCHANGE_DECLARE));
        }
        // The type comes first: a declare with an unknown one is refused whatever its name.
        let kind = ExchangeKind::from_name(d.kind).ok_or_else(|| unknown_kind(d.kind))?;
        self.refuse_default_exchange(d.name, method::EXCHANGE_DECLARE)?;
        if let Some(current) = self.find_exchange(d.name) {
            equivalence::check_exchange(current, kind, d, &self.exchange_text(d.name))?;
            return Ok(Presence::There);
        }
        if d.name.starts_with(RESERVED_PREFIX) {
            let text = format!("exchange name '{}' contains reserved prefix 'amq.*'", d.name);
            return Err(Exception::new(ReplyCode::AccessRefused, text, method::EXCHANGE_DECLARE));
        }
        if let Some((argument, value)) = alternate_argument(d.arguments)
            && value::string(value).is_none()
        {
            let (kind, exchange) = (value::type_name(value), self.exchange_text(d.name));
            let text = format!("invalid type '{kind}' for arg '{argument}' in {exchange}");
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, method::EXCHANGE_DECLARE));
        }
        Ok(Presence::Missing)
    }

    /// Makes an exchange whose declare was checked and found [`Presence::Missing`].
    pub(crate) fn create_exchange(&mut self, kind: ExchangeKind, d: &ExchangeDeclare<'_>) {
        debug_assert!(self.find_exchange(d.name).is_none(), "the exchange is not there");
        let policies = self.policies_for_exchange(kind, d.name);
        self.exchanges.insert(Exchange::new(d.name, kind, d, policies));
        self.changed();
    }

    /// `exchange.delete`: removes the exchange with the bindings at both its ends, and auto-delete exchanges that lose
    /// their last binding as a source by it. An exchange that is not there is deleted already.
    ///
    /// # Errors
    /// The default exchange and names that start with `amq.` (403); bindings from it when it is to be unused (406).
    pub fn delete_exchange(&mut self, name: &str, if_unused: bool) -> Result<(), Exception> {
        if let Presence::There = self.check_delete_exchange(name, if_unused)? {
            let id = self.exchanges.find(name).expect("the exchange is there");
            self.drop_exchanges(vec![id]);
        }
        Ok(())
    }

    /// Checks an `exchange.delete` and changes nothing.
    ///
    /// # Errors
    /// As [`Topology::delete_exchange`].
    pub fn check_delete_exchange(&self, name: &str, if_unused: bool) -> Result<Presence, Exception> {
        self.refuse_default_exchange(name, method::EXCHANGE_DELETE)?;
        if name.starts_with(RESERVED_PREFIX) {
            let text = format!("deletion of system {} not allowed", self.exchange_text(name));
            return Err(Exception::new(ReplyCode::AccessRefused, text, method::EXCHANGE_DELETE));
        }
        let Some(id) = self.exchanges.find(name) else { return Ok(Presence::Missing) };
        if if_unused && self.bindings.is_source(id) {
            let text = format!("{} in use", self.exchange_text(name));
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, method::EXCHANGE_DELETE));
        }
        Ok(Presence::There)
    }

    /// Removes auto-delete exchanges that lost their last binding as a source; durable ones are only noted
    /// ([`Topology::take_used_up`]).
    pub(super) fn drop_used_up(&mut self, used_up: impl IntoIterator<Item = ExchangeId>) {
        let doomed = self.without_durable(used_up);
        self.drop_exchanges(doomed);
    }

    /// Removes exchanges, and what is auto-delete and used up by it.
    fn drop_exchanges(&mut self, mut doomed: Vec<ExchangeId>) {
        while let Some(id) = doomed.pop() {
            // Two of the bindings that went may have had the same source, or bindings go round in a circle.
            if !self.exchanges.contains(id) {
                continue;
            }
            // Those from it first: a binding of the exchange to itself then is no binding to it any more.
            for binding in self.bindings.from(id) {
                self.bindings.remove(binding);
            }
            let used_up = self.remove_bindings_to(Destination::Exchange(id));
            doomed.extend(self.without_durable(used_up));
            self.exchanges.remove(id);
            self.changed();
        }
    }

    /// Those of the used-up exchanges that go at once; the others are noted.
    fn without_durable(&mut self, used_up: impl IntoIterator<Item = ExchangeId>) -> Vec<ExchangeId> {
        let mut at_once = Vec::new();
        for id in used_up {
            // Two of the bindings that went may have had the same source.
            if self.exchanges.contains(id) {
                let exchange = self.exchanges.get(id);
                if exchange.durable { self.used_up.push(exchange.name.as_ref().into()) } else { at_once.push(id) }
            }
        }
        at_once
    }

    pub(super) fn refuse_default_exchange(&self, name: &str, method: amqp::MethodId) -> Result<(), Exception> {
        if name.is_empty() {
            let text = "operation not permitted on the default exchange";
            return Err(Exception::new(ReplyCode::AccessRefused, text, method));
        }
        Ok(())
    }
}

fn unknown_kind(name: &str) -> Exception {
    let word = if name.is_empty() { "invalid" } else { "unknown" };
    let text = format!("{word} exchange type '{name}'");
    Exception::new(ReplyCode::CommandInvalid, text, method::EXCHANGE_DECLARE)
}
