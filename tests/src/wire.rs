//! A raw AMQP client: one socket, blocking, every frame visible.
//!
//! [`Wire::open`] does the whole handshake and opens channel 1; the shorter constructors stop earlier, for tests of the
//! handshake itself. `call` sends a synchronous method and wants its answer, `expect` wants a method, `fails_with` and
//! `breaks_with` want the broker's `channel.close` and `connection.close`. Heartbeats are skipped unless a test asks
//! for frames. A frame that does not come within [`PATIENCE`] fails the test.

use crate::bytes::{Options, frame_bytes, method_bytes, publish_bytes, start_ok};
use crate::methods::{Call, Method, channel_close, connection_close, connection_open, get, publish, queue_declare};
use crate::{Node, PATIENCE, With};
use amq_protocol::frame::{AMQPContentHeader, parsing};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, connection, parse_class};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The header of AMQP 0-9-1.
pub const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// Last octet of every frame.
pub const FRAME_END: u8 = 0xCE;
/// Octets of a frame that are not payload.
pub const FRAME_OVERHEAD: usize = 8;
/// How soon the socket must be closed after `close-ok`: long before the broker gives up on peers that never send one.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How much is read from the socket at once.
const READ_BYTES: usize = 64 * 1024;

/// What came in one frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// A method.
    Method(AMQPClass),
    /// A content header, parsed, and as it came (from the class id on).
    Header(Box<AMQPContentHeader>, Vec<u8>),
    /// A part of a body.
    Body(Vec<u8>),
    /// A heartbeat.
    Heartbeat,
}

/// A delivery, whole, or any other method.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A delivery.
    Delivery(Box<Message<basic::Deliver>>),
    /// Another method.
    Method(AMQPClass),
}

/// A message as it came: the method that announced it, its properties, its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<M> {
    /// `basic.deliver`, `basic.get-ok` or `basic.return`.
    pub method: M,
    /// The properties.
    pub properties: BasicProperties,
    /// Property flags and property list as they came.
    pub raw_properties: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
    /// In how many frames the body came.
    pub body_frames: usize,
}

impl<M> Message<M> {
    /// The body as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }
}

/// One connection to the broker.
pub struct Wire {
    socket: TcpStream,
    input: Vec<u8>,
    consumed: usize,
    frame_max: usize,
    channel: u16,
}

impl Wire {
    /// A connection with channel 1 open.
    #[track_caller]
    pub fn open(node: &Node) -> Wire {
        Wire::open_with(node, &Options::default())
    }

    /// A connection with channel 1 open, opened as `options` say.
    #[track_caller]
    pub fn open_with(node: &Node, options: &Options) -> Wire {
        let mut wire = Wire::tuned(node, options);
        wire.call_on(0, connection_open(options.vhost));
        wire.open_channel(1);
        wire
    }

    /// A connection that has sent its `tune-ok`; `connection.open` is next.
    #[track_caller]
    pub fn tuned(node: &Node, options: &Options) -> Wire {
        let mut wire = Wire::greeted(node);
        wire.send_on(0, start_ok(options));
        let tune: connection::Tune = wire.expect_on(0);
        let connection::Tune { channel_max, frame_max, heartbeat } = tune;
        let answer = connection::TuneOk { channel_max, frame_max, heartbeat }.with(options.tune);
        wire.frame_max = usize::try_from(answer.frame_max).expect("a frame size");
        wire.send_on(0, answer);
        wire
    }

    /// A connection that has sent the protocol header and read `connection.start`.
    #[track_caller]
    pub fn greeted(node: &Node) -> Wire {
        let mut wire = Wire::connect(node.addr());
        wire.send_bytes(PROTOCOL_HEADER);
        let _: connection::Start = wire.expect_on(0);
        wire
    }

