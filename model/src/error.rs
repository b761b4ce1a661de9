//! Everything that can go wrong in this crate.

use std::path::PathBuf;

use crate::lora::TARGET_MODULES;
use crate::memory::{Exactly, Setting};

/// What a boxed cause looks like; the crates it comes from have no common error type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a model, a tokenizer, a template, an engine or a trainer could not do what was asked.
///
/// `Display` says what failed and where; the cause is only in `source`. What to do next is in
/// [`ModelError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file could not be read. The cause names the path too.
    #[error("cannot read `{}`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write `{}`", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// There is no room for the scratch file of the optimizer, or it cannot be made.
    #[error("cannot set aside {n_bytes} bytes in `{}`", .folder.display())]
    Scratch {
        /// Where the file was to be.
        folder: PathBuf,
        /// Its size.
        n_bytes: u64,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what its name says: broken JSON, a truncated or corrupt tensor file, an unknown template syntax.
    #[error("`{}` is not a valid {kind} file", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should have been, such as `JSON` or `safetensors`.
        kind: &'static str,
        /// The parser's reason.
        #[source]
        source: Cause,
    },
    /// A key of a configuration file is missing or has the wrong type or an impossible value.
    #[error("key `{key}` in `{}` {problem}", .path.display())]
    ConfigKey {
        /// The file.
        path: PathBuf,
        /// The key, dotted where it is nested.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key of a configuration file asks for something this crate does not implement.
    #[error("key `{key}` in `{}` has an unsupported value: {value}", .path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, dotted where it is nested.
        key: String,
        /// The value as JSON.
        value: String,
    },
    /// A tensor that the configuration asks for is in no weight file.
    #[error("tensor `{name}` is missing in `{}`", .path.display())]
    MissingTensor {
        /// The weight file or the index.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A weight file holds a tensor that the configuration does not know.
    #[error("tensor `{name}` in `{}` does not belong to this architecture", .path.display())]
    ExtraTensor {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("tensor `{name}` in `{}` has shape {found:?}, expected {expected:?}", .path.display())]
    TensorShape {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a number format that cannot be used.
    #[error("tensor `{name}` in `{}` is stored as {found}, expected {expected}", .path.display())]
    TensorDtype {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its format.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A tensor holds a value that is not a finite number.
    #[error("tensor `{name}` in `{}` holds a value that is not finite, at element: {index}", .path.display())]
    NotFinite {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Flat index of the first such element.
        index: usize,
    },
    /// A matrix with what an adapter adds to it is beyond its number format.
    #[error(
        "tensor `{name}` with what is added to it by `{}` is not finite, at element: {index}", .path.display()
    )]
    AdapterSum {
        /// The adapter's weight file.
        path: PathBuf,
        /// The tensor of the base.
        name: String,
        /// Flat index of the first such element.
        index: usize,
    },
    /// An adapter is to be trained further as something that it is not.
    #[error("the adapter in `{}` is of another kind: {difference}", .dir.display())]
    AdapterKind {
        /// Its folder.
        dir: PathBuf,
        /// The first difference, with both values.
        difference: String,
    },
    /// An adapter was trained with a dropout of inputs, which training does not have here.
    #[error("training does not drop inputs, and `lora_dropout` of the adapter in `{}` is: {dropout}", .dir.display())]
    AdapterDropout {
        /// Its folder.
        dir: PathBuf,
        /// The share.
        dropout: f64,
    },
    /// A token id is not in the model's vocabulary.
    #[error("token id is outside the vocabulary of {vocab_size}: {token_id}")]
    TokenRange {
        /// The id.
        token_id: u32,
        /// Number of rows of the embedding.
        vocab_size: usize,
    },
    /// A sequence is longer than the model's or the cache's limit.
    #[error("sequence needs {needed} positions, more than the limit: {limit}")]
    ContextOverflow {
        /// Positions asked for.
        needed: usize,
        /// Positions there are.
        limit: usize,
    },
    /// The cache is too small for a single sequence.
    #[error(
        "keys and values of a sequence of {n_tokens} tokens take {}, more than the size given: {}",
        Exactly(*.needed),
        Exactly(*.given)
    )]
    KvMemory {
        /// Tokens of prompt and generation, at most.
        n_tokens: usize,
        /// Bytes that they take, in whole blocks.
        needed: u64,
        /// Bytes there may be.
        given: u64,
        /// Tokens of the longest sequence that the model takes.
        context_length: usize,
        /// Bytes that these take.
        needed_by_longest: u64,
    },
    /// A GPU is asked for and the program was built without the feature for it.
    #[error("this program was built without CUDA, which it needs for the device: {name}")]
    NoCuda {
        /// The device.
        name: String,
    },
    /// A device is not there, or its driver is not.
    #[error("cannot open the device: {name}")]
    Device {
        /// The device.
        name: String,
        /// What the driver said.
        #[source]
        source: Cause,
    },
    /// An argument that no correct caller passes, such as rows out of order.
    #[error("{what}")]
    Invalid {
        /// What is wrong, with the value last.
        what: String,
    },
    /// The tensor library refused an operation.
    #[error("computation failed in {what}")]
    Compute {
        /// The operation.
        what: &'static str,
        /// The library's reason.
        #[source]
        source: candle_core::Error,
    },
}

