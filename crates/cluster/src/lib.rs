//! How nodes agree: Raft groups over the node's log, the links between nodes, and who takes part.
//!
//! It knows groups, entries and peers, but neither queues nor AMQP, and no runtime: everything here is a plain object that
//! takes what happened and says what is to be done. A driver (a thread of the broker, or the simulator) owns the sockets, the
//! clock and the log's writer. The consensus core itself is the crate `raft`; what it leaves to its user is in `group/`.
//!
//! # The idea
//!
//! A node is a member of a few groups: the metadata's (0) and one for each replicated shard. A group is a log that its
//! members agree on, entry by entry. One member leads: only there an entry can be proposed ([`Node::propose`]). It goes to
//! the followers and to the local disk at the same time, and is *committed* when it is on a majority of disks. Then every
//! member hands it to its user, in the same order ([`Event::Committed`]), with the place where it lies on the local disk.
//! So users that start alike and do the same with each entry stay alike: they are replicas.
//!
//! A leader may *deliver*, which costs no round, while it has the lease ([`Event::Lease`], [`Node::lease_until`]): for so long
//! nobody else can have been elected. `group/lease.rs` says why that is so.
//!
//! # The driver
//!
//! One thread (or task) owns the [`Node`]. It takes all that has come up, calls a method for each, then calls
//! [`Node::turn`] once, and carries out what comes back:
//!
//! | what happened | call |
//! |---|---|
//! | [`Node::deadline`] is reached | [`Node::tick`] |
//! | a link is up, is gone, brought a message | [`Node::link_up`], [`Node::link_down`], [`Node::receive`] |
//! | the log's [`storage::Completion`] | [`Node::written`], [`Node::write_failed`] |
//! | entries of a [`Fetch`] were read, on another thread | [`Node::fetched`] |
//! | the user: an entry, applied up to, a snapshot is stored | [`Node::propose`], [`Node::applied`], [`Node::compact`] |
//!
//! | in [`Outputs`] | what to do |
//! |---|---|
//! | `sends` | into the peer's [`link::Outbox`], in order; what does not fit is dropped |
//! | `events` | to the users of the groups, in order |
//! | `fetches` | [`storage::Log::entries`] on another thread, then [`Node::fetched`] |
//! | `user` | what a peer sent by [`Node::send_user`] |
//!
//! Writes need nothing: the node submits them to the log itself. Time is a `Duration` on a clock that never goes back; the same
//! one for all calls, and for comparing with a lease.
//!
//! # The user of a group
//!
//! `crates/simulator/src/process.rs` is a complete small one. Its life:
//!
//! 1. It loads its state, which is that of index `applied`, and opens the group ([`GroupStart`]). A group of one elects itself at
//!    once.
//! 2. [`Event::Committed`]: apply, then [`Node::applied`]. After a start the entries behind its state come again this way, so there
//!    is no replay of its own.
//! 3. [`Event::Leading`]: everything of earlier terms was handed out before. From now on it decides: it takes proposals, and
//!    delivers while there is a lease. [`Event::Following`]: it stops both, and what it proposed and did not see committed is
//!    somebody else's to decide: clients' batches are sent again to the next leader, and their numbers make them count once.
//! 4. Now and then it stores its state, and lets the log forget ([`Node::compact`]); some entries fewer, so that a
//!    follower that was away for a moment still finds what it missed.
//! 5. [`Event::SnapshotWanted`] and what follows: a follower too far behind gets the state itself, in pieces. The receiver stores
//!    it *beside* its own, and takes it into use at [`Event::SnapshotInstalled`]. After a crash between the two the log begins
//!    after the index of what was stored beside: then that is the state to open the group with.
//!
//! ```
//! use std::{path::Path, sync::{Arc, Mutex}, time::Duration};
//! use cluster::{Config, Configuration, Event, GroupStart, MemberId, Node};
//! use storage::{Completion, GroupId, Index, Log, LogOptions, Placed, SimFs, StorageError, Ticket, Written};
//! # use warrenmq_cluster as cluster;
//!
//! /// The log's writer reports here; the driver passes it on.
//! #[derive(Default)]
//! struct Reports(Mutex<Vec<(GroupId, Ticket, Vec<Placed>)>>);
//! impl Completion for Reports {
//!     fn written(&self, written: Written<'_>) {
//!         self.0.lock().unwrap().push((written.group, written.up_to, written.placed.to_vec()));
//!     }
//!     fn failed(&self, _: GroupId, _: Ticket, error: &StorageError) {
//!         panic!("{error}");
//!     }
//! }
//!
//! let identity = storage::Identity { node: [7; 16], cluster: [0; 16] };
//! let reports = Arc::new(Reports::default());
//! let completion = Arc::clone(&reports) as Arc<dyn Completion>;
//! let disk = Arc::new(SimFs::new(1));
//! let (log, mut writer, _) = Log::open(disk, Path::new("log"), identity, LogOptions::default(), completion)?;
//!
//! // A node that is alone: a group of one.
//! let (me, group, mut now) = (MemberId::of(identity.node), GroupId(0), Duration::ZERO);
//! let bootstrap = Some(Configuration::of_voters([me]));
//! let start = GroupStart { group, applied: Index(0), bootstrap };
//! let mut node = Node::open(me, Config::default(), log, &[start], now)?;
//!
//! let mut applied = Vec::new();
//! while applied.is_empty() {
//!     now += Duration::from_millis(1);
//!     node.tick(now);
//!     for (group, event) in node.turn(now).events {
//!         match event {
//!             Event::Leading { .. } => _ = node.propose(group, bytes::Bytes::from_static(b"hello")).unwrap(),
//!             Event::Committed { entries, up_to } => {
//!                 applied.extend(entries.into_iter().map(|entry| entry.payload));
//!                 node.applied(group, up_to);
//!             }
//!             _ => {}
//!         }
//!     }
//!     // In the product a thread of its own.
//!     writer.turn();
//!     for (group, up_to, placed) in std::mem::take(&mut *reports.0.lock().unwrap()) {
//!         node.written(group, up_to, &placed);
//!     }
//! }
//! assert_eq!(applied, ["hello"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who takes part
//!
//! A member is a data directory: its id comes from the UUID in there ([`MemberId::of`]). Whoever lost its disk is somebody
//! else. [`Node::set_members`] says who should vote in a group; the group's leader makes it so, new members learning first. A
//! member whose log lost what it had acknowledged is found out ([`ClusterError::LogShortened`], [`Fault::LostLog`]) and must not
//! go on: it comes back empty, as a new member.
//!
//! # What is not here
//!
//! Sockets and tasks; which group a queue belongs to; how batches are forwarded to a leader (`user` messages are the way); the
//! contents of snapshots.

mod config;
mod error;
mod event;
pub mod formation;
mod group;
mod input;
pub mod link;
mod logger;
mod member;
mod node;
pub mod wire;

pub use config::Config;
pub use error::{ClusterError, ProposeError};
pub use event::{Committed, Event, Fault, Proposed, SnapshotId};
#[doc(hidden)]
pub use group::fuzz_records;
pub use group::{Fetch, GroupStart};
pub use input::Malformed;
pub use member::{Configuration, ConfigurationChange, MAX_MEMBERS, MemberChange, MemberId};
pub use node::{GroupView, Node, Outputs};
