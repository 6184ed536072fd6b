//! What a node answers to each command.

use std::sync::Arc;

use broker::Broker;
use broker::admin::{
    Admin, AdminError, BINDING_FIELDS, CHANNEL_FIELDS, CONNECTION_FIELDS, CONSUMER_FIELDS, EXCHANGE_FIELDS,
    QUEUE_FIELDS, Row, VHOST_FIELDS,
};
use broker::auth::{HashAlgorithm, Password, Tag};
use broker::metadata::VhostInfo;
use broker::policy::Author;
use serde_json::{Map, Value, json};

use super::server::NodeFacts;

/// A request, as it came.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) command: String,
    pub(super) arguments: Vec<String>,
    pub(super) options: Map<String, Value>,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing to say.
    Done,
    /// Columns and rows.
    Listing(Vec<String>, Vec<Row>),
    /// Anything else.
    Value(Value),
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What the client chooses its words and exit code by.
    pub(super) kind: &'static str,
    /// In words.
    pub(super) text: String,
}

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Self {
        let kind = match &error {
            AdminError::NoSuchUser(_) => "no_such_user",
            AdminError::NoSuchVhost(_) => "no_such_vhost",
            AdminError::NotFound(_) => "not_found",
            AdminError::AlreadyExists(_) => "already_exists",
            AdminError::Invalid(_) => "invalid",
            AdminError::Refused(_) => "refused",
            _ => "unavailable",
        };
        Self { kind, text: error.to_string() }
    }
}

fn usage(text: impl Into<String>) -> Refusal {
    Refusal { kind: "usage", text: text.into() }
}

impl Request {
    fn argument(&self, place: usize) -> Result<&str, Refusal> {
        self.arguments.get(place).map(String::as_str).ok_or_else(|| usage("not enough arguments."))
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).and_then(Value::as_str)
    }

    fn has(&self, flag: &str) -> bool {
        self.options.contains_key(flag)
    }

    fn vhost(&self) -> &str {
        self.option("vhost").unwrap_or("/")
    }

    /// The columns that are asked for, which may be separated by commas, too.
    fn columns<'a>(&'a self, known: &[&str], default: &[&'a str]) -> Result<Vec<&'a str>, Refusal> {
        let words = self.arguments.iter().flat_map(|word| word.split([',', ' ']));
        let columns: Vec<&str> = words.map(str::trim).filter(|word| !word.is_empty()).collect();
        let unknown: Vec<&str> = columns.iter().copied().filter(|column| !known.contains(column)).collect();
        if !unknown.is_empty() {
            return Err(usage(format!("Info key(s) {} are not supported", unknown.join(","))));
        }
        Ok(if columns.is_empty() { default.to_vec() } else { columns })
    }

    fn json(&self, place: usize) -> Result<Value, Refusal> {
        serde_json::from_str(self.argument(place)?)
            .map_err(|error| Refusal { kind: "json", text: format!("JSON decoding error. Reason: {error}") })
    }

    fn tags(&self) -> Vec<Tag> {
        let words = self.arguments.get(1..).unwrap_or_default();
        // `administrator,management` is one word of many scripts.
        words
            .iter()
            .flat_map(|word| word.split(','))
            .map(str::trim)
            .filter(|tag| !tag.is_empty())
            .map(Tag::from)
            .collect()
    }
}

