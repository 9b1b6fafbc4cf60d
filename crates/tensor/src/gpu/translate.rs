//! Validates WGSL as wgpu does on a device with given limits, and translates it to SPIR-V, MSL and HLSL without a GPU,
//! so that errors on untested hardware are found early.

use super::WgslError;
use super::plan::{Launch, Limits, Operand};
use super::shader::source_of;
use super::subgroup_barriers::order_workgroup_memory;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};
use std::collections::BTreeMap;
use std::error::Error as _;

impl From<String> for WgslError {
    fn from(message: String) -> WgslError {
        WgslError { line: None, message }
    }
}

/// A shader that naga has accepted.
pub struct CheckedShader {
    module: Module,
    info: ModuleInfo,
    /// Of each buffer, whether it is only read.
    read_only: Vec<bool>,
}

impl CheckedShader {
    /// Parses and validates `source` as wgpu does on a device with these limits, and checks it against them and the
    /// launch.
    ///
    /// # Errors
    /// The error, with its line if known.
    pub fn new(launch: &Launch, source: &str, limits: &Limits) -> Result<CheckedShader, WgslError> {
        let module = naga::front::wgsl::parse_str(source).map_err(|e| {
            // What is said beside the places is often the better half.
            let labels = e.labels().map(|(_, label)| label).filter(|label| !label.is_empty());
            let message = [e.message()].into_iter().chain(labels).collect::<Vec<_>>().join(": ");
            WgslError { line: e.location(source).map(|at| at.line_number as usize), message }
        })?;
        let info = validator(limits).validate(&module).map_err(|e| {
            let labels = e.spans().map(|(_, label)| label.clone()).filter(|label| !label.is_empty());
            let mut message = vec![e.as_inner().to_string()];
            let mut reason = e.as_inner().source();
            while let Some(error) = reason {
                message.push(error.to_string());
                reason = error.source();
            }
            message.extend(labels);
            let line = e.location(source).map(|at| at.line_number as usize);
            WgslError { line, message: message.join(": ") }
        })?;
        hold_to_limits(&module, launch, limits)?;
        let read_only = launch.buffers.iter().map(|buffer| buffer.operand.is_read_only()).collect();
        Ok(CheckedShader { module, info, read_only })
    }

    /// SPIR-V with wgpu's options for Vulkan.
    ///
    /// # Errors
    /// naga's.
    pub fn to_spirv(&self) -> Result<Vec<u32>, String> {
        let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
        let mut module = self.module.clone();
        order_workgroup_memory(&mut module);
        let words = spv::write_vec(&module, &self.info, &options, None).map_err(|e| e.to_string())?;
        if words.is_empty() { Err("no SPIR-V came out".into()) } else { Ok(words) }
    }

    /// Metal Shading Language with wgpu's buffer indices.
    ///
    /// # Errors
    /// naga's.
    pub fn to_msl(&self) -> Result<String, String> {
        let mut resources: BTreeMap<_, _> = (0..)
            .zip(&self.read_only)
            .map(|(binding, read_only)| {
                let target =
                    msl::BindTarget { buffer: Some(binding as u8), mutable: !read_only, ..msl::BindTarget::default() };
                (ResourceBinding { group: 0, binding }, target)
            })
            .collect();
        let count = self.read_only.len() as u8;
        let params = msl::BindTarget { buffer: Some(count + 2), ..msl::BindTarget::default() };
        resources.insert(ResourceBinding { group: 1, binding: 0 }, params);
        let resources =
            msl::EntryPointResources { resources, immediates_buffer: Some(count), sizes_buffer: Some(count + 1) };
        let options = msl::Options {
            // The oldest that has everything in use: half precision and subgroups (macOS 12, 2021).
            lang_version: (2, 4),
            per_entry_point_map: BTreeMap::from([("main".to_string(), resources)]),
            fake_missing_bindings: false,
            ..msl::Options::default()
        };
        let (text, info) = msl::write_string(&self.module, &self.info, &options, &msl::PipelineOptions::default())
            .map_err(|e| e.to_string())?;
        info.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|e| e.to_string()))?;
        Ok(text)
    }

    /// HLSL for DirectX 12 with wgpu's registers.
    ///
    /// # Errors
    /// naga's.
    pub fn to_hlsl(&self) -> Result<String, String> {
        let register = |space, register| hlsl::BindTarget { space, register, ..hlsl::BindTarget::default() };
        let options = hlsl::Options {
            // The oldest with 16-bit types; subgroups need 6.0.
            shader_model: hlsl::ShaderModel::V6_2,
            binding_map: (0..self.read_only.len() as u32)
                .map(|binding| (ResourceBinding { group: 0, binding }, register(0, binding)))
                .chain([(ResourceBinding { group: 1, binding: 0 }, register(3, 0))])
                .collect(),
            immediates_target: Some(register(1, 0)),
            // wgpu passes the number of workgroups in a constant buffer.
            special_constants_binding: Some(register(2, 0)),
            fake_missing_bindings: false,
            ..hlsl::Options::default()
        };
        let mut text = String::new();
        let pipeline = hlsl::PipelineOptions::default();
        let info = hlsl::Writer::new(&mut text, &options, &pipeline)
            .write(&self.module, &self.info, None)
            .map_err(|e| e.to_string())?;
        info.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|e| e.to_string()))?;
        Ok(text)
    }
}

