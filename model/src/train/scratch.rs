//! Training state in a file instead of memory.
//!
//! The file has no name: it is gone when the trainer is dropped, and also when the process is killed. Its numbers have the
//! byte order of the machine.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::ModelError;
use crate::positioned::{read_at, write_at};

const SIZE: u64 = size_of::<f32>() as u64;

/// A file of `f32` numbers, zero where nothing was written.
pub(super) struct Scratch {
    folder: PathBuf,
    file: File,
}

impl Scratch {
    /// Makes a file of `len` zeros in a folder. Where the system can, room for all of them is set aside without writing
    /// any, so that a full disk is an error now and not in the middle of a step.
    pub(super) fn create(folder: &Path, len: u64) -> Result<Self, ModelError> {
        let n_bytes = len.saturating_mul(SIZE);
        let no_room = |source| ModelError::Scratch { folder: folder.into(), n_bytes, source };
        fs_err::create_dir_all(folder).map_err(no_room)?;
        let file = tempfile::tempfile_in(folder).map_err(no_room)?;
        #[cfg(target_os = "linux")]
        if n_bytes > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            match fallocate(&file, FallocateFlags::empty(), 0, n_bytes) {
                // A file system that cannot set room aside: it takes the blocks as they are written.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(no_room(errno.into())),
            }
        }
        file.set_len(n_bytes).map_err(no_room)?;
        Ok(Self { folder: folder.into(), file })
    }

    /// Fills `values` with the numbers from element `start` on.
    pub(super) fn read(&self, start: u64, values: &mut [f32]) -> Result<(), ModelError> {
        read_at(&self.file, bytemuck::cast_slice_mut(values), start * SIZE)
            .map_err(|source| ModelError::Read { path: self.name(), source })
    }

    /// Writes `values` from element `start` on.
    pub(super) fn write(&self, start: u64, values: &[f32]) -> Result<(), ModelError> {
        write_at(&self.file, bytemuck::cast_slice(values), start * SIZE)
            .map_err(|source| ModelError::Write { path: self.name(), source })
    }

    /// What messages call the file.
    fn name(&self) -> PathBuf {
        self.folder.join("(scratch file of the optimizer)")
    }

    #[cfg(test)]
    pub(super) fn cut(&self) {
        self.file.set_len(0).unwrap();
    }

    /// A scratch over a file of the test's choice.
    #[cfg(test)]
    pub(super) fn over(file: File) -> Self {
        Self { folder: "somewhere".into(), file }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_zero_and_takes_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(folder.path(), 1 << 20).unwrap();
        scratch.write(5, &[1.5, -2.0]).unwrap();
        let mut values = [9.0; 4];
        scratch.read(4, &mut values).unwrap();
        assert_eq!(values, [0.0, 1.5, -2.0, 0.0]);
        scratch.read((1 << 20) - 4, &mut values).unwrap();
        assert_eq!(values, [0.0; 4]);
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_disk_without_room_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        // 2^62 bytes: more than any file system holds.
        let error = Scratch::create(folder.path(), 1 << 60).err().unwrap();
        let expected = format!("cannot set aside 4611686018427387904 bytes in `{}`", folder.path().display());
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().unwrap().contains("execution.scratch_folder"));
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let scratch = Scratch::over(tempfile::tempfile().unwrap());
        let error = scratch.read(0, &mut [0.0]).unwrap_err().to_string();
        assert_eq!(error, "cannot read `somewhere/(scratch file of the optimizer)`");
        let file = tempfile::NamedTempFile::new().unwrap();
        let scratch = Scratch::over(File::open(file.path()).unwrap());
        let error = scratch.write(0, &[0.0]).unwrap_err().to_string();
        assert_eq!(error, "cannot write `somewhere/(scratch file of the optimizer)`");
    }
}
