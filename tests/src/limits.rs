//! What the tests ask the operating system: file descriptors for thousands of sockets, memory of a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's soft limit of open files, and so that of brokers it starts, to `files` or the hard limit.
/// Returns the limit now in force.
pub fn raise_open_files(files: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let reachable = now.maximum.map_or(files, |maximum| maximum.min(files));
    if now.current.is_some_and(|current| current < reachable) {
        let limit = Rlimit { current: Some(reachable), maximum: now.maximum };
        setrlimit(Resource::Nofile, limit).expect("the soft limit may be raised up to the hard limit");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Resident memory of a process in bytes, from `/proc/PID/status`.
pub fn resident_bytes(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("{path} has no VmRSS line (did the broker end?)")) * 1024
}
