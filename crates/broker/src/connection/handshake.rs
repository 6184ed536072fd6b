//! From the first eight bytes to `connection.open-ok` (AMQP 0-9-1 section 2.2.4 and 4.2.2).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use amqp::methods::AMQPClass;
use amqp::methods::connection::{AMQPMethod, Open, OpenOk, StartOk, Tune, TuneOk};
use amqp::{
    AMQPValue, Exception, FRAME_MIN_SIZE, FieldTable, Frame, Method, MethodId, PROTOCOL_HEADER, ProtocolHeader,
    RawValue, ReplyCode, TableWriter, encode,
};

use super::channel::Fault;
use super::handle::ConnectionInfo;
use super::session::{Client, Phase, Session};
use crate::auth::sasl::{self, Credentials};

/// SASL mechanisms, in the order in which they are offered.
const MECHANISMS: &str = "AMQPLAIN PLAIN";
/// What clients may rely on. The names are RabbitMQ's; clients look for each of them.
const CAPABILITIES: [&str; 9] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
];

impl Session {
    /// Answers the protocol header, once it is there. Answers how many bytes were used.
    pub(super) fn protocol_header(&mut self, data: &[u8]) -> usize {
        let Some(first) = data.first_chunk::<8>() else {
            if !PROTOCOL_HEADER.starts_with(&data[..data.len().min(4)]) {
                // What cannot become a header is not waited for.
                self.refuse_protocol(ProtocolHeader::Unknown);
                return data.len();
            }
            return 0;
        };
        match ProtocolHeader::classify(first) {
            ProtocolHeader::Amqp091 | ProtocolHeader::Amqp09 => self.start(0, 9),
            ProtocolHeader::Amqp08 => self.start(8, 0),
            other => {
                self.refuse_protocol(other);
                return data.len();
            }
        }
        8
    }

    fn refuse_protocol(&mut self, protocol: ProtocolHeader) {
        let what = match protocol {
            ProtocolHeader::Tls => "a TLS client hello on a port without TLS",
            ProtocolHeader::Http => "an HTTP request on the AMQP port",
            ProtocolHeader::Amqp10 => "AMQP 1.0, which this version does not speak",
            _ => "an unknown protocol",
        };
        tracing::warn!(connection = %self.log_name(), "{what}: answered with the AMQP 0-9-1 header and closed");
        self.outbox.buffer().extend_from_slice(&PROTOCOL_HEADER);
        self.phase = Phase::Gone;
    }

    fn start(&mut self, version_major: u8, version_minor: u8) {
        let settings = self.broker.settings();
        // Written by hand: a map would bring the names into another order than the one clients' tests know.
        let mut properties = TableWriter::new();
        properties.put_table("capabilities", |capabilities| {
            for name in CAPABILITIES.iter().filter(|_| version_major == 0) {
                capabilities.put(name, RawValue::Bool(true));
            }
        });
        for (name, value) in [
            ("cluster_name", settings.cluster_name.as_str()),
            ("copyright", "Copyright (c) the WarrenMQ authors"),
            ("information", concat!("WarrenMQ ", env!("CARGO_PKG_VERSION"), ". Licensed under the Apache License 2.0")),
            ("platform", "Rust"),
            ("product", settings.product.as_str()),
            ("version", settings.product_version.as_str()),
        ] {
            properties.put(name, RawValue::LongStr(value.as_bytes()));
        }
        encode::start(self.outbox.buffer(), version_major, version_minor, &properties.finish(), MECHANISMS, "en_US");
        self.phase = Phase::Start;
    }

    /// A frame before the connection is open. Only the method that is due is taken; for anything else the socket is dropped.
    pub(super) fn handshake_frame(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        let method = Method::decode(frame.payload)?;
        match (self.phase, method) {
            (Phase::Start, Method::Other(_, AMQPClass::Connection(AMQPMethod::StartOk(m)))) => self.start_ok(&m),
            (Phase::Tune, Method::Other(_, AMQPClass::Connection(AMQPMethod::TuneOk(m)))) => {
                self.tune_ok(&m);
                Ok(())
            }
            (Phase::Open, Method::Other(_, AMQPClass::Connection(AMQPMethod::Open(m)))) => self.open_vhost(&m),
            (_, Method::Other(_, AMQPClass::Connection(AMQPMethod::Close(_)))) => {
                self.client_closes();
                Ok(())
            }
            (_, other) => {
                let MethodId { class, method } = other.id();
                self.drop_later(&format!("method {class},{method} is not due in the handshake"));
                Ok(())
            }
        }
    }

