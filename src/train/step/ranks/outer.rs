//! The outer step of local training (`train.sync_every`): DiLoCo, Douillard et al. 2023.
//!
//! Each rank makes local updates on its share of the sequences, with its own moments. Then all take one step of SGD
//! with Nesterov momentum along the mean of their changes, and continue from there:
//!
//! ```text
//! g = mean of (w - w_rank),   m <- 0.9 m + g,   w <- w - 0.7 (g + 0.9 m)         w is what all began with
//! ```
//! The mean is weighted by the sequences of each rank. Only this communicates: for slow networks.

use super::EXCHANGED;
use crate::Result;
use crate::comm::{Background, Encoded, Wire};
use crate::optim::{ParameterArena, SavedMoments};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Of the outer step, those of the paper.
const LEARNING_RATE: f32 = 0.7;
const MOMENTUM: f32 = 0.9;

/// Scale of changes sent as f16, whose smallest numbers are 6e-8: with it, a thousandth of a weight keeps 11 bits, and
/// sums of changes may reach 63.
const F16_SCALE: f32 = 1024.0;

/// State of the outer steps, equal on all ranks.
pub(super) struct Outer {
    /// Of several ranks.
    comm: Option<Arc<Background>>,
    wire: Wire,
    /// Of this rank in the mean.
    weight: f32,
    /// Weights at the start of the round.
    begun: Vec<f32>,
    momentum: Vec<f32>,
    /// How long the rank has waited for the others.
    waited: Arc<Mutex<Duration>>,
}

impl Outer {
    pub fn new(comm: Option<Arc<Background>>, wire: Wire, weight: f32, waited: Arc<Mutex<Duration>>) -> Outer {
        Outer { comm, wire, weight, begun: Vec::new(), momentum: Vec::new(), waited }
    }

    /// Starts a round with the values of these parameters, and the momentum of a checkpoint, if any.
    ///
    /// # Errors
    /// If the checkpoint is of others, or the driver reported an error.
    pub fn load(&mut self, parameters: &ParameterArena, saved: Option<&SavedMoments>) -> Result<()> {
        self.begun = parameters.trained()?.to_f32()?;
        self.momentum = match saved {
            Some(saved) => saved.outer_momentum(parameters)?,
            None => vec![0.0; self.begun.len()],
        };
        Ok(())
    }

    /// Ends a round: sets the parameters to the synchronized ones.
    ///
    /// # Errors
    /// If the driver reported an error, or a rank failed.
    pub fn step(&mut self, parameters: &ParameterArena) -> Result<()> {
        let trained = parameters.trained()?;
        let values = trained.to_f32()?;
        let scale = if self.wire == Wire::F16 { F16_SCALE } else { 1.0 };
        let weight = self.weight * scale;
        let changes = self.begun.chunks(EXCHANGED).zip(values.chunks(EXCHANGED));
        let changes = changes.map(|(begun, values)| {
            let pairs = begun.par_iter().zip(values);
            pairs.map(|(begun, value)| (begun - value) * weight).collect::<Vec<f32>>()
        });
        let means: Vec<Vec<f32>> = match &self.comm {
            None => changes.collect(),
            Some(comm) => {
                let encoded = changes.map(|changes| Encoded::new(changes, self.wire));
                let pending: Vec<_> = encoded.map(|changes| comm.begin_all_reduce(|| Ok(changes))).collect();
                let started = Instant::now();
                let means = pending.into_iter().map(|pending| Ok(pending.wait()?.to_f32()));
                let means = means.collect::<Result<_>>()?;
                *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += started.elapsed();
                means
            }
        };
        let state = self.begun.chunks_mut(EXCHANGED).zip(self.momentum.chunks_mut(EXCHANGED));
        for (mean, (begun, momentum)) in means.iter().zip(state) {
            let elements = begun.par_iter_mut().zip(momentum).zip(mean);
            elements.for_each(|((value, momentum), mean)| {
                let mean = mean / scale;
                *momentum = MOMENTUM * *momentum + mean;
                *value -= LEARNING_RATE * (mean + MOMENTUM * *momentum);
            });
        }
        trained.write_bytes(bytemuck::cast_slice(&self.begun))?;
        parameters.refresh_halves()
    }

