//! Saves and resumes a training bit for bit: the state of a trainer and its module in one safetensors file.
//!
//! | tensor | what it is |
//! |---|---|
//! | `model.<name>` | parameters, or their averages where these are kept, and buffers |
//! | `optimizer.exp_avg.<name>`, ... | moments, the scale of the loss, and the weights beside averages of them |
//! | `count.<name>` | the counts of the module, such as the passes of a dropout: u64 (1) |
//! | `updates` | those of the trainer and of the optimizer: u64 (2) |

use super::Trainer;
use crate::nn::state_dict::{Part, parse, write};
use crate::nn::{Module, StateDict};
use crate::optim::{Moment, Moments, SavedMoments};
use crate::tensor::Bytes;
use crate::{Device, Error, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;

const MODEL: &str = "model.";
const OPTIMIZER: &str = "optimizer.";
const TRAINED: &str = "optimizer.trained.";
const COUNT: &str = "count.";
const UPDATES: &str = "updates";

impl Trainer {
    /// Writes the state for [`Trainer::load`] atomically, replacing an existing file. The options and the position in
    /// the data ([`DataLoader::epochs_from`](super::DataLoader::epochs_from)) are not saved. The module must hold the
    /// weights, not their averages ([`Trainer::swap_averages`]).
    ///
    /// # Errors
    /// If the module is not the trained one, the device reported an error, or the file cannot be written.
    pub fn save(&self, module: &mut dyn Module, path: impl AsRef<Path>) -> Result<()> {
        self.expect_trained(module)?;
        let mut state = module.state_dict()?;
        let mut moments = self.optimizer.moments();
        let weights = self.parameters.trained()?;
        if let Some(averages) = self.optimizer.averages() {
            let averages = averages.to_f32()?;
            for entry in self.parameters.entries.iter().filter(|entry| entry.trainable) {
                let average = Tensor::from_f32(&averages[entry.range()], entry.shape.clone(), &Device::Cpu)?;
                state.tensors.insert(entry.name.clone(), average);
            }
            moments.push((Moment::trained(&self.parameters), &weights));
        }
        let moments = moments.into_iter().map(|(moment, tensor)| Ok((moment, Bytes::owned(tensor.to_bytes()?))));
        let moments = Moments::new(&self.parameters, moments.collect::<Result<_>>()?).encode()?;
        let path = path.as_ref();
        let mut parts = state.parts(MODEL)?;
        parts.extend(parse(path, &moments)?.iter().map(|(name, view)| Part {
            name: format!("{OPTIMIZER}{name}"),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        }));
        parts.extend(counts(module).into_iter().map(|(name, count)| numbers(format!("{COUNT}{name}"), &[count])));
        parts.push(numbers(UPDATES.into(), &[self.updates as u64, self.optimizer.updates()]));
        write(path, parts, None)
    }

    /// Restores the state saved by a trainer of the same module with the same options: the next updates are
    /// bit-identical to an uninterrupted training on the same device. If it kept averages, call
    /// [`Trainer::keep_averages`] first.
    ///
    /// # Errors
    /// If the module is not the trained one, or the file cannot be read, is damaged, or is from another training. After
    /// an error, module and trainer may be partly changed: create both again.
    pub fn load(&mut self, module: &mut dyn Module, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.expect_trained(module)?;
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let file = parse(path, &bytes)?;
        let wrong = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
        let [updates, of_optimizer] = saved_numbers(path, &file, UPDATES)?;
        if self.optimizer.averages().is_none() && file.names().iter().any(|name| name.starts_with(TRAINED)) {
            return Err(wrong(
                "has averages of the weights, and this trainer keeps none: call keep_averages \
                              first"
                    .into(),
            ));
        }
        let saved = file.names().into_iter().filter_map(|name| name.strip_prefix(COUNT).map(str::to_string));
        let saved =
            saved.map(|name| Ok((name.clone(), saved_numbers::<1>(path, &file, &format!("{COUNT}{name}"))?[0])));
        let saved = saved.collect::<Result<BTreeMap<String, u64>>>()?;
        let own = counts(module);
        if !own.keys().eq(saved.keys()) {
            let [own, saved] = [&own, &saved].map(|counts| counts.keys().cloned().collect::<Vec<_>>().join(", "));
            return Err(wrong(format!("has the counts [{saved}], the module [{own}]")));
        }
        module.load_state_dict(&StateDict::of_file(path, &file, MODEL)?).map_err(|error| wrong(error.to_string()))?;
        module.visit_counts("", &mut |name, count| *count = saved[name]);
        let moments = file.iter().filter_map(|(name, view)| Some((name.strip_prefix(OPTIMIZER)?, view)));
        let moments = safetensors::serialize(moments, None).map_err(|error| wrong(format!("is damaged: {error}")))?;
        self.optimizer.restore(&self.parameters, &SavedMoments::new(path, &moments)?, of_optimizer, 0, 1)?;
        self.updates = updates as usize;
        Ok(())
    }

    /// Fails unless the parameters of this module are those that are trained.
    fn expect_trained(&self, module: &mut dyn Module) -> Result<()> {
        let (mut count, mut is_own) = (0, true);
        module.visit_parameters("", &mut |_, parameter| {
            count += 1;
            is_own &= parameter.is_empty() || self.parameters.stored().any(|arena| arena.overlaps(&parameter.value));
        });
        match is_own && count == self.parameters.entries.len() {
            true => Ok(()),
            false => Err(Error::Invalid("the module is not the one that this trainer was made for".into())),
        }
    }
}

fn counts(module: &mut dyn Module) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    module.visit_counts("", &mut |name, count| counts.extend([(name.to_string(), *count)]));
    counts
}

fn numbers(name: String, numbers: &[u64]) -> Part {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Part { name, dtype: Dtype::U64, shape: vec![numbers.len()], bytes }
}

fn saved_numbers<const N: usize>(path: &Path, file: &SafeTensors, name: &str) -> Result<[u64; N]> {
    let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::U64 && view.shape() == [N]);
    let Some(view) = view else {
        let message = format!("has no {name}: it is not a saved training");
        return Err(Error::Checkpoint { path: path.to_path_buf(), message });
    };
    let numbers = view.data().as_chunks().0;
    Ok(std::array::from_fn(|i| u64::from_le_bytes(numbers[i])))
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
