//! A custom op: running it, and the shader that its WGSL becomes.

use super::backward::{OutputGrads, Recorded};
use crate::gpu::{Launch, Limits, Operand, ParamValue, Plan, Shader, Value, buffer, check_wgsl, param};
use crate::profile::Cost;
use crate::tensor::{DType, Kernel, Saves, Spec, Tensor, View, ViewMut, common_device, record, run};
use crate::{Error, Result};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) type Specs = Box<dyn Fn(&[&Spec]) -> Result<Vec<Spec>> + Send + Sync>;
type Size = Box<dyn Fn(&[&Spec], &[&Spec]) -> usize + Send + Sync>;
type Cpu = Box<dyn Fn(&[View], &mut [ViewMut]) + Send + Sync>;
type Backward = Box<dyn Fn(&OutputGrads) -> Result<Vec<Option<Tensor>>> + Send + Sync>;

/// An op that an application defines; clones are the same op. [`CustomOp::elementwise`] and [`CustomOp::builder`] begin
/// one.
#[derive(Clone)]
pub struct CustomOp(Arc<Definition>);

/// The parts that a `Builder` collects.
pub(super) struct Definition {
    pub name: &'static str,
    pub inputs: &'static [&'static str],
    pub outputs: Vec<&'static str>,
    pub specs: Specs,
    pub params: Vec<(&'static str, ParamSource)>,
    pub declarations: &'static str,
    pub body: &'static str,
    pub grid: Grid,
    pub flops_per_element: f64,
    pub cpu: Cpu,
    pub keeps: Saves,
    pub backward: Option<Backward>,
    /// Absolute and relative.
    pub tolerance: [f64; 2],
    /// For which types of the operands, and under which limits, the WGSL is known to compile.
    pub compiled: Mutex<HashSet<(Vec<DType>, Capabilities)>>,
}

/// What the WGSL may use: f16, subgroups, immediates; the bytes and threads of a workgroup.
pub(super) type Capabilities = ([bool; 3], [u32; 2]);

/// Where a parameter's value comes from.
pub(super) enum ParamSource {
    Fixed(ParamValue),
    Size(Size),
}

/// Which threads there are.
pub(super) enum Grid {
    /// One for each element of the first output.
    Elements,
    Workgroups {
        threads: u32,
        count: Size,
    },
}

/// What stands around the text of the author, which is a value of the template and so no template itself.
const ELEMENTS: &str =
    "{{ interface }}\n// declarations of the op\n{{ declarations }}\n{{ for_each(1) }}\n{{ body }}\n}";
const WORKGROUPS: &str =
    "{{ interface }}\n// declarations of the op\n{{ declarations }}\n{{ entry(threads) }}\n{{ body }}\n}";
const DECLARATIONS_BEGIN: &str = "// declarations of the op\n";
const BODY_ENDS: &str = "\n}";

impl From<Definition> for CustomOp {
    fn from(definition: Definition) -> CustomOp {
        CustomOp(Arc::new(definition))
    }
}

