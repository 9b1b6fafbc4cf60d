//! Rotary position embedding (Su et al. 2021) of packed queries and keys, after an optional RMS normalization of each
//! head (QK-norm, Henry et al. 2020). Values are unchanged. Shapes: packed qkv (B, T, P) of n_head query, n_kv_head key
//! and n_kv_head value heads of D elements each; table (positions, D), cosines and then sines of D/2 angles; weights
//! (D) of queries and of keys -> (B, T, P).
//!
//! For each head x of token t, with i < D/2 and c_i, s_i from row start + t of the table, in Hugging Face's pairing:
//! ```text
//! n = x / sqrt(average(x^2) + eps)    z = n weight                                  (z = x without weights)
//! y_i = z_i c_i - z_(i+D/2) s_i       y_(i+D/2) = z_(i+D/2) c_i + z_i s_i
//! ```
//! Backward rotates dy by the negative angles, which gives dz; with weights dn = dz weight, dx = (dn - n average(dn n))
//! / sqrt(..), and dweight sums dz n over all tokens and heads of a kind, in chunks of tokens that [`SumRows`] adds up.
//!
//! In generation, the same kernel writes keys and values to the KV cache from row `start` on.

use super::attention::copy_kv;
use super::reduce::SumRows;
use super::*;
use crate::cpu::{sum_of, vectorized};
use crate::gpu::{Buffer, Limits, Operand, Plan, buffer, param};
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::{Grads, apply, run_into};
use rayon::prelude::*;

/// Inputs: packed qkv, the table, and with `eps` the weights of queries and of keys. Outputs: the same packed, and the
/// cache if there is one.
#[derive(Debug, Clone)]
struct Rope {
    heads: Heads,
    /// Added to the mean square of a head; `None` without normalization.
    eps: Option<f32>,
    /// The position of the first token of each row.
    start: usize,
    /// Turns back: what backward does where there is no normalization.
    inverse: bool,
    /// (B, T, 2 n_kv_head D): the cache.
    cache: Option<Spec>,
}

/// dqkv and the sums (chunks, 2, D) of the gradients of both weights. Inputs: dy, packed qkv, the table, both weights.
struct Backward(Rope);

/// Tokens of a chunk.
const CHUNK: usize = 16;
/// Threads of a workgroup.
const THREADS: usize = 256;

/// The sizes that all loops are made of.
#[derive(Debug, Clone, Copy)]
struct Dims {
    /// B T.
    rows: usize,
    time: usize,
    /// Heads of a row.
    packed: usize,
    /// D.
    head_size: usize,
}

impl Dims {
    /// Elements of half a head that a shader loads at a time.
    fn vector(&self) -> usize {
        if self.head_size.is_multiple_of(8) { 4 } else { 1 }
    }

    /// Vectors per half head, one per thread.
    fn half(&self) -> usize {
        self.head_size / 2 / self.vector()
    }

    /// Threads that share a head.
    fn lanes(&self) -> usize {
        self.half().next_power_of_two()
    }

    fn chunks(&self) -> usize {
        self.rows.div_ceil(CHUNK).max(1)
    }
}

impl Rope {
    fn dims(&self, qkv: &Spec) -> Dims {
        let packed = self.heads.n_head + 2 * self.heads.n_kv_head;
        let [batch, time, width] = qkv.shape[..] else { unreachable!("`output_specs` has checked the shape") };
        Dims { rows: batch * time, time, packed, head_size: width / packed }
    }

    /// Which weight a head of packed qkv is normalized with, 0 or 1; `None` of a value.
    fn kind(&self, head: usize) -> Option<usize> {
        let Heads { n_head, n_kv_head, .. } = self.heads;
        (head < n_head + n_kv_head).then_some((head >= n_head) as usize)
    }

