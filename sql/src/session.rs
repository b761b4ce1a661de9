use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use datafusion::common::{DataFusionError, ParamValues};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use envace_schemas::{Table, TableError};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::conform::{Target, conform};
use crate::files::{files_of, root};
use crate::statement::{Allowed, plan, table_names};
use crate::{Param, SqlError};

/// Bytes of a file from which on its row groups are read by several threads.
const SMALLEST_CUT: usize = 1 << 20;

/// Runs queries over tables.
///
/// The result of a query of envace does not depend on the number of partitions or on the limit of memory, down to the bits.
#[derive(Debug, Clone, Copy)]
pub struct QuerySession {
    n_partitions: usize,
    /// Bytes that joins, sums and sorts may take.
    memory_limit: Option<usize>,
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
        Self { n_partitions: n_partitions.max(1), memory_limit: None }
    }

    /// The same with a limit on the memory, in bytes, that the work takes beside its inputs and its result. What can be
    /// moved to a temporary file is; if the rest does not fit, the query fails.
    pub fn with_memory_limit(self, limit: Option<usize>) -> Self {
        Self { memory_limit: limit, ..self }
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
        let (target, frame) = self.planned(name, text, self.in_memory(name, inputs)?, params, output).await?;
        self.collected(target, frame).await
    }

    /// As [`run_query`](Self::run_query), over Parquet files of the tables. Of these only the columns are read that the
    /// query needs; they must be what they are said to be.
    ///
    /// # Errors
    /// As there.
    pub async fn run_query_on_files(
        &self,
        name: &str,
        text: &str,
        files: &[(Table, Bytes)],
        params: &[Param],
        output: Table,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let ctx = self.on_files(files).await.map_err(failed(name))?;
        let (target, frame) = self.planned(name, text, ctx, params, output).await?;
        self.collected(target, frame).await
    }

    async fn collected(&self, target: Target<'_>, frame: DataFrame) -> Result<Vec<RecordBatch>, SqlError> {
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let batches =
            frame.collect().await.map_err(|source| match (source.find_root(), self.memory_limit) {
                (DataFusionError::ResourcesExhausted(_), Some(limit)) => {
                    SqlError::Memory { query: target.query.to_owned(), limit, source: source.into() }
                }
                _ => failed(target.query)(source),
            })?;
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
        self.planned(name, text, self.in_memory(name, &inputs)?, params, output).await.map(|_| ())
    }

    /// The query over the tables of `ctx`, not yet run. A wrong column is known from the plan alone, before the work.
    async fn planned<'a>(
        &self,
        name: &'a str,
        text: &str,
        ctx: SessionContext,
        params: &[Param],
        output: Table,
    ) -> Result<(Target<'a>, DataFrame), SqlError> {
        let names: Vec<String> = params.iter().map(|(name, _)| (*name).to_owned()).collect();
        let frame = plan(&ctx, name, text, Allowed::Select, &names).await?;
        let values =
            ParamValues::from(params.iter().map(|(name, value)| (*name, value.clone())).collect::<Vec<_>>());
        let frame = frame.with_param_values(values).map_err(|source| SqlError::Plan {
            query: name.to_owned(),
            tables: table_names(&ctx),
            params: names,
            source: source.into(),
        })?;
        let target = Target { query: name, table: output };
        target.check(frame.schema().as_arrow())?;
        Ok((target, frame))
    }

    fn context(&self) -> Result<SessionContext, DataFusionError> {
        let mut config = SessionConfig::new().with_target_partitions(self.n_partitions);
        // A part is worth cutting long before it has the size that files of a lake have.
        config.options_mut().optimizer.repartition_file_min_size = SMALLEST_CUT;
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(limit) = self.memory_limit {
            runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(limit)));
        }
        Ok(SessionContext::new_with_config_rt(config, Arc::new(runtime.build()?)))
    }

    async fn on_files(&self, files: &[(Table, Bytes)]) -> Result<SessionContext, DataFusionError> {
        let ctx = self.context()?;
        let store = Arc::new(InMemory::new());
        ctx.register_object_store(&root()?, Arc::clone(&store) as Arc<dyn ObjectStore>);
        for (table, bytes) in files {
            let path = Path::from(format!("{table}.parquet"));
            store.put(&path, bytes.clone().into()).await?;
            ctx.register_table(table.name(), Arc::new(files_of(*table, &[path])?))?;
        }
        Ok(ctx)
    }

    fn in_memory(
        &self,
        name: &str,
        inputs: &[(Table, Vec<RecordBatch>)],
    ) -> Result<SessionContext, SqlError> {
        let ctx = self.context().map_err(failed(name))?;
        for (table, batches) in inputs {
            let partitions = self.partitions(name, *table, batches)?;
            let table_in_memory = MemTable::try_new(table.schema(), partitions).map_err(failed(name))?;
            ctx.register_table(table.name(), Arc::new(table_in_memory)).map_err(failed(name))?;
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

fn failed(query: &str) -> impl Fn(DataFusionError) -> SqlError {
    move |source| SqlError::Execution { query: query.to_owned(), source: source.into() }
}
