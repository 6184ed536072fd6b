//! What an operator can ask of a node and change: the one place behind `warrenmq ctl`, definitions and every other interface for administration.
//!
//! An [`Admin`] is a client of the node without a socket. Changes go the way of all changes, through the metadata's log ([`crate::metadata`]), and
//! are on disk when a method returns; counts of queues are asked of their shards, and what is open on connections of the connections, in
//! portions, so that a listing of any length takes bounded room in mailboxes. Listings are JSON objects with the names of RabbitMQ's tools.
//! Who may ask is the caller's to decide.

mod connections;
mod definitions;
mod link;
mod parameters;
mod queues;
mod status;
mod users;
pub mod values;
mod vhosts;

use std::sync::Arc;

use amqp::{Exception, ReplyCode};
use serde_json::{Map, Value};

use self::link::Link;
use crate::broker::Broker;
use crate::metadata::{AdminOp, Applied, Change};

pub use connections::{CHANNEL_FIELDS, CONNECTION_FIELDS, CONSUMER_FIELDS};
pub use definitions::{ImportReport, MAX_DEFINITIONS_BYTES};
pub use queues::{BINDING_FIELDS, EXCHANGE_FIELDS, QUEUE_FIELDS};
pub use vhosts::VHOST_FIELDS;

/// An item of a listing: fields by their names.
pub type Row = Map<String, Value>;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The user is not there.
    #[error("User \"{0}\" does not exist")]
    NoSuchUser(String),
    /// The virtual host is not there.
    #[error("Virtual host '{0}' does not exist")]
    NoSuchVhost(String),
    /// Something else is not there.
    #[error("{0}")]
    NotFound(String),
    /// It is there already.
    #[error("{0}")]
    AlreadyExists(String),
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The state of things forbids it.
    #[error("{0}")]
    Refused(String),
    /// The node cannot answer.
    #[error("{0}")]
    Unavailable(String),
}

impl From<Exception> for AdminError {
    fn from(exception: Exception) -> Self {
        let text = exception.text.to_string();
        match exception.code {
            ReplyCode::NotFound => Self::NotFound(text),
            ReplyCode::PreconditionFailed => Self::Invalid(text),
            ReplyCode::InternalError | ReplyCode::ResourceError => Self::Unavailable(text),
            _ => Self::Refused(text),
        }
    }
}

/// A client for administration.
#[derive(Debug)]
pub struct Admin {
    broker: Arc<Broker>,
    link: Link,
}

impl Admin {
    /// A client of this node.
    #[must_use]
    pub fn new(broker: &Arc<Broker>) -> Self {
        Self { broker: Arc::clone(broker), link: Link::new(broker) }
    }

    /// Has a change of the directory written and applied.
    async fn change(&mut self, vhost: &str, op: AdminOp) -> Result<Applied, AdminError> {
        Ok(self.link.change(Change { vhost: vhost.into(), op: op.into() }).await?)
    }

    fn check_vhost(&self, vhost: &str) -> Result<(), AdminError> {
        match self.broker.vhost(vhost) {
            Some(_) => Ok(()),
            None => Err(AdminError::NoSuchVhost(vhost.to_owned())),
        }
    }

    fn check_user(&self, user: &str) -> Result<(), AdminError> {
        match self.broker.access().user(user) {
            Some(_) => Ok(()),
            None => Err(AdminError::NoSuchUser(user.to_owned())),
        }
    }
}

/// A row of these fields.
fn row<const N: usize>(fields: [(&str, Value); N]) -> Row {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
