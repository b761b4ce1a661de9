//! Reading safetensors files, single or sharded.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::ModelError;
use crate::positioned::read_at;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Number formats in which weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredDtype {
    F32,
    F16,
    Bf16,
}

impl StoredDtype {
    /// The name in a tensor file.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// The nearest value of the format, ties to even.
    #[inline(always)]
    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Appends the little-endian bytes of the rounded value.
    #[inline(always)]
    pub(crate) fn push(self, value: f32, bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
            Self::F16 => bytes.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => bytes.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }

    /// Bytes of one element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The element that starts at the first byte; `bytes` must hold it.
    #[inline(always)]
    fn element(self, bytes: &[u8]) -> f32 {
        match self {
            Self::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Self::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }
}

/// Bytes that are read at a time where not the whole of a tensor is needed at once; a multiple of any element.
const PART_BYTES: usize = 1 << 20;

/// The place of one tensor in a file, checked for shape and format.
#[derive(Clone, Copy)]
pub(crate) struct StoredTensor<'a> {
    path: &'a Path,
    file: &'a File,
    bytes: &'a Range<usize>,
    pub(crate) dtype: StoredDtype,
}

impl StoredTensor<'_> {
    /// Calls `f` with the index and the value of each element, holding few of them in memory.
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, f32)) -> Result<(), ModelError> {
        let mut first = 0;
        self.for_each_part(|bytes| {
            let part = TensorBytes { bytes, dtype: self.dtype };
            let n = bytes.len() / self.dtype.size();
            part.for_each(0..n, |i, value| f(first + i, value));
            first += n;
        })
    }

    /// Calls `f` with the bytes, part by part.
    fn for_each_part(&self, mut f: impl FnMut(&[u8])) -> Result<(), ModelError> {
        let mut part = vec![0; PART_BYTES.min(self.bytes.len())];
        for start in self.bytes.clone().step_by(PART_BYTES) {
            let part = &mut part[..PART_BYTES.min(self.bytes.end - start)];
            self.read(start, part)?;
            f(part);
        }
        Ok(())
    }

    /// All bytes of the tensor.
    pub(crate) fn read_all(&self) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; self.bytes.len()];
        self.read(self.bytes.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether the other tensor has the same bytes.
    pub(crate) fn is_same(&self, other: &StoredTensor<'_>) -> Result<bool, ModelError> {
        if self.bytes.len() != other.bytes.len() {
            return Ok(false);
        }
        let (mut is_same, mut start) = (true, other.bytes.start);
        let mut theirs = vec![0; PART_BYTES.min(other.bytes.len())];
        let mut failed = None;
        self.for_each_part(|ours| {
            let theirs = &mut theirs[..ours.len()];
            if let Err(error) = other.read(start, theirs) {
                failed.get_or_insert(error);
            }
            is_same &= ours == theirs;
            start += ours.len();
        })?;
        failed.map_or(Ok(is_same), Err)
    }

    fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), ModelError> {
        read_at(self.file, bytes, start as u64)
            .map_err(|source| ModelError::Read { path: self.path.into(), source })
    }
}

/// Bytes of a tensor in memory.
#[derive(Clone, Copy)]
pub(crate) struct TensorBytes<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: StoredDtype,
}

impl TensorBytes<'_> {
    /// Calls `f` with the index within `range` and the value of each element of the range.
    pub(crate) fn for_each(&self, range: Range<usize>, mut f: impl FnMut(usize, f32)) {
        let size = self.dtype.size();
        let bytes = &self.bytes[range.start * size..range.end * size];
        for (i, element) in bytes.chunks_exact(size).enumerate() {
            f(i, self.dtype.element(element));
        }
    }
}

