//! State snapshots: the state of a group (queue tables, intervals, runs) or of the metadata, one file per name and
//! generation. The two newest generations are kept, so that one that went bad on the medium never shadows a good one.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `WRNMQSNP` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC32C of bytes 0..12 and 16..64 |
//! | 16 | 16 | node id |
//! | 32 | 8 | generation |
//! | 40 | 8 | length of the contents |
//! | 48 | 4 | CRC32C of the contents |
//! | 52 | 4 | CRC32C of the name |
//! | 56 | 8 | zeros |
//! | 64 | .. | contents |
//!
//! Written aside, synced, read back, renamed, directory synced: a snapshot is whole or not there. The caller compacts its
//! log only up to the older of the two generations if it wants to survive the loss of the newer one.

use std::{
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    codec::{Input, Short, set},
    error::{Damage, StorageError},
    fs::{File, FileSystem, read_up_to},
};

/// Version of the snapshot format.
pub const SNAPSHOT_FORMAT: u32 = 1;
/// Length of the header.
pub const SNAPSHOT_HEADER_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"WRNMQSNP";
/// Generations kept per name.
const KEPT: usize = 2;
/// Read at once when a snapshot is read back.
const CHECK_BYTES: usize = 1 << 20;

/// Why bytes are not a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotFault {
    /// Too short, or magic or checksum wrong.
    Damaged,
    /// A later format, with a good checksum.
    Newer(u32),
}

impl From<Short> for SnapshotFault {
    fn from(Short: Short) -> SnapshotFault {
        SnapshotFault::Damaged
    }
}

/// A snapshot's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The node that wrote it.
    pub node: [u8; 16],
    /// Rises by one with each snapshot of a name.
    pub generation: u64,
    /// Bytes of the contents.
    pub length: u64,
    /// CRC32C of the contents.
    pub crc: u32,
    /// CRC32C of the name.
    pub name_crc: u32,
}

impl SnapshotHeader {
    /// The 64 bytes.
    pub fn encode(&self) -> [u8; SNAPSHOT_HEADER_BYTES] {
        let mut bytes = [0; SNAPSHOT_HEADER_BYTES];
        set(&mut bytes, 0, MAGIC);
        set(&mut bytes, 8, SNAPSHOT_FORMAT.to_le_bytes());
        set(&mut bytes, 16, self.node);
        set(&mut bytes, 32, self.generation.to_le_bytes());
        set(&mut bytes, 40, self.length.to_le_bytes());
        set(&mut bytes, 48, self.crc.to_le_bytes());
        set(&mut bytes, 52, self.name_crc.to_le_bytes());
        let crc = header_checksum(&bytes);
        set(&mut bytes, 12, crc.to_le_bytes());
        bytes
    }

    /// Reads and checks a header.
    pub fn decode(bytes: &[u8]) -> Result<SnapshotHeader, SnapshotFault> {
        let bytes = bytes.get(..SNAPSHOT_HEADER_BYTES).ok_or(SnapshotFault::Damaged)?;
        let mut input = Input(bytes);
        let magic = input.array::<8>()?;
        let (format, crc) = (input.u32()?, input.u32()?);
        if magic != MAGIC || crc != header_checksum(bytes) {
            return Err(SnapshotFault::Damaged);
        }
        if format > SNAPSHOT_FORMAT {
            return Err(SnapshotFault::Newer(format));
        }
        Ok(SnapshotHeader {
            node: input.array()?,
            generation: input.u64()?,
            length: input.u64()?,
            crc: input.u32()?,
            name_crc: input.u32()?,
        })
    }
}

/// Reads and checks a whole snapshot file: header and contents.
pub fn decode_snapshot(bytes: &[u8]) -> Result<(SnapshotHeader, &[u8]), SnapshotFault> {
    let header = SnapshotHeader::decode(bytes)?;
    let contents = &bytes[SNAPSHOT_HEADER_BYTES..];
    let length = usize::try_from(header.length).map_err(|_| SnapshotFault::Damaged)?;
    let contents = contents.get(..length).ok_or(SnapshotFault::Damaged)?;
    if crc32c::crc32c(contents) == header.crc { Ok((header, contents)) } else { Err(SnapshotFault::Damaged) }
}

fn header_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..SNAPSHOT_HEADER_BYTES])
}

/// A snapshot as loaded.
#[derive(Clone, Debug)]
pub struct LoadedSnapshot {
    /// Its contents.
    pub contents: Bytes,
    /// Its generation.
    pub generation: u64,
    /// Newer generations that are damaged. If there are any, the caller checks that its log goes back far enough.
    pub damaged: Vec<Damage>,
}

