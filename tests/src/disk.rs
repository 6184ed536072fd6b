//! A small file system of its own for a test: a tmpfs that root may mount.

use crate::power::skipped;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Written at once when the disk is filled.
const PIECE_BYTES: usize = 1 << 20;

/// A mounted disk; unmounted when dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a disk of so many MiB. `None` where that is not allowed, which is said loudly.
    pub fn mount(mebibytes: u32) -> Option<SmallDisk> {
        let directory = tempfile::Builder::new().prefix("warrenmq-disk-").tempdir().expect("a temporary directory");
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(directory.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk(directory)),
            Ok(output) => {
                skipped(&format!("cannot mount a small disk: {}", String::from_utf8_lossy(&output.stderr).trim()));
                None
            }
            Err(error) => {
                skipped(&format!("cannot mount a small disk: {error}"));
                None
            }
        }
    }

    /// A directory on it, for a broker.
    pub fn data_dir(&self) -> PathBuf {
        self.0.path().join("data")
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.0.path()).expect("the disk is there");
        stat.f_bavail * stat.f_frsize
    }

    /// Fills the disk with a file that has nothing to do with the broker, down to so many free bytes.
    pub fn fill(&self, leave_bytes: u64) {
        let mut file = fs::File::options().create(true).append(true).open(self.ballast()).expect("a file on the disk");
        let piece = vec![0x55; PIECE_BYTES];
        while let Some(left) = self.free_bytes().checked_sub(leave_bytes).filter(|&left| left > 0) {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            if file.write_all(&piece[..length]).is_err() {
                return;
            }
        }
    }

    /// Removes that file.
    pub fn empty(&self) {
        fs::remove_file(self.ballast()).expect("the disk was filled");
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a broker of a failing test may still be on it.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).output();
    }
}
