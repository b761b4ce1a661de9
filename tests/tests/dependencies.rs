//! Which crate may know what: the lines of the architecture, read from the manifests and the lock file.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use envace_tests::repository;

/// What one crate of the workspace may and may not depend on.
struct Rule {
    name: &'static str,
    /// Crates of the workspace it may use.
    ours: &'static [&'static str],
    /// Crates of the workspace that only its own tests may use.
    ours_in_tests: &'static [&'static str],
    /// Starts of names of other crates that must not occur below it, however deep.
    without: &'static [&'static str],
}

const TENSORS: &str = "candle-";
const HTTP: &[&str] = &["reqwest", "hyper"];

const RULES: &[Rule] = &[
    Rule {
        name: "envace-schemas",
        ours: &[],
        ours_in_tests: &[],
        without: &[TENSORS, "datafusion", "tokenizers", "minijinja"],
    },
    Rule {
        name: "envace-sql",
        ours: &["envace-schemas"],
        ours_in_tests: &["envace-grpo"],
        without: &[TENSORS, "tokenizers", "minijinja", HTTP[0], HTTP[1]],
    },
    Rule {
        name: "envace-grpo",
        ours: &[],
        ours_in_tests: &[],
        without: &[
            TENSORS,
            "arrow",
            "parquet",
            "datafusion",
            "object_store",
            "tokio",
            "safetensors",
            HTTP[0],
            HTTP[1],
        ],
    },
    Rule {
        name: "envace-kernels",
        ours: &[],
        ours_in_tests: &[],
        without: &[TENSORS, "arrow", "tokio", "serde", "safetensors", HTTP[0], HTTP[1]],
    },
    Rule {
        name: "envace-model",
        ours: &["envace-kernels"],
        ours_in_tests: &[],
        without: &["arrow", "parquet", "datafusion", "object_store", HTTP[0], HTTP[1]],
    },
    Rule {
        name: "envace-pipeline",
        ours: &["envace-schemas"],
        ours_in_tests: &[],
        without: &[TENSORS, "datafusion", "tokenizers", "minijinja"],
    },
    Rule {
        name: "envace-jobs",
        ours: &["envace-schemas", "envace-sql", "envace-grpo", "envace-model", "envace-pipeline"],
        ours_in_tests: &[],
        without: &[],
    },
    Rule {
        name: "envace-tests",
        ours: &[
            "envace-schemas",
            "envace-sql",
            "envace-grpo",
            "envace-model",
            "envace-pipeline",
            "envace-jobs",
        ],
        ours_in_tests: &[],
        without: &[],
    },
];

/// Crates whose types cross the borders of ours: a second version would not fit the first.
const ONE_VERSION: &[&str] =
    &["arrow", "arrow-schema", "parquet", "object_store", "tokio", "datafusion", "candle-core"];

#[test]
fn every_crate_of_the_workspace_has_a_rule() {
    let names: BTreeSet<String> =
        manifests().workspace_packages().iter().map(|package| package.name.to_string()).collect();
    let ruled: BTreeSet<String> = RULES.iter().map(|rule| rule.name.to_owned()).collect();
    assert_eq!(names, ruled);
}

#[test]
fn our_crates_depend_in_one_direction() {
    let manifests = manifests();
    for rule in RULES {
        let package = package(&manifests, rule.name);
        let normal = declared(package, |kind| kind != DependencyKind::Development);
        let in_tests = declared(package, |kind| kind == DependencyKind::Development);
        let ours = |names: BTreeSet<String>| -> Vec<String> {
            names.into_iter().filter(|name| name.starts_with("envace-")).collect()
        };
        for name in ours(normal) {
            assert!(rule.ours.contains(&name.as_str()), "`{}` must not depend on `{name}`", rule.name);
        }
        for name in ours(in_tests) {
            let is_known = rule.ours.contains(&name.as_str()) || rule.ours_in_tests.contains(&name.as_str());
            assert!(is_known, "the tests of `{}` must not depend on `{name}`", rule.name);
        }
    }
}

#[test]
fn our_crates_do_not_reach_what_they_must_not_know() {
    let manifests = manifests();
    let lock = Lock::read();
    for rule in RULES {
        let paths = lock
            .paths_below(&declared(package(&manifests, rule.name), |kind| kind == DependencyKind::Normal));
        for (name, path) in &paths {
            let is_wrong = rule.without.iter().any(|start| name.starts_with(start));
            assert!(!is_wrong, "`{}` must not know `{name}`, reached by: {}", rule.name, path.join(" > "));
        }
    }
}

