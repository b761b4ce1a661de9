//! Keys and values on a device, stored and attended over by the tensor library's operations.
//!
//! A layer has two tensors with a row for each position of all blocks. What a call reads and writes of them is the same
//! in every layer, so it is worked out once, when the call is reserved.

use candle_core::{D, DType, Device, Result, Tensor, bail};
use envace_kernels::HeadLayout;

use super::{KvCache, Piece};

/// Query rows of one sequence whose scores exist at a time.
const QUERY_ROWS: usize = 128;
/// Positions of pieces of one token whose keys and values are gathered at a time.
const GATHERED_POSITIONS: usize = 1 << 16;

/// Number formats of a model that is computed by the tensor library's operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formats {
    /// Of rows between the products, scores, sums and logits.
    pub(super) rows: DType,
    /// Of keys and values.
    pub(super) kv: DType,
}

/// Blocks of keys and values on a device.
pub(super) struct DeviceBlocks {
    layout: HeadLayout,
    n_layers: usize,
    device: Device,
    formats: Formats,
    /// Keys and values of each layer, `(positions, n_kv_heads * head_dim)`; none before the first block is made.
    layers: Vec<[Tensor; 2]>,
    /// Blocks made so far.
    n_made: usize,
    work: Option<Work>,
}

/// What a call does in each layer.
struct Work {
    /// The position in the tensors that each row is stored in, repeated over its width.
    targets: Tensor,
    groups: Vec<Group>,
    /// Where the result of each row lies among those of all tasks.
    order: Tensor,
}

/// Sequences whose keys and values are gathered together.
struct Group {
    /// Their blocks, as many of each: the longest has that many, the others are filled up with what is not looked at.
    blocks: Tensor,
    n_sequences: usize,
    n_positions: usize,
    tasks: Vec<Task>,
}

/// As many consecutive rows of each sequence of a group.
struct Task {
    /// Among those of the call, sequence after sequence.
    rows: Tensor,
    n_rows: usize,
    n_keys: usize,
    /// Added to the scores, `(sequences, 1, rows, keys)`: what lies ahead of a row counts nothing.
    mask: Tensor,
}

impl DeviceBlocks {
    pub(super) fn new(layout: HeadLayout, n_layers: usize, device: &Device, formats: Formats) -> Self {
        let device = device.clone();
        Self { layout, n_layers, device, formats, layers: Vec::new(), n_made: 0, work: None }
    }

    /// Memory that a block takes, in bytes.
    pub(super) fn block_bytes(layout: HeadLayout, n_layers: usize, formats: Formats) -> usize {
        let of_layer = 2 * KvCache::BLOCK_LEN * layout.n_kv_heads * layout.head_dim;
        n_layers * of_layer * formats.kv.size_in_bytes()
    }

