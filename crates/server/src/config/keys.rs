//! The keys of the configuration files: what each one sets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use broker::auth::Tag;
use broker::memory::Watermark;

use super::ConfigError;
use super::file::Entry;
use super::settings::{Config, DiskLimit, LogConfig, LogFormat, LogLevel, LogOutput, short_host_name};
use super::value::{ListenAddress, boolean, frame_size, integer, name, pattern, ratio, size};

/// Largest frame that may be configured, in bytes; what 0, "no limit", stands for. A frame is read into memory whole.
const MAX_FRAME_BYTES: u64 = 128 << 20;

/// Smallest largest frame: the specification's `frame-min-size`.
const MIN_FRAME_BYTES: u64 = 4096;

/// Largest frame of a peer that is not logged in, in bytes: every such peer may make the node hold one.
const MAX_INITIAL_FRAME_BYTES: u64 = 1 << 20;

/// Largest message that may be configured, in bytes: RabbitMQ's limit.
const MAX_MESSAGE_BYTES: u64 = 512 << 20;

/// Smallest file of the message log, in bytes: a switch to the next one costs four syncs, and reserve files are an eighth of it.
const MIN_LOG_FILE_BYTES: u64 = 1 << 20;

/// Largest file of the message log, in bytes: it is prepared as a whole, and leaves as a whole.
const MAX_LOG_FILE_BYTES: u64 = 512 << 20;

/// Longest handshake that may be configured, in milliseconds: an hour.
const MAX_HANDSHAKE_MS: u64 = 3_600_000;

/// Settings while they are being gathered: what single keys cannot decide alone stands beside the [`Config`].
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// What is decided.
    pub config: Config,
    /// What the log keys say.
    pub log: LogDraft,
    /// `listeners.tcp.NAME`.
    listeners: BTreeMap<String, ListenAddress>,
    /// `listeners.tcp = none`.
    no_listeners: bool,
    /// `vhosts.N`.
    vhosts: BTreeMap<String, String>,
    /// `default_user_tags.NAME`.
    tags: BTreeMap<String, bool>,
    /// `loopback_users.NAME`; what is not named keeps its default.
    loopback_users: BTreeMap<String, bool>,
    /// `loopback_users = none`.
    no_loopback_users: bool,
    memory_relative: Option<f64>,
    memory_absolute: Option<u64>,
    bodies_relative: Option<f64>,
    bodies_absolute: Option<u64>,
    disk_relative: Option<f64>,
    disk_absolute: Option<u64>,
}

/// What the log keys say, each for itself.
#[derive(Debug, Default)]
pub(super) struct LogDraft {
    level: Option<LogLevel>,
    directory: Option<PathBuf>,
    no_console: bool,
    console_level: Option<LogLevel>,
    console_format: Option<LogFormat>,
    file: Option<PathBuf>,
    file_level: Option<LogLevel>,
    file_format: Option<LogFormat>,
}

impl Draft {
    /// Takes a line of a file in. Returns what the operator should know about a line without, or with an unexpected, effect.
    ///
    /// # Errors
    /// A bad value of a known key.
    pub(super) fn apply(&mut self, entry: &Entry) -> Result<Option<String>, ConfigError> {
        let words: Vec<&str> = entry.key.iter().map(String::as_str).collect();
        let known = self.set(&words, &entry.value).map_err(|expected| {
            let problem = format!("{} = {}: {expected}", entry.key_text(), entry.value);
            ConfigError::new(entry.place.clone(), problem)
        })?;
        Ok(if !known {
            Some(format!("{} has no effect: this version does not know it", entry.key_text()))
        } else if entry.cut {
            Some(format!("{}: the value ends before '#'; single quotes around it keep the rest", entry.key_text()))
        } else {
            None
        })
    }

