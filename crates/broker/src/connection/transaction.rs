//! A transaction of a channel (`tx` class): what was published and settled since the last commit or rollback.

use bytes::Bytes;
use queue::Outcome;

use super::routes::Route;
use super::unacked::Unacked;
use std::sync::Arc;

/// A publish that waits for the commit. It was routed when it came; its bytes count in the node's message memory.
#[derive(Debug)]
pub(crate) struct HeldPublish {
    pub(crate) message: Bytes,
    pub(crate) envelope_bytes: u16,
    pub(crate) properties_bytes: u32,
    pub(crate) mandatory: bool,
    pub(crate) route: Arc<Route>,
}

/// What a commit carries out.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) publishes: Vec<HeldPublish>,
    pub(crate) settled: Vec<(Outcome, Vec<Unacked>)>,
}
