//! LoRA adapters beside the linear layers of a frozen model (Hu et al. 2021), selected by Hugging Face's layer names.

use super::{LanguageModel, ModelConfig, f16_weights};
use crate::nn::{LinearLayout, LowRank, Parameter, init_keys};
use crate::{DType, Error, Result, Shape};
use std::ops::Range;

/// PEFT's word for all linear layers but the head.
pub const ALL_LINEAR: &str = "all-linear";

/// LoRA settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// Rank r of A (r, inputs) and B (outputs, r).
    pub rank: usize,
    /// B A is multiplied by alpha / r; with `rslora`, by alpha / sqrt(r).
    pub alpha: f64,
    /// The scale of rsLoRA (Kalajdzievski 2023).
    pub rslora: bool,
    /// Trains the norms of the rows of weights too (DoRA, Liu et al. 2024).
    pub dora: bool,
    /// Dropout probability of A's input.
    pub dropout: f64,
    /// Names of layers, or suffixes of names: `q_proj`, `mlp.c_proj`; or `all-linear`.
    pub targets: Vec<String>,
    /// Storage type of the frozen weights of matmuls: linear layers, and a head that is not the embedding. With a
    /// quantized one, the embedding is `q8_0`.
    pub base: DType,
}

/// An adapted matrix of a fused weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Adapted {
    /// Its name in `model.safetensors`, without `.weight`.
    pub module: String,
    /// Its range of the weight's outputs.
    pub outputs: Range<usize>,
}

impl Lora {
    /// The factor of B A.
    pub(crate) fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        (self.alpha / if self.rslora { rank.sqrt() } else { rank }) as f32
    }

    /// The matrices of a weight that are adapted, in their order.
    pub(super) fn adapted(&self, config: &ModelConfig, name: &str, shape: &Shape, outputs_first: bool) -> Vec<Adapted> {
        let mut start = 0;
        let tensors = config.kind.hf().tensors(config, name, shape).into_iter();
        let matrices = tensors.map(|(tensor, shape)| {
            let outputs = start..start + if outputs_first { shape[0] } else { shape.last_dim() };
            start = outputs.end;
            Adapted { module: tensor.strip_suffix(".weight").unwrap_or(&tensor).to_string(), outputs }
        });
        matrices.filter(|matrix| self.targets.iter().any(|target| is_meant(target, &matrix.module))).collect()
    }

    /// Freezes a model on the CPU and adds adapters to its linear layers, with initial values determined by the seed.
    ///
    /// # Errors
    /// If the rank is 0, a target does not match a layer, a weight overflows its storage type, or memory runs out.
    pub fn adapt(&self, model: &mut dyn LanguageModel, seed: u64) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::Invalid("the rank of LoRA adapters must be at least 1".into()));
        }
        let config = model.config().clone();
        self.check_targets(model)?;
        let of_matmuls = f16_weights::matmul_weights(model);
        let table = model.token_embeddings().clone();
        let (mut result, mut keys) = (Ok(()), init_keys(seed ^ 0x4c6f_5241));
        model.visit_parameters("", &mut |name, parameter| {
            // An adapter is visited after the weight that it was put beside.
            if result.is_err() || name.contains("lora_") {
                return;
            }
            let base = match () {
                () if of_matmuls.contains(name) => self.base,
                () if self.base.is_quantized() && parameter.value.same(&table) => f16_weights::of_table(self.base),
                () => DType::F32,
            };
            let (shape, layout) = (parameter.shape().clone(), parameter.linear.clone());
            result = freeze([self.base, base], name, parameter).and_then(|()| {
                let Some(LinearLayout { outputs_first, .. }) = layout else { return Ok(()) };
                let adapted = self.adapted(&config, name, &shape, outputs_first);
                let outputs: Vec<_> = adapted.into_iter().map(|matrix| matrix.outputs).collect();
                let [rows, columns] = [shape[0], shape[1]];
                let (inputs, all) = if outputs_first { (columns, rows) } else { (rows, columns) };
                if !outputs.is_empty() {
                    let mut low_rank = LowRank::new(inputs, all, &outputs, self.rank, self.scale(), keys())?;
                    if self.dora {
                        let is_quantized = parameter.dtype().is_quantized();
                        low_rank.train_magnitudes(&parameter.value, outputs_first || is_quantized)?;
                    }
                    parameter.low_rank = Some(Box::new(low_rank));
                }
                Ok(())
            });
        });
        result
    }

    /// Refuses a target that means no layer.
    fn check_targets(&self, model: &mut dyn LanguageModel) -> Result<()> {
        let modules = linear_modules(model);
        match self.targets.iter().find(|target| !modules.iter().any(|module| is_meant(target, module))) {
            None => Ok(()),
            Some(target) => {
                let ends = endings(modules.iter().map(String::as_str)).join(", ");
                let kind = model.config().kind.as_str();
                Err(Error::Invalid(format!(
                    "lora.targets: {target:?} is not a linear layer of this {kind}; expected {ends}, or {ALL_LINEAR}"
                )))
            }
        }
    }
}

