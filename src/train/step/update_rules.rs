//! Update rules of parameters from the configuration, and their memory.

use crate::config::{self, Config, GroupConfig, OptimizerKind, Precision, Recompute, StateDtype};
use crate::models::{LanguageModel, ModelConfig, Recomputed, hf, matmul_weights};
use crate::nn::Parameter;
use crate::optim::{AdjustLr, ArenaOptions, Division, Group, Kind, MomentDtype, Optimizer, ParameterArena, shards};
use crate::train::setup::adapters::{self, Frozen, lora};
use crate::train::setup::init::first_model;
use crate::train::setup::precision::operands;
use crate::train::step::ranks::Place;
use crate::{DType, Device, Error, Result};
use globset::{Glob, GlobMatcher};
use std::collections::HashMap;
use std::path::Path;

/// The trained part of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    pub parameters: usize,
    /// Bytes of what the optimizer remembers: moments, and averages of weights.
    pub moment_bytes: usize,
    /// Of those, in a checkpoint.
    pub saved_moment_bytes: usize,
    /// Whether backward uses gradients up.
    pub layerwise: bool,
    /// Of how many of the parameters each of several ranks has f16 copies, and f32 values only of its own part.
    pub divided: usize,
    /// How many of those f32 values a rank lacks at least.
    pub elsewhere: usize,
    /// With LoRA, the other parameters of the model.
    pub frozen: Option<Frozen>,
}

/// The model as it is trained, with its parameters on the device, and the optimizer that the rank at this place has.
///
/// # Errors
/// If a group has no parameters, or the device runs out of memory.
pub(in crate::train) fn on_device(
    mut model: Box<dyn LanguageModel>,
    config: &Config,
    device: &Device,
    place: Place,
) -> Result<(Box<dyn LanguageModel>, ParameterArena, Optimizer)> {
    let blocks = model.config().n_layer;
    model.set_recompute(Recomputed {
        blocks: config.train.recomputed_blocks(blocks),
        attention: config.train.recompute == Recompute::Attention,
    });
    let numbers = numbers(config, &mut *model)?;
    let number_of = |name: &str, _: &Parameter| numbers[name];
    let group_of = |number| group(config, number);
    let of_matmuls = matmul_weights(&mut *model);
    let Place { rank, ranks } = if config.train.shard_optimizer { place } else { Place::ALONE };
    let division = Division { rank, ranks, group_of: &group_of, is_divided: &|name| of_matmuls.contains(name) };
    let division = divides_weights(config, ranks).then_some(&division);
    let operands = operands(config.device.precision);
    let layerwise = config.train.is_layerwise();
    let of_matmuls_alone: &dyn Fn(&str) -> bool = &|name| of_matmuls.contains(name);
    let offload = config.train.offloads_optimizer().then_some(of_matmuls_alone);
    let options = ArenaOptions { operands, group_of: &number_of, division, layerwise, offload };
    let parameters = ParameterArena::with_options(&mut *model, device, options)?;
    let part = shards(&parameters, &group_of, ranks).swap_remove(rank);
    let mut optimizer = Optimizer::of_part(&parameters, &group_of, config.train.grad_clip, &part)?;
    if config.train.ema_decay > 0.0 && place.rank == 0 {
        optimizer.keep_averages(&parameters, config.train.ema_decay)?;
    }
    Ok((model, parameters, optimizer))
}

/// The model of a configuration as a run on one device begins to train it.
///
/// # Errors
/// If `model.init` cannot be read or adapted, or the device runs out of memory.
pub fn initial_training(
    config: &Config,
    device: &Device,
) -> Result<(Box<dyn LanguageModel>, ParameterArena, Optimizer)> {
    let shape = hf::read_shape(Path::new(&config.model.init))?;
    on_device(first_model(config, &shape, None)?, config, device, Place::ALONE)
}

/// Whether each of so many ranks has the f32 weights of its own part alone, of what f16 copies are computed with.
/// Averages of the weights follow all of them on one rank, and with LoRA few are trained.
pub(in crate::train) fn divides_weights(config: &Config, ranks: usize) -> bool {
    let mixed = config.device.precision == Precision::Mixed;
    let all = config.train.ema_decay == 0.0 && config.lora.rank == 0;
    ranks > 1 && config.train.shard_optimizer && mixed && all
}

