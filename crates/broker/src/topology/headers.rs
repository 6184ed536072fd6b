//! Headers exchanges (section 3.1.3.4 of the specification, with RabbitMQ's rules): a binding's arguments are conditions
//! on the message's headers, and its argument `x-match` says whether all or any of them must hold.
//!
//! Names that start with `x-` are no conditions, unless `x-match` is `all-with-x` or `any-with-x`. A condition of type
//! void holds when the header is there. Numbers are equal by value whatever their type; strings, booleans and numbers are
//! never equal to each other. Bindings are tried one after the other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use amqp::{AMQPValue, FieldTable};

use super::bindings::BindingId;
use super::route::Found;
use super::targets::{Target, Targets};
use super::value;

/// The argument that says how many conditions must hold.
const X_MATCH: &str = "x-match";

/// The value of a message's header, borrowed from wherever the headers are kept.
#[derive(Clone, Debug)]
pub enum HeaderValue<'a> {
    /// `t`
    Bool(bool),
    /// An integer of any width: `b B s u I i l L`.
    Int(i64),
    /// `f d`
    Float(f64),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `D`: value / 10^scale.
    Decimal {
        /// Digits behind the point.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`
    Str(&'a [u8]),
    /// `x`
    Bytes(&'a [u8]),
    /// `V`
    Void,
    /// An array or a table, parsed.
    Nested(Cow<'a, AMQPValue>),
    /// A value that equals nothing: only conditions of type void hold.
    Other,
}

impl<'a> From<&'a AMQPValue> for HeaderValue<'a> {
    fn from(value: &'a AMQPValue) -> Self {
        if let Some(number) = value::integer(value) {
            return Self::Int(number);
        }
        if let Some(number) = value::float(value) {
            return Self::Float(number);
        }
        if let Some(string) = value::string(value) {
            return Self::Str(string);
        }
        match value {
            AMQPValue::Boolean(v) => Self::Bool(*v),
            AMQPValue::Timestamp(v) => Self::Timestamp(*v),
            AMQPValue::DecimalValue(v) => Self::Decimal { scale: v.scale, value: v.value },
            AMQPValue::ByteArray(v) => Self::Bytes(v.as_slice()),
            AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => Self::Nested(Cow::Borrowed(value)),
            _ => Self::Void,
        }
    }
}

/// The headers of a message.
pub trait HeaderSource {
    /// Calls `each` with every header, in any order. Of several with one name the first counts.
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(&'a [u8], HeaderValue<'a>));

    /// The value of the header of this name.
    fn get(&self, name: &[u8]) -> Option<HeaderValue<'_>> {
        let mut found = None;
        self.for_each(&mut |present, value| {
            if present == name && found.is_none() {
                found = Some(value);
            }
        });
        found
    }

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        let mut empty = true;
        self.for_each(&mut |_, _| empty = false);
        empty
    }
}

/// A message without headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHeaders;

impl HeaderSource for NoHeaders {
    fn for_each<'a>(&'a self, _: &mut dyn FnMut(&'a [u8], HeaderValue<'a>)) {}
}

impl HeaderSource for FieldTable {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(&'a [u8], HeaderValue<'a>)) {
        for (name, value) in self {
            each(name.as_str().as_bytes(), value.into());
        }
    }

    fn get(&self, name: &[u8]) -> Option<HeaderValue<'_>> {
        self.inner().get(std::str::from_utf8(name).ok()?).map(HeaderValue::from)
    }

    fn is_empty(&self) -> bool {
        self.inner().is_empty()
    }
}

/// How many conditions must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantifier {
    All,
    Any,
}

/// The meaning of `x-match`, and whether names that start with `x-` are conditions; or why it has none.
fn x_match(arguments: &FieldTable) -> Result<(Quantifier, bool), String> {
    let Some(value) = arguments.inner().get(X_MATCH) else { return Ok((Quantifier::All, false)) };
    match value::string(value) {
        Some(b"all") => Ok((Quantifier::All, false)),
        Some(b"any") => Ok((Quantifier::Any, false)),
        Some(b"all-with-x") => Ok((Quantifier::All, true)),
        Some(b"any-with-x") => Ok((Quantifier::Any, true)),
        Some(_) => Err(format!(
            "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
            value::term(value)
        )),
        None => Err(format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            value::type_name(value),
            value::term(value)
        )),
    }
}

/// Whether the arguments make sense as those of a binding from a headers exchange; else the text that says why not.
pub(super) fn check_arguments(arguments: &FieldTable) -> Result<(), String> {
    x_match(arguments).map(|_| ())
}

