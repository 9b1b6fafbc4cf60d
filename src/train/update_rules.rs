//! From the configuration to the rules that update the parameters, and to what those remember.

use crate::config::{self, Config, OptimizerKind, Recompute};
use crate::models::{LanguageModel, ModelConfig};
use crate::nn::Parameter;
use crate::optim::{AdjustLr, Group, Kind, Optimizer, ParameterArena};
use crate::train::precision::operands;
use crate::{Device, Result};

/// The number of the group of the matrices in blocks, where Muon updates those; of all others.
const MATRICES: usize = 0;
const OTHERS: usize = 1;

/// The model as it is trained, with its parameters on the device, and their optimizer.
pub(in crate::train) fn on_device(
    mut model: Box<dyn LanguageModel>,
    config: &Config,
    device: &Device,
) -> Result<(Box<dyn LanguageModel>, ParameterArena, Optimizer)> {
    model.set_recompute(config.train.recompute == Recompute::Block);
    let group_of = |_: &str, parameter: &Parameter| number(config, parameter.linear.is_some());
    let parameters = ParameterArena::grouped(&mut *model, device, operands(config.device.precision), &group_of)?;
    let optimizer = Optimizer::with_groups(&parameters, &|number| group(config, number), config.train.grad_clip)?;
    Ok((model, parameters, optimizer))
}

/// How many numbers the optimizer remembers of a model.
pub(in crate::train) fn moments(config: &Config, model: &ModelConfig) -> usize {
    let (all, matrices) = (model.parameter_count(), model.block_matrices());
    let of = |is_matrix| group(config, number(config, is_matrix)).kind.moments();
    matrices * of(true) + (all - matrices) * of(false)
}

/// The group of a matrix in a block, or of another parameter.
fn number(config: &Config, is_matrix: bool) -> usize {
    if config.optimizer.kind == OptimizerKind::Muon && is_matrix { MATRICES } else { OTHERS }
}

fn group(config: &Config, number: usize) -> Group {
    let o = &config.optimizer;
    let adamw = Kind::AdamW { beta1: o.beta1, beta2: o.beta2, eps: o.eps };
    let kind = match o.kind {
        OptimizerKind::Muon if number == MATRICES => Kind::Muon {
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
        OptimizerKind::Sgd => Kind::Sgd { momentum: o.momentum },
    };
    let has_own_rate = matches!(kind, Kind::Muon { .. }) && o.muon_learning_rate > 0.0;
    let lr_scale = if has_own_rate { o.muon_learning_rate / config.train.learning_rate } else { 1.0 };
    Group { kind, lr_scale, weight_decay: o.weight_decay }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{build, testing};
    use crate::tensor::DryRun;

    /// What a plan says before there is a model, and what the optimizer then has.
    #[test]
    fn moments_are_counted_without_a_model() {
        let models = [testing::small(65, 16, 2, 24), testing::small_llama("llama"), testing::small_llama("qwen3")];
        for (model, kind) in
            models.iter().flat_map(|model| OptimizerKind::CHOICES.iter().map(move |kind| (model, kind)))
        {
            let mut config = Config::default();
            config.optimizer.kind = kind.parse().unwrap();
            let device = Device::DryRun(DryRun::cpu());
            let (_, arena, optimizer) = on_device(build(model, 1).unwrap(), &config, &device).unwrap();
            let inside = |range: &std::ops::Range<usize>| {
                let entries = arena.entries.iter().filter(|entry| range.contains(&entry.offset));
                entries.map(|entry| entry.shape.elements()).sum::<usize>()
            };
            let remembered: usize = optimizer.moments().iter().map(|(moment, _)| inside(&moment.range)).sum();
            assert_eq!(moments(&config, model), remembered, "{kind}: {model:?}");
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
            let (_, arena, optimizer) = on_device(build(&model, 1).unwrap(), &config, &device).unwrap();
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
        assert_eq!([MATRICES, OTHERS].map(|number| group(&config, number).lr_scale), [1.0, 1.0]);
        config.optimizer.muon_learning_rate = 0.02;
        assert_eq!([MATRICES, OTHERS].map(|number| group(&config, number).lr_scale), [2.0, 1.0]);
    }
}
