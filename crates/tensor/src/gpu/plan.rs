//! The GPU work of an op as plain data: shaders, template values, bindings and workgroup counts.
//!
//! Ops build a [`Plan`]; the rest of this module turns it into commands.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A WGSL template: its name (the file's stem in `shaders/`) and its text.
#[derive(Debug, Clone, Copy)]
pub struct Shader {
    pub name: &'static str,
    pub source: &'static str,
    /// Whether the text and the launch are validated before they run, and indices are bounds-checked in the shader,
    /// also in release builds.
    pub checked: bool,
}

impl Shader {
    /// An application's WGSL template, named `name` in profiles and error messages. Like the templates in `shaders/`,
    /// it has `{{ interface }}`, which declares the launch's buffers and parameters, then functions and workgroup
    /// variables, then one entry point, which ends with `}` and starts with one of
    ///
    /// - `{{ for_each(1) }}`: one thread for each `i` below the parameter `len`;
    /// - `{{ entry(256) }}`: workgroups of 256 threads; `workgroup` and `thread` are their numbers. More workgroups may
    ///   run than [`Launch::workgroups`]: return early if `workgroup` is too large.
    ///
    /// All other template variables are in [`Launch::values`]; launches of one text with equal values are compiled
    /// once.
    pub fn checked(name: &'static str, source: &'static str) -> Shader {
        Shader { name, source, checked: true }
    }

    /// Tells it from others, which may have the same name.
    #[cfg(feature = "gpu")]
    pub(super) fn id(&self) -> (&'static str, usize) {
        (self.name, self.source.as_ptr().addr())
    }
}

/// `shader!(softmax)` embeds `shaders/softmax.wgsl`.
#[macro_export]
#[doc(hidden)]
macro_rules! shader {
    ($name:ident) => {
        $crate::gpu::Shader { name: stringify!($name), source: rustyflow_shaders::$name, checked: false }
    };
}

/// A value of a template variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    Int(u32),
    Bool(bool),
    Str(&'static str),
    Strs(&'static [&'static str]),
}

impl From<u32> for Value {
    fn from(v: u32) -> Value {
        Value::Int(v)
    }
}

impl From<usize> for Value {
    fn from(v: usize) -> Value {
        Value::Int(u32::try_from(v).expect("a template's sizes are small"))
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Value {
        Value::Bool(v)
    }
}

impl From<&'static str> for Value {
    fn from(v: &'static str) -> Value {
        Value::Str(v)
    }
}

impl From<&'static [&'static str]> for Value {
    fn from(v: &'static [&'static str]) -> Value {
        Value::Strs(v)
    }
}

/// The memory that a binding of a launch refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// The kernel's i-th input, bound read-only.
    Input(usize),
    /// The kernel's i-th output, bound read-write.
    Output(usize),
    /// The i-th scratch buffer of the plan, bound read-write.
    Scratch(usize),
    /// The i-th scratch buffer of the plan, bound read-only.
    ReadScratch(usize),
}

impl Operand {
    /// Whether the kernel only reads it.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Operand::Input(_) | Operand::ReadScratch(_))
    }
}

/// A storage buffer of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Its name in the shader.
    pub name: &'static str,
    /// The WGSL type of its elements.
    pub element: &'static str,
    /// The bound memory.
    pub operand: Operand,
}

/// `buffer("x", "vec4<f32>", Operand::Input(0))` is `var<storage, read> x: array<vec4<f32>>` in the shader.
pub fn buffer(name: &'static str, element: &'static str, operand: Operand) -> Buffer {
    Buffer { name, element, operand }
}

/// A number that a launch passes to its shader as `params.<name>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    pub name: &'static str,
    /// "u32" or "f32".
    pub kind: &'static str,
    pub bits: u32,
}

/// `param("len", len)` is a u32 in the shader, `param("scale", scale)` with a float an f32. A size above 32 bits
/// becomes the largest u32; no kernel that runs on a GPU has one.
pub fn param(name: &'static str, value: impl Into<ParamValue>) -> Param {
    match value.into() {
        ParamValue::U32(bits) => Param { name, kind: "u32", bits },
        ParamValue::F32(value) => Param { name, kind: "f32", bits: value.to_bits() },
        ParamValue::TooLarge(_) => Param { name, kind: "u32", bits: u32::MAX },
    }
}

/// A value of a [`Param`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ParamValue {
    U32(u32),
    F32(f32),
    /// A size above 32 bits.
    TooLarge(usize),
}

impl From<u32> for ParamValue {
    fn from(value: u32) -> ParamValue {
        ParamValue::U32(value)
    }
}

impl From<f32> for ParamValue {
    fn from(value: f32) -> ParamValue {
        ParamValue::F32(value)
    }
}

