//! Adapters: against torch's differentiation of the formula (`golden/lora.py`), against merged models, in training, and
//! files that do not fit.

use std::path::Path;

use candle_core::Device;
use envace_model::{
    AdamW, AdapterConfig, LogSoftmax, Model, ModelFolder, NewAdapter, PolicyLogprobs, TrainSequence, Trainer,
    TrainerOptions, check_trainable, merge_adapter,
};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::golden::{Golden, difference, logits};
use super::{random_model, sequence, tokens};

/// Largest difference of a logit or of a logprob, nats.
const VALUES: f32 = 1e-5;
/// Largest difference of an element of a gradient, by the largest element of its tensor.
const GRADIENT: f32 = 2e-5;

#[test]
fn numbers_are_those_of_torch() {
    for (case, is_composed) in
        [("lora_qwen3", false), ("lora_qwen3", true), ("lora_qwen2", false), ("lora_qwen2", true)]
    {
        let golden = Golden::open(case);
        let (worst, size) =
            difference(&logits(&golden.dir, &golden.token_ids("token_ids")), &golden.values("logits"));
        assert!(worst < VALUES && size > 1.0, "{case}: {worst}");
        let (change, _) = difference(&golden.values("base_logits"), &golden.values("logits"));
        assert!(change > 0.1, "{case}: the adapter does something: {change}");
        for recompute_layers in [false, true] {
            let options = TrainerOptions { recompute_layers, is_composed, ..Default::default() };
            let mut trainer = Trainer::load(&golden.dir, None, options).unwrap();
            trainer
                .accumulate(&[golden.sequence()], &mut |rows| {
                    let (worst, _) = difference(&rows[0].logprobs, &golden.values("logprobs"));
                    assert!(worst < VALUES, "{case}: {worst}");
                    vec![golden.values("coefficients")]
                })
                .unwrap();
            let names = trainer.tensor_names();
            assert_eq!(names.len(), if case == "lora_qwen3" { 28 } else { 14 });
            for name in names {
                let found = trainer.gradient(&name).unwrap();
                let (worst, size) = difference(&found, &golden.values(&format!("gradient.{name}")));
                assert!(size > 0.0 && worst < size * GRADIENT, "{case}, {name}: {worst} of {size}");
            }
        }
    }
}

fn adapter_config(targets: &[&str]) -> AdapterConfig {
    AdapterConfig {
        base: "../start".into(),
        rank: 5,
        alpha: 10.0,
        is_rank_stabilized: false,
        target_modules: targets.iter().map(|target| (*target).to_owned()).collect(),
        dropout: 0.0,
    }
}

/// With targets that leave some matrices and some pieces of fused ones alone.
fn options() -> TrainerOptions {
    let config = adapter_config(&["down_proj", "layers.1.self_attn.o_proj", "q_proj", "up_proj", "v_proj"]);
    let adamw = AdamW { weight_decay: 0.1, ..Default::default() };
    TrainerOptions { adamw, adapter: Some(NewAdapter { config, seed: [4; 32] }), ..Default::default() }
}

fn coefficients(rows: &[PolicyLogprobs]) -> Vec<Vec<f32>> {
    rows.iter().map(|row| row.logprobs.iter().map(|logprob| (logprob * 3.0).sin() * 0.1).collect()).collect()
}

fn steps(trainer: &mut Trainer, range: std::ops::Range<u32>) {
    for i in range {
        let batch = [sequence(40, i, 123), sequence(17, i + 50, 123)];
        trainer.accumulate(&batch, &mut |rows| coefficients(rows)).unwrap();
        let report = trainer.apply(1e-2, Some(0.05)).unwrap();
        assert!(report.gradient_norm > 0.0 && !report.is_skipped);
    }
}

const DTYPES: [&str; 2] = ["bfloat16", "float32"];

