//! What the raw client sends, as bytes: for tests that cut, join or spoil frames before they send them.

use crate::methods::Method;
use crate::wire::{FRAME_END, FRAME_OVERHEAD};
use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
use amq_protocol::protocol::{BasicProperties, basic, connection};
use amq_protocol::types::{AMQPValue, FieldTable, LongString};
use std::io::Cursor;

/// What the client says of itself in the handshake.
#[derive(Clone, Debug)]
pub struct Options {
    /// User name, also of the password.
    pub user: &'static str,
    /// Password.
    pub password: &'static str,
    /// Virtual host.
    pub vhost: &'static str,
    /// Capabilities, all set to true.
    pub capabilities: &'static [&'static str],
    /// Changes to the broker's tune before it is echoed.
    pub tune: fn(&mut connection::TuneOk),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            user: "guest",
            password: "guest",
            vhost: "/",
            capabilities: &[
                "authentication_failure_close",
                "basic.nack",
                "connection.blocked",
                "consumer_cancel_notify",
                "publisher_confirms",
            ],
            tune: |tune| tune.heartbeat = 0,
        }
    }
}

/// `connection.start-ok` with PLAIN.
pub fn start_ok(options: &Options) -> connection::StartOk {
    let mut capabilities = FieldTable::default();
    for name in options.capabilities {
        capabilities.insert((*name).into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    properties.insert("product".into(), AMQPValue::LongString("warrenmq-tests".into()));
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    connection::StartOk {
        client_properties: properties,
        mechanism: "PLAIN".into(),
        response: LongString::from(format!("\0{}\0{}", options.user, options.password)),
        locale: "en_US".into(),
    }
}

/// One frame, well formed.
pub fn frame_bytes(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a frame is below 4 GiB");
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&channel.to_be_bytes());
    bytes.extend_from_slice(&size.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes.push(FRAME_END);
    bytes
}

/// One method frame.
pub fn method_bytes(channel: u16, method: impl Method) -> Vec<u8> {
    encode(&AMQPFrame::Method(channel, method.into_class()))
}

/// The frames of one published message.
pub fn publish_bytes(
    channel: u16,
    frame_max: usize,
    method: basic::Publish,
    properties: BasicProperties,
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = method_bytes(channel, method);
    let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties };
    bytes.extend_from_slice(&encode(&AMQPFrame::Header(channel, header)));
    for part in body.chunks(frame_max - FRAME_OVERHEAD) {
        bytes.extend_from_slice(&frame_bytes(3, channel, part));
    }
    bytes
}

/// Largest method or header frame that tests send; `amq-protocol` writes into a buffer of fixed size.
const ENCODE_BYTES: usize = 160 * 1024;

fn encode(frame: &AMQPFrame) -> Vec<u8> {
    let mut buffer = vec![0; ENCODE_BYTES];
    let context = WriteContext::from(Cursor::new(buffer.as_mut_slice()));
    let written = gen_frame(frame)(context).expect("a frame of less than ENCODE_BYTES");
    let length = usize::try_from(written.into_inner().1).expect("a length below ENCODE_BYTES");
    buffer.truncate(length);
    buffer
}