    /// For a checkpoint: as the arena of what is trained.
    pub fn momentum(&self) -> Vec<u8> {
        bytemuck::cast_slice(&self.momentum).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::threads;
    use crate::optim::testing::Net;
    use crate::optim::{Moment, Moments};
    use crate::tensor::Bytes;
    use crate::{DType, Device};

    /// How far a rank goes in a round.
    fn change(rank: usize, round: usize, i: usize) -> f32 {
        ((i * 7 + rank * 3 + round * 5) % 13) as f32 / 1000.0 - 0.004
    }

    /// What three ranks go on with after two rounds, sent as `wire`, and their momentum, from rank 1.
    fn after_two_rounds(wire: Wire, weights: [f32; 3], saved: bool) -> (Vec<f32>, Vec<f32>) {
        let ranks = threads(3, Some(Duration::from_secs(20)), &[]).unwrap();
        let run = |rank: usize, comm| {
            let comm = Background::start(move || Ok(comm), None).unwrap();
            let arena = ParameterArena::new(&mut Net::new(1), &Device::Cpu, DType::F32).unwrap();
            let mut outer = Outer::new(Some(Arc::new(comm)), wire, weights[rank], Arc::default());
            outer.load(&arena, None).unwrap();
            for round in 0..2 {
                let values = arena.trained().unwrap().to_f32().unwrap();
                let moved = values.iter().enumerate().map(|(i, value)| value + change(rank, round, i));
                arena.trained().unwrap().write_bytes(bytemuck::cast_slice(&moved.collect::<Vec<_>>())).unwrap();
                outer.step(&arena).unwrap();
                if saved {
                    // As a checkpoint has it.
                    let moments = vec![(Moment::outer(&arena), Bytes::owned(outer.momentum()))];
                    let file = Moments::new(&arena, moments).encode().unwrap();
                    outer.load(&arena, Some(&SavedMoments::new("a".as_ref(), &file).unwrap())).unwrap();
                }
            }
            (arena.trained().unwrap().to_f32().unwrap(), bytemuck::pod_collect_to_vec(&outer.momentum()))
        };
        let results: Vec<(Vec<f32>, Vec<f32>)> = std::thread::scope(|scope| {
            let run = &run;
            let handles = ranks.into_iter().enumerate().map(|(rank, comm)| scope.spawn(move || run(rank, comm)));
            handles.collect::<Vec<_>>().into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        assert!(results.iter().all(|result| result.0 == results[0].0), "all ranks go on with the same");
        results.into_iter().nth(1).unwrap()
    }

    /// The formula of the module, in f64.
    fn expected(weights: [f32; 3]) -> Vec<f64> {
        let arena = ParameterArena::new(&mut Net::new(1), &Device::Cpu, DType::F32).unwrap();
        let one = |(i, value): (usize, f32)| {
            let (mut value, mut momentum) = (f64::from(value), 0.0);
            for round in 0..2 {
                let of = |rank: usize| f64::from(weights[rank]) * f64::from(change(rank, round, i));
                let mean = -(0..3).map(of).sum::<f64>();
                momentum = 0.9 * momentum + mean;
                value -= 0.7 * (mean + 0.9 * momentum);
            }
            value
        };
        arena.trained().unwrap().to_f32().unwrap().into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn an_outer_step_is_nesterovs_along_the_mean_of_the_changes() {
        for weights in [[1.0 / 3.0; 3], [0.5, 0.25, 0.25]] {
            // Rounding of values up to 1, and of changes that are sent as f16 (11 bits of 0.01).
            for (wire, most) in [(Wire::F32, 1e-6), (Wire::F16, 3e-5)] {
                let (values, momentum) = after_two_rounds(wire, weights, false);
                let mut pairs = values.iter().zip(expected(weights));
                assert!(pairs.all(|(value, want)| (f64::from(*value) - want).abs() < most), "{weights:?} {wire:?}");
                assert!(momentum.iter().any(|m| *m != 0.0));
            }
        }
    }

    #[test]
    fn an_outer_step_goes_on_from_a_checkpoint_to_the_bit() {
        let weights = [0.5, 0.25, 0.25];
        let [saved, kept] = [true, false].map(|saved| after_two_rounds(Wire::F32, weights, saved).0);
        let arena = ParameterArena::new(&mut Net::new(1), &Device::Cpu, DType::F32).unwrap();
        assert!(arena.entries.iter().all(|entry| saved[entry.range()] == kept[entry.range()]));
    }
}
