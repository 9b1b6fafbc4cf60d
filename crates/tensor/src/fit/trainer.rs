//! Updates of any module from the loss that a closure computes.

use super::numbers::{Numbers, PendingNumbers};
use crate::nn::Module;
use crate::optim::{Kind, LearningRate, Optimizer, ParameterArena};
use crate::step::{self, Losses};
use crate::{DType, Device, Error, Result, Tensor};

/// How a module is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainerOptions {
    pub kind: Kind,
    pub learning_rate: LearningRate,
    /// Of parameters with two or more dimensions.
    pub weight_decay: f64,
    /// The largest global norm of all gradients; 0 does not clip.
    pub grad_clip: f64,
    /// The type of matmul operands: f16 is mixed precision, in which the loss is scaled (Micikevicius et al. 2018) and
    /// an update whose gradients overflow is skipped.
    pub operands: DType,
}

impl TrainerOptions {
    /// In f32, without decay and clipping.
    pub fn new(kind: Kind, learning_rate: LearningRate) -> TrainerOptions {
        TrainerOptions { kind, learning_rate, weight_decay: 0.0, grad_clip: 0.0, operands: DType::F32 }
    }

    /// The same with this decay.
    pub fn weight_decay(self, weight_decay: f64) -> TrainerOptions {
        TrainerOptions { weight_decay, ..self }
    }

    /// The same with gradients clipped to this norm.
    pub fn grad_clip(self, grad_clip: f64) -> TrainerOptions {
        TrainerOptions { grad_clip, ..self }
    }

    /// The same in mixed precision.
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

/// The parameters of a module on a device, and their optimizer. The module itself stays with the caller, who computes
/// losses with it.
pub struct Trainer {
    pub(super) parameters: ParameterArena,
    pub(super) optimizer: Optimizer,
    learning_rate: LearningRate,
    device: Device,
    pub(super) updates: usize,
}

/// An update, whose numbers may still be being computed.
pub struct Update {
    /// The mean over the micro-batches, ().
    pub loss: Tensor,
    /// What the parameters were updated with.
    pub learning_rate: f64,
    squares: Tensor,
    skipped: Tensor,
    loss_scale: Option<Tensor>,
}

impl Update {
    /// Begins to read loss and norm, without waiting. To be called before the next update, which counts on.
    ///
    /// # Errors
    /// If there is no memory to read into, or the driver reported an error.
    pub fn read_later(&self) -> Result<PendingNumbers> {
        PendingNumbers::of([&self.loss, &self.squares, &self.skipped], self.loss_scale.as_ref())
    }

    /// Loss and norm, which waits for the device.
    ///
    /// # Errors
    /// Those of [`Update::read_later`].
    pub fn numbers(&self) -> Result<Numbers> {
        self.read_later()?.wait()
    }
}

impl Trainer {
    /// Moves the parameters and buffers of a module to a device, where it uses them from now on, and updates all
    /// parameters alike.
    ///
    /// # Errors
    /// If an option is out of its range, and those of [`ParameterArena::new`] and [`Optimizer::new`].
    pub fn new(module: &mut dyn Module, device: &Device, options: TrainerOptions) -> Result<Trainer> {
        options.check()?;
        let parameters = ParameterArena::new(module, device, options.operands)?;
        let optimizer = Optimizer::new(&parameters, options.kind, options.weight_decay, options.grad_clip)?;
        Ok(Trainer::from_parts(parameters, optimizer, options.learning_rate))
    }

    /// Of parameters whose groups are updated differently, such as matrices by Muon and the rest by AdamW.
    pub fn from_parts(parameters: ParameterArena, optimizer: Optimizer, learning_rate: LearningRate) -> Trainer {
        let device = parameters.values().device();
        Trainer { parameters, optimizer, learning_rate, device, updates: 0 }
    }

    /// One update from the loss of one batch, an f32 tensor of one element. On a GPU this only records and submits.
    ///
    /// In mixed precision its gradient is scaled here. A loss that scales its own, such as `linear_cross_entropy`, is
    /// to be given no scale.
    ///
    /// # Errors
    /// Those of the loss, if it is no f32 tensor of one element or was not computed from the parameters, and those of
    /// the device. The parameters are then as they were.
    pub fn step(&mut self, mut loss: impl FnMut() -> Result<Tensor>) -> Result<Update> {
        self.step_accumulated([()], |()| loss())
    }

    /// One update from the mean of the losses of several micro-batches, whose gradients add up: that of a batch as
    /// large as all of them, if they are of one size. See [`Trainer::step`].
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

    /// What updates them.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Updates so far, skipped ones included: the next is of this number in the schedule.
    pub fn updates(&self) -> usize {
        self.updates
    }

    /// The learning rates from here on, counted from the first update of all.
    pub fn set_learning_rate(&mut self, learning_rate: LearningRate) {
        self.learning_rate = learning_rate;
    }

    /// From now on keeps an exponential moving average of the weights; `decay` is its largest one.
    ///
    /// # Errors
    /// If the decay is not in [0, 1), or the device runs out of memory.
    pub fn keep_averages(&mut self, decay: f64) -> Result<()> {
        if !(0.0..1.0).contains(&decay) {
            return Err(Error::Invalid(format!("the decay of averages must be at least 0 and below 1, got {decay}")));
        }
        self.optimizer.keep_averages(&self.parameters, decay)
    }

    /// Lets weights and averages change places, if it keeps averages: the module then computes with those, until this
    /// is called again.
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
