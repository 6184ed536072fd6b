//! What becomes of a message when it is dead-lettered: its history in the header `x-death`, as RabbitMQ writes it.
//!
//! `x-death` is an array of tables, newest first, one for each queue and reason: `count`, `reason`, `queue`, `time`, `exchange`,
//! `routing-keys`, and `original-expiration` if the message had one. Dying once more of the same in the same queue raises the count and
//! moves the table to the front. `x-first-death-*` and `x-last-death-*` say the same of the first and the last death in plain headers.

use amqp::{ArrayWriter, Properties, PropertiesBuilder, Property, RawArray, RawTable, RawValue, TableWriter};
use queue::{Message, Reason};

use crate::connection::split_envelope;

const DEATHS: &str = "x-death";
const FIRST: [&str; 3] = ["x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"];
const LAST: [&str; 3] = ["x-last-death-exchange", "x-last-death-queue", "x-last-death-reason"];

/// A message as it is published to a dead-letter exchange.
#[derive(Debug)]
pub(super) struct Dead {
    /// With its new history, and without its expiration.
    pub(super) properties: Vec<u8>,
    /// The routing key that it has from now on, and those of its header `CC`.
    pub(super) keys: Vec<String>,
}

/// The word for a reason in headers.
pub(super) fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Rejected => "rejected",
        Reason::Expired => "expired",
        Reason::MaxLen => "maxlen",
        Reason::DeliveryLimit => "delivery_limit",
    }
}

/// A message that dies in `queue`. With a routing key of the queue's own it is routed by that alone, and says no more who else was to get it.
pub(super) fn dead(message: &Message, queue: &str, reason: Reason, routing_key: Option<&str>, now_s: u64) -> Dead {
    let properties = Properties::from_raw_trusted(message.properties());
    let headers = properties.headers().unwrap_or_default();
    let (exchange, own_key) = split_envelope(message.envelope());
    let mut old_keys = vec![own_key.to_owned()];
    if let Some(RawValue::Array(copies)) = headers.get("CC") {
        old_keys.extend(copies.iter().filter_map(|key| key.as_str()).map(str::to_owned));
    }
    let now = Death { queue, reason: word(reason), exchange, keys: &old_keys, time: now_s, properties };
    let mut writer = TableWriter::new();
    let mut without: Vec<&str> = [DEATHS].into_iter().chain(FIRST).chain(LAST).collect();
    if routing_key.is_some() {
        without.extend(["CC", "BCC"]);
    }
    writer.copy_without(headers, &without);
    let before = match headers.get(DEATHS) {
        Some(RawValue::Array(deaths)) => deaths,
        _ => RawArray::default(),
    };
    writer.put_array(DEATHS, |deaths| now.write(before, deaths));
    let values = [exchange, queue, now.reason];
    for (name, value) in FIRST.into_iter().zip(values) {
        writer.put(name, headers.get(name).unwrap_or(RawValue::LongStr(value.as_bytes())));
    }
    for (name, value) in LAST.into_iter().zip(values) {
        writer.put(name, RawValue::LongStr(value.as_bytes()));
    }
    let rewritten = PropertiesBuilder::from(properties).remove(Property::Expiration).set_headers_raw(&writer.finish());
    let keys = routing_key.map_or(old_keys, |key| vec![key.to_owned()]);
    Dead { properties: rewritten.build(), keys }
}

/// Whether a message with this history goes round: it died in that queue before, and since then no consumer has refused it.
pub(super) fn is_cycle(properties: &[u8], queue: &str) -> bool {
    let headers = Properties::from_raw_trusted(properties).headers().unwrap_or_default();
    let Some(RawValue::Array(deaths)) = headers.get(DEATHS) else { return false };
    for death in deaths.iter() {
        let RawValue::Table(death) = death else { continue };
        if is_text(death, "reason", word(Reason::Rejected)) {
            return false;
        }
        if is_text(death, "queue", queue) {
            return true;
        }
    }
    false
}

