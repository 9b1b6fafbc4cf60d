//! The learning rate over a run.

/// What happens after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The rate of a step; the first step is 0 (nanoGPT's formula, so warm-up starts above zero). `plateau_factor` is
    /// what [`Schedule::Plateau`] has come to so far.
    pub fn at(&self, step: usize, plateau_factor: f64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step as f64 + 1.0) / (self.warmup_steps as f64 + 1.0);
        }
        let length = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((step - self.warmup_steps) as f64 / length as f64).min(1.0);
        let share = match self.schedule {
            Schedule::Constant => return self.peak,
            Schedule::Plateau => return (self.peak * plateau_factor).max(self.minimum.min(self.peak)),
            Schedule::Wsd { decay_steps } => match self.total_steps.saturating_sub(step) {
                left if left > decay_steps => return self.peak,
                // The warm-up backwards: already the first of these steps is below the peak.
                left => left as f64 / (decay_steps as f64 + 1.0),
            },
            Schedule::Linear => 1.0 - progress,
            Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        self.minimum + share * (self.peak - self.minimum)
    }
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
