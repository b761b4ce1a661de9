use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::key::short;
use crate::{CheckpointDigest, InputRef, Manifest, Origin, PipelineError, StageId, Store};

/// Everything an output was made from, back to what came from outside.
///
/// A graph, not a tree: a checkpoint feeds both the rollout and the update of the next step. Each output is listed
/// once, before all it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Lineage {
    /// The outputs, the one asked for first.
    pub nodes: Vec<LineageNode>,
}

/// One output in a lineage.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageNode {
    /// What it is and who made it.
    pub manifest: Manifest,
    /// Its inputs.
    pub links: Vec<LineageLink>,
    /// Whether it, or anything it was made from, was made from an input that is not [`InputStatus::Current`].
    pub is_outdated: bool,
}

/// One input of an output in a lineage.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageLink {
    /// What was read.
    pub input: InputRef,
    /// How it relates to what is in the store now.
    pub status: InputStatus,
}

/// How an input relates to what is in the store now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputStatus {
    /// The latest attempt has the same content.
    Current,
    /// A later attempt has other content.
    Stale {
        /// That attempt.
        latest: StageId,
    },
    /// The output it came from is not in the store.
    Missing,
    /// The output it came from has other content than when it was read.
    Changed,
    /// It came from outside the store.
    Outside,
}

impl Lineage {
    /// The lineage of the latest attempt at a stage of a step.
    ///
    /// # Errors
    /// [`PipelineError::NoOutput`] if there is none; [`PipelineError::Object`] and [`PipelineError::Json`] if a
    /// manifest cannot be read.
    pub async fn of_stage(store: &Store, run: &str, stage: &str, step: u64) -> Result<Self, PipelineError> {
        let manifest = store.latest(run, stage, step).await?.ok_or_else(|| PipelineError::NoOutput {
            id: Box::new(StageId { run: run.to_owned(), stage: stage.to_owned(), step, attempt: 0 }),
        })?;
        Self::of(store, manifest).await
    }

    /// The lineage of a checkpoint: that of the first output, by run, stage and step, that made it.
    ///
    /// # Errors
    /// [`PipelineError::NoCheckpoint`] if no output made it; otherwise as [`Lineage::of_stage`].
    pub async fn of_checkpoint(store: &Store, digest: &CheckpointDigest) -> Result<Self, PipelineError> {
        let makes = |manifest: &Manifest| manifest.artifacts.values().any(|made| made.digest() == digest.0);
        let maker = store.manifests(None).await?.into_iter().find(makes);
        let maker = maker.ok_or_else(|| PipelineError::NoCheckpoint { digest: digest.0.clone() })?;
        Self::of(store, maker).await
    }

    /// The lineage of an output.
    ///
    /// # Errors
    /// As [`Lineage::of_stage`].
    pub async fn of(store: &Store, manifest: Manifest) -> Result<Self, PipelineError> {
        let target = manifest.id.clone();
        let mut found: BTreeMap<StageId, (Manifest, Vec<LineageLink>)> = BTreeMap::new();
        let mut waiting = vec![manifest];
        while let Some(manifest) = waiting.pop() {
            if found.contains_key(&manifest.id) {
                continue;
            }
            let mut links = Vec::new();
            for input in &manifest.inputs {
                let (status, origin) = status(store, input).await?;
                links.push(LineageLink { input: input.clone(), status });
                waiting.extend(origin);
            }
            found.insert(manifest.id.clone(), (manifest, links));
        }
        Ok(Self { nodes: in_order(target, found) })
    }

    /// Whether anything in it was made from an input that has changed since.
    pub fn is_outdated(&self) -> bool {
        self.nodes.first().is_some_and(|node| node.is_outdated)
    }
}

