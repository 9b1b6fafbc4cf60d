//! Layer normalization (Ba, Kiros, Hinton 2016). Shapes: x (..., C), weight (C), bias (C) or none -> y (..., C); or, of the
//! sum with what a layer adds to the stream, x and residual (..., C) -> their sum and y (..., C).
//!
//! With n = (x - mean) rstd and rstd = 1 / sqrt(variance + eps), over the C elements of a row: y = n weight + bias.
//!
//! With g = dy weight, and averages over the row: dx = rstd (g - average(g) - n average(g n)).
//! Over all rows: dweight = sum dy n, dbias = sum dy.
//!
//! The residual may be dropped out in passing, under the mask of the stand-alone op: the sum is x + drop(residual), and the
//! residual's gradient drop(dx), of which nothing is stored but a key.
//!
//! Forward keeps mean and rstd, two numbers per row. In mixed precision y, an operand of products, and the residual, a result
//! of them, may be f16, each with its gradient. All else is f32, and so are the sums.

use super::dropout::{self, Mask};
use super::random::Key;
use super::reduce::sum_scratch;
use super::*;
use crate::cpu::{sum_of, vectorized, with_scratch};
use crate::gpu::{Limits, Operand, Plan, Value};
use crate::shader;
use crate::tensor::{Grads, apply, run};
use rayon::prelude::*;

/// Inputs: x, weight, bias if there is one, and the residual if there is one. Outputs: y, mean (rows), rstd (rows), and with a
/// residual the sum.
struct LayerNorm {
    eps: f32,
    has_bias: bool,
    /// The type of the residual, if there is one.
    residual: Option<DType>,
    /// Of the residual.
    dropout: Option<Mask>,
    /// The type of y.
    out: DType,
}

/// dx, and the residual's gradient if `residual` gives a type for it. Inputs: dy, x, weight, mean, rstd, and if `plus` one more
/// gradient of x, which is added.
pub(super) struct InputGradient {
    pub accumulate: bool,
    pub plus: bool,
    pub residual: Option<DType>,
    /// Of the residual.
    pub dropout: Option<Mask>,
}

/// dweight, and dbias if there is a bias. Inputs: dy, x, mean, rstd.
pub(super) struct WeightGradient {
    pub accumulate: bool,
    pub has_bias: bool,
}

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

    fn type_name(&self) -> Value {
        if self.vector == 4 { "vec4<f32>" } else { "f32" }.into()
    }

    /// A launch in which `lanes` threads share a row. `y` and `residual` are the types of those and of their gradients.
    fn by_row(
        &self,
        mut values: Vec<(&'static str, Value)>,
        y: DType,
        residual: Option<DType>,
        bindings: Vec<Operand>,
        eps: f32,
        dropout: Option<Mask>,
    ) -> Plan {
        // Three or four vectors per thread: enough to hide latency, with most threads of the last round busy.
        let lanes = self.width().div_ceil(4).next_power_of_two().min(256);
        values.extend([("T", self.type_name()), ("T_y", y.name().into()), ("lanes", (lanes as u32).into())]);
        values.extend([("residual", residual.is_some().into()), ("dropout", dropout.is_some().into())]);
        values.push(("T_residual", residual.unwrap_or(DType::F32).name().into()));
        let mut params = vec![self.rows as u32, self.width() as u32, (1.0 / self.c as f32).to_bits(), eps.to_bits()];
        params.extend(dropout.iter().flat_map(Mask::params));
        Plan::one(Launch {
            shader: shader!("layer_norm"),
            values,
            bindings,
            params,
            workgroups: self.rows.div_ceil(256 / lanes),
        })
    }
}

/// y of a row x; its mean and rstd.
#[inline(always)]
fn normalize(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, y: &mut [f32]) -> [f32; 2] {
    let c = weight.len();
    let mean = sum_of([x], |[x]| x) / c as f32;
    let variance = sum_of([x], |[x]| (x - mean) * (x - mean)) / c as f32;
    let rstd = 1.0 / (variance + eps).sqrt();
    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
        *y = (x - mean) * rstd * weight;
    }
    if let Some(bias) = bias {
        y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
    [mean, rstd]
}

