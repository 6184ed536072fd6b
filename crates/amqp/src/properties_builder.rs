//! Makes properties, and rewrites those of a message: a reply-to that becomes an address, headers that gain an
//! `x-death`. What is not set or removed keeps its bytes.

use std::borrow::Cow;

use amq_protocol::types::FieldTable;

use crate::properties::{PROPERTIES, Properties, Property};
use crate::table::{put_short_string, put_table, with_length};

/// Properties under construction.
#[derive(Clone, Debug, Default)]
pub struct PropertiesBuilder<'a> {
    /// By number of the property, in wire form with length.
    values: [Option<Cow<'a, [u8]>>; PROPERTIES],
}

impl<'a> From<Properties<'a>> for PropertiesBuilder<'a> {
    fn from(properties: Properties<'a>) -> Self {
        let mut builder = Self::default();
        for (property, value) in properties.iter_raw() {
            builder.values[property] = Some(Cow::Borrowed(value));
        }
        builder
    }
}

impl<'a> PropertiesBuilder<'a> {
    /// No properties yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a property off.
    #[must_use]
    pub fn remove(mut self, property: Property) -> Self {
        self.values[property as usize] = None;
        self
    }

    /// Sets the headers to a table.
    #[must_use]
    pub fn set_headers(self, headers: &FieldTable) -> Self {
        let mut value = Vec::new();
        put_table(&mut value, headers);
        self.set(Property::Headers, value)
    }

    /// Sets the headers to entries in wire form, as [`TableWriter::finish`](crate::TableWriter::finish) gives them.
    #[must_use]
    pub fn set_headers_raw(self, entries: &[u8]) -> Self {
        let mut value = Vec::with_capacity(4 + entries.len());
        with_length(&mut value, |value| value.extend_from_slice(entries));
        self.set(Property::Headers, value)
    }

    /// Sets the delivery mode: 1 transient, 2 persistent.
    #[must_use]
    pub fn set_delivery_mode(self, mode: u8) -> Self {
        self.set(Property::DeliveryMode, vec![mode])
    }

    /// Sets the priority.
    #[must_use]
    pub fn set_priority(self, priority: u8) -> Self {
        self.set(Property::Priority, vec![priority])
    }

    /// Sets the timestamp, in seconds since 1970.
    #[must_use]
    pub fn set_timestamp(self, seconds: u64) -> Self {
        self.set(Property::Timestamp, seconds.to_be_bytes().to_vec())
    }

    /// Sets the content type.
    #[must_use]
    pub fn set_content_type(self, value: &[u8]) -> Self {
        self.set_text(Property::ContentType, value)
    }

    /// Sets the content encoding.
    #[must_use]
    pub fn set_content_encoding(self, value: &[u8]) -> Self {
        self.set_text(Property::ContentEncoding, value)
    }

    /// Sets the correlation id.
    #[must_use]
    pub fn set_correlation_id(self, value: &[u8]) -> Self {
        self.set_text(Property::CorrelationId, value)
    }

    /// Sets the address for answers.
    #[must_use]
    pub fn set_reply_to(self, value: &[u8]) -> Self {
        self.set_text(Property::ReplyTo, value)
    }

    /// Sets the time to live, in milliseconds as text.
    #[must_use]
    pub fn set_expiration(self, value: &[u8]) -> Self {
        self.set_text(Property::Expiration, value)
    }

    /// Sets the message id.
    #[must_use]
    pub fn set_message_id(self, value: &[u8]) -> Self {
        self.set_text(Property::MessageId, value)
    }

    /// Sets the type of the message.
    #[must_use]
    pub fn set_message_type(self, value: &[u8]) -> Self {
        self.set_text(Property::Type, value)
    }

    /// Sets the user id.
    #[must_use]
    pub fn set_user_id(self, value: &[u8]) -> Self {
        self.set_text(Property::UserId, value)
    }

    /// Sets the application id.
    #[must_use]
    pub fn set_app_id(self, value: &[u8]) -> Self {
        self.set_text(Property::AppId, value)
    }

    /// Sets the cluster id.
    #[must_use]
    pub fn set_cluster_id(self, value: &[u8]) -> Self {
        self.set_text(Property::ClusterId, value)
    }

    /// Flags and values, for [`Properties::from_raw_trusted`].
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let bytes = self.values.iter().flatten().map(|value| value.len()).sum::<usize>();
        let mut raw = Vec::with_capacity(2 + bytes);
        raw.extend_from_slice(&[0; 2]);
        let mut flags = 0_u16;
        for (index, value) in self.values.iter().enumerate() {
            if let Some(value) = value {
                flags |= 0x8000 >> index;
                raw.extend_from_slice(value);
            }
        }
        raw[..2].copy_from_slice(&flags.to_be_bytes());
        raw
    }

    /// Short strings are cut to the 255 bytes that they can hold.
    fn set_text(self, property: Property, value: &[u8]) -> Self {
        let mut encoded = Vec::with_capacity(1 + value.len());
        put_short_string(&mut encoded, value);
        self.set(property, encoded)
    }

    fn set(mut self, property: Property, value: Vec<u8>) -> Self {
        self.values[property as usize] = Some(Cow::Owned(value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableWriter;

    /// headers with a duplicate name and letters that a map would lose, delivery-mode 2, reply-to "rq".
    fn raw() -> Vec<u8> {
        let entries = b"\x01zs\xff\xff\x01aV\x03BCCS\0\0\0\x01q\x01zL\0\0\0\0\0\0\0\x01";
        [b"\x32\0".as_slice(), &(entries.len() as u32).to_be_bytes(), entries, b"\x02\x02rq"].concat()
    }

    #[test]
    fn untouched_properties_come_back_byte_for_byte() {
        let raw = raw();
        let properties = Properties::from_raw_checked(&raw).unwrap();
        assert_eq!(PropertiesBuilder::from(properties).build(), raw);
    }

    #[test]
    fn header_is_removed_and_its_neighbours_keep_their_bytes() {
        let raw = raw();
        let properties = Properties::from_raw_checked(&raw).unwrap();
        let mut headers = TableWriter::new();
        headers.copy_without(properties.headers().unwrap(), &["BCC"]);
        let rewritten = PropertiesBuilder::from(properties).set_headers_raw(&headers.finish()).build();
        let left = b"\x32\0\0\0\0\x13\x01zs\xff\xff\x01aV\x01zL\0\0\0\0\0\0\0\x01\x02\x02rq";
        assert_eq!(rewritten, left);
    }

    #[test]
    fn properties_are_replaced_added_and_removed_in_the_order_of_the_flags() {
        let raw = raw();
        let properties = Properties::from_raw_checked(&raw).unwrap();
        let rewritten = PropertiesBuilder::from(properties)
            .remove(Property::Headers)
            .set_reply_to(b"amq.rabbitmq.reply-to.x")
            .set_expiration(b"60")
            .remove(Property::ClusterId)
            .build();
        assert_eq!(rewritten, b"\x13\0\x02\x17amq.rabbitmq.reply-to.x\x0260");
        assert!(Properties::from_raw_checked(&rewritten).is_ok());
    }

    #[test]
    fn text_too_long_for_a_short_string_is_cut() {
        let raw = PropertiesBuilder::new().set_message_id(&[b'm'; 300]).build();
        assert_eq!(Properties::from_raw_checked(&raw).unwrap().message_id(), Some([b'm'; 255].as_slice()));
    }
}
