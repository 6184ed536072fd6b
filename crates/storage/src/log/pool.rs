//! Files waiting to become log files: recycled or new ones (`free-N`), and the small reserve for a full disk (`reserve-N`).
//!
//! Making a file takes as long as writing 64 MiB of zeros, so it is done under a lock of its own, which only those wait for
//! who need a file that is not there.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

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
pub(crate) struct Pool {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: LogOptions,
    making: Mutex<()>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    free: Vec<FreeFile>,
    reserve: Vec<FreeFile>,
    next_name: u64,
    /// The last attempt to make a file found no space.
    full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Free,
    Reserve,
}

const UNFINISHED: &str = ".new";

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Free => "free-",
            Kind::Reserve => "reserve-",
        }
    }
}

impl Pool {
    /// Takes up the files that an earlier run left, and removes unfinished ones.
    pub(crate) fn open(fs: Arc<dyn FileSystem>, dir: &Path, options: LogOptions) -> Result<Pool, StorageError> {
        let mut waiting = Waiting::default();
        for listed in fs.list(dir).map_err(StorageError::io("list", dir))? {
            let path = dir.join(&listed.name);
            let kinds = [(Kind::Free, options.file_bytes), (Kind::Reserve, options.reserve_bytes)];
            let known = kinds.into_iter().find(|(kind, _)| listed.name.starts_with(kind.prefix()));
            let Some((kind, capacity)) = known else { continue };
            let number = listed.name[kind.prefix().len()..].parse::<u64>();
            if number.is_err() || listed.bytes != u64::from(capacity) {
                fs.remove(&path).map_err(StorageError::io("remove", &path))?;
                continue;
            }
            waiting.next_name = waiting.next_name.max(number.unwrap_or_default());
            let file = fs.open(&path).map_err(StorageError::io("open", &path))?;
            waiting.of(kind).push(FreeFile { path, file, capacity, dirty_end: capacity });
        }
        Ok(Pool { fs, dir: dir.to_path_buf(), options, making: Mutex::new(()), waiting: Mutex::new(waiting) })
    }

    /// Whether there is no file for ordinary submissions, and no space to make one.
    pub(crate) fn is_exhausted(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.full && waiting.free.is_empty()
    }

