//! Queue records: what a queue was declared with and on which shard it lives; their declaration, lookup and removal.
//!
//! The queue itself (its messages and consumers) is elsewhere, known by its [`QueueId`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use amqp::{Exception, FieldTable, MethodId, ReplyCode};
use queue::{Overflow, QueueId, Rules, Settings};
use rustc_hash::FxHashMap;

use super::bindings::Destination;
use super::{ConnectionId, RESERVED_PREFIX, Topology, arguments, equivalence, method, value};
use crate::policy::{Applied, merge};

/// The argument that names the queue's type.
pub(super) const QUEUE_TYPE: &str = "x-queue-type";

/// The queue types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// The type of a queue that names none.
    Classic,
    /// Durable, with a delivery limit.
    Quorum,
    /// A log that is read again and again. Not available yet: its declarations are checked and then refused.
    Stream,
}

impl QueueKind {
    /// The name in the argument `x-queue-type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
            Self::Stream => "stream",
        }
    }

    /// The name that RabbitMQ uses in its reply texts.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Classic => "rabbit_classic_queue",
            Self::Quorum => "rabbit_quorum_queue",
            Self::Stream => "rabbit_stream_queue",
        }
    }

    /// The type with this name.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        [Self::Classic, Self::Quorum, Self::Stream].into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// The type that the arguments ask for; none when there is no such type.
    pub(super) fn of(arguments: &FieldTable) -> Option<Self> {
        match arguments.inner().get(QUEUE_TYPE) {
            None => Some(Self::Classic),
            Some(value) => value::string(value).and_then(Self::from_name),
        }
    }
}

/// How often a message of a quorum queue may come back if nothing else is said, as with RabbitMQ since 4.0.
const DEFAULT_DELIVERY_LIMIT: i64 = 20;

/// What a queue promises its dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeadLetterStrategy {
    /// They may be lost on the way.
    #[default]
    AtMostOnce,
    /// They are kept until all their targets have them.
    AtLeastOnce,
}

/// The settings among a queue's arguments. `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Messages expire after this many milliseconds in the queue.
    pub message_ttl_ms: Option<u64>,
    /// The queue goes after this many milliseconds without use.
    pub expires_ms: Option<u64>,
    /// At most this many ready messages.
    pub max_length: Option<u64>,
    /// At most this many bytes in the bodies of ready messages.
    pub max_length_bytes: Option<u64>,
    /// What happens beyond these.
    pub overflow: Option<Overflow>,
    /// Messages have priorities from 0 to this.
    pub max_priority: Option<u8>,
    /// Where dead letters go. The exchange need not exist; the empty name is the default exchange.
    pub dead_letter_exchange: Option<Box<str>>,
    /// The routing key of dead letters; without it they keep their own.
    pub dead_letter_routing_key: Option<Box<str>>,
    /// What the queue promises them.
    pub dead_letter_strategy: Option<DeadLetterStrategy>,
    /// Only one consumer at a time gets messages.
    pub single_active_consumer: bool,
    /// A message goes after this many failed deliveries; -1: never.
    pub delivery_limit: Option<i64>,
    /// A delivery must be settled in this many milliseconds.
    pub consumer_timeout_ms: Option<u64>,
}

/// The fields of `queue.declare`.
#[derive(Clone, Copy, Debug)]
pub struct QueueDeclare<'a> {
    /// The name, without `\r` and `\n`. Never empty, except when passive: the caller makes a name up where the client gave
    /// none.
    pub name: &'a str,
    /// The caller made the name up.
    pub server_named: bool,
    /// Only ask whether it exists.
    pub passive: bool,
    /// Survives a restart. Means nothing for an exclusive queue, which ends with its connection.
    pub durable: bool,
    /// Belongs to the connection alone, and ends with it.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// Its arguments.
    pub arguments: &'a FieldTable,
    /// The connection that asks.
    pub connection: ConnectionId,
}

impl QueueDeclare<'_> {
    pub(super) fn owner(&self) -> Option<ConnectionId> {
        self.exclusive.then_some(self.connection)
    }

    /// Whether the queue will survive a restart.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable && !self.exclusive
    }
}

/// A queue as it was declared, with the policies that count for it.
#[derive(Clone, Debug)]
pub struct QueueRecord {
    /// Its identity. A queue that is declared again after it went has another.
    pub id: QueueId,
    /// Its name.
    pub name: Arc<str>,
    /// Survives a restart. Never true of an exclusive queue.
    pub durable: bool,
    /// The connection that alone may use it.
    pub exclusive_owner: Option<ConnectionId>,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// Its arguments, as they came.
    pub arguments: FieldTable,
    /// Its type.
    pub kind: QueueKind,
    /// The shard that it lives on.
    pub shard: u32,
    /// The policies that count for it.
    pub policies: Applied,
    /// What is in force: its arguments and policies together.
    pub settings: QueueSettings,
}

