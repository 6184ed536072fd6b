//! The changes of virtual hosts, users, permissions and runtime parameters, and how they are written.
//!
//! Policies, operator policies and limits are runtime parameters, as in RabbitMQ: a component, a name and a JSON value in a virtual host, or
//! in none. The change that carries one of these ([`Change`](super::Change)) names the virtual host it is about; the empty name is none.
//!
//! | kind | | fields |
//! |---|---|---|
//! | 16 | put virtual host | flags (1 protected, 2 has a default queue type), description, default queue type, tags |
//! | 17 | delete virtual host | |
//! | 18 | put user | name, algorithm (0 no password, 1 SHA-256, 2 SHA-512, 3 MD5), base64 of salt and hash, tags |
//! | 19 | delete user | name |
//! | 20 | set permissions | user, configure, write, read |
//! | 21 | clear permissions | user |
//! | 22 | set topic permissions | user, exchange, write, read |
//! | 23 | clear topic permissions | user, flags (1 of one exchange), exchange |
//! | 24 | set parameter | component, name, JSON |
//! | 25 | clear parameter | component, name |
//!
//! Texts have four bytes of length in front; tags are four bytes of number, then texts.

use bytes::BytesMut;

use super::op::{Input, OpError, flag};
use crate::auth::{HashAlgorithm, Password, PasswordHash, Tag};

const PROTECTED: u8 = 1;
const HAS_QUEUE_TYPE: u8 = 2;
const OF_ONE_EXCHANGE: u8 = 1;

/// Lowest kind of these changes.
pub(super) const FIRST_KIND: u8 = 16;

/// The algorithms by their number, from 1.
const ALGORITHMS: [HashAlgorithm; 3] = [HashAlgorithm::Sha256, HashAlgorithm::Sha512, HashAlgorithm::Md5];

/// What is known of a virtual host beside what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostInfo {
    /// For people.
    pub description: Box<str>,
    /// Words for people and tools.
    pub tags: Vec<Box<str>>,
    /// The type of queues whose declares name none.
    pub default_queue_type: Option<Box<str>>,
    /// Cannot be deleted before this is taken back.
    pub protected: bool,
}

/// A change of who may do what, of a virtual host as a whole, or of a runtime parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum AdminOp {
    /// Makes the virtual host, or replaces what is known of it.
    PutVhost(VhostInfo),
    /// Removes the virtual host with all that is in it, permissions and parameters included.
    DeleteVhost,
    /// Makes a user, or replaces its password and tags.
    PutUser {
        /// Its name.
        name: Box<str>,
        /// Its salted hash; `None`: cannot log in with a password.
        password: Option<PasswordHash>,
        /// Its tags.
        tags: Vec<Tag>,
    },
    /// Removes a user with its permissions and limits.
    DeleteUser {
        /// Its name.
        name: Box<str>,
    },
    /// Sets a user's three regular expressions in the virtual host.
    SetPermissions {
        /// The user.
        user: Box<str>,
        /// What it may create and delete.
        configure: Box<str>,
        /// What it may write to.
        write: Box<str>,
        /// What it may read from.
        read: Box<str>,
    },
    /// Takes the user's access to the virtual host away.
    ClearPermissions {
        /// The user.
        user: Box<str>,
    },
    /// Limits the routing keys of a user at an exchange.
    SetTopicPermissions {
        /// The user.
        user: Box<str>,
        /// The exchange.
        exchange: Box<str>,
        /// Keys it may publish with.
        write: Box<str>,
        /// Keys it may bind.
        read: Box<str>,
    },
    /// Takes these limits away, of one exchange or of all.
    ClearTopicPermissions {
        /// The user.
        user: Box<str>,
        /// The exchange; `None`: all.
        exchange: Option<Box<str>>,
    },
    /// Sets a runtime parameter.
    SetParameter {
        /// What it belongs to.
        component: Box<str>,
        /// Its name.
        name: Box<str>,
        /// Its value, as JSON.
        value: Box<str>,
    },
    /// Removes a runtime parameter.
    ClearParameter {
        /// What it belongs to.
        component: Box<str>,
        /// Its name.
        name: Box<str>,
    },
}

