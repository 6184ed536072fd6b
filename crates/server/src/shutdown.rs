//! SIGTERM and SIGINT: the first asks the node to stop, the second ends the process at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells when the node shall stop. Clones tell the same.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Returns when the node shall stop; at once if that was asked before.
    pub(crate) async fn requested(&mut self) {
        // The sender lives as long as the process; if it were gone nobody could ask any more, and stopping is the safe answer.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// Begins to wait for the signals.
///
/// # Errors
/// The system's, when handlers cannot be set.
pub(crate) fn on_signals() -> io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if *sender.borrow() {
                tracing::error!("asked twice to stop: stopping without waiting");
                std::process::exit(1);
            }
            tracing::info!("stopping; a second signal ends the process at once");
            sender.send_replace(true);
        }
    });
    Ok(Shutdown(receiver))
}
