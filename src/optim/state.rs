//! What an optimizer remembers, as a safetensors file: `exp_avg.<parameter>`, `exp_avg_sq.<parameter>` and
//! `momentum_buffer.<parameter>`, in PyTorch's names; and where averages of the weights are kept, the weights as they
//! are trained, `trained.<parameter>`, because `model.safetensors` has the averages then. One tensor per parameter, so
//! that the file does not depend on how arenas are laid out.

use super::optimizer::slice;
use super::{Entry, Kind, Optimizer, ParameterArena};
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
}

impl Moment {
    /// The state of the loss scale in mixed precision: three f32 that belong to no parameter.
    const LOSS_SCALE: Moment = Moment { name: "loss_scale", range: 0..0 };

    /// The weights as they are trained, beside averages of them: from the start of the arena of the values.
    pub fn trained(parameters: &ParameterArena) -> Moment {
        Moment { name: "trained", range: 0..parameters.trainable_len() }
    }

    /// The parameters that it is of, and the bytes of each in its tensor.
    fn parts<'a>(&self, entries: &'a [Entry]) -> impl Iterator<Item = (&'a Entry, Range<usize>)> {
        let Range { start, end } = self.range;
        let is_inside = move |entry: &&Entry| entry.trainable && (start..end).contains(&entry.offset);
        entries.iter().filter(is_inside).map(move |entry| {
            let first = 4 * (entry.offset - start);
            (entry, first..first + 4 * entry.shape.elements())
        })
    }
}

/// The moments as they were at one moment, off their device: they can be encoded on another thread while training goes
/// on.
pub struct Moments {
    entries: Vec<Entry>,
    tensors: Vec<(Moment, Bytes)>,
}

impl Optimizer {
    /// All that it remembers; with a scale of the loss, that too.
    pub fn moments(&self) -> Vec<(Moment, &Tensor)> {
        let mut moments = Vec::new();
        for state in &self.states {
            let names = match state.group.kind {
                Kind::Sgd { .. } | Kind::Muon { .. } => ["momentum_buffer", ""],
                Kind::AdamW { .. } | Kind::Adam { .. } | Kind::Lion { .. } => ["exp_avg", "exp_avg_sq"],
            };
            let tensors = [Some(&state.first), state.second.as_ref()];
            let range = || state.segment.range.clone();
            let named = names.into_iter().zip(tensors);
            moments.extend(named.filter_map(|(name, tensor)| Some((Moment { name, range: range() }, tensor?))));
        }
        moments.extend(self.loss_scale().map(|scale| (Moment::LOSS_SCALE, scale)));
        moments
    }

    /// Takes up where an optimizer was after `steps` updates, whose moments are in the file at `path`. If it keeps
    /// averages, the values of the parameters are taken for those, and replaced by the weights in the file.
    ///
    /// # Errors
    /// If the file is missing or damaged, or does not hold exactly the moments that these parameters and this rule
    /// have.
    pub fn restore(&mut self, parameters: &ParameterArena, path: &Path, steps: u64) -> Result<()> {
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let wrong = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
        let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is damaged: {e}")))?;
        let mut moments = self.moments();
        let trained = Moment::trained(parameters);
        let weights = slice(&parameters.values, &trained.range);
        if let Some(ema) = &self.ema {
            ema.take_values(parameters)?;
            moments.push((trained, &weights));
        }
        let of_moment = |(moment, _): &(Moment, &Tensor)| match *moment == Moment::LOSS_SCALE {
            true => 1,
            false => moment.parts(&parameters.entries).count(),
        };
        let expected: usize = moments.iter().map(of_moment).sum();
        if file.len() != expected {
            return Err(wrong(format!("has {} tensors, this optimizer needs {expected}", file.len())));
        }
        for (moment, tensor) in moments {
            if moment == Moment::LOSS_SCALE {
                let name = moment.name;
                let view = file.tensor(name).map_err(|_| wrong(format!("has no tensor {name}")))?;
                let numbers: Vec<f32> = match (view.dtype(), view.shape()) {
                    (Dtype::F32, [3]) => bytemuck::pod_collect_to_vec(view.data()),
                    (dtype, shape) => return Err(wrong(format!("{name} is {dtype:?} {shape:?}, not F32 [3]"))),
                };
                if numbers.iter().any(|n| !n.is_finite() || *n < 0.0) || numbers[0] < 1.0 {
                    return Err(wrong(format!("{name} is {numbers:?}: no scale of a loss")));
                }
                tensor.write_bytes(view.data())?;
                continue;
            }
            let mut flat = vec![0; tensor.spec().size_bytes()];
            for (entry, range) in moment.parts(&parameters.entries) {
                let name = format!("{}.{}", moment.name, entry.name);
                let view = file.tensor(&name).map_err(|_| wrong(format!("has no tensor {name}")))?;
                if view.shape() != &entry.shape[..] || view.dtype() != Dtype::F32 {
                    let (dtype, shape) = (view.dtype(), view.shape());
                    return Err(wrong(format!("{name} is {dtype:?} {shape:?}, the model implies F32 {}", entry.shape)));
                }
                flat[range].copy_from_slice(view.data());
            }
            tensor.write_bytes(&flat)?;
        }
        self.set_updates(steps);
        parameters.refresh_halves()
    }

    /// Goes on as after so many updates: for whoever has written the moments.
    pub fn set_updates(&mut self, updates: u64) {
        self.steps = updates;
    }
}

