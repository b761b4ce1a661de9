//! Sampling: single calls, and the episode of two roles with fixed lengths.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use envace_model::engine::{Engine, EngineOptions, Generated, GenerationRequest, LocalEngine, Sampling};
use envace_model::{Device, Model};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::json;

use crate::{Arguments, Measured};

#[derive(Deserialize)]
struct SampleSpec {
    prompts: Vec<Vec<u32>>,
    n_new: usize,
    temperature: f32,
}

fn model(arguments: &Arguments) -> Arc<Model> {
    Arc::new(Model::load(&arguments.model, &Device::Cpu).unwrap())
}

fn engine(model: &Arc<Model>, max_batch: usize) -> LocalEngine {
    LocalEngine::new(Arc::clone(model), EngineOptions { max_batch, ..EngineOptions::default() })
}

fn request(id: u64, prompt: Vec<u32>, n_new: usize, temperature: f32) -> GenerationRequest {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&id.to_le_bytes());
    let sampling = Sampling { temperature, ..Sampling::default() };
    GenerationRequest { id, prompt, sampling, seed, max_new_tokens: n_new, stop_ids: Arc::from([]) }
}

/// Submits the requests and returns seconds and results.
fn run(engine: &mut LocalEngine, requests: Vec<GenerationRequest>) -> (f64, Vec<Generated>) {
    let start = Instant::now();
    requests.into_iter().for_each(|request| engine.submit(request).unwrap());
    let mut done = Vec::new();
    while engine.n_active() + engine.n_waiting() > 0 {
        done.extend(engine.poll().unwrap());
    }
    (start.elapsed().as_secs_f64(), done)
}

fn requests(spec: &SampleSpec, n_new: usize, first_id: u64) -> Vec<GenerationRequest> {
    let numbered = (first_id..).zip(&spec.prompts);
    numbered.map(|(id, prompt)| request(id, prompt.clone(), n_new, spec.temperature)).collect()
}

/// All prompts at once, `n_new` tokens each; a first run of a few tokens is not counted, and leaves nothing to reuse.
pub(super) fn sample(arguments: &Arguments) -> Measured {
    let spec: SampleSpec = arguments.spec();
    let mut engine = engine(&model(arguments), spec.prompts.len());
    let warm_up: Vec<_> = (0..4).map(|id| request(id, vec![id as u32; 16], 4, spec.temperature)).collect();
    run(&mut engine, warm_up);
    let (seconds, done) = run(&mut engine, requests(&spec, spec.n_new, 10));
    Measured::new(seconds, done.iter().map(|generated| generated.token_ids.len()).sum())
}

/// The time of `n_new` tokens less that of one.
pub(super) fn decode(arguments: &Arguments) -> Measured {
    let spec: SampleSpec = arguments.spec();
    let mut seconds = Vec::new();
    let model = model(arguments);
    run(&mut engine(&model, 1), vec![request(0, vec![1; 16], 2, spec.temperature)]);
    for n_new in [1, spec.n_new] {
        // With a new engine, the second round finds nothing of the first.
        let mut engine = engine(&model, spec.prompts.len());
        seconds.push(run(&mut engine, requests(&spec, n_new, 10)).0);
    }
    Measured::new(seconds[1] - seconds[0], (spec.n_new - 1) * spec.prompts.len())
}

/// One sequence alone, beside the memory's read bandwidth.
pub(super) fn single(arguments: &Arguments) -> Measured {
    let n_new = 24;
    let mut engine = engine(&model(arguments), 1);
    let mut measured = Vec::new();
    for round in 0..2u64 {
        let prompt = |token: u64| vec![(round * 2 + token) as u32; 16];
        let (first, _) = run(&mut engine, vec![request(round * 2, prompt(0), 1, 1.0)]);
        let (all, _) = run(&mut engine, vec![request(round * 2 + 1, prompt(1), n_new + 1, 1.0)]);
        measured.push(all - first);
    }
    let config = envace_model::ModelConfig::load(&arguments.model).unwrap();
    let seconds = measured.into_iter().fold(f64::MAX, f64::min);
    let mut out = Measured::new(seconds, n_new);
    drop(engine);
    out.more.push(("weight_bytes", json!(config.n_parameters() * 4)));
    out.more.push(("bytes_per_second", json!(read_bandwidth())));
    out
}

