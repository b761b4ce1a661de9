//! Plays many trajectories at once and keeps the engines busy: none waits for another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use envace_model::engine::Engine;

use super::episode::Role;
use super::trajectory::{Asked, Settings, Trajectory, TrajectoryRows};
use crate::error::JobError;
use crate::progress::Progress;
use crate::task::Task;

/// The engines of the two roles; one serves both where they share their weights.
pub struct Engines {
    /// The actor's.
    pub actor: Box<dyn Engine>,
    /// The rehearsal role's own, if it has weights of its own.
    pub rehearsal: Option<Box<dyn Engine>>,
}

/// One part of a rollout: all attempts at some tasks.
#[derive(Debug, Clone)]
pub struct PartWork {
    /// Its number.
    pub part: u32,
    /// Its tasks.
    pub tasks: Vec<Arc<Task>>,
    /// Attempts at each.
    pub n_samples: i32,
}

/// What the engines did: depends on the schedule, so it is for `timings` alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Tokens sampled.
    pub n_sampled: u64,
    /// Prompt tokens computed.
    pub n_prefilled: u64,
    /// Prompt tokens found in the cache.
    pub n_reused: u64,
    /// Tokens computed again, because their sequence was paused and its room was needed.
    pub n_recomputed: u64,
}

/// Plays all trajectories of `parts` and hands each part to `done` when its last trajectory has ended, with what
/// the engines have done up to then.
///
/// The rows of a part depend on its tasks and the settings, never on what else is played or in which order.
///
/// # Errors
/// The first [`JobError`] of a prompt, an engine, or `done`.
pub fn play(
    settings: &Arc<Settings>,
    engines: &mut Engines,
    parts: Vec<PartWork>,
    progress: &Progress,
    done: &mut dyn FnMut(u32, TrajectoryRows, EngineCounts) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let mut run = Run::new(settings, parts);
    // Two trajectories for each slot: while one waits for nothing, another can be begun.
    let max_live = engines.actor.capacity().saturating_mul(2).max(1);
    run.hand_over_empty(done)?;
    loop {
        while run.live.len() < max_live && run.begin_next(engines, progress, done)? {}
        if run.live.is_empty() && run.waiting.is_empty() {
            return Ok(());
        }
        let mut answers = engines.actor.poll()?;
        if let Some(rehearsal) = &mut engines.rehearsal {
            answers.extend(rehearsal.poll()?);
        }
        for answer in answers {
            let Some((id, asked)) = run.asked.remove(&answer.id) else { continue };
            run.counts.n_sampled += answer.token_ids.len() as u64;
            run.counts.n_prefilled += answer.n_prefilled as u64;
            run.counts.n_reused += answer.n_reused as u64;
            run.counts.n_recomputed += answer.n_recomputed as u64;
            progress.advance(0, answer.token_ids.len() as u64);
            if let Some(trajectory) = run.live.get_mut(&id) {
                trajectory.take(asked, &answer)?;
            }
            run.go_on(id, engines, progress, done)?;
        }
    }
}

struct Run<'a> {
    settings: &'a Arc<Settings>,
    waiting: VecDeque<(u32, Arc<Task>, i32)>,
    live: BTreeMap<u64, Trajectory>,
    part_of: BTreeMap<u64, u32>,
    asked: BTreeMap<u64, (u64, Asked)>,
    unfinished: BTreeMap<u32, (usize, Vec<TrajectoryRows>)>,
    next_trajectory: u64,
    next_request: u64,
    counts: EngineCounts,
}

impl<'a> Run<'a> {
    fn new(settings: &'a Arc<Settings>, parts: Vec<PartWork>) -> Self {
        let mut waiting = VecDeque::new();
        let mut unfinished = BTreeMap::new();
        for part in parts {
            let n_samples = usize::try_from(part.n_samples).unwrap_or(0);
            unfinished.insert(part.part, (part.tasks.len() * n_samples, Vec::new()));
            for task in part.tasks {
                // The samples of a group start together: they share their prompt.
                waiting.extend((0..part.n_samples).map(|sample| (part.part, Arc::clone(&task), sample)));
            }
        }
        Self {
            settings,
            waiting,
            live: BTreeMap::new(),
            part_of: BTreeMap::new(),
            asked: BTreeMap::new(),
            unfinished,
            next_trajectory: 0,
            next_request: 0,
            counts: EngineCounts::default(),
        }
    }

