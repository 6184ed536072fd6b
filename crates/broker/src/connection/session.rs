//! A connection as a state machine: bytes, events and time in; an outbox and batches of ops out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amqp::methods::AMQPClass;
use amqp::{Exception, FieldTable, Frame, FrameDecoder, FrameKind, Method, MethodId, Outbox, ReplyCode, encode};
use rustc_hash::FxHashMap;

use super::channel::{Channel, ChannelState, Consumer, Fault};
use super::confirms::Turns;
use super::handle::{ConnectionHandle, Event};
use super::routes::RouteCache;
use super::staging::Staging;
use crate::auth::User;
use crate::broker::Broker;
use crate::topology::RouteSet;
use crate::vhost::Vhost;

/// Bytes of a connection that its shards have not applied yet. At this much the socket is not read: that is how a flood
/// of publishes is slowed to the pace of the queues. Two full reads keep a shard busy while the next one is prepared.
const IN_FLIGHT_HIGH: usize = 1024 * 1024;
/// Bytes that wait for a client that does not read its answers (returns, confirms, replies; deliveries are limited by themselves). At
/// this much nothing more is read from it either.
const OUTBOX_STOP_READING: usize = 8 * 1024 * 1024;
/// How long the socket stays open after something the specification wants closed without a word.
const DROP_DELAY: Duration = Duration::from_secs(3);
/// The frame of `connection.close-ok`.
const CONNECTION_CLOSE_OK: [u8; 12] = [1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 51, 0xCE];
/// How long a client may take to answer `connection.close`, or to hang up after `close-ok`.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// Where a connection is in its life.
///
/// ```text
/// Header ─▶ Start ─▶ Tune ─▶ Open ─▶ Running ──exception──▶ Closing ─▶ Gone
///                                      └──connection.close──▶ Lingering ─▶ Gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Eight bytes of protocol header are due.
    Header,
    /// `start-ok` is due.
    Start,
    /// `tune-ok` is due.
    Tune,
    /// `open` is due.
    Open,
    Running,
    /// `connection.close` was sent; all but `close-ok` is ignored.
    Closing {
        until: Instant,
        deaf: bool,
    },
    /// All is said; the client hangs up, or we do at this time.
    Lingering {
        until: Instant,
    },
    /// To be closed as soon as the outbox is empty.
    Gone,
}

/// What a client said it can do, in its `start-ok`.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) name: Option<String>,
    pub(super) product: Option<String>,
    pub(super) consumer_cancel_notify: bool,
    pub(super) connection_blocked: bool,
    pub(super) authentication_failure_close: bool,
    /// All that it said, for listings.
    pub(super) properties: FieldTable,
}

/// A connection.
pub(super) struct Session {
    pub(super) broker: Arc<Broker>,
    pub(super) handle: Arc<ConnectionHandle>,
    pub(super) peer: SocketAddr,
    /// Our end of the socket.
    pub(super) local: Option<SocketAddr>,
    pub(super) phase: Phase,
    pub(super) now: Instant,
    opened_at: Instant,
    /// A commit or close was asked for in this turn: somebody waits for what is settled in it.
    pub(super) urgent: bool,
    /// `connection.close-ok` follows when the batches of this turn are done.
    pub(super) closing: Option<u64>,
    pub(super) decoder: FrameDecoder,
    pub(super) outbox: Outbox,
    pub(super) client: Client,
    pub(super) frame_max: u32,
    pub(super) channel_max: u16,
    /// Zero: no heartbeats.
    pub(super) heartbeat: Duration,
    pub(super) user: Option<Arc<User>>,
    pub(super) vhost: Option<Arc<Vhost>>,
    pub(super) mechanism: Box<str>,
    pub(super) channels: FxHashMap<u16, Channel>,
    pub(super) consumers: FxHashMap<u32, Consumer>,
    pub(super) next_local: u32,
    pub(super) next_epoch: u32,
    pub(super) staging: Staging,
    pub(super) turns: Turns,
    /// Channels with publishes in this turn that want a confirm, each once.
    pub(super) confirming: Vec<u16>,
    pub(super) routes: RouteCache,
    pub(super) route_set: RouteSet,
    in_flight_bytes: usize,
    /// Something was published since nothing was in flight.
    publishes_in_flight: bool,
    /// The channel whose pending answer holds the input up.
    stalled: Option<u16>,
    /// An alarm is on and the client published: it is not read. `told`: it was sent `connection.blocked`.
    pub(super) blocked: Option<Blocked>,
    /// Consumers whose queue is gone, to be told of after the answer to the delete that a channel waits for.
    pub(super) held_cancels: Vec<u32>,
    /// Encoded deliveries that count in [`ConnectionHandle::outstanding`] until they are in the socket.
    pub(super) unwritten_deliveries: usize,
    last_read: Instant,
    last_write: Instant,
}

