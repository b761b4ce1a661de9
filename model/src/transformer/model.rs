//! A loaded model and its forward pass over a cache.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use envace_kernels::{HeadLayout, Panels};

use super::cache::Blocks;
use super::device_cache::{DeviceBlocks, Formats};
use super::{KvCache, LayerContext, Piece, Projection, RopeTable, Weights, layer_forward};
use crate::config::ModelConfig;
use crate::error::{ComputeContext, ModelError};
use crate::lora::{Adapter, ModelFolder};
use crate::ops::{rms_norm, with_elements};
use crate::weights::{self, Kind, LoadedParameter, StoredDtype};

/// A model ready to sample from. Immutable, so threads can share it.
pub struct Model {
    config: ModelConfig,
    device: Device,
    /// The formats of the tensor library's operations, where these compute and not the kernels.
    composed: Option<Formats>,
    weights: Weights,
    rope: RopeTable,
}

impl Model {
    /// Loads a model folder in Hugging Face layout, `config.json` and one or more safetensors files, or an adapter's
    /// folder with the base it names; see [`ModelFolder::open`].
    ///
    /// Sums are in `f32`. On the CPU, matrices stored in `bf16` stay `bf16`; everything else is widened to `f32`. No
    /// value changes. On a GPU, products of matrices that are stored in `bf16` are of `bf16` numbers with sums in `f32`;
    /// so are keys and values then kept, and everything between is `f32`, the logits too. What an adapter adds is added
    /// now, and the matrices it is added to are `f32`, so that sampling is as fast as with weights in `f32`.
    ///
    /// # Errors
    /// Those of [`ModelConfig::load`]; a missing, extra, damaged or wrongly shaped tensor, each named with its file; those of
    /// [`ModelFolder::open`], and an adapter that does not fit the base.
    pub fn load(dir: &Path, device: &Device) -> Result<Self, ModelError> {
        Self::load_from(&ModelFolder::open(dir)?, device)
    }

    /// As [`Model::load`], of folders that are known.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_from(folder: &ModelFolder, device: &Device) -> Result<Self, ModelError> {
        let rows = if device.is_cpu() { None } else { Some(DType::F32) };
        Self::load_as(folder, device, rows)
    }

    /// As [`Model::load_from`], computed as on a GPU also on the CPU, there in `f64` in place of `f32`: slow, to check that
    /// form with.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_composed(folder: &ModelFolder, device: &Device) -> Result<Self, ModelError> {
        // The kernels stand in for operations on `f32` rows in main memory.
        Self::load_as(folder, device, Some(if device.is_cpu() { DType::F64 } else { DType::F32 }))
    }

    /// `rows` is the format between the tensor library's products; without one the kernels compute.
    fn load_as(folder: &ModelFolder, device: &Device, rows: Option<DType>) -> Result<Self, ModelError> {
        let config = ModelConfig::load(&folder.base)?;
        let adapter = folder.adapter.as_ref().map(|dir| Adapter::load(dir, &config)).transpose()?;
        let (mut matrices, mut vectors) = (BTreeMap::new(), BTreeMap::new());
        let mut kv = rows;
        weights::load_each(&folder.base, &config, |mut loaded| {
            if let Some(adapter) = &adapter {
                adapter.merge_into(&mut loaded)?;
            }
            let kind = loaded.parameter.kind;
            if loaded.parameter.is_matrix() {
                if kind == Kind::Embedding && loaded.dtype == StoredDtype::Bf16 {
                    kv = rows.map(|_| DType::BF16);
                }
                let matrix = match rows {
                    Some(rows) => composed_projection(loaded, &config, device, rows),
                    None => projection(loaded, &config, device),
                };
                matrices.insert(kind, matrix.computing("loading weights")?);
            } else {
                let tensor = Tensor::from_slice(&loaded.values, loaded.parameter.shape.as_slice(), device)
                    .and_then(|tensor| tensor.to_dtype(rows.unwrap_or(DType::F32)));
                vectors.insert(kind, tensor.computing("loading weights")?);
            }
            Ok(())
        })?;
        let weights = Weights::assemble(
            &config,
            |kind| matrices.get(&kind).cloned(),
            |kind| vectors.get(&kind).cloned(),
        )?;
        let rope = RopeTable::new(&config);
        let composed = rows.zip(kv).map(|(rows, kv)| Formats { rows, kv });
        Ok(Self { config, device: device.clone(), composed, weights, rope })
    }

    /// Sizes and switches.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights lie.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes an empty cache of `n_blocks` blocks for this model.
    pub fn cache(&self, n_blocks: usize) -> KvCache {
        let Some(formats) = self.composed else {
            return KvCache::new(&self.config, n_blocks);
        };
        let blocks = DeviceBlocks::new(layout(&self.config), self.config.n_layers, &self.device, formats);
        KvCache::of(&self.config, n_blocks, Blocks::Device(blocks))
    }

    /// Memory that a block of its cache takes, in bytes.
    pub fn block_bytes(&self) -> usize {
        match self.composed {
            Some(formats) => DeviceBlocks::block_bytes(layout(&self.config), self.config.n_layers, formats),
            None => KvCache::block_bytes(&self.config),
        }
    }

    /// Computes hidden states, after the final norm, of pieces of sequences whose earlier positions the cache holds.
    ///
    /// The result is `(tokens, hidden)`, piece after piece. On the CPU a row's bits depend on its sequence alone, not on
    /// what else is in the call or how the sequence is cut into pieces.
    ///
    /// # Errors
    /// [`ModelError::TokenRange`] for a token outside the vocabulary; [`ModelError::ContextOverflow`];
    /// [`ModelError::Invalid`] for an empty piece, blocks that do not fit it, or a cache of another kind of model. Nothing
    /// is then stored.
    pub fn forward_cached(&self, pieces: &[Piece<'_>], kv: &mut KvCache) -> Result<Tensor, ModelError> {
        if pieces.is_empty() {
            return Err(ModelError::invalid("there is nothing to compute: no pieces"));
        }
        if matches!(kv.blocks, Blocks::Device(_)) != self.composed.is_some() {
            return Err(ModelError::invalid(
                "the cache is of a model on another device; make it with the model",
            ));
        }
        let tokens: Vec<u32> = pieces.iter().flat_map(|piece| piece.token_ids).copied().collect();
        let mut x = embed(&tokens, &self.weights.embedding, &self.device)?;
        if let Some(formats) = self.composed {
            x = x.to_dtype(formats.rows).computing("the embedding")?;
        }
        kv.reserve(pieces)?;
        let context = LayerContext {
            layout: layout(&self.config),
            eps: self.config.rms_norm_eps,
            angles: self.rope.angles(pieces.iter().flat_map(|piece| piece.position..piece.end())),
        };
        let shape = (tokens.len(), context.layout.query_width());
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            x = layer_forward(&x, weights, &context, |qkv| match &mut kv.blocks {
                Blocks::Device(blocks) => blocks.attend(layer, qkv),
                Blocks::Cpu(blocks) => {
                    let attended = with_elements(qkv, |qkv| Ok(blocks.attend(layer, pieces, qkv)))?;
                    Tensor::from_vec(attended, shape, &self.device)
                }
            })
            .computing("a decoder layer")?;
        }
        rms_norm(&x, &self.weights.final_norm, self.config.rms_norm_eps).computing("the final norm")
    }

    /// Projects hidden states, `(rows, hidden)`, to logits, `(rows, vocabulary)`, in nats before any temperature.
    ///
    /// # Errors
    /// [`ModelError::Compute`] if the width is not that of the model.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, ModelError> {
        self.weights.head.forward(hidden).computing("the vocabulary projection")
    }
}