/// Translates a launch's shader to all three languages, for a device with these limits.
///
/// # Errors
/// The language that fails, and the reason.
pub fn translate(launch: &Launch, limits: &Limits) -> Result<(), String> {
    let source = source_of(launch, limits).map_err(|e| e.message)?;
    let shader = CheckedShader::new(launch, &source, limits).map_err(|e| e.message)?;
    shader.to_spirv().map_err(|e| format!("SPIR-V: {e}"))?;
    shader.to_msl().map_err(|e| format!("Metal: {e}"))?;
    shader.to_hlsl().map_err(|e| format!("DirectX: {e}"))?;
    Ok(())
}

fn validator(limits: &Limits) -> Validator {
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::IMMEDIATES, limits.immediates);
    capabilities.set(Capabilities::SHADER_FLOAT16, limits.f16);
    // `pack2x16float` and `unpack2x16float`: wgpu has them on all but OpenGL.
    capabilities.set(Capabilities::SHADER_FLOAT16_IN_FLOAT32, limits.f16);
    capabilities.set(Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER, limits.subgroup_size > 0);
    capabilities.set(Capabilities::COOPERATIVE_MATRIX, limits.coop_matrix > 0);
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    validator
}

/// Checks for one compute shader, within the workgroup limits, whose declarations match the launch.
fn hold_to_limits(module: &Module, launch: &Launch, limits: &Limits) -> Result<(), String> {
    let [entry] = &module.entry_points[..] else { return Err("it needs exactly one entry point".into()) };
    if entry.name != "main" || entry.stage != ShaderStage::Compute {
        return Err(format!("its entry point is {:?} {}, not a compute shader named main", entry.stage, entry.name));
    }
    let threads: u32 = entry.workgroup_size.iter().product();
    if threads > limits.workgroup_threads {
        return Err(format!("{threads} threads where a workgroup may have {}", limits.workgroup_threads));
    }

    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).map_err(|e| e.to_string())?;
    let (mut workgroup_bytes, mut param_bytes) = (0, 0);
    let mut bound = BTreeMap::new();
    for (_, global) in module.global_variables.iter() {
        let layout = layouter[global.ty];
        match (global.space, &global.binding) {
            // Each variable starts on a multiple of 16 bytes, the strictest of all backends.
            (AddressSpace::WorkGroup, _) => workgroup_bytes += layout.size.next_multiple_of(16),
            (AddressSpace::Immediate, _) if limits.immediates => param_bytes += layout.size,
            (AddressSpace::Uniform, Some(ResourceBinding { group: 1, binding: 0 })) if !limits.immediates => {
                param_bytes += layout.size;
            }
            (AddressSpace::Storage { access }, Some(ResourceBinding { group: 0, binding })) => {
                bound.insert(*binding, access);
            }
            (AddressSpace::Private | AddressSpace::Handle, None) => {}
            other => return Err(format!("it declares a global of an unexpected kind: {other:?}")),
        }
    }
    if workgroup_bytes > limits.workgroup_bytes {
        return Err(format!("{workgroup_bytes} bytes of workgroup memory where there are {}", limits.workgroup_bytes));
    }
    if param_bytes as usize != 4 * launch.params.len() {
        return Err(format!("{param_bytes} bytes for {} words of parameters", launch.params.len()));
    }
    let wanted: BTreeMap<u32, StorageAccess> = (0..)
        .zip(&launch.buffers)
        .map(|(i, buffer)| match buffer.operand {
            Operand::Input(_) | Operand::ReadScratch(_) => (i, StorageAccess::LOAD),
            Operand::Output(_) | Operand::Scratch(_) => (i, StorageAccess::LOAD | StorageAccess::STORE),
        })
        .collect();
    if bound != wanted {
        return Err(format!("it declares the bindings {bound:?}, the launch binds {wanted:?}"));
    }
    Ok(())
}
