//! Field tables of any shape survive the way through the codec, and bytes of any kind never break it.

use amqp::methods::parse_class;
use amqp::table::{check_entries, encode_table};
use amqp::{ArrayWriter, ContentHeader, Method, Properties, PropertiesBuilder, RawTable, RawValue, TableWriter};
use bytes::BytesMut;
use proptest::prelude::*;

/// A value that owns its parts, so that proptest can make it.
#[derive(Clone, Debug)]
enum Value {
    Bool(bool),
    Signed(u8, i64),
    Unsigned(u8, u64),
    Float(f32),
    Double(f64),
    Decimal(u8, u32),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    Timestamp(u64),
    Void,
    Array(Vec<Value>),
    Table(Vec<(String, Value)>),
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        (0..4_u8, any::<i64>()).prop_map(|(width, value)| Value::Signed(width, value)),
        (0..4_u8, any::<u64>()).prop_map(|(width, value)| Value::Unsigned(width, value)),
        (-1e9_f32..1e9).prop_map(Value::Float),
        (-1e9_f64..1e9).prop_map(Value::Double),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Value::Decimal(scale, value)),
        bytes().prop_map(Value::Text),
        bytes().prop_map(Value::Bytes),
        any::<u64>().prop_map(Value::Timestamp),
        Just(Value::Void),
    ];
    leaf.prop_recursive(6, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            proptest::collection::vec((".{0,8}", inner), 0..5).prop_map(Value::Table),
        ]
    })
}

fn entries() -> impl Strategy<Value = Vec<(String, Value)>> {
    proptest::collection::vec((".{0,20}", value()), 0..8)
}

fn write_table(entries: &[(String, Value)]) -> Vec<u8> {
    let mut table = TableWriter::new();
    for (name, value) in entries {
        with_raw(value, &mut |raw| table.put(name, raw));
    }
    table.finish()
}