    /// The rows of the table that a token of number `row` needs: cosines and sines.
    fn angles<'a>(&self, d: Dims, row: usize, table: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        table[(self.start + row % d.time) * d.head_size..][..d.head_size].split_at(d.head_size / 2)
    }

    fn launch(&self, pass: &'static str, d: Dims, dtype: DType, buffers: Vec<Buffer>, workgroups: usize) -> Plan {
        let values = vec![
            ("pass", pass.into()),
            ("T", dtype.name().into()),
            ("C", self.cache.as_ref().map_or(DType::F32, |cache| cache.dtype).name().into()),
            ("vector", d.vector().into()),
            ("half", d.half().into()),
            ("lanes", d.lanes().into()),
            ("norm", self.eps.is_some().into()),
            ("append", self.cache.is_some().into()),
        ];
        let params = vec![
            param("rows", d.rows),
            param("time", d.time),
            param("n_head", self.heads.n_head),
            param("n_kv_head", self.heads.n_kv_head),
            param("start", self.start),
            param("room", self.cache.as_ref().map_or(0, |cache| cache.shape[1])),
            param("chunk", CHUNK),
            param("sign", if self.inverse { -1.0 } else { 1.0f32 }),
            param("eps", self.eps.unwrap_or(0.0)),
            param("per_element", 1.0 / d.head_size as f32),
        ];
        Plan::one(Launch { shader: shader!(rope), values, buffers, params, workgroups })
    }
}

/// y = x turned by these angles, forth (1) or back (-1).
#[inline(always)]
fn rotate(x: &[f32], (cosines, sines): (&[f32], &[f32]), sign: f32, y: &mut [f32]) {
    let ((x1, x2), (y1, y2)) = (x.split_at(cosines.len()), y.split_at_mut(cosines.len()));
    for (((y1, y2), (x1, x2)), (c, s)) in y1.iter_mut().zip(y2).zip(x1.iter().zip(x2)).zip(cosines.iter().zip(sines)) {
        (*y1, *y2) = (x1 * c - x2 * (sign * s), x2 * c + x1 * (sign * s));
    }
}

/// 1 / sqrt(average(x^2) + eps).
#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of([x], |[x]| x * x) / x.len() as f32 + eps).sqrt()
}

