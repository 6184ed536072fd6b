//! Definitions that become what a node has.

use amqp::FieldTable;
use queue::{Op as QueueOp, QueueId};
use serde_json::{Map, Value};

use super::super::{Admin, AdminError, parameters, users, values, vhosts};
use super::export::not_definitions;
use super::{ImportReport, MAX_DEFINITIONS_BYTES};
use crate::auth::{HashAlgorithm, Password, Tag};
use crate::directory::{USER_LIMITS, VHOST_LIMITS};
use crate::metadata::{AdminOp, Binding, Change, DeclareQueue, Op, VhostInfo};
use crate::policy::POLICY;
use crate::topology::{
    BindingPlace, ConnectionId, Declared, ExchangeDeclare, ExchangeKind, Presence, QueueDeclare, strip_crlf,
};

/// Nobody: what is imported belongs to no connection.
const NOBODY: ConnectionId = ConnectionId(0);

/// Components of features that this version does not have: their parameters are left out.
const OTHER_COMPONENTS: [&str; 3] = ["shovel", "federation-upstream", "federation-upstream-set"];

/// An item of the document.
type Item = Map<String, Value>;

/// What an item comes to.
enum Step {
    /// A change for the log.
    Change(Change),
    /// It is as wanted, or was made in memory.
    Done,
    /// Passed over, and why.
    Skip(String),
}