#[test]
fn crates_with_shared_types_have_one_version() {
    let lock = Lock::read();
    for name in ONE_VERSION {
        let versions = &lock.versions[*name];
        assert_eq!(versions.len(), 1, "versions of `{name}` in Cargo.lock: {versions:?}");
    }
}

#[test]
fn locked_crates_come_from_the_public_registry() {
    for (name, source) in Lock::read().sources {
        let is_public = source == "registry+https://github.com/rust-lang/crates.io-index";
        assert!(is_public, "source of `{name}` in Cargo.lock: {source}");
    }
}

#[test]
fn paths_below_follows_the_lock_file() {
    let lock = Lock::parse(
        "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\ndependencies = [\"b 2.0.0\"]\n\
         [[package]]\nname = \"b\"\nversion = \"1.0.0\"\ndependencies = [\"d\"]\n\
         [[package]]\nname = \"b\"\nversion = \"2.0.0\"\ndependencies = [\"c\"]\n\
         [[package]]\nname = \"c\"\nversion = \"1.0.0\"\n\
         [[package]]\nname = \"d\"\nversion = \"1.0.0\"\n",
    );
    let paths = lock.paths_below(&BTreeSet::from(["a".to_owned()]));
    assert_eq!(paths["c"], ["a", "b", "c"]);
    assert!(!paths.contains_key("d"), "only the other version of `b` needs it");
}

/// The manifests of the workspace; nothing is resolved, so nothing is downloaded.
fn manifests() -> Metadata {
    MetadataCommand::new()
        .current_dir(repository::root())
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("the manifests can be read")
}

fn package<'a>(manifests: &'a Metadata, name: &str) -> &'a Package {
    manifests.packages.iter().find(|package| package.name.as_str() == name).expect(name)
}

fn declared(package: &Package, is_wanted: impl Fn(DependencyKind) -> bool) -> BTreeSet<String> {
    package.dependencies.iter().filter(|d| is_wanted(d.kind)).map(|d| d.name.clone()).collect()
}

/// `Cargo.lock`.
struct Lock {
    /// Versions of each name.
    versions: BTreeMap<String, Vec<String>>,
    /// What each (name, version) depends on; the version is empty where the lock file need not state it.
    dependencies: BTreeMap<(String, String), Vec<(String, String)>>,
    /// Where each name comes from; ours come from nowhere.
    sources: Vec<(String, String)>,
}

impl Lock {
    fn read() -> Self {
        Self::parse(&fs_err::read_to_string(repository::root().join("Cargo.lock")).unwrap())
    }

    fn parse(text: &str) -> Self {
        let table: toml::Table = toml::from_str(text).unwrap();
        let mut lock = Self { versions: BTreeMap::new(), dependencies: BTreeMap::new(), sources: Vec::new() };
        for package in table["package"].as_array().unwrap() {
            let text = |key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
            let (name, version) = (text("name").unwrap(), text("version").unwrap());
            let listed =
                package.get("dependencies").and_then(toml::Value::as_array).cloned().unwrap_or_default();
            let listed = listed.iter().map(|entry| {
                let mut words = entry.as_str().unwrap().split(' ').map(str::to_owned);
                (words.next().unwrap(), words.next().unwrap_or_default())
            });
            lock.dependencies.insert((name.clone(), version.clone()), listed.collect());
            lock.versions.entry(name.clone()).or_default().push(version);
            lock.sources.extend(text("source").map(|source| (name, source)));
        }
        lock
    }

    /// Every crate below `names`, with one way to it. All versions of a name in `names` are followed.
    fn paths_below(&self, names: &BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
        let mut paths = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<_> = names.iter().map(|name| (name.clone(), String::new(), Vec::new())).collect();
        while let Some((name, version, mut path)) = open.pop() {
            path.push(name.clone());
            paths.entry(name.clone()).or_insert_with(|| path.clone());
            for found in self.versions.get(&name).into_iter().flatten() {
                let key = (name.clone(), found.clone());
                if (version.is_empty() || version == *found) && seen.insert(key.clone()) {
                    let below = &self.dependencies[&key];
                    open.extend(
                        below.iter().map(|(name, version)| (name.clone(), version.clone(), path.clone())),
                    );
                }
            }
        }
        paths
    }
}
