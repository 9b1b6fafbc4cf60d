//! Weights stored in f16 only or quantized, which divides their memory and traffic: for the frozen base of LoRA, and
//! for inference.

use super::LanguageModel;
use crate::nn::Parameter;
use crate::{DType, Device, Error, Result};
use half::f16;
use std::collections::HashSet;

/// Names of the parameters that only GEMMs read: linear layers, and a head that is not tied to the embedding. For a
/// model that is not in an arena yet.
pub(crate) fn matmul_weights(model: &mut dyn LanguageModel) -> HashSet<String> {
    let head = (!model.config().tie_embeddings).then(|| model.head().clone());
    let mut names = HashSet::new();
    model.visit_parameters("", &mut |name, parameter| {
        if parameter.linear.is_some() || head.as_ref().is_some_and(|head| head.same(&parameter.value)) {
            names.insert(name.to_string());
        }
    });
    names
}

/// Whether the values of a parameter can be f16; `setting` asked for that.
///
/// # Errors
/// If one is too large.
pub(super) fn check(setting: &str, name: &str, parameter: &Parameter) -> Result<()> {
    check_range([setting, "f16"], name, parameter)
}

/// Whether the values of a parameter are in the range of f16, as GEMMs with quantized weights need too.
fn check_range([setting, asked]: [&str; 2], name: &str, parameter: &Parameter) -> Result<()> {
    if !parameter.device().has_values() {
        return Ok(());
    }
    let largest = parameter.largest_magnitude()?;
    if largest <= f16::MAX.to_f32() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{setting} is {asked}, but {name} has {largest}, above f16's largest value 65504; use f32"
    )))
}

/// Moves a model to a device for inference, with its GEMM operands as f16 unless they are quantized. A tied embedding
/// also stays f32, because its rows start the residual stream. `setting` is the requested option, for errors.
///
/// # Errors
/// If a weight is too large for f16, or the device does not support f16 or runs out of memory.
pub fn to_device_as_f16(model: &mut dyn LanguageModel, setting: &str, device: &Device) -> Result<()> {
    let (head, is_tied) = (model.head().clone(), model.config().tie_embeddings);
    each(model, |name, parameter| match parameter {
        _ if parameter.dtype() != DType::F32 => Ok(()),
        _ if parameter.value.overlaps(&head) => check(setting, name, parameter),
        _ if parameter.linear.is_some() => check(setting, name, parameter).and_then(|()| parameter.freeze_as_f16()),
        _ => Ok(()),
    })?;
    model.to_device(device)?;
    let head = model.head().clone();
    each(model, |_, parameter| match parameter {
        _ if parameter.dtype() != DType::F32 || !parameter.value.overlaps(&head) => Ok(()),
        _ if is_tied => parameter.to_dtype(DType::F16).map(|half| parameter.half = Some(half)),
        _ => parameter.freeze_as_f16(),
    })
}

/// Moves a model to a device for inference, with its linear layers, embedding and head quantized. `setting` is the
/// requested option, for errors.
///
/// # Errors
/// If the rows of a weight are not whole blocks, or the device runs out of memory.
pub fn to_device_quantized(model: &mut dyn LanguageModel, dtype: DType, setting: &str, device: &Device) -> Result<()> {
    let (head, table) = (model.head().clone(), model.token_embeddings().clone());
    each(model, |name, parameter| {
        let is_table = parameter.value.same(&table);
        match is_table || parameter.linear.is_some() || parameter.value.same(&head) {
            true => quantize(setting, [dtype, if is_table { of_table(dtype) } else { dtype }], name, parameter),
            false => Ok(()),
        }
    })?;
    model.to_device(device)
}

/// The type of the token embeddings beside weights of this type: at least 8 bits, because each of its rows is used
/// alone.
pub(super) fn of_table(dtype: DType) -> DType {
    if dtype.is_quantized() { DType::Q8_0 } else { dtype }
}

/// Quantizes a parameter: with this type asked for, to the other.
///
/// # Errors
/// If its rows are not whole blocks, or memory runs out.
pub(super) fn quantize(setting: &str, [asked, dtype]: [DType; 2], name: &str, parameter: &mut Parameter) -> Result<()> {
    let is_last = parameter.linear.as_ref().is_none_or(|layout| layout.outputs_first);
    let (inputs, block) = (parameter.shape()[usize::from(is_last)], dtype.block());
    if !inputs.is_multiple_of(block) {
        let (asked, dtype) = (asked.name(), dtype.name());
        return Err(Error::Invalid(format!(
            "{setting} is {asked}, but {name} has {inputs} inputs, no multiple of the {block} weights of a block of \
             {dtype}; use f16 or f32"
        )));
    }
    check_range([setting, asked.name()], name, parameter)?;
    parameter.freeze_quantized(dtype)
}

/// Calls `visit` with every parameter, up to the first error.
fn each(model: &mut dyn LanguageModel, mut visit: impl FnMut(&str, &mut Parameter) -> Result<()>) -> Result<()> {
    let mut result = Ok(());
    model.visit_parameters("", &mut |name, parameter| {
        if result.is_ok() {
            result = visit(name, parameter);
        }
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::models::testing::{small, small_llama};
    use crate::models::{ModelConfig, build};
    use crate::testing::assert_close;

    #[test]
    fn logits_are_nearly_those_of_f32_with_a_cache_and_without() {
        let untied = ModelConfig { tie_embeddings: false, ..small(50, 12, 2, 24) };
        for device in Device::for_tests().into_iter().filter(Device::has_f16) {
            for config in [small(50, 12, 2, 24), untied.clone(), small_llama("llama"), small_llama("qwen3")] {
                let [mut single, mut half] = [(); 2].map(|()| build(&config, 3).unwrap());
                single.to_device(&device).unwrap();
                to_device_as_f16(&mut *half, "--dtype", &device).unwrap();
                half.visit_parameters("", &mut |name, parameter| {
                    let is_f16 = parameter.linear.is_some() || name == "lm_head.weight";
                    assert_eq!(parameter.dtype() == DType::F16, is_f16, "{name}");
                });
                assert_eq!(half.head().dtype(), DType::F16, "{config:?}");
                let all = [1, 7, 11, 7, 3];
                let mut caches = [&single, &half].map(|model| model.cache(1, 5).unwrap());
                for part in [&all[..3], &all[3..4], &all[4..]] {
                    let ids = Tensor::from_u32(part, [1, part.len()], &device).unwrap();
                    let next = |i: usize, model: &dyn LanguageModel, caches: &mut [_; 2]| {
                        model.next_token_logits(&ids, &mut caches[i]).unwrap().to_f32().unwrap()
                    };
                    let (want, got) = (next(0, &*single, &mut caches), next(1, &*half, &mut caches));
                    // 11 bits, through a few layers whose results are of size 1.
                    assert_close(format!("{device}, {config:?}"), &got, &want, 4e-3, 0.0);
                    assert!(got != want, "{device}: nothing was rounded");
                }
            }
        }
    }

    #[test]
    fn weights_that_are_too_large_are_refused() {
        let mut model = build(&small(50, 12, 2, 24), 3).unwrap();
        model.visit_parameters("", &mut |name, parameter| {
            if name == "h.0.mlp.c_fc.weight" {
                let len = parameter.len();
                parameter.write_bytes(bytemuck::cast_slice(&vec![-70_000.0_f32; len])).unwrap();
            }
        });
        let error = to_device_as_f16(&mut *model, "--dtype", &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("--dtype is f16") && error.contains("h.0.mlp.c_fc.weight has 70000"), "{error}");
    }
}