/// The bindings of a headers exchange.
#[derive(Debug, Default)]
pub(super) struct HeadersTable {
    bindings: BTreeMap<BindingId, HeadersBinding>,
}

#[derive(Debug)]
struct HeadersBinding {
    quantifier: Quantifier,
    conditions: Box<[(Box<[u8]>, AMQPValue)]>,
    /// One target; a set because that knows how to add it to what was found.
    targets: Targets,
}

/// A message's headers sorted by name, each name once.
struct SortedHeaders<'a>(Vec<(&'a [u8], HeaderValue<'a>)>);

impl<'a> SortedHeaders<'a> {
    fn new(headers: &'a dyn HeaderSource) -> Self {
        let mut sorted = Vec::new();
        headers.for_each(&mut |name, value| sorted.push((name, value)));
        sorted.sort_by_key(|(name, _)| *name);
        sorted.dedup_by_key(|(name, _)| *name);
        Self(sorted)
    }

    fn get(&self, name: &[u8]) -> Option<&HeaderValue<'a>> {
        self.0.binary_search_by_key(&name, |(name, _)| name).ok().map(|at| &self.0[at].1)
    }
}

impl HeadersBinding {
    fn new(arguments: &FieldTable, target: &Target) -> Self {
        // Checked before the binding was made.
        let (quantifier, with_x) = x_match(arguments).unwrap_or((Quantifier::All, false));
        let conditions = arguments
            .into_iter()
            .filter(|(name, _)| name.as_str() != X_MATCH && (with_x || !name.as_str().starts_with("x-")))
            .map(|(name, value)| (name.as_str().as_bytes().into(), value.clone()))
            .collect();
        let mut targets = Targets::default();
        targets.add(target);
        Self { quantifier, conditions, targets }
    }

    fn matches(&self, headers: &SortedHeaders<'_>) -> bool {
        let mut held = self
            .conditions
            .iter()
            .map(|(name, condition)| headers.get(name).is_some_and(|present| holds(condition, present)));
        match self.quantifier {
            Quantifier::All => held.all(|held| held),
            Quantifier::Any => held.any(|held| held),
        }
    }
}

fn holds(condition: &AMQPValue, present: &HeaderValue<'_>) -> bool {
    if matches!(condition, AMQPValue::Void) {
        return true;
    }
    match (HeaderValue::from(condition), present) {
        (HeaderValue::Bool(a), HeaderValue::Bool(b)) => a == *b,
        (HeaderValue::Decimal { scale: a, value: b }, HeaderValue::Decimal { scale, value }) => {
            a == *scale && b == *value
        }
        (HeaderValue::Str(a) | HeaderValue::Bytes(a), HeaderValue::Str(b) | HeaderValue::Bytes(b)) => a == *b,
        (HeaderValue::Nested(a), HeaderValue::Nested(b)) => a.as_ref() == b.as_ref(),
        (a, b) => numbers_equal(&a, b),
    }
}

/// Whether both are numbers, and the same one. No integer is rounded on the way.
fn numbers_equal(a: &HeaderValue<'_>, b: &HeaderValue<'_>) -> bool {
    let whole = |value: &HeaderValue<'_>| match value {
        HeaderValue::Int(v) => Some(i128::from(*v)),
        HeaderValue::Timestamp(v) => Some(i128::from(*v)),
        HeaderValue::Float(v) if v.fract() == 0.0 => Some(*v as i128),
        _ => None,
    };
    match (a, b) {
        (HeaderValue::Float(a), HeaderValue::Float(b)) => a == b,
        (a, b) => matches!((whole(a), whole(b)), (Some(a), Some(b)) if a == b),
    }
}

impl HeadersTable {
    pub(super) fn add(&mut self, id: BindingId, arguments: &FieldTable, target: Target) {
        self.bindings.insert(id, HeadersBinding::new(arguments, &target));
    }

    pub(super) fn remove(&mut self, id: BindingId) {
        self.bindings.remove(&id).expect("a binding that is removed is in the table");
    }

    /// Adds the targets of all bindings that match; true when there is at least one.
    pub(super) fn collect(&self, headers: &dyn HeaderSource, found: &mut Found) -> bool {
        if self.bindings.is_empty() {
            return false;
        }
        let headers = SortedHeaders::new(headers);
        let mut any = false;
        for binding in self.bindings.values() {
            any |= binding.matches(&headers) && binding.targets.collect(found);
        }
        any
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }
}