impl AdminOp {
    /// Whether it only takes away.
    pub(super) fn is_removal(&self) -> bool {
        matches!(
            self,
            Self::DeleteVhost
                | Self::DeleteUser { .. }
                | Self::ClearPermissions { .. }
                | Self::ClearTopicPermissions { .. }
                | Self::ClearParameter { .. }
        )
    }

    pub(super) fn kind(&self) -> u8 {
        FIRST_KIND
            + match self {
                Self::PutVhost(_) => 0,
                Self::DeleteVhost => 1,
                Self::PutUser { .. } => 2,
                Self::DeleteUser { .. } => 3,
                Self::SetPermissions { .. } => 4,
                Self::ClearPermissions { .. } => 5,
                Self::SetTopicPermissions { .. } => 6,
                Self::ClearTopicPermissions { .. } => 7,
                Self::SetParameter { .. } => 8,
                Self::ClearParameter { .. } => 9,
            }
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::PutVhost(info) => {
                let has_type = flag(info.default_queue_type.is_some(), HAS_QUEUE_TYPE);
                out.extend_from_slice(&[flag(info.protected, PROTECTED) | has_type]);
                put_texts(&[&info.description, info.default_queue_type.as_deref().unwrap_or_default()], out);
                put_list(info.tags.iter().map(AsRef::as_ref), out);
            }
            Self::DeleteVhost => {}
            Self::PutUser { name, password, tags } => {
                put_text(name, out);
                out.extend_from_slice(&[password.as_ref().map_or(0, algorithm_number)]);
                put_text(&password.as_ref().map(PasswordHash::to_base64).unwrap_or_default(), out);
                put_list(tags.iter().map(Tag::as_str), out);
            }
            Self::DeleteUser { name } => put_text(name, out),
            Self::SetPermissions { user, configure, write, read } => put_texts(&[user, configure, write, read], out),
            Self::ClearPermissions { user } => put_text(user, out),
            Self::SetTopicPermissions { user, exchange, write, read } => {
                put_texts(&[user, exchange, write, read], out);
            }
            Self::ClearTopicPermissions { user, exchange } => {
                put_text(user, out);
                out.extend_from_slice(&[flag(exchange.is_some(), OF_ONE_EXCHANGE)]);
                put_text(exchange.as_deref().unwrap_or_default(), out);
            }
            Self::SetParameter { component, name, value } => put_texts(&[component, name, value], out),
            Self::ClearParameter { component, name } => put_texts(&[component, name], out),
        }
    }

    /// Reads the fields of a kind from [`FIRST_KIND`] on.
    pub(super) fn decode(kind: u8, input: &mut Input<'_>) -> Result<Self, OpError> {
        Ok(match kind - FIRST_KIND {
            0 => {
                let flags = input.flags(PROTECTED | HAS_QUEUE_TYPE)?;
                let description = input.text()?;
                let queue_type = input.text()?;
                let default_queue_type = match (flags & HAS_QUEUE_TYPE != 0, queue_type.is_empty()) {
                    (true, _) => Some(queue_type),
                    (false, true) => None,
                    (false, false) => return Err(OpError::Length),
                };
                let protected = flags & PROTECTED != 0;
                Self::PutVhost(VhostInfo { description, tags: input.list()?, default_queue_type, protected })
            }
            1 => Self::DeleteVhost,
            2 => {
                let name = input.text()?;
                let number = input.u8()?;
                let hash = input.text()?;
                let password = decode_password(number, &hash)?;
                let tags = input.list()?.iter().map(|tag| Tag::from(tag.as_ref())).collect();
                Self::PutUser { name, password, tags }
            }
            3 => Self::DeleteUser { name: input.text()? },
            4 => Self::SetPermissions {
                user: input.text()?,
                configure: input.text()?,
                write: input.text()?,
                read: input.text()?,
            },
            5 => Self::ClearPermissions { user: input.text()? },
            6 => Self::SetTopicPermissions {
                user: input.text()?,
                exchange: input.text()?,
                write: input.text()?,
                read: input.text()?,
            },
            7 => {
                let user = input.text()?;
                let of_one = input.flags(OF_ONE_EXCHANGE)? != 0;
                let exchange = input.text()?;
                if !of_one && !exchange.is_empty() {
                    return Err(OpError::Length);
                }
                Self::ClearTopicPermissions { user, exchange: of_one.then_some(exchange) }
            }
            8 => Self::SetParameter { component: input.text()?, name: input.text()?, value: input.text()? },
            9 => Self::ClearParameter { component: input.text()?, name: input.text()? },
            _ => return Err(OpError::Unknown { what: "kind of change", value: kind }),
        })
    }
}

