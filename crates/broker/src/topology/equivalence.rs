//! Whether a declare asks for what is there already: the comparison of properties and arguments, in RabbitMQ's order and
//! with its texts. Arguments that the type does not know are not compared.

use std::fmt::Display;

use amqp::{AMQPValue, Exception, FieldTable, MethodId, ReplyCode};

use super::exchange::ALTERNATE_EXCHANGE;
use super::queue_record::QUEUE_TYPE;
use super::{Exchange, ExchangeDeclare, ExchangeKind, QueueDeclare, QueueKind, QueueRecord, arguments, method, value};

/// Compares a declare with the exchange that has its name. `label` names the exchange in texts.
pub(super) fn check_exchange(
    current: &Exchange,
    kind: ExchangeKind,
    d: &ExchangeDeclare<'_>,
    label: &str,
) -> Result<(), Exception> {
    let at = Place { label, method: method::EXCHANGE_DECLARE };
    at.check_property("type", kind.name(), current.kind.name())?;
    at.check_property("durable", d.durable, current.durable)?;
    at.check_property("auto_delete", d.auto_delete, current.auto_delete)?;
    at.check_property("internal", d.internal, current.internal)?;
    at.check_argument(ALTERNATE_EXCHANGE, d.arguments, &current.arguments)
}

/// Compares a declare with the queue that has its name and the same owner. `label` names the queue in texts.
pub(super) fn check_queue(current: &QueueRecord, d: &QueueDeclare<'_>, label: &str) -> Result<(), Exception> {
    let at = Place { label, method: method::QUEUE_DECLARE };
    at.check_property("durable", d.is_durable(), current.durable)?;
    at.check_property("auto_delete", d.auto_delete, current.auto_delete)?;
    for name in arguments::known(current.kind) {
        // A classic queue is one whether its declare says so or nothing.
        if *name == QUEUE_TYPE && QueueKind::of(d.arguments) == Some(current.kind) {
            continue;
        }
        at.check_argument(name, d.arguments, &current.arguments)?;
    }
    Ok(())
}

/// What is compared, for the texts.
struct Place<'a> {
    label: &'a str,
    method: MethodId,
}

impl Place<'_> {
    fn differs(&self, name: &str, received: &str, current: &str) -> Exception {
        let label = self.label;
        let text = format!("inequivalent arg '{name}' for {label}: received {received} but current is {current}");
        Exception::new(ReplyCode::PreconditionFailed, text, self.method)
    }

    fn check_property<T: PartialEq + Display>(&self, name: &str, received: T, current: T) -> Result<(), Exception> {
        if received == current {
            return Ok(());
        }
        Err(self.differs(name, &format!("'{received}'"), &format!("'{current}'")))
    }

    fn check_argument(&self, name: &str, received: &FieldTable, current: &FieldTable) -> Result<(), Exception> {
        let (received, current) = (received.inner().get(name), current.inner().get(name));
        match (received, current) {
            (None, None) => Ok(()),
            (Some(received), Some(current)) if equal(received, current) => Ok(()),
            (Some(received), Some(current)) => Err(self.differs(name, &bare(received), &bare(current))),
            _ => Err(self.differs(name, &typed(received), &typed(current))),
        }
    }
}

/// Equal by value: integers of any width, floats of either, strings and byte arrays. An integer is no float.
fn equal(a: &AMQPValue, b: &AMQPValue) -> bool {
    let number = |value: &AMQPValue| match value {
        AMQPValue::Timestamp(seconds) => Some(i128::from(*seconds)),
        other => value::integer(other).map(i128::from),
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (value::float(a), value::float(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (value::bytes(a), value::bytes(b)) {
        return a == b;
    }
    a == b
}

/// A value when both sides have one.
fn bare(value: &AMQPValue) -> String {
    match value {
        AMQPValue::Void => "none".to_owned(),
        other => format!("'{}'", value::text(other)),
    }
}

/// A value, or none, when one side has none.
fn typed(value: Option<&AMQPValue>) -> String {
    match value {
        None => "none".to_owned(),
        Some(value) => format!("the value '{}' of type '{}'", value::text(value), value::type_name(value)),
    }
}