impl Kernel for Rope {
    fn name(&self) -> &'static str {
        match (self.eps.is_some(), self.inverse) {
            (true, _) => "qk_norm_rope",
            (false, false) => "rope",
            (false, true) => "rope_backward",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let (qkv, table, weights) = (inputs[0], inputs[1], &inputs[2..]);
        if qkv.dtype == DType::U32 {
            expect_f32(self.name(), &inputs[..1])?;
        }
        expect_f32(self.name(), &inputs[1..])?;
        let packed = self.heads.packed().filter(|packed| *packed > 0);
        let (time, head_size) = match (&qkv.shape[..], packed) {
            (&[_, time, width], Some(packed)) if width > 0 && width.is_multiple_of(2 * packed) => {
                (time, width / packed)
            }
            _ => {
                let expected = format!("packed (B, T, {} heads * an even head size)", packed.unwrap_or(0));
                return Err(shape_error(self.name(), expected, qkv));
            }
        };
        let end = self.start.saturating_add(time);
        if !matches!(table.shape[..], [positions, width] if positions >= end && width == head_size) {
            return Err(shape_error(self.name(), format!("a table of ({end} or more, {head_size})"), table));
        }
        if let Some(wrong) = weights.iter().find(|weight| weight.shape[..] != [head_size]) {
            return Err(shape_error(self.name(), format!("weights of ({head_size})"), wrong));
        }
        Ok([qkv.clone()].into_iter().chain(self.cache.clone()).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Six for the rotation of a pair; four for the normalization of each element.
        let per_element = if self.eps.is_some() { 7 } else { 3 };
        streaming_cost(per_element * inputs[0].shape.elements(), inputs, &outputs[..1])
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let d = self.dims(inputs[0].spec);
        let (qkv, table) = (inputs[0].f32(), inputs[1].f32());
        let width = d.packed * d.head_size;
        let (y, cache) = outputs.split_first_mut().expect("one output at least");
        let sign = if self.inverse { -1.0 } else { 1.0 };
        y.f32().par_chunks_mut(width).zip(qkv.par_chunks(width)).enumerate().for_each(|(row, (y, x))| {
            let angles = self.angles(d, row, table);
            let mut normal = [0.0; MAX_HEAD_SIZE];
            let heads = y.chunks_mut(d.head_size).zip(x.chunks(d.head_size)).enumerate();
            vectorized(
                #[inline(always)]
                || {
                    for (head, (y, x)) in heads {
                        match (self.kind(head), self.eps) {
                            (None, _) => y.copy_from_slice(x),
                            (Some(_), None) => rotate(x, angles, sign, y),
                            (Some(kind), Some(eps)) => {
                                let (rstd, normal) = (inverse_rms(x, eps), &mut normal[..d.head_size]);
                                for ((n, x), weight) in normal.iter_mut().zip(x).zip(inputs[2 + kind].f32()) {
                                    *n = x * rstd * weight;
                                }
                                rotate(normal, angles, sign, y);
                            }
                        }
                    }
                },
            );
        });
        if let [cache] = cache {
            copy_kv(inputs[0].spec, y.f32(), cache, self.start);
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let (d, dtype) = (self.dims(inputs[0]), inputs[0].dtype);
        let of = |name, dtype: DType, operand| buffer(name, dtype.wgsl(d.vector()), operand);
        let mut buffers =
            vec![of("x", dtype, Input(0)), of("table", DType::F32, Input(1)), of("result", dtype, Output(0))];
        if self.eps.is_some() {
            buffers.extend([of("q_weight", DType::F32, Input(2)), of("k_weight", DType::F32, Input(3))]);
        }
        buffers.extend(self.cache.as_ref().map(|cache| of("cache", cache.dtype, Output(1))));
        let workgroups = (d.rows * d.packed).div_ceil(THREADS / d.lanes());
        self.launch("forward", d, dtype, buffers, workgroups)
    }
}

impl Op for Rope {
    fn saves(&self) -> Saves {
        Saves { inputs: if self.eps.is_some() { &[0, 1, 2, 3] } else { &[1] }, outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        if self.eps.is_none() {
            let back = Rope { inverse: true, ..self.clone() };
            return grads.accumulate(0, grads.run_one(&back, &[dy, saved.input(1)?])?);
        }
        let [qkv, table] = [saved.input(0)?, saved.input(1)?];
        let [q_weight, k_weight] = [saved.input(2)?, saved.input(3)?];
        let mut gradients = grads.run(&Backward(self.clone()), &[dy, qkv, table, q_weight, k_weight])?;
        let partials = gradients.remove(1);
        let sums = |accumulate| SumRows { accumulate, len: q_weight.len(), outputs: 2 };
        grads.accumulate_all_with(&[2, 3], &[&partials], sums)?;
        grads.accumulate(0, gradients.remove(0))
    }
}

impl Kernel for Backward {
    fn name(&self) -> &'static str {
        "qk_norm_rope_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let d = self.0.dims(inputs[1]);
        Ok(vec![inputs[1].clone(), Spec::new([d.chunks(), 2, d.head_size], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(14 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (op, d) = (&self.0, self.0.dims(inputs[1].spec));
        let [dy, qkv, table] = [0, 1, 2].map(|i| inputs[i].f32());
        let (eps, width) = (op.eps.unwrap_or(0.0), d.packed * d.head_size);
        let [dqkv, partials] = outputs else { unreachable!("two outputs") };
        let (dqkv, partials) = (dqkv.f32(), partials.f32());
        partials.fill(0.0);
        let chunks = dqkv.par_chunks_mut(CHUNK * width).zip(partials.par_chunks_mut(2 * d.head_size));
        chunks.enumerate().for_each(|(chunk, (dqkv, sums))| {
            let mut dz = [0.0; MAX_HEAD_SIZE];
            let dz = &mut dz[..d.head_size];
            for (number, dx) in dqkv.chunks_mut(d.head_size).enumerate() {
                let (row, head) = (chunk * CHUNK + number / d.packed, number % d.packed);
                let at = row * width + head * d.head_size;
                let (dy, x) = (&dy[at..][..d.head_size], &qkv[at..][..d.head_size]);
                let Some(kind) = op.kind(head) else {
                    dx.copy_from_slice(dy);
                    continue;
                };
                let (angles, weight) = (op.angles(d, row, table), inputs[3 + kind].f32());
                let dweight = &mut sums[kind * d.head_size..][..d.head_size];
                vectorized(
                    #[inline(always)]
                    || {
                        rotate(dy, angles, -1.0, dz);
                        let rstd = inverse_rms(x, eps);
                        let mean = sum_of([dz, weight, x], |[dz, w, x]| dz * w * (x * rstd)) / x.len() as f32;
                        let elements = dx.iter_mut().zip(dweight.iter_mut()).zip(&*dz).zip(weight).zip(x);
                        for ((((dx, dweight), dz), weight), x) in elements {
                            *dx = rstd * (dz * weight - x * rstd * mean);
                            *dweight += dz * (x * rstd);
                        }
                    },
                );
            }
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output};
        let (d, dtype) = (self.0.dims(inputs[1]), inputs[1].dtype);
        let of = |name, dtype: DType, operand| buffer(name, dtype.wgsl(d.vector()), operand);
        let buffers = vec![
            of("grad_output", dtype, Input(0)),
            of("x", dtype, Input(1)),
            of("table", DType::F32, Input(2)),
            of("q_weight", DType::F32, Input(3)),
            of("k_weight", DType::F32, Input(4)),
            of("result", dtype, Output(0)),
            of("sums", DType::F32, Output(1)),
        ];
        self.0.launch("backward", d, dtype, buffers, d.chunks())
    }
}

impl Tensor {
    /// Rotates queries and keys of packed qkv (B, T, P) by the angles of their positions; `table` (positions, head
    /// size) has the cosines and sines. `norm` has the epsilon and the weights (head size) of an RMS norm of each query
    /// and key head, applied before.
    ///
    /// # Errors
    /// If qkv is not f32 or f16, the head size is odd or above 128, or qkv, the table or a weight does not fit the
    /// heads.
    pub fn rope(&self, heads: Heads, table: &Tensor, norm: Option<(f32, [&Tensor; 2])>) -> Result<Tensor> {
        let op = self.rope_op(heads, norm.map(|(eps, _)| eps), 0)?;
        Ok(apply(op, &rope_inputs(self, table, norm))?.remove(0))
    }

    /// [`Tensor::rope`] of n new tokens (B, n, P) after `start` cached ones. Writes their keys and values to `cache`
    /// (B, T, 2 n_kv_head head size), f32 or f16, from row `start` on. For inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// Those of [`Tensor::rope`], or if the cache has other heads or is full.
    pub fn rope_append(
        &self,
        heads: Heads,
        table: &Tensor,
        norm: Option<(f32, [&Tensor; 2])>,
        cache: &Tensor,
        start: usize,
    ) -> Result<Tensor> {
        heads.check_cache("rope_append", self.spec(), cache.spec(), start)?;
        let op = Rope { cache: Some(cache.spec().clone()), ..self.rope_op(heads, norm.map(|(eps, _)| eps), start)? };
        let y = Tensor::empty(self.spec().clone(), &self.device(), MemoryKind::Activations)?;
        run_into(&op, &rope_inputs(self, table, norm), &[&y, cache])?;
        Ok(y)
    }

    fn rope_op(&self, heads: Heads, eps: Option<f32>, start: usize) -> Result<Rope> {
        let head_size = heads.packed().map_or(0, |packed| self.shape().last_dim() / packed.max(1));
        if head_size > MAX_HEAD_SIZE {
            return Err(shape_error("rope", format!("heads of up to {MAX_HEAD_SIZE} elements"), self.spec()));
        }
        Ok(Rope { heads, eps, start, inverse: false, cache: None })
    }
}

fn rope_inputs<'a>(qkv: &'a Tensor, table: &'a Tensor, norm: Option<(f32, [&'a Tensor; 2])>) -> Vec<&'a Tensor> {
    [qkv, table].into_iter().chain(norm.into_iter().flat_map(|(_, weights)| weights)).collect()
}
