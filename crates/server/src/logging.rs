//! Sends log lines to standard error and to a file.

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, stderr};
use std::sync::Arc;

use anyhow::Context as _;
use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use crate::config::{LogConfig, LogFormat, LogLevel, LogOutput};

/// Starts logging as configured.
///
/// # Errors
/// A file that cannot be opened.
pub(crate) fn start(config: &LogConfig) -> anyhow::Result<()> {
    let mut layers = Vec::new();
    if let Some(output) = config.console {
        layers.push(layer(output, stderr, stderr().is_terminal()));
    }
    if let Some((path, output)) = &config.file {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot open the log file {}", path.display()))?;
        layers.push(layer(*output, Arc::new(file), false));
    }
    Registry::default().with(layers).try_init().context("cannot start logging")
}

fn layer<S, W>(output: LogOutput, writer: W, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = match output.level {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::None => LevelFilter::OFF,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours).with_target(false);
    match output.format {
        LogFormat::Text => lines.with_filter(level).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(level).boxed(),
    }
}
