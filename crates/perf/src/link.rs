//! A connection to a broker: socket, handshake, calls one at a time. What runs under load is in [`crate::drive`].

use std::io;
use std::time::Duration;

use amqp::methods::{AMQPClass, channel, connection};
use amqp::{AMQPValue, FieldTable, FrameDecoder, PROTOCOL_HEADER, encode};
use bytes::{Buf as _, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::error::Error;
use crate::uri::Uri;
use crate::wire::Incoming;

/// Free room before each read, in bytes: a read takes hundreds of small messages at once.
pub(crate) const READ_BYTES: usize = 128 * 1024;
/// How long a broker may take for an answer: 10,000 declares at once take RabbitMQ a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two attempts to connect while the broker starts.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// How to connect.
#[derive(Clone, Debug)]
pub(crate) struct LinkOptions {
    /// Heartbeat to ask for, in seconds; 0 for none.
    pub(crate) heartbeat_s: u16,
    /// Largest frame to agree to, in bytes; 0 for what the broker proposes.
    pub(crate) frame_max: u32,
    /// How long to try again while nobody listens.
    pub(crate) connect_timeout: Duration,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) input: BytesMut,
    pub(crate) output: BytesMut,
    pub(crate) decoder: FrameDecoder,
    /// Largest frame in bytes, as agreed.
    pub(crate) frame_max: u32,
    /// Heartbeat as agreed, if any.
    pub(crate) heartbeat: Option<Duration>,
}

