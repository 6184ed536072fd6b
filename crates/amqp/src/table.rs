//! Field tables (AMQP 0-9-1 section 4.2.5.5, with RabbitMQ's type letters): the check that every table from a peer
//! passes before anything else looks at it, and the encoder for tables of ours.
//!
//! A table is a list of entries, each a short string, a type letter and a value; an array is the same without names.
//! Both are preceded by their length in bytes, which is not part of what is called *entries* here.
//!
//! ```text
//! t bool    b i8    B u8     s i16   u u16    I i32    i u32    l i64    L u64    f f32    d f64
//! D decimal (u8 scale, u32 value)    T timestamp (u64, s)       V nothing
//! S long string    x bytes    A array    F table               (each with a u32 length in front)
//! ```

use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};
use bytes::{BufMut, BytesMut};

/// How deep tables and arrays may be nested, the outermost included. No client needs more than a handful; what follows
/// the tables by recursion has a stack for this.
pub const MAX_TABLE_DEPTH: usize = 64;

/// A length above this, in bytes, is in no frame that we take: it is a lie, not a damaged list.
pub const MAX_FIELD_BYTES: u32 = 128 * 1024 * 1024;

/// Why a table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// Nested deeper than [`MAX_TABLE_DEPTH`].
    TooDeep,
    /// A length above [`MAX_FIELD_BYTES`].
    ImpossibleLength,
    /// An unknown type letter, or lengths that do not add up.
    Malformed,
}

/// Checks the entries of a table: nesting, type letters, and that all lengths add up exactly. Iterative, without
/// allocation, in one pass.
///
/// # Errors
///
/// Says what is wrong first.
pub fn check_entries(entries: &[u8]) -> Result<(), TableError> {
    // Where the open tables and arrays end, and a bit for each that is a table: its values have names.
    let mut ends = [0_usize; MAX_TABLE_DEPTH];
    let mut tables: u64 = 1;
    let mut level = 0_usize;
    let mut end = entries.len();
    let mut at = 0;
    loop {
        while at == end {
            let Some(outer) = level.checked_sub(1) else { return Ok(()) };
            level = outer;
            end = ends[level];
        }
        let scope = &entries[..end];
        if tables & (1 << level) != 0 {
            at += 1 + usize::from(scope[at]);
        }
        let letter = *scope.get(at).ok_or(TableError::Malformed)?;
        at += 1;
        let value_bytes = match letter {
            b't' | b'b' | b'B' => 1,
            b's' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'l' | b'L' | b'd' | b'T' => 8,
            b'D' => 5,
            b'V' => 0,
            b'S' | b'x' => 4 + field_length(scope, at)?,
            b'F' | b'A' => {
                let inner_end = at + 4 + field_length(scope, at)?;
                if inner_end > end {
                    return Err(TableError::Malformed);
                }
                if level + 1 == MAX_TABLE_DEPTH {
                    return Err(TableError::TooDeep);
                }
                ends[level] = end;
                level += 1;
                end = inner_end;
                let bit = 1 << level;
                tables = if letter == b'F' { tables | bit } else { tables & !bit };
                at += 4;
                continue;
            }
            _ => return Err(TableError::Malformed),
        };
        at += value_bytes;
        if at > end {
            return Err(TableError::Malformed);
        }
    }
}

/// The length that stands at `at`.
pub(crate) fn field_length(bytes: &[u8], at: usize) -> Result<usize, TableError> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(TableError::Malformed)?;
    let length = u32::from_be_bytes(*field);
    if length > MAX_FIELD_BYTES {
        return Err(TableError::ImpossibleLength);
    }
    Ok(length as usize)
}

/// Appends a table with its length, as a method argument or a `headers` property carries it.
pub fn encode_table(table: &FieldTable, out: &mut BytesMut) {
    let mut encoded = Vec::new();
    put_table(&mut encoded, table);
    out.put_slice(&encoded);
}

/// Appends a table with its length.
pub(crate) fn put_table(out: &mut Vec<u8>, table: &FieldTable) {
    with_length(out, |out| {
        for (name, value) in table {
            put_short_string(out, name.as_str().as_bytes());
            put_value(out, value);
        }
    });
}

