//! Validates shaders of applications ([`Shader::checked`](super::Shader::checked)) before they are recorded: an error
//! that wgpu reports later would fail every call on the device.

use super::Gpu;
use super::plan::{Interface, Launch, Limits, PARAMS_BYTES, Value};
use super::shader::source_of;
use super::translate::CheckedShader;
use crate::{Error, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Buffers that every WebGPU implementation lets a shader bind.
const MAX_BUFFERS: usize = 8;
/// Workgroups are counted in a u32, and a launch may have a few more than were asked for.
const MAX_WORKGROUPS: usize = u32::MAX as usize / 2;

/// A shader's text, and the values that it is rendered with.
type Variant = ((&'static str, usize), Vec<(&'static str, Value)>);

/// The variants that are known to compile on one GPU, and what they declare.
#[derive(Default)]
pub(super) struct CheckedVariants(Mutex<HashMap<Variant, Interface>>);

impl CheckedVariants {
    /// Checks that the shader of `launch` compiles, if it is a checked one.
    pub fn expect(&self, kernel: &'static str, launch: &Launch, limits: &Limits) -> Result<()> {
        if !launch.shader.checked {
            return Ok(());
        }
        let variant = (launch.shader.id(), launch.values.clone());
        let interface = launch.interface();
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known().get(&variant).map(|known| *known == interface);
        match same {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Invalid(format!(
                "{kernel}: launches of one shader and equal values declare different buffers or parameters; \
                 add what differs to the launch's values"
            ))),
            None => {
                check_launch(kernel, launch, limits)?;
                known().insert(variant, interface);
                Ok(())
            }
        }
    }
}

/// Checks that the shader of `launch` compiles for these limits on every backend.
///
/// # Errors
/// [`Error::Wgsl`] with the line; [`Error::Invalid`] for more buffers or parameters than every GPU supports.
pub fn check_launch(kernel: &'static str, launch: &Launch, limits: &Limits) -> Result<()> {
    let (buffers, params) = (launch.buffers.len(), launch.params.len());
    if buffers > MAX_BUFFERS || 4 * params > PARAMS_BYTES {
        let most = PARAMS_BYTES / 4;
        return Err(Error::Invalid(format!(
            "{kernel}: {buffers} buffers and {params} parameters; every GPU takes {MAX_BUFFERS} and {most}"
        )));
    }
    let fail = |place, message| Error::Wgsl { op: kernel, place, message };
    let source = source_of(launch, limits).map_err(|error| fail(in_line(launch, error.line), error.message))?;
    CheckedShader::new(launch, &source, limits).map(drop).map_err(|error| {
        let text = error.line.and_then(|line| source.lines().nth(line - 1)).unwrap_or_default().trim();
        // Lines of the rendered text are counted from declarations that the author has not written.
        let mut same = (1..).zip(launch.shader.source.lines()).filter(|(_, line)| line.trim() == text);
        let line = if let (Some((line, _)), None) = (same.next(), same.next()) { Some(line) } else { None };
        let place = in_line(launch, line);
        fail(if text.is_empty() { place } else { format!("{place}, `{text}`") }, error.message)
    })
}

fn in_line(launch: &Launch, line: Option<usize>) -> String {
    let name = launch.shader.name;
    line.map_or_else(|| format!("WGSL of {name}"), |line| format!("WGSL of {name}, line {line}"))
}

/// Checks the workgroup count of a checked launch, and the sizes in bytes of its bindings.
pub(super) fn expect_fits(
    kernel: &'static str,
    launch: &Launch,
    bytes: impl Iterator<Item = usize>,
    gpu: &Gpu,
) -> Result<()> {
    let limits = gpu.limits();
    let fail = |what: &str, needed: usize, unit: &str, limit: u64| {
        let (needed, limit) = (format!("{needed}{unit}"), format!("{limit}{unit}"));
        let hint = "use smaller tensors, or the CPU".to_string();
        Err(Error::GpuLimit { what: format!("{kernel}: {what}"), needed, adapter: format!("{gpu:?}"), limit, hint })
    };
    if launch.workgroups > MAX_WORKGROUPS {
        return fail("a launch", launch.workgroups, " workgroups", MAX_WORKGROUPS as u64);
    }
    for (buffer, bytes) in launch.buffers.iter().zip(bytes) {
        if bytes as u64 > limits.binding_bytes {
            return fail(&format!("binding {}", buffer.name), bytes, " bytes", limits.binding_bytes);
        }
        let elements = bytes / if buffer.element.contains("f16") { 2 } else { 4 };
        if elements > u32::MAX as usize {
            return fail(&format!("counting {}", buffer.name), elements, " elements", u32::MAX.into());
        }
    }
    Ok(())
}
