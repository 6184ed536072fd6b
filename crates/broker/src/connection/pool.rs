//! Buffers that a thread lends to whichever connection is at work, so that an idle connection holds none.

use std::cell::RefCell;

/// One read: large enough to make a system call worth it, small enough to stay in the cache (256 KiB measured slower).
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// Buffers a thread keeps: one to read into and one to gather messages in, and a spare.
const KEEP: usize = 3;
/// Buffers that grew beyond this for a large frame are not kept.
const KEEP_BYTES: usize = 4 * READ_BYTES;

thread_local! {
    static READ: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static STAGE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of at least [`READ_BYTES`] initialised bytes.
pub(crate) fn take_read() -> Vec<u8> {
    READ.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; READ_BYTES])
}

/// Gives a read buffer back.
pub(crate) fn put_read(buffer: Vec<u8>) {
    if buffer.len() >= READ_BYTES && buffer.len() <= KEEP_BYTES {
        READ.with_borrow_mut(|buffers| {
            if buffers.len() < KEEP {
                buffers.push(buffer);
            }
        });
    }
}

/// An empty buffer with room for what one read brings.
pub(crate) fn take_stage() -> Vec<u8> {
    STAGE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
}

/// Gives a gathering buffer back.
pub(crate) fn put_stage(mut buffer: Vec<u8>) {
    buffer.clear();
    if buffer.capacity() >= READ_BYTES && buffer.capacity() <= KEEP_BYTES {
        STAGE.with_borrow_mut(|buffers| {
            if buffers.len() < KEEP {
                buffers.push(buffer);
            }
        });
    }
}