/// How many numbers of a model of this shape are trained on each of so many ranks, and remembered by all of them,
/// averages of weights included.
///
/// # Errors
/// If there is no such model, or it cannot be adapted as asked.
pub(in crate::train) fn trained(config: &Config, model: &ModelConfig, ranks: usize) -> Result<Trained> {
    let adapted = lora(config).map(|lora| adapters::count(&lora, model)).transpose()?;
    // Muon does not train adapters.
    let (parameters, matrices) =
        adapted.map_or((model.parameter_count(), model.block_matrices()), |(trained, _)| (trained, 0));
    let moments = |is_matrix, count| group(config, number(config, 0, is_matrix)).moment_bytes(count);
    let averages = if config.train.ema_decay > 0.0 { DType::F32.size_bytes() * parameters } else { 0 };
    let divided = if divides_weights(config, ranks) { model.matmul_weights() } else { 0 };
    let moment_bytes = moments(true, matrices) + moments(false, parameters - matrices) + averages;
    Ok(Trained {
        parameters,
        moment_bytes,
        saved_moment_bytes: if config.checkpoint.optimizer { moment_bytes } else { averages },
        layerwise: config.train.is_layerwise(),
        divided,
        elsewhere: divided.saturating_sub(parameters.div_ceil(ranks)),
        frozen: adapted.map(|(_, frozen)| frozen),
    })
}

/// The number of the parameters of group `own` of the configuration, or of no group if there are not so many: two for
/// each, as Muon updates matrices in blocks apart from the rest.
fn number(config: &Config, own: usize, is_matrix: bool) -> usize {
    let by_muon = config.optimizer.kind == OptimizerKind::Muon && is_matrix;
    2 * own + usize::from(!by_muon)
}

/// The number of every parameter, by its name.
fn numbers(config: &Config, model: &mut dyn LanguageModel) -> Result<HashMap<String, usize>> {
    let groups = &config.optimizer.group;
    let invalid = |i: usize, message: String| Error::Invalid(format!("optimizer.group number {}: {message}", i + 1));
    let pattern = |group: &GroupConfig| Glob::new(&group.pattern).map(|glob| glob.compile_matcher());
    let patterns = groups.iter().enumerate().map(|(i, group)| pattern(group).map_err(|e| invalid(i, e.to_string())));
    let patterns = patterns.collect::<Result<Vec<GlobMatcher>>>()?;
    let (mut parameters, mut numbers) = (Vec::new(), HashMap::new());
    let shape = model.config().clone();
    model.visit_parameters("", &mut |name, parameter| {
        if !parameter.is_trainable() {
            numbers.insert(name.to_string(), 0);
            return;
        }
        // An adapter has one name.
        let is_adapter = name.contains("lora_");
        let names = if is_adapter { vec![] } else { shape.tensor_names(name, parameter.shape()) };
        parameters.push((name.to_string(), names, parameter.linear.is_some()));
    });
    // How many match each pattern, and how many of those no earlier one.
    let (mut matched, mut members) = (vec![0; groups.len()], vec![0; groups.len()]);
    for (name, names, is_matrix) in &parameters {
        let mut own = groups.len();
        for (i, pattern) in patterns.iter().enumerate() {
            if matches(pattern, name, names).map_err(|message| invalid(i, message))? {
                matched[i] += 1;
                own = own.min(i);
            }
        }
        members.iter_mut().skip(own).take(1).for_each(|members| *members += 1);
        numbers.insert(name.clone(), number(config, own, *is_matrix));
    }
    match members.iter().position(|&members| members == 0) {
        Some(i) if matched[i] == 0 => {
            let some: Vec<&str> = parameters.iter().take(8).map(|(name, ..)| &**name).collect();
            let (pattern, count) = (&groups[i].pattern, parameters.len());
            let some = some.join(", ");
            Err(invalid(i, format!("match = {pattern:?} matches none of {count} parameters, such as {some}")))
        }
        Some(i) => {
            let pattern = &groups[i].pattern;
            Err(invalid(i, format!("all that match = {pattern:?} matches is in the groups before it; put it first")))
        }
        None => Ok(numbers),
    }
}

