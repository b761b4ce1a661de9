//! Damaged and unfit model folders: each error names the file and the tensor or key.

use std::path::Path;

use candle_core::Device;
use envace_model::{Model, init};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::config;

/// Writes a good model, lets `damage` change the folder, and returns the error of loading it, causes included.
fn error_of(damage: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    init::random(&config(json!({})), dir.path(), [1; 32], init::InitScale::default()).unwrap();
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
fn shards_are_found_by_their_index() {
    let dir = tempfile::tempdir().unwrap();
    init::random(&config(json!({})), dir.path(), [1; 32], init::InitScale::default()).unwrap();
    let whole = fs_err::read(dir.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&whole).unwrap();
    let mut map = serde_json::Map::new();
    for (i, shard) in ["a.safetensors", "b.safetensors"].iter().enumerate() {
        let own: Vec<(String, TensorView<'_>)> =
            file.tensors().into_iter().filter(|(name, _)| name.len() % 2 == i).collect();
        map.extend(own.iter().map(|(name, _)| (name.clone(), json!(shard))));
        fs_err::write(dir.path().join(shard), safetensors::serialize(own, None).unwrap()).unwrap();
    }
    fs_err::remove_file(dir.path().join("model.safetensors")).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    fs_err::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    Model::load(dir.path(), &Device::Cpu).unwrap();

    fs_err::write(&index, json!({"weight_map": {"x": "../a.safetensors"}}).to_string()).unwrap();
    let error = Model::load(dir.path(), &Device::Cpu).err().unwrap().to_string();
    assert!(error.contains("key `weight_map`"), "{error}");
    fs_err::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    fs_err::write(dir.path().join("b.safetensors"), &whole[..100]).unwrap();
    let error = Model::load(dir.path(), &Device::Cpu).err().unwrap().to_string();
    assert!(error.contains("b.safetensors` is not a valid safetensors file"), "{error}");
}
