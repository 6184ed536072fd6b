//! The arguments of every method, as one letter each, and the check of arguments against them.
//!
//! Told apart are what RabbitMQ answers differently: an unknown method, arguments that are cut short or too long, a
//! short string that is not UTF-8, and a table that cannot be parsed.

use crate::method::{DecodeError, cannot_decode, malformed_utf8};
use crate::reply::{Exception, MethodId, ReplyCode};
use crate::table::{self, MAX_TABLE_DEPTH, TableError};

/// Argument types by letter: `b` bit, `h` u16, `l` u32, `L` u64, `s` short string, `S` long string, `F` table.
/// Bits that follow each other share an octet. `None`: there is no such method.
fn layout(id: MethodId) -> Option<&'static [u8]> {
    Some(match (id.class, id.method) {
        (10, 10) => b"ooFSS",
        (10, 11) => b"FsSs",
        (10, 20 | 21) => b"S",
        (10, 30 | 31) => b"hlh",
        (10, 40) => b"ssb",
        (10, 41) => b"s",
        (10, 50) => b"hshh",
        (10, 51) => b"",
        (10, 60) => b"s",
        (10, 61) => b"",
        (10, 70) => b"Ss",
        (10, 71) => b"",

        (20, 10) => b"s",
        (20, 11) => b"S",
        (20, 20 | 21) => b"b",
        (20, 40) => b"hshh",
        (20, 41) => b"",

        (30, 10) => b"sbbbbb",
        (30, 11) => b"h",

        (40, 10) => b"hssbbbbbF",
        (40, 20) => b"hsbb",
        (40, 30 | 40) => b"hsssbF",
        (40, 11 | 21 | 31 | 51) => b"",

        (50, 10) => b"hsbbbbbF",
        (50, 11) => b"sll",
        (50, 20) => b"hsssbF",
        (50, 30) => b"hsb",
        (50, 40) => b"hsbbb",
        (50, 31 | 41) => b"l",
        (50, 50) => b"hsssF",
        (50, 21 | 51) => b"",

        (60, 10) => b"lhb",
        (60, 20) => b"hssbbbbF",
        (60, 30) => b"sb",
        (60, 21 | 31) => b"s",
        (60, 40) => b"hssbb",
        (60, 50) => b"hsss",
        (60, 60) => b"sLbss",
        (60, 70) => b"hsb",
        (60, 71) => b"Lbssl",
        (60, 72) => b"s",
        (60, 80 | 90) => b"Lb",
        (60, 100 | 110) => b"b",
        (60, 120) => b"Lbb",
        (60, 11 | 111) => b"",

        (85, 10) => b"b",
        (85, 11) => b"",

        (90, 10 | 11 | 20 | 21 | 30 | 31) => b"",
        _ => return None,
    })
}

/// Checks the arguments of a method.
pub(crate) fn check(id: MethodId, arguments: &[u8]) -> Result<(), DecodeError> {
    let Some(layout) = layout(id) else {
        return Err(DecodeError::Drop { method: id, reason: "unknown class or method".to_owned() });
    };
    // Too short or too long goes before all else, wherever it is seen: RabbitMQ matches the whole list first.
    let mut first_error = None;
    let mut rest = arguments;
    let mut bits_left = 0;
    for letter in layout {
        if *letter == b'b' {
            if bits_left == 0 {
                take(&mut rest, 1).ok_or_else(|| cannot_decode(id, arguments))?;
                bits_left = 8;
            }
            bits_left -= 1;
            continue;
        }
        bits_left = 0;
        let field = take_field(&mut rest, *letter).ok_or_else(|| cannot_decode(id, arguments))?;
        if first_error.is_some() {
            continue;
        }
        first_error = match *letter {
            b's' if std::str::from_utf8(field).is_err() => Some(malformed_utf8().into()),
            b'F' => table::check_entries(field).err().map(|error| table_error(id, error)),
            _ => None,
        };
    }
    if !rest.is_empty() {
        return Err(cannot_decode(id, arguments).into());
    }
    first_error.map_or(Ok(()), Err)
}

/// The value at the front, without its length.
fn take_field<'a>(rest: &mut &'a [u8], letter: u8) -> Option<&'a [u8]> {
    let length = match letter {
        b'o' => 1,
        b'h' => 2,
        b'l' => 4,
        b'L' => 8,
        b's' => usize::from(*take(rest, 1)?.first()?),
        // b'S' and b'F'
        _ => u32::from_be_bytes(*take(rest, 4)?.first_chunk::<4>()?) as usize,
    };
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn table_error(method: MethodId, error: TableError) -> DecodeError {
    match refused_table(method, error) {
        Some(exception) => DecodeError::Exception(exception),
        None => DecodeError::Drop { method, reason: "a field table that cannot be parsed".to_owned() },
    }
}

