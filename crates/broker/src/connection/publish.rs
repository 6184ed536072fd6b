//! `basic.publish` and its content: from frames to an op for each shard that has a queue for the message.

use std::cell::Cell;
use std::sync::Arc;

use amqp::{
    ContentHeader, Exception, MethodId, Properties, PropertiesBuilder, Publish, RawTable, RawValue, ReplyCode, Step,
    TableWriter, encode,
};
use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::channel::{Channel, ChannelState, Fault};
use super::confirms::PUBLISH_NUMBER_BITS;
use super::direct_reply;
use super::routes::{Route, Versions};
use super::session::Session;
use super::staging::{OWN_BUFFER_BYTES, OpenRecord, Record};
use super::transaction::HeldPublish;
use crate::auth::{Permission, Resource, Tag};
use crate::topology::{ExchangeKind, HeaderSource, HeaderValue};

/// Property flags (AMQP 0-9-1 section 4.2.6.1) of what must be looked at before a message is routed.
const HEADERS: u16 = 1 << 13;
const EXPIRATION: u16 = 1 << 8;
const USER_ID: u16 = 1 << 4;
const REPLY_TO: u16 = 1 << 9;
/// A body that has arrived to this part (one in four) gets all its room: never more than four times what the client really sent.
const ROOM_FOR_ALL_AT: u64 = 4;
/// Largest `expiration`, in milliseconds: what fits 32 bits, as with RabbitMQ.
const MAX_EXPIRATION_MS: i128 = u32::MAX as i128;

impl Session {
    /// The method frame of a publish.
    pub(super) fn publish(&mut self, number: u16, publish: &Publish<'_>) -> Result<(), Fault> {
        if publish.immediate {
            return Err(Exception::new(ReplyCode::NotImplemented, "immediate=true", MethodId::BASIC_PUBLISH).into());
        }
        self.spill_open_record();
        let channel = self.channels.get_mut(&number).expect("methods are handled on open channels");
        channel.assembler.publish_started();
        channel.incoming.mandatory = publish.mandatory;
        channel.incoming.oversized = false;
        self.staging.begin(number, publish.envelope);
        Ok(())
    }

    /// A content header frame.
    pub(super) fn content_header(&mut self, number: u16, payload: &[u8]) -> Result<(), Fault> {
        let max_message_bytes = self.broker.settings().max_message_bytes;
        let Some(channel) = self.content_channel(number)? else { return Ok(()) };
        let Step::Header { header, complete } = channel.assembler.header(payload)? else {
            unreachable!("a header frame gives a header");
        };
        let ContentHeader { body_size, properties, .. } = header;
        let raw = properties.raw();
        let properties_bytes = u32::try_from(raw.len()).expect("a frame is smaller than 4 GiB");
        channel.incoming.body_bytes = body_size;
        channel.incoming.oversized = body_size > max_message_bytes;
        channel.incoming.record.properties_bytes = properties_bytes;
        if let Some(open) = self.staging.open_record(number) {
            open.properties_bytes = properties_bytes;
        }
        self.append(number, raw);
        if body_size >= OWN_BUFFER_BYTES as u64 {
            self.spill_open_record();
        }
        if complete { self.content_complete(number) } else { Ok(()) }
    }

    /// A content body frame.
    pub(super) fn content_body(&mut self, number: u16, payload: &[u8]) -> Result<(), Fault> {
        let Some(channel) = self.content_channel(number)? else { return Ok(()) };
        let Step::Body { fragment, complete } = channel.assembler.body(payload)? else {
            unreachable!("a body frame gives a fragment");
        };
        if !channel.incoming.oversized {
            self.append(number, fragment);
        }
        if complete { self.content_complete(number) } else { Ok(()) }
    }

    /// The channel that content came on. `None`: it is closing, and the content is dropped.
    fn content_channel(&mut self, number: u16) -> Result<Option<&mut Channel>, Fault> {
        match self.channels.get_mut(&number) {
            Some(channel) if channel.state == ChannelState::Closing => Ok(None),
            Some(channel) => Ok(Some(channel)),
            None => Err(Exception::new(ReplyCode::ChannelError, "expected 'channel.open'", MethodId::NONE).into()),
        }
    }

