//! The environment variables: RabbitMQ's names where it has one. An empty variable counts as one that is not set, and variables
//! of RabbitMQ that are not named here are ignored.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::keys::Draft;
use super::value::{ListenAddress, integer, name, parse_node_name};
use super::{ConfigError, Place};

const CONFIG_FILE: &str = "RABBITMQ_CONFIG_FILE";
const CONFIG_FILES: &str = "RABBITMQ_CONFIG_FILES";
const DATA_DIR: &str = "WARRENMQ_DATA_DIR";
const DEFAULT_PASS: &str = "RABBITMQ_DEFAULT_PASS";
const DEFAULT_USER: &str = "RABBITMQ_DEFAULT_USER";
const DEFAULT_VHOST: &str = "RABBITMQ_DEFAULT_VHOST";
const NODENAME: &str = "RABBITMQ_NODENAME";
const NODE_IP_ADDRESS: &str = "RABBITMQ_NODE_IP_ADDRESS";
const NODE_PORT: &str = "RABBITMQ_NODE_PORT";

const VARIABLES: [&str; 9] = [
    CONFIG_FILE,
    CONFIG_FILES,
    DATA_DIR,
    DEFAULT_PASS,
    DEFAULT_USER,
    DEFAULT_VHOST,
    NODENAME,
    NODE_IP_ADDRESS,
    NODE_PORT,
];

/// The port of `amqp://`.
const DEFAULT_PORT: u16 = 5672;

/// The variables that count and are set.
#[derive(Debug, Default)]
pub(crate) struct Environment(BTreeMap<&'static str, String>);

impl Environment {
    /// The variables of this process.
    ///
    /// # Errors
    /// A variable that is not UTF-8.
    pub(crate) fn of_process() -> Result<Self, ConfigError> {
        let mut set = BTreeMap::new();
        for variable in VARIABLES {
            let Some(value) = std::env::var_os(variable) else { continue };
            let value =
                value.into_string().map_err(|_| ConfigError::new(Place::Environment(variable), "expected UTF-8"))?;
            set.insert(variable, value);
        }
        Ok(Self(set))
    }

    #[cfg(test)]
    pub(super) fn of(variables: &[(&'static str, &str)]) -> Self {
        Self(variables.iter().map(|(variable, value)| (*variable, (*value).to_owned())).collect())
    }

    /// The main file, with or without its extension.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.get(CONFIG_FILE).map(PathBuf::from)
    }

    /// The directory of additional files.
    pub(super) fn config_files(&self) -> Option<PathBuf> {
        self.get(CONFIG_FILES).map(PathBuf::from)
    }

    /// Puts the variables over what the files say.
    ///
    /// # Errors
    /// A value that cannot be used.
    pub(super) fn apply(&self, draft: &mut Draft) -> Result<(), ConfigError> {
        if let Some(directory) = self.get(DATA_DIR) {
            draft.config.data_dir = directory.into();
        }
        if let Some(node_name) = self.parsed(NODENAME, parse_node_name)? {
            draft.config.node_name = node_name;
        }
        let first = &mut draft.config.first_start;
        if let Some(user) = self.parsed(DEFAULT_USER, name)? {
            first.user = user;
        }
        if let Some(password) = self.get(DEFAULT_PASS) {
            password.clone_into(&mut first.password);
        }
        if let Some(vhost) = self.parsed(DEFAULT_VHOST, name)? {
            first.vhost = vhost;
        }
        let ip = self
            .parsed(NODE_IP_ADDRESS, |text| text.parse::<IpAddr>().map_err(|_| "expected an IP address".to_owned()))?;
        let port = self.parsed(NODE_PORT, |text| integer(text, "a port", 1..=u64::from(u16::MAX)))?;
        if ip.is_some() || port.is_some() {
            let port = port.unwrap_or(DEFAULT_PORT);
            let address = ip.map_or(ListenAddress::Any(port), |ip| ListenAddress::Ip(SocketAddr::new(ip, port)));
            draft.replace_listeners(vec![address]);
        }
        Ok(())
    }

    fn get(&self, variable: &'static str) -> Option<&str> {
        debug_assert!(VARIABLES.contains(&variable), "{variable} is never read");
        self.0.get(variable).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn parsed<T>(
        &self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(variable) else { return Ok(None) };
        match parse(value) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(expected) => Err(ConfigError::new(Place::Environment(variable), format!("'{value}': {expected}"))),
        }
    }
}
