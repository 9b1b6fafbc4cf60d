//! AdamW, Adam and SGD, with clipping by the global norm, each as one pass over the arenas.
//!
//! ```text
//! norm = sqrt(sum g^2),  g <- g min(1, clip / (norm + 1e-6))                    as torch.nn.utils.clip_grad_norm_
//! AdamW:  p <- p (1 - lr decay);  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
//!         p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)           Loshchilov and Hutter 2019
//! Adam:   the same with g <- g + decay p instead of the first step              Kingma and Ba 2015
//! SGD:    g <- g + decay p;  m <- momentum m + g;  p <- p - lr m                 as torch.optim.SGD
//! ```
//! Where the norm is not finite, nothing is updated and the update counts as skipped. In mixed precision the gradients
//! are divided by the scale of the loss first, whose overflows are not counted (`loss_scale.rs`), and the same pass
//! writes the f16 copy of the parameters. A skipped update still advances t, which makes the next few updates a little
//! smaller.
//!
//! Decay applies to the elements before [`ParameterArena::decay_end`] only. The norm stays on the device: the update
//! reads it there.

use super::arena::{ALIGN, ParameterArena};
use super::loss_scale::LossScale;
use crate::cpu::{sum_of, vectorized, with_scratch};
use crate::gpu::{Launch, Limits, Operand, Plan, buffer, param};
use crate::profile::{Cost, MemoryKind};
use crate::tensor::{DType, Kernel, Spec, View, ViewMut, run, run_into};
use crate::{Device, Result, Tensor, shader};
use rayon::prelude::*;

/// Which rule updates the parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    AdamW { beta1: f64, beta2: f64, eps: f64 },
    Adam { beta1: f64, beta2: f64, eps: f64 },
    Sgd { momentum: f64 },
}

impl Kind {
    /// How many numbers it remembers of each parameter.
    pub fn moments(&self) -> usize {
        self.rule().moments()
    }

    fn rule(&self) -> Rule {
        match self {
            Kind::AdamW { .. } => Rule::AdamW,
            Kind::Adam { .. } => Rule::Adam,
            Kind::Sgd { .. } => Rule::Sgd,
        }
    }
}

/// An optimizer and what it remembers.
pub struct Optimizer {
    pub(super) kind: Kind,
    weight_decay: f64,
    /// Largest global gradient norm; 0 does not clip.
    grad_clip: f64,
    /// Updates done so far.
    pub(super) steps: u64,
    /// m (the momentum of SGD) and v (for SGD m again, unused).
    pub(super) moments: [Tensor; 2],
    /// In mixed precision.
    pub(super) loss_scale: Option<LossScale>,
    /// Updates that were skipped, (1) of u32.
    skipped: Tensor,
}

impl Optimizer {
    /// A fresh optimizer for these parameters.
    ///
    /// # Errors
    /// If the device has no memory left for the moments.
    pub fn new(parameters: &ParameterArena, kind: Kind, weight_decay: f64, grad_clip: f64) -> Result<Optimizer> {
        let device = parameters.values.device();
        let zeros = || Tensor::zeros_as(MemoryKind::OptimizerState, [parameters.trainable_len()], DType::F32, &device);
        let first = zeros()?;
        let moments = [first.clone(), if kind.moments() == 2 { zeros()? } else { first }];
        let loss_scale = parameters.halves.is_some().then(|| LossScale::new(&device)).transpose()?;
        let skipped = Tensor::zeros([1], DType::U32, &device)?;
        Ok(Optimizer { kind, weight_decay, grad_clip, steps: 0, moments, loss_scale, skipped })
    }

    /// How many updates were skipped, because the gradients' norm was not finite, since this optimizer was made: one
    /// u32, still on the device.
    pub fn skipped(&self) -> &Tensor {
        &self.skipped
    }

    /// What gradients are to be multiplied by, so that they survive f16, in its first element: an argument of
    /// the model's loss. The second counts steps, the third those that were skipped.
    pub fn loss_scale(&self) -> Option<&Tensor> {
        self.loss_scale.as_ref().map(|scale| &scale.state)
    }

