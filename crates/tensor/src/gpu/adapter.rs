//! Finds the adapters, orders them (discrete, integrated, virtual, other, software) and opens one.

use super::copy_queues::{self, CopyQueues};
use super::{AdapterChoice, AdapterInfo, GpuModel};
use crate::{Error, Result};
use wgpu::{DeviceType, Features};

/// Every adapter of the machine in index order: discrete first, software last.
pub fn adapters() -> Vec<AdapterInfo> {
    enumerate().iter().enumerate().map(|(index, adapter)| describe(index, adapter)).collect()
}

fn enumerate() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    // Stable: adapters of one kind keep the order in which the system lists them.
    adapters.sort_by_key(|a| match a.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    adapters
}

fn describe(index: usize, adapter: &wgpu::Adapter) -> AdapterInfo {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let known = [
        (Features::SHADER_F16, "f16"),
        (Features::SUBGROUP, "subgroups"),
        (Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_PASSES, "timestamps"),
        (Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative-matrix"),
        (Features::PIPELINE_CACHE, "pipeline-cache"),
    ];
    AdapterInfo {
        index,
        name: info.name,
        kind: match info.device_type {
            DeviceType::DiscreteGpu => "discrete",
            DeviceType::IntegratedGpu => "integrated",
            DeviceType::VirtualGpu => "virtual",
            DeviceType::Cpu => "software",
            DeviceType::Other => "other",
        },
        backend: info.backend.to_str().to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
        memory_bytes: memory_bytes(adapter),
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        workgroup_memory_bytes: limits.max_compute_workgroup_storage_size,
        max_workgroup_threads: limits.max_compute_invocations_per_workgroup,
        subgroup_size: [info.subgroup_min_size, info.subgroup_max_size],
        features: known.iter().filter(|(f, _)| features.contains(*f)).map(|(_, name)| *name).collect(),
    }
}

/// The adapter's local memory, bytes; wgpu does not report it.
#[cfg(not(target_vendor = "apple"))]
fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    /// VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handles are only read from, while the guard keeps the adapter alive.
    let properties = unsafe {
        let vulkan = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = vulkan.shared_instance().raw_instance();
        instance.get_physical_device_memory_properties(vulkan.raw_physical_device())
    };
    let local = properties.memory_heaps_as_slice().iter().filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
    local.map(|heap| heap.size).max()
}

/// Apple's GPUs share the machine's memory.
#[cfg(target_vendor = "apple")]
fn memory_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// An opened adapter.
pub(super) struct Opened {
    pub info: AdapterInfo,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub copy_queues: Option<CopyQueues>,
    /// [`Limits::coop_matrix`](super::Limits::coop_matrix)
    pub coop_matrix: u32,
    /// Key of its pipeline cache, if the backend supports them.
    pub pipeline_cache_key: Option<String>,
}

/// Opens the adapter that `choice` asks for with everything it offers that rustyflow has a use for.
///
/// # Errors
/// If there is no such adapter, if it computes on the CPU and that was not allowed, or if the driver refuses.
pub(super) fn open(choice: &AdapterChoice) -> Result<Opened> {
    let adapters = enumerate();
    let infos: Vec<AdapterInfo> = adapters.iter().enumerate().map(|(i, a)| describe(i, a)).collect();
    let index = choose(&infos, choice)?;
    let (adapter, info) = (&adapters[index], infos[index].clone());
    let descriptor = descriptor(adapter, choice);
    // WebGPU has one queue.
    let with_copies = if choice.default_limits { None } else { copy_queues::open(adapter, &descriptor) };
    let with_copies = with_copies.and_then(|opened| {
        let unopened = |e: &Error| tracing::warn!("{} is opened without transfer queues: {e}", info.name);
        opened.inspect_err(unopened).ok()
    });
    let (device, queue, copy_queues) = match with_copies {
        Some((device, queue, copy_queues)) => (device, queue, Some(copy_queues)),
        None => {
            let opened = pollster::block_on(adapter.request_device(&descriptor));
            let (device, queue) = opened.map_err(|e| Error::NoAdapter {
                reason: format!("{} does not open: {e}", info.name),
                hint: "update its driver, or train with --device cpu".into(),
            })?;
            (device, queue, None)
        }
    };
    #[cfg(test)]
    let copy_queues =
        copy_queues.or_else(|| if choice.default_limits { None } else { CopyQueues::of_the_only_queue(&device) });
    let has_coop = device.features().contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16);
    let coop_matrix = if has_coop { coop_matrix(adapter) } else { 0 };
    Ok(Opened {
        info,
        device,
        queue,
        copy_queues,
        coop_matrix,
        pipeline_cache_key: wgpu::util::pipeline_cache_key(&adapter.get_info()),
    })
}

