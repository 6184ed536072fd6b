//! The changes of what is durable, and how they are written.
//!
//! An *entry* of the metadata's log is a format version and changes, one after the other; a snapshot has the same changes behind a header
//! of its own ([`super::snapshot`]). Integers are little-endian.
//!
//! | bytes | field of an entry |
//! |---|---|
//! | 1 | format version, 2 |
//! | .. | changes |
//!
//! | bytes | field of a change |
//! |---|---|
//! | 4 | length of all that follows |
//! | 1 | kind, as numbered below |
//! | 2 + .. | name of the virtual host, with its length in front |
//! | .. | the fields of the kind |
//!
//! | kind | | fields |
//! |---|---|---|
//! | 1 | declare exchange | name, type (0 direct, 1 fanout, 2 topic, 3 headers), flags (1 auto-delete, 2 internal), arguments |
//! | 2 | delete exchange | name, flags (1 only if unused) |
//! | 3 | bind queue | queue, exchange, key, arguments |
//! | 4 | unbind queue | queue, exchange, key, arguments |
//! | 5 | bind exchange | destination, source, key, arguments |
//! | 6 | unbind exchange | destination, source, key, arguments |
//! | 7 | declare queue | id (8), shard (4), name, flags (1 auto-delete), arguments |
//! | 8 | delete queue | id (8) |
//!
//! Kinds from 16 on are in [`super::admin_op`]; version 1 had none of them.
//!
//! Names and keys have one byte of length in front. Arguments are a field table as on the wire: four bytes of length, big-endian,
//! then the entries. A change has no bytes behind its last field; an unknown kind, type or flag is refused, not passed over.

use amqp::table::{TableError, check_entries, encode_table};
use amqp::{FieldTable, MethodId, RawTable};
use bytes::BytesMut;
use queue::QueueId;

use super::admin_op::{self, AdminOp};
use crate::topology::ExchangeKind;

/// Version of the entries that are written.
pub const ENTRY_FORMAT: u8 = 2;
/// The version without virtual hosts, users and parameters: virtual hosts came from the configuration.
pub(super) const WITHOUT_VHOSTS: u8 = 1;

const AUTO_DELETE: u8 = 1;
const INTERNAL: u8 = 2;
const IF_UNUSED: u8 = 1;

/// The types of exchanges by their number.
const KINDS: [ExchangeKind; 4] =
    [ExchangeKind::Direct, ExchangeKind::Fanout, ExchangeKind::Topic, ExchangeKind::Headers];

/// Why bytes are no changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Written by a later release.
    #[error("format {0} is newer than the format {ENTRY_FORMAT} that this release reads")]
    Newer(u8),
    /// The bytes end within a field, or go on after the last.
    #[error("a length does not fit")]
    Length,
    /// A number that stands for nothing.
    #[error("an unknown {what}: {value}")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// The number.
        value: u8,
    },
    /// A name that is not UTF-8.
    #[error("a name is not UTF-8")]
    Text,
    /// Arguments that are no field table.
    #[error("the arguments are no field table")]
    Table,
    /// A password hash that is none.
    #[error("a password hash is malformed")]
    Password,
}

impl From<TableError> for OpError {
    fn from(_: TableError) -> Self {
        Self::Table
    }
}

/// A change of a virtual host, or of what belongs to none.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The virtual host's name; empty: none.
    pub vhost: Box<str>,
    /// What changes.
    pub op: Op,
}

/// What changes: a method of the exchange or queue class on durable things, with what the node added.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Makes a durable exchange.
    DeclareExchange {
        /// Its name.
        name: Box<str>,
        /// Its type.
        kind: ExchangeKind,
        /// Goes with its last binding as a source.
        auto_delete: bool,
        /// Clients cannot publish to it.
        internal: bool,
        /// Its arguments.
        arguments: FieldTable,
    },
    /// Removes a durable exchange and the bindings at both its ends.
    DeleteExchange {
        /// Its name.
        name: Box<str>,
        /// Only if it is the source of no durable binding.
        if_unused: bool,
    },
    /// Binds a durable queue to a durable exchange.
    BindQueue(Binding),
    /// Removes such a binding.
    UnbindQueue(Binding),
    /// Binds a durable exchange to another.
    BindExchange(Binding),
    /// Removes such a binding.
    UnbindExchange(Binding),
    /// Makes the record of a durable queue.
    DeclareQueue(DeclareQueue),
    /// Removes the record of a durable queue that its shard has removed, and the bindings to it.
    DeleteQueue {
        /// The queue.
        id: QueueId,
    },
    /// Anything else.
    Admin(Box<AdminOp>),
}

impl From<AdminOp> for Op {
    fn from(op: AdminOp) -> Self {
        Self::Admin(Box::new(op))
    }
}

