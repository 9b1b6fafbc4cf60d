//! Plans a training before memory is allocated: bytes, the largest tensors and FLOPs of a model; the footprint of a
//! run's steps (`footprint.rs`), whether it fits (`fit.rs`), and its duration (`run_plan.rs`).

mod cluster;
mod earlier;
mod fit;
mod footprint;
pub(super) mod init_sizes;
pub(super) mod precompile;
mod run_plan;

pub use cluster::{Cluster, ClusterPlan, ClusterRow, Speed};
pub(super) use fit::fits_comfortably;
pub use fit::{Memory, Passes, Saving};
pub use footprint::Footprint;
pub(super) use footprint::largest_rank;
pub use run_plan::{PlannedRanks, Rates, RunPlan, TimePlan, plan_run};

use crate::cpu::available_memory_bytes;
use crate::models::{LargeTensor, ModelConfig};
use crate::tensor::Spec;
use crate::train::setup::adapters::Frozen;
use crate::train::step::update_rules::Trained;
use crate::units;
use crate::{DType, Device, Error, Result};

/// Memory of a model on a device and, for checkpoints, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub parameters: usize,
    /// Bytes of the parameters: f32, or f16 for those stored in f16 only. With sharding, the largest share of a rank.
    pub parameter_bytes: u64,
    /// Bytes of the values in a checkpoint.
    pub saved_bytes: u64,
    /// Bytes of their f16 copies in mixed precision.
    pub half_bytes: u64,
    /// Bytes of their gradients, 0 without an optimizer.
    pub gradient_bytes: u64,
    /// Of those, bytes that are there between steps.
    kept_gradient_bytes: u64,
    /// Bytes of the optimizer's moments.
    pub moment_bytes: u64,
    /// Bytes of those in a checkpoint.
    pub saved_moment_bytes: u64,
    /// Bytes of updated parameters that ranks exchange with sharding, as f16 copies where they are sharded.
    pub updated_bytes: u64,
    /// The largest tensors of the model and of a pass.
    pub largest: Vec<TensorSize>,
    /// FLOPs per training token, forward and backward.
    pub train_flops_per_token: f64,
}

/// A tensor that may be too large.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSize {
    pub name: &'static str,
    pub elements: u64,
    pub bytes: u64,
    by_rows: bool,
    /// How to make it smaller.
    hint: &'static str,
}

impl Plan {
    /// The plan of a model, for a pass over `tokens` tokens with GEMM operands of type `operands`.
    pub fn new(model: &ModelConfig, tokens: usize, operands: DType, trained: Option<&Trained>) -> Plan {
        let parameters = model.parameter_count();
        let bytes = |dtype: DType, count: usize| (dtype.size_bytes() * count) as u64;
        let frozen = trained.and_then(|trained| trained.frozen);
        // Beside the frozen weights of matmuls nothing is f16 or quantized but the embedding.
        let small = frozen.filter(|frozen| frozen.base != DType::F32);
        let table = small.filter(|frozen| frozen.base.is_quantized()).map_or(0, |frozen| frozen.embedding);
        let of_small = |dtype: DType, count: usize| Spec::new([1, count], dtype).size_bytes() as u64;
        let small_bytes =
            small.map_or(0, |frozen| of_small(frozen.base, frozen.matmul_weights) + of_small(DType::Q8_0, table));
        let of_adapted = |trained: &Trained| Some(trained.frozen?.parameters + trained.parameters);
        let all = trained.and_then(of_adapted).unwrap_or(parameters);
        let in_f32 = all - small.map_or(0, |frozen| frozen.matmul_weights) - table;
        let elsewhere = trained.map_or(0, |trained| trained.elsewhere);
        let of_trained = |of: fn(&Trained) -> usize| trained.map_or(0, |trained| bytes(DType::F32, of(trained)));
        Plan {
            parameters,
            parameter_bytes: bytes(DType::F32, in_f32 - elsewhere) + small_bytes,
            half_bytes: if operands == DType::F16 { bytes(DType::F16, in_f32) } else { 0 },
            gradient_bytes: of_trained(|trained| trained.parameters),
            kept_gradient_bytes: of_trained(|trained| if trained.layerwise { 0 } else { trained.parameters }),
            moment_bytes: trained.map_or(0, |trained| trained.moment_bytes as u64),
            saved_moment_bytes: trained.map_or(0, |trained| trained.saved_moment_bytes as u64),
            updated_bytes: of_trained(|trained| trained.parameters - trained.divided)
                + trained.map_or(0, |trained| bytes(DType::F16, trained.divided)),
            saved_bytes: match trained {
                Some(Trained { frozen: Some(_), parameters, .. }) => bytes(DType::F32, *parameters),
                _ => bytes(DType::F32, parameters),
            },
            largest: largest_tensors(model, tokens, operands),
            train_flops_per_token: match frozen {
                // Without the gradients of frozen weights, a tied embedding included.
                Some(Frozen { matmul_weights, embedding, .. }) => {
                    let tied = if model.tie_embeddings { embedding } else { 0 };
                    model.train_flops_per_token() - 2.0 * (matmul_weights + tied) as f64
                }
                None => model.train_flops_per_token(),
            },
        }
    }