impl QueueRecord {
    /// What the queue itself needs to know.
    pub(crate) fn machine_settings(&self) -> Settings {
        let rules = self.rules();
        Settings {
            auto_delete: self.auto_delete,
            single_active_consumer: self.settings.single_active_consumer,
            durable: self.durable,
            rules: (rules != Rules::default()).then(|| Box::new(rules)),
        }
    }

    fn rules(&self) -> Rules {
        let QueueSettings { expires_ms, max_length, max_length_bytes, max_priority, .. } = self.settings;
        let is_quorum = self.kind == QueueKind::Quorum;
        let is_bounded = max_length.is_some() || max_length_bytes.is_some();
        Rules {
            // What is longer than 49 days, and an operator's policy can be, is as good as never.
            message_ttl_ms: self.settings.message_ttl_ms.and_then(|ms| u32::try_from(ms).ok()),
            expires_ms,
            expires_though_declared: is_quorum && expires_ms.is_some(),
            max_length,
            max_length_bytes,
            overflow: if is_bounded { self.settings.overflow.unwrap_or_default() } else { Overflow::DropHead },
            dead_letters: self.settings.dead_letter_exchange.is_some(),
            delivery_limit: is_quorum.then(|| self.delivery_limit()).flatten(),
            max_priority: max_priority.filter(|&max| max > 0),
        }
    }

    /// How often a message of a quorum queue may come back; `None`: as often as it likes.
    fn delivery_limit(&self) -> Option<u32> {
        let limit = self.settings.delivery_limit.unwrap_or(DEFAULT_DELIVERY_LIMIT);
        u32::try_from(limit).ok()
    }
}

/// What becomes of a declare.
#[derive(Clone, Debug)]
pub enum Declared {
    /// The queue is there, and as the declare wants it.
    Existing(Arc<QueueRecord>),
    /// There is no such queue, and it may be made.
    New,
}

/// All queue records.
///
/// Invariant: each is found by name and by identity, an exclusive one by its owner too; no owner has an empty set.
#[derive(Debug, Default)]
pub(super) struct Queues {
    by_name: HashMap<Arc<str>, Arc<QueueRecord>>,
    by_id: BTreeMap<QueueId, Arc<QueueRecord>>,
    by_owner: FxHashMap<ConnectionId, BTreeSet<QueueId>>,
}

impl Queues {
    pub(super) fn find(&self, name: &str) -> Option<&Arc<QueueRecord>> {
        self.by_name.get(name)
    }

    pub(super) fn get(&self, id: QueueId) -> &Arc<QueueRecord> {
        self.by_id.get(&id).expect("bindings lead to queues that exist")
    }

    fn insert(&mut self, record: &Arc<QueueRecord>) {
        let before = self.by_id.insert(record.id, Arc::clone(record));
        assert!(before.is_none(), "the identity of a queue is never used twice");
        self.by_name.insert(Arc::clone(&record.name), Arc::clone(record));
        if let Some(owner) = record.exclusive_owner {
            self.by_owner.entry(owner).or_default().insert(record.id);
        }
    }

    /// Puts another record of the same queue in the place of the one there.
    pub(super) fn replace(&mut self, record: &Arc<QueueRecord>) {
        self.by_id.insert(record.id, Arc::clone(record));
        self.by_name.insert(Arc::clone(&record.name), Arc::clone(record));
    }

    fn remove(&mut self, record: &QueueRecord) {
        self.by_id.remove(&record.id);
        self.by_name.remove(&record.name);
        if let Some(owner) = record.exclusive_owner {
            let ids = self.by_owner.get_mut(&owner).expect("an exclusive queue is found by its owner");
            ids.remove(&record.id);
            if ids.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.by_id.is_empty() && self.by_owner.is_empty()
    }
}

impl Topology {
    /// All queues, oldest first.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<QueueRecord>> {
        self.queues.by_id.values()
    }

