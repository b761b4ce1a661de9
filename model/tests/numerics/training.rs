//! What training must not depend on, and that it learns.

use std::path::{Path, PathBuf};

use candle_core::Device;
use envace_model::{AdamW, PolicyLogprobs, TrainSequence, Trainer, TrainerOptions};
use serde_json::json;

use super::devices::devices;
use super::{random_model, sequence, with_threads};

fn sequences() -> Vec<TrainSequence> {
    [40, 5, 31, 77, 12].iter().enumerate().map(|(i, n)| sequence(*n, i as u32, 123)).collect()
}

/// Coefficients that differ from token to token but not with the split into calls.
fn coefficients(rows: &[PolicyLogprobs]) -> Vec<Vec<f32>> {
    rows.iter().map(|row| row.logprobs.iter().map(|logprob| (logprob * 3.0).sin() * 0.1).collect()).collect()
}

fn gradients(dir: &Path, recompute_layers: bool, split: &[usize]) -> Vec<(String, Vec<f32>)> {
    let options = TrainerOptions { recompute_layers, ..Default::default() };
    let mut trainer = Trainer::load(dir, None, options).unwrap();
    let all = sequences();
    let mut rest = all.as_slice();
    for n in split {
        let (now, later) = rest.split_at(*n);
        trainer.accumulate(now, &mut |rows| coefficients(rows)).unwrap();
        rest = later;
    }
    assert!(rest.is_empty());
    let names = trainer.tensor_names();
    names.into_iter().map(|name| (name.clone(), trainer.gradient(&name).unwrap())).collect()
}

#[test]
fn the_gradient_does_not_depend_on_the_split() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({}));
    let whole = gradients(dir.path(), false, &[5]);
    for split in [&[1, 1, 1, 1, 1][..], &[2, 3], &[4, 1]] {
        for ((name, whole), (_, parts)) in whole.iter().zip(gradients(dir.path(), false, split)) {
            let size = whole.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            let worst = whole.iter().zip(parts).fold(0.0_f32, |m, (x, y)| m.max((x - y).abs()));
            assert!(size > 0.0 && worst <= size * 1e-6, "{name}: {worst} of {size}");
        }
    }
}

#[test]
fn recomputation_and_threads_do_not_change_a_bit() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({"model_type": "llama", "attention_bias": true}));
    let kept = with_threads(1, || gradients(dir.path(), false, &[5]));
    assert_eq!(kept, with_threads(2, || gradients(dir.path(), true, &[5])));
}

/// Sequences that begin alike: one extends another, two are equal, two part in the middle.
fn related_sequences() -> Vec<TrainSequence> {
    let mut all =
        vec![sequence(60, 0, 123), sequence(40, 0, 123), sequence(60, 0, 123), sequence(31, 5, 123)];
    let mut parting = sequence(60, 0, 123);
    parting.token_ids[35..].reverse();
    all.push(parting);
    all
}

#[test]
fn shared_prefixes_and_kernels_change_nothing_but_rounding() {
    // The witness is the tensor library: its operations and its gradient, in f64 (f32 on a GPU), one sequence a call.
    for case in [json!({}), json!({"model_type": "llama", "attention_bias": true})] {
        let dir = tempfile::tempdir().unwrap();
        random_model(dir.path(), case);
        let run = |device: Option<&Device>, n_at_once: usize| {
            let is_composed = device.is_some();
            let device = device.cloned().unwrap_or(Device::Cpu);
            let options = TrainerOptions { is_composed, device, ..Default::default() };
            let mut trainer = Trainer::load(dir.path(), None, options).unwrap();
            let mut rows = Vec::new();
            for batch in related_sequences().chunks(n_at_once) {
                rows.extend(trainer.logprobs(batch).unwrap());
                trainer.accumulate(batch, &mut |rows| coefficients(rows)).unwrap();
            }
            let gradients: Vec<Vec<f32>> =
                trainer.tensor_names().iter().map(|name| trainer.gradient(name).unwrap()).collect();
            (trainer.tensor_names(), rows, gradients)
        };
        let (names, rows, gradients) = run(None, 5);
        assert_eq!(rows, run(None, 1).1, "shared rows have the bits of separate ones");
        for device in devices() {
            let (_, exact_rows, exact) = run(Some(&device), 1);
            let slack = if device.is_cpu() { 1.0 } else { 5.0 };
            for (row, exact) in rows.iter().zip(&exact_rows) {
                let mut pairs = row.logprobs.iter().zip(&exact.logprobs);
                assert!(pairs.all(|(x, y)| (x - y).abs() < slack * 1e-5), "{device:?}");
            }
            for ((name, found), exact) in names.iter().zip(&gradients).zip(&exact) {
                let size = exact.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let worst = found.iter().zip(exact).fold(0.0_f32, |m, (x, y)| m.max((x - y).abs()));
                // A bias on the keys moves all scores of a row alike, so its exact gradient is zero.
                let bound = if name.ends_with("k_proj.bias") { 1e-5 } else { size * 2e-5 };
                assert!(worst <= slack * bound, "{name} on {device:?}: {worst} of {size}");
            }
        }
    }
}

