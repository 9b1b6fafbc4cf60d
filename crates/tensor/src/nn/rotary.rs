//! Angles of rotary position embeddings (RoPE, Su et al. 2021), and their scaling for longer contexts.

use crate::{DType, Device, Result, Tensor};
use rayon::prelude::*;
use serde::Serialize;
use std::sync::{Mutex, PoisonError};

/// RoPE scaling, which extends the context of a model that was trained on shorter sequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Divides all frequencies by this factor (Chen et al. 2023).
    Linear { factor: f64 },
    /// Divides low frequencies by this factor, keeps high ones, and interpolates between (Llama 3, Grattafiori et al.
    /// 2024). Low: fewer than `low_freq_factor` periods in `original_block_size` tokens; high: more than
    /// `high_freq_factor`.
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_block_size: usize },
}

/// Cosines and sines of every position, computed once per device.
pub struct Rotary {
    positions: usize,
    head_size: usize,
    theta: f64,
    scaling: Option<RopeScaling>,
    table: Mutex<Option<Tensor>>,
}

impl Rotary {
    /// For this number of positions and heads of D elements: frequency i is theta^(-2i/D).
    pub fn new(positions: usize, head_size: usize, theta: f64, scaling: Option<RopeScaling>) -> Rotary {
        Rotary { positions, head_size, theta, scaling, table: Mutex::default() }
    }

    /// Angles per position, D/2.
    fn frequencies(&self) -> Vec<f64> {
        let frequency = |i: usize| self.theta.powf(-2.0 * i as f64 / self.head_size as f64);
        let scaled = |frequency: f64| self.scaling.map_or(frequency, |scaling| scaling.apply(frequency));
        (0..self.head_size / 2).map(|i| scaled(frequency(i))).collect()
    }

    /// (positions, D): each row has the cosines of all angles, then their sines.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn table(&self, device: &Device) -> Result<Tensor> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = table.as_ref().filter(|table| table.device().same(device)) {
            return Ok(table.clone());
        }
        let shape = [self.positions, self.head_size / 2 * 2];
        // Where it has no room, nothing is computed.
        let made = Tensor::zeros(shape, DType::F32, device)?;
        if device.has_values() {
            let frequencies = self.frequencies();
            let row = |position: usize| {
                let angles = frequencies.iter().map(move |frequency| position as f64 * frequency);
                angles.clone().map(f64::cos).chain(angles.map(f64::sin)).map(|value| value as f32)
            };
            let values: Vec<f32> = (0..self.positions).into_par_iter().flat_map_iter(row).collect();
            made.write_bytes(bytemuck::cast_slice(&values))?;
        }
        Ok(table.insert(made).clone())
    }
}

impl RopeScaling {
    /// The scaled frequency, in radians per token.
    pub fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_block_size } => {
                let periods = original_block_size as f64 * frequency / std::f64::consts::TAU;
                let fast = ((periods - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - fast) * frequency / factor + fast * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_cosines_and_sines_of_every_position() {
        let table = Rotary::new(3, 4, 100.0, None).table(&Device::Cpu).unwrap();
        let want = [0.0, 1.0, 2.0].map(|p: f64| [p.cos(), (p / 10.0).cos(), p.sin(), (p / 10.0).sin()]);
        crate::testing::assert_close("table", &table.to_f32().unwrap(), &want.concat(), 1e-7, 0.0);
    }

    #[test]
    fn scaling_leaves_fast_frequencies_and_divides_slow_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_block_size: 8192 };
        let periods = |n: f64| n * std::f64::consts::TAU / 8192.0;
        for (n, share) in [(0.5, 1.0 / 8.0), (1.0, 1.0 / 8.0), (2.5, 0.5 / 8.0 + 0.5), (4.0, 1.0), (100.0, 1.0)] {
            let got = scaling.apply(periods(n)) / periods(n);
            assert!((got - share).abs() < 1e-12, "{n} periods: {got}");
        }
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.apply(0.5), 0.125);
    }
}
