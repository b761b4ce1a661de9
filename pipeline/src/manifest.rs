use std::collections::BTreeMap;
use std::fmt;

use chrono::{SecondsFormat, Utc};
use envace_schemas::{ContentHash, Table};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::key::{short, update_framed};
use crate::{CheckpointDigest, KeyParts, PipelineError, StageId, StageKey, Store, json};

/// Format of the manifests this version writes.
const FORMAT: u32 = 1;

/// What an output of a stage is, and what it was made from. Written last: without it there is no output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of this file.
    pub format: u32,
    /// Which output it is.
    pub id: StageId,
    /// Digest of all it depends on.
    pub key: StageKey,
    /// The same, field by field.
    pub key_parts: KeyParts,
    /// What was read, and where it came from.
    pub inputs: Vec<InputRef>,
    /// The parts of each table made, in order.
    #[serde(with = "by_name")]
    pub outputs: BTreeMap<Table, Vec<PartRecord>>,
    /// Checkpoints made, by name such as `checkpoint`.
    pub artifacts: BTreeMap<String, Artifact>,
    /// Who made it, when and how.
    pub provenance: Provenance,
}

/// One file of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// Where it lies in the store.
    pub path: String,
    /// Rows.
    pub n_rows: u64,
    /// Size of the file.
    pub n_bytes: u64,
    /// Digest of its rows: what lineage compares.
    pub content_hash: ContentHash,
    /// Digest of the file: what shows damage.
    pub byte_hash: String,
}

/// One input of a stage. Its name and digest are in the stage key, where it came from is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRef {
    /// Name within the stage, such as `rewards` or `rehearsal_checkpoint`.
    pub name: String,
    /// Digest of its content.
    pub digest: String,
    /// Rows, of a table.
    pub n_rows: Option<u64>,
    /// Where it came from.
    pub origin: Origin,
}

/// Where an input came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// A table of another stage.
    Table {
        /// That stage.
        made_by: StageId,
        /// The table.
        #[serde(with = "name")]
        table: Table,
    },
    /// A checkpoint, or the optimizer's state beside it, of another stage.
    Artifact {
        /// That stage.
        made_by: StageId,
        /// Its name there.
        artifact: String,
    },
    /// A file from outside the store.
    File {
        /// Its name, without folders.
        name: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table { made_by, .. } | Self::Artifact { made_by, .. } => made_by.fmt(f),
            Self::File { name } => write!(f, "file `{name}`"),
        }
    }
}

/// Something a stage made that is no table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Artifact {
    /// Weights with config and tokenizer.
    Checkpoint {
        /// Digest of its files.
        digest: CheckpointDigest,
    },
    /// The optimizer's state beside a checkpoint.
    OptimizerState {
        /// The checkpoint it lies beside.
        checkpoint: CheckpointDigest,
        /// Digest of the state.
        digest: String,
    },
}

impl Artifact {
    /// Digest of its content.
    pub fn digest(&self) -> &str {
        match self {
            Self::Checkpoint { digest } => &digest.0,
            Self::OptimizerState { digest, .. } => digest,
        }
    }

    /// The checkpoint it is or lies beside.
    pub fn checkpoint(&self) -> &CheckpointDigest {
        match self {
            Self::Checkpoint { digest } => digest,
            Self::OptimizerState { checkpoint, .. } => checkpoint,
        }
    }
}

/// Who made an output, when and how. In no key and no comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Whether a stage made it or a person put it.
    pub made_by: MadeBy,
    /// User name.
    pub who: String,
    /// Date and time, RFC 3339, in UTC.
    pub when: String,
    /// Why it was put. `None`: a stage made it.
    pub reason: Option<String>,
    /// The attempt that a put began from, and the tables it replaced.
    pub replaces: Option<Replaced>,
    /// Version of envace.
    pub version: String,
}

/// How an output came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeBy {
    /// The stage ran.
    Stage,
    /// A table was put by hand.
    Put,
}

/// What a put replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The attempt it began from.
    pub attempt: u32,
    /// Names of the tables it replaced; the others were carried over.
    pub tables: Vec<String>,
}

