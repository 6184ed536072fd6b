//! The properties of a message: a word of flags, one for each property that is there, and the values in the order of
//! the flags (AMQP 0-9-1 sections 1.8 and 4.2.6.1).
//!
//! ```text
//! bit 15 content-type       s    bit 10 correlation-id s    bit 5 type        s
//!     14 content-encoding   s         9 reply-to       s        4 user-id     s
//!     13 headers            F         8 expiration     s        3 app-id      s
//!     12 delivery-mode      u8        7 message-id     s        2 cluster-id  s
//!     11 priority           u8        6 timestamp      u64      1, 0 unused
//! ```
//!
//! They stay as they came, so that a consumer gets them byte for byte; what the broker itself wants to know is looked
//! up when it is needed.

use crate::layout::refused_table;
use crate::raw_table::RawTable;
use crate::reply::{Exception, MethodId, ReplyCode};
use crate::table::{self, TableError};

/// A property, numbered by its place among the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Property {
    /// MIME type of the body.
    ContentType = 0,
    /// MIME encoding of the body.
    ContentEncoding = 1,
    /// Headers of the application.
    Headers = 2,
    /// 2 for persistent messages.
    DeliveryMode = 3,
    /// Priority.
    Priority = 4,
    /// Which request this answers.
    CorrelationId = 5,
    /// Where to send the answer.
    ReplyTo = 6,
    /// Time to live, in milliseconds, as text.
    Expiration = 7,
    /// Identifier of the application.
    MessageId = 8,
    /// Seconds since 1970.
    Timestamp = 9,
    /// Name of the kind of message.
    Type = 10,
    /// The user who published it; checked.
    UserId = 11,
    /// The application that published it.
    AppId = 12,
    /// Unused.
    ClusterId = 13,
}

/// How many properties there are.
pub(crate) const PROPERTIES: usize = 14;
/// The bits of the flags that stand for no property.
const UNUSED_FLAGS: u16 = 0b11;
/// No flags and no values.
const EMPTY: &[u8] = &[0, 0];

impl Property {
    /// The property's bit in the flags.
    pub(crate) const fn flag(self) -> u16 {
        0x8000 >> self as u8
    }
}

/// Properties in wire form: flags, then values. Cheap to copy; every question walks the few values before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

impl Default for Properties<'_> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<'a> Properties<'a> {
    /// No properties.
    #[must_use]
    pub const fn empty() -> Self {
        Self { raw: EMPTY }
    }

    /// Takes properties from a peer: flags and values to the last byte, with the table of headers in all its depth.
    ///
    /// # Errors
    ///
    /// 541 as RabbitMQ does where flags, values and lengths do not agree; 502 for headers that are nested too deep and
    /// for lengths that no frame can hold.
    #[inline]
    pub fn from_raw_checked(raw: &'a [u8]) -> Result<Self, Exception> {
        if raw == EMPTY {
            return Ok(Self { raw });
        }
        match check(raw) {
            Ok(()) => Ok(Self { raw }),
            Err(error) => Err(refused(error)),
        }
    }

    /// Takes properties that were checked before: from a queue or from the log. Should they be wrong nevertheless, the
    /// properties behind the damage are absent.
    #[must_use]
    pub const fn from_raw_trusted(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// Flags and values, as in a content header behind the body size.
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flags() & !UNUSED_FLAGS == 0
    }

    /// MIME type of the body.
    #[must_use]
    pub fn content_type(&self) -> Option<&'a [u8]> {
        self.value(Property::ContentType)
    }

    /// MIME encoding of the body.
    #[must_use]
    pub fn content_encoding(&self) -> Option<&'a [u8]> {
        self.value(Property::ContentEncoding)
    }

    /// Headers of the application.
    #[must_use]
    pub fn headers(&self) -> Option<RawTable<'a>> {
        self.value(Property::Headers).map(RawTable::new)
    }

    /// 2 for persistent messages.
    #[must_use]
    pub fn delivery_mode(&self) -> Option<u8> {
        self.value(Property::DeliveryMode)?.first().copied()
    }

    /// Priority.
    #[must_use]
    pub fn priority(&self) -> Option<u8> {
        self.value(Property::Priority)?.first().copied()
    }

    /// Which request this answers.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&'a [u8]> {
        self.value(Property::CorrelationId)
    }

    /// Where to send the answer.
    #[must_use]
    pub fn reply_to(&self) -> Option<&'a [u8]> {
        self.value(Property::ReplyTo)
    }

    /// Time to live, in milliseconds, as text.
    #[must_use]
    pub fn expiration(&self) -> Option<&'a [u8]> {
        self.value(Property::Expiration)
    }

    /// Identifier of the application.
    #[must_use]
    pub fn message_id(&self) -> Option<&'a [u8]> {
        self.value(Property::MessageId)
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        self.value(Property::Timestamp)?.first_chunk().map(|seconds| u64::from_be_bytes(*seconds))
    }

    /// Name of the kind of message.
    #[must_use]
    pub fn message_type(&self) -> Option<&'a [u8]> {
        self.value(Property::Type)
    }

    /// The user who published it.
    #[must_use]
    pub fn user_id(&self) -> Option<&'a [u8]> {
        self.value(Property::UserId)
    }

    /// The application that published it.
    #[must_use]
    pub fn app_id(&self) -> Option<&'a [u8]> {
        self.value(Property::AppId)
    }

    /// Unused by the protocol.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&'a [u8]> {
        self.value(Property::ClusterId)
    }

    pub(crate) fn flags(&self) -> u16 {
        self.raw.first_chunk().map_or(0, |flags| u16::from_be_bytes(*flags))
    }

    /// The value of a property, without its length.
    fn value(&self, property: Property) -> Option<&'a [u8]> {
        let flags = self.flags();
        if flags & property.flag() == 0 {
            return None;
        }
        let mut rest = &self.raw[2..];
        let mut before = flags & !(property.flag() | (property.flag() - 1));
        while before != 0 {
            let flag = highest(before);
            before &= !flag;
            let (_, after) = split_value(rest, flag).ok()?;
            rest = after;
        }
        let (value, _) = split_value(rest, property.flag()).ok()?;
        Some(&value[length_prefix(property.flag())..])
    }

    /// Every property that is there with its value in wire form, length included. Ends where a value is damaged.
    pub(crate) fn iter_raw(&self) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let mut left = self.flags() & !UNUSED_FLAGS;
        let mut rest = self.raw.get(2..).unwrap_or_default();
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let flag = highest(left);
            left &= !flag;
            let (value, after) = split_value(rest, flag).ok()?;
            rest = after;
            Some((flag.leading_zeros() as usize, value))
        })
    }
}

