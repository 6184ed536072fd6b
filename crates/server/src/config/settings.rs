//! The settings of a node, checked and complete, with their defaults.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use broker::auth::Tag;
use broker::memory::Watermark;

use super::value::ListenAddress;

/// The version that clients are told in `server-properties`. Clients switch features on it, so it names the RabbitMQ release against
/// which our answers were compared one by one; a newer one would promise behaviour that nobody checked.
pub(crate) const COMPATIBLE_VERSION: &str = "3.10.8";

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Where the node keeps its data; absolute.
    pub data_dir: PathBuf,
    /// Start with a damaged data directory, without what is lost.
    pub accept_damage: bool,
    /// `name@host`.
    pub node_name: String,
    /// What clients are told in `server-properties`; the node's name unless set.
    pub cluster_name: String,
    /// Where to listen for AMQP without TLS. Empty: nowhere.
    pub listeners: Vec<ListenAddress>,
    /// What is created when the node starts without data.
    pub first_start: FirstStart,
    /// Definitions to import at each start: a file, or a directory of `*.json` files. With one, nothing of `first_start` is created.
    pub load_definitions: Option<PathBuf>,
    /// Users who may only log in over loopback.
    pub loopback_users: Vec<String>,
    /// Heartbeat interval that is proposed to clients, in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest frame that is proposed to clients, in bytes, with its 8 bytes of header and end.
    pub frame_max_bytes: u32,
    /// Largest frame before the client is logged in, in bytes.
    pub initial_frame_max_bytes: u32,
    /// Most channels of a connection.
    pub channel_max: u16,
    /// Time from accepting a connection to its `connection.open`.
    pub handshake_timeout: Duration,
    /// Largest message body, in bytes.
    pub max_message_bytes: u64,
    /// Memory in use from which on publishers are blocked.
    pub memory_watermark: Watermark,
    /// Memory for the bodies of durable messages; those beyond are on disk only until they are wanted.
    pub body_budget: Watermark,
    /// Size of a file of the message log, in bytes.
    pub log_file_bytes: u32,
    /// Size of the message log, in bytes, beyond which its oldest messages are moved to segments.
    pub log_budget_bytes: u64,
    /// The memory to count as the node's own, in bytes, in place of what the system says.
    pub total_memory_bytes: Option<u64>,
    /// Free disk space below which publishers are blocked.
    pub disk_free_limit: DiskLimit,
    /// `product` in `server-properties`.
    pub product_name: String,
    /// `version` in `server-properties`.
    pub product_version: String,
    /// Where log lines go.
    pub log: LogConfig,
}

/// The virtual hosts and the user that a node without data begins with.
#[derive(Clone, PartialEq)]
pub(crate) struct FirstStart {
    /// The first virtual host, in which the user gets its permissions.
    pub vhost: String,
    /// Further virtual hosts; the user gets the same permissions there.
    pub more_vhosts: Vec<String>,
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
    /// The user's tags.
    pub tags: Vec<Tag>,
    /// Regular expression of what the user may create and delete.
    pub configure: String,
    /// Regular expression of what the user may write to.
    pub write: String,
    /// Regular expression of what the user may read from.
    pub read: String,
}

impl std::fmt::Debug for FirstStart {
    /// Leaves out the password: settings are logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstStart")
            .field("vhost", &self.vhost)
            .field("more_vhosts", &self.more_vhosts)
            .field("user", &self.user)
            .field("tags", &self.tags)
            .field("configure", &self.configure)
            .field("write", &self.write)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}

/// Free disk space that must be left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DiskLimit {
    /// Bytes.
    Absolute(u64),
    /// A multiple of the node's total memory.
    Relative(f64),
}

impl DiskLimit {
    /// The limit in bytes, on a node with so much memory.
    pub(crate) fn bytes(self, total_memory_bytes: u64) -> u64 {
        match self {
            Self::Absolute(bytes) => bytes,
            Self::Relative(ratio) => (total_memory_bytes as f64 * ratio) as u64,
        }
    }
}

/// Where log lines go, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// To standard error.
    pub console: Option<LogOutput>,
    /// To a file, to which lines are appended.
    pub file: Option<(PathBuf, LogOutput)>,
}

/// One place of logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOutput {
    /// The least important lines that are written.
    pub level: LogLevel,
    /// How they look.
    pub format: LogFormat,
}

/// Importance of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    /// What a developer wants to follow.
    Debug,
    /// What happens.
    Info,
    /// What somebody should look at one day.
    Warning,
    /// What went wrong.
    Error,
    /// No lines.
    None,
}

impl FromStr for LogLevel {
    type Err = String;

    /// RabbitMQ has eight levels; those between ours count as the next.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "debug" => Ok(Self::Debug),
            "info" | "notice" => Ok(Self::Info),
            "warning" | "warn" => Ok(Self::Warning),
            "error" | "critical" | "alert" | "emergency" => Ok(Self::Error),
            "none" => Ok(Self::None),
            _ => Err("expected debug, info, notice, warning, error, critical, alert, emergency or none".to_owned()),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" | "plaintext" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("expected plaintext or json".to_owned()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: "warrenmq-data".into(),
            accept_damage: false,
            node_name: default_node_name(),
            cluster_name: String::new(),
            listeners: vec![ListenAddress::Any(5672)],
            first_start: FirstStart {
                vhost: "/".to_owned(),
                more_vhosts: Vec::new(),
                user: "guest".to_owned(),
                password: "guest".to_owned(),
                tags: vec![Tag::Administrator],
                configure: ".*".to_owned(),
                write: ".*".to_owned(),
                read: ".*".to_owned(),
            },
            load_definitions: None,
            loopback_users: vec!["guest".to_owned()],
            heartbeat_s: 60,
            frame_max_bytes: 131_072,
            // Room for a token as a password; a stranger's frame is held in memory before anybody knows who sent it.
            initial_frame_max_bytes: 8192,
            channel_max: 2047,
            handshake_timeout: Duration::from_secs(10),
            // RabbitMQ 4 lowered it to 16 MiB; clients of 3.x send larger ones, so it stays what it was.
            max_message_bytes: 134_217_728,
            memory_watermark: Watermark::default(),
            // Below the watermark, so that a backlog goes to disk before it blocks publishers.
            body_budget: Watermark::Relative(0.4),
            log_file_bytes: 64 << 20,
            log_budget_bytes: 16 << 30,
            total_memory_bytes: None,
            disk_free_limit: DiskLimit::Absolute(50_000_000),
            product_name: "RabbitMQ".to_owned(),
            product_version: COMPATIBLE_VERSION.to_owned(),
            log: LogConfig { console: Some(LogOutput { level: LogLevel::Info, format: LogFormat::Text }), file: None },
        }
    }
}

/// `rabbit@` and the first part of the host's name: the name under which tools look for a node.
fn default_node_name() -> String {
    format!("rabbit@{}", short_host_name())
}

/// The host's name up to its first dot.
pub(super) fn short_host_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    match host.split('.').next() {
        Some(short) if !short.is_empty() => short.to_owned(),
        _ => "localhost".to_owned(),
    }
}
