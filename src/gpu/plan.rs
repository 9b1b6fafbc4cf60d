//! What an op asks of a GPU, as plain data: which shader, with which template values, bound to what, on how many workgroups.
//!
//! Ops build a [`Plan`]; only the rest of this module turns it into commands.

use std::sync::Arc;

/// A WGSL template: its name (the file's stem in `shaders/`) and its text.
#[derive(Debug, Clone, Copy)]
pub struct Shader {
    pub name: &'static str,
    pub source: &'static str,
}

/// `shader!("softmax")` embeds `shaders/softmax.wgsl`.
#[macro_export]
#[doc(hidden)]
macro_rules! shader {
    ($name:literal) => {
        $crate::gpu::Shader {
            name: $name,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")),
        }
    };
}

/// A value that a shader template is rendered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    Int(u32),
    Bool(bool),
    Str(&'static str),
}

impl From<u32> for Value {
    fn from(v: u32) -> Value {
        Value::Int(v)
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

/// What a binding of a launch refers to.
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

/// One dispatch. Binding `i` of group 0 is `bindings[i]`; `params` are the words of `var<immediate>`.
///
/// Workgroups are numbered along one line; shaders recover the number with `workgroup_number` from
/// `common.wgsl`, because no dimension of a dispatch may exceed 65,535.
#[derive(Debug, Clone)]
pub struct Launch {
    pub shader: Shader,
    pub values: Vec<(&'static str, Value)>,
    pub bindings: Vec<Operand>,
    pub params: Vec<u32>,
    pub workgroups: usize,
}

/// What one kernel runs: launches in order, and the sizes in bytes of the scratch buffers that they share.
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
}

/// What a device can do, as far as the choice of a kernel depends on it.
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
    /// Whether `enable f16;` is allowed.
    pub f16: bool,
    /// Whether subgroup operations are allowed, and the size every subgroup has (0: not known, or it varies).
    pub subgroup_size: u32,
    /// The side of the f16 matrices that the GPU's matrix units multiply, adding up in f32, as cooperative matrices: 16 or 8;
    /// 0 if it has none, or subgroups of no known size.
    pub matrix_units: u32,
    /// Whether products of f32 run there too, as products of halves: where the units are so much faster that three of those
    /// take less than one in f32.
    pub f32_on_units: bool,
    /// How fast this very device multiplies matrices, where that was measured: GFLOP/s of each tile with neither operand
    /// transposed, b, a, both. May choose between kernels that give the same bits.
    pub matmul_rates: Option<Arc<[[u32; 4]]>>,
}

impl Limits {
    /// Those of the CPU, which binds whatever fits its memory and has none of a GPU's units.
    pub const CPU: Limits = Limits {
        binding_bytes: u64::MAX,
        buffer_bytes: u64::MAX,
        workgroup_bytes: 0,
        workgroup_threads: 0,
        ..Limits::WEBGPU_DEFAULT
    };

    /// The limits every WebGPU implementation grants: the floor that each kernel must run within.
    pub const WEBGPU_DEFAULT: Limits = Limits {
        binding_bytes: 128 << 20,
        buffer_bytes: 256 << 20,
        workgroup_bytes: 16 << 10,
        workgroup_threads: 256,
        f16: false,
        subgroup_size: 0,
        matrix_units: 0,
        f32_on_units: false,
        matmul_rates: None,
    };
}

/// Names and texts of what templates may include: `{% include "common" %}`.
pub const INCLUDES: [(&str, &str); 4] = [
    ("common", include_str!("../../shaders/common.wgsl")),
    ("matmul_ends", include_str!("../../shaders/matmul_ends.wgsl")),
    ("matmul_halves", include_str!("../../shaders/matmul_halves.wgsl")),
    ("attention_params", include_str!("../../shaders/attention_params.wgsl")),
];

/// Splits a line of workgroups into a grid whose dimensions stay within 65,535.
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
}
