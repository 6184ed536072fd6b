//! A channel's memory of what it was allowed: a publisher asks the same question a hundred thousand times a second.

use amqp::{Exception, MethodId};

use super::{AccessControl, Permission, Resource};

/// Entries of a cache. A channel works with few names; beyond this the oldest entry makes room and is asked again.
const MAX_ENTRIES: usize = 12;

/// The latest permissions that one user had in one virtual host. Refusals are not kept: they close the channel.
///
/// Belongs to a channel, whose user and virtual host never change. Entries hold while [`AccessControl::version`] stays.
#[derive(Debug, Default)]
pub struct PermissionCache {
    version: u64,
    allowed: Vec<Entry>,
    /// The entry that makes room next.
    oldest: usize,
}

#[derive(Debug)]
struct Entry {
    permission: Permission,
    is_queue: bool,
    name: Box<str>,
}

impl PermissionCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// [`AccessControl::authorize`], but for what was allowed before.
    ///
    /// # Errors
    /// Those of [`AccessControl::authorize`].
    pub fn authorize(
        &mut self,
        access: &AccessControl,
        user: &str,
        vhost: &str,
        resource: Resource<'_>,
        permission: Permission,
        method: MethodId,
    ) -> Result<(), Exception> {
        if self.version != access.version() {
            self.allowed.clear();
            self.oldest = 0;
            self.version = access.version();
        }
        let is_queue = matches!(resource, Resource::Queue(_));
        let name = resource.name();
        if self.allowed.iter().any(|e| e.permission == permission && e.is_queue == is_queue && *e.name == *name) {
            return Ok(());
        }
        access.authorize(user, vhost, resource, permission, method)?;
        let entry = Entry { permission, is_queue, name: name.into() };
        if self.allowed.len() < MAX_ENTRIES {
            self.allowed.push(entry);
        } else {
            self.allowed[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % MAX_ENTRIES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Password;
    use super::*;

    fn access(write: &str) -> AccessControl {
        let mut access = AccessControl::new();
        access.put_user("u", Password::None, vec![]).unwrap();
        access.set_permissions("/", "u", "", write, "").unwrap();
        access
    }

    fn may_write(cache: &mut PermissionCache, access: &AccessControl, resource: Resource<'_>) -> bool {
        cache.authorize(access, "u", "/", resource, Permission::Write, MethodId::new(60, 40)).is_ok()
    }

    #[test]
    fn changed_permissions_are_seen_at_once() {
        let mut access = access("x");
        let mut cache = PermissionCache::new();
        assert!(may_write(&mut cache, &access, Resource::Exchange("x")));
        access.set_permissions("/", "u", "", "y", "").unwrap();
        assert!(!may_write(&mut cache, &access, Resource::Exchange("x")));
        assert!(may_write(&mut cache, &access, Resource::Exchange("y")));
    }

    #[test]
    fn entries_are_bounded_and_old_ones_are_asked_again() {
        let access = access("^x");
        let mut cache = PermissionCache::new();
        for round in 0..3 {
            for n in 0..MAX_ENTRIES * 2 {
                assert!(may_write(&mut cache, &access, Resource::Queue(&format!("x{n}"))), "round {round}");
            }
        }
        assert_eq!(cache.allowed.len(), MAX_ENTRIES);
        assert!(!may_write(&mut cache, &access, Resource::Queue("y")));
    }

    #[test]
    fn permission_on_a_queue_is_not_one_for_reading_or_for_its_namesake() {
        let access = access("^a$");
        let mut cache = PermissionCache::new();
        assert!(may_write(&mut cache, &access, Resource::Queue("a")));
        let method = MethodId::new(60, 70);
        assert!(cache.authorize(&access, "u", "/", Resource::Queue("a"), Permission::Read, method).is_err());
        assert_eq!(cache.allowed.len(), 1);
        assert!(may_write(&mut cache, &access, Resource::Exchange("a")));
        assert_eq!(cache.allowed.len(), 2);
    }
}