    /// Sets one key; `false` if it is not known. Errors say what is expected.
    fn set(&mut self, key: &[&str], value: &str) -> Result<bool, String> {
        let config = &mut self.config;
        match key {
            ["data_dir"] => config.data_dir = value.into(),
            ["accept_damage"] => config.accept_damage = boolean(value)?,
            ["cluster_name"] => value.clone_into(&mut config.cluster_name),
            ["listeners", "tcp"] if value == "none" => self.no_listeners = true,
            ["listeners", "tcp"] => {
                return Err("expected none, or a name after the key: listeners.tcp.default".to_owned());
            }
            ["listeners", "tcp", name] => {
                self.listeners.insert((*name).to_owned(), ListenAddress::parse(value)?);
            }
            ["heartbeat"] => config.heartbeat_s = integer(value, "a number of seconds", 0..=u64::from(u16::MAX))?,
            ["frame_max"] if value == "0" => config.frame_max_bytes = MAX_FRAME_BYTES as u32,
            ["frame_max"] => config.frame_max_bytes = frame_size(value, MIN_FRAME_BYTES..=MAX_FRAME_BYTES)?,
            ["initial_frame_max"] => {
                config.initial_frame_max_bytes = frame_size(value, MIN_FRAME_BYTES..=MAX_INITIAL_FRAME_BYTES)?;
            }
            // 0 is RabbitMQ's word for as many as there are numbers.
            ["channel_max"] if value == "0" => config.channel_max = u16::MAX,
            ["channel_max"] => config.channel_max = integer(value, "a number of channels", 0..=u64::from(u16::MAX))?,
            ["handshake_timeout"] => {
                let milliseconds = integer(value, "a number of milliseconds", 1..=MAX_HANDSHAKE_MS)?;
                config.handshake_timeout = Duration::from_millis(milliseconds);
            }
            ["max_message_size"] => config.max_message_bytes = size(value, 1..=MAX_MESSAGE_BYTES)?,
            ["vm_memory_high_watermark", "relative"] => self.memory_relative = Some(ratio(value)?),
            ["vm_memory_high_watermark", "absolute"] => self.memory_absolute = Some(size(value, 0..=u64::MAX)?),
            ["total_memory_available_override_value"] => {
                config.total_memory_bytes = Some(size(value, 1..=u64::MAX)?);
            }
            ["body_budget", "relative"] => self.bodies_relative = Some(ratio(value)?),
            ["body_budget", "absolute"] => self.bodies_absolute = Some(size(value, 0..=u64::MAX)?),
            ["message_log", "file_size"] => {
                config.log_file_bytes = size(value, MIN_LOG_FILE_BYTES..=MAX_LOG_FILE_BYTES)?
            }
            ["message_log", "budget"] => config.log_budget_bytes = size(value, 0..=u64::MAX)?,
            ["disk_free_limit", "relative"] => self.disk_relative = Some(ratio(value)?),
            ["disk_free_limit", "absolute"] => self.disk_absolute = Some(size(value, 0..=u64::MAX)?),
            ["product", "name"] => value.clone_into(&mut config.product_name),
            ["product", "version"] => value.clone_into(&mut config.product_version),
            ["log", rest @ ..] => return self.log.set(rest, value),
            _ => return self.set_identity(key, value),
        }
        Ok(true)
    }

