//! Content headers: what comes between a `basic.publish` and its body (AMQP 0-9-1 section 4.2.6).
//!
//! ```text
//! +-------+--------+-----------+------------+
//! | class | weight | body size | properties |
//! | u16   | u16    | u64       |            |
//! +-------+--------+-----------+------------+
//! ```

use crate::frame::malformed;
use crate::properties::Properties;
use crate::reply::Exception;

/// A content header with properties that were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// The class whose content follows; 60 for `basic`, the only one with content.
    pub class: u16,
    /// Always 0.
    pub weight: u16,
    /// Bytes of the body, in all frames together. What a peer announces is no reason to allocate.
    pub body_size: u64,
    /// Flags and property list.
    pub properties: Properties<'a>,
}

impl<'a> ContentHeader<'a> {
    /// Decodes the payload of a header frame and checks its properties.
    ///
    /// # Errors
    ///
    /// 501 for a payload below 12 bytes; 541 or 502 as [`Properties::from_raw_checked`] has it.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, Exception> {
        let (class, weight, body_size, properties) = split(payload)?;
        Ok(Self { class, weight, body_size, properties: Properties::from_raw_checked(properties)? })
    }
}

/// Class, weight, body size and the property list as it came.
#[inline]
pub(crate) fn split(payload: &[u8]) -> Result<(u16, u16, u64, &[u8]), Exception> {
    let Some((&[c0, c1, w0, w1, size @ ..], properties)) = payload.split_first_chunk::<12>() else {
        return Err(malformed(2, payload, "unknown_frame"));
    };
    Ok((u16::from_be_bytes([c0, c1]), u16::from_be_bytes([w0, w1]), u64::from_be_bytes(size), properties))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_decoded_with_its_properties() {
        let header = ContentHeader::decode(b"\0\x3c\0\0\0\0\0\0\0\0\x01\0\x10\0\x02").unwrap();
        assert_eq!((header.class, header.weight, header.body_size), (60, 0, 256));
        assert_eq!(header.properties.delivery_mode(), Some(2));
    }

    #[test]
    fn announced_size_is_only_a_number() {
        let header = ContentHeader::decode(b"\0\x3c\0\0\x80\0\0\0\0\0\0\0\0\0").unwrap();
        assert_eq!(header.body_size, 1 << 63);
    }

    #[test]
    fn header_cut_anywhere_is_refused() {
        let payload = b"\0\x3c\0\0\0\0\0\0\0\0\x01\0\x10\0\x02";
        for length in 0..payload.len() {
            let code = ContentHeader::decode(&payload[..length]).unwrap_err().code as u16;
            assert_eq!(code, if length < 12 { 501 } else { 541 }, "{length} bytes");
        }
    }
}