impl Admin {
    /// Imports a document.
    ///
    /// # Errors
    /// It is no document, or the log has stopped. Items that cannot be are in the report.
    pub async fn import_definitions(&mut self, document: &[u8]) -> Result<ImportReport, AdminError> {
        if document.len() > MAX_DEFINITIONS_BYTES {
            return Err(not_definitions(format_args!("more than {MAX_DEFINITIONS_BYTES} bytes")));
        }
        // Some editors put a byte order mark in front.
        let text = document.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(document);
        let document: Value = serde_json::from_slice(text).map_err(not_definitions)?;
        let Value::Object(document) = document else { return Err(not_definitions("it is no JSON object")) };
        let mut report = ImportReport::default();
        type Section = (&'static str, fn(&Admin, &Item) -> Result<Vec<Step>, AdminError>);
        let sections: [Section; 10] = [
            ("users", Admin::import_user),
            ("vhosts", Admin::import_vhost),
            ("permissions", Admin::import_permissions),
            ("topic_permissions", Admin::import_topic_permissions),
            ("parameters", Admin::import_parameter),
            ("global_parameters", Admin::import_global_parameter),
            ("policies", Admin::import_policy),
            ("queues", Admin::import_queue),
            ("exchanges", Admin::import_exchange),
            ("bindings", Admin::import_binding),
        ];
        for (name, import) in sections {
            match document.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::Array(items)) => self.import_section(name, items, import, &mut report).await,
                Some(_) => return Err(not_definitions(format_args!("'{name}' is no list"))),
            }
        }
        Ok(report)
    }

    async fn import_section(
        &mut self,
        section: &str,
        items: &[Value],
        import: fn(&Admin, &Item) -> Result<Vec<Step>, AdminError>,
        report: &mut ImportReport,
    ) {
        let (mut changes, mut labels) = (Vec::new(), Vec::new());
        for item in items {
            let label = label(section, item);
            let steps = match item {
                Value::Object(item) => import(self, item),
                _ => Err(AdminError::Invalid("it is no object".to_owned())),
            };
            match steps {
                Err(error) => report.failed(&label, error),
                Ok(steps) => {
                    for step in steps {
                        match step {
                            Step::Change(change) => {
                                changes.push(change);
                                labels.push(label.clone());
                            }
                            Step::Done => report.imported += 1,
                            Step::Skip(why) => report.skipped(&label, why),
                        }
                    }
                }
            }
        }
        for (label, result) in labels.iter().zip(self.link.changes(changes).await) {
            match result {
                Ok(_) => report.imported += 1,
                Err(exception) => report.failed(label, exception.text),
            }
        }
    }

    fn import_user(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let name = text(item, "name")?;
        let algorithm = match item.get("hashing_algorithm") {
            // What RabbitMQ before 3.6 did not write.
            None | Some(Value::Null) => HashAlgorithm::Md5,
            Some(value) => {
                let name = value.as_str().unwrap_or_default();
                HashAlgorithm::from_module_name(name)
                    .ok_or_else(|| AdminError::Invalid(format!("hashing algorithm {value} is not known")))?
            }
        };
        let password = match (item.get("password_hash"), item.get("password")) {
            (Some(Value::String(base64)), _) => Password::Hash { base64, algorithm },
            (_, Some(Value::String(plain))) => Password::Plain(plain),
            _ => Password::None,
        };
        let tags = match item.get("tags") {
            None | Some(Value::Null) => Vec::new(),
            // A list since 3.9, words with commas before.
            Some(Value::Array(tags)) => tags.iter().filter_map(Value::as_str).map(Tag::from).collect(),
            Some(Value::String(tags)) => {
                tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(Tag::from).collect()
            }
            Some(_) => return Err(AdminError::Invalid("'tags' is neither list nor text".to_owned())),
        };
        let put = users::put_user(name, users::hash(password)?, tags)?;
        let mut steps = vec![change("", put)];
        if let Some(limits @ Value::Object(fields)) = item.get("limits")
            && !fields.is_empty()
        {
            crate::limits::UserLimits::from_value(limits).map_err(AdminError::Invalid)?;
            let (component, name, value) = (USER_LIMITS.into(), name.into(), limits.to_string().into());
            steps.push(change("", AdminOp::SetParameter { component, name, value }));
        }
        Ok(steps)
    }

    fn import_vhost(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let name = text(item, "name")?;
        let metadata = item.get("metadata").and_then(Value::as_object);
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name)).or_else(|| item.get(name));
        let tags = field("tags").and_then(Value::as_array);
        let queue_type = field("default_queue_type").and_then(Value::as_str).filter(|kind| *kind != "undefined");
        let info = VhostInfo {
            description: field("description").and_then(Value::as_str).unwrap_or_default().into(),
            tags: tags.into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect(),
            default_queue_type: queue_type.map(Into::into),
            protected: field("protected_from_deletion").and_then(Value::as_bool).unwrap_or(false),
        };
        vhosts::check(name, &info)?;
        let mut steps = vec![change(name, AdminOp::PutVhost(info))];
        let limits: Item = match item.get("limits") {
            Some(Value::Object(limits)) => limits.clone(),
            // A list of name and value.
            Some(Value::Array(limits)) => limits
                .iter()
                .filter_map(|limit| Some((limit.get("name")?.as_str()?.to_owned(), limit.get("value")?.clone())))
                .collect(),
            _ => Item::new(),
        };
        if !limits.is_empty() {
            let op = parameters::set_parameter(VHOST_LIMITS, "limits", &Value::Object(limits))?;
            steps.push(change(name, op));
        }
        Ok(steps)
    }

    fn import_permissions(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let (vhost, user) = (text(item, "vhost")?, text(item, "user")?);
        let [configure, write, read] = [text(item, "configure")?, text(item, "write")?, text(item, "read")?];
        users::try_on(user, |access| access.set_permissions(vhost, user, configure, write, read))?;
        let [configure, write, read] = [configure, write, read].map(Into::into);
        Ok(vec![change(vhost, AdminOp::SetPermissions { user: user.into(), configure, write, read })])
    }

    fn import_topic_permissions(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let (vhost, user, exchange) = (text(item, "vhost")?, text(item, "user")?, text(item, "exchange")?);
        let [write, read] = [text(item, "write")?, text(item, "read")?];
        users::try_on(user, |access| access.set_topic_permissions(vhost, user, exchange, write, read))?;
        let (user, exchange, write, read) = (user.into(), exchange.into(), write.into(), read.into());
        Ok(vec![change(vhost, AdminOp::SetTopicPermissions { user, exchange, write, read })])
    }

    fn import_parameter(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let (vhost, component, name) = (text(item, "vhost")?, text(item, "component")?, text(item, "name")?);
        if OTHER_COMPONENTS.contains(&component) {
            return Ok(vec![Step::Skip(format!("this version has no {component}"))]);
        }
        let value = item.get("value").unwrap_or(&Value::Null);
        Ok(vec![change(vhost, parameters::set_parameter(component, name, value)?)])
    }

    fn import_global_parameter(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let value = item.get("value").unwrap_or(&Value::Null);
        Ok(vec![change("", parameters::set_global_parameter(text(item, "name")?, value)?)])
    }

    fn import_policy(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let (vhost, name) = (text(item, "vhost")?, text(item, "name")?);
        let policy: Item = ["pattern", "apply-to", "definition", "priority"]
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())))
            .collect();
        Ok(vec![change(vhost, parameters::set_parameter(POLICY, name, &Value::Object(policy))?)])
    }

    fn import_queue(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let name = strip_crlf(text(item, "name")?);
        let vhost_name = text(item, "vhost")?;
        let vhost = self.broker.vhost(vhost_name).ok_or_else(|| AdminError::NoSuchVhost(vhost_name.to_owned()))?;
        let mut arguments = arguments(item)?;
        if let Some(kind) = item.get("type").and_then(Value::as_str)
            && kind != "classic"
            && !arguments.contains_key("x-queue-type")
        {
            arguments.insert("x-queue-type".into(), amqp::AMQPValue::LongString(kind.into()));
        }
        let request = QueueDeclare {
            name: &name,
            // Names that the server made up are reserved for it, and are in documents all the same.
            server_named: name.starts_with("amq."),
            passive: false,
            durable: boolean(item, "durable", true),
            exclusive: false,
            auto_delete: boolean(item, "auto_delete", false),
            arguments: &arguments,
            connection: NOBODY,
        };
        let topology = vhost.read();
        if topology.find_queue(&name).is_some() {
            return Ok(vec![Step::Done]);
        }
        let checked = topology.check_declare_queue(&request)?;
        debug_assert!(matches!(checked, Declared::New));
        if request.durable {
            let op = Op::DeclareQueue(DeclareQueue {
                id: QueueId(0),
                shard: 0,
                name: name.as_ref().into(),
                auto_delete: request.auto_delete,
                arguments: arguments.clone(),
            });
            vhost.claims().make(&op);
            return Ok(vec![Step::Change(Change { vhost: vhost_name.into(), op })]);
        }
        drop(topology);
        let broker = &self.broker;
        vhost.change(|topology| {
            if topology.find_queue(&name).is_none() {
                let (id, shard) = broker.new_local_queue();
                let record = topology.create_queue(id, shard, &request);
                broker.send_ops(shard, vec![QueueOp::Create { queue: id, settings: record.machine_settings() }]);
            }
        });
        Ok(vec![Step::Done])
    }

    fn import_exchange(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let name = strip_crlf(text(item, "name")?);
        let vhost_name = text(item, "vhost")?;
        if name.is_empty() || name.starts_with("amq.") {
            return Ok(vec![Step::Done]);
        }
        let vhost = self.broker.vhost(vhost_name).ok_or_else(|| AdminError::NoSuchVhost(vhost_name.to_owned()))?;
        let arguments = arguments(item)?;
        let declare = ExchangeDeclare {
            name: &name,
            kind: text(item, "type")?,
            passive: false,
            durable: boolean(item, "durable", true),
            auto_delete: boolean(item, "auto_delete", false),
            internal: boolean(item, "internal", false),
            arguments: &arguments,
        };
        let topology = vhost.read();
        if topology.find_exchange(&name).is_some() {
            return Ok(vec![Step::Done]);
        }
        let presence = topology.check_declare_exchange(&declare)?;
        debug_assert_eq!(presence, Presence::Missing);
        let kind = ExchangeKind::from_name(declare.kind).expect("an unknown type is refused");
        if declare.durable {
            let op = Op::DeclareExchange {
                name: name.as_ref().into(),
                kind,
                auto_delete: declare.auto_delete,
                internal: declare.internal,
                arguments: arguments.clone(),
            };
            vhost.claims().make(&op);
            return Ok(vec![Step::Change(Change { vhost: vhost_name.into(), op })]);
        }
        drop(topology);
        vhost.change(|topology| {
            if topology.find_exchange(&name).is_none() { topology.declare_exchange(&declare) } else { Ok(()) }
        })?;
        Ok(vec![Step::Done])
    }

    fn import_binding(&self, item: &Item) -> Result<Vec<Step>, AdminError> {
        let (source, destination) = (strip_crlf(text(item, "source")?), strip_crlf(text(item, "destination")?));
        let (vhost_name, key) = (text(item, "vhost")?, text(item, "routing_key")?);
        let arguments = arguments(item)?;
        if source.is_empty() {
            return Ok(vec![Step::Done]);
        }
        let vhost = self.broker.vhost(vhost_name).ok_or_else(|| AdminError::NoSuchVhost(vhost_name.to_owned()))?;
        let to_queue = text(item, "destination_type")? == "queue";
        let place: BindingPlace = {
            let topology = vhost.read();
            if to_queue {
                topology.check_bind_queue(&destination, &source, key, &arguments, NOBODY)?
            } else {
                topology.check_bind_exchange(&destination, &source, key, &arguments)?
            }
        };
        if place.presence == Presence::There {
            return Ok(vec![Step::Done]);
        }
        if place.durable {
            let binding = Binding {
                destination: destination.as_ref().into(),
                source: source.as_ref().into(),
                routing_key: key.into(),
                arguments,
            };
            let op = if to_queue { Op::BindQueue(binding) } else { Op::BindExchange(binding) };
            return Ok(vec![Step::Change(Change { vhost: vhost_name.into(), op })]);
        }
        vhost.change(|topology| {
            if to_queue {
                topology.bind_queue(&destination, &source, key, &arguments, NOBODY)
            } else {
                topology.bind_exchange(&destination, &source, key, &arguments)
            }
        })?;
        Ok(vec![Step::Done])
    }
}