#[test]
fn a_new_adapter_is_its_base_and_a_trained_one_is_not() {
    for dtype in DTYPES {
        let dir = tempfile::tempdir().unwrap();
        let start = dir.path().join("start");
        random_model(&start, json!({"tie_word_embeddings": false, "dtype": dtype}));
        let base = Trainer::load(&start, None, TrainerOptions::default()).unwrap();
        let mut trainer = Trainer::load(&start, None, options()).unwrap();
        let batch = [sequence(40, 3, 123)];
        // Nothing of the base is trained.
        assert!(trainer.tensor_names().iter().all(|name| name.starts_with("base_model.model.")));
        assert!(trainer.gradient("model.layers.0.self_attn.q_proj.weight").is_err());
        let of_base = base.logprobs(&batch).unwrap();
        assert_eq!(trainer.logprobs(&batch).unwrap(), of_base);
        steps(&mut trainer, 0..3);
        let trained = trainer.logprobs(&batch).unwrap();
        assert_ne!(trained, of_base);
        // The reference is the base under the adapter, and afterwards the adapter is back.
        assert_eq!(trainer.with_base(|trainer| trainer.logprobs(&batch)).unwrap().unwrap(), of_base);
        assert_eq!(trainer.logprobs(&batch).unwrap(), trained);
        let mut base = base;
        assert!(base.with_base(|_| ()).unwrap_err().to_string().contains("has no base"));
    }
}

#[test]
fn sampler_trainer_and_merged_model_see_the_same_bits() {
    for dtype in DTYPES {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        random_model(&at("start"), json!({"dtype": dtype}));
        let mut trainer = Trainer::load(&at("start"), None, options()).unwrap();
        steps(&mut trainer, 0..3);
        trainer.save(&at("adapter")).unwrap();
        let mut files: Vec<_> =
            fs_err::read_dir(at("adapter")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["adapter_config.json", "adapter_model.safetensors"]);
        let token_ids = tokens(30, 8, 123);
        let all =
            TrainSequence { token_ids: token_ids.clone(), trained: (1..30).collect(), temperature: 1.0 };
        let policy = trainer.logprobs(&[all]).unwrap().remove(0).logprobs;
        let of_adapter = logits(&at("adapter"), &token_ids);
        let sampled: Vec<f32> = of_adapter
            .chunks_exact(123)
            .zip(&token_ids[1..])
            .map(|(row, token)| LogSoftmax::new(row, 1.0).logprob(row[*token as usize]))
            .collect();
        assert_eq!(sampled, policy);
        merge_adapter(&at("adapter"), &at("merged")).unwrap();
        assert_eq!(logits(&at("merged"), &token_ids), of_adapter);
        assert!(merge_adapter(&at("merged"), &at("twice")).unwrap_err().to_string().contains("no adapter"));
        assert_eq!(ModelFolder::open(&at("merged")).unwrap().adapter, None);
    }
}

#[test]
fn a_resumed_run_equals_a_straight_one_byte_for_byte() {
    for (dtype, is_composed) in [("bfloat16", false), ("float32", false), ("float32", true)] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        random_model(&at("start"), json!({"dtype": dtype}));
        let options = || TrainerOptions { is_composed, ..options() };
        let save = |trainer: &Trainer, name: &str| {
            trainer.save(&at(name)).unwrap();
            trainer.save_state(&at(name).join("state.safetensors")).unwrap();
        };
        let mut straight = Trainer::load(&at("start"), None, options()).unwrap();
        steps(&mut straight, 0..4);
        save(&straight, "straight");
        let mut first = Trainer::load(&at("start"), None, options()).unwrap();
        steps(&mut first, 0..2);
        save(&first, "half");
        let state = at("half").join("state.safetensors");
        let mut second = Trainer::load(&at("half"), Some(&state), options()).unwrap();
        assert_eq!(second.step(), 2);
        steps(&mut second, 2..4);
        save(&second, "resumed");
        for file in ["adapter_model.safetensors", "state.safetensors", "adapter_config.json"] {
            let read = |name: &str| fs_err::read(at(name).join(file)).unwrap();
            assert!(read("straight") == read("resumed"), "{file} differs");
            if file != "adapter_config.json" {
                assert!(read("straight") != read("half"), "{file} did not change");
            }
        }
        // The state holds the factors alone, and belongs to them.
        let n_bytes = |path: &Path| fs_err::metadata(path).unwrap().len();
        assert!(n_bytes(&state) < 4 * n_bytes(&at("half").join("adapter_model.safetensors")));
        let error = Trainer::load(&at("resumed"), Some(&state), options()).err().unwrap().to_string();
        assert!(error.starts_with("the optimizer's state does not belong to the weights"), "{error}");
        // An adapter of another kind than the one asked for is not trained further.
        let mut other = options();
        other.adapter.as_mut().unwrap().config.rank = 6;
        let error = Trainer::load(&at("half"), None, other).err().unwrap().to_string();
        assert!(error.contains("is of another kind: `r` is 5, not 6"), "{error}");
    }
}

