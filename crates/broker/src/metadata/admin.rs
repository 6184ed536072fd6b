//! What a change of virtual hosts, users, permissions or parameters does to the directory.
//!
//! As with topologies: what comes of a change follows from the changes before it alone. What else is to be done because of it (connections to close,
//! queues to delete on their shards) is answered as [`Consequences`], and carried out by the task on a live node only.

use std::sync::Arc;

use amqp::{Exception, MethodId, ReplyCode};
use queue::QueueId;

use super::admin_op::AdminOp;
use super::apply::Applied;
use super::op::{Change, Op};
use crate::auth::AuthError;
use crate::directory::{Directory, USER_LIMITS, VHOST_LIMITS};
use crate::limits::{UserLimits, VhostLimits};
use crate::policy::{Author, OPERATOR_POLICY, POLICY, Policy};
use crate::topology::QueueRecord;
use crate::vhost::Vhost;

/// What is to be done because of a change.
#[derive(Debug, Default)]
pub(crate) struct Consequences {
    /// Queues without a name any more, by shard.
    pub(crate) orphans: Vec<(u32, QueueId)>,
    /// Connections of this virtual host or user are to be closed.
    pub(crate) gone: Option<Gone>,
    /// Queues whose settings a policy changed.
    pub(crate) settings: Vec<Arc<QueueRecord>>,
}

/// What went, and its connections with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// A virtual host.
    Vhost(Box<str>),
    /// A user.
    User(Box<str>),
}

impl std::fmt::Display for Gone {
    /// As RabbitMQ tells the connections.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vhost(name) => write!(f, "vhost '{name}' is deleted"),
            Self::User(name) => write!(f, "user '{name}' is deleted"),
        }
    }
}

/// Applies a change.
///
/// # Errors
/// Something that it refers to is not there, or a value that is not valid. Nothing changed then.
pub(super) fn apply(directory: &Directory, vhost: &str, op: &AdminOp) -> Result<(Applied, Consequences), Exception> {
    let mut consequences = Consequences::default();
    let changed = match op {
        AdminOp::PutVhost(info) => directory.put_vhost(vhost, Some(info.clone())),
        AdminOp::DeleteVhost => match directory.remove_vhost(vhost) {
            Some(found) => {
                directory.change_access(|access| access.delete_vhost(vhost));
                directory.change_parameters(|parameters| parameters.forget_vhost(vhost));
                consequences.orphans = found.end();
                consequences.gone = Some(Gone::Vhost(vhost.into()));
                true
            }
            None => false,
        },
        AdminOp::PutUser { name, password, tags } => {
            let put = directory.change_access(|access| access.put_user_hash(name, password.clone(), tags.clone()));
            put.map_err(|error| refused(&error))?;
            true
        }
        AdminOp::DeleteUser { name } => {
            let deleted = directory.change_access(|access| access.delete_user(name)).is_ok();
            if deleted {
                directory.change_parameters(|parameters| parameters.clear("", USER_LIMITS, name));
                directory.set_user_limits(name, UserLimits::default());
                consequences.gone = Some(Gone::User(name.clone()));
            }
            deleted
        }
        AdminOp::SetPermissions { user, configure, write, read } => {
            find_vhost(directory, vhost)?;
            let set =
                |access: &mut crate::auth::AccessControl| access.set_permissions(vhost, user, configure, write, read);
            directory.change_access(set).map_err(|error| refused(&error))?;
            true
        }
        AdminOp::ClearPermissions { user } => {
            let cleared = directory.change_access(|access| access.clear_permissions(vhost, user));
            cleared.map_err(|error| refused(&error))?;
            true
        }
        AdminOp::SetTopicPermissions { user, exchange, write, read } => {
            find_vhost(directory, vhost)?;
            let set = |access: &mut crate::auth::AccessControl| {
                access.set_topic_permissions(vhost, user, exchange, write, read)
            };
            directory.change_access(set).map_err(|error| refused(&error))?;
            true
        }
        AdminOp::ClearTopicPermissions { user, exchange } => {
            let clear = |access: &mut crate::auth::AccessControl| {
                access.clear_topic_permissions(vhost, user, exchange.as_deref())
            };
            directory.change_access(clear).map_err(|error| refused(&error))?;
            true
        }
        AdminOp::SetParameter { component, name, value } => {
            set_parameter(directory, vhost, component, name, value, &mut consequences)?
        }
        AdminOp::ClearParameter { component, name } => {
            clear_parameter(directory, vhost, component, name, &mut consequences)
        }
    };
    Ok((if changed { Applied::Changed } else { Applied::Unchanged }, consequences))
}

/// Applies changes of the directory before the log has them, on a new node that nobody uses yet.
pub(crate) fn apply_early(directory: &Directory, changes: &[Change]) {
    for change in changes {
        if let Op::Admin(op) = &change.op {
            apply(directory, &change.vhost, op).expect("the first changes were checked");
        }
    }
}

fn set_parameter(
    directory: &Directory,
    vhost: &str,
    component: &str,
    name: &str,
    value: &str,
    consequences: &mut Consequences,
) -> Result<bool, Exception> {
    let value = serde_json::from_str(value).map_err(|error| invalid(error.to_string()))?;
    if !vhost.is_empty() {
        let found = find_vhost(directory, vhost)?;
        if let Some(author) = author(component) {
            let policy = Policy::from_value(name, &value, author).map_err(invalid)?;
            consequences.settings = found.replay(|topology| topology.set_policy(author, policy));
        } else if component == VHOST_LIMITS {
            found.set_limits(VhostLimits::from_value(&value).map_err(invalid)?);
        }
    } else if component == USER_LIMITS {
        if directory.access().user(name).is_none() {
            return Err(refused(&AuthError::NoSuchUser(name.to_owned())));
        }
        directory.set_user_limits(name, UserLimits::from_value(&value).map_err(invalid)?);
    }
    Ok(directory.change_parameters(|parameters| parameters.set(vhost, component, name, value)))
}

fn clear_parameter(
    directory: &Directory,
    vhost: &str,
    component: &str,
    name: &str,
    consequences: &mut Consequences,
) -> bool {
    let found = directory.change_parameters(|parameters| parameters.clear(vhost, component, name));
    if found && let Some(vhost) = directory.vhost(vhost) {
        if let Some(author) = author(component) {
            consequences.settings = vhost.replay(|topology| topology.clear_policy(author, name));
        } else if component == VHOST_LIMITS {
            vhost.set_limits(VhostLimits::default());
        }
    } else if found && vhost.is_empty() && component == USER_LIMITS {
        directory.set_user_limits(name, UserLimits::default());
    }
    found
}

/// Whose policies a component holds.
pub(crate) fn author(component: &str) -> Option<Author> {
    match component {
        POLICY => Some(Author::User),
        OPERATOR_POLICY => Some(Author::Operator),
        _ => None,
    }
}

fn find_vhost(directory: &Directory, name: &str) -> Result<Arc<Vhost>, Exception> {
    directory.vhost(name).ok_or_else(|| {
        Exception::new(ReplyCode::NotFound, format!("Virtual host '{name}' does not exist"), MethodId::NONE)
    })
}

fn refused(error: &AuthError) -> Exception {
    let code = match error {
        AuthError::NoSuchUser(_) => ReplyCode::NotFound,
        _ => ReplyCode::PreconditionFailed,
    };
    Exception::new(code, error.to_string(), MethodId::NONE)
}

fn invalid(text: String) -> Exception {
    Exception::new(ReplyCode::PreconditionFailed, text, MethodId::NONE)
}