/// How the heads of a configuration lie in a row.
pub(crate) fn layout(config: &ModelConfig) -> HeadLayout {
    HeadLayout { n_heads: config.n_heads, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim }
}

/// Looks up the rows of the embedding.
pub(crate) fn embed(tokens: &[u32], embedding: &Projection, device: &Device) -> Result<Tensor, ModelError> {
    let vocab_size = embedding.n_outputs().computing("the embedding")?;
    if let Some(&token_id) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(ModelError::TokenRange { token_id, vocab_size });
    }
    embedding.look_up(tokens, device).computing("the embedding")
}

/// A loaded matrix in the form that the kernels read.
fn projection(
    loaded: LoadedParameter,
    config: &ModelConfig,
    device: &Device,
) -> candle_core::Result<Projection> {
    let LoadedParameter { parameter, dtype, values } = loaded;
    let (n_rows, n_columns) = (parameter.shape[0], parameter.shape[1]);
    let is_by_output = matches!(parameter.kind, Kind::Embedding | Kind::Head);
    // An embedding that is only looked up needs no panels.
    let is_looked_up = parameter.kind == Kind::Embedding && !config.is_tied;
    if !is_looked_up {
        let panels = if is_by_output {
            Panels::from_transposed(&values, n_columns, n_rows)
        } else {
            Panels::from_rows(&values, n_rows, n_columns)
        };
        let panels = if dtype == StoredDtype::Bf16 { panels.to_bf16() } else { panels };
        return Ok(Projection::Panels(Arc::new(panels)));
    }
    let tensor = Tensor::from_vec(values, (n_rows, n_columns), device)?;
    Ok(Projection::Transposed(if dtype == StoredDtype::Bf16 {
        tensor.to_dtype(DType::BF16)?
    } else {
        tensor
    }))
}

/// A loaded matrix in the form that the tensor library's operations read. The one that gives the logits is in the format
/// of `rows`: rounded to `bf16`, logits would be far from what training computes.
fn composed_projection(
    loaded: LoadedParameter,
    config: &ModelConfig,
    device: &Device,
    rows: DType,
) -> candle_core::Result<Projection> {
    let LoadedParameter { parameter, dtype, values } = loaded;
    let is_head = parameter.kind == if config.is_tied { Kind::Embedding } else { Kind::Head };
    let format = if dtype == StoredDtype::Bf16 && !is_head { DType::BF16 } else { rows };
    let tensor = Tensor::from_vec(values, parameter.shape.as_slice(), device)?.to_dtype(format)?;
    Ok(match parameter.kind {
        Kind::Embedding | Kind::Head => Projection::Transposed(tensor),
        _ => Projection::Direct(tensor),
    })
}
