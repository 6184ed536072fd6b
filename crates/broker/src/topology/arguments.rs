//! The arguments of `queue.declare`: which ones each queue type knows, what values they may have, and what they set.
//!
//! A check refuses the first argument that makes no sense, in RabbitMQ's order. Arguments that no type knows are taken
//! and mean nothing; one that only another type knows is refused.

use amqp::{AMQPValue, Exception, FieldTable, ReplyCode};
use queue::Overflow;

use super::queue_record::QUEUE_TYPE;
use super::{DeadLetterStrategy, QueueDeclare, QueueKind, QueueSettings, method, value};

const CONSUMER_TIMEOUT: &str = "x-consumer-timeout";
const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
const DEAD_LETTER_ROUTING_KEY: &str = "x-dead-letter-routing-key";
const DEAD_LETTER_STRATEGY: &str = "x-dead-letter-strategy";
const DELIVERY_LIMIT: &str = "x-delivery-limit";
const EXPIRES: &str = "x-expires";
const INITIAL_CLUSTER_SIZE: &str = "x-initial-cluster-size";
const MAX_AGE: &str = "x-max-age";
const MAX_IN_MEMORY_BYTES: &str = "x-max-in-memory-bytes";
const MAX_IN_MEMORY_LENGTH: &str = "x-max-in-memory-length";
const MAX_LENGTH: &str = "x-max-length";
const MAX_LENGTH_BYTES: &str = "x-max-length-bytes";
const MAX_PRIORITY: &str = "x-max-priority";
const MESSAGE_TTL: &str = "x-message-ttl";
const OVERFLOW: &str = "x-overflow";
const QUEUE_LEADER_LOCATOR: &str = "x-queue-leader-locator";
const QUEUE_MASTER_LOCATOR: &str = "x-queue-master-locator";
const QUEUE_MODE: &str = "x-queue-mode";
const QUEUE_VERSION: &str = "x-queue-version";
const QUORUM_INITIAL_GROUP_SIZE: &str = "x-quorum-initial-group-size";
const SINGLE_ACTIVE_CONSUMER: &str = "x-single-active-consumer";
const STREAM_MAX_SEGMENT_SIZE_BYTES: &str = "x-stream-max-segment-size-bytes";

/// The arguments of each type, in the order in which RabbitMQ compares them. `x-queue-leader-locator` on a classic queue
/// is of later versions than the rest.
const CLASSIC: &[&str] = &[
    EXPIRES,
    MESSAGE_TTL,
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTER_ROUTING_KEY,
    MAX_LENGTH,
    MAX_LENGTH_BYTES,
    MAX_PRIORITY,
    OVERFLOW,
    QUEUE_MODE,
    QUEUE_VERSION,
    SINGLE_ACTIVE_CONSUMER,
    QUEUE_TYPE,
    QUEUE_MASTER_LOCATOR,
    QUEUE_LEADER_LOCATOR,
];
const QUORUM: &[&str] = &[
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTER_ROUTING_KEY,
    DEAD_LETTER_STRATEGY,
    EXPIRES,
    MAX_LENGTH,
    MAX_LENGTH_BYTES,
    MAX_IN_MEMORY_LENGTH,
    MAX_IN_MEMORY_BYTES,
    OVERFLOW,
    SINGLE_ACTIVE_CONSUMER,
    QUEUE_TYPE,
    QUORUM_INITIAL_GROUP_SIZE,
    DELIVERY_LIMIT,
    MESSAGE_TTL,
    QUEUE_LEADER_LOCATOR,
];
const STREAM: &[&str] =
    &[MAX_LENGTH_BYTES, QUEUE_TYPE, MAX_AGE, STREAM_MAX_SEGMENT_SIZE_BYTES, INITIAL_CLUSTER_SIZE, QUEUE_LEADER_LOCATOR];

