//! Speed of the kernels at the sizes of a layer of Qwen3-0.6B, some beside the loop one would write first.
//!
//! ```text
//! cargo bench -p envace-kernels                     # all
//! cargo bench -p envace-kernels -- product          # those with this in their name
//! RAYON_NUM_THREADS=1 cargo bench -p envace-kernels
//! ```

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use envace_kernels::{
    AdamWStep, Forest, HeadKeys, HeadLayout, Left, LogSoftmax, Panels, Right, Sizes, Tile, adamw_step,
    attend_forest, attend_forest_backward, attend_tile, gate_rows, gate_rows_backward, panel_width, product,
    rms_norm, rms_norm_backward, rotate,
};

const HIDDEN: usize = 1024;
const INNER: usize = 3072;
const VOCABULARY: usize = 151_936;
const LAYOUT: HeadLayout = HeadLayout { n_heads: 16, n_kv_heads: 8, head_dim: 128 };
const ROWS: usize = 256;

/// Values around zero that are not round.
fn values(n: usize) -> Vec<f32> {
    let mut state = 12_345_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Multiplications and additions a second for one row, some rows and many, by the form of the right factor.
fn products(criterion: &mut Criterion) {
    let (depth, width) = (HIDDEN, 2 * INNER);
    let weight = values(depth * width);
    let panels = Panels::from_rows(&weight, depth, width);
    let short = Panels::from_rows(&weight, depth, width).to_bf16();
    let mut group = criterion.benchmark_group("product");
    for n_rows in [1, 16, 256] {
        let x = values(n_rows * depth);
        let mut out = vec![0.0; n_rows * width];
        let sizes = Sizes { n_rows, depth, width };
        group.throughput(Throughput::Elements((n_rows * depth * width) as u64));
        let rows = Right::Rows { values: &weight, stride: width };
        let forms = [("f32 panels", panels.right()), ("bf16 panels", short.right()), ("rows", rows)];
        for (name, right) in forms {
            group.bench_function(format!("{name}, {n_rows} rows"), |bencher| {
                bencher.iter(|| product(Left::rows(&x, depth), right, sizes, false, black_box(&mut out)));
            });
        }
        if n_rows == 1 {
            group.bench_function("plain loop, 1 rows", |bencher| {
                bencher.iter(|| {
                    out.fill(0.0);
                    for (x, row) in x.iter().zip(weight.chunks_exact(width)) {
                        out.iter_mut().zip(row).for_each(|(out, weight)| *out += x * weight);
                    }
                    black_box(&mut out);
                });
            });
        }
    }
    group.finish();
}

/// One query of the heads of a group, and 12 consecutive queries, over a long cache; keys a second.
fn attention_over_a_cache(criterion: &mut Criterion) {
    let n_keys = 4_096_usize;
    let keys = values(n_keys.next_multiple_of(panel_width()) * LAYOUT.head_dim);
    let cached = values(n_keys * LAYOUT.value_stride());
    let head = HeadKeys { keys: &keys, values: &cached };
    let queries = values(12 * LAYOUT.head_dim);
    let mut out = vec![0.0; 12 * LAYOUT.head_dim];
    let mut scratch = Vec::new();
    let mut group = criterion.benchmark_group("attend_tile");
    for (name, n_rows, step) in [("decode", LAYOUT.group(), 0), ("prefill", 12, 1)] {
        let first_length = n_keys - (n_rows - 1) * step;
        let tile = Tile { queries: &queries, stride: LAYOUT.head_dim, n_rows, first_length, step };
        group.throughput(Throughput::Elements((n_rows * n_keys) as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let out = black_box(&mut out);
                attend_tile(&tile, n_keys, |_| head, LAYOUT, &mut scratch, out, LAYOUT.head_dim);
            });
        });
    }
    group.finish();
}

