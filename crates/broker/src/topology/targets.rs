//! Where a routing key leads: the queues and exchanges bound at one place of a routing table.

use std::collections::BTreeMap;
use std::sync::Arc;

use queue::QueueId;

use super::exchange::ExchangeId;
use super::queue_record::QueueRecord;
use super::route::Found;
use super::unique::Keyed;

/// Up to this many queues are kept in a sorted vector: most places lead to one queue, and a tree for one is 20 times as
/// large. Beyond, a tree, so that a fan-out to 100,000 queues can be taken apart one by one.
const FEW: usize = 32;

/// One end of a binding.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Queue(Arc<QueueRecord>),
    Exchange(ExchangeId),
}

impl Keyed for Arc<QueueRecord> {
    fn key(&self) -> u64 {
        self.id.0
    }
}

impl Keyed for ExchangeId {
    fn key(&self) -> u64 {
        u64::from(self.0)
    }
}

/// Queues and exchanges, each with the number of bindings that lead to it from here (bindings may differ by arguments
/// alone). Walked in the order in which the queues were created.
#[derive(Debug, Default)]
pub(super) struct Targets {
    queues: Members,
    exchanges: BTreeMap<ExchangeId, u32>,
}

#[derive(Debug)]
enum Members {
    Few(Vec<Member>),
    Many(BTreeMap<QueueId, Member>),
}

#[derive(Debug)]
struct Member {
    record: Arc<QueueRecord>,
    bindings: u32,
}

impl Default for Members {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Members {
    fn add(&mut self, record: &Arc<QueueRecord>) {
        let new = || Member { record: Arc::clone(record), bindings: 1 };
        match self {
            Self::Few(few) => match few.binary_search_by_key(&record.id, |member| member.record.id) {
                Ok(at) => few[at].bindings += 1,
                Err(at) if few.len() < FEW => {
                    if few.is_empty() {
                        few.reserve_exact(1);
                    }
                    few.insert(at, new());
                }
                Err(_) => {
                    let mut many: BTreeMap<_, _> = few.drain(..).map(|member| (member.record.id, member)).collect();
                    many.insert(record.id, new());
                    *self = Self::Many(many);
                }
            },
            Self::Many(many) => {
                many.entry(record.id).and_modify(|member| member.bindings += 1).or_insert_with(new);
            }
        }
    }

    fn remove(&mut self, id: QueueId) {
        match self {
            Self::Few(few) => {
                let at = few.binary_search_by_key(&id, |member| member.record.id).expect(BOUND);
                few[at].bindings -= 1;
                if few[at].bindings == 0 {
                    few.remove(at);
                }
            }
            Self::Many(many) => {
                let member = many.get_mut(&id).expect(BOUND);
                member.bindings -= 1;
                if member.bindings == 0 {
                    many.remove(&id);
                }
                if many.is_empty() {
                    *self = Self::default();
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }
}

const BOUND: &str = "a binding that is removed from a routing table was added to it";

impl Targets {
    /// Notes one more binding to the target.
    pub(super) fn add(&mut self, target: &Target) {
        match target {
            Target::Queue(record) => self.queues.add(record),
            Target::Exchange(id) => *self.exchanges.entry(*id).or_insert(0) += 1,
        }
    }

    /// Notes one binding less to the target.
    pub(super) fn remove(&mut self, target: &Target) {
        match target {
            Target::Queue(record) => self.queues.remove(record.id),
            Target::Exchange(id) => {
                let bindings = self.exchanges.get_mut(id).expect(BOUND);
                *bindings -= 1;
                if *bindings == 0 {
                    self.exchanges.remove(id);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.exchanges.is_empty()
    }

    /// Adds all targets to what was found; true when there is at least one.
    pub(super) fn collect(&self, found: &mut Found) -> bool {
        match &self.queues {
            Members::Few(few) => found.queues.insert_distinct(few.iter().map(|member| &member.record)),
            Members::Many(many) => found.queues.insert_distinct(many.values().map(|member| &member.record)),
        }
        self.exchanges.keys().for_each(|id| {
            found.exchanges.insert(id);
        });
        !self.is_empty()
    }
}
