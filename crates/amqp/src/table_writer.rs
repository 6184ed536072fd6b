//! Writes field tables entry by entry, in the order in which they are to appear, and edits those of messages: entries
//! that nobody asked to change are copied byte for byte.

use amq_protocol::types::AMQPValue;

use crate::raw_table::{RawArray, RawTable, RawValue};
use crate::table::{put_long, put_short_string, put_value};

/// The entries of a table under construction, without the length in front.
#[derive(Clone, Debug, Default)]
pub struct TableWriter {
    out: Vec<u8>,
}

impl TableWriter {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends all entries of a table.
    pub fn copy(&mut self, table: RawTable<'_>) {
        self.out.extend_from_slice(table.entries());
    }

    /// Appends the entries of a table whose names are not in `without`.
    pub fn copy_without(&mut self, table: RawTable<'_>, without: &[&str]) {
        let mut entries = table.iter();
        loop {
            let before = entries.rest();
            let Some((name, _)) = entries.next() else { return };
            if !without.iter().any(|left_out| left_out.as_bytes() == name) {
                self.out.extend_from_slice(&before[..before.len() - entries.rest().len()]);
            }
        }
    }

    /// Appends an entry. Names are cut to 255 bytes.
    pub fn put(&mut self, name: &str, value: RawValue<'_>) {
        put_short_string(&mut self.out, name.as_bytes());
        put_raw_value(&mut self.out, value);
    }

    /// Appends an entry. Names are cut to 255 bytes.
    pub fn put_value(&mut self, name: &str, value: &AMQPValue) {
        put_short_string(&mut self.out, name.as_bytes());
        put_value(&mut self.out, value);
    }

    /// Appends an entry with a table, written by `write`.
    pub fn put_table(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        put_short_string(&mut self.out, name.as_bytes());
        let mut table = Self::new();
        write(&mut table);
        put_long(&mut self.out, b'F', &table.out);
    }

    /// Appends an entry with an array, written by `write`.
    pub fn put_array(&mut self, name: &str, write: impl FnOnce(&mut ArrayWriter)) {
        put_short_string(&mut self.out, name.as_bytes());
        let mut array = ArrayWriter::new();
        write(&mut array);
        put_long(&mut self.out, b'A', &array.out);
    }

    /// What has been written so far.
    #[must_use]
    pub fn table(&self) -> RawTable<'_> {
        RawTable::new(&self.out)
    }

    /// The entries, without the length in front.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// The items of an array under construction.
#[derive(Clone, Debug, Default)]
pub struct ArrayWriter {
    out: Vec<u8>,
}

impl ArrayWriter {
    /// An empty array.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends all items of an array.
    pub fn copy(&mut self, array: RawArray<'_>) {
        self.out.extend_from_slice(array.items());
    }

    /// Appends an item.
    pub fn put(&mut self, value: RawValue<'_>) {
        put_raw_value(&mut self.out, value);
    }

    /// Appends a table, written by `write`.
    pub fn put_table(&mut self, write: impl FnOnce(&mut TableWriter)) {
        let mut table = TableWriter::new();
        write(&mut table);
        put_long(&mut self.out, b'F', &table.out);
    }

    /// What has been written so far.
    #[must_use]
    pub fn array(&self) -> RawArray<'_> {
        RawArray::new(&self.out)
    }

    /// The items, without the length in front.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Appends the letter and the value, the same bytes that it was read from.
fn put_raw_value(out: &mut Vec<u8>, value: RawValue<'_>) {
    match value {
        RawValue::LongStr(text) => put_long(out, b'S', text),
        RawValue::Bytes(bytes) => put_long(out, b'x', bytes),
        RawValue::Table(table) => put_long(out, b'F', table.entries()),
        RawValue::Array(array) => put_long(out, b'A', array.items()),
        // The one type that amq-protocol has no value for.
        RawValue::U64(value) => {
            out.push(b'L');
            out.extend_from_slice(&value.to_be_bytes());
        }
        fixed => put_value(out, &fixed.to_value()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::check_entries;

    #[test]
    fn entries_left_in_place_stay_byte_identical_and_in_order() {
        let mut original = TableWriter::new();
        original.put("z", RawValue::I16(-1));
        original.put("BCC", RawValue::LongStr(b"secret"));
        original.put("a", RawValue::U64(u64::MAX));
        original.put("z", RawValue::Void);
        let mut edited = TableWriter::new();
        edited.copy_without(original.table(), &["BCC", "absent"]);
        edited.put("last", RawValue::Bool(true));
        assert_eq!(edited.finish(), b"\x01zs\xff\xff\x01aL\xff\xff\xff\xff\xff\xff\xff\xff\x01zV\x04lastt\x01");
    }

    #[test]
    fn nested_tables_and_arrays_keep_the_order_in_which_they_were_written() {
        let mut headers = TableWriter::new();
        headers.put_array("x-death", |deaths| {
            deaths.put_table(|death| {
                death.put("count", RawValue::I64(1));
                death.put_array("routing-keys", |keys| keys.put(RawValue::LongStr(b"k")));
            });
        });
        headers.put_table("t", |table| table.put("b", RawValue::U8(7)));
        let entries = headers.finish();
        assert_eq!(check_entries(&entries), Ok(()));
        let table = RawTable::new(&entries);
        let Some(RawValue::Array(deaths)) = table.get("x-death") else { panic!("no array in {table:?}") };
        let Some(RawValue::Table(death)) = deaths.iter().next() else { panic!("no table in {deaths:?}") };
        let names: Vec<_> = death.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [b"count".as_slice(), b"routing-keys"]);
        let Some(RawValue::Table(inner)) = table.get("t") else { panic!("no table in {table:?}") };
        assert_eq!(inner.get("b"), Some(RawValue::U8(7)));
    }
}
