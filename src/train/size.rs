//! Says that a model is too large for where it is to be used, before memory for it is asked for.

use crate::nn::GptConfig;
use crate::{Device, Error, Result};

/// Bytes that every parameter takes at least. On the CPU: value, gradient and two moments. For a GPU the host only draws
/// the initial values and arranges them for the upload.
const CPU_BYTES: u64 = 16;
const GPU_HOST_BYTES: u64 = 8;

/// Checks the largest tensors of a model, and those of a pass over `tokens` tokens, against what `device` can bind.
///
/// # Errors
/// [`Error::GpuLimit`] or [`Error::Invalid`], which name what does not fit.
pub fn check_size(model: &GptConfig, tokens: usize, device: &Device) -> Result<()> {
    let [v, t, c, tokens] = [model.vocab_size, model.block_size, model.n_embd, tokens].map(|n| n as u64);
    let width = "use a smaller model.n_embd";
    let tensors = [
        ("wte.weight", v * c, "use a smaller vocabulary or model.n_embd"),
        ("wpe.weight", t * c, "use a smaller model.block_size or model.n_embd"),
        ("h.0.attn.c_attn.weight", 3 * c * c, width),
        ("h.0.mlp.c_fc.weight", 4 * c * c, width),
        (
            "the widest activation of a pass",
            4 * c * tokens,
            "use a smaller batch (train.batch_size, with train.grad_accum_steps to make up for it) or model.block_size",
        ),
    ];
    for (what, elements, hint) in tensors {
        if elements > u64::from(u32::MAX) {
            return Err(Error::Invalid(format!(
                "{what} would have {elements} elements, a tensor holds at most {}; {hint}",
                u32::MAX
            )));
        }
        if let Device::Gpu(gpu) = device {
            check_limit(what.into(), 4 * elements, gpu.limits().binding_bytes, &gpu.info().name, hint)?;
        }
    }
    if let Device::Gpu(gpu) = device {
        let parameters = model.parameter_count() as u64;
        let hint = "use a smaller model.n_embd, model.n_layer or vocabulary";
        let what = format!("the buffer of all {parameters} parameters");
        check_limit(what, 4 * parameters, gpu.limits().buffer_bytes, &gpu.info().name, hint)?;
    }
    Ok(())
}

/// Checks whether the machine has the memory to train a model: on Linux alone, elsewhere everything passes.
///
/// # Errors
/// If it has not.
pub(super) fn check_memory(model: &GptConfig, device: &Device) -> Result<()> {
    let per_parameter = if matches!(device, Device::Cpu) { CPU_BYTES } else { GPU_HOST_BYTES };
    compare_memory(model.parameter_count() as u64, per_parameter, available_memory_bytes())
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
        check_size(&model(65, 64), 1024, &Device::Cpu).unwrap();
    }

    #[test]
    fn a_tensor_with_too_many_elements_is_named() {
        let error = check_size(&model(65, 1 << 16), 1024, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("c_attn") && error.contains("model.n_embd"), "{error}");
        let error = check_size(&model(65, 64), 1 << 25, &Device::Cpu).unwrap_err().to_string();
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
    fn a_binding_beyond_the_limit_says_what_to_do() {
        let error = check_limit("wte.weight".into(), 129 << 20, 128 << 20, "an adapter", "shrink").unwrap_err();
        assert!(error.to_string().contains("wte.weight needs 129 MiB, but an adapter allows 128 MiB"), "{error}");
        check_limit("wte.weight".into(), 128 << 20, 128 << 20, "an adapter", "shrink").unwrap();
    }
}