fn freeze([asked, base]: [DType; 2], name: &str, parameter: &mut Parameter) -> Result<()> {
    const SETTING: &str = "lora.base_dtype";
    match base {
        DType::F16 => f16_weights::check(SETTING, name, parameter).and_then(|()| parameter.freeze_as_f16()),
        base if base.is_quantized() => f16_weights::quantize(SETTING, [asked, base], name, parameter),
        _ => {
            parameter.freeze();
            Ok(())
        }
    }
}

/// The names of all linear layers but the head, as in `model.safetensors`, without `.weight`.
fn linear_modules(model: &mut dyn LanguageModel) -> Vec<String> {
    let (config, mut modules) = (model.config().clone(), Vec::new());
    model.visit_parameters("", &mut |name, parameter| {
        if parameter.linear.is_some() {
            let tensors = config.kind.hf().tensors(&config, name, parameter.shape()).into_iter();
            modules.extend(tensors.map(|(tensor, _)| tensor.strip_suffix(".weight").unwrap_or(&tensor).to_string()));
        }
    });
    modules
}

/// The last part of each name, once.
pub(super) fn endings<'a>(modules: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ends: Vec<&str> = Vec::new();
    for module in modules {
        let end = module.rsplit('.').next().unwrap_or(module);
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    ends
}

