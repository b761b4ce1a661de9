//! Causal attention of all rows of a prefix tree, and its backward pass.

use rayon::prelude::*;

use super::backward::{HeadBackward, PathBuffers};
use super::{HeadKeys, HeadLayout, Tile, append_keys, append_values, attend_tile, panel_width};
use crate::forest::{Forest, Run};

/// Query rows of one tile.
const TILE_ROWS: usize = 12;

/// One tree and one key and value head.
type Task<'a> = (&'a [Run], usize);

fn tasks<'a>(forest: &'a Forest, layout: HeadLayout) -> Vec<Task<'a>> {
    forest.trees().flat_map(|runs| (0..layout.n_kv_heads).map(move |head| (runs, head))).collect()
}

/// Attends for `[queries | keys | values]` rows; writes rows of all query heads.
///
/// A row sees itself and the rows before it in its sequence. Its result has the bits that attending for the sequence
/// alone gives.
pub fn attend_forest(rows: &[f32], forest: &Forest, layout: HeadLayout, out: &mut [f32]) {
    let group = layout.group() * layout.head_dim;
    let parts: Vec<Vec<f32>> = tasks(forest, layout)
        .into_par_iter()
        .map(|(runs, head)| attend_head(rows, runs, head, layout))
        .collect();
    scatter(out, layout.query_width(), forest, layout, &parts, |row, part, head, place| {
        row[head * group..][..group].copy_from_slice(&part[place * group..][..group]);
    });
}

/// Copies what each task made of each row into the rows of `out`.
fn scatter<P: Sync>(
    out: &mut [f32],
    width: usize,
    forest: &Forest,
    layout: HeadLayout,
    parts: &[P],
    copy: impl Fn(&mut [f32], &P, usize, usize) + Sync,
) {
    let mut rest = out;
    for (runs, parts) in forest.trees().zip(parts.chunks_exact(layout.n_kv_heads)) {
        let n_rows: usize = runs.iter().map(|run| run.own.len).sum();
        let (tree, after) = rest.split_at_mut(n_rows * width);
        rest = after;
        tree.par_chunks_exact_mut(width).with_min_len(64).enumerate().for_each(|(place, row)| {
            for (head, part) in parts.iter().enumerate() {
                copy(row, part, head, place);
            }
        });
    }
}

/// The results of one head's group for all rows of a tree.
fn attend_head(rows: &[f32], runs: &[Run], kv_head: usize, layout: HeadLayout) -> Vec<f32> {
    let (row_width, head_dim, group) = (layout.row_width(), layout.head_dim, layout.group());
    let longest = runs.iter().map(Run::len).max().unwrap_or_default();
    let n_rows: usize = runs.iter().map(|run| run.own.len).sum();
    let stride = layout.value_stride();
    let mut keys = vec![0.0; longest.next_multiple_of(panel_width()) * head_dim];
    let mut values = vec![0.0; longest * stride];
    let mut out = vec![0.0; n_rows * group * head_dim];
    let mut rest = out.as_mut_slice();
    for run in runs.iter().filter(|run| run.own.len > 0) {
        let own = &rows[run.own.row * row_width..(run.own.row + run.own.len) * row_width];
        let part = |start: usize| own.chunks_exact(row_width).map(move |row| &row[start..start + head_dim]);
        append_keys(&mut keys, run.own.position, head_dim, part(layout.key_start(kv_head)));
        append_values(&mut values, run.own.position, stride, part(layout.value_start(kv_head)));
        let (out, after) = rest.split_at_mut(run.own.len * group * head_dim);
        rest = after;
        out.par_chunks_mut(TILE_ROWS * group * head_dim).enumerate().for_each_init(
            Vec::new,
            |scratch, (i, out)| {
                let first = i * TILE_ROWS;
                for in_group in 0..group {
                    let head = kv_head * group + in_group;
                    let tile = Tile {
                        queries: &own[first * row_width + head * head_dim..],
                        stride: row_width,
                        n_rows: out.len() / (group * head_dim),
                        first_length: run.own.position + first + 1,
                        step: 1,
                    };
                    let out = &mut out[in_group * head_dim..];
                    let known = |_| HeadKeys { keys: &keys, values: &values };
                    attend_tile(&tile, longest, known, layout, scratch, out, group * head_dim);
                }
            },
        );
    }
    out
}

/// Writes the gradient of `[queries | keys | values]` rows, given that of the rows of all query heads.
///
/// Gradients of keys and values that several sequences see are added up in the order of the sequences from the last on.
pub fn attend_forest_backward(
    rows: &[f32],
    gradient: &[f32],
    forest: &Forest,
    layout: HeadLayout,
    out: &mut [f32],
) {
    let tasks = tasks(forest, layout);
    let parts: Vec<Vec<f32>> =
        tasks.into_par_iter().map(|(runs, head)| head_gradient(rows, gradient, runs, head, layout)).collect();
    let (row_width, head_dim) = (layout.row_width(), layout.head_dim);
    let group = layout.group() * head_dim;
    let part_width = group + 2 * head_dim;
    scatter(out, row_width, forest, layout, &parts, |row, part, head, place| {
        let part = &part[place * part_width..][..part_width];
        row[head * group..][..group].copy_from_slice(&part[..group]);
        row[layout.key_start(head)..][..head_dim].copy_from_slice(&part[group..group + head_dim]);
        row[layout.value_start(head)..][..head_dim].copy_from_slice(&part[group + head_dim..]);
    });
}

/// Rows of `[queries of the group | key | value]` for one head of a tree.
///
/// Runs are taken from the last to the first. What a run adds to the gradient of the positions it shares waits in
/// buffers by position; when a run's turn comes, all runs that share its rows have had theirs.
fn head_gradient(
    rows: &[f32],
    gradient: &[f32],
    runs: &[Run],
    kv_head: usize,
    layout: HeadLayout,
) -> Vec<f32> {
    let (head_dim, stride) = (layout.head_dim, layout.value_stride());
    let group = layout.group() * head_dim;
    let part_width = group + 2 * head_dim;
    let longest = runs.iter().map(Run::len).max().unwrap_or_default();
    let n_rows: usize = runs.iter().map(|run| run.own.len).sum();
    let mut out = vec![0.0; n_rows * part_width];
    let mut path = PathBuffers::new(longest, layout);
    let mut backward = HeadBackward::new(longest, layout, kv_head);
    let mut known = 0;
    let mut rest = out.as_mut_slice();
    for run in runs.iter().rev() {
        // Positions below `known` hold the rows of this path already: it shares them with the run after it.
        path.extend(rows, run, known.min(run.len()), layout, kv_head);
        known = run.own.position;
        let (before, own) = rest.split_at_mut(rest.len() - run.own.len * part_width);
        rest = before;
        backward.run(rows, gradient, run, &path, own);
        for (i, own) in own.chunks_exact_mut(part_width).enumerate() {
            let place = (run.own.position + i) * stride;
            for (target, sums) in
                [(group, &mut backward.key_sums), (group + head_dim, &mut backward.value_sums)]
            {
                let sums = &mut sums[place..place + stride];
                own[target..target + head_dim].copy_from_slice(&sums[..head_dim]);
                sums.fill(0.0);
            }
        }
    }
    out
}