impl CustomOp {
    /// As the profile calls it.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    pub(super) fn definition(&self) -> &Definition {
        &self.0
    }

    /// The outputs for these inputs, which must be on one device; recorded on the tape if an input needs a gradient.
    ///
    /// # Errors
    /// What the op's `specs` says of the inputs; [`Error::Shape`] if there are more or fewer; [`Error::Wgsl`], with the
    /// line, if its WGSL does not compile; [`Error::GpuLimit`] if a GPU cannot bind so much; [`Error::Autograd`] if a
    /// gradient is needed and it has no backward.
    pub fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let outputs = self.run(inputs)?;
        let needed = inputs.iter().any(|input| input.needs_grad());
        if needed && self.0.backward.is_none() {
            let how = "give it one with `backward`, or its inputs without history by `detach` or in `no_grad`";
            return Err(Error::Autograd(format!("{} has no backward; {how}", self.name())));
        }
        let specs = |tensors: &[&Tensor]| tensors.iter().map(|t| t.spec().clone()).collect();
        let recorded = Recorded {
            op: self.clone(),
            inputs: specs(inputs),
            outputs: specs(&outputs.iter().collect::<Vec<_>>()),
            device: inputs[0].device(),
        };
        Ok(record(Box::new(recorded), inputs, outputs))
    }

    /// The first output of [`CustomOp::apply`].
    ///
    /// # Errors
    /// Those of [`CustomOp::apply`].
    pub fn apply_one(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(self.apply(inputs)?.remove(0))
    }

    /// Runs it, and records nothing.
    fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.expect_inputs(inputs.len())?;
        let device = common_device(self.name(), inputs)?;
        let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
        let outputs = self.output_specs(&specs)?;
        if device.is_gpu() {
            self.expect_fits(&specs, &outputs.iter().collect::<Vec<_>>(), device.limits(), &device.to_string())?;
        }
        run(self, inputs)
    }

    fn expect_inputs(&self, got: usize) -> Result<()> {
        let names = self.0.inputs.join(", ");
        let expected = || format!("{} inputs ({names})", self.0.inputs.len());
        if got == self.0.inputs.len() {
            return Ok(());
        }
        Err(Error::Shape { op: self.name(), expected: expected(), got: got.to_string() })
    }

    /// Fails unless a GPU of these limits can run it on such operands.
    pub(super) fn expect_fits(&self, inputs: &[&Spec], outputs: &[&Spec], limits: &Limits, gpu: &str) -> Result<()> {
        let fail = |what: String, needed: usize, unit: &str, limit: u64| {
            let (needed, limit) = (format!("{needed}{unit}"), format!("{limit}{unit}"));
            let hint = "use smaller tensors, or the CPU".to_string();
            Err(Error::GpuLimit { what: format!("{}: {what}", self.name()), needed, adapter: gpu.into(), limit, hint })
        };
        for spec in inputs.iter().chain(outputs) {
            let (bytes, elements) = (spec.size_bytes(), spec.shape.elements());
            if bytes as u64 > limits.binding_bytes {
                return fail(format!("binding {spec}"), bytes, " bytes", limits.binding_bytes);
            }
            if elements > u32::MAX as usize {
                return fail(format!("counting {spec}"), elements, " elements", u32::MAX.into());
            }
        }
        for (name, source) in &self.0.params {
            if let ParamSource::Size(size) = source
                && size(inputs, outputs) > u32::MAX as usize
            {
                return fail(format!("params.{name}"), size(inputs, outputs), "", u32::MAX.into());
            }
        }
        // A number of a workgroup is a u32 too.
        let workgroups = self.workgroups(inputs, outputs);
        if workgroups > u32::MAX as usize / 2 {
            return fail("a launch".into(), workgroups, " workgroups", u64::from(u32::MAX / 2));
        }
        self.expect_compiles(inputs, outputs, limits)
    }

    /// Fails with the line that does not compile for such operands under these limits.
    fn expect_compiles(&self, inputs: &[&Spec], outputs: &[&Spec], limits: &Limits) -> Result<()> {
        let types = inputs.iter().chain(outputs).map(|spec| spec.dtype).collect();
        let features = [limits.f16, limits.subgroup_size > 0, limits.immediates];
        let key = (types, (features, [limits.workgroup_bytes, limits.workgroup_threads]));
        let compiled = || self.0.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled().contains(&key) {
            return Ok(());
        }
        let launch = self.launch(inputs, outputs);
        check_wgsl(&launch, limits).map_err(|(error, source)| {
            let place = error.line.map_or("its WGSL".into(), |line| self.place(&source, line));
            Error::Wgsl { op: self.name(), place, message: error.message }
        })?;
        compiled().insert(key);
        Ok(())
    }

    /// Where the author knows line `line` of the whole text from.
    fn place(&self, source: &str, line: usize) -> String {
        let text = source.lines().nth(line - 1).unwrap_or_default().trim();
        let line_of = |byte: usize| source[..byte].matches('\n').count() + 1;
        let body = source.len().saturating_sub(BODY_ENDS.len() + self.0.body.len());
        let declarations = source.find(DECLARATIONS_BEGIN).map_or(0, |at| at + DECLARATIONS_BEGIN.len());
        let lines = |text: &str| text.matches('\n').count() + 1;
        for (what, begins, own) in [("wgsl", body, self.0.body), ("declarations", declarations, self.0.declarations)] {
            let first = line_of(begins);
            if (first..first + lines(own)).contains(&line) {
                return format!("line {} of its {what}, `{text}`", line + 1 - first);
            }
        }
        format!("its WGSL, in what stands around its text, `{text}`")
    }

    fn workgroups(&self, inputs: &[&Spec], outputs: &[&Spec]) -> usize {
        match &self.0.grid {
            Grid::Elements => outputs[0].shape.elements().div_ceil(256),
            Grid::Workgroups { count, .. } => count(inputs, outputs),
        }
    }

    /// What it runs on a GPU.
    pub(super) fn launch(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Launch {
        // More than a u32 was refused before.
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let names = self.0.inputs.iter().zip(inputs).enumerate();
        let read = names.map(|(i, (name, spec))| buffer(name, spec.dtype.name(), Operand::Input(i)));
        let names = self.0.outputs.iter().zip(outputs).enumerate();
        let written = names.map(|(i, (name, spec))| buffer(name, spec.dtype.name(), Operand::Output(i)));
        let buffers: Vec<_> = read.chain(written).collect();
        let mut params = vec![param("len", number(outputs[0].shape.elements()))];
        params.extend(self.0.params.iter().map(|(name, source)| match source {
            ParamSource::Fixed(value) => param(name, *value),
            ParamSource::Size(size) => param(name, number(size(inputs, outputs))),
        }));
        // Whatever the text follows from, because texts that have these in common are compiled once.
        let mut values: Vec<(&'static str, Value)> =
            vec![("declarations", self.0.declarations.into()), ("body", self.0.body.into())];
        let source = match self.0.grid {
            Grid::Elements => ELEMENTS,
            Grid::Workgroups { threads, .. } => {
                values.push(("threads", threads.into()));
                WORKGROUPS
            }
        };
        values.push(("inputs", self.0.inputs.len().into()));
        values.extend(buffers.iter().flat_map(|b| [("name", b.name.into()), ("element", b.element.into())]));
        values.extend(params.iter().flat_map(|p| [("name", p.name.into()), ("element", p.kind.into())]));
        let shader = Shader { name: self.0.name, source, checked: true };
        Launch { shader, values, buffers, params, workgroups: self.workgroups(inputs, outputs) }
    }
}

impl Kernel for CustomOp {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        self.expect_inputs(inputs.len())?;
        let specs = (self.0.specs)(inputs)?;
        if specs.len() != self.0.outputs.len() {
            let expected = format!("{} outputs ({}) of its `specs`", self.0.outputs.len(), self.0.outputs.join(", "));
            return Err(Error::Shape { op: self.0.name, expected, got: specs.len().to_string() });
        }
        Ok(specs)
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let bytes = inputs.iter().chain(outputs).map(|spec| spec.size_bytes() as f64).sum();
        Cost { flops: self.0.flops_per_element * outputs[0].shape.elements() as f64, bytes }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        (self.0.cpu)(inputs, outputs);
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        Plan::one(self.launch(inputs, outputs))
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "CustomOp({}: {} -> {})", self.0.name, self.0.inputs.join(", "), self.0.outputs.join(", "))
    }
}
