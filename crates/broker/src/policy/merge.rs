//! What comes of arguments, policy and operator policy together.

use queue::Overflow;
use serde_json::{Map, Value};

use crate::topology::{DeadLetterStrategy, QueueSettings};

/// An operator's bound on a policy's value: the lower of two numbers; what is no number is the operator's to say.
pub(super) fn bounded(key: &str, value: &Value, bound: &Value) -> Value {
    match (value.as_i64(), bound.as_i64()) {
        (Some(number), Some(limit)) if key == "delivery-limit" => lower_limit(number, limit).into(),
        (Some(number), Some(limit)) => number.min(limit).into(),
        _ => bound.clone(),
    }
}

/// The settings of a queue: those of its arguments with what the policies add. Of two numbers the lower counts, of other values the argument's.
pub(crate) fn settings(arguments: &QueueSettings, definition: &Map<String, Value>) -> QueueSettings {
    let mut settings = arguments.clone();
    if definition.is_empty() {
        return settings;
    }
    let number = |key: &str| definition.get(key).and_then(Value::as_u64);
    let lower = |own: &mut Option<u64>, key: &str| {
        *own = [*own, number(key)].into_iter().flatten().min();
    };
    lower(&mut settings.message_ttl_ms, "message-ttl");
    lower(&mut settings.expires_ms, "expires");
    lower(&mut settings.max_length, "max-length");
    lower(&mut settings.max_length_bytes, "max-length-bytes");
    lower(&mut settings.consumer_timeout_ms, "consumer-timeout");
    settings.delivery_limit = match (settings.delivery_limit, definition.get("delivery-limit").and_then(Value::as_i64))
    {
        (Some(own), Some(policy)) => Some(lower_limit(own, policy)),
        (own, policy) => own.or(policy),
    };
    let text = |key: &str| definition.get(key).and_then(Value::as_str);
    let name = |key: &str| text(key).map(Into::into);
    settings.dead_letter_exchange = settings.dead_letter_exchange.or_else(|| name("dead-letter-exchange"));
    settings.dead_letter_routing_key = settings.dead_letter_routing_key.or_else(|| name("dead-letter-routing-key"));
    settings.overflow = settings.overflow.or_else(|| text("overflow").and_then(overflow));
    settings.dead_letter_strategy = settings.dead_letter_strategy.or_else(|| match text("dead-letter-strategy")? {
        "at-least-once" => Some(DeadLetterStrategy::AtLeastOnce),
        _ => Some(DeadLetterStrategy::AtMostOnce),
    });
    settings
}

fn overflow(word: &str) -> Option<Overflow> {
    Some(match word {
        "drop-head" => Overflow::DropHead,
        "reject-publish" => Overflow::RejectPublish,
        "reject-publish-dlx" => Overflow::RejectPublishDlx,
        _ => return None,
    })
}

/// Of delivery limits -1 is none, so that any other is lower.
fn lower_limit(one: i64, other: i64) -> i64 {
    match (one < 0, other < 0) {
        (true, _) => other,
        (_, true) => one,
        _ => one.min(other),
    }
}
