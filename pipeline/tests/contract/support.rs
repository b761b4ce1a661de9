//! Two small stages, their rows, and stores that fail or dawdle.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use envace_pipeline::{
    Artifact, Execution, InputRef, Manifest, Path, PipelineError, Plan, PlanRequest, StageSpec, Store,
    import_checkpoint,
};
use envace_schemas::tables::{AdvantageRow, JudgeCallRow, RewardRow, TimingRow};
use envace_schemas::{Query, Table};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use serde_json::{Value, json};

/// Makes rewards and judge calls out of nothing.
pub const SCORE: StageSpec = StageSpec {
    name: "score",
    version: 1,
    inputs: &[],
    outputs: &[Table::JudgeCalls, Table::Rewards],
    queries: &[Query { name: "score/rewards.sql", text: "SELECT 1" }],
    config: "score",
};

/// Reads rewards, makes advantages.
pub const ADVANTAGE: StageSpec = StageSpec {
    name: "advantage",
    version: 1,
    inputs: &[Table::Rewards],
    outputs: &[Table::Advantages],
    queries: &[],
    config: "advantage",
};

pub const N_PARTS: u32 = 2;

pub fn config() -> Value {
    json!({"tasks_per_part": 2, "weighting": "generation"})
}

/// Rewards of a part: two tasks of two samples each, for one role.
pub fn rewards(part: u32) -> Vec<RewardRow> {
    let row = |task: u32, sample: i32| RewardRow {
        task_id: format!("task-{:02}", 2 * part + task),
        sample,
        role: "actor".to_owned(),
        reward: Some(if sample == 0 { "0.5" } else { "1" }.parse().unwrap()),
        ungraded_reason: None,
        is_success: Some(sample == 1),
        n_graded: 1,
        n_items: 1,
        n_kept_user_turns: 1,
        n_scripted_user_turns: 1,
    };
    (0..2).flat_map(|task| (0..2).map(move |sample| row(task, sample))).collect()
}

pub fn advantages(part: u32) -> Vec<AdvantageRow> {
    let row = |reward: &RewardRow| AdvantageRow {
        task_id: reward.task_id.clone(),
        sample: reward.sample,
        generation_index: 0,
        role: "actor".to_owned(),
        reward: reward.reward,
        baseline: Some(0.75),
        deviation: None,
        group_size: 2,
        advantage: Some(if reward.sample == 0 { -0.25 } else { 0.25 }),
        is_included: true,
        exclusion_reason: None,
    };
    rewards(part).iter().map(row).collect()
}

/// A different value every time: what a clock would say.
fn timing() -> TimingRow {
    static CLOCK: AtomicU64 = AtomicU64::new(0);
    let value = CLOCK.fetch_add(1, Ordering::Relaxed) as f64;
    TimingRow { subject: "part".to_owned(), metric: "wall_secs".to_owned(), value }
}

/// A model folder: the smallest that passes for one.
pub fn model_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("config.json", "{}"), ("model.safetensors", "weights"), ("tokenizer.json", "{}")] {
        fs_err::write(folder.path().join(name), text).unwrap();
    }
    folder
}

pub fn score_request(run: &str) -> PlanRequest<'_> {
    let mut request = PlanRequest::new(&SCORE, run, 3, config(), Vec::new());
    request.n_parts = N_PARTS;
    request
}

/// Runs `score` from whatever is there; part 0 also makes a checkpoint.
pub async fn score(store: &Store, model: &std::path::Path) -> std::result::Result<Manifest, PipelineError> {
    let plan = Plan::make(store, score_request("r")).await?;
    let execution = Execution::new(store, plan);
    for &part in execution.plan().missing_parts() {
        write_score(&execution, part, &rewards(part)).await?;
        if part == 0 {
            let digest = import_checkpoint(store, model).await?;
            execution.add_artifact(part, "checkpoint", Artifact::Checkpoint { digest })?;
        }
        execution.finish_part(part).await?;
    }
    execution.commit().await
}

pub async fn write_score(
    execution: &Execution,
    part: u32,
    rows: &[RewardRow],
) -> std::result::Result<(), PipelineError> {
    execution.write(part, rows).await?;
    execution.write::<JudgeCallRow>(part, &[]).await?;
    execution.write(part, &[timing()]).await
}

pub async fn advantage(
    store: &Store,
    score: &Manifest,
    is_new: bool,
) -> std::result::Result<Manifest, PipelineError> {
    let inputs =
        vec![InputRef::table(score, Table::Rewards)?, InputRef::artifact("checkpoint", score, "checkpoint")?];
    let mut request = PlanRequest::new(&ADVANTAGE, "r", 3, json!({}), inputs);
    (request.n_parts, request.new_attempt) = (N_PARTS, is_new);
    let execution = Execution::new(store, Plan::make(store, request).await?);
    for &part in execution.plan().missing_parts() {
        execution.write(part, &advantages(part)).await?;
        execution.finish_part(part).await?;
    }
    execution.commit().await
}

