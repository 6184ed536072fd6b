//! Where the binary meets the broker: [`run`] is given settings and listening sockets and returns when the node has stopped.
//!
//! There is no broker behind it yet: connections are accepted and closed.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::shutdown::Shutdown;

/// Pause after a failed accept: out of file descriptors, the next one would fail at once, too.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Runs a node. Calls `ready` when clients are served, and returns when `shutdown` was requested and everything is in order.
///
/// # Errors
/// Why the node cannot start, or had to stop.
pub(crate) async fn run(
    config: Config,
    listeners: Vec<TcpListener>,
    ready: impl FnOnce(),
    mut shutdown: Shutdown,
) -> anyhow::Result<()> {
    log_settings(&config);
    let mut acceptors = JoinSet::new();
    for listener in listeners {
        acceptors.spawn(accept(listener));
    }
    ready();
    shutdown.requested().await;
    acceptors.shutdown().await;
    Ok(())
}

async fn accept(listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((_socket, peer)) => tracing::warn!(%peer, "connection closed: this build has no broker yet"),
            Err(error) => {
                tracing::error!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
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