    /// Checks the largest tensors against what `device` can bind. Parameters lie in as many buffers as it takes.
    ///
    /// # Errors
    /// [`Error::GpuLimit`] or [`Error::Invalid`], which name what does not fit.
    pub fn check_device(&self, device: &Device) -> Result<()> {
        for TensorSize { name, elements, bytes, by_rows, hint } in &self.largest {
            if *elements > u64::from(u32::MAX) {
                return Err(Error::Invalid(format!(
                    "{name} would have {elements} elements, a tensor holds at most {}; {hint}",
                    u32::MAX
                )));
            }
            if let Some(adapter) = device.adapter().filter(|_| !by_rows) {
                check_limit(name.to_string(), *bytes, device.limits().matrix_bytes(), &adapter.name, hint)?;
            }
        }
        Ok(())
    }

    /// Bytes of the machine's memory while a checkpoint is written, which every run does.
    fn host_bytes(&self, on_gpu: bool) -> u64 {
        let resident = if on_gpu { 0 } else { self.parameter_bytes + self.kept_gradient_bytes + self.moment_bytes };
        resident + self.checkpoint_bytes()
    }

    /// Bytes of the machine's memory that writing a checkpoint takes: what is saved, off the device.
    fn checkpoint_bytes(&self) -> u64 {
        self.saved_bytes + self.saved_moment_bytes
    }
}

/// [`Plan::check_device`] for a pass of a model over `tokens` tokens.
///
/// # Errors
/// Those of [`Plan::check_device`].
pub fn check_size(model: &ModelConfig, tokens: usize, operands: DType, device: &Device) -> Result<()> {
    Plan::new(model, tokens, operands, None).check_device(device)
}

fn largest_tensors(model: &ModelConfig, tokens: usize, operands: DType) -> Vec<TensorSize> {
    let activation = LargeTensor {
        name: "the widest activation of a pass",
        elements: model.widest_activation().saturating_mul(tokens) as u64,
        by_rows: false,
        remedy: "use a smaller batch (train.batch_size, with train.grad_accum_steps to make up for it) or \
                 model.block_size",
    };
    let weights = model.largest_tensors().into_iter().map(|tensor| (tensor, DType::F32));
    let sized = |(LargeTensor { name, elements, by_rows, remedy }, dtype): (LargeTensor, DType)| TensorSize {
        name,
        elements,
        by_rows,
        bytes: elements.saturating_mul(dtype.size_bytes() as u64),
        hint: remedy,
    };
    weights.chain([(activation, operands)]).map(sized).collect()
}

