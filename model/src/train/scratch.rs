//! Training state in a file instead of memory.
//!
//! The file has no name: it is gone when the trainer is dropped, and also when the process is killed. Its numbers have the
//! byte order of the machine.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::ModelError;
use crate::positioned::{read_at, write_at};
use crate::weights::StoredDtype;

const SIZE: u64 = size_of::<f32>() as u64;

/// Elements of the file that a parameter of `len` needs: its gradient, two moments and, unless it is stored as `f32`,
/// master values.
pub(crate) fn scratch_len(len: usize, dtype: StoredDtype) -> u64 {
    let n_copies = if dtype == StoredDtype::F32 { 3 } else { 4 };
    n_copies * len as u64
}

/// Checks that a folder takes a scratch file of so many bytes, without taking their room, and says whether the folder
/// is in memory; where the system does not tell, it is not. A folder that is not there is made.
///
/// # Errors
/// [`ModelError::Scratch`] if no file can be made there, or too little room is left.
pub fn check_scratch(folder: &Path, n_bytes: u64) -> Result<bool, ModelError> {
    let refused = |source| ModelError::Scratch { folder: folder.into(), n_bytes, source };
    let file = open_in(folder).map_err(refused)?;
    let Some(found) = look_at(&file) else { return Ok(false) };
    if found.n_free < n_bytes {
        let room = format!("there is room for {} bytes", found.n_free);
        return Err(refused(std::io::Error::new(std::io::ErrorKind::StorageFull, room)));
    }
    Ok(found.is_in_memory)
}

/// What the system tells of where a file lies.
struct FileSystem {
    /// Bytes that can still be written.
    n_free: u64,
    is_in_memory: bool,
}

#[cfg(target_os = "linux")]
fn look_at(file: &File) -> Option<FileSystem> {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of the kernel.
    const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let room = rustix::fs::fstatvfs(file).ok()?;
    let kind = rustix::fs::fstatfs(file).ok()?.f_type;
    let is_in_memory = IN_MEMORY.contains(&(kind as u64));
    // A file system that does not say how large it is says 0.
    let n_free = if room.f_blocks == 0 { u64::MAX } else { room.f_bavail.saturating_mul(room.f_frsize) };
    Some(FileSystem { n_free, is_in_memory })
}

#[cfg(not(target_os = "linux"))]
fn look_at(_file: &File) -> Option<FileSystem> {
    None
}

/// A file without a name.
fn open_in(folder: &Path) -> std::io::Result<File> {
    fs_err::create_dir_all(folder)?;
    tempfile::tempfile_in(folder)
}

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
        let file = open_in(folder).map_err(no_room)?;
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
        let created = Scratch::create(folder.path(), 1 << 60).err();
        for error in [created, check_scratch(folder.path(), 1 << 62).err()] {
            let error = error.unwrap();
            let expected =
                format!("cannot set aside 4611686018427387904 bytes in `{}`", folder.path().display());
            assert_eq!(error.to_string(), expected);
            assert!(error.hint().unwrap().contains("execution.scratch_folder"));
            assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_place_that_takes_no_file_is_an_error_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut places = vec![file.path().to_owned(), file.path().join("below")];
        if cfg!(target_os = "linux") {
            // A folder in which nobody may write.
            places.push("/proc".into());
        }
        for place in places {
            let error = check_scratch(&place, 8).unwrap_err().to_string();
            assert_eq!(error, format!("cannot set aside 8 bytes in `{}`", place.display()));
        }
        let folder = tempfile::tempdir().unwrap();
        check_scratch(&folder.path().join("new"), 8).unwrap();
    }

    #[test]
    fn a_folder_in_memory_is_known() {
        let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let [_, "/dev/shm", kind, ..] = words[..] {
                assert_eq!(check_scratch(Path::new("/dev/shm"), 0).unwrap(), kind == "tmpfs");
            }
        }
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