/// Checks flags and values.
fn check(raw: &[u8]) -> Result<(), TableError> {
    let (flags, mut rest) = raw.split_first_chunk::<2>().ok_or(TableError::Malformed)?;
    let mut left = u16::from_be_bytes(*flags);
    // Bit 0 would announce a second word of flags; no class has so many properties.
    if left & UNUSED_FLAGS != 0 {
        return Err(TableError::Malformed);
    }
    while left != 0 {
        let flag = highest(left);
        left &= !flag;
        let (value, after) = split_value(rest, flag)?;
        if flag == Property::Headers.flag() {
            table::check_entries(&value[4..])?;
        }
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(TableError::Malformed) }
}

#[cold]
fn refused(error: TableError) -> Exception {
    refused_table(MethodId::BASIC_PUBLISH, error)
        .unwrap_or_else(|| Exception::new(ReplyCode::InternalError, "", MethodId::NONE))
}

fn highest(flags: u16) -> u16 {
    0x8000 >> flags.leading_zeros()
}

/// Bytes of the length in front of a property's value.
fn length_prefix(flag: u16) -> usize {
    const OCTETS: u16 = Property::DeliveryMode.flag() | Property::Priority.flag();
    const HEADERS: u16 = Property::Headers.flag();
    const TIMESTAMP: u16 = Property::Timestamp.flag();
    match flag {
        HEADERS => 4,
        TIMESTAMP => 0,
        flag if flag & OCTETS != 0 => 0,
        _ => 1,
    }
}