impl Link {
    /// Connects, logs in and opens the virtual host.
    ///
    /// # Errors
    /// Everything of [`Error`]; nobody listening only after the connect timeout.
    pub(crate) async fn open(uri: &Uri, options: &LinkOptions) -> Result<Self, Error> {
        let deadline = Instant::now() + options.connect_timeout;
        let stream = loop {
            match TcpStream::connect((uri.host.as_str(), uri.port)).await {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(RETRY_EVERY).await,
            }
        };
        stream.set_nodelay(true)?;
        let mut link = Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            decoder: FrameDecoder::new(0),
            frame_max: 0,
            heartbeat: None,
        };
        link.handshake(uri, options).await?;
        Ok(link)
    }

    async fn handshake(&mut self, uri: &Uri, options: &LinkOptions) -> Result<(), Error> {
        // The limit before tuning is the broker's to keep; some send long server properties.
        self.decoder.set_frame_max(READ_BYTES as u32);
        self.output.extend_from_slice(&PROTOCOL_HEADER);
        self.flush().await?;
        match self.answer(0).await? {
            AMQPClass::Connection(connection::AMQPMethod::Start(_)) => {}
            other => return Err(unexpected(&other)),
        }
        let start_ok = connection::StartOk {
            client_properties: client_properties(),
            mechanism: "PLAIN".into(),
            response: format!("\0{}\0{}", uri.user, uri.password).into(),
            locale: "en_US".into(),
        };
        self.send(0, connection::AMQPMethod::StartOk(start_ok).into_class()).await?;
        let tune = match self.answer(0).await? {
            AMQPClass::Connection(connection::AMQPMethod::Tune(tune)) => tune,
            other => return Err(unexpected(&other)),
        };
        self.frame_max = match (tune.frame_max, options.frame_max) {
            // Neither sets a limit: one read's worth is enough.
            (0, 0) => READ_BYTES as u32,
            (0, ours) => ours,
            (theirs, 0) => theirs,
            (theirs, ours) => theirs.min(ours),
        }
        .clamp(amqp::FRAME_MIN_SIZE, MAX_FRAME_BYTES);
        let heartbeat_s = options.heartbeat_s;
        self.heartbeat = (heartbeat_s > 0).then(|| Duration::from_secs(heartbeat_s.into()));
        self.decoder.set_frame_max(self.frame_max);
        let tune_ok =
            connection::TuneOk { channel_max: tune.channel_max, frame_max: self.frame_max, heartbeat: heartbeat_s };
        encode::method(&mut self.output, 0, &connection::AMQPMethod::TuneOk(tune_ok).into_class());
        let open = connection::Open { virtual_host: uri.vhost.as_str().into() };
        match self.call(0, connection::AMQPMethod::Open(open).into_class()).await? {
            AMQPClass::Connection(connection::AMQPMethod::OpenOk(_)) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a channel.
    pub(crate) async fn open_channel(&mut self, channel: u16) -> Result<(), Error> {
        self.call(channel, channel::AMQPMethod::Open(channel::Open {}).into_class()).await.map(drop)
    }

    /// Closes the connection in order: what was sent before is worked off by the broker.
    pub(crate) async fn close(mut self) -> Result<(), Error> {
        let close = connection::Close { reply_code: 200, reply_text: "OK".into(), class_id: 0, method_id: 0 };
        encode::method(&mut self.output, 0, &connection::AMQPMethod::Close(close).into_class());
        self.flush().await?;
        // Deliveries may be under way; only the answer counts.
        loop {
            match self.next_method().await {
                Ok((0, AMQPClass::Connection(connection::AMQPMethod::CloseOk(_)))) | Err(Error::Hangup) => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a method and waits for the next one on its channel.
    ///
    /// # Errors
    /// [`Error::Refused`] when the broker closes the channel or the connection in answer.
    pub(crate) async fn call(&mut self, channel: u16, method: AMQPClass) -> Result<AMQPClass, Error> {
        self.send(channel, method).await?;
        self.answer(channel).await
    }

    async fn send(&mut self, channel: u16, method: AMQPClass) -> Result<(), Error> {
        encode::method(&mut self.output, channel, &method);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    async fn answer(&mut self, channel: u16) -> Result<AMQPClass, Error> {
        let wait = async {
            loop {
                let (on, method) = self.next_method().await?;
                check_close(&method)?;
                if on == channel && !is_notice(&method) {
                    return Ok(method);
                }
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, wait).await.map_err(|_| Error::Timeout(ANSWER_TIMEOUT.as_secs()))?
    }

    /// The next method that is not sent per message; what comes before it is passed over.
    async fn next_method(&mut self) -> Result<(u16, AMQPClass), Error> {
        loop {
            while let Some((frame, bytes)) = self.decoder.decode(&self.input).map_err(protocol)? {
                let channel = frame.channel;
                let incoming = Incoming::decode(&frame)?;
                if let Incoming::Other(method) = incoming {
                    self.input.advance(bytes);
                    return Ok((channel, *method));
                }
                self.input.advance(bytes);
            }
            self.stream.readable().await?;
            self.read()?;
        }
    }

    /// Reads once, without waiting. `false` if nothing is there.
    pub(crate) fn read(&mut self) -> Result<bool, Error> {
        // A frame is at most `frame_max` and 8 bytes of tolerance, so the buffer stays below that and one read.
        self.input.reserve(READ_BYTES);
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => Err(Error::Hangup),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Error::Hangup),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes once, without waiting. `false` if the socket is full.
    pub(crate) fn write(&mut self) -> Result<bool, Error> {
        match self.stream.try_write(&self.output) {
            Ok(written) => {
                self.output.advance(written);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Largest frame that is agreed to, in bytes: one is read into memory whole.
const MAX_FRAME_BYTES: u32 = 16 << 20;

/// The short way from a method to what the encoder takes.
pub(crate) trait IntoClass {
    fn into_class(self) -> AMQPClass;
}

macro_rules! into_class {
    ($($module:ident $class:ident),*) => {$(
        impl IntoClass for amqp::methods::$module::AMQPMethod {
            fn into_class(self) -> AMQPClass {
                AMQPClass::$class(self)
            }
        }
    )*};
}

into_class! { connection Connection, channel Channel, exchange Exchange, queue Queue, basic Basic, confirm Confirm }

/// What the broker ended the conversation with, if it did.
pub(crate) fn check_close(method: &AMQPClass) -> Result<(), Error> {
    match method {
        AMQPClass::Connection(connection::AMQPMethod::Close(close)) => {
            Err(Error::Refused { code: close.reply_code, text: close.reply_text.to_string() })
        }
        AMQPClass::Channel(channel::AMQPMethod::Close(close)) => {
            Err(Error::Refused { code: close.reply_code, text: close.reply_text.to_string() })
        }
        _ => Ok(()),
    }
}

fn is_notice(method: &AMQPClass) -> bool {
    use connection::AMQPMethod::{Blocked, Unblocked};
    matches!(method, AMQPClass::Connection(Blocked(_) | Unblocked(_)))
}

pub(crate) fn unexpected(method: &AMQPClass) -> Error {
    Error::Protocol(format!("unexpected {method:?}"))
}

pub(crate) fn protocol(exception: amqp::Exception) -> Error {
    Error::Protocol(exception.to_string())
}

fn client_properties() -> FieldTable {
    let mut capabilities = FieldTable::default();
    for name in [
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    ] {
        capabilities.insert(name.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    properties.insert("product".into(), AMQPValue::LongString("warrenmq perf".into()));
    properties.insert("version".into(), AMQPValue::LongString(env!("CARGO_PKG_VERSION").into()));
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    properties
}