/// The snapshots of a node. Cheap to clone. Two calls of `store` for one name must not overlap.
#[derive(Clone)]
pub struct Snapshots {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    node: [u8; 16],
}

impl Snapshots {
    /// Opens the snapshots in `dir`, which the caller has locked, and removes unfinished ones.
    pub fn open(fs: Arc<dyn FileSystem>, dir: &Path, node: [u8; 16]) -> Result<Snapshots, StorageError> {
        fs.create_dir(dir).map_err(StorageError::io("create", dir))?;
        for listed in fs.list(dir).map_err(StorageError::io("list", dir))? {
            if listed.name.ends_with(".new") {
                let path = dir.join(&listed.name);
                fs.remove(&path).map_err(StorageError::io("remove", path))?;
            }
        }
        Ok(Snapshots { fs, dir: dir.to_path_buf(), node })
    }

    /// Stores a snapshot, given in parts, and returns its generation. It is durable when this returns.
    ///
    /// # Errors
    /// Whatever the error, earlier snapshots are as they were.
    ///
    /// # Panics
    /// If the name is not made of `a-z`, `0-9`, `-` and `_`.
    pub fn store(&self, name: &str, parts: &[Bytes]) -> Result<u64, StorageError> {
        let generations = self.generations(name)?;
        let generation = generations.last().map_or(1, |last| last + 1);
        let path = self.path(name, generation);
        let aside = path.with_extension("new");
        let header = SnapshotHeader {
            node: self.node,
            generation,
            length: parts.iter().map(|part| part.len() as u64).sum(),
            crc: parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)),
            name_crc: crc32c::crc32c(name.as_bytes()),
        };
        if let Err(error) = self.write(&aside, &header, parts) {
            // Best effort: opening the store removes it, too.
            let _ = self.fs.remove(&aside);
            return Err(error);
        }
        self.fs.rename(&aside, &path).map_err(StorageError::io("rename", &aside))?;
        self.fs.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
        for old in generations.iter().rev().skip(KEPT - 1) {
            let path = self.path(name, *old);
            self.fs.remove(&path).map_err(StorageError::io("remove", path))?;
        }
        Ok(generation)
    }

    /// The newest good snapshot of a name; `None` if there never was one.
    ///
    /// # Errors
    /// `Damaged` if there are some, and none is good.
    pub fn load(&self, name: &str) -> Result<Option<LoadedSnapshot>, StorageError> {
        let mut damaged = Vec::new();
        for generation in self.generations(name)?.into_iter().rev() {
            let path = self.path(name, generation);
            let file = self.fs.open(&path).map_err(StorageError::io("open", &path))?;
            let size = file.size().map_err(StorageError::io("read", &path))?;
            let bytes = read_up_to(&*file, 0, usize::try_from(size).unwrap_or(usize::MAX))
                .map_err(StorageError::io("read", &path))?;
            let bytes = Bytes::from(bytes);
            match decode_snapshot(&bytes) {
                Ok((header, _)) if header.node != self.node => return Err(StorageError::Foreign { file: path }),
                Ok((header, contents))
                    if header.generation == generation && header.name_crc == crc32c::crc32c(name.as_bytes()) =>
                {
                    for Damage { file, .. } in &damaged {
                        tracing::error!(file = %file.display(), using = %path.display(), "a state snapshot is damaged");
                    }
                    return Ok(Some(LoadedSnapshot { contents: bytes.slice_ref(contents), generation, damaged }));
                }
                Err(SnapshotFault::Newer(found)) => {
                    return Err(StorageError::NewerFormat { file: path, found, supported: SNAPSHOT_FORMAT });
                }
                _ => damaged.push(Damage { file: path, offset: 0, lost: "a state snapshot".into() }),
            }
        }
        match damaged.into_iter().next() {
            Some(damage) => Err(StorageError::Damaged(Arc::new(damage))),
            None => Ok(None),
        }
    }

    /// Removes all snapshots of a name.
    pub fn remove(&self, name: &str) -> Result<(), StorageError> {
        for generation in self.generations(name)? {
            let path = self.path(name, generation);
            self.fs.remove(&path).map_err(StorageError::io("remove", path))?;
        }
        self.fs.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))
    }

    fn write(&self, path: &Path, header: &SnapshotHeader, parts: &[Bytes]) -> Result<(), StorageError> {
        let file = self.fs.create(path).map_err(StorageError::io("create", path))?;
        let head = header.encode();
        let mut slices = vec![IoSlice::new(&head)];
        slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        file.write_at(&slices, 0).map_err(StorageError::io("write", path))?;
        file.sync().map_err(StorageError::io("sync", path))?;
        let read = checksum_of(&*file, SNAPSHOT_HEADER_BYTES as u64).map_err(StorageError::io("read", path))?;
        if read == header.crc {
            Ok(())
        } else {
            Err(StorageError::damaged(path, 0, "it does not read back as written"))
        }
    }

    fn generations(&self, name: &str) -> Result<Vec<u64>, StorageError> {
        let listed = self.fs.list(&self.dir).map_err(StorageError::io("list", &self.dir))?;
        let mut found: Vec<u64> = listed.iter().filter_map(|listed| parse_name(&listed.name, name)).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn path(&self, name: &str, generation: u64) -> PathBuf {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        assert!(!name.is_empty() && name.bytes().all(plain), "snapshot names are plain: {name:?}");
        self.dir.join(format!("{name}.{generation:020}.snapshot"))
    }
}

