//! The flat buffers that hold all parameters and all gradients of a model.
//!
//! ```text
//! values   | decay | do not | frozen |     f32; of the first two, one after the other for each group of parameters,
//!                                          the optimizer keeps moments; ranks may divide them (`values.rs`)
//! gradients| decay | do not |              f32
//! halves   | decay | do not | frozen |     f16 copies, operands of matmuls: in mixed precision
//! f16_only | frozen |                      f16: all there is of them
//! ```
//! Values may lie in host memory (`offload.rs`); the device then has f32 copies of those that its kernels read.
//!
//! What the largest buffer of the device does not hold lies in several, cut between parameters, and in tables larger
//! than a binding between rows (`tensor/rows.rs`), at the same places in all arenas.

use super::layout::{ALIGN, Entry, Layout, Segment, find};
use super::optimizer::{bindable, slice};
use super::shard::{Division, shared};
use super::values::{Held, Values};
use crate::cpu::CHUNK;
use crate::nn::{Module, Parameter};
use crate::profile::MemoryKind;
use crate::tensor::{Edge, Gradient, GradientBucket, most_bindable, parts_between};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// All parameters of a module, and the gradients of those that are trained.
pub struct ParameterArena {
    /// In the order of the arenas: for each group those that decay and those that are trained without, then frozen
    /// ones, and those that are f16 only.
    pub entries: Vec<Entry>,
    /// The groups of trained parameters that have any, by their numbers, each as many times as it has buffers. They
    /// follow each other without gaps.
    pub segments: Vec<Segment>,
    /// Where the arenas of f32 parameters, and what else counts as they do, go on in another buffer.
    pub(super) cuts: Vec<usize>,
    pub(super) values: Values,
    /// Where those are in host memory, the f32 values that kernels read, on the device.
    pub(super) resident: Option<Values>,
    device: Device,
    gradients: Gradients,
    /// The same by parameter, each with its range.
    grads: Vec<(Range<usize>, Gradient)>,
    /// In mixed precision the values as f16, the operands of matmuls.
    pub(super) halves: Option<Tensor>,
    pub(super) f16_only: Option<Tensor>,
    /// Whether some frozen weights are quantized, which have no arena.
    multiplies_quantized: bool,
    trainable_len: usize,
}

/// Where gradients collect.
enum Gradients {
    /// All in one arena.
    Arena(Tensor),
    /// Those of each segment in a bucket, which backward uses up.
    Buckets(Vec<Arc<GradientBucket>>),
}

impl Gradients {
    /// An arena of so many zeros, in several buffers if there are cuts.
    fn in_arena(cuts: &[usize], len: usize, device: &Device) -> Result<Gradients> {
        let arena = Tensor::zeros_in_segments(cuts, len, DType::F32, device, MemoryKind::Gradients)?;
        Ok(Gradients::Arena(arena))
    }

    /// An empty bucket for each segment.
    fn in_buckets(segments: &[Segment], device: &Device) -> Gradients {
        let buckets = segments.iter().map(|segment| GradientBucket::new(segment.range.len(), device));
        Gradients::Buckets(buckets.map(Arc::new).collect())
    }
}

/// The most elements of the gradients that are updated together while backward runs, but for a parameter that has more:
/// 64 MiB, about a block of a model of 0.6 billion parameters.
const LAYERWISE: usize = 1 << 24;

/// What arenas are to hold.
#[derive(Clone, Copy)]
pub struct ArenaOptions<'a> {
    /// With f16, a further arena holds copies of the values as operands of matmuls.
    pub operands: DType,
    /// The parameters with the same number lie next to each other, so that they can be updated apart from the others.
    pub group_of: &'a dyn Fn(&str, &Parameter) -> usize,
    /// Which part of the f32 values this rank holds, if ranks divide them and there are f16 copies.
    pub division: Option<&'a Division<'a>>,
    /// Gradients have no arena: parameters are updated while backward runs, and their gradients freed (`layerwise.rs`).
    pub layerwise: bool,
    /// If given, f32 values and moments stay in host memory (`offload.rs`). It says of each parameter whether matmuls
    /// alone read it, so that its f16 copy is all that the device needs. Needs f16 operands and layerwise updates.
    pub offload: Option<&'a dyn Fn(&str) -> bool>,
}

