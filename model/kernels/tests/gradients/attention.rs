//! Attention over sequences that share prefixes.

use std::collections::BTreeMap;

use envace_kernels::{Forest, HeadLayout, attend_forest, attend_forest_backward};

use super::{check, values};

/// For each row, the rows that it sees, itself last: one row for each distinct prefix, in the order of appearance.
fn chains(sequences: &[&[u32]]) -> Vec<Vec<usize>> {
    let mut row_of: BTreeMap<&[u32], usize> = BTreeMap::new();
    let mut chains = Vec::new();
    for sequence in sequences {
        for n in 1..=sequence.len() {
            if !row_of.contains_key(&sequence[..n]) {
                row_of.insert(&sequence[..n], chains.len());
                chains.push((1..=n).map(|n| row_of[&sequence[..n]]).collect());
            }
        }
    }
    chains
}

/// One query head of one row by definition: the mean of the values, weighted by the softmax of the scaled scores.
fn attend(rows: &[f64], row: usize, head: usize, seen: &[usize], layout: HeadLayout) -> Vec<f64> {
    let HeadLayout { n_heads, n_kv_heads, head_dim } = layout;
    let width = (n_heads + 2 * n_kv_heads) * head_dim;
    let part = |row: usize, part: usize| &rows[row * width + part * head_dim..][..head_dim];
    let kv_head = head * n_kv_heads / n_heads;
    let weight = |seen: &usize| {
        let pairs = part(row, head).iter().zip(part(*seen, n_heads + kv_head));
        (pairs.map(|(query, key)| query * key).sum::<f64>() / (head_dim as f64).sqrt()).exp()
    };
    let weights: Vec<f64> = seen.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; head_dim];
    for (weight, seen) in weights.iter().zip(seen) {
        let value = part(*seen, n_heads + n_kv_heads + kv_head);
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / sum * value);
    }
    out
}

fn check_sequences(sequences: &[Vec<u32>], layout: HeadLayout) {
    let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let forest = Forest::new(&slices);
    let chains = chains(&slices);
    let (width, out_width) = (layout.row_width(), layout.query_width());
    assert_eq!(forest.n_rows(), chains.len());
    // Sharp and flat distributions.
    let rows: Vec<f32> = values(chains.len() * width, 5).iter().map(|value| value * 2.0).collect();
    // The rows that see a row lie between it and the last of them.
    let last_of: Vec<usize> = (0..chains.len())
        .map(|row| chains.iter().rposition(|chain| chain.contains(&row)).unwrap_or(row))
        .collect();
    check(
        &[rows],
        |inputs, range| {
            let rows = range.start / out_width..range.end / out_width;
            let of_row = |row: usize| {
                let heads = 0..layout.n_heads;
                heads
                    .flat_map(|head| attend(&inputs[0], row, head, &chains[row], layout))
                    .collect::<Vec<f64>>()
            };
            rows.flat_map(of_row).collect()
        },
        |_, element| element / width * out_width..(last_of[element / width] + 1) * out_width,
        |inputs| {
            let mut out = vec![f32::NAN; chains.len() * out_width];
            attend_forest(&inputs[0], &forest, layout, &mut out);
            out
        },
        |inputs, given| {
            let mut out = vec![f32::NAN; inputs[0].len()];
            attend_forest_backward(&inputs[0], given, &forest, layout, &mut out);
            vec![out]
        },
    );
}

/// A sequence of `shared` tokens of the one before and new ones up to a length.
fn sequences(lengths: &[(usize, usize)]) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = Vec::new();
    for (index, &(length, shared)) in lengths.iter().enumerate() {
        let mut sequence: Vec<u32> = all.last().map(|last| last[..shared].to_vec()).unwrap_or_default();
        sequence.extend((shared..length).map(|position| (index * 1_000 + position) as u32));
        all.push(sequence);
    }
    all
}

#[test]
fn sequences_alone() {
    // More rows than a block of the backward pass, 36, and more keys than a panel, at most 32; and one row.
    let layout = HeadLayout { n_heads: 2, n_kv_heads: 1, head_dim: 3 };
    check_sequences(&sequences(&[(75, 0), (1, 0), (13, 0)]), layout);
}

#[test]
fn sequences_that_share_prefixes() {
    // One extends another; two are equal; one ends early; branches within blocks and panels, at three depths; and a branch
    // from what the sequence before it does not have. A second tree, whose rows begin after the first, with
    // a sequence that shares one token.
    let shape = [
        (9, 0),
        (45, 9),
        (45, 45),
        (60, 40),
        (62, 41),
        (50, 5),
        (7, 3),
        (20, 0),
        (30, 20),
        (24, 11),
        (14, 1),
    ];
    for (n_heads, n_kv_heads, head_dim) in [(4, 2, 3), (1, 1, 5)] {
        check_sequences(&sequences(&shape), HeadLayout { n_heads, n_kv_heads, head_dim });
    }
}

#[test]
fn heads_wider_than_a_panel() {
    let layout = HeadLayout { n_heads: 2, n_kv_heads: 2, head_dim: 34 };
    check_sequences(&sequences(&[(6, 0), (9, 4), (5, 2)]), layout);
}