/// Longest time to live: what a timer of RabbitMQ's takes, 2^32 - 1 milliseconds or 49 days.
const MAX_EXPIRY_MS: i64 = u32::MAX as i64;
/// Priorities are one byte on the wire.
const MAX_PRIORITIES: i64 = u8::MAX as i64;
/// Names and keys are short strings on the wire.
const MAX_NAME_BYTES: usize = 255;

/// The arguments that queues of this type know, in the order in which they are compared.
pub(super) fn known(kind: QueueKind) -> &'static [&'static str] {
    match kind {
        QueueKind::Classic => CLASSIC,
        QueueKind::Quorum => QUORUM,
        QueueKind::Stream => STREAM,
    }
}

/// Why a value is refused, as RabbitMQ writes it after `invalid arg 'NAME' for QUEUE: `.
type Reason = String;

/// Checks one value; the whole table is there for arguments that need another one.
type Check = fn(&AMQPValue, &FieldTable) -> Result<(), Reason>;

/// The checks, in RabbitMQ's order. Each is made for the types that know the argument.
const CHECKS: &[(&str, Check)] = &[
    (EXPIRES, check_expires),
    (MESSAGE_TTL, check_message_ttl),
    (DEAD_LETTER_EXCHANGE, check_name),
    (DEAD_LETTER_ROUTING_KEY, check_dead_letter_routing_key),
    (DEAD_LETTER_STRATEGY, |value, _| one_of(value, &["at-most-once", "at-least-once"], "invalid_dlx_strategy")),
    (MAX_LENGTH, check_count),
    (MAX_LENGTH_BYTES, check_count),
    (MAX_IN_MEMORY_LENGTH, check_count),
    (MAX_IN_MEMORY_BYTES, check_count),
    (MAX_PRIORITY, check_max_priority),
    (OVERFLOW, |value, _| one_of(value, &["drop-head", "reject-publish", "reject-publish-dlx"], "invalid_overflow")),
    (QUEUE_MODE, check_queue_mode),
    (QUEUE_VERSION, check_queue_version),
    (SINGLE_ACTIVE_CONSUMER, check_bool),
    (QUORUM_INITIAL_GROUP_SIZE, check_size),
    (MAX_AGE, check_max_age),
    (STREAM_MAX_SEGMENT_SIZE_BYTES, check_count),
    (INITIAL_CLUSTER_SIZE, check_size),
    (QUEUE_LEADER_LOCATOR, |value, _| one_of(value, LEADER_LOCATORS, "invalid_queue_locator_arg")),
    // RabbitMQ fails on the values below with an internal error, or later. A refusal tells the client what is wrong.
    (QUEUE_MASTER_LOCATOR, check_master_locator),
    (DELIVERY_LIMIT, check_delivery_limit),
];

const LEADER_LOCATORS: &[&str] = &["client-local", "balanced", "random", "least-leaders"];
const MASTER_LOCATORS: &[&str] = &["client-local", "random", "min-masters"];

/// A queue whose name the server makes up is a classic one.
pub(super) fn check_server_named(arguments: &FieldTable) -> Result<(), Exception> {
    match QueueKind::of(arguments) {
        Some(kind @ (QueueKind::Quorum | QueueKind::Stream)) => {
            Err(refused(format!("Cannot declare a server-named queue for type {}", kind.module())))
        }
        _ => Ok(()),
    }
}