impl<'a> ArenaOptions<'a> {
    /// All on one device, with updates after backward, by one rule.
    pub fn new(operands: DType) -> ArenaOptions<'a> {
        ArenaOptions { operands, group_of: &|_, _| 0, division: None, layerwise: false, offload: None }
    }
}

impl ParameterArena {
    /// Moves a module's parameters into arenas on `device`, and its buffers there; the module then uses them there, and
    /// the gradients of those that are trained collect in an arena beside them. If `operands` of matmuls are to be f16,
    /// a further one holds copies of the values for them.
    ///
    /// # Errors
    /// If there is nothing to train, a parameter is f16 that is not frozen, or the device cannot hold them.
    /// `train::check_size` says that earlier, and what is to be smaller.
    pub fn new(module: &mut dyn Module, device: &Device, operands: DType) -> Result<ParameterArena> {
        ParameterArena::grouped(module, device, operands, &|_, _| 0)
    }

    /// [`ParameterArena::new`] with the parameters that `group_of` gives the same number next to each other, so that
    /// they can be updated apart from the others.
    ///
    /// # Errors
    /// Those of [`ParameterArena::new`].
    pub fn grouped(
        module: &mut dyn Module,
        device: &Device,
        operands: DType,
        group_of: &dyn Fn(&str, &Parameter) -> usize,
    ) -> Result<ParameterArena> {
        ParameterArena::with_options(module, device, ArenaOptions { group_of, ..ArenaOptions::new(operands) })
    }

    /// [`ParameterArena::new`] with these options.
    ///
    /// # Errors
    /// Those of [`ParameterArena::new`].
    #[doc(hidden)]
    pub fn with_options(module: &mut dyn Module, device: &Device, options: ArenaOptions) -> Result<ParameterArena> {
        let ArenaOptions { operands, group_of, division, layerwise, offload } = options;
        if offload.is_some() && !(operands == DType::F16 && layerwise && division.is_none()) {
            let what = "weights in host memory need f16 operands, layerwise updates and one device";
            return Err(Error::Invalid(what.into()));
        }
        let Layout { entries, segments, trainable_len, f32_len, f16_len, f32_cuts: cuts, f16_cuts } =
            Layout::of(module, group_of, most_elements(device), layerwise.then(most_layerwise))?;
        let tensors = module.parameters();
        // Padding between parameters stays zero.
        let zeros_on = |device: &Device, cuts: &[usize], len, dtype| {
            Tensor::zeros_in_segments(cuts, len, dtype, device, MemoryKind::Parameters)
        };
        let zeros = |cuts: &[usize], len, dtype| zeros_on(device, cuts, len, dtype);
        let mixed = operands == DType::F16;
        let held = match division.filter(|_| mixed) {
            Some(division) => division.held(&entries, &segments, f32_len),
            None => Held::whole(f32_len),
        };
        let place = |held: Held, device: &Device| -> Result<Values> {
            let cuts: Vec<usize> = cuts.iter().map(|cut| held.before(*cut)).collect();
            Ok(Values::new(zeros_on(device, &cuts, held.len(), DType::F32)?, held))
        };
        let values = place(held, &offload.map_or(device.clone(), |_| device.host()))?;
        let of_kernels = |in_f16: &dyn Fn(&str) -> bool| Held::new(shared(&entries, in_f16), &(0..0), f32_len);
        let resident = offload.map(|in_f16| place(of_kernels(in_f16), device)).transpose()?;
        let halves = mixed.then(|| zeros(&cuts, f32_len, DType::F16)).transpose()?;
        let f16_only = (f16_len > 0).then(|| zeros(&f16_cuts, f16_len, DType::F16)).transpose()?;
        let gradients = match layerwise {
            true => Gradients::in_buckets(&segments, device),
            false => Gradients::in_arena(&cuts, trainable_len, device)?,
        };
        let (grads, on) = (Vec::new(), device.clone());
        let mut arena = ParameterArena {
            entries,
            segments,
            cuts,
            values,
            resident,
            device: on,
            gradients,
            grads,
            halves,
            f16_only,
            multiplies_quantized: false,
            trainable_len,
        };
        if device.has_values() {
            arena.write(&tensors)?;
        }
        module.visit_parameters("", &mut |name, parameter| arena.take(name, parameter));
        arena.multiplies_quantized = quantized_to_device(module, device)?;
        module.buffers_to_device(device)?;
        Ok(arena)
    }

