use super::*;
use crate::models::hf::{self, Encoded};
use crate::models::{AdapterWeights, ModelWeights, Past, Recomputed, build, load, read_adapters, testing};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::optim::ParameterArena;
use crate::tensor::Bytes;
use crate::testing::assert_close;
use crate::{Device, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

fn configs() -> [ModelConfig; 3] {
    let gpt2 = ModelConfig { n_layer: 2, ..testing::small(50, 12, 4, 16) };
    [gpt2, testing::small_llama("llama"), testing::small_llama("qwen3")]
}

fn lora(targets: &[&str]) -> Lora {
    let targets = targets.iter().map(|target| target.to_string()).collect();
    let (modules_to_save, base) = (vec![], DType::F32);
    Lora { rank: 3, alpha: 4.5, rslora: false, dora: false, dropout: 0.0, targets, modules_to_save, base }
}

/// All layers, and of what is stored as one weight the first and the last alone; of GPT-2 both `c_proj`.
fn targets(config: &ModelConfig) -> [Vec<&'static str>; 2] {
    let some = if config.llama.is_some() { vec!["q_proj", "v_proj", "mlp.up_proj"] } else { vec!["c_proj"] };
    [vec![ALL_LINEAR], some]
}

/// Modules that are trained in full beside the second of [`targets`], among them all that may be zero or shared in
/// `model.safetensors`.
fn modules(config: &ModelConfig) -> Vec<String> {
    let modules = match config.llama {
        None => vec!["wte", "wpe", "mlp.c_fc", "ln_f"],
        Some(_) if config.tie_embeddings => vec!["embed_tokens", "o_proj", "norm"],
        Some(_) => vec!["lm_head", "model.norm"],
    };
    modules.into_iter().map(String::from).collect()
}

/// [`configs`], without biases, and with a head of its own.
fn all_configs() -> Vec<ModelConfig> {
    let plain = ModelConfig { bias: false, ..configs()[0].clone() };
    let untied = ModelConfig { tie_embeddings: false, ..configs()[1].clone() };
    configs().into_iter().chain([plain, untied]).collect()
}

/// A model whose adapters have come to something, and modules that are trained in full.
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
            () if parameter.is_trainable() && !name.contains("lora_") => {
                Some(parameter.to_f32().unwrap().iter().zip(wave).map(|(x, wave)| x + 0.1 * wave).collect())
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

/// Beside adapters that add nothing yet.
#[test]
fn gradients_of_modules_in_full_are_those_of_a_model_that_is_trained_whole() {
    for device in Device::for_tests() {
        for (config, count) in all_configs().iter().zip([8, 4, 4, 5, 2]) {
            for base in [DType::F32, DType::F16] {
                if device.is_gpu() && base == DType::F16 && !device.has_f16() {
                    continue;
                }
                let lora = Lora { base, modules_to_save: modules(config), ..lora(&targets(config)[1]) };
                let [mut model, mut whole] = [(); 2].map(|()| build(config, 3).unwrap());
                lora.adapt(&mut *model, 5).unwrap();
                let [arena, of_whole] = [&mut model, &mut whole].map(|model| {
                    let arena = ParameterArena::new(&mut **model, &device, DType::F32).unwrap();
                    loss(&**model, &device).backward().unwrap();
                    arena
                });
                let in_full = arena.entries.iter().filter(|e| e.trainable && !e.name.contains("lora_"));
                let in_full: Vec<&str> = in_full.map(|entry| &*entry.name).collect();
                assert_eq!(in_full.len(), count, "{in_full:?}");
                for name in in_full {
                    let [own, want] = [&arena, &of_whole].map(|arena| gradient(arena, name).to_f32().unwrap());
                    // Rounded weights of other layers change them by 2^-11 of the largest.
                    let largest = want.iter().fold(0.0, |most: f64, g| most.max(f64::from(g.abs())));
                    let atol = if base == DType::F16 { 4e-3 * largest } else { 1e-6 };
                    assert_close(format!("{device}, {name}"), &own, &want, atol, 1e-4);
                }
            }
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

fn save(folder: &Path, Encoded { config, weights }: Encoded) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(config.0), config.1).unwrap();
    let weights_file = safetensors::serialize(weights.1, Some(Encoded::metadata())).unwrap();
    std::fs::write(folder.join(weights.0), weights_file).unwrap();
}

/// Saves a model in `base`.
fn save_base(dir: &Path, config: &ModelConfig) {
    let mut whole = build(config, 3).unwrap();
    let arena = ParameterArena::new(&mut *whole, &Device::Cpu, DType::F32).unwrap();
    let values = vec![Bytes::owned(arena.values().to_bytes().unwrap())];
    save(&dir.join("base"), ModelWeights::new(config.clone(), &arena, values).encode().unwrap());
}

/// Adapters of the model in `base`.
fn adapters_of(dir: &Path, lora: &Lora, model: &mut dyn LanguageModel) -> AdapterWeights {
    let config = model.config().clone();
    let arena = ParameterArena::new(model, &Device::Cpu, DType::F32).unwrap();
    let values = Bytes::owned(arena.trained().unwrap().to_bytes().unwrap());
    AdapterWeights::new(lora.clone(), dir.join("base").display().to_string(), &config, &arena, values)
}

#[test]
fn what_is_saved_is_read_back_and_loads_as_the_model_that_it_comes_to() {
    let cases = [(0, false), (1, false), (0, true), (1, true)];
    for (config, (which, dora)) in all_configs().iter().flat_map(|config| cases.map(|case| (config, case))) {
        let dir = tempfile::tempdir().unwrap();
        let (base, folder) = (dir.path().join("base"), dir.path().join("adapter"));
        save_base(dir.path(), config);
        let modules_to_save = if which == 1 { modules(config) } else { vec![] };
        let lora = Lora { dora, rslora: dora, modules_to_save, ..lora(&targets(config)[which]) };
        let mut model = adapted(config, &lora);
        save(&folder, adapters_of(dir.path(), &lora, &mut *model).encode().unwrap());
        let mut read = build(config, 3).unwrap();
        lora.adapt(&mut *read, 99).unwrap();
        read_adapters(&folder, &lora, &mut *read).unwrap();
        let merged = load(&folder).unwrap();
        let own = loss(&*model, &Device::Cpu).item().unwrap();
        assert_eq!(loss(&*read, &Device::Cpu).item().unwrap(), own);
        assert!((loss(&*merged, &Device::Cpu).item().unwrap() - own).abs() < 2e-6);
        let of_base = loss(&*load(&base).unwrap(), &Device::Cpu).item().unwrap();
        assert!((of_base - own).abs() > 1e-4, "{own} {of_base}");
        // Of positions beyond its context a model has none.
        let mut cropped = hf::open(&folder, 7).unwrap();
        cropped.to_device(&Device::Cpu).unwrap();
        assert!((loss(&*cropped, &Device::Cpu).item().unwrap() - own).abs() < 2e-6);
        let others = Lora { rank: 4, ..lora.clone() };
        let mut of_another_rank = build(config, 3).unwrap();
        others.adapt(&mut *of_another_rank, 5).unwrap();
        let error = read_adapters(&folder, &others, &mut *of_another_rank).unwrap_err().to_string();
        assert!(error.contains("adapter_model.safetensors") && error.contains("lora_A"), "{error}");
    }
}

/// PEFT finds modules by the ends of names, of which `norm` is that of `input_layernorm` too.
#[test]
fn modules_in_full_have_their_whole_names_in_the_adapter() {
    let [_, llama, _, plain, untied] = &all_configs()[..] else { unreachable!("there are five") };
    for (config, modules, names) in [
        (llama, &["norm", "embed_tokens"][..], &["model.embed_tokens", "lm_head", "model.norm"][..]),
        (plain, &["wte", "ln_f"], &["transformer.wte", "lm_head", "transformer.ln_f"]),
        (untied, &["norm", "lm_head"], &["lm_head", "model.norm"]),
    ] {
        let modules_to_save = modules.iter().map(|name| name.to_string()).collect();
        let lora = Lora { modules_to_save, ..lora(&targets(config)[1]) };
        let adapters = adapters_of(Path::new("nowhere"), &lora, &mut *adapted(config, &lora));
        let Encoded { config: (_, text), weights: (_, tensors) } = adapters.encode().unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["modules_to_save"], serde_json::json!(names));
        assert_eq!(json.get("ensure_weight_tying").is_some(), config.tie_embeddings);
        let has = |tensor: &str| tensors.iter().any(|(name, _)| name.strip_prefix("base_model.model.") == Some(tensor));
        assert!(names.iter().all(|name| has(&format!("{name}.weight"))), "{text}");
        assert_eq!(has("transformer.ln_f.bias"), config.llama.is_none());
    }
}

/// Name, shape and bytes of each.
type Tensors = Vec<(String, Vec<usize>, Vec<u8>)>;

/// Among them what PEFT saves without `ensure_weight_tying`.
#[test]
fn modules_that_do_not_fit_the_model_are_refused_by_name() {
    let refused = |config: &ModelConfig, change: &dyn Fn(&mut Tensors)| {
        let dir = tempfile::tempdir().unwrap();
        save_base(dir.path(), config);
        let lora = Lora { modules_to_save: modules(config), ..lora(&targets(config)[1]) };
        let adapters = adapters_of(dir.path(), &lora, &mut *adapted(config, &lora));
        let Encoded { config, weights: (file, tensors) } = adapters.encode().unwrap();
        let copied = |(name, view): &(String, TensorView)| (name.clone(), view.shape().to_vec(), view.data().to_vec());
        let mut tensors: Tensors = tensors.iter().map(copied).collect();
        change(&mut tensors);
        let view = |shape: &Vec<usize>, bytes| TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        let tensors = tensors.iter().map(|(name, shape, bytes)| (name.clone(), view(shape, bytes)));
        save(&dir.path().join("adapter"), Encoded { config, weights: (file, tensors.collect()) });
        load(&dir.path().join("adapter")).err().unwrap().to_string()
    };
    let [_, llama, _, plain, untied] = &all_configs()[..] else { unreachable!("there are five") };
    let place = |tensors: &Tensors, name: &str| tensors.iter().position(|(tensor, ..)| tensor.ends_with(name)).unwrap();
    let without = |name: &'static str| move |tensors: &mut Tensors| drop(tensors.remove(place(tensors, name)));
    let set = |name: &'static str| {
        move |tensors: &mut Tensors| {
            let place = place(tensors, name);
            tensors[place].2[..4].copy_from_slice(&1.5f32.to_le_bytes());
        }
    };
    let ties = ["ties lm_head.weight to model.embed_tokens.weight", "ensure_weight_tying"];
    for change in
        [&without("lm_head.weight") as &dyn Fn(&mut _), &without("embed_tokens.weight"), &set("lm_head.weight")]
    {
        let error = refused(llama, change);
        assert!(ties.iter().all(|part| error.contains(part)), "{error}");
    }
    let error = refused(untied, &without("lm_head.weight"));
    assert!(error.contains("has no tensor of lm_head, which is in modules_to_save"), "{error}");
    let error = refused(untied, &|tensors| {
        let place = place(tensors, "model.norm.weight");
        (tensors[place].1, tensors[place].2) = (vec![15], vec![0; 4 * 15]);
    });
    assert!(error.contains("model.norm.weight has shape [15], the model implies"), "{error}");
    let error = refused(plain, &set("ln_f.bias"));
    assert!(error.contains("transformer.ln_f.bias is not zero") && error.contains("has no biases"), "{error}");
}

#[test]
fn what_cannot_be_adapted_is_refused_by_name() {
    let refused = |config: &ModelConfig, lora: Lora| lora.adapt(&mut *build(config, 1).unwrap(), 1).unwrap_err();
    let [gpt2, llama, _] = &configs();
    let error = refused(gpt2, lora(&["c_attn", "q_proj"])).to_string();
    assert!(error.contains("\"q_proj\"") && error.contains("c_attn, c_proj, c_fc, or all-linear"), "{error}");
    let error = refused(llama, lora(&["proj"])).to_string();
    assert!(error.contains("\"proj\"") && error.contains("q_proj, k_proj, v_proj, o_proj"), "{error}");
    let saved = |targets: &[&str], module: &str| Lora { modules_to_save: vec![module.into()], ..lora(targets) };
    for (config, lora, told) in [
        (gpt2, saved(&["c_proj"], "norm"), "\"norm\" is not a module of this gpt2; expected wte, wpe, ln_1, c_attn"),
        (gpt2, saved(&["c_proj"], ALL_LINEAR), "\"all-linear\" is not a module of this gpt2; expected wte"),
        (gpt2, saved(&["attn.c_proj"], "c_proj"), "is transformer.h.0.attn.c_proj, which has an adapter"),
        (gpt2, saved(&["c_proj"], "lm_head"), "is lm_head, which is tied to the embedding (name wte"),
        (llama, saved(&["o_proj"], "k_proj"), "is model.layers.0.self_attn.k_proj, whose weight is fused with"),
        (llama, saved(&[ALL_LINEAR], "o_proj"), "which has an adapter (lora.targets); expected embed_tokens, input_l"),
    ] {
        let error = refused(config, lora).to_string();
        assert!(error.contains("lora.modules_to_save: ") && error.contains(told), "{error}");
    }
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
