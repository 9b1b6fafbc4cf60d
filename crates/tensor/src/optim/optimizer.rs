//! An optimizer: what it remembers of every group of parameters, and one update of all of them.

use super::arena::ParameterArena;
use super::ema::Ema;
use super::group::{Group, Kind};
use super::int8::{self, BLOCK, MomentDtype, RECORD_WORDS, record_len};
use super::layerwise::Layerwise;
use super::layout::{ALIGN, Entry, Segment};
use super::loss_scale::LossScale;
use super::muon::{Muon, Workspace};
use super::update::{GradientScale, Rule, SumsOfSquares, Update};
use crate::profile::MemoryKind;
use crate::tensor::{DType, Spec, no_grad, run_into};
use crate::{Device, Error, Result, Tensor};
use std::ops::Range;

/// A group, the part of the arenas that holds it, and what is remembered of it.
pub(super) struct State {
    pub group: Group,
    pub segment: Segment,
    /// As [`Kind::moment_names`] names them, (N) each; or their records (`int8.rs`), u32.
    pub moments: Vec<Tensor>,
    /// Where they are of 8 bits, the tables of their codes.
    pub tables: Option<Tensor>,
    pub muon: Option<Muon>,
}

/// An optimizer and what it remembers.
pub struct Optimizer {
    /// In the order of the arenas; of the part that it updates.
    pub(super) states: Vec<State>,
    scale: GradientScale,
    /// Updates done so far.
    pub(super) steps: u64,
    /// Where matmuls are of f16.
    pub(super) loss_scale: Option<LossScale>,
    /// Its state on the device that computes the loss, if that is another.
    scale_on_device: Option<Tensor>,
    /// Where parameters are updated while backward runs.
    pub(super) layerwise: Option<Layerwise>,
    /// Updates that were skipped, (1) of u32.
    pub(super) skipped: Tensor,
    pub(super) ema: Option<Ema>,
    part: Range<usize>,
    /// Of all parts.
    trainable_len: usize,
    /// Moments of parameters, of all parts: as many tensors has a file of them.
    pub(super) tensors: usize,
}

/// An update of which everything is allocated and nothing is made; see [`Optimizer::prepare`].
pub struct PreparedUpdate {
    norm: Norm,
    workspace: Option<Workspace>,
}

/// The sum of the squared gradients.
enum Norm {
    Plain(Tensor),
    /// Partial sums of the gradients times the loss scale, and where [`LossScale::step`] writes their sum.
    Scaled {
        sums: Tensor,
        rescaled: Tensor,
    },
}

impl Optimizer {
    /// A fresh optimizer that updates all these parameters alike.
    ///
    /// # Errors
    /// If the device has no memory left for the moments, a setting is out of its range, or the rule is Muon and there
    /// are other parameters than weights of linear layers.
    pub fn new(parameters: &ParameterArena, kind: Kind, weight_decay: f64, grad_clip: f64) -> Result<Optimizer> {
        Optimizer::with_groups(parameters, &|_| Group::new(kind, weight_decay), grad_clip)
    }

    /// A fresh optimizer that updates each group of [`ParameterArena::grouped`] as `group_of` its number says.
    /// `grad_clip` is the largest global norm of all gradients; 0 does not clip.
    ///
    /// # Errors
    /// Those of [`Optimizer::new`].
    pub fn with_groups(
        parameters: &ParameterArena,
        group_of: &dyn Fn(usize) -> Group,
        grad_clip: f64,
    ) -> Result<Optimizer> {
        Optimizer::of_part(parameters, group_of, grad_clip, &(0..parameters.trainable_len()))
    }

