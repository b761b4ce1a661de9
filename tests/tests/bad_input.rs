//! Bad input on the command line: a clear error, and nothing half-written.

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::task_set::{self, TaskSource};
use envace_jobs::world::{self, Split};
use envace_pipeline::Store;
use envace_tests::repository;

/// Runs a command and returns its exit code, or its error with all causes.
async fn run(args: &[&str]) -> Result<String, String> {
    let cli = Cli::try_parse_from([&["envace-jobs"], args].concat()).map_err(|error| error.to_string())?;
    match cli.run().await {
        Ok(code) => Ok(format!("{code:?}")),
        Err(error) => Err(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")),
    }
}

fn n_files(dir: &std::path::Path) -> usize {
    let Ok(entries) = fs_err::read_dir(dir) else { return 0 };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { n_files(&path) } else { 1 })
        .sum()
}

#[tokio::test]
async fn each_is_named_and_leaves_no_output() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let write = |name: &str, text: &str| fs_err::write(dir.path().join(name), text).unwrap();
    write("unknown.toml", "[rollout]\ngroup_sise = 4\n");
    write("lonely.toml", "[rollout]\ngroup_size = 1\n");
    write("nowhere.toml", "[policy]\ncheckpoint = \"no/such/model\"\n");
    write("other_set.toml", "[tasks]\nset = \"nothing\"\n");
    write("broken.jsonl", "{\"task_id\": \"a\"\n");
    write("empty.jsonl", "");
    fs_err::create_dir(dir.path().join("model")).unwrap();
    write("model/config.json", "{\"model_type\": \"mystery\"}");
    fs_err::create_dir(dir.path().join("torn")).unwrap();
    for entry in fs_err::read_dir(repository::root().join("jobs/assets/policy")).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), dir.path().join("torn").join(entry.file_name())).unwrap();
    }
    let weights = fs_err::read(dir.path().join("torn/model.safetensors")).unwrap();
    fs_err::write(dir.path().join("torn/model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    write("torn.toml", &format!("[policy]\ncheckpoint = {:?}\n", path("torn")));
    write("cache.toml", "[policy]\ncheckpoint = \"bundled\"\n[execution]\nkv_memory = \"20 KiB\"\n");
    write("size.toml", "[execution]\nkv_memory = \"much\"\n");
    write("device.toml", "[execution]\ndevice = \"gpu\"\n");
    write("scratch.toml", "[execution]\noptimizer_state = \"disk\"\nscratch_folder = \"no/such/folder\"\n");
    write("beta.toml", "[update.adamw]\nbeta1 = 1.0\n");
    write("twice.toml", "[evaluate]\nsplits = [\"drift\", \"drift\"]\n");
    write("model.toml", &format!("[policy]\ncheckpoint = {:?}\n", path("model")));
    let store = path("store");
    let task_rows = world::tasks(0, &[(Split::Train, 4)], 0);
    let opened = Store::open(&store).unwrap();
    task_set::store(&opened, "world", TaskSource::World { seed: 0, slips: 0 }, &task_rows, false)
        .await
        .unwrap();
    let n_before = n_files(&dir.path().join("store/tables"));

    let rollout = |config: &str| {
        ["rollout", "--store", &store, "--run", "r", "--step", "0", "--config", &path(config)]
            .map(str::to_owned)
            .to_vec()
    };
    let owned = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let cases: Vec<(&str, Vec<String>, &[&str])> = vec![
        ("unknown key", rollout("unknown.toml"), &["unknown.toml", "group_sise"]),
        ("group of one", rollout("lonely.toml"), &["rollout.group_size", "no baseline"]),
        ("missing file", rollout("absent.toml"), &["absent.toml"]),
        ("no task set", rollout("other_set.toml"), &["task set", "nothing"]),
        ("no model", rollout("nowhere.toml"), &["policy.checkpoint", "no/such/model"]),
        ("torn weights", rollout("torn.toml"), &["torn/model.safetensors"]),
        (
            "a cache too small for one sequence",
            rollout("cache.toml"),
            &["keys and values", "more than the size given: 20480 bytes (20 KiB)"],
        ),
        ("no size", rollout("size.toml"), &["execution.kv_memory", "GiB", "auto"]),
        (
            "a scratch folder that is not there, before the first rollout",
            owned(&[
                "run",
                "--store",
                &store,
                "--run",
                "s",
                "--steps",
                "1",
                "--config",
                &path("scratch.toml"),
            ]),
            &["execution.scratch_folder", "no/such/folder"],
        ),
        (
            "a size that is none, for one call",
            owned(&[
                "rollout",
                "--store",
                &store,
                "--run",
                "t",
                "--step",
                "0",
                "--preset",
                "default",
                "--kv-memory",
                "0",
            ]),
            &["execution.kv_memory"],
        ),
        (
            "a device that this program or machine does not have",
            [rollout("cache.toml"), owned(&["--device", "cuda:999"])].concat(),
            &["device", "cuda:999"],
        ),
        ("no device", rollout("device.toml"), &["execution.device", "cuda:N"]),
        (
            "no device for one call",
            [rollout("cache.toml"), owned(&["--device", "gpu"])].concat(),
            &["execution.device", "cuda:N"],
        ),
        ("beta of one", rollout("beta.toml"), &["update.adamw", "beta1"]),
        ("a split twice", rollout("twice.toml"), &["evaluate.splits"]),
        (
            "a run that is not there",
            owned(&["evaluate", "--store", &store, "--run", "frist", "--step", "0"]),
            &["no run", "frist"],
        ),
        (
            "verdicts that rewards were computed from",
            owned(&[
                "put", "--store", &store, "--run", "r", "--stage", "score", "--step", "0", "--table",
                "verdicts", "--reason", "x", "f",
            ]),
            &["verdicts", "rewards"],
        ),
        ("unknown family", rollout("model.toml"), &["config.json", "mystery"]),
        (
            "run name",
            owned(&["rollout", "--store", &store, "--run", "a/b", "--step", "0"]),
            &["run name", "'/'"],
        ),
        (
            "no rollout to score",
            owned(&["score", "--store", &store, "--run", "fresh", "--step", "0", "--preset", "default"]),
            &["no output", "rollout"],
        ),
        ("wrong column", owned(&["sql", "--store", &store, "SELECT colour FROM tasks"]), &["colour"]),
        ("no question", owned(&["sql", "--store", &store, "DROP TABLE tasks"]), &["sql"]),
        ("no store", owned(&["sql", "--store", &path("absent-store"), "SELECT 1"]), &["absent-store"]),
        (
            "no such table",
            owned(&[
                "put", "--store", &store, "--run", "r", "--stage", "score", "--step", "0", "--table",
                "prizes", "--reason", "x", "f",
            ]),
            &["prizes"],
        ),
    ];
    for (name, args, expected) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let error = run(&args).await.expect_err(name);
        for part in expected {
            assert!(error.contains(part), "{name}: {error:?} does not say {part:?}");
        }
    }
    for file in ["broken.jsonl", "empty.jsonl"] {
        let file = path(file);
        let args = ["tasks", "import", "--store", &store, "--set", "s", "--format", "jsonl", &file];
        let outcome = run(&args).await;
        assert_ne!(outcome, Ok(format!("{:?}", std::process::ExitCode::SUCCESS)), "{file}");
    }
    assert_eq!(n_files(&dir.path().join("store/tables")), n_before, "no table was written");
}
