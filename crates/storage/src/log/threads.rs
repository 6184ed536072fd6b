//! The two threads of a log in the product. The simulator has none: it calls `turn` and `maintain` itself.

use std::{io, thread, time::Duration};

use super::{Log, Writer};

/// While the disk is full, maintenance looks for space so often.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// The running threads; closing waits for everything submitted before to be written.
pub struct LogThreads {
    log: Log,
    threads: Vec<thread::JoinHandle<()>>,
}

impl LogThreads {
    /// Starts the writer and the maintenance thread.
    pub fn start(log: Log, mut writer: Writer) -> io::Result<LogThreads> {
        let mut threads = LogThreads { log: log.clone(), threads: Vec::new() };
        threads.threads.push(thread::Builder::new().name("log-writer".into()).spawn(move || writer.run())?);
        threads
            .threads
            .push(thread::Builder::new().name("log-maintenance".into()).spawn(move || log.run_maintenance())?);
        Ok(threads)
    }

    /// Writes what has been submitted, then ends the threads.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.log.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the log panicked");
            }
        }
    }
}

impl Drop for LogThreads {
    fn drop(&mut self) {
        self.end();
    }
}

impl Log {
    /// Tells writer and maintenance to end once everything submitted is written.
    pub fn close(&self) {
        self.shared.inbox.lock().closed = true;
        self.shared.wake_writer.notify_one();
        self.shared.wake_maintenance();
    }

    fn run_maintenance(&self) {
        loop {
            if let Err(error) = self.maintain() {
                // The log itself goes on: its files are as they were, and the next occasion tries again.
                tracing::error!(%error, "log maintenance failed");
            }
            let mut wanted = self.shared.maintenance.lock();
            while !*wanted {
                let full = self.shared.pool.is_full();
                if full {
                    self.shared.wake_maintenance.wait_for(&mut wanted, FULL_RETRY);
                    break;
                }
                self.shared.wake_maintenance.wait(&mut wanted);
            }
            *wanted = false;
            drop(wanted);
            if self.shared.inbox.lock().closed {
                return;
            }
        }
    }
}