    /// [`Optimizer::with_groups`] of a part of the arenas, one of [`shards`](super::shards): it updates and remembers
    /// only that, by the norm of all gradients.
    ///
    /// # Errors
    /// Those of [`Optimizer::new`], or if another rank has the weights of this part.
    pub fn of_part(
        parameters: &ParameterArena,
        group_of: &dyn Fn(usize) -> Group,
        grad_clip: f64,
        part: &Range<usize>,
    ) -> Result<Optimizer> {
        if part.start > part.end || part.end > parameters.trainable_len() || !part.start.is_multiple_of(ALIGN) {
            let all = parameters.trainable_len();
            return Err(Error::Invalid(format!("{part:?} is no part of {all} parameters, as `shards` makes them")));
        }
        if parameters.buckets().is_some() && *part != (0..parameters.trainable_len()) {
            return Err(Error::Invalid("layerwise updates are of all parameters: ranks cannot divide them".into()));
        }
        if !part.is_empty() {
            parameters.value(part)?;
        }
        let device = parameters.optimizer_device();
        let segments = parameters.segments.iter().filter_map(|segment| segment.within(part));
        let is_int8 = |segment: &Segment| group_of(segment.group).moment_dtype == MomentDtype::Int8;
        let tables = parameters.segments.iter().any(is_int8).then(|| int8::tables_on(&device)).transpose()?;
        let states = segments.map(|segment| State::new(parameters, segment.clone(), group_of(segment.group), &tables));
        let states = states.collect::<Result<_>>()?;
        let loss_scale = parameters.has_f16().then(|| LossScale::new(&device)).transpose()?;
        let skipped = Tensor::zeros([1], DType::U32, &device)?;
        let scale = GradientScale { grad_clip: grad_clip as f32, mixed: loss_scale.is_some() };
        let trained = parameters.entries.iter().filter(|entry| entry.trainable);
        let segment_of = |entry: &Entry| parameters.segments.iter().find(|s| s.range.contains(&entry.offset));
        let moments = trained.filter_map(segment_of).map(|segment| group_of(segment.group).kind.moments());
        let tensors = moments.sum();
        let (part, trainable_len) = (part.clone(), parameters.trainable_len());
        let layerwise = parameters.buckets().map(|_| Layerwise::new(&device)).transpose()?;
        let on_device = |scale: &LossScale| scale.state.to_device(&parameters.device());
        let scale_on_device = loss_scale.as_ref().filter(|_| parameters.is_offloaded()).map(on_device).transpose()?;
        Ok(Optimizer {
            states,
            scale,
            steps: 0,
            loss_scale,
            scale_on_device,
            layerwise,
            skipped,
            ema: None,
            part,
            trainable_len,
            tensors,
        })
    }

    /// The elements of the arenas that it updates.
    pub fn part(&self) -> &Range<usize> {
        &self.part
    }

    /// From now on keeps an exponential moving average of the weights; `decay` is its largest one.
    ///
    /// # Errors
    /// If the device has no memory left, or ranks divide the weights.
    pub fn keep_averages(&mut self, parameters: &ParameterArena, decay: f64) -> Result<()> {
        self.expect_made_for(parameters)?;
        self.ema = Some(Ema::new(parameters, decay)?);
        Ok(())
    }

    /// The averages of the weights that are trained, if it keeps them: as the arena of the values, as far as that is
    /// trained.
    pub fn averages(&self) -> Option<&Tensor> {
        self.ema.as_ref().map(|ema| &ema.averages)
    }