/// Features and limits to request from this adapter.
fn descriptor(adapter: &wgpu::Adapter, choice: &AdapterChoice) -> wgpu::DeviceDescriptor<'static> {
    let wanted = Features::SHADER_F16
        | Features::SUBGROUP
        | Features::SUBGROUP_BARRIER
        | Features::IMMEDIATES
        | Features::TIMESTAMP_QUERY
        | Features::TIMESTAMP_QUERY_INSIDE_PASSES
        | Features::PIPELINE_CACHE
        | Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    let (wanted, required_limits) = if choice.default_limits {
        // Not even immediates: WebGPU has none.
        let beyond = Features::SHADER_F16
            | Features::SUBGROUP
            | Features::SUBGROUP_BARRIER
            | Features::IMMEDIATES
            | Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        (wanted - beyond, wgpu::Limits::defaults())
    } else {
        (wanted, adapter.limits())
    };
    let largest = choice.buffer_bytes.unwrap_or(u64::MAX);
    let required_limits = wgpu::Limits {
        max_buffer_size: required_limits.max_buffer_size.min(largest),
        max_storage_buffer_binding_size: required_limits.max_storage_buffer_binding_size.min(largest),
        ..required_limits
    };
    wgpu::DeviceDescriptor {
        label: Some("rustyflow"),
        required_features: wanted & adapter.features(),
        required_limits,
        // SAFETY: of the experimental features only cooperative matrices are asked for. What may go wrong with them is
        // a wrong product, which the tests compare with the CPU's.
        experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
        ..Default::default()
    }
}

/// The side of the largest square cooperative matrices of f16 that are added up in f32; 0 if there are none.
fn coop_matrix(adapter: &wgpu::Adapter) -> u32 {
    use wgpu::CooperativeScalarType::{F16, F32};
    let properties = adapter.cooperative_matrix_properties();
    let square = properties.iter().filter(|p| p.m_size == p.n_size && p.n_size == p.k_size);
    let usable = square.filter(|p| p.ab_type == F16 && p.cr_type == F32 && [8, 16].contains(&p.m_size));
    usable.map(|p| p.m_size).max().unwrap_or(0)
}

/// Whether this is an NVIDIA data-centre GPU with at least about eight times the f32 FMA throughput on f16 tensor cores
/// by data sheet (H200: 989 and 67 TFLOP/s), where split-fp16, three f16 GEMMs for one, is faster than FMA. On others
/// it is not (RTX 4090: 165 and 83). Used only without autotuning results.
pub(super) fn known_for_fast_tensor_cores(name: &str) -> bool {
    const MODELS: [&str; 13] =
        ["V100", "T4", "A30", "A100", "A800", "H100", "H200", "H800", "GH200", "B100", "B200", "B300", "GB200"];
    is_nvidia_model(name, &MODELS)
}

/// The GPU model whose kernel timings apply.
pub(super) fn gpu_model(name: &str) -> GpuModel {
    if is_nvidia_model(name, &["H200"]) { GpuModel::H200 } else { GpuModel::Unknown }
}

fn is_nvidia_model(name: &str, models: &[&str]) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    ["NVIDIA", "Tesla"].iter().any(|maker| name.starts_with(maker)) && words.any(|word| models.contains(&word))
}

