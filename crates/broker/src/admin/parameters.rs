//! Runtime parameters, and those that have commands of their own: policies and limits of virtual hosts.

use serde_json::{Value, json};

use super::{Admin, AdminError, Row, row};
use crate::directory::{USER_LIMITS, VHOST_LIMITS};
use crate::limits::VhostLimits;
use crate::metadata::{AdminOp, Applied, author};
use crate::policy::{Author, OPERATOR_POLICY, POLICY, Policy};

/// Longest name of a parameter or component, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Longest value, in bytes of JSON.
const MAX_VALUE_BYTES: usize = 64 * 1024;
/// The name of the limits of a virtual host among its parameters.
const LIMITS: &str = "limits";

impl Admin {
    /// Sets a policy. `value` has `pattern`, `definition`, and if they are not the default `apply-to` and `priority`.
    ///
    /// # Errors
    /// The virtual host is not there; a policy that cannot be.
    pub async fn set_policy(
        &mut self,
        vhost: &str,
        author: Author,
        name: &str,
        value: &Value,
    ) -> Result<(), AdminError> {
        self.set_parameter(vhost, component(author), name, value).await
    }

    /// Removes a policy.
    ///
    /// # Errors
    /// Virtual host or policy are not there.
    pub async fn clear_policy(&mut self, vhost: &str, author: Author, name: &str) -> Result<(), AdminError> {
        self.clear_parameter(vhost, component(author), name).await
    }

    /// All policies: `vhost`, `name`, `pattern`, `apply-to`, `definition`, `priority`.
    #[must_use]
    pub fn policies(&self, author: Author) -> Vec<Row> {
        let parameters = self.broker.directory().parameters();
        let of_author = parameters.iter().filter(|(_, component, ..)| *component == self::component(author));
        let rows = of_author.filter_map(|(vhost, _, name, value)| {
            let policy = Policy::from_value(name, value, author).ok()?;
            Some(row([
                ("vhost", vhost.into()),
                ("name", name.into()),
                ("pattern", policy.pattern().into()),
                ("apply-to", policy.apply_to().as_str().into()),
                ("definition", Value::Object(policy.definition().clone())),
                ("priority", policy.priority().into()),
            ]))
        });
        rows.collect()
    }

    /// Sets a runtime parameter of a virtual host.
    ///
    /// # Errors
    /// The virtual host is not there; a component that no feature of this version has; a value that cannot be.
    pub async fn set_parameter(
        &mut self,
        vhost: &str,
        component: &str,
        name: &str,
        value: &Value,
    ) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        let op = set_parameter(component, name, value)?;
        self.change(vhost, op).await.map(|_| ())
    }

    /// Removes a runtime parameter of a virtual host.
    ///
    /// # Errors
    /// It is not there.
    pub async fn clear_parameter(&mut self, vhost: &str, component: &str, name: &str) -> Result<(), AdminError> {
        self.check_vhost(vhost)?;
        let op = AdminOp::ClearParameter { component: component.into(), name: name.into() };
        match self.change(vhost, op).await? {
            Applied::Changed => Ok(()),
            Applied::Unchanged => Err(AdminError::NotFound("Parameter does not exist".to_owned())),
        }
    }

    /// The runtime parameters that are no policies: `vhost`, `component`, `name`, `value`.
    #[must_use]
    pub fn parameters(&self) -> Vec<Row> {
        let parameters = self.broker.directory().parameters();
        let others =
            parameters.iter().filter(|(vhost, component, ..)| !vhost.is_empty() && author(component).is_none());
        let rows = others.map(|(vhost, component, name, value)| {
            row([
                ("vhost", vhost.into()),
                ("component", component.into()),
                ("name", name.into()),
                ("value", value.clone()),
            ])
        });
        rows.collect()
    }

    /// Sets a parameter that belongs to no virtual host.
    ///
    /// # Errors
    /// A name or value that cannot be.
    pub async fn set_global_parameter(&mut self, name: &str, value: &Value) -> Result<(), AdminError> {
        let op = set_global_parameter(name, value)?;
        self.change("", op).await.map(|_| ())
    }

    /// Removes a parameter that belongs to no virtual host.
    ///
    /// # Errors
    /// It is not there.
    pub async fn clear_global_parameter(&mut self, name: &str) -> Result<(), AdminError> {
        match self.change("", AdminOp::ClearParameter { component: "".into(), name: name.into() }).await? {
            Applied::Changed => Ok(()),
            Applied::Unchanged => Err(AdminError::NotFound("Parameter does not exist".to_owned())),
        }
    }

    /// The parameters that belong to no virtual host: `name`, `value`.
    #[must_use]
    pub fn global_parameters(&self) -> Vec<Row> {
        let parameters = self.broker.directory().parameters();
        let global = parameters.iter().filter(|(vhost, component, ..)| vhost.is_empty() && *component != USER_LIMITS);
        global.map(|(_, _, name, value)| row([("name", name.into()), ("value", value.clone())])).collect()
    }

    /// Sets the limits of a virtual host, in place of all that were set.
    ///
    /// # Errors
    /// It is not there; no limits.
    pub async fn set_vhost_limits(&mut self, vhost: &str, limits: &Value) -> Result<(), AdminError> {
        self.set_parameter(vhost, VHOST_LIMITS, LIMITS, limits).await
    }

    /// Takes the limits of a virtual host away.
    ///
    /// # Errors
    /// It is not there.
    pub async fn clear_vhost_limits(&mut self, vhost: &str) -> Result<(), AdminError> {
        match self.clear_parameter(vhost, VHOST_LIMITS, LIMITS).await {
            Err(AdminError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    /// The limits of a virtual host, as they were set.
    ///
    /// # Errors
    /// It is not there.
    pub fn vhost_limits(&self, vhost: &str) -> Result<Value, AdminError> {
        self.check_vhost(vhost)?;
        let parameters = self.broker.directory().parameters();
        Ok(parameters.get(vhost, VHOST_LIMITS, LIMITS).cloned().unwrap_or(json!({})))
    }
}

fn component(author: Author) -> &'static str {
    match author {
        Author::User => POLICY,
        Author::Operator => OPERATOR_POLICY,
    }
}

/// The change that sets a parameter of a virtual host.
pub(super) fn set_parameter(component: &str, name: &str, value: &Value) -> Result<AdminOp, AdminError> {
    if let Some(author) = author(component) {
        Policy::from_value(name, value, author).map_err(AdminError::Invalid)?;
    } else if component == VHOST_LIMITS {
        VhostLimits::from_value(value).map_err(AdminError::Invalid)?;
    } else {
        return Err(AdminError::Invalid(format!("component {component} not found")));
    }
    checked(component, name, value)
}

/// The change that sets a parameter that belongs to no virtual host.
pub(super) fn set_global_parameter(name: &str, value: &Value) -> Result<AdminOp, AdminError> {
    checked("", name, value)
}

fn checked(component: &str, name: &str, value: &Value) -> Result<AdminOp, AdminError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(AdminError::Invalid(format!("the name of a parameter has 1 to {MAX_NAME_BYTES} bytes")));
    }
    let value = value.to_string();
    if value.len() > MAX_VALUE_BYTES {
        return Err(AdminError::Invalid(format!("the value has more than {MAX_VALUE_BYTES} bytes")));
    }
    Ok(AdminOp::SetParameter { component: component.into(), name: name.into(), value: value.into() })
}