    /// Adds to the message that a channel is receiving.
    fn append(&mut self, number: u16, bytes: &[u8]) {
        if self.staging.open_record(number).is_some() {
            self.staging.data().extend_from_slice(bytes);
            return;
        }
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let body_bytes = channel.incoming.body_bytes;
        let record = &mut channel.incoming.record.bytes;
        if record.len() as u64 * ROOM_FOR_ALL_AT >= body_bytes {
            let whole = usize::try_from(body_bytes).unwrap_or(usize::MAX);
            record.reserve_exact(whole.saturating_sub(record.len()).max(bytes.len()));
        }
        record.extend_from_slice(bytes);
    }

    /// Moves a message that is not complete out of the turn's buffer.
    pub(super) fn spill_open_record(&mut self) {
        let Some((open, bytes)) = self.staging.spill() else { return };
        if let Some(channel) = self.channels.get_mut(&open.channel) {
            let OpenRecord { envelope_bytes, properties_bytes, .. } = open;
            channel.incoming.record = Record { bytes, envelope_bytes, properties_bytes };
        }
    }

    /// All content of a publish is there.
    fn content_complete(&mut self, number: u16) -> Result<(), Fault> {
        self.check_alarm();
        let channel = self.channels.get_mut(&number).expect("content is handled on channels that are there");
        if channel.state == ChannelState::Unopened {
            let text = "expected 'channel.open'";
            return Err(Exception::new(ReplyCode::ChannelError, text, MethodId::BASIC_PUBLISH).into());
        }
        if channel.incoming.oversized {
            let (size, max) = (channel.incoming.body_bytes, self.broker.settings().max_message_bytes);
            channel.incoming.record = Record::default();
            self.staging.discard(number);
            let text = format!("message size {size} is larger than configured max size {max}");
            return Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_PUBLISH).into());
        }
        let plain = channel.transaction.is_none();
        match self.staging.take_open(number) {
            Some(open) if plain => self.publish_from_turn(number, open),
            Some(open) => {
                let OpenRecord { start, envelope_bytes, properties_bytes, .. } = open;
                let bytes = self.staging.data().split_off(start);
                self.publish_record(number, Record { bytes, envelope_bytes, properties_bytes })
            }
            None => {
                let record = std::mem::take(&mut channel.incoming.record);
                self.publish_record(number, record)
            }
        }
    }

    /// The common case: a small message at the end of the turn's buffer, on its way to one queue, routed before.
    fn publish_from_turn(&mut self, number: u16, open: OpenRecord) -> Result<(), Fault> {
        let OpenRecord { start, envelope_bytes, properties_bytes, .. } = open;
        let properties_start = start + usize::from(envelope_bytes);
        let data = self.staging.data();
        let flags = u16::from_be_bytes([data[properties_start], data[properties_start + 1]]);
        let properties = &data[properties_start..properties_start + properties_bytes as usize];
        if flags & (HEADERS | EXPIRATION | USER_ID) != 0
            || (flags & REPLY_TO != 0 && direct_reply::is_request(properties))
        {
            let bytes = data.split_off(start);
            return self.publish_record(number, Record { bytes, envelope_bytes, properties_bytes });
        }
        let versions = self.versions();
        let envelope = &self.staging.turn_data()[start..properties_start];
        let routed;
        let route = if let Some(route) = self.routes.get(envelope, versions) {
            route
        } else {
            if direct_reply::is_reply(envelope) {
                let bytes = self.staging.data().split_off(start);
                return self.publish_record(number, Record { bytes, envelope_bytes, properties_bytes });
            }
            let envelope: Box<[u8]> = envelope.into();
            match self.route_plain(&envelope, versions) {
                Ok(route) => routed = route,
                Err(fault) => {
                    self.staging.data().truncate(start);
                    return Err(fault);
                }
            }
            &routed
        };
        let publish = publish_name(route, &self.channels, number);
        if let [(shard, targets)] = route.shards.as_slice() {
            self.staging.enqueue(*shard, targets.clone(), start, envelope_bytes, properties_bytes, publish);
        } else if route.shards.is_empty() {
            let bytes = self.staging.data().split_off(start);
            self.unroutable(number, &Record { bytes, envelope_bytes, properties_bytes });
        } else {
            for (shard, targets) in &route.shards {
                self.staging.enqueue(*shard, targets.clone(), start, envelope_bytes, properties_bytes, publish);
            }
        }
        self.count_confirm(number);
        Ok(())
    }

    /// Any other case: the message lies in a buffer of its own.
    fn publish_record(&mut self, number: u16, mut record: Record) -> Result<(), Fault> {
        self.address_request(number, &mut record)?;
        let route = self.route_record(&mut record)?;
        let channel = self.open(number);
        let mandatory = channel.incoming.mandatory;
        if channel.transaction.is_some() {
            let Record { bytes, envelope_bytes, properties_bytes } = record;
            let message = self.broker.memory().hold(bytes);
            let held = HeldPublish { message, envelope_bytes, properties_bytes, mandatory, route };
            let transaction = self.open(number).transaction.as_mut().expect("looked at above");
            transaction.publishes.push(held);
            return Ok(());
        }
        if route.shards.is_empty() {
            self.unroutable(number, &record);
        } else {
            let Record { bytes, envelope_bytes, properties_bytes } = record;
            let publish = publish_name(&route, &self.channels, number);
            if bytes.len() < OWN_BUFFER_BYTES {
                let data = self.staging.data();
                let start = data.len();
                data.extend_from_slice(&bytes);
                for (shard, targets) in &route.shards {
                    self.staging.enqueue(*shard, targets.clone(), start, envelope_bytes, properties_bytes, publish);
                }
            } else {
                let message = self.broker.memory().hold(bytes);
                self.enqueue_own(&route, &message, envelope_bytes, properties_bytes, publish);
            }
        }
        self.count_confirm(number);
        Ok(())
    }

    /// Stages a message that lies in a buffer of its own.
    pub(super) fn enqueue_own(
        &mut self,
        route: &Route,
        message: &Bytes,
        envelope_bytes: u16,
        properties_bytes: u32,
        publish: u64,
    ) {
        for (shard, targets) in &route.shards {
            let (targets, message) = (targets.clone(), message.clone());
            self.staging.enqueue_own(*shard, targets, message, envelope_bytes, properties_bytes, publish);
        }
    }

    fn unroutable(&mut self, number: u16, record: &Record) {
        if self.open(number).incoming.mandatory {
            self.return_message(number, &record.bytes, record.envelope_bytes, record.properties_bytes);
        }
    }

    /// `basic.return`: a mandatory message reached no queue.
    pub(super) fn return_message(&mut self, number: u16, message: &[u8], envelope_bytes: u16, properties_bytes: u32) {
        let (envelope, rest) = message.split_at(usize::from(envelope_bytes));
        let (properties, body) = rest.split_at(properties_bytes as usize);
        encode::return_method(self.outbox.buffer(), number, ReplyCode::NoRoute, envelope);
        self.outbox.content(number, self.frame_max, properties, &Bytes::copy_from_slice(body));
    }

    /// A publish on a confirm channel is counted; it is confirmed when the turn's batches are done.
    fn count_confirm(&mut self, number: u16) {
        let channel = self.channels.get_mut(&number).expect("content is handled on channels that are there");
        if let Some(confirms) = &mut channel.confirms {
            confirms.published();
            if self.confirming.last() != Some(&number) && !self.confirming.contains(&number) {
                self.confirming.push(number);
            }
        }
    }

    // ---- routing ----------------------------------------------------------------------------------------------------

    fn versions(&self) -> Versions {
        Versions { topology: self.vhost().version(), access: self.broker.access_version() }
    }

    /// Routes a message without headers, and keeps the route unless a message with headers would go another way.
    fn route_plain(&mut self, envelope: &[u8], versions: Versions) -> Result<Arc<Route>, Fault> {
        let (exchange, routing_key) = split_envelope(envelope);
        let (route, looked_at_headers) = self.route(exchange, &[routing_key], None)?;
        if !looked_at_headers {
            self.routes.put(envelope, versions, Arc::clone(&route));
        }
        Ok(route)
    }

    /// Routes a message in all its generality: sender-selected keys, headers, and the checks of its properties.
    fn route_record(&mut self, record: &mut Record) -> Result<Arc<Route>, Fault> {
        let (envelope, rest) = record.bytes.split_at(usize::from(record.envelope_bytes));
        let properties = Properties::from_raw_trusted(&rest[..record.properties_bytes as usize]);
        self.check_user_id(&properties)?;
        check_expiration(&properties)?;
        let (exchange, routing_key) = split_envelope(envelope);
        let headers = properties.headers();
        let mut keys = vec![routing_key];
        let mut has_bcc = false;
        if let Some(headers) = headers {
            sender_selected(headers, "CC", &mut keys)?;
            has_bcc = sender_selected(headers, "BCC", &mut keys)?;
        }
        let replies = direct_reply::reply_keys(exchange, &keys);
        let versions = self.versions();
        let cacheable = keys.len() == 1 && replies.is_empty();
        if cacheable && let Some(route) = self.routes.get(envelope, versions) {
            return Ok(Arc::clone(route));
        }
        let (route, looked_at_headers) = self.route(exchange, &keys, headers)?;
        if cacheable && !looked_at_headers {
            self.routes.put(envelope, versions, Arc::clone(&route));
        }
        if has_bcc {
            remove_bcc(record);
        }
        if !replies.is_empty() {
            self.send_replies(&replies, record);
        }
        Ok(route)
    }

    /// Asks the topology. Answers whether the headers were looked at: then the route is good for this message only.
    fn route(
        &mut self,
        exchange: &str,
        keys: &[&str],
        headers: Option<RawTable<'_>>,
    ) -> Result<(Arc<Route>, bool), Fault> {
        let vhost = Arc::clone(self.vhost());
        let user = Arc::clone(self.user());
        let method = MethodId::BASIC_PUBLISH;
        let topology = vhost.read();
        let access = self.broker.access();
        access.authorize(user.name(), vhost.name(), Resource::Exchange(exchange), Permission::Write, method)?;
        if topology.find_exchange(exchange).is_some_and(|found| found.kind == ExchangeKind::Topic) {
            for key in keys {
                access.authorize_topic(user.name(), vhost.name(), exchange, key, Permission::Write, method)?;
            }
        }
        drop(access);
        let headers = MessageHeaders::new(headers);
        self.route_set.clear();
        topology.route_keys(exchange, keys, &headers, &mut self.route_set)?;
        let route = Arc::new(Route::to(self.route_set.as_slice()));
        Ok((route, headers.looked_at.get()))
    }

    /// `user-id` must be the login's name, unless the user may speak for others.
    fn check_user_id(&self, properties: &Properties<'_>) -> Result<(), Fault> {
        let Some(claimed) = properties.user_id() else { return Ok(()) };
        let user = self.user();
        if claimed == user.name().as_bytes() || user.has_tag(&Tag::Impersonator) {
            return Ok(());
        }
        let claimed = String::from_utf8_lossy(claimed);
        let text = format!("user_id property set to '{claimed}' but authenticated user was '{}'", user.name());
        Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_PUBLISH).into())
    }
}

