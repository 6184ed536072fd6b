//! A virtual host: its topology behind a lock, and a version that tells without the lock whether a cached route still holds.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::topology::Topology;

/// A virtual host.
#[derive(Debug)]
pub(crate) struct Vhost {
    name: Box<str>,
    topology: RwLock<Topology>,
    version: AtomicU64,
}

impl Vhost {
    pub(crate) fn new(name: &str) -> Self {
        let topology = Topology::new(name);
        let version = AtomicU64::new(topology.version());
        Self { name: name.into(), topology: RwLock::new(topology), version }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Goes up with every change of the topology.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Topology> {
        self.topology.read()
    }

    /// Changes the topology. Whoever sees the new version sees the change.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        let mut topology = self.topology.write();
        let result = change(&mut topology);
        self.version.store(topology.version(), Ordering::Release);
        result
    }
}