    fn start_ok(&mut self, start_ok: &StartOk) -> Result<(), Fault> {
        self.client = Client::from_properties(&start_ok.client_properties);
        let mechanism = start_ok.mechanism.as_str();
        let response = start_ok.response.as_bytes();
        let credentials = match mechanism {
            "PLAIN" => sasl::plain(response),
            "AMQPLAIN" => sasl::amqplain(response),
            _ => None,
        };
        let Some(Credentials { user, password }) = credentials else {
            self.drop_later(&format!("mechanism {mechanism:?} is unknown or its response cannot be parsed"));
            return Ok(());
        };
        let login = self.broker.access().authenticate(user, password, self.peer.ip());
        match login {
            Ok(user) => {
                self.user = Some(user);
                self.mechanism = mechanism.into();
            }
            Err(refused) => {
                tracing::warn!(connection = %self.log_name(), mechanism, "login refused: {refused}");
                self.refuse_login(mechanism);
                return Ok(());
            }
        }
        let settings = self.broker.settings();
        let tune = Tune {
            channel_max: settings.channel_max,
            frame_max: settings.frame_max,
            heartbeat: settings.heartbeat_secs,
        };
        self.send(0, AMQPClass::Connection(AMQPMethod::Tune(tune)));
        self.phase = Phase::Tune;
        Ok(())
    }

    fn refuse_login(&mut self, mechanism: &str) {
        if !self.client.authentication_failure_close {
            return self.drop_later("login refused");
        }
        let text = format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        );
        let exception = Exception::connection(ReplyCode::AccessRefused, text, MethodId::NONE);
        amqp::encode::connection_close(self.outbox.buffer(), &exception);
        self.phase = Phase::Gone;
    }

    fn tune_ok(&mut self, tune_ok: &TuneOk) {
        let settings = self.broker.settings();
        let in_limit = |value: u32, limit: u32| limit == 0 || (value != 0 && value <= limit);
        let frame_max_is_small = tune_ok.frame_max != 0 && (tune_ok.frame_max as usize) < FRAME_MIN_SIZE as usize;
        if !in_limit(u32::from(tune_ok.channel_max), u32::from(settings.channel_max))
            || !in_limit(tune_ok.frame_max, settings.frame_max)
            || frame_max_is_small
        {
            let (channel_max, frame_max) = (tune_ok.channel_max, tune_ok.frame_max);
            return self.drop_later(&format!(
                "tune-ok asks for channel_max {channel_max}, frame_max {frame_max}: not allowed"
            ));
        }
        self.channel_max = tune_ok.channel_max;
        // Even without a limit a frame must fit in memory.
        const NO_FRAME_MAX: u32 = 16 * 1024 * 1024;
        self.frame_max = if tune_ok.frame_max == 0 { NO_FRAME_MAX } else { tune_ok.frame_max };
        self.decoder.set_frame_max(self.frame_max);
        self.heartbeat = Duration::from_secs(u64::from(tune_ok.heartbeat));
        self.phase = Phase::Open;
    }

    fn open_vhost(&mut self, open: &Open) -> Result<(), Fault> {
        let name = open.virtual_host.as_str();
        let refuse = |text: String| Exception::new(ReplyCode::NotAllowed, text, MethodId::CONNECTION_OPEN);
        let vhost = self.broker.vhost(name).ok_or_else(|| refuse(format!("vhost {name} not found")))?;
        let user = self.user().name();
        if !self.broker.access().vhost_access(user, name) {
            return Err(refuse(format!("access to vhost '{name}' refused for user '{user}'")).into());
        }
        self.broker.admit_connection(&self.handle, self.info(user, name))?;
        // The user or the virtual host may have been deleted at this moment, before the connection could be found.
        if vhost.is_ended() || self.broker.access().user(user).is_none() {
            return Err(refuse(format!("access to vhost '{name}' refused for user '{user}'")).into());
        }
        if self.broker.is_stopping() {
            self.phase = Phase::Gone;
            return Ok(());
        }
        tracing::info!(
            connection = %self.log_name(), user, vhost = name, client = self.client.product.as_deref().unwrap_or("?"),
            "connection opened"
        );
        self.vhost = Some(vhost);
        self.phase = Phase::Running;
        self.send(0, AMQPClass::Connection(AMQPMethod::OpenOk(OpenOk {})));
        Ok(())
    }
}

impl Session {
    /// What others see of the connection while it is open.
    fn info(&self, user: &str, vhost: &str) -> ConnectionInfo {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ConnectionInfo {
            user: user.into(),
            vhost: vhost.into(),
            peer: self.peer,
            local: self.local,
            mechanism: self.mechanism.clone(),
            frame_max: self.frame_max,
            channel_max: self.channel_max,
            heartbeat_secs: self.heartbeat.as_secs(),
            client_properties: self.client.properties.clone(),
            connected_at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Client {
    fn from_properties(properties: &FieldTable) -> Self {
        let text = |name: &str| match properties.inner().get(name) {
            Some(AMQPValue::LongString(value)) => Some(String::from_utf8_lossy(value.as_bytes()).into_owned()),
            _ => None,
        };
        let capability = |name: &str| match properties.inner().get("capabilities") {
            Some(AMQPValue::FieldTable(capabilities)) => {
                matches!(capabilities.inner().get(name), Some(AMQPValue::Boolean(true)))
            }
            _ => false,
        };
        Self {
            name: text("connection_name"),
            product: text("product"),
            consumer_cancel_notify: capability("consumer_cancel_notify"),
            connection_blocked: capability("connection.blocked"),
            authentication_failure_close: capability("authentication_failure_close"),
            properties: properties.clone(),
        }
    }
}
