//! The flat buffers that hold all parameters and all gradients of a model.

use crate::gpu::Limits;
use crate::nn::Module;
use crate::profile::{MemoryKind, memory_kind};
use crate::{DType, Device, Error, Result, Shape, Tensor};

/// Tensors start on multiples of this many elements: 256 bytes, which every device accepts as a binding's offset.
const ALIGN: usize = 64;

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
    pub(super) gradients: Tensor,
}

impl Parameters {
    /// Moves a module's parameters into one arena on `device`; the module then uses them there, and its gradients
    /// collect in a second arena.
    ///
    /// # Errors
    /// If the device cannot hold them: [`Error::GpuLimit`] names what does not fit.
    pub fn gather(module: &mut dyn Module, device: &Device) -> Result<Parameters> {
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
        if let Device::Gpu(gpu) = device {
            check_limits(&entries, len, gpu.limits(), &gpu.info().name)?;
        }
        let mut flat = vec![0.0; len];
        for entry in &entries {
            let (_, tensor) = tensors.iter().find(|(name, _)| *name == entry.name).expect("placed above");
            flat[entry.offset..][..tensor.len()].copy_from_slice(&tensor.to_f32()?);
        }
        let values = memory_kind(MemoryKind::Parameters, || Tensor::from_f32(&flat, [len], device))?;
        drop(flat);
        let gradients = memory_kind(MemoryKind::Gradients, || Tensor::zeros([len], DType::F32, device))?;
        module.visit_parameters("", &mut |name, tensor| {
            let entry = entries.iter().find(|e| e.name == name).expect("placed above");
            let gradient = gradients.slice_flat(entry.offset, entry.shape.clone());
            *tensor = values.slice_flat(entry.offset, entry.shape.clone()).with_gradient(gradient);
        });
        Ok(Parameters { entries, decay_end, values, gradients })
    }

    /// Elements in each arena, padding included.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Forgets the gradients collected so far.
    pub fn zero_gradients(&self) {
        self.gradients.fill_zero();
    }
}

/// Says before training, not during, that a model is too large for an adapter.
fn check_limits(entries: &[Entry], len: usize, limits: &Limits, adapter: &str) -> Result<()> {
    let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
    let too_large = |what: String, needed: usize, limit: u64| Error::GpuLimit {
        what,
        needed: mib(needed as u64 * 4),
        adapter: adapter.to_string(),
        limit: mib(limit),
        hint: "use a smaller model.n_embd, model.n_layer or vocabulary, or --device cpu".into(),
    };
    if len as u64 * 4 > limits.buffer_bytes {
        return Err(too_large("the buffer of all parameters".into(), len, limits.buffer_bytes));
    }
    match entries.iter().find(|e| e.shape.elements() as u64 * 4 > limits.binding_bytes) {
        Some(e) => Err(too_large(format!("{} {}", e.name, e.shape), e.shape.elements(), limits.binding_bytes)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Gpt, GptConfig};

    fn config() -> GptConfig {
        GptConfig {
            vocab_size: 65,
            block_size: 17,
            n_layer: 2,
            n_head: 3,
            n_embd: 24,
            bias: true,
            tie_embeddings: true,
        }
    }

    #[test]
    fn parameters_keep_their_values_and_decaying_ones_come_first() {
        let mut model = Gpt::new(config(), 1).unwrap();
        let before: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
        let parameters = Parameters::gather(&mut model, &Device::Cpu).unwrap();
        let after: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
        assert_eq!(before, after);
        for entry in &parameters.entries {
            assert_eq!(entry.offset < parameters.decay_end, entry.shape.len() > 1, "{}", entry.name);
        }
        let count: usize = parameters.entries.iter().map(|e| e.shape.elements()).sum();
        assert_eq!(count, config().parameter_count());
    }

    #[test]
    fn a_model_too_large_for_the_adapter_is_named() {
        let entries = [Entry { name: "wte.weight".into(), shape: Shape::from([50_257, 768]), offset: 0 }];
        let len = 50_257 * 768;
        let error = check_limits(&entries, len, &Limits::WEBGPU_DEFAULT, "a small adapter").unwrap_err().to_string();
        assert!(error.contains("wte.weight (50257, 768)") && error.contains("128 MiB"), "{error}");
        let error =
            check_limits(&entries, 2 * len, &Limits::WEBGPU_DEFAULT, "a small adapter").unwrap_err().to_string();
        assert!(error.contains("all parameters") && error.contains("256 MiB"), "{error}");
    }
}
