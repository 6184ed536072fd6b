//! Pieces of files that were read and checked, the most recently used ones, within a fixed memory. Pieces are the unit of
//! read-ahead: a reader that goes on where it stopped finds the next hundred messages here.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::types::FileId;

/// A checked piece of a file.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Offset of its first byte in the file.
    pub(crate) start: u32,
    pub(crate) bytes: Bytes,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.start) + self.bytes.len() as u64
    }

    /// The bytes at a place in the file, without a copy. They keep the whole piece in memory.
    pub(crate) fn slice(&self, offset: u32, length: u32) -> Option<Bytes> {
        let from = offset.checked_sub(self.start)? as usize;
        let to = from.checked_add(length as usize)?;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }
}

type Key = (FileId, u32);

/// The cache.
pub(crate) struct ChunkCache {
    limit_bytes: usize,
    bytes: usize,
    uses: u64,
    chunks: HashMap<Key, (u64, Chunk)>,
    by_use: BTreeMap<u64, Key>,
}

impl ChunkCache {
    pub(crate) fn new(limit_bytes: usize) -> ChunkCache {
        ChunkCache { limit_bytes, bytes: 0, uses: 0, chunks: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// The piece that starts there and reaches at least to `end`.
    pub(crate) fn get(&mut self, file: FileId, start: u32, end: u64) -> Option<Chunk> {
        let (used, chunk) = self.chunks.get_mut(&(file, start))?;
        if chunk.end() < end {
            return None;
        }
        self.uses += 1;
        self.by_use.remove(used);
        *used = self.uses;
        self.by_use.insert(self.uses, (file, start));
        Some(chunk.clone())
    }

    pub(crate) fn put(&mut self, file: FileId, chunk: Chunk) {
        if chunk.bytes.len() > self.limit_bytes {
            return;
        }
        let key = (file, chunk.start);
        self.uses += 1;
        self.bytes += chunk.bytes.len();
        self.by_use.insert(self.uses, key);
        if let Some((used, old)) = self.chunks.insert(key, (self.uses, chunk)) {
            self.by_use.remove(&used);
            self.bytes -= old.bytes.len();
        }
        while self.bytes > self.limit_bytes {
            let Some((_, key)) = self.by_use.pop_first() else { break };
            if let Some((_, old)) = self.chunks.remove(&key) {
                self.bytes -= old.bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FileNumber;

    fn chunk(start: u32, length: usize) -> Chunk {
        Chunk { start, bytes: Bytes::from(vec![start as u8; length]) }
    }

    #[test]
    fn the_least_recently_used_piece_leaves_first() {
        let file = FileId::log(FileNumber(1));
        let mut cache = ChunkCache::new(100);
        cache.put(file, chunk(0, 40));
        cache.put(file, chunk(40, 40));
        assert!(cache.get(file, 0, 40).is_some());
        cache.put(file, chunk(80, 40));
        assert!(cache.get(file, 40, 80).is_none());
        assert!(cache.get(file, 0, 40).is_some());
        assert!(cache.get(file, 80, 120).is_some());
        assert_eq!(cache.bytes, 80);
    }

    #[test]
    fn a_piece_that_has_grown_is_read_again() {
        let file = FileId::log(FileNumber(1));
        let mut cache = ChunkCache::new(100);
        cache.put(file, chunk(0, 40));
        assert!(cache.get(file, 0, 41).is_none());
        cache.put(file, chunk(0, 60));
        assert!(cache.get(file, 0, 41).is_some());
        assert_eq!(cache.bytes, 60);
        cache.put(file, chunk(0, 101));
        assert_eq!(cache.bytes, 60, "larger than the cache: not kept");
    }
}
