//! What a node has, as definitions.

use serde_json::{Map, Value, json};

use super::super::queues::destination_kind;
use super::super::users::tags_json;
use super::super::{Admin, AdminError, values};
use crate::auth::HashAlgorithm;
use crate::directory::VHOST_LIMITS;
use crate::policy::Author;
use crate::topology::Topology;
use crate::vhost::Vhost;

impl Admin {
    /// The definitions of the whole node.
    #[must_use]
    pub fn export_definitions(&self) -> Value {
        let settings = self.broker.settings();
        let mut vhosts = self.broker.directory().vhosts();
        vhosts.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let (mut queues, mut exchanges, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
        for vhost in &vhosts {
            let topology = vhost.read();
            export_queues(&topology, &mut queues);
            export_exchanges(&topology, &mut exchanges);
            export_bindings(&topology, &mut bindings);
        }
        let parameters = self.parameters().into_iter().filter(|parameter| parameter["component"] != VHOST_LIMITS);
        json!({
            "rabbit_version": settings.product_version,
            "rabbitmq_version": settings.product_version,
            "product_name": "WarrenMQ",
            "product_version": env!("CARGO_PKG_VERSION"),
            "rabbitmq_definition_format": "cluster",
            "original_cluster_name": settings.cluster_name,
            "users": self.export_users(),
            "vhosts": vhosts.iter().map(|vhost| self.export_vhost(vhost)).collect::<Vec<_>>(),
            "permissions": self.permissions(),
            "topic_permissions": self.topic_permissions(),
            "parameters": parameters.chain(self.operator_policies()).collect::<Vec<_>>(),
            "global_parameters": self.global_parameters(),
            "policies": self.policies(Author::User),
            "queues": queues,
            "exchanges": exchanges,
            "bindings": bindings,
        })
    }

    fn export_users(&self) -> Vec<Value> {
        let access = self.broker.access();
        let user = |user: &std::sync::Arc<crate::auth::User>| {
            let hash = user.password().map(crate::auth::PasswordHash::to_base64).unwrap_or_default();
            let algorithm = user.password().map_or(HashAlgorithm::default(), crate::auth::PasswordHash::algorithm);
            json!({
                "name": user.name(),
                "password_hash": hash,
                "hashing_algorithm": algorithm.module_name(),
                "tags": tags_json(user.tags()),
                "limits": self.stored_user_limits(user.name()),
            })
        };
        access.users().map(user).collect()
    }

    fn stored_user_limits(&self, user: &str) -> Value {
        let parameters = self.broker.directory().parameters();
        parameters.get("", crate::directory::USER_LIMITS, user).cloned().unwrap_or(json!({}))
    }

    fn export_vhost(&self, vhost: &Vhost) -> Value {
        let info = vhost.info();
        let info = info.as_deref().cloned().unwrap_or_default();
        let tags: Value = info.tags.iter().map(|tag| Value::from(tag.as_ref())).collect();
        let mut metadata = Map::new();
        metadata.insert("description".to_owned(), info.description.as_ref().into());
        metadata.insert("tags".to_owned(), tags.clone());
        if let Some(kind) = info.default_queue_type.as_deref() {
            metadata.insert("default_queue_type".to_owned(), kind.into());
        }
        if info.protected {
            metadata.insert("protected_from_deletion".to_owned(), true.into());
        }
        // RabbitMQ has a list of name and value here.
        let limits = self.vhost_limits(vhost.name()).unwrap_or(Value::Null);
        let limits: Vec<Value> = limits
            .as_object()
            .map(|limits| limits.iter().map(|(name, value)| json!({"name": name, "value": value})).collect())
            .unwrap_or_default();
        json!({
            "name": vhost.name(), "description": info.description.as_ref(), "tags": tags,
            "metadata": metadata, "limits": limits,
        })
    }

    /// Operator policies are parameters in the document, too.
    fn operator_policies(&self) -> Vec<super::super::Row> {
        let parameters = self.broker.directory().parameters();
        let operators = parameters.iter().filter(|(_, component, ..)| *component == crate::policy::OPERATOR_POLICY);
        let rows = operators.map(|(vhost, component, name, value)| {
            super::super::row([
                ("vhost", vhost.into()),
                ("component", component.into()),
                ("name", name.into()),
                ("value", value.clone()),
            ])
        });
        rows.collect()
    }
}

fn export_queues(topology: &Topology, out: &mut Vec<Value>) {
    // An exclusive queue means nothing without its connection.
    for queue in topology.queues().filter(|queue| queue.exclusive_owner.is_none()) {
        out.push(json!({
            "name": &*queue.name,
            "vhost": topology.vhost(),
            "type": queue.kind.name(),
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": values::object(&queue.arguments),
        }));
    }
}

fn export_exchanges(topology: &Topology, out: &mut Vec<Value>) {
    let own = |name: &str| !name.is_empty() && !name.starts_with("amq.");
    for exchange in topology.exchanges().filter(|exchange| own(&exchange.name)) {
        out.push(json!({
            "name": &*exchange.name,
            "vhost": topology.vhost(),
            "type": exchange.kind.name(),
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": values::object(&exchange.arguments),
        }));
    }
}

fn export_bindings(topology: &Topology, out: &mut Vec<Value>) {
    for binding in topology.bindings() {
        let exclusive = topology.find_queue(binding.destination).is_some_and(|queue| queue.exclusive_owner.is_some());
        if exclusive && binding.destination_kind == crate::topology::DestinationKind::Queue {
            continue;
        }
        out.push(json!({
            "source": binding.source,
            "vhost": topology.vhost(),
            "destination": binding.destination,
            "destination_type": destination_kind(binding.destination_kind),
            "routing_key": binding.routing_key,
            "arguments": values::object(binding.arguments),
        }));
    }
}

/// An error that names the document.
pub(super) fn not_definitions(what: impl std::fmt::Display) -> AdminError {
    AdminError::Invalid(format!("no definitions: {what}"))
}