    /// Lets weights and averages change places, if it keeps averages: the model then computes with those, until it is
    /// called again.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn swap_averages(&self, parameters: &ParameterArena) -> Result<()> {
        self.expect_made_for(parameters)?;
        self.ema.as_ref().map_or(Ok(()), |ema| ema.swap(parameters))
    }

    /// How many updates were skipped, because the gradients' norm was not finite, since this optimizer was made: one
    /// u32, still on the device.
    pub fn skipped(&self) -> &Tensor {
        &self.skipped
    }

    /// What gradients are to be multiplied by, so that they survive f16, in its first element: an argument of
    /// the model's loss. The second counts steps, the third those that were skipped.
    pub fn loss_scale(&self) -> Option<&Tensor> {
        self.scale_on_device.as_ref().or(self.loss_scale.as_ref().map(|scale| &scale.state))
    }

    /// Copies the loss scale to the device that computes the loss, once it was written elsewhere.
    pub(super) fn copy_loss_scale(&self) -> Result<()> {
        let mut copies = self.scale_on_device.iter().zip(&self.loss_scale);
        copies.try_for_each(|(copy, scale)| copy.take_values(&scale.state))
    }

    /// Updates its part of the parameters from the gradients collected, and returns a tensor, still on the device,
    /// whose first element is the sum of the squared gradients before clipping: the square of the global norm. Whoever
    /// [keeps averages](Optimizer::keep_averages) calls [`Optimizer::average`] next.
    ///
    /// # Errors
    /// If the device has no memory left for what the update takes, or the driver reported an error.
    pub fn step(&mut self, parameters: &ParameterArena, learning_rate: f64) -> Result<Tensor> {
        let prepared = self.prepare(parameters)?;
        self.apply(parameters, learning_rate, prepared)
    }

    /// Allocates what an update needs and measures the gradients collected, and changes nothing: the update can still
    /// be dropped, and the gradients be computed again.
    ///
    /// # Errors
    /// Those of [`Optimizer::step`].
    #[doc(hidden)]
    pub fn prepare(&self, parameters: &ParameterArena) -> Result<PreparedUpdate> {
        self.expect_made_for(parameters)?;
        let gradients = parameters.gradients()?;
        let sums = sums_of_squares(parameters, &(0..gradients.len()), &Scope { gradients, start: 0 })?;
        let norm = match &self.loss_scale {
            Some(_) => Norm::Scaled { sums, rescaled: LossScale::output(&parameters.device())? },
            None => Norm::Plain(no_grad(|| sums.sum(..))?),
        };
        let muon = self.states.iter().filter_map(|state| state.muon.as_ref());
        Ok(PreparedUpdate { norm, workspace: Workspace::new(muon, &parameters.device())? })
    }

    /// Makes an update, which [`Optimizer::prepare`] has prepared from the same gradients. It allocates nothing, so
    /// that it is made whole or, where the device is lost, not at all. Returns what [`Optimizer::step`] does.
    ///
    /// # Errors
    /// If the driver reported an error.
    #[doc(hidden)]
    pub fn apply(
        &mut self,
        parameters: &ParameterArena,
        learning_rate: f64,
        prepared: PreparedUpdate,
    ) -> Result<Tensor> {
        let PreparedUpdate { norm, workspace } = prepared;
        let squares = match (norm, &self.loss_scale) {
            (Norm::Scaled { sums, rescaled }, Some(scale)) => {
                scale.step(&sums, &rescaled)?;
                rescaled
            }
            (Norm::Plain(squares), _) => squares,
            (Norm::Scaled { .. }, None) => unreachable!("an optimizer keeps its loss scale"),
        };
        self.steps += 1;
        let scope = Scope { gradients: parameters.gradients()?, start: 0 };
        for i in 0..self.states.len() {
            let norm = (&squares, i == 0);
            self.update_state(i, parameters, scope, norm, (self.steps, learning_rate), workspace.as_ref())?;
        }
        Ok(squares)
    }

    /// Updates one group: the update number `number`, from 1, by the norm of the gradients. `counts` says whether it
    /// counts a skipped update.
    pub(super) fn update_state(
        &self,
        i: usize,
        parameters: &ParameterArena,
        gradients: Scope,
        (squares, counts): (&Tensor, bool),
        (number, learning_rate): (u64, f64),
        workspace: Option<&Workspace>,
    ) -> Result<()> {
        let (state, skipped) = (&self.states[i], &self.skipped);
        let learning_rate = learning_rate * state.group.lr_scale;
        let step = Step { parameters, gradients, squares, skipped, scale: self.scale, number, learning_rate, counts };
        match (&state.muon, workspace) {
            (Some(muon), Some(workspace)) => muon.update(state, &step, workspace),
            _ => step.elementwise(state),
        }
    }

    /// Lets the averages, if it keeps any, follow the weights, once all are updated; `squares` is what
    /// [`Optimizer::step`] returned.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn average(&self, parameters: &ParameterArena, squares: &Tensor) -> Result<()> {
        self.expect_made_for(parameters)?;
        if squares.is_empty() || squares.dtype() != DType::F32 {
            let (expected, got) = ("what `step` returned, f32 (1) or longer".into(), squares.spec().to_string());
            return Err(Error::Shape { op: "average", expected, got });
        }
        self.ema.as_ref().map_or(Ok(()), |ema| ema.update(parameters, squares, self.scale, self.steps))
    }
}

