//! Any payload of a header frame: properties that pass the check are whole, down to the last nested value, and survive
//! being taken apart and put together. The same bytes without a check are read without harm.

#![no_main]

use amqp::{ArrayWriter, ContentHeader, Properties, PropertiesBuilder, RawTable, RawValue, TableWriter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    match ContentHeader::decode(payload) {
        Ok(header) => {
            ask_everything(header.properties);
            assert_eq!(PropertiesBuilder::from(header.properties).build(), header.properties.raw());
            if let Some(headers) = header.properties.headers() {
                let mut copy = TableWriter::new();
                copy.copy_without(headers, &[]);
                assert_eq!(copy.finish(), headers.entries());
                rewrite_table(headers);
            }
        }
        Err(exception) => {
            assert!(exception.whole_connection && exception.reply_text().len() <= 255);
            let unchecked = Properties::from_raw_trusted(payload);
            ask_everything(unchecked);
            let _ = PropertiesBuilder::from(unchecked).build();
        }
    }
});

fn ask_everything(properties: Properties<'_>) {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.message_type(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    assert!(texts.iter().flatten().all(|text| text.len() <= 255));
    let _ = (properties.delivery_mode(), properties.priority(), properties.timestamp());
    if let Some(headers) = properties.headers() {
        let _ = headers.to_table();
    }
}

/// Every value of the table, to its depth.
fn rewrite_table(table: RawTable<'_>) {
    table.iter().for_each(|(_, value)| rewrite_value(value));
}

/// A value is written as it was read.
fn rewrite_value(value: RawValue<'_>) {
    let mut writer = ArrayWriter::new();
    writer.put(value);
    let again = writer.array().iter().next().expect("a value was written");
    // Compared as text: a NaN is not equal to itself.
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
    match value {
        RawValue::Table(table) => rewrite_table(table),
        RawValue::Array(array) => array.iter().for_each(rewrite_value),
        _ => {}
    }
}
