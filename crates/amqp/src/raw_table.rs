//! Field tables read in place: names and values are borrowed from the message, and nothing is allocated until someone
//! asks for a [`FieldTable`].
//!
//! Headers exchanges, dead-lettering and the like look at a header or two of millions of messages. Order, duplicates
//! and type letters of a client's table are the client's business and must survive, so messages keep the bytes, and
//! tables are views of them.

use amq_protocol::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};

use crate::table::MAX_TABLE_DEPTH;

/// The entries of a table, in wire form without the length. Reading what was not checked is safe: at the first byte
/// that makes no sense the table ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RawTable<'a>(&'a [u8]);

/// The items of an array, in wire form without the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RawArray<'a>(&'a [u8]);

/// A value of a table or array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RawValue<'a> {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `L`
    U64(u64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`: text, usually UTF-8.
    LongStr(&'a [u8]),
    /// `x`: bytes.
    Bytes(&'a [u8]),
    /// `A`
    Array(RawArray<'a>),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `F`
    Table(RawTable<'a>),
    /// `V`: nothing.
    Void,
}

impl<'a> RawTable<'a> {
    /// The table with these entries.
    #[must_use]
    pub const fn new(entries: &'a [u8]) -> Self {
        Self(entries)
    }

    /// The entries in wire form, without the length in front.
    #[must_use]
    pub fn entries(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries in their order, duplicates included.
    #[must_use]
    pub fn iter(&self) -> RawEntries<'a> {
        RawEntries { rest: self.0 }
    }

    /// The first value with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<RawValue<'a>> {
        self.iter().find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| value)
    }

    /// A copy as a map: the last one of entries with equal names counts, names are made UTF-8, a `u64` (`L`) becomes the
    /// `i64` with the same bits, and what is nested deeper than [`MAX_TABLE_DEPTH`] is left out.
    #[must_use]
    pub fn to_table(&self) -> FieldTable {
        self.to_table_within(MAX_TABLE_DEPTH)
    }

    fn to_table_within(self, depth: usize) -> FieldTable {
        let mut table = FieldTable::default();
        let Some(depth) = depth.checked_sub(1) else { return table };
        for (key, value) in self.iter() {
            // A lossy conversion can make a name longer than a short string holds; nobody can ask for that one.
            if let Ok(name) = ShortString::try_new(String::from_utf8_lossy(key)) {
                table.insert(name, value.to_value_within(depth));
            }
        }
        table
    }
}

impl<'a> IntoIterator for RawTable<'a> {
    type Item = (&'a [u8], RawValue<'a>);
    type IntoIter = RawEntries<'a>;

    fn into_iter(self) -> RawEntries<'a> {
        self.iter()
    }
}

impl<'a> RawArray<'a> {
    /// The array with these items.
    #[must_use]
    pub const fn new(items: &'a [u8]) -> Self {
        Self(items)
    }

    /// The items in wire form, without the length in front.
    #[must_use]
    pub fn items(&self) -> &'a [u8] {
        self.0
    }

    /// The values in their order.
    #[must_use]
    pub fn iter(&self) -> RawItems<'a> {
        RawItems { rest: self.0 }
    }
}

impl<'a> IntoIterator for RawArray<'a> {
    type Item = RawValue<'a>;
    type IntoIter = RawItems<'a>;

    fn into_iter(self) -> RawItems<'a> {
        self.iter()
    }
}

impl<'a> RawValue<'a> {
    /// A copy as an [`AMQPValue`], with the losses that [`RawTable::to_table`] tells of.
    #[must_use]
    pub fn to_value(&self) -> AMQPValue {
        self.to_value_within(MAX_TABLE_DEPTH)
    }

    /// The text of a long string, if it is one and UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::LongStr(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The number of any integer type, if it fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::U8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I64(value) => Some(value),
            Self::U64(value) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    fn to_value_within(self, depth: usize) -> AMQPValue {
        match self {
            Self::Bool(value) => AMQPValue::Boolean(value),
            Self::I8(value) => AMQPValue::ShortShortInt(value),
            Self::U8(value) => AMQPValue::ShortShortUInt(value),
            Self::I16(value) => AMQPValue::ShortInt(value),
            Self::U16(value) => AMQPValue::ShortUInt(value),
            Self::I32(value) => AMQPValue::LongInt(value),
            Self::U32(value) => AMQPValue::LongUInt(value),
            Self::I64(value) => AMQPValue::LongLongInt(value),
            Self::U64(value) => AMQPValue::LongLongInt(value.cast_signed()),
            Self::F32(value) => AMQPValue::Float(value),
            Self::F64(value) => AMQPValue::Double(value),
            Self::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue { scale, value }),
            Self::LongStr(value) => AMQPValue::LongString(value.into()),
            Self::Bytes(value) => AMQPValue::ByteArray(value.into()),
            Self::Timestamp(value) => AMQPValue::Timestamp(value),
            Self::Void => AMQPValue::Void,
            Self::Table(table) => AMQPValue::FieldTable(table.to_table_within(depth)),
            Self::Array(array) => {
                let mut values = FieldArray::default();
                if let Some(depth) = depth.checked_sub(1) {
                    array.iter().for_each(|value| values.push(value.to_value_within(depth)));
                }
                AMQPValue::FieldArray(values)
            }
        }
    }
}

/// The entries of a [`RawTable`].
#[derive(Clone, Debug)]
pub struct RawEntries<'a> {
    rest: &'a [u8],
}

impl<'a> RawEntries<'a> {
    /// What has not been read yet, in wire form. The difference before and after [`Iterator::next`] is an entry.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = (&'a [u8], RawValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = take_entry(&mut self.rest);
        if entry.is_none() {
            self.rest = &[];
        }
        entry
    }
}

/// The items of a [`RawArray`].
#[derive(Clone, Debug)]
pub struct RawItems<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for RawItems<'a> {
    type Item = RawValue<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let value = take_value(&mut self.rest);
        if value.is_none() {
            self.rest = &[];
        }
        value
    }
}

fn take_entry<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], RawValue<'a>)> {
    let [key_bytes] = take_array(rest)?;
    let key = take(rest, usize::from(key_bytes))?;
    Some((key, take_value(rest)?))
}

fn take_value<'a>(rest: &mut &'a [u8]) -> Option<RawValue<'a>> {
    let [letter] = take_array(rest)?;
    Some(match letter {
        b't' => RawValue::Bool(take_array::<1>(rest)? != [0]),
        b'b' => RawValue::I8(i8::from_be_bytes(take_array(rest)?)),
        b'B' => RawValue::U8(u8::from_be_bytes(take_array(rest)?)),
        b's' => RawValue::I16(i16::from_be_bytes(take_array(rest)?)),
        b'u' => RawValue::U16(u16::from_be_bytes(take_array(rest)?)),
        b'I' => RawValue::I32(i32::from_be_bytes(take_array(rest)?)),
        b'i' => RawValue::U32(u32::from_be_bytes(take_array(rest)?)),
        b'l' => RawValue::I64(i64::from_be_bytes(take_array(rest)?)),
        b'L' => RawValue::U64(u64::from_be_bytes(take_array(rest)?)),
        b'f' => RawValue::F32(f32::from_be_bytes(take_array(rest)?)),
        b'd' => RawValue::F64(f64::from_be_bytes(take_array(rest)?)),
        b'D' => {
            let [scale] = take_array(rest)?;
            RawValue::Decimal { scale, value: u32::from_be_bytes(take_array(rest)?) }
        }
        b'T' => RawValue::Timestamp(u64::from_be_bytes(take_array(rest)?)),
        b'V' => RawValue::Void,
        b'S' => RawValue::LongStr(take_long(rest)?),
        b'x' => RawValue::Bytes(take_long(rest)?),
        b'A' => RawValue::Array(RawArray(take_long(rest)?)),
        b'F' => RawValue::Table(RawTable(take_long(rest)?)),
        _ => return None,
    })
}

fn take_long<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_be_bytes(take_array(rest)?);
    take(rest, length as usize)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::table::{check_entries, encode_table};
    use crate::{ArrayWriter, TableWriter};

    /// An entry of every type, named by its letter, and one with an empty name.
    const EVERY_TYPE: &[u8] = b"\x01tt\x01\x01bb\xff\x01BB\xff\x01ss\xff\xff\x01uu\xff\xff\x01II\xff\xff\xff\xfb\
        \x01ii\xff\xff\xff\xff\x01ll\0\0\x01\0\0\0\0\0\x01LL\xff\xff\xff\xff\xff\xff\xff\xff\x01ff\x3f\xc0\0\0\
        \x01dd\x40\x04\0\0\0\0\0\0\x01DD\x02\0\0\x01\0\x01SS\0\0\0\x03str\x01xx\0\0\0\x02\0\x01\
        \x01AA\0\0\0\x03Vt\x01\x01TT\0\0\0\0\x65\0\0\0\x01FF\0\0\0\x03\x01mV\x01VV\0S\0\0\0\x01e";

    fn values() -> Vec<(&'static str, RawValue<'static>)> {
        vec![
            ("t", RawValue::Bool(true)),
            ("b", RawValue::I8(-1)),
            ("B", RawValue::U8(255)),
            ("s", RawValue::I16(-1)),
            ("u", RawValue::U16(65_535)),
            ("I", RawValue::I32(-5)),
            ("i", RawValue::U32(u32::MAX)),
            ("l", RawValue::I64(1 << 40)),
            ("L", RawValue::U64(u64::MAX)),
            ("f", RawValue::F32(1.5)),
            ("d", RawValue::F64(2.5)),
            ("D", RawValue::Decimal { scale: 2, value: 256 }),
            ("S", RawValue::LongStr(b"str")),
            ("x", RawValue::Bytes(b"\0\x01")),
            ("A", RawValue::Array(RawArray::new(b"Vt\x01"))),
            ("T", RawValue::Timestamp(0x6500_0000)),
            ("F", RawValue::Table(RawTable::new(b"\x01mV"))),
            ("V", RawValue::Void),
            ("", RawValue::LongStr(b"e")),
        ]
    }

    #[test]
    fn every_type_is_read_and_written_with_its_letter() {
        assert_eq!(check_entries(EVERY_TYPE), Ok(()));
        let table = RawTable::new(EVERY_TYPE);
        let read: Vec<_> = table.iter().map(|(name, value)| (std::str::from_utf8(name).unwrap(), value)).collect();
        assert_eq!(read, values());
        let mut written = TableWriter::new();
        let mut items = ArrayWriter::new();
        for (name, value) in values() {
            assert_eq!(table.get(name), Some(value));
            written.put(name, value);
            items.put(value);
        }
        assert_eq!(written.finish(), EVERY_TYPE);
        assert!(items.array().iter().eq(values().into_iter().map(|(_, value)| value)));
    }

    #[test]
    fn copy_as_a_map_keeps_every_type_but_the_unsigned_64_bits() {
        let map = RawTable::new(EVERY_TYPE).to_table();
        let mut encoded = BytesMut::new();
        encode_table(&map, &mut encoded);
        let again = RawTable::new(&encoded[4..]);
        assert_eq!(encoded[..4], ((encoded.len() - 4) as u32).to_be_bytes());
        for (name, value) in values() {
            let expected = if name == "L" { RawValue::I64(-1) } else { value };
            assert_eq!(again.get(name), Some(expected), "{name}");
        }
        assert_eq!(again.iter().count(), values().len());
    }

    #[test]
    fn names_need_not_be_utf8() {
        let table = RawTable::new(b"\x02\xff\xfeV");
        assert_eq!(table.iter().next(), Some((b"\xff\xfe".as_slice(), RawValue::Void)));
        assert_eq!(table.to_table().inner().len(), 1);
    }

    #[test]
    fn first_of_equal_names_is_found() {
        assert_eq!(RawTable::new(b"\x01at\x01\x01at\0").get("a"), Some(RawValue::Bool(true)));
    }

    #[test]
    fn table_ends_at_the_first_byte_that_makes_no_sense() {
        let table = RawTable::new(b"\x01aV\x01bZ\x01cV");
        assert_eq!(table.iter().collect::<Vec<_>>(), [(b"a".as_slice(), RawValue::Void)]);
        assert_eq!(RawArray::new(b"VVI\0").iter().count(), 2);
    }
}
