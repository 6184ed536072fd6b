//! AMQP 0-9-1 on the wire, without I/O.
//!
//! # The protocol in one page
//!
//! A client connects and sends eight bytes, [`PROTOCOL_HEADER`]. From then on both sides send *frames*: a kind, a
//! channel number, a payload with its length in front and the byte 0xCE behind ([`FrameDecoder`]). One connection
//! carries many *channels*, each a conversation of its own; channel 0 is the connection itself.
//!
//! A *method* frame is a call or the answer to one: `queue.declare` is answered by `queue.declare-ok`. A method has the
//! number of its class and its own within the class ([`MethodId`]), then arguments: integers in network order, bits
//! that share an octet, short strings (one octet of length, UTF-8), long strings (four octets), and *field tables* with
//! names and typed values ([`table`]). First the server asks who is there (`connection.start`), both agree on limits
//! (`connection.tune`), the client names a virtual host (`connection.open`) and opens channels.
//!
//! A message is a method with *content*: `basic.publish` on its way in, `basic.deliver`, `basic.get-ok` or
//! `basic.return` on its way out. Behind the method frame comes one header frame with the size of the body and the
//! message's [`Properties`], then the body in as many frames as it takes, none larger than the agreed frame-max
//! ([`Assembler`]). Frames of other channels may come in between, other frames of the same channel may not.
//!
//! Who breaks the rules gets an [`Exception`]: `channel.close` or `connection.close` with a [`ReplyCode`], a text and
//! the id of the method that failed. Codes and texts are RabbitMQ's, because clients look at them.
//!
//! # Why everything is borrowed
//!
//! A decoded frame, publish, header or property is a view of the reader's buffer and allocates nothing. The reader's
//! buffer is used again for the next frames, so what is to live longer is copied, and a body exactly once: from the
//! reader's buffer into the batch that goes to the queues and the log. A body that shared the reader's buffer would keep
//! all of it alive for as long as one message waits in a queue. On its way out a small body is copied into the
//! [`Outbox`], a large one is a slice of its batch.
//!
//! # What a peer can do to us
//!
//! Nothing by size: frames are limited before they are read, announced body sizes and lengths in tables are compared and
//! never allocated. Nothing by nesting: tables are checked without recursion, and refused when deeper than
//! [`table::MAX_TABLE_DEPTH`], before anything recursive sees them. The targets in `fuzz/` look for what this overlooks.
//!
//! The crate knows no socket and no clock, no channel numbers in use, no vhosts; `broker` does.

#![forbid(unsafe_code)]

mod assembly;
mod content;
pub mod encode;
mod frame;
mod header;
mod layout;
mod method;
mod octets;
mod outbox;
mod properties;
mod properties_builder;
mod raw_table;
mod reply;
pub mod table;
mod table_writer;

pub use amq_protocol::protocol as methods;
pub use amq_protocol::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString};
pub use assembly::{Assembler, AssemblyState, Step};
pub use content::ContentHeader;
pub use frame::{FRAME_END, FRAME_HEADER_BYTES, FRAME_MIN_SIZE, FRAME_OVERHEAD_BYTES, Frame, FrameDecoder, FrameKind};
pub use header::{PROTOCOL_HEADER, ProtocolHeader};
pub use method::{DecodeError, Method, Publish};
pub use outbox::{COPY_BELOW, Outbox};
pub use properties::{Properties, Property};
pub use properties_builder::PropertiesBuilder;
pub use raw_table::{RawArray, RawEntries, RawItems, RawTable, RawValue};
pub use reply::{Exception, MethodId, ReplyCode};
pub use table_writer::{ArrayWriter, TableWriter};