    /// Lets a parameter use its part of the arenas.
    fn take(&mut self, name: &str, parameter: &mut Parameter) {
        if parameter.dtype().is_quantized() {
            return;
        }
        let entry = self.entries.iter().find(|e| e.name == name).expect("the layout has every parameter");
        let part = |arena: &Tensor| arena.slice_flat(entry.offset, entry.shape.clone());
        if entry.dtype == DType::F16 {
            return parameter.store(part(self.f16_only.as_ref().expect("the layout has elements for it")), None);
        }
        let mut half = self.halves.as_ref().map(part);
        let shared = self.on_device().of_all_ranks(&entry.range());
        let shared = shared.map(|value| value.slice_flat(0, entry.shape.clone()));
        // Of what is divided the model has the f16 copy alone, on the rank that updates it too: all compute alike.
        let value = shared.or_else(|| half.take()).expect("only what has an f16 copy is divided");
        if !entry.trainable {
            return parameter.store(value, half);
        }
        let gradient = match &self.gradients {
            Gradients::Arena(gradients) => Gradient::new(part(gradients)),
            Gradients::Buckets(buckets) => self.in_buckets(buckets, entry),
        };
        let leaf = |tensor: Tensor| tensor.with_gradient(gradient.clone());
        parameter.store(leaf(value), half.map(leaf));
        self.grads.push((entry.range(), gradient));
    }

    /// The gradient of a parameter, in the bucket of its segment; of a matrix in several segments, its rows in each.
    fn in_buckets(&self, buckets: &[Arc<GradientBucket>], entry: &Entry) -> Gradient {
        let in_bucket = |offset: usize, shape: Shape| {
            let mut segments = self.segments.iter().zip(buckets);
            let own = segments.find(|(segment, _)| segment.range.contains(&offset));
            let (segment, bucket) = own.expect("segments have every parameter that is trained");
            Gradient::in_bucket(bucket, offset - segment.range.start, shape)
        };
        let parts = parts_between(&self.cuts, &entry.range());
        if parts.len() == 1 {
            return in_bucket(entry.offset, entry.shape.clone());
        }
        let width = entry.shape.last_dim();
        let of_part = |part: Range<usize>| {
            let (first, rows) = ((part.start - entry.offset) / width, part.len() / width);
            (first..first + rows, in_bucket(part.start, [rows, width].into()))
        };
        Gradient::of_parts(parts.into_iter().map(of_part).collect(), entry.shape.clone())
    }

