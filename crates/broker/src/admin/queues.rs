//! Queues, exchanges and bindings: listings, purge and delete.

use std::sync::Arc;

use queue::{Counts, Op, Reply, Token};
use serde_json::Value;

use super::{Admin, AdminError, Row, row, values};
use crate::topology::{BindingView, DestinationKind, Exchange, QueueRecord};

/// The fields of [`Admin::queues`]. Those that this version has no value for are empty.
pub const QUEUE_FIELDS: &[&str] = &[
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "slave_pids",
    "synchronised_slave_pids",
    "state",
    "type",
    "leader",
    "members",
    "online",
];
/// The fields of [`Admin::exchanges`].
pub const EXCHANGE_FIELDS: &[&str] = &["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"];
/// The fields of [`Admin::bindings`].
pub const BINDING_FIELDS: &[&str] =
    &["source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"];

/// Fields for which the queue's shard is asked.
const COUNTED: [&str; 4] = ["messages", "messages_ready", "messages_unacknowledged", "consumers"];

impl Admin {
    /// The queues of a virtual host with these fields, oldest first. One that goes meanwhile is left out.
    ///
    /// # Errors
    /// The virtual host is not there; a shard does not answer.
    pub async fn queues(&mut self, vhost: &str, fields: &[&str]) -> Result<Vec<Row>, AdminError> {
        let vhost = self.broker.vhost(vhost).ok_or_else(|| AdminError::NoSuchVhost(vhost.to_owned()))?;
        let records: Vec<Arc<QueueRecord>> = vhost.read().queues().cloned().collect();
        if !fields.iter().any(|field| COUNTED.contains(field)) {
            return Ok(records.iter().map(|record| self.queue_row(record, None, fields)).collect());
        }
        let counts = self.counts(&records).await?;
        let rows = records.iter().zip(counts).filter_map(|(record, counts)| {
            let counts = counts?;
            Some(self.queue_row(record, Some(counts), fields))
        });
        Ok(rows.collect())
    }

    /// The counts of queues; `None` of one that is gone.
    async fn counts(&mut self, records: &[Arc<QueueRecord>]) -> Result<Vec<Option<Counts>>, AdminError> {
        let question = |record: &Arc<QueueRecord>| {
            let queue = record.id;
            (record.shard, move |token: Token| Op::Count { queue, token })
        };
        let replies = self.link.ask(records.iter().map(question)).await;
        let count = |reply| match reply {
            Some(Reply::Counts(counts)) => Ok(Some(counts)),
            Some(_) => Ok(None),
            None => Err(AdminError::Unavailable("a shard of queues does not answer".to_owned())),
        };
        replies.into_iter().map(count).collect()
    }

    fn queue_row(&self, record: &QueueRecord, counts: Option<Counts>, fields: &[&str]) -> Row {
        let fields = fields.iter().map(|field| ((*field).to_owned(), self.queue_field(record, counts, field)));
        fields.collect()
    }

    fn queue_field(&self, record: &QueueRecord, counts: Option<Counts>, field: &str) -> Value {
        let node = self.broker.settings().node_name.as_str();
        let policy = |policy: &Option<Arc<crate::policy::Policy>>| {
            policy.as_ref().map_or(Value::Null, |policy| policy.name().into())
        };
        let counted = |count: fn(Counts) -> u64| counts.map_or(Value::Null, |counts| count(counts).into());
        match field {
            "name" => record.name.as_ref().into(),
            "durable" => record.durable.into(),
            "auto_delete" => record.auto_delete.into(),
            "exclusive" => record.exclusive_owner.is_some().into(),
            "arguments" => values::triples(&record.arguments),
            "policy" => policy(&record.policies.policy),
            "operator_policy" => policy(&record.policies.operator),
            "effective_policy_definition" => Value::Object(record.policies.definition()),
            "pid" => format!("<{node}.1.{}.{}>", record.id.0, record.shard).into(),
            "owner_pid" => record.exclusive_owner.map_or(Value::Null, |owner| self.connection_pid(owner.0).into()),
            "messages_ready" => counted(|counts| counts.ready),
            "messages_unacknowledged" => counted(|counts| counts.unacked),
            "messages" => counted(|counts| counts.ready + counts.unacked),
            "consumers" => counted(|counts| counts.consumers.into()),
            "state" => "running".into(),
            "type" => record.kind.name().into(),
            "leader" => node.into(),
            "members" | "online" => Value::Array(vec![node.into()]),
            _ => Value::Null,
        }
    }