fn options() -> TrainerOptions {
    let adamw = AdamW { weight_decay: 0.1, ..Default::default() };
    TrainerOptions { adamw, ..Default::default() }
}

fn steps(trainer: &mut Trainer, from: usize, to: usize) {
    for i in from..to {
        let batch = &sequences()[i % 3..i % 3 + 2];
        trainer.accumulate(batch, &mut |rows| coefficients(rows)).unwrap();
        let report = trainer.apply(1e-2, Some(0.05)).unwrap();
        assert!(report.gradient_norm > 0.0 && !report.is_skipped);
    }
}

#[test]
fn a_resumed_run_equals_a_straight_one_byte_for_byte() {
    for changes in [json!({}), json!({"tie_word_embeddings": false, "dtype": "float32"})] {
        let dir = tempfile::tempdir().unwrap();
        random_model(&dir.path().join("start"), changes);
        let at = |name: &str| dir.path().join(name);
        let save = |trainer: &Trainer, name: &str| {
            trainer.save(&at(name)).unwrap();
            trainer.save_state(&at(name).join("state.safetensors")).unwrap();
        };
        let mut straight = Trainer::load(&at("start"), None, options()).unwrap();
        steps(&mut straight, 0, 4);
        save(&straight, "straight");
        let mut first = Trainer::load(&at("start"), None, options()).unwrap();
        steps(&mut first, 0, 2);
        save(&first, "half");
        let state = at("half").join("state.safetensors");
        let mut second = Trainer::load(&at("half"), Some(&state), options()).unwrap();
        assert_eq!(second.step(), 2);
        steps(&mut second, 2, 4);
        save(&second, "resumed");
        for file in ["model.safetensors", "state.safetensors", "config.json"] {
            let read = |name: &str| fs_err::read(at(name).join(file)).unwrap();
            assert!(read("straight") == read("resumed"), "{file} differs");
            if file != "config.json" {
                assert!(read("straight") != read("half"), "{file} did not change");
            }
        }
        // A state of other weights is refused.
        let error = Trainer::load(&at("resumed"), Some(&state), options()).err().unwrap();
        assert!(
            error.to_string().starts_with("the optimizer's state does not belong to the weights"),
            "{error}"
        );
    }
}

#[test]
fn state_in_a_file_changes_no_byte() {
    // Tied and stored as bf16, with master values of its own; untied and stored as f32.
    for changes in [json!({}), json!({"tie_word_embeddings": false, "dtype": "float32"})] {
        let dir = tempfile::tempdir().unwrap();
        random_model(&dir.path().join("start"), changes);
        let at = |name: &str| dir.path().join(name);
        let in_file = |recompute_layers: bool| TrainerOptions {
            scratch: Some(at("scratch")),
            recompute_layers,
            ..options()
        };
        let save = |trainer: &Trainer, name: &str| {
            trainer.save(&at(name)).unwrap();
            trainer.save_state(&at(name).join("state.safetensors")).unwrap();
        };
        // Several passes add to the gradient of each step.
        let train = |trainer: &mut Trainer, from: usize, to: usize| {
            for i in from..to {
                trainer.accumulate(&sequences()[3..], &mut |rows| coefficients(rows)).unwrap();
                steps(trainer, i, i + 1);
            }
        };
        let mut memory = Trainer::load(&at("start"), None, options()).unwrap();
        train(&mut memory, 0, 4);
        save(&memory, "memory");
        let mut file = Trainer::load(&at("start"), None, in_file(true)).unwrap();
        train(&mut file, 0, 2);
        save(&file, "half");
        let state = at("half").join("state.safetensors");
        // Training goes on after the saving, and from what was saved; and the form may change on the way.
        train(&mut file, 2, 4);
        save(&file, "straight");
        for (name, options) in [("resumed", in_file(false)), ("changed", options())] {
            let mut trainer = Trainer::load(&at("half"), Some(&state), options).unwrap();
            train(&mut trainer, 2, 4);
            save(&trainer, name);
        }
        for name in ["straight", "resumed", "changed"] {
            for file in ["model.safetensors", "state.safetensors"] {
                let read = |name: &str| fs_err::read(at(name).join(file)).unwrap();
                assert!(read("memory") == read(name), "{file} of {name} differs");
            }
        }
        assert_eq!(fs_err::read_dir(at("scratch")).unwrap().count(), 0, "the file has no name");
    }
}

