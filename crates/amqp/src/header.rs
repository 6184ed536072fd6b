//! The eight bytes with which a client opens a connection (AMQP 0-9-1 section 4.2.2), and what else may come in their
//! place: clients of other protocol versions, TLS on the plain port, a browser.

/// What a client of ours sends first, and what the server answers to anything it does not speak.
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

/// What the first eight bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolHeader {
    /// `AMQP 0 0 9 1`: this protocol.
    Amqp091,
    /// `AMQP 1 1 0 9`: AMQP 0-9, close enough to be served as 0-9-1.
    Amqp09,
    /// `AMQP 1 1 8 0`: AMQP 0-8.
    Amqp08,
    /// `AMQP p 1 0 0`: AMQP 1.0, plain (0), after TLS (2) or with SASL (3).
    Amqp10,
    /// A TLS handshake record: the client takes this for the encrypted port.
    Tls,
    /// An HTTP request: the client takes this for the management port.
    Http,
    /// Anything else.
    Unknown,
}

impl ProtocolHeader {
    /// Reads the first eight bytes of a connection.
    #[must_use]
    pub fn classify(first8: &[u8; 8]) -> Self {
        match *first8 {
            PROTOCOL_HEADER => Self::Amqp091,
            [b'A', b'M', b'Q', b'P', 1, 1, 0, 9] => Self::Amqp09,
            [b'A', b'M', b'Q', b'P', 1, 1, 8, 0] => Self::Amqp08,
            [b'A', b'M', b'Q', b'P', 0 | 2 | 3, 1, 0, 0] => Self::Amqp10,
            [0x16, 0x03, ..] => Self::Tls,
            [b'G', b'E', b'T', b' ', ..]
            | [b'P', b'O', b'S', b'T', ..]
            | [b'P', b'U', b'T', b' ', ..]
            | [b'H', b'E', b'A', b'D', ..]
            | [b'O', b'P', b'T', b'I', ..]
            | [b'D', b'E', b'L', b'E', ..] => Self::Http,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_opening_is_told_apart() {
        for (first8, expected) in [
            (b"AMQP\0\0\x09\x01", ProtocolHeader::Amqp091),
            (b"AMQP\x01\x01\0\x09", ProtocolHeader::Amqp09),
            (b"AMQP\x01\x01\x08\0", ProtocolHeader::Amqp08),
            (b"AMQP\0\x01\0\0", ProtocolHeader::Amqp10),
            (b"AMQP\x03\x01\0\0", ProtocolHeader::Amqp10),
            (b"\x16\x03\x01\x02\0\x01\0\x01", ProtocolHeader::Tls),
            (b"GET / HT", ProtocolHeader::Http),
            (b"POST /ap", ProtocolHeader::Http),
            (b"PUT /api", ProtocolHeader::Http),
            (b"DELETE /", ProtocolHeader::Http),
            (b"OPTIONS ", ProtocolHeader::Http),
            (b"HEAD / H", ProtocolHeader::Http),
            (b"AMQP\0\0\x09\x02", ProtocolHeader::Unknown),
            (b"amqp\0\0\x09\x01", ProtocolHeader::Unknown),
            (b"\0\0\0\0\0\0\0\0", ProtocolHeader::Unknown),
        ] {
            assert_eq!(ProtocolHeader::classify(first8), expected, "{first8:?}");
        }
    }
}
