//! Learning rates over the optimizer applications of a run.

use std::f64::consts::PI;

/// A learning rate that warms up linearly, then stays or falls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Rate after the warm-up.
    pub peak: f64,
    /// Applications of the warm-up: application `i` of them (from 0) has `peak * (i + 1) / (n + 1)`.
    pub n_warmup: u64,
    /// What comes after the warm-up.
    pub shape: Shape,
}

/// How a rate goes on after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// It stays.
    Constant,
    /// Half a cosine from the peak at the end of the warm-up to `floor` at application `n_total`, and `floor`
    /// from there on.
    Cosine {
        /// Applications of the whole run, the warm-up included.
        n_total: u64,
        /// Last rate.
        floor: f64,
    },
}

impl Schedule {
    /// The rate of the application that `n_done` others came before.
    pub fn rate(&self, n_done: u64) -> f64 {
        if n_done < self.n_warmup {
            return self.peak * (n_done + 1) as f64 / (self.n_warmup + 1) as f64;
        }
        match self.shape {
            Shape::Constant => self.peak,
            Shape::Cosine { n_total, floor } if n_done >= n_total => floor,
            Shape::Cosine { n_total, floor } => {
                // Not zero: here `n_warmup <= n_done < n_total`.
                let share = (n_done - self.n_warmup) as f64 / (n_total - self.n_warmup) as f64;
                floor + (self.peak - floor) * 0.5 * (1.0 + (PI * share).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-15, "{found}, expected {expected}");
    }

    #[test]
    fn warms_up_then_stays() {
        // Four warm-up applications divide the way up into fifths.
        let schedule = Schedule { peak: 1.0, n_warmup: 4, shape: Shape::Constant };
        for (n_done, rate) in [(0, 0.2), (1, 0.4), (3, 0.8), (4, 1.0), (1_000_000, 1.0)] {
            assert_close(schedule.rate(n_done), rate);
        }
        assert_close(Schedule { peak: 3e-4, n_warmup: 0, shape: Shape::Constant }.rate(0), 3e-4);
    }

    #[test]
    fn falls_along_half_a_cosine() {
        // From 1.0 at 2 to 0.2 at 8: cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2.
        let shape = Shape::Cosine { n_total: 8, floor: 0.2 };
        let schedule = Schedule { peak: 1.0, n_warmup: 2, shape };
        for (n_done, rate) in [
            (1, 2.0 / 3.0),
            (2, 1.0),
            (4, 0.2 + 0.8 * 0.75),
            (5, 0.6),
            (6, 0.2 + 0.8 * 0.25),
            (8, 0.2),
            (9, 0.2),
        ] {
            assert_close(schedule.rate(n_done), rate);
        }
    }

    #[test]
    fn a_warm_up_longer_than_the_run_does_not_divide_by_zero() {
        let shape = Shape::Cosine { n_total: 2, floor: 0.0 };
        let schedule = Schedule { peak: 1.0, n_warmup: 3, shape };
        assert_close(schedule.rate(2), 0.75);
        assert_close(schedule.rate(3), 0.0);
    }
}
