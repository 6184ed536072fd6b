//! Reading what is durable: by place, by group and index, or a whole file. The unit of reading is a *chunk*, some hundred
//! kilobytes of whole frames, checked completely, and cached; so nothing unchecked is ever handed out, and a reader that
//! goes on where it stopped finds what it wants in memory.

use bytes::Bytes;

use super::{
    Log, Shared,
    files::LogFile,
    frame::{Frame, FrameFault, FrameHeader},
    header::HEADER_BYTES,
    index::FramePlace,
    record::{EntryRecord, Record},
};
use crate::{
    cache::Chunk,
    error::StorageError,
    fs::read_up_to,
    types::{FileId, FileKind, FileNumber, GroupId, Index, Location, Term},
};

/// An entry as read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its index.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// As submitted.
    pub tag: u8,
    /// As submitted. Keeps the chunk it lies in in memory: copy what is kept long.
    pub payload: Bytes,
    /// Where the payload lies.
    pub location: Location,
}

impl Log {
    /// The bytes at a place in the log. They keep the chunk they lie in in memory: copy what is kept long.
    ///
    /// # Errors
    /// `Gone` if the file left the log: the message is in a segment. `Damaged` if the chunk's checksums do not fit.
    pub fn read(&self, location: Location) -> Result<Bytes, StorageError> {
        let FileKind::Log(number) = location.file.kind() else {
            return Err(StorageError::Gone { what: format!("{:?}, which is not a log file,", location.file) });
        };
        let chunk = self.shared.chunk(number, location.offset, location.end())?;
        chunk.slice(location.offset, location.length).ok_or_else(|| StorageError::Gone {
            what: format!("the place {}+{} in log file {number}", location.offset, location.length),
        })
    }

    /// Bytes from an offset of a file on, past the cache and unchecked: for what was read and checked a moment ago.
    pub(crate) fn read_unchecked(&self, file: FileId, offset: u32, end: u64) -> Result<Vec<u8>, StorageError> {
        let FileKind::Log(number) = file.kind() else {
            return Err(StorageError::Gone { what: format!("{file:?}, which is not a log file,") });
        };
        let listed = self.shared.state.read().files.get(&number).map(|file| file.file.clone());
        let file = listed.ok_or_else(|| self.shared.gone(number))?;
        let path = self.shared.path(number);
        let length = end.saturating_sub(u64::from(offset)) as usize;
        read_up_to(&*file, u64::from(offset), length).map_err(StorageError::io("read", path))
    }

    /// The error for bytes that were good when they were read before.
    pub(crate) fn reads_differently(&self, location: Location) -> StorageError {
        let path = match location.file.kind() {
            FileKind::Log(number) => self.shared.path(number),
            FileKind::Segment(_) => self.shared.dir.clone(),
        };
        StorageError::damaged(path, u64::from(location.offset), "a message reads differently than a moment ago")
    }

    /// Durable entries of a group from an index on, as long as their payloads stay within `max_bytes`, but at least one.
    /// Empty beyond the last.
    ///
    /// # Errors
    /// `Gone` if the index is compacted; `Damaged` if a checksum does not fit.
    pub fn entries(&self, group: GroupId, from: Index, max_bytes: u64) -> Result<Vec<StoredEntry>, StorageError> {
        let mut found: Vec<StoredEntry> = Vec::new();
        let mut bytes = 0;
        let mut next = from;
        loop {
            let (place, until) = {
                let state = self.shared.state.read();
                let Some(log) = state.groups.get(&group) else { return Ok(found) };
                if next > log.last() {
                    return Ok(found);
                }
                match log.find(next) {
                    Some(found) => found,
                    None => return Err(StorageError::Gone { what: format!("group {group}: entry {next}") }),
                }
            };
            let mut full = false;
            self.shared.walk(place, |frame, chunk| {
                for (entry, offset) in group_entries(frame, group) {
                    if entry.index != next || next > until {
                        continue;
                    }
                    bytes += u64::from(entry.length);
                    full = bytes > max_bytes && !found.is_empty();
                    if full {
                        return false;
                    }
                    let location = Location { file: FileId::log(place.file), offset, length: entry.length };
                    let payload = chunk.slice(offset, entry.length).expect("the frame lies within the chunk");
                    let EntryRecord { index, term, tag, .. } = entry;
                    found.push(StoredEntry { index, term, tag, payload, location });
                    next = next.next();
                }
                next <= until
            })?;
            if full {
                return Ok(found);
            }
            if next <= until {
                let lost = format!("entry {next} of group {group} is missing");
                return Err(StorageError::damaged(self.shared.path(place.file), u64::from(place.offset), lost));
            }
        }
    }

    /// Checks every frame of a file and calls `visit` with each entry of the group in it, superseded ones included, in
    /// the order written. For copying out and for scrubbing.
    pub fn scan_file(&self, file: FileNumber, mut visit: impl FnMut(GroupId, StoredEntry)) -> Result<(), StorageError> {
        let place = FramePlace { file, offset: HEADER_BYTES };
        self.shared.walk(place, |frame, chunk| {
            for (entry, offset) in frame.entries() {
                let location = Location { file: FileId::log(file), offset, length: entry.length };
                let payload = chunk.slice(offset, entry.length).expect("the frame lies within the chunk");
                let EntryRecord { group, index, term, tag, .. } = entry;
                visit(group, StoredEntry { index, term, tag, payload, location });
            }
            true
        })?;
        Ok(())
    }
}