/// Bytes a second at which all threads together read memory that no cache holds: the best of five passes over 2 GiB on
/// large pages, each thread from one place on or from several at once, which keeps more reads under way.
fn read_bandwidth() -> f64 {
    const N: usize = 1 << 29;
    let mut values = envace_kernels::zeros(N);
    values.par_chunks_mut(1 << 20).for_each(|values| values.fill(1.0));
    let n_threads = rayon::current_num_threads();
    let pass = |n_places: usize| {
        let start = Instant::now();
        let sums: Vec<f32> = values.par_chunks(N / n_threads).map(|values| sum(values, n_places)).collect();
        assert!(sums.iter().sum::<f32>() > 0.0);
        (N * 4) as f64 / start.elapsed().as_secs_f64()
    };
    [1, 2, 4, 8, 16].into_iter().flat_map(|n_places| [n_places; 5]).map(pass).fold(0.0, f64::max)
}

/// A sum in 64 lanes, so that the memory and not the adder is the limit, of `n_places` parts in step.
fn sum(values: &[f32], n_places: usize) -> f32 {
    const STEP: usize = 64;
    let parts: Vec<&[f32]> = values.chunks_exact(values.len() / n_places).collect();
    let mut lanes = [0.0_f32; STEP];
    for start in (0..parts[0].len() / STEP * STEP).step_by(STEP) {
        for part in &parts {
            lanes.iter_mut().zip(&part[start..start + STEP]).for_each(|(lane, value)| *lane += value);
        }
    }
    lanes.iter().sum()
}

#[derive(Deserialize)]
struct EpisodeSpec {
    tasks: Vec<TaskSpec>,
    n_samples: usize,
    n_turns: usize,
    n_actor: usize,
    n_response: usize,
    glue: Vec<u32>,
    temperature: f32,
}

#[derive(Deserialize)]
struct TaskSpec {
    system: Vec<u32>,
    user: Vec<u32>,
    rehearsal_head: Vec<u32>,
}

/// One trajectory under way.
struct Trajectory {
    task: usize,
    /// All of the actor's tokens so far.
    actor: Vec<u32>,
    n_turns: usize,
    is_rehearsing: bool,
}

/// All trajectories to their end, each going on as soon as its own generation is done.
pub(super) fn episode(arguments: &Arguments) -> Measured {
    let spec: EpisodeSpec = arguments.spec();
    let n_trajectories = spec.tasks.len() * spec.n_samples;
    let mut engine = engine(&model(arguments), n_trajectories);
    run(&mut engine, vec![request(0, vec![1; 16], 4, 1.0)]);
    let start = Instant::now();
    let mut live = BTreeMap::new();
    for id in 0..n_trajectories {
        let task = id / spec.n_samples;
        let actor = [spec.tasks[task].system.as_slice(), &spec.tasks[task].user].concat();
        let id = id as u64 * 1000 + 1;
        engine.submit(request(id, actor.clone(), spec.n_actor, spec.temperature)).unwrap();
        live.insert(id, Trajectory { task, actor, n_turns: 0, is_rehearsing: false });
    }
    let (mut n_sampled, mut n_prefilled, mut n_reused) = (0, 0, 0);
    while engine.n_active() + engine.n_waiting() > 0 {
        for generated in engine.poll().unwrap() {
            n_sampled += generated.token_ids.len();
            n_prefilled += generated.n_prefilled;
            n_reused += generated.n_reused;
            let mut trajectory = live.remove(&generated.id).unwrap();
            if let Some(prompt) = trajectory.go_on(&spec, &generated.token_ids) {
                let n_new = if trajectory.is_rehearsing { spec.n_response } else { spec.n_actor };
                let id = generated.id + 1;
                engine.submit(request(id, prompt, n_new, spec.temperature)).unwrap();
                live.insert(id, trajectory);
            }
        }
    }
    let mut out = Measured::new(start.elapsed().as_secs_f64(), n_sampled);
    out.more.push(("n_prefilled", json!(n_prefilled)));
    out.more.push(("n_reused", json!(n_reused)));
    out
}

impl Trajectory {
    /// Takes a generation in and returns the next prompt, if the episode goes on.
    fn go_on(&mut self, spec: &EpisodeSpec, token_ids: &[u32]) -> Option<Vec<u32>> {
        let task = &spec.tasks[self.task];
        if self.is_rehearsing {
            self.is_rehearsing = false;
            self.actor.extend(token_ids.iter().chain(&spec.glue));
            self.n_turns += 1;
            return Some(self.actor.clone());
        }
        if self.n_turns == spec.n_turns {
            return None;
        }
        self.is_rehearsing = true;
        self.actor.extend(token_ids);
        let conversation = &self.actor[task.system.len()..];
        let prompt = [task.rehearsal_head.as_slice(), &spec.glue, conversation, &spec.glue].concat();
        self.actor.extend(&spec.glue);
        Some(prompt)
    }
}