#[test]
fn on_a_device_state_in_a_file_changes_no_byte() {
    for device in devices() {
        let dir = tempfile::tempdir().unwrap();
        random_model(&dir.path().join("start"), json!({}));
        let at = |name: &str| dir.path().join(name);
        let train = |name: &str, scratch: Option<PathBuf>| {
            let (is_composed, device) = (true, device.clone());
            let options = TrainerOptions { scratch, is_composed, device, ..options() };
            let mut trainer = Trainer::load(&at("start"), None, options).unwrap();
            steps(&mut trainer, 0, 3);
            trainer.save(&at(name)).unwrap();
            trainer.save_state(&at(name).join("state.safetensors")).unwrap();
        };
        train("memory", None);
        train("file", Some(at("scratch")));
        for file in ["model.safetensors", "state.safetensors"] {
            let read = |name: &str| fs_err::read(at(name).join(file)).unwrap();
            assert!(read("memory") == read("file"), "{file} differs on {device:?}");
            assert!(file != "model.safetensors" || read("start") != read("file"), "nothing was trained");
        }
    }
}

#[test]
fn without_room_for_a_file_nothing_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({}));
    let blocked = dir.path().join("file");
    fs_err::write(&blocked, "no folder").unwrap();
    let options = TrainerOptions { scratch: Some(blocked.join("scratch")), ..options() };
    let error = Trainer::load(dir.path(), None, options).err().unwrap();
    assert!(error.to_string().starts_with("cannot set aside "), "{error}");
    assert!(error.hint().unwrap().contains("execution.optimizer_state"));
}

#[test]
fn a_gradient_that_is_not_finite_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({}));
    let mut trainer = Trainer::load(dir.path(), None, options()).unwrap();
    let before = trainer.logprobs(&sequences()).unwrap();
    trainer.accumulate(&sequences()[..1], &mut |rows| vec![vec![f32::NAN; rows[0].logprobs.len()]]).unwrap();
    let report = trainer.apply(1e-2, Some(1.0)).unwrap();
    assert!(report.is_skipped && !report.gradient_norm.is_finite());
    assert_eq!((trainer.step(), trainer.gradient_norm().unwrap()), (0, 0.0));
    assert_eq!(trainer.logprobs(&sequences()).unwrap(), before);
}

#[test]
fn training_learns_a_sequence_by_heart() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({}));
    let mut trainer = Trainer::load(dir.path(), None, TrainerOptions::default()).unwrap();
    let batch = [sequence(30, 5, 123)];
    let mean = |trainer: &Trainer| {
        let row = trainer.logprobs(&batch).unwrap().remove(0);
        row.logprobs.iter().sum::<f32>() / row.logprobs.len() as f32
    };
    // An untrained model is no better than guessing among 123 tokens: about -ln 123 = -4.8 or worse.
    assert!(mean(&trainer) < -4.0);
    for _ in 0..30 {
        trainer
            .accumulate(&batch, &mut |rows| {
                vec![vec![-1.0 / rows[0].logprobs.len() as f32; rows[0].logprobs.len()]]
            })
            .unwrap();
        trainer.apply(1e-2, Some(1.0)).unwrap();
    }
    assert!(mean(&trainer) > -0.1, "{}", mean(&trainer));
}

#[test]
fn what_cannot_be_trained_on_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({"max_position_embeddings": 16}));
    let trainer = Trainer::load(dir.path(), None, TrainerOptions::default()).unwrap();
    let good = TrainSequence { token_ids: vec![1, 2, 3], trained: vec![1, 2], temperature: 1.0 };
    let cases = [
        (
            TrainSequence { token_ids: vec![1, 123], ..good.clone() },
            "token id is outside the vocabulary of 123: 123",
        ),
        (TrainSequence { trained: vec![0], ..good.clone() }, "trained positions must ascend"),
        (TrainSequence { trained: vec![2, 2], ..good.clone() }, "trained positions must ascend"),
        (TrainSequence { trained: vec![3], ..good.clone() }, "trained positions must ascend"),
        (TrainSequence { temperature: f32::NAN, ..good.clone() }, "impossible temperature: NaN"),
        (
            TrainSequence { token_ids: vec![1; 18], trained: vec![17], ..good.clone() },
            "sequence needs 17 positions, more than the limit: 16",
        ),
    ];
    for (sequence, expected) in cases {
        let error = trainer.logprobs(&[good.clone(), sequence]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let untrained = TrainSequence { trained: Vec::new(), ..good.clone() };
    let rows = trainer.logprobs(&[untrained, good]).unwrap();
    assert_eq!((rows[0].logprobs.len(), rows[1].logprobs.len()), (0, 2));
}
