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