/// Whether a pattern means the parameter `name`, which `model.safetensors` has under these names.
fn matches(pattern: &GlobMatcher, name: &str, stored: &[String]) -> std::result::Result<bool, String> {
    let (named, others): (Vec<&String>, Vec<&String>) = stored.iter().partition(|stored| pattern.is_match(stored));
    if pattern.is_match(name) || others.is_empty() {
        return Ok(true);
    }
    match named.first() {
        Some(named) => Err(format!(
            "match = {:?} matches {named} and not {}, which are one parameter here and in one group: \
             write a pattern that matches {name}",
            pattern.glob().glob(),
            others[0]
        )),
        None => Ok(false),
    }
}

/// How the parameters of this number are updated.
fn group(config: &Config, number: usize) -> Group {
    let (o, by_muon) = (&config.optimizer, number.is_multiple_of(2));
    let adamw = Kind::AdamW { beta1: o.beta1, beta2: o.beta2, eps: o.eps };
    let kind = match o.kind {
        OptimizerKind::Muon if by_muon => Kind::Muon {
            momentum: o.momentum,
            nesterov: o.nesterov,
            ns_steps: o.ns_steps,
            adjust_lr: match o.adjust_lr {
                config::AdjustLr::Original => AdjustLr::Original,
                config::AdjustLr::MatchRmsAdamW => AdjustLr::MatchRmsAdamW,
            },
        },
        OptimizerKind::AdamW | OptimizerKind::Muon => adamw,
        OptimizerKind::Adam => Kind::Adam { beta1: o.beta1, beta2: o.beta2, eps: o.eps },
        OptimizerKind::Sgd => Kind::Sgd { momentum: o.momentum, nesterov: false },
        OptimizerKind::Nag => Kind::Sgd { momentum: o.momentum, nesterov: true },
        OptimizerKind::RmsProp => {
            Kind::RmsProp { alpha: o.alpha, eps: o.eps, momentum: o.momentum, centered: o.centered }
        }
        OptimizerKind::Lion => Kind::Lion { beta1: o.beta1, beta2: o.beta2 },
    };
    let has_own_rate = by_muon && o.muon_learning_rate > 0.0;
    let lr_scale = if has_own_rate { o.muon_learning_rate / config.train.learning_rate } else { 1.0 };
    let own = o.group.get(number / 2);
    let own_decay = own.and_then(|own| own.weight_decay);
    Group {
        kind,
        lr_scale: lr_scale * own.map_or(1.0, |own| own.lr_scale),
        weight_decay: own_decay.unwrap_or(o.weight_decay),
        decays_vectors: own_decay.is_some(),
        moment_dtype: match o.state_dtype {
            StateDtype::F32 => MomentDtype::F32,
            StateDtype::Int8 => MomentDtype::Int8,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{build, testing};
    use crate::tensor::DryRun;

    /// What a plan says before there is a model, and what the optimizer then has but for padding.
    #[test]
    fn moments_are_counted_without_a_model() {
        let models = [testing::small(65, 16, 2, 24), testing::small_llama("llama"), testing::small_llama("qwen3")];
        let kinds = OptimizerKind::CHOICES.iter().flat_map(|kind| StateDtype::CHOICES.iter().map(move |t| (kind, t)));
        for (model, (kind, state_dtype)) in models.iter().flat_map(|model| kinds.clone().map(move |kind| (model, kind)))
        {
            let case = format!("{kind} {state_dtype}: {model:?}");
            let mut config = Config::default();
            config.optimizer.kind = kind.parse().unwrap();
            config.optimizer.state_dtype = state_dtype.parse().unwrap();
            let device = Device::DryRun(DryRun::cpu());
            let (_, arena, optimizer) = on_device(build(model, 1).unwrap(), &config, &device, Place::ALONE).unwrap();
            let padding = arena.trainable_len() - model.parameter_count();
            let moments = optimizer.moments();
            let remembered: usize = moments.iter().map(|(_, tensor)| tensor.spec().size_bytes()).sum();
            let most_per_element = 8;
            let told = trained(&config, model, 1).unwrap().moment_bytes;
            assert!(remembered.abs_diff(told) <= most_per_element * padding, "{told}, not {remembered}: {case}");
            assert!(optimizer.averages().is_none());
            config.train.ema_decay = 0.9;
            let (_, arena, optimizer) = on_device(build(model, 1).unwrap(), &config, &device, Place::ALONE).unwrap();
            assert_eq!(optimizer.averages().unwrap().len(), arena.trainable_len());
            let with_averages = trained(&config, model, 1).unwrap().moment_bytes;
            assert_eq!(with_averages, told + 4 * model.parameter_count(), "{case}");
        }
    }

    /// What a plan says of the f32 values of the rank that has most, where ranks divide them.
    #[test]
    fn divided_weights_are_counted_without_a_model() {
        let untied = ModelConfig { tie_embeddings: false, ..testing::small(65, 16, 2, 24) };
        let models = [testing::small(65, 16, 4, 24), untied, testing::small_llama("qwen3")];
        let mut config = Config::default();
        (config.device.precision, config.train.shard_optimizer) = (Precision::Mixed, true);
        for (model, ranks) in models.iter().flat_map(|model| [1, 2, 4].map(|ranks| (model, ranks))) {
            let held = |rank| {
                let (device, place) = (Device::DryRun(DryRun::cpu()), Place { rank, ranks });
                let (_, arena, _) = on_device(build(model, 1).unwrap(), &config, &device, place).unwrap();
                // Each parameter is padded.
                (arena.values().len(), 256 * arena.entries.len())
            };
            let (most, padding) = (0..ranks).map(held).max().unwrap();
            let trained = trained(&config, model, ranks).unwrap();
            let told = trained.parameters - trained.elsewhere;
            assert!(told <= most && most <= told + padding, "{told} and {most} on {ranks}: {model:?}");
            assert_eq!(trained.elsewhere > 0, ranks > 1, "{model:?}");
        }
    }

    #[test]
    fn muon_updates_the_matrices_in_blocks_alone() {
        let mut config = Config::default();
        config.optimizer.kind = OptimizerKind::Muon;
        for (model, others) in [
            (testing::small(65, 16, 2, 24), &["wte.weight", "wpe.weight"][..]),
            (testing::small_llama("llama"), &["embed_tokens.weight"]),
            (
                crate::models::ModelConfig { tie_embeddings: false, ..testing::small_llama("qwen3") },
                &["embed_tokens.weight", "lm_head.weight"],
            ),
        ] {
            let device = Device::DryRun(DryRun::cpu());
            let (_, arena, optimizer) = on_device(build(&model, 1).unwrap(), &config, &device, Place::ALONE).unwrap();
            let moments = optimizer.moments();
            let (of_muon, _) = moments.iter().find(|(moment, _)| moment.name == "momentum_buffer").unwrap();
            let is_matrix = |shape: &crate::Shape| shape.len() == 2;
            let with_adamw = arena.entries.iter().filter(|entry| !of_muon.range.contains(&entry.offset));
            let matrices: Vec<&str> = with_adamw.filter(|e| is_matrix(&e.shape)).map(|e| &*e.name).collect();
            assert_eq!(matrices, others);
        }
    }

    #[test]
    fn muon_may_have_a_learning_rate_of_its_own() {
        let mut config = Config::default();
        (config.optimizer.kind, config.train.learning_rate) = (OptimizerKind::Muon, 0.01);
        assert_eq!([0, 1].map(|number| group(&config, number).lr_scale), [1.0, 1.0]);
        config.optimizer.muon_learning_rate = 0.02;
        assert_eq!([0, 1].map(|number| group(&config, number).lr_scale), [2.0, 1.0]);
    }

    fn with_groups(kind: &str, groups: &[(&str, f64, Option<f64>)]) -> Config {
        let mut config = Config::default();
        (config.optimizer.kind, config.optimizer.weight_decay) = (kind.parse().unwrap(), 0.0);
        let group = |&(pattern, lr_scale, weight_decay): &(&str, f64, Option<f64>)| GroupConfig {
            pattern: pattern.into(),
            lr_scale,
            weight_decay,
        };
        config.optimizer.group = groups.iter().map(group).collect();
        config
    }

    /// After one update with gradients of -1, by how much each parameter has changed.
    fn changes(config: &Config, model: &ModelConfig) -> HashMap<String, Vec<f32>> {
        let (mut model, arena, mut optimizer) =
            on_device(build(model, 1).unwrap(), config, &Device::Cpu, Place::ALONE).unwrap();
        let before = arena.values().to_f32().unwrap();
        for (_, tensor) in model.parameters() {
            tensor.grad().unwrap().write_bytes(bytemuck::cast_slice(&vec![-1f32; tensor.len()])).unwrap();
        }
        optimizer.step(&arena, 0.01).unwrap();
        let after = arena.values().to_f32().unwrap();
        let of = |entry: &crate::optim::Entry| {
            let pairs = before[entry.range()].iter().zip(&after[entry.range()]);
            (entry.name.clone(), pairs.map(|(b, a)| b - a).collect())
        };
        arena.entries.iter().map(of).collect()
    }

    #[test]
    fn the_first_group_that_matches_sets_rate_and_decay() {
        let model = testing::small(65, 16, 2, 24);
        let largest =
            |changes: &HashMap<String, Vec<f32>>, name: &str| changes[name].iter().fold(0f32, |m, x| m.max(x.abs()));
        for kind in OptimizerKind::CHOICES {
            let plain = changes(&with_groups(kind, &[]), &model);
            let groups = [("*.wte.*", 0.0, None), ("*wte*", 3.0, None), ("*.bias", 2.0, None)];
            let error = on_device(build(&model, 1).unwrap(), &with_groups(kind, &groups), &Device::Cpu, Place::ALONE)
                .err()
                .unwrap();
            assert!(error.to_string().contains("number 2: all that match = \"*wte*\" matches"), "{error}");
            let groups = [("*.wte.*", 0.0, None), ("*w?e*", 3.0, Some(0.0)), ("*.bias", 2.0, None)];
            let scaled = changes(&with_groups(kind, &groups), &model);
            assert!(scaled["wte.weight"].iter().all(|change| *change == 0.0), "{kind}");
            for (name, by) in [("wpe.weight", 3.0), ("h.0.mlp.c_fc.bias", 2.0), ("h.0.mlp.c_fc.weight", 1.0)] {
                let factor = largest(&scaled, name) / largest(&plain, name);
                assert!((factor - by).abs() < 0.01, "{kind} {name}: {factor}");
            }
        }
    }

    #[test]
    fn a_decay_that_is_set_is_one_of_vectors_too() {
        let model = testing::small_llama("qwen3");
        for kind in OptimizerKind::CHOICES {
            let plain = changes(&with_groups(kind, &[]), &model);
            let decayed = changes(&with_groups(kind, &[("*norm.weight", 1.0, Some(50.0))]), &model);
            for (name, change) in &plain {
                assert_eq!(decayed[name] != *change, name.ends_with("norm.weight"), "{kind} {name}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_model_and_of_its_file() {
        let model = testing::small_llama("llama");
        let numbers = |pattern: &str| {
            let config = with_groups("adamw", &[(pattern, 1.0, None)]);
            let numbers = numbers(&config, &mut *build(&model, 1).unwrap()).map_err(|error| error.to_string())?;
            Ok::<_, String>(numbers.values().filter(|number| **number < 2).count())
        };
        assert_eq!(numbers("layers.0.mlp.gate_up_proj.weight"), Ok(1));
        assert_eq!(numbers("model.layers.0.mlp.{gate,up}_proj.weight"), Ok(1));
        assert_eq!(numbers("model.layers.[01].mlp.*"), Ok(4));
        assert_eq!(numbers("*"), Ok(14));
        let error = numbers("*.q_proj.*").unwrap_err();
        let parts = ["number 1", "model.layers.0.self_attn.q_proj.weight and not", "k_proj", "qkv_proj.weight"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        let error = numbers("*.wte.*").unwrap_err();
        assert!(error.contains("\"*.wte.*\" matches none of 14 parameters, such as embed_tokens.weight"), "{error}");
    }
}
