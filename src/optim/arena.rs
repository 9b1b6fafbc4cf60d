//! The flat buffers that hold all parameters and all gradients of a model.

use crate::cpu::CHUNK;
use crate::nn::{Module, Parameter};
use crate::profile::MemoryKind;
use crate::tensor::{Gradient, Spec};
use crate::{DType, Device, Result, Shape, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// Tensors start on multiples of this many elements: 256 bytes of f16, which every device accepts as a binding's offset.
pub(super) const ALIGN: usize = 128;

/// Where one parameter lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub shape: Shape,
    /// Elements from the start of the arena.
    pub offset: usize,
}

/// All parameters of a module, and their gradients.
pub struct Parameters {
    /// In the order of the arena: first those that decay.
    pub entries: Vec<Entry>,
    /// Elements from the start that weight decay applies to: matrices and embeddings, which take part in products;
    /// not biases and the scales of layer norms (nanoGPT).
    pub decay_end: usize,
    pub(super) values: Tensor,
    gradients: Tensor,
    /// The same by parameter.
    collected: Vec<Gradient>,
    /// In mixed precision the values as f16, the operands of products.
    pub(super) halves: Option<Tensor>,
}

impl Parameters {
    /// Moves a module's parameters into one arena on `device`; the module then uses them there, and its gradients
    /// collect in a second arena. If products are to be f16, a third one holds copies of the values as operands for them.
    ///
    /// # Errors
    /// If the device cannot hold them. `train::check_size` says so earlier, and what is to be smaller.
    pub fn gather(module: &mut dyn Module, device: &Device, products: DType) -> Result<Parameters> {
        let tensors = module.parameters();
        let (mut entries, mut end) = (Vec::new(), 0);
        let mut place = |decays: bool| {
            for (name, tensor) in tensors.iter().filter(|(_, t)| (t.shape().len() > 1) == decays) {
                entries.push(Entry { name: name.clone(), shape: tensor.shape().clone(), offset: end });
                end += tensor.len().next_multiple_of(ALIGN);
            }
            end
        };
        let decay_end = place(true);
        let len = place(false);
        let flat = flatten(&entries, len, &tensors)?;
        let of_kind =
            |bytes: &[u8], dtype| Tensor::from_bytes_as(MemoryKind::Parameters, bytes, Spec::new([len], dtype), device);
        let values = of_kind(bytemuck::cast_slice(&flat), DType::F32)?;
        let halves = (products == DType::F16).then(|| of_kind(bytemuck::cast_slice(&rounded(&flat)), DType::F16));
        let halves = halves.transpose()?;
        drop(flat);
        let gradients = Tensor::zeros_as(MemoryKind::Gradients, [len], DType::F32, device)?;
        let mut collected = Vec::new();
        module.visit_parameters("", &mut |name, parameter| {
            let entry = entries.iter().find(|e| e.name == name).expect("placed above");
            let gradient = Gradient::new(gradients.slice_flat(entry.offset, entry.shape.clone()));
            collected.push(gradient.clone());
            let part =
                |arena: &Tensor| arena.slice_flat(entry.offset, entry.shape.clone()).with_gradient(gradient.clone());
            *parameter = Parameter { value: part(&values), half: halves.as_ref().map(part) };
        });
        Ok(Parameters { entries, decay_end, values, gradients, collected, halves })
    }

    /// Takes the values of a module that has the same parameters.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub fn take_values(&self, module: &mut dyn Module) -> Result<()> {
        let flat = flatten(&self.entries, self.len(), &module.parameters())?;
        self.values.write_bytes(bytemuck::cast_slice(&flat))?;
        self.halves.as_ref().map_or(Ok(()), |halves| halves.write_bytes(bytemuck::cast_slice(&rounded(&flat))))
    }

    /// The value of a parameter, its gradient, and in mixed precision the value as f16.
    pub fn of_entry(&self, entry: &Entry) -> Vec<Tensor> {
        let arenas = [&self.values, self.gradients()].into_iter().chain(&self.halves);
        arenas.map(|arena| arena.slice_flat(entry.offset, entry.shape.clone())).collect()
    }

    /// All values: the arena that the entries' offsets count in.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Elements in each arena, padding included.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All gradients collected so far, in the arena that they collect in.
    pub fn gradients(&self) -> &Tensor {
        self.collected.iter().for_each(Gradient::materialize);
        &self.gradients
    }

    /// Forgets the gradients collected so far.
    pub fn zero_gradients(&self) {
        self.collected.iter().for_each(Gradient::zero_lazily);
    }
}

/// The values of these tensors where the entries of their names say.
fn flatten(entries: &[Entry], len: usize, tensors: &[(String, Tensor)]) -> Result<Vec<f32>> {
    let mut flat = vec![0.0; len];
    for entry in entries {
        let (_, tensor) = tensors.iter().find(|(name, _)| *name == entry.name).expect("the same parameters");
        flat[entry.offset..][..tensor.len()].copy_from_slice(&tensor.to_f32()?);
    }
    Ok(flat)
}

fn rounded(values: &[f32]) -> Vec<f16> {
    let mut halves = vec![f16::ZERO; values.len()];
    let chunks = halves.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(halves, values)| halves.convert_from_f32_slice(values));
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::testing::Net;
    use crate::optim::{Kind, Optimizer};

    #[test]
    fn parameters_keep_their_values_and_decaying_ones_come_first() {
        let mut model = Net::new(1);
        let before: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
        let parameters = Parameters::gather(&mut model, &Device::Cpu, DType::F32).unwrap();
        let after: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
        assert_eq!(before, after);
        for entry in &parameters.entries {
            assert_eq!(entry.offset < parameters.decay_end, entry.shape.len() > 1, "{}", entry.name);
        }
        let count: usize = parameters.entries.iter().map(|e| e.shape.elements()).sum();
        assert_eq!(count, Net::ELEMENTS);
    }

    #[test]
    fn forgotten_gradients_are_zeros_and_what_got_none_is_not_updated() {
        for device in Device::for_tests() {
            let mut model = Net::new(1);
            let parameters = Parameters::gather(&mut model, &device, DType::F32).unwrap();
            let ids = Tensor::from_u32(&[3; 34], [34], &device).unwrap();
            let backward = || model.loss(&ids, None).unwrap().backward().unwrap();
            backward();
            let once = parameters.gradients().to_f32().unwrap();
            assert!(once.iter().any(|g| *g != 0.0));
            parameters.zero_gradients();
            for entry in &parameters.entries {
                assert!(parameters.of_entry(entry)[1].to_f32().unwrap().iter().all(|g| *g == 0.0), "{}", entry.name);
            }
            parameters.zero_gradients();
            backward();
            assert_eq!(parameters.gradients().to_f32().unwrap(), once, "{device}");
            // No gradient at all: nothing changes.
            parameters.zero_gradients();
            let before = parameters.values().to_f32().unwrap();
            let mut optimizer = Optimizer::new(&parameters, Kind::Sgd { momentum: 0.9 }, 0.0, 1.0).unwrap();
            optimizer.step(&parameters, 0.1).unwrap();
            assert_eq!(parameters.values().to_f32().unwrap(), before, "{device}");
        }
    }
}
