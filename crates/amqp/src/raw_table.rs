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
