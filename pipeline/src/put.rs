use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::DataType;
use envace_schemas::{Table, TableError};
use object_store::path::Path;

use crate::catalog::Claim;
use crate::check::encode;
use crate::execution::record;
use crate::key::update_framed;
use crate::manifest::now;
use crate::{
    MadeBy, Manifest, PartRecord, PipelineError, Provenance, Replaced, StageId, StageOutput, Store,
    check_name,
};

/// Tries at finding a free attempt number before giving up.
const MAX_TRIES: u32 = 100;

/// Stores a table made by hand as a new attempt at a stage; its other tables are carried over.
///
/// `batches` hold the whole table in the order of its grain. If it has several parts, each row goes to the part
/// that holds its group (its first key column) now. The attempt keeps the stage key of the one it replaces, so the
/// stage counts as done; what was read from it downstream has another digest now. Killed and called again with
/// the same table, it goes on.
///
/// # Errors
/// [`PipelineError::NoOutput`] if the stage has no output yet; [`PipelineError::NoSuch`] if it does not make that
/// table; [`PipelineError::Put`] if a row belongs to no part; [`PipelineError::Table`],
/// [`PipelineError::Unsorted`], [`PipelineError::Duplicate`] for a table that breaks its rules;
/// [`PipelineError::Object`] if the store fails.
#[expect(clippy::too_many_arguments, reason = "one coordinate each, and all are needed")]
pub async fn put(
    store: &Store,
    run: &str,
    stage: &str,
    step: u64,
    table: Table,
    batches: &[RecordBatch],
    who: &str,
    reason: &str,
) -> Result<Manifest, PipelineError> {
    check_name("run", run)?;
    check_name("stage", stage)?;
    let base = StageOutput::latest(store, run, stage, step).await?;
    let mut encoded = Vec::new();
    let mut digest = blake3::Hasher::new();
    update_framed(&mut digest, table.name().as_bytes());
    for (part, batches) in (0u32..).zip(split(&base, table, batches).await?) {
        let part = encode(table, part, &batches)?;
        update_framed(&mut digest, part.byte_hash.as_bytes());
        encoded.push(part);
    }
    let base = base.manifest();
    for text in [base.id.attempt.to_string().as_str(), who, reason] {
        update_framed(&mut digest, text.as_bytes());
    }
    let claim = Claim {
        key: base.key.clone(),
        key_parts: base.key_parts.clone(),
        inputs: base.inputs.clone(),
        put: Some(digest.finalize().to_hex().to_string()),
    };
    let id = take_attempt(store, &base.id, &claim).await?;
    let mut outputs = BTreeMap::new();
    for (&other, parts) in base.outputs.iter().filter(|(other, _)| **other != table) {
        outputs.insert(other, carry_over(store, &id, other, parts).await?);
    }
    let mut parts = Vec::new();
    for (part, encoded) in (0u32..).zip(encoded) {
        let path = id.part_path(table, part);
        parts.push(record(path.as_ref(), &encoded));
        store.put(&path, encoded.bytes).await?;
        store.sync(&path)?;
    }
    outputs.insert(table, parts);
    let provenance = Provenance {
        made_by: MadeBy::Put,
        who: who.to_owned(),
        when: now(),
        reason: Some(reason.to_owned()),
        replaces: Some(Replaced { attempt: base.id.attempt, tables: vec![table.name().to_owned()] }),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let (key_parts, inputs) = (base.key_parts.clone(), base.inputs.clone());
    let mut manifest = Manifest::new(id, key_parts, inputs, outputs, base.artifacts.clone(), provenance);
    // The key stands for what the stage would be made from, even if an older version digested it otherwise.
    manifest.key = base.key.clone();
    Ok(manifest.publish(store).await?.unwrap_or(manifest))
}

/// Takes the first free attempt after `base`, or the one that an earlier try of the same put took.
async fn take_attempt(store: &Store, base: &StageId, claim: &Claim) -> Result<StageId, PipelineError> {
    let mut id = base.clone();
    for _ in 0..MAX_TRIES {
        id.attempt += 1;
        if claim.take(store, &id).await? && !store.exists(&id.manifest_path()).await? {
            return Ok(id);
        }
    }
    Err(PipelineError::Taken { id: Box::new(id) })
}

/// Copies the parts of a table to another attempt.
async fn carry_over(
    store: &Store,
    id: &StageId,
    table: Table,
    parts: &[PartRecord],
) -> Result<Vec<PartRecord>, PipelineError> {
    let mut carried = Vec::new();
    for (part, record) in (0u32..).zip(parts) {
        let path = id.part_path(table, part);
        // A real copy, never a link: each attempt stands for itself.
        let bytes = store.get(&Path::from(record.path.as_str())).await?;
        store.put_if_absent(&path, bytes).await?;
        carried.push(PartRecord { path: path.to_string(), ..record.clone() });
    }
    Ok(carried)
}

/// Cuts a table into the parts the stage's output has.
async fn split(
    base: &StageOutput,
    table: Table,
    batches: &[RecordBatch],
) -> Result<Vec<Vec<RecordBatch>>, PipelineError> {
    let n_parts = base.n_parts(table)?;
    if n_parts == 1 {
        return Ok(vec![batches.to_vec()]);
    }
    let arrow = |source| PipelineError::Table { table, part: 0, source: TableError::Arrow { table, source } };
    let home = part_of_group(base, table).await?;
    let schema = table.schema();
    // The columns are compared with the table's when the parts are encoded; here only the first one matters.
    let found = batches.first().map_or_else(|| schema.clone(), RecordBatch::schema);
    let whole = concat_batches(&found, batches).map_err(arrow)?;
    let mut rows_of_part = vec![Vec::new(); n_parts as usize];
    for (row, group) in (0u32..).zip(groups(table, &whole)?) {
        let part = home.get(&group).and_then(|&part| rows_of_part.get_mut(part as usize));
        let rows = part.ok_or_else(|| PipelineError::Put {
            table,
            reason: "no part of the output has the group",
            value: group,
        })?;
        rows.push(row);
    }
    let taken = rows_of_part.into_iter().map(|rows| take_record_batch(&whole, &UInt32Array::from(rows)));
    taken.map(|batch| batch.map(|batch| vec![batch]).map_err(arrow)).collect()
}

/// In which part each group lies, by any table of the stage that has the same first key column.
async fn part_of_group(base: &StageOutput, table: Table) -> Result<BTreeMap<String, u32>, PipelineError> {
    let mut home = BTreeMap::new();
    let mut tables: BTreeSet<Table> = base.manifest().outputs.keys().copied().collect();
    tables.retain(|other| other.grain().first() == table.grain().first());
    for other in tables {
        for part in 0..base.n_parts(other)? {
            for batch in base.read_batches(other, part).await? {
                for group in groups(other, &batch)? {
                    home.entry(group).or_insert(part);
                }
            }
        }
    }
    Ok(home)
}

/// The first key column of every row.
fn groups(table: Table, batch: &RecordBatch) -> Result<Vec<String>, PipelineError> {
    let name = table.grain().first().copied().unwrap_or_default();
    let column = batch.column_by_name(name).filter(|column| column.data_type() == &DataType::LargeUtf8);
    let column = column.ok_or_else(|| PipelineError::Put {
        table,
        reason: "it has several parts and is not keyed by the text column",
        value: name.to_owned(),
    })?;
    let texts = column.as_string::<i64>();
    Ok((0..texts.len()).map(|row| texts.value(row).to_owned()).collect())
}