    /// The keys about users and virtual hosts.
    fn set_identity(&mut self, key: &[&str], value: &str) -> Result<bool, String> {
        let first = &mut self.config.first_start;
        match key {
            ["default_vhost"] => first.vhost = name(value)?,
            ["vhosts", number] => {
                self.vhosts.insert((*number).to_owned(), name(value)?);
            }
            ["default_user"] => first.user = name(value)?,
            ["default_pass"] => value.clone_into(&mut first.password),
            ["default_user_tags", tag] => {
                self.tags.insert((*tag).to_owned(), boolean(value)?);
            }
            ["default_permissions", "configure"] => first.configure = pattern(value)?,
            ["default_permissions", "write"] => first.write = pattern(value)?,
            ["default_permissions", "read"] => first.read = pattern(value)?,
            // RabbitMQ's three names for the same, in the order in which they came up.
            ["management", "load_definitions"] | ["load_definitions"] | ["definitions", "local", "path"] => {
                self.config.load_definitions = Some(value.into());
            }
            ["definitions", "import_backend"] if matches!(value, "local_filesystem" | "local") => {}
            ["definitions", "import_backend"] => return Err("expected local_filesystem".to_owned()),
            // Definitions that are there already change nothing, so there is no need to remember them.
            ["definitions", "skip_if_unchanged"] => drop(boolean(value)?),
            ["loopback_users"] if value == "none" => self.no_loopback_users = true,
            ["loopback_users"] => return Err("expected none, or a user after the key: loopback_users.guest".to_owned()),
            ["loopback_users", user] => {
                self.loopback_users.insert((*user).to_owned(), boolean(value)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes these addresses in place of all that the files say.
    pub(super) fn replace_listeners(&mut self, addresses: Vec<ListenAddress>) {
        self.config.listeners = addresses;
        self.listeners.clear();
        self.no_listeners = false;
    }

    /// Decides what keys decide together.
    pub(super) fn finish(self) -> Config {
        let mut config = self.config;
        if self.no_listeners {
            config.listeners = Vec::new();
        } else if !self.listeners.is_empty() {
            config.listeners = self.listeners.into_values().collect();
        }
        config.first_start.more_vhosts = self.vhosts.into_values().collect();
        if !self.tags.is_empty() {
            let set = self.tags.into_iter().filter(|(_, set)| *set);
            config.first_start.tags = set.map(|(tag, _)| Tag::from(tag.as_str())).collect();
        }
        config.loopback_users = if self.no_loopback_users {
            Vec::new()
        } else {
            let mut users: BTreeSet<String> = config.loopback_users.into_iter().collect();
            for (user, loopback_only) in self.loopback_users {
                if loopback_only {
                    users.insert(user);
                } else {
                    users.remove(&user);
                }
            }
            users.into_iter().collect()
        };
        // Of the two forms RabbitMQ takes the relative one, wherever it stands.
        match (self.memory_relative, self.memory_absolute) {
            (Some(ratio), _) => config.memory_watermark = Watermark::Relative(ratio),
            (None, Some(bytes)) => config.memory_watermark = Watermark::Absolute(bytes),
            (None, None) => {}
        }
        match (self.bodies_relative, self.bodies_absolute) {
            (Some(ratio), _) => config.body_budget = Watermark::Relative(ratio),
            (None, Some(bytes)) => config.body_budget = Watermark::Absolute(bytes),
            (None, None) => {}
        }
        match (self.disk_relative, self.disk_absolute) {
            (Some(ratio), _) => config.disk_free_limit = DiskLimit::Relative(ratio),
            (None, Some(bytes)) => config.disk_free_limit = DiskLimit::Absolute(bytes),
            (None, None) => {}
        }
        // Fails only where there is no current directory; then the path stays as it is, and creating it tells why.
        config.data_dir = std::path::absolute(&config.data_dir).unwrap_or(config.data_dir);
        if !config.node_name.contains('@') {
            config.node_name = format!("{}@{}", config.node_name, short_host_name());
        }
        if config.cluster_name.is_empty() {
            config.cluster_name.clone_from(&config.node_name);
        }
        config.log = self.log.finish(&config.data_dir);
        config
    }
}

impl LogDraft {
    fn set(&mut self, key: &[&str], value: &str) -> Result<bool, String> {
        match key {
            ["level"] | ["default", "level"] => self.level = Some(value.parse()?),
            ["dir"] => self.directory = Some(value.into()),
            ["console"] => self.no_console = !boolean(value)?,
            ["console", "level"] => self.console_level = Some(value.parse()?),
            ["console", "formatter"] => self.console_format = Some(value.parse()?),
            ["file"] => self.file = (value != "false").then(|| value.into()),
            ["file", "level"] => self.file_level = Some(value.parse()?),
            ["file", "formatter"] => self.file_format = Some(value.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What the command line says counts for all outputs.
    pub(super) fn override_with(&mut self, level: Option<LogLevel>, format: Option<LogFormat>) {
        if level.is_some() {
            (self.level, self.console_level, self.file_level) = (level, None, None);
        }
        if format.is_some() {
            (self.console_format, self.file_format) = (format, format);
        }
    }

    /// A file that is not absolute is in `log.dir`, or else in the data directory.
    fn finish(self, data_dir: &std::path::Path) -> LogConfig {
        let output = |level: Option<LogLevel>, format: Option<LogFormat>| LogOutput {
            level: level.or(self.level).unwrap_or(LogLevel::Info),
            format: format.unwrap_or_default(),
        };
        let console = (!self.no_console).then(|| output(self.console_level, self.console_format));
        let directory = self.directory.as_deref().map_or(data_dir.to_owned(), |directory| data_dir.join(directory));
        let file = self.file.as_deref().map(|file| (directory.join(file), output(self.file_level, self.file_format)));
        LogConfig { console, file }
    }
}