/// Which of the adapters `choice` means.
fn choose(infos: &[AdapterInfo], choice: &AdapterChoice) -> Result<usize> {
    let listed = || {
        let names: Vec<String> = infos.iter().map(|i| format!("gpu:{} = {} ({})", i.index, i.name, i.kind)).collect();
        if names.is_empty() { "this machine has no adapter".to_string() } else { format!("found {}", names.join(", ")) }
    };
    let allow = "to use a software adapter, add --allow-software-gpu; --device cpu is far faster";
    let info = match choice.index {
        Some(index) => infos.get(index).ok_or_else(|| Error::NoAdapter {
            reason: format!("there is no gpu:{index}; {}", listed()),
            hint: "`rustyflow devices` lists the adapters; --device cpu trains without one".into(),
        })?,
        None => infos.iter().find(|i| choice.allow_software || !i.is_software()).ok_or_else(|| Error::NoAdapter {
            reason: listed(),
            hint: if infos.iter().any(AdapterInfo::is_software) {
                format!("a hardware adapter needs its vendor's Vulkan driver; {allow}")
            } else {
                "install the vendor's Vulkan driver, or train with --device cpu".into()
            },
        })?,
    };
    if info.is_software() && !choice.allow_software {
        return Err(Error::NoAdapter {
            reason: format!("gpu:{} ({}) is a software adapter", info.index, info.name),
            hint: allow.into(),
        });
    }
    Ok(info.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_whole_words_of_their_names() {
        for (name, fast, model) in [
            ("NVIDIA H200", true, GpuModel::H200),
            ("NVIDIA GH200 480GB", true, GpuModel::Unknown),
            ("NVIDIA A100-SXM4-40GB", true, GpuModel::Unknown),
            ("Tesla V100-SXM2-16GB", true, GpuModel::Unknown),
            ("NVIDIA GeForce RTX 4090", false, GpuModel::Unknown),
            ("NVIDIA RTX A3000", false, GpuModel::Unknown),
            ("llvmpipe (LLVM 22.1.8, 256 bits)", false, GpuModel::Unknown),
        ] {
            assert_eq!((known_for_fast_tensor_cores(name), gpu_model(name)), (fast, model), "{name}");
        }
    }

    fn adapter(index: usize, kind: &'static str) -> AdapterInfo {
        AdapterInfo {
            index,
            name: format!("adapter {index}"),
            kind,
            backend: "vulkan".into(),
            driver: String::new(),
            memory_bytes: None,
            max_buffer_bytes: 1,
            max_binding_bytes: 1,
            workgroup_memory_bytes: 1,
            max_workgroup_threads: 1,
            subgroup_size: [32, 32],
            features: vec![],
        }
    }

    #[test]
    fn takes_the_first_hardware_adapter() {
        let infos = [adapter(0, "discrete"), adapter(1, "software")];
        assert_eq!(choose(&infos, &AdapterChoice::default()).unwrap(), 0);
    }

    #[test]
    fn refuses_a_software_adapter_unless_allowed() {
        let infos = [adapter(0, "software")];
        let error = choose(&infos, &AdapterChoice::default()).unwrap_err().to_string();
        assert!(error.contains("--allow-software-gpu"), "{error}");
        let error =
            choose(&infos, &AdapterChoice { index: Some(0), ..AdapterChoice::default() }).unwrap_err().to_string();
        assert!(error.contains("--allow-software-gpu"), "{error}");
        assert_eq!(choose(&infos, &AdapterChoice { allow_software: true, ..AdapterChoice::default() }).unwrap(), 0);
    }

    #[test]
    fn names_the_adapters_when_the_number_is_wrong() {
        let infos = [adapter(0, "discrete")];
        let error =
            choose(&infos, &AdapterChoice { index: Some(7), ..AdapterChoice::default() }).unwrap_err().to_string();
        assert!(error.contains("gpu:7") && error.contains("gpu:0 = adapter 0"), "{error}");
    }

    #[test]
    fn says_what_to_do_without_any_adapter() {
        let error = choose(&[], &AdapterChoice::default()).unwrap_err().to_string();
        assert!(error.contains("no adapter") && error.contains("--device cpu"), "{error}");
    }
}
