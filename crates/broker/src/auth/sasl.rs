//! The responses of the two SASL mechanisms, taken apart without copying: `connection.start-ok` comes from a peer who is not
//! yet anybody, so nothing here recurses, allocates, or believes a length.

use std::fmt;

/// A name and a password as a peer gave them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The password's bytes.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    /// Passwords do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A response of PLAIN (RFC 4616): NUL, user, NUL, password. As with RabbitMQ there is no authorization identity in front, and no
/// third NUL. `None`: not such a response.
#[must_use]
pub fn plain(response: &[u8]) -> Option<Credentials<'_>> {
    let rest = response.strip_prefix(&[0])?;
    let separator = rest.iter().position(|&byte| byte == 0)?;
    let (user, password) = (&rest[..separator], &rest[separator + 1..]);
    if password.contains(&0) {
        return None;
    }
    Some(Credentials { user: str::from_utf8(user).ok()?, password })
}

/// A response of AMQPLAIN: a field table without its length prefix that has LOGIN and PASSWORD as long strings. Other fields are
/// skipped; of two with the same name the first counts. `None`: not such a response.
#[must_use]
pub fn amqplain(response: &[u8]) -> Option<Credentials<'_>> {
    let mut rest = response;
    let (mut user, mut password) = (None, None);
    while !rest.is_empty() {
        let name_length = take(&mut rest, 1)?[0];
        let name = take(&mut rest, name_length.into())?;
        let kind = take(&mut rest, 1)?[0];
        let value = take_value(&mut rest, kind)?;
        match name {
            b"LOGIN" if user.is_none() => user = Some((kind, value)),
            b"PASSWORD" if password.is_none() => password = Some((kind, value)),
            _ => {}
        }
    }
    match (user?, password?) {
        ((b'S', user), (b'S', password)) => Some(Credentials { user: str::from_utf8(user).ok()?, password }),
        _ => None,
    }
}

/// The next bytes, if there are so many.
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

/// The bytes of a field value, without the length in front. Types as RabbitMQ's table in its "AMQP 0-9-1 errata" names them; tables and
/// arrays carry their length in bytes, so they are skipped whole, however deep they are.
fn take_value<'a>(rest: &mut &'a [u8], kind: u8) -> Option<&'a [u8]> {
    let length = match kind {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' | b'A' | b'F' => {
            let length = take(rest, 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
            usize::try_from(length).ok()?
        }
        _ => return None,
    };
    take(rest, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, kind: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(name.len()).unwrap()];
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(kind);
        if b"SxAF".contains(&kind) {
            bytes.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
        }
        bytes.extend_from_slice(value);
        bytes
    }

    fn login(user: &str, password: &str) -> Vec<u8> {
        [field("LOGIN", b'S', user.as_bytes()), field("PASSWORD", b'S', password.as_bytes())].concat()
    }

    #[test]
    fn plain_is_nul_user_nul_password() {
        assert_eq!(plain(b"\0guest\0secret"), Some(Credentials { user: "guest", password: b"secret" }));
        assert_eq!(plain(b"\0guest\0"), Some(Credentials { user: "guest", password: b"" }));
        assert_eq!(plain(b"\0\0\xff"), Some(Credentials { user: "", password: b"\xff" }));
    }

    #[test]
    fn malformed_plain_is_refused() {
        for response in
            [&b""[..], b"\0", b"\0guest", b"guest\0guest", b"id\0guest\0guest", b"\0a\0b\0c", b"\0\xff\0password"]
        {
            assert_eq!(plain(response), None, "{response:?}");
        }
    }

    #[test]
    fn amqplain_takes_login_and_password_in_any_order() {
        let expected = Some(Credentials { user: "guest", password: b"s\0" });
        assert_eq!(amqplain(&login("guest", "s\0")), expected);
        let swapped = [field("PASSWORD", b'S', b"s\0"), field("LOGIN", b'S', b"guest")].concat();
        assert_eq!(amqplain(&swapped), expected);
    }

    #[test]
    fn amqplain_skips_fields_of_every_other_type() {
        let mut response = Vec::new();
        for (kind, size) in b"VtbBsuIifDlLdTSxAF".iter().zip([0, 1, 1, 1, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8, 3, 3, 3, 3]) {
            response.extend(field("other", *kind, &vec![0xff; size]));
        }
        response.extend(login("u", "p"));
        assert_eq!(amqplain(&response), Some(Credentials { user: "u", password: b"p" }));
    }

    #[test]
    fn amqplain_of_the_wrong_shape_is_refused() {
        assert_eq!(amqplain(b""), None);
        assert_eq!(amqplain(&field("LOGIN", b'S', b"u")), None);
        assert_eq!(amqplain(&[field("LOGIN", b'x', b"u"), field("PASSWORD", b'S', b"p")].concat()), None);
        assert_eq!(amqplain(&[field("x", b'?', b""), login("u", "p")].concat()), None);
        assert_eq!(amqplain(&[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn every_cut_of_a_valid_amqplain_response_is_refused() {
        let whole = login("guest", "guest");
        for end in 0..whole.len() {
            assert_eq!(amqplain(&whole[..end]), None, "{end}");
        }
    }

    #[test]
    fn first_of_two_logins_counts() {
        let response = [login("first", "p"), field("LOGIN", b'S', b"second")].concat();
        assert_eq!(amqplain(&response).map(|c| c.user), Some("first"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic_and_only_what_is_there(bytes: Vec<u8>) {
            for credentials in [plain(&bytes), amqplain(&bytes)].into_iter().flatten() {
                assert!(credentials.user.len() + credentials.password.len() < bytes.len());
            }
        }

        #[test]
        fn what_was_encoded_is_found(user: String, password: String) {
            let expected = Some(Credentials { user: &user, password: password.as_bytes() });
            assert_eq!(amqplain(&login(&user, &password)), expected);
        }
    }
}
