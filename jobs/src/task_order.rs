//! The order in which training draws tasks.

use std::sync::Arc;

use envace_grpo::seeds::Draw;

use crate::task::Task;

/// The `n` tasks from place `first` on of an endless list: all of `tasks`, in an order drawn anew for each pass over
/// them. `purpose` names the draw, so that stages draw independently.
///
/// Cutting the list otherwise gives the same tasks; no tasks give none.
pub fn drawn(tasks: &[Arc<Task>], seed: u64, purpose: &str, first: u64, n: usize) -> Vec<Arc<Task>> {
    let n_tasks = tasks.len() as u64;
    if n_tasks == 0 {
        return Vec::new();
    }
    let mut drawn = Vec::with_capacity(n);
    let mut order: Option<(u64, Vec<usize>)> = None;
    for place in (first..).take(n) {
        let pass = place / n_tasks;
        if order.as_ref().is_none_or(|(of, _)| *of != pass) {
            let mut indices: Vec<usize> = (0..tasks.len()).collect();
            Draw::new(seed, purpose).position(pass).shuffle(&mut indices);
            order = Some((pass, indices));
        }
        let index = order.as_ref().and_then(|(_, indices)| indices.get((place % n_tasks) as usize));
        drawn.extend(index.and_then(|index| tasks.get(*index)).cloned());
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{self, Split};

    #[test]
    fn each_pass_holds_every_task_once_however_it_is_cut() {
        let rows = world::tasks(0, &[(Split::Train, 5)], 0);
        let tasks: Vec<_> = rows.into_iter().map(|row| Arc::new(Task::parse(row).unwrap())).collect();
        let ids = |drawn: Vec<Arc<Task>>| drawn.iter().map(|task| task.id().to_owned()).collect::<Vec<_>>();
        let whole = ids(drawn(&tasks, 1, "test", 0, 15));
        for pass in whole.chunks(5) {
            let mut sorted = pass.to_vec();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), 5);
        }
        // Three passes in one order have a chance of 1 in 120^2; this seed gives others.
        assert!(whole[..5] != whole[5..10] || whole[5..10] != whole[10..]);
        let cut: Vec<_> = (0..5).flat_map(|part| ids(drawn(&tasks, 1, "test", part * 3, 3))).collect();
        assert_eq!(cut, whole);
        assert!(drawn(&[], 1, "test", 0, 3).is_empty());
    }
}
