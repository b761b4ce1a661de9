//! Memory that is used again.

use envace_kernels::zeros;

/// Vectors that are not in use. Large ones are costly to get from the system and to fill with zeros each time.
#[derive(Default)]
pub(super) struct Buffers(Vec<Vec<f32>>);

impl Buffers {
    /// A vector of this length; what it holds is for the caller to overwrite.
    pub(super) fn take(&mut self, len: usize) -> Vec<f32> {
        let fitting = self.0.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= len);
        let smallest = fitting.min_by_key(|(_, buffer)| buffer.capacity()).map(|(index, _)| index);
        match smallest {
            Some(index) => {
                let mut buffer = self.0.swap_remove(index);
                buffer.resize(len, 0.0);
                buffer
            }
            None => zeros(len),
        }
    }

    /// As [`Buffers::take`], with the elements of `values`.
    pub(super) fn copy(&mut self, values: &[f32]) -> Vec<f32> {
        let mut buffer = self.take(values.len());
        buffer.copy_from_slice(values);
        buffer
    }

    /// Gives a vector back.
    pub(super) fn give(&mut self, buffer: Vec<f32>) {
        if buffer.capacity() > 0 {
            self.0.push(buffer);
        }
    }
}