    /// Updates all parameters from the gradients collected, and returns a tensor, still on the device, whose first
    /// element is the sum of the squared gradients before clipping: the square of the global norm.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn step(&mut self, parameters: &ParameterArena, learning_rate: f64) -> Result<Tensor> {
        let ranges = bindable_ranges(parameters.trainable_len(), &parameters.values.device());
        let slice = |tensor: &Tensor, (start, len): (usize, usize)| tensor.slice_flat(start, [len].into());
        let gradients = parameters.gradients();
        let mut squares: Option<Tensor> = None;
        for &range in &ranges {
            let sum = run(&SumOfSquares, &[&slice(gradients, range)])?.remove(0);
            squares = Some(match squares {
                None => sum,
                Some(total) => total.add(&sum)?,
            });
        }
        let mut squares = squares.expect("a model has parameters");
        if let Some(scale) = &self.loss_scale {
            squares = scale.step(&squares)?;
        }
        // From here on nothing asks for memory: an update is made whole or not at all.
        self.steps += 1;
        for &range in &ranges {
            let decay_end = parameters.decay_end.saturating_sub(range.0).min(range.1);
            let kernel = self.kernel(learning_rate, decay_end, range.0 == 0);
            let (gradient, value) = (slice(gradients, range), slice(&parameters.values, range));
            let (m, v) = (slice(&self.moments[0], range), slice(&self.moments[1], range));
            let half = parameters.halves.as_ref().map(|halves| slice(halves, range));
            let mut outputs = vec![&value, &m];
            if self.kind.moments() == 2 {
                outputs.push(&v);
            }
            outputs.push(&self.skipped);
            outputs.extend(&half);
            run_into(&kernel, &[&gradient, &squares], &outputs)?;
        }
        Ok(squares)
    }

    fn kernel(&self, learning_rate: f64, decay_end: usize, counts: bool) -> Update {
        let t = self.steps as i32;
        let (beta1, beta2, eps) = match self.kind {
            Kind::AdamW { beta1, beta2, eps } | Kind::Adam { beta1, beta2, eps } => (beta1, beta2, eps),
            Kind::Sgd { momentum } => (momentum, 0.0, 0.0),
        };
        Update {
            rule: self.kind.rule(),
            learning_rate: learning_rate as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            eps: eps as f32,
            weight_decay: self.weight_decay as f32,
            // 1 / (1 - beta^t), in f64: at t = 1 and beta2 = 0.999 f32 would keep only four digits.
            correction1: (1.0 / (1.0 - beta1.powi(t))) as f32,
            correction2: (1.0 / (1.0 - beta2.powi(t))) as f32,
            grad_clip: self.grad_clip as f32,
            mixed: self.loss_scale.is_some(),
            decay_end,
            counts,
        }
    }
}

/// (start, length) of the parts of an arena that one launch may bind; each starts where a tensor may start.
fn bindable_ranges(len: usize, device: &Device) -> Vec<(usize, usize)> {
    let bindable = (device.limits().binding_bytes.min(1 << 30) / 512) as usize * ALIGN;
    let most = if device.is_gpu() { bindable } else { len };
    (0..len).step_by(most.max(1)).map(|start| (start, most.min(len - start))).collect()
}

/// Sum of squares of all elements: (N) -> (1), in two passes with a fixed order.
struct SumOfSquares;

impl SumOfSquares {
    /// Workgroups of the first pass, and so numbers for the second.
    const PARTS: usize = 512;
}

