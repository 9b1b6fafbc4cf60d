//! What an optimizer remembers, as a safetensors file: `exp_avg.<parameter>`, `exp_avg_sq.<parameter>` and
//! `momentum_buffer.<parameter>`, in PyTorch's names. One tensor per parameter, so that the file does not depend on how
//! arenas are laid out.

use super::update::Kind;
use super::{Entry, Optimizer, ParameterArena};
use crate::tensor::Bytes;
use crate::{Error, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::path::Path;

/// The moments as they were at one moment, off their device: they can be encoded on another thread while training goes
/// on.
pub struct Moments {
    entries: Vec<Entry>,
    /// The name of each moment, and its arena.
    arenas: Vec<(&'static str, Bytes)>,
}

/// The name of the state of the loss scale in mixed precision: three f32 that belong to no parameter.
const LOSS_SCALE: &str = "loss_scale";

/// The bytes of a parameter in an arena.
fn range(entry: &Entry) -> std::ops::Range<usize> {
    let start = 4 * entry.offset;
    start..start + 4 * entry.shape.elements()
}

impl Optimizer {
    /// Each moment's name and arena; with a scale of the loss, that too.
    pub fn moments(&self) -> Vec<(&'static str, &Tensor)> {
        let [first, second] = &self.moments;
        let mut moments = match self.kind {
            Kind::Sgd { .. } => vec![("momentum_buffer", first)],
            Kind::AdamW { .. } | Kind::Adam { .. } => vec![("exp_avg", first), ("exp_avg_sq", second)],
        };
        moments.extend(self.loss_scale().map(|scale| (LOSS_SCALE, scale)));
        moments
    }

    /// Takes up where an optimizer was after `steps` updates, whose moments are in the file at `path`.
    ///
    /// # Errors
    /// If the file is missing or damaged, or does not hold exactly the moments that these parameters and this rule
    /// have.
    pub fn restore(&mut self, parameters: &ParameterArena, path: &Path, steps: u64) -> Result<()> {
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        let wrong = |message: String| Error::Checkpoint { path: path.to_path_buf(), message };
        let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is damaged: {e}")))?;
        let moments = self.moments();
        let arenas = moments.iter().filter(|(name, _)| *name != LOSS_SCALE).count();
        let trained = || parameters.entries.iter().filter(|entry| entry.trainable);
        let expected = arenas * trained().count() + moments.len() - arenas;
        if file.len() != expected {
            return Err(wrong(format!("has {} tensors, this optimizer needs {expected}", file.len())));
        }
        for (moment, arena) in moments {
            if moment == LOSS_SCALE {
                let view = file.tensor(LOSS_SCALE).map_err(|_| wrong(format!("has no tensor {LOSS_SCALE}")))?;
                let numbers: Vec<f32> = match (view.dtype(), view.shape()) {
                    (Dtype::F32, [3]) => bytemuck::pod_collect_to_vec(view.data()),
                    (dtype, shape) => return Err(wrong(format!("{LOSS_SCALE} is {dtype:?} {shape:?}, not F32 [3]"))),
                };
                if numbers.iter().any(|n| !n.is_finite() || *n < 0.0) || numbers[0] < 1.0 {
                    return Err(wrong(format!("{LOSS_SCALE} is {numbers:?}: no scale of a loss")));
                }
                arena.write_bytes(view.data())?;
                continue;
            }
            let mut flat = vec![0; arena.spec().size_bytes()];
            for entry in trained() {
                let name = format!("{moment}.{}", entry.name);
                let view = file.tensor(&name).map_err(|_| wrong(format!("has no tensor {name}")))?;
                if view.shape() != &entry.shape[..] || view.dtype() != Dtype::F32 {
                    let (dtype, shape) = (view.dtype(), view.shape());
                    return Err(wrong(format!("{name} is {dtype:?} {shape:?}, the model implies F32 {}", entry.shape)));
                }
                flat[range(entry)].copy_from_slice(view.data());
            }
            arena.write_bytes(&flat)?;
        }
        self.steps = steps;
        Ok(())
    }
}

impl Moments {
    /// Those of these parameters: the name of each, as [`Optimizer::moments`] gives it, and the bytes of its arena.
    pub fn new(parameters: &ParameterArena, arenas: Vec<(&'static str, Bytes)>) -> Moments {
        Moments { entries: parameters.entries.iter().filter(|entry| entry.trainable).cloned().collect(), arenas }
    }

    /// The contents of the file that [`Optimizer::restore`] reads.
    ///
    /// # Errors
    /// If the tensors make no file, which no optimizer's do.
    pub fn encode(self) -> Result<Vec<u8>> {
        let mut views = Vec::new();
        for (moment, arena) in &self.arenas {
            if *moment == LOSS_SCALE {
                let view = TensorView::new(Dtype::F32, vec![arena.len() / 4], arena);
                views.push((LOSS_SCALE.to_string(), view.expect("whole numbers of four bytes")));
                continue;
            }
            for entry in &self.entries {
                let view = TensorView::new(Dtype::F32, entry.shape.to_vec(), &arena[range(entry)]);
                views.push((format!("{moment}.{}", entry.name), view.expect("a tensor's bytes fit its shape")));
            }
        }
        safetensors::serialize(views, None).map_err(|e| Error::Invalid(format!("the moments make no file: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Module;
    use crate::optim::testing::Net;
    use crate::{DType, Device};

    fn setup(kind: Kind) -> (Net, ParameterArena, Optimizer) {
        let mut model = Net::new(1);
        let parameters = ParameterArena::new(&mut model, &Device::Cpu, DType::F32).unwrap();
        let optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
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

    const KINDS: [Kind; 3] = [
        Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Kind::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
        Kind::Sgd { momentum: 0.9 },
    ];

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
                let (mut model, ..) = setup(kind);
                let parameters = ParameterArena::new(&mut model, &device, DType::F32).unwrap();
                let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
                step(&mut optimizer, &parameters, 1);
                let state = |optimizer: &Optimizer| {
                    let values = parameters.values.to_bytes().unwrap();
                    let moments = optimizer.moments.clone().map(|moment| moment.to_bytes().unwrap());
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