/// The headers of a message, for the topology.
#[derive(Debug)]
pub(crate) struct MessageHeaders<'a> {
    table: Option<RawTable<'a>>,
    looked_at: Cell<bool>,
}

impl<'a> MessageHeaders<'a> {
    pub(crate) fn new(table: Option<RawTable<'a>>) -> Self {
        Self { table, looked_at: Cell::new(false) }
    }
}

impl HeaderSource for MessageHeaders<'_> {
    fn for_each<'a>(&'a self, each: &mut dyn FnMut(&'a [u8], HeaderValue<'a>)) {
        self.looked_at.set(true);
        for (name, value) in self.table.iter().flat_map(RawTable::iter) {
            each(name, header_value(value));
        }
    }
}

fn header_value(value: RawValue<'_>) -> HeaderValue<'_> {
    if let Some(number) = value.as_i64() {
        return HeaderValue::Int(number);
    }
    match value {
        RawValue::Bool(v) => HeaderValue::Bool(v),
        RawValue::F32(v) => HeaderValue::Float(f64::from(v)),
        RawValue::F64(v) => HeaderValue::Float(v),
        RawValue::LongStr(v) => HeaderValue::Str(v),
        RawValue::Bytes(v) => HeaderValue::Bytes(v),
        RawValue::Timestamp(v) => HeaderValue::Timestamp(v),
        RawValue::Void => HeaderValue::Void,
        other => HeaderValue::Nested(std::borrow::Cow::Owned(other.to_value())),
    }
}

/// The publish that is being handled, for a shard that refuses it: its channel and number. 0: no queue may refuse it, or the channel is
/// without confirms.
fn publish_name(route: &Route, channels: &FxHashMap<u16, Channel>, number: u16) -> u64 {
    if !route.may_refuse {
        return 0;
    }
    let confirms = channels.get(&number).and_then(|channel| channel.confirms.as_ref());
    confirms.map_or(0, |confirms| u64::from(number) << PUBLISH_NUMBER_BITS | confirms.next_number())
}

/// Exchange and routing key of an envelope.
pub(crate) fn split_envelope(envelope: &[u8]) -> (&str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).expect("checked when the method was decoded");
    let (exchange, rest) = envelope[1..].split_at(usize::from(envelope[0]));
    (text(exchange), text(&rest[1..]))
}

