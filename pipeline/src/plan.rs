use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use envace_schemas::Table;
use object_store::path::Path;
use serde_json::Value;

use crate::catalog::Claim;
use crate::key::{hash_hex, key_differences};
use crate::staging::Staging;
use crate::{
    InputRef, KeyDifference, KeyParts, Manifest, Origin, PipelineError, StageId, StageKey, StageSpec, Store,
    check_name, checkpoint, json,
};

/// What a stage is asked to do. Fields beyond those of [`PlanRequest::new`] can be set one by one.
#[derive(Debug, Clone)]
pub struct PlanRequest<'a> {
    /// The stage.
    pub spec: &'a StageSpec,
    /// The run it belongs to, or the name of the task set or model it makes.
    pub run: &'a str,
    /// The step of the run.
    pub step: u64,
    /// The stage's config section, and nothing else.
    pub config: Value,
    /// Everything it reads.
    pub inputs: Vec<InputRef>,
    /// What can change the last bits of its numbers, such as device and type. Default `None`.
    pub fingerprint: Option<String>,
    /// Parts of each output table. Default 1.
    pub n_parts: u32,
    /// Texts that a user gives in place of declared queries, by the query's name. Default none.
    pub query_texts: BTreeMap<String, String>,
    /// Whether to make another attempt although there is an output. Default `false`.
    pub new_attempt: bool,
    /// How closely to look at an output before it is reused. Default [`PartCheck::Bytes`].
    pub check: PartCheck,
}

/// How closely to look at an output before it is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartCheck {
    /// Files are there and have their size.
    Sizes,
    /// Every byte is hashed.
    Bytes,
}

impl<'a> PlanRequest<'a> {
    /// A request with the defaults stated at the fields.
    pub fn new(spec: &'a StageSpec, run: &'a str, step: u64, config: Value, inputs: Vec<InputRef>) -> Self {
        Self {
            spec,
            run,
            step,
            config,
            inputs,
            fingerprint: None,
            n_parts: 1,
            query_texts: BTreeMap::new(),
            new_attempt: false,
            check: PartCheck::Bytes,
        }
    }

    /// The request that an output was made from, so that it can be made again elsewhere and compared.
    ///
    /// Replaced query texts are not in a manifest; give them again if there were any.
    pub fn again(spec: &'a StageSpec, manifest: &'a Manifest) -> Self {
        let KeyParts { step, n_parts, fingerprint, config, .. } = &manifest.key_parts;
        Self {
            fingerprint: fingerprint.clone(),
            n_parts: *n_parts,
            ..Self::new(spec, &manifest.id.run, *step, config.clone(), manifest.inputs.clone())
        }
    }

    fn key_parts(&self) -> Result<KeyParts, PipelineError> {
        let Self { spec, step, config, inputs, fingerprint, n_parts, query_texts, .. } = self;
        if let Some(name) =
            query_texts.keys().find(|name| spec.queries.iter().all(|query| query.name != *name))
        {
            let id =
                StageId { run: self.run.to_owned(), stage: spec.name.to_owned(), step: *step, attempt: 0 };
            return Err(PipelineError::NoSuch { id: Box::new(id), what: format!("query `{name}`") });
        }
        let text = |query: &envace_schemas::Query| {
            let text = query_texts.get(query.name).map_or(query.text, String::as_str);
            (query.name.to_owned(), hash_hex(text.as_bytes()))
        };
        Ok(KeyParts {
            stage: spec.name.to_owned(),
            version: spec.version,
            step: *step,
            n_parts: *n_parts,
            fingerprint: fingerprint.clone(),
            queries: spec.queries.iter().map(text).collect(),
            inputs: inputs.iter().map(|input| (input.name.clone(), input.digest.clone())).collect(),
            config: json::sorted(config),
        })
    }

