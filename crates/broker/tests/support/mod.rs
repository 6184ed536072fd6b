//! A node on a data directory, and a client that speaks frames and expects answers.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amqp::methods::{AMQPClass, channel, connection, exchange, queue};
use amqp::{FieldTable, FrameDecoder, Method, PROTOCOL_HEADER, encode};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warrenmq_broker::{self as broker, Broker, Settings};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

/// Settings of a node in a directory.
pub(crate) fn settings(dir: &Path) -> Settings {
    Settings { data_dir: dir.to_path_buf(), shards: 2, durable_shards: 3, ..Settings::default() }
}

/// Runs a node while `story` lasts, and lets go of its data directory. Nothing is told to the node before it ends, as in a crash.
pub(crate) fn node<F: Future<Output = ()>>(settings: Settings, story: impl FnOnce(SocketAddr) -> F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let broker = Broker::start(settings).expect("the node starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(accept(listener, broker));
        tokio::time::timeout(PATIENCE, story(address)).await.expect("the story ends");
    });
}

async fn accept(listener: TcpListener, broker: Arc<Broker>) {
    while let Ok((stream, peer)) = listener.accept().await {
        tokio::spawn(broker::serve(Arc::clone(&broker), stream, peer));
    }
}

/// A connection with channel 1 open.
pub(crate) struct Client {
    stream: TcpStream,
    input: BytesMut,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the node listens");
        stream.set_nodelay(true).expect("a socket option");
        let mut client = Self { stream, input: BytesMut::new() };
        client.stream.write_all(&PROTOCOL_HEADER).await.expect("the node reads");
        client.receive().await;
        let start_ok = connection::StartOk {
            client_properties: FieldTable::default(),
            mechanism: "PLAIN".into(),
            response: "\0guest\0guest".into(),
            locale: "en_US".into(),
        };
        client.call_on(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(start_ok))).await;
        let tune_ok = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 };
        client.send(0, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tune_ok))).await;
        let open = connection::Open { virtual_host: "/".into() };
        client.call_on(0, AMQPClass::Connection(connection::AMQPMethod::Open(open))).await;
        client.open_channel().await;
        client
    }

    pub(crate) async fn open_channel(&mut self) {
        let opened = self.call(AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}))).await;
        assert!(matches!(opened, AMQPClass::Channel(channel::AMQPMethod::OpenOk(_))), "{opened:?}");
    }

    async fn send(&mut self, channel: u16, method: AMQPClass) {
        let mut out = BytesMut::new();
        encode::method(&mut out, channel, &method);
        self.stream.write_all(&out).await.expect("the node reads");
    }

    async fn receive(&mut self) -> AMQPClass {
        let decoder = FrameDecoder::new(131_072);
        loop {
            if let Some((frame, bytes)) = decoder.decode(&self.input).expect("the node sends frames") {
                let method = match Method::decode(frame.payload).expect("the node sends methods") {
                    Method::Other(_, class) => class,
                    other => panic!("not expected: {other:?}"),
                };
                let _ = self.input.split_to(bytes);
                return method;
            }
            assert_ne!(self.stream.read_buf(&mut self.input).await.expect("the node writes"), 0, "the node hung up");
        }
    }

    async fn call_on(&mut self, channel: u16, method: AMQPClass) -> AMQPClass {
        self.send(channel, method).await;
        self.receive().await
    }

    /// Sends a method and answers with the reply; after an exception the channel is open again.
    pub(crate) async fn call(&mut self, method: AMQPClass) -> AMQPClass {
        let reply = self.call_on(1, method).await;
        if let AMQPClass::Channel(channel::AMQPMethod::Close(_)) = reply {
            self.send(1, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}))).await;
            let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
            self.call_on(1, open).await;
        }
        reply
    }

    async fn call_exchange(&mut self, method: exchange::AMQPMethod) -> Result<(), u16> {
        outcome(&self.call(AMQPClass::Exchange(method)).await)
    }

    async fn call_queue(&mut self, method: queue::AMQPMethod) -> Result<(), u16> {
        outcome(&self.call(AMQPClass::Queue(method)).await)
    }

    /// Declares an exchange; the code of the exception if that is refused.
    pub(crate) async fn exchange(&mut self, name: &str, kind: &str, how: Declare) -> Result<(), u16> {
        let declare = exchange::Declare {
            exchange: name.into(),
            kind: kind.into(),
            passive: how.passive,
            durable: how.durable,
            auto_delete: how.auto_delete,
            internal: false,
            nowait: false,
            arguments: how.arguments,
        };
        self.call_exchange(exchange::AMQPMethod::Declare(declare)).await
    }

    pub(crate) async fn delete_exchange(&mut self, name: &str, if_unused: bool) -> Result<(), u16> {
        let delete = exchange::Delete { exchange: name.into(), if_unused, nowait: false };
        self.call_exchange(exchange::AMQPMethod::Delete(delete)).await
    }

    pub(crate) async fn bind_exchange(&mut self, destination: &str, source: &str, key: &str) -> Result<(), u16> {
        let bind = exchange::Bind {
            destination: destination.into(),
            source: source.into(),
            routing_key: key.into(),
            nowait: false,
            arguments: FieldTable::default(),
        };
        self.call_exchange(exchange::AMQPMethod::Bind(bind)).await
    }

    /// Declares a queue: its name and number of messages, or the code of the exception.
    pub(crate) async fn queue(&mut self, name: &str, how: Declare) -> Result<(String, u32), u16> {
        let declare = queue::Declare {
            queue: name.into(),
            passive: how.passive,
            durable: how.durable,
            exclusive: how.exclusive,
            auto_delete: how.auto_delete,
            nowait: false,
            arguments: how.arguments,
        };
        let reply = self.call(AMQPClass::Queue(queue::AMQPMethod::Declare(declare))).await;
        match reply {
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok)) => Ok((ok.queue.to_string(), ok.message_count)),
            other => Err(outcome(&other).expect_err("no declare-ok")),
        }
    }

    pub(crate) async fn delete_queue(&mut self, name: &str) -> Result<(), u16> {
        let delete = queue::Delete { queue: name.into(), if_unused: false, if_empty: false, nowait: false };
        self.call_queue(queue::AMQPMethod::Delete(delete)).await
    }

    pub(crate) async fn bind(
        &mut self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: FieldTable,
    ) -> Result<(), u16> {
        let bind = queue::Bind {
            queue: queue.into(),
            exchange: exchange.into(),
            routing_key: key.into(),
            nowait: false,
            arguments,
        };
        self.call_queue(queue::AMQPMethod::Bind(bind)).await
    }

    pub(crate) async fn unbind(
        &mut self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: FieldTable,
    ) -> Result<(), u16> {
        let unbind =
            queue::Unbind { queue: queue.into(), exchange: exchange.into(), routing_key: key.into(), arguments };
        self.call_queue(queue::AMQPMethod::Unbind(unbind)).await
    }

    pub(crate) async fn has_exchange(&mut self, name: &str) -> bool {
        found(self.exchange(name, "", Declare { passive: true, ..Declare::default() }).await)
    }

    pub(crate) async fn has_queue(&mut self, name: &str) -> bool {
        found(self.queue(name, Declare { passive: true, ..Declare::default() }).await)
    }
}

fn found<T>(declared: Result<T, u16>) -> bool {
    match declared {
        Ok(_) => true,
        Err(404) => false,
        Err(code) => panic!("not expected: {code}"),
    }
}

fn outcome(reply: &AMQPClass) -> Result<(), u16> {
    match reply {
        AMQPClass::Channel(channel::AMQPMethod::Close(close)) => Err(close.reply_code),
        AMQPClass::Connection(connection::AMQPMethod::Close(close)) => Err(close.reply_code),
        _ => Ok(()),
    }
}

/// How something is declared. Nothing is set by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declare {
    pub(crate) passive: bool,
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: FieldTable,
}

impl Declare {
    pub(crate) fn durable() -> Self {
        Self { durable: true, ..Self::default() }
    }
}
