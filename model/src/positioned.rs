//! Reads and writes at a place in a file, by any number of threads at a time.
//!
//! Unlike the pages of a mapped file, what is read so never counts as memory of the process.

use std::fs::File;
use std::io;

/// Fills `bytes` from the file, from `offset` on; a file that ends before is an error.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Writes all of `bytes` to the file, from `offset` on.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// One at a time: elsewhere a file has one place at which it is read and written.
#[cfg(not(unix))]
static PLACE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(not(unix))]
pub(crate) fn read_at(mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek};
    let _turn = PLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

#[cfg(not(unix))]
pub(crate) fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, Write};
    let _turn = PLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(io::SeekFrom::Start(offset))?;
    file.write_all(bytes)
}