    fn check_inputs(&self) -> Result<(), PipelineError> {
        let Self { spec, inputs, n_parts, .. } = self;
        let wrong = |reason, input: &str| {
            Err(PipelineError::Inputs { stage: spec.name.to_owned(), reason, input: input.to_owned() })
        };
        let mut names = BTreeSet::new();
        let mut tables = BTreeSet::new();
        for input in inputs {
            if !names.insert(&input.name) {
                return wrong("is given two inputs of one name", &input.name);
            }
            if let Origin::Table { table, .. } = input.origin {
                if table == Table::Timings {
                    return wrong("cannot depend on what the clock says", table.name());
                }
                if !spec.inputs.contains(&table) {
                    return wrong("does not declare the input it is given", table.name());
                }
                tables.insert(table);
            }
        }
        if let Some(missing) = spec.inputs.iter().find(|table| !tables.contains(table)) {
            return wrong("is not given its input", missing.name());
        }
        if *n_parts == 0 {
            return wrong("has nothing to do, number of parts is", "0");
        }
        Ok(())
    }
}

/// What would be read, made or reused. Making one writes nothing.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The stage.
    pub spec: StageSpec,
    /// The output it stands for.
    pub id: StageId,
    /// Digest of all the output depends on.
    pub key: StageKey,
    /// The same, field by field.
    pub key_parts: KeyParts,
    /// What is read.
    pub inputs: Vec<InputRef>,
    /// What there is to do.
    pub state: PlanState,
}

/// What there is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanState {
    /// Nothing: an output of this key is there and whole.
    Reuse(Box<Manifest>),
    /// These parts, and then a commit.
    Make {
        /// Parts that an earlier process finished.
        done_parts: Vec<u32>,
        /// Parts to make.
        missing_parts: Vec<u32>,
    },
}

impl Plan {
    /// Compares a request with what the store has.
    ///
    /// # Errors
    /// [`PipelineError::KeyConflict`] if an output is there that was made from something else, unless a new
    /// attempt is asked for; [`PipelineError::Damaged`] if the output to reuse is not whole;
    /// [`PipelineError::InvalidName`], [`PipelineError::Inputs`], [`PipelineError::NoSuch`] for a request that
    /// breaks the stage's declaration; [`PipelineError::Object`] if the store fails.
    pub async fn make(store: &Store, request: PlanRequest<'_>) -> Result<Self, PipelineError> {
        check_name("run", request.run)?;
        request.check_inputs()?;
        let key_parts = request.key_parts()?;
        let PlanRequest { spec, run, step, inputs, new_attempt, check, n_parts, .. } = request;
        let id = StageId { run: run.to_owned(), stage: spec.name.to_owned(), step, attempt: 0 };
        let key = key_parts.key();
        let mut plan = Self {
            spec: *spec,
            id,
            key,
            key_parts,
            inputs,
            state: PlanState::Make { done_parts: Vec::new(), missing_parts: Vec::new() },
        };
        if let Some(manifest) = plan.choose_attempt(store, new_attempt).await? {
            check_intact(store, &manifest, check).await?;
            plan.id = manifest.id.clone();
            plan.state = PlanState::Reuse(Box::new(manifest));
            return Ok(plan);
        }
        let staging = Staging::new(&plan.id, &plan.key);
        let (mut done_parts, mut missing_parts) = (Vec::new(), Vec::new());
        for part in 0..n_parts {
            let is_done = staging.finished(store, part).await?.is_some();
            if is_done { done_parts.push(part) } else { missing_parts.push(part) }
        }
        plan.state = PlanState::Make { done_parts, missing_parts };
        Ok(plan)
    }