#[test]
fn an_adapter_learns_a_sequence_by_heart() {
    let dir = tempfile::tempdir().unwrap();
    random_model(dir.path(), json!({}));
    let mut trainer = Trainer::load(dir.path(), None, options()).unwrap();
    let batch = [sequence(30, 5, 123)];
    let mean = |trainer: &Trainer| {
        let row = trainer.logprobs(&batch).unwrap().remove(0);
        row.logprobs.iter().sum::<f32>() / row.logprobs.len() as f32
    };
    assert!(mean(&trainer) < -4.0);
    for _ in 0..60 {
        let coefficient =
            |rows: &[PolicyLogprobs]| vec![-1.0 / rows[0].logprobs.len() as f32; rows[0].logprobs.len()];
        trainer.accumulate(&batch, &mut |rows| vec![coefficient(rows)]).unwrap();
        trainer.apply(2e-2, Some(1.0)).unwrap();
    }
    assert!(mean(&trainer) > -0.1, "{}", mean(&trainer));
}

/// Damages the folder of a good adapter and returns the error of loading it.
fn error_of(damage: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    random_model(&dir.path().join("start"), json!({}));
    let adapter = dir.path().join("adapter");
    Trainer::load(&dir.path().join("start"), None, options()).unwrap().save(&adapter).unwrap();
    damage(&adapter);
    let error = Model::load(&adapter, &Device::Cpu).err().expect("a bad adapter must not load").to_string();
    let of_trainer = Trainer::load(&adapter, None, TrainerOptions::default()).err().unwrap().to_string();
    assert_eq!(error, of_trainer);
    error
}

fn change_config(dir: &Path, key: &str, value: Value) {
    let path = dir.join("adapter_config.json");
    let mut config: Value = serde_json::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
    config[key] = value;
    fs_err::write(path, config.to_string()).unwrap();
}

/// Rewrites the tensors; each is given its name and shape, and may be dropped, renamed or reshaped.
fn change_tensors(dir: &Path, change: impl Fn(String, Vec<usize>) -> Option<(String, Vec<usize>)>) {
    let path = dir.join("adapter_model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().filter_map(|(name, view)| {
        let (name, shape) = change(name, view.shape().to_vec())?;
        Some((name, TensorView::new(Dtype::F32, shape, view.data()).unwrap()))
    });
    fs_err::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    const DOWN: &str = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight";
    let missing = error_of(|dir| {
        change_tensors(dir, |name, shape| (name != DOWN).then_some((name, shape)));
    });
    assert!(missing.starts_with(&format!("tensor `{DOWN}` is missing in")), "{missing}");
    let other = DOWN.replace("lora_A", "lora_C");
    let extra = error_of(|dir| {
        change_tensors(dir, |name, shape| Some((name.replace(DOWN, &other), shape)));
    });
    assert!(extra.starts_with(&format!("tensor `{other}` in")), "{extra}");
    // What the configuration does not name is an extra key, though the base has it.
    let unnamed =
        error_of(|dir| change_config(dir, "target_modules", json!(["q_proj", "up_proj", "v_proj"])));
    assert!(unnamed.contains("lora_A.weight` in") && unnamed.contains("does not belong"), "{unnamed}");
    let shape = error_of(|dir| {
        change_tensors(dir, |name, mut shape| {
            if name == DOWN {
                shape.reverse();
            }
            Some((name, shape))
        });
    });
    assert!(shape.contains(DOWN) && shape.ends_with("has shape [100, 5], expected [5, 100]"), "{shape}");
    let rank = error_of(|dir| change_config(dir, "r", json!(4)));
    assert!(rank.contains("expected [4, "), "{rank}");
    // A base of other sizes, one that is not there, and an adapter as a base.
    let base = error_of(|dir| {
        random_model(&dir.with_file_name("other"), json!({"intermediate_size": 99}));
        change_config(dir, "base_model_name_or_path", json!("../other"));
    });
    assert!(base.contains("has shape") && base.contains("99"), "{base}");
    let hub = error_of(|dir| change_config(dir, "base_model_name_or_path", json!("Qwen/Qwen3-0.6B")));
    assert!(
        hub.contains("base_model_name_or_path") && hub.ends_with("is not a folder: Qwen/Qwen3-0.6B"),
        "{hub}"
    );
    let chained = error_of(|dir| change_config(dir, "base_model_name_or_path", json!(".")));
    assert!(chained.ends_with("is an adapter itself: ."), "{chained}");
    for target in ["lm_head", "embed_tokens", "proj", "layers.2.mlp.down_proj"] {
        let unknown = error_of(|dir| change_config(dir, "target_modules", json!(["q_proj", target])));
        assert!(unknown.ends_with(&format!("has an unsupported value: {target}")), "{unknown}");
    }
    let dir = tempfile::tempdir().unwrap();
    random_model(&dir.path().join("start"), json!({}));
    let adapter = dir.path().join("adapter");
    Trainer::load(&dir.path().join("start"), None, options()).unwrap().save(&adapter).unwrap();
    change_config(&adapter, "lora_dropout", json!(0.1));
    Model::load(&adapter, &Device::Cpu).unwrap();
    let dropout = Trainer::load(&adapter, None, TrainerOptions::default()).err().unwrap().to_string();
    assert!(dropout.contains("lora_dropout"), "{dropout}");
}