/// Whether a target means this module: all do, or it is its name or its end.
fn is_meant(target: &str, module: &str) -> bool {
    target == ALL_LINEAR || module == target || module.ends_with(&format!(".{target}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::hf::Encoded;
    use crate::models::{AdapterWeights, Past, Recomputed, build, load, read_adapters, testing};
    use crate::nn::Dropout;
    use crate::ops::Criterion;
    use crate::optim::ParameterArena;
    use crate::tensor::Bytes;
    use crate::testing::assert_close;
    use crate::{Device, Tensor};

    fn configs() -> [ModelConfig; 3] {
        let gpt2 = ModelConfig { n_layer: 2, ..testing::small(50, 12, 4, 16) };
        [gpt2, testing::small_llama("llama"), testing::small_llama("qwen3")]
    }

    fn lora(targets: &[&str]) -> Lora {
        let targets = targets.iter().map(|target| target.to_string()).collect();
        Lora { rank: 3, alpha: 4.5, rslora: false, dora: false, dropout: 0.0, targets, base: DType::F32 }
    }

    /// All layers, and of what is stored as one weight the first and the last alone; of GPT-2 both `c_proj`.
    fn targets(config: &ModelConfig) -> [Vec<&'static str>; 2] {
        let some = if config.llama.is_some() { vec!["q_proj", "v_proj", "mlp.up_proj"] } else { vec!["c_proj"] };
        [vec![ALL_LINEAR], some]
    }

    /// A model whose adapters have come to something.
    fn adapted(config: &ModelConfig, lora: &Lora) -> Box<dyn LanguageModel> {
        let mut model = build(config, 3).unwrap();
        lora.adapt(&mut *model, 5).unwrap();
        model.visit_parameters("", &mut |name, parameter| {
            let wave = (0..parameter.len()).map(|i| (i as f32 * 0.37).sin() * 0.2);
            let values: Option<Vec<f32>> = match () {
                () if name.ends_with("lora_B.weight") => Some(wave.collect()),
                () if name.ends_with("lora_magnitude_vector") => {
                    Some(parameter.to_f32().unwrap().iter().zip(wave).map(|(m, wave)| m * (1.0 + wave)).collect())
                }
                () => None,
            };
            if let Some(values) = values {
                parameter.write_bytes(bytemuck::cast_slice(&values)).unwrap();
            }
        });
        model
    }

    /// What of (outputs, n r) lies where the scales are not zero, by rows.
    fn blocks(wide: &Tensor, scales: &Tensor) -> Vec<f32> {
        let (values, scales) = (wide.to_f32().unwrap(), scales.to_f32().unwrap());
        values.iter().zip(&scales).filter(|(_, scale)| **scale != 0.0).map(|(value, _)| *value).collect()
    }

    fn loss(model: &dyn LanguageModel, device: &Device) -> Tensor {
        let ids = |step: u32| {
            let ids: Vec<u32> = (0..14).map(|i| (i * i * step + 3 * i) % 50).collect();
            Tensor::from_u32(&ids, [2, 7], device).unwrap()
        };
        model.loss(&ids(7), &ids(5), Past::Nothing, &Dropout::off(), Criterion::default(), None).unwrap()
    }

    /// The gradient of a parameter, as (rows, columns).
    fn gradient(arena: &ParameterArena, name: &str) -> Tensor {
        let entry = arena.entries.iter().find(|entry| entry.name == name).unwrap();
        arena.of_entry(entry)[1].to_device(&Device::Cpu).unwrap()
    }

    /// W' = W + s B A learns as A and B do: dB = s dW' A^T and dA = s B^T dW', of each matrix.
    #[test]
    fn loss_and_gradients_are_those_of_the_weights_that_adapters_come_to() {
        for device in Device::for_tests() {
            for (config, which) in configs().iter().flat_map(|config| [(config, 0), (config, 1)]) {
                let lora = lora(&targets(config)[which]);
                let mut model = adapted(config, &lora);
                let mut whole = build(config, 3).unwrap();
                let mut sums = std::collections::HashMap::new();
                model.visit_parameters("", &mut |name, parameter| {
                    let Some(low_rank) = &parameter.low_rank else { return };
                    let b = low_rank.wide_b().unwrap().mul(&low_rank.scales).unwrap(); // (outputs, n r)
                    let a = low_rank.a.value.clone();
                    let outputs_first = parameter.linear.as_ref().unwrap().outputs_first;
                    let sum = b.matmul(&a).unwrap();
                    let sum = if outputs_first { sum } else { sum.permute(&[1, 0]).unwrap() };
                    sums.insert(name.to_string(), (sum, a, b, low_rank.scales.value.clone(), outputs_first));
                });
                assert_eq!(sums.len(), if which == 0 { 8 } else { 4 });
                whole.visit_parameters("", &mut |name, parameter| {
                    if let Some((sum, ..)) = sums.get(name) {
                        let value = parameter.add(sum).unwrap();
                        parameter.write_bytes(&value.to_bytes().unwrap()).unwrap();
                    }
                });
                let arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
                let of_whole = ParameterArena::new(&mut *whole, &device, DType::F32).unwrap();
                let [own, of_sum] = [&model, &whole].map(|model| {
                    let loss = loss(&**model, &device);
                    loss.backward().unwrap();
                    loss.item().unwrap()
                });
                assert!((own - of_sum).abs() < 2e-6, "{own} and {of_sum}");
                for (name, (_, a, b, scales, outputs_first)) in &sums {
                    let dw = gradient(&of_whole, name);
                    let dw = if *outputs_first { dw } else { dw.permute(&[1, 0]).unwrap() }; // (outputs, inputs)
                    let da = b.matmul_transposed(&dw, true, false).unwrap();
                    let db = dw.matmul_transposed(a, false, true).unwrap().mul(scales).unwrap();
                    let db = blocks(&db, scales);
                    let stem = name.strip_suffix("weight").unwrap();
                    for (letter, want) in [("A", da.to_f32().unwrap()), ("B", db)] {
                        let own = gradient(&arena, &format!("{stem}lora_{letter}.weight")).to_f32().unwrap();
                        let what = format!("{device}, {name}, {letter}");
                        assert_close(&what, &own, &want, 1e-6, 1e-4);
                        assert!(own.iter().any(|g| g.abs() > 1e-5), "{what}");
                    }
                }
                let trained: Vec<&str> = arena.entries.iter().filter(|e| e.trainable).map(|e| &*e.name).collect();
                assert!(trained.len() == 2 * sums.len() && trained.iter().all(|name| name.contains("lora_")));
            }
        }
    }

    #[test]
    fn what_is_recomputed_gives_the_same_bits() {
        for device in Device::for_tests() {
            for config in configs() {
                let kinds = [(0, false), (usize::MAX, false), (0, true)];
                let [kept, ref recomputed @ ..] = kinds.map(|(blocks, attention)| {
                    let mut model = adapted(&config, &lora(&targets(&config)[1]));
                    model.set_recompute(Recomputed { blocks, attention });
                    let arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
                    loss(&*model, &device).backward().unwrap();
                    arena.gradients().unwrap().to_bytes().unwrap()
                });
                assert!(recomputed.iter().all(|bytes| *bytes == kept), "{device}");
                assert!(kept.iter().any(|byte| *byte != 0), "{device}");
            }
        }
    }

    #[test]
    fn what_is_saved_is_read_back_and_loads_as_the_model_that_it_comes_to() {
        let cases = [(0, false), (1, false), (0, true), (1, true)];
        for (config, (which, dora)) in configs().iter().flat_map(|config| cases.map(|case| (config, case))) {
            let dir = tempfile::tempdir().unwrap();
            let (base, folder) = (dir.path().join("base"), dir.path().join("adapter"));
            let save = |folder: &std::path::Path, Encoded { config, weights }: Encoded| {
                std::fs::create_dir(folder).unwrap();
                std::fs::write(folder.join(config.0), config.1).unwrap();
                let weights_file = safetensors::serialize(weights.1, Some(Encoded::metadata())).unwrap();
                std::fs::write(folder.join(weights.0), weights_file).unwrap();
            };
            let mut whole = build(config, 3).unwrap();
            let arena = ParameterArena::new(&mut *whole, &Device::Cpu, DType::F32).unwrap();
            let values = vec![Bytes::owned(arena.values().to_bytes().unwrap())];
            save(&base, crate::models::ModelWeights::new(config.clone(), &arena, values).encode().unwrap());
            let lora = Lora { dora, rslora: dora, ..lora(&targets(config)[which]) };
            let mut model = adapted(config, &lora);
            let arena = ParameterArena::new(&mut *model, &Device::Cpu, DType::F32).unwrap();
            let values = Bytes::owned(arena.trained().unwrap().to_bytes().unwrap());
            let adapters = AdapterWeights::new(lora.clone(), base.display().to_string(), config, &arena, values);
            save(&folder, adapters.encode().unwrap());
            let mut read = build(config, 3).unwrap();
            lora.adapt(&mut *read, 99).unwrap();
            read_adapters(&folder, &lora, &mut *read).unwrap();
            let merged = load(&folder).unwrap();
            let own = loss(&*model, &Device::Cpu).item().unwrap();
            assert_eq!(loss(&*read, &Device::Cpu).item().unwrap(), own);
            assert!((loss(&*merged, &Device::Cpu).item().unwrap() - own).abs() < 2e-6);
            let of_base = loss(&*load(&base).unwrap(), &Device::Cpu).item().unwrap();
            assert!((of_base - own).abs() > 1e-4, "{own} {of_base}");
            let others = Lora { rank: 4, ..lora.clone() };
            let mut of_another_rank = build(config, 3).unwrap();
            others.adapt(&mut *of_another_rank, 5).unwrap();
            let error = read_adapters(&folder, &others, &mut *of_another_rank).unwrap_err().to_string();
            assert!(error.contains("adapter_model.safetensors") && error.contains("lora_A"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_adapted_is_refused_by_name() {
        let refused = |config: &ModelConfig, lora: Lora| lora.adapt(&mut *build(config, 1).unwrap(), 1).unwrap_err();
        let [gpt2, llama, _] = &configs();
        let error = refused(gpt2, lora(&["c_attn", "q_proj"])).to_string();
        assert!(error.contains("\"q_proj\"") && error.contains("c_attn, c_proj, c_fc, or all-linear"), "{error}");
        let error = refused(llama, lora(&["proj"])).to_string();
        assert!(error.contains("\"proj\"") && error.contains("q_proj, k_proj, v_proj, o_proj"), "{error}");
        let mut model = build(gpt2, 1).unwrap();
        model.visit_parameters("", &mut |name, parameter| {
            if name == "h.1.mlp.c_fc.weight" {
                parameter.write_bytes(bytemuck::cast_slice(&vec![7e4f32; parameter.len()])).unwrap();
            }
        });
        let lora = Lora { base: DType::F16, ..lora(&[ALL_LINEAR]) };
        let error = lora.adapt(&mut *model, 1).unwrap_err().to_string();
        assert!(error.contains("lora.base_dtype") && error.contains("h.1.mlp.c_fc.weight"), "{error}");
    }

    /// Models whose rows are whole blocks of every quantized type.
    fn with_whole_blocks() -> Vec<ModelConfig> {
        let llama = |kind, tie_embeddings| {
            let mut config = ModelConfig { n_embd: 64, tie_embeddings, ..testing::small_llama(kind) };
            let llama = config.llama.as_mut().unwrap();
            (llama.intermediate_size, llama.head_dim) = (128, 64 / config.n_head);
            config
        };
        vec![testing::small(50, 12, 4, 64), llama("llama", true), llama("llama", false), llama("qwen3", true)]
    }

    /// Loss and gradients with a quantized base are those with a base of its values.
    #[test]
    fn a_quantized_base_computes_with_its_values() {
        let types = [DType::Q8_0, DType::Q4_0, DType::Nf4];
        for (device, base) in Device::for_tests().iter().flat_map(|device| types.map(|base| (device.clone(), base))) {
            for config in with_whole_blocks() {
                let lora = Lora { base, dora: base == DType::Nf4, ..lora(&[ALL_LINEAR]) };
                let mut quantized = adapted(&config, &lora);
                let mut exact = adapted(&config, &Lora { base: DType::F32, ..lora.clone() });
                let (mut magnitudes, mut squares) = (vec![], std::collections::HashMap::new());
                quantized.visit_parameters("", &mut |name, parameter| {
                    if name.ends_with("lora_magnitude_vector") || name.ends_with("lora_squares") {
                        magnitudes.push(parameter.to_f32().unwrap());
                    }
                    if let Some(stem) = name.strip_suffix("lora_squares") {
                        squares.insert(format!("{stem}weight"), parameter.to_f32().unwrap());
                    }
                });
                let mut magnitudes = magnitudes.into_iter();
                exact.visit_parameters("", &mut |name, parameter| {
                    if name.ends_with("lora_magnitude_vector") || name.ends_with("lora_squares") {
                        let values = magnitudes.next().unwrap();
                        parameter.write_bytes(bytemuck::cast_slice(&values)).unwrap();
                    }
                });
                let mut values = std::collections::HashMap::new();
                quantized.visit_parameters("", &mut |name, parameter| {
                    if parameter.dtype().is_quantized() {
                        values.insert(name.to_string(), parameter.value.to_device(&Device::Cpu).unwrap());
                    }
                });
                for (name, squares) in &squares {
                    let value = values[name].to_dtype(DType::F32).unwrap(); // (outputs, inputs)
                    let own = value.mul(&value).unwrap().sum(1).unwrap().to_f32().unwrap();
                    assert_close(format!("{name}: squares"), squares, &own, 0.0, 1e-5);
                }
                assert_eq!(squares.len(), if lora.dora { 4 * config.n_layer } else { 0 });
                let count = |quantized: usize| 4 * config.n_layer + quantized;
                let head = usize::from(!config.tie_embeddings);
                assert_eq!(values.len(), count(1 + head), "{}", config.kind.as_str());
                exact.visit_parameters("", &mut |name, parameter| {
                    let Some(value) = values.get(name) else { return };
                    let value = value.to_dtype(DType::F32).unwrap();
                    let is_stored_so = parameter.linear.as_ref().is_none_or(|layout| layout.outputs_first);
                    let value = if is_stored_so { value } else { value.permute(&[1, 0]).unwrap() };
                    parameter.assign(&value).unwrap();
                });
                let [of_exact, of_quantized] = [&mut exact, &mut quantized].map(|model| {
                    let arena = ParameterArena::new(&mut **model, &device, DType::F32).unwrap();
                    let scale = Tensor::full(1024.0, [1], &device).unwrap();
                    let ids = Tensor::from_u32(&[3, 5, 8, 13, 21, 34], [2, 3], &device).unwrap();
                    let criterion = Criterion::default();
                    let loss = model.loss(&ids, &ids, Past::Nothing, &Dropout::off(), criterion, Some(&scale)).unwrap();
                    loss.backward().unwrap();
                    (loss.item().unwrap(), arena.gradients().unwrap().to_f32().unwrap())
                });
                // Where the device has f16, GEMMs with quantized weights are of that.
                let most = if device.has_f16() { [3e-3, 0.01] } else { [1e-5, 1e-4] };
                let case = format!("{device} {base:?} {}", config.kind.as_str());
                assert!((of_exact.0 - of_quantized.0).abs() < most[0], "{case}: {} {}", of_exact.0, of_quantized.0);
                let norm = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
                let difference: Vec<f32> = of_exact.1.iter().zip(&of_quantized.1).map(|(a, b)| a - b).collect();
                let share = norm(&difference) / norm(&of_exact.1);
                assert!(share < f64::from(most[1]), "{case}: {share}");
            }
        }
    }

    #[test]
    fn a_base_without_whole_blocks_is_refused_by_name() {
        let lora = Lora { base: DType::Nf4, ..lora(&[ALL_LINEAR]) };
        let error = lora.adapt(&mut *build(&configs()[0], 1).unwrap(), 1).unwrap_err().to_string();
        let parts = ["lora.base_dtype is nf4", "wte.weight has 16 inputs", "32 weights of a block of q8_0", "use f16"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }

    /// In f16 the frozen weights are rounded to 11 bits; gradients are of f32 and large enough by the loss scale.
    #[test]
    fn a_base_of_f16_gives_nearly_the_same() {
        for device in Device::for_tests().into_iter().filter(|device| !device.is_gpu() || device.has_f16()) {
            let untied = ModelConfig { tie_embeddings: false, ..testing::small_llama("llama") };
            for config in configs().into_iter().chain([untied]) {
                let dora = config.kind.as_str() == "qwen3";
                let [exact, rounded] = [DType::F32, DType::F16].map(|base| {
                    let mut model = adapted(&config, &Lora { base, dora, ..lora(&[ALL_LINEAR]) });
                    let arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
                    let scale = Tensor::full(1024.0, [1], &device).unwrap();
                    let ids = Tensor::from_u32(&[3, 5, 8, 13, 21, 34], [2, 3], &device).unwrap();
                    let criterion = Criterion::default();
                    let loss = model.loss(&ids, &ids, Past::Nothing, &Dropout::off(), criterion, Some(&scale)).unwrap();
                    loss.backward().unwrap();
                    let gradients = arena.gradients().unwrap().to_f32().unwrap();
                    let halves = arena.entries.iter().filter(|entry| entry.dtype == DType::F16);
                    let halves: usize = halves.map(|entry| entry.shape.elements()).sum();
                    assert_eq!(halves, if base == DType::F16 { config.matmul_weights() } else { 0 });
                    (loss.item().unwrap(), gradients.iter().map(|g| g / 1024.0).collect::<Vec<f32>>())
                });
                assert!((exact.0 - rounded.0).abs() < 3e-3, "{device}: {} and {}", exact.0, rounded.0);
                let norm = |values: &[f32]| values.iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt();
                let difference: Vec<f32> = exact.1.iter().zip(&rounded.1).map(|(a, b)| a - b).collect();
                let share = norm(&difference) / norm(&exact.1);
                assert!(share < 0.01 && norm(&difference) > 0.0, "{device}, {}: {share}", config.kind.as_str());
            }
        }
    }
}