    /// Sets the attempt to make; returns the output instead if it can be reused.
    async fn choose_attempt(
        &mut self,
        store: &Store,
        is_new: bool,
    ) -> Result<Option<Manifest>, PipelineError> {
        let step_dir = self.id.step_dir();
        let latest = store.latest(&self.id.run, &self.id.stage, self.id.step).await?;
        let claimed = store.ids_in(&step_dir, "claim.json").await?.pop();
        if let Some(manifest) = latest.as_ref().filter(|_| !is_new) {
            if manifest.key == self.key {
                return Ok(latest);
            }
            let was = (&manifest.key_parts, manifest.inputs.as_slice());
            return Err(self.conflict(&manifest.id, was));
        }
        let made = latest.map(|manifest| manifest.id.attempt);
        self.id.attempt = made.map_or(0, |attempt| attempt + 1);
        // A claim beyond the latest output: a commit that was cut short, or is under way.
        let Some(claimed) = claimed.filter(|claimed| claimed.attempt >= self.id.attempt) else {
            return Ok(None);
        };
        if let Some(claim) = Claim::read(store, &claimed).await? {
            let is_ours = claim.key == self.key && claim.put.is_none();
            match (is_ours, is_new) {
                (true, _) => self.id.attempt = claimed.attempt,
                (false, true) => self.id.attempt = claimed.attempt + 1,
                (false, false) => return Err(self.conflict(&claimed, (&claim.key_parts, &claim.inputs))),
            }
        }
        Ok(None)
    }

    pub(crate) fn conflict(&self, id: &StageId, was: (&KeyParts, &[InputRef])) -> PipelineError {
        let mut differences = key_differences(was, (&self.key_parts, &self.inputs));
        if differences.is_empty() {
            differences.push(KeyDifference::Other);
        }
        PipelineError::KeyConflict { id: Box::new(id.clone()), differences }
    }

    /// The output to reuse, if that is what there is to do.
    pub fn reused(&self) -> Option<&Manifest> {
        match &self.state {
            PlanState::Reuse(manifest) => Some(manifest),
            PlanState::Make { .. } => None,
        }
    }

    /// Parts still to make.
    pub fn missing_parts(&self) -> &[u32] {
        match &self.state {
            PlanState::Reuse(_) => &[],
            PlanState::Make { missing_parts, .. } => missing_parts,
        }
    }
}

/// What a dry run prints: inputs with where they come from, outputs, and what there is to do.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.id)?;
        writeln!(f, "  key    {}", self.key)?;
        for input in &self.inputs {
            writeln!(f, "  reads  {input}")?;
        }
        for table in self.spec.outputs {
            match self.reused() {
                Some(manifest) => writeln!(f, "  has    {table} ({} rows)", manifest.n_rows(*table))?,
                None => writeln!(f, "  makes  {table}")?,
            }
        }
        match &self.state {
            PlanState::Reuse(manifest) => write!(f, "  reuse  {}", manifest.provenance),
            PlanState::Make { done_parts, missing_parts } => {
                let n_parts = done_parts.len() + missing_parts.len();
                write!(f, "  make   {} of {n_parts} parts, {} done", missing_parts.len(), done_parts.len())
            }
        }
    }
}

async fn check_intact(store: &Store, manifest: &Manifest, check: PartCheck) -> Result<(), PipelineError> {
    for record in manifest.outputs.values().flatten() {
        let damaged =
            |what: &str| Err(PipelineError::Damaged { path: record.path.clone(), what: what.to_owned() });
        let path = Path::from(record.path.as_str());
        match store.size(&path).await? {
            None => return damaged("file of an output is missing"),
            Some(n_bytes) if n_bytes != record.n_bytes => {
                return damaged("file of an output has another size");
            }
            Some(_) => {}
        }
        if check == PartCheck::Bytes && hash_hex(&store.get(&path).await?) != record.byte_hash {
            return damaged("file of an output has other bytes");
        }
    }
    for artifact in manifest.artifacts.values() {
        if !checkpoint::is_intact(store, artifact).await? {
            let path = format!("checkpoints/{}", artifact.checkpoint());
            let what = "checkpoint is missing or not whole".to_owned();
            return Err(PipelineError::Damaged { path, what });
        }
    }
    Ok(())
}
