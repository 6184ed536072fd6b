//! The limit on open files: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one. The soft one is low on most systems for the sake of programs that use `select`.
/// A failure is logged: the node runs, with fewer connections.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => tracing::debug!(from = ?limit.current, to = ?limit.maximum, "limit of open files raised"),
        Err(error) => tracing::warn!(limit = ?limit.current, "cannot raise the limit of open files: {error}"),
    }
}
