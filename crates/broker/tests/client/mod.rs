//! A client of few words for tests: one connection over loopback to a node in this process. It waits for what it expects and panics
//! on anything else.

use std::sync::Arc;
use std::time::Duration;

use amqp::methods::{AMQPClass, basic, channel, connection, parse_class, queue};
use amqp::{FrameDecoder, FrameKind, Outbox, PROTOCOL_HEADER, Properties, PropertiesBuilder, encode};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warrenmq_broker::{Broker, Settings};

const FRAME_MAX: u32 = 131_072;
/// Nothing takes that long; a test that waits for what never comes ends with a message rather than not at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node of its own, with a listener.
pub(crate) struct Node {
    address: std::net::SocketAddr,
    _directory: tempfile::TempDir,
}

/// A method, with the properties and body that came behind it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) channel: u16,
    pub(crate) method: AMQPClass,
    pub(crate) properties: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    /// `reply-to` of its properties.
    pub(crate) fn reply_to(&self) -> String {
        let reply_to = Properties::from_raw_trusted(&self.properties).reply_to().expect("there is a reply-to");
        String::from_utf8(reply_to.to_vec()).expect("UTF-8")
    }
}

pub(crate) struct Client {
    stream: TcpStream,
    decoder: FrameDecoder,
    input: BytesMut,
    output: Outbox,
}

impl Node {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let settings = Settings { data_dir: directory.path().join("data"), ..Settings::default() };
        let broker = Broker::start(settings).expect("the node starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                tokio::spawn(warrenmq_broker::serve(Arc::clone(&broker), stream, peer));
            }
        });
        Self { address, _directory: directory }
    }

    /// A client that is logged in and has channel 1 open.
    pub(crate) async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("the node listens");
        let mut client =
            Client { stream, decoder: FrameDecoder::new(FRAME_MAX), input: BytesMut::new(), output: Outbox::new() };
        client.output.buffer().extend_from_slice(&PROTOCOL_HEADER);
        client.receive().await;
        let start_ok = connection::StartOk {
            client_properties: Default::default(),
            mechanism: "PLAIN".into(),
            response: "\0guest\0guest".into(),
            locale: "en_US".into(),
        };
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(start_ok)));
        client.receive().await;
        let tune_ok = connection::TuneOk { channel_max: 2047, frame_max: FRAME_MAX, heartbeat: 0 };
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tune_ok)));
        let open = connection::Open { virtual_host: "/".into() };
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::Open(open)));
        client.receive().await;
        client.open(1).await;
        client
    }
}

impl Client {
    pub(crate) async fn open(&mut self, number: u16) {
        self.send(number, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})));
        self.receive().await;
    }

    /// Declares an exclusive queue and answers its name.
    pub(crate) async fn declare(&mut self, name: &str) -> String {
        let declare = queue::Declare { queue: name.into(), exclusive: true, ..Default::default() };
        self.send(1, AMQPClass::Queue(queue::AMQPMethod::Declare(declare)));
        match self.receive().await.method {
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok)) => ok.queue.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// Consumes without acknowledgements, with the queue's name as the consumer's tag.
    pub(crate) async fn consume(&mut self, number: u16, queue: &str) {
        let consumer_tag = queue.into();
        let consume = basic::Consume { queue: queue.into(), consumer_tag, no_ack: true, ..Default::default() };
        self.send(number, AMQPClass::Basic(basic::AMQPMethod::Consume(consume)));
        let answer = self.receive().await;
        assert!(matches!(answer.method, AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(_))), "{answer:?}");
    }

    /// Publishes to the default exchange, mandatory.
    pub(crate) fn publish(&mut self, number: u16, key: &str, properties: PropertiesBuilder<'_>, body: &[u8]) {
        let publish = basic::Publish { routing_key: key.into(), mandatory: true, ..Default::default() };
        encode::method(self.output.buffer(), number, &AMQPClass::Basic(basic::AMQPMethod::Publish(publish)));
        self.output.content(number, FRAME_MAX, &properties.build(), &Bytes::copy_from_slice(body));
    }

    pub(crate) fn send(&mut self, number: u16, method: AMQPClass) {
        encode::method(self.output.buffer(), number, &method);
    }

    /// Writes what was sent, and waits for the next method with its content.
    pub(crate) async fn receive(&mut self) -> Received {
        tokio::time::timeout(PATIENCE, self.next()).await.expect("an answer comes")
    }

    async fn next(&mut self) -> Received {
        self.flush().await;
        let mut received = None;
        let mut body_bytes = 0;
        loop {
            let Some((frame, used)) = self.decoder.decode(&self.input).expect("the node sends frames") else {
                let read = self.stream.read_buf(&mut self.input).await.expect("the node is there");
                assert_ne!(read, 0, "the node closed the connection");
                continue;
            };
            let payload = frame.payload;
            match frame.kind {
                FrameKind::Method => {
                    let (_, method) = parse_class(payload).expect("a method");
                    received = Some(Received { channel: frame.channel, method, properties: vec![], body: vec![] });
                }
                FrameKind::Header => {
                    body_bytes = u64::from_be_bytes(payload[4..12].try_into().expect("eight bytes"));
                    received.as_mut().expect("behind a method").properties = payload[12..].to_vec();
                }
                FrameKind::Body => received.as_mut().expect("behind a header").body.extend_from_slice(payload),
                FrameKind::Heartbeat => {}
            }
            let had_header = frame.kind != FrameKind::Method;
            let _ = self.input.split_to(used);
            if let Some(done) = &received {
                let content = matches!(
                    &done.method,
                    AMQPClass::Basic(
                        basic::AMQPMethod::Deliver(_) | basic::AMQPMethod::GetOk(_) | basic::AMQPMethod::Return(_)
                    )
                );
                if !content || (had_header && done.body.len() as u64 == body_bytes) {
                    return received.expect("looked at above");
                }
            }
        }
    }

    /// Writes what was sent.
    pub(crate) async fn flush(&mut self) {
        while !self.output.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 16];
            let count = self.output.io_slices(&mut slices);
            let written = self.stream.write_vectored(&slices[..count]).await.expect("the node reads");
            self.output.advance(written);
        }
    }
}
