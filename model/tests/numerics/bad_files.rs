//! Damaged and unfit model folders: each error names the file and the tensor or key.

use std::path::Path;

use candle_core::Device;
use envace_model::chat::{ChatFormat, Tokenizer};
use envace_model::init::InitScale;
use envace_model::{Model, init};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::config;

/// Writes a good model, lets `damage` change the folder, and returns the error of loading it, causes included.
fn error_of(damage: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    init::random(&config(json!({})), dir.path(), [1; 32], InitScale::default()).unwrap();
    damage(dir.path());
    let error = Model::load(dir.path(), &Device::Cpu).err().expect("a damaged model must not load");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text += &format!("; {cause}");
        source = cause.source();
    }
    text
}

/// Rewrites the weights, tensor by tensor; `None` drops one.
fn rewrite(
    dir: &Path,
    change: impl Fn(&str, Dtype, Vec<usize>, Vec<u8>) -> Option<(Dtype, Vec<usize>, Vec<u8>)>,
    extra: Option<&str>,
) {
    let path = dir.join("model.safetensors");
    let bytes = fs_err::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        if let Some(changed) = change(&name, view.dtype(), view.shape().to_vec(), view.data().to_vec()) {
            tensors.push((name, changed));
        }
    }
    if let Some(name) = extra {
        tensors.push((name.into(), (Dtype::F32, vec![1], vec![0; 4])));
    }
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs_err::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn missing_and_cut_files() {
    let missing = error_of(|dir| fs_err::remove_file(dir.join("model.safetensors")).unwrap());
    assert!(missing.contains("cannot read") && missing.contains("model.safetensors"), "{missing}");
    let no_config = error_of(|dir| fs_err::remove_file(dir.join("config.json")).unwrap());
    assert!(no_config.contains("config.json"), "{no_config}");
    let broken = error_of(|dir| fs_err::write(dir.join("config.json"), "{").unwrap());
    assert!(broken.contains("config.json` is not a valid JSON file"), "{broken}");
    for keep in [0, 4, 60, 10_000] {
        let cut = error_of(|dir| {
            let path = dir.join("model.safetensors");
            let bytes = fs_err::read(&path).unwrap();
            fs_err::write(path, &bytes[..keep]).unwrap();
        });
        let names_file = cut.contains("model.safetensors` is not a valid safetensors file");
        // An empty file cannot be mapped on some systems.
        assert!(names_file || (keep == 0 && cut.contains("model.safetensors")), "{keep}: {cut}");
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let norm = "model.norm.weight";
    let dropped = error_of(|dir| {
        rewrite(dir, |name, dtype, shape, data| (name != norm).then_some((dtype, shape, data)), None);
    });
    assert!(dropped.contains("tensor `model.norm.weight` is missing in"), "{dropped}");
    let extra = error_of(|dir| rewrite(dir, |_, d, s, b| Some((d, s, b)), Some("model.layers.2.mlp.x")));
    assert!(
        extra.contains("tensor `model.layers.2.mlp.x` in") && extra.contains("does not belong"),
        "{extra}"
    );
    let untied = error_of(|dir| rewrite(dir, |_, d, s, b| Some((d, s, b)), Some("lm_head.weight")));
    assert!(
        untied.contains("`lm_head.weight`") && untied.contains("has shape [1], expected [123, 64]"),
        "{untied}"
    );
    let reshaped = error_of(|dir| {
        rewrite(
            dir,
            |name, dtype, shape, data| Some((dtype, if name == norm { vec![2, 32] } else { shape }, data)),
            None,
        );
    });
    assert!(reshaped.contains("has shape [2, 32], expected [64]"), "{reshaped}");
    let recast = error_of(|dir| {
        rewrite(
            dir,
            |name, dtype, shape, data| {
                Some(if name == norm { (Dtype::I16, shape, data) } else { (dtype, shape, data) })
            },
            None,
        );
    });
    assert!(recast.contains("is stored as I16, expected BF16, F16 or F32"), "{recast}");
    let nan = error_of(|dir| {
        rewrite(
            dir,
            |name, dtype, shape, mut data| {
                if name.ends_with("1.mlp.up_proj.weight") {
                    data[2 * 77..2 * 77 + 2].copy_from_slice(&[0xC0, 0x7F]);
                }
                Some((dtype, shape, data))
            },
            None,
        );
    });
    assert!(nan.contains("1.mlp.up_proj.weight") && nan.contains("not finite, at element: 77"), "{nan}");
}

#[test]
fn values_that_are_not_finite() {
    for (tensor, shape) in [("model.embed_tokens.weight", [123, 64]), ("model.norm.weight", [64, 1])] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let index = shape[0] * shape[1] - 1;
            let error = error_of(|dir| {
                rewrite(
                    dir,
                    |name, dtype, shape, mut data| {
                        if name == tensor {
                            data[2 * index..].copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
                        }
                        Some((dtype, shape, data))
                    },
                    None,
                );
            });
            assert!(error.contains(&format!("`{tensor}` in")), "{value}: {error}");
            assert!(error.ends_with(&format!("not finite, at element: {index}")), "{value}: {error}");
        }
    }
}