impl Moments {
    /// Those of these parameters, as [`Optimizer::moments`] gives them, each with its bytes.
    pub fn new(parameters: &ParameterArena, tensors: Vec<(Moment, Bytes)>) -> Moments {
        Moments { entries: parameters.entries.clone(), tensors }
    }

    /// The contents of the file that [`Optimizer::restore`] reads.
    ///
    /// # Errors
    /// If the tensors make no file, which no optimizer's do.
    pub fn encode(self) -> Result<Vec<u8>> {
        let mut views = Vec::new();
        for (moment, bytes) in &self.tensors {
            if *moment == Moment::LOSS_SCALE {
                let view = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
                views.push((moment.name.to_string(), view.expect("whole numbers of four bytes")));
                continue;
            }
            for (entry, range) in moment.parts(&self.entries) {
                let view = TensorView::new(Dtype::F32, entry.shape.to_vec(), &bytes[range]);
                views.push((format!("{}.{}", moment.name, entry.name), view.expect("a tensor's bytes fit its shape")));
            }
        }
        safetensors::serialize(views, None).map_err(|e| Error::Invalid(format!("the moments make no file: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::Module;
    use crate::optim::testing::{self, KINDS, Net};

    fn setup(kind: Kind) -> (Net, ParameterArena, Optimizer) {
        let mut model = Net::new(1);
        let (parameters, optimizer) = testing::optimizer(&mut model, &Device::Cpu, kind);
        (model, parameters, optimizer)
    }

    fn encode(parameters: &ParameterArena, optimizer: &Optimizer) -> Vec<u8> {
        let arenas =
            optimizer.moments().into_iter().map(|(name, arena)| (name, Bytes::owned(arena.to_bytes().unwrap())));
        Moments::new(parameters, arenas.collect()).encode().unwrap()
    }

    /// A step with other gradients each time.
    fn step(optimizer: &mut Optimizer, parameters: &ParameterArena, number: usize) {
        let values: Vec<f32> =
            (0..parameters.trainable_len()).map(|i| ((i * 7 + number * 13) % 11) as f32 - 5.0).collect();
        parameters.gradients().write_bytes(bytemuck::cast_slice(&values)).unwrap();
        optimizer.step(parameters, 0.1).unwrap();
    }

    #[test]
    fn a_restored_optimizer_goes_on_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("optimizer.safetensors");
        for kind in KINDS {
            let (mut model, parameters, mut optimizer) = setup(kind);
            (0..3).for_each(|i| step(&mut optimizer, &parameters, i));
            std::fs::write(&path, encode(&parameters, &optimizer)).unwrap();
            let (mut other_model, other_parameters, mut other) = setup(kind);
            other_parameters.values.write_bytes(&parameters.values.to_bytes().unwrap()).unwrap();
            other.restore(&other_parameters, &path, 3).unwrap();
            step(&mut optimizer, &parameters, 3);
            step(&mut other, &other_parameters, 3);
            for ((name, left), (_, right)) in model.parameters().iter().zip(other_model.parameters()) {
                assert_eq!(left.to_bytes().unwrap(), right.to_bytes().unwrap(), "{kind:?} {name}");
            }
        }
    }

    #[test]
    fn gradients_that_are_no_numbers_change_nothing_and_are_counted() {
        for device in crate::gpu::gpu_for_tests().map(Device::Gpu).into_iter().chain([Device::Cpu]) {
            for kind in KINDS {
                let (parameters, mut optimizer) = testing::optimizer(&mut Net::new(1), &device, kind);
                step(&mut optimizer, &parameters, 1);
                let state = |optimizer: &Optimizer| {
                    let values = parameters.values.to_bytes().unwrap();
                    let moments: Vec<_> = optimizer.moments().iter().map(|(_, m)| m.to_bytes().unwrap()).collect();
                    (values, moments, optimizer.skipped().to_u32().unwrap())
                };
                let (values, moments, skipped) = state(&optimizer);
                assert_eq!(skipped, [0]);
                // The square of the last is not finite, though it is.
                for (count, bad) in [f32::NAN, f32::NEG_INFINITY, 1e30].into_iter().enumerate() {
                    let mut gradients = vec![0.5; parameters.trainable_len()];
                    gradients[7] = bad;
                    parameters.gradients().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                    optimizer.step(&parameters, 0.1).unwrap();
                    assert!(
                        state(&optimizer) == (values.clone(), moments.clone(), vec![count as u32 + 1]),
                        "{kind:?} {bad}"
                    );
                }
                step(&mut optimizer, &parameters, 2);
                assert!(state(&optimizer).0 != values, "{kind:?} goes on");
            }
        }
    }

    #[test]
    fn the_moments_of_another_rule_or_model_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("optimizer.safetensors");
        let (_model, parameters, optimizer) = setup(KINDS[0]);
        std::fs::write(&path, encode(&parameters, &optimizer)).unwrap();
        let (_model, parameters, mut sgd) = setup(KINDS[2]);
        let error = sgd.restore(&parameters, &path, 1).unwrap_err().to_string();
        assert!(error.contains("optimizer.safetensors") && error.contains("tensors"), "{error}");
        let (_model, mut parameters, mut adamw) = setup(KINDS[0]);
        parameters.entries[0].name = "other".into();
        let error = adamw.restore(&parameters, &path, 1).unwrap_err().to_string();
        assert!(error.contains("has no tensor exp_avg.other"), "{error}");
        std::fs::write(&path, b"short").unwrap();
        assert!(adamw.restore(&parameters, &path, 1).unwrap_err().to_string().contains("is damaged"));
    }
}