impl Optimizer {
    /// Fails with parameters that it cannot be of.
    pub(super) fn expect_made_for(&self, parameters: &ParameterArena) -> Result<()> {
        let segments = parameters.segments.iter().filter_map(|segment| segment.within(&self.part));
        let is_same = segments.eq(self.states.iter().map(|state| state.segment.clone()));
        let (own, theirs) = (self.skipped.device(), parameters.optimizer_device());
        let has_length = self.trainable_len == parameters.trainable_len();
        if is_same
            && has_length
            && own.same(&theirs)
            && self.loss_scale.is_some() == parameters.has_f16()
            && self.layerwise.is_some() == parameters.buckets().is_some()
            && self.scale_on_device.is_some() == parameters.is_offloaded()
        {
            return Ok(());
        }
        Err(Error::Invalid("the optimizer was made for other parameters".into()))
    }
}

impl State {
    fn new(parameters: &ParameterArena, segment: Segment, group: Group, tables: &Option<Tensor>) -> Result<State> {
        let device = parameters.optimizer_device();
        group.kind.check()?;
        let zeros = |len, dtype| Tensor::zeros_as(MemoryKind::OptimizerState, [len], dtype, &device);
        let muon = match group.kind {
            Kind::Muon { .. } => {
                let is_inside = |entry: &&Entry| entry.trainable && segment.range.contains(&entry.offset);
                Some(Muon::new(parameters.entries.iter().filter(is_inside), &device)?)
            }
            _ => None,
        };
        let (count, len) = (group.kind.moments(), segment.range.len());
        let moments = match group.moment_dtype {
            MomentDtype::F32 => (0..count).map(|_| zeros(len, DType::F32)).collect::<Result<_>>()?,
            MomentDtype::Int8 => vec![zeros(record_len(len, count), DType::U32)?],
        };
        let tables = tables.clone().filter(|_| group.moment_dtype == MomentDtype::Int8);
        Ok(State { group, moments, tables, muon, segment })
    }

    /// Of each tensor of moments the part of these elements of the arenas, which start with a block.
    pub fn moments_of(&self, range: &Range<usize>) -> Vec<Tensor> {
        let (start, end) = (range.start - self.segment.range.start, range.end - self.segment.range.start);
        let part = |tensor: &Tensor| match self.group.moment_dtype {
            MomentDtype::F32 => slice(tensor, &(start..end)),
            MomentDtype::Int8 => {
                let of_block = self.group.kind.moments() * RECORD_WORDS;
                slice(tensor, &(start / BLOCK * of_block..end.div_ceil(BLOCK) * of_block))
            }
        };
        self.moments.iter().map(part).collect()
    }
}

/// Gradients of the arenas from the element `start` on.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub gradients: &'a Tensor,
    pub start: usize,
}

impl Scope<'_> {
    /// Those of these elements of the arenas.
    pub fn of(&self, range: &Range<usize>) -> Tensor {
        slice(self.gradients, &(range.start - self.start..range.end - self.start))
    }
}

/// What the updates of all groups in one step have in common, and the learning rate of one of them.
pub(super) struct Step<'a> {
    pub parameters: &'a ParameterArena,
    pub gradients: Scope<'a>,
    pub squares: &'a Tensor,
    pub skipped: &'a Tensor,
    pub scale: GradientScale,
    /// The first is 1.
    number: u64,
    pub learning_rate: f64,
    /// Whether a skipped update is counted: the first group does it.
    pub counts: bool,
}

