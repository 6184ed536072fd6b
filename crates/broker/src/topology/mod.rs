//! The topology of one virtual host: exchanges, queue records, bindings, and where a message goes.
//!
//! [`Topology`] is a plain data structure without clock, I/O or tasks. Every change is a function of its inputs, so that
//! nodes which apply the same changes in the same order hold the same topology. Hash maps keyed by names that peers
//! choose use the standard library's keyed hash (a peer must not be able to make them slow), and nothing that can be
//! observed depends on the order in which such a map is walked.
//!
//! The connection asks it to check and make declarations, deletions and bindings, and routes each publish with
//! [`Topology::route`]. Refusals are [`Exception`]s with RabbitMQ's codes, texts and order of checks. Left to the caller:
//! permissions, limits of the virtual host, names made up by the server, the meaning of the empty queue name ("the last
//! one declared on the channel"), and the removal of `\r` and `\n` from names before they come here
//! ([`strip_crlf`]).
//!
//! AMQP 0-9-1 sections 1.6.2 and 1.6.3 (classes exchange and queue), section 3.1 (exchange types).

mod arguments;
mod binding_methods;
mod bindings;
mod equivalence;
mod exchange;
mod headers;
mod policies;
mod queue_record;
mod route;
mod targets;
mod topic;
mod unique;
mod value;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use amqp::{Exception, MethodId, ReplyCode};

use self::bindings::Bindings;
use self::exchange::Exchanges;
use self::queue_record::Queues;
use crate::policy::Policies;

pub use self::bindings::{BindingPlace, BindingView, DestinationKind};
pub use self::exchange::{Exchange, ExchangeDeclare, ExchangeKind};
pub use self::headers::{HeaderSource, HeaderValue, NoHeaders};
pub use self::queue_record::{DeadLetterStrategy, Declared, QueueDeclare, QueueKind, QueueRecord, QueueSettings};
pub use self::route::RouteSet;
pub use self::value::type_name;

/// The connection that an exclusive queue belongs to. Unique in the cluster and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Names with this prefix are the server's own (section 3.1.3.1 of the specification).
const RESERVED_PREFIX: &str = "amq.";

/// Whether something is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is, and as it is wanted.
    There,
    /// It is not, and nothing speaks against it.
    Missing,
}

/// The ids of the methods that the topology answers for.
mod method {
    use amqp::MethodId;

    pub(super) const EXCHANGE_DECLARE: MethodId = MethodId::new(40, 10);
    pub(super) const EXCHANGE_DELETE: MethodId = MethodId::new(40, 20);
    pub(super) const EXCHANGE_BIND: MethodId = MethodId::new(40, 30);
    pub(super) const EXCHANGE_UNBIND: MethodId = MethodId::new(40, 40);
    pub(super) const QUEUE_DECLARE: MethodId = MethodId::new(50, 10);
    pub(super) const QUEUE_BIND: MethodId = MethodId::new(50, 20);
    pub(super) const QUEUE_UNBIND: MethodId = MethodId::new(50, 50);
    pub(super) const BASIC_PUBLISH: MethodId = MethodId::new(60, 40);
}

/// The exchanges, queue records and bindings of one virtual host.
///
/// Invariants:
/// - a binding's source, and its destination, exist;
/// - an exchange's routing table holds exactly the bindings of which it is the source;
/// - an auto-delete exchange that is not durable and once was the source of a binding is the source of at least one;
/// - the predeclared exchanges exist.
#[derive(Debug)]
pub struct Topology {
    vhost: Box<str>,
    version: u64,
    exchanges: Exchanges,
    queues: Queues,
    bindings: Bindings,
    /// Durable auto-delete exchanges that lost their last binding as a source and were not asked for yet.
    used_up: Vec<Box<str>>,
    policies: Policies,
    operator_policies: Policies,
}

impl Topology {
    /// The topology of a new virtual host: the predeclared exchanges and nothing else.
    #[must_use]
    pub fn new(vhost: &str) -> Self {
        Self {
            vhost: vhost.into(),
            version: 0,
            exchanges: Exchanges::predeclared(),
            queues: Queues::default(),
            bindings: Bindings::default(),
            used_up: Vec::new(),
            policies: Policies::default(),
            operator_policies: Policies::default(),
        }
    }

    /// The name of the virtual host.
    #[must_use]
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// Goes up with every change that can alter a route or a lookup, so that what was derived from the topology can be
    /// kept as long as the number stays.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The durable auto-delete exchanges that lost their last binding as a source since this was last asked. They are still there: what
    /// is durable goes only by a change that is in the log, and the caller makes one of each.
    pub fn take_used_up(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.used_up)
    }

    fn changed(&mut self) {
        self.version += 1;
    }

    /// `queue 'NAME' in vhost 'VHOST'`, as reply texts have it.
    #[must_use]
    pub fn queue_text(&self, name: &str) -> String {
        format!("queue '{name}' in vhost '{}'", self.vhost)
    }

    /// `exchange 'NAME' in vhost 'VHOST'`, as reply texts have it.
    #[must_use]
    pub fn exchange_text(&self, name: &str) -> String {
        format!("exchange '{name}' in vhost '{}'", self.vhost)
    }

    pub(crate) fn no_queue(&self, name: &str, method: MethodId) -> Exception {
        Exception::new(ReplyCode::NotFound, format!("no {}", self.queue_text(name)), method)
    }

    pub(crate) fn no_exchange(&self, name: &str, method: MethodId) -> Exception {
        Exception::new(ReplyCode::NotFound, format!("no {}", self.exchange_text(name)), method)
    }
}

/// The name without `\r` and `\n`: RabbitMQ takes them out of the names in declares, deletes and bindings.
#[must_use]
pub fn strip_crlf(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) { Cow::Owned(name.replace(['\r', '\n'], "")) } else { Cow::Borrowed(name) }
}