impl ModelError {
    /// What the user can do about it, if anything; printed as `hint: ...`.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::MissingTensor { name, .. } if name == "lm_head.weight" => {
                Some("set `tie_word_embeddings` to true if the output projection is the embedding".into())
            }
            Self::Unsupported { key, .. } if key == "model_type" => {
                Some("the families are: qwen3, qwen2, llama".into())
            }
            Self::Unsupported { key, .. } if key == "target_modules" => Some(format!(
                "an adapter is of projections of the decoder layers: {}",
                TARGET_MODULES.join(", ")
            )),
            Self::ConfigKey { key, .. } if key == "base_model_name_or_path" => {
                Some("nothing is downloaded: set the key to the folder of the base model".into())
            }
            Self::MissingTensor { name, .. } | Self::ExtraTensor { name, .. }
                if name.starts_with("base_model.") =>
            {
                Some(
                    "the tensors of an adapter are those of its `target_modules` in this base, all of them"
                        .into(),
                )
            }
            Self::Read { path, source }
                if source.kind() == std::io::ErrorKind::NotFound
                    && path.extension().is_some_and(|extension| extension == "safetensors") =>
            {
                Some("put all weight files of the model into its folder: the index names the shards".into())
            }
            Self::Malformed { kind: "safetensors", .. } => {
                Some("the file may be cut off or a Git LFS pointer: download it again".into())
            }
            Self::ConfigKey { key, .. } if key == "lora_alpha" => Some(
                "the weight of an adapter is its alpha over its rank, or over the root of the rank: give a number that 32 \
                 bits hold, other than 0"
                    .into(),
            ),
            Self::AdapterSum { .. } => Some(
                "the adapter's values or its weight, alpha over rank, are too large: look at `lora_alpha` of an adapter from \
                 elsewhere, and at the learning rate of one that was trained here"
                    .into(),
            ),
            Self::AdapterKind { .. } => Some(
                "give `[lora]` the values of the adapter, or leave the section out; to begin another adapter, make adapter \
                 and base one model first with `checkpoint merge`"
                    .into(),
            ),
            Self::AdapterDropout { .. } => Some(
                "set it to 0 in `adapter_config.json` of the folder that the adapter came from, and begin with that folder"
                    .into(),
            ),
            Self::NotFinite { .. } => Some("the checkpoint is damaged: go back to an earlier one".into()),
            Self::Scratch { .. } => Some(
                "make room there, name a folder on another disk (`execution.scratch_folder`), or keep the optimizer's \
                 state in memory (`execution.optimizer_state = \"memory\"`)"
                    .into(),
            ),
            Self::NoCuda { .. } => Some(
                "build with `--features cuda` where the CUDA toolkit is, or compute with `execution.device = \"cpu\"`".into(),
            ),
            Self::Device { .. } => Some(
                "see that the driver is there and `nvidia-smi` lists the GPU, or compute with `execution.device = \"cpu\"`"
                    .into(),
            ),
            Self::ContextOverflow { .. } => {
                Some("shorten the prompt or lower the limit of new tokens".into())
            }
            Self::KvMemory { needed, context_length, needed_by_longest, .. } => Some(format!(
                "set `execution.kv_memory`, or `--kv-memory` of one call, to \"{}\" or more, to \"{}\" for all that fits the \
                 context of {context_length} tokens, or to \"auto\"; or lower the limit of new tokens",
                Setting(*needed),
                Setting(*needed_by_longest)
            )),
            _ => None,
        }
    }

    /// An error for [`ModelError::Invalid`].
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }
}

/// Adds the name of the operation to an error of the tensor library.
pub(crate) trait ComputeContext<T> {
    /// Wraps the error, naming `what` was being computed.
    fn computing(self, what: &'static str) -> Result<T, ModelError>;
}

impl<T> ComputeContext<T> for candle_core::Result<T> {
    fn computing(self, what: &'static str) -> Result<T, ModelError> {
        self.map_err(|source| ModelError::Compute { what, source })
    }
}