/// The value of the property with this flag at the front, length included, and what follows it.
fn split_value(rest: &[u8], flag: u16) -> Result<(&[u8], &[u8]), TableError> {
    const OCTETS: u16 = Property::DeliveryMode.flag() | Property::Priority.flag();
    const HEADERS: u16 = Property::Headers.flag();
    const TIMESTAMP: u16 = Property::Timestamp.flag();
    let bytes = match flag {
        HEADERS => 4 + table::field_length(rest, 0)?,
        TIMESTAMP => 8,
        flag if flag & OCTETS != 0 => 1,
        _ => 1 + usize::from(*rest.first().ok_or(TableError::Malformed)?),
    };
    rest.split_at_checked(bytes).ok_or(TableError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PropertiesBuilder, RawValue, TableWriter};

    fn all() -> Vec<u8> {
        let mut headers = TableWriter::new();
        headers.put("k", RawValue::LongStr(b"v"));
        PropertiesBuilder::new()
            .set_content_type(b"ct")
            .set_content_encoding(b"ce")
            .set_headers_raw(&headers.finish())
            .set_delivery_mode(2)
            .set_priority(9)
            .set_correlation_id(b"c")
            .set_reply_to(b"r")
            .set_expiration(b"100000")
            .set_message_id(b"m")
            .set_timestamp(8_589_934_592)
            .set_message_type(b"t")
            .set_user_id(b"guest")
            .set_app_id(b"a")
            .set_cluster_id(b"cl")
            .build()
    }

    #[test]
    fn every_property_is_found_among_all() {
        let raw = all();
        let properties = Properties::from_raw_checked(&raw).unwrap();
        assert_eq!(properties.content_type(), Some(b"ct".as_slice()));
        assert_eq!(properties.content_encoding(), Some(b"ce".as_slice()));
        assert_eq!(properties.headers().and_then(|headers| headers.get("k")), Some(RawValue::LongStr(b"v")));
        assert_eq!(properties.delivery_mode(), Some(2));
        assert_eq!(properties.priority(), Some(9));
        assert_eq!(properties.correlation_id(), Some(b"c".as_slice()));
        assert_eq!(properties.reply_to(), Some(b"r".as_slice()));
        assert_eq!(properties.expiration(), Some(b"100000".as_slice()));
        assert_eq!(properties.message_id(), Some(b"m".as_slice()));
        assert_eq!(properties.timestamp(), Some(8_589_934_592));
        assert_eq!(properties.message_type(), Some(b"t".as_slice()));
        assert_eq!(properties.user_id(), Some(b"guest".as_slice()));
        assert_eq!(properties.app_id(), Some(b"a".as_slice()));
        assert_eq!(properties.cluster_id(), Some(b"cl".as_slice()));
        assert_eq!(properties.raw(), raw);
    }

    #[test]
    fn nothing_is_found_among_none() {
        let properties = Properties::empty();
        assert!(properties.is_empty() && Properties::from_raw_checked(&[0, 0]) == Ok(properties));
        assert_eq!(properties.headers(), None);
        assert_eq!((properties.delivery_mode(), properties.timestamp()), (None, None));
        assert_eq!((properties.content_type(), properties.cluster_id()), (None, None));
    }

    #[test]
    fn list_cut_anywhere_or_followed_by_a_byte_is_541() {
        let mut raw = all();
        raw.push(0);
        for length in (0..=raw.len()).filter(|length| *length != raw.len() - 1) {
            let refused = Properties::from_raw_checked(&raw[..length]).expect_err("should be refused");
            assert_eq!((refused.code, refused.method), (ReplyCode::InternalError, MethodId::NONE), "{length} bytes");
            assert_eq!(refused.reply_text(), "INTERNAL_ERROR");
        }
    }

    #[test]
    fn flags_without_a_property_are_541() {
        for flags in [1, 2, 3] {
            assert_eq!(Properties::from_raw_checked(&[0, flags]).unwrap_err().code, ReplyCode::InternalError);
        }
    }

    #[test]
    fn headers_that_are_not_there_are_541_and_headers_that_no_frame_holds_502() {
        let code = |raw: &[u8]| Properties::from_raw_checked(raw).unwrap_err().code;
        assert_eq!(code(b"\x20\0\0\0\0\xff"), ReplyCode::InternalError);
        assert_eq!(code(b"\x20\0\0\0\0\x03\x01aZ"), ReplyCode::InternalError);
        assert_eq!(code(b"\x20\0\x7f\xff\xff\xff\x01aV"), ReplyCode::SyntaxError);
        assert_eq!(code(b"\x20\0\0\0\0\x0a\x01aS\xff\xff\xff\xffabc"), ReplyCode::SyntaxError);
    }

    #[test]
    fn headers_nested_20_000_deep_are_502() {
        for (name, letter) in [(b"\0".as_slice(), b'F'), (b"", b'A')] {
            let level_bytes = name.len() + 5;
            let mut entries = Vec::new();
            for level in (0..20_000).rev() {
                entries.extend_from_slice(if level == 19_999 { b"\0" } else { name });
                entries.push(letter);
                entries.extend_from_slice(&((level * level_bytes) as u32).to_be_bytes());
            }
            let raw = PropertiesBuilder::new().set_headers_raw(&entries).build();
            let refused = Properties::from_raw_checked(&raw).unwrap_err();
            assert_eq!((refused.code, refused.method), (ReplyCode::SyntaxError, MethodId::BASIC_PUBLISH));
        }
    }

    #[test]
    fn damaged_properties_that_are_trusted_lose_what_is_behind_the_damage() {
        let raw = all();
        for length in 0..raw.len() {
            let properties = Properties::from_raw_trusted(&raw[..length]);
            assert_eq!(properties.cluster_id(), None);
            assert!(properties.headers().is_none_or(|headers| headers.iter().count() <= 1));
            let _ = PropertiesBuilder::from(properties).build();
        }
    }
}
