//! Values of field tables: RabbitMQ's names for their types, their text in replies, and an encoding by which tables are
//! compared and hashed by content.
//!
//! The recursion follows the nesting of the value, which the decoder of tables bounds.

use std::fmt::Write as _;

use amqp::{AMQPValue, FieldTable};

/// RabbitMQ's name for the type of a value.
pub fn type_name(value: &AMQPValue) -> &'static str {
    match value {
        AMQPValue::Boolean(_) => "bool",
        AMQPValue::ShortShortInt(_) => "byte",
        AMQPValue::ShortShortUInt(_) => "unsignedbyte",
        AMQPValue::ShortInt(_) => "short",
        AMQPValue::ShortUInt(_) => "unsignedshort",
        AMQPValue::LongInt(_) => "signedint",
        AMQPValue::LongUInt(_) => "unsignedint",
        AMQPValue::LongLongInt(_) => "long",
        AMQPValue::Float(_) => "float",
        AMQPValue::Double(_) => "double",
        AMQPValue::DecimalValue(_) => "decimal",
        AMQPValue::ShortString(_) | AMQPValue::LongString(_) => "longstr",
        AMQPValue::FieldArray(_) => "array",
        AMQPValue::Timestamp(_) => "timestamp",
        AMQPValue::FieldTable(_) => "table",
        AMQPValue::ByteArray(_) => "binary",
        AMQPValue::Void => "void",
    }
}

/// The value of an integer of any width. Timestamps are not integers.
pub(super) fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(v) => i64::from(*v),
        AMQPValue::ShortShortUInt(v) => i64::from(*v),
        AMQPValue::ShortInt(v) => i64::from(*v),
        AMQPValue::ShortUInt(v) => i64::from(*v),
        AMQPValue::LongInt(v) => i64::from(*v),
        AMQPValue::LongUInt(v) => i64::from(*v),
        AMQPValue::LongLongInt(v) => *v,
        _ => return None,
    })
}

/// The value of a floating-point number of either width.
pub(super) fn float(value: &AMQPValue) -> Option<f64> {
    match value {
        AMQPValue::Float(v) => Some(f64::from(*v)),
        AMQPValue::Double(v) => Some(*v),
        _ => None,
    }
}

/// The bytes of a string.
pub(super) fn string(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::ShortString(v) => Some(v.as_str().as_bytes()),
        AMQPValue::LongString(v) => Some(v.as_bytes()),
        _ => None,
    }
}

/// The bytes of a string or of a byte array: the two are one kind of value to RabbitMQ.
pub(super) fn bytes(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::ByteArray(v) => Some(v.as_slice()),
        other => string(other),
    }
}

/// The value as it stands in a reply text: strings bare, everything else as RabbitMQ's own terms are written.
pub(super) fn text(value: &AMQPValue) -> String {
    match bytes(value) {
        Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        None => term(value),
    }
}

/// The value as a term: strings as `<<"text">>`, arrays and tables as lists of their typed items.
pub(super) fn term(value: &AMQPValue) -> String {
    let mut out = String::new();
    write_term(value, &mut out);
    out
}

fn write_term(value: &AMQPValue, out: &mut String) {
    if let Some(bytes) = bytes(value) {
        return write_binary(bytes, out);
    }
    if let Some(number) = integer(value) {
        let _ = write!(out, "{number}");
        return;
    }
    if let Some(number) = float(value) {
        return out.push_str(&float_text(number));
    }
    match value {
        AMQPValue::Boolean(v) => {
            let _ = write!(out, "{v}");
        }
        AMQPValue::Timestamp(v) => {
            let _ = write!(out, "{v}");
        }
        AMQPValue::DecimalValue(v) => {
            let _ = write!(out, "{{{},{}}}", v.scale, v.value);
        }
        AMQPValue::FieldArray(items) => {
            out.push('[');
            for (n, item) in items.as_slice().iter().enumerate() {
                let _ = write!(out, "{}{{{},", if n > 0 { "," } else { "" }, type_name(item));
                write_term(item, out);
                out.push('}');
            }
            out.push(']');
        }
        AMQPValue::FieldTable(table) => {
            out.push('[');
            for (n, (name, item)) in table.into_iter().enumerate() {
                out.push_str(if n > 0 { ",{" } else { "{" });
                write_binary(name.as_str().as_bytes(), out);
                let _ = write!(out, ",{},", type_name(item));
                write_term(item, out);
                out.push('}');
            }
            out.push(']');
        }
        _ => out.push_str("undefined"),
    }
}

/// `<<"text">>`, or the numbers of the bytes when they are not text.
fn write_binary(bytes: &[u8], out: &mut String) {
    let printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r');
    if bytes.is_empty() {
        out.push_str("<<>>");
    } else if bytes.iter().all(printable) {
        out.push_str("<<");
        out.push_str(&quoted(&String::from_utf8_lossy(bytes)));
        out.push_str(">>");
    } else {
        let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
        let _ = write!(out, "<<{}>>", numbers.join(","));
    }
}