/// Sizes and counts: shaders compute with 32 bits, and no tensor on a GPU has more elements.
impl From<usize> for ParamValue {
    fn from(value: usize) -> ParamValue {
        u32::try_from(value).map_or(ParamValue::TooLarge(value), ParamValue::U32)
    }
}

/// One dispatch. The shader's declarations of buffers and parameters are generated from these fields, in this order
/// (`gpu::shader`).
///
/// Workgroups have a linear index, which a shader's `entry` reconstructs: each dimension of a dispatch is limited to
/// 65,535.
#[derive(Debug, Clone)]
pub struct Launch {
    pub shader: Shader,
    pub values: Vec<(&'static str, Value)>,
    pub buffers: Vec<Buffer>,
    pub params: Vec<Param>,
    pub workgroups: usize,
}

/// A launch's declarations in the shader. Launches with equal shader names and values share them and a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name, element type, and whether it is read-only.
    pub buffers: Vec<(&'static str, &'static str, bool)>,
    /// Name and type.
    pub params: Vec<(&'static str, &'static str)>,
}

impl Launch {
    pub fn interface(&self) -> Interface {
        Interface {
            buffers: self.buffers.iter().map(|b| (b.name, b.element, b.operand.is_read_only())).collect(),
            params: self.params.iter().map(|p| (p.name, p.kind)).collect(),
        }
    }
}

/// The launches of one kernel in order, and the sizes in bytes of the scratch buffers that they share.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub scratch: Vec<usize>,
    pub launches: Vec<Launch>,
}

impl Plan {
    /// A plan of one launch without scratch.
    pub fn one(launch: Launch) -> Plan {
        Plan { scratch: Vec::new(), launches: vec![launch] }
    }

    /// # Errors
    /// If the plan of `kernel` binds an operand that does not exist.
    #[cfg(feature = "gpu")]
    pub(super) fn check_operands(&self, kernel: &str, inputs: usize, outputs: usize) -> crate::Result<()> {
        let bound = self.launches.iter().flat_map(|launch| &launch.buffers).map(|buffer| buffer.operand);
        for operand in bound {
            let (i, count) = match operand {
                Operand::Input(i) => (i, inputs),
                Operand::Output(i) => (i, outputs),
                Operand::Scratch(i) | Operand::ReadScratch(i) => (i, self.scratch.len()),
            };
            if i >= count {
                let text = format!("{kernel}: its plan binds {operand:?}, but has only {count}");
                return Err(crate::Error::Invalid(text));
            }
        }
        Ok(())
    }
}

/// GPU models with individual kernel timings (`crates/tensor/src/ops/matmul/tiles.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuModel {
    H200,
    #[default]
    Unknown,
}

/// Limits and features of a device that affect the choice of kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest single binding, bytes.
    pub binding_bytes: u64,
    /// Largest buffer, bytes.
    pub buffer_bytes: u64,
    /// Workgroup memory, bytes.
    pub workgroup_bytes: u32,
    /// Threads per workgroup.
    pub workgroup_threads: u32,
    /// Whether parameters are immediates (push constants), the cheapest; else they are uniforms, which every WebGPU
    /// implementation supports.
    pub immediates: bool,
    /// Whether `enable f16;` is allowed.
    pub f16: bool,
    /// The size of every subgroup; 0 if unknown, variable, or without subgroup operations. Kernels assume that threads
    /// are assigned to subgroups in order.
    pub subgroup_size: u32,
    /// Size of the square cooperative matrices (tensor cores) with f16 operands and f32 accumulators: 16 or 8; 0 if
    /// unsupported, or if the subgroup size is unknown.
    pub coop_matrix: u32,
    /// Whether large f32 GEMMs run as split-fp16 (3xFP16) on cooperative matrices. As precise as FMA, but not
    /// bit-identical.
    pub split_fp16: bool,
    /// The GPU model whose timings the tile selection uses.
    pub gpu_model: GpuModel,
    /// Autotuned throughput of this device's FMA tiles: GFLOP/s with neither operand transposed, b, a, both. It may
    /// only choose between kernels that give the same bits.
    pub matmul_throughput: Option<Arc<[[u32; 4]]>>,
    /// Cached kernel choices under these limits.
    pub choices: ChoiceCache,
}

impl Limits {
    /// The most bytes of a matrix that lies in one buffer and is bound as a whole.
    #[doc(hidden)]
    pub fn matrix_bytes(&self) -> u64 {
        self.binding_bytes.min(self.buffer_bytes)
    }

    /// The CPU's limits: unlimited bindings, no tensor cores.
    pub const CPU: Limits = Limits {
        binding_bytes: u64::MAX,
        buffer_bytes: u64::MAX,
        workgroup_bytes: 0,
        workgroup_threads: 0,
        ..Limits::WEBGPU_DEFAULT
    };

