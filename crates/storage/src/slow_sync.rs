//! A file system whose syncs take longer: for benches that ask what happens on a device of 500 syncs per second.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use crate::fs::{File, FileSystem, Listed, Lock};

/// Adds a delay to every sync of a file; all else goes straight to the file system below.
pub struct SlowSync<F> {
    below: F,
    delay: Duration,
}

impl<F: FileSystem> SlowSync<F> {
    /// Each sync of a file takes at least `delay` longer.
    pub fn new(below: F, delay: Duration) -> SlowSync<F> {
        SlowSync { below, delay }
    }

    fn wrap(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(SlowFile { file, delay: self.delay })
    }
}

impl<F: FileSystem> FileSystem for SlowSync<F> {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.below.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.below.open(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        self.below.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.below.create_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.below.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.below.sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.below.free_bytes(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.below.lock(path)
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        self.below.random()
    }
}

struct SlowFile {
    file: Arc<dyn File>,
    delay: Duration,
}

impl File for SlowFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        self.file.preallocate(size)
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        self.file.allocate(size)
    }

    fn forget_cached(&self) {
        self.file.forget_cached();
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_at(buffers, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        thread::sleep(self.delay);
        self.file.sync()
    }
}
