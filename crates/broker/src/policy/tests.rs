//! Which policy counts, and what comes of it.

use serde_json::json;

use super::*;
use queue::Overflow;

use crate::topology::QueueSettings;

const QUEUE: Target = Target::Queue(QueueKind::Classic);

fn policy(name: &str, value: Value) -> Policy {
    Policy::from_value(name, &value, Author::User).expect("valid")
}

fn refused(value: &Value, author: Author) -> String {
    Policy::from_value("p", value, author).expect_err("refused")
}

#[test]
fn highest_priority_counts_and_among_equal_ones_the_first_name() {
    let mut policies = Policies::default();
    policies.put(policy("b", json!({"pattern": "^q", "definition": {"max-length": 1}})));
    policies.put(policy("a", json!({"pattern": "^q", "definition": {"max-length": 2}})));
    let found = |policies: &Policies, name: &str| policies.find(QUEUE, name).map(|policy| policy.name().to_owned());
    assert_eq!(found(&policies, "q1").as_deref(), Some("a"));
    policies.put(policy("b", json!({"pattern": "q1$", "priority": 7, "definition": {"max-length": 1}})));
    assert_eq!(found(&policies, "q1").as_deref(), Some("b"));
    assert_eq!(found(&policies, "q2").as_deref(), Some("a"));
    policies.remove("b");
    assert_eq!(found(&policies, "q1").as_deref(), Some("a"));
    assert_eq!(found(&policies, "x"), None);
}

#[test]
fn a_policy_covers_what_it_applies_to() {
    let covers = |word: &str, target| {
        let mut policies = Policies::default();
        policies.put(policy("p", json!({"pattern": "", "apply-to": word, "definition": {"ha-mode": "all"}})));
        policies.find(target, "").is_some()
    };
    let (exchange, quorum) = (Target::Exchange(ExchangeKind::Topic), Target::Queue(QueueKind::Quorum));
    assert!(covers("all", exchange) && covers("all", quorum));
    assert!(covers("queues", QUEUE) && covers("queues", quorum) && !covers("queues", exchange));
    assert!(covers("exchanges", exchange) && !covers("exchanges", QUEUE));
    assert!(covers("quorum_queues", quorum) && !covers("quorum_queues", QUEUE));
    assert!(covers("classic_queues", QUEUE) && !covers("streams", QUEUE));
}

#[test]
fn bad_definitions_are_refused_in_rabbitmqs_words() {
    let of = |definition: Value| refused(&json!({"pattern": ".", "definition": definition}), Author::User);
    assert_eq!(of(json!({})), "no policy provided");
    assert_eq!(of(json!({"nokey": 10})), "[{<<\"nokey\">>,10}] are not recognised policy settings");
    assert_eq!(of(json!({"max-length": "x"})), "<<\"x\">> is not a valid maximum length");
    assert_eq!(of(json!({"expires": 0})), "0 is not a valid queue expiry");
    assert_eq!(of(json!({"max-age": "7 D"})), "<<\"7 D\">> is not a valid max age");
    let operator = json!({"pattern": ".", "definition": {"dead-letter-exchange": "x"}});
    let text = refused(&operator, Author::Operator);
    assert_eq!(text, "[{<<\"dead-letter-exchange\">>,<<\"x\">>}] are not recognised policy settings");
    let pattern = refused(&json!({"pattern": "(", "definition": {"max-length": 1}}), Author::User);
    assert!(pattern.starts_with("pattern should be regular expression but is invalid: "), "{pattern}");
    let apply_to = refused(&json!({"pattern": "", "apply-to": "x", "definition": {"max-length": 1}}), Author::User);
    assert!(apply_to.starts_with("apply-to 'x' unrecognised"), "{apply_to}");
}

#[test]
fn lower_number_and_first_text_count() {
    let arguments = QueueSettings {
        max_length: Some(10),
        message_ttl_ms: Some(5),
        dead_letter_exchange: Some("own".into()),
        delivery_limit: Some(-1),
        ..QueueSettings::default()
    };
    let users = policy(
        "p",
        json!({"pattern": "", "definition": {
            "max-length": 7, "message-ttl": 9, "dead-letter-exchange": "policy", "overflow": "reject-publish",
            "max-length-bytes": 100, "delivery-limit": -1
        }}),
    );
    let operator =
        json!({"pattern": "", "definition": {"max-length": 3, "max-length-bytes": 200, "delivery-limit": 4}});
    let operator = Policy::from_value("o", &operator, Author::Operator).expect("valid");
    let applied = Applied { policy: Some(Arc::new(users)), operator: Some(Arc::new(operator)) };
    let settings = merge::settings(&arguments, &applied.definition());
    assert_eq!(
        settings,
        QueueSettings {
            max_length: Some(3),
            max_length_bytes: Some(100),
            message_ttl_ms: Some(5),
            dead_letter_exchange: Some("own".into()),
            overflow: Some(Overflow::RejectPublish),
            delivery_limit: Some(4),
            ..QueueSettings::default()
        }
    );
}