/// A binding in a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The name of the queue or exchange that it leads to.
    pub destination: Box<str>,
    /// The name of the exchange that routes by it.
    pub source: Box<str>,
    /// The binding key.
    pub routing_key: Box<str>,
    /// Its arguments.
    pub arguments: FieldTable,
}

/// A durable queue in a change.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclareQueue {
    /// Its identity, which follows from the place of the change in the log. Given when the change is written.
    pub id: QueueId,
    /// The durable shard that it lives on. Given when the change is written, and kept, so that a queue can live elsewhere than others
    /// that were made like it.
    pub shard: u32,
    /// Its name.
    pub name: Box<str>,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// Its arguments.
    pub arguments: FieldTable,
}

impl Op {
    /// Whether it only takes away: such changes may use the log's reserve on a full disk.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        match self {
            Self::DeleteExchange { .. } | Self::UnbindQueue(_) | Self::UnbindExchange(_) | Self::DeleteQueue { .. } => {
                true
            }
            Self::Admin(op) => op.is_removal(),
            Self::DeclareExchange { .. } | Self::BindQueue(_) | Self::BindExchange(_) | Self::DeclareQueue(_) => false,
        }
    }
}

impl Op {
    /// The arguments that came with the method, if it has any.
    #[must_use]
    pub fn arguments(&self) -> Option<&FieldTable> {
        match self {
            Self::DeclareExchange { arguments, .. } => Some(arguments),
            Self::BindQueue(binding)
            | Self::UnbindQueue(binding)
            | Self::BindExchange(binding)
            | Self::UnbindExchange(binding) => Some(&binding.arguments),
            Self::DeclareQueue(declare) => Some(&declare.arguments),
            Self::DeleteExchange { .. } | Self::DeleteQueue { .. } | Self::Admin(_) => None,
        }
    }

    /// The method that asks for it.
    #[must_use]
    pub fn method(&self) -> MethodId {
        match self {
            Self::DeclareExchange { .. } => MethodId::EXCHANGE_DECLARE,
            Self::DeleteExchange { .. } => MethodId::EXCHANGE_DELETE,
            Self::BindQueue(_) => MethodId::QUEUE_BIND,
            Self::UnbindQueue(_) => MethodId::QUEUE_UNBIND,
            Self::BindExchange(_) => MethodId::EXCHANGE_BIND,
            Self::UnbindExchange(_) => MethodId::EXCHANGE_UNBIND,
            Self::DeclareQueue(_) => MethodId::QUEUE_DECLARE,
            Self::DeleteQueue { .. } => MethodId::QUEUE_DELETE,
            Self::Admin(_) => MethodId::NONE,
        }
    }
}

impl Change {
    /// Appends the change with its length.
    ///
    /// # Panics
    /// If a name is longer than a short string, or the virtual host's longer than 65,535 bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.op.kind()]);
        let length = u16::try_from(self.vhost.len()).expect("names of virtual hosts are short");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(self.vhost.as_bytes());
        self.op.encode(out);
        let length = u32::try_from(out.len() - start - 4).expect("a method fits a frame, and a change the method");
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
}

impl Op {
    fn kind(&self) -> u8 {
        match self {
            Self::DeclareExchange { .. } => 1,
            Self::DeleteExchange { .. } => 2,
            Self::BindQueue(_) => 3,
            Self::UnbindQueue(_) => 4,
            Self::BindExchange(_) => 5,
            Self::UnbindExchange(_) => 6,
            Self::DeclareQueue(_) => 7,
            Self::DeleteQueue { .. } => 8,
            Self::Admin(op) => op.kind(),
        }
    }

    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::DeclareExchange { name, kind, auto_delete, internal, arguments } => {
                put_name(name, out);
                let number = KINDS.iter().position(|known| known == kind).expect("all types have a number");
                let flags = flag(*auto_delete, AUTO_DELETE) | flag(*internal, INTERNAL);
                out.extend_from_slice(&[u8::try_from(number).expect("a handful of types"), flags]);
                encode_table(arguments, out);
            }
            Self::DeleteExchange { name, if_unused } => {
                put_name(name, out);
                out.extend_from_slice(&[flag(*if_unused, IF_UNUSED)]);
            }
            Self::BindQueue(binding)
            | Self::UnbindQueue(binding)
            | Self::BindExchange(binding)
            | Self::UnbindExchange(binding) => {
                put_name(&binding.destination, out);
                put_name(&binding.source, out);
                put_name(&binding.routing_key, out);
                encode_table(&binding.arguments, out);
            }
            Self::DeclareQueue(declare) => {
                out.extend_from_slice(&declare.id.0.to_le_bytes());
                out.extend_from_slice(&declare.shard.to_le_bytes());
                put_name(&declare.name, out);
                out.extend_from_slice(&[flag(declare.auto_delete, AUTO_DELETE)]);
                encode_table(&declare.arguments, out);
            }
            Self::DeleteQueue { id } => out.extend_from_slice(&id.0.to_le_bytes()),
            Self::Admin(op) => op.encode(out),
        }
    }
}