/// Checks the arguments and properties of a queue that is to be made. `label` names the queue in texts.
pub(super) fn check(d: &QueueDeclare<'_>, label: &str) -> Result<(), Exception> {
    let arguments = d.arguments.inner();
    let invalid = |name: &str, reason: Reason| refused(format!("invalid arg '{name}' for {label}: {reason}"));

    // The dead-letter exchange comes first: its name is needed to see whether the user may write to it.
    if let Some(exchange) = arguments.get(DEAD_LETTER_EXCHANGE)
        && value::string(exchange).is_none()
    {
        let kind = value::type_name(exchange);
        return Err(refused(format!("invalid type '{kind}' for arg '{DEAD_LETTER_EXCHANGE}' in {label}")));
    }
    if let Some(kind) = arguments.get(QUEUE_TYPE) {
        check_queue_type(kind).map_err(|reason| invalid(QUEUE_TYPE, reason))?;
    }
    let kind = QueueKind::of(d.arguments).unwrap_or(QueueKind::Classic);
    let known = known(kind);
    for (name, check) in CHECKS {
        if known.contains(name)
            && let Some(value) = arguments.get(*name)
        {
            check(value, d.arguments).map_err(|reason| invalid(name, reason))?;
        }
    }
    let of_another_type =
        |name: &str| !known.contains(&name) && [CLASSIC, QUORUM, STREAM].into_iter().any(|all| all.contains(&name));
    if let Some(name) = arguments.keys().map(|name| name.as_str()).find(|name| of_another_type(name)) {
        return Err(refused(format!("invalid arg '{name}' for {label} of queue type {}", kind.module())));
    }
    if kind != QueueKind::Classic {
        let properties =
            [("auto-delete", d.auto_delete), ("exclusive-owner", d.exclusive), ("non-durable", !d.is_durable())];
        if let Some((property, _)) = properties.into_iter().find(|(_, is_set)| *is_set) {
            return Err(refused(format!("invalid property '{property}' for {label}")));
        }
    }
    if kind == QueueKind::Stream {
        let text = format!("{label}: stream queues are not available in this version");
        return Err(Exception::new(ReplyCode::NotImplemented, text, method::QUEUE_DECLARE));
    }
    Ok(())
}

fn refused(text: String) -> Exception {
    Exception::new(ReplyCode::PreconditionFailed, text, method::QUEUE_DECLARE)
}

/// What the arguments set. Values that [`check`] refuses set nothing.
pub(super) fn settings(arguments: &FieldTable) -> QueueSettings {
    let get = |name: &str| arguments.inner().get(name);
    let number = |name: &str| get(name).and_then(value::integer);
    let count = |name: &str| number(name).and_then(|number| u64::try_from(number).ok());
    let name = |name: &str| get(name).and_then(value::string).and_then(|name| std::str::from_utf8(name).ok());
    QueueSettings {
        message_ttl_ms: count(MESSAGE_TTL),
        expires_ms: count(EXPIRES),
        max_length: count(MAX_LENGTH),
        max_length_bytes: count(MAX_LENGTH_BYTES),
        overflow: name(OVERFLOW).and_then(|name| match name {
            "drop-head" => Some(Overflow::DropHead),
            "reject-publish" => Some(Overflow::RejectPublish),
            "reject-publish-dlx" => Some(Overflow::RejectPublishDlx),
            _ => None,
        }),
        max_priority: number(MAX_PRIORITY).and_then(|number| u8::try_from(number).ok()),
        dead_letter_exchange: name(DEAD_LETTER_EXCHANGE).map(Into::into),
        dead_letter_routing_key: name(DEAD_LETTER_ROUTING_KEY).map(Into::into),
        dead_letter_strategy: name(DEAD_LETTER_STRATEGY).and_then(|name| match name {
            "at-most-once" => Some(DeadLetterStrategy::AtMostOnce),
            "at-least-once" => Some(DeadLetterStrategy::AtLeastOnce),
            _ => None,
        }),
        single_active_consumer: matches!(get(SINGLE_ACTIVE_CONSUMER), Some(AMQPValue::Boolean(true))),
        delivery_limit: number(DELIVERY_LIMIT),
        consumer_timeout_ms: count(CONSUMER_TIMEOUT),
    }
}

fn unacceptable_type(value: &AMQPValue) -> Reason {
    format!("{{unacceptable_type,{}}}", value::type_name(value))
}

fn string(value: &AMQPValue) -> Result<&[u8], Reason> {
    value::string(value).ok_or_else(|| unacceptable_type(value))
}