/// Answers a request.
///
/// # Errors
/// What the client is told.
pub(super) async fn answer(broker: &Arc<Broker>, facts: &NodeFacts, request: &Request) -> Result<Answer, Refusal> {
    let mut admin = Admin::new(broker);
    match request.command.as_str() {
        "add_user" | "delete_user" | "change_password" | "clear_password" | "authenticate_user" | "set_user_tags"
        | "list_users" | "set_user_limits" | "clear_user_limits" | "list_user_limits" => {
            users(&mut admin, request).await
        }
        name if name.contains("permissions") => permissions(&mut admin, request).await,
        name if name.contains("vhost") => vhosts(&mut admin, request).await,
        name if name.contains("polic") || name.contains("parameter") => parameters(&mut admin, request).await,
        "list_queues" | "list_exchanges" | "list_bindings" | "purge_queue" | "delete_queue" => {
            queues(&mut admin, request).await
        }
        "list_connections"
        | "list_channels"
        | "list_consumers"
        | "close_connection"
        | "close_all_connections"
        | "close_all_user_connections" => connections(&mut admin, request).await,
        "import_definitions" => import(&mut admin, request).await,
        "export_definitions" => Ok(Answer::Value(admin.export_definitions())),
        _ => node(&admin, facts, request),
    }
}

async fn users(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let user = || request.argument(0);
    match request.command.as_str() {
        "add_user" => {
            let password = password(request)?;
            admin.add_user(user()?, password, Vec::new()).await?;
        }
        "delete_user" => admin.delete_user(user()?).await?,
        "change_password" => admin.change_password(user()?, password(request)?).await?,
        "clear_password" => admin.change_password(user()?, Password::None).await?,
        "authenticate_user" => admin
            .authenticate(user()?, request.argument(1)?)
            .map_err(|error| Refusal { kind: "login", text: error.to_string() })?,
        "set_user_tags" => admin.set_user_tags(user()?, request.tags()).await?,
        "list_users" => return Ok(listing(&["user", "tags"], admin.users())),
        "set_user_limits" => admin.set_user_limits(user()?, &request.json(1)?).await?,
        "clear_user_limits" => {
            let name = request.argument(1)?;
            admin.clear_user_limits(user()?, (name != "all").then_some(name)).await?;
        }
        _ => return user_limits(admin, request.option("user")),
    }
    Ok(Answer::Done)
}

fn password(request: &Request) -> Result<Password<'_>, Refusal> {
    let word = request.argument(1)?;
    if request.has("pre-hashed-password") {
        return Ok(Password::Hash { base64: word, algorithm: HashAlgorithm::default() });
    }
    if word.is_empty() {
        return Err(Refusal { kind: "data", text: "user cannot have a blank password".to_owned() });
    }
    Ok(Password::Plain(word))
}

fn user_limits(admin: &Admin, user: Option<&str>) -> Result<Answer, Refusal> {
    if let Some(user) = user {
        return Ok(Answer::Value(admin.user_limits(user)?));
    }
    let names = admin.users().into_iter().filter_map(|user| user["user"].as_str().map(str::to_owned));
    let rows = names.filter_map(|user| limits_row("user", &user, admin.user_limits(&user).ok()?)).collect();
    Ok(listing(&["user", "limits"], rows))
}

/// A row of limits; none where nothing is limited.
fn limits_row(whose: &str, name: &str, limits: Value) -> Option<Row> {
    let is_empty = limits.as_object().is_none_or(Map::is_empty);
    (!is_empty).then(|| object(json!({whose: name, "limits": limits.to_string()})))
}

