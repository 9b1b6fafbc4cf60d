//! Training of any [`Module`](crate::nn::Module) on any data: a [`Trainer`] updates parameters from the loss of a
//! closure, a [`DataLoader`] prefetches batches of a [`Dataset`]. The trainer of language models uses the same arenas,
//! optimizers and schedules.
//!
//! ```
//! use rustyflow_tensor::fit::{Array, Arrays, DataLoader, LoaderOptions, Trainer, TrainerOptions};
//! use rustyflow_tensor::nn::{Dropout, Linear, init_keys};
//! use rustyflow_tensor::optim::{Kind, LearningRate};
//! use rustyflow_tensor::{Device, Result};
//!
//! # fn main() -> Result<()> {
//! // y = 2 x0 - x1
//! let points: Vec<[f32; 2]> = (0..64).map(|i| [(i % 8) as f32 / 8.0, (i / 8) as f32 / 8.0]).collect();
//! let targets: Vec<f32> = points.iter().map(|[a, b]| 2.0 * a - b).collect();
//! let data = Arrays::new(vec![Array::f32(points.as_flattened(), [64, 2])?, Array::f32(&targets, [64, 1])?])?;
//! let loader = DataLoader::new(data, LoaderOptions::of(16).shuffled(1), &Device::Cpu)?;
//!
//! let mut model = Linear::new(2, 1, true, 0.1, init_keys(1)())?;
//! let kind = Kind::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
//! let options = TrainerOptions::new(kind, LearningRate::constant(0.05));
//! let mut trainer = Trainer::new(&mut model, &Device::Cpu, options)?;
//! let mut last = f64::INFINITY;
//! for batch in loader.epochs(0..60)? {
//!     let [x, y] = batch?.take()?; // (B, 2), (B, 1)
//!     let update = trainer.step(|| {
//!         let error = model.forward(&x, &Dropout::off())?.sub(&y)?;
//!         error.mul(&error)?.mean([0, 1])
//!     })?;
//!     last = update.numbers()?.loss;
//! }
//! assert!(last < 1e-3);
//! # Ok(())
//! # }
//! ```

mod dataset;
mod loader;
mod numbers;
mod saved;
mod trainer;
mod worker;

pub use dataset::{Array, Arrays, Dataset};
pub use loader::{Batch, Batches, DataLoader, LoaderOptions};
pub use numbers::{LossScale, Numbers, PendingNumbers};
pub use trainer::{Trainer, TrainerOptions, Update};
