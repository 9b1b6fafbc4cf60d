//! What an optimizer remembers, as a safetensors file: `exp_avg.<parameter>`, `exp_avg_sq.<parameter>`,
//! `momentum_buffer.<parameter>` and so on, in PyTorch's names; and where averages of the weights are kept, the weights
//! as they are trained, `trained.<parameter>`, because `model.safetensors` has the averages then. Moments of 8 bits are
//! `int8_moments.<parameter>`: u8 (blocks, moments, 260), in each block of 256 elements for each moment their codes, as
//! `int8.rs` says, and the largest magnitude as f32. One tensor per parameter, so that the file does not depend on how
//! arenas are laid out, nor on how several ranks divide them. Ranks
//! that train apart (`train.sync_every`) have moments of their own, those of rank 3 as `rank3.exp_avg.<parameter>`, and
//! together `outer_momentum.<parameter>`.

#[cfg(test)]
mod tests;

use super::int8::{self, BLOCK, MomentDtype, RECORD_BYTES};
use super::layerwise::Layerwise;
use super::optimizer::State;
use super::{Entry, Optimizer, ParameterArena};
use crate::tensor::Bytes;
use crate::{Error, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::ops::Range;
use std::path::Path;

/// Which moment of which parameters a tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub name: &'static str,
    /// The elements of the arenas that it is of: its own follow each other as they do.
    pub range: Range<usize>,
    /// Whose it is, where ranks have moments of their own.
    pub rank: usize,
}

/// Of the rules: `Kind::moment_names`.
const OF_RULES: [&str; 5] = ["exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"];
/// All moments of a rule, in 8 bits.
const INT8: &str = "int8_moments";
/// The state of the loss scale in mixed precision: three f32 that belong to no parameter.
const LOSS_SCALE: &str = "loss_scale";
/// What layerwise updates clip by: one f32, the sum of the squared gradients of the step before.
const SQUARED_NORM: &str = "squared_norm";
const TRAINED: &str = "trained";
const OUTER_MOMENTUM: &str = "outer_momentum";

impl Moment {
    /// The moment of this name, if there is such a one.
    pub fn named(name: &str, range: Range<usize>, rank: usize) -> Option<Moment> {
        OF_RULES
            .into_iter()
            .chain([INT8, LOSS_SCALE, SQUARED_NORM, TRAINED])
            .find(|known| *known == name)
            .map(|name| Moment { name, range, rank })
    }

    fn new(name: &'static str, range: Range<usize>) -> Moment {
        Moment { name, range, rank: 0 }
    }

    /// The weights as they are trained, beside averages of them: from the start of the arena of the values.
    pub fn trained(parameters: &ParameterArena) -> Moment {
        Moment::new(TRAINED, 0..parameters.trainable_len())
    }

    pub fn is_trained(&self) -> bool {
        self.name == TRAINED
    }

    /// What the outer step of ranks that train apart remembers.
    pub fn outer(parameters: &ParameterArena) -> Moment {
        Moment::new(OUTER_MOMENTUM, 0..parameters.trainable_len())
    }

    /// Whether it is of no parameter.
    pub fn is_global(&self) -> bool {
        [LOSS_SCALE, SQUARED_NORM].contains(&self.name)
    }

    /// "exp_avg", "rank3.exp_avg"
    fn full_name(&self) -> String {
        if self.rank == 0 { self.name.to_string() } else { format!("rank{}.{}", self.rank, self.name) }
    }

    /// The parameters that it is of: the bytes of each in its tensor, and those of the parameter that these are.
    /// `record` is the size of the records of moments of 8 bits.
    fn parts<'a>(
        &self,
        entries: &'a [Entry],
        record: Option<usize>,
    ) -> impl Iterator<Item = (&'a Entry, Range<usize>, Range<usize>)> {
        let Range { start, end } = self.range;
        let bytes = move |elements: usize| match record {
            Some(record) => elements.div_ceil(BLOCK) * record,
            None => size_of::<f32>() * elements,
        };
        entries.iter().filter(|entry| entry.trainable).filter_map(move |entry| {
            let of = entry.range();
            let (first, last) = (of.start.max(start), of.end.min(end));
            let from = |from: usize| bytes(first - from)..bytes(last - from);
            (first < last).then(|| (entry, from(start), from(of.start)))
        })
    }

    /// Bytes of a record, where it is of 8 bits and takes so many in all.
    fn record(&self, bytes: usize) -> Option<usize> {
        (self.name == INT8).then(|| bytes / self.range.len().div_ceil(BLOCK).max(1))
    }
}

/// The moments as they were at one moment, off their device: they can be encoded on another thread while training goes
/// on.
pub struct Moments {
    entries: Vec<Entry>,
    tensors: Vec<(Moment, Bytes)>,
}

