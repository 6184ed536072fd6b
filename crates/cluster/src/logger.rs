//! What the consensus core logs goes to `tracing`, as debug lines: a broker's operator is told by us what matters.

use std::fmt::Write;

use slog::{Drain, KV, Level, Logger, OwnedKVList, Record};

struct ToTracing;

/// A logger for a group.
pub(crate) fn logger(group: u32) -> Logger {
    Logger::root(ToTracing, slog::o!("group" => group))
}

impl Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), slog::Never> {
        let critical = record.level() == Level::Critical;
        if !critical && !tracing::enabled!(target: "warrenmq_cluster::raft", tracing::Level::DEBUG) {
            return Ok(());
        }
        let mut line = Line(record.msg().to_string());
        // Writing to a string does not fail.
        let _ = record.kv().serialize(record, &mut line);
        let _ = values.serialize(record, &mut line);
        if critical {
            tracing::error!(target: "warrenmq_cluster::raft", "{}", line.0);
        } else {
            tracing::debug!(target: "warrenmq_cluster::raft", "{}", line.0);
        }
        Ok(())
    }

    fn is_enabled(&self, level: Level) -> bool {
        level.is_at_least(Level::Critical)
            || level.is_at_least(Level::Info)
                && tracing::enabled!(target: "warrenmq_cluster::raft", tracing::Level::DEBUG)
    }
}

struct Line(String);

impl slog::Serializer for Line {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        let _ = write!(self.0, " {key}={value}");
        Ok(())
    }
}
