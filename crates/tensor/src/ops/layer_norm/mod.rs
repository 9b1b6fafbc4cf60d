//! Layer normalization (Ba, Kiros, Hinton 2016) and RMS normalization (Zhang and Sennrich 2019). Shapes: x (..., C),
//! weight (C), bias (C) or none -> y (..., C); or, fused with the residual sum, x and branch (..., C) -> x + branch and
//! y (..., C).
//!
//! With n = (x - mean) rstd and rstd = 1 / sqrt(variance + eps), over the C elements of a row: y = n weight + bias.
//!
//! RMS normalization is the same without a mean and without a bias: n = x rstd, rstd = 1 / sqrt(average(x^2) + eps),
//! and no average(g) below.
//!
//! With g = dy weight, and averages over the row: dx = rstd (g - average(g) - n average(g n)). Over all rows: dweight =
//! sum dy n, dbias = sum dy. One pass over dy and x computes all three, the latter two as partial sums of row chunks,
//! which [`SumRows`] then adds.
//!
//! Dropout of the branch is fused, with the mask of the separate op: the sum is x + drop(branch), the branch's gradient
//! drop(dx). Only the key is stored.
//!
//! Forward keeps the statistics (2, rows): all means, then all rstds. In mixed precision, y (a GEMM operand) and the
//! branch (a GEMM result) may be f16, with f16 gradients. All else is f32, including sums.

mod backward;

use super::dropout::{self, Mask};
use super::random::Key;
use super::reduce::SumRows;
use super::*;
use crate::cpu::{sum_of, vectorized};
use crate::gpu::{Buffer, Limits, Operand, Param, Plan, Value, buffer, param};
use crate::shader;
use crate::tensor::{Grads, apply};
use backward::Backward;
use rayon::prelude::*;

/// Inputs: x, weight, bias if there is one, and the branch if there is one. Outputs: y, the statistics (2, rows), and
/// with a branch the sum.
pub(super) struct LayerNorm {
    pub eps: f32,
    /// Whether this is RMS normalization.
    pub rms: bool,
    pub has_bias: bool,
    /// The type of the branch, if there is one.
    pub branch: Option<DType>,
    /// Of the branch.
    pub dropout: Option<Mask>,
    /// The type of y.
    pub out: DType,
}

/// Smallest and largest number of rows per chunk. A chunk's sums are two more rows to write and read: with eight rows,
/// an eighth of the pass's memory traffic.
const CHUNK_ROWS: [usize; 2] = [8, 32];
/// Chunks enough for the largest GPUs, four workgroups on each of 128 processors: with more rows they are longer.
const CHUNKS: usize = 512;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// The most vectors of a row that a thread holds in registers, for rows of up to 8192 elements (2048 if they are no
/// whole vectors). Longer rows are read once more for each of their sums.
const VECTORS_PER_THREAD: usize = 8;

/// How a shader sees rows of C elements: four at a time if that comes out even.
struct Layout {
    rows: usize,
    c: usize,
    vector: usize,
}

impl Layout {
    fn of(x: &Spec) -> Layout {
        let c = x.shape.last_dim();
        Layout { rows: x.shape.rows(), c, vector: if c.is_multiple_of(4) { 4 } else { 1 } }
    }

    /// Vectors per row.
    fn width(&self) -> usize {
        self.c / self.vector
    }

    /// Threads per row: each processes one or two vectors, or more of a long row. A narrow row with at least 32 vectors
    /// has 32 threads, which need no barriers on a GPU with subgroups of 32.
    fn lanes(&self) -> usize {
        self.width().div_ceil(2).max(self.width().min(32)).next_power_of_two().min(THREADS)
    }

    /// Rows that a workgroup works on at the same time.
    fn rows_at_once(&self) -> usize {
        THREADS / self.lanes()
    }

    /// Rows of a chunk: a multiple of those at once.
    fn chunk(&self) -> usize {
        let [least, most] = CHUNK_ROWS;
        let rows = 1 << (self.rows / CHUNKS).max(1).ilog2();
        rows.clamp(least, most).max(self.rows_at_once())
    }