/// The text in double quotes, as RabbitMQ writes the reason of a refusal.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// The shortest digits that name the number; with an exponent where that is shorter.
fn float_text(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string();
    }
    let with_fraction = |digits: &str| if digits.contains('.') { digits.to_owned() } else { format!("{digits}.0") };
    let plain = with_fraction(&number.to_string());
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let scientific = format!("{}e{exponent}", with_fraction(mantissa));
    if plain.len() <= scientific.len() { plain } else { scientific }
}

/// An encoding of the table that is equal for tables with equal names, types and values, whatever order they came in.
/// Empty for the empty table.
pub(super) fn content_key(table: &FieldTable) -> Box<[u8]> {
    let mut out = Vec::new();
    encode_table(table, &mut out);
    out.into_boxed_slice()
}

fn encode_table(table: &FieldTable, out: &mut Vec<u8>) {
    for (name, value) in table {
        encode_bytes(name.as_str().as_bytes(), out);
        encode_value(value, out);
    }
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn encode_value(value: &AMQPValue, out: &mut Vec<u8>) {
    out.push(value.get_type().get_id() as u8);
    match value {
        AMQPValue::Boolean(v) => out.push(u8::from(*v)),
        AMQPValue::DecimalValue(v) => {
            out.push(v.scale);
            out.extend_from_slice(&v.value.to_be_bytes());
        }
        AMQPValue::Timestamp(v) => out.extend_from_slice(&v.to_be_bytes()),
        AMQPValue::FieldArray(items) => {
            out.extend_from_slice(&(items.as_slice().len() as u64).to_be_bytes());
            items.as_slice().iter().for_each(|item| encode_value(item, out));
        }
        AMQPValue::FieldTable(table) => {
            out.extend_from_slice(&(table.inner().len() as u64).to_be_bytes());
            encode_table(table, out);
        }
        AMQPValue::Void => {}
        other => {
            if let Some(number) = integer(other) {
                out.extend_from_slice(&number.to_be_bytes());
            } else if let Some(number) = float(other) {
                out.extend_from_slice(&number.to_bits().to_be_bytes());
            } else if let Some(string) = bytes(other) {
                encode_bytes(string, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::FieldArray;

    #[test]
    fn floats_are_written_as_in_replies_of_rabbitmq() {
        for (number, text) in [
            (0.0, "0.0"),
            (1.5, "1.5"),
            (5.0, "5.0"),
            (-2.25, "-2.25"),
            (100.0, "100.0"),
            (1000.0, "1.0e3"),
            (1234.0, "1234.0"),
            (0.0001, "0.0001"),
            (0.00012, "1.2e-4"),
            (12_345_678.0, "12345678.0"),
            (1.0e20, "1.0e20"),
            (1.5e-7, "1.5e-7"),
        ] {
            assert_eq!(float_text(number), text);
        }
    }

    #[test]
    fn nested_values_are_written_as_typed_terms() {
        let mut table = FieldTable::default();
        table.insert("k".into(), AMQPValue::LongString("a\"b".into()));
        table.insert("n".into(), AMQPValue::ByteArray(vec![0, 255].into()));
        let items = vec![AMQPValue::LongInt(1), AMQPValue::FieldTable(table), AMQPValue::Void];
        let array = AMQPValue::FieldArray(FieldArray::from(items));
        assert_eq!(
            text(&array),
            r#"[{signedint,1},{table,[{<<"k">>,longstr,<<"a\"b">>},{<<"n">>,binary,<<0,255>>}]},{void,undefined}]"#
        );
    }

    #[test]
    fn content_keys_tell_types_and_nesting_apart() {
        let table = |value: AMQPValue| {
            let mut table = FieldTable::default();
            table.insert("a".into(), value);
            content_key(&table)
        };
        assert!(content_key(&FieldTable::default()).is_empty());
        assert_eq!(table(AMQPValue::LongInt(1)), table(AMQPValue::LongInt(1)));
        let values = [
            AMQPValue::LongInt(1),
            AMQPValue::LongLongInt(1),
            AMQPValue::Boolean(true),
            AMQPValue::LongString("1".into()),
            AMQPValue::ByteArray(b"1".to_vec().into()),
            AMQPValue::Void,
            AMQPValue::FieldArray(vec![AMQPValue::Void].into()),
            AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::Void].into()),
            AMQPValue::FieldTable(FieldTable::default()),
        ];
        for (n, one) in values.iter().enumerate() {
            for other in &values[n + 1..] {
                assert_ne!(table(one.clone()), table(other.clone()), "{one:?} and {other:?}");
            }
        }
    }
}