/// Everything in a store but timings, with the clock and the user taken out of manifests.
pub async fn snapshot(store: &Store) -> BTreeMap<String, Bytes> {
    let mut found = BTreeMap::new();
    for (path, _) in store.list(&Path::default()).await.unwrap() {
        let mut bytes = store.get(&path).await.unwrap();
        if path.as_ref().starts_with("tables/timings/") {
            continue;
        }
        if path.as_ref().ends_with("manifest.json") {
            let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
            manifest["provenance"]["when"] = Value::Null;
            manifest["outputs"].as_object_mut().unwrap().remove("timings");
            bytes = serde_json::to_vec(&manifest).unwrap().into();
        }
        found.insert(path.to_string(), bytes);
    }
    found
}

/// Both kinds of store, empty; the folder lives as long as the pair.
pub fn stores() -> (tempfile::TempDir, [Store; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let local = Store::open(&folder.path().join("store").display().to_string()).unwrap();
    let memory = Store::memory().with_cache(folder.path().join("cache"));
    (folder, [memory, local])
}

/// A layer over a store: from the `limit`th write on everything fails, as if the process were dead; and before each
/// operation it lets other tasks run, more or less often depending on `seed`.
#[derive(Debug, Clone)]
pub struct Layer {
    inner: Arc<dyn ObjectStore>,
    limit: usize,
    n_writes: Arc<AtomicUsize>,
    seed: u64,
    n_operations: Arc<AtomicU64>,
    rival: Option<(Path, Bytes)>,
}

impl Layer {
    /// A store that dies at its `limit`th write, and the counter of writes tried.
    pub fn dying(store: &Store, limit: usize) -> (Store, Arc<AtomicUsize>) {
        Self::over(store, limit, 0)
    }

    /// A store that lets other tasks run in between.
    pub fn dawdling(store: &Store, seed: u64) -> Store {
        Self::over(store, usize::MAX, seed).0
    }

    /// A store in which another process writes `bytes` to `path` a moment before we do.
    pub fn raced(store: &Store, path: Path, bytes: Bytes) -> Store {
        let rival = Some((path, bytes));
        store.clone().wrap(|inner| {
            Arc::new(Self {
                inner,
                limit: usize::MAX,
                n_writes: Arc::default(),
                seed: 0,
                n_operations: Arc::default(),
                rival,
            })
        })
    }

    fn over(store: &Store, limit: usize, seed: u64) -> (Store, Arc<AtomicUsize>) {
        let n_writes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_writes);
        let store = store.clone().wrap(|inner| {
            Arc::new(Self {
                inner,
                limit,
                n_writes,
                seed,
                n_operations: Arc::new(AtomicU64::new(0)),
                rival: None,
            })
        });
        (store, counter)
    }

    fn write(&self) -> Result<()> {
        if self.n_writes.fetch_add(1, Ordering::SeqCst) < self.limit {
            return Ok(());
        }
        Err(object_store::Error::Generic { store: "Layer", source: "killed".into() })
    }

    /// A dead process reads nothing either.
    fn read(&self) -> Result<()> {
        if self.n_writes.load(Ordering::SeqCst) <= self.limit {
            return Ok(());
        }
        Err(object_store::Error::Generic { store: "Layer", source: "killed".into() })
    }

    async fn dawdle(&self) {
        if self.seed == 0 {
            return;
        }
        let n = self.n_operations.fetch_add(1, Ordering::SeqCst);
        // Any mixing function will do: it only has to vary.
        let mixed = (self.seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        for _ in 0..(mixed >> 60) {
            tokio::task::yield_now().await;
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layer({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Layer {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.dawdle().await;
        self.write()?;
        if let Some((_, bytes)) = self.rival.as_ref().filter(|(rival, _)| rival == path) {
            self.inner.put_opts(path, bytes.clone().into(), PutOptions::default()).await?;
        }
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.dawdle().await;
        self.write()?;
        let inner = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(Upload { inner, layer: self.clone() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.dawdle().await;
        self.read()?;
        self.inner.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read()?;
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let layer = self.clone();
        let checked = paths.then(move |path| {
            let layer = layer.clone();
            async move {
                layer.dawdle().await;
                layer.write()?;
                path
            }
        });
        self.inner.delete_stream(checked.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.read() {
            Ok(()) => self.inner.list(prefix),
            Err(error) => futures::stream::once(async move { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.read()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.write()?;
        self.inner.copy_opts(from, to, options).await
    }
}

/// An upload that dies between its parts.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    layer: Layer,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.layer.write() {
            Ok(()) => self.inner.put_part(data),
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.layer.write()?;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        // A dead process does not clean up.
        self.layer.write()?;
        self.inner.abort().await
    }
}