    /// A connection with channel 1 open, to a broker that may end any time; `None` when it did.
    #[track_caller]
    pub fn try_open(addr: SocketAddr) -> Option<Wire> {
        let mut wire = Wire::over(TcpStream::connect(addr).ok()?);
        wire.socket.write_all(PROTOCOL_HEADER).ok()?;
        let _: connection::Start = wire.try_expect_on(0)?;
        wire.try_send_on(0, start_ok(&Options::default()))?;
        let connection::Tune { channel_max, frame_max, .. } = wire.try_expect_on(0)?;
        wire.frame_max = usize::try_from(frame_max).expect("a frame size");
        wire.try_send_on(0, connection::TuneOk { channel_max, frame_max, heartbeat: 0 })?;
        wire.try_call_on(0, connection_open("/"))?;
        wire.try_call_on(1, channel::Open {})?;
        Some(wire)
    }

    /// A bare TCP connection.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Wire {
        Wire::over(TcpStream::connect(addr).expect("the broker takes connections"))
    }

    fn over(socket: TcpStream) -> Wire {
        socket.set_nodelay(true).expect("a TCP socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
        socket.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
        Wire { socket, input: Vec::new(), consumed: 0, frame_max: 131_072, channel: 1 }
    }

    /// The socket, for tests that read or shut it themselves.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Which channel the short methods use from now on.
    pub fn on(&mut self, channel: u16) -> &mut Wire {
        self.channel = channel;
        self
    }

    /// Opens a channel and uses it from now on.
    #[track_caller]
    pub fn open_channel(&mut self, channel: u16) -> &mut Wire {
        self.call_on(channel, channel::Open {});
        self.on(channel)
    }

    /// Closes the channel in use.
    #[track_caller]
    pub fn close_channel(&mut self) {
        self.call(channel_close());
    }

    /// Closes the connection and sees the socket closed after `close-ok`.
    #[track_caller]
    pub fn close(mut self) {
        self.send_on(0, connection_close());
        while !matches!(self.frame(), (0, Payload::Method(AMQPClass::Connection(connection::AMQPMethod::CloseOk(_))))) {
        }
    }

    // ---- sending

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the broker takes bytes");
    }

    /// Sends one frame of any type and payload, well formed.
    #[track_caller]
    pub fn send_frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let bytes = frame_bytes(kind, channel, payload);
        self.send_bytes(&bytes);
    }

    /// Sends a method on the channel in use.
    #[track_caller]
    pub fn send(&mut self, method: impl Method) -> &mut Wire {
        self.send_on(self.channel, method)
    }

    /// Sends a method on `channel`.
    #[track_caller]
    pub fn send_on(&mut self, channel: u16, method: impl Method) -> &mut Wire {
        let bytes = method_bytes(channel, method);
        self.send_bytes(&bytes);
        self
    }

    /// Publishes `body` without properties.
    #[track_caller]
    pub fn publish(&mut self, exchange: &str, routing_key: &str, body: impl AsRef<[u8]>) -> &mut Wire {
        self.publish_with(publish(exchange, routing_key), BasicProperties::default(), body)
    }

    /// Publishes with everything said.
    #[track_caller]
    pub fn publish_with(
        &mut self,
        method: basic::Publish,
        properties: BasicProperties,
        body: impl AsRef<[u8]>,
    ) -> &mut Wire {
        let bytes = publish_bytes(self.channel, self.frame_max, method, properties, body.as_ref());
        self.send_bytes(&bytes);
        self
    }

    /// Publishes to a queue by its name, on a connection that may end any time. Answers whether it could be sent.
    pub fn try_publish(&mut self, queue: &str, properties: BasicProperties, body: &str) -> bool {
        self.try_publish_with(publish("", queue), properties, body.as_bytes()).is_some()
    }

    /// Publishes with everything said, on a connection that may end any time. `None`: it did.
    pub fn try_publish_with(&mut self, method: basic::Publish, properties: BasicProperties, body: &[u8]) -> Option<()> {
        let bytes = publish_bytes(self.channel, self.frame_max, method, properties, body);
        self.socket.write_all(&bytes).ok()
    }

    /// Sends a method on the channel in use of a connection that may end any time. `None`: it did.
    pub fn try_send(&mut self, method: impl Method) -> Option<()> {
        self.try_send_on(self.channel, method)
    }

    fn try_send_on(&mut self, channel: u16, method: impl Method) -> Option<()> {
        self.socket.write_all(&method_bytes(channel, method)).ok()
    }

    /// `call` on a connection that may end any time. `None`: it did. Deliveries before the answer are passed over.
    #[track_caller]
    pub fn try_call<C: Call>(&mut self, method: C) -> Option<C::Ok> {
        self.try_call_on(self.channel, method)
    }

    #[track_caller]
    fn try_call_on<C: Call>(&mut self, channel: u16, method: C) -> Option<C::Ok> {
        self.try_send_on(channel, method)?;
        self.try_expect_on(channel)
    }

    #[track_caller]
    fn try_expect_on<M: Method>(&mut self, channel: u16) -> Option<M> {
        loop {
            match self.frame_or_end()? {
                (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Deliver(_))))
                | (_, Payload::Header(..) | Payload::Body(_) | Payload::Heartbeat) => {}
                (on, Payload::Method(class)) => {
                    assert_eq!(on, channel, "channel of {class:?}");
                    let method = M::from_class(class);
                    return Some(method.unwrap_or_else(|other| panic!("expected {}, got {other:?}", M::NAME)));
                }
            }
        }
    }

    // ---- receiving

    /// The next frame, heartbeats too, and its channel. Fails the test when the broker hangs up.
    #[track_caller]
    pub fn frame(&mut self) -> (u16, Payload) {
        self.frame_or_end().unwrap_or_else(|| panic!("the broker hung up, where a frame was due"))
    }

    /// The next frame, or `None` when the broker hung up.
    #[track_caller]
    pub fn frame_or_end(&mut self) -> Option<(u16, Payload)> {
        let head = self.take(7)?;
        let channel = u16::from_be_bytes([head[1], head[2]]);
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        assert!(size + FRAME_OVERHEAD <= self.frame_max, "a frame of {size} octets is above frame_max");
        let mut payload = self.take(size + 1)?;
        assert_eq!(payload.pop(), Some(FRAME_END), "frame end");
        Some((channel, parse_payload(head[0], payload)))
    }

    /// The next bytes as they come, at least one; empty when the broker hung up.
    #[track_caller]
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.take(count).unwrap_or_default()
    }

    #[track_caller]
    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.input.len() - self.consumed < count {
            if self.consumed > READ_BYTES {
                self.input.drain(..self.consumed);
                self.consumed = 0;
            }
            let start = self.input.len();
            self.input.resize(start + READ_BYTES, 0);
            let got = match self.socket.read(&mut self.input[start..]) {
                Ok(got) => got,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => 0,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("nothing came from the broker in time")
                }
                Err(error) => panic!("reading from the broker: {error}"),
            };
            self.input.truncate(start + got);
            if got == 0 {
                return None;
            }
        }
        let taken = self.input[self.consumed..self.consumed + count].to_vec();
        self.consumed += count;
        Some(taken)
    }

    /// The next frame that is no heartbeat.
    #[track_caller]
    pub fn event(&mut self) -> (u16, Payload) {
        self.event_or_end().unwrap_or_else(|| panic!("the broker hung up, where a frame was due"))
    }

    #[track_caller]
    fn event_or_end(&mut self) -> Option<(u16, Payload)> {
        loop {
            let frame = self.frame_or_end()?;
            if frame.1 != Payload::Heartbeat {
                return Some(frame);
            }
        }
    }

    /// The next frame must be this method on the channel in use.
    #[track_caller]
    pub fn expect<M: Method>(&mut self) -> M {
        self.expect_on(self.channel)
    }

    /// The next frame must be this method on `channel`.
    #[track_caller]
    pub fn expect_on<M: Method>(&mut self, channel: u16) -> M {
        let (on, payload) = self.event();
        let Payload::Method(class) = payload else { panic!("expected {}, got {payload:?}", M::NAME) };
        assert_eq!(on, channel, "channel of {class:?}");
        M::from_class(class).unwrap_or_else(|other| panic!("expected {}, got {other:?}", M::NAME))
    }

    /// Sends a synchronous method and reads its answer, which must be the next frame.
    #[track_caller]
    pub fn call<C: Call>(&mut self, method: C) -> C::Ok {
        self.call_on(self.channel, method)
    }

    /// `call` on another channel.
    #[track_caller]
    pub fn call_on<C: Call>(&mut self, channel: u16, method: C) -> C::Ok {
        self.send_on(channel, method);
        self.expect_on(channel)
    }

    /// The next frames must be a message announced by this method.
    #[track_caller]
    pub fn message<M: Method>(&mut self) -> Message<M> {
        let method = self.expect();
        self.content(method)
    }

    /// The next frames must be a delivery.
    #[track_caller]
    pub fn delivery(&mut self) -> Message<basic::Deliver> {
        self.message()
    }

    /// Reads acks until each of these publishes is confirmed, once; a nack or anything else fails the test.
    #[track_caller]
    pub fn all_confirmed(&mut self, numbers: RangeInclusive<u64>) {
        let mut open: BTreeSet<u64> = numbers.collect();
        while !open.is_empty() {
            let ack: basic::Ack = self.expect();
            if ack.multiple {
                open = open.split_off(&(ack.delivery_tag + 1));
            } else {
                assert!(open.remove(&ack.delivery_tag), "{} is confirmed once", ack.delivery_tag);
            }
        }
    }

    /// Gets a message, or `None` when the queue is empty.
    #[track_caller]
    pub fn get(&mut self, queue: &str) -> Option<Message<basic::GetOk>> {
        self.send(get(queue));
        match self.event() {
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::GetEmpty(_)))) => None,
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::GetOk(method)))) => Some(self.content(method)),
            (_, other) => panic!("expected get-ok or get-empty, got {other:?}"),
        }
    }

    /// Gets a message with its acknowledgement, as text.
    #[track_caller]
    pub fn take_text(&mut self, queue: &str) -> Option<String> {
        let message = self.get(queue)?;
        self.send(basic::Ack { delivery_tag: message.method.delivery_tag, multiple: false });
        Some(message.text().to_owned())
    }

    /// Waits until a queue has `count` ready messages. A publish without a confirm promises no more: the count of
    /// `declare-ok` may be older than what the channel has just sent.
    #[track_caller]
    pub fn has_ready(&mut self, queue: &str, count: u32) {
        crate::eventually(&format!("{count} ready messages in {queue}"), || self.ready(queue) == count);
    }

    /// How many ready messages a queue has now.
    #[track_caller]
    pub fn ready(&mut self, queue: &str) -> u32 {
        self.call(queue_declare(queue).with(|m| m.passive = true)).message_count
    }

    /// Gets a message on a connection that may end any time. `None`: it did; `Some(None)`: the queue is empty.
    #[track_caller]
    pub fn try_get(&mut self, queue: &str) -> Option<Option<Message<basic::GetOk>>> {
        self.try_send(get(queue))?;
        match self.frame_or_end()? {
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::GetEmpty(_)))) => Some(None),
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::GetOk(method)))) => {
                self.try_content(method).map(Some)
            }
            (_, other) => panic!("expected get-ok or get-empty, got {other:?}"),
        }
    }

    /// The next delivery or other method, on a connection that may end any time. `None`: it did.
    #[track_caller]
    pub fn try_next(&mut self) -> Option<Next> {
        match self.event_or_end()? {
            (_, Payload::Method(AMQPClass::Basic(basic::AMQPMethod::Deliver(method)))) => {
                self.try_content(method).map(|message| Next::Delivery(Box::new(message)))
            }
            (_, Payload::Method(class)) => Some(Next::Method(class)),
            (_, other) => panic!("expected a method, got {other:?}"),
        }
    }

    /// The rest of a message.
    #[track_caller]
    fn content<M>(&mut self, method: M) -> Message<M> {
        self.try_content(method).unwrap_or_else(|| panic!("the broker hung up within a message"))
    }

    #[track_caller]
    fn try_content<M>(&mut self, method: M) -> Option<Message<M>> {
        let (_, Payload::Header(header, raw)) = self.event_or_end()? else { panic!("expected a content header") };
        let mut message = Message {
            method,
            properties: header.properties,
            raw_properties: raw[12..].to_vec(),
            body: vec![],
            body_frames: 0,
        };
        while (message.body.len() as u64) < header.body_size {
            let (_, Payload::Body(part)) = self.event_or_end()? else { panic!("expected a content body") };
            message.body.extend_from_slice(&part);
            message.body_frames += 1;
        }
        assert_eq!(message.body.len() as u64, header.body_size, "a body as long as announced");
        Some(message)
    }

    // ---- refusals

    /// The broker must close the channel in use with this code, text, and class and method id. It is opened again.
    #[track_caller]
    pub fn fails_with(&mut self, code: u16, text: &str, ids: (u16, u16)) -> &mut Wire {
        let close: channel::Close = self.expect();
        let got = (close.reply_code, close.reply_text.as_str(), (close.class_id, close.method_id));
        assert_eq!(got, (code, text, ids), "channel.close");
        self.send(channel::CloseOk {});
        self.open_channel(self.channel)
    }

    /// The broker must close the connection with this code, text, and class and method id, and then the socket.
    #[track_caller]
    pub fn breaks_with(mut self, code: u16, text: &str, ids: (u16, u16)) {
        let close = self.connection_close();
        let got = (close.reply_code, close.reply_text.as_str(), (close.class_id, close.method_id));
        assert_eq!(got, (code, text, ids), "connection.close");
    }

    /// The broker must close the connection, and then the socket.
    #[track_caller]
    pub fn connection_close(&mut self) -> connection::Close {
        let close: connection::Close = self.expect_on(0);
        self.send_on(0, connection::CloseOk {});
        self.patience(CLOSE_PATIENCE);
        assert_eq!(self.frame_or_end(), None, "the socket is closed after close-ok");
        close
    }

    /// The broker must hang up without another frame.
    #[track_caller]
    pub fn is_dropped(mut self) {
        assert_eq!(self.frame_or_end(), None, "the socket is closed without a frame");
    }

    /// Whether something comes, or is there, within this time. It stays to be read.
    pub fn comes_within(&mut self, duration: Duration) -> bool {
        if self.consumed < self.input.len() {
            return true;
        }
        self.patience(duration);
        let came = self.socket.peek(&mut [0]).is_ok();
        self.patience(PATIENCE);
        came
    }

    /// Nothing may come for this long.
    #[track_caller]
    pub fn stays_silent(&mut self, duration: Duration) {
        assert_eq!(self.consumed, self.input.len(), "nothing was read ahead");
        self.patience(duration);
        let mut byte = [0];
        let came = self.socket.peek(&mut byte);
        assert!(matches!(&came, Err(error) if error.kind() == ErrorKind::WouldBlock), "silence, not {came:?}");
        self.patience(PATIENCE);
    }

    /// Reads with another timeout from now on.
    pub fn patience(&mut self, patience: Duration) -> &mut Wire {
        self.socket.set_read_timeout(Some(patience)).expect("a timeout above zero");
        self
    }
}

#[track_caller]
fn parse_payload(kind: u8, payload: Vec<u8>) -> Payload {
    match kind {
        1 => Payload::Method(parse_class(payload.as_slice()).expect("a method that amq-protocol knows").1),
        2 => {
            let header = parsing::parse_content_header(payload.as_slice()).expect("a content header").1;
            Payload::Header(Box::new(header), payload)
        }
        3 => Payload::Body(payload),
        8 => Payload::Heartbeat,
        other => panic!("a frame of type {other} from the broker"),
    }
}
