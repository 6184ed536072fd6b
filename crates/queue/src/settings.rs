//! How a queue behaves: what it was declared with and what policies add.

/// How a queue behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The queue goes when its last consumer goes.
    pub auto_delete: bool,
    /// Only one consumer at a time gets messages; the next one takes over when it goes.
    pub single_active_consumer: bool,
    /// Messages leave only by [`Machine::remove`](crate::Machine::remove), after the removal is in the log; what is to be removed
    /// is in the journal.
    pub durable: bool,
    /// Whatever bounds time, length or attempts, or orders by priority. Most queues have none of it.
    pub rules: Option<Box<Rules>>,
}

/// What only some queues have. `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Messages expire after this many milliseconds in the queue.
    pub message_ttl_ms: Option<u32>,
    /// The queue goes after this many milliseconds without use.
    pub expires_ms: Option<u64>,
    /// A declare is no use of it.
    pub expires_though_declared: bool,
    /// At most this many ready messages.
    pub max_length: Option<u64>,
    /// At most this many bytes in the bodies of ready messages.
    pub max_length_bytes: Option<u64>,
    /// What happens beyond these.
    pub overflow: Overflow,
    /// Messages that are refused, expired or too many are to be published elsewhere.
    pub dead_letters: bool,
    /// A message that comes back more often than this goes.
    pub delivery_limit: Option<u32>,
    /// Messages have priorities from 0 to this; what is above counts as this.
    pub max_priority: Option<u8>,
}

/// What happens when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The oldest ready messages go.
    #[default]
    DropHead,
    /// New messages are refused.
    RejectPublish,
    /// New messages are refused and dead-lettered.
    RejectPublishDlx,
}

impl Settings {
    pub(crate) fn rule<T>(&self, get: impl FnOnce(&Rules) -> Option<T>) -> Option<T> {
        self.rules.as_deref().and_then(get)
    }

    pub(crate) fn dead_letters(&self) -> bool {
        self.rules.as_deref().is_some_and(|rules| rules.dead_letters)
    }

    /// Whether new messages are refused when it is full.
    pub(crate) fn refuses_publishes(&self) -> bool {
        let refuses = |rules: &Rules| {
            rules.overflow != Overflow::DropHead && (rules.max_length.is_some() || rules.max_length_bytes.is_some())
        };
        self.rules.as_deref().is_some_and(refuses)
    }

    /// Whether a queue with these needs more than delivering: [`Upkeep`](crate::upkeep::Upkeep). What is counted at a return only needs none.
    pub(crate) fn need_upkeep(&self) -> bool {
        self.rules.as_deref().is_some_and(|rules| {
            rules.message_ttl_ms.is_some()
                || rules.expires_ms.is_some()
                || rules.max_length.is_some()
                || rules.max_length_bytes.is_some()
                || rules.dead_letters
                || rules.max_priority.is_some()
        })
    }
}
