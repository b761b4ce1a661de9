//! Memory that starts at a cache line.

use pulp::bytemuck::{self, Pod, Zeroable};

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

// SAFETY: a line is 64 bytes of integers without padding, for which every bit pattern is a value.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// A growable buffer of 4-byte numbers whose first element starts a cache line, so that a vector of the widest kind
/// never lies across two of them.
#[derive(Clone, Default)]
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

impl Aligned {
    /// Gives it a length. New elements are zero, old ones what they were.
    pub(crate) fn resize(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(16), Line([0; 16]));
        self.len = len;
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_f32(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn as_f32_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    pub(crate) fn as_u32(&self) -> &[u32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn as_u32_mut(&mut self) -> &mut [u32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