fn parse_name(file: &str, name: &str) -> Option<u64> {
    let digits = file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".snapshot")?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    canonical.then(|| digits.parse().ok()).flatten()
}

fn checksum_of(file: &dyn File, mut offset: u64) -> std::io::Result<u32> {
    let mut crc = 0;
    loop {
        let bytes = read_up_to(file, offset, CHECK_BYTES)?;
        if bytes.is_empty() {
            return Ok(crc);
        }
        crc = crc32c::crc32c_append(crc, &bytes);
        offset += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_fs::SimFs;

    const DIR: &str = "d/snapshots";

    fn open(fs: &SimFs) -> Snapshots {
        Snapshots::open(Arc::new(fs.clone()), Path::new(DIR), [1; 16]).unwrap()
    }

    fn contents(snapshots: &Snapshots) -> Bytes {
        snapshots.load("meta").unwrap().unwrap().contents
    }

    #[test]
    fn the_newest_snapshot_is_loaded_and_two_are_kept() {
        let fs = SimFs::new(1);
        let snapshots = open(&fs);
        assert!(snapshots.load("meta").unwrap().is_none());
        for text in ["one", "two", "three"] {
            snapshots.store("meta", &[Bytes::from_static(b"state "), Bytes::from(text)]).unwrap();
        }
        snapshots.store("meta-2", &[Bytes::from_static(b"another's")]).unwrap();
        assert_eq!(contents(&snapshots), "state three");
        assert_eq!(fs.list(Path::new(DIR)).unwrap().len(), 3);
        snapshots.remove("meta").unwrap();
        assert!(snapshots.load("meta").unwrap().is_none());
    }

    #[test]
    fn a_damaged_snapshot_does_not_shadow_the_older_one() {
        for at in 0..64 + 5 {
            let fs = SimFs::new(1);
            let snapshots = open(&fs);
            snapshots.store("meta", &[Bytes::from_static(b"older")]).unwrap();
            snapshots.store("meta", &[Bytes::from_static(b"newer")]).unwrap();
            let newest = Path::new(DIR).join("meta.00000000000000000002.snapshot");
            assert!(fs.damage(&newest, at, 8));
            let loaded = snapshots.load("meta").unwrap().unwrap();
            assert_eq!(loaded.contents, "older", "byte {at}");
            assert_eq!(loaded.damaged[0].file, newest);
            fs.damage(&Path::new(DIR).join("meta.00000000000000000001.snapshot"), at, 8);
            assert!(matches!(snapshots.load("meta"), Err(StorageError::Damaged(_))));
        }
    }

    #[test]
    fn power_loss_while_storing_leaves_the_older_or_the_newer_one_whole() {
        let mut found = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let fs = SimFs::new(seed);
            let snapshots = open(&fs);
            let (older, newer) = (Bytes::from(vec![1; 3000]), Bytes::from(vec![2; 4000]));
            snapshots.store("meta", std::slice::from_ref(&older)).unwrap();
            fs.lose_power_after(seed % 8);
            let stored = snapshots.store("meta", std::slice::from_ref(&newer));
            fs.lose_power();
            let loaded = contents(&open(&fs));
            assert!(loaded == newer || (loaded == older && stored.is_err()), "seed {seed}");
            found.insert(loaded[0]);
        }
        assert_eq!(found.len(), 2, "both outcomes occur");
    }
}