async fn permissions(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let (vhost, argument) = (request.vhost(), |place| request.argument(place));
    match request.command.as_str() {
        "set_permissions" => {
            let patterns = [argument(1)?, argument(2)?, argument(3)?];
            admin.set_permissions(vhost, argument(0)?, patterns).await?;
        }
        "set_permissions_globally" => {
            let patterns = [argument(1)?, argument(2)?, argument(3)?];
            for row in admin.vhosts() {
                let name = row["name"].as_str().unwrap_or_default();
                admin.set_permissions(name, argument(0)?, patterns).await?;
            }
        }
        "clear_permissions" => admin.clear_permissions(vhost, argument(0)?).await?,
        "list_permissions" => {
            admin.vhost_info(vhost)?;
            let rows = only(admin.permissions(), "vhost", vhost);
            return Ok(listing(&["user", "configure", "write", "read"], rows));
        }
        "list_user_permissions" => {
            admin.user_limits(argument(0)?)?;
            let rows = only(admin.permissions(), "user", argument(0)?);
            return Ok(listing(&["vhost", "configure", "write", "read"], rows));
        }
        "set_topic_permissions" => {
            let patterns = [argument(2)?, argument(3)?];
            admin.set_topic_permissions(vhost, argument(0)?, argument(1)?, patterns).await?;
        }
        "clear_topic_permissions" => {
            let exchange = request.arguments.get(1).map(String::as_str);
            admin.clear_topic_permissions(vhost, argument(0)?, exchange).await?;
        }
        "list_topic_permissions" => {
            admin.vhost_info(vhost)?;
            let rows = only(admin.topic_permissions(), "vhost", vhost);
            return Ok(listing(&["user", "exchange", "write", "read"], rows));
        }
        "list_user_topic_permissions" => {
            admin.user_limits(argument(0)?)?;
            let rows = only(admin.topic_permissions(), "user", argument(0)?);
            return Ok(listing(&["vhost", "exchange", "write", "read"], rows));
        }
        other => return Err(unknown(other)),
    }
    Ok(Answer::Done)
}

async fn vhosts(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let name = || request.argument(0);
    let tags = |words: &str| words.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(Into::into).collect();
    let described = |mut info: VhostInfo| {
        if let Some(description) = request.option("description") {
            info.description = description.into();
        }
        if let Some(words) = request.option("tags") {
            info.tags = tags(words);
        }
        if let Some(kind) = request.option("default-queue-type") {
            info.default_queue_type = Some(kind.into());
        }
        info
    };
    match request.command.as_str() {
        "add_vhost" => admin.add_vhost(name()?, described(VhostInfo::default())).await?,
        "update_vhost_metadata" => {
            let info = described(admin.vhost_info(name()?)?);
            admin.update_vhost(name()?, info).await?;
        }
        "set_vhost_tags" => {
            let tags = request.tags().iter().map(|tag| tag.as_str().into()).collect();
            let info = VhostInfo { tags, ..admin.vhost_info(name()?)? };
            admin.update_vhost(name()?, info).await?;
        }
        protection @ ("enable_vhost_deletion_protection" | "disable_vhost_deletion_protection") => {
            let protected = protection.starts_with("enable");
            let info = VhostInfo { protected, ..admin.vhost_info(name()?)? };
            admin.update_vhost(name()?, info).await?;
        }
        "delete_vhost" => admin.delete_vhost(name()?).await?,
        "list_vhosts" => {
            let columns = request.columns(VHOST_FIELDS, &["name"])?;
            return Ok(listing(&columns, admin.vhosts()));
        }
        "set_vhost_limits" => admin.set_vhost_limits(request.vhost(), &request.json(0)?).await?,
        "clear_vhost_limits" => admin.clear_vhost_limits(request.vhost()).await?,
        "list_vhost_limits" if request.has("global") => {
            let names = admin.vhosts().into_iter().filter_map(|vhost| vhost["name"].as_str().map(str::to_owned));
            let rows =
                names.filter_map(|vhost| limits_row("vhost", &vhost, admin.vhost_limits(&vhost).ok()?)).collect();
            return Ok(listing(&["vhost", "limits"], rows));
        }
        "list_vhost_limits" => return Ok(Answer::Value(admin.vhost_limits(request.vhost())?)),
        other => return Err(unknown(other)),
    }
    Ok(Answer::Done)
}