/// A prompt of 512 tokens with four answers of 128, once as a tree and once as sequences that share nothing.
fn attention_of_a_forest(criterion: &mut Criterion) {
    let answers: Vec<Vec<u32>> =
        (0..4).map(|i| (0..512).chain((0..128).map(|t| 1_000 * (i + 1) + t)).collect()).collect();
    let apart: Vec<Vec<u32>> = (0..4).map(|i| (0..640).map(|t| 1_000 * (i + 1) + t).collect()).collect();
    let mut group = criterion.benchmark_group("attend_forest");
    for (name, sequences) in [("shared", answers), ("apart", apart)] {
        let forest = Forest::new(&sequences.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let rows = values(forest.n_rows() * LAYOUT.row_width());
        let gradient = values(forest.n_rows() * LAYOUT.query_width());
        let mut out = vec![0.0; gradient.len()];
        group.bench_function(format!("forward, {name}"), |bencher| {
            bencher.iter(|| attend_forest(&rows, &forest, LAYOUT, black_box(&mut out)));
        });
        let mut out = vec![0.0; rows.len()];
        group.bench_function(format!("backward, {name}"), |bencher| {
            bencher.iter(|| {
                attend_forest_backward(&rows, &gradient, &forest, LAYOUT, black_box(&mut out));
            });
        });
    }
    group.finish();
}

/// What is done to each row; elements a second.
fn rows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rows");
    let (x, weight) = (values(ROWS * HIDDEN), values(HIDDEN));
    let mut out = vec![0.0; x.len()];
    group.throughput(Throughput::Elements(x.len() as u64));
    group.bench_function("rms_norm", |bencher| {
        bencher.iter(|| rms_norm(&x, &weight, 1e-6, black_box(&mut out)));
    });
    group.bench_function("rms_norm, plain loop", |bencher| {
        bencher.iter(|| {
            for (x, out) in x.chunks_exact(HIDDEN).zip(out.chunks_exact_mut(HIDDEN)) {
                let mean = x.iter().map(|x| x * x).sum::<f32>() / HIDDEN as f32;
                let inverse = 1.0 / (mean + 1e-6).sqrt();
                for ((out, x), weight) in out.iter_mut().zip(x).zip(&weight) {
                    *out = x * inverse * weight;
                }
            }
            black_box(&mut out);
        });
    });
    let (gradient, mut sum) = (values(x.len()), vec![0.0; HIDDEN]);
    group.bench_function("rms_norm_backward", |bencher| {
        bencher.iter(|| rms_norm_backward(&x, &weight, 1e-6, &gradient, black_box(&mut out), &mut sum));
    });
    let gate_up = values(ROWS * 2 * INNER);
    let mut gated = vec![0.0; ROWS * INNER];
    group.throughput(Throughput::Elements(gated.len() as u64));
    group.bench_function("gate_rows", |bencher| {
        bencher.iter(|| gate_rows(&gate_up, INNER, black_box(&mut gated)));
    });
    group.bench_function("gate_rows, plain loop", |bencher| {
        bencher.iter(|| {
            for (row, out) in gate_up.chunks_exact(2 * INNER).zip(gated.chunks_exact_mut(INNER)) {
                let (gate, up) = row.split_at(INNER);
                for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = gate / (1.0 + (-gate).exp()) * up;
                }
            }
            black_box(&mut gated);
        });
    });
    let mut gate_up_gradient = vec![0.0; gate_up.len()];
    let gradient = values(gated.len());
    group.bench_function("gate_rows_backward", |bencher| {
        bencher.iter(|| gate_rows_backward(&gate_up, INNER, &gradient, black_box(&mut gate_up_gradient)));
    });
    let mut qkv = values(ROWS * LAYOUT.row_width());
    let angles = values(ROWS * LAYOUT.head_dim / 2);
    let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|angle| (angle.cos(), angle.sin())).unzip();
    group.throughput(Throughput::Elements(qkv.len() as u64));
    group.bench_function("rotate", |bencher| {
        bencher.iter(|| rotate(black_box(&mut qkv), &cos, &sin, LAYOUT, 1.0));
    });
    group.finish();
}

/// One row of logits of a large vocabulary; logits a second.
fn log_softmax(criterion: &mut Criterion) {
    let logits = values(VOCABULARY);
    let mut group = criterion.benchmark_group("log_softmax");
    group.throughput(Throughput::Elements(VOCABULARY as u64));
    group.bench_function("logprob and entropy", |bencher| {
        bencher.iter(|| {
            let row = LogSoftmax::new(black_box(&logits), 0.8);
            (row.logprob(logits[5]), row.entropy(&logits))
        });
    });
    group.bench_function("logprob, plain loop", |bencher| {
        bencher.iter(|| {
            let max = black_box(&logits).iter().fold(f32::MIN, |max, logit| max.max(*logit));
            let sum: f32 = logits.iter().map(|logit| ((logit - max) / 0.8).exp()).sum();
            (logits[5] - max) / 0.8 - sum.ln()
        });
    });
    let row = LogSoftmax::new(&logits, 0.8);
    let mut changed = logits.clone();
    group.bench_function("backward", |bencher| {
        bencher.iter(|| row.backward(black_box(&mut changed), 5, 1.0, 0.01));
    });
    group.finish();
}

/// One thread's share of an optimizer step; weights a second.
fn optimizer(criterion: &mut Criterion) {
    let n = 1 << 20;
    let step = AdamWStep {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        keep: 1.0,
        rate: 1e-9,
        inverse_root: 1.0,
        gradient_scale: 1.0,
    };
    let gradient = values(n);
    let (mut weights, mut first, mut second) = (values(n), vec![0.0; n], vec![0.0; n]);
    let mut group = criterion.benchmark_group("adamw");
    group.throughput(Throughput::Elements(n as u64));
    group.bench_function("step", |bencher| {
        bencher.iter(|| adamw_step(step, black_box(&mut weights), &gradient, &mut first, &mut second));
    });
    group.finish();
}

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = products, attention_over_a_cache, attention_of_a_forest, rows, log_softmax, optimizer
}
criterion_main!(kernels);