fn is_text(table: RawTable<'_>, name: &str, text: &str) -> bool {
    table.get(name).and_then(|value| value.as_str()) == Some(text)
}

/// One death.
struct Death<'a> {
    queue: &'a str,
    reason: &'a str,
    exchange: &'a str,
    keys: &'a [String],
    time: u64,
    properties: Properties<'a>,
}

impl Death<'_> {
    fn is_same(&self, other: RawTable<'_>) -> bool {
        is_text(other, "queue", self.queue) && is_text(other, "reason", self.reason)
    }

    /// Writes the history: this death in front of those before.
    fn write(&self, before: RawArray<'_>, deaths: &mut ArrayWriter) {
        let again = before.iter().find_map(|death| match death {
            RawValue::Table(table) if self.is_same(table) => Some(table),
            _ => None,
        });
        deaths.put_table(|table| match again {
            Some(again) => {
                for (name, value) in again.iter() {
                    let name = String::from_utf8_lossy(name);
                    let count = |value: &RawValue<'_>| value.as_i64().unwrap_or(0).saturating_add(1);
                    let value = if name == "count" { RawValue::I64(count(&value)) } else { value };
                    table.put(&name, value);
                }
            }
            None => self.write_first(table),
        });
        for death in before.iter() {
            let is_again = matches!(death, RawValue::Table(table) if self.is_same(table));
            if !is_again {
                deaths.put(death);
            }
        }
    }

    fn write_first(&self, table: &mut TableWriter) {
        table.put("count", RawValue::I64(1));
        table.put("reason", RawValue::LongStr(self.reason.as_bytes()));
        table.put("queue", RawValue::LongStr(self.queue.as_bytes()));
        table.put("time", RawValue::Timestamp(self.time));
        table.put("exchange", RawValue::LongStr(self.exchange.as_bytes()));
        table.put_array("routing-keys", |keys| {
            self.keys.iter().for_each(|key| keys.put(RawValue::LongStr(key.as_bytes())));
        });
        if let Some(expiration) = self.properties.expiration() {
            table.put("original-expiration", RawValue::LongStr(expiration));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(exchange: &str, key: &str, properties: &[u8]) -> Message {
        let mut envelope = Vec::new();
        for text in [exchange, key] {
            envelope.push(text.len() as u8);
            envelope.extend_from_slice(text.as_bytes());
        }
        Message::from_parts(&envelope, properties, b"body")
    }

    fn headers(properties: &[u8]) -> RawTable<'_> {
        Properties::from_raw_trusted(properties).headers().expect("it has headers")
    }

    fn names(table: RawTable<'_>) -> Vec<String> {
        table.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn deaths(properties: &[u8]) -> Vec<(String, String, i64)> {
        let Some(RawValue::Array(deaths)) = headers(properties).get(DEATHS) else { panic!("no history") };
        let entry = |death| match death {
            RawValue::Table(death) => {
                let text = |name| death.get(name).and_then(|value| value.as_str()).expect("a text").to_owned();
                (text("queue"), text("reason"), death.get("count").and_then(|count| count.as_i64()).expect("a count"))
            }
            other => panic!("{other:?} is no death"),
        };
        deaths.iter().map(entry).collect()
    }

    #[test]
    fn the_first_death_has_all_fields_in_order_and_takes_the_expiration_off() {
        let mut table = TableWriter::new();
        table.put("own", RawValue::I32(1));
        let properties =
            PropertiesBuilder::new().set_headers_raw(&table.finish()).set_expiration(b"100").set_priority(3).build();
        let dead = dead(&message("x", "k", &properties), "q", Reason::Expired, None, 77);
        assert_eq!(dead.keys, ["k"]);
        let after = Properties::from_raw_checked(&dead.properties).expect("properties");
        assert_eq!((after.expiration(), after.priority()), (None, Some(3)));
        let expected = ["own", "x-death"].into_iter().chain(FIRST).chain(LAST);
        assert_eq!(names(headers(&dead.properties)), expected.collect::<Vec<_>>());
        let Some(RawValue::Array(array)) = headers(&dead.properties).get(DEATHS) else { panic!("no history") };
        let Some(RawValue::Table(entry)) = array.iter().next() else { panic!("no entry") };
        let fields = ["count", "reason", "queue", "time", "exchange", "routing-keys", "original-expiration"];
        assert_eq!(names(entry), fields);
        assert_eq!(entry.get("time"), Some(RawValue::Timestamp(77)));
        assert_eq!(deaths(&dead.properties), [("q".to_owned(), "expired".to_owned(), 1)]);
    }

    #[test]
    fn dying_of_the_same_again_counts_and_comes_to_the_front_and_the_first_death_stays() {
        let first = dead(&message("", "k", &[0, 0]), "a", Reason::Expired, None, 1);
        let second = dead(&message("", "k", &first.properties), "b", Reason::Rejected, None, 2);
        let third = dead(&message("", "k", &second.properties), "a", Reason::Expired, None, 3);
        let expected = [("a", "expired", 2), ("b", "rejected", 1)].map(|(q, r, n)| (q.to_owned(), r.to_owned(), n));
        assert_eq!(deaths(&third.properties), expected);
        let text = |name| headers(&third.properties).get(name).and_then(|value| value.as_str());
        assert_eq!((text("x-first-death-queue"), text("x-last-death-queue")), (Some("a"), Some("a")));
        let text = |name| headers(&second.properties).get(name).and_then(|value| value.as_str());
        assert_eq!((text("x-first-death-reason"), text("x-last-death-reason")), (Some("expired"), Some("rejected")));
    }

    #[test]
    fn copies_are_routed_too_unless_the_queue_has_a_key_of_its_own() {
        let mut table = TableWriter::new();
        table.put_array("CC", |keys| keys.put(RawValue::LongStr(b"copy")));
        let properties = PropertiesBuilder::new().set_headers_raw(&table.finish()).build();
        let message = message("x", "k", &properties);
        assert_eq!(dead(&message, "q", Reason::MaxLen, None, 1).keys, ["k", "copy"]);
        let keyed = dead(&message, "q", Reason::MaxLen, Some("other"), 1);
        assert_eq!(keyed.keys, ["other"]);
        assert_eq!(headers(&keyed.properties).get("CC"), None);
    }

    #[test]
    fn a_circle_without_a_refusal_is_found() {
        let expired = dead(&message("", "k", &[0, 0]), "a", Reason::Expired, None, 1);
        assert!(is_cycle(&expired.properties, "a") && !is_cycle(&expired.properties, "b"));
        let rejected = dead(&message("", "k", &expired.properties), "b", Reason::Rejected, None, 1);
        assert!(!is_cycle(&rejected.properties, "a"), "a consumer refused it since");
        assert!(!is_cycle(&rejected.properties, "b"), "a refusal is part of the circle");
    }

    #[test]
    fn what_a_client_wrote_as_history_is_survived() {
        let mut table = TableWriter::new();
        table.put_array(DEATHS, |deaths| {
            deaths.put(RawValue::I32(7));
            deaths.put_table(|death| {
                death.put("queue", RawValue::LongStr(b"q"));
                death.put("reason", RawValue::LongStr(b"maxlen"));
                death.put("count", RawValue::LongStr(b"many"));
            });
        });
        let properties = PropertiesBuilder::new().set_headers_raw(&table.finish()).build();
        let dead = dead(&message("x", "k", &properties), "q", Reason::MaxLen, None, 1);
        Properties::from_raw_checked(&dead.properties).expect("properties");
        let Some(RawValue::Array(array)) = headers(&dead.properties).get(DEATHS) else { panic!("no history") };
        assert_eq!(array.iter().count(), 2);
    }
}
