//! Checkpoints are known by what is in them, and half a copy is none.

use std::path::Path;

use envace_pipeline::{
    Artifact, CheckpointDigest, Store, adapter_base_name, add_optimizer_state, check_artifact,
    checkpoint_base, checkpoint_dir, import_adapter, import_checkpoint, optimizer_state_path,
};

use crate::support::{Layer, model_folder, snapshot, stores};

fn files(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = fs_err::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs_err::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_folder_goes_in_and_comes_out() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for name in ["README.md", ".hidden.json", "state-old.safetensors", "pytorch_model.bin"] {
        fs_err::write(model.path().join(name), "no part of a checkpoint").unwrap();
    }
    fs_err::create_dir(model.path().join("folder.json")).unwrap();
    let mut digests = Vec::new();
    for store in &stores {
        let digest = import_checkpoint(store, model.path()).await.unwrap();
        let before = snapshot(store).await;
        assert_eq!(import_checkpoint(store, model.path()).await.unwrap(), digest);
        assert!(snapshot(store).await == before);
        let dir = checkpoint_dir(store, &digest).await.unwrap();
        let mut found = files(&dir);
        found.retain(|(name, _)| name != "complete.json");
        assert_eq!(
            found,
            [("config.json", "{}"), ("model.safetensors", "weights"), ("tokenizer.json", "{}")]
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
        );
        assert_eq!(import_checkpoint(store, &dir).await.unwrap(), digest, "a checkpoint is a model folder");

        let state = model.path().join("state-old.safetensors");
        let digest_of_state = add_optimizer_state(store, &digest, &state).await.unwrap();
        assert_eq!(digest_of_state, blake3::hash(b"no part of a checkpoint").to_hex().to_string());
        let file = optimizer_state_path(store, &digest, &digest_of_state).await.unwrap();
        assert_eq!(fs_err::read_to_string(&file).unwrap(), "no part of a checkpoint");
        assert!(file.ends_with(format!("{digest}/state-{digest_of_state}.safetensors")));
        assert_eq!(import_checkpoint(store, &dir).await.unwrap(), digest, "the state is no part of it");
        digests.push(digest);
    }
    assert_eq!(digests[0], digests[1]);
    assert_eq!(
        checkpoint_dir(&stores[1], &digests[1]).await.unwrap().parent().unwrap(),
        stores[1].root().unwrap().join("checkpoints")
    );

    // A damaged copy in the cache is fetched again.
    let dir = checkpoint_dir(&stores[0], &digests[0]).await.unwrap();
    fs_err::write(dir.join("config.json"), "xx").unwrap();
    checkpoint_dir(&stores[0], &digests[0]).await.unwrap();
    assert_eq!(fs_err::read_to_string(dir.join("config.json")).unwrap(), "{}");
}

#[tokio::test]
async fn every_byte_and_every_name_is_in_the_digest() {
    let store = Store::memory();
    let mut digests = Vec::new();
    let changes: [fn(&Path); 5] = [
        |_| {},
        |folder| fs_err::write(folder.join("model.safetensors"), "Weights").unwrap(),
        |folder| fs_err::write(folder.join("config.json"), "{ }").unwrap(),
        |folder| fs_err::rename(folder.join("tokenizer.json"), folder.join("tokenizer.model")).unwrap(),
        |folder| fs_err::write(folder.join("chat_template.jinja"), "").unwrap(),
    ];
    for change in changes {
        let model = model_folder();
        change(model.path());
        digests.push(import_checkpoint(&store, model.path()).await.unwrap());
    }
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 5);
}

#[tokio::test]
async fn half_a_copy_is_never_taken_for_a_whole_one() {
    let model = model_folder();
    // Three files of three calls each; the marker is the tenth write.
    for limit in 0..10 {
        let (_folder, stores) = stores();
        for store in stores {
            let (dying, _) = Layer::dying(&store, limit);
            assert!(import_checkpoint(&dying, model.path()).await.is_err());
            let whole = import_checkpoint(&Store::memory(), model.path()).await.unwrap();
            let error = checkpoint_dir(&store, &whole).await.unwrap_err();
            assert_eq!(error.to_string(), format!("checkpoint is not in the store: {whole}"));
            assert_eq!(import_checkpoint(&store, model.path()).await.unwrap(), whole);
            checkpoint_dir(&store, &whole).await.unwrap();
        }
    }
}