impl Step<'_> {
    /// One pass over the group.
    fn elementwise(&self, state: &State) -> Result<()> {
        for range in self.parameters.bindable_ranges(&state.segment.range) {
            let kernel = self.kernel(state, &range);
            let in_arena = |arena: &Tensor| slice(arena, &range);
            let (gradient, value) = (self.gradients.of(&range), self.parameters.value(&range)?);
            let moments = state.moments_of(&range);
            let half = self.parameters.halves_beside().map(in_arena);
            let mut outputs = vec![&value];
            outputs.extend(&moments);
            outputs.push(self.skipped);
            outputs.extend(&half);
            let mut inputs = vec![&gradient, self.squares];
            inputs.extend(&state.tables);
            run_into(&kernel, &inputs, &outputs)?;
        }
        Ok(())
    }

    fn kernel(&self, state: &State, range: &Range<usize>) -> Update {
        let t = self.number as i32;
        let (rule, beta1, beta2, eps) = match state.group.kind {
            Kind::AdamW { beta1, beta2, eps } => (Rule::AdamW, beta1, beta2, eps),
            Kind::Adam { beta1, beta2, eps } => (Rule::Adam, beta1, beta2, eps),
            Kind::Sgd { momentum, nesterov } => (Rule::Sgd { nesterov }, momentum, 0.0, 0.0),
            Kind::RmsProp { alpha, eps, momentum, centered } => {
                (Rule::RmsProp { has_momentum: momentum > 0.0, centered }, momentum, alpha, eps)
            }
            Kind::Lion { beta1, beta2 } => (Rule::Lion, beta1, beta2, 0.0),
            Kind::Muon { .. } => unreachable!("it updates whole matrices"),
        };
        let Segment { range: whole, decay_end, .. } = &state.segment;
        let decay_end = if state.group.decays_vectors { whole.end } else { *decay_end };
        Update {
            rule,
            moments: state.group.kind.moment_names(),
            state: state.group.moment_dtype,
            learning_rate: self.learning_rate as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            weight_decay: state.group.weight_decay as f32,
            // 1 / (1 - beta^t), in f64: at t = 1 and beta2 = 0.999 f32 would keep only four digits.
            correction1: (1.0 / (1.0 - beta1.powi(t))) as f32,
            correction2: (1.0 / (1.0 - beta2.powi(t))) as f32,
            scale: self.scale,
            halves: self.parameters.halves_beside().is_some(),
            decay_end: decay_end.saturating_sub(range.start).min(range.len()),
            counts: self.counts && range.start == whole.start,
        }
    }
}

/// Sums that add up to that of the squares of the gradients of these elements.
pub(super) fn sums_of_squares(parameters: &ParameterArena, of: &Range<usize>, gradients: &Scope) -> Result<Tensor> {
    let ranges = parameters.bindable_ranges(of);
    let parts = SumsOfSquares::PARTS;
    let spec = Spec::new([parts * ranges.len()], DType::F32);
    let sums = Tensor::empty(spec, &parameters.optimizer_device(), MemoryKind::Scratch)?;
    for (i, range) in ranges.iter().enumerate() {
        run_into(&SumsOfSquares, &[&gradients.of(range)], &[&slice(&sums, &(i * parts..(i + 1) * parts))])?;
    }
    Ok(sums)
}

/// These elements of a one-dimensional tensor.
pub(super) fn slice(tensor: &Tensor, range: &Range<usize>) -> Tensor {
    tensor.slice_flat(range.start, [range.len()].into())
}

/// The most elements of an arena that one launch may bind. The records of so many moments of 8 bits are whole multiples
/// of 256 bytes, where a binding may start.
pub(super) fn bindable(device: &Device) -> usize {
    let elements = device.limits().binding_bytes.min(1 << 30) as usize / size_of::<f32>();
    if device.is_gpu() { elements / (64 * BLOCK) * (64 * BLOCK) } else { usize::MAX }
}
