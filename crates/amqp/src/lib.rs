//! AMQP 0-9-1 on the wire, without I/O.

mod reply;

pub use amq_protocol::protocol as methods;
pub use amq_protocol::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
pub use reply::{Exception, MethodId, ReplyCode};
