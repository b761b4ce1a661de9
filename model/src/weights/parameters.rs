//! Which tensors a model has, and how those of the files lie in the fused ones.
//!
//! Projections are kept `(in, out)`, and those that read the same rows are one tensor: queries, keys and values;
//! gate and up. The embedding and the output projection stay `(vocabulary, hidden)`.

use rayon::prelude::*;

use super::files::{StoredDtype, TensorBytes, WeightFiles};
use crate::config::ModelConfig;
use crate::error::ModelError;

/// A trained tensor.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) kind: Kind,
    /// `[in, out]`, `[vocabulary, hidden]`, or `[width]`.
    pub(crate) shape: Vec<usize>,
    /// The tensors of the files, in column order.
    pub(crate) pieces: Vec<Piece>,
}

/// What a parameter is used for; layers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Embedding,
    InputNorm(usize),
    Qkv(usize),
    QkvBias(usize),
    QueryNorm(usize),
    KeyNorm(usize),
    AttentionOutput(usize),
    AttentionOutputBias(usize),
    FeedForwardNorm(usize),
    GateUp(usize),
    Down(usize),
    FinalNorm,
    Head,
    /// A factor of a low-rank adapter, by its number: none of the model's own.
    Factor(usize),
}

impl Kind {
    /// The layer it belongs to, if any.
    pub(crate) fn layer(self) -> Option<usize> {
        match self {
            Self::InputNorm(layer)
            | Self::Qkv(layer)
            | Self::QkvBias(layer)
            | Self::QueryNorm(layer)
            | Self::KeyNorm(layer)
            | Self::AttentionOutput(layer)
            | Self::AttentionOutputBias(layer)
            | Self::FeedForwardNorm(layer)
            | Self::GateUp(layer)
            | Self::Down(layer) => Some(layer),
            Self::Embedding | Self::FinalNorm | Self::Head | Self::Factor(_) => None,
        }
    }
}

/// One tensor of the files and its columns in the fused tensor.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) name: String,
    /// Shape in the file.
    pub(crate) shape: Vec<usize>,
    pub(crate) first_column: usize,
    is_transposed: bool,
}

/// All parameters of an architecture, in the order in which everything runs over them.
pub(crate) fn parameters(config: &ModelConfig) -> Vec<Parameter> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, keys) = (config.attention_width(), config.n_kv_heads * config.head_dim);
    let embedding = |kind, name: &str| Parameter::alone(kind, name.into(), vec![config.vocab_size, hidden]);
    let mut all = vec![embedding(Kind::Embedding, "model.embed_tokens.weight")];
    for layer in 0..config.n_layers {
        let prefix = format!("model.layers.{layer}.");
        let vector = |kind, name: &str, width| vector(kind, &[(format!("{prefix}{name}"), width)]);
        let qkv = |suffix: &str| {
            [("q", queries), ("k", keys), ("v", keys)]
                .map(|(part, width)| (format!("{prefix}self_attn.{part}_proj.{suffix}"), width))
        };
        all.push(vector(Kind::InputNorm(layer), "input_layernorm.weight", hidden));
        all.push(matrix(Kind::Qkv(layer), hidden, &qkv("weight")));
        if config.has_qkv_bias {
            all.push(self::vector(Kind::QkvBias(layer), &qkv("bias")));
        }
        if config.has_qk_norm {
            all.push(vector(Kind::QueryNorm(layer), "self_attn.q_norm.weight", config.head_dim));
            all.push(vector(Kind::KeyNorm(layer), "self_attn.k_norm.weight", config.head_dim));
        }
        let output = [(format!("{prefix}self_attn.o_proj.weight"), hidden)];
        all.push(matrix(Kind::AttentionOutput(layer), queries, &output));
        if config.has_output_bias {
            all.push(vector(Kind::AttentionOutputBias(layer), "self_attn.o_proj.bias", hidden));
        }
        all.push(vector(Kind::FeedForwardNorm(layer), "post_attention_layernorm.weight", hidden));
        let gate_up = ["gate", "up"].map(|part| (format!("{prefix}mlp.{part}_proj.weight"), inner));
        all.push(matrix(Kind::GateUp(layer), hidden, &gate_up));
        all.push(matrix(Kind::Down(layer), inner, &[(format!("{prefix}mlp.down_proj.weight"), hidden)]));
    }
    all.push(vector(Kind::FinalNorm, &[("model.norm.weight".into(), hidden)]));
    if !config.is_tied {
        all.push(embedding(Kind::Head, "lm_head.weight"));
    }
    all
}

fn matrix(kind: Kind, depth: usize, parts: &[(String, usize)]) -> Parameter {
    let mut first_column = 0;
    let pieces = parts
        .iter()
        .map(|(name, width)| {
            let piece =
                Piece { name: name.clone(), shape: vec![*width, depth], first_column, is_transposed: true };
            first_column += width;
            piece
        })
        .collect();
    Parameter { kind, shape: vec![depth, first_column], pieces }
}

