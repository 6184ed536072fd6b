//! Who the data directory belongs to: a file of 64 bytes with the UUID of the node and of its cluster. Names and addresses
//! of a node may change; this does not.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `WRNMQNOD` |
//! | 8 | 4 | format version of the data directory |
//! | 12 | 4 | CRC32C of bytes 0..12 and 16..64 |
//! | 16 | 16 | node id |
//! | 32 | 16 | cluster id; zeros before the node has one |
//! | 48 | 16 | zeros |
//!
//! Written aside, synced and renamed, so that it is never torn: a bad one is damaged.

use std::{
    io::{ErrorKind, IoSlice},
    path::Path,
};

use crate::{
    codec::{Input, set},
    error::StorageError,
    fs::{FileSystem, read_up_to},
};

/// Version of the layout of the data directory.
pub const DIRECTORY_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"WRNMQNOD";
const LENGTH: usize = 64;
const NAME: &str = "identity";

/// Ids of the node and its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the node, made when the data directory was.
    pub node: [u8; 16],
    /// UUID of the cluster; zeros before the node has one.
    pub cluster: [u8; 16],
}

/// Why bytes are not an identity file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityFault {
    /// Too short, or magic or checksum wrong.
    Damaged,
    /// A later format, with a good checksum.
    Newer(u32),
}

impl Identity {
    /// The bytes of the file.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        set(&mut bytes, 0, MAGIC);
        set(&mut bytes, 8, DIRECTORY_FORMAT.to_le_bytes());
        set(&mut bytes, 16, self.node);
        set(&mut bytes, 32, self.cluster);
        let crc = checksum(&bytes);
        set(&mut bytes, 12, crc.to_le_bytes());
        bytes
    }

    /// Reads the bytes of the file; bytes after the 64th do not matter.
    pub fn decode(bytes: &[u8]) -> Result<Identity, IdentityFault> {
        let bytes = bytes.get(..LENGTH).ok_or(IdentityFault::Damaged)?;
        let mut input = Input(bytes);
        let mut fields = || -> Result<_, crate::codec::Short> {
            Ok((
                input.array::<8>()?,
                input.u32()?,
                input.u32()?,
                Identity { node: input.array()?, cluster: input.array()? },
            ))
        };
        let (magic, format, crc, identity) = fields().map_err(|_| IdentityFault::Damaged)?;
        if magic != MAGIC || crc != checksum(bytes) {
            return Err(IdentityFault::Damaged);
        }
        if format > DIRECTORY_FORMAT { Err(IdentityFault::Newer(format)) } else { Ok(identity) }
    }

    /// Reads the identity of a data directory; `None` if it has none yet.
    pub fn load(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Identity>, StorageError> {
        let path = dir.join(NAME);
        let file = match fs.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::io("open", path)(error)),
        };
        let bytes = read_up_to(&*file, 0, LENGTH).map_err(StorageError::io("read", &path))?;
        match Identity::decode(&bytes) {
            Ok(identity) => Ok(Some(identity)),
            Err(IdentityFault::Newer(found)) => {
                Err(StorageError::NewerFormat { file: path, found, supported: DIRECTORY_FORMAT })
            }
            Err(IdentityFault::Damaged) => Err(StorageError::damaged(path, 0, "the identity of the node")),
        }
    }

    /// Makes a node id for a new data directory, without a cluster, and stores it.
    pub fn create(fs: &dyn FileSystem, dir: &Path) -> Result<Identity, StorageError> {
        let node = uuid(fs.random().map_err(StorageError::io("get random bytes for", dir))?);
        let identity = Identity { node, cluster: [0; 16] };
        identity.store(fs, dir)?;
        Ok(identity)
    }

    /// Stores the identity, durably and at once or not at all.
    pub fn store(&self, fs: &dyn FileSystem, dir: &Path) -> Result<(), StorageError> {
        let path = dir.join(NAME);
        let aside = dir.join("identity.new");
        match fs.remove(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(StorageError::io("remove", aside)(error)),
            _ => {}
        }
        let file = fs.create(&aside).map_err(StorageError::io("create", &aside))?;
        file.write_at(&[IoSlice::new(&self.encode())], 0).map_err(StorageError::io("write", &aside))?;
        file.sync().map_err(StorageError::io("sync", &aside))?;
        fs.rename(&aside, &path).map_err(StorageError::io("rename", &aside))?;
        fs.sync_dir(dir).map_err(StorageError::io("sync", dir))
    }
}

/// Random bytes as a version 4 UUID (RFC 9562, section 5.4).
pub fn uuid(mut random: [u8; 16]) -> [u8; 16] {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    random
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::DiskFs;

    #[test]
    fn identity_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::load(&DiskFs, dir.path()).unwrap(), None);
        let made = Identity::create(&DiskFs, dir.path()).unwrap();
        assert_eq!(Identity::load(&DiskFs, dir.path()).unwrap(), Some(made));
        assert_ne!(made.node, [0; 16]);
    }

    #[test]
    fn a_damaged_identity_is_refused_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let made = Identity::create(&DiskFs, dir.path()).unwrap();
        for at in 0..LENGTH {
            let mut bytes = made.encode();
            bytes[at] ^= 4;
            std::fs::write(dir.path().join(NAME), bytes).unwrap();
            let error = Identity::load(&DiskFs, dir.path()).unwrap_err();
            assert!(
                matches!(&error, StorageError::Damaged(damage) if damage.file.ends_with(NAME)),
                "byte {at}: {error}"
            );
        }
    }
}
