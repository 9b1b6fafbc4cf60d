//! The kernels of AdamW, Adam, SGD, RMSprop and Lion, with clipping by the global norm, each as one pass over a part of
//! the arenas.
//!
//! ```text
//! norm = sqrt(sum g^2),  g <- g min(1, clip / (norm + 1e-6))                    as torch.nn.utils.clip_grad_norm_
//! AdamW:  p <- p (1 - lr decay);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
//!         p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)           Loshchilov and Hutter 2019
//! Adam:   the same with g <- g + decay p instead of the first step              Kingma and Ba 2015
//! SGD:    g <- g + decay p;  m <- momentum m + g;  p <- p - lr m                 as torch.optim.SGD
//!         Nesterov:  p <- p - lr (g + momentum m)  instead of the last step
//! RMSprop: g <- g + decay p;  v <- alpha v + (1 - alpha) g^2;  s <- g / (sqrt(v) + eps)
//!         m <- momentum m + s;  p <- p - lr m                                    as torch.optim.RMSprop
//!         centered:  c <- alpha c + (1 - alpha) g,  and v - c^2 (no less than 0) under the root
//! Lion:   p <- p (1 - lr decay) - lr sign(b1 m + (1 - b1) g);  m <- b2 m + (1 - b2) g    Chen et al. 2023; sign(0) = 0
//! ```
//! Where the norm is not finite, nothing is updated and the update counts as skipped. In mixed precision the gradients
//! are divided by the scale of the loss first, whose overflows are not counted (`loss_scale.rs`), and the same pass
//! writes the f16 copy of the parameters. A skipped update still advances t, which makes the next few updates a little
//! smaller.
//!
//! Moments may be of 8 bits (`int8.rs`): the values are updated with what the rule makes of them in f32, before they
//! are rounded to codes.
//!
//! Decay applies to the elements before [`Segment::decay_end`](super::layout::Segment) only. The norm stays on the
//! device: the update reads it there.

use super::int8::{self, BLOCK, MomentDtype, RECORD_WORDS, record_len, table_of};
use crate::cpu::{sum_of, vectorized};
use crate::gpu::{Buffer, Launch, Limits, Operand, Param, Plan, buffer, param};
use crate::profile::Cost;
use crate::tensor::{DType, Kernel, Spec, View, ViewMut};
use crate::{Result, shader};
use rayon::prelude::*;

/// Sums of squares that add up to that of all elements: (N) -> ([`SumsOfSquares::PARTS`]). What each is the sum of, and
/// in which order, depends on N alone, so the same gradients give the same bits.
pub(super) struct SumsOfSquares;

impl SumsOfSquares {
    /// Four workgroups on each of 128 processors.
    pub const PARTS: usize = 512;
}

impl Kernel for SumsOfSquares {
    fn name(&self) -> &'static str {
        "grad_norm"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([SumsOfSquares::PARTS], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 2.0 * inputs[0].shape.elements() as f64, bytes: inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (x, parts) = (inputs[0].f32(), outputs[0].f32());
        let len = x.len().div_ceil(parts.len()).max(1);
        parts.par_iter_mut().enumerate().for_each(|(i, part)| {
            let [start, end] = [i, i + 1].map(|i| (i * len).min(x.len()));
            let squares = x[start..end].chunks(256).map(|x| f64::from(vectorized(|| sum_of([x], |[x]| x * x))));
            *part = squares.sum::<f64>() as f32;
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(Launch {
            shader: shader!(grad_norm),
            values: vec![],
            buffers: vec![buffer("x", "vec4<f32>", Operand::Input(0)), buffer("sums", "f32", Operand::Output(0))],
            params: vec![param("len", inputs[0].shape.elements()), param("parts", SumsOfSquares::PARTS)],
            workgroups: SumsOfSquares::PARTS,
        })
    }
}

/// What an update multiplies the gradients by, after it has read their norm on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct GradientScale {
    /// Largest global norm; 0 does not clip.
    pub grad_clip: f32,
    /// Whether gradients are multiplied by the scale of the loss.
    pub mixed: bool,
}

/// [`GradientScale`] of one update.
pub(super) enum Factor {
    Is(f32),
    /// No update: the scale of the loss was too large.
    Overflow,
    /// No update: the norm is not finite. It is counted.
    NotFinite,
}

impl GradientScale {
    /// From the sum of squared gradients, and if mixed what they are multiplied by before they are clipped.
    pub fn factor(&self, squares: &[f32]) -> Factor {
        let unscale = if self.mixed { squares[1] } else { 1.0 };
        if unscale == 0.0 {
            return Factor::Overflow;
        }
        if !squares[0].is_finite() {
            return Factor::NotFinite;
        }
        let clip = if self.grad_clip == 0.0 { 1.0 } else { (self.grad_clip / (squares[0].sqrt() + 1e-6)).min(1.0) };
        Factor::Is(unscale * clip)
    }

