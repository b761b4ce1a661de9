use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::{MemorySchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::datasource::{MemTable, ViewTable, provider_as_source};
use datafusion::error::DataFusionError;
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Union};
use datafusion::prelude::{ident, lit};
use envace_schemas::Table;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::files::{files_of, plain_schema, root};
use crate::statement::{Allowed, plan};
use crate::{Answer, SqlError};

/// Name in messages for SQL that a person typed.
const TYPED: &str = "sql";
/// The columns that say where a row is from.
const ORIGIN: [(&str, DataType); 4] = [
    ("run", DataType::Utf8),
    ("stage", DataType::Utf8),
    ("step", DataType::Int64),
    ("attempt", DataType::Int64),
];
/// Whether a column of that name stands before a table's own in every answer, to say where a row is from.
pub fn is_origin(column: &str) -> bool {
    ORIGIN.iter().any(|(name, _)| *name == column)
}

/// Schema of the tables with every attempt in them.
const HISTORY: &str = "history";

/// One table of one output of a stage: the files its manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOutput {
    /// The table.
    pub table: Table,
    /// The run it belongs to.
    pub run: String,
    /// The stage that made it.
    pub stage: String,
    /// The step.
    pub step: i64,
    /// The attempt.
    pub attempt: i64,
    /// Whether it is the latest attempt, the one that later stages read.
    pub is_active: bool,
    /// Its files within the store.
    pub paths: Vec<Path>,
}

/// All tables of a store, open for questions and for nothing else.
///
/// Each table has the columns `run`, `stage`, `step` and `attempt` before its own and holds the rows of active
/// attempts; `history.<table>` holds those of all attempts. Files that no manifest names
/// are not seen. A table that nobody made yet is there and empty.
pub struct Lake {
    ctx: SessionContext,
}

impl Lake {
    /// Opens the tables of `outputs`, whose files lie in `store`. Nothing is read before a question is asked.
    ///
    /// # Errors
    /// [`SqlError::Lake`] if a path cannot be used.
    pub fn open(store: Arc<dyn ObjectStore>, outputs: &[StoredOutput]) -> Result<Self, SqlError> {
        let config = SessionConfig::new().with_information_schema(true);
        let ctx = SessionContext::new_with_config(config);
        for &table in Table::ALL {
            let failed = |source: DataFusionError| SqlError::Lake { table, source: source.into() };
            let url = root().map_err(failed)?;
            ctx.register_object_store(&url, Arc::clone(&store));
            let (mut all, mut active) = (Vec::new(), Vec::new());
            for output in outputs.iter().filter(|output| output.table == table && !output.paths.is_empty()) {
                let plan = Arc::new(plan_of(output).map_err(failed)?);
                if output.is_active {
                    active.push(Arc::clone(&plan));
                }
                all.push(plan);
            }
            let latest = view_of(table, active).map_err(failed)?;
            let history = view_of(table, all).map_err(failed)?;
            register(&ctx, table, latest, history).map_err(failed)?;
        }
        Ok(Self { ctx })
    }

    /// Answers one question: `SELECT`, `SHOW TABLES`, `DESCRIBE` or `EXPLAIN`.
    ///
    /// # Errors
    /// [`SqlError`] if the text is no such statement, if it does not fit the tables, or if it fails.
    pub async fn query(&self, text: &str) -> Result<Answer, SqlError> {
        let frame = plan(&self.ctx, TYPED, text, Allowed::Questions, &[]).await?;
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let batches = frame
            .collect()
            .await
            .map_err(|source| SqlError::Execution { query: TYPED.to_owned(), source: source.into() })?;
        Ok(Answer { schema, batches })
    }
}

fn register(
    ctx: &SessionContext,
    table: Table,
    latest: Arc<dyn TableProvider>,
    history: Arc<dyn TableProvider>,
) -> Result<(), DataFusionError> {
    ctx.register_table(table.name(), latest)?;
    for catalog in ctx.catalog_names().iter().filter_map(|name| ctx.catalog(name)) {
        if catalog.schema(HISTORY).is_none() {
            catalog.register_schema(HISTORY, Arc::new(MemorySchemaProvider::new()))?;
        }
    }
    ctx.register_table(TableReference::partial(HISTORY, table.name()), history)?;
    Ok(())
}

/// The table made of all these outputs.
fn view_of(
    table: Table,
    mut plans: Vec<Arc<LogicalPlan>>,
) -> Result<Arc<dyn TableProvider>, DataFusionError> {
    let Some(last) = plans.pop() else {
        return Ok(Arc::new(MemTable::try_new(Arc::new(empty_schema(table)), vec![Vec::new()])?));
    };
    if plans.is_empty() {
        return Ok(Arc::new(ViewTable::new(Arc::unwrap_or_clone(last), None)));
    }
    plans.push(last);
    // One flat union: nested ones would run deep with the number of steps.
    Ok(Arc::new(ViewTable::new(LogicalPlan::Union(Union::try_new(plans)?), None)))
}

/// The rows of one output, with the columns that say where they are from.
fn plan_of(output: &StoredOutput) -> Result<LogicalPlan, DataFusionError> {
    let source = provider_as_source(Arc::new(files_of(output.table, &output.paths)?));
    let values =
        [lit(output.run.as_str()), lit(output.stage.as_str()), lit(output.step), lit(output.attempt)];
    let origin = ORIGIN.iter().zip(values);
    let mut columns: Vec<Expr> = origin.map(|((name, _), value)| value.alias(*name)).collect();
    columns.extend(output.table.columns().iter().map(|column| ident(column.name)));
    LogicalPlanBuilder::scan(output.table.name(), source, None)?.project(columns)?.build()
}

fn empty_schema(table: Table) -> Schema {
    let origin = ORIGIN.iter();
    let mut fields: Vec<Arc<Field>> =
        origin.map(|(name, data_type)| Arc::new(Field::new(*name, data_type.clone(), false))).collect();
    fields.extend(plain_schema(table).fields().iter().map(Arc::clone));
    Schema::new(fields)
}