    /// Whether the last attempt to make a file found no space.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.lock().full
    }

    /// A file for the log to go on in, made now if none is at hand.
    pub(crate) fn take(&self) -> Result<FreeFile, StorageError> {
        if let Some(free) = self.pop(Kind::Free) {
            return Ok(free);
        }
        let _making = self.making.lock();
        match self.pop(Kind::Free) {
            Some(free) => Ok(free),
            None => self.make(Kind::Free),
        }
    }

    /// A file for something that does not fit into an ordinary one. It is written once and not kept, so it is not filled with zeros.
    pub(crate) fn make_large(&self, capacity: u32) -> Result<FreeFile, StorageError> {
        let name = self.waiting.lock().name(Kind::Free);
        self.try_make(capacity, self.options.min_free_bytes, &name, |file, size| file.allocate(size))
    }

    /// A file of the reserve.
    pub(crate) fn take_reserve(&self) -> Option<FreeFile> {
        self.pop(Kind::Reserve)
    }

    fn pop(&self, kind: Kind) -> Option<FreeFile> {
        self.waiting.lock().of(kind).pop()
    }

    /// Takes in a file that holds nothing of worth any more, under its free or reserve name.
    pub(crate) fn put_back(&self, free: FreeFile) {
        let kind = if free.capacity == self.options.file_bytes { Kind::Free } else { Kind::Reserve };
        free.file.forget_cached();
        let mut waiting = self.waiting.lock();
        waiting.full &= kind == Kind::Reserve;
        waiting.of(kind).push(free);
    }

    /// A name for a file that leaves the log; `None` if a file of its size is of no use.
    pub(crate) fn name_for(&self, capacity: u32) -> Option<PathBuf> {
        let mut waiting = self.waiting.lock();
        let kind = match capacity {
            bytes if bytes == self.options.file_bytes => Kind::Free,
            bytes if bytes == self.options.reserve_bytes && waiting.reserve.len() < self.options.reserve_files => {
                Kind::Reserve
            }
            _ => return None,
        };
        Some(self.dir.join(waiting.name(kind)))
    }

    /// Makes the files that should be at hand, the reserve first. What cannot be made for want of space is tried again at
    /// the next call.
    pub(crate) fn fill(&self, want_free: bool) -> Result<(), StorageError> {
        let _making = self.making.lock();
        loop {
            let kind = {
                let waiting = self.waiting.lock();
                if waiting.reserve.len() < self.options.reserve_files {
                    Kind::Reserve
                } else if waiting.free.is_empty() && (want_free || waiting.full) {
                    Kind::Free
                } else {
                    return Ok(());
                }
            };
            match self.make(kind) {
                Ok(free) => self.waiting.lock().of(kind).push(free),
                Err(error) if error.is_full() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes files beyond those to keep.
    pub(crate) fn trim(&self, keep: usize) -> Result<(), StorageError> {
        let excess = {
            let mut waiting = self.waiting.lock();
            let keep = keep.min(waiting.free.len());
            waiting.free.split_off(keep)
        };
        let remove = |free: FreeFile| self.fs.remove(&free.path).map_err(StorageError::io("remove", &free.path));
        excess.into_iter().try_for_each(remove)
    }

    /// Bytes on disk of all files here.
    pub(crate) fn bytes(&self) -> u64 {
        let waiting = self.waiting.lock();
        waiting.free.iter().chain(&waiting.reserve).map(|free| u64::from(free.capacity)).sum()
    }

    fn make(&self, kind: Kind) -> Result<FreeFile, StorageError> {
        let name = self.waiting.lock().name(kind);
        let (capacity, keep_free) = match kind {
            Kind::Free => (self.options.file_bytes, self.options.min_free_bytes),
            // The reserve is for the time when there is no space, so it may take the last.
            Kind::Reserve => (self.options.reserve_bytes, 0),
        };
        let made = self.try_make(capacity, keep_free, &name, |file, size| file.preallocate(size));
        match &made {
            Ok(_) => self.waiting.lock().full = false,
            Err(error) if error.is_full() => self.waiting.lock().full = true,
            Err(_) => {}
        }
        made
    }

    fn try_make(
        &self,
        capacity: u32,
        keep_free: u64,
        name: &str,
        allocate: impl FnOnce(&dyn File, u64) -> std::io::Result<()>,
    ) -> Result<FreeFile, StorageError> {
        let free = self.fs.free_bytes(&self.dir).map_err(StorageError::io("look at", &self.dir))?;
        if free < u64::from(capacity) + keep_free {
            return Err(StorageError::Full { dir: self.dir.clone() });
        }
        let unfinished = self.dir.join(format!("{name}{UNFINISHED}"));
        let path = self.dir.join(name);
        let file = self.fs.create(&unfinished).map_err(StorageError::io("create", &unfinished))?;
        let allocated = allocate(&*file, u64::from(capacity))
            .and_then(|()| file.sync())
            .and_then(|()| self.fs.rename(&unfinished, &path))
            .map_err(StorageError::io("allocate", &path));
        if let Err(error) = allocated {
            // Best effort: opening the log removes it, too.
            let _ = self.fs.remove(&unfinished);
            return Err(error);
        }
        file.forget_cached();
        Ok(FreeFile { path, file, capacity, dirty_end: 0 })
    }
}

impl Waiting {
    fn of(&mut self, kind: Kind) -> &mut Vec<FreeFile> {
        match kind {
            Kind::Free => &mut self.free,
            Kind::Reserve => &mut self.reserve,
        }
    }

    fn name(&mut self, kind: Kind) -> String {
        self.next_name += 1;
        format!("{}{}", kind.prefix(), self.next_name)
    }
}