/// Adds the routing keys of a `CC` or `BCC` header. Answers whether there is such a header.
fn sender_selected<'a>(headers: RawTable<'a>, name: &str, keys: &mut Vec<&'a str>) -> Result<bool, Fault> {
    match headers.get(name) {
        None => Ok(false),
        Some(RawValue::Array(items)) => {
            keys.extend(items.iter().filter_map(|item| item.as_str()));
            Ok(true)
        }
        Some(other) => {
            let kind = crate::topology::type_name(&other.to_value());
            let text = format!("invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}");
            Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_PUBLISH).into())
        }
    }
}

/// Blind copies are not shown to those who get the message.
fn remove_bcc(record: &mut Record) {
    let properties_start = usize::from(record.envelope_bytes);
    let properties_end = properties_start + record.properties_bytes as usize;
    let properties = Properties::from_raw_trusted(&record.bytes[properties_start..properties_end]);
    let Some(headers) = properties.headers() else { return };
    let mut writer = TableWriter::new();
    writer.copy_without(headers, &["BCC"]);
    let rewritten = PropertiesBuilder::from(properties).set_headers_raw(&writer.finish()).build();
    record.properties_bytes = u32::try_from(rewritten.len()).expect("smaller than before");
    record.bytes.splice(properties_start..properties_end, rewritten);
}

/// `expiration` must be a whole number of milliseconds in text. The texts are RabbitMQ's.
fn check_expiration(properties: &Properties<'_>) -> Result<(), Fault> {
    let Some(expiration) = properties.expiration() else { return Ok(()) };
    let text = String::from_utf8_lossy(expiration);
    let digits_start = usize::from(text.starts_with(['-', '+']));
    let digits_end =
        text[digits_start..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |offset| digits_start + offset);
    let reason = if digits_end == digits_start {
        "no_integer".to_owned()
    } else if digits_end < text.len() {
        format!("{{leftover_string,\"{}\"}}", &text[digits_end..])
    } else {
        match text.trim_start_matches('+').parse::<i128>() {
            Ok(value) if value < 0 => format!("{{value_negative,{value}}}"),
            Ok(value) if value <= MAX_EXPIRATION_MS => return Ok(()),
            Ok(value) => format!("{{value_too_large,{value}}}"),
            Err(_) => format!("{{value_too_large,{text}}}"),
        }
    };
    let text = format!("invalid expiration '{text}': {reason}");
    Err(Exception::new(ReplyCode::PreconditionFailed, text, MethodId::BASIC_PUBLISH).into())
}
