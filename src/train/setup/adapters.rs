//! LoRA settings from `[lora]`.

use crate::config::{Config, WeightDtype};
use crate::models::{Lora, ModelConfig, build};
use crate::tensor::{DryRun, with_weights_on};
use crate::{DType, Device, Error, Result};

/// The LoRA settings, if LoRA is enabled.
pub fn lora(config: &Config) -> Option<Lora> {
    let l = &config.lora;
    (l.rank > 0).then(|| Lora {
        rank: l.rank,
        alpha: match l.rank as f64 {
            _ if l.alpha > 0.0 => l.alpha,
            rank if l.rslora => 2.0 * rank.sqrt(),
            rank => 2.0 * rank,
        },
        rslora: l.rslora,
        dora: l.dora,
        dropout: l.dropout,
        targets: l.targets.clone(),
        base: storage(l.base_dtype),
    })
}

/// A storage type of the configuration, as tensors have it.
pub fn storage(dtype: WeightDtype) -> DType {
    match dtype {
        WeightDtype::F32 => DType::F32,
        WeightDtype::F16 => DType::F16,
        WeightDtype::Q8_0 => DType::Q8_0,
        WeightDtype::Q4_0 => DType::Q4_0,
        WeightDtype::Nf4 => DType::Nf4,
    }
}

/// Number of LoRA parameters of a model of this shape, computed without allocating.
///
/// # Errors
/// If the shape is invalid, or a target does not match a layer.
pub fn count(lora: &Lora, shape: &ModelConfig) -> Result<usize> {
    let mut count = 0;
    with_weights_on(Device::DryRun(DryRun::cpu()), || {
        let mut model = build(shape, 0)?;
        lora.adapt(&mut *model, 0)?;
        model.visit_parameters("", &mut |_, parameter| {
            count += if parameter.is_trainable() { parameter.len() } else { 0 };
        });
        Ok(())
    })?;
    Ok(count)
}

/// Checks that a device supports the configured type of frozen weights.
///
/// # Errors
/// If it does not, with the reason.
pub fn check_base(config: &Config, device: &Device) -> Result<()> {
    match (lora(config), device.adapter()) {
        (Some(Lora { base: DType::F16, .. }), Some(adapter)) if !device.has_f16() => {
            Err(Error::Invalid(format!("lora.base_dtype is f16, and {} does not support f16; use f32", adapter.name)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::small_llama;

    /// `model.print_trainable_parameters()` of PEFT 0.19 for SmolLM2-135M, rank 8, all linear layers.
    #[test]
    fn adapters_have_the_parameters_that_peft_counts() {
        let mut shape = ModelConfig { n_layer: 30, n_head: 9, n_embd: 576, ..small_llama("llama") };
        let llama = shape.llama.as_mut().unwrap();
        (llama.n_kv_head, llama.head_dim, llama.intermediate_size) = (3, 64, 1536);
        let lora = |targets: &[&str]| {
            let targets = targets.iter().map(|target| target.to_string()).collect();
            Lora { rank: 8, alpha: 16.0, rslora: false, dora: false, dropout: 0.0, targets, base: DType::F32 }
        };
        assert_eq!(count(&lora(&["all-linear"]), &shape).unwrap(), 2_442_240);
        // And the outputs of each: 30 x (576 + 192 + 192 + 576 + 1536 + 1536 + 576).
        assert_eq!(count(&Lora { dora: true, ..lora(&["all-linear"]) }, &shape).unwrap(), 2_442_240 + 155_520);
        // 30 x 8 x (576 + 576) and 30 x 8 x (576 + 192).
        assert_eq!(count(&lora(&["q_proj", "v_proj"]), &shape).unwrap(), 460_800);
    }

    #[test]
    fn without_an_alpha_the_factor_of_adapters_is_2_at_every_rank() {
        for (rank, rslora) in [(4, false), (4, true), (64, false), (64, true)] {
            let mut config = Config::default();
            (config.lora.rank, config.lora.rslora) = (rank, rslora);
            assert!((lora(&config).unwrap().scale() - 2.0).abs() < 1e-6, "{rank} {rslora}");
            config.lora.alpha = 16.0;
            let divisor = if rslora { (rank as f32).sqrt() } else { rank as f32 };
            assert_eq!(lora(&config).unwrap().scale(), 16.0 / divisor);
        }
    }
}
