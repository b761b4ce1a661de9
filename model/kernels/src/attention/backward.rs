//! The backward pass of causal attention for one run of rows and one key and value head.

use super::{HeadLayout, append_keys, append_values, exp_row};
use crate::forest::Run;
use crate::product::{Left, Right, Sizes, block_product, panel_width};
use crate::{sum, vectorized};

/// Query rows whose scores exist at a time.
const BLOCK_ROWS: usize = 36;

/// Keys and values of one head by position, in the forms that products read.
pub(super) struct PathBuffers {
    key_panels: Vec<f32>,
    value_panels: Vec<f32>,
    key_rows: Vec<f32>,
}

impl PathBuffers {
    pub(super) fn new(n_positions: usize, layout: HeadLayout) -> Self {
        let panels = vec![0.0; n_positions.next_multiple_of(panel_width()) * layout.head_dim];
        let key_rows = vec![0.0; n_positions * layout.value_stride()];
        Self { value_panels: panels.clone(), key_panels: panels, key_rows }
    }

    /// Fills in the positions of a run's path from `position` on.
    pub(super) fn extend(
        &mut self,
        rows: &[f32],
        run: &Run,
        position: usize,
        layout: HeadLayout,
        kv_head: usize,
    ) {
        let (width, head_dim) = (layout.row_width(), layout.head_dim);
        let part =
            |start: usize| run.rows_from(position).map(move |row| &rows[row * width + start..][..head_dim]);
        let (key, value) = (layout.key_start(kv_head), layout.value_start(kv_head));
        append_keys(&mut self.key_panels, position, head_dim, part(key));
        append_keys(&mut self.value_panels, position, head_dim, part(value));
        append_values(&mut self.key_rows, position, layout.value_stride(), part(key));
    }
}

/// Sums of the gradient of keys and values by position, and memory for what exists only for a block of rows.
pub(super) struct HeadBackward {
    layout: HeadLayout,
    kv_head: usize,
    /// In rows of `value_stride`.
    pub(super) key_sums: Vec<f32>,
    /// In rows of `value_stride`.
    pub(super) value_sums: Vec<f32>,
    scores: Vec<f32>,
    pulls: Vec<f32>,
    query_rows: Vec<f32>,
    gradient_rows: Vec<f32>,
    query_sums: Vec<f32>,
}

impl HeadBackward {
    pub(super) fn new(n_positions: usize, layout: HeadLayout, kv_head: usize) -> Self {
        let stride = layout.value_stride();
        let scores = vec![0.0; BLOCK_ROWS * n_positions.next_multiple_of(panel_width())];
        let block = vec![0.0; BLOCK_ROWS * stride];
        Self {
            layout,
            kv_head,
            key_sums: vec![0.0; n_positions * stride],
            value_sums: vec![0.0; n_positions * stride],
            pulls: scores.clone(),
            scores,
            query_rows: block.clone(),
            gradient_rows: block.clone(),
            query_sums: block,
        }
    }

    /// Adds what a run's own rows pull on keys and values, and writes the gradient of their queries to the start of
    /// each row `[queries of the group | key | value]` of `own`.
    ///
    /// The probabilities are computed again, `BLOCK_ROWS` rows at a time; with `P` the probabilities, `D = gradient ·
    /// valuesᵀ` and `S = P * (D - sum(P * D)) * scale`, the queries' gradient is `S · keys`, the keys' `Sᵀ · queries`
    /// and the values' `Pᵀ · gradient`.
    pub(super) fn run(
        &mut self,
        rows: &[f32],
        gradient: &[f32],
        run: &Run,
        path: &PathBuffers,
        own: &mut [f32],
    ) {
        let layout = self.layout;
        let (row_width, query_width, head_dim) = (layout.row_width(), layout.query_width(), layout.head_dim);
        let (nr, stride, group) = (panel_width(), layout.value_stride(), layout.group());
        let own_width = (group + 2) * head_dim;
        for in_group in 0..group {
            let head_start = (self.kv_head * group + in_group) * head_dim;
            for first in (0..run.own.len).step_by(BLOCK_ROWS) {
                let n_rows = BLOCK_ROWS.min(run.own.len - first);
                let position = run.own.position + first;
                let n_keys = position + n_rows;
                let padded = n_keys.next_multiple_of(nr);
                let part = |values: &'_ [f32], width: usize, target: &mut Vec<f32>| {
                    let block = values[(run.own.row + first) * width + head_start..].chunks(width);
                    append_values(target, 0, stride, block.take(n_rows).map(|row| &row[..head_dim]));
                };
                part(rows, row_width, &mut self.query_rows);
                part(gradient, query_width, &mut self.gradient_rows);
                let (queries, gradients) = (&self.query_rows, &self.gradient_rows);
                let scores = &mut self.scores[..n_rows * padded];
                let pulls = &mut self.pulls[..n_rows * padded];
                let to_keys = Sizes { n_rows, depth: head_dim, width: padded };
                block_product(
                    rows_of(queries, stride),
                    panels(&path.key_panels),
                    to_keys,
                    false,
                    scores,
                    padded,
                );
                block_product(
                    rows_of(gradients, stride),
                    panels(&path.value_panels),
                    to_keys,
                    false,
                    pulls,
                    padded,
                );
                for (i, (scores, pulls)) in
                    scores.chunks_exact_mut(padded).zip(pulls.chunks_exact_mut(padded)).enumerate()
                {
                    let sum = exp_row(scores, position + i + 1, layout.scale());
                    vectorized(
                        #[inline(always)]
                        |args| pull_body(args),
                        (scores, pulls, 1.0 / sum, layout.scale()),
                    );
                }
                let from_keys = Sizes { n_rows, depth: n_keys, width: stride };
                let keys = Right::Rows { values: &path.key_rows, stride };
                block_product(
                    Left::rows(pulls, padded),
                    keys,
                    from_keys,
                    false,
                    &mut self.query_sums,
                    stride,
                );
                let to_rows = Sizes { n_rows: n_keys, depth: n_rows, width: stride };
                let right = Right::Rows { values: queries, stride };
                block_product(
                    Left::transposed(pulls, padded),
                    right,
                    to_rows,
                    true,
                    &mut self.key_sums,
                    stride,
                );
                let right = Right::Rows { values: gradients, stride };
                block_product(
                    Left::transposed(scores, padded),
                    right,
                    to_rows,
                    true,
                    &mut self.value_sums,
                    stride,
                );
                let targets = own[first * own_width..].chunks_exact_mut(own_width);
                for (target, sums) in targets.zip(self.query_sums.chunks_exact(stride).take(n_rows)) {
                    target[in_group * head_dim..][..head_dim].copy_from_slice(&sums[..head_dim]);
                }
            }
        }
    }
}

fn rows_of(values: &[f32], stride: usize) -> Left<'_> {
    Left { values, row_stride: stride, depth_stride: 1 }
}

fn panels(values: &[f32]) -> Right<'_> {
    Right::Panels { values }
}

/// Turns exponentials into probabilities and the products with the values into the scores' gradient.
#[inline(always)]
fn pull_body((scores, pulls, inverse, scale): (&mut [f32], &mut [f32], f32, f32)) {
    for p in scores.iter_mut() {
        *p *= inverse;
    }
    let mean = sum::dot(scores, pulls);
    for (pull, p) in pulls.iter_mut().zip(scores.iter()) {
        *pull = p * (*pull - mean) * scale;
    }
}
