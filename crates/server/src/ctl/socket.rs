//! Where the socket is.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// The socket's name in the data directory.
const NAME: &str = "ctl.sock";
/// Longest path of a socket in bytes, with its closing zero, is 108 on Linux; some are kept for the name that a listener begins with.
const MAX_PATH_BYTES: usize = 100;

/// A path by which the socket of a data directory can be reached. Where the directory's own path is too long for a socket, it goes by an open
/// directory, which is kept as long as the path is.
#[derive(Debug)]
pub(super) struct SocketPath {
    directory: PathBuf,
    _open: Option<File>,
}

impl SocketPath {
    /// The path for this data directory.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub(super) fn of(data_dir: &Path) -> io::Result<Self> {
        if data_dir.as_os_str().len() + 1 + NAME.len() <= MAX_PATH_BYTES {
            return Ok(Self { directory: data_dir.to_owned(), _open: None });
        }
        let open = File::open(data_dir)?;
        let directory = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        Ok(Self { directory, _open: Some(open) })
    }

    /// The socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// Where a listener makes its socket before everyone can see it.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.directory.join(".ctl")
    }
}
