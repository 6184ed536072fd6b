//! A virtual host: its topology behind a lock, and a version that tells without the lock whether a cached route still holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use queue::QueueId;

use crate::limits::VhostLimits;
use crate::mailbox::Mailbox;
use crate::metadata::{Change, Claims, Input, Op, VhostInfo};
use crate::topology::Topology;

/// A virtual host.
#[derive(Debug)]
pub(crate) struct Vhost {
    name: Box<str>,
    topology: RwLock<Topology>,
    version: AtomicU64,
    claims: Claims,
    metadata: Arc<Mailbox<Input>>,
    /// `None`: of data that knew no virtual hosts.
    info: RwLock<Option<Arc<VhostInfo>>>,
    limits: RwLock<VhostLimits>,
    /// It is deleted: nothing is made in it any more. Set under the topology's lock.
    ended: AtomicBool,
}

impl Vhost {
    /// A new virtual host. Changes of what is durable in it are asked for at `metadata`.
    pub(crate) fn new(name: &str, metadata: Arc<Mailbox<Input>>) -> Self {
        let topology = Topology::new(name);
        let version = AtomicU64::new(topology.version());
        Self {
            name: name.into(),
            topology: RwLock::new(topology),
            version,
            claims: Claims::default(),
            metadata,
            info: RwLock::default(),
            limits: RwLock::default(),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What is known of it.
    pub(crate) fn info(&self) -> Option<Arc<VhostInfo>> {
        self.info.read().clone()
    }

    /// Answers whether that is news.
    pub(crate) fn set_info(&self, info: VhostInfo) -> bool {
        let mut known = self.info.write();
        let is_news = known.as_deref() != Some(&info);
        *known = Some(Arc::new(info));
        is_news
    }

    pub(crate) fn limits(&self) -> VhostLimits {
        *self.limits.read()
    }

    pub(crate) fn set_limits(&self, limits: VhostLimits) {
        *self.limits.write() = limits;
    }

    /// Whether it is deleted. Who makes something in memory looks under the topology's lock.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// It is deleted. Answers the queues that were in it, by shard.
    pub(crate) fn end(&self) -> Vec<(u32, QueueId)> {
        let topology = self.topology.write();
        self.ended.store(true, Ordering::Release);
        topology.queues().map(|queue| (queue.shard, queue.id)).collect()
    }

    /// Goes up with every change of the topology.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Topology> {
        self.topology.read()
    }

    /// Names that changes on their way depend on. Looked at and made under the topology's lock.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Changes what lives in memory only. Whoever sees the new version sees the change. Durable exchanges that are used up by it are on
    /// their way to be deleted when this returns.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        let send = |change| self.metadata.send(Input::Change { change, asker: None });
        self.change_and(change, |used_up| used_up.for_each(send))
    }

    /// Applies a change that is in the log. The deletions of durable exchanges that are used up by it are left to the caller.
    pub(crate) fn apply<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> (R, Vec<Change>) {
        let mut deletions = Vec::new();
        let result = self.change_and(change, |used_up| deletions.extend(used_up));
        (result, deletions)
    }

    /// Applies a change again that is in the log, with all that followed from it.
    pub(crate) fn replay<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        let mut topology = self.topology.write();
        let result = change(&mut topology);
        topology.take_used_up();
        self.version.store(topology.version(), Ordering::Release);
        result
    }

    fn change_and<R>(
        &self,
        change: impl FnOnce(&mut Topology) -> R,
        used_up: impl FnOnce(&mut dyn Iterator<Item = Change>),
    ) -> R {
        let mut topology = self.topology.write();
        let result = change(&mut topology);
        self.version.store(topology.version(), Ordering::Release);
        let exchanges = topology.take_used_up();
        if !exchanges.is_empty() {
            // Still under the lock: nobody binds to an exchange between the loss of its last binding and the claim.
            used_up(&mut exchanges.into_iter().map(|name| {
                let op = Op::DeleteExchange { name, if_unused: true };
                self.claims.make(&op);
                Change { vhost: self.name.clone(), op }
            }));
        }
        result
    }
}
