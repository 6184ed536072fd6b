//! Users, permissions, topic permissions.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::{Admin, AdminError, Row, row};
use crate::auth::{AccessControl, AuthError, Password, PasswordHash, Permission, Tag};
use crate::directory::USER_LIMITS;
use crate::limits::UserLimits;
use crate::metadata::{AdminOp, Applied};

/// Longest list of tags, and longest tag, that a user may have.
const MAX_TAGS: usize = 64;
const MAX_TAG_BYTES: usize = 255;

impl Admin {
    /// Makes a user.
    ///
    /// # Errors
    /// It is there already; a name or hash that cannot be.
    pub async fn add_user(&mut self, name: &str, password: Password<'_>, tags: Vec<Tag>) -> Result<(), AdminError> {
        if self.broker.access().user(name).is_some() {
            return Err(AdminError::AlreadyExists(format!("User \"{name}\" already exists")));
        }
        self.put_user(name, password, tags).await
    }

    /// Makes a user, or replaces its password and tags.
    ///
    /// # Errors
    /// A name or hash that cannot be.
    pub async fn put_user(&mut self, name: &str, password: Password<'_>, tags: Vec<Tag>) -> Result<(), AdminError> {
        let hash = hash(password)?;
        let op = put_user(name, hash, tags)?;
        self.change("", op).await.map(|_| ())
    }

    /// Removes a user, its permissions and limits, and closes its connections.
    ///
    /// # Errors
    /// It is not there.
    pub async fn delete_user(&mut self, name: &str) -> Result<(), AdminError> {
        match self.change("", AdminOp::DeleteUser { name: name.into() }).await? {
            Applied::Changed => Ok(()),
            Applied::Unchanged => Err(AdminError::NoSuchUser(name.to_owned())),
        }
    }

    /// Gives a user another password, or none.
    ///
    /// # Errors
    /// It is not there.
    pub async fn change_password(&mut self, name: &str, password: Password<'_>) -> Result<(), AdminError> {
        let hash = hash(password)?;
        let tags = self.existing(name, |user| user.tags().to_vec())?;
        self.change("", put_user(name, hash, tags)?).await.map(|_| ())
    }

    /// Gives a user other tags.
    ///
    /// # Errors
    /// It is not there.
    pub async fn set_user_tags(&mut self, name: &str, tags: Vec<Tag>) -> Result<(), AdminError> {
        let hash = self.existing(name, |user| user.password().cloned())?;
        self.change("", put_user(name, hash, tags)?).await.map(|_| ())
    }

    fn existing<R>(&self, name: &str, read: impl FnOnce(&crate::auth::User) -> R) -> Result<R, AdminError> {
        let access = self.broker.access();
        access.user(name).map(|user| read(user)).ok_or_else(|| AdminError::NoSuchUser(name.to_owned()))
    }