/// A file of moments that was read.
pub struct SavedMoments<'a> {
    path: &'a Path,
    file: SafeTensors<'a>,
}

impl Optimizer {
    /// All that it remembers; with a scale of the loss, that too, and with layerwise updates the norm of the last step.
    pub fn moments(&self) -> Vec<(Moment, &Tensor)> {
        let mut moments = Vec::new();
        for state in &self.states {
            let names = match state.group.moment_dtype {
                MomentDtype::F32 => state.group.kind.moment_names(),
                MomentDtype::Int8 => &[INT8],
            };
            let named = names.iter().zip(&state.moments);
            moments.extend(named.map(|(name, tensor)| (Moment::new(name, state.segment.range.clone()), tensor)));
        }
        moments.extend(self.loss_scale.as_ref().map(|scale| (Moment::new(LOSS_SCALE, 0..0), &scale.state)));
        let layerwise = self.layerwise.as_ref();
        moments.extend(layerwise.map(|layerwise| (Moment::new(SQUARED_NORM, 0..0), &layerwise.previous)));
        moments
    }

    /// Takes up where an optimizer was after `steps` updates: that of this rank of `ranks`, if as many have saved
    /// moments of their own, else the mean of all that have. If it keeps averages, the values of the parameters are
    /// taken for those, and replaced by the weights in the file.
    ///
    /// # Errors
    /// If the file does not hold exactly the moments that these parameters and this rule have.
    pub fn restore(
        &mut self,
        parameters: &ParameterArena,
        saved: &SavedMoments,
        steps: u64,
        rank: usize,
        ranks: usize,
    ) -> Result<()> {
        self.expect_made_for(parameters)?;
        saved.check_count(self.tensors + usize::from(self.loss_scale.is_some()))?;
        let sources = match saved.ranks() {
            there if there == ranks => rank..rank + 1,
            there => 0..there,
        };
        if let Some(scale) = &self.loss_scale {
            // Means of powers of two would be none.
            let moment = Moment { rank: sources.start, ..Moment::new(LOSS_SCALE, 0..0) };
            scale.state.write_bytes(saved.loss_scale(&moment)?)?;
            self.copy_loss_scale()?;
        }
        if let Some(Layerwise { previous }) = &self.layerwise {
            previous.write_bytes(saved.squared_norm()?)?;
        }
        let entries = &parameters.entries;
        for state in &self.states {
            saved.restore(state, entries, sources.clone())?;
        }
        if let Some(ema) = &self.ema {
            ema.take_values(parameters)?;
            // The weights are the same on all ranks.
            let weights = saved.mean(entries, &[Moment::trained(parameters)], &[])?;
            parameters.trained()?.write_bytes(bytemuck::cast_slice(&weights))?;
        }
        self.set_updates(steps);
        parameters.refresh_halves()
    }

    /// Updates done so far.
    pub fn updates(&self) -> u64 {
        self.steps
    }

    /// Goes on as after so many updates: for whoever has written the moments.
    pub fn set_updates(&mut self, updates: u64) {
        self.steps = updates;
    }
}

