//! A module's parameters and buffers by name, in memory and as a safetensors file that PyTorch loads.

use super::Module;
use crate::tensor::Spec;
use crate::{DType, Device, Error, Result, Tensor, cache};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A module's parameters and buffers by name: f32, or f16 for parameters without an f32 value.
#[derive(Debug, Clone, Default)]
pub struct StateDict {
    /// On the CPU.
    pub tensors: BTreeMap<String, Tensor>,
}

/// PyTorch's batch norms store a batch count, which is ignored.
const NOT_NEEDED: &str = "num_batches_tracked";

impl StateDict {
    pub(super) fn of(module: &mut (impl Module + ?Sized)) -> Result<StateDict> {
        let (mut tensors, mut result) = (BTreeMap::new(), Ok(()));
        let mut add = |name: &str, tensor: &Tensor| {
            let copy = || Tensor::from_bytes(&tensor.to_bytes()?, tensor.spec().clone(), &Device::Cpu);
            match copy() {
                Ok(copy) => drop(tensors.insert(name.to_string(), copy)),
                Err(error) => result = Err(error),
            }
        };
        module.visit_parameters("", &mut |name, parameter| add(name, &parameter.value));
        module.visit_buffers("", &mut |name, buffer| add(name, buffer));
        result.map(|()| StateDict { tensors })
    }

    pub(super) fn load_into(&self, module: &mut (impl Module + ?Sized)) -> Result<()> {
        let mut places: Vec<(String, Spec)> = Vec::new();
        module.visit_parameters("", &mut |name, parameter| places.push((name.into(), parameter.spec().clone())));
        module.visit_buffers("", &mut |name, buffer| places.push((name.into(), buffer.spec().clone())));
        let missing = places.iter().filter(|(name, _)| !self.tensors.contains_key(name));
        let mut complaints: Vec<String> = missing.map(|(name, _)| format!("{name} is missing")).collect();
        let known = |name: &str| places.iter().any(|(place, _)| place == name);
        let unexpected = self.tensors.keys().filter(|name| !known(name));
        complaints.extend(unexpected.map(|name| format!("{name} is unexpected")));
        for (name, spec) in &places {
            if let Some(tensor) = self.tensors.get(name)
                && (tensor.shape() != &spec.shape || tensor.dtype() == DType::U32)
            {
                complaints.push(format!("{name} is {}, not {}", tensor.spec(), spec));
            }
        }
        if !complaints.is_empty() {
            return Err(Error::Invalid(format!("the state does not match the module: {}", complaints.join("; "))));
        }
        let mut result = Ok(());
        module.visit_parameters("", &mut |name, parameter| {
            if result.is_ok() {
                result = parameter.assign(&self.tensors[name]);
            }
        });
        module.visit_buffers("", &mut |name, buffer| {
            let write = |values: &Tensor| buffer.write_bytes(&values.to_dtype(buffer.dtype())?.to_bytes()?);
            if result.is_ok() {
                result = write(&self.tensors[name]);
            }
        });
        result
    }