/// The weight files of a folder.
pub(crate) struct WeightFiles {
    files: Vec<(PathBuf, File)>,
    /// What is named where a tensor is missing.
    main_path: PathBuf,
    tensors: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl WeightFiles {
    /// Opens the weights of a model folder: the index with its shards if there is one, else the single file.
    pub(crate) fn open_model(dir: &Path) -> Result<Self, ModelError> {
        let index = dir.join(INDEX_FILE);
        if !index.exists() {
            return Self::open(&[dir.join(SINGLE_FILE)]);
        }
        let text = fs_err::read_to_string(&index)
            .map_err(|source| ModelError::Read { path: index.clone(), source })?;
        let value: Value = serde_json::from_str(&text).map_err(|e| ModelError::Malformed {
            path: index.clone(),
            kind: "JSON",
            source: e.into(),
        })?;
        let bad_map = || ModelError::ConfigKey {
            path: index.clone(),
            key: "weight_map".into(),
            problem: "is not an object of file names".into(),
        };
        let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(bad_map)?;
        let mut shard_of = BTreeMap::new();
        for (tensor, file) in map {
            let file = file.as_str().filter(|f| is_plain_name(f)).ok_or_else(bad_map)?;
            shard_of.insert(tensor.as_str(), file);
        }
        let shards: std::collections::BTreeSet<&str> = shard_of.values().copied().collect();
        let paths: Vec<PathBuf> = shards.iter().map(|name| dir.join(name)).collect();
        let mut files = Self::open(&paths)?;
        files.main_path = index;
        for (&name, &file) in &shard_of {
            let entry = files.tensors.get(name);
            if entry.is_none_or(|entry| files.files[entry.file].0 != dir.join(file)) {
                return Err(ModelError::MissingTensor { path: dir.join(file), name: name.into() });
            }
        }
        Ok(files)
    }

    /// Opens the given files; the first names what is missing.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, ModelError> {
        let mut files = Vec::new();
        let mut tensors = BTreeMap::new();
        let mut pairs = BTreeMap::new();
        for (index, path) in paths.iter().enumerate() {
            let read_error = |source| ModelError::Read { path: path.clone(), source };
            let file = fs_err::File::open(path).map_err(read_error)?;
            // SAFETY: the map is only read, and only for the header. Checkpoints are never changed in place: they are
            // written beside their final name and moved there. A file cut short by someone else while it is mapped
            // would end the process with a bus error, not corrupt it.
            let map = unsafe { Mmap::map(file.file()) }.map_err(read_error)?;
            let malformed = |source: safetensors::SafeTensorError| ModelError::Malformed {
                path: path.clone(),
                kind: "safetensors",
                source: source.into(),
            };
            let (header, metadata) = SafeTensors::read_metadata(&map).map_err(malformed)?;
            let data = header + 8;
            pairs.extend(metadata.metadata().clone().unwrap_or_default());
            for (name, info) in metadata.tensors() {
                let bytes = data + info.data_offsets.0..data + info.data_offsets.1;
                let entry = Entry { file: index, dtype: info.dtype, shape: info.shape.clone(), bytes };
                if tensors.insert(name.clone(), entry).is_some() {
                    return Err(ModelError::ExtraTensor { path: path.clone(), name });
                }
            }
            files.push((path.clone(), file.into_parts().0));
        }
        let main_path = paths.first().cloned().unwrap_or_default();
        Ok(Self { files, main_path, tensors, metadata: pairs })
    }

    /// Names of all tensors, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A value of the files' metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The file that holds a tensor, or the file that should.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.tensors.get(name).map_or(&self.main_path, |entry| &self.files[entry.file].0).clone()
    }

    /// Finds a tensor and checks its shape and number format.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<StoredTensor<'_>, ModelError> {
        let missing = || ModelError::MissingTensor { path: self.main_path.clone(), name: name.into() };
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let (path, file) = &self.files[entry.file];
        if entry.shape != shape {
            return Err(ModelError::TensorShape {
                path: path.clone(),
                name: name.into(),
                found: entry.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        let dtype = match entry.dtype {
            Dtype::F32 => StoredDtype::F32,
            Dtype::F16 => StoredDtype::F16,
            Dtype::BF16 => StoredDtype::Bf16,
            other => {
                return Err(ModelError::TensorDtype {
                    path: path.clone(),
                    name: name.into(),
                    found: format!("{other:?}"),
                    expected: "BF16, F16 or F32".into(),
                });
            }
        };
        Ok(StoredTensor { path, file, bytes: &entry.bytes, dtype })
    }
}

/// Whether an index names a file of its own folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\']) && name != ".."
}