impl<'a> SavedMoments<'a> {
    /// The moments in these bytes of the file at `path`.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Result<SavedMoments<'a>> {
        let damaged = |e| Error::Checkpoint { path: path.to_path_buf(), message: format!("is damaged: {e}") };
        Ok(SavedMoments { path, file: SafeTensors::deserialize(bytes).map_err(damaged)? })
    }

    /// How many ranks have saved moments of their own.
    pub fn ranks(&self) -> usize {
        let rank = |name: &&str| name.strip_prefix("rank")?.split_once('.')?.0.parse::<usize>().ok();
        let ranks = self.file.names().into_iter().filter_map(|name| rank(&name));
        1 + ranks.max().unwrap_or(0).min(self.file.len())
    }

    /// The outer momentum of ranks that train apart, as the arena of what is trained; zeros if there is none.
    ///
    /// # Errors
    /// If it is not of these parameters.
    pub fn outer_momentum(&self, parameters: &ParameterArena) -> Result<Vec<f32>> {
        let outer = Moment::outer(parameters);
        let is_there = self.file.names().iter().any(|name| name.starts_with(OUTER_MOMENTUM));
        match is_there {
            true => self.mean(&parameters.entries, &[outer], &[]),
            false => Ok(vec![0.0; parameters.trainable_len()]),
        }
    }

    /// Checks that it has as many moments of each rank as one has; the weights beside averages do not count, nor does
    /// what only layerwise updates have.
    fn check_count(&self, of_rank: usize) -> Result<()> {
        let ignored = |name: &&str| [TRAINED, OUTER_MOMENTUM, SQUARED_NORM].iter().any(|other| name.starts_with(other));
        // In one tensor there are all moments of 8 bits of a parameter.
        let moments = |name: &str| match self.file.tensor(name) {
            Ok(view) if view.dtype() == Dtype::U8 => view.shape().get(1).copied().unwrap_or(1),
            _ => 1,
        };
        let names = self.file.names();
        let counted = names.iter().filter(|name| !ignored(name)).map(|name| moments(name));
        let there = counted.fold(0, usize::saturating_add);
        let ranks = self.ranks();
        if there == of_rank * ranks {
            return Ok(());
        }
        let of = if ranks > 1 { format!(" of {ranks} ranks") } else { String::new() };
        Err(self.wrong(format!("has {there} tensors{of}, this optimizer needs {}", of_rank * ranks)))
    }

    fn loss_scale(&self, moment: &Moment) -> Result<&'_ [u8]> {
        let name = moment.full_name();
        let bytes = self.floats(&name, &[3])?;
        let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
        if numbers.iter().any(|n| !n.is_finite() || *n < 0.0) || numbers[0] < 1.0 {
            return Err(self.wrong(format!("{name} is {numbers:?}: no scale of a loss")));
        }
        Ok(bytes)
    }

    /// What layerwise updates clip the next step by; zero, which bounds nothing, if the step before was none of them.
    fn squared_norm(&self) -> Result<&'_ [u8]> {
        if !self.file.names().contains(&SQUARED_NORM) {
            return Ok(&[0; 4]);
        }
        let bytes = self.floats(SQUARED_NORM, &[1])?;
        match bytemuck::pod_read_unaligned::<f32>(bytes) {
            norm if norm.is_finite() && norm >= 0.0 => Ok(bytes),
            norm => Err(self.wrong(format!("{SQUARED_NORM} is {norm}: not the square of a norm"))),
        }
    }

    /// Writes the moments of a group of parameters: those of one rank as they are, of several their mean.
    fn restore(&self, state: &State, entries: &[Entry], ranks: Range<usize>) -> Result<()> {
        let (range, names) = (&state.segment.range, state.group.kind.moment_names());
        let of =
            |name: &'static str| ranks.clone().map(move |rank| Moment { rank, ..Moment::new(name, range.clone()) });
        match (state.group.moment_dtype, ranks.len()) {
            (MomentDtype::F32, _) => {
                for (name, tensor) in names.iter().zip(&state.moments) {
                    let mean = self.mean(entries, &of(name).collect::<Vec<_>>(), names)?;
                    tensor.write_bytes(bytemuck::cast_slice(&mean))?;
                }
                Ok(())
            }
            (MomentDtype::Int8, 1) if self.is_int8(entries, range) => {
                let moment = of(INT8).next().expect("of one rank");
                let mut records = vec![0; state.moments[0].spec().size_bytes()];
                let record = moment.record(records.len());
                for (entry, range, of_entry) in moment.parts(entries, record) {
                    records[range].copy_from_slice(&self.records(&moment, entry, names.len())?[of_entry]);
                }
                state.moments[0].write_bytes(&records)
            }
            (MomentDtype::Int8, _) => {
                let mean = |name: &&'static str| Ok((*name, self.mean(entries, &of(name).collect::<Vec<_>>(), names)?));
                let moments = names.iter().map(mean).collect::<Result<Vec<_>>>()?;
                state.moments[0].write_bytes(bytemuck::cast_slice(&int8::encoded(&moments)))
            }
        }
    }

    /// Whether the moments of these parameters are of 8 bits.
    fn is_int8(&self, entries: &[Entry], range: &Range<usize>) -> bool {
        let is_in = |entry: &&Entry| entry.offset < range.end && entry.range().end > range.start;
        let own = entries.iter().filter(|entry| entry.trainable).find(is_in);
        own.map(|entry| format!("{INT8}.{}", entry.name))
            .is_some_and(|records| self.file.names().iter().any(|name| name.ends_with(&records)))
    }

    /// The mean of these moments, of the same parameters each; of 8 bits they are in records of all `names`.
    fn mean(&self, entries: &[Entry], moments: &[Moment], names: &[&'static str]) -> Result<Vec<f32>> {
        let (len, weight) = (moments.first().map_or(0, |moment| moment.range.len()), 1.0 / moments.len() as f32);
        let mut flat = vec![0.0; len];
        for moment in moments {
            let records = Moment { name: INT8, ..moment.clone() };
            let is_int8 = names.contains(&moment.name) && self.is_int8(entries, &moment.range);
            for (entry, range, of_entry) in moment.parts(entries, None) {
                let own: Vec<f32> = match is_int8 {
                    true => {
                        let words: Vec<u32> =
                            bytemuck::pod_collect_to_vec(self.records(&records, entry, names.len())?);
                        int8::decoded(&words, names, moment.name)
                    }
                    false => {
                        let name = format!("{}.{}", moment.full_name(), entry.name);
                        bytemuck::pod_collect_to_vec(self.floats(&name, &entry.shape)?)
                    }
                };
                let elements = |bytes: Range<usize>| bytes.start / 4..bytes.end / 4;
                for (sum, own) in flat[elements(range)].iter_mut().zip(&own[elements(of_entry)]) {
                    *sum = if weight == 1.0 { *own } else { *sum + weight * own };
                }
            }
        }
        Ok(flat)
    }

    /// The records of a parameter.
    fn records(&self, moment: &Moment, entry: &Entry, moments: usize) -> Result<&'_ [u8]> {
        let name = format!("{}.{}", moment.full_name(), entry.name);
        let shape = [entry.shape.elements().div_ceil(BLOCK), moments, RECORD_BYTES];
        self.bytes(&name, Dtype::U8, &shape)
    }

    /// The bytes of the f32 of this name and shape.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<&'_ [u8]> {
        self.bytes(name, Dtype::F32, shape)
    }

    fn bytes(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'_ [u8]> {
        let view = self.file.tensor(name).map_err(|_| self.wrong(format!("has no tensor {name}")))?;
        if view.shape() != shape || view.dtype() != dtype {
            let (found, there) = (view.dtype(), view.shape());
            // Up to 0.1.0 fused matrices had blocks of zeros in B.
            let what_to_do = match name.ends_with("lora_B.weight") {
                true => "; this is an adapter of an earlier version: `rustyflow merge` it and train a new one",
                false => "",
            };
            let message = format!("{name} is {found:?} {there:?}, the model implies {dtype:?} {shape:?}{what_to_do}");
            return Err(self.wrong(message));
        }
        Ok(view.data())
    }

    fn wrong(&self, message: String) -> Error {
        Error::Checkpoint { path: self.path.to_path_buf(), message }
    }
}