    /// The number of queues, exclusive ones among them.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.queues.by_id.len()
    }

    /// The queue of this name.
    #[must_use]
    pub fn find_queue(&self, name: &str) -> Option<&Arc<QueueRecord>> {
        self.queues.find(name)
    }

    /// The queue with this identity.
    #[must_use]
    pub fn find_queue_by_id(&self, id: QueueId) -> Option<&Arc<QueueRecord>> {
        self.queues.by_id.get(&id)
    }

    /// The exclusive queues of a connection, oldest first.
    #[must_use]
    pub fn exclusive_queues_of(&self, connection: ConnectionId) -> Vec<Arc<QueueRecord>> {
        let ids = self.queues.by_owner.get(&connection);
        ids.into_iter().flatten().map(|id| Arc::clone(self.queues.get(*id))).collect()
    }

    /// Checks a `queue.declare` and changes nothing.
    ///
    /// # Errors
    /// 404 when passive and there is none; 405 when it is exclusive to another connection, or exclusive and declared as
    /// not, or the other way round; 406 when other properties differ or an argument makes no sense; 403 for reserved names;
    /// 540 for a stream.
    pub fn check_declare_queue(&self, d: &QueueDeclare<'_>) -> Result<Declared, Exception> {
        let found = self.find_queue(d.name);
        if d.passive {
            let Some(record) = found else { return Err(self.no_queue(d.name, method::QUEUE_DECLARE)) };
            self.refuse_locked(record, d.connection, method::QUEUE_DECLARE)?;
            return Ok(Declared::Existing(Arc::clone(record)));
        }
        // Reserved even if the queue exists: who was given a made-up name does not declare it again.
        if !d.server_named && d.name.starts_with(RESERVED_PREFIX) {
            let text = format!("queue name '{}' contains reserved prefix 'amq.*'", d.name);
            return Err(Exception::new(ReplyCode::AccessRefused, text, method::QUEUE_DECLARE));
        }
        if let Some(record) = found {
            if record.exclusive_owner != d.owner() {
                return Err(self.locked(record, method::QUEUE_DECLARE));
            }
            equivalence::check_queue(record, d, &self.queue_text(d.name))?;
            return Ok(Declared::Existing(Arc::clone(record)));
        }
        if d.server_named {
            arguments::check_server_named(d.arguments)?;
        }
        arguments::check(d, &self.queue_text(d.name))?;
        Ok(Declared::New)
    }

    /// Makes the record of a queue whose declare was checked and found [`Declared::New`]. If the name has been taken
    /// meanwhile, the record that has it is returned and nothing changes.
    ///
    /// # Panics
    /// When the identity is that of another queue.
    pub fn create_queue(&mut self, id: QueueId, shard: u32, d: &QueueDeclare<'_>) -> Arc<QueueRecord> {
        if let Some(record) = self.find_queue(d.name) {
            return Arc::clone(record);
        }
        let kind = QueueKind::of(d.arguments).unwrap_or(QueueKind::Classic);
        let policies = self.policies_for_queue(kind, d.name);
        let settings = merge::settings(&arguments::settings(d.arguments), &policies.definition());
        let record = Arc::new(QueueRecord {
            id,
            name: d.name.into(),
            durable: d.is_durable(),
            exclusive_owner: d.owner(),
            auto_delete: d.auto_delete,
            arguments: d.arguments.clone(),
            kind,
            shard,
            policies,
            settings,
        });
        self.queues.insert(&record);
        self.changed();
        record
    }

    /// The queue of this name, for a method that uses it.
    ///
    /// # Errors
    /// 404 when there is none, 405 when it is exclusive to another connection.
    pub fn access_queue(
        &self,
        name: &str,
        connection: ConnectionId,
        method: MethodId,
    ) -> Result<Arc<QueueRecord>, Exception> {
        let Some(record) = self.find_queue(name) else { return Err(self.no_queue(name, method)) };
        self.refuse_locked(record, connection, method)?;
        Ok(Arc::clone(record))
    }

    /// Removes the record and the bindings to it, and auto-delete exchanges that lose their last binding as a source.
    pub fn delete_queue(&mut self, id: QueueId) -> Option<Arc<QueueRecord>> {
        let record = Arc::clone(self.find_queue_by_id(id)?);
        // While the record is there: a binding is taken apart by what it leads to.
        let used_up = self.remove_bindings_to(Destination::Queue(id));
        self.queues.remove(&record);
        self.drop_used_up(used_up);
        self.changed();
        Some(record)
    }

    /// Refuses a connection that uses another's exclusive queue.
    pub(super) fn refuse_locked(
        &self,
        record: &QueueRecord,
        connection: ConnectionId,
        method: MethodId,
    ) -> Result<(), Exception> {
        match record.exclusive_owner {
            Some(owner) if owner != connection => Err(self.locked(record, method)),
            _ => Ok(()),
        }
    }

    fn locked(&self, record: &QueueRecord, method: MethodId) -> Exception {
        let text = format!(
            "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the \
             exclusive property value does not match that of the original declaration.",
            self.queue_text(&record.name)
        );
        Exception::new(ReplyCode::ResourceLocked, text, method)
    }
}