/// A publisher that is held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    told: bool,
}

impl Session {
    pub(super) fn new(broker: Arc<Broker>, handle: Arc<ConnectionHandle>, peer: SocketAddr, now: Instant) -> Self {
        let staging = Staging::new(handle.id.0, broker.shard_count());
        let settings = broker.settings();
        Self {
            decoder: FrameDecoder::new(settings.initial_frame_max),
            frame_max: settings.frame_max,
            channel_max: settings.channel_max,
            staging,
            broker,
            handle,
            peer,
            local: None,
            phase: Phase::Header,
            now,
            opened_at: now,
            urgent: false,
            closing: None,
            outbox: Outbox::new(),
            client: Client::default(),
            heartbeat: Duration::ZERO,
            user: None,
            vhost: None,
            mechanism: Box::default(),
            channels: FxHashMap::default(),
            consumers: FxHashMap::default(),
            next_local: 1,
            next_epoch: 1,
            turns: Turns::default(),
            confirming: Vec::new(),
            routes: RouteCache::default(),
            route_set: RouteSet::new(),
            in_flight_bytes: 0,
            publishes_in_flight: false,
            stalled: None,
            blocked: None,
            held_cancels: Vec::new(),
            unwritten_deliveries: 0,
            last_read: now,
            last_write: now,
        }
    }

    // ---- what the task asks -----------------------------------------------------------------------------------------

    /// Whether more bytes can be taken now.
    pub(super) fn wants_input(&self) -> bool {
        self.stalled.is_none()
            && self.blocked.is_none()
            && self.in_flight_bytes < IN_FLIGHT_HIGH
            && self.outbox.len() < OUTBOX_STOP_READING
    }

