//! Where the binary meets the broker: [`run`] is given settings and listening sockets and returns when the node has stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use broker::{Broker, Settings};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::ctl::{Control, NodeFacts};
use crate::definitions;
use crate::shutdown::Shutdown;

/// Pause after a failed accept: out of file descriptors, the next one would fail at once, too.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long clients get to answer the `connection.close` of a node that stops.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Runs a node. Calls `ready` when clients are served, and returns when `shutdown` was requested and everything is in order.
///
/// # Errors
/// Why the node cannot start, or had to stop.
pub(crate) async fn run(
    config: Config,
    files: Vec<PathBuf>,
    listeners: Vec<TcpListener>,
    ready: impl FnOnce(),
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    log_settings(&config);
    let broker = Broker::start(settings(&config)).context("the node cannot start")?;
    if let Some(path) = &config.load_definitions {
        definitions::load(&broker, path).await?;
    }
    let mut acceptors = JoinSet::new();
    let facts = facts(&config, &files, &listeners);
    match Control::bind(&config.data_dir) {
        Ok(control) => {
            acceptors.spawn(control.serve(Arc::clone(&broker), facts));
        }
        // Clients are served all the same.
        Err(error) => tracing::error!(%error, "no control socket: `warrenmq ctl` cannot reach this node"),
    }
    for listener in listeners {
        acceptors.spawn(accept(Arc::clone(&broker), listener));
    }
    ready();
    shutdown.requested().await;
    tracing::info!(connections = broker.connection_count(), "stopping: no new connections, clients are told");
    acceptors.shutdown().await;
    broker.stop(STOP_PATIENCE).await;
    broker.close().await;
    tracing::info!("stopped");
    Ok(())
}

async fn accept(broker: Arc<Broker>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                tokio::spawn(broker::serve(Arc::clone(&broker), socket, peer));
            }
            Err(error) => {
                tracing::error!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// What `warrenmq ctl` can ask of the node beside the broker. No secrets are in it.
fn facts(config: &Config, files: &[PathBuf], listeners: &[TcpListener]) -> NodeFacts {
    let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
    let first = &config.first_start;
    NodeFacts {
        listeners: addresses.map(|address| address.to_string()).collect(),
        config_files: files.iter().map(|file| file.display().to_string()).collect(),
        environment: json!({
            "channel_max": config.channel_max,
            "cluster_name": config.cluster_name,
            "data_dir": config.data_dir.display().to_string(),
            "default_user": first.user,
            "default_vhost": first.vhost,
            "disk_free_limit": format!("{:?}", config.disk_free_limit),
            "frame_max": config.frame_max_bytes,
            "handshake_timeout": u64::try_from(config.handshake_timeout.as_millis()).unwrap_or(u64::MAX),
            "heartbeat": config.heartbeat_s,
            "initial_frame_max": config.initial_frame_max_bytes,
            "loopback_users": config.loopback_users,
            "max_message_size": config.max_message_bytes,
            "product_name": config.product_name,
            "product_version": config.product_version,
            "vm_memory_high_watermark": format!("{:?}", config.memory_watermark),
        }),
    }
}

/// The broker's part of the configuration.
fn settings(config: &Config) -> Settings {
    let first = &config.first_start;
    let total_memory_bytes = config.total_memory_bytes.or_else(broker::memory::total_bytes).unwrap_or(u64::MAX);
    Settings {
        node_name: config.node_name.clone(),
        cluster_name: config.cluster_name.clone(),
        product: config.product_name.clone(),
        product_version: config.product_version.clone(),
        channel_max: config.channel_max,
        frame_max: config.frame_max_bytes,
        heartbeat_secs: config.heartbeat_s,
        handshake_timeout: config.handshake_timeout,
        initial_frame_max: config.initial_frame_max_bytes,
        max_message_bytes: config.max_message_bytes,
        memory_high_watermark_bytes: config.memory_watermark.limit_bytes(total_memory_bytes),
        log_file_bytes: config.log_file_bytes,
        log_budget_bytes: config.log_budget_bytes,
        body_budget_bytes: config.body_budget.limit_bytes(total_memory_bytes),
        disk_free_limit_bytes: config.disk_free_limit.bytes(total_memory_bytes),
        begins_empty: config.load_definitions.is_some(),
        vhosts: first.more_vhosts.clone(),
        default_vhost: first.vhost.clone(),
        default_user: first.user.clone(),
        default_password: first.password.clone(),
        default_user_tags: first.tags.clone(),
        default_permissions: [first.configure.clone(), first.write.clone(), first.read.clone()],
        loopback_users: config.loopback_users.clone(),
        data_dir: config.data_dir.clone(),
        accept_damage: config.accept_damage,
        ..Settings::default()
    }
}

/// What is in force, whichever of files, environment and command line it came from.
fn log_settings(config: &Config) {
    tracing::info!(node = config.node_name, cluster = config.cluster_name, "starting");
    tracing::debug!(
        first_start = ?config.first_start,
        password = if config.first_start.password.is_empty() { "none" } else { "set" },
        loopback_users = ?config.loopback_users,
        heartbeat_s = config.heartbeat_s,
        frame_max_bytes = config.frame_max_bytes,
        initial_frame_max_bytes = config.initial_frame_max_bytes,
        channel_max = config.channel_max,
        handshake_timeout = ?config.handshake_timeout,
        max_message_bytes = config.max_message_bytes,
        memory_watermark = ?config.memory_watermark,
        total_memory_bytes = ?config.total_memory_bytes,
        disk_free_limit = ?config.disk_free_limit,
        product = config.product_name,
        version = config.product_version,
        "settings"
    );
}