impl Kernel for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (f32s, residual) = inputs.split_at(2 + self.has_bias as usize);
        expect_f32(self.name(), f32s)?;
        let x = inputs[0];
        let c = x.shape.last_dim();
        if x.shape.is_empty() || c == 0 {
            return Err(shape_error(self.name(), "rows of at least one element", x));
        }
        if let Some(wrong) = f32s[1..].iter().find(|s| s.shape[..] != [c]) {
            return Err(shape_error(self.name(), format!("a weight and bias of ({c}) for {x}"), wrong));
        }
        let rows = Spec::new([x.shape.rows()], DType::F32);
        let mut outputs = vec![Spec::new(x.shape.clone(), self.out), rows.clone(), rows];
        if let [residual] = residual {
            if residual.dtype == DType::U32 {
                expect_f32(self.name(), &[residual])?;
            }
            if residual.shape != x.shape {
                return Err(shape_error(self.name(), format!("a residual of {x}"), residual));
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
        let [y, mean, rstd, sum @ ..] = outputs else { unreachable!("there are three outputs at least") };
        let rows = y.f32().par_chunks_mut(c).zip(mean.f32()).zip(rstd.f32()).zip(x.par_chunks(c));
        let eps = self.eps;
        match sum {
            [sum] => {
                let residual = inputs[2 + self.has_bias as usize].f32();
                let sums = sum.f32().par_chunks_mut(c).zip(residual.par_chunks(c));
                rows.zip(sums).enumerate().for_each(|(row, ((((y, mean), rstd), x), (sum, residual)))| {
                    vectorized(
                        #[inline(always)]
                        || {
                            match &self.dropout {
                                Some(mask) => mask.apply_to((row * c) as u32, residual, sum),
                                None => sum.copy_from_slice(residual),
                            }
                            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                            [*mean, *rstd] = normalize(sum, weight, bias, eps, y);
                        },
                    );
                });
            }
            _ => rows.for_each(|(((y, mean), rstd), x)| {
                [*mean, *rstd] = vectorized(
                    #[inline(always)]
                    || normalize(x, weight, bias, eps, y),
                )
            }),
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let mut bindings =
            vec![Operand::Input(0), Operand::Input(1), Operand::Output(0), Operand::Output(1), Operand::Output(2)];
        if self.residual.is_some() {
            bindings.extend([Operand::Input(2 + self.has_bias as usize), Operand::Output(3)]);
        }
        bindings.extend(self.has_bias.then_some(Operand::Input(2)));
        let values = vec![("mode", "forward".into()), ("has_bias", self.has_bias.into())];
        Layout::of(inputs[0]).by_row(values, self.out, self.residual, bindings, self.eps, self.dropout)
    }
}

impl Op for LayerNorm {
    fn saves(&self) -> Saves {
        if self.residual.is_some() {
            Saves { inputs: &[1], outputs: &[1, 2, 3] }
        } else {
            Saves { inputs: &[0, 1], outputs: &[1, 2] }
        }
    }

    fn backward(&self, saved: &Saved, upstream: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let dsum = upstream.get(3).and_then(Option::as_ref);
        let residual = 2 + self.has_bias as usize;
        let Some(dy) = &upstream[0] else {
            let (Some(dsum), Some(dtype)) = (dsum, self.residual) else { return Ok(()) };
            grads.give(0, dsum.clone())?;
            let dresidual = match self.dropout {
                Some(mask) => dropout::input_gradient(mask, dsum)?,
                None => dsum.clone(),
            };
            return grads.give(residual, dresidual.to_dtype(dtype)?);
        };
        let (weight, mean, rstd) = (saved.input(1), saved.output(1), saved.output(2));
        let x = if self.residual.is_some() { saved.output(3) } else { saved.input(0) };
        let parameters = if self.has_bias { &[1, 2][..] } else { &[1] };
        let has_bias = self.has_bias;
        grads.compute_all(parameters, &[dy, x, mean, rstd], |accumulate| WeightGradient { accumulate, has_bias })?;
        let inputs = [dy, x, weight, mean, rstd];
        if self.residual.is_none() {
            let kernel = |accumulate| InputGradient { accumulate, plus: false, residual: None, dropout: None };
            return grads.compute(0, &inputs, kernel);
        }
        // Without dropout the sum passes the same gradient on to both of its terms: one tensor, if they are of one type.
        let apart = self.residual.filter(|dtype| self.dropout.is_some() || *dtype != x.dtype());
        let kernel = InputGradient { accumulate: false, plus: dsum.is_some(), residual: apart, dropout: self.dropout };
        let inputs: Vec<&Tensor> = inputs.into_iter().chain(dsum).collect();
        let mut gradients = run(&kernel, &inputs)?;
        let dx = gradients.remove(0);
        let dresidual = gradients.pop().unwrap_or_else(|| dx.clone());
        grads.give(0, dx)?;
        grads.give(residual, dresidual)
    }
}

/// dx of a row, or dx with that added.
#[inline(always)]
fn input_gradient(dy: &[f32], x: &[f32], weight: &[f32], [mean, rstd]: [f32; 2], add: bool, dx: &mut [f32]) {
    let c = weight.len();
    let direct = sum_of([dy, weight], |[dy, weight]| dy * weight) / c as f32;
    let along = sum_of([dy, weight, x], |[dy, weight, x]| dy * weight * ((x - mean) * rstd)) / c as f32;
    for (((dx, x), dy), weight) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
        let d = rstd * (dy * weight - direct - (x - mean) * rstd * along);
        *dx = if add { *dx + d } else { d };
    }
}

