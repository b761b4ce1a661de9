//! Progress of long work, for people: bars on a terminal, plain lines elsewhere. Always on stderr.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain line is written where there is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(20);

/// Progress of one stage: items done of a known number, and tokens on the way.
pub struct Progress {
    label: String,
    total: u64,
    unit: &'static str,
    begun: Instant,
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

struct State {
    done: u64,
    tokens: u64,
    note: String,
    last_line: Instant,
}

impl Progress {
    /// Begins to show `label`, for `total` items called `unit`, such as `trajectories`.
    pub fn begin(label: impl Into<String>, total: u64, unit: &'static str) -> Self {
        let label = label.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let template = "{prefix} {bar:24} {pos}/{len} {msg} ({elapsed} gone, {eta} left)";
            // The template is a constant; should it ever be malformed, the plain style will do.
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_prefix(label.clone());
            bar
        });
        let state = State { done: 0, tokens: 0, note: String::new(), last_line: Instant::now() };
        Self { label, total, unit, begun: Instant::now(), bar, state: Mutex::new(state) }
    }

    /// Counts `items` as done and `tokens` as worked through.
    pub fn advance(&self, items: u64, tokens: u64) {
        self.update(items, tokens, None);
    }

    /// As [`advance`](Self::advance), with a figure worth seeing, such as the loss.
    pub fn advance_with(&self, items: u64, tokens: u64, note: String) {
        self.update(items, tokens, Some(note));
    }

    fn update(&self, items: u64, tokens: u64, note: Option<String>) {
        // A poisoned lock only means that another thread died while it wrote a progress line.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.done += items;
        state.tokens += tokens;
        if let Some(note) = note {
            state.note = note;
        }
        let rate = state.tokens as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
        match &self.bar {
            Some(bar) => {
                bar.set_position(state.done);
                bar.set_message(format!("{} {rate:.0} tokens/s {}", self.unit, state.note));
            }
            None if state.last_line.elapsed() >= PLAIN_INTERVAL => {
                state.last_line = Instant::now();
                let left = self.seconds_left(state.done);
                eprintln!(
                    "{}: {} of {} {}, {rate:.0} tokens/s, {left:.0} s left {}",
                    self.label, state.done, self.total, self.unit, state.note
                );
            }
            None => {}
        }
    }

    fn seconds_left(&self, done: u64) -> f64 {
        let gone = self.begun.elapsed().as_secs_f64();
        if done == 0 { f64::NAN } else { gone * self.total.saturating_sub(done) as f64 / done as f64 }
    }

    /// Ends with one line on what was done. Returns the seconds it took.
    pub fn finish(self) -> f64 {
        let seconds = self.begun.elapsed().as_secs_f64();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let state = self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rate = state.tokens as f64 / seconds.max(1e-3);
        eprintln!(
            "{}: {} {} in {seconds:.1} s, {rate:.0} tokens/s {}",
            self.label, state.done, self.unit, state.note
        );
        seconds
    }
}
