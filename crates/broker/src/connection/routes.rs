//! Where messages go: routes as a connection keeps them, so that a run of publishes with the same exchange and key is routed once.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use queue::{Overflow, QueueId, Targets};
use rustc_hash::FxHasher;

use crate::topology::QueueRecord;

/// Routes a connection keeps. A publisher rarely uses more exchange and key pairs in turn; RPC replies use one each.
const CACHED_ROUTES: usize = 16;

/// The queues of a message, by shard. Empty: it reaches none.
#[derive(Debug, Default)]
pub(crate) struct Route {
    pub(crate) shards: Vec<(u32, Targets)>,
    /// One of the queues refuses messages when it is full.
    pub(crate) may_refuse: bool,
}

impl Route {
    /// Groups queues by the shard that owns them.
    pub(crate) fn to(queues: &[Arc<QueueRecord>]) -> Self {
        let may_refuse = queues.iter().any(|queue| queue.settings.overflow.is_some_and(|it| it != Overflow::DropHead));
        if let [queue] = queues {
            return Self { shards: vec![(queue.shard, Targets::One(queue.id))], may_refuse };
        }
        let mut shards: BTreeMap<u32, Vec<QueueId>> = BTreeMap::new();
        for queue in queues {
            shards.entry(queue.shard).or_default().push(queue.id);
        }
        let shards = shards
            .into_iter()
            .map(|(shard, queues)| match queues.as_slice() {
                [queue] => (shard, Targets::One(*queue)),
                _ => (shard, Targets::Many(queues.into())),
            })
            .collect();
        Self { shards, may_refuse }
    }
}

/// What a cached route depends on: it holds while both are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) topology: u64,
    pub(crate) access: u64,
}

#[derive(Debug)]
struct Entry {
    envelope: Box<[u8]>,
    versions: Versions,
    route: Arc<Route>,
}

/// Routes by envelope.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    entries: Vec<Option<Entry>>,
}

impl RouteCache {
    pub(crate) fn get(&self, envelope: &[u8], versions: Versions) -> Option<&Arc<Route>> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = self.entries[place(envelope)].as_ref()?;
        (entry.versions == versions && *entry.envelope == *envelope).then_some(&entry.route)
    }

    pub(crate) fn put(&mut self, envelope: &[u8], versions: Versions, route: Arc<Route>) {
        if self.entries.is_empty() {
            self.entries.resize_with(CACHED_ROUTES, || None);
        }
        self.entries[place(envelope)] = Some(Entry { envelope: envelope.into(), versions, route });
    }
}

fn place(envelope: &[u8]) -> usize {
    let hash = BuildHasherDefault::<FxHasher>::default().hash_one(envelope);
    usize::try_from(hash >> 32).expect("32 bits fit") % CACHED_ROUTES
}