impl Moments {
    /// Those of these parameters, as [`Optimizer::moments`] gives them, each with its bytes. Parts of a parameter,
    /// which segments and ranks may have, are joined.
    pub fn new(parameters: &ParameterArena, mut tensors: Vec<(Moment, Bytes)>) -> Moments {
        let entries = parameters.entries.clone();
        let ends_inside = |moment: &Moment| {
            let is_inside = |entry: &Entry| entry.offset < moment.range.end && moment.range.end < entry.range().end;
            entries.iter().any(|entry| entry.trainable && is_inside(entry))
        };
        let is_next = |(a, bytes): &(Moment, Bytes), (b, others): &(Moment, Bytes)| {
            let records_are_alike = a.record(bytes.len()) == b.record(others.len());
            (a.rank, a.name, a.range.end) == (b.rank, b.name, b.range.start) && records_are_alike && !a.is_global()
        };
        tensors.sort_by_key(|(moment, _)| (moment.rank, moment.name, moment.range.start));
        let mut joined: Vec<(Moment, Bytes)> = Vec::new();
        for next in tensors {
            match joined.last_mut().filter(|last| is_next(last, &next) && ends_inside(&last.0)) {
                Some((moment, bytes)) => {
                    moment.range.end = next.0.range.end;
                    bytes.append(&next.1);
                }
                None => joined.push(next),
            }
        }
        Moments { entries, tensors: joined }
    }

    /// The contents of the file that [`SavedMoments`] reads.
    ///
    /// # Errors
    /// If the tensors make no file, which no optimizer's do.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let file = safetensors::serialize(self.views()?, None);
        file.map_err(|e| Error::Invalid(format!("the moments make no file: {e}")))
    }

    /// The tensors of that file.
    ///
    /// # Errors
    /// If a moment is shorter than the parameters that it is of.
    pub fn views(&self) -> Result<Vec<(String, TensorView<'_>)>> {
        let mut views = Vec::new();
        for (moment, bytes) in &self.tensors {
            if moment.is_global() {
                let view = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
                views.push((moment.full_name(), view.expect("whole numbers of four bytes")));
                continue;
            }
            let record = moment.record(bytes.len());
            for (entry, range, _) in moment.parts(&self.entries, record) {
                let (dtype, shape) = match record {
                    Some(record) => {
                        let blocks = entry.shape.elements().div_ceil(BLOCK);
                        (Dtype::U8, vec![blocks, record / RECORD_BYTES, RECORD_BYTES])
                    }
                    None => (Dtype::F32, entry.shape.to_vec()),
                };
                let view = TensorView::new(dtype, shape, &bytes[range])
                    .map_err(|e| Error::Invalid(format!("{} of {} is not whole: {e}", moment.name, entry.name)))?;
                views.push((format!("{}.{}", moment.full_name(), entry.name), view));
            }
        }
        Ok(views)
    }
}
