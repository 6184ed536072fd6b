//! A user: name, password hash, tags.

use std::fmt;

use super::password::PasswordHash;

/// What a user is, apart from the permissions in virtual hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// May do everything in the management interface.
    Administrator,
    /// Sees all virtual hosts and node-wide figures.
    Monitoring,
    /// Sets policies in the virtual hosts it has access to.
    Policymaker,
    /// May use the management interface for what it could do over AMQP.
    Management,
    /// May publish with a `user-id` that is not its own.
    Impersonator,
    /// Any other word: kept, shown, without effect.
    Other(String),
}

impl Tag {
    /// The tag as it is written in definitions and shown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Administrator => "administrator",
            Self::Monitoring => "monitoring",
            Self::Policymaker => "policymaker",
            Self::Management => "management",
            Self::Impersonator => "impersonator",
            Self::Other(word) => word,
        }
    }
}

impl From<&str> for Tag {
    fn from(word: &str) -> Self {
        match word {
            "administrator" => Self::Administrator,
            "monitoring" => Self::Monitoring,
            "policymaker" => Self::Policymaker,
            "management" => Self::Management,
            "impersonator" => Self::Impersonator,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A user as it is stored. Shared with the connections that it has open; a change makes a new one.
#[derive(Debug)]
pub struct User {
    name: String,
    password: Option<PasswordHash>,
    tags: Vec<Tag>,
}

impl User {
    pub(super) fn new(name: &str, password: Option<PasswordHash>, tags: Vec<Tag>) -> Self {
        Self { name: name.to_owned(), password, tags }
    }

    /// The name, as it stands in permissions, logs and the `user-id` property.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The salted hash; `None` for a user who cannot log in with a password.
    #[must_use]
    pub fn password(&self) -> Option<&PasswordHash> {
        self.password.as_ref()
    }

    /// The tags in the order in which they were given.
    #[must_use]
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// Whether the user has the tag.
    #[must_use]
    pub fn has_tag(&self, tag: &Tag) -> bool {
        self.tags.contains(tag)
    }

    pub(super) fn password_matches(&self, password: &[u8]) -> bool {
        match &self.password {
            Some(hash) => hash.matches(password),
            None => {
                PasswordHash::verify_nothing(password);
                false
            }
        }
    }
}
