//! What a custom op is made of, part by part.

use super::backward::OutputGrads;
use super::op::{CustomOp, Definition, Grid, ParamSource};
use crate::gpu::{PARAMS_BYTES, ParamValue};
use crate::tensor::{DType, Saves, Spec, Tensor, View, ViewMut};
use crate::{Error, Result};
use std::collections::HashSet;

/// Buffers that every WebGPU implementation lets a shader bind.
const MAX_BUFFERS: usize = 8;
/// Positions that `keeps` takes of an op's inputs, when it is told nothing.
const ALL: [usize; MAX_BUFFERS] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Collects the parts of a [`CustomOp`]: made by [`CustomOp::elementwise`] or [`CustomOp::builder`], it ends with
/// [`Builder::build`].
#[must_use]
pub struct Builder {
    definition: Definition,
    has_wgsl: bool,
    has_cpu: bool,
}

impl CustomOp {
    /// An op of f32 tensors of one shape, whose output has that shape too.
    pub fn elementwise(name: &'static str, inputs: &'static [&'static str], output: &'static str) -> Builder {
        let specs = move |specs: &[&Spec]| {
            let Some(first) = specs.first() else { return Ok(Vec::new()) };
            for spec in specs {
                if spec.dtype != DType::F32 {
                    return Err(Error::DType { op: name, expected: "f32", got: spec.dtype.name() });
                }
                if spec.shape != first.shape {
                    let expected = format!("tensors of one shape, {}", first.shape);
                    return Err(Error::Shape { op: name, expected, got: spec.shape.to_string() });
                }
            }
            Ok(vec![Spec::clone(first)])
        };
        Builder::new(name, inputs, vec![output], Box::new(specs))
    }

    /// An op of any shapes and types. `specs` says of its inputs whether they fit ([`Error::Shape`], [`Error::DType`])
    /// and what its outputs are; it is called before anything else, with as many inputs as there are names.
    pub fn builder(
        name: &'static str,
        inputs: &'static [&'static str],
        outputs: &'static [&'static str],
        specs: impl Fn(&[&Spec]) -> Result<Vec<Spec>> + Send + Sync + 'static,
    ) -> Builder {
        Builder::new(name, inputs, outputs.to_vec(), Box::new(specs))
    }
}

