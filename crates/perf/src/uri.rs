//! AMQP URIs: `amqp://user:password@host:port/vhost`, with percent-encoding; or simply `host:port`.

use std::str::FromStr;

/// Port of AMQP without TLS.
const DEFAULT_PORT: u16 = 5672;

/// Where a broker is and who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Host name or address; of an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
    /// Virtual host.
    pub vhost: String,
}

impl FromStr for Uri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("amqps://") {
            return Err("TLS is not supported by this tool: use amqp://".to_owned());
        }
        let rest = text.strip_prefix("amqp://").unwrap_or(text);
        if rest.contains("://") {
            return Err("expected amqp://user:password@host:port/vhost".to_owned());
        }
        let (authority, vhost) = match rest.split_once('/') {
            Some((authority, vhost)) => (authority, decode(vhost)?),
            None => (rest, "/".to_owned()),
        };
        let (user, password, place) = match authority.rsplit_once('@') {
            Some((login, place)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                (decode(user)?, decode(password)?, place)
            }
            None => ("guest".to_owned(), "guest".to_owned(), authority),
        };
        let (host, port) = split_place(place)?;
        // A path that is only a slash is an empty name by RFC 3986, but everyone who writes it means the default.
        let vhost = if vhost.is_empty() { "/".to_owned() } else { vhost };
        Ok(Self { host, port, user, password, vhost })
    }
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`.
fn split_place(place: &str) -> Result<(String, u16), String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("no ']' after an IPv6 address")?;
            (host, after.strip_prefix(':'))
        }
        None => place.rsplit_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| format!("{port}: not a port"))?,
        None => DEFAULT_PORT,
    };
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Ok((host.to_owned(), port))
}

fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("'%' without two hexadecimal digits")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(host: &str, port: u16, user: &str, password: &str, vhost: &str) -> Uri {
        let [host, user, password, vhost] = [host, user, password, vhost].map(str::to_owned);
        Uri { host, port, user, password, vhost }
    }

    #[test]
    fn parts_are_found_and_defaults_filled_in() {
        for (text, expected) in [
            ("amqp://", uri("127.0.0.1", 5672, "guest", "guest", "/")),
            ("broker:5673", uri("broker", 5673, "guest", "guest", "/")),
            ("amqp://a:b%40c@h:1/%2f", uri("h", 1, "a", "b@c", "/")),
            ("amqp://a@h/tenant", uri("h", 5672, "a", "", "tenant")),
            ("amqp://[::1]:99/", uri("::1", 99, "guest", "guest", "/")),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in ["amqps://h", "http://h", "h:port", "h:70000", "amqp://h/%2", "amqp://h/%zz", "[::1"] {
            assert!(text.parse::<Uri>().is_err(), "{text}");
        }
    }
}
