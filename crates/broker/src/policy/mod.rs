//! Policies: what an operator says about queues and exchanges by patterns of their names.
//!
//! A [`Policy`] is a runtime parameter of component `policy` or `operator_policy`. Of those that match a queue or exchange one counts, the one
//! with the highest priority (RabbitMQ's guides "Parameters and Policies" and "Operator Policies"). An operator's policy is merged into
//! it, and the result into the arguments (`merge`): the lower of two numbers counts; of other values the operator's before the
//! policy's, and the argument before both. Which keys there are and what values they take is in `keys`.

mod keys;
pub(crate) mod merge;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::auth::Pattern;
use crate::topology::{ExchangeKind, QueueKind};

/// The component of policies among the runtime parameters.
pub const POLICY: &str = "policy";
/// The component of operator policies.
pub const OPERATOR_POLICY: &str = "operator_policy";

/// Whose policy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// Anybody with the tag for it.
    User,
    /// The operator, who sets bounds.
    Operator,
}

/// What a policy applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyTo {
    /// All queues and exchanges.
    All,
    /// All queues.
    Queues,
    /// Queues of one type.
    QueuesOf(QueueKind),
    /// All exchanges.
    Exchanges,
}

impl ApplyTo {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queues => "queues",
            Self::QueuesOf(QueueKind::Classic) => "classic_queues",
            Self::QueuesOf(QueueKind::Quorum) => "quorum_queues",
            Self::QueuesOf(QueueKind::Stream) => "streams",
            Self::Exchanges => "exchanges",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        let kinds = [QueueKind::Classic, QueueKind::Quorum, QueueKind::Stream].map(Self::QueuesOf);
        [Self::All, Self::Queues, Self::Exchanges].into_iter().chain(kinds).find(|apply_to| apply_to.as_str() == word)
    }

    fn covers(self, target: Target) -> bool {
        match (self, target) {
            (Self::All, _) | (Self::Queues, Target::Queue(_)) | (Self::Exchanges, Target::Exchange(_)) => true,
            (Self::QueuesOf(wanted), Target::Queue(kind)) => wanted == kind,
            _ => false,
        }
    }
}

/// What a policy is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Queue(QueueKind),
    Exchange(#[expect(dead_code, reason = "policies of one exchange type may come")] ExchangeKind),
}

/// A policy.
#[derive(Clone, Debug)]
pub struct Policy {
    name: Box<str>,
    pattern: Pattern,
    apply_to: ApplyTo,
    priority: i64,
    definition: Map<String, Value>,
}

impl Policy {
    /// Reads a policy from the value of its parameter.
    ///
    /// # Errors
    /// What is wrong, in RabbitMQ's words.
    pub fn from_value(name: &str, value: &Value, author: Author) -> Result<Self, String> {
        let Value::Object(fields) = value else { return Err("policy is not an object".to_owned()) };
        if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            return Err(format!("Unrecognised terms [{unknown}] in policy"));
        }
        let pattern = match fields.get("pattern") {
            Some(Value::String(pattern)) => pattern,
            Some(other) => return Err(format!("pattern should be binary, actually was {}", keys::term(other))),
            None => return Err("Key \"pattern\" not found in policy".to_owned()),
        };
        let pattern = Pattern::new(pattern)
            .map_err(|error| format!("pattern should be regular expression but is invalid: {error}"))?;
        let apply_to = match fields.get("apply-to") {
            None => ApplyTo::All,
            Some(Value::String(word)) => ApplyTo::from_word(word).ok_or_else(|| {
                format!(
                    "apply-to '{word}' unrecognised; should be one of: 'queues', 'exchanges', 'all', \
                         'classic_queues', 'quorum_queues' or 'streams'"
                )
            })?,
            Some(other) => return Err(format!("apply-to should be binary, actually was {}", keys::term(other))),
        };
        let priority = match fields.get("priority") {
            None => 0,
            Some(number) => number
                .as_i64()
                .ok_or_else(|| format!("priority should be a number, actually was {}", keys::term(number)))?,
        };
        let definition = match fields.get("definition") {
            Some(Value::Object(definition)) => definition.clone(),
            _ => return Err("no policy provided".to_owned()),
        };
        keys::check(&definition, author)?;
        Ok(Self { name: name.into(), pattern, apply_to, priority, definition })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The regular expression on names.
    #[must_use]
    pub fn pattern(&self) -> &str {
        self.pattern.as_str()
    }

    /// What it applies to.
    #[must_use]
    pub fn apply_to(&self) -> ApplyTo {
        self.apply_to
    }

    /// Of several that match the highest counts.
    #[must_use]
    pub fn priority(&self) -> i64 {
        self.priority
    }

    /// Keys and values.
    #[must_use]
    pub fn definition(&self) -> &Map<String, Value> {
        &self.definition
    }
}

const FIELDS: [&str; 4] = ["pattern", "apply-to", "priority", "definition"];

/// The policies of one author in a virtual host, those that count first in front. Among equal priorities the name decides, so that all nodes
/// choose the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(Vec<Arc<Policy>>);

impl Policies {
    pub(crate) fn put(&mut self, policy: Policy) {
        self.remove(&policy.name);
        let order = |policy: &Policy| (std::cmp::Reverse(policy.priority), policy.name.clone());
        let place = self.0.partition_point(|other| order(other) < order(&policy));
        self.0.insert(place, Arc::new(policy));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|policy| &*policy.name != name);
    }

    pub(crate) fn find(&self, target: Target, name: &str) -> Option<&Arc<Policy>> {
        self.0.iter().find(|policy| policy.apply_to.covers(target) && policy.pattern.matches(name))
    }
}

/// The policies that count for a queue or exchange.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// That of the users.
    pub policy: Option<Arc<Policy>>,
    /// That of the operator.
    pub operator: Option<Arc<Policy>>,
}

impl Applied {
    /// Whether the same policies count in the same version.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |a: &Option<Arc<Policy>>, b: &Option<Arc<Policy>>| match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        same(&self.policy, &other.policy) && same(&self.operator, &other.operator)
    }

    /// Keys and values of both, merged: what is shown as the effective definition.
    #[must_use]
    pub fn definition(&self) -> Map<String, Value> {
        let mut merged = self.policy.as_ref().map(|policy| policy.definition.clone()).unwrap_or_default();
        for (key, bound) in self.operator.iter().flat_map(|policy| &policy.definition) {
            let value = match merged.get(key) {
                Some(value) => merge::bounded(key, value, bound),
                None => bound.clone(),
            };
            merged.insert(key.clone(), value);
        }
        merged
    }
}

#[cfg(test)]
mod tests;