pub(super) fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn put_name(name: &str, out: &mut BytesMut) {
    out.extend_from_slice(&[u8::try_from(name.len()).expect("names came as short strings")]);
    out.extend_from_slice(name.as_bytes());
}

/// Reads an entry. What memory it takes is bounded by the size of the entry.
///
/// # Errors
/// Says what is wrong first.
pub fn decode_entry(entry: &[u8]) -> Result<Vec<Change>, OpError> {
    let (&version, rest) = entry.split_first().ok_or(OpError::Length)?;
    check_format(version)?;
    Changes(rest).collect()
}

/// Refuses the formats of later releases, and 0, which no release writes.
pub(super) fn check_format(version: u8) -> Result<(), OpError> {
    match version {
        WITHOUT_VHOSTS..=ENTRY_FORMAT => Ok(()),
        0 => Err(OpError::Unknown { what: "format", value: 0 }),
        newer => Err(OpError::Newer(newer)),
    }
}

/// Changes one after the other. Ends after the first that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Changes<'a>(pub(super) &'a [u8]);

impl Iterator for Changes<'_> {
    type Item = Result<Change, OpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut input = Input(self.0);
        let change = input.u32().and_then(|length| {
            let mut change = Input(input.take(length as usize)?);
            let decoded = decode_change(&mut change)?;
            if change.0.is_empty() { Ok(decoded) } else { Err(OpError::Length) }
        });
        self.0 = if change.is_ok() { input.0 } else { &[] };
        Some(change)
    }
}

fn decode_change(input: &mut Input<'_>) -> Result<Change, OpError> {
    let kind = input.u8()?;
    let length = u16::from_le_bytes(input.array()?);
    let vhost = text(input.take(usize::from(length))?)?;
    let op = match kind {
        1 => {
            let name = input.name()?;
            let number = input.u8()?;
            let kind = KINDS.get(usize::from(number)).copied();
            let kind = kind.ok_or(OpError::Unknown { what: "exchange type", value: number })?;
            let flags = input.flags(AUTO_DELETE | INTERNAL)?;
            let (auto_delete, internal) = (flags & AUTO_DELETE != 0, flags & INTERNAL != 0);
            Op::DeclareExchange { name, kind, auto_delete, internal, arguments: input.table()? }
        }
        2 => Op::DeleteExchange { name: input.name()?, if_unused: input.flags(IF_UNUSED)? != 0 },
        3 => Op::BindQueue(input.binding()?),
        4 => Op::UnbindQueue(input.binding()?),
        5 => Op::BindExchange(input.binding()?),
        6 => Op::UnbindExchange(input.binding()?),
        7 => Op::DeclareQueue(DeclareQueue {
            id: QueueId(input.u64()?),
            shard: input.u32()?,
            name: input.name()?,
            auto_delete: input.flags(AUTO_DELETE)? != 0,
            arguments: input.table()?,
        }),
        8 => Op::DeleteQueue { id: QueueId(input.u64()?) },
        admin_op::FIRST_KIND.. => AdminOp::decode(kind, input)?.into(),
        value => return Err(OpError::Unknown { what: "kind of change", value }),
    };
    Ok(Change { vhost, op })
}

pub(super) fn text(bytes: &[u8]) -> Result<Box<str>, OpError> {
    std::str::from_utf8(bytes).map(Into::into).map_err(|_| OpError::Text)
}