impl Kernel for SumOfSquares {
    fn name(&self) -> &'static str {
        "grad_norm"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([1], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        Cost { flops: 2.0 * inputs[0].shape.elements() as f64, bytes: inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        // Chunks of fixed length, added in their order: the same bits for any number of threads.
        const CHUNK: usize = 1 << 16;
        let x = inputs[0].f32();
        with_scratch(x.len().div_ceil(CHUNK), |parts| {
            parts.par_iter_mut().zip(x.par_chunks(CHUNK)).for_each(|(part, x)| {
                let squares = x.chunks(256).map(|x| f64::from(vectorized(|| sum_of([x], |[x]| x * x))));
                *part = squares.sum::<f64>() as f32;
            });
            outputs[0].f32()[0] = parts.iter().map(|&part| f64::from(part)).sum::<f64>() as f32;
        });
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        let parts = len.div_ceil(1024).min(SumOfSquares::PARTS);
        let pass = |first: bool, len: usize, [x, sums]: [Operand; 2], workgroups| Launch {
            shader: shader!("grad_norm"),
            values: vec![("first", first.into())],
            buffers: vec![buffer("x", if first { "vec4<f32>" } else { "f32" }, x), buffer("sums", "f32", sums)],
            params: vec![param("len", len), param("parts", parts)],
            workgroups,
        };
        Plan {
            scratch: vec![parts * 4],
            launches: vec![
                pass(true, len, [Operand::Input(0), Operand::Scratch(0)], parts),
                pass(false, parts, [Operand::ReadScratch(0), Operand::Output(0)], 1),
            ],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    AdamW,
    Adam,
    Sgd,
}

impl Rule {
    /// How many moments it reads and writes.
    fn moments(self) -> usize {
        match self {
            Rule::AdamW | Rule::Adam => 2,
            Rule::Sgd => 1,
        }
    }
}

/// One update. Inputs: gradients (N), sum of squared gradients (1). Outputs, changed in place: values, m, v unless the
/// rule is SGD, and the count of skipped updates, (1) of u32. Mixed, the second input is (2), the other element what
/// gradients are multiplied by, 0 to change nothing; and a last output is the values as f16.
struct Update {
    rule: Rule,
    learning_rate: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    weight_decay: f32,
    correction1: f32,
    correction2: f32,
    grad_clip: f32,
    mixed: bool,
    decay_end: usize,
    /// Whether a skipped update is counted: once, though an arena may need several launches.
    counts: bool,
}

impl Update {
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

    fn clip_factor(&self, squares: f32) -> f32 {
        if self.grad_clip == 0.0 { 1.0 } else { (self.grad_clip / (squares.sqrt() + 1e-6)).min(1.0) }
    }
}

impl Kernel for Update {
    fn name(&self) -> &'static str {
        match self.rule {
            Rule::AdamW => "adamw",
            Rule::Adam => "adam",
            Rule::Sgd => "sgd",
        }
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let mut outputs = vec![inputs[0].clone(); 1 + self.rule.moments()];
        outputs.push(Spec::new([1], DType::U32));
        outputs.extend(self.mixed.then(|| Spec::new(inputs[0].shape.clone(), DType::F16)));
        Ok(outputs)
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        let elements = inputs[0].shape.elements() as f64;
        let states = 1 + self.rule.moments();
        let halves = if self.mixed { outputs[states + 1].size_bytes() as f64 } else { 0.0 };
        Cost { flops: 14.0 * elements, bytes: 4.0 * elements * (1 + 2 * states) as f64 + halves }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        const CHUNK: usize = 1 << 14;
        let gradients = inputs[0].f32();
        let (outputs, halves) = outputs.split_at_mut(outputs.len() - self.mixed as usize);
        let (outputs, skipped) = outputs.split_at_mut(outputs.len() - 1);
        let unscale = if self.mixed { inputs[1].f32()[1] } else { 1.0 };
        if unscale == 0.0 {
            return;
        }
        if !inputs[1].f32()[0].is_finite() {
            skipped[0].u32()[0] += u32::from(self.counts);
            return;
        }
        let clip = unscale * self.clip_factor(inputs[1].f32()[0]);
        let &Update { learning_rate: lr, beta1, .. } = self;
        let decayed = |chunk: usize, len: usize| self.decay_end.saturating_sub(chunk * CHUNK).min(len);
        match outputs {
            [values, m] => {
                let chunks = values.f32().par_chunks_mut(CHUNK).zip(m.f32().par_chunks_mut(CHUNK));
                chunks.zip(gradients.par_chunks(CHUNK)).enumerate().for_each(|(chunk, ((p, m), g))| {
                    let decayed = decayed(chunk, p.len());
                    for (i, ((p, m), g)) in p.iter_mut().zip(m).zip(g).enumerate() {
                        let decay = if i < decayed { self.weight_decay } else { 0.0 };
                        *m = beta1 * *m + (g * clip + decay * *p);
                        *p -= lr * *m;
                    }
                });
            }
            [values, m, v] => {
                let chunks = values.f32().par_chunks_mut(CHUNK).zip(m.f32().par_chunks_mut(CHUNK));
                let chunks = chunks.zip(v.f32().par_chunks_mut(CHUNK)).zip(gradients.par_chunks(CHUNK));
                chunks.enumerate().for_each(|(chunk, (((p, m), v), g))| {
                    let decayed = decayed(chunk, p.len());
                    let ((p, p_rest), (m, m_rest)) = (p.split_at_mut(decayed), m.split_at_mut(decayed));
                    let ((v, v_rest), (g, g_rest)) = (v.split_at_mut(decayed), g.split_at(decayed));
                    vectorized(
                        #[inline(always)]
                        || self.adam(clip, self.weight_decay, p, m, v, g),
                    );
                    vectorized(
                        #[inline(always)]
                        || self.adam(clip, 0.0, p_rest, m_rest, v_rest, g_rest),
                    );
                });
            }
            _ => unreachable!("output_specs names two or three outputs"),
        }
        if let [halves] = halves {
            halves.f32().copy_from_slice(outputs[0].f32());
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let len = inputs[0].shape.elements();
        let moments = self.rule.moments();
        let mut buffers = vec![
            buffer("gradients", "vec4<f32>", Operand::Input(0)),
            buffer("squares", "f32", Operand::Input(1)),
            buffer("values", "vec4<f32>", Operand::Output(0)),
        ];
        let names = ["first", "second"].into_iter().take(moments);
        buffers.extend(names.zip(1..).map(|(name, output)| buffer(name, "vec4<f32>", Operand::Output(output))));
        buffers.push(buffer("skipped", "u32", Operand::Output(1 + moments)));
        buffers.extend(self.mixed.then_some(buffer("halves", "vec4<f16>", Operand::Output(2 + moments))));
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
            param("grad_clip", self.grad_clip),
            param("counts", u32::from(self.counts)),
        ];
        Plan::one(Launch {
            shader: shader!("optimizer"),
            values: vec![("rule", self.name().into()), ("mixed", self.mixed.into())],
            buffers,
            params,
            workgroups: len.div_ceil(1024),
        })
    }
}
