use std::collections::BTreeMap;
use std::fmt;

use envace_schemas::{Table, content_hash, read_batches};
use object_store::path::Path;

use crate::key::hash_hex;
use crate::{Artifact, Manifest, PartRecord, PipelineError, Store, check_name, checkpoint};

/// What [`verify`] looked at, and what it found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verification {
    /// Manifests read.
    pub n_manifests: usize,
    /// Table files hashed.
    pub n_files: usize,
    /// Checkpoints and optimizer states hashed.
    pub n_artifacts: usize,
    /// Bytes of the table files.
    pub n_bytes: u64,
    /// What is not as it should be; none if all is well.
    pub problems: Vec<Problem>,
}

/// Something that is not what its manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub path: String,
    /// What is wrong.
    pub what: String,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }

    fn found(&mut self, path: impl fmt::Display, what: impl Into<String>) {
        self.problems.push(Problem { path: path.to_string(), what: what.into() });
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.path)
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_manifests, n_files, n_artifacts, n_bytes, problems } = self;
        write!(
            f,
            "{n_manifests} outputs, {n_files} files ({n_bytes} bytes), {n_artifacts} checkpoints and states: {} problems",
            problems.len()
        )?;
        problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Reads and hashes everything the manifests of one run, or of all, speak of, and checks the manifests themselves.
///
/// # Errors
/// [`PipelineError::NoOutput`]-like trouble is a problem in the report, not an error; errors are
/// [`PipelineError::InvalidName`] and a store that fails.
pub async fn verify(store: &Store, run: Option<&str>) -> Result<Verification, PipelineError> {
    run.map_or(Ok(()), |run| check_name("run", run))?;
    let mut report = Verification::default();
    let mut artifacts: BTreeMap<String, Artifact> = BTreeMap::new();
    for id in store.manifest_ids(run).await? {
        let path = id.manifest_path();
        let manifest = match Manifest::read(store, &path).await {
            Ok(Some(manifest)) => manifest,
            Ok(None) => continue,
            Err(PipelineError::Json { source, .. }) => {
                report.found(&path, format!("manifest cannot be understood ({source})"));
                continue;
            }
            Err(PipelineError::Format { .. }) => {
                report.found(&path, "manifest is of a newer version");
                continue;
            }
            Err(error) => return Err(error),
        };
        report.n_manifests += 1;
        if manifest.id != id {
            report.found(&path, "manifest lies in the place of another");
        }
        check_manifest(store, &manifest, &mut report).await?;
        for (&table, parts) in &manifest.outputs {
            for part in parts {
                check_file(store, table, part, &mut report).await?;
            }
        }
        for artifact in manifest.artifacts.into_values() {
            artifacts.insert(format!("{} {}", artifact.checkpoint(), artifact.digest()), artifact);
        }
    }
    // An adapter is as sound as its base.
    for artifact in artifacts.values().cloned().collect::<Vec<_>>() {
        // A marker that cannot be read is found with its adapter's files.
        if let Artifact::Checkpoint { digest } = &artifact
            && let Ok(Some(digest)) = checkpoint::checkpoint_base(store, digest).await
        {
            let base = Artifact::Checkpoint { digest };
            artifacts.insert(format!("{} {}", base.checkpoint(), base.digest()), base);
        }
    }
    for artifact in artifacts.values() {
        report.n_artifacts += 1;
        for (path, what) in checkpoint::damage(store, artifact).await? {
            report.found(path, what);
        }
    }
    Ok(report)
}

/// Checks that the key is that of its parts, and that each input is what its origin has.
async fn check_manifest(
    store: &Store,
    manifest: &Manifest,
    report: &mut Verification,
) -> Result<(), PipelineError> {
    let path = manifest.id.manifest_path();
    if manifest.key_parts.key() != manifest.key {
        report.found(&path, "stage key is not that of its parts");
    }
    for input in &manifest.inputs {
        if manifest.key_parts.inputs.get(&input.name) != Some(&input.digest) {
            report.found(&path, format!("input `{}` is not the one in the key", input.name));
        }
        let (crate::Origin::Table { made_by, .. } | crate::Origin::Artifact { made_by, .. }) = &input.origin
        else {
            continue;
        };
        match Manifest::read(store, &made_by.manifest_path()).await {
            Ok(Some(origin)) if origin.digest_for(&input.origin).as_ref() == Some(&input.digest) => {}
            Ok(Some(_)) => report.found(&path, format!("input `{}` has changed at {made_by}", input.name)),
            Ok(None) => report.found(&path, format!("input `{}` is gone: {made_by}", input.name)),
            // A broken manifest is reported where it lies, if it is in the run at all.
            Err(PipelineError::Json { .. } | PipelineError::Format { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn check_file(
    store: &Store,
    table: Table,
    record: &PartRecord,
    report: &mut Verification,
) -> Result<(), PipelineError> {
    report.n_files += 1;
    let Some(bytes) = store.get_if_present(&Path::from(record.path.as_str())).await? else {
        report.found(&record.path, "file of an output is missing");
        return Ok(());
    };
    report.n_bytes += bytes.len() as u64;
    if hash_hex(&bytes) != record.byte_hash {
        report.found(&record.path, "file of an output has other bytes");
        return Ok(());
    }
    let batches = match read_batches(table, bytes) {
        Ok(batches) => batches,
        Err(error) => {
            report.found(&record.path, format!("file of an output cannot be read ({error})"));
            return Ok(());
        }
    };
    let n_rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    if n_rows as u64 != record.n_rows {
        report.found(&record.path, "file of an output has another number of rows");
    }
    if content_hash(table, &batches).ok().as_ref() != Some(&record.content_hash) {
        report.found(&record.path, "file of an output has other rows");
    }
    Ok(())
}
