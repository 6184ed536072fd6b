//! AMQP methods in few words: `queue_declare("q").with(|m| m.durable = true)`.
//!
//! The types are `amq-protocol`'s; this module adds constructors with the usual defaults, the answer that each
//! synchronous method has ([`Call`]), and the way back from [`AMQPClass`] to one method ([`Method`]).

use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, exchange, queue, tx};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

/// A method that can be sent, and recognised when it comes.
pub trait Method: Sized + std::fmt::Debug {
    /// `class.method`, as the specification writes it.
    const NAME: &'static str;
    /// Wraps the method for sending.
    fn into_class(self) -> AMQPClass;
    /// Unwraps it, or gives the other method back.
    fn from_class(class: AMQPClass) -> Result<Self, Box<AMQPClass>>;
}

/// A synchronous method and its answer.
pub trait Call: Method {
    /// The answer when all is well.
    type Ok: Method;
}

macro_rules! methods {
    ($($class:ident $module:ident { $($name:ident),* })*) => {$($(
        impl Method for $module::$name {
            const NAME: &'static str = concat!(stringify!($module), ".", stringify!($name));
            fn into_class(self) -> AMQPClass {
                AMQPClass::$class($module::AMQPMethod::$name(self))
            }
            fn from_class(class: AMQPClass) -> Result<Self, Box<AMQPClass>> {
                match class {
                    AMQPClass::$class($module::AMQPMethod::$name(method)) => Ok(method),
                    other => Err(Box::new(other)),
                }
            }
        }
    )*)*};
}

methods! {
    Connection connection {
        Start, StartOk, Tune, TuneOk, Open, OpenOk, Close, CloseOk, Blocked, Unblocked, UpdateSecret, UpdateSecretOk
    }
    Channel channel { Open, OpenOk, Flow, FlowOk, Close, CloseOk }
    Exchange exchange { Declare, DeclareOk, Delete, DeleteOk, Bind, BindOk, Unbind, UnbindOk }
    Queue queue { Declare, DeclareOk, Bind, BindOk, Purge, PurgeOk, Delete, DeleteOk, Unbind, UnbindOk }
    Basic basic {
        Qos, QosOk, Consume, ConsumeOk, Cancel, CancelOk, Publish, Return, Deliver, Get, GetOk, GetEmpty, Ack, Reject,
        RecoverAsync, Recover, RecoverOk, Nack
    }
    Tx tx { Select, SelectOk, Commit, CommitOk, Rollback, RollbackOk }
    Confirm confirm { Select, SelectOk }
}

macro_rules! calls {
    ($($module:ident { $($name:ident $ok:ident),* })*) => {$($(
        impl Call for $module::$name { type Ok = $module::$ok; }
    )*)*};
}

calls! {
    connection { Open OpenOk, Close CloseOk, UpdateSecret UpdateSecretOk }
    channel { Open OpenOk, Flow FlowOk, Close CloseOk }
    exchange { Declare DeclareOk, Delete DeleteOk, Bind BindOk, Unbind UnbindOk }
    queue { Declare DeclareOk, Bind BindOk, Purge PurgeOk, Delete DeleteOk, Unbind UnbindOk }
    basic { Qos QosOk, Consume ConsumeOk, Cancel CancelOk, Recover RecoverOk }
    tx { Select SelectOk, Commit CommitOk, Rollback RollbackOk }
    confirm { Select SelectOk }
}

/// Changes a value in passing: `queue_declare("q").with(|m| m.passive = true)`.
pub trait With: Sized {
    /// Applies `change` and returns the result.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> With for T {}

/// A field table from names and values.
pub fn table<const N: usize>(fields: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(name.into(), value);
    }
    table
}

/// A long string, the usual type of text in tables.
pub fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// `queue.declare` of a transient, shared queue.
pub fn queue_declare(queue: &str) -> queue::Declare {
    queue::Declare { queue: queue.into(), ..Default::default() }
}

/// `queue.bind`.
pub fn queue_bind(queue: &str, exchange: &str, routing_key: &str) -> queue::Bind {
    queue::Bind {
        queue: queue.into(),
        exchange: exchange.into(),
        routing_key: routing_key.into(),
        ..Default::default()
    }
}

