//! Who may log in, and who may do what: users, password hashes, tags, and permissions per virtual host.
//!
//! [`AccessControl`] holds all of it for a node and is pure: no clock, no I/O (but the salt of a new password), no runtime. The connection
//! asks [`AccessControl::authenticate`] and [`AccessControl::vhost_access`] once, its channels ask [`AccessControl::authorize`]
//! for every operation, usually through a [`PermissionCache`]. That one function decides for AMQP and for every other way in,
//! so that no way can forget a check.
//!
//! The rules are RabbitMQ's (its "Access Control" guide): three regular expressions per user and virtual host, named
//! configure, write and read; topic permissions narrow routing keys on top. Which operation needs which permission on
//! what is the caller's knowledge; SASL responses are taken apart in [`sasl`].

mod cache;
mod password;
mod pattern;
mod permissions;
pub mod sasl;
mod user;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use amqp::{Exception, MethodId, ReplyCode};

pub use cache::PermissionCache;
pub use password::{HashAlgorithm, Password, PasswordHash};
pub use pattern::{MAX_PATTERN_BYTES, Pattern, PatternError};
pub use permissions::{Permission, Permissions, Resource, TopicPermissions};
pub use user::{Tag, User};

/// Longest user name in bytes: what fits the short strings in which names travel.
const MAX_NAME_BYTES: usize = 255;

/// A change to users or permissions that was refused; nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthError {
    /// A user name that is empty or too long to travel in a short string.
    #[error("a user name has 1 to {MAX_NAME_BYTES} bytes")]
    InvalidName,
    /// The named user does not exist.
    #[error("user '{0}' does not exist")]
    NoSuchUser(String),
    /// A password hash that is not base64 of four bytes of salt and a hash of the algorithm's length.
    #[error("the password hash is not base64 of a 4-byte salt and a {0} hash")]
    InvalidHash(HashAlgorithm),
    /// One of the three regular expressions cannot be used.
    #[error("invalid regular expression for {permission}: {error}")]
    InvalidPattern {
        /// Which of the three it is.
        permission: Permission,
        /// What is wrong with it.
        error: PatternError,
    },
    /// The operating system gave no random bytes for a salt.
    #[error("no random bytes for a salt: {0}")]
    NoEntropy(String),
}

/// Why a login was refused. For the log only: the peer is told the same in every case.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoginError {
    /// No such user. Reads like a wrong password: the log may be shown to people who shall not learn which names exist.
    #[error("user '{0}' - invalid credentials")]
    UnknownUser(String),
    /// A wrong password, or a user without one.
    #[error("user '{0}' - invalid credentials")]
    BadPassword(String),
    /// Empty passwords are refused, whatever is stored.
    #[error("user '{0}' attempted to log in with a blank password, which is never accepted")]
    BlankPassword(String),
    /// Right credentials from a place where this user may not come from.
    #[error("user '{0}' can only connect via localhost")]
    LoopbackOnly(String),
}

/// All users and permissions of a node.
///
/// Invariants:
/// - every user in `permissions` and `topic_permissions` is in `users`;
/// - `version` grows with every change, so that a cache filled at one version is right as long as it is the current one.
#[derive(Debug, Default)]
pub struct AccessControl {
    users: BTreeMap<String, Arc<User>>,
    /// By user, then by virtual host.
    permissions: BTreeMap<String, BTreeMap<String, Arc<Permissions>>>,
    /// By user, then by virtual host and exchange.
    topic_permissions: BTreeMap<String, BTreeMap<(String, String), Arc<TopicPermissions>>>,
    loopback_users: BTreeSet<String>,
    version: u64,
}

impl AccessControl {
    /// Nobody may do anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts the changes: a cache that was filled at this version is right while the version stays.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Creates the user, or replaces its password and tags; permissions stay.
    ///
    /// # Errors
    /// A name that cannot travel, a malformed hash, no entropy.
    pub fn put_user(&mut self, name: &str, password: Password<'_>, tags: Vec<Tag>) -> Result<(), AuthError> {
        self.put_user_hash(name, PasswordHash::new(password)?, tags)
    }