fn with_raw(value: &Value, then: &mut dyn FnMut(RawValue<'_>)) {
    match value {
        Value::Bool(value) => then(RawValue::Bool(*value)),
        Value::Signed(0, value) => then(RawValue::I8(*value as i8)),
        Value::Signed(1, value) => then(RawValue::I16(*value as i16)),
        Value::Signed(2, value) => then(RawValue::I32(*value as i32)),
        Value::Signed(_, value) => then(RawValue::I64(*value)),
        Value::Unsigned(0, value) => then(RawValue::U8(*value as u8)),
        Value::Unsigned(1, value) => then(RawValue::U16(*value as u16)),
        Value::Unsigned(2, value) => then(RawValue::U32(*value as u32)),
        Value::Unsigned(_, value) => then(RawValue::U64(*value)),
        Value::Float(value) => then(RawValue::F32(*value)),
        Value::Double(value) => then(RawValue::F64(*value)),
        Value::Decimal(scale, value) => then(RawValue::Decimal { scale: *scale, value: *value }),
        Value::Text(text) => then(RawValue::LongStr(text)),
        Value::Bytes(bytes) => then(RawValue::Bytes(bytes)),
        Value::Timestamp(seconds) => then(RawValue::Timestamp(*seconds)),
        Value::Void => then(RawValue::Void),
        Value::Table(entries) => then(RawValue::Table(RawTable::new(&write_table(entries)))),
        Value::Array(values) => {
            let mut array = ArrayWriter::new();
            for value in values {
                with_raw(value, &mut |raw| array.put(raw));
            }
            then(RawValue::Array(array.array()));
        }
    }
}

/// Reads the table to its depth and writes it again.
fn rewrite(table: RawTable<'_>) -> Vec<u8> {
    let mut again = TableWriter::new();
    for (name, value) in table {
        let name = std::str::from_utf8(name).expect("names were made of text");
        match value {
            RawValue::Table(inner) => again.put(name, RawValue::Table(RawTable::new(&rewrite(inner)))),
            value => again.put(name, value),
        }
    }
    again.finish()
}

proptest! {
    #[test]
    fn table_is_read_and_written_byte_for_byte(entries in entries()) {
        let wire = write_table(&entries);
        prop_assert_eq!(check_entries(&wire), Ok(()));
        let table = RawTable::new(&wire);
        prop_assert_eq!(table.iter().count(), entries.len());
        for ((name, value), (read_name, read)) in entries.iter().zip(table) {
            prop_assert_eq!(name.as_bytes(), read_name);
            with_raw(value, &mut |raw| assert_eq!(raw, read));
        }
        prop_assert_eq!(rewrite(table), wire);
    }

    #[test]
    fn map_of_a_table_is_what_a_method_with_the_table_carries(entries in entries()) {
        let wire = write_table(&entries);
        let mut declare = b"\0\x32\0\x0a\0\0\x01q\0".to_vec();
        declare.extend_from_slice(&(wire.len() as u32).to_be_bytes());
        declare.extend_from_slice(&wire);
        let Ok(Method::Other(_, class)) = Method::decode(&declare) else { panic!("cannot be decoded") };
        let map = RawTable::new(&wire).to_table();
        prop_assert!(format!("{class:?}").contains(&format!("{map:?}")), "{class:?} has not {map:?}");
        // And our encoder writes what the parser reads back.
        let mut encoded = BytesMut::new();
        encode_table(&map, &mut encoded);
        let again = [b"\0\x32\0\x0a\0\0\x01q\0".as_slice(), &encoded].concat();
        prop_assert_eq!(parse_class(again.as_slice()).unwrap().1, class);
    }

    #[test]
    fn properties_with_any_headers_are_rebuilt_byte_for_byte(
        entries in entries(),
        mode in any::<u8>(),
        id in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        let raw = PropertiesBuilder::new()
            .set_message_id(&id)
            .set_headers_raw(&write_table(&entries))
            .set_delivery_mode(mode)
            .build();
        let properties = Properties::from_raw_checked(&raw).unwrap();
        prop_assert_eq!(properties.delivery_mode(), Some(mode));
        prop_assert_eq!(properties.message_id(), Some(id.as_slice()));
        let mut without = TableWriter::new();
        without.copy_without(properties.headers().unwrap(), &["no such header"]);
        let rebuilt = PropertiesBuilder::from(properties).set_headers_raw(&without.finish()).build();
        prop_assert_eq!(&rebuilt, &raw);
        prop_assert_eq!(PropertiesBuilder::from(properties).build(), raw);
    }

    #[test]
    fn damaged_byte_is_refused_or_read_to_the_end(
        entries in entries(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut raw = PropertiesBuilder::new().set_headers_raw(&write_table(&entries)).set_app_id(b"app").build();
        let at = at.index(raw.len());
        raw[at] = byte;
        let payload = [b"\0\x3c\0\0\0\0\0\0\0\0\0\0".as_slice(), &raw].concat();
        if let Ok(header) = ContentHeader::decode(&payload) {
            // What passed the check is whole: its entries are all there and a rebuild loses nothing.
            prop_assert_eq!(PropertiesBuilder::from(header.properties).build(), raw);
            if let Some(headers) = header.properties.headers() {
                let mut copy = TableWriter::new();
                copy.copy_without(headers, &[]);
                prop_assert_eq!(copy.finish(), headers.entries());
            }
        }
    }

    #[test]
    fn noise_is_answered_with_an_error_or_a_method(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Method::decode(&payload);
        let _ = ContentHeader::decode(&payload);
        let _ = RawTable::new(&payload).to_table();
    }
}

#[test]
fn table_of_32_levels_round_trips() {
    let mut value = Value::Text(b"deep".to_vec());
    for level in 0..31 {
        value = if level % 2 == 0 {
            Value::Table(vec![("k".to_owned(), value)])
        } else {
            Value::Array(vec![value, Value::Void])
        };
    }
    let wire = write_table(&[("top".to_owned(), value)]);
    let raw = PropertiesBuilder::new().set_headers_raw(&wire).build();
    let properties = Properties::from_raw_checked(&raw).expect("32 levels are fine");
    assert_eq!(properties.headers().map(|headers| headers.entries()), Some(wire.as_slice()));
    assert!(format!("{:?}", properties.headers().unwrap().to_table()).contains("LongString"));
}