    /// The value of `device.matmul_f32`: how large f32 GEMMs are computed.
    pub fn matmul_f32(&self) -> &'static str {
        if self.split_fp16 { "split-fp16" } else { "fma" }
    }

    /// WebGPU's default limits, within which every kernel must have a variant.
    pub const WEBGPU_DEFAULT: Limits = Limits {
        binding_bytes: 128 << 20,
        buffer_bytes: 256 << 20,
        workgroup_bytes: 16 << 10,
        workgroup_threads: 256,
        immediates: false,
        f16: false,
        subgroup_size: 0,
        coop_matrix: 0,
        split_fp16: false,
        gpu_model: GpuModel::Unknown,
        matmul_throughput: None,
        choices: ChoiceCache::NONE,
    };
}

/// A cache of kernel choices under one [`Limits`]. It does not affect equality of limits, and a clone starts empty,
/// because the clone may be modified. Choices are the same with and without a cache.
pub struct ChoiceCache(Option<Box<OnceLock<Box<dyn Any + Send + Sync>>>>);

impl ChoiceCache {
    /// No cache.
    pub const NONE: ChoiceCache = ChoiceCache(None);

    /// An empty cache.
    pub fn new() -> ChoiceCache {
        ChoiceCache(Some(Box::default()))
    }

    /// The table of choices, created by the first call; `None` without a cache, or if the table has another type.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.as_ref()?.get_or_init(|| Box::new(T::default())).downcast_ref()
    }
}

impl Default for ChoiceCache {
    fn default() -> ChoiceCache {
        ChoiceCache::new()
    }
}

impl Clone for ChoiceCache {
    fn clone(&self) -> ChoiceCache {
        ChoiceCache(self.0.as_ref().map(|_| Box::default()))
    }
}

impl PartialEq for ChoiceCache {
    fn eq(&self, _: &ChoiceCache) -> bool {
        true
    }
}

impl Eq for ChoiceCache {}

impl fmt::Debug for ChoiceCache {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("ChoiceCache")
    }
}

/// Largest size of parameters, bytes: every Vulkan driver supports that many as immediates.
pub const PARAMS_BYTES: usize = 128;

/// Names and texts of templates for `{% include "matmul_epilogue" %}`.
pub const INCLUDES: [(&str, &str); 11] = [
    ("attention_blocks", rustyflow_shaders::attention_blocks),
    ("attention_common", rustyflow_shaders::attention_common),
    ("attention_coop_common", rustyflow_shaders::attention_coop_common),
    ("conv_pixels", rustyflow_shaders::conv_pixels),
    ("conv_weight", rustyflow_shaders::conv_weight),
    ("gradient_scale", rustyflow_shaders::gradient_scale),
    ("int8_moments", rustyflow_shaders::int8_moments),
    ("matmul_epilogue", rustyflow_shaders::matmul_epilogue),
    ("matmul_split_fp16", rustyflow_shaders::matmul_split_fp16),
    ("quantized", rustyflow_shaders::quantized),
    ("common", rustyflow_shaders::common),
];

/// Splits a linear workgroup count into a grid with dimensions up to 65,535.
pub fn grid(workgroups: usize) -> [u32; 2] {
    const MAX: usize = 65_535;
    let rows = workgroups.div_ceil(MAX).max(1);
    [workgroups.div_ceil(rows) as u32, rows as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_covers_every_workgroup_within_the_limit() {
        for n in [0, 1, 65_535, 65_536, 65_537, 1 << 20, 100_000_007] {
            let [x, y] = grid(n);
            assert!(x <= 65_535 && y <= 65_535, "{n}: {x} x {y}");
            assert!(x as usize * y as usize >= n, "{n}: {x} x {y}");
        }
    }

    #[test]
    fn a_copy_of_limits_starts_without_choices_and_is_equal() {
        let limits = Limits { choices: ChoiceCache::new(), ..Limits::WEBGPU_DEFAULT };
        let table = |limits: &Limits| limits.choices.get::<OnceLock<u32>>().map(|table| *table.get_or_init(|| 1));
        let choices = |limits: &Limits| limits.choices.get::<OnceLock<u32>>().and_then(OnceLock::get).copied();
        assert_eq!((table(&limits), choices(&limits)), (Some(1), Some(1)));
        assert_eq!((limits.clone(), choices(&limits.clone())), (limits.clone(), None));
        assert_eq!((table(&Limits::WEBGPU_DEFAULT), limits == Limits::WEBGPU_DEFAULT), (None, true));
    }

    #[test]
    fn limits_can_be_shared_between_threads() {
        fn assert_shared<T: Send + Sync>() {}
        assert_shared::<Limits>();
    }
}
