//! What all tasks of a node share: virtual hosts, users, shards, connections, alarms.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::{Exception, MethodId, ReplyCode};
use parking_lot::Mutex;
use queue::{Letter, Op, QueueId};
use rustc_hash::FxHashMap;
use storage::{Admission as LogAdmission, LogOptions, StorageError, Verify};

use crate::auth::{AccessControl, Password};
use crate::budget::MessageMemory;
use crate::connection::{ConnectionHandle, ConnectionInfo, DirectReplies, Event};
use crate::directory::Directory;
use crate::durable::{self, DurableShardTask, LogKeeper};
use crate::letters::{self, Postman};
use crate::mailbox::Mailbox;
use crate::metadata::{self, AdminOp, Change, Consequences, Gone, Metadata, RecoveredQueues, VhostInfo};
use crate::settings::Settings;
use crate::shard::{ShardInput, ShardTask};
use crate::store::Store;
use crate::topology::{ConnectionId, QueueRecord, Topology};
use crate::vhost::Vhost;

/// How often memory use and free space are looked at. A flood of 400 MB/s grows by 40 MB in that time.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Set in the ids of queues in memory, so that they never meet those of durable queues, which come from the metadata's log.
const LOCAL_QUEUE: u64 = 1 << 63;
/// A reserve file is one part in so many of an ordinary one: it takes acknowledgements and removals only.
const RESERVE_SHARE: u32 = 8;
/// The log may be so many files larger than twice what is alive in it: below that, letting go of entries costs more than it frees. Two files:
/// the one that is written, and the one before it.
const LOG_SLACK_FILES: u64 = 2;
/// The alarm ends when memory use is below this share (in percent) of the limit: not at the limit itself, or it would flutter.
const MEMORY_ALARM_END_PERCENT: u64 = 95;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory cannot be used as it is.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The durable exchanges, queues and bindings cannot be recovered.
    #[error(transparent)]
    Metadata(#[from] metadata::RecoveryError),
    /// The first user cannot be made as configured.
    #[error("the default user: {0}")]
    FirstUser(#[from] crate::auth::AuthError),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A broker node.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    directory: Directory,
    /// Inboxes of the local shards, then of the durable ones.
    shards: Vec<Arc<Mailbox<ShardInput>>>,
    local_shards: u32,
    store: Store,
    metadata: Arc<Mailbox<metadata::Input>>,
    recovered_queues: Mutex<RecoveredQueues>,
    connections: Mutex<FxHashMap<u64, Arc<ConnectionHandle>>>,
    direct_replies: Arc<DirectReplies>,
    /// Bounded by what each queue may have on its way.
    letters: Arc<Mailbox<letters::Due>>,
    memory: Arc<MessageMemory>,
    /// Bytes of durable messages that are in memory.
    pub(crate) bodies: AtomicU64,
    log_failed: AtomicBool,
    memory_alarm: AtomicBool,
    disk_alarm: AtomicBool,
    stopping: AtomicBool,
    next_connection: AtomicU64,
    next_queue: AtomicU64,
    started_at: Instant,
}

impl Broker {
    /// Starts a node: its shards run from now on.
    ///
    /// # Errors
    /// A data directory that cannot be opened; a default user whose password or permissions are not valid.
    pub fn start(settings: Settings) -> Result<Arc<Self>, StartError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let local_shards = u32::try_from(if settings.shards == 0 { cores } else { settings.shards }).unwrap_or(1);
        let shards = local_shards + settings.durable_shards;
        let (store, writer, _recovered) = Store::open(&settings.data_dir, log_options(&settings))?;
        let metadata: Arc<Mailbox<metadata::Input>> = Arc::default();
        let directory = Directory::new(Arc::clone(&metadata), &settings.loopback_users);
        let durable_shards = settings.durable_shards;
        let (log, snapshots) = (store.log(), store.snapshots());
        let accept_damage = settings.accept_damage;
        let recovered = metadata::recover(log, snapshots, &directory, local_shards, durable_shards, accept_damage)?;
        let recovered_queues = metadata::recovered_queues(&directory, local_shards, durable_shards);
        let is_first = directory.is_new() && !settings.begins_empty;
        let first_changes = if is_first { first_changes(&settings, &directory)? } else { Vec::new() };
        // Clients can connect as soon as this returns. When the log has the changes they are applied again, which changes nothing.
        metadata::apply_early(&directory, &first_changes);
        let broker = Arc::new(Self {
            directory,
            shards: (0..shards).map(|_| Arc::default()).collect(),
            local_shards,
            store,
            metadata,
            recovered_queues: Mutex::new(recovered_queues),
            connections: Mutex::default(),
            direct_replies: Arc::default(),
            letters: Arc::default(),
            memory: Arc::default(),
            bodies: AtomicU64::new(0),
            log_failed: AtomicBool::new(false),
            memory_alarm: AtomicBool::new(false),
            disk_alarm: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            next_connection: AtomicU64::new(1),
            next_queue: AtomicU64::new(1),
            started_at: Instant::now(),
            settings,
        });
        tokio::spawn(Metadata::new(Arc::clone(&broker), recovered).run());
        for index in 0..local_shards {
            tokio::spawn(ShardTask::new(Arc::clone(&broker), index as usize).run());
        }
        for (durable_shard, recovered) in (0..).zip(broker.recover_durable_shards()?) {
            tokio::spawn(DurableShardTask::new(Arc::clone(&broker), durable_shard, recovered).run());
            if accept_damage {
                // Without what is lost: the next start need not accept it again.
                broker.shard(broker.durable_shard(durable_shard)).send(ShardInput::MakeSnapshot);
            }
        }
        broker.store.log().accounting_complete();
        // All at once, so that they are one entry: a node that loses power meanwhile has all of them or is still a new one.
        let as_input = |change| metadata::Input::Change { change, asker: None };
        broker.metadata.send_all(&mut first_changes.into_iter().map(as_input).collect());
        broker.store.start(writer)?;
        tokio::spawn(watch(Arc::clone(&broker)));
        tokio::spawn(Postman::new(Arc::clone(&broker)).run());
        tokio::spawn(LogKeeper::new(Arc::clone(&broker)).run());
        Ok(broker)
    }

    /// Each on a thread of its own: what one waits for the disk, others compute.
    fn recover_durable_shards(&self) -> Result<Vec<durable::Recovered>, StorageError> {
        std::thread::scope(|scope| {
            let shards = (0..self.settings.durable_shards).map(|durable_shard| {
                let queues = self.take_recovered_queues(durable_shard);
                scope.spawn(move || durable::recover(&self.store, durable_shard, queues))
            });
            let shards: Vec<_> = shards.collect();
            shards
                .into_iter()
                .map(|shard| shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// The node's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// For how long the node has run.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Whether memory, and disk space, are short.
    pub(crate) fn alarms(&self) -> [(&'static str, bool); 2] {
        [("memory", &self.memory_alarm), ("disk", &self.disk_alarm)]
            .map(|(name, alarm)| (name, alarm.load(Ordering::Relaxed)))
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

    /// Writes what the durable shards still have for the log, and closes it. Comes last: nothing durable works after it.
    pub async fn close(self: &Arc<Self>) {
        let flushed: Vec<_> = (0..self.settings.durable_shards)
            .map(|durable_shard| {
                let (done, flushed) = tokio::sync::oneshot::channel();
                self.shard(self.durable_shard(durable_shard)).send(ShardInput::Flush(done));
                flushed
            })
            .collect();
        for flushed in flushed {
            // A shard that is gone has nothing left to write.
            let _ = flushed.await;
        }
        let broker = Arc::clone(self);
        if tokio::task::spawn_blocking(move || broker.store.close()).await.is_err() {
            tracing::error!("the log could not be closed in order");
        }
    }

    /// Virtual hosts, users, permissions and parameters.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn vhost(&self, name: &str) -> Option<Arc<Vhost>> {
        self.directory.vhost(name)
    }

    /// The inbox of the metadata.
    pub(crate) fn metadata(&self) -> &Arc<Mailbox<metadata::Input>> {
        &self.metadata
    }

    /// The queues that a durable shard had before the restart, once.
    pub(crate) fn take_recovered_queues(&self, durable_shard: u32) -> Vec<(QueueId, queue::Settings)> {
        std::mem::take(&mut self.recovered_queues.lock()[durable_shard as usize])
    }

    pub(crate) fn access(&self) -> parking_lot::RwLockReadGuard<'_, AccessControl> {
        self.directory.access()
    }

    /// Goes up with every change of users or permissions.
    pub(crate) fn access_version(&self) -> u64 {
        self.directory.access_version()
    }

    pub(crate) fn memory(&self) -> &Arc<MessageMemory> {
        &self.memory
    }

    /// Whether a durable message that comes now may stay in memory.
    pub(crate) fn has_room_for_bodies(&self) -> bool {
        self.bodies.load(Ordering::Relaxed) < self.settings.body_budget_bytes
    }

    /// The log takes no more: nothing durable can be promised until the node is started again.
    pub(crate) fn log_failed(&self) {
        if !self.log_failed.swap(true, Ordering::AcqRel) {
            self.check_disk();
        }
    }

    /// Who takes direct replies.
    pub(crate) fn direct_replies(&self) -> &Arc<DirectReplies> {
        &self.direct_replies
    }

    /// Whether publishers are to be blocked.
    #[inline]
    pub(crate) fn is_alarmed(&self) -> bool {
        self.memory_alarm.load(Ordering::Relaxed) || self.disk_alarm.load(Ordering::Relaxed)
    }

    /// Why publishers are blocked, in RabbitMQ's words; `None` when they are not.
    pub(crate) fn alarm_reason(&self) -> Option<&'static str> {
        match (self.memory_alarm.load(Ordering::Relaxed), self.disk_alarm.load(Ordering::Relaxed)) {
            (false, false) => None,
            (true, false) => Some("low on memory"),
            (false, true) => Some("low on disk"),
            (true, true) => Some("low on memory & low on disk"),
        }
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

    /// The line of dead letters.
    pub(crate) fn letters(&self) -> Arc<Mailbox<letters::Due>> {
        Arc::clone(&self.letters)
    }

    /// A message leaves a queue of this shard as a dead letter.
    pub(crate) fn post(&self, shard: u32, letter: Letter) {
        self.letters.send(letters::Due { shard, letter });
    }

    /// The virtual host that a queue is in.
    pub(crate) fn vhost_of(&self, queue: QueueId) -> Option<Arc<Vhost>> {
        self.directory.vhosts().into_iter().find(|vhost| vhost.read().find_queue_by_id(queue).is_some())
    }

    /// The identity of a new queue in memory, and the shard that will own it.
    pub(crate) fn new_local_queue(&self) -> (QueueId, u32) {
        let id = self.next_queue.fetch_add(1, Ordering::Relaxed);
        (QueueId(LOCAL_QUEUE | id), u32::try_from(id % u64::from(self.local_shards)).expect("less than the shards"))
    }

    /// The place of a durable shard among all shards.
    pub(crate) fn durable_shard(&self, durable_shard: u32) -> u32 {
        self.local_shards + durable_shard
    }

    /// Shards of queues in memory; they come first among all shards.
    pub(crate) fn local_shard_count(&self) -> u32 {
        self.local_shards
    }

    /// Whether a shard, counted among all, is a durable one.
    pub(crate) fn is_durable(&self, shard: u32) -> bool {
        shard >= self.local_shards
    }

    /// The open data directory.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn register(&self, make: impl FnOnce(ConnectionId) -> Arc<ConnectionHandle>) -> Arc<ConnectionHandle> {
        let id = self.new_connection_id();
        let handle = make(id);
        self.connections.lock().insert(id.0, Arc::clone(&handle));
        handle
    }

    pub(crate) fn unregister(&self, connection: ConnectionId) {
        self.connections.lock().remove(&connection.0);
    }

    /// A shard's queue is gone: so are its name and bindings, at once or, if it was durable, as soon as that is in the log. Whoever has
    /// to know waits with [`metadata::Input::Barrier`].
    pub(crate) fn forget_queue(&self, queue: QueueId) {
        if is_durable(queue) {
            if let Some(vhost) = self.vhost_of(queue) {
                let op = metadata::Op::DeleteQueue { id: queue };
                let change = Change { vhost: vhost.name().into(), op };
                self.metadata.send(metadata::Input::Change { change, asker: None });
            }
            return;
        }
        for vhost in self.directory.vhosts() {
            if vhost.change(|topology: &mut Topology| topology.delete_queue(queue)).is_some() {
                return;
            }
        }
    }

    /// Does what is to be done because of a change of the directory.
    pub(crate) fn carry_out(&self, consequences: Consequences) {
        let Consequences { orphans, gone, settings } = consequences;
        for (shard, queue) in orphans {
            self.send_ops(shard, vec![Op::Delete { queue, if_unused: false, if_empty: false, token: None }]);
        }
        if let Some(gone) = gone {
            self.close_connections(&gone.to_string(), |info| match &gone {
                Gone::Vhost(name) => *info.vhost == **name,
                Gone::User(name) => *info.user == **name,
            });
        }
        for record in settings {
            self.queue_settings_changed(&record);
        }
    }

    /// A policy changed what counts for a queue: the one place from which its shard hears of it.
    fn queue_settings_changed(&self, record: &QueueRecord) {
        let configure = Op::Configure { queue: record.id, settings: record.machine_settings() };
        self.send_ops(record.shard, vec![configure]);
    }

    /// Closes connections with `320 CONNECTION_FORCED` and this text. Answers how many were told.
    pub(crate) fn close_connections(&self, text: &str, is_meant: impl Fn(&ConnectionInfo) -> bool) -> usize {
        let handles: Vec<_> = self.connections.lock().values().cloned().collect();
        let meant = handles.into_iter().filter(|handle| handle.info.get().is_some_and(&is_meant));
        let text: Arc<str> = text.into();
        meant.map(|handle| handle.mailbox.send(Event::Close(Arc::clone(&text)))).count()
    }

    /// All connections, by number.
    pub(crate) fn connections(&self) -> Vec<Arc<ConnectionHandle>> {
        let mut handles: Vec<_> = self.connections.lock().values().cloned().collect();
        handles.sort_unstable_by_key(|handle| handle.id);
        handles
    }

    /// Opens a connection, as far as limits allow.
    ///
    /// # Errors
    /// 530 when the limit of the virtual host or of the user is reached.
    pub(crate) fn admit_connection(&self, handle: &ConnectionHandle, info: ConnectionInfo) -> Result<(), Exception> {
        let refuse = |text: String| Err(Exception::new(ReplyCode::NotAllowed, text, MethodId::CONNECTION_OPEN));
        // Under the lock, so that two who come at the same time are counted one after the other.
        let connections = self.connections.lock();
        let count = |is_same: &dyn Fn(&ConnectionInfo) -> bool| {
            let open = connections.values().filter(|other| other.info.get().is_some_and(is_same)).count();
            u64::try_from(open).expect("a count of connections")
        };
        let (vhost, user) = (&*info.vhost, &*info.user);
        let vhost_limit = self.vhost(vhost).and_then(|vhost| vhost.limits().max_connections);
        if let Some(limit) = vhost_limit
            && count(&|other| *other.vhost == *vhost) >= limit
        {
            return refuse(format!(
                "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            ));
        }
        if let Some(limit) = self.directory.user_limits(user).max_connections
            && count(&|other| *other.user == *user) >= limit
        {
            return refuse(format!("connection refused for user '{user}': user connection limit ({limit}) is reached"));
        }
        let set = handle.info.set(info);
        debug_assert!(set.is_ok(), "a connection opens once");
        Ok(())
    }

    /// Whether a user may open another channel; its own connection counts it then.
    ///
    /// # Errors
    /// 530 when its limit is reached.
    pub(crate) fn admit_channel(&self, user: &str) -> Result<(), Exception> {
        let Some(limit) = self.directory.user_limits(user).max_channels else { return Ok(()) };
        let connections = self.connections.lock();
        let of_user = connections.values().filter(|handle| handle.info.get().is_some_and(|info| *info.user == *user));
        let open: u64 = of_user.map(|handle| u64::from(handle.channels.load(Ordering::Relaxed))).sum();
        if open < limit {
            return Ok(());
        }
        let text = format!(
            "number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
        );
        Err(Exception::new(ReplyCode::NotAllowed, text, MethodId::NONE))
    }

    /// A number that no connection has: for who asks shards on behalf of an operator.
    pub(crate) fn new_connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Ops that no connection waits for.
    pub(crate) fn send_ops(&self, shard: u32, ops: Vec<Op>) {
        self.shard(shard).send(ShardInput::Ops(ops));
    }

    /// Publishers are blocked while there is little space left, or none that the log could use.
    fn check_disk(&self) {
        let limit = self.settings.disk_free_limit_bytes;
        let free = self.store.fs().free_bytes(self.store.dir()).unwrap_or(u64::MAX);
        let refused = self.log_failed.load(Ordering::Acquire) || self.store.log().admission() != LogAdmission::Open;
        self.set_alarm(&self.disk_alarm, free < limit || refused, "disk", limit);
    }

    /// Raises or clears an alarm, and has all connections look when it changed.
    fn set_alarm(&self, alarm: &AtomicBool, on: bool, resource: &str, limit_bytes: u64) {
        if alarm.swap(on, Ordering::AcqRel) == on {
            return;
        }
        if on {
            tracing::warn!(resource, limit_bytes, "alarm: publishers are blocked until there is enough again");
        } else {
            tracing::info!(resource, limit_bytes, "alarm cleared");
        }
        let handles: Vec<_> = self.connections.lock().values().cloned().collect();
        for handle in handles {
            handle.mailbox.send(Event::Alarm);
        }
    }
}

/// What a new node begins with: the virtual hosts, the user and its permissions of the configuration.
fn first_changes(settings: &Settings, directory: &Directory) -> Result<Vec<Change>, crate::auth::AuthError> {
    let mut checked = AccessControl::new();
    let (name, password) = (&settings.default_user, Password::Plain(&settings.default_password));
    checked.put_user(name, password, settings.default_user_tags.clone())?;
    let [configure, write, read] = &settings.default_permissions;
    checked.set_permissions(&settings.default_vhost, name, configure, write, read)?;
    let user = checked.user(name).expect("it was put there");
    let mut changes = Vec::new();
    let mut change = |vhost: &str, op: AdminOp| changes.push(Change { vhost: vhost.into(), op: op.into() });
    change(
        "",
        AdminOp::PutUser { name: name.as_str().into(), password: user.password().cloned(), tags: user.tags().to_vec() },
    );
    // Those of data that was written before virtual hosts were part of it, too.
    let known = directory.vhosts();
    let configured = std::iter::once(&settings.default_vhost).chain(&settings.vhosts).map(String::as_str);
    let vhosts: BTreeSet<&str> = configured.chain(known.iter().map(|vhost| vhost.name())).collect();
    for vhost in vhosts {
        let description = if vhost == settings.default_vhost { "Default virtual host" } else { "" };
        change(vhost, AdminOp::PutVhost(VhostInfo { description: description.into(), ..VhostInfo::default() }));
        change(
            vhost,
            AdminOp::SetPermissions {
                user: name.as_str().into(),
                configure: configure.as_str().into(),
                write: write.as_str().into(),
                read: read.as_str().into(),
            },
        );
    }
    Ok(changes)
}

/// The log as the settings want it.
fn log_options(settings: &Settings) -> LogOptions {
    LogOptions {
        file_bytes: settings.log_file_bytes,
        reserve_bytes: settings.log_file_bytes / RESERVE_SHARE,
        budget_bytes: settings.log_budget_bytes,
        accept_damage: settings.accept_damage,
        // Then the log has to end before whatever is damaged: a replay that passes over an entry would number messages anew.
        verify: if settings.accept_damage { Verify::All } else { Verify::Newest },
        slack_bytes: u64::from(settings.log_file_bytes) * LOG_SLACK_FILES,
        ..LogOptions::default()
    }
}

/// Whether an identity is that of a durable queue.
pub(crate) fn is_durable(queue: QueueId) -> bool {
    queue.0 & LOCAL_QUEUE == 0
}

/// Raises and clears the alarms.
async fn watch(broker: Arc<Broker>) {
    let limit = broker.settings.memory_high_watermark_bytes;
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    loop {
        interval.tick().await;
        let used = crate::memory::resident_bytes().unwrap_or(0).max(broker.memory.bytes());
        if used > limit {
            broker.set_alarm(&broker.memory_alarm, true, "memory", limit);
        } else if used < limit / 100 * MEMORY_ALARM_END_PERCENT {
            broker.set_alarm(&broker.memory_alarm, false, "memory", limit);
        }
        broker.check_disk();
    }
}