    /// Takes the values of a module that has the same parameters.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub fn take_values(&self, module: &mut dyn Module) -> Result<()> {
        self.write(&module.parameters())
    }

    /// Takes the values of these tensors, by the names of the parameters.
    fn write(&self, tensors: &[(String, Tensor)]) -> Result<()> {
        for entry in self.entries.iter().filter(|entry| !entry.dtype.is_quantized()) {
            let from = find(tensors, entry)?;
            let place = |arena: &Tensor| arena.slice_flat(entry.offset, entry.shape.clone()).take_values(from);
            if entry.dtype == DType::F16 {
                self.f16_only.iter().try_for_each(place)?;
                continue;
            }
            let own = entry.range();
            for values in self.all_values() {
                for held in values.ranges() {
                    let held = held.start.max(own.start)..held.end.min(own.end);
                    if !held.is_empty() {
                        let part = from.slice_flat(held.start - own.start, [held.len()].into());
                        values.part(&held)?.take_values(&part)?;
                    }
                }
            }
            self.halves.iter().try_for_each(place)?;
        }
        Ok(())
    }

    /// Writes what this device has of all f32 values, and the f16 copies of all.
    pub(super) fn write_values(&self, whole: &[f32]) -> Result<()> {
        for values in self.all_values() {
            for range in values.ranges() {
                values.part(range)?.write_bytes(bytemuck::cast_slice(&whole[range.clone()]))?;
            }
        }
        self.halves.as_ref().map_or(Ok(()), |halves| halves.write_bytes(bytemuck::cast_slice(&rounded(whole))))
    }

    /// The value of a parameter, its gradient if it is trained, and in mixed precision the value as f16; nothing of an
    /// entry that is none of these arenas.
    pub fn of_entry(&self, entry: &Entry) -> Vec<Tensor> {
        let is_own = |own: &&Entry| (own.offset, &own.shape, own.dtype) == (entry.offset, &entry.shape, entry.dtype);
        let Some(entry) = self.entries.iter().find(is_own) else { return Vec::new() };
        if entry.dtype.is_quantized() {
            return Vec::new();
        }
        if entry.dtype == DType::F16 {
            return self.f16_only.iter().map(|arena| arena.slice_flat(entry.offset, entry.shape.clone())).collect();
        }
        let value = self.on_device().get(&entry.range()).map(|value| value.slice_flat(0, entry.shape.clone()));
        let gradients = entry.trainable.then(|| self.gradients().ok()).flatten();
        let others = gradients.into_iter().chain(&self.halves);
        value.into_iter().chain(others.map(|arena| arena.slice_flat(entry.offset, entry.shape.clone()))).collect()
    }

    /// The f32 values of what is trained, from the start of their arena.
    ///
    /// # Errors
    /// If ranks divide them.
    pub fn trained(&self) -> Result<Tensor> {
        self.value(&(0..self.trainable_len()))
    }

    /// These f32 values, of what entries count in.
    ///
    /// # Errors
    /// If another rank has them.
    pub(super) fn value(&self, range: &Range<usize>) -> Result<Tensor> {
        self.values.part(range)
    }

    /// Those f32 values that kernels of the model read.
    fn on_device(&self) -> &Values {
        self.resident.as_ref().unwrap_or(&self.values)
    }

    fn all_values(&self) -> impl Iterator<Item = &Values> {
        [&self.values].into_iter().chain(&self.resident)
    }

    /// The value of an f32 parameter, flat, if this device has all of it; else its f16 copy.
    #[doc(hidden)]
    pub fn value_of(&self, entry: &Entry) -> Option<Tensor> {
        let range = entry.range();
        self.values.get(&range).or_else(|| Some(slice(self.halves.as_ref()?, &range)))
    }

    /// Whether this device has the f32 values of all parameters, so that their arena is as entries count in it.
    pub fn is_whole(&self) -> bool {
        self.values.are_whole()
    }

    /// Where the model computes with them.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// Bytes of all values on the device, f16 copies included.
    pub fn value_bytes(&self) -> usize {
        let on_device = [&self.on_device().arena].into_iter().chain(&self.f16_only).chain(&self.halves);
        on_device.map(|arena| arena.spec().size_bytes()).sum()
    }

    /// Whether some matmuls are of f16, so that gradients are scaled to survive it.
    pub(super) fn has_f16(&self) -> bool {
        self.halves.is_some() || self.f16_only.is_some() || self.multiplies_quantized
    }

    /// All f32 values that this device has: the arena that the offsets of their entries count in, if it
    /// [has all](ParameterArena::is_whole).
    pub fn values(&self) -> &Tensor {
        &self.values.arena
    }

    /// The arenas that hold every parameter once: that of the f32 values, and if there are any that of those in f16
    /// only.
    pub fn stored(&self) -> impl Iterator<Item = &Tensor> {
        [&self.values.arena].into_iter().chain(&self.f16_only)
    }

    /// Elements of the parameters that are trained, padding included: of each moment, and of the gradients.
    pub fn trainable_len(&self) -> usize {
        self.trainable_len
    }

    /// The next place in the arenas, from this one on, where a parameter may begin.
    #[doc(hidden)]
    pub fn padded(end: usize) -> usize {
        end.next_multiple_of(ALIGN)
    }

    /// All gradients collected so far, in the arena that they collect in.
    ///
    /// # Errors
    /// If backward uses them up.
    pub fn gradients(&self) -> Result<&Tensor> {
        self.grads.iter().for_each(|(_, gradient)| gradient.materialize());
        match &self.gradients {
            Gradients::Arena(gradients) => Ok(gradients),
            Gradients::Buckets(_) => {
                Err(Error::Invalid("layerwise updates free gradients during backward; they cannot be read".into()))
            }
        }
    }

    /// The buckets of the gradients of each segment, if backward uses them up.
    pub(super) fn buckets(&self) -> Option<&[Arc<GradientBucket>]> {
        match &self.gradients {
            Gradients::Arena(_) => None,
            Gradients::Buckets(buckets) => Some(buckets),
        }
    }

    /// Where in the arena of gradients that of this tensor collects, and the gradient itself; `None` if it is not one
    /// of these parameters, or is frozen.
    #[doc(hidden)]
    pub fn gradient_of(&self, parameter: &Tensor) -> Option<&(Range<usize>, Gradient)> {
        let Edge::Leaf(own) = parameter.edge() else { return None };
        self.grads.iter().find(|(_, gradient)| gradient.is(own))
    }

    /// Writes the copies of the values in this range of the arena, if there are any.
    pub(super) fn copy_values(&self, range: &Range<usize>) -> Result<()> {
        if self.is_offloaded() {
            return self.copy_to_device(range);
        }
        let Some(halves) = &self.halves else { return Ok(()) };
        self.value(range)?.cast_into(&slice(halves, range))
    }

    /// Writes the copies of all f32 values of this device anew, if there are any: for whoever has written values.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn refresh_halves(&self) -> Result<()> {
        let mut ranges = self.values.ranges().iter().flat_map(|range| self.bindable_ranges(range));
        ranges.try_for_each(|range| self.copy_values(&range))
    }

    /// The parts of a range that one launch may bind in every arena; each starts where a tensor may start.
    pub(super) fn bindable_ranges(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.in_buffers(range, bindable(&self.optimizer_device()))
    }

    /// The parts of a range that lie in one buffer of every arena each, of at most so many elements.
    #[doc(hidden)]
    pub fn in_buffers(&self, range: &Range<usize>, most: usize) -> Vec<Range<usize>> {
        let pieces = |Range { start, end }: Range<usize>| {
            (start..end).step_by(most).map(move |start| start..start.saturating_add(most).min(end))
        };
        parts_between(&self.cuts, range).into_iter().flat_map(pieces).collect()
    }

    /// Frees the gradients that are complete, where backward uses them up: for whoever wants none of them.
    pub fn free_complete(&self) {
        self.buckets().into_iter().flatten().for_each(|bucket| drop(bucket.take_complete()));
    }

    /// Forgets the gradients collected so far.
    pub fn zero_gradients(&self) {
        self.grads.iter().for_each(|(_, gradient)| gradient.zero_lazily());
        self.buckets().into_iter().flatten().for_each(|bucket| bucket.reset());
    }
}