    /// Writes a safetensors file atomically, replacing an existing one.
    ///
    /// # Errors
    /// If a tensor cannot be read or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let metadata = [("format".to_string(), "pt".to_string())].into();
        write(path.as_ref(), self.parts("")?, Some(metadata))
    }

    /// Its tensors as entries of a file, with `prefix` before their names.
    pub(crate) fn parts(&self, prefix: &str) -> Result<Vec<Part>> {
        let part = |(name, tensor): (&String, &Tensor)| {
            let dtype = match tensor.dtype() {
                DType::F32 => Dtype::F32,
                DType::F16 => Dtype::F16,
                DType::U32 => Dtype::U32,
                quantized => {
                    let message = format!("{name} is {}: safetensors files have f32, f16 and u32", quantized.name());
                    return Err(Error::Invalid(message));
                }
            };
            let (shape, bytes) = (tensor.shape().to_vec(), tensor.to_bytes()?);
            Ok(Part { name: format!("{prefix}{name}"), dtype, shape, bytes })
        };
        self.tensors.iter().map(part).collect()
    }

    /// Reads a safetensors file of f32, f16 or bf16 tensors. bf16 is converted to f32.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has a tensor of another type.
    pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        StateDict::of_file(path, &parse(path, &bytes)?, "")
    }

    /// The tensors whose names start with `prefix`, with it removed.
    pub(crate) fn of_file(path: &Path, file: &SafeTensors, prefix: &str) -> Result<StateDict> {
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter().filter(|(name, _)| !name.ends_with(NOT_NEEDED)) {
            let Some(name) = name.strip_prefix(prefix) else { continue };
            let shape = view.shape().to_vec();
            let tensor = match view.dtype() {
                Dtype::F32 => Tensor::from_bytes(view.data(), Spec::new(shape, DType::F32), &Device::Cpu)?,
                Dtype::F16 => {
                    let values: Vec<f16> = bytemuck::pod_collect_to_vec(view.data());
                    Tensor::from_bytes(bytemuck::cast_slice(&values), Spec::new(shape, DType::F16), &Device::Cpu)?
                }
                Dtype::BF16 => {
                    let values: Vec<bf16> = bytemuck::pod_collect_to_vec(view.data());
                    let values: Vec<f32> = values.into_iter().map(bf16::to_f32).collect();
                    Tensor::from_f32(&values, shape, &Device::Cpu)?
                }
                other => {
                    let message = format!("{name} has type {other:?}; expected F32, F16 or BF16");
                    return Err(checkpoint_error(path, message));
                }
            };
            tensors.insert(name.to_string(), tensor);
        }
        Ok(StateDict { tensors })
    }
}

