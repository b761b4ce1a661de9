use std::collections::BTreeSet;
use std::fmt;

use envace_schemas::Table;

use crate::Manifest;
use crate::key::short;

/// What differs between two outputs of one stage; see [`compare`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Parts compared.
    pub n_parts: usize,
    /// Artifacts compared.
    pub n_artifacts: usize,
    /// Each difference; none for identical outputs.
    pub differences: Vec<PartDifference>,
}

/// One difference between two outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartDifference {
    /// The rows of a part.
    Content {
        /// The table.
        table: Table,
        /// The part.
        part: usize,
        /// Content hash of the one; `None`: it has no such part.
        a: Option<String>,
        /// Content hash of the other.
        b: Option<String>,
    },
    /// The file of a part, its rows being the same: another Parquet writer.
    Bytes {
        /// The table.
        table: Table,
        /// The part.
        part: usize,
    },
    /// A checkpoint or optimizer state.
    Artifact {
        /// Its name.
        name: String,
        /// Digest of the one; `None`: it has none of that name.
        a: Option<String>,
        /// Digest of the other.
        b: Option<String>,
    },
}

impl Comparison {
    /// Whether the two are byte for byte the same.
    pub fn is_identical(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for PartDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |digest: &Option<String>| digest.as_deref().map_or("nothing", short).to_owned();
        match self {
            Self::Content { table, part, a, b } => {
                write!(f, "part {part} of `{table}` has other rows: {} and {}", shown(a), shown(b))
            }
            Self::Bytes { table, part } => {
                write!(f, "part {part} of `{table}` has the same rows, other bytes")
            }
            Self::Artifact { name, a, b } => {
                write!(f, "artifact `{name}` differs: {} and {}", shown(a), shown(b))
            }
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_parts, n_artifacts, differences } = self;
        if self.is_identical() {
            return write!(f, "identical: {n_parts} parts, {n_artifacts} artifacts");
        }
        write!(f, "{} differences in {n_parts} parts, {n_artifacts} artifacts", differences.len())?;
        differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
    }
}

/// Compares two outputs part by part, by content and by bytes. Timings, provenance and paths do not count.
pub fn compare(a: &Manifest, b: &Manifest) -> Comparison {
    let mut comparison = Comparison::default();
    let tables: BTreeSet<Table> = a.outputs.keys().chain(b.outputs.keys()).copied().collect();
    for table in tables.into_iter().filter(|table| *table != Table::Timings) {
        let parts = |manifest: &Manifest| manifest.outputs.get(&table).cloned().unwrap_or_default();
        let (a, b) = (parts(a), parts(b));
        for part in 0..a.len().max(b.len()) {
            comparison.n_parts += 1;
            let (a, b) = (a.get(part), b.get(part));
            let hash =
                |record: Option<&crate::PartRecord>| record.map(|record| record.content_hash.0.clone());
            if hash(a) != hash(b) {
                let difference = PartDifference::Content { table, part, a: hash(a), b: hash(b) };
                comparison.differences.push(difference);
            } else if a.map(|a| &a.byte_hash) != b.map(|b| &b.byte_hash) {
                comparison.differences.push(PartDifference::Bytes { table, part });
            }
        }
    }
    let names: BTreeSet<&String> = a.artifacts.keys().chain(b.artifacts.keys()).collect();
    for name in names {
        comparison.n_artifacts += 1;
        let digest =
            |manifest: &Manifest| manifest.artifacts.get(name).map(|found| found.digest().to_owned());
        let (a, b) = (digest(a), digest(b));
        if a != b {
            comparison.differences.push(PartDifference::Artifact { name: name.clone(), a, b });
        }
    }
    comparison
}
