//! What an operator can set, as the broker needs it: checked, with units, defaults as RabbitMQ's.

use std::path::PathBuf;
use std::time::Duration;

use crate::auth::Tag;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, for logs and listings.
    pub node_name: String,
    /// The cluster's name, told to clients.
    pub cluster_name: String,
    /// `product` of the server properties. Clients switch features by it.
    pub product: String,
    /// `version` of the server properties. Clients switch features by it.
    pub product_version: String,
    /// Most channels of a connection; 0 is no limit.
    pub channel_max: u16,
    /// Largest frame in bytes; 0 is no limit.
    pub frame_max: u32,
    /// Proposed heartbeat interval in seconds; 0 is off.
    pub heartbeat_secs: u16,
    /// How long a client may take from connecting to an open connection.
    pub handshake_timeout: Duration,
    /// Largest frame in bytes before the connection is tuned.
    pub initial_frame_max: u32,
    /// Largest message body in bytes.
    pub max_message_bytes: u64,
    /// Above this many bytes of memory publishers are blocked.
    pub memory_high_watermark_bytes: u64,
    /// Bytes of durable messages that may stay in memory; beyond it they are on disk only until they are wanted.
    pub body_budget_bytes: u64,
    /// Size of a file of the log of durable queues, in bytes.
    pub log_file_bytes: u32,
    /// Size of that log, in bytes, beyond which its oldest messages are moved to segments.
    pub log_budget_bytes: u64,
    /// Below this many free bytes on the data directory's disk publishers are blocked.
    pub disk_free_limit_bytes: u64,
    /// Definitions will be imported: a new node begins without the user and virtual hosts below.
    pub begins_empty: bool,
    /// Virtual hosts beside the default one.
    pub vhosts: Vec<String>,
    /// The virtual host that is there from the start.
    pub default_vhost: String,
    /// The user that is there from the start.
    pub default_user: String,
    /// Its password.
    pub default_password: String,
    /// Its tags.
    pub default_user_tags: Vec<Tag>,
    /// Its configure, write and read permissions on the default virtual host.
    pub default_permissions: [String; 3],
    /// Users that may only log in over loopback.
    pub loopback_users: Vec<String>,
    /// Where the node keeps its data.
    pub data_dir: PathBuf,
    /// Start with a damaged data directory, without what is lost.
    pub accept_damage: bool,
    /// Tasks that own queues in memory; 0 is one per core.
    pub shards: usize,
    /// Shards of durable queues. Fixed when a data directory is made.
    pub durable_shards: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_name: "warrenmq@localhost".to_owned(),
            cluster_name: "warrenmq@localhost".to_owned(),
            product: "RabbitMQ".to_owned(),
            product_version: "3.10.8".to_owned(),
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_secs: 60,
            handshake_timeout: Duration::from_secs(10),
            initial_frame_max: 8192,
            max_message_bytes: 134_217_728,
            memory_high_watermark_bytes: u64::MAX,
            body_budget_bytes: u64::MAX,
            log_file_bytes: 64 << 20,
            log_budget_bytes: 16 << 30,
            disk_free_limit_bytes: 50_000_000,
            begins_empty: false,
            vhosts: Vec::new(),
            default_vhost: "/".to_owned(),
            default_user: "guest".to_owned(),
            default_password: "guest".to_owned(),
            default_user_tags: vec![Tag::Administrator],
            default_permissions: [".*".to_owned(), ".*".to_owned(), ".*".to_owned()],
            loopback_users: vec!["guest".to_owned()],
            data_dir: PathBuf::from("warrenmq-data"),
            accept_damage: false,
            shards: 0,
            durable_shards: 12,
        }
    }
}
