//! What a node knows beside queues and exchanges: the virtual hosts, the users and their permissions, the runtime parameters.
//!
//! Changed only by changes that are in the metadata's log (`metadata::admin`), so that it is the same after a restart, and read by everyone. The one
//! thing in it that comes from the configuration is who may only log in over loopback.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::auth::AccessControl;
use crate::limits::UserLimits;
use crate::mailbox::Mailbox;
use crate::metadata::{Input, VhostInfo};
use crate::vhost::Vhost;

/// Component of the limits of a virtual host, which have the name `limits`.
pub(crate) const VHOST_LIMITS: &str = "vhost-limits";
/// Component of the limits of users, in no virtual host; the name is the user's. RabbitMQ keeps them with the user, so listings leave
/// this component out.
pub(crate) const USER_LIMITS: &str = "user-limits";

/// Component and name of a runtime parameter.
type ParameterKey = (Box<str>, Box<str>);

/// Runtime parameters by virtual host (empty: none), component and name.
#[derive(Debug, Default)]
pub(crate) struct Parameters(BTreeMap<Box<str>, BTreeMap<ParameterKey, Value>>);

impl Parameters {
    /// Sets one. Answers whether that changed anything.
    pub(crate) fn set(&mut self, vhost: &str, component: &str, name: &str, value: Value) -> bool {
        let of_vhost = self.0.entry(vhost.into()).or_default();
        let before = of_vhost.insert((component.into(), name.into()), value.clone());
        before != Some(value)
    }

    /// Removes one. Answers whether it was there.
    pub(crate) fn clear(&mut self, vhost: &str, component: &str, name: &str) -> bool {
        let Some(of_vhost) = self.0.get_mut(vhost) else { return false };
        let found = of_vhost.remove(&(component.into(), name.into())).is_some();
        if of_vhost.is_empty() {
            self.0.remove(vhost);
        }
        found
    }

    /// Forgets those of a virtual host.
    pub(crate) fn forget_vhost(&mut self, vhost: &str) {
        self.0.remove(vhost);
    }

    pub(crate) fn get(&self, vhost: &str, component: &str, name: &str) -> Option<&Value> {
        self.0.get(vhost)?.get(&(component.into(), name.into()))
    }

    /// Virtual host, component, name and value of each, in the order of these.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &Value)> {
        self.0.iter().flat_map(|(vhost, of_vhost)| {
            of_vhost.iter().map(move |((component, name), value)| (&**vhost, &**component, &**name, value))
        })
    }
}

/// The directory.
#[derive(Debug)]
pub(crate) struct Directory {
    vhosts: RwLock<FxHashMap<String, Arc<Vhost>>>,
    access: RwLock<AccessControl>,
    access_version: AtomicU64,
    parameters: RwLock<Parameters>,
    user_limits: RwLock<FxHashMap<String, UserLimits>>,
    metadata: Arc<Mailbox<Input>>,
}

impl Directory {
    /// An empty one. Changes of what is durable in its virtual hosts are asked for at `metadata`.
    pub(crate) fn new(metadata: Arc<Mailbox<Input>>, loopback_users: &[String]) -> Self {
        let mut access = AccessControl::new();
        access.set_loopback_users(loopback_users.iter().cloned());
        Self {
            vhosts: RwLock::default(),
            access_version: AtomicU64::new(access.version()),
            access: RwLock::new(access),
            parameters: RwLock::default(),
            user_limits: RwLock::default(),
            metadata,
        }
    }

    /// Whether no change of users or virtual hosts was ever made: the configuration says what to begin with.
    pub(crate) fn is_new(&self) -> bool {
        let nobody = self.access.read().users().next().is_none();
        nobody && self.vhosts.read().values().all(|vhost| vhost.info().is_none())
    }

    // ---- virtual hosts ------------------------------------------------------------------------------------------------

    pub(crate) fn vhost(&self, name: &str) -> Option<Arc<Vhost>> {
        self.vhosts.read().get(name).cloned()
    }

    /// All virtual hosts, in any order.
    pub(crate) fn vhosts(&self) -> Vec<Arc<Vhost>> {
        self.vhosts.read().values().cloned().collect()
    }

    /// Makes a virtual host, or gives one other information. Without any it is one of data that knew of none.
    pub(crate) fn put_vhost(&self, name: &str, info: Option<VhostInfo>) -> bool {
        let mut vhosts = self.vhosts.write();
        let made = !vhosts.contains_key(name);
        let vhost =
            vhosts.entry(name.to_owned()).or_insert_with(|| Arc::new(Vhost::new(name, Arc::clone(&self.metadata))));
        let updated = info.is_some_and(|info| vhost.set_info(info));
        made || updated
    }

    pub(crate) fn remove_vhost(&self, name: &str) -> Option<Arc<Vhost>> {
        self.vhosts.write().remove(name)
    }

    // ---- users --------------------------------------------------------------------------------------------------------

    pub(crate) fn access(&self) -> RwLockReadGuard<'_, AccessControl> {
        self.access.read()
    }

    /// Goes up with every change of users or permissions.
    pub(crate) fn access_version(&self) -> u64 {
        self.access_version.load(Ordering::Acquire)
    }

    /// Changes users or permissions. Whoever sees the new version sees the change.
    pub(crate) fn change_access<R>(&self, change: impl FnOnce(&mut AccessControl) -> R) -> R {
        let mut access = self.access.write();
        let result = change(&mut access);
        self.access_version.store(access.version(), Ordering::Release);
        result
    }

    /// The limits of a user.
    pub(crate) fn user_limits(&self, user: &str) -> UserLimits {
        self.user_limits.read().get(user).copied().unwrap_or_default()
    }

    pub(crate) fn set_user_limits(&self, user: &str, limits: UserLimits) {
        let mut all = self.user_limits.write();
        if limits == UserLimits::default() {
            all.remove(user);
        } else {
            all.insert(user.to_owned(), limits);
        }
    }

    // ---- parameters ---------------------------------------------------------------------------------------------------

    pub(crate) fn parameters(&self) -> RwLockReadGuard<'_, Parameters> {
        self.parameters.read()
    }

    pub(crate) fn change_parameters<R>(&self, change: impl FnOnce(&mut Parameters) -> R) -> R {
        change(&mut self.parameters.write())
    }
}
