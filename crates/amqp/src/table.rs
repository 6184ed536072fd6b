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
