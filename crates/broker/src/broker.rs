//! What all tasks of a node share: virtual hosts, users, shards, connections, alarms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use queue::{Op, QueueId};
use rustc_hash::FxHashMap;

use crate::auth::{AccessControl, Password};
use crate::budget::MessageMemory;
use crate::connection::{ConnectionHandle, DirectReplies, Event};
use crate::mailbox::Mailbox;
use crate::settings::Settings;
use crate::shard::{ShardInput, ShardTask};
use crate::topology::{ConnectionId, Topology};
use crate::vhost::Vhost;

/// How often memory use is looked at. A flood of 400 MB/s grows by 40 MB in that time.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The alarm ends when memory use is below this share (in percent) of the limit: not at the limit itself, or it would flutter.
const MEMORY_ALARM_END_PERCENT: u64 = 95;

/// A broker node.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    vhosts: RwLock<FxHashMap<String, Arc<Vhost>>>,
    access: RwLock<AccessControl>,
    access_version: AtomicU64,
    shards: Vec<Arc<Mailbox<ShardInput>>>,
    connections: Mutex<FxHashMap<u64, Arc<ConnectionHandle>>>,
    direct_replies: Arc<DirectReplies>,
    memory: Arc<MessageMemory>,
    memory_alarm: AtomicBool,
    stopping: AtomicBool,
    next_connection: AtomicU64,
    next_queue: AtomicU64,
}

impl Broker {
    /// Starts a node: its shards run from now on.
    ///
    /// # Errors
    /// When the default user's password or permissions are not valid.
    pub fn start(settings: Settings) -> Result<Arc<Self>, crate::auth::AuthError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = if settings.shards == 0 { cores } else { settings.shards };
        let mut vhosts = FxHashMap::default();
        for name in std::iter::once(&settings.default_vhost).chain(&settings.vhosts) {
            vhosts.insert(name.clone(), Arc::new(Vhost::new(name)));
        }
        let access = Self::first_user(&settings)?;
        let broker = Arc::new(Self {
            access_version: AtomicU64::new(access.version()),
            access: RwLock::new(access),
            vhosts: RwLock::new(vhosts),
            shards: (0..shards).map(|_| Arc::default()).collect(),
            connections: Mutex::default(),
            direct_replies: Arc::default(),
            memory: Arc::default(),
            memory_alarm: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            next_connection: AtomicU64::new(1),
            next_queue: AtomicU64::new(1),
            settings,
        });
        for index in 0..shards {
            tokio::spawn(ShardTask::new(Arc::clone(&broker), index).run());
        }
        tokio::spawn(watch_memory(Arc::clone(&broker)));
        Ok(broker)
    }

    fn first_user(settings: &Settings) -> Result<AccessControl, crate::auth::AuthError> {
        let mut access = AccessControl::new();
        let password = Password::Plain(&settings.default_password);
        access.put_user(&settings.default_user, password, settings.default_user_tags.clone())?;
        let [configure, write, read] = &settings.default_permissions;
        for vhost in std::iter::once(&settings.default_vhost).chain(&settings.vhosts) {
            access.set_permissions(vhost, &settings.default_user, configure, write, read)?;
        }
        access.set_loopback_users(settings.loopback_users.iter().cloned());
        Ok(access)
    }

    /// The node's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the node is on its way down.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// How many connections there are.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.lock().len()
    }

    /// Closes all client connections with `320 CONNECTION_FORCED` and waits until they are gone, at most `patience`.
    pub async fn stop(&self, patience: Duration) {
        self.stopping.store(true, Ordering::Release);
        let handles: Vec<_> = self.connections.lock().values().cloned().collect();
        for handle in handles {
            handle.mailbox.send(Event::Shutdown);
        }
        let deadline = tokio::time::Instant::now() + patience;
        while self.connection_count() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn vhost(&self, name: &str) -> Option<Arc<Vhost>> {
        self.vhosts.read().get(name).cloned()
    }

    pub(crate) fn access(&self) -> parking_lot::RwLockReadGuard<'_, AccessControl> {
        self.access.read()
    }

    /// Goes up with every change of users or permissions.
    pub(crate) fn access_version(&self) -> u64 {
        self.access_version.load(Ordering::Acquire)
    }

    pub(crate) fn memory(&self) -> &Arc<MessageMemory> {
        &self.memory
    }

    /// Who takes direct replies.
    pub(crate) fn direct_replies(&self) -> &Arc<DirectReplies> {
        &self.direct_replies
    }

    /// Whether publishers are to be blocked for want of memory.
    pub(crate) fn memory_alarm(&self) -> bool {
        self.memory_alarm.load(Ordering::Relaxed)
    }

    pub(crate) fn shard_count(&self) -> u32 {
        u32::try_from(self.shards.len()).expect("a handful of shards")
    }

    /// The inbox of a shard.
    pub(crate) fn shard(&self, shard: u32) -> &Mailbox<ShardInput> {
        &self.shards[shard as usize]
    }

    pub(crate) fn shard_inbox(&self, shard: usize) -> Arc<Mailbox<ShardInput>> {
        Arc::clone(&self.shards[shard])
    }

    /// The identity of a new queue, and the shard that will own it.
    pub(crate) fn new_queue(&self) -> (QueueId, u32) {
        let id = self.next_queue.fetch_add(1, Ordering::Relaxed);
        (QueueId(id), u32::try_from(id % u64::from(self.shard_count())).expect("less than the number of shards"))
    }

    pub(crate) fn register(&self, make: impl FnOnce(ConnectionId) -> Arc<ConnectionHandle>) -> Arc<ConnectionHandle> {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let handle = make(ConnectionId(id));
        self.connections.lock().insert(id, Arc::clone(&handle));
        handle
    }

    pub(crate) fn unregister(&self, connection: ConnectionId) {
        self.connections.lock().remove(&connection.0);
    }

    /// A shard's queue is gone: so are its name and bindings.
    pub(crate) fn forget_queue(&self, queue: QueueId) {
        let vhosts: Vec<_> = self.vhosts.read().values().cloned().collect();
        for vhost in vhosts {
            if vhost.change(|topology: &mut Topology| topology.delete_queue(queue)).is_some() {
                return;
            }
        }
    }

    /// Ops that no connection waits for.
    pub(crate) fn send_ops(&self, shard: u32, ops: Vec<Op>) {
        self.shard(shard).send(ShardInput::Ops(ops));
    }

    fn set_memory_alarm(&self, on: bool) {
        if self.memory_alarm.swap(on, Ordering::AcqRel) == on {
            return;
        }
        let limit = self.settings.memory_high_watermark_bytes;
        if on {
            tracing::warn!(limit, "memory alarm: publishers are blocked until memory use is below the limit again");
        } else {
            tracing::info!(limit, "memory alarm cleared");
        }
        let handles: Vec<_> = self.connections.lock().values().cloned().collect();
        for handle in handles {
            handle.mailbox.send(Event::Alarm);
        }
    }
}

/// Raises and clears the memory alarm.
async fn watch_memory(broker: Arc<Broker>) {
    let limit = broker.settings.memory_high_watermark_bytes;
    let mut interval = tokio::time::interval(MEMORY_CHECK_INTERVAL);
    loop {
        interval.tick().await;
        let used = crate::memory::resident_bytes().unwrap_or(0).max(broker.memory.bytes());
        if used > limit {
            broker.set_memory_alarm(true);
        } else if used < limit / 100 * MEMORY_ALARM_END_PERCENT {
            broker.set_memory_alarm(false);
        }
    }
}
