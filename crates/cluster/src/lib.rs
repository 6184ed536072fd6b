//! (to be written)

mod config;
mod error;
mod event;
pub mod group;
mod input;
mod logger;
pub mod member;
mod node;
pub mod wire;

pub use config::Config;
pub use error::{ClusterError, ProposeError};
pub use event::{Committed, Event, Fault, Proposed, SnapshotId};
pub use group::{Fetch, GroupStart};
pub use input::Malformed;
pub use node::{GroupView, Node, Outputs};
pub use member::{Configuration, ConfigurationChange, MemberChange, MemberId};