    /// Whether the socket is to be closed once the outbox is empty.
    pub(super) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// When [`Session::tick`] is due next, at the latest.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        match self.phase {
            Phase::Header | Phase::Start | Phase::Tune | Phase::Open => {
                Some(self.opened_at + self.broker.settings().handshake_timeout)
            }
            Phase::Running => (!self.heartbeat.is_zero()).then(|| self.now + self.heartbeat / 4),
            Phase::Closing { until, .. } | Phase::Lingering { until } => Some(until),
            Phase::Gone => None,
        }
    }

    /// The name of the connection as RabbitMQ's tools show it, for logs.
    pub(super) fn log_name(&self) -> String {
        match &self.client.name {
            Some(name) => format!("{} ({name})", self.peer),
            None => self.peer.to_string(),
        }
    }

    // ---- inputs -----------------------------------------------------------------------------------------------------

    /// Takes bytes from the socket and answers how many it could use. The rest comes again, with more behind it.
    pub(super) fn input(&mut self, data: &[u8]) -> usize {
        self.last_read = self.now;
        let mut used = 0;
        if self.phase == Phase::Header {
            used = self.protocol_header(data);
        }
        while self.wants_input() {
            let deaf = match self.phase {
                Phase::Header => break,
                Phase::Closing { deaf, .. } => deaf,
                Phase::Lingering { .. } | Phase::Gone => true,
                _ => false,
            };
            if deaf {
                // Where frames begin is not known any more; the one that is waited for is found by its bytes.
                if data[used..].windows(CONNECTION_CLOSE_OK.len()).any(|bytes| bytes == CONNECTION_CLOSE_OK) {
                    self.phase = Phase::Gone;
                }
                return data.len();
            }
            match self.decoder.decode(&data[used..]) {
                Ok(None) => break,
                Ok(Some((frame, bytes))) => {
                    if self.must_wait(&frame) {
                        break;
                    }
                    used += bytes;
                    if let Err(fault) = self.frame(frame) {
                        self.fault(frame.channel, fault);
                    }
                }
                Err(exception) => {
                    self.connection_exception(exception);
                    if let Phase::Closing { deaf, .. } = &mut self.phase {
                        *deaf = true;
                    }
                }
            }
        }
        used
    }

    /// The client hung up.
    pub(super) fn end_of_input(&mut self) {
        if self.phase == Phase::Running {
            tracing::info!(connection = %self.log_name(), "client closed the connection without connection.close");
        }
        self.release_everything();
        self.phase = Phase::Gone;
    }

    /// Takes an event.
    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Deliver(delivery) => self.deliver(delivery),
            Event::BatchDone { shard, number } => self.batch_done(shard, number),
            Event::Rejected { shard, number, publish } => self.turns.refused(shard, number, publish),
            Event::Reply { token, reply } => self.reply(token, reply),
            Event::Metadata { token, result } => self.metadata(token, result),
            Event::Cancelled { consumer } => self.consumer_cancelled(consumer),
            Event::DirectReply { channel, key, message } => self.direct_reply(channel, key, &message),
            Event::Alarm => self.alarm_changed(),
            Event::Shutdown => self.shutdown("broker forced connection closure with reason 'shutdown'"),
            Event::Close(text) => self.shutdown(&text),
            Event::Describe(answer) => {
                // Whoever asked may have lost patience.
                let _ = answer.send(self.describe());
            }
        }
    }

    /// Time went by.
    pub(super) fn tick(&mut self) {
        match self.phase {
            Phase::Header | Phase::Start | Phase::Tune | Phase::Open
                if self.now >= self.opened_at + self.broker.settings().handshake_timeout =>
            {
                tracing::warn!(connection = %self.log_name(), "handshake not done in time: closed");
                self.phase = Phase::Gone;
            }
            Phase::Running if !self.heartbeat.is_zero() => {
                // A client that is not read cannot be blamed for silence.
                let silent = self.now.duration_since(self.last_read);
                if silent > self.heartbeat * 2 && self.wants_input() {
                    let timeout = self.heartbeat.as_secs();
                    tracing::warn!(connection = %self.log_name(), timeout, "missed heartbeats from client: closed");
                    self.end_of_input();
                } else if self.now.duration_since(self.last_write) >= self.heartbeat / 2 && self.outbox.is_empty() {
                    encode::heartbeat(self.outbox.buffer());
                }
            }
            Phase::Closing { until, .. } | Phase::Lingering { until } if self.now >= until => self.phase = Phase::Gone,
            _ => {}
        }
    }

    /// `bytes` of the outbox are in the socket.
    pub(super) fn written(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
        self.last_write = self.now;
        let all = self.outbox.is_empty();
        let done = if all { self.unwritten_deliveries } else { bytes.min(self.unwritten_deliveries) };
        self.unwritten_deliveries -= done;
        if done > 0 && self.handle.written(done) {
            self.resume_consumers(None);
        }
        if all {
            self.outbox.shrink();
        }
    }

    /// The end of a turn: what was gathered goes to the shards.
    pub(super) fn flush(&mut self) {
        self.spill_open_record();
        let turn = self.turns.current();
        let mut batches = Vec::new();
        self.staging.flush(&self.broker, &self.handle, self.urgent, |sent| {
            batches.push((sent.shard, sent.number, sent.bytes));
        });
        let mut waiting = Vec::new();
        for channel in self.confirming.drain(..) {
            if let Some(open) = self.channels.get_mut(&channel)
                && open.confirms.as_mut().is_some_and(|confirms| confirms.close_group(turn))
            {
                waiting.push((channel, open.epoch));
            }
        }
        self.in_flight_bytes += batches.iter().map(|&(_, _, bytes)| bytes).sum::<usize>();
        self.add_waiting(turn, &mut waiting);
        if batches.is_empty() && waiting.is_empty() {
            return;
        }
        if let Some(done) = self.turns.end(batches, waiting) {
            self.turn_done(done);
        }
    }

    fn batch_done(&mut self, shard: u32, number: u64) {
        let (bytes, done) = self.turns.batch_done(shard, number);
        self.in_flight_bytes -= bytes;
        self.publishes_in_flight &= self.in_flight_bytes > 0;
        if let Some(turn) = done {
            self.turn_done(turn);
        }
    }

    // ---- frames -----------------------------------------------------------------------------------------------------

    /// A channel that waits for an answer takes no frame before it has it.
    fn must_wait(&mut self, frame: &Frame<'_>) -> bool {
        let waits =
            frame.channel != 0 && self.channels.get(&frame.channel).is_some_and(|channel| channel.pending.is_some());
        if waits {
            self.stalled = Some(frame.channel);
        }
        waits
    }

    /// The answer that a channel waited for is there.
    pub(super) fn unstall(&mut self, channel: u16) {
        if self.stalled == Some(channel) {
            self.stalled = None;
        }
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        if frame.kind == FrameKind::Heartbeat {
            return Ok(());
        }
        if let Phase::Closing { .. } = self.phase {
            if frame.kind == FrameKind::Method && frame.payload == &CONNECTION_CLOSE_OK[7..11] {
                self.phase = Phase::Gone;
            }
            return Ok(());
        }
        if self.phase != Phase::Running {
            return self.handshake_frame(frame);
        }
        if frame.channel == 0 {
            // The decoder lets only methods and heartbeats through on channel 0.
            return self.connection_method(Method::decode(frame.payload)?);
        }
        match frame.kind {
            FrameKind::Method => self.channel_method(frame),
            FrameKind::Header => self.content_header(frame.channel, frame.payload),
            FrameKind::Body => self.content_body(frame.channel, frame.payload),
            FrameKind::Heartbeat => Ok(()),
        }
    }

    fn connection_method(&mut self, method: Method<'_>) -> Result<(), Fault> {
        use amqp::methods::connection::{AMQPMethod, UpdateSecretOk};
        let id = method.id();
        match method {
            Method::Other(_, AMQPClass::Connection(AMQPMethod::Close(close))) => {
                tracing::debug!(connection = %self.log_name(), code = close.reply_code, "client closes the connection");
                self.client_closes();
                Ok(())
            }
            Method::Other(_, AMQPClass::Connection(AMQPMethod::UpdateSecret(_))) => {
                // A password was right when the user logged in; only tokens expire. RabbitMQ takes any secret here too.
                self.send(0, AMQPClass::Connection(AMQPMethod::UpdateSecretOk(UpdateSecretOk {})));
                Ok(())
            }
            _ => {
                let text = "unexpected method in connection state running";
                Err(Exception::new(ReplyCode::ChannelError, text, id).into())
            }
        }
    }

    fn channel_method(&mut self, frame: Frame<'_>) -> Result<(), Fault> {
        let number = frame.channel;
        let method = Method::decode(frame.payload)?;
        let id = method.id();
        let Some(channel) = self.channels.get_mut(&number) else {
            return self.method_on_closed_channel(number, method);
        };
        match channel.state {
            ChannelState::Open => {}
            ChannelState::Closing => {
                match id {
                    MethodId::CHANNEL_CLOSE_OK => self.forget_channel(number),
                    MethodId::CHANNEL_CLOSE => self.send(number, close_ok()),
                    // Its close-ok is due first: the number is not free yet.
                    MethodId::CHANNEL_OPEN => return Err(second_open().into()),
                    _ => {}
                }
                return Ok(());
            }
            ChannelState::Unopened => return Err(not_open(id).into()),
        }
        channel.assembler.method()?;
        match method {
            Method::Publish(publish) => self.publish(number, &publish),
            Method::Ack { delivery_tag, multiple } => self.ack(number, delivery_tag, multiple),
            Method::Nack { delivery_tag, multiple, requeue } => {
                self.reject(number, delivery_tag, multiple, requeue, MethodId::BASIC_NACK)
            }
            Method::Reject { delivery_tag, requeue } => {
                self.reject(number, delivery_tag, false, requeue, MethodId::BASIC_REJECT)
            }
            Method::Get { queue, no_ack } => self.get(number, queue, no_ack),
            Method::Other(id, class) => self.cold_method(number, id, class, frame.payload),
        }
    }

    fn method_on_closed_channel(&mut self, number: u16, method: Method<'_>) -> Result<(), Fault> {
        let id = method.id();
        match method {
            Method::Other(MethodId::CHANNEL_OPEN, _) => self.open_channel(number),
            // The error is due when the content is complete, as with every publish.
            Method::Publish(_) => {
                let mut channel = Channel::new(ChannelState::Unopened, 0);
                channel.assembler.publish_started();
                self.channels.insert(number, channel);
                Ok(())
            }
            _ => Err(not_open(id).into()),
        }
    }

    pub(super) fn cold_method(
        &mut self,
        number: u16,
        id: MethodId,
        class: AMQPClass,
        payload: &[u8],
    ) -> Result<(), Fault> {
        use amqp::methods::{basic, channel as ch, confirm, exchange, queue, tx};
        match class {
            AMQPClass::Channel(ch::AMQPMethod::Open(_)) => Err(second_open().into()),
            AMQPClass::Channel(ch::AMQPMethod::Close(_)) => {
                self.client_closes_channel(number);
                Ok(())
            }
            AMQPClass::Channel(ch::AMQPMethod::Flow(flow)) => {
                if !flow.active {
                    return Err(Exception::new(ReplyCode::NotImplemented, "active=false", id).into());
                }
                self.send(number, AMQPClass::Channel(ch::AMQPMethod::FlowOk(ch::FlowOk { active: true })));
                Ok(())
            }
            AMQPClass::Access(amqp::methods::access::AMQPMethod::Request(_)) => {
                // access.request-ok with ticket 1: written by hand, since the codec knows no ticket.
                let frame = [1, (number >> 8) as u8, number as u8, 0, 0, 0, 6, 0, 30, 0, 11, 0, 1, 0xCE];
                self.outbox.buffer().extend_from_slice(&frame);
                Ok(())
            }
            AMQPClass::Exchange(exchange::AMQPMethod::Declare(m)) => self.exchange_declare(number, &m),
            AMQPClass::Exchange(exchange::AMQPMethod::Delete(m)) => self.exchange_delete(number, &m),
            AMQPClass::Exchange(exchange::AMQPMethod::Bind(m)) => self.exchange_bind(number, &m),
            AMQPClass::Exchange(exchange::AMQPMethod::Unbind(m)) => self.exchange_unbind(number, &m),
            AMQPClass::Queue(queue::AMQPMethod::Declare(m)) => self.queue_declare(number, m),
            AMQPClass::Queue(queue::AMQPMethod::Bind(m)) => self.queue_bind(number, &m),
            AMQPClass::Queue(queue::AMQPMethod::Unbind(m)) => self.queue_unbind(number, &m),
            AMQPClass::Queue(queue::AMQPMethod::Purge(m)) => self.queue_purge(number, &m),
            AMQPClass::Queue(queue::AMQPMethod::Delete(m)) => self.queue_delete(number, &m),
            AMQPClass::Basic(basic::AMQPMethod::Qos(m)) => self.qos(number, &m, payload),
            AMQPClass::Basic(basic::AMQPMethod::Consume(m)) => self.consume(number, &m),
            AMQPClass::Basic(basic::AMQPMethod::Cancel(m)) => self.cancel(number, &m),
            AMQPClass::Basic(basic::AMQPMethod::Recover(m)) => {
                self.recover(number, m.requeue, MethodId::BASIC_RECOVER)?;
                self.send(number, AMQPClass::Basic(basic::AMQPMethod::RecoverOk(basic::RecoverOk {})));
                Ok(())
            }
            AMQPClass::Basic(basic::AMQPMethod::RecoverAsync(m)) => {
                self.recover(number, m.requeue, MethodId::BASIC_RECOVER_ASYNC)
            }
            AMQPClass::Confirm(confirm::AMQPMethod::Select(m)) => self.confirm_select(number, m.nowait),
            AMQPClass::Tx(tx::AMQPMethod::Select(_)) => self.tx_select(number),
            AMQPClass::Tx(tx::AMQPMethod::Commit(_)) => self.tx_commit(number),
            AMQPClass::Tx(tx::AMQPMethod::Rollback(_)) => self.tx_rollback(number),
            _ => Err(unimplemented(id).into()),
        }
    }

    fn open_channel(&mut self, number: u16) -> Result<(), Fault> {
        use amqp::methods::channel::{AMQPMethod, OpenOk};
        let open = self.channels.len();
        if self.channel_max != 0 && open >= usize::from(self.channel_max) {
            let max = self.channel_max;
            let text = format!("number of channels opened ({open}) has reached the negotiated channel_max ({max})");
            return Err(Exception::new(ReplyCode::NotAllowed, text, MethodId::NONE).into());
        }
        self.broker.admit_channel(self.user().name())?;
        self.handle.channels.fetch_add(1, Ordering::Relaxed);
        self.channels.insert(number, Channel::new(ChannelState::Open, self.next_epoch));
        self.next_epoch = self.next_epoch.wrapping_add(1);
        self.send(number, AMQPClass::Channel(AMQPMethod::OpenOk(OpenOk {})));
        Ok(())
    }

    // ---- helpers ----------------------------------------------------------------------------------------------------

    /// Puts a method in the outbox.
    pub(super) fn send(&mut self, channel: u16, method: AMQPClass) {
        encode::method(self.outbox.buffer(), channel, &method);
    }

    /// An open channel. Handlers of methods are called for those only.
    pub(super) fn open(&mut self, number: u16) -> &mut Channel {
        self.channels.get_mut(&number).expect("methods are handled on open channels")
    }

    /// The virtual host. Channels exist only after `connection.open`.
    pub(super) fn vhost(&self) -> &Arc<Vhost> {
        self.vhost.as_ref().expect("a running connection has a virtual host")
    }

    /// The user. Channels exist only after the login.
    pub(super) fn user(&self) -> &Arc<User> {
        self.user.as_ref().expect("a running connection has a user")
    }

    /// A number for a consumer or holder that this connection never used.
    pub(super) fn new_local(&mut self) -> u32 {
        let local = self.next_local;
        self.next_local = self.next_local.checked_add(1).expect("four thousand million consumers on one connection");
        local
    }

    /// When a socket that is to be dropped in silence goes.
    pub(super) fn drop_later(&mut self, reason: &str) {
        tracing::warn!(connection = %self.log_name(), reason, "closing without an answer");
        self.phase = Phase::Lingering { until: self.now + DROP_DELAY };
    }

    pub(super) fn close_deadline(&self) -> Instant {
        self.now + CLOSE_PATIENCE
    }

    // ---- alarms -----------------------------------------------------------------------------------------------------

    /// Called for each publish: while an alarm is on, the first one is the last.
    #[inline]
    pub(super) fn check_alarm(&mut self) {
        self.publishes_in_flight = true;
        if self.broker.is_alarmed() && self.blocked.is_none() {
            self.block();
        }
    }

    #[cold]
    fn block(&mut self) {
        use amqp::methods::connection::{AMQPMethod, Blocked as BlockedMethod};
        let Some(reason) = self.broker.alarm_reason() else { return };
        let told = self.client.connection_blocked;
        self.blocked = Some(Blocked { told });
        if told {
            let reason = reason.into();
            self.send(0, AMQPClass::Connection(AMQPMethod::Blocked(BlockedMethod { reason })));
        }
        tracing::info!(connection = %self.log_name(), reason, "publisher blocked");
    }

    fn alarm_changed(&mut self) {
        use amqp::methods::connection::{AMQPMethod, Unblocked};
        if self.broker.is_alarmed() {
            // What it published waits, so it is not read, and there will be no next publish to tell it after.
            if self.publishes_in_flight && self.in_flight_bytes >= IN_FLIGHT_HIGH && self.blocked.is_none() {
                self.block();
            }
            return;
        }
        if let Some(blocked) = self.blocked.take() {
            self.last_read = self.now;
            if blocked.told {
                self.send(0, AMQPClass::Connection(AMQPMethod::Unblocked(Unblocked {})));
            }
        }
    }
}

pub(super) fn close_ok() -> AMQPClass {
    use amqp::methods::channel::{AMQPMethod, CloseOk};
    AMQPClass::Channel(AMQPMethod::CloseOk(CloseOk {}))
}

fn second_open() -> Exception {
    Exception::new(ReplyCode::ChannelError, "second 'channel.open' seen", MethodId::CHANNEL_OPEN)
}

fn not_open(id: MethodId) -> Exception {
    Exception::new(ReplyCode::ChannelError, "expected 'channel.open'", id)
}

fn unimplemented(id: MethodId) -> Exception {
    Exception::new(ReplyCode::CommandInvalid, "unimplemented method", id)
}
