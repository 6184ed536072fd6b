//! Files waiting to become log files: recycled or new ones (`free-N`), and the small reserve for a full disk (`reserve-N`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::StorageError,
    fs::{File, FileSystem},
    log::LogOptions,
};

/// A preallocated file that holds nothing of worth.
pub(crate) struct FreeFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) capacity: u32,
    /// Beyond this offset there are only zeros.
    pub(crate) dirty_end: u32,
}

/// The files in waiting.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<FreeFile>,
    reserve: Vec<FreeFile>,
    next_name: u64,
    /// The last attempt to make a file found no space.
    pub(crate) full: bool,
}

const FREE: &str = "free-";
const RESERVE: &str = "reserve-";
const UNFINISHED: &str = ".new";

impl Pool {
    /// Takes up the files that an earlier run left, and removes unfinished ones.
    pub(crate) fn open(fs: &dyn FileSystem, dir: &Path, options: &LogOptions) -> Result<Pool, StorageError> {
        let mut pool = Pool::default();
        for listed in fs.list(dir).map_err(StorageError::io("list", dir))? {
            let path = dir.join(&listed.name);
            if listed.name.ends_with(UNFINISHED) {
                fs.remove(&path).map_err(StorageError::io("remove", &path))?;
                continue;
            }
            let (kind, size) = match (listed.name.strip_prefix(FREE), listed.name.strip_prefix(RESERVE)) {
                (Some(number), _) => (number, options.file_bytes),
                (_, Some(number)) => (number, options.reserve_bytes),
                _ => continue,
            };
            let Ok(number) = kind.parse::<u64>() else { continue };
            pool.next_name = pool.next_name.max(number + 1);
            if listed.bytes != u64::from(size) {
                fs.remove(&path).map_err(StorageError::io("remove", &path))?;
                continue;
            }
            let file = fs.open(&path).map_err(StorageError::io("open", &path))?;
            let free = FreeFile { path, file, capacity: size, dirty_end: size };
            if listed.name.starts_with(FREE) { pool.free.push(free) } else { pool.reserve.push(free) }
        }
        Ok(pool)
    }

    /// Whether a file for ordinary submissions is at hand.
    pub(crate) fn is_ready(&self) -> bool {
        !self.free.is_empty()
    }

    /// A file for the log to go on in, made now if none is at hand.
    pub(crate) fn take(
        &mut self,
        fs: &dyn FileSystem,
        dir: &Path,
        options: &LogOptions,
    ) -> Result<FreeFile, StorageError> {
        if let Some(free) = self.free.pop() {
            return Ok(free);
        }
        self.make(fs, dir, FREE, options.file_bytes, options.min_free_bytes)
    }

    /// A file of the reserve.
    pub(crate) fn take_reserve(&mut self) -> Option<FreeFile> {
        self.reserve.pop()
    }

    /// Takes in a file that holds nothing of worth any more, under its free or reserve name.
    pub(crate) fn put_back(&mut self, free: FreeFile, options: &LogOptions) {
        if free.capacity == options.file_bytes {
            self.full = false;
            self.free.push(free);
        } else {
            self.reserve.push(free);
        }
    }

    /// A name for a file that leaves the log; `None` if a file of its size is of no use.
    pub(crate) fn name_for(&mut self, dir: &Path, capacity: u32, options: &LogOptions) -> Option<PathBuf> {
        let kind = match capacity {
            bytes if bytes == options.file_bytes => FREE,
            bytes if bytes == options.reserve_bytes && self.reserve.len() < options.reserve_files => RESERVE,
            _ => return None,
        };
        self.next_name += 1;
        Some(dir.join(format!("{kind}{}", self.next_name)))
    }

    /// Makes the files that should be at hand: the reserve first. What cannot be made for want of space is tried again
    /// at the next call.
    pub(crate) fn fill(
        &mut self,
        fs: &dyn FileSystem,
        dir: &Path,
        options: &LogOptions,
        want_free: bool,
    ) -> Result<(), StorageError> {
        let made = loop {
            let (kind, size, keep) = if self.reserve.len() < options.reserve_files {
                // The reserve is for the time when there is no space, so it may take the last.
                (RESERVE, options.reserve_bytes, 0)
            } else if self.free.is_empty() && (want_free || self.full) {
                (FREE, options.file_bytes, options.min_free_bytes)
            } else {
                break Ok(());
            };
            match self.make(fs, dir, kind, size, keep) {
                Ok(free) if kind == RESERVE => self.reserve.push(free),
                Ok(free) => self.free.push(free),
                Err(error) => break Err(error),
            }
        };
        match made {
            Err(error) if error.is_full() => Ok(()),
            other => other,
        }
    }

    /// Removes files beyond those that the log will want soon.
    pub(crate) fn trim(&mut self, fs: &dyn FileSystem, keep: usize) -> Result<(), StorageError> {
        while self.free.len() > keep {
            let Some(free) = self.free.pop() else { break };
            fs.remove(&free.path).map_err(StorageError::io("remove", &free.path))?;
        }
        Ok(())
    }

    /// Bytes on disk of all files here.
    pub(crate) fn bytes(&self) -> u64 {
        self.free.iter().chain(&self.reserve).map(|free| u64::from(free.capacity)).sum()
    }

    fn make(
        &mut self,
        fs: &dyn FileSystem,
        dir: &Path,
        kind: &str,
        size: u32,
        keep_free: u64,
    ) -> Result<FreeFile, StorageError> {
        let result = self.try_make(fs, dir, kind, size, keep_free);
        match &result {
            Ok(_) => self.full = false,
            Err(error) if error.is_full() => self.full = true,
            Err(_) => {}
        }
        result
    }

    fn try_make(
        &mut self,
        fs: &dyn FileSystem,
        dir: &Path,
        kind: &str,
        size: u32,
        keep_free: u64,
    ) -> Result<FreeFile, StorageError> {
        let free = fs.free_bytes(dir).map_err(StorageError::io("look at", dir))?;
        if free < u64::from(size) + keep_free {
            return Err(StorageError::Full { dir: dir.to_path_buf() });
        }
        self.next_name += 1;
        let name = format!("{kind}{}", self.next_name);
        let unfinished = dir.join(format!("{name}{UNFINISHED}"));
        let path = dir.join(name);
        let file = fs.create(&unfinished).map_err(StorageError::io("create", &unfinished))?;
        let allocated = file
            .preallocate(u64::from(size))
            .and_then(|()| file.sync())
            .and_then(|()| fs.rename(&unfinished, &path))
            .map_err(StorageError::io("allocate", &path));
        if let Err(error) = allocated {
            // Best effort: opening the log removes it, too.
            let _ = fs.remove(&unfinished);
            return Err(error);
        }
        Ok(FreeFile { path, file, capacity: size, dirty_end: 0 })
    }
}
