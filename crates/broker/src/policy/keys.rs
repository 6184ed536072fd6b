//! The keys of policies and the values they take, with RabbitMQ's words for those they do not.

use serde_json::{Map, Value};

use super::Author;

/// What a key's value may be, and how RabbitMQ calls it when it is not.
#[derive(Clone, Copy)]
enum Rule {
    /// A whole number from this on.
    AtLeast(i64, &'static str),
    /// A text.
    Text(&'static str),
    /// One of these words.
    OneOf(&'static [&'static str], &'static str),
    /// A number above zero and a unit, as `7D`.
    Age(&'static str),
    /// Anything: of a feature that is gone (mirrored classic queues), or that is read elsewhere.
    Any,
}

/// Whose policies may have a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Users,
    Both,
}

const LENGTH: Rule = Rule::AtLeast(0, "maximum length");
const BYTES: Rule = Rule::AtLeast(0, "maximum length in bytes");

const KEYS: &[(&str, For, Rule)] = &[
    ("alternate-exchange", For::Users, Rule::Text("alternate exchange name")),
    ("consumer-timeout", For::Users, Rule::AtLeast(0, "consumer timeout")),
    ("consumer-disconnected-timeout", For::Users, Rule::AtLeast(0, "consumer disconnected timeout")),
    ("dead-letter-exchange", For::Users, Rule::Text("dead letter exchange name")),
    ("dead-letter-routing-key", For::Users, Rule::Text("dead letter routing key")),
    ("dead-letter-strategy", For::Users, Rule::OneOf(&["at-most-once", "at-least-once"], "dead letter strategy")),
    ("delayed-retry-max", For::Both, Rule::AtLeast(0, "delayed retry maximum")),
    ("delayed-retry-min", For::Both, Rule::AtLeast(0, "delayed retry minimum")),
    ("delayed-retry-type", For::Both, Rule::OneOf(&["disabled", "all", "failed", "returned"], "delayed retry type")),
    ("delivery-limit", For::Both, Rule::AtLeast(-1, "delivery limit")),
    ("expires", For::Both, Rule::AtLeast(1, "queue expiry")),
    ("federation-upstream", For::Users, Rule::Text("federation upstream name")),
    ("federation-upstream-pattern", For::Users, Rule::Text("federation upstream pattern")),
    ("federation-upstream-set", For::Users, Rule::Text("federation upstream set name")),
    ("ha-mode", For::Both, Rule::Any),
    ("ha-params", For::Both, Rule::Any),
    ("ha-promote-on-failure", For::Users, Rule::Any),
    ("ha-promote-on-shutdown", For::Users, Rule::Any),
    ("ha-sync-batch-size", For::Users, Rule::Any),
    ("ha-sync-mode", For::Both, Rule::Any),
    ("initial-cluster-size", For::Users, Rule::AtLeast(1, "cluster size")),
    ("max-age", For::Users, Rule::Age("max age")),
    ("max-in-memory-bytes", For::Both, Rule::AtLeast(0, "maximum memory in bytes")),
    ("max-in-memory-length", For::Both, Rule::AtLeast(0, "maximum memory in bytes")),
    ("max-length", For::Both, LENGTH),
    ("max-length-bytes", For::Both, BYTES),
    ("member-placement-tag", For::Both, Rule::Text("member placement tag")),
    ("message-ttl", For::Both, Rule::AtLeast(0, "message TTL")),
    ("overflow", For::Both, Rule::OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"], "overflow mode")),
    (
        "queue-leader-locator",
        For::Users,
        Rule::OneOf(&["client-local", "balanced", "random", "least-leaders"], "queue leader locator value"),
    ),
    ("queue-master-locator", For::Both, Rule::Text("queue master locator")),
    ("queue-mode", For::Users, Rule::OneOf(&["default", "lazy"], "queue mode")),
    ("queue-version", For::Both, Rule::AtLeast(1, "queue version")),
    ("stream-filter-size-bytes", For::Users, Rule::AtLeast(16, "stream filter size")),
    ("stream-max-segment-size-bytes", For::Users, Rule::AtLeast(0, "maximum segment size")),
    ("target-group-size", For::Both, Rule::AtLeast(1, "target group size")),
];

/// Largest time a timer of RabbitMQ's takes, in milliseconds.
const MAX_EXPIRY_MS: i64 = u32::MAX as i64;

/// Checks a definition.
///
/// # Errors
/// What is wrong first.
pub(super) fn check(definition: &Map<String, Value>, author: Author) -> Result<(), String> {
    if definition.is_empty() {
        return Err("no policy provided".to_owned());
    }
    let rule = |key: &str| {
        let found = KEYS.iter().find(|(known, ..)| *known == key);
        found.filter(|(_, whose, _)| author == Author::User || *whose == For::Both).map(|(_, _, rule)| *rule)
    };
    let unknown: Vec<String> = definition
        .iter()
        .filter(|(key, _)| rule(key).is_none())
        .map(|(key, value)| format!("{{<<\"{key}\">>,{}}}", term(value)))
        .collect();
    if !unknown.is_empty() {
        return Err(format!("[{}] are not recognised policy settings", unknown.join(",\n ")));
    }
    for (key, value) in definition {
        let rule = rule(key).expect("looked for above");
        if let Some(what) = refusal(key, rule, value) {
            return Err(format!("{} is not a valid {what}", term(value)));
        }
    }
    Ok(())
}

/// What a value is not, if the rule refuses it.
fn refusal(key: &str, rule: Rule, value: &Value) -> Option<&'static str> {
    let (fits, what) = match rule {
        Rule::Any => return None,
        Rule::AtLeast(least, what) => {
            let is_time = matches!(key, "expires" | "message-ttl");
            let most = if is_time { MAX_EXPIRY_MS } else { i64::MAX };
            (value.as_i64().is_some_and(|number| (least..=most).contains(&number)), what)
        }
        Rule::Text(what) => (value.as_str().is_some_and(|text| text.len() <= u8::MAX.into()), what),
        Rule::OneOf(words, what) => (value.as_str().is_some_and(|word| words.contains(&word)), what),
        Rule::Age(what) => (value.as_str().is_some_and(is_age), what),
    };
    (!fits).then_some(what)
}

fn is_age(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[digits.len()..];
    matches!(unit, "Y" | "M" | "D" | "h" | "m" | "s") && digits.parse::<u32>().is_ok_and(|number| number > 0)
}

/// A JSON value as RabbitMQ writes it in messages.
pub(super) fn term(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<<{}>>", Value::String(text.clone())),
        Value::Array(items) => format!("[{}]", items.iter().map(term).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{{<<\"{key}\">>,{}}}", term(value)));
            format!("[{}]", fields.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
