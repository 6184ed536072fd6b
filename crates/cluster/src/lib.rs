//! (to be written)

mod config;
mod error;
mod event;
pub mod group;
mod input;
pub mod link;
mod logger;
pub mod member;
mod node;
pub mod wire;

pub use config::Config;
pub use error::{ClusterError, ProposeError};
pub use event::{Committed, Event, Fault, Proposed, SnapshotId};
pub use group::{Fetch, GroupStart};
pub use input::Malformed;
pub use member::{Configuration, ConfigurationChange, MemberChange, MemberId};
pub use node::{GroupView, Node, Outputs};