    /// Makes all blocks below `n_blocks`, and as many again while there are fewer than `limit`, so that growing bit by
    /// bit does not copy everything each time. Old and new tensors exist together of one layer only.
    pub(super) fn make(&mut self, n_blocks: usize, limit: usize) -> Result<()> {
        if n_blocks <= self.n_made {
            return Ok(());
        }
        let n_new = n_blocks.max(2 * self.n_made).min(limit.max(n_blocks));
        let shape = (n_new * KvCache::BLOCK_LEN, self.layout.n_kv_heads * self.layout.head_dim);
        let zeros = || Tensor::zeros(shape, self.formats.kv, &self.device);
        if self.layers.is_empty() {
            self.layers = (0..self.n_layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<_>>()?;
        }
        for pool in self.layers.iter_mut().flatten().filter(|pool| pool.dim(0).ok() != Some(shape.0)) {
            let larger = zeros()?;
            larger.slice_set(pool, 0, 0)?;
            *pool = larger;
        }
        self.n_made = n_new;
        Ok(())
    }

    /// Makes one block hold what another one holds; both are made.
    pub(super) fn copy(&self, from: usize, to: usize) -> Result<()> {
        let from = Tensor::new(&[index(from)?], &self.device)?;
        for pool in self.layers.iter().flatten() {
            let blocks = self.by_block(pool)?;
            blocks.slice_set(&blocks.index_select(&from, 0)?, 0, to)?;
        }
        Ok(())
    }

    /// The same elements, a row for each block. Of how many there are, only the pool itself is sure: growing can fail
    /// between two pools.
    fn by_block(&self, pool: &Tensor) -> Result<Tensor> {
        let (n_positions, width) = pool.dims2()?;
        pool.reshape((n_positions / KvCache::BLOCK_LEN, KvCache::BLOCK_LEN * width))
    }

    /// Makes the blocks of the pieces, below `limit`, and works out what is read and written there.
    pub(super) fn reserve(&mut self, pieces: &[Piece<'_>], limit: usize) -> Result<()> {
        self.work = None;
        let last = pieces.iter().flat_map(|piece| piece.blocks).max();
        self.make(last.map_or(0, |last| last + 1), limit)?;
        let len = KvCache::BLOCK_LEN;
        let (mut targets, mut placed) = (Vec::new(), Vec::new());
        for piece in pieces {
            placed.push(Placed { first_row: targets.len(), piece });
            for position in piece.position..piece.end() {
                targets.push(index(piece.blocks[position / len] * len + position % len)?);
            }
        }
        let (n_rows, width) = (targets.len(), self.layout.n_kv_heads * self.layout.head_dim);
        let targets = Tensor::from_vec(targets, (n_rows, 1), &self.device)?;
        let targets = targets.broadcast_as((n_rows, width))?.contiguous()?;
        let (mut singles, longer): (Vec<_>, Vec<_>) =
            placed.into_iter().partition(|placed| placed.piece.token_ids.len() == 1);
        // The longest first, so that sequences of like lengths are gathered together.
        singles.sort_by_key(|single| std::cmp::Reverse(single.piece.end()));
        let (mut groups, mut rest) = (Vec::new(), singles.as_slice());
        let mut order = Order { places: vec![0; n_rows], n_placed: 0 };
        while let Some(longest) = rest.first() {
            let n_positions = longest.piece.end().next_multiple_of(len);
            let (now, later) = rest.split_at((GATHERED_POSITIONS / n_positions).clamp(1, rest.len()));
            groups.push(self.group(now, 1, &mut order)?);
            rest = later;
        }
        for piece in &longer {
            groups.push(self.group(std::slice::from_ref(piece), piece.piece.token_ids.len(), &mut order)?);
        }
        let order = Tensor::from_vec(order.places, n_rows, &self.device)?;
        self.work = Some(Work { targets, groups, order });
        Ok(())
    }

    /// Sequences with `n_rows` rows each, the longest first.
    fn group(&self, sequences: &[Placed<'_>], n_rows: usize, order: &mut Order) -> Result<Group> {
        let n_blocks =
            sequences.iter().map(|s| s.piece.end().div_ceil(KvCache::BLOCK_LEN)).max().unwrap_or(0);
        let mut blocks = Vec::with_capacity(sequences.len() * n_blocks);
        for Placed { piece, .. } in sequences {
            let own = &piece.blocks[..piece.end().div_ceil(KvCache::BLOCK_LEN)];
            for block in own.iter().chain(std::iter::repeat(&own[0])).take(n_blocks) {
                blocks.push(index(*block)?);
            }
        }
        let mut tasks = Vec::new();
        for first in (0..n_rows).step_by(QUERY_ROWS) {
            let n_rows = QUERY_ROWS.min(n_rows - first);
            let n_keys = sequences.iter().map(|s| s.piece.position).max().unwrap_or(0) + first + n_rows;
            let (mut rows, mut mask) = (Vec::new(), Vec::new());
            for Placed { first_row, piece } in sequences {
                for row in first..first + n_rows {
                    rows.push(order.place(first_row + row)?);
                    let n_seen = piece.position + row + 1;
                    mask.extend((0..n_keys).map(|key| if key < n_seen { 0.0 } else { f32::NEG_INFINITY }));
                }
            }
            let rows = Tensor::new(rows, &self.device)?;
            let mask = Tensor::from_vec(mask, (sequences.len(), 1, n_rows, n_keys), &self.device)?;
            tasks.push(Task { rows, n_rows, n_keys, mask: mask.to_dtype(self.formats.rows)? });
        }
        let blocks = Tensor::new(blocks, &self.device)?;
        Ok(Group { blocks, n_sequences: sequences.len(), n_positions: n_blocks * KvCache::BLOCK_LEN, tasks })
    }

    /// Stores one layer's keys and values of the reserved pieces, and attends for their queries.
    ///
    /// `qkv` are `[queries | keys | values]` rows, piece after piece; the result are rows of all query heads.
    pub(super) fn attend(&self, layer: usize, qkv: &Tensor) -> Result<Tensor> {
        let layout = self.layout;
        let (Some(work), Some([keys, values])) = (&self.work, self.layers.get(layer)) else {
            bail!("nothing is reserved in the cache for layer {layer}")
        };
        let width = layout.n_kv_heads * layout.head_dim;
        for (pool, start) in [(keys, layout.key_start(0)), (values, layout.value_start(0))] {
            let rows = qkv.narrow(1, start, width)?.to_dtype(self.formats.kv)?.contiguous()?;
            pool.scatter_set(&work.targets, &rows, 0)?;
        }
        let queries = qkv.narrow(1, 0, layout.query_width())? * (1.0 / (layout.head_dim as f64).sqrt());
        let queries = queries?.contiguous()?;
        let mut out = Vec::new();
        for group in &work.groups {
            let (keys, values) = (self.gather(keys, group)?, self.gather(values, group)?);
            for task in &group.tasks {
                let rows = queries.index_select(&task.rows, 0)?;
                out.push(attend_rows(&rows, &keys, &values, group.n_sequences, task, layout)?);
            }
        }
        Tensor::cat(&out, 0)?.index_select(&work.order, 0)
    }

    /// The rows of a group's blocks by head, `(sequences * n_kv_heads, positions, head_dim)`.
    fn gather(&self, pool: &Tensor, group: &Group) -> Result<Tensor> {
        let HeadLayout { n_kv_heads, head_dim, .. } = self.layout;
        let (n, n_positions) = (group.n_sequences, group.n_positions);
        let rows = self.by_block(pool)?.index_select(&group.blocks, 0)?;
        let rows = rows.reshape((n, n_positions, n_kv_heads, head_dim))?.transpose(1, 2)?;
        rows.to_dtype(self.formats.rows)?.contiguous()?.reshape((n * n_kv_heads, n_positions, head_dim))
    }
}

/// Attends for `(sequences * rows, n_heads * head_dim)`, scaled queries.
fn attend_rows(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    n: usize,
    task: &Task,
    layout: HeadLayout,
) -> Result<Tensor> {
    let HeadLayout { n_heads, n_kv_heads, head_dim } = layout;
    let (group, Task { n_rows, n_keys, mask, .. }) = (layout.group(), task);
    let queries = queries.reshape((n, *n_rows, n_kv_heads, group, head_dim))?.permute((0, 2, 3, 1, 4))?;
    let queries = queries.contiguous()?.reshape((n * n_kv_heads, group * n_rows, head_dim))?;
    let scores = queries.matmul(&keys.narrow(1, 0, *n_keys)?.transpose(1, 2)?)?;
    let scores = scores.reshape((n, n_heads, *n_rows, *n_keys))?.broadcast_add(mask)?;
    let exp = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let shares = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
    let shares = shares.reshape((n * n_kv_heads, group * n_rows, *n_keys))?;
    let sums = shares.matmul(&values.narrow(1, 0, *n_keys)?)?;
    let sums = sums.reshape((n, n_kv_heads, group, *n_rows, head_dim))?.permute((0, 3, 1, 2, 4))?;
    sums.contiguous()?.reshape((n * n_rows, n_heads * head_dim))
}

/// A piece and its first row among those of the call.
struct Placed<'a> {
    first_row: usize,
    piece: &'a Piece<'a>,
}

/// Where the result of each row of the call lies.
struct Order {
    places: Vec<u32>,
    n_placed: usize,
}

impl Order {
    /// Gives a row the next place; returns the row.
    fn place(&mut self, row: usize) -> Result<u32> {
        self.places[row] = index(self.n_placed)?;
        self.n_placed += 1;
        index(row)
    }
}

fn index(i: usize) -> Result<u32> {
    u32::try_from(i).map_err(candle_core::Error::wrap)
}