/// Appends a type letter and the value.
pub(crate) fn put_value(out: &mut Vec<u8>, value: &AMQPValue) {
    match value {
        AMQPValue::Boolean(value) => put(out, b't', &[u8::from(*value)]),
        AMQPValue::ShortShortInt(value) => put(out, b'b', &value.to_be_bytes()),
        AMQPValue::ShortShortUInt(value) => put(out, b'B', &value.to_be_bytes()),
        AMQPValue::ShortInt(value) => put(out, b's', &value.to_be_bytes()),
        AMQPValue::ShortUInt(value) => put(out, b'u', &value.to_be_bytes()),
        AMQPValue::LongInt(value) => put(out, b'I', &value.to_be_bytes()),
        AMQPValue::LongUInt(value) => put(out, b'i', &value.to_be_bytes()),
        AMQPValue::LongLongInt(value) => put(out, b'l', &value.to_be_bytes()),
        AMQPValue::Float(value) => put(out, b'f', &value.to_be_bytes()),
        AMQPValue::Double(value) => put(out, b'd', &value.to_be_bytes()),
        AMQPValue::DecimalValue(decimal) => {
            put(out, b'D', &[decimal.scale]);
            out.extend_from_slice(&decimal.value.to_be_bytes());
        }
        // There is no letter for short strings: RabbitMQ's `s` is a number.
        AMQPValue::ShortString(value) => put_long(out, b'S', value.as_str().as_bytes()),
        AMQPValue::LongString(value) => put_long(out, b'S', value.as_bytes()),
        AMQPValue::ByteArray(value) => put_long(out, b'x', value.as_slice()),
        AMQPValue::Timestamp(value) => put(out, b'T', &value.to_be_bytes()),
        AMQPValue::Void => out.push(b'V'),
        AMQPValue::FieldTable(table) => {
            out.push(b'F');
            put_table(out, table);
        }
        AMQPValue::FieldArray(array) => {
            out.push(b'A');
            put_array(out, array);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &FieldArray) {
    with_length(out, |out| {
        for value in array.as_slice() {
            put_value(out, value);
        }
    });
}

fn put(out: &mut Vec<u8>, letter: u8, value: &[u8]) {
    out.push(letter);
    out.extend_from_slice(value);
}

/// Appends a value of a type whose length stands in front.
pub(crate) fn put_long(out: &mut Vec<u8>, letter: u8, value: &[u8]) {
    out.push(letter);
    with_length(out, |out| out.extend_from_slice(value));
}

/// Appends what `write` appends, with its length in front.
pub(crate) fn with_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    // What we write ourselves is bounded by what was read: frames, all far below 4 GiB.
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a short string, cut to the 255 bytes that one can hold.
pub(crate) fn put_short_string(out: &mut Vec<u8>, value: &[u8]) {
    let value = &value[..value.len().min(255)];
    out.push(value.len() as u8);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawTable;

    /// A table with tables or arrays nested in it, `depth` levels in all.
    fn nested(letter: u8, depth: usize) -> Vec<u8> {
        // From the inside out; a Vec is filled from its end, so that 20,000 levels are not copied 20,000 times.
        let mut reversed = Vec::new();
        for level in 1..depth {
            reversed.extend((reversed.len() as u32).to_be_bytes().iter().rev());
            reversed.push(letter);
            if letter == b'F' || level == depth - 1 {
                reversed.push(0);
            }
        }
        reversed.reverse();
        reversed
    }

    #[test]
    fn nesting_is_allowed_to_the_limit_and_refused_above() {
        for letter in [b'F', b'A'] {
            assert_eq!(check_entries(&nested(letter, MAX_TABLE_DEPTH)), Ok(()));
            assert_eq!(check_entries(&nested(letter, MAX_TABLE_DEPTH + 1)), Err(TableError::TooDeep));
        }
    }

    #[test]
    fn bomb_of_20_000_levels_is_refused() {
        for letter in [b'F', b'A'] {
            let bomb = nested(letter, 20_000);
            assert_eq!(check_entries(&bomb), Err(TableError::TooDeep));
            // And what reads tables without a check comes back too.
            let table = RawTable::new(&bomb).to_table();
            assert_eq!(table.inner().len(), 1);
        }
    }

    #[test]
    fn siblings_do_not_add_to_the_depth() {
        let mut entries = Vec::new();
        for _ in 0..1000 {
            entries.extend_from_slice(b"\x01aF\0\0\0\x07\x01bA\0\0\0\0");
        }
        assert_eq!(check_entries(&entries), Ok(()));
    }

    #[test]
    fn names_are_read_in_tables_and_not_in_arrays_also_after_a_nested_value() {
        // { "a": [ {"k": void}, void, [] , true ], "b": void }
        let entries = b"\x01aA\0\0\0\x10F\0\0\0\x03\x01kVVA\0\0\0\0t\x01\x01bV";
        assert_eq!(check_entries(entries), Ok(()));
        let names: Vec<_> = RawTable::new(entries).iter().map(|(name, _)| name).collect();
        assert_eq!(names, [b"a", b"b"]);
    }

    #[test]
    fn unknown_letters_are_malformed() {
        let known = b"tbBsuIilLfdDSxATFV";
        for letter in 0..=255 {
            let entries = [1, b'a', letter, 0, 0, 0, 0, 0, 0, 0, 0];
            let fits = (0..=8).any(|bytes| check_entries(&entries[..3 + bytes]).is_ok());
            assert_eq!(fits, known.contains(&letter), "letter {:?}", char::from(letter));
        }
    }

    #[test]
    fn lengths_must_add_up_exactly() {
        let entries = b"\x01aF\0\0\0\x08\x01bS\0\0\0\x01x\x01cV";
        assert_eq!(check_entries(entries), Ok(()));
        for length in (0..entries.len()).filter(|length| ![0, 15].contains(length)) {
            assert_eq!(check_entries(&entries[..length]), Err(TableError::Malformed), "{length} bytes");
        }
        for wrong in [1, 7, 9, 100] {
            let mut lying = *entries;
            lying[6] = wrong;
            assert_eq!(check_entries(&lying), Err(TableError::Malformed), "length {wrong}");
        }
        // A value may not reach over the end of its own table, even if there are bytes behind it.
        assert_eq!(check_entries(b"\x01aF\0\0\0\x07\x01bS\0\0\0\x01x"), Err(TableError::Malformed));
    }

    #[test]
    fn lengths_that_no_frame_holds_are_told_apart() {
        for letter in b"SxAF" {
            for length in [0xFFFF_FFFF_u32, 0x7FFF_FFFF, MAX_FIELD_BYTES + 1] {
                let mut entries = vec![1, b'a', *letter];
                entries.extend_from_slice(&length.to_be_bytes());
                assert_eq!(check_entries(&entries), Err(TableError::ImpossibleLength));
            }
        }
    }

    #[test]
    fn value_that_lacks_its_end_is_malformed_before_its_length_is_believed() {
        assert_eq!(check_entries(b"\x01aS\0\0\x10\0xyz"), Err(TableError::Malformed));
        assert_eq!(check_entries(b"\x01aZ"), Err(TableError::Malformed));
        assert_eq!(check_entries(b"\x05a"), Err(TableError::Malformed));
        assert_eq!(check_entries(b"\0"), Err(TableError::Malformed));
    }
}