/// `queue.unbind`.
pub fn queue_unbind(queue: &str, exchange: &str, routing_key: &str) -> queue::Unbind {
    let (queue, exchange, routing_key) = (queue.into(), exchange.into(), routing_key.into());
    queue::Unbind { queue, exchange, routing_key, ..Default::default() }
}

/// `queue.purge`.
pub fn queue_purge(queue: &str) -> queue::Purge {
    queue::Purge { queue: queue.into(), ..Default::default() }
}

/// `queue.delete`.
pub fn queue_delete(queue: &str) -> queue::Delete {
    queue::Delete { queue: queue.into(), ..Default::default() }
}

/// `exchange.declare` of a transient exchange.
pub fn exchange_declare(exchange: &str, kind: &str) -> exchange::Declare {
    exchange::Declare { exchange: exchange.into(), kind: kind.into(), ..Default::default() }
}

/// `exchange.delete`.
pub fn exchange_delete(exchange: &str) -> exchange::Delete {
    exchange::Delete { exchange: exchange.into(), ..Default::default() }
}

/// `exchange.bind`: what `source` routes by `routing_key` goes to `destination`.
pub fn exchange_bind(destination: &str, source: &str, routing_key: &str) -> exchange::Bind {
    let (destination, source, routing_key) = (destination.into(), source.into(), routing_key.into());
    exchange::Bind { destination, source, routing_key, ..Default::default() }
}

/// `exchange.unbind`.
pub fn exchange_unbind(destination: &str, source: &str, routing_key: &str) -> exchange::Unbind {
    let (destination, source, routing_key) = (destination.into(), source.into(), routing_key.into());
    exchange::Unbind { destination, source, routing_key, ..Default::default() }
}

/// `basic.publish`.
pub fn publish(exchange: &str, routing_key: &str) -> basic::Publish {
    basic::Publish { exchange: exchange.into(), routing_key: routing_key.into(), ..Default::default() }
}

/// `basic.consume` with acknowledgements.
pub fn consume(queue: &str, consumer_tag: &str) -> basic::Consume {
    basic::Consume { queue: queue.into(), consumer_tag: consumer_tag.into(), ..Default::default() }
}

/// `basic.cancel`.
pub fn cancel(consumer_tag: &str) -> basic::Cancel {
    basic::Cancel { consumer_tag: consumer_tag.into(), ..Default::default() }
}

/// `basic.qos` for each consumer started later.
pub fn qos(prefetch_count: u16) -> basic::Qos {
    basic::Qos { prefetch_count, ..Default::default() }
}

/// `basic.get` with acknowledgement.
pub fn get(queue: &str) -> basic::Get {
    basic::Get { queue: queue.into(), ..Default::default() }
}

/// `basic.ack` of one delivery.
pub fn ack(delivery_tag: u64) -> basic::Ack {
    basic::Ack { delivery_tag, multiple: false }
}

/// `basic.nack` of one delivery.
pub fn nack(delivery_tag: u64, requeue: bool) -> basic::Nack {
    basic::Nack { delivery_tag, requeue, multiple: false }
}

/// `basic.reject`.
pub fn reject(delivery_tag: u64, requeue: bool) -> basic::Reject {
    basic::Reject { delivery_tag, requeue }
}

/// `connection.open`.
pub fn connection_open(vhost: &str) -> connection::Open {
    connection::Open { virtual_host: ShortString::from(vhost) }
}

/// `connection.close` without complaint.
pub fn connection_close() -> connection::Close {
    connection::Close { reply_code: 200, reply_text: "bye".into(), ..Default::default() }
}

/// `channel.close` without complaint.
pub fn channel_close() -> channel::Close {
    channel::Close { reply_code: 200, reply_text: "bye".into(), ..Default::default() }
}

/// `connection.tune-ok`.
pub fn tune_ok(channel_max: u16, frame_max: u32, heartbeat: u16) -> connection::TuneOk {
    connection::TuneOk { channel_max, frame_max, heartbeat }
}
