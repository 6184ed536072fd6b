//! Virtual hosts.

use serde_json::Value;

use super::{Admin, AdminError, Row, row};
use crate::metadata::{AdminOp, Applied, VhostInfo};
use crate::topology::QueueKind;

/// Longest name in bytes: `connection.open` has it as a short string.
const MAX_NAME_BYTES: usize = 255;
/// Longest description, and longest list of tags, in bytes.
const MAX_INFO_BYTES: usize = 64 * 1024;

/// The fields of [`Admin::vhosts`].
pub const VHOST_FIELDS: &[&str] =
    &["name", "tracing", "cluster_state", "description", "tags", "default_queue_type", "protected_from_deletion"];

impl Admin {
    /// Makes a virtual host.
    ///
    /// # Errors
    /// A name, queue type or description that cannot be. One that is there is no error, and is not changed, as with RabbitMQ.
    pub async fn add_vhost(&mut self, name: &str, info: VhostInfo) -> Result<(), AdminError> {
        check(name, &info)?;
        if self.broker.vhost(name).is_some() {
            return Ok(());
        }
        self.change(name, AdminOp::PutVhost(info)).await.map(|_| ())
    }

    /// Gives a virtual host other information.
    ///
    /// # Errors
    /// It is not there; information that cannot be.
    pub async fn update_vhost(&mut self, name: &str, info: VhostInfo) -> Result<(), AdminError> {
        check(name, &info)?;
        self.check_vhost(name)?;
        self.change(name, AdminOp::PutVhost(info)).await.map(|_| ())
    }

    /// What is known of a virtual host.
    ///
    /// # Errors
    /// It is not there.
    pub fn vhost_info(&self, name: &str) -> Result<VhostInfo, AdminError> {
        let vhost = self.broker.vhost(name).ok_or_else(|| AdminError::NoSuchVhost(name.to_owned()))?;
        Ok(vhost.info().map(|info| VhostInfo::clone(&info)).unwrap_or_default())
    }

    /// Removes a virtual host with all that is in it, and closes its connections.
    ///
    /// # Errors
    /// It is not there, or protected.
    pub async fn delete_vhost(&mut self, name: &str) -> Result<(), AdminError> {
        if self.vhost_info(name)?.protected {
            let text = format!("Cannot delete virtual host '{name}': it is protected from deletion");
            return Err(AdminError::Refused(text));
        }
        match self.change(name, AdminOp::DeleteVhost).await? {
            Applied::Changed => Ok(()),
            Applied::Unchanged => Err(AdminError::NoSuchVhost(name.to_owned())),
        }
    }

    /// All virtual hosts, by name.
    #[must_use]
    pub fn vhosts(&self) -> Vec<Row> {
        let mut vhosts = self.broker.directory().vhosts();
        vhosts.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let node = &self.broker.settings().node_name;
        let each = vhosts.iter().map(|vhost| {
            let info = vhost.info();
            let info = info.as_deref().cloned().unwrap_or_default();
            row([
                ("name", vhost.name().into()),
                ("tracing", false.into()),
                ("cluster_state", row([(node, "running".into())]).into()),
                ("description", info.description.as_ref().into()),
                ("tags", info.tags.iter().map(|tag| Value::from(tag.as_ref())).collect()),
                ("default_queue_type", info.default_queue_type.as_deref().map_or(Value::Null, Value::from)),
                ("protected_from_deletion", info.protected.into()),
            ])
        });
        each.collect()
    }
}

pub(super) fn check(name: &str, info: &VhostInfo) -> Result<(), AdminError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(AdminError::Invalid(format!("the name of a virtual host has 1 to {MAX_NAME_BYTES} bytes")));
    }
    let info_bytes = info.description.len() + info.tags.iter().map(|tag| tag.len() + 4).sum::<usize>();
    if info_bytes > MAX_INFO_BYTES {
        return Err(AdminError::Invalid(format!("description and tags have more than {MAX_INFO_BYTES} bytes")));
    }
    match &info.default_queue_type {
        Some(kind) if QueueKind::from_name(kind.as_bytes()).is_none() => {
            Err(AdminError::Invalid(format!("Unsupported default queue type: {kind}")))
        }
        _ => Ok(()),
    }
}