    /// What `shaders/gradient_scale.wgsl` needs to know besides.
    pub fn param(&self) -> Param {
        param("grad_clip", self.grad_clip)
    }

    /// The norm of the gradients, input number `input`.
    pub fn buffer(input: usize) -> Buffer {
        buffer("squares", "f32", Operand::Input(input))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule {
    AdamW,
    Adam,
    Sgd { nesterov: bool },
    RmsProp { has_momentum: bool, centered: bool },
    Lion,
}

/// One update. Inputs: gradients (N), sum of squared gradients (1), and with moments of 8 bits the tables of their
/// codes. Outputs, changed in place: values, the moments or their records, and the count of skipped updates, (1) of
/// u32. Mixed, the second input is (2), the other element what gradients are multiplied by, 0 to change nothing; and a
/// last output is the values as f16.
pub(super) struct Update {
    pub rule: Rule,
    /// The names of the moments in their order, which those of the buffers are.
    pub moments: &'static [&'static str],
    pub state: MomentDtype,
    pub learning_rate: f32,
    /// Of SGD and RMSprop the momentum.
    pub beta1: f32,
    /// Of RMSprop alpha.
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
    pub correction1: f32,
    pub correction2: f32,
    pub scale: GradientScale,
    /// Whether values have f16 copies.
    pub halves: bool,
    pub decay_end: usize,
    /// Whether a skipped update is counted: once, though an arena may need several launches.
    pub counts: bool,
}

/// Elements that one thread updates at a time: whole blocks.
const CHUNK: usize = 1 << 14;
const _: () = assert!(CHUNK.is_multiple_of(BLOCK));

/// The most moments of a rule.
const MOMENTS: usize = 3;

/// A part of the elements that are updated.
struct Part<'a> {
    /// The first element.
    start: usize,
    values: &'a mut [f32],
    /// In f32, as many as the rule has; empty if they are of 8 bits.
    moments: [&'a mut [f32]; MOMENTS],
    /// Records of moments of 8 bits.
    records: &'a mut [u32],
    gradients: &'a [f32],
}

impl<'a> Part<'a> {
    /// The first `at` elements, whose moments take so many words of records, and the rest.
    fn split(self, at: usize, words: usize) -> [Part<'a>; 2] {
        let Part { start, values, moments, records, gradients } = self;
        let ((values, values_rest), (gradients, gradients_rest)) = (values.split_at_mut(at), gradients.split_at(at));
        let (records, records_rest) = records.split_at_mut(words.min(records.len()));
        let [moments, moments_rest] = split(moments, at);
        [
            Part { start, values, moments, records, gradients },
            Part {
                start: start + at,
                values: values_rest,
                moments: moments_rest,
                records: records_rest,
                gradients: gradients_rest,
            },
        ]
    }
}

/// The first `at` elements of each slice that is not empty, and the rest.
fn split(moments: [&mut [f32]; MOMENTS], at: usize) -> [[&mut [f32]; MOMENTS]; 2] {
    let mut parts = moments.map(|moment| moment.split_at_mut(at.min(moment.len())));
    let first = parts.each_mut().map(|(first, _)| std::mem::take(first));
    [first, parts.map(|(_, rest)| rest)]
}

impl Update {
    fn is_int8(&self) -> bool {
        self.state == MomentDtype::Int8
    }