impl Provenance {
    /// Provenance of an output that is being made now, by the user this process runs as.
    pub(crate) fn of_stage() -> Self {
        Self {
            made_by: MadeBy::Stage,
            who: current_user(),
            when: now(),
            reason: None,
            replaces: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made_by, who, when, reason, replaces, .. } = self;
        match made_by {
            MadeBy::Stage => write!(f, "made by {who}, {when}")?,
            MadeBy::Put => write!(f, "put by {who}, {when}")?,
        }
        if let Some(Replaced { attempt, tables }) = replaces {
            write!(f, ", in place of {} of attempt {attempt}", tables.join(", "))?;
        }
        reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

/// The user this process runs as, from the environment, or `unknown`.
pub fn current_user() -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| std::env::var(name).ok());
    user.filter(|user| !user.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl Manifest {
    pub(crate) fn new(
        id: StageId,
        key_parts: KeyParts,
        inputs: Vec<InputRef>,
        outputs: BTreeMap<Table, Vec<PartRecord>>,
        artifacts: BTreeMap<String, Artifact>,
        provenance: Provenance,
    ) -> Self {
        let key = key_parts.key();
        Self { format: FORMAT, id, key, key_parts, inputs, outputs, artifacts, provenance }
    }

    /// Digest of all rows of a table; `None` if the stage does not make it.
    ///
    /// It covers the parts' content hashes in order, so that it can be had without reading a row.
    pub fn table_digest(&self, table: Table) -> Option<String> {
        let parts = self.outputs.get(&table)?;
        let mut hasher = blake3::Hasher::new();
        update_framed(&mut hasher, table.name().as_bytes());
        hasher.update(&(parts.len() as u64).to_le_bytes());
        for part in parts {
            update_framed(&mut hasher, part.content_hash.0.as_bytes());
        }
        Some(hasher.finalize().to_hex().to_string())
    }

    /// Rows of a table over all parts; 0 if the stage does not make it.
    pub fn n_rows(&self, table: Table) -> u64 {
        self.outputs.get(&table).map_or(0, |parts| parts.iter().map(|part| part.n_rows).sum())
    }

    /// Digest of an output or artifact that `input` names, in this manifest; `None` if it has no such.
    pub fn digest_for(&self, origin: &Origin) -> Option<String> {
        match origin {
            Origin::Table { table, .. } => self.table_digest(*table),
            Origin::Artifact { artifact, .. } => {
                self.artifacts.get(artifact).map(|artifact| artifact.digest().to_owned())
            }
            Origin::File { .. } => None,
        }
    }

    pub(crate) async fn read(store: &Store, path: &Path) -> Result<Option<Self>, PipelineError> {
        let Some(bytes) = store.get_if_present(path).await? else { return Ok(None) };
        let name = path.to_string();
        let value: serde_json::Value = json::from_bytes(&name, &bytes)?;
        let format = value.get("format").and_then(serde_json::Value::as_u64).unwrap_or(0);
        let format = u32::try_from(format).unwrap_or(u32::MAX);
        if format > FORMAT {
            return Err(PipelineError::Format { path: name, found: format, known: FORMAT });
        }
        json::from_bytes(&name, &bytes).map(Some)
    }

    /// Writes it, unless there is one: then that one is returned.
    pub(crate) async fn publish(&self, store: &Store) -> Result<Option<Self>, PipelineError> {
        let path = self.id.manifest_path();
        let bytes = json::to_bytes(path.as_ref(), self)?;
        if store.put_if_absent(&path, bytes).await? {
            return Ok(None);
        }
        let there = Self::read(store, &path).await?;
        there.map(Some).ok_or_else(|| PipelineError::Taken { id: Box::new(self.id.clone()) })
    }
}

impl InputRef {
    /// A whole table of another stage, named as the table is.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] if that stage does not make it.
    pub fn table(manifest: &Manifest, table: Table) -> Result<Self, PipelineError> {
        let digest = manifest.table_digest(table).ok_or_else(|| PipelineError::NoSuch {
            id: Box::new(manifest.id.clone()),
            what: format!("table `{table}`"),
        })?;
        let origin = Origin::Table { made_by: manifest.id.clone(), table };
        Ok(Self { name: table.name().to_owned(), digest, n_rows: Some(manifest.n_rows(table)), origin })
    }

    /// A checkpoint or optimizer state that another stage made under the name `artifact`.
    ///
    /// # Errors
    /// [`PipelineError::NoSuch`] if it made none of that name.
    pub fn artifact(name: &str, manifest: &Manifest, artifact: &str) -> Result<Self, PipelineError> {
        let found = manifest.artifacts.get(artifact).ok_or_else(|| PipelineError::NoSuch {
            id: Box::new(manifest.id.clone()),
            what: format!("artifact `{artifact}`"),
        })?;
        let origin = Origin::Artifact { made_by: manifest.id.clone(), artifact: artifact.to_owned() };
        Ok(Self { name: name.to_owned(), digest: found.digest().to_owned(), n_rows: None, origin })
    }

    /// A file from outside, by its content; `file_name` is only shown.
    pub fn file(name: &str, file_name: &str, content: &[u8]) -> Self {
        let digest = blake3::hash(content).to_hex().to_string();
        let origin = Origin::File { name: file_name.to_owned() };
        Self { name: name.to_owned(), digest, n_rows: None, origin }
    }

    /// The same input under another name, for a stage that reads one table twice.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }
}

impl fmt::Display for InputRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} from {}", self.name, short(&self.digest), self.origin)?;
        self.n_rows.map_or(Ok(()), |n_rows| write!(f, " ({n_rows} rows)"))
    }
}

/// A table by its name.
mod name {
    use envace_schemas::Table;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(table: &Table, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(table.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Table, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A map keyed by tables, by their names.
pub(crate) mod by_name {
    use std::collections::BTreeMap;

    use envace_schemas::Table;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer, V: Serialize>(
        map: &BTreeMap<Table, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(table, value)| (table.name(), value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Table, V>, D::Error> {
        let by_name = BTreeMap::<String, V>::deserialize(deserializer)?;
        by_name
            .into_iter()
            .map(|(name, value)| name.parse().map(|table| (table, value)).map_err(D::Error::custom))
            .collect()
    }
}