    /// Drops the ready messages of a queue, and answers how many there were.
    ///
    /// # Errors
    /// Virtual host or queue are not there.
    pub async fn purge_queue(&mut self, vhost: &str, name: &str) -> Result<u64, AdminError> {
        let record = self.find_queue(vhost, name)?;
        let queue = record.id;
        let purge = move |token: Token| Op::Purge { queue, token: Some(token) };
        match self.link.ask([(record.shard, purge)]).await.pop().flatten() {
            Some(Reply::Purged(messages)) => Ok(messages),
            Some(_) => Err(no_queue(vhost, name)),
            None => Err(AdminError::Unavailable("a shard of queues does not answer".to_owned())),
        }
    }

    /// Deletes a queue, and answers how many messages were ready.
    ///
    /// # Errors
    /// Virtual host or queue are not there; it has consumers (`if_unused`) or messages (`if_empty`); it is exclusive.
    pub async fn delete_queue(
        &mut self,
        vhost: &str,
        name: &str,
        if_unused: bool,
        if_empty: bool,
    ) -> Result<u64, AdminError> {
        let record = self.find_queue(vhost, name)?;
        if record.exclusive_owner.is_some() {
            return Err(AdminError::Refused("Queue is exclusive: it goes with its connection".to_owned()));
        }
        let queue = record.id;
        let delete = move |token: Token| Op::Delete { queue, if_unused, if_empty, token: Some(token) };
        let messages = match self.link.ask([(record.shard, delete)]).await.pop().flatten() {
            Some(Reply::Deleted(messages)) => messages,
            Some(Reply::InUse) => return Err(AdminError::Refused("Queue is in use".to_owned())),
            Some(Reply::NotEmpty) => return Err(AdminError::Refused("Queue is not empty".to_owned())),
            Some(_) => return Err(no_queue(vhost, name)),
            None => return Err(AdminError::Unavailable("a shard of queues does not answer".to_owned())),
        };
        self.link.settle().await?;
        Ok(messages)
    }

    fn find_queue(&self, vhost: &str, name: &str) -> Result<Arc<QueueRecord>, AdminError> {
        let found = self.broker.vhost(vhost).ok_or_else(|| AdminError::NoSuchVhost(vhost.to_owned()))?;
        let record = found.read().find_queue(name).cloned();
        record.ok_or_else(|| no_queue(vhost, name))
    }

    /// The exchanges of a virtual host.
    ///
    /// # Errors
    /// The virtual host is not there.
    pub fn exchanges(&self, vhost: &str) -> Result<Vec<Row>, AdminError> {
        let vhost = self.broker.vhost(vhost).ok_or_else(|| AdminError::NoSuchVhost(vhost.to_owned()))?;
        let topology = vhost.read();
        let rows = topology.exchanges().map(|exchange: &Exchange| {
            let policy = exchange.policies.policy.as_ref().map_or(Value::Null, |policy| policy.name().into());
            row([
                ("name", exchange.name.as_ref().into()),
                ("type", exchange.kind.name().into()),
                ("durable", exchange.durable.into()),
                ("auto_delete", exchange.auto_delete.into()),
                ("internal", exchange.internal.into()),
                ("arguments", values::triples(&exchange.arguments)),
                ("policy", policy),
            ])
        });
        Ok(rows.collect())
    }

    /// The bindings of a virtual host: first those of every queue to the default exchange, then those that were made.
    ///
    /// # Errors
    /// The virtual host is not there.
    pub fn bindings(&self, vhost: &str) -> Result<Vec<Row>, AdminError> {
        let vhost = self.broker.vhost(vhost).ok_or_else(|| AdminError::NoSuchVhost(vhost.to_owned()))?;
        let topology = vhost.read();
        let binding = |source: &str, destination: &str, kind: &str, key: &str, arguments: Value| {
            row([
                ("source_name", source.into()),
                ("source_kind", "exchange".into()),
                ("destination_name", destination.into()),
                ("destination_kind", kind.into()),
                ("routing_key", key.into()),
                ("arguments", arguments),
            ])
        };
        let mut rows: Vec<Row> = topology
            .queues()
            .map(|queue| binding("", &queue.name, "queue", &queue.name, Value::Array(Vec::new())))
            .collect();
        rows.extend(topology.bindings().map(|view: BindingView<'_>| {
            let kind = destination_kind(view.destination_kind);
            binding(view.source, view.destination, kind, view.routing_key, values::triples(view.arguments))
        }));
        Ok(rows)
    }
}

/// The word for what a binding leads to.
pub(super) fn destination_kind(kind: DestinationKind) -> &'static str {
    match kind {
        DestinationKind::Queue => "queue",
        DestinationKind::Exchange => "exchange",
    }
}

fn no_queue(vhost: &str, name: &str) -> AdminError {
    AdminError::NotFound(format!("no queue '{name}' in vhost '{vhost}'"))
}