/// A tensor to write.
pub(crate) struct Part {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Writes a safetensors file atomically, replacing an existing one.
pub(crate) fn write(path: &Path, parts: Vec<Part>, metadata: Option<HashMap<String, String>>) -> Result<()> {
    let damaged = |error: safetensors::SafeTensorError| {
        checkpoint_error(
            path,
            format!(
                "cannot be serialized: \
                                                                                        {error}"
            ),
        )
    };
    let views = parts.iter().map(|Part { name, dtype, shape, bytes }| {
        Ok((name, TensorView::new(*dtype, shape.clone(), bytes).map_err(damaged)?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    let file = safetensors::serialize(views, metadata).map_err(damaged)?;
    cache::replace(path, &file).map_err(|error| Error::io("write", path, error))
}

/// Parses the bytes of a safetensors file.
pub(crate) fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|error| checkpoint_error(path, format!("is damaged: {error}")))
}

fn checkpoint_error(path: &Path, message: String) -> Error {
    Error::Checkpoint { path: path.to_path_buf(), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Activation, BatchNorm, Conv2d, Layer, Linear, Sequential, init_keys};
    use crate::ops::ConvOptions;
    use crate::optim::ParameterArena;

    fn net(seed: u64) -> Sequential {
        let mut keys = init_keys(seed);
        let conv = Conv2d::new([2, 3], [3, 3], ConvOptions::default(), true, &mut keys).unwrap();
        Sequential::new(vec![Box::new(conv), Box::new(BatchNorm::new(3).unwrap()), Box::new(Activation::Relu)])
    }

    fn input(device: &Device) -> Tensor {
        let values: Vec<f32> = (0..2 * 2 * 25).map(|i| (i % 7) as f32 - 3.0).collect();
        Tensor::from_f32(&values, [2, 2, 5, 5], device).unwrap()
    }

    #[test]
    fn a_module_computes_what_the_one_did_whose_state_it_loads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.safetensors");
        for device in Device::for_tests() {
            let (mut saved, mut loaded) = (net(1), net(2));
            // Parameters in an arena are written where they are.
            let _arenas = [&mut saved, &mut loaded].map(|net| ParameterArena::new(net, &device, DType::F32).unwrap());
            let x = input(&device);
            saved.forward(&x).unwrap();
            saved.state_dict().unwrap().save(&path).unwrap();
            let state = StateDict::load(&path).unwrap();
            let names: Vec<&str> = state.tensors.keys().map(String::as_str).collect();
            assert_eq!(names, ["0.bias", "0.weight", "1.bias", "1.running_mean", "1.running_var", "1.weight"]);
            loaded.load_state_dict(&state).unwrap();
            for net in [&mut saved, &mut loaded] {
                net.set_training(false);
            }
            let [want, got] = [&saved, &loaded].map(|net| net.forward(&x).unwrap().to_f32().unwrap());
            assert_eq!(got, want, "{device}");
            // The file and the state are copies.
            loaded.set_training(true);
            loaded.forward(&x).unwrap();
            assert_ne!(loaded.state_dict().unwrap().tensors["1.running_mean"].to_f32().unwrap(), [0.0; 3]);
            let [kept, before] = [&state, &StateDict::load(&path).unwrap()]
                .map(|state| state.tensors["1.running_mean"].to_f32().unwrap());
            assert_eq!(kept, before, "{device}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_and_nothing_is_changed() {
        let mut module = net(1);
        let mut state = net(2).state_dict().unwrap();
        let before = module.state_dict().unwrap();
        state.tensors.remove("1.running_var");
        state.tensors.insert("2.weight".into(), Tensor::zeros([1], DType::F32, &Device::Cpu).unwrap());
        state.tensors.insert("0.bias".into(), Tensor::zeros([4], DType::F32, &Device::Cpu).unwrap());
        state.tensors.insert("1.weight".into(), Tensor::zeros([3], DType::U32, &Device::Cpu).unwrap());
        let message = module.load_state_dict(&state).unwrap_err().to_string();
        let named = ["1.running_var is missing", "2.weight is unexpected", "0.bias is", "1.weight is"];
        assert!(named.iter().all(|name| message.contains(name)), "{message}");
        for (name, tensor) in module.state_dict().unwrap().tensors {
            assert_eq!(tensor.to_f32().unwrap(), before.tensors[&name].to_f32().unwrap(), "{name}");
        }
    }

    #[test]
    fn mixed_precision_gets_the_half_of_what_is_loaded() {
        let linear = |seed| Linear::new(3, 2, true, 0.5, init_keys(seed)()).unwrap();
        let (mut trained, mut other) = (linear(1), linear(2));
        let _arena = ParameterArena::new(&mut trained, &Device::Cpu, DType::F16).unwrap();
        let state = other.state_dict().unwrap();
        trained.load_state_dict(&state).unwrap();
        let want = other.weight.value.to_dtype(DType::F16).unwrap().to_bytes().unwrap();
        assert_eq!(trained.weight.half.as_ref().unwrap().to_bytes().unwrap()[..], want[..]);
        assert!(trained.weight.grad().is_some());
    }

    #[test]
    fn files_of_other_types_are_read_or_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other.safetensors");
        let write = |name: &str, dtype: Dtype, bytes: &[u8]| {
            let view = TensorView::new(dtype, vec![1], bytes).unwrap();
            std::fs::write(&path, safetensors::serialize([(name, view)], None).unwrap()).unwrap();
            StateDict::load(&path)
        };
        let value =
            |state: Result<StateDict>| state.unwrap().tensors["a"].to_dtype(DType::F32).unwrap().item().unwrap();
        assert_eq!(value(write("a", Dtype::BF16, &bf16::from_f32(1.5).to_le_bytes())), 1.5);
        assert_eq!(value(write("a", Dtype::F16, &f16::from_f32(-2.5).to_le_bytes())), -2.5);
        // PyTorch's count of batches is left out.
        assert!(write("1.num_batches_tracked", Dtype::I64, &[0; 8]).unwrap().tensors.is_empty());
        let message = write("a", Dtype::F64, &[0; 8]).unwrap_err().to_string();
        assert!(message.contains("other.safetensors: a has type F64"), "{message}");
        std::fs::write(&path, b"short").unwrap();
        assert!(StateDict::load(&path).unwrap_err().to_string().contains("is damaged"));
        assert!(matches!(StateDict::load(dir.path().join("none")), Err(Error::Io { .. })));
    }
}
