//! What the broker's processes use, from `/proc`: CPU time, memory, written bytes.

use std::fs;
use std::io;

use serde_json::{Value, json};

/// What processes have used until a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time, in seconds.
    pub cpu_s: f64,
    /// Resident memory now, in bytes.
    pub rss_bytes: u64,
    /// Resident memory at the highest point since the processes began, in bytes.
    pub rss_highest_bytes: u64,
    /// Bytes that went to block devices; 0 where the system does not tell (other users' processes).
    pub written_bytes: u64,
}

impl Usage {
    /// The sum over these processes.
    ///
    /// # Errors
    /// A process that is not there.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            let one =
                Self::of_one(*pid).map_err(|error| io::Error::new(error.kind(), format!("process {pid}: {error}")))?;
            sum.cpu_s += one.cpu_s;
            sum.rss_bytes += one.rss_bytes;
            sum.rss_highest_bytes += one.rss_highest_bytes;
            sum.written_bytes += one.written_bytes;
        }
        Ok(sum)
    }

    fn of_one(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let cpu_s = cpu_ticks(&stat).ok_or(io::ErrorKind::InvalidData)? as f64 / ticks;
        Ok(Self {
            cpu_s,
            rss_bytes: field(&status, "VmRSS:").unwrap_or(0) * 1024,
            rss_highest_bytes: field(&status, "VmHWM:").unwrap_or(0) * 1024,
            written_bytes: field(&io, "write_bytes:").unwrap_or(0),
        })
    }
}

/// Fields 14 and 15; the name in field 2 may hold anything, so counting begins behind its last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The processes that are watched during a run.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pids: Vec<u32>,
    before: Usage,
    peak_rss_bytes: u64,
}

impl Watch {
    /// Starts to watch. `None` without processes.
    pub(crate) fn start(pids: &[u32]) -> io::Result<Option<Self>> {
        if pids.is_empty() {
            return Ok(None);
        }
        let before = Usage::of(pids)?;
        Ok(Some(Self { pids: pids.to_vec(), before, peak_rss_bytes: before.rss_bytes }))
    }

    /// To be called from time to time: the highest memory of the run is the highest that was seen.
    pub(crate) fn look(&mut self) {
        if let Ok(now) = Usage::of(&self.pids) {
            self.peak_rss_bytes = self.peak_rss_bytes.max(now.rss_bytes);
        }
    }

    /// What was used since the start, with `messages` and their bytes as what it was used for.
    pub(crate) fn report(&mut self, messages: u64, payload_bytes: u64) -> io::Result<Value> {
        self.look();
        let now = Usage::of(&self.pids)?;
        let cpu_s = now.cpu_s - self.before.cpu_s;
        let written = now.written_bytes.saturating_sub(self.before.written_bytes);
        let ratio = |a: f64, b: f64| if b > 0.0 { json!(a / b) } else { Value::Null };
        Ok(json!({
            "pids": self.pids,
            "cpu_s": cpu_s,
            "messages_per_cpu_s": ratio(messages as f64, cpu_s),
            "rss_before_bytes": self.before.rss_bytes,
            "rss_peak_bytes": self.peak_rss_bytes,
            "rss_bytes": now.rss_bytes,
            "rss_highest_bytes": now.rss_highest_bytes,
            "written_bytes": written,
            "written_per_payload_byte": ratio(written as f64, payload_bytes as f64),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_and_spaces_do_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 41 1 0 0 20 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("7 (a"), None);
    }

    #[test]
    fn this_process_has_memory_and_none_has_number_0() {
        assert!(Usage::of(&[std::process::id()]).expect("it runs").rss_bytes > 0);
        assert!(Usage::of(&[0]).is_err());
    }
}
