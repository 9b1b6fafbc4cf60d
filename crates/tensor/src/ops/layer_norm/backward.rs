//! The gradients of both normalizations, in one pass over dy and x.

use super::*;
use rayon::iter::Either;

/// Outputs: dx; the branch's gradient, if `branch` is its type; and the partial sums of the `parameters`' gradients
/// (chunks, parameters, C), if any. Inputs: dy, x, weight, the statistics, and if `extra_grad` one more gradient of x,
/// which is added.
pub(super) struct Backward {
    pub rms: bool,
    pub extra_grad: bool,
    pub branch: Option<DType>,
    /// Of the branch.
    pub dropout: Option<Mask>,
    /// Number of parameter gradients: 2 for weight and bias, 1 for the weight alone.
    pub parameters: usize,
}

/// dx of a row, with `extra_grad` added.
#[inline(always)]
fn input_gradient(
    rms: bool,
    [dy, x, weight]: [&[f32]; 3],
    [mean, rstd]: [f32; 2],
    extra_grad: Option<&[f32]>,
    dx: &mut [f32],
) {
    let c = weight.len();
    let mean_g = if rms { 0.0 } else { sum_of([dy, weight], |[dy, weight]| dy * weight) / c as f32 };
    let mean_gx = sum_of([dy, weight, x], |[dy, weight, x]| dy * weight * ((x - mean) * rstd)) / c as f32;
    for (((dx, x), dy), weight) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
        *dx = rstd * (dy * weight - mean_g - (x - mean) * rstd * mean_gx);
    }
    if let Some(extra_grad) = extra_grad {
        dx.iter_mut().zip(extra_grad).for_each(|(dx, extra_grad)| *dx += extra_grad);
    }
}

/// Slices of `len` elements of `x`, or `count` empty ones if there is no x.
fn slices(x: Option<&mut [f32]>, len: usize, count: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
    match x {
        Some(x) => Either::Left(x.par_chunks_mut(len)),
        None => Either::Right((0..count).into_par_iter().map(|_| -> &mut [f32] { &mut [] })),
    }
}

impl Kernel for Backward {
    fn name(&self) -> &'static str {
        if self.rms { "rms_norm_backward" } else { "layer_norm_backward" }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let x = inputs[1];
        let layout = Layout::of(x);
        let partials = Spec::new([layout.chunks(), self.parameters, layout.c], DType::F32);
        let gradients = [x.dtype].into_iter().chain(self.branch).map(|dtype| Spec::new(x.shape.clone(), dtype));
        Ok(gradients.chain((self.parameters > 0).then_some(partials)).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // For dx, then a product and a sum for the weight, a sum for the bias.
        let per_element = 11 + [0, 2, 3][self.parameters];
        streaming_cost(per_element * outputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let [dy, x, weight, statistics] = [0, 1, 2, 3].map(|i| inputs[i].f32());
        let extra_grad = self.extra_grad.then(|| inputs[4].f32());
        let layout = Layout::of(inputs[1].spec);
        let (c, chunk) = (layout.c, layout.chunk());
        let (mean, rstd) = statistics.split_at(layout.rows);
        let count = layout.rows.div_ceil(chunk);
        let mut outputs = outputs.iter_mut().map(ViewMut::f32);
        let dx = outputs.next().expect("the first output is dx").par_chunks_mut(chunk * c);
        let dbranch = slices(self.branch.and_then(|_| outputs.next()), chunk * c, count);
        let mut partials = outputs.next();
        if let (Some(partials), 0) = (&mut partials, count) {
            partials.fill(0.0);
        }
        let sums = slices(partials, self.parameters * c, count);
        dx.zip(dbranch).zip(sums).enumerate().for_each(|(number, ((dx, dbranch), sums))| {
            vectorized(
                #[inline(always)]
                || {
                    sums.fill(0.0);
                    let (dweight, dbias) = sums.split_at_mut(c.min(sums.len()));
                    for (i, dx) in dx.chunks_exact_mut(c).enumerate() {
                        let row = number * chunk + i;
                        let elements = row * c..(row + 1) * c;
                        let (dy, x) = (&dy[elements.clone()], &x[elements.clone()]);
                        let [mean, rstd] = [mean[row], rstd[row]];
                        input_gradient(
                            self.rms,
                            [dy, x, weight],
                            [mean, rstd],
                            extra_grad.map(|extra_grad| &extra_grad[elements]),
                            dx,
                        );
                        if self.branch.is_some() {
                            let dbranch = &mut dbranch[i * c..(i + 1) * c];
                            match &self.dropout {
                                Some(mask) => mask.apply_to((row * c) as u32, dx, dbranch),
                                None => dbranch.copy_from_slice(dx),
                            }
                        }
                        for ((sum, x), dy) in dweight.iter_mut().zip(x).zip(dy) {
                            *sum += dy * ((x - mean) * rstd);
                        }
                        dbias.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
                    }
                },
            );
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        use Operand::{Input, Output};
        let layout = Layout::of(inputs[1]);
        let mut buffers = vec![
            layout.buffer("grad_output", inputs[0].dtype, Input(0)),
            layout.buffer("x", DType::F32, Input(1)),
            layout.buffer("weight", DType::F32, Input(2)),
            buffer("statistics", "f32", Input(3)),
            layout.buffer("result", DType::F32, Output(0)),
        ];
        buffers.extend(self.extra_grad.then_some(layout.buffer("extra_grad", DType::F32, Input(4))));
        buffers.extend(self.branch.map(|dtype| layout.buffer("branch_grad", dtype, Output(1))));
        let sums = Output(1 + self.branch.is_some() as usize);
        buffers.extend((self.parameters > 0).then_some(layout.buffer("sums", DType::F32, sums)));
        let values = vec![
            ("mode", "backward".into()),
            ("rms", self.rms.into()),
            ("extra_grad", self.extra_grad.into()),
            ("parameters", self.parameters.into()),
        ];
        let params = [param("chunk", layout.chunk()), param("chunks", layout.chunks())];
        let types = (inputs[0].dtype, self.branch);
        layout.launch(values, types, buffers, &params, self.dropout, (layout.chunks(), limits))
    }
}