    /// Checks a name and a password, as if they came over loopback.
    ///
    /// # Errors
    /// They do not fit.
    pub fn authenticate(&self, name: &str, password: &str) -> Result<(), AdminError> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let login = self.broker.access().authenticate(name, password.as_bytes(), loopback);
        login.map(|_| ()).map_err(|error| AdminError::Refused(error.to_string()))
    }

    /// All users: `user`, `tags`.
    #[must_use]
    pub fn users(&self) -> Vec<Row> {
        let access = self.broker.access();
        access.users().map(|user| row([("user", user.name().into()), ("tags", tags_json(user.tags()))])).collect()
    }

    /// Sets a user's permissions in a virtual host.
    ///
    /// # Errors
    /// User or virtual host are not there; an invalid regular expression.
    pub async fn set_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        [configure, write, read]: [&str; 3],
    ) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        self.check_user(user)?;
        try_on(user, |access| access.set_permissions(vhost, user, configure, write, read))?;
        let [configure, write, read] = [configure, write, read].map(Into::into);
        self.change(vhost, AdminOp::SetPermissions { user: user.into(), configure, write, read }).await.map(|_| ())
    }

    /// Takes a user's access to a virtual host away.
    ///
    /// # Errors
    /// User or virtual host are not there.
    pub async fn clear_permissions(&mut self, vhost: &str, user: &str) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        self.check_user(user)?;
        self.change(vhost, AdminOp::ClearPermissions { user: user.into() }).await.map(|_| ())
    }

    /// All permissions: `user`, `vhost`, `configure`, `write`, `read`.
    #[must_use]
    pub fn permissions(&self) -> Vec<Row> {
        let access = self.broker.access();
        let each = access.all_permissions().map(|(user, vhost, permissions)| {
            let pattern = |permission| Value::from(permissions.pattern(permission).as_str());
            row([
                ("user", user.into()),
                ("vhost", vhost.into()),
                ("configure", pattern(Permission::Configure)),
                ("write", pattern(Permission::Write)),
                ("read", pattern(Permission::Read)),
            ])
        });
        each.collect()
    }

    /// Limits a user's routing keys at an exchange.
    ///
    /// # Errors
    /// User or virtual host are not there; an invalid regular expression.
    pub async fn set_topic_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        exchange: &str,
        [write, read]: [&str; 2],
    ) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        self.check_user(user)?;
        try_on(user, |access| access.set_topic_permissions(vhost, user, exchange, write, read))?;
        let (user, exchange) = (user.into(), exchange.into());
        let op = AdminOp::SetTopicPermissions { user, exchange, write: write.into(), read: read.into() };
        self.change(vhost, op).await.map(|_| ())
    }

    /// Takes the limits on routing keys away, of one exchange or of all.
    ///
    /// # Errors
    /// User or virtual host are not there.
    pub async fn clear_topic_permissions(
        &mut self,
        vhost: &str,
        user: &str,
        exchange: Option<&str>,
    ) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        self.check_user(user)?;
        let op = AdminOp::ClearTopicPermissions { user: user.into(), exchange: exchange.map(Into::into) };
        self.change(vhost, op).await.map(|_| ())
    }

    /// All topic permissions: `user`, `vhost`, `exchange`, `write`, `read`.
    #[must_use]
    pub fn topic_permissions(&self) -> Vec<Row> {
        let access = self.broker.access();
        let each = access.all_topic_permissions().map(|(user, vhost, exchange, permissions)| {
            row([
                ("user", user.into()),
                ("vhost", vhost.into()),
                ("exchange", exchange.into()),
                ("write", permissions.write().as_str().into()),
                ("read", permissions.read().as_str().into()),
            ])
        });
        each.collect()
    }

    /// Sets a user's limits, those that are named; others stay.
    ///
    /// # Errors
    /// The user is not there; no limits.
    pub async fn set_user_limits(&mut self, user: &str, limits: &Value) -> Result<(), AdminError> {
        self.check_user(user)?;
        UserLimits::from_value(limits).map_err(AdminError::Invalid)?;
        let mut all = self.broker.directory().parameters().get("", USER_LIMITS, user).cloned().unwrap_or(json!({}));
        if let (Value::Object(all), Value::Object(new)) = (&mut all, limits) {
            all.extend(new.clone());
        }
        self.put_user_limits(user, &all).await
    }

    /// Takes one of a user's limits away, or all.
    ///
    /// # Errors
    /// The user is not there.
    pub async fn clear_user_limits(&mut self, user: &str, name: Option<&str>) -> Result<(), AdminError> {
        self.check_user(user)?;
        let mut all = self.broker.directory().parameters().get("", USER_LIMITS, user).cloned().unwrap_or(json!({}));
        if let (Value::Object(all), Some(name)) = (&mut all, name) {
            all.remove(name);
            if !all.is_empty() {
                return self.put_user_limits(user, &Value::Object(all.clone())).await;
            }
        }
        let op = AdminOp::ClearParameter { component: USER_LIMITS.into(), name: user.into() };
        self.change("", op).await.map(|_| ())
    }

    async fn put_user_limits(&mut self, user: &str, limits: &Value) -> Result<(), AdminError> {
        let (component, name, value) = (USER_LIMITS.into(), user.into(), limits.to_string().into());
        self.change("", AdminOp::SetParameter { component, name, value }).await.map(|_| ())
    }

    /// A user's limits, as they were set.
    ///
    /// # Errors
    /// The user is not there.
    pub fn user_limits(&self, user: &str) -> Result<Value, AdminError> {
        self.check_user(user)?;
        Ok(self.broker.directory().parameters().get("", USER_LIMITS, user).cloned().unwrap_or(json!({})))
    }
}

/// The change that puts a user.
pub(super) fn put_user(name: &str, password: Option<PasswordHash>, tags: Vec<Tag>) -> Result<AdminOp, AdminError> {
    if tags.len() > MAX_TAGS || tags.iter().any(|tag| tag.as_str().len() > MAX_TAG_BYTES) {
        return Err(AdminError::Invalid(format!("a user has at most {MAX_TAGS} tags of {MAX_TAG_BYTES} bytes")));
    }
    let mut scratch = AccessControl::new();
    scratch
        .put_user_hash(name, password.clone(), tags.clone())
        .map_err(|error| AdminError::Invalid(error.to_string()))?;
    Ok(AdminOp::PutUser { name: name.into(), password, tags })
}

pub(super) fn hash(password: Password<'_>) -> Result<Option<PasswordHash>, AdminError> {
    PasswordHash::new(password).map_err(|error| AdminError::Invalid(error.to_string()))
}

/// Makes a change on a copy first, so that what is not valid never gets to the log.
pub(super) fn try_on(
    user: &str,
    change: impl FnOnce(&mut AccessControl) -> Result<(), AuthError>,
) -> Result<(), AdminError> {
    let mut scratch = AccessControl::new();
    scratch.put_user(user, Password::None, Vec::new()).map_err(|error| AdminError::Invalid(error.to_string()))?;
    change(&mut scratch).map_err(|error| AdminError::Invalid(error.to_string()))
}

pub(super) fn tags_json(tags: &[Tag]) -> Value {
    tags.iter().map(|tag| Value::from(tag.as_str())).collect()
}