/// A frame of a checked chunk, and where it lies in the file.
struct PlacedFrame {
    offset: u32,
    header: FrameHeader,
    records: Vec<Record>,
}

impl PlacedFrame {
    /// The entries with the offsets of their payloads.
    fn entries(&self) -> impl Iterator<Item = (EntryRecord, u32)> {
        let mut offset = self.offset + self.header.payload_start() as u32;
        self.records.iter().filter_map(move |record| {
            let Record::Entry(entry) = record else { return None };
            let at = offset;
            offset += entry.length;
            Some((*entry, at))
        })
    }
}

/// What a frame brings a group in the end: entries that it truncates or replaces itself are left out.
fn group_entries(frame: &PlacedFrame, group: GroupId) -> Vec<(EntryRecord, u32)> {
    let mut kept: Vec<(EntryRecord, u32)> = Vec::new();
    let mut entries = frame.entries();
    for record in &frame.records {
        let from = match record {
            Record::Entry(entry) => {
                let placed = entries.next().expect("one per entry record");
                if entry.group != group {
                    continue;
                }
                kept.retain(|(earlier, _)| earlier.index < entry.index);
                kept.push(placed);
                continue;
            }
            Record::Truncate { group: whose, from } if *whose == group => *from,
            Record::SnapshotMark { group: whose, .. } | Record::Forget { group: whose } if *whose == group => Index(0),
            _ => continue,
        };
        kept.retain(|(earlier, _)| earlier.index < from);
    }
    kept
}

impl Shared {
    fn path(&self, number: FileNumber) -> std::path::PathBuf {
        super::files::log_path(&self.dir, number)
    }

    /// Visits the frames of a file from a place on, until `visit` returns false or the file ends.
    fn walk(&self, place: FramePlace, mut visit: impl FnMut(&PlacedFrame, &Chunk) -> bool) -> Result<(), StorageError> {
        let mut offset = place.offset;
        loop {
            let end = match self.state.read().files.get(&place.file) {
                Some(file) => file.end,
                None => return Err(self.gone(place.file)),
            };
            if offset >= end {
                return Ok(());
            }
            let chunk = self.chunk(place.file, offset, u64::from(offset) + 1)?;
            while u64::from(offset) < chunk.end() {
                let bytes = &chunk.bytes[(offset - chunk.start) as usize..];
                let damaged = |fault| self.damaged(place.file, offset, fault);
                let header = FrameHeader::decode(bytes).map_err(damaged)?;
                let records =
                    header.decode_records(&bytes[super::frame::FRAME_HEADER_BYTES as usize..]).map_err(damaged)?;
                let frame = PlacedFrame { offset, header, records };
                offset += header.frame_length() as u32;
                if !visit(&frame, &chunk) {
                    return Ok(());
                }
            }
        }
    }

    /// The checked chunk that holds an offset, reaching at least to `end`.
    fn chunk(&self, number: FileNumber, offset: u32, end: u64) -> Result<Chunk, StorageError> {
        let (file, header, start, chunk_end) = {
            let state = self.state.read();
            let Some(listed) = state.files.get(&number) else { return Err(self.gone(number)) };
            let Some((start, chunk_end)) = listed.chunk(offset).filter(|&(_, chunk_end)| end <= u64::from(chunk_end))
            else {
                return Err(StorageError::Gone { what: format!("the place {offset} in log file {number}") });
            };
            if let Some(chunk) = self.cache.lock().get(FileId::log(number), start, end) {
                return Ok(chunk);
            }
            (listed.file.clone(), listed.header.clone(), start, chunk_end)
        };
        let path = self.path(number);
        let bytes = read_up_to(&*file, u64::from(start), (chunk_end - start) as usize)
            .map_err(StorageError::io("read", &path))?;
        let mut at = 0;
        while at < (chunk_end - start) as usize {
            let checked = Frame::decode(bytes.get(at..).unwrap_or_default())
                .and_then(|frame| if frame.header.is_of(&header) { Ok(frame) } else { Err(FrameFault::NotAFrame) });
            match checked {
                Ok(frame) => at += frame.header.frame_length() as usize,
                // It may have been recycled under our hands.
                Err(_) if !self.state.read().files.contains_key(&number) => return Err(self.gone(number)),
                Err(fault) => return Err(self.damaged(number, start + at as u32, fault)),
            }
        }
        let chunk = Chunk { start, bytes: Bytes::from(bytes) };
        self.cache.lock().put(FileId::log(number), chunk.clone());
        Ok(chunk)
    }

    fn gone(&self, number: FileNumber) -> StorageError {
        StorageError::Gone { what: format!("log file {number}") }
    }

    fn damaged(&self, number: FileNumber, offset: u32, fault: FrameFault) -> StorageError {
        let lost = format!("a synced frame does not read as it was written ({fault:?})");
        StorageError::damaged(self.path(number), u64::from(offset), lost)
    }
}

impl LogFile {
    /// Number and live bytes, for decisions about space.
    pub(super) fn number(&self) -> FileNumber {
        self.header.number
    }
}
