//! The engine's side of `tests/compare`: does one piece of work on a model folder and prints one line of JSON.
//!
//! ```text
//! cargo run --release -p envace-model --example compare -- WORK --model DIR --spec SPEC.json
//! ```
//!
//! The line holds `seconds` of the measured part, `tokens` it is counted in, `peak_bytes`, the most memory the process has
//! held, and `base_bytes`, what it held at its start. What each work is, and the form of its specification, is in
//! `tests/compare/README.md`.

#![expect(clippy::unwrap_used, reason = "a measuring program that stops at the first surprise")]

mod generate;
mod update;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What a work measured.
struct Measured {
    seconds: f64,
    tokens: usize,
    more: Vec<(&'static str, Value)>,
}

impl Measured {
    fn new(seconds: f64, tokens: usize) -> Self {
        Self { seconds, tokens, more: Vec::new() }
    }
}

/// The arguments after the work's name.
struct Arguments {
    model: PathBuf,
    spec: Option<PathBuf>,
    /// Without a warm-up, where only memory is measured.
    is_once: bool,
}

impl Arguments {
    fn spec<T: DeserializeOwned>(&self) -> T {
        let path = self.spec.as_ref().unwrap();
        serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base_bytes = status_bytes("VmRSS");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| words.iter().position(|word| word == name).and_then(|i| words.get(i + 1));
    let (Some(work), Some(model)) = (words.first(), option("--model")) else {
        return Err("usage: compare WORK --model DIR [--spec SPEC.json]".into());
    };
    let arguments = Arguments {
        model: model.into(),
        spec: option("--spec").map(PathBuf::from),
        is_once: work.ends_with("-memory"),
    };
    let measured = match work.as_str() {
        "sample" => generate::sample(&arguments),
        "decode" => generate::decode(&arguments),
        "single" => generate::single(&arguments),
        "episode" => generate::episode(&arguments),
        work if work.starts_with("update") => update::update(&arguments),
        other => return Err(format!("there is no such work: {other}").into()),
    };
    let mut line = json!({
        "seconds": measured.seconds,
        "tokens": measured.tokens,
        "peak_bytes": status_bytes("VmHWM"),
        "base_bytes": base_bytes,
    });
    for (name, value) in measured.more {
        line[name] = value;
    }
    println!("{line}");
    Ok(())
}

/// A size of this process by its name in `/proc/self/status`; 0 where the system does not tell.
fn status_bytes(name: &str) -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let of_name = |line: &str| {
        line.strip_prefix(name)?.strip_prefix(':')?.split_whitespace().next()?.parse::<u64>().ok()
    };
    status.lines().find_map(of_name).map_or(0, |kib| kib * 1024)
}
