use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, ParamValues};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::context::{SessionConfig, SessionContext};
use envace_schemas::{Table, TableError};

use crate::conform::{Target, conform};
use crate::statement::{Allowed, plan};
use crate::{Param, SqlError};

/// Runs queries over tables in memory.
///
/// The result of a query of envace does not depend on the number of partitions, down to the bits.
#[derive(Debug, Clone, Copy)]
pub struct QuerySession {
    n_partitions: usize,
}

impl Default for QuerySession {
    /// As many partitions as the machine has threads, at most 8.
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, |n_threads| n_threads.get().min(8)))
    }
}

impl QuerySession {
    /// A session that cuts its inputs into `n_partitions` (at least 1) and works on that many at a time.
    pub fn new(n_partitions: usize) -> Self {
        Self { n_partitions: n_partitions.max(1) }
    }

    /// Runs the query `text` over `inputs` and returns the rows of `output`, sorted by its grain.
    ///
    /// The columns of the result are found by name, may come in any order, and are converted to the table's
    /// types where nothing can be lost. `name` stands in messages. No rows give no batch.
    ///
    /// # Errors
    /// [`SqlError`] if the text is not one `SELECT`, if it names a table, column or parameter that is not
    /// there, if it fails, or if its result is not the table `output`: a column missing, too many, of another
    /// type or NULL where it must be known, or two rows of one key.
    pub async fn run_query(
        &self,
        name: &str,
        text: &str,
        inputs: &[(Table, Vec<RecordBatch>)],
        params: &[Param],
        output: Table,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let (target, frame) = self.planned(name, text, inputs, params, output).await?;
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let batches = frame
            .collect()
            .await
            .map_err(|source| SqlError::Execution { query: name.to_owned(), source: source.into() })?;
        conform(target, &schema, &batches)
    }

    /// What [`run_query`](Self::run_query) says of a query before it has any rows: whether it can be run over the tables
    /// `inputs` and makes the columns of `output`.
    ///
    /// # Errors
    /// As there, but for what only rows show.
    pub async fn check_query(
        &self,
        name: &str,
        text: &str,
        inputs: &[Table],
        params: &[Param],
        output: Table,
    ) -> Result<(), SqlError> {
        let inputs: Vec<_> = inputs.iter().map(|table| (*table, Vec::new())).collect();
        self.planned(name, text, &inputs, params, output).await.map(|_| ())
    }

    /// The query over its inputs, not yet run. A wrong column is known from the plan alone, before the work.
    async fn planned<'a>(
        &self,
        name: &'a str,
        text: &str,
        inputs: &[(Table, Vec<RecordBatch>)],
        params: &[Param],
        output: Table,
    ) -> Result<(Target<'a>, DataFrame), SqlError> {
        let ctx = self.context(name, inputs)?;
        let names: Vec<String> = params.iter().map(|(name, _)| (*name).to_owned()).collect();
        let frame = plan(&ctx, name, text, Allowed::Select, &names).await?;
        let values =
            ParamValues::from(params.iter().map(|(name, value)| (*name, value.clone())).collect::<Vec<_>>());
        let frame = frame.with_param_values(values).map_err(|source| SqlError::Plan {
            query: name.to_owned(),
            tables: inputs.iter().map(|(table, _)| table.name().to_owned()).collect(),
            params: names,
            source: source.into(),
        })?;
        let target = Target { query: name, table: output };
        target.check(frame.schema().as_arrow())?;
        Ok((target, frame))
    }

    fn context(&self, name: &str, inputs: &[(Table, Vec<RecordBatch>)]) -> Result<SessionContext, SqlError> {
        let config = SessionConfig::new().with_target_partitions(self.n_partitions);
        let ctx = SessionContext::new_with_config(config);
        for (table, batches) in inputs {
            let failed = |source: DataFusionError| SqlError::Execution {
                query: name.to_owned(),
                source: source.into(),
            };
            let partitions = self.partitions(name, *table, batches)?;
            let table_in_memory = MemTable::try_new(table.schema(), partitions).map_err(failed)?;
            ctx.register_table(table.name(), Arc::new(table_in_memory)).map_err(failed)?;
        }
        Ok(ctx)
    }

    /// Cuts each batch into one slice a partition.
    fn partitions(
        &self,
        name: &str,
        table: Table,
        batches: &[RecordBatch],
    ) -> Result<Vec<Vec<RecordBatch>>, SqlError> {
        let schema = table.schema();
        let mut partitions = vec![Vec::new(); self.n_partitions];
        for batch in batches {
            let batch =
                RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()).map_err(|source| {
                    SqlError::Input { query: name.to_owned(), source: TableError::Arrow { table, source } }
                })?;
            let n_rows = batch.num_rows().div_ceil(self.n_partitions).max(1);
            for (index, partition) in partitions.iter_mut().enumerate() {
                let start = (index * n_rows).min(batch.num_rows());
                let len = n_rows.min(batch.num_rows() - start);
                if len > 0 {
                    partition.push(batch.slice(start, len));
                }
            }
        }
        Ok(partitions)
    }
}