/// Compares an input with the store; also returns the output it came from.
async fn status(store: &Store, input: &InputRef) -> Result<(InputStatus, Option<Manifest>), PipelineError> {
    let Some(made_by) = maker(&input.origin) else { return Ok((InputStatus::Outside, None)) };
    let Some(origin) = Manifest::read(store, &made_by.manifest_path()).await? else {
        return Ok((InputStatus::Missing, None));
    };
    if origin.digest_for(&input.origin).as_ref() != Some(&input.digest) {
        return Ok((InputStatus::Changed, Some(origin)));
    }
    let latest = store.latest(&made_by.run, &made_by.stage, made_by.step).await?;
    let stale = latest.filter(|latest| latest.digest_for(&input.origin).as_ref() != Some(&input.digest));
    let status = stale.map_or(InputStatus::Current, |latest| InputStatus::Stale { latest: latest.id });
    Ok((status, Some(origin)))
}

fn maker(origin: &Origin) -> Option<&StageId> {
    match origin {
        Origin::Table { made_by, .. } | Origin::Artifact { made_by, .. } => Some(made_by),
        Origin::File { .. } => None,
    }
}

/// Sorts outputs so that each comes before all it was made from; among those free to come, the latest step first.
fn in_order(target: StageId, mut found: BTreeMap<StageId, (Manifest, Vec<LineageLink>)>) -> Vec<LineageNode> {
    let mut n_readers: BTreeMap<StageId, usize> = BTreeMap::new();
    let mut read: BTreeMap<StageId, BTreeSet<StageId>> = BTreeMap::new();
    for (id, (_, links)) in &found {
        let makers = links.iter().filter_map(|link| maker(&link.input.origin));
        let makers: BTreeSet<_> = makers.filter(|maker| found.contains_key(maker)).cloned().collect();
        for maker in &makers {
            *n_readers.entry(maker.clone()).or_default() += 1;
        }
        read.insert(id.clone(), makers);
    }
    let mut nodes = Vec::new();
    let mut free = BTreeSet::from([(target.step, target)]);
    while let Some((_, id)) = free.pop_last() {
        for maker in read.get(&id).into_iter().flatten() {
            let Some(n_readers) = n_readers.get_mut(maker) else { continue };
            *n_readers = n_readers.saturating_sub(1);
            if *n_readers == 0 {
                free.insert((maker.step, maker.clone()));
            }
        }
        if let Some((manifest, links)) = found.remove(&id) {
            nodes.push(LineageNode { manifest, links, is_outdated: false });
        }
    }
    let mut outdated = BTreeSet::new();
    for node in nodes.iter_mut().rev() {
        node.is_outdated = node.links.iter().any(|link| {
            let is_sound = matches!(link.status, InputStatus::Current | InputStatus::Outside);
            !is_sound || maker(&link.input.origin).is_some_and(|maker| outdated.contains(maker))
        });
        if node.is_outdated {
            outdated.insert(node.manifest.id.clone());
        }
    }
    nodes
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{node}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LineageNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { manifest, links, is_outdated } = self;
        let mark = if *is_outdated { " (outdated)" } else { "" };
        writeln!(f, "{}{mark}", manifest.id)?;
        write!(f, "  {}", manifest.provenance)?;
        for (table, parts) in &manifest.outputs {
            let digest = manifest.table_digest(*table).unwrap_or_default();
            write!(
                f,
                "\n  makes {table} {} ({} rows in {} parts)",
                short(&digest),
                manifest.n_rows(*table),
                parts.len()
            )?;
        }
        for (name, artifact) in &manifest.artifacts {
            write!(f, "\n  makes {name} {}", short(artifact.digest()))?;
        }
        for LineageLink { input, status } in links {
            write!(f, "\n  reads {input}")?;
            match status {
                InputStatus::Current | InputStatus::Outside => {}
                InputStatus::Stale { latest } => write!(f, ", stale: attempt {} is newer", latest.attempt)?,
                InputStatus::Missing => f.write_str(", which is not in the store")?,
                InputStatus::Changed => f.write_str(", which has changed since")?,
            }
        }
        Ok(())
    }
}
