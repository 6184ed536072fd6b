//! The node's settings: what there is ([`Config`]), where it comes from ([`load`]), and what is said when it is wrong.
//!
//! Command line over environment over files over defaults. Files are in RabbitMQ's sysctl format ([`mod@file`]) and use its
//! keys ([`keys`]); so do the environment variables ([`environment`]). An unknown key is worth a warning and nothing more, because
//! files written for RabbitMQ shall just work; a bad value of a known key keeps the node from starting.

mod environment;
mod file;
mod keys;
mod settings;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::cli::ServerArgs;

pub(crate) use environment::Environment;
pub(crate) use settings::{COMPATIBLE_VERSION, Config, LogConfig, LogFormat, LogLevel, LogOutput};
pub(crate) use value::{ListenAddress, parse_node_name};

/// Directories that are looked in without `--config`, with the name of their main file. The second is RabbitMQ's: moving over begins
/// with stopping one broker and starting the other.
const DEFAULT_LOCATIONS: [(&str, &str); 2] = [("/etc/warrenmq", "warrenmq.conf"), ("/etc/rabbitmq", "rabbitmq.conf")];

/// Where a setting was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A line of a file, counted from 1.
    Line { file: PathBuf, line: usize },
    /// A file or directory as a whole.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{}:{line}", file.display()),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
        }
    }
}

/// A configuration with which the node does not start: the operator has to change what is at the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    place: Place,
    problem: String,
}

impl ConfigError {
    fn new(place: Place, problem: impl Into<String>) -> Self {
        Self { place, problem: problem.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// Something in the configuration that has no effect, or not the one that its author may expect. Looks like an error.
pub(crate) type Warning = ConfigError;

/// What [`load`] found.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The settings that are in force.
    pub config: Config,
    /// The files they came from, in the order in which they were read.
    pub files: Vec<PathBuf>,
    /// For the log, once there is one.
    pub warnings: Vec<Warning>,
}

/// Reads everything there is.
///
/// # Errors
/// [`ConfigError`]: an unreadable file, a line that is no setting, a bad value of a known key.
pub(crate) fn load(args: &ServerArgs, environment: &Environment) -> Result<Loaded, ConfigError> {
    let mut warnings = Vec::new();
    let files = files(args, environment, &mut warnings)?;
    let mut draft = keys::Draft::default();
    for path in &files {
        let content = file::read(path).map_err(|problem| ConfigError::new(Place::File(path.clone()), problem))?;
        for entry in file::parse(path, &content)? {
            if let Some(warning) = draft.apply(&entry)? {
                warnings.push(ConfigError::new(entry.place, warning));
            }
        }
    }
    environment.apply(&mut draft)?;
    apply_arguments(args, &mut draft);
    Ok(Loaded { config: draft.finish(), files, warnings })
}

fn apply_arguments(args: &ServerArgs, draft: &mut keys::Draft) {
    let config = &mut draft.config;
    if let Some(data_dir) = &args.data_dir {
        config.data_dir.clone_from(data_dir);
    }
    config.accept_damage |= args.accept_damage;
    if let Some(node_name) = &args.node_name {
        config.node_name.clone_from(node_name);
    }
    if !args.listen.is_empty() {
        draft.replace_listeners(args.listen.clone());
    }
    draft.log.override_with(args.log_level, args.log_format);
}

/// The files to read, in order: the main one, then the additional ones by name.
fn files(
    args: &ServerArgs,
    environment: &Environment,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<PathBuf>, ConfigError> {
    let mut files = Vec::new();
    let mut additional = None;
    if let Some(path) = &args.config {
        files.push(path.clone());
        additional = Some(path.with_file_name("conf.d"));
    } else if let Some(path) = environment.config_file() {
        additional = Some(path.with_file_name("conf.d"));
        // The extension may be left out, and compose files name files that are not there: RabbitMQ starts without.
        match [path.clone(), with_conf_extension(&path)].into_iter().find(|path| path.is_file()) {
            Some(path) => files.push(path),
            None => {
                warnings.push(ConfigError::new(Place::Environment("RABBITMQ_CONFIG_FILE"), "there is no such file"))
            }
        }
    } else {
        for (directory, main) in DEFAULT_LOCATIONS {
            let directory = Path::new(directory);
            let (main, conf_d) = (directory.join(main), directory.join("conf.d"));
            if main.is_file() || conf_d.is_dir() {
                files.extend(Some(main).filter(|path| path.is_file()));
                additional = Some(conf_d);
                break;
            }
        }
    }
    if let Some(path) = environment.config_files() {
        // A directory, or a pattern whose last part is `*.conf`, which comes to the same.
        let directory = if path.ends_with("*.conf") { path.parent().map(Path::to_owned) } else { Some(path) };
        additional = directory;
    }
    if let Some(directory) = additional.filter(|path| path.is_dir()) {
        files.extend(file::conf_files_in(&directory).map_err(|error| {
            ConfigError::new(Place::File(directory.clone()), format!("cannot read the directory: {error}"))
        })?);
    }
    Ok(files)
}

fn with_conf_extension(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".conf");
    path.into()
}

#[cfg(test)]
mod tests;