/// Moves quantized parameters to a device; returns whether there are any.
fn quantized_to_device(module: &mut dyn Module, device: &Device) -> Result<bool> {
    let (mut result, mut any) = (Ok(()), false);
    module.visit_parameters("", &mut |_, parameter| {
        if parameter.dtype().is_quantized() && result.is_ok() {
            any = true;
            result = parameter.to_device(device).map(|moved| parameter.store(moved, None));
        }
    });
    result.map(|()| any)
}

/// The most elements of an arena that one buffer may hold, and one binding.
fn most_elements(device: &Device) -> [usize; 2] {
    let bindable = most_bindable(device, DType::F32);
    #[cfg(feature = "testing")]
    if let Some(most) = crate::testing::buffers::most() {
        return [most, bindable];
    }
    let in_buffer = usize::try_from(device.limits().buffer_bytes / size_of::<f32>() as u64).unwrap_or(usize::MAX);
    [in_buffer, bindable]
}

fn most_layerwise() -> usize {
    #[cfg(feature = "testing")]
    if let Some(most) = crate::testing::buffers::most() {
        return most;
    }
    LAYERWISE
}

fn rounded(values: &[f32]) -> Vec<f16> {
    let mut halves = vec![f16::ZERO; values.len()];
    let chunks = halves.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(halves, values)| halves.convert_from_f32_slice(values));
    halves
}

#[cfg(test)]
mod tests;
