//! Limits of virtual hosts and users, as their runtime parameters have them.

use serde_json::Value;

/// Limits of a virtual host. `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VhostLimits {
    pub(crate) max_connections: Option<u64>,
    pub(crate) max_queues: Option<u64>,
}

/// Limits of a user. `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserLimits {
    pub(crate) max_connections: Option<u64>,
    pub(crate) max_channels: Option<u64>,
}

impl VhostLimits {
    /// Reads `{"max-connections": N, "max-queues": N}`, both optional; below 0 is no limit.
    ///
    /// # Errors
    /// What is wrong, in RabbitMQ's words.
    pub(crate) fn from_value(value: &Value) -> Result<Self, String> {
        let [max_connections, max_queues] = read(value, ["max-connections", "max-queues"])?;
        Ok(Self { max_connections, max_queues })
    }
}

impl UserLimits {
    /// Reads `{"max-connections": N, "max-channels": N}`, both optional; below 0 is no limit.
    ///
    /// # Errors
    /// What is wrong, in RabbitMQ's words.
    pub(crate) fn from_value(value: &Value) -> Result<Self, String> {
        let [max_connections, max_channels] = read(value, ["max-connections", "max-channels"])?;
        Ok(Self { max_connections, max_channels })
    }
}

fn read<const N: usize>(value: &Value, names: [&str; N]) -> Result<[Option<u64>; N], String> {
    let Value::Object(fields) = value else { return Err("limits should be an object".to_owned()) };
    let unknown: Vec<String> = fields
        .iter()
        .filter(|(name, _)| !names.contains(&name.as_str()))
        .map(|(name, value)| format!("{{<<\"{name}\">>,{value}}}"))
        .collect();
    if !unknown.is_empty() {
        return Err(format!("Unrecognised terms [{}] in limits", unknown.join(",\n                    ")));
    }
    let mut limits = [None; N];
    for (limit, name) in limits.iter_mut().zip(names) {
        if let Some(value) = fields.get(name) {
            let number = value.as_i64().ok_or_else(|| format!("{name} should be an integer, actually was {value}"))?;
            *limit = u64::try_from(number).ok();
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn negative_numbers_are_no_limits_and_other_names_are_refused() {
        let limits = VhostLimits::from_value(&json!({"max-connections": -1, "max-queues": 0}));
        assert_eq!(limits, Ok(VhostLimits { max_connections: None, max_queues: Some(0) }));
        let unknown = VhostLimits::from_value(&json!({"bad": 5})).expect_err("refused");
        assert_eq!(unknown, "Unrecognised terms [{<<\"bad\">>,5}] in limits");
        assert!(UserLimits::from_value(&json!({"max-channels": "2"})).is_err());
        assert!(UserLimits::from_value(&json!([])).is_err());
    }
}
