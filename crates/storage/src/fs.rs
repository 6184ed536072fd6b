//! The file system as the store sees it: a dozen calls behind two traits, so that the simulator can put a disk of its own
//! underneath ([`crate::SimFs`]) and benches a slow one ([`crate::SlowSync`]). [`DiskFs`] is the real one.

use std::{
    fs,
    io::{self, IoSlice},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use rustix::fs::{Advice, FallocateFlags, FlockOperation};

/// Directories and names.
pub trait FileSystem: Send + Sync {
    /// Creates a file that must not exist, open for reading and writing.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens a file that must exist, for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Names and sizes of the files in a directory, in any order. Directories are not listed.
    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>>;
    /// Creates a directory and its parents; it may exist.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file, replacing the target. Durable only after [`FileSystem::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Durable only after [`FileSystem::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in the directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that an unprivileged process may still allocate.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Locks a file (creating it) until the guard is dropped or the process ends; `WouldBlock` if another has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
    /// Sixteen random bytes: node ids and salts.
    fn random(&self) -> io::Result<[u8; 16]>;
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name, without the directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// A held lock; dropping it releases.
pub trait Lock: Send + Sync {}

/// An open file.
pub trait File: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Makes the file at least so long, with its blocks allocated and, beyond its old size, written as zeros. Writing them
    /// once halves the cost of each later sync: the file system has no extent to convert (`docs/formats.md`). Durable after
    /// [`File::sync`].
    fn preallocate(&self, size: u64) -> io::Result<()>;
    /// Makes the file at least so long, with its blocks allocated as far as the file system can: for one that is written only once.
    /// Durable after [`File::sync`].
    fn allocate(&self, size: u64) -> io::Result<()>;
    /// Writes all buffers one after the other from an offset. After an error any part may have been written.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Reads until the buffer is full or the file ends; returns the bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Makes contents and size durable (fdatasync).
    fn sync(&self) -> io::Result<()>;
    /// What is synced need not stay in the page cache: it will be written over, not read. Beside the memory that is a matter of writing:
    /// a large folio that was cached is dirtied, and counted, as a whole by any small write into it.
    fn forget_cached(&self) {}
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFs;

struct DiskFile(fs::File);

struct DiskLock(#[expect(dead_code, reason = "held: closing it unlocks")] fs::File);

impl Lock for DiskLock {}

impl FileSystem for DiskFs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(DiskFile(fs::OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                files.push(Listed { name, bytes: metadata.len() });
            }
        }
        Ok(files)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(DiskLock(file)))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(bytes)
    }
}

/// The kernel refuses more buffers than this in one call (IOV_MAX).
const MAX_BUFFERS: usize = 1024;

/// Zeros are written in pieces of this size.
const ZEROS_BYTES: usize = 1 << 20;

impl File for DiskFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let mut at = self.size()?;
        // Where that cannot be done, the zeros below allocate as well.
        self.allocate(size)?;
        let zeros = vec![0; ZEROS_BYTES];
        while at < size {
            let length = usize::try_from(size - at).map_or(ZEROS_BYTES, |left| left.min(ZEROS_BYTES));
            self.0.write_all_at(&zeros[..length], at)?;
            at += length as u64;
        }
        Ok(())
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        let at = self.size()?;
        if at >= size {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), at, size - at) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.0.set_len(size),
            other => Ok(other?),
        }
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for group in buffers.chunks(MAX_BUFFERS) {
            let total: usize = group.iter().map(|buffer| buffer.len()).sum();
            let mut written = loop {
                match rustix::io::pwritev(&self.0, group, offset) {
                    Ok(written) => break written,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            };
            if written < total {
                // Rare (a signal, a nearly full disk): the rest goes buffer by buffer.
                let mut at = offset + written as u64;
                for buffer in group {
                    let skip = written.min(buffer.len());
                    written -= skip;
                    self.0.write_all_at(&buffer[skip..], at)?;
                    at += (buffer.len() - skip) as u64;
                }
            }
            offset += total as u64;
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn forget_cached(&self) {
        // Advice: it may fail without harm.
        let _ = rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed);
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }
}

/// Reads exactly `length` bytes, or as many as there are.
pub(crate) fn read_up_to(file: &dyn File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_many_buffers_arrive_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskFs.create(&dir.path().join("f")).unwrap();
        let parts: Vec<[u8; 4]> = (0..3000u32).map(u32::to_le_bytes).collect();
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_at(&slices, 5).unwrap();
        assert_eq!(read_up_to(&*file, 5, 12_000).unwrap(), parts.concat());
        assert_eq!(file.size().unwrap(), 12_005);
    }

    #[test]
    fn preallocation_keeps_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = DiskFs.create(&dir.path().join("f")).unwrap();
        file.write_at(&[IoSlice::new(b"abc")], 0).unwrap();
        file.preallocate(3 << 20).unwrap();
        assert_eq!(read_up_to(&*file, 0, 5).unwrap(), b"abc\0\0");
        assert_eq!(file.size().unwrap(), 3 << 20);
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = DiskFs.lock(&path).unwrap();
        assert_eq!(DiskFs.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        DiskFs.lock(&path).unwrap();
    }
}