    /// How many chunks: without rows one, which is empty.
    fn chunks(&self) -> usize {
        self.rows.div_ceil(self.chunk()).max(1)
    }

    /// A buffer of rows, or of a vector as long as one.
    fn buffer(&self, name: &'static str, dtype: DType, operand: Operand) -> Buffer {
        buffer(name, dtype.wgsl(self.vector), operand)
    }

    /// A launch in which `lanes` threads share a row. `y` and `branch` are the types of those and of their gradients.
    /// `params` come after the sizes.
    fn launch(
        &self,
        mut values: Vec<(&'static str, Value)>,
        (y, branch): (DType, Option<DType>),
        buffers: Vec<Buffer>,
        params: &[Param],
        dropout: Option<Mask>,
        (workgroups, limits): (usize, &Limits),
    ) -> Plan {
        let element = DType::F32.wgsl(self.vector);
        values.extend([("T", element.into()), ("T_y", y.name().into()), ("lanes", self.lanes().into())]);
        values.push(("subgroup", limits.subgroup_size.into()));
        let held = self.width().div_ceil(self.lanes());
        values.push(("held", if held <= VECTORS_PER_THREAD { held } else { 0 }.into()));
        values.extend([("branch", branch.is_some().into()), ("dropout", dropout.is_some().into())]);
        values.push(("T_branch", branch.unwrap_or(DType::F32).name().into()));
        let per_element = param("per_element", 1.0 / self.c as f32);
        let mut all = vec![param("rows", self.rows), param("width", self.width()), per_element];
        all.extend_from_slice(params);
        all.extend(dropout.iter().flat_map(Mask::params));
        Plan::one(Launch { shader: shader!(layer_norm), values, buffers, params: all, workgroups })
    }
}

impl LayerNorm {
    /// y of a row x; its mean and rstd.
    #[inline(always)]
    fn normalize(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>, y: &mut [f32]) -> [f32; 2] {
        let c = weight.len();
        let mean = if self.rms { 0.0 } else { sum_of([x], |[x]| x) / c as f32 };
        let variance = sum_of([x], |[x]| (x - mean) * (x - mean)) / c as f32;
        let rstd = 1.0 / (variance + self.eps).sqrt();
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = (x - mean) * rstd * weight;
        }
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        [mean, rstd]
    }
}

