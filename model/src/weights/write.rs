//! Writing safetensors files whose bytes depend on the content alone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, View};

use super::files::StoredDtype;
use super::parameters::{Parameter, Piece};
use crate::error::ModelError;

/// A tensor to write; its bytes are made when they are written, so that only one tensor is copied at a time.
pub(crate) struct OutputTensor<'a> {
    pub(crate) parameter: &'a Parameter,
    pub(crate) piece: &'a Piece,
    pub(crate) values: &'a [f32],
    pub(crate) dtype: StoredDtype,
}

impl View for OutputTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.piece.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.parameter.piece_bytes(self.piece, self.values, self.dtype).into()
    }

    fn data_len(&self) -> usize {
        self.piece.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Writes tensors by name into one file, readable by all, and waits until it is on the disk.
///
/// `metadata` is at most one pair: the library writes more of them in a random order.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, OutputTensor<'a>)>,
    metadata: (&str, String),
) -> Result<(), ModelError> {
    let write_error = |source: std::io::Error| ModelError::Write { path: path.into(), source };
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1)]);
    safetensors::serialize_to_file(tensors, Some(metadata), path)
        .map_err(|error| write_error(std::io::Error::other(error)))?;
    let file = fs_err::File::open(path).map_err(write_error)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The library's temporary file can be read by its owner only.
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(write_error)?;
    }
    file.sync_all().map_err(write_error)
}