#[tokio::test]
async fn folders_that_are_no_model_are_refused() {
    let store = Store::memory();
    let reason = async |model: &Path| import_checkpoint(&store, model).await.unwrap_err().to_string();
    let missing = Path::new("/nowhere/at/all");
    assert_eq!(reason(missing).await, "model folder does not exist: /nowhere/at/all");
    let model = model_folder();
    let path = model.path().display();
    fs_err::rename(model.path().join("config.json"), model.path().join("config.yaml")).unwrap();
    assert_eq!(reason(model.path()).await, format!("model folder has no config.json: {path}"));
    fs_err::rename(model.path().join("config.yaml"), model.path().join("config.json")).unwrap();
    fs_err::remove_file(model.path().join("model.safetensors")).unwrap();
    assert_eq!(reason(model.path()).await, format!("model folder has no safetensors file: {path}"));
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    fs_err::write(model.path().join("model.safetensors.index.json"), index).unwrap();
    fs_err::write(model.path().join("model-1.safetensors"), "").unwrap();
    assert_eq!(reason(model.path()).await, format!("model folder has no model-2.safetensors: {path}"));
    fs_err::write(model.path().join("model.safetensors.index.json"), "{").unwrap();
    assert!(reason(model.path()).await.starts_with("cannot be understood: "));
    assert!(snapshot(&store).await.is_empty());

    let none = CheckpointDigest("0".repeat(64));
    let error = add_optimizer_state(&store, &none, missing).await.unwrap_err();
    assert_eq!(error.to_string(), format!("checkpoint is not in the store: {none}"));
}

/// An adapter's folder that names its base so.
fn adapter_folder(base: &str, weights: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{{\"base_model_name_or_path\": \"{base}\"}}");
    for (name, text) in [
        ("adapter_config.json", config.as_str()),
        ("adapter_model.safetensors", weights),
        ("README.md", "no part of it"),
    ] {
        fs_err::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[tokio::test]
async fn an_adapter_is_two_files_and_a_base() {
    let (_folder, stores) = stores();
    let model = model_folder();
    let mut digests = Vec::new();
    for store in &stores {
        let base = CheckpointDigest("0".repeat(64));
        let adapter = adapter_folder(&adapter_base_name(&base), "small");
        let error = import_adapter(store, adapter.path(), &base).await.unwrap_err().to_string();
        assert_eq!(error, format!("checkpoint is not in the store: {base}"));
        let base = import_checkpoint(store, model.path()).await.unwrap();
        let error = import_adapter(store, adapter.path(), &base).await.unwrap_err().to_string();
        assert!(error.contains("names another base than"), "{error}");

        let adapter = adapter_folder(&adapter_base_name(&base), "small");
        let digest = import_adapter(store, adapter.path(), &base).await.unwrap();
        assert_eq!(import_adapter(store, adapter.path(), &base).await.unwrap(), digest);
        assert_eq!(checkpoint_base(store, &digest).await.unwrap(), Some(base.clone()));
        assert_eq!(checkpoint_base(store, &base).await.unwrap(), None);
        let dir = checkpoint_dir(store, &digest).await.unwrap();
        let found: Vec<String> = files(&dir).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found[..2], ["adapter_config.json", "adapter_model.safetensors"]);
        // What the adapter names leads to the base, in the store and in the cache.
        let weights = dir.join(adapter_base_name(&base)).join("model.safetensors");
        assert_eq!(fs_err::read_to_string(weights).unwrap(), "weights");

        let chained = adapter_folder(&adapter_base_name(&digest), "small");
        let error = import_adapter(store, chained.path(), &digest).await.unwrap_err().to_string();
        assert!(error.contains("is an adapter of another adapter"), "{error}");
        fs_err::remove_file(adapter.path().join("adapter_model.safetensors")).unwrap();
        let error = import_adapter(store, adapter.path(), &base).await.unwrap_err().to_string();
        assert!(error.contains("has no adapter_model.safetensors"), "{error}");
        digests.push((base, digest));
    }
    assert_eq!(digests[0], digests[1]);

    // Without its base an adapter is not whole, and a changed base is found before anything is computed.
    let (store, (base, digest)) = (&stores[1], &digests[1]);
    let check = async || check_artifact(store, &Artifact::Checkpoint { digest: digest.clone() }).await;
    check().await.unwrap();
    let weights = checkpoint_dir(store, base).await.unwrap().join("model.safetensors");
    fs_err::write(&weights, "Weights").unwrap();
    let error = check().await.unwrap_err().to_string();
    assert!(error.contains("has other bytes") && error.contains(&base.0), "{error}");
    fs_err::remove_file(&weights).unwrap();
    checkpoint_dir(store, digest).await.unwrap_err();
}