fn check_limit(what: String, needed: u64, limit: u64, adapter: &str, hint: &str) -> Result<()> {
    if needed <= limit {
        return Ok(());
    }
    let [needed, limit] = units::unequal_bytes([needed, limit]);
    Err(Error::GpuLimit { what, needed, adapter: adapter.to_string(), limit, hint: format!("{hint}, or --device cpu") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(vocab_size: usize, n_embd: usize) -> ModelConfig {
        crate::models::testing::small(vocab_size, 64, 1, n_embd)
    }

    /// All of a model, of each parameter of which so many f32 are remembered.
    fn trained(model: &ModelConfig, moments: usize) -> Trained {
        let parameters = model.parameter_count();
        let moment_bytes = 4 * moments * parameters;
        let saved_moment_bytes = moment_bytes;
        Trained {
            parameters,
            moment_bytes,
            saved_moment_bytes,
            divided: 0,
            elsewhere: 0,
            frozen: None,
            layerwise: false,
        }
    }

    #[test]
    fn of_a_frozen_model_only_adapters_have_gradients_and_are_saved() {
        let model = model(65, 64);
        let (n, linear) = (model.parameter_count() as u64, model.matmul_weights() as u64);
        // So many of the model's parameters are among the 100 that are trained.
        let plan_without = |operands, base, in_full, embedding| {
            let (parameters, matmul_weights) = (model.parameter_count() - in_full, model.matmul_weights());
            let frozen = Some(Frozen { base, parameters, matmul_weights, embedding });
            let (moment_bytes, saved_moment_bytes) = (800, 800);
            let trained = Trained {
                parameters: 100,
                moment_bytes,
                saved_moment_bytes,
                divided: 0,
                elsewhere: 0,
                frozen,
                layerwise: false,
            };
            Plan::new(&model, 1024, operands, Some(&trained))
        };
        let table = 65 * 64;
        let plan = |operands, base| plan_without(operands, base, 0, table);
        let of = |plan: Plan| [plan.parameter_bytes, plan.half_bytes, plan.gradient_bytes, plan.moment_bytes];
        assert_eq!(of(plan(DType::F32, DType::F32)), [4 * (n + 100), 0, 400, 800]);
        assert_eq!(of(plan(DType::F16, DType::F32)), [4 * (n + 100), 2 * (n + 100), 400, 800]);
        let in_f32 = n - linear + 100;
        assert_eq!(of(plan(DType::F16, DType::F16)), [4 * in_f32 + 2 * linear, 2 * in_f32, 400, 800]);
        assert_eq!(plan(DType::F32, DType::F32).saved_bytes, 400);
        let no_adapters = plan_without(DType::F16, DType::F16, 100, table);
        assert_eq!(of(no_adapters), [4 * (n - linear) + 2 * linear, 2 * (n - linear), 400, 800]);
        let [all, but_table] = [table, 0].map(|frozen| plan_without(DType::F16, DType::Q8_0, table - frozen, frozen));
        let bytes = |count: u64| 34 * count.div_ceil(32);
        assert_eq!(all.parameter_bytes, 4 * (n - linear - table as u64 + 100) + bytes(linear) + bytes(table as u64));
        assert_eq!(but_table.parameter_bytes, 4 * (n - linear - table as u64 + 100) + bytes(linear));
        assert_eq!(but_table.train_flops_per_token - all.train_flops_per_token, 2.0 * table as f64);
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
    fn parameters_gradients_and_moments_are_counted_in_bytes() {
        let model = model(65, 64);
        let trained = |moments: usize| trained(&model, moments);
        let plan = Plan::new(&model, 1024, DType::F16, Some(&trained(2)));
        let n = model.parameter_count() as u64;
        let bytes = [plan.parameter_bytes, plan.half_bytes, plan.gradient_bytes, plan.moment_bytes];
        assert_eq!(bytes, [4 * n, 2 * n, 4 * n, 8 * n]);
        assert_eq!(plan.train_flops_per_token, model.train_flops_per_token());
        let inference = Plan::new(&model, 1024, DType::F32, None);
        assert_eq!([inference.half_bytes, inference.gradient_bytes, inference.moment_bytes], [0; 3]);
    }

    #[test]
    fn a_checkpoint_counts_as_what_is_copied_for_it() {
        let (adamw, sgd) = (2, 1);
        let model = model(65, 64);
        let bytes_per_parameter = |moments: usize, on_gpu| {
            let trained = trained(&model, moments);
            let bytes = Plan::new(&model, 1024, DType::F32, Some(&trained)).host_bytes(on_gpu);
            bytes / model.parameter_count() as u64
        };
        // Value, gradient, moments; their copies without the gradient.
        assert_eq!(bytes_per_parameter(adamw, false), (4 + 4 + 8) + (4 + 8));
        assert_eq!(bytes_per_parameter(sgd, false), (4 + 4 + 4) + (4 + 4));
        // Staged values and moments.
        assert_eq!(bytes_per_parameter(adamw, true), 4 + 8);
        assert_eq!(bytes_per_parameter(sgd, true), 4 + 4);
        let without = Trained { saved_moment_bytes: 0, ..trained(&model, adamw) };
        let bytes = Plan::new(&model, 1024, DType::F32, Some(&without)).host_bytes(true);
        assert_eq!(bytes, 4 * model.parameter_count() as u64);
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
