//! The learning rate over a run: a function of the step alone, so that nothing has to be saved to go on with it.
//!
//! ```
//! use rustyflow_tensor::optim::LearningRate;
//!
//! let rate = LearningRate::cosine(3e-4, 3e-5, 1000).warm_up(100);
//! assert!(rate.of_step(0) < rate.of_step(50) && rate.of_step(999) < rate.of_step(100));
//! ```

/// What happens after warm-up. In the formulas t counts the steps since then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Half a cosine down to the minimum (Loshchilov and Hutter 2016).
    Cosine,
    /// A straight line down to the minimum.
    Linear,
    Constant,
    /// Warm-up, stable, decay: the peak, and a straight line down to the minimum over the last steps (Hu et al. 2024,
    /// Haegele et al. 2024).
    Wsd {
        decay_steps: usize,
    },
    /// The peak, divided as validation asks for it, down to the minimum (as
    /// `torch.optim.lr_scheduler.ReduceLROnPlateau`).
    Plateau,
    /// The peak, times `factor` after each `every` steps: peak factor^floor(t / every)
    /// (`torch.optim.lr_scheduler.StepLR`).
    Step {
        every: usize,
        factor: f64,
    },
    /// The peak, times `factor` after each step: peak factor^t (`torch.optim.lr_scheduler.ExponentialLR`).
    Exponential {
        factor: f64,
    },
    /// Half a cosine from peak / `div_factor` up to the peak, over the part `pct_start` of the steps, then half a
    /// cosine down to peak / `div_factor` / `final_div_factor` at the last step (Smith and Topin 2018;
    /// `torch.optim.lr_scheduler.OneCycleLR`). The minimum plays no part.
    OneCycle {
        pct_start: f64,
        div_factor: f64,
        final_div_factor: f64,
    },
}

/// Linear warm-up from almost zero, then a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    pub schedule: Schedule,
    pub peak: f64,
    pub minimum: f64,
    pub warmup_steps: usize,
    /// Where the minimum is reached.
    pub total_steps: usize,
}

impl LearningRate {
    fn new(schedule: Schedule, peak: f64, minimum: f64, total_steps: usize) -> LearningRate {
        LearningRate { schedule, peak, minimum, warmup_steps: 0, total_steps }
    }

    /// The same rate at every step.
    pub fn constant(rate: f64) -> LearningRate {
        LearningRate::new(Schedule::Constant, rate, rate, 0)
    }

    /// From `peak` in a straight line down to `minimum` at step `total_steps`.
    pub fn linear(peak: f64, minimum: f64, total_steps: usize) -> LearningRate {
        LearningRate::new(Schedule::Linear, peak, minimum, total_steps)
    }

    /// From `peak` by half a cosine down to `minimum` at step `total_steps`.
    pub fn cosine(peak: f64, minimum: f64, total_steps: usize) -> LearningRate {
        LearningRate::new(Schedule::Cosine, peak, minimum, total_steps)
    }

    /// `peak`, times `factor` after each `every` steps.
    pub fn step(peak: f64, every: usize, factor: f64) -> LearningRate {
        LearningRate::new(Schedule::Step { every, factor }, peak, 0.0, 0)
    }

    /// `peak`, times `factor` after each step.
    pub fn exponential(peak: f64, factor: f64) -> LearningRate {
        LearningRate::new(Schedule::Exponential { factor }, peak, 0.0, 0)
    }

    /// Up to `peak` and down again within `total_steps`, with PyTorch's defaults.
    pub fn one_cycle(peak: f64, total_steps: usize) -> LearningRate {
        let schedule = Schedule::OneCycle { pct_start: 0.3, div_factor: 25.0, final_div_factor: 1e4 };
        LearningRate::new(schedule, peak, 0.0, total_steps)
    }

    /// The same after so many steps of linear warm-up, which are among the `total_steps`.
    pub fn warm_up(self, steps: usize) -> LearningRate {
        LearningRate { warmup_steps: steps, ..self }
    }

    /// The rate of a step, the first of which is 0, where no plateau divides it.
    pub fn of_step(&self, step: usize) -> f64 {
        self.at(step, 1.0)
    }

