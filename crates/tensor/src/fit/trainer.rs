//! Updates any module from the loss of a closure.

use super::numbers::{Numbers, PendingNumbers};
use crate::nn::Module;
use crate::optim::{Kind, LearningRate, Optimizer, ParameterArena};
use crate::step::{self, Losses};
use crate::{DType, Device, Error, Result, Tensor};

/// Options of a [`Trainer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainerOptions {
    pub kind: Kind,
    pub learning_rate: LearningRate,
    /// Weight decay of parameters with two or more dimensions.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 disables clipping.
    pub grad_clip: f64,
    /// Type of GEMM operands. f16 is mixed precision, with loss scaling (Micikevicius et al. 2018); updates with
    /// overflowing gradients are skipped.
    pub operands: DType,
}

impl TrainerOptions {
    /// f32, without weight decay and clipping.
    pub fn new(kind: Kind, learning_rate: LearningRate) -> TrainerOptions {
        TrainerOptions { kind, learning_rate, weight_decay: 0.0, grad_clip: 0.0, operands: DType::F32 }
    }

    /// Sets the weight decay.
    pub fn weight_decay(self, weight_decay: f64) -> TrainerOptions {
        TrainerOptions { weight_decay, ..self }
    }

    /// Clips gradients to this norm.
    pub fn grad_clip(self, grad_clip: f64) -> TrainerOptions {
        TrainerOptions { grad_clip, ..self }
    }

    /// Enables mixed precision.
    pub fn mixed(self) -> TrainerOptions {
        TrainerOptions { operands: DType::F16, ..self }
    }

    fn check(&self) -> Result<()> {
        let rate = &self.learning_rate;
        let numbers = [("weight_decay", self.weight_decay), ("grad_clip", self.grad_clip)];
        let rates = [("learning rate", rate.peak), ("smallest learning rate", rate.minimum)];
        match numbers.into_iter().chain(rates).find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((name, value)) => {
                Err(Error::Invalid(format!("the {name} of a training must be at least 0 and finite, got {value}")))
            }
            None if self.operands == DType::U32 => {
                Err(Error::DType { op: "matmul operands of a training", expected: "f32 or f16", got: "u32" })
            }
            None => Ok(()),
        }
    }
}

/// The parameters of a module on a device, and their optimizer. The caller keeps the module to compute losses.
pub struct Trainer {
    pub(super) parameters: ParameterArena,
    pub(super) optimizer: Optimizer,
    learning_rate: LearningRate,
    device: Device,
    pub(super) updates: usize,
}

/// A recorded update, which the device may still be computing.
pub struct Update {
    /// Mean loss over the micro-batches, ().
    pub loss: Tensor,
    /// Learning rate of the update.
    pub learning_rate: f64,
    squares: Tensor,
    skipped: Tensor,
    loss_scale: Option<Tensor>,
}

impl Update {
    /// Starts reading loss and norm without waiting. Call it before the next update, which advances the counters.
    ///
    /// # Errors
    /// If there is no memory to read into, or the driver reported an error.
    pub fn read_later(&self) -> Result<PendingNumbers> {
        PendingNumbers::of([&self.loss, &self.squares, &self.skipped], self.loss_scale.as_ref())
    }

    /// Waits for loss and norm.
    ///
    /// # Errors
    /// Those of [`Update::read_later`].
    pub fn numbers(&self) -> Result<Numbers> {
        self.read_later()?.wait()
    }
}

impl Trainer {
    /// Moves a module's parameters and buffers to a device. All parameters have the same options.
    ///
    /// # Errors
    /// If an option is out of range; those of [`ParameterArena::new`] and [`Optimizer::new`].
    pub fn new(module: &mut dyn Module, device: &Device, options: TrainerOptions) -> Result<Trainer> {
        options.check()?;
        let parameters = ParameterArena::new(module, device, options.operands)?;
        let optimizer = Optimizer::new(&parameters, options.kind, options.weight_decay, options.grad_clip)?;
        Ok(Trainer::from_parts(parameters, optimizer, options.learning_rate))
    }

    /// A trainer with parameter groups, such as matrices updated by Muon and the rest by AdamW.
    pub fn from_parts(parameters: ParameterArena, optimizer: Optimizer, learning_rate: LearningRate) -> Trainer {
        let device = parameters.device();
        Trainer { parameters, optimizer, learning_rate, device, updates: 0 }
    }

    /// One update from the loss of one batch, an f32 tensor with one element. On a GPU, this only records and submits.
    ///
    /// In mixed precision, the gradient is scaled here; pass no scale to a loss that has its own, such as
    /// `linear_cross_entropy`.
    ///
    /// # Errors
    /// Errors of the loss; if it is not an f32 tensor with one element or does not depend on the parameters; errors of
    /// the device. The parameters are then unchanged.
    pub fn step(&mut self, mut loss: impl FnMut() -> Result<Tensor>) -> Result<Update> {
        self.step_accumulated([()], |()| loss())
    }

    /// One update with gradient accumulation: from the mean loss of several micro-batches, equivalent to one large
    /// batch if they have equal sizes. See [`Trainer::step`].
    ///
    /// # Errors
    /// Those of [`Trainer::step`], and if there are no micro-batches.
    pub fn step_accumulated<B, I>(
        &mut self,
        micro_batches: I,
        mut loss: impl FnMut(B) -> Result<Tensor>,
    ) -> Result<Update>
    where
        I: IntoIterator<Item = B, IntoIter: ExactSizeIterator>,
    {
        self.device.begin_step(false);
        let learning_rate = self.learning_rate.of_step(self.updates);
        let trained = (&self.parameters, &mut self.optimizer);
        let loss = |micro_batch, _: Option<&Tensor>| loss(micro_batch);
        let step::Update { loss, squares } =
            step::step_alone(trained, Losses::Means, micro_batches.into_iter(), loss, learning_rate)?;
        self.updates += 1;
        self.device.end_step()?;
        let (skipped, loss_scale) = (self.optimizer.skipped().clone(), self.optimizer.loss_scale().cloned());
        Ok(Update { loss, learning_rate, squares, skipped, loss_scale })
    }

    /// The parameters and their gradients.
    pub fn parameters(&self) -> &ParameterArena {
        &self.parameters
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Number of updates so far, including skipped ones: the schedule's index of the next update.
    pub fn updates(&self) -> usize {
        self.updates
    }

    /// Replaces the learning-rate schedule, which counts from the first update.
    pub fn set_learning_rate(&mut self, learning_rate: LearningRate) {
        self.learning_rate = learning_rate;
    }

    /// Starts an exponential moving average (EMA) of the weights; `decay` is its largest decay.
    ///
    /// # Errors
    /// If the decay is not in [0, 1), or the device runs out of memory.
    pub fn keep_averages(&mut self, decay: f64) -> Result<()> {
        if !(0.0..1.0).contains(&decay) {
            return Err(Error::Invalid(format!("the decay of averages must be at least 0 and below 1, got {decay}")));
        }
        self.optimizer.keep_averages(&self.parameters, decay)
    }

    /// Swaps weights and averages, if it keeps averages: the module computes with the averages until the next call.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn swap_averages(&self) -> Result<()> {
        self.optimizer.swap_averages(&self.parameters)
    }
}

#[cfg(test)]
#[path = "trainer_tests.rs"]
mod tests;
