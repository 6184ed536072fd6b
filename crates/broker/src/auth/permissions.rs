//! What a user may do in a virtual host.

use std::fmt;

use super::AuthError;
use super::pattern::Pattern;

/// One of the three permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// To create and delete.
    Configure,
    /// To put messages in: publish, the queue's side of a bind.
    Write,
    /// To take messages out: consume, get, purge, the exchange's side of a bind.
    Read,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// What a permission is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The queue of that name.
    Queue(&'a str),
    /// The exchange of that name; the empty name is the default exchange.
    Exchange(&'a str),
}

impl Resource<'_> {
    /// The name that permissions are matched against and messages show: the default exchange is `amq.default`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Exchange("") => "amq.default",
            Self::Exchange(name) | Self::Queue(name) => name,
        }
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Queue(_) => "queue",
            Self::Exchange(_) => "exchange",
        };
        write!(f, "{kind} '{}'", self.name())
    }
}

/// A user's three regular expressions in one virtual host.
#[derive(Clone, Debug)]
pub struct Permissions {
    configure: Pattern,
    write: Pattern,
    read: Pattern,
}

impl Permissions {
    pub(super) fn new(configure: &str, write: &str, read: &str) -> Result<Self, AuthError> {
        let compile =
            |permission, source| Pattern::new(source).map_err(|error| AuthError::InvalidPattern { permission, error });
        Ok(Self {
            configure: compile(Permission::Configure, configure)?,
            write: compile(Permission::Write, write)?,
            read: compile(Permission::Read, read)?,
        })
    }

    /// The regular expression of one permission.
    #[must_use]
    pub fn pattern(&self, permission: Permission) -> &Pattern {
        match permission {
            Permission::Configure => &self.configure,
            Permission::Write => &self.write,
            Permission::Read => &self.read,
        }
    }

    /// Whether the permission covers a resource of that name.
    #[must_use]
    pub fn allows(&self, permission: Permission, name: &str) -> bool {
        self.pattern(permission).matches(name)
    }
}

/// A user's regular expressions on the routing keys of one topic exchange.
#[derive(Clone, Debug)]
pub struct TopicPermissions {
    write: Pattern,
    read: Pattern,
}

impl TopicPermissions {
    pub(super) fn new(vhost: &str, user: &str, write: &str, read: &str) -> Result<Self, AuthError> {
        let compile = |permission, source: &str| {
            Pattern::compile(source, &expand(source, vhost, user))
                .map_err(|error| AuthError::InvalidPattern { permission, error })
        };
        Ok(Self { write: compile(Permission::Write, write)?, read: compile(Permission::Read, read)? })
    }

    /// The regular expression on keys that are published with.
    #[must_use]
    pub fn write(&self) -> &Pattern {
        &self.write
    }

    /// The regular expression on keys that are bound.
    #[must_use]
    pub fn read(&self) -> &Pattern {
        &self.read
    }

    /// Whether the routing key is covered; configure does not depend on it.
    #[must_use]
    pub fn allows(&self, permission: Permission, routing_key: &str) -> bool {
        match permission {
            Permission::Configure => true,
            Permission::Write => self.write.matches(routing_key),
            Permission::Read => self.read.matches(routing_key),
        }
    }
}

/// Puts the names into the expression, escaped: a user called `.*` gains nothing. `{client_id}` is a variable of MQTT, which an AMQP
/// connection does not have: it stays as it is, as text.
fn expand(source: &str, vhost: &str, user: &str) -> String {
    let mut expression = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find('{') {
        expression.push_str(&rest[..open]);
        rest = &rest[open..];
        let variables = [
            ("{username}", regex::escape(user)),
            ("{vhost}", regex::escape(vhost)),
            ("{client_id}", regex::escape("{client_id}")),
        ];
        match variables.iter().find(|(variable, _)| rest.starts_with(variable)) {
            Some((variable, value)) => {
                expression.push_str(value);
                rest = &rest[variable.len()..];
            }
            None => {
                expression.push('{');
                rest = &rest[1..];
            }
        }
    }
    expression.push_str(rest);
    expression
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_topic_patterns_are_taken_literally_and_never_expanded_again() {
        assert_eq!(expand("^{username}-{vhost}$", "a.b", ".*"), r"^\.\*-a\.b$");
        assert_eq!(expand("{username}", "v", "{vhost}"), r"\{vhost\}");
        assert_eq!(expand("a{2,3}{client_id}{", "v", "u"), r"a{2,3}\{client_id\}{");
    }

    #[test]
    fn default_exchange_is_matched_and_shown_as_amq_default() {
        assert_eq!(Resource::Exchange("").name(), "amq.default");
        assert_eq!(Resource::Exchange("").to_string(), "exchange 'amq.default'");
        assert_eq!(Resource::Queue("").to_string(), "queue ''");
    }
}