    /// The rate of a step; the first step is 0 (nanoGPT's formula, so warm-up starts above zero). `plateau_factor` is
    /// what [`Schedule::Plateau`] has come to so far.
    pub fn at(&self, step: usize, plateau_factor: f64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step as f64 + 1.0) / (self.warmup_steps as f64 + 1.0);
        }
        let length = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let since = step - self.warmup_steps;
        let progress = (since as f64 / length as f64).min(1.0);
        let share = match self.schedule {
            Schedule::Constant => return self.peak,
            Schedule::Plateau => return (self.peak * plateau_factor).max(self.minimum.min(self.peak)),
            Schedule::Wsd { decay_steps } => match self.total_steps.saturating_sub(step) {
                left if left > decay_steps => return self.peak,
                // The warm-up backwards: already the first of these steps is below the peak.
                left => left as f64 / (decay_steps as f64 + 1.0),
            },
            Schedule::Step { every, factor } => return self.peak * factor.powf((since / every.max(1)) as f64),
            Schedule::Exponential { factor } => return self.peak * factor.powf(since as f64),
            Schedule::OneCycle { pct_start, div_factor, final_div_factor } => {
                let low = self.peak / div_factor;
                return one_cycle([low, self.peak, low / final_div_factor], pct_start, since, length);
            }
            Schedule::Linear => 1.0 - progress,
            Schedule::Cosine => half_cosine(progress),
        };
        self.minimum + share * (self.peak - self.minimum)
    }
}

/// From 1 down to 0.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
}

/// From the first rate to the second, and from that to the third at the last of `length` steps.
fn one_cycle([first, peak, last]: [f64; 3], pct_start: f64, step: usize, length: usize) -> f64 {
    // PyTorch's: the peak may lie between two steps, or before the first.
    let (top, end, step) = (pct_start * length as f64 - 1.0, length as f64 - 1.0, step as f64);
    if step < top {
        return peak + (first - peak) * half_cosine(step / top);
    }
    let progress = if end > top { ((step - top) / (end - top)).min(1.0) } else { 1.0 };
    last + (peak - last) * half_cosine(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(schedule: Schedule) -> LearningRate {
        LearningRate { schedule, peak: 1.0, minimum: 0.1, warmup_steps: 9, total_steps: 109 }
    }

    #[test]
    fn warms_up_linearly() {
        let rate = rate(Schedule::Cosine);
        assert!((rate.at(0, 1.0) - 0.1).abs() < 1e-12);
        assert!((rate.at(4, 1.0) - 0.5).abs() < 1e-12);
        assert!((rate.at(9, 1.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn reaches_the_minimum_at_the_end_and_stays_there() {
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let rate = rate(schedule);
            assert!((rate.at(59, 1.0) - 0.55).abs() < 1e-12, "halfway");
            assert!((rate.at(109, 1.0) - 0.1).abs() < 1e-12);
            assert!((rate.at(10_000, 1.0) - 0.1).abs() < 1e-12);
        }
        assert_eq!(rate(Schedule::Constant).at(10_000, 0.5), 1.0);
    }

    #[test]
    fn a_decay_begins_so_many_steps_before_the_end() {
        let rate = rate(Schedule::Wsd { decay_steps: 19 });
        assert!((rate.at(4, 1.0) - 0.5).abs() < 1e-12, "it warms up");
        assert_eq!((rate.at(9, 1.0), rate.at(89, 1.0)), (1.0, 1.0));
        assert!((rate.at(90, 1.0) - 0.955).abs() < 1e-12, "its first step");
        assert!((rate.at(99, 1.0) - 0.55).abs() < 1e-12, "halfway through the decay");
        assert!((rate.at(109, 1.0) - 0.1).abs() < 1e-12);
        assert!((rate.at(10_000, 1.0) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn a_plateau_divides_the_peak_down_to_the_minimum() {
        let rate = rate(Schedule::Plateau);
        assert!((rate.at(4, 0.25) - 0.5).abs() < 1e-12, "the warm-up is not divided");
        assert_eq!((rate.at(50, 1.0), rate.at(50, 0.25), rate.at(50, 0.01)), (1.0, 0.25, 0.1));
    }
}