#[test]
fn a_sum_beyond_its_numbers_is_not_called_damage() {
    let dir = tempfile::tempdir().unwrap();
    random_model(&dir.path().join("start"), json!({}));
    let adapter = dir.path().join("adapter");
    Trainer::load(&dir.path().join("start"), None, options()).unwrap().save(&adapter).unwrap();
    let path = adapter.join("adapter_model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let large: Vec<u8> = [1e30_f32.to_le_bytes(); 4096].concat();
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        (name, TensorView::new(Dtype::F32, view.shape().to_vec(), &large[..view.data().len()]).unwrap())
    });
    fs_err::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let error = Model::load(&adapter, &Device::Cpu).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("what is added to it by") && text.contains("is not finite, at element: "),
        "{text}"
    );
    let hint = error.hint().unwrap();
    assert!(hint.contains("lora_alpha") && !hint.contains("damaged"), "{hint}");
}

#[test]
fn what_cannot_be_trained_is_known_without_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    random_model(&at("start"), json!({}));
    Trainer::load(&at("start"), None, options()).unwrap().save(&at("adapter")).unwrap();
    let new = |change: &dyn Fn(&mut AdapterConfig)| {
        let mut new = options().adapter.unwrap();
        change(&mut new.config);
        new
    };
    type Change<'a> = &'a dyn Fn(&mut AdapterConfig);
    let cases: [(&str, Change<'_>, &str); 7] = [
        ("start", &|config| config.rank = 0, "key `r` in `[lora]` is not above 0"),
        ("start", &|config| config.alpha = 0.0, "key `lora_alpha` in `[lora]` is not above 0"),
        ("start", &|config| config.alpha = 1e300, "larger than a number of 32 bits"),
        ("start", &|config| config.target_modules = vec!["x_proj".into()], "unsupported value: x_proj"),
        ("adapter", &|config| config.rank = 4, "of another kind: `r` is 5, not 4"),
        ("adapter", &|config| config.alpha = 5.0, "of another kind: `lora_alpha` is 10, not 5"),
        ("adapter", &|config| drop(config.target_modules.pop()), "of another kind: `target_modules` is"),
    ];
    for (folder, change, expected) in cases {
        let options = TrainerOptions { adapter: Some(new(change)), ..options() };
        let trained = Trainer::load(&at(folder), None, options.clone()).err().unwrap().to_string();
        let checked = check_trainable(&at(folder), options.adapter.as_ref()).unwrap_err().to_string();
        assert!(checked.contains(expected), "{checked}");
        assert_eq!(checked, trained);
    }
    for name in ["start/model.safetensors", "adapter/adapter_model.safetensors"] {
        fs_err::remove_file(at(name)).unwrap();
    }
    for folder in ["start", "adapter"] {
        check_trainable(&at(folder), Some(&new(&|_| {}))).unwrap();
        check_trainable(&at(folder), None).unwrap();
    }
    change_config(&at("adapter"), "lora_dropout", json!(0.1));
    let error = check_trainable(&at("adapter"), None).unwrap_err().to_string();
    assert!(error.contains("does not drop inputs"), "{error}");
}