async fn parameters(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let (vhost, argument) = (request.vhost(), |place| request.argument(place));
    let author = if request.command.contains("operator") { Author::Operator } else { Author::User };
    match request.command.as_str() {
        "set_policy" | "set_operator_policy" => {
            let priority = request.option("priority").unwrap_or("0");
            let priority: i64 = priority.parse().map_err(|_| usage(format!("--priority : {priority}")))?;
            let apply_to = request.option("apply-to").unwrap_or("all");
            let definition = request.json(2)?;
            let value = json!({
                "pattern": argument(1)?, "priority": priority, "apply-to": apply_to, "definition": definition,
            });
            admin.set_policy(vhost, author, argument(0)?, &value).await?;
        }
        "clear_policy" | "clear_operator_policy" => admin.clear_policy(vhost, author, argument(0)?).await?,
        "list_policies" | "list_operator_policies" => {
            admin.vhost_info(vhost)?;
            let mut rows = only(admin.policies(author), "vhost", vhost);
            rows.iter_mut().for_each(|row| as_text(row, "definition"));
            return Ok(listing(&["vhost", "name", "pattern", "apply-to", "definition", "priority"], rows));
        }
        "set_parameter" => admin.set_parameter(vhost, argument(0)?, argument(1)?, &request.json(2)?).await?,
        "clear_parameter" => admin.clear_parameter(vhost, argument(0)?, argument(1)?).await?,
        "list_parameters" => {
            admin.vhost_info(vhost)?;
            let mut rows = only(admin.parameters(), "vhost", vhost);
            rows.iter_mut().for_each(|row| as_text(row, "value"));
            return Ok(listing(&["component", "name", "value"], rows));
        }
        "set_global_parameter" => admin.set_global_parameter(argument(0)?, &request.json(1)?).await?,
        "clear_global_parameter" => admin.clear_global_parameter(argument(0)?).await?,
        "list_global_parameters" => {
            let mut rows = admin.global_parameters();
            rows.iter_mut().for_each(|row| as_text(row, "value"));
            return Ok(listing(&["name", "value"], rows));
        }
        other => return Err(unknown(other)),
    }
    Ok(Answer::Done)
}

async fn queues(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let vhost = request.vhost();
    match request.command.as_str() {
        "list_queues" => {
            let columns = request.columns(QUEUE_FIELDS, &["name", "messages"])?;
            let rows = admin.queues(vhost, &columns).await?;
            Ok(listing(&columns, rows))
        }
        "list_exchanges" => {
            let columns = request.columns(EXCHANGE_FIELDS, &["name", "type"])?;
            Ok(listing(&columns, admin.exchanges(vhost)?))
        }
        "list_bindings" => {
            let columns = request.columns(BINDING_FIELDS, BINDING_FIELDS)?;
            Ok(listing(&columns, admin.bindings(vhost)?))
        }
        "purge_queue" => {
            admin.purge_queue(vhost, request.argument(0)?).await?;
            Ok(Answer::Done)
        }
        _ => {
            let (unused, empty) = (request.has("if-unused"), request.has("if-empty"));
            let messages = admin.delete_queue(vhost, request.argument(0)?, unused, empty).await?;
            Ok(Answer::Value(messages.into()))
        }
    }
}

async fn connections(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    match request.command.as_str() {
        "list_connections" => {
            let columns = request.columns(CONNECTION_FIELDS, &["user", "peer_host", "peer_port", "state"])?;
            Ok(listing(&columns, admin.connections().await))
        }
        "list_channels" => {
            let default = ["pid", "user", "consumer_count", "messages_unacknowledged"];
            let columns = request.columns(CHANNEL_FIELDS, &default)?;
            Ok(listing(&columns, admin.channels().await))
        }
        "list_consumers" => {
            let default =
                ["queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"];
            let columns = request.columns(CONSUMER_FIELDS, &default)?;
            Ok(listing(&columns, admin.consumers(request.vhost()).await?))
        }
        "close_connection" => {
            admin.close_connection(request.argument(0)?, request.argument(1)?)?;
            Ok(Answer::Done)
        }
        "close_all_connections" => {
            let vhost = (!request.has("global")).then(|| request.vhost());
            let closed = admin.close_connections(vhost, None, request.argument(0)?);
            Ok(Answer::Value(closed.into()))
        }
        _ => {
            let closed = admin.close_connections(None, Some(request.argument(0)?), request.argument(1)?);
            Ok(Answer::Value(closed.into()))
        }
    }
}