    /// Updates a part by all threads. Nothing is allocated.
    fn part(&self, clip: f32, part: Part) {
        let len = part.values.len();
        if len > CHUNK {
            let middle = (len / 2).next_multiple_of(CHUNK);
            let [left, right] = part.split(middle, record_len(middle, self.moments.len()));
            rayon::join(|| self.part(clip, left), || self.part(clip, right));
        } else if self.is_int8() {
            self.blocks(clip, part);
        } else {
            let Part { start, values, moments, gradients, .. } = part;
            self.elements(clip, start, values, moments, gradients);
        }
    }

    /// Updates whole blocks with moments of 8 bits.
    fn blocks(&self, clip: f32, part: Part) {
        let Part { start, values, records, gradients, .. } = part;
        let blocks = values.chunks_mut(BLOCK).zip(gradients.chunks(BLOCK));
        let records = records.chunks_mut(self.moments.len().max(1) * RECORD_WORDS);
        let mut moments = [[0.0; BLOCK]; MOMENTS];
        for (block, ((values, gradients), record)) in blocks.zip(records).enumerate() {
            let named = self.moments.iter().zip(record.chunks_mut(RECORD_WORDS));
            for ((name, record), moments) in named.zip(&mut moments) {
                table_of(name).decode(record, moments);
            }
            let slices = moments.each_mut().map(|moments| &mut moments[..]);
            self.elements(clip, start + block * BLOCK, values, slices, gradients);
            let named = self.moments.iter().zip(record.chunks_mut(RECORD_WORDS));
            for ((name, record), moments) in named.zip(&moments) {
                table_of(name).encode(moments, record);
            }
        }
    }

    /// Updates elements from this one on, the first of which decay.
    fn elements(&self, clip: f32, start: usize, values: &mut [f32], moments: [&mut [f32]; MOMENTS], gradients: &[f32]) {
        let decayed = self.decay_end.saturating_sub(start).min(values.len());
        let ((p, p_rest), (g, g_rest)) = (values.split_at_mut(decayed), gradients.split_at(decayed));
        let [mut first, mut rest] = split(moments, decayed);
        let count = self.moments.len();
        self.alike(clip, self.weight_decay, p, &mut first[..count], g);
        self.alike(clip, 0.0, p_rest, &mut rest[..count], g_rest);
    }

    /// Updates elements that all decay alike.
    fn alike(&self, clip: f32, decay: f32, p: &mut [f32], moments: &mut [&mut [f32]], g: &[f32]) {
        vectorized(
            #[inline(always)]
            || match (self.rule, moments) {
                (Rule::AdamW | Rule::Adam, [m, v]) => self.adam(clip, decay, p, m, v, g),
                (Rule::Sgd { .. }, [m]) => self.sgd(clip, decay, p, m, g),
                (Rule::Lion, [m]) => self.lion(clip, decay, p, m, g),
                (Rule::RmsProp { .. }, [v]) => self.rmsprop(clip, decay, [p, v], [None, None], g),
                (Rule::RmsProp { has_momentum: true, .. }, [v, m]) => {
                    self.rmsprop(clip, decay, [p, v], [Some(m), None], g);
                }
                (Rule::RmsProp { .. }, [v, mean]) => self.rmsprop(clip, decay, [p, v], [None, Some(mean)], g),
                (Rule::RmsProp { .. }, [v, m, mean]) => {
                    self.rmsprop(clip, decay, [p, v], [Some(m), Some(mean)], g);
                }
                _ => unreachable!("output_specs names the moments of the rule"),
            },
        );
    }

