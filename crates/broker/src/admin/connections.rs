//! Connections, channels and consumers: listings, and closing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Admin, AdminError, Row, row, values};
use crate::connection::{
    ChannelDescription, ConnectionHandle, ConnectionInfo, ConsumerDescription, Description, Event,
};

/// Connections that are asked at a time what is open on them.
const ASKED_AT_ONCE: usize = 256;
/// How long these may take. One that does not answer is left out: it is on its end, or its task is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// The fields of [`Admin::connections`].
pub const CONNECTION_FIELDS: &[&str] = &[
    "pid",
    "name",
    "port",
    "host",
    "peer_port",
    "peer_host",
    "ssl",
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
    "state",
    "channels",
    "protocol",
    "auth_mechanism",
    "user",
    "vhost",
    "timeout",
    "frame_max",
    "channel_max",
    "client_properties",
    "connected_at",
    "node",
    "user_provided_name",
];
/// The fields of [`Admin::channels`].
pub const CHANNEL_FIELDS: &[&str] = &[
    "pid",
    "connection",
    "name",
    "number",
    "user",
    "vhost",
    "transactional",
    "confirm",
    "consumer_count",
    "messages_unacknowledged",
    "messages_uncommitted",
    "acks_uncommitted",
    "messages_unconfirmed",
    "prefetch_count",
    "global_prefetch_count",
    "state",
];
/// The fields of [`Admin::consumers`].
pub const CONSUMER_FIELDS: &[&str] = &[
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "exclusive",
    "prefetch_count",
    "active",
    "arguments",
];

/// An open connection with what is open on it.
type Described = (Arc<ConnectionHandle>, Description);

impl Admin {
    /// How a connection is named to [`Admin::close_connection`].
    pub(super) fn connection_pid(&self, connection: u64) -> String {
        format!("<{}.1.{connection}.0>", self.broker.settings().node_name)
    }

    fn channel_pid(&self, connection: u64, channel: u16) -> String {
        format!("<{}.1.{connection}.{channel}>", self.broker.settings().node_name)
    }

    /// Asks all open connections what is open on them.
    async fn describe(&self) -> Vec<Described> {
        let mut handles = self.broker.connections();
        handles.retain(|handle| handle.info.get().is_some());
        let mut all = Vec::with_capacity(handles.len());
        for some in handles.chunks(ASKED_AT_ONCE) {
            let asked: Vec<_> = some
                .iter()
                .map(|handle| {
                    let (answer, answered) = oneshot::channel();
                    handle.mailbox.send(Event::Describe(answer));
                    (handle, answered)
                })
                .collect();
            let deadline = Instant::now() + PATIENCE;
            for (handle, answered) in asked {
                if let Ok(Ok(description)) = timeout_at(deadline, answered).await {
                    all.push((Arc::clone(handle), description));
                }
            }
        }
        all
    }

    /// All open connections, oldest first.
    pub async fn connections(&mut self) -> Vec<Row> {
        let described = self.describe().await;
        let open = described.iter().filter_map(|(handle, description)| Some((handle, handle.info.get()?, description)));
        open.map(|(handle, info, description)| self.connection_row(handle.id.0, info, description)).collect()
    }

    fn connection_row(&self, id: u64, info: &ConnectionInfo, description: &Description) -> Row {
        let named = match info.client_properties.inner().get("connection_name") {
            Some(amqp::AMQPValue::LongString(name)) => String::from_utf8_lossy(name.as_bytes()).into(),
            _ => Value::Null,
        };
        let local = |part: fn(std::net::SocketAddr) -> Value| info.local.map_or(Value::Null, part);
        row([
            ("pid", self.connection_pid(id).into()),
            ("name", info.name().into()),
            ("port", local(|address| address.port().into())),
            ("host", local(|address| address.ip().to_canonical().to_string().into())),
            ("peer_port", info.peer.port().into()),
            ("peer_host", info.peer.ip().to_canonical().to_string().into()),
            ("ssl", false.into()),
            ("state", if description.blocked { "blocked" } else { "running" }.into()),
            ("channels", description.channels.len().into()),
            ("protocol", "{0,9,1}".into()),
            ("auth_mechanism", info.mechanism.as_ref().into()),
            ("user", info.user.as_ref().into()),
            ("vhost", info.vhost.as_ref().into()),
            ("timeout", info.heartbeat_secs.into()),
            ("frame_max", info.frame_max.into()),
            ("channel_max", info.channel_max.into()),
            ("client_properties", values::triples(&info.client_properties)),
            ("connected_at", info.connected_at_ms.into()),
            ("node", self.broker.settings().node_name.as_str().into()),
            ("user_provided_name", named),
        ])
    }