impl Builder {
    fn new(
        name: &'static str,
        inputs: &'static [&'static str],
        outputs: Vec<&'static str>,
        specs: super::op::Specs,
    ) -> Builder {
        let keeps = Saves { inputs: &ALL[..inputs.len().min(MAX_BUFFERS)], outputs: &[] };
        let definition = Definition {
            name,
            inputs,
            outputs,
            specs,
            params: Vec::new(),
            declarations: "",
            body: "",
            grid: Grid::Elements,
            flops_per_element: 0.0,
            cpu: Box::new(|_, _| {}),
            keeps,
            backward: None,
            tolerance: [1e-5; 2],
            compiled: Default::default(),
        };
        Builder { definition, has_wgsl: false, has_cpu: false }
    }

    /// What each of `params.len` threads does, one for each element of the first output: `i` is the element's number,
    /// and each input and output is an array by its name, of `f32`, `f16` or `u32` as its tensor is.
    pub fn wgsl(self, body: &'static str) -> Builder {
        Builder { definition: Definition { body, grid: Grid::Elements, ..self.definition }, has_wgsl: true, ..self }
    }

    /// What each workgroup of `threads` threads does: `workgroup` is its number, below what `workgroups` says of inputs
    /// and outputs, and `thread` is the number of the thread in it. There may be a few workgroups more, so that the
    /// text begins by asking: `if (workgroup >= params.rows) { return; }`.
    pub fn wgsl_by_workgroup(
        self,
        threads: u32,
        workgroups: impl Fn(&[&Spec], &[&Spec]) -> usize + Send + Sync + 'static,
        body: &'static str,
    ) -> Builder {
        let grid = Grid::Workgroups { threads, count: Box::new(workgroups) };
        Builder { definition: Definition { body, grid, ..self.definition }, has_wgsl: true, ..self }
    }

    /// WGSL functions, constants and workgroup variables that the body uses.
    pub fn declarations(mut self, wgsl: &'static str) -> Builder {
        self.definition.declarations = wgsl;
        self
    }

    /// A number that the WGSL knows as `params.<name>`: an f32 or a u32.
    pub fn param(mut self, name: &'static str, value: impl Into<ParamValue>) -> Builder {
        self.definition.params.push((name, ParamSource::Fixed(value.into())));
        self
    }

    /// A size that follows from the shapes of inputs and outputs, a u32 which the WGSL knows as `params.<name>`.
    pub fn size(
        mut self,
        name: &'static str,
        size: impl Fn(&[&Spec], &[&Spec]) -> usize + Send + Sync + 'static,
    ) -> Builder {
        self.definition.params.push((name, ParamSource::Size(Box::new(size))));
        self
    }

    /// Computes every element of every output on the CPU. Of f16 tensors it sees the values as f32.
    pub fn cpu(mut self, cpu: impl Fn(&[View], &mut [ViewMut]) + Send + Sync + 'static) -> Builder {
        self.definition.cpu = Box::new(cpu);
        Builder { has_cpu: true, ..self }
    }

    /// The gradient of each input, in their order, by ops of this library and other custom ones; `None` for one that
    /// has none. Without this the op refuses inputs that need a gradient.
    pub fn backward(
        mut self,
        backward: impl Fn(&OutputGrads) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
    ) -> Builder {
        self.definition.backward = Some(Box::new(backward));
        self
    }

    /// Which inputs and outputs [`Builder::backward`] asks for; all others may be freed after forward. Without this all
    /// inputs are kept, and no outputs.
    pub fn keeps(mut self, inputs: &'static [usize], outputs: &'static [usize]) -> Builder {
        self.definition.keeps = Saves { inputs, outputs };
        self
    }

    /// Floating-point operations for each element of the first output, from which the profile has its TFLOP/s; without
    /// this, none.
    pub fn flops_per_element(mut self, flops: f64) -> Builder {
        self.definition.flops_per_element = flops;
        self
    }

    /// What rounding explains of a difference between devices, `atol + rtol |value|`, for [`check`](super::check):
    /// 1e-5 each if nothing is said. Sums of many terms need more.
    pub fn tolerance(mut self, atol: f64, rtol: f64) -> Builder {
        self.definition.tolerance = [atol, rtol];
        self
    }

    /// The op, if nothing is missing.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is missing, twice there or too much. Its WGSL is looked at by
    /// [`check`](super::check) and before it first runs on a GPU.
    pub fn build(self) -> Result<CustomOp> {
        let Definition { name, inputs, ref outputs, ref params, keeps, tolerance, .. } = self.definition;
        let fail = |what: String| Err(Error::Invalid(format!("custom op {name}: {what}")));
        if let Some((name, value)) = params.iter().find_map(|(name, source)| match source {
            ParamSource::Fixed(ParamValue::TooLarge(value)) => Some((name, value)),
            _ => None,
        }) {
            return fail(format!("params.{name} is {value}, and a u32 is at most {}", u32::MAX));
        }
        if inputs.is_empty() || outputs.is_empty() {
            return fail("it needs an input, which says on which device it runs, and an output".into());
        }
        let names = inputs.iter().chain(outputs).copied();
        for word in [name].into_iter().chain(names.clone()).chain(params.iter().map(|(name, _)| *name)) {
            let mut letters = word.chars();
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if !letters.next().is_some_and(|c| c.is_ascii_alphabetic()) || !letters.all(fits) {
                return fail(format!("{word:?} is no name: one has letters, digits and _, and begins with a letter"));
            }
        }
        let mut seen = HashSet::new();
        if let Some(twice) = names.clone().find(|name| !seen.insert(*name)) {
            return fail(format!("two operands are called {twice}"));
        }
        let mut seen = HashSet::from(["len"]);
        if let Some((twice, _)) = params.iter().find(|(name, _)| !seen.insert(*name)) {
            return fail(format!(
                "two parameters are called {twice} (`len` is the number of elements of {})",
                outputs[0]
            ));
        }
        if names.count() > MAX_BUFFERS {
            return fail(format!("more than {MAX_BUFFERS} operands, which is what every GPU can bind"));
        }
        if 4 * (params.len() + 1) > PARAMS_BYTES {
            return fail(format!("more than {} parameters", PARAMS_BYTES / 4 - 1));
        }
        if keeps.inputs.iter().any(|i| *i >= inputs.len()) || keeps.outputs.iter().any(|i| *i >= outputs.len()) {
            return fail("`keeps` names an operand that there is not".into());
        }
        if let Grid::Workgroups { threads, .. } = self.definition.grid
            && !(1..=256).contains(&threads)
        {
            return fail(format!("workgroups of {threads} threads; every GPU can have 1 to 256"));
        }
        if !tolerance.iter().all(|t| t.is_finite() && *t >= 0.0) {
            return fail(format!("a tolerance of {tolerance:?}"));
        }
        for (there, what) in [(self.has_wgsl, "wgsl"), (self.has_cpu, "cpu")] {
            if !there {
                return fail(format!("`{what}` is missing: an op runs on every device"));
            }
        }
        Ok(CustomOp::from(self.definition))
    }
}
