//! Says that a model is too large for where it is to be used, before memory for it is asked for.

use crate::nn::GptConfig;
use crate::optim::Kind;
use crate::{DType, Device, Error, Result};

/// Checks the largest tensors of a model, and those of a pass over `tokens` tokens, against what `device` can bind. The
/// operands of products are of type `operands`.
///
/// # Errors
/// [`Error::GpuLimit`] or [`Error::Invalid`], which name what does not fit.
pub fn check_size(model: &GptConfig, tokens: usize, operands: DType, device: &Device) -> Result<()> {
    let [v, t, c, tokens] = [model.vocab_size, model.block_size, model.n_embd, tokens].map(|n| n as u64);
    let width = "use a smaller model.n_embd";
    let (value, operand) = (DType::F32.size_bytes() as u64, operands.size_bytes() as u64);
    let tensors = [
        ("wte.weight", v * c, value, "use a smaller vocabulary or model.n_embd"),
        ("wpe.weight", t * c, value, "use a smaller model.block_size or model.n_embd"),
        ("h.0.attn.c_attn.weight", 3 * c * c, value, width),
        ("h.0.mlp.c_fc.weight", 4 * c * c, value, width),
        (
            "the widest activation of a pass",
            4 * c * tokens,
            operand,
            "use a smaller batch (train.batch_size, with train.grad_accum_steps to make up for it) or model.block_size",
        ),
    ];
    for (what, elements, bytes, hint) in tensors {
        if elements > u64::from(u32::MAX) {
            return Err(Error::Invalid(format!(
                "{what} would have {elements} elements, a tensor holds at most {}; {hint}",
                u32::MAX
            )));
        }
        if let Some(adapter) = device.adapter() {
            check_limit(what.into(), bytes * elements, device.limits().binding_bytes, &adapter.name, hint)?;
        }
    }
    if let Some(adapter) = device.adapter() {
        let parameters = model.parameter_count() as u64;
        let hint = "use a smaller model.n_embd, model.n_layer or vocabulary";
        let what = format!("the buffer of all {parameters} parameters");
        check_limit(what, value * parameters, device.limits().buffer_bytes, &adapter.name, hint)?;
    }
    Ok(())
}

/// Checks whether the machine has the memory to train a model: on Linux alone, elsewhere everything passes.
///
/// # Errors
/// If it has not.
pub(super) fn check_memory(model: &GptConfig, optimizer: &Kind, device: &Device) -> Result<()> {
    let per_parameter = bytes_per_parameter(optimizer, device);
    compare_memory(model.parameter_count() as u64, per_parameter, available_memory_bytes())
}

/// Bytes of the machine's memory that every parameter takes when a checkpoint is written, which every run does.
fn bytes_per_parameter(optimizer: &Kind, device: &Device) -> u64 {
    let number = DType::F32.size_bytes() as u64;
    let moments = number * optimizer.moments() as u64;
    // What is saved, off the device, and the longer of the two files that are made of it one after the other.
    let (values, staged) = (number, number + moments);
    if device.is_gpu() {
        // The buffers are kept for the next snapshot.
        staged + values.max(moments)
    } else {
        // The copy of the values is dropped before the second file is made.
        values + number + moments + (staged + values).max(moments + moments)
    }
}

fn check_limit(what: String, needed: u64, limit: u64, adapter: &str, hint: &str) -> Result<()> {
    if needed <= limit {
        return Ok(());
    }
    let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
    Err(Error::GpuLimit {
        what,
        needed: mib(needed),
        adapter: adapter.to_string(),
        limit: mib(limit),
        hint: format!("{hint}, or --device cpu"),
    })
}

fn compare_memory(parameters: u64, per_parameter: u64, available: Option<u64>) -> Result<()> {
    let needed = parameters * per_parameter;
    match available {
        Some(available) if needed > available => Err(Error::Invalid(format!(
            "a model of {parameters} parameters needs at least {} MiB of memory, this machine has {} MiB to spare; use \
             a smaller model.n_embd, model.n_layer or vocabulary",
            needed >> 20,
            available >> 20
        ))),
        _ => Ok(()),
    }
}

/// Memory that can be had without swapping, where the system says so in the way of Linux.
fn available_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(vocab_size: usize, n_embd: usize) -> GptConfig {
        GptConfig { vocab_size, block_size: 64, n_layer: 1, n_head: 1, n_embd, bias: true, tie_embeddings: true }
    }

    #[test]
    fn a_small_model_fits() {
        check_size(&model(65, 64), 1024, DType::F32, &Device::Cpu).unwrap();
    }

    #[test]
    fn a_tensor_with_too_many_elements_is_named() {
        let error = check_size(&model(65, 1 << 16), 1024, DType::F32, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("c_attn") && error.contains("model.n_embd"), "{error}");
        let error = check_size(&model(65, 64), 1 << 25, DType::F32, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("activation") && error.contains("train.batch_size"), "{error}");
    }

    #[test]
    fn a_model_beyond_the_memory_says_how_much_there_is() {
        let error = compare_memory(1 << 30, 16, Some(8 << 30)).unwrap_err().to_string();
        assert!(error.contains("16384 MiB") && error.contains("8192 MiB"), "{error}");
        compare_memory(1 << 30, 16, Some(16 << 30)).unwrap();
        compare_memory(1 << 30, 16, None).unwrap();
    }

    #[test]
    fn a_checkpoint_counts_as_what_is_copied_and_encoded_for_it() {
        let adamw = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
        let sgd = Kind::Sgd { momentum: 0.9 };
        // Value, gradient, moments; their copies without the gradient; model.safetensors.
        assert_eq!(bytes_per_parameter(&adamw, &Device::Cpu), (4 + 4 + 8) + (4 + 8) + 4);
        assert_eq!(bytes_per_parameter(&sgd, &Device::Cpu), (4 + 4 + 4) + (4 + 4) + 4);
        let Some(gpu) = crate::gpu::gpu_for_tests().map(Device::Gpu) else { return };
        // Staged values and moments, optimizer.safetensors.
        assert_eq!(bytes_per_parameter(&adamw, &gpu), (4 + 8) + 8);
        assert_eq!(bytes_per_parameter(&sgd, &gpu), (4 + 4) + 4);
    }

    #[test]
    fn an_activation_of_mixed_precision_counts_two_bytes_per_element() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let limit = gpu.limits().binding_bytes;
        let gpu = Device::Gpu(gpu);
        let c = 1 << 8;
        // As many tokens as fill a binding with the widest activation in f16.
        let tokens = (limit / (2 * 4 * c)) as usize;
        check_size(&model(65, c as usize), tokens, DType::F16, &gpu).unwrap();
        for (tokens, operands) in [(tokens + 1, DType::F16), (tokens / 2 + 1, DType::F32)] {
            let error = check_size(&model(65, c as usize), tokens, operands, &gpu).unwrap_err().to_string();
            assert!(error.contains("widest activation"), "{error}");
        }
    }

    #[test]
    fn a_binding_beyond_the_limit_says_what_to_do() {
        let error = check_limit("wte.weight".into(), 129 << 20, 128 << 20, "an adapter", "shrink").unwrap_err();
        assert!(error.to_string().contains("wte.weight needs 129 MiB, but an adapter allows 128 MiB"), "{error}");
        check_limit("wte.weight".into(), 128 << 20, 128 << 20, "an adapter", "shrink").unwrap();
    }
}