    /// All channels.
    pub async fn channels(&mut self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (handle, description) in self.describe().await {
            let Some(info) = handle.info.get() else { continue };
            rows.extend(description.channels.iter().map(|channel| self.channel_row(handle.id.0, info, channel)));
        }
        rows
    }

    fn channel_row(&self, connection: u64, info: &ConnectionInfo, channel: &ChannelDescription) -> Row {
        row([
            ("pid", self.channel_pid(connection, channel.number).into()),
            ("connection", self.connection_pid(connection).into()),
            ("name", format!("{} ({})", info.name(), channel.number).into()),
            ("number", channel.number.into()),
            ("user", info.user.as_ref().into()),
            ("vhost", info.vhost.as_ref().into()),
            ("transactional", channel.transactional.into()),
            ("confirm", channel.confirm.into()),
            ("consumer_count", channel.consumers.into()),
            ("messages_unacknowledged", channel.unacked.into()),
            ("messages_uncommitted", channel.uncommitted_publishes.into()),
            ("acks_uncommitted", channel.uncommitted_acks.into()),
            ("messages_unconfirmed", channel.unconfirmed.into()),
            ("prefetch_count", channel.prefetch.into()),
            ("global_prefetch_count", channel.global_prefetch.into()),
            ("state", "running".into()),
        ])
    }

    /// The consumers in a virtual host.
    ///
    /// # Errors
    /// The virtual host is not there.
    pub async fn consumers(&mut self, vhost: &str) -> Result<Vec<Row>, AdminError> {
        let found = self.broker.vhost(vhost).ok_or_else(|| AdminError::NoSuchVhost(vhost.to_owned()))?;
        let described = self.describe().await;
        let topology = found.read();
        let mut rows = Vec::new();
        for (handle, description) in &described {
            if handle.info.get().is_none_or(|info| *info.vhost != *vhost) {
                continue;
            }
            for consumer in &description.consumers {
                if let Some(record) = topology.find_queue_by_id(consumer.queue) {
                    rows.push(self.consumer_row(handle.id.0, &record.name, consumer));
                }
            }
        }
        Ok(rows)
    }

    fn consumer_row(&self, connection: u64, queue: &str, consumer: &ConsumerDescription) -> Row {
        row([
            ("queue_name", queue.into()),
            ("channel_pid", self.channel_pid(connection, consumer.channel).into()),
            ("consumer_tag", consumer.tag.as_ref().into()),
            ("ack_required", (!consumer.no_ack).into()),
            ("exclusive", consumer.exclusive.into()),
            ("prefetch_count", consumer.prefetch.into()),
            ("active", true.into()),
            ("arguments", values::triples(&consumer.arguments)),
        ])
    }

    /// Closes a connection, which is named as in [`Admin::connections`]: by `pid` or by `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn close_connection(&self, pid_or_name: &str, reason: &str) -> Result<(), AdminError> {
        let handles = self.broker.connections();
        let meant = handles.iter().find(|handle| {
            handle
                .info
                .get()
                .is_some_and(|info| self.connection_pid(handle.id.0) == pid_or_name || info.name() == pid_or_name)
        });
        let Some(handle) = meant else { return Err(AdminError::NotFound(format!("no connection {pid_or_name}"))) };
        handle.mailbox.send(Event::Close(reason.into()));
        Ok(())
    }

    /// Closes connections: of a virtual host, of a user, or all. Answers how many were told.
    #[must_use]
    pub fn close_connections(&self, vhost: Option<&str>, user: Option<&str>, reason: &str) -> usize {
        self.broker.close_connections(reason, |info| {
            vhost.is_none_or(|vhost| *info.vhost == *vhost) && user.is_none_or(|user| *info.user == *user)
        })
    }
}
