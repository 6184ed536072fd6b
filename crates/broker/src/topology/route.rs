//! Routing: from an exchange and routing keys to the queues that a message goes to.
//!
//! A message starts at one exchange. Each exchange on its way adds the queues and exchanges that its table names for the
//! message; one whose table names nothing hands the message to its alternate exchange. Every exchange is visited once
//! and every queue listed once, so circles of bindings or of alternates end, and bindings that overlap make no copies.

use std::sync::Arc;

use amqp::{Exception, ReplyCode};

use super::exchange::{DEFAULT_EXCHANGE, Exchange, ExchangeId, RoutingTable};
use super::headers::HeaderSource;
use super::queue_record::QueueRecord;
use super::topic::TopicScratch;
use super::unique::Unique;
use super::{Topology, method};

/// The queues that a message goes to, each once. Belongs to one caller and is used again and again, so that routing does
/// not allocate.
#[derive(Debug, Default)]
pub struct RouteSet {
    found: Found,
    topic: TopicScratch,
}

/// What routing tables have named so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) queues: Unique<Arc<QueueRecord>>,
    pub(super) exchanges: Unique<ExchangeId>,
}

impl RouteSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties the set, for the next message.
    pub fn clear(&mut self) {
        self.found.queues.clear();
    }

    /// The queues, in a deterministic order.
    #[must_use]
    pub fn as_slice(&self) -> &[Arc<QueueRecord>] {
        self.found.queues.as_slice()
    }

    /// Whether the message goes nowhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of queues.
    #[must_use]
    pub fn len(&self) -> usize {
        self.found.queues.len()
    }
}

impl Topology {
    /// Adds the queues that a client's message goes to. `headers` is only looked at by headers exchanges.
    ///
    /// # Errors
    /// A missing exchange (404), or an internal one (403).
    pub fn route(
        &self,
        exchange: &str,
        routing_key: &str,
        headers: &dyn HeaderSource,
        routes: &mut RouteSet,
    ) -> Result<(), Exception> {
        self.route_keys(exchange, &[routing_key], headers, routes)
    }

    /// The same for a message with several routing keys (its own and those of its headers `CC` and `BCC`). This is one
    /// question, not one per key: an alternate exchange gets the message only when none of the keys leads anywhere.
    ///
    /// # Errors
    /// A missing exchange (404), or an internal one (403).
    pub fn route_keys(
        &self,
        exchange: &str,
        routing_keys: &[&str],
        headers: &dyn HeaderSource,
        routes: &mut RouteSet,
    ) -> Result<(), Exception> {
        let Some(start) = self.exchanges.find(exchange) else {
            return Err(self.no_exchange(exchange, method::BASIC_PUBLISH));
        };
        if self.exchanges.get(start).internal {
            let text = format!("cannot publish to internal {}", self.exchange_text(exchange));
            return Err(Exception::new(ReplyCode::AccessRefused, text, method::BASIC_PUBLISH));
        }
        self.walk(start, routing_keys, headers, routes);
        Ok(())
    }

    /// The same for a message of the broker's own (a dead letter): internal exchanges take it, a missing one drops it.
    pub fn route_internally(
        &self,
        exchange: &str,
        routing_keys: &[&str],
        headers: &dyn HeaderSource,
        routes: &mut RouteSet,
    ) {
        if let Some(start) = self.exchanges.find(exchange) {
            self.walk(start, routing_keys, headers, routes);
        }
    }

    fn walk(&self, start: ExchangeId, keys: &[&str], headers: &dyn HeaderSource, routes: &mut RouteSet) {
        let RouteSet { found, topic } = routes;
        if start == DEFAULT_EXCHANGE {
            self.collect_named(keys, found);
            return;
        }
        found.exchanges.clear();
        found.exchanges.insert(&start);
        let mut visited = 0;
        while let Some(&id) = found.exchanges.as_slice().get(visited) {
            visited += 1;
            let exchange = self.exchanges.get(id);
            let any = if id == DEFAULT_EXCHANGE {
                self.collect_named(keys, found)
            } else {
                collect(exchange, keys, headers, topic, found)
            };
            if !any
                && let Some(alternate) = &exchange.alternate
                && let Some(id) = self.exchanges.find(alternate)
            {
                found.exchanges.insert(&id);
            }
        }
    }

    /// The default exchange: the key is the queue's name.
    fn collect_named(&self, keys: &[&str], found: &mut Found) -> bool {
        let mut any = false;
        for key in keys {
            if let Some(record) = self.queues.find(key) {
                found.queues.insert(record);
                any = true;
            }
        }
        any
    }
}

/// Adds what the exchange's table names for the message; true when there is anything.
fn collect(
    exchange: &Exchange,
    keys: &[&str],
    headers: &dyn HeaderSource,
    topic: &mut TopicScratch,
    found: &mut Found,
) -> bool {
    let mut any = false;
    match &exchange.table {
        RoutingTable::Direct(table) => {
            for key in keys {
                any |= table.get(*key).is_some_and(|targets| targets.collect(found));
            }
        }
        RoutingTable::Fanout(targets) => any = targets.collect(found),
        RoutingTable::Topic(trie) => {
            for key in keys {
                any |= trie.collect(key, topic, found);
            }
        }
        RoutingTable::Headers(table) => any = table.collect(headers, found),
    }
    any
}