/// Cuts the weights of a folder into two shards; returns the index, which is not written.
fn shard(dir: &Path) -> Value {
    let whole = fs_err::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&whole).unwrap();
    let mut map = serde_json::Map::new();
    for (i, shard) in ["a.safetensors", "b.safetensors"].iter().enumerate() {
        let own: Vec<(String, TensorView<'_>)> =
            file.tensors().into_iter().filter(|(name, _)| name.len() % 2 == i).collect();
        map.extend(own.iter().map(|(name, _)| (name.clone(), json!(shard))));
        fs_err::write(dir.join(shard), safetensors::serialize(own, None).unwrap()).unwrap();
    }
    fs_err::remove_file(dir.join("model.safetensors")).unwrap();
    json!({"weight_map": map})
}

fn write_index(dir: &Path, index: &Value) {
    fs_err::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn shards_are_found_by_their_index() {
    let dir = tempfile::tempdir().unwrap();
    init::random(&config(json!({})), dir.path(), [1; 32], InitScale::default()).unwrap();
    let index = shard(dir.path());
    write_index(dir.path(), &index);
    Model::load(dir.path(), &Device::Cpu).unwrap();
}

/// Loads a model in two shards of which `damage` changes the folder, given the index that it has.
fn error_of_shards(damage: impl FnOnce(&Path, Value)) -> String {
    error_of(|dir| {
        let index = shard(dir);
        write_index(dir, &index);
        damage(dir, index);
    })
}

#[test]
fn shards_that_are_not_there_or_not_whole() {
    let norm = "model.norm.weight";
    let beside =
        error_of_shards(|dir, _| write_index(dir, &json!({"weight_map": {"x": "../a.safetensors"}})));
    assert!(beside.contains("key `weight_map`"), "{beside}");
    let no_map = error_of_shards(|dir, _| write_index(dir, &json!({"metadata": {}})));
    assert!(no_map.contains("key `weight_map` in") && no_map.contains("index.json`"), "{no_map}");
    let broken =
        error_of_shards(|dir, _| fs_err::write(dir.join("model.safetensors.index.json"), "{").unwrap());
    assert!(broken.contains("index.json` is not a valid JSON file"), "{broken}");
    let missing = error_of_shards(|dir, _| fs_err::remove_file(dir.join("b.safetensors")).unwrap());
    assert!(missing.contains("cannot read") && missing.contains("b.safetensors`"), "{missing}");
    for keep in [0, 7, 100, 5_000] {
        let cut = error_of_shards(|dir, _| {
            let bytes = fs_err::read(dir.join("b.safetensors")).unwrap();
            fs_err::write(dir.join("b.safetensors"), &bytes[..keep]).unwrap();
        });
        let names_file = cut.contains("b.safetensors` is not a valid safetensors file");
        // An empty file cannot be mapped on some systems.
        assert!(names_file || (keep == 0 && cut.contains("b.safetensors")), "{keep}: {cut}");
    }
    // The index names another shard than the one that has the tensor, and then one that neither has.
    let moved = error_of_shards(|dir, mut index| {
        let shard = &mut index["weight_map"][norm];
        *shard = json!(if *shard == "a.safetensors" { "b.safetensors" } else { "a.safetensors" });
        write_index(dir, &index);
    });
    assert!(moved.contains(&format!("tensor `{norm}` is missing in")), "{moved}");
    let nowhere = error_of_shards(|dir, mut index| {
        index["weight_map"]["model.norm.bias"] = json!("a.safetensors");
        write_index(dir, &index);
    });
    assert!(nowhere.contains("tensor `model.norm.bias` is missing in") && nowhere.contains("a.safetensors`"));
    // Which of the two would count?
    let twice = error_of_shards(|dir, _| {
        let bytes = fs_err::read(dir.join("a.safetensors")).unwrap();
        fs_err::write(dir.join("b.safetensors"), bytes).unwrap();
    });
    assert!(twice.contains("b.safetensors` does not belong"), "{twice}");
}

#[test]
fn a_tokenizer_needs_an_embedding_for_each_of_its_tokens() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat");
    let dir = tempfile::tempdir().unwrap();
    fs_err::copy(golden.join("tiny/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    fs_err::copy(golden.join("templates/plain.jinja"), dir.path().join("chat_template.jinja")).unwrap();
    let n_tokens = Tokenizer::load(dir.path()).unwrap().vocab_size();
    let load = |vocab_size: usize| {
        init::random(&config(json!({"vocab_size": vocab_size})), dir.path(), [1; 32], InitScale::default())
            .unwrap();
        ChatFormat::load(dir.path())
    };
    assert!(load(n_tokens + 7).is_ok() && load(n_tokens).is_ok());
    let error = load(n_tokens - 1).unwrap_err().to_string();
    let expected = format!("is {}, and `tokenizer.json` beside it has more tokens: {n_tokens}", n_tokens - 1);
    assert!(error.contains("config.json`: key `vocab_size`") && error.ends_with(&expected), "{error}");
}
