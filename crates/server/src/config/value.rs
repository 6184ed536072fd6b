//! Values of settings. Every parser says what it expects: the text after `file:line: key = value: `.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use broker::auth::Pattern;
use broker::memory::parse_size;

/// Longest name of a user, virtual host or node in bytes: names travel in short strings.
const MAX_NAME_BYTES: usize = 255;

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// On all interfaces, IPv6 and IPv4.
    Any(u16),
    /// On one address.
    Ip(SocketAddr),
}

impl ListenAddress {
    /// `ADDR:PORT` or `PORT`, from a file or the environment. IPv6 addresses with or without brackets, as in RabbitMQ.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match Self::parse_with_ephemeral(text)? {
            address if address.port() == 0 => Err("expected a port from 1 to 65535".to_owned()),
            address => Ok(address),
        }
    }

    /// Like [`Self::parse`], with 0 for any free port: for the command line, whose ready line names the port taken.
    pub(crate) fn parse_with_ephemeral(text: &str) -> Result<Self, String> {
        let expected = || "expected PORT or ADDRESS:PORT, such as 5672, 127.0.0.1:5672 or [::1]:5672".to_owned();
        let Some((ip, port)) = text.rsplit_once(':') else {
            return Ok(Self::Any(parse_port(text).ok_or_else(expected)?));
        };
        let ip = match ip.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(expected)?,
            None => ip,
        };
        let ip: IpAddr = ip.parse().map_err(|_| expected())?;
        Ok(Self::Ip(SocketAddr::new(ip, parse_port(port).ok_or_else(expected)?)))
    }

    fn port(self) -> u16 {
        match self {
            Self::Any(port) => port,
            Self::Ip(address) => address.port(),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(port) => write!(f, "port {port} of all interfaces"),
            Self::Ip(address) => write!(f, "{address}"),
        }
    }
}

/// Only digits: `u16::from_str` would also take a sign.
fn parse_port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A node name, `name` or `name@host`; returned as given.
///
/// # Errors
/// What is expected.
pub(crate) fn parse_node_name(text: &str) -> Result<String, String> {
    let fits = text.len() <= MAX_NAME_BYTES && text.chars().all(|c| !c.is_whitespace() && !c.is_control());
    let mut parts = text.split('@');
    let named = parts.next().is_some_and(|name| !name.is_empty());
    let hosted = parts.next().is_none_or(|host| !host.is_empty());
    if fits && named && hosted && parts.next().is_none() {
        Ok(text.to_owned())
    } else {
        Err("expected a node name such as rabbit@host".to_owned())
    }
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "expected true or false".to_owned())
}

/// A whole number in the range. `what` names it: "a number of seconds".
pub(super) fn integer<T>(text: &str, what: &str, range: RangeInclusive<u64>) -> Result<T, String>
where
    T: TryFrom<u64>,
{
    let digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits_only && range.contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("expected {what} from {} to {}", range.start(), range.end()))
}

/// A number of bytes, with or without a unit, in the range.
pub(super) fn size<T>(text: &str, range: RangeInclusive<u64>) -> Result<T, String>
where
    T: TryFrom<u64>,
{
    let expected =
        || format!("expected a size from {} to {} bytes, such as 1048576, 64MiB or 2GB", range.start(), range.end());
    let bytes = parse_size(text).ok().filter(|bytes| range.contains(bytes)).ok_or_else(expected)?;
    T::try_from(bytes).map_err(|_| expected())
}

/// A number of bytes of a key for which RabbitMQ counts `KB`, `MB` and `GB` in steps of 1024: the frame sizes.
pub(super) fn frame_size(text: &str, range: RangeInclusive<u64>) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let binary = ["kb", "mb", "gb"].into_iter().find_map(|unit| {
        let number = lower.strip_suffix(unit)?;
        Some(format!("{number}{}", &unit[..1]))
    });
    size(binary.as_deref().unwrap_or(text), range)
}

/// A fraction or multiple, not negative.
pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| ratio.is_finite() && *ratio >= 0.0);
    ratio.ok_or_else(|| "expected a number that is not negative, such as 0.6".to_owned())
}

/// The name of a user or virtual host.
pub(super) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err(format!("expected a name of 1 to {MAX_NAME_BYTES} bytes"));
    }
    Ok(text.to_owned())
}

/// A regular expression of a permission.
pub(super) fn pattern(text: &str) -> Result<String, String> {
    Pattern::new(text).map_err(|error| format!("expected a regular expression, but: {error}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ListenAddress {
        ListenAddress::Ip(text.parse().expect("an address"))
    }

    #[test]
    fn listen_addresses_with_and_without_brackets() {
        assert_eq!(ListenAddress::parse("5672"), Ok(ListenAddress::Any(5672)));
        assert_eq!(ListenAddress::parse("127.0.0.1:5672"), Ok(address("127.0.0.1:5672")));
        assert_eq!(ListenAddress::parse("[::1]:5672"), Ok(address("[::1]:5672")));
        assert_eq!(ListenAddress::parse("::1:5672"), Ok(address("[::1]:5672")));
        assert_eq!(ListenAddress::parse_with_ephemeral("0"), Ok(ListenAddress::Any(0)));
    }

    #[test]
    fn what_is_no_listen_address_is_refused() {
        for text in
            ["", "localhost:5672", "0", "65536", "+5672", "127.0.0.1:", "[::1:5672", "127.0.0.1:x", ":5672", "1.2.3.4"]
        {
            assert!(ListenAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_digits_in_a_range() {
        assert_eq!(integer::<u16>("60", "seconds", 0..=65535), Ok(60));
        for text in ["", "-1", "+1", "1.0", "1s", "65536", "99999999999999999999"] {
            let error = integer::<u16>(text, "a number of seconds", 0..=65535).unwrap_err();
            assert_eq!(error, "expected a number of seconds from 0 to 65535", "{text}");
        }
    }

    #[test]
    fn frame_sizes_count_in_steps_of_1024() {
        assert_eq!(frame_size("128KB", 4096..=1 << 27), Ok(131_072));
        assert_eq!(frame_size("131072", 4096..=1 << 27), Ok(131_072));
        assert_eq!(size::<u64>("128KB", 1..=1 << 27), Ok(128_000));
        assert!(frame_size("4095", 4096..=1 << 27).is_err());
        assert!(frame_size("1GB", 4096..=1 << 27).is_err());
    }

    #[test]
    fn ratios_are_finite_and_not_negative() {
        assert_eq!(ratio("0.4"), Ok(0.4));
        assert_eq!(ratio("1"), Ok(1.0));
        for text in ["-0.1", "NaN", "inf", "40%", ""] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }

    #[test]
    fn node_names_have_at_most_one_at() {
        assert!(parse_node_name("rabbit").is_ok() && parse_node_name("rabbit@host.example").is_ok());
        for text in ["", "@", "@host", "rabbit@", "a@b@c", "a b", "a\n"] {
            assert!(parse_node_name(text).is_err(), "{text:?}");
        }
    }
}