async fn import(admin: &mut Admin, request: &Request) -> Result<Answer, Refusal> {
    let report = admin.import_definitions(request.argument(0)?.as_bytes()).await?;
    Ok(Answer::Value(json!({
        "imported": report.imported,
        "failed": report.failed,
        "problems": report.problems,
        "skipped": report.skipped,
    })))
}

/// Feature flags of RabbitMQ that stand for what this node does.
const FEATURE_FLAGS: [&str; 7] = [
    "drop_unroutable_metric",
    "empty_basic_get_metric",
    "implicit_default_bindings",
    "maintenance_mode_status",
    "quorum_queue",
    "user_limits",
    "virtual_host_metadata",
];

fn node(admin: &Admin, facts: &NodeFacts, request: &Request) -> Result<Answer, Refusal> {
    match request.command.as_str() {
        "status" | "check_port_connectivity" | "check_port_listener" | "listeners" => {
            let mut status = admin.status();
            status["listeners"] = facts.listeners.iter().map(|address| listener(address)).collect();
            status["config_files"] = facts.config_files.clone().into();
            Ok(Answer::Value(status))
        }
        "cluster_status" | "ping" | "check_running" | "is_running" | "is_booting" | "server_version"
        | "await_startup" => Ok(Answer::Value(admin.status())),
        "alarms" | "check_alarms" | "check_local_alarms" => Ok(Answer::Value(admin.alarms().into())),
        "environment" => Ok(Answer::Value(facts.environment.clone())),
        // Those that are there are running: a node that cannot recover one does not start.
        "check_virtual_hosts" => Ok(Answer::Done),
        "list_feature_flags" => {
            let columns = request.columns(&["name", "state", "stability", "desc"], &["name", "state"])?;
            let row = |name| object(json!({"name": name, "state": "enabled", "stability": "stable", "desc": ""}));
            Ok(listing(&columns, FEATURE_FLAGS.into_iter().map(row).collect()))
        }
        "enable_feature_flag" => match request.argument(0)? {
            name if name == "all" || FEATURE_FLAGS.contains(&name) => Ok(Answer::Done),
            name => Err(Refusal { kind: "refused", text: format!("the feature flag \"{name}\" is not supported") }),
        },
        "list_deprecated_features" => {
            let columns = request.columns(&["name", "deprecation_phase"], &["name", "deprecation_phase"])?;
            Ok(listing(&columns, Vec::new()))
        }
        "stop" | "shutdown" => {
            facts.stop();
            Ok(Answer::Value(admin.status()))
        }
        other => Err(unknown(other)),
    }
}

fn listener(address: &str) -> Value {
    let (interface, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    json!({
        "node": null, "interface": interface, "port": port.parse::<u16>().unwrap_or(0),
        "protocol": "amqp", "purpose": "AMQP 0-9-1",
    })
}

fn unknown(command: &str) -> Refusal {
    usage(format!("Command '{command}' is not one of this version"))
}

fn listing(columns: &[&str], rows: Vec<Row>) -> Answer {
    Answer::Listing(columns.iter().map(|column| (*column).to_owned()).collect(), rows)
}

fn only(mut rows: Vec<Row>, field: &str, wanted: &str) -> Vec<Row> {
    rows.retain(|row| row[field] == wanted);
    rows
}

/// JSON within a listing is a text, as with `rabbitmqctl`.
fn as_text(row: &mut Row, field: &str) {
    if let Some(value) = row.get_mut(field) {
        *value = value.to_string().into();
    }
}

fn object(value: Value) -> Row {
    match value {
        Value::Object(row) => row,
        _ => Row::new(),
    }
}