    /// The same with a hash that was made before.
    ///
    /// # Errors
    /// A name that cannot travel.
    pub fn put_user_hash(&mut self, name: &str, hash: Option<PasswordHash>, tags: Vec<Tag>) -> Result<(), AuthError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(AuthError::InvalidName);
        }
        self.users.insert(name.to_owned(), Arc::new(User::new(name, hash, tags)));
        self.version += 1;
        Ok(())
    }

    /// Deletes the user and all its permissions. Its connections are the caller's to close.
    ///
    /// # Errors
    /// [`AuthError::NoSuchUser`].
    pub fn delete_user(&mut self, name: &str) -> Result<(), AuthError> {
        self.users.remove(name).ok_or_else(|| AuthError::NoSuchUser(name.to_owned()))?;
        self.permissions.remove(name);
        self.topic_permissions.remove(name);
        self.version += 1;
        Ok(())
    }

    /// The users in the order of their names.
    pub fn users(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// The user of that name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// Names the users who may only log in over loopback, in place of those named before.
    pub fn set_loopback_users(&mut self, names: impl IntoIterator<Item = String>) {
        self.loopback_users = names.into_iter().collect();
        self.version += 1;
    }

    /// Gives the user access to the virtual host, with these three regular expressions in place of former ones. Whether the
    /// virtual host exists is the caller's to check.
    ///
    /// # Errors
    /// [`AuthError::NoSuchUser`], [`AuthError::InvalidPattern`].
    pub fn set_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) -> Result<(), AuthError> {
        self.check_user(user)?;
        let permissions = Permissions::new(configure, write, read)?;
        self.permissions.entry(user.to_owned()).or_default().insert(vhost.to_owned(), Arc::new(permissions));
        self.version += 1;
        Ok(())
    }

    /// Takes the user's access to the virtual host away. Nothing to take is no error.
    ///
    /// # Errors
    /// [`AuthError::NoSuchUser`].
    pub fn clear_permissions(&mut self, vhost: &str, user: &str) -> Result<(), AuthError> {
        self.check_user(user)?;
        if let Some(of_user) = self.permissions.get_mut(user) {
            of_user.remove(vhost);
        }
        self.version += 1;
        Ok(())
    }

    /// The user's permissions in the virtual host.
    #[must_use]
    pub fn permissions(&self, vhost: &str, user: &str) -> Option<&Arc<Permissions>> {
        self.permissions.get(user)?.get(vhost)
    }

    /// All permissions as (user, virtual host, permissions), in the order of the names.
    pub fn all_permissions(&self) -> impl Iterator<Item = (&str, &str, &Arc<Permissions>)> {
        self.permissions.iter().flat_map(|(user, of_user)| {
            of_user.iter().map(move |(vhost, permissions)| (user.as_str(), vhost.as_str(), permissions))
        })
    }

    /// Limits the routing keys that the user may publish with to the exchange (write) and bind to it (read). `{username}` and `{vhost}`
    /// in the regular expressions stand for the user's and the virtual host's names, taken literally.
    ///
    /// # Errors
    /// [`AuthError::NoSuchUser`], [`AuthError::InvalidPattern`].
    pub fn set_topic_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        exchange: &str,
        write: &str,
        read: &str,
    ) -> Result<(), AuthError> {
        self.check_user(user)?;
        let permissions = TopicPermissions::new(vhost, user, write, read)?;
        let of_user = self.topic_permissions.entry(user.to_owned()).or_default();
        of_user.insert((vhost.to_owned(), exchange.to_owned()), Arc::new(permissions));
        self.version += 1;
        Ok(())
    }

    /// Takes the limits on routing keys away: of one exchange, or of all exchanges of the virtual host.
    ///
    /// # Errors
    /// [`AuthError::NoSuchUser`].
    pub fn clear_topic_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        exchange: Option<&str>,
    ) -> Result<(), AuthError> {
        self.check_user(user)?;
        if let Some(of_user) = self.topic_permissions.get_mut(user) {
            of_user.retain(|(v, x), _| v != vhost || exchange.is_some_and(|exchange| x != exchange));
        }
        self.version += 1;
        Ok(())
    }

    /// All topic permissions as (user, virtual host, exchange, permissions), in the order of the names.
    pub fn all_topic_permissions(&self) -> impl Iterator<Item = (&str, &str, &str, &Arc<TopicPermissions>)> {
        self.topic_permissions.iter().flat_map(|(user, of_user)| {
            of_user.iter().map(move |((vhost, exchange), p)| (user.as_str(), vhost.as_str(), exchange.as_str(), p))
        })
    }

    /// Forgets all permissions in a virtual host that is being deleted: a new one of the same name starts without.
    pub fn delete_vhost(&mut self, vhost: &str) {
        for of_user in self.permissions.values_mut() {
            of_user.remove(vhost);
        }
        for of_user in self.topic_permissions.values_mut() {
            of_user.retain(|(v, _), _| v != vhost);
        }
        self.version += 1;
    }

    /// Checks a name and a password that came from `peer`, which is the address of the socket's other end.
    ///
    /// The time taken tells neither whether the name exists nor how much of the password is right.
    ///
    /// # Errors
    /// Why the login is refused; for the log, not for the peer.
    pub fn authenticate(&self, user: &str, password: &[u8], peer: IpAddr) -> Result<Arc<User>, LoginError> {
        if password.is_empty() {
            return Err(LoginError::BlankPassword(user.to_owned()));
        }
        let Some(known) = self.users.get(user) else {
            PasswordHash::verify_nothing(password);
            return Err(LoginError::UnknownUser(user.to_owned()));
        };
        if !known.password_matches(password) {
            return Err(LoginError::BadPassword(user.to_owned()));
        }
        // Canonical first: on a dual-stack socket 127.0.0.1 arrives as ::ffff:127.0.0.1.
        if self.loopback_users.contains(user) && !peer.to_canonical().is_loopback() {
            return Err(LoginError::LoopbackOnly(user.to_owned()));
        }
        Ok(Arc::clone(known))
    }

    /// Whether the user may open the virtual host: any permissions there will do, even three empty ones.
    #[must_use]
    pub fn vhost_access(&self, user: &str, vhost: &str) -> bool {
        self.permissions(vhost, user).is_some()
    }

    /// The one function that decides whether the user may do something to a queue or an exchange.
    ///
    /// # Errors
    /// `access to queue 'NAME' in vhost 'VHOST' refused for user 'USER'` (403), which closes the channel.
    pub fn authorize(
        &self,
        user: &str,
        vhost: &str,
        resource: Resource<'_>,
        permission: Permission,
        method: MethodId,
    ) -> Result<(), Exception> {
        if self.permissions(vhost, user).is_some_and(|p| p.allows(permission, resource.name())) {
            return Ok(());
        }
        let text = format!("access to {resource} in vhost '{vhost}' refused for user '{user}'");
        Err(Exception::new(ReplyCode::AccessRefused, text, method))
    }

    /// Whether the user may publish with (write) or bind (read) this routing key on a topic exchange. Without topic permissions
    /// for the exchange everything is allowed; configure never depends on a routing key. Comes on top of [`Self::authorize`].
    ///
    /// # Errors
    /// `access to topic 'KEY' in exchange 'NAME' in vhost 'VHOST' refused for user 'USER'` (403), which closes the channel.
    pub fn authorize_topic(
        &self,
        user: &str,
        vhost: &str,
        exchange: &str,
        routing_key: &str,
        permission: Permission,
        method: MethodId,
    ) -> Result<(), Exception> {
        let limits = self.topic_permissions_of(user, vhost, exchange);
        if limits.is_none_or(|p| p.allows(permission, routing_key)) {
            return Ok(());
        }
        let resource = Resource::Exchange(exchange);
        let text =
            format!("access to topic '{routing_key}' in {resource} in vhost '{vhost}' refused for user '{user}'");
        Err(Exception::new(ReplyCode::AccessRefused, text, method))
    }

    fn topic_permissions_of(&self, user: &str, vhost: &str, exchange: &str) -> Option<&Arc<TopicPermissions>> {
        // Most users have no topic permissions: only those who do pay for a key.
        let of_user = self.topic_permissions.get(user).filter(|of_user| !of_user.is_empty())?;
        of_user.get(&(vhost.to_owned(), exchange.to_owned()))
    }

    fn check_user(&self, user: &str) -> Result<(), AuthError> {
        if self.users.contains_key(user) { Ok(()) } else { Err(AuthError::NoSuchUser(user.to_owned())) }
    }
}

#[cfg(test)]
mod tests;