    /// SGD of elements that all decay alike.
    #[inline(always)]
    fn sgd(&self, clip: f32, decay: f32, p: &mut [f32], m: &mut [f32], g: &[f32]) {
        let nesterov = self.rule == Rule::Sgd { nesterov: true };
        for ((p, m), g) in p.iter_mut().zip(m).zip(g) {
            let g = g * clip + decay * *p;
            *m = self.beta1 * *m + g;
            *p -= self.learning_rate * if nesterov { g + self.beta1 * *m } else { *m };
        }
    }

    /// RMSprop of elements that all decay alike, of which some have a momentum and a mean.
    #[inline(always)]
    fn rmsprop(&self, clip: f32, decay: f32, [p, v]: [&mut [f32]; 2], further: [Option<&mut [f32]>; 2], g: &[f32]) {
        let &Update { learning_rate: lr, beta1: momentum, beta2: alpha, eps, .. } = self;
        let [mut m, mut mean] = further;
        for (i, ((p, v), g)) in p.iter_mut().zip(v).zip(g).enumerate() {
            let g = g * clip + decay * *p;
            *v = alpha * *v + (1.0 - alpha) * g * g;
            let mut variance = *v;
            if let Some(mean) = &mut mean {
                mean[i] = alpha * mean[i] + (1.0 - alpha) * g;
                variance = (variance - mean[i] * mean[i]).max(0.0);
            }
            let mut step = g / (variance.sqrt() + eps);
            if let Some(m) = &mut m {
                m[i] = momentum * m[i] + step;
                step = m[i];
            }
            *p -= lr * step;
        }
    }

    /// Lion of elements that all decay alike.
    #[inline(always)]
    fn lion(&self, clip: f32, decay: f32, p: &mut [f32], m: &mut [f32], g: &[f32]) {
        let &Update { learning_rate: lr, beta1, beta2, .. } = self;
        let kept = 1.0 - lr * decay;
        for ((p, m), g) in p.iter_mut().zip(m).zip(g) {
            let g = g * clip;
            let c = beta1 * *m + (1.0 - beta1) * g;
            // Not `signum`, which is 1 of 0: what never had a gradient stays.
            let sign = f32::from(c > 0.0) - f32::from(c < 0.0);
            *p = *p * kept - lr * sign;
            *m = beta2 * *m + (1.0 - beta2) * g;
        }
    }

