//! Numbers of a parameter that are used once a step: in memory, or in the scratch file.

use std::borrow::Cow;
use std::sync::Arc;

use super::scratch::Scratch;
use crate::error::ModelError;

/// As many numbers as a parameter has.
pub(super) enum Kept {
    Memory(Vec<f32>),
    File(FileRange),
}

/// A range of the scratch file.
pub(super) struct FileRange {
    scratch: Arc<Scratch>,
    /// In elements, as `len`.
    start: u64,
    len: usize,
}

impl Kept {
    /// All of them; a copy if they are in the file.
    pub(super) fn read(&self) -> Result<Cow<'_, [f32]>, ModelError> {
        match self {
            Self::Memory(values) => Ok(values.into()),
            Self::File(range) => {
                let mut values = vec![0.0; range.len];
                range.scratch.read(range.start, &mut values)?;
                Ok(values.into())
            }
        }
    }

    /// Puts others in their place; there must be as many.
    pub(super) fn write(&mut self, new: Vec<f32>) -> Result<(), ModelError> {
        match self {
            Self::Memory(values) => *values = new,
            Self::File(range) => range.scratch.write(range.start, &new)?,
        }
        Ok(())
    }

    /// Cuts the file to nothing, so that reading fails.
    #[cfg(test)]
    pub(super) fn cut_file(&self) {
        if let Self::File(range) = self {
            range.scratch.cut();
        }
    }

    /// Blocks of `size` elements, the last perhaps shorter.
    pub(super) fn blocks(&mut self, size: usize) -> Vec<Block<'_>> {
        match self {
            Self::Memory(values) => memory_blocks(values, size),
            Self::File(FileRange { scratch, start, len }) => (0..*len)
                .step_by(size)
                .map(|first| Block::File(scratch, *start + first as u64, size.min(*len - first)))
                .collect(),
        }
    }
}

/// A block of numbers that can be changed.
pub(super) enum Block<'a> {
    Memory(&'a mut [f32]),
    /// Scratch file, first element, number of elements.
    File(&'a Scratch, u64, usize),
    /// So many zeros, whose change is lost.
    Zeros(usize),
}

/// Blocks of a slice.
pub(super) fn memory_blocks(values: &mut [f32], size: usize) -> Vec<Block<'_>> {
    values.chunks_mut(size).map(Block::Memory).collect()
}

/// Blocks of `len` zeros.
pub(super) fn zero_blocks<'a>(len: usize, size: usize) -> Vec<Block<'a>> {
    (0..len).step_by(size).map(|first| Block::Zeros(size.min(len - first))).collect()
}

impl<'a> Block<'a> {
    /// Its numbers in memory; `buffer` holds them where they are not.
    pub(super) fn open(self, buffer: &'a mut Vec<f32>) -> Result<Open<'a>, ModelError> {
        let home = match self {
            Self::Memory(values) => return Ok(Open { values, home: None }),
            Self::File(scratch, start, len) => {
                buffer.resize(len, 0.0);
                scratch.read(start, buffer)?;
                Some((scratch, start))
            }
            Self::Zeros(len) => {
                buffer.clear();
                buffer.resize(len, 0.0);
                None
            }
        };
        Ok(Open { values: buffer, home })
    }
}

/// A block in memory.
pub(super) struct Open<'a> {
    pub(super) values: &'a mut [f32],
    home: Option<(&'a Scratch, u64)>,
}

impl Open<'_> {
    /// Writes what was changed back to where it came from.
    pub(super) fn save(&self) -> Result<(), ModelError> {
        self.home.map_or(Ok(()), |(scratch, start)| scratch.write(start, self.values))
    }
}

/// Where the numbers of one parameter after the other are kept.
pub(super) struct Place {
    scratch: Option<Arc<Scratch>>,
    next: u64,
}

impl Place {
    /// In memory, or in a file with room for all.
    pub(super) fn new(scratch: Option<Scratch>) -> Self {
        Self { scratch: scratch.map(Arc::new), next: 0 }
    }

    /// Room for `len` numbers, which are zero.
    pub(super) fn take(&mut self, len: usize) -> Kept {
        let Some(scratch) = &self.scratch else { return Kept::Memory(vec![0.0; len]) };
        let start = self.next;
        self.next += len as u64;
        Kept::File(FileRange { scratch: scratch.clone(), start, len })
    }

    /// Whether they are in a file.
    pub(super) fn is_file(&self) -> bool {
        self.scratch.is_some()
    }
}