    fn hand_over_empty(
        &mut self,
        done: &mut dyn FnMut(u32, TrajectoryRows, EngineCounts) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let empty: Vec<u32> =
            self.unfinished.iter().filter(|(_, (left, _))| *left == 0).map(|(part, _)| *part).collect();
        for part in empty {
            self.unfinished.remove(&part);
            done(part, TrajectoryRows::default(), EngineCounts::default())?;
        }
        Ok(())
    }

    /// Begins the next waiting trajectory; whether there was one.
    fn begin_next(
        &mut self,
        engines: &mut Engines,
        progress: &Progress,
        done: &mut dyn FnMut(u32, TrajectoryRows, EngineCounts) -> Result<(), JobError>,
    ) -> Result<bool, JobError> {
        let Some((part, task, sample)) = self.waiting.pop_front() else { return Ok(false) };
        let id = self.next_trajectory;
        self.next_trajectory += 1;
        self.live.insert(id, Trajectory::begin(task, sample, Arc::clone(self.settings))?);
        self.part_of.insert(id, part);
        self.go_on(id, engines, progress, done)?;
        Ok(true)
    }

    /// Submits what a trajectory wants, or hands it over if it has ended.
    fn go_on(
        &mut self,
        id: u64,
        engines: &mut Engines,
        progress: &Progress,
        done: &mut dyn FnMut(u32, TrajectoryRows, EngineCounts) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let Some(trajectory) = self.live.get_mut(&id) else { return Ok(()) };
        for (asked, mut request) in trajectory.ask()? {
            request.id = self.next_request;
            self.next_request += 1;
            self.asked.insert(request.id, (id, asked));
            match (asked.key.role(), &mut engines.rehearsal) {
                (Role::Rehearsal, Some(rehearsal)) => rehearsal.submit(request)?,
                _ => engines.actor.submit(request)?,
            }
        }
        if !trajectory.is_done() {
            return Ok(());
        }
        let (Some(trajectory), Some(part)) = (self.live.remove(&id), self.part_of.remove(&id)) else {
            return Ok(());
        };
        progress.advance(1, 0);
        let rows = trajectory.finish()?;
        let Some((left, finished)) = self.unfinished.get_mut(&part) else { return Ok(()) };
        finished.push(rows);
        *left -= 1;
        if *left == 0 {
            let rows = self.unfinished.remove(&part).map(|(_, rows)| merged(rows)).unwrap_or_default();
            done(part, rows, self.counts)?;
        }
        Ok(())
    }
}

/// The rows of a part, in the order of their tables.
fn merged(finished: Vec<TrajectoryRows>) -> TrajectoryRows {
    let mut all = TrajectoryRows::default();
    for rows in finished {
        all.trajectories.extend(rows.trajectories);
        all.messages.extend(rows.messages);
        all.generations.extend(rows.generations);
        all.sequences.extend(rows.sequences);
    }
    all.trajectories.sort_by(|a, b| (&a.task_id, a.sample).cmp(&(&b.task_id, b.sample)));
    all.messages.sort_by(|a, b| {
        (&a.task_id, a.sample, a.message_index).cmp(&(&b.task_id, b.sample, b.message_index))
    });
    all.generations.sort_by(|a, b| {
        (&a.task_id, a.sample, a.generation_index).cmp(&(&b.task_id, b.sample, b.generation_index))
    });
    all.sequences.sort_by(|a, b| {
        (&a.task_id, a.sample, a.sequence_index).cmp(&(&b.task_id, b.sample, b.sequence_index))
    });
    all
}