/// Fields read one after the other, with every length checked before it is used.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], OpError> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(OpError::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], OpError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(OpError::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, OpError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, OpError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, OpError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn name(&mut self) -> Result<Box<str>, OpError> {
        let length = self.u8()?;
        text(self.take(usize::from(length))?)
    }

    pub(super) fn flags(&mut self, known: u8) -> Result<u8, OpError> {
        match self.u8()? {
            flags if flags & !known == 0 => Ok(flags),
            value => Err(OpError::Unknown { what: "flag", value }),
        }
    }

    fn table(&mut self) -> Result<FieldTable, OpError> {
        let length = u32::from_be_bytes(self.array()?);
        let entries = self.take(length as usize)?;
        check_entries(entries)?;
        Ok(RawTable::new(entries).to_table())
    }

    fn binding(&mut self) -> Result<Binding, OpError> {
        Ok(Binding {
            destination: self.name()?,
            source: self.name()?,
            routing_key: self.name()?,
            arguments: self.table()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use amqp::{AMQPValue, FieldArray, ShortString};
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = Box<str>> {
        prop_oneof!["[a-zä.]{0,12}", "[a-z]{255}"].prop_map(String::into_boxed_str)
    }

    fn table() -> impl Strategy<Value = FieldTable> {
        let value = prop_oneof![
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            any::<bool>().prop_map(AMQPValue::Boolean),
            "[a-z]{0,8}".prop_map(|text| AMQPValue::LongString(text.into())),
            Just(AMQPValue::Void),
        ];
        let value = value.prop_recursive(3, 12, 4, |inner| {
            proptest::collection::vec(inner, 0..4).prop_map(|items| AMQPValue::FieldArray(FieldArray::from(items)))
        });
        proptest::collection::btree_map("[a-z-]{1,8}", value, 0..4).prop_map(|entries| {
            let mut table = FieldTable::default();
            for (name, value) in entries {
                table.insert(ShortString::from(name), value);
            }
            table
        })
    }

    fn binding() -> impl Strategy<Value = Binding> {
        (name(), name(), name(), table()).prop_map(|(destination, source, routing_key, arguments)| Binding {
            destination,
            source,
            routing_key,
            arguments,
        })
    }

    pub(super) fn op() -> impl Strategy<Value = Op> {
        let kind = proptest::sample::select(KINDS.to_vec());
        prop_oneof![
            (name(), kind, any::<bool>(), any::<bool>(), table()).prop_map(
                |(name, kind, auto_delete, internal, arguments)| Op::DeclareExchange {
                    name,
                    kind,
                    auto_delete,
                    internal,
                    arguments
                }
            ),
            (name(), any::<bool>()).prop_map(|(name, if_unused)| Op::DeleteExchange { name, if_unused }),
            binding().prop_map(Op::BindQueue),
            binding().prop_map(Op::UnbindQueue),
            binding().prop_map(Op::BindExchange),
            binding().prop_map(Op::UnbindExchange),
            (any::<u64>(), any::<u32>(), name(), any::<bool>(), table()).prop_map(
                |(id, shard, name, auto_delete, arguments)| Op::DeclareQueue(DeclareQueue {
                    id: QueueId(id),
                    shard,
                    name,
                    auto_delete,
                    arguments
                })
            ),
            any::<u64>().prop_map(|id| Op::DeleteQueue { id: QueueId(id) }),
            admin_op::tests::admin_op().prop_map(Op::from),
        ]
    }

    fn change() -> impl Strategy<Value = Change> {
        (name(), op()).prop_map(|(vhost, op)| Change { vhost, op })
    }

    fn entry(changes: &[Change]) -> BytesMut {
        let mut out = BytesMut::from(&[ENTRY_FORMAT][..]);
        changes.iter().for_each(|change| change.encode(&mut out));
        out
    }

    proptest! {
        #[test]
        fn changes_are_read_as_written(changes in proptest::collection::vec(change(), 0..6)) {
            prop_assert_eq!(decode_entry(&entry(&changes)), Ok(changes));
        }

        #[test]
        fn a_cut_entry_is_refused_or_ends_between_changes(changes in proptest::collection::vec(change(), 1..4), cut in any::<proptest::sample::Index>()) {
            let entry = entry(&changes);
            if let Ok(read) = decode_entry(&entry[..cut.index(entry.len())]) {
                prop_assert!(read.len() < changes.len());
                prop_assert_eq!(&read[..], &changes[..read.len()]);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), changes in proptest::collection::vec(change(), 1..3), at in any::<proptest::sample::Index>()) {
            let _ = decode_entry(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = ENTRY_FORMAT;
            }
            let _ = decode_entry(&bytes);
            // Nearly right: one byte of an entry is another.
            let mut entry = entry(&changes);
            let at = at.index(entry.len());
            entry[at] ^= bytes.last().copied().unwrap_or(1).max(1);
            let _ = decode_entry(&entry);
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(decode_entry(&[]), Err(OpError::Length));
        let newer = ENTRY_FORMAT + 1;
        assert_eq!(decode_entry(&[newer]), Err(OpError::Newer(newer)));
        let kind = [1, 3, 0, 0, 0, 9, 0, 0];
        assert_eq!(decode_entry(&kind), Err(OpError::Unknown { what: "kind of change", value: 9 }));
        let exchange_type = [1, 5, 0, 0, 0, 1, 0, 0, 0, 4];
        assert_eq!(decode_entry(&exchange_type), Err(OpError::Unknown { what: "exchange type", value: 4 }));
        let flag = [1, 5, 0, 0, 0, 2, 0, 0, 0, 2];
        assert_eq!(decode_entry(&flag), Err(OpError::Unknown { what: "flag", value: 2 }));
        let more = [1, 12, 0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(decode_entry(&more), Err(OpError::Length));
    }
}