fn change(vhost: &str, op: AdminOp) -> Step {
    Step::Change(Change { vhost: vhost.into(), op: op.into() })
}

/// A field that is a text and fits what names and keys travel in, or a regular expression.
fn text<'a>(item: &'a Item, field: &str) -> Result<&'a str, AdminError> {
    let is_name = !matches!(field, "configure" | "write" | "read");
    match item.get(field) {
        Some(Value::String(text)) if is_name && text.len() > u8::MAX.into() => {
            Err(AdminError::Invalid(format!("'{field}' is longer than 255 bytes")))
        }
        Some(Value::String(text)) => Ok(text),
        _ => Err(AdminError::Invalid(format!("'{field}' is no text"))),
    }
}

fn boolean(item: &Item, field: &str, default: bool) -> bool {
    item.get(field).and_then(Value::as_bool).unwrap_or(default)
}

fn arguments(item: &Item) -> Result<FieldTable, AdminError> {
    match item.get("arguments") {
        None | Some(Value::Null) => Ok(FieldTable::default()),
        Some(Value::Object(arguments)) => Ok(values::table(arguments)),
        // An empty list is what some tools write for no arguments.
        Some(Value::Array(arguments)) if arguments.is_empty() => Ok(FieldTable::default()),
        Some(_) => Err(AdminError::Invalid("'arguments' is no object".to_owned())),
    }
}

/// How an item is named in the report.
fn label(section: &str, item: &Value) -> String {
    let field = |name: &str| item.get(name).and_then(Value::as_str);
    let name = field("name").or_else(|| field("user")).or_else(|| field("destination")).unwrap_or("?");
    match field("vhost") {
        Some(vhost) => format!("{section} '{name}' in vhost '{vhost}'"),
        None => format!("{section} '{name}'"),
    }
}