fn integer(value: &AMQPValue) -> Result<i64, Reason> {
    value::integer(value).ok_or_else(|| format!("\"expected integer, got {}\"", value::type_name(value)))
}

fn non_negative(value: &AMQPValue) -> Result<i64, Reason> {
    match integer(value)? {
        number if number < 0 => Err(format!("{{value_negative,{number}}}")),
        number => Ok(number),
    }
}

fn one_of(value: &AMQPValue, allowed: &[&str], otherwise: &str) -> Result<(), Reason> {
    let given = string(value)?;
    if allowed.iter().any(|allowed| allowed.as_bytes() == given) { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn unsupported(what: &str, given: &[u8]) -> Reason {
    value::quoted(&format!("unsupported {what} '{}'", String::from_utf8_lossy(given)))
}

fn check_bool(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    if matches!(value, AMQPValue::Boolean(_)) { Ok(()) } else { Err(unacceptable_type(value)) }
}

fn check_count(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    non_negative(value).map(|_| ())
}

fn check_size(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    if non_negative(value)? == 0 { Err("{value_zero,0}".to_owned()) } else { Ok(()) }
}

fn check_message_ttl(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    match non_negative(value)? {
        number if number > MAX_EXPIRY_MS => Err(format!("{{value_too_large,{number}}}")),
        _ => Ok(()),
    }
}

fn check_expires(value: &AMQPValue, arguments: &FieldTable) -> Result<(), Reason> {
    // A queue that goes at once is of no use to anyone.
    if integer(value)? == 0 { Err("{value_zero,0}".to_owned()) } else { check_message_ttl(value, arguments) }
}

fn check_max_priority(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    match non_negative(value)? {
        number if number > MAX_PRIORITIES => Err(format!("{{max_value_exceeded,{number}}}")),
        _ => Ok(()),
    }
}

fn check_name(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    let name = string(value)?;
    if name.len() > MAX_NAME_BYTES {
        return Err("\"longer than 255 bytes\"".to_owned());
    }
    std::str::from_utf8(name).map(|_| ()).map_err(|_| "\"not UTF-8\"".to_owned())
}

fn check_dead_letter_routing_key(value: &AMQPValue, arguments: &FieldTable) -> Result<(), Reason> {
    string(value)?;
    if !arguments.contains_key(DEAD_LETTER_EXCHANGE) {
        return Err("routing_key_but_no_dlx_defined".to_owned());
    }
    check_name(value, arguments)
}

fn check_queue_type(value: &AMQPValue) -> Result<(), Reason> {
    let name = string(value)?;
    QueueKind::from_name(name).map(|_| ()).ok_or_else(|| unsupported("queue type", name))
}

fn check_queue_mode(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    match string(value)? {
        b"default" | b"lazy" => Ok(()),
        other => Err(unsupported("queue mode", other)),
    }
}

fn check_queue_version(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    match non_negative(value)? {
        1 | 2 => Ok(()),
        other => Err(unsupported("queue version", other.to_string().as_bytes())),
    }
}

fn check_master_locator(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    let name = string(value)?;
    if MASTER_LOCATORS.iter().any(|known| known.as_bytes() == name) {
        return Ok(());
    }
    Err(unsupported("queue master locator", name))
}

fn check_delivery_limit(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    // -1 turns the limit off.
    match integer(value)? {
        number if number < -1 => Err(format!("{{value_negative,{number}}}")),
        _ => Ok(()),
    }
}

/// A number above zero and a unit: years, months, days, hours, minutes or seconds.
fn check_max_age(value: &AMQPValue, _: &FieldTable) -> Result<(), Reason> {
    let age = string(value)?;
    let digits = age.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_positive = age[..digits].iter().any(|digit| *digit != b'0');
    let is_unit = matches!(&age[digits..], b"Y" | b"M" | b"D" | b"h" | b"m" | b"s");
    if is_positive && is_unit { Ok(()) } else { Err("invalid_max_age".to_owned()) }
}
