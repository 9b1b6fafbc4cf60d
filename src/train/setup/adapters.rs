//! LoRA settings from `[lora]`.

use crate::config::{Config, WeightDtype};
use crate::models::{Lora, ModelConfig, build, matmul_weights};
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
        modules_to_save: l.modules_to_save.clone(),
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

/// The parameters of a model that LoRA freezes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frozen {
    /// Storage type of the weights of matmuls.
    pub base: DType,
    /// Number of all of them.
    pub parameters: usize,
    /// Of those, weights that only matmuls read.
    pub matmul_weights: usize,
    /// Of those, the token embedding.
    pub embedding: usize,
}

/// The numbers of trained and frozen parameters of a model of this shape, computed without allocating.
///
/// # Errors
/// If the shape is invalid, or a name of a layer or module does not match.
pub fn count(lora: &Lora, shape: &ModelConfig) -> Result<(usize, Frozen)> {
    let mut trained = 0;
    let mut frozen = Frozen { base: lora.base, parameters: 0, matmul_weights: 0, embedding: 0 };
    with_weights_on(Device::DryRun(DryRun::cpu()), || {
        let mut model = build(shape, 0)?;
        let of_matmuls = matmul_weights(&mut *model);
        lora.adapt(&mut *model, 0)?;
        let embedding = model.token_embeddings().clone();
        model.visit_parameters("", &mut |name, parameter| match parameter.len() {
            len if parameter.is_trainable() => trained += len,
            // What adapters have beside their weights.
            _ if name.contains("lora_") => {}
            len => {
                frozen.parameters += len;
                frozen.matmul_weights += if of_matmuls.contains(name) { len } else { 0 };
                frozen.embedding += if parameter.value.same(&embedding) { len } else { 0 };
            }
        });
        Ok(())
    })?;
    Ok((trained, frozen))
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
            let (modules_to_save, base) = (vec![], DType::F32);
            Lora { rank: 8, alpha: 16.0, rslora: false, dora: false, dropout: 0.0, targets, modules_to_save, base }
        };
        let count = |lora: &Lora| count(lora, &shape).unwrap().0;
        assert_eq!(count(&lora(&["all-linear"])), 2_442_240);
        // And the outputs of each: 30 x (576 + 192 + 192 + 576 + 1536 + 1536 + 576).
        assert_eq!(count(&Lora { dora: true, ..lora(&["all-linear"]) }), 2_442_240 + 155_520);
        // 30 x 8 x (576 + 576) and 30 x 8 x (576 + 192).
        assert_eq!(count(&lora(&["q_proj", "v_proj"])), 460_800);
        // And all of the final norm.
        let modules_to_save = vec!["norm".into()];
        assert_eq!(count(&Lora { modules_to_save, ..lora(&["q_proj", "v_proj"]) }), 460_800 + 576);
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
