//! What a node may use, and how patient it is.

use std::time::Duration;

/// The settings of a node's consensus. All nodes of a cluster should have the same timings: a leader's lease relies on its
/// followers to be as patient as it is itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// The unit of raft's clock. 50 ms: an idle node does nothing else than look at its groups twenty times per second.
    pub tick: Duration,
    /// Ticks of silence after which a follower may stand for election: a second, with ticks of 50 ms. A group waits between
    /// one and two times this long.
    pub election_ticks: u32,
    /// Ticks between heartbeats. Far below the election timeout, so that lost ones do not matter.
    pub heartbeat_ticks: u32,
    /// Largest payload of an entry in bytes. Larger ones are refused; the log could not hold what is much larger.
    pub max_entry_bytes: usize,
    /// An append message is filled up to here, so that a heartbeat need not wait long behind one.
    pub append_bytes: u64,
    /// Append messages that a follower may have unanswered. With [`Config::append_bytes`] the limit of bytes in flight to
    /// each follower and group: 16 MiB.
    pub inflight_appends: usize,
    /// Bytes that a leader may have proposed in a group and not committed. Beyond, proposals are refused and publishers wait.
    pub uncommitted_bytes: u64,
    /// Bytes of committed entries that are handed out at once.
    pub handout_bytes: u64,
    /// Bytes of recent entries that a group keeps in memory, so that leaders do not read what they have just written.
    pub cache_bytes: usize,
    /// A write that takes longer than this is a stalled disk: the node hands over what it leads.
    pub stall_after: Duration,
    /// A disk counts as well again when its writes were quick for so long.
    pub recovered_after: Duration,
    /// The preferred leader of a group must have been there for so long before the group moves to it.
    pub balance_after: Duration,
    /// Seed of election timeouts. Each node needs another one; the simulator gives it, the product draws it.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tick: Duration::from_millis(50),
            election_ticks: 20,
            heartbeat_ticks: 3,
            max_entry_bytes: 16 << 20,
            append_bytes: 256 << 10,
            inflight_appends: 64,
            uncommitted_bytes: 64 << 20,
            handout_bytes: 4 << 20,
            cache_bytes: 8 << 20,
            stall_after: Duration::from_millis(500),
            recovered_after: Duration::from_secs(10),
            balance_after: Duration::from_secs(5),
            seed: 0,
        }
    }
}

impl Config {
    /// The least time for which a follower that heard of its leader elects no other.
    pub fn election_timeout(&self) -> Duration {
        self.tick * self.election_ticks
    }

    /// How long a leader may trust a quorum's contact. A follower counts ticks, and the first may come right after it heard
    /// of its leader, so a tick is taken off; a tenth more is for clocks of unlike speed.
    pub fn lease(&self) -> Duration {
        (self.tick * (self.election_ticks - 1)).mul_f64(0.9)
    }
}