fn algorithm_number(hash: &PasswordHash) -> u8 {
    let at = ALGORITHMS.iter().position(|known| *known == hash.algorithm()).expect("all algorithms have a number");
    u8::try_from(at + 1).expect("a handful of algorithms")
}

fn decode_password(number: u8, hash: &str) -> Result<Option<PasswordHash>, OpError> {
    let Some(place) = usize::from(number).checked_sub(1) else {
        return if hash.is_empty() { Ok(None) } else { Err(OpError::Password) };
    };
    let unknown = OpError::Unknown { what: "hash algorithm", value: number };
    let algorithm = ALGORITHMS.get(place).copied().ok_or(unknown)?;
    let decoded = PasswordHash::new(Password::Hash { base64: hash, algorithm }).map_err(|_| OpError::Password)?;
    decoded.map(Some).ok_or(OpError::Password)
}

fn put_text(text: &str, out: &mut BytesMut) {
    let length = u32::try_from(text.len()).expect("texts are bounded before they become changes");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_texts(texts: &[&str], out: &mut BytesMut) {
    texts.iter().for_each(|text| put_text(text, out));
}

fn put_list<'a>(texts: impl ExactSizeIterator<Item = &'a str>, out: &mut BytesMut) {
    let number = u32::try_from(texts.len()).expect("lists are bounded before they become changes");
    out.extend_from_slice(&number.to_le_bytes());
    texts.for_each(|text| put_text(text, out));
}

impl Input<'_> {
    /// A text with four bytes of length in front.
    fn text(&mut self) -> Result<Box<str>, OpError> {
        let length = self.u32()?;
        super::op::text(self.take(length as usize)?)
    }

    /// A list of texts. Grows with what is read, whatever number stands in front.
    fn list(&mut self) -> Result<Vec<Box<str>>, OpError> {
        let number = self.u32()?;
        let mut texts = Vec::new();
        for _ in 0..number {
            texts.push(self.text()?);
        }
        Ok(texts)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = Box<str>> {
        "[a-zä.*^]{0,20}".prop_map(String::into_boxed_str)
    }

    fn password() -> impl Strategy<Value = Option<PasswordHash>> {
        prop_oneof![
            Just(None),
            "[a-z]{1,8}".prop_map(|plain| PasswordHash::new(Password::Plain(&plain)).expect("random bytes")),
        ]
    }

    /// Any change of these kinds.
    pub(in crate::metadata) fn admin_op() -> impl Strategy<Value = AdminOp> {
        let list = || proptest::collection::vec(text(), 0..3);
        prop_oneof![
            (text(), list(), proptest::option::of(text()), any::<bool>()).prop_map(
                |(description, tags, default_queue_type, protected)| {
                    AdminOp::PutVhost(VhostInfo { description, tags, default_queue_type, protected })
                }
            ),
            Just(AdminOp::DeleteVhost),
            (text(), password(), list()).prop_map(|(name, password, tags)| AdminOp::PutUser {
                name,
                password,
                tags: tags.iter().map(|tag| Tag::from(tag.as_ref())).collect()
            }),
            text().prop_map(|name| AdminOp::DeleteUser { name }),
            (text(), text(), text(), text()).prop_map(|(user, configure, write, read)| AdminOp::SetPermissions {
                user,
                configure,
                write,
                read
            }),
            text().prop_map(|user| AdminOp::ClearPermissions { user }),
            (text(), text(), text(), text()).prop_map(|(user, exchange, write, read)| AdminOp::SetTopicPermissions {
                user,
                exchange,
                write,
                read
            }),
            (text(), proptest::option::of(text()))
                .prop_map(|(user, exchange)| AdminOp::ClearTopicPermissions { user, exchange }),
            (text(), text(), text()).prop_map(|(component, name, value)| AdminOp::SetParameter {
                component,
                name,
                value
            }),
            (text(), text()).prop_map(|(component, name)| AdminOp::ClearParameter { component, name }),
        ]
    }
}
