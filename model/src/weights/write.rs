//! Writing safetensors files whose bytes depend on the content alone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use safetensors::{Dtype, View};

use super::files::StoredDtype;
use super::parameters::{Parameter, Piece};
use crate::error::ModelError;

/// Where the values of a parameter come from when they are written.
pub(crate) type Source<'a> = Box<dyn Fn() -> Result<Cow<'a, [f32]>, ModelError> + 'a>;

/// A tensor to write; its bytes are made when they are written, so that only one tensor is copied at a time.
pub(crate) struct OutputTensor<'a> {
    pub(crate) parameter: &'a Parameter,
    pub(crate) piece: &'a Piece,
    pub(crate) values: Source<'a>,
    pub(crate) dtype: StoredDtype,
}

/// A tensor as the library takes it, which knows of no errors: the first is put aside, and zeros are written.
struct Written<'a, 'f> {
    tensor: OutputTensor<'a>,
    failed: &'f Mutex<Option<ModelError>>,
}

impl View for Written<'_, '_> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.piece.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let OutputTensor { parameter, piece, values, dtype } = &self.tensor;
        match values() {
            Ok(values) => parameter.piece_bytes(piece, &values, *dtype).into(),
            Err(error) => {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                vec![0; self.data_len()].into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.tensor.piece.shape.iter().product::<usize>() * self.tensor.dtype.size()
    }
}

/// Writes tensors by name into one file, readable by all, and waits until it is on the disk.
///
/// `metadata` is at most one pair: the library writes more of them in a random order. On an error, of a tensor's source or
/// of the disk, there is no new file.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, OutputTensor<'a>)>,
    metadata: (&str, String),
) -> Result<(), ModelError> {
    let write_error = |source: std::io::Error| ModelError::Write { path: path.into(), source };
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1)]);
    let failed = Mutex::new(None);
    let tensors = tensors.into_iter().map(|(name, tensor)| (name, Written { tensor, failed: &failed }));
    // Under another name until it is known that all values were there.
    let partial = path.with_extension("partial");
    let written = safetensors::serialize_to_file(tensors, Some(metadata), &partial)
        .map_err(|error| write_error(std::io::Error::other(error)));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = failed.or(written.err()) {
        // The error that is reported is why there is no file.
        let _ = fs_err::remove_file(&partial);
        return Err(error);
    }
    fs_err::rename(&partial, path).map_err(write_error)?;
    let file = fs_err::File::open(path).map_err(write_error)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The library's temporary file can be read by its owner only.
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(write_error)?;
    }
    file.sync_all().map_err(write_error)
}