/// 502 for tables that no honest client sends. `None` for tables that are merely malformed: there RabbitMQ's answer
/// depends on where the table is.
pub(crate) fn refused_table(method: MethodId, error: TableError) -> Option<Exception> {
    let text = match error {
        TableError::TooDeep => format!("field table nested deeper than {MAX_TABLE_DEPTH} levels"),
        TableError::ImpossibleLength => "length of a field larger than any frame".to_owned(),
        TableError::Malformed => return None,
    };
    Some(Exception::new(ReplyCode::SyntaxError, text, method))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::{FRAME_HEADER_BYTES, Method, encode};

    /// Every method with arguments that fill each of its fields, in wire form.
    fn every_method() -> Vec<(MethodId, Vec<u8>)> {
        let ids = (0..256).flat_map(|class| (0..256).map(move |method| MethodId::new(class, method)));
        ids.filter_map(|id| layout(id).map(|layout| (id, sample(layout)))).collect()
    }

    fn sample(layout: &[u8]) -> Vec<u8> {
        let mut arguments = Vec::new();
        let mut bits_left = 0;
        for letter in layout {
            if *letter != b'b' {
                bits_left = 0;
            }
            match letter {
                b'b' if bits_left > 0 => bits_left -= 1,
                b'b' => {
                    arguments.push(1);
                    bits_left = 7;
                }
                b'o' => arguments.push(9),
                b'h' => arguments.extend_from_slice(&[0, 0]),
                b'l' => arguments.extend_from_slice(&[0, 0, 1, 0]),
                b'L' => arguments.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7]),
                b's' => arguments.extend_from_slice(b"\x02nm"),
                b'S' => arguments.extend_from_slice(b"\0\0\0\x03abc"),
                b'F' => arguments.extend_from_slice(b"\0\0\0\x04\x01kt\x01"),
                other => panic!("unknown letter {other}"),
            }
        }
        arguments
    }

    fn payload(id: MethodId, arguments: &[u8]) -> Vec<u8> {
        [&id.class.to_be_bytes(), &id.method.to_be_bytes(), arguments].concat()
    }

    #[test]
    fn every_method_of_the_specification_is_decoded_and_encoded_alike() {
        let methods = every_method();
        assert_eq!(methods.len(), 66);
        for (id, arguments) in methods {
            let payload = payload(id, &arguments);
            let method = Method::decode(&payload).unwrap_or_else(|error| panic!("{id:?}: {error:?}"));
            assert_eq!(method.id(), id);
            let Method::Other(_, class) = method else { continue };
            assert_eq!(class.get_amqp_class_id(), id.class);
            let mut out = BytesMut::new();
            encode::method(&mut out, 3, &class);
            // Not byte for byte: reserved fields are written empty.
            let again = Method::decode(&out[FRAME_HEADER_BYTES..out.len() - 1]);
            assert_eq!(again, Ok(Method::Other(id, class)));
        }
    }

    #[test]
    fn arguments_cut_anywhere_or_followed_by_a_byte_are_501_with_the_methods_id() {
        for (id, mut arguments) in every_method() {
            arguments.push(0);
            for length in (0..=arguments.len()).filter(|length| *length != arguments.len() - 1) {
                let payload = payload(id, &arguments[..length]);
                let Err(DecodeError::Exception(exception)) = Method::decode(&payload) else {
                    panic!("{id:?} with {length} bytes of arguments was not refused");
                };
                assert_eq!((exception.code, exception.method), (ReplyCode::FrameError, id));
                assert!(exception.text.starts_with("cannot decode <<"), "{}", exception.text);
            }
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_501_without_an_id() {
        for (id, arguments) in every_method() {
            let Some(at) = arguments.windows(3).position(|window| window == b"\x02nm") else { continue };
            let mut arguments = arguments;
            arguments[at + 1] = 0xFF;
            let Err(DecodeError::Exception(exception)) = Method::decode(&payload(id, &arguments)) else {
                panic!("{id:?} was not refused");
            };
            assert_eq!(exception.reply_text(), "FRAME_ERROR - Malformed UTF-8 in shortstr");
            assert_eq!(exception.method, MethodId::NONE);
        }
    }

    #[test]
    fn unknown_letter_in_any_methods_table_drops_the_connection() {
        for (id, mut arguments) in every_method() {
            let Some(at) = arguments.windows(4).position(|window| window == b"\x01kt\x01") else { continue };
            arguments[at + 2] = b'Q';
            let error = Method::decode(&payload(id, &arguments)).expect_err("should be refused");
            assert!(matches!(error, DecodeError::Drop { method, .. } if method == id));
        }
    }
}
