//! Memory that starts at a cache line, and large memory on large pages.

use memmap2::MmapMut;
use pulp::bytemuck::{self, Pod, Zeroable};

/// The smallest large page of the usual processors; on others, only the size from which they are asked for.
const LARGE_PAGE: usize = 2 << 20;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

// SAFETY: a line is 64 bytes of integers without padding, for which every bit pattern is a value.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// A growable buffer of 4-byte numbers whose first element starts a cache line, so that a vector of the widest kind
/// never lies across two of them. A long one lies on large pages; see [`zeros`].
#[derive(Default)]
pub(crate) struct Aligned {
    memory: Memory,
    len: usize,
}

enum Memory {
    Lines(Vec<Line>),
    /// From the system itself, which lets a mapping of whole large pages start at one.
    Mapped(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

impl Memory {
    /// At least this many elements, all zero.
    fn zeros(len: usize) -> Self {
        let n_bytes = len * size_of::<u32>();
        if n_bytes >= LARGE_PAGE
            && let Ok(memory) = MmapMut::map_anon(n_bytes.next_multiple_of(LARGE_PAGE))
        {
            // Not the end of the last page, which nothing touches.
            let whole = (n_bytes + LARGE_PAGE / 2) / LARGE_PAGE * LARGE_PAGE;
            ask_for_large_pages(memory.as_ptr(), whole);
            return Self::Mapped(memory);
        }
        Self::Lines(vec![Line([0; 16]); len.div_ceil(16)])
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines),
            Self::Mapped(memory) => memory,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Self::Mapped(memory) => memory,
        }
    }
}

impl Aligned {
    /// Gives it a length. What it then holds is either zero or anything that it held before: for the caller to overwrite.
    pub(crate) fn reset(&mut self, len: usize) {
        if len * size_of::<u32>() > self.memory.bytes().len() {
            self.memory = Memory::zeros(len);
        }
        self.len = len;
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_f32(&self) -> &[f32] {
        &bytemuck::cast_slice(self.memory.bytes())[..self.len]
    }

    pub(crate) fn as_f32_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(self.memory.bytes_mut())[..self.len]
    }

    pub(crate) fn as_u32(&self) -> &[u32] {
        &bytemuck::cast_slice(self.memory.bytes())[..self.len]
    }

    pub(crate) fn as_u32_mut(&mut self) -> &mut [u32] {
        &mut bytemuck::cast_slice_mut(self.memory.bytes_mut())[..self.len]
    }
}

/// A vector of zeros; a long one lies on large pages where the system has them.
///
/// With pages of 4 KiB, weights that are read once a token miss the address cache at every page, and new memory is
/// handed out by an interrupt a page.
pub fn zeros(len: usize) -> Vec<f32> {
    let zeros = vec![0.0; len];
    ask_for_large_pages(zeros.as_ptr(), len);
    zeros
}

/// Asks the system to back memory, best before it is first touched, by large pages as far as it contains whole ones.
#[cfg(target_os = "linux")]
fn ask_for_large_pages<T>(start: *const T, len: usize) {
    let (start, n_bytes) = (start.addr(), len * size_of::<T>());
    let aligned = start.next_multiple_of(LARGE_PAGE);
    let n_bytes = (start + n_bytes).saturating_sub(aligned) / LARGE_PAGE * LARGE_PAGE;
    if n_bytes > 0 {
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: this advice changes no content of memory and no right to it, whatever the range.
        let result =
            unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(aligned), n_bytes, advice) };
        // A system without large pages refuses; the pages then stay small.
        result.unwrap_or_default();
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages<T>(_start: *const T, _len: usize) {}