    /// Adam or AdamW of elements that all decay alike.
    #[inline(always)]
    fn adam(&self, clip: f32, decay: f32, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
        let &Update { learning_rate: lr, beta1, beta2, eps, correction1, correction2, .. } = self;
        let (to_gradient, kept) = if self.rule == Rule::AdamW { (0.0, 1.0 - lr * decay) } else { (decay, 1.0) };
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * clip + to_gradient * *p;
            *p *= kept;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *p -= lr * (*m * correction1) / ((*v * correction2).sqrt() + eps);
        }
    }
}

impl Kernel for Update {
    fn name(&self) -> &'static str {
        match self.rule {
            Rule::AdamW => "adamw",
            Rule::Adam => "adam",
            Rule::Sgd { .. } => "sgd",
            Rule::RmsProp { .. } => "rmsprop",
            Rule::Lion => "lion",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let mut outputs = vec![inputs[0].clone()];
        match self.state {
            MomentDtype::F32 => outputs.extend(vec![inputs[0].clone(); self.moments.len()]),
            MomentDtype::Int8 => {
                let len = record_len(inputs[0].shape.elements(), self.moments.len());
                outputs.push(Spec::new([len], DType::U32));
            }
        }
        outputs.push(Spec::new([1], DType::U32));
        outputs.extend(self.halves.then(|| Spec::new(inputs[0].shape.clone(), DType::F16)));
        Ok(outputs)
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        // Values, moments and the count are read and written, f16 copies written only.
        let (states, halves) = outputs.split_at(outputs.len() - usize::from(self.halves));
        let bytes = |specs: &[&Spec]| specs.iter().map(|spec| spec.size_bytes()).sum::<usize>();
        let bytes = inputs[0].size_bytes() + 2 * bytes(states) + bytes(halves);
        Cost { flops: 14.0 * inputs[0].shape.elements() as f64, bytes: bytes as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let gradients = inputs[0].f32();
        let (outputs, halves) = outputs.split_at_mut(outputs.len() - self.halves as usize);
        let (outputs, skipped) = outputs.split_at_mut(outputs.len() - 1);
        let clip = match self.scale.factor(inputs[1].f32()) {
            Factor::Is(factor) => factor,
            Factor::Overflow => return,
            Factor::NotFinite => return skipped[0].u32()[0] += u32::from(self.counts),
        };
        let (values, states) = outputs.split_first_mut().expect("output_specs names the values");
        let mut part =
            Part { start: 0, values: values.f32(), moments: Default::default(), records: &mut [], gradients };
        for (state, moment) in states.iter_mut().zip(&mut part.moments) {
            match self.state {
                MomentDtype::F32 => *moment = state.f32(),
                MomentDtype::Int8 => part.records = state.u32(),
            }
        }
        self.part(clip, part);
        if let [halves] = halves {
            halves.f32().copy_from_slice(outputs[0].f32());
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        let mut buffers = vec![buffer("gradients", "vec4<f32>", Operand::Input(0)), GradientScale::buffer(1)];
        buffers.extend(self.is_int8().then_some(buffer("tables", "u32", Operand::Input(2))));
        buffers.push(buffer("values", "vec4<f32>", Operand::Output(0)));
        let moments = match self.state {
            MomentDtype::Int8 => vec![("records", "u32")],
            MomentDtype::F32 => self.moments.iter().map(|name| (*name, "vec4<f32>")).collect(),
        };
        let outputs = moments.iter().copied().chain([("skipped", "u32")]);
        let outputs = outputs.chain(self.halves.then_some(("halves", "vec4<f16>"))).zip(1..);
        buffers.extend(outputs.map(|((name, element), output)| buffer(name, element, Operand::Output(output))));
        let params = vec![
            param("len", len),
            param("decay_end", self.decay_end),
            param("learning_rate", self.learning_rate),
            param("beta1", self.beta1),
            param("beta2", self.beta2),
            param("eps", self.eps),
            param("weight_decay", self.weight_decay),
            param("correction1", self.correction1),
            param("correction2", self.correction2),
            self.scale.param(),
            param("counts", u32::from(self.counts)),
        ];
        Plan::one(Launch {
            shader: shader!(optimizer),
            values: [
                ("rule", self.name().into()),
                ("moments", self.moments.into()),
                ("int8", self.is_int8().into()),
                ("nesterov", (self.rule == Rule::Sgd { nesterov: true }).into()),
                ("mixed", self.scale.mixed.into()),
                ("has_halves", self.halves.into()),
            ]
            .into_iter()
            .chain(self.is_int8().then(int8::shader_values).into_iter().flatten())
            .collect(),
            buffers,
            params,
            workgroups: len.div_ceil(1024),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::optim::testing::{KINDS, Net};
    use crate::optim::{Optimizer, ParameterArena};
    use crate::{DType, Device};

    /// The sign of 0 is 0 for Lion.
    #[test]
    fn what_never_had_a_gradient_stays() {
        for (device, kind) in Device::for_tests().iter().flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
            if matches!(kind, crate::optim::Kind::Muon { .. }) {
                continue; // The matrices it makes orthogonal are never 0.
            }
            let arena = ParameterArena::new(&mut Net::new(1), &device, DType::F32).unwrap();
            let mut optimizer = Optimizer::new(&arena, kind, 0.0, 1.0).unwrap();
            let before = arena.values().to_f32().unwrap();
            let gradient: Vec<f32> = (0..arena.trainable_len()).map(|i| if i % 3 == 0 { 0.5 } else { 0.0 }).collect();
            for _ in 0..3 {
                arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradient)).unwrap();
                optimizer.step(&arena, 0.1).unwrap();
            }
            let after = arena.values().to_f32().unwrap();
            let stays = before.iter().zip(&after).enumerate().all(|(i, (b, a))| (b == a) == (i % 3 != 0));
            assert!(stays, "{device} {kind:?}");
        }
    }
}