fn vector(kind: Kind, parts: &[(String, usize)]) -> Parameter {
    let mut first_column = 0;
    let pieces = parts
        .iter()
        .map(|(name, width)| {
            let piece = Piece { name: name.clone(), shape: vec![*width], first_column, is_transposed: false };
            first_column += width;
            piece
        })
        .collect();
    Parameter { kind, shape: vec![first_column], pieces }
}

impl Parameter {
    /// A tensor that is one of the files, in the layout it has there.
    pub(crate) fn alone(kind: Kind, name: String, shape: Vec<usize>) -> Self {
        let piece = Piece { name, shape: shape.clone(), first_column: 0, is_transposed: false };
        Self { kind, shape, pieces: vec![piece] }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether weight decay applies: to matrices, not to norms and biases.
    pub(crate) fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// The initial value of norms, 1, and biases, 0; nothing for matrices.
    pub(crate) fn fill(&self) -> Option<f32> {
        match self.kind {
            Kind::QkvBias(_) | Kind::AttentionOutputBias(_) => Some(0.0),
            _ if self.is_matrix() => None,
            _ => Some(1.0),
        }
    }

    /// The format in which the files hold all pieces.
    pub(crate) fn dtype(&self, files: &WeightFiles) -> Result<StoredDtype, ModelError> {
        let mut common = None;
        for piece in &self.pieces {
            let dtype = files.tensor(&piece.name, &piece.shape)?.dtype;
            if *common.get_or_insert(dtype) != dtype {
                return Err(ModelError::TensorDtype {
                    path: files.path_of(&piece.name),
                    name: piece.name.clone(),
                    found: format!("{:?}", dtype.dtype()),
                    expected: format!("as `{}`", self.pieces[0].name),
                });
            }
        }
        Ok(common.unwrap_or(StoredDtype::F32))
    }

    /// Reads the pieces, each under `prefix` and its name, into the fused layout.
    pub(crate) fn read(&self, files: &WeightFiles, prefix: &str) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; self.len()];
        for piece in &self.pieces {
            let name = format!("{prefix}{}", piece.name);
            let stored = files.tensor(&name, &piece.shape)?;
            let bad = if piece.is_transposed {
                let bytes = stored.read_all()?;
                self.read_transposed(piece, TensorBytes { bytes: &bytes, dtype: stored.dtype }, &mut values)
            } else {
                let target = &mut values[piece.first_column..];
                let mut bad = None;
                stored.for_each(|i, value| {
                    target[i] = value;
                    if !value.is_finite() && bad.is_none() {
                        bad = Some(i);
                    }
                })?;
                bad
            };
            if let Some(index) = bad {
                return Err(ModelError::NotFinite { path: files.path_of(&name), name, index });
            }
        }
        Ok(values)
    }

    /// Reads `(out, in)` into columns of `(in, out)` rows; returns the index of the first value that is not finite.
    fn read_transposed(&self, piece: &Piece, stored: TensorBytes<'_>, values: &mut [f32]) -> Option<usize> {
        const BLOCK: usize = 32;
        let (width, depth) = (piece.shape[0], piece.shape[1]);
        let stride = self.shape[1];
        values
            .par_chunks_mut(BLOCK * stride)
            .enumerate()
            .filter_map(|(block, rows)| {
                let inputs = block * BLOCK..(block * BLOCK + BLOCK).min(depth);
                let mut bad = None;
                for out in 0..width {
                    let column = piece.first_column + out;
                    stored.for_each(out * depth + inputs.start..out * depth + inputs.end, |i, value| {
                        rows[i * stride + column] = value;
                        if !value.is_finite() && bad.is_none() {
                            bad = Some(out * depth + inputs.start + i);
                        }
                    });
                }
                bad
            })
            .min()
    }

    /// Calls `f` with the values of one piece, in its layout in the files.
    fn for_each_value(&self, piece: &Piece, values: &[f32], mut f: impl FnMut(f32)) {
        let n: usize = piece.shape.iter().product();
        if piece.is_transposed {
            let (width, stride) = (piece.shape[0], self.shape[1]);
            for column in piece.first_column..piece.first_column + width {
                values[column..].iter().step_by(stride).for_each(|value| f(*value));
            }
        } else {
            values[piece.first_column..piece.first_column + n].iter().for_each(|value| f(*value));
        }
    }

    /// The bytes of one piece in its layout in the files.
    pub(crate) fn piece_bytes(&self, piece: &Piece, values: &[f32], dtype: StoredDtype) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(piece.shape.iter().product::<usize>() * dtype.size());
        self.for_each_value(piece, values, |value| dtype.push(value, &mut bytes));
        bytes
    }

    /// The values of one piece in its layout in the files.
    pub(crate) fn piece_values(&self, piece: &Piece, values: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(piece.shape.iter().product());
        self.for_each_value(piece, values, |value| out.push(value));
        out
    }
}