impl Kernel for LayerNorm {
    fn name(&self) -> &'static str {
        if self.rms { "rms_norm" } else { "layer_norm" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (f32s, branch) = inputs.split_at(2 + self.has_bias as usize);
        expect_f32(self.name(), f32s)?;
        let x = inputs[0];
        let c = x.shape.last_dim();
        if x.shape.is_empty() || c == 0 {
            return Err(shape_error(self.name(), "rows of at least one element", x));
        }
        if let Some(wrong) = f32s[1..].iter().find(|s| s.shape[..] != [c]) {
            return Err(shape_error(self.name(), format!("a weight and bias of ({c}) for {x}"), wrong));
        }
        if self.out == DType::U32 {
            return Err(Error::DType { op: self.name(), expected: "f32 or f16", got: self.out.name() });
        }
        let statistics = Spec::new([2, x.shape.rows()], DType::F32);
        let mut outputs = vec![Spec::new(x.shape.clone(), self.out), statistics];
        if let [branch] = branch {
            if branch.dtype == DType::U32 {
                expect_f32(self.name(), &[branch])?;
            }
            if branch.shape != x.shape {
                return Err(shape_error(self.name(), format!("a branch of {x}"), branch));
            }
            outputs.push(x.clone());
        }
        Ok(outputs)
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Sum, difference, square and its sum, two products, one sum.
        streaming_cost(7 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [x, weight] = [0, 1].map(|i| inputs[i].f32());
        let bias = self.has_bias.then(|| inputs[2].f32());
        let c = weight.len();
        let [y, statistics, sum @ ..] = outputs else { unreachable!("there are two outputs at least") };
        let (mean, rstd) = statistics.f32().split_at_mut(x.len() / c);
        let rows = y.f32().par_chunks_mut(c).zip(mean).zip(rstd).zip(x.par_chunks(c));
        match sum {
            [sum] => {
                let branch = inputs[2 + self.has_bias as usize].f32();
                let sums = sum.f32().par_chunks_mut(c).zip(branch.par_chunks(c));
                rows.zip(sums).enumerate().for_each(|(row, ((((y, mean), rstd), x), (sum, branch)))| {
                    vectorized(
                        #[inline(always)]
                        || {
                            match &self.dropout {
                                Some(mask) => mask.apply_to((row * c) as u32, branch, sum),
                                None => sum.copy_from_slice(branch),
                            }
                            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                            [*mean, *rstd] = self.normalize(sum, weight, bias, y);
                        },
                    );
                });
            }
            _ => rows.for_each(|(((y, mean), rstd), x)| {
                [*mean, *rstd] = vectorized(
                    #[inline(always)]
                    || self.normalize(x, weight, bias, y),
                )
            }),
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        use Operand::{Input, Output};
        let layout = Layout::of(inputs[0]);
        let mut buffers = vec![
            layout.buffer("x", DType::F32, Input(0)),
            layout.buffer("weight", DType::F32, Input(1)),
            layout.buffer("result", self.out, Output(0)),
            buffer("statistics", "f32", Output(1)),
        ];
        if let Some(dtype) = self.branch {
            let branch = Input(2 + self.has_bias as usize);
            buffers.extend([layout.buffer("branch", dtype, branch), layout.buffer("sum", DType::F32, Output(2))]);
        }
        buffers.extend(self.has_bias.then_some(layout.buffer("bias", DType::F32, Input(2))));
        let values = vec![("mode", "forward".into()), ("rms", self.rms.into()), ("has_bias", self.has_bias.into())];
        let workgroups = layout.rows.div_ceil(layout.rows_at_once());
        let params = [param("eps", self.eps)];
        layout.launch(values, (self.out, self.branch), buffers, &params, self.dropout, (workgroups, limits))
    }
}

impl Op for LayerNorm {
    fn saves(&self) -> Saves {
        if self.branch.is_some() {
            Saves { inputs: &[1], outputs: &[1, 2] }
        } else {
            Saves { inputs: &[0, 1], outputs: &[1] }
        }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let dsum = grad_output.get(2).and_then(Option::as_ref);
        let branch = 2 + self.has_bias as usize;
        let Some(dy) = &grad_output[0] else {
            let (Some(dsum), Some(dtype)) = (dsum, self.branch) else { return Ok(()) };
            grads.accumulate(0, dsum.clone())?;
            let dbranch = match self.dropout {
                Some(mask) => dropout::input_gradient(grads, mask, dsum)?,
                None => dsum.clone(),
            };
            return grads.accumulate(branch, dbranch.to_dtype(dtype)?);
        };
        let x = if self.branch.is_some() { saved.output(2)? } else { saved.input(0)? };
        // What is added in passing: the gradient of the sum, else what other uses of x have given.
        let extra_grad = if self.branch.is_some() { dsum.cloned() } else { grads.take_partial(0) };
        // Without dropout the sum passes the same gradient on to both of its terms: one tensor, if they are of one
        // type.
        let apart = self.branch.filter(|dtype| self.dropout.is_some() || *dtype != x.dtype());
        let parameters = 1 + self.has_bias as usize;
        let parameters = if (1..=parameters).any(|i| grads.needs_grad(i)) { parameters } else { 0 };
        let &LayerNorm { rms, dropout, .. } = self;
        let kernel = Backward { rms, extra_grad: extra_grad.is_some(), branch: apart, dropout, parameters };
        let inputs: Vec<&Tensor> =
            [dy, x, saved.input(1)?, saved.output(1)?].into_iter().chain(extra_grad.as_ref()).collect();
        let mut gradients = grads.run(&kernel, &inputs)?;
        if parameters > 0 {
            let partials = gradients.pop().expect("the last output is the partial sums");
            let sums = |accumulate| SumRows { accumulate, len: x.shape().last_dim(), outputs: parameters };
            grads.accumulate_all_with(&[1, 2][..parameters], &[&partials], sums)?;
        }
        let dx = gradients.remove(0);
        if self.branch.is_some() {
            grads.accumulate(branch, gradients.pop().unwrap_or_else(|| dx.clone()))?;
        }
        grads.accumulate(0, dx)
    }
}

impl Tensor {
    /// The same in f32, if it is f16.
    fn f16_as_f32(&self) -> Result<Tensor> {
        if self.dtype() == DType::F16 { self.to_dtype(DType::F32) } else { Ok(self.clone()) }
    }

    /// Normalizes each row (the last dimension, C) to mean 0 and variance 1, then scales by `weight` (C) and shifts by
    /// `bias` (C); of the type of this tensor.
    ///
    /// # Errors
    /// If this tensor is neither f32 nor f16, or the weight or bias is not f32 (C).
    pub fn layer_norm(&self, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        self.layer_norm_to(self.dtype(), weight, bias, eps)
    }

    /// [`Tensor::layer_norm`] with a result of type `out`, f32 or f16.
    ///
    /// # Errors
    /// Those of [`Tensor::layer_norm`], or if `out` is u32.
    pub fn layer_norm_to(&self, out: DType, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let x = self.f16_as_f32()?;
        let inputs: Vec<&Tensor> = [&x, weight].into_iter().chain(bias).collect();
        let op = LayerNorm { eps, rms: false, has_bias: bias.is_some(), branch: None, dropout: None, out };
        Ok(apply(op, &inputs)?.remove(0))
    }

    /// Divides each row (the last dimension, C) by its root mean square, then scales by `weight` (C); of type `out`,
    /// f32 or f16.
    ///
    /// # Errors
    /// Those of [`Tensor::layer_norm_to`].
    pub fn rms_norm_to(&self, out: DType, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let op = LayerNorm { eps, rms: true, has_bias: false, branch: None, dropout: None, out };
        Ok(apply(op, &[&self.f16_as_f32()?, weight])?.remove(0))
    }

    /// Residual sum and norm in one kernel: returns `self + dropout(branch)` and its [`Tensor::layer_norm_to`], both
    /// (..., C). The mask of `dropout` is that of [`Tensor::dropout`].
    ///
    /// # Errors
    /// If `branch` or `out` is neither f32 nor f16 or another tensor not f32, `branch` has another shape, the weight or
    /// bias is not of shape (C), or the probability of dropout is not in 0..1.
    pub fn add_layer_norm(
        &self,
        branch: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
        weight: &Tensor,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).chain([branch]).collect();
        let dropout = dropout.map(|(p, key)| Mask::new("layer_norm", p, key, self.shape())).transpose()?;
        let (has_bias, branch) = (bias.is_some(), Some(branch.dtype()));
        let mut outputs = apply(LayerNorm { eps, rms: false, has_bias, branch, dropout, out }, &inputs)?;
        Ok((outputs.remove(2), outputs.remove(0)))
    }

    /// Residual sum and norm in one kernel: returns `self + dropout(branch)` and its [`Tensor::rms_norm_to`], both
    /// (..., C). The mask of `dropout` is that of [`Tensor::dropout`].
    ///
    /// # Errors
    /// Those of [`Tensor::add_layer_norm`].
    pub fn add_rms_norm(
        &self,
        branch: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
        weight: &Tensor,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let dropout = dropout.map(|(p, key)| Mask::new("rms_norm", p, key, self.shape())).transpose()?;
        let op = LayerNorm { eps, rms: true, has_bias: false, branch: Some(branch.dtype()), dropout, out };
        let mut outputs = apply(op, &[self, weight, branch])?;
        Ok((outputs.remove(2), outputs.remove(0)))
    }
}
