//! Random inputs of ops for tests and benchmarks, equal on every device.

use super::random::splitmix64;
use crate::{Device, Error, Result, Shape, Tensor};

/// The distribution of an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Uniform in `low..high`.
    Uniform(f32, f32),
    /// Token ids below a bound.
    Ids(u32),
    /// Token ids below a bound; every fifth is the ignored target.
    Targets(u32),
}

pub const AROUND_ZERO: Values = Values::Uniform(-2.0, 2.0);
pub const AROUND_ONE: Values = Values::Uniform(0.9, 1.1);
pub const POSITIVE: Values = Values::Uniform(0.3, 3.0);

/// Values in the domain of an elementwise function (of its first operand).
pub fn domain(function: &str) -> Values {
    if matches!(function, "log" | "sqrt" | "recip" | "pow" | "powf") { POSITIVE } else { AROUND_ZERO }
}

/// Tensors of these shapes and distributions, drawn from `seed` and equal on every device.
///
/// # Errors
/// If the host or the device runs out of memory.
pub fn draw(inputs: &[(Vec<usize>, Values)], device: &Device, seed: u64) -> Result<Vec<Tensor>> {
    let mut state = seed;
    let mut uniform = move || (splitmix64(&mut state) >> 40) as f32 / (1u64 << 24) as f32;
    let of_input = |(shape, values): &(Vec<usize>, Values)| {
        let elements = Shape::from(shape.clone()).elements();
        if Vec::<u32>::new().try_reserve_exact(elements).is_err() {
            return Err(Error::Invalid(format!("no memory holds a tensor of {shape:?}")));
        }
        match *values {
            Values::Uniform(low, high) => {
                let data: Vec<f32> = (0..elements).map(|_| low + (high - low) * uniform()).collect();
                Tensor::from_f32(&data, shape.clone(), device)
            }
            Values::Ids(below) => {
                let data: Vec<u32> = (0..elements).map(|_| (uniform() * below as f32) as u32).collect();
                Tensor::from_u32(&data, shape.clone(), device)
            }
            Values::Targets(below) => {
                let data: Vec<u32> = (0..elements)
                    .map(|i| if i % 5 == 3 { u32::MAX } else { (uniform() * below as f32) as u32 })
                    .collect();
                Tensor::from_u32(&data, shape.clone(), device)
            }
        }
    };
    inputs.iter().map(of_input).collect()
}