impl Kernel for InputGradient {
    fn name(&self) -> &'static str {
        "layer_norm_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let x = inputs[1];
        Ok([x.dtype].into_iter().chain(self.residual).map(|dtype| Spec::new(x.shape.clone(), dtype)).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(11 * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [dy, x, weight, mean, rstd] = [0, 1, 2, 3, 4].map(|i| inputs[i].f32());
        let c = weight.len();
        let [dx, dresidual @ ..] = outputs else { unreachable!("there is one output at least") };
        let dx = dx.f32();
        if self.plus {
            dx.copy_from_slice(inputs[5].f32());
        }
        let add = self.plus || self.accumulate;
        let rows = dx.par_chunks_mut(c).zip(x.par_chunks(c)).zip(dy.par_chunks(c)).zip(mean).zip(rstd);
        let Some(dresidual) = dresidual.first_mut() else {
            return rows.for_each(|((((dx, x), dy), &mean), &rstd)| {
                vectorized(
                    #[inline(always)]
                    || input_gradient(dy, x, weight, [mean, rstd], add, dx),
                )
            });
        };
        rows.zip(dresidual.f32().par_chunks_mut(c)).enumerate().for_each(
            |(row, (((((dx, x), dy), &mean), &rstd), d))| {
                vectorized(
                    #[inline(always)]
                    || {
                        input_gradient(dy, x, weight, [mean, rstd], add, dx);
                        match &self.dropout {
                            Some(mask) => mask.apply_to((row * c) as u32, dx, d),
                            None => d.copy_from_slice(dx),
                        }
                    },
                )
            },
        );
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let mut bindings: Vec<Operand> = (0..5).map(Operand::Input).collect();
        bindings.push(Operand::Output(0));
        bindings.extend(self.plus.then_some(Operand::Input(5)));
        bindings.extend(self.residual.map(|_| Operand::Output(1)));
        let values = vec![("mode", "input".into()), ("accumulate", self.accumulate.into()), ("plus", self.plus.into())];
        Layout::of(inputs[1]).by_row(values, inputs[0].dtype, self.residual, bindings, 0.0, self.dropout)
    }
}

/// Rows that a CPU task sums: fixed, so that the result does not depend on the number of threads.
const ROWS_PER_TASK: usize = 64;

impl Kernel for WeightGradient {
    fn name(&self) -> &'static str {
        "layer_norm_weight_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([inputs[1].shape.last_dim()], DType::F32); 1 + self.has_bias as usize])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[1].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [dy, x, mean, rstd] = [0, 1, 2, 3].map(|i| inputs[i].f32());
        let c = outputs[0].spec.shape.elements();
        let block = ROWS_PER_TASK * c;
        let blocks = x.par_chunks(block).zip(dy.par_chunks(block));
        let blocks = blocks.zip(mean.par_chunks(ROWS_PER_TASK)).zip(rstd.par_chunks(ROWS_PER_TASK));
        // Of each block dweight, then dbias.
        let len = (1 + self.has_bias as usize) * c;
        with_scratch(mean.len().div_ceil(ROWS_PER_TASK) * len, |partials| {
            partials.par_chunks_mut(len).zip(blocks).for_each(|(totals, (((x, dy), mean), rstd))| {
                totals.fill(0.0);
                let (weight, bias) = totals.split_at_mut(c);
                vectorized(
                    #[inline(always)]
                    || {
                        for (((x, dy), mean), rstd) in x.chunks_exact(c).zip(dy.chunks_exact(c)).zip(mean).zip(rstd) {
                            for ((total, x), dy) in weight.iter_mut().zip(x).zip(dy) {
                                *total += dy * ((x - mean) * rstd);
                            }
                            bias.iter_mut().zip(dy).for_each(|(total, dy)| *total += dy);
                        }
                    },
                );
            });
            for (i, output) in outputs.iter_mut().enumerate() {
                let sums = output.f32();
                if !self.accumulate {
                    sums.fill(0.0);
                }
                for partial in partials.chunks_exact(len) {
                    sums.iter_mut().zip(&partial[i * c..]).for_each(|(sum, x)| *sum += x);
                }
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let layout = Layout::of(inputs[1]);
        let width = layout.width();
        // A workgroup reads 16 vectors (256 bytes) or 32 scalars (128 bytes) of each row.
        let cols = if layout.vector == 4 { 16 } else { 32 };
        let lanes = 256 / cols;
        let blocks = width.div_ceil(cols);
        // About 1024 workgroups fill the largest GPUs; chunks of fewer rows than this make the second pass the longer one.
        let chunk = layout.rows.div_ceil((1024usize).div_ceil(blocks)).max(4 * lanes);
        let chunks = layout.rows.div_ceil(chunk);
        let outputs = 1 + self.has_bias as usize;
        let mut bindings: Vec<Operand> = (0..4).map(Operand::Input).collect();
        bindings.extend((0..outputs).map(Operand::Scratch));
        let mut launches = vec![Launch {
            shader: shader!("layer_norm"),
            values: vec![
                ("mode", "weight".into()),
                ("has_bias", self.has_bias.into()),
                ("T", layout.type_name()),
                ("T_y", inputs[0].dtype.name().into()),
                ("T_residual", "f32".into()),
                ("cols", (cols as u32).into()),
                ("lanes", (lanes as u32).into()),
            ],
            bindings,
            params: vec![layout.rows as u32, width as u32, chunk as u32, blocks as u32],
            workgroups: blocks * chunks,
        }];
        launches.extend((0..outputs).map(|i| sum_scratch(i, chunks, layout.c, self.accumulate)));
        Plan { scratch: vec![4 * chunks * layout.c; outputs], launches }
    }
}

impl Tensor {
    /// Normalizes each row (the last dimension, C) to mean 0 and variance 1, then scales by `weight` (C) and shifts by
    /// `bias` (C).
    ///
    /// # Errors
    /// If a tensor is not f32, or the weight or bias is not of shape (C).
    pub fn layer_norm(&self, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        self.layer_norm_to(DType::F32, weight, bias, eps)
    }

    /// [`Tensor::layer_norm`] with a result of type `out`, f32 or f16.
    ///
    /// # Errors
    /// Those of [`Tensor::layer_norm`].
    pub fn layer_norm_to(&self, out: DType, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).collect();
        let op = LayerNorm { eps, has_bias: bias.is_some(), residual: None, dropout: None, out };
        Ok(apply(op, &inputs)?.remove(0))
    }

    /// The sum of this tensor and `residual`, and that sum normalized as by [`Tensor::layer_norm_to`]: both (..., C).
    /// `dropout` drops elements of the residual, those that [`Tensor::dropout`] would.
    ///
    /// # Errors
    /// If `residual` is neither f32 nor f16 or another tensor not f32, `residual` has another shape, the weight or bias is not of
    /// shape (C), or the probability of dropout is not in 0..1.
    pub fn add_layer_norm(
        &self,
        residual: &Tensor,
        dropout: Option<(f32, Key)>,
        out: DType,
        weight: &Tensor,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let inputs: Vec<&Tensor> = [self, weight].into_iter().chain(bias).chain([residual]).collect();
        let dropout = dropout.map(|(p, key)| Mask::new("layer_norm", p, key)).transpose()?;
        let op = LayerNorm { eps, has_bias: bias.is_some(), residual: Some(residual.dtype()), dropout, out };
        let mut outputs = apply(op, &inputs)?;
        Ok((outputs.remove(3), outputs.remove(0)))
    }
}
