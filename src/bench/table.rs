//! What `bench ops` measures: every op of `ops/cases/`, forward and backward, and the optimizers, at the sizes of a
//! model worth training.

use crate::nn::{LinearLayout, Module, Parameter};
use crate::ops::inputs::{AROUND_ONE, AROUND_ZERO, POSITIVE, Values, domain, draw};
use crate::ops::random::Key;
use crate::ops::sample::Draw;
use crate::ops::{
    AttentionMask, AttentionOptions, BINARY, COMPARISONS, ConvOptions, Criterion, Heads, LOSSES, PoolOptions,
    REDUCTIONS, RecurrentRef, Reduction, UNARY,
};
use crate::optim::{AdjustLr, Kind, Optimizer, ParameterArena};
use crate::tensor::{DType, no_grad};
use crate::{Device, Error, Result, Tensor};
use std::rc::Rc;

/// The sizes that the rows are made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    pub name: &'static str,
    /// B.
    pub batch: usize,
    /// T.
    pub context: usize,
    /// C.
    pub width: usize,
    pub n_head: usize,
    pub n_layer: usize,
    /// V.
    pub vocab: usize,
    /// M = N = K of the square GEMMs.
    pub square: usize,
    /// Rows of logits: with V columns they must fit one binding.
    pub logit_rows: usize,
    /// Elements of the tensors with which the bandwidth is measured: several times the largest cache.
    pub stream: usize,
}

impl Sizes {
    /// The step case gpt2-124m: fills a large GPU.
    pub const GPT2: Sizes = Sizes {
        name: "gpt2-124m",
        batch: 16,
        context: 1024,
        width: 768,
        n_head: 12,
        n_layer: 12,
        vocab: 50_304,
        square: 4096,
        logit_rows: 2048,
        stream: 1 << 27,
    };
    /// For the CPU, and for GPUs that are none.
    pub const SMALL: Sizes = Sizes {
        name: "small",
        batch: 4,
        context: 128,
        width: 256,
        n_head: 4,
        n_layer: 2,
        vocab: 4096,
        square: 512,
        logit_rows: 256,
        stream: 1 << 23,
    };
    pub const ALL: [Sizes; 2] = [Sizes::GPT2, Sizes::SMALL];

    /// The sizes that a device can work through in a minute or so.
    pub fn for_device(device: &Device) -> Sizes {
        if device.is_hardware_gpu() { Sizes::GPT2 } else { Sizes::SMALL }
    }

    /// # Errors
    /// If one is 0, or they are so large that what is made of them cannot be counted.
    pub(super) fn check(&self) -> Result<()> {
        let &Sizes { name, batch, context, width, n_head, n_layer, vocab, square, logit_rows, stream } = self;
        let small = [batch, context, width, n_head, n_layer, vocab, square, logit_rows];
        // Products of three, and a few times that, are below 2^63.
        if small.iter().chain([&stream]).any(|n| *n == 0) || small.iter().any(|n| *n > 1 << 19) || stream > 1 << 32 {
            return Err(Error::Invalid(format!("the sizes {name:?} must be above 0, and no larger than a model's")));
        }
        Ok(())
    }

    /// B * T.
    fn tokens(&self) -> usize {
        self.batch * self.context
    }
}

/// Runs once all that a row measures, and returns what it computed.
pub(super) type Work = Box<dyn FnMut() -> Result<Vec<Tensor>>>;

/// Makes the work on a device, with the same values on each.
type Prepare = Box<dyn Fn(&Device) -> Result<Work>>;

/// An op at one size.
pub struct Row {
    pub op: &'static str,
    pub shape: String,
    /// How far a GPU may be from the CPU: |difference| over root mean square + |value|.
    pub tolerance: f64,
    /// Whether it stores f16, which not every GPU can.
    pub f16: bool,
    prepare: Prepare,
}

type Inputs = Vec<(Vec<usize>, Values)>;
type Apply = Rc<dyn Fn(&[Tensor]) -> Result<Tensor>>;

impl Row {
    pub(super) fn new(op: &'static str, shape: String, prepare: impl Fn(&Device) -> Result<Work> + 'static) -> Row {
        // The longest sums have 50,304 terms. In f32 and in any order their rounding errors are about 1e-7 sqrt(50304)
        // = 2e-5 of a typical sum; the largest of many millions is a few times that.
        Row { op, shape, tolerance: 1e-4, f16: false, prepare: Box::new(prepare) }
    }

    pub(super) fn prepare(&self, device: &Device) -> Result<Work> {
        (self.prepare)(device)
    }

    /// Computes without recording anything.
    fn forward(
        op: &'static str,
        shape: String,
        inputs: Inputs,
        apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Row {
        let apply: Apply = Rc::new(apply);
        Row::new(op, shape, move |device| {
            let (inputs, apply) = (draw(&inputs, device, SEED)?, apply.clone());
            Ok(Box::new(move || Ok(vec![no_grad(|| apply(&inputs))?])))
        })
    }

    /// What only reads and writes: two tensors into one, and one into one.
    pub(super) fn streams(elements: usize) -> Vec<Row> {
        let x = || (vec![elements], AROUND_ZERO);
        vec![
            Row::forward("add", format!("{elements}"), vec![x(), x()], |x| x[0].add(&x[1])),
            Row::forward("scale", format!("{elements}"), vec![x()], |x| x[0].scale(0.37)),
        ]
    }

    /// Computes forward and backward. Gradients of the inputs that are `parameters` are added in place, as in training;
    /// those of the others are written anew.
    fn both(
        op: &'static str,
        shape: String,
        inputs: Inputs,
        parameters: &'static [usize],
        apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Row {
        let apply: Apply = Rc::new(apply);
        Row::new(op, shape, move |device| {
            let leaf = |x: Tensor| if x.dtype() == DType::F32 { x.requires_grad() } else { Ok(x) };
            let leaves: Vec<Tensor> = draw(&inputs, device, SEED)?.into_iter().map(leaf).collect::<Result<_>>()?;
            let (apply, mut grad_output) = (apply.clone(), None);
            Ok(Box::new(move || {
                // What a view of a leaf is given goes through an addition of its own, of `AROUND_THE_OP`.
                let given = leaves.iter().enumerate().map(|(i, x)| match parameters.contains(&i) {
                    true => Ok(x.clone()),
                    false if x.dtype() == DType::F32 => x.reshape(x.shape().clone()),
                    false => Ok(x.clone()),
                });
                let y = apply(&given.collect::<Result<Vec<_>>>()?)?;
                let grad_output = match &grad_output {
                    Some(grad_output) => grad_output,
                    None => {
                        let like_y = [(y.shape().to_vec(), Values::Uniform(-1.0, 1.0))];
                        grad_output.insert(draw(&like_y, &y.device(), SEED + 1)?.remove(0))
                    }
                };
                y.backward_with(grad_output)?;
                Ok(std::iter::once(y).chain(leaves.iter().filter_map(|x| x.grad().cloned())).collect())
            }))
        })
    }
}

/// Kernels that are none of the op's own: one adds the gradient of a view to that of its leaf, one makes f16 of f32.
pub(super) const AROUND_THE_OP: [&str; 2] = ["add_gradient", "cast"];

const SEED: u64 = 7;

/// Of adapters.
const RANK: usize = 16;

/// Every row.
pub fn table(s: &Sizes) -> Vec<Row> {
    let mut rows = matmul(s);
    rows.extend(layers(s));
    rows.extend(recurrent(s));
    rows.extend(images(s));
    rows.extend(losses(s));
    rows.extend(further_losses(s));
    rows.extend(elementwise(s));
    rows.extend(movement(s));
    rows.extend(streams(s));
    rows.extend(optimizers(s));
    rows
}

/// GEMMs op(a) op(b) of one size: neither transposed, b, a. Of f32, or of f16, whose results are f16 too.
pub fn gemms(dtype: DType, m: usize, n: usize, k: usize) -> [Row; 3] {
    [("nn", false, false), ("nt", false, true), ("tn", true, false)].map(|(layout, trans_a, trans_b)| {
        let a = if trans_a { vec![k, m] } else { vec![m, k] };
        let b = if trans_b { vec![n, k] } else { vec![k, n] };
        // So that f16 holds the results: they have a variance of about one.
        let small = Values::Uniform(-1.5 / (k as f32).sqrt(), 1.5 / (k as f32).sqrt());
        let inputs = vec![(a, AROUND_ZERO), (b, if dtype == DType::F16 { small } else { AROUND_ZERO })];
        let apply = move |x: &[Tensor]| x[0].matmul_transposed(&x[1], trans_a, trans_b);
        if dtype == DType::F32 {
            return Row::forward("matmul", format!("{layout} {m}x{n}x{k}"), inputs, apply);
        }
        let row = Row::new("matmul", format!("f16 {layout} {m}x{n}x{k}"), move |device| {
            let convert = |x: Tensor| no_grad(|| x.to_dtype(dtype));
            let inputs = draw(&inputs, device, SEED)?.into_iter().map(convert).collect::<Result<Vec<_>>>()?;
            Ok(Box::new(move || Ok(vec![no_grad(|| apply(&inputs))?])))
        });
        // Rounded to 11 bits, after a sum in another order.
        Row { tolerance: 2e-3, f16: true, ..row }
    })
}

/// Large square GEMMs and those of a training step: which of the layouts nn, nt and tn, and M, N and K.
pub fn step_gemms(s: &Sizes) -> Vec<(usize, [usize; 3])> {
    let [nn, nt, tn] = [0, 1, 2];
    let (tokens, c, v, rows) = (s.tokens(), s.width, s.vocab, s.logit_rows);
    let mut all: Vec<_> = [nn, nt, tn].map(|layout| (layout, [s.square; 3])).to_vec();
    // A linear layer from `inputs` to `outputs`: y = x w, dx = dy w^T, dw = x^T dy.
    for (inputs, outputs) in [(c, 4 * c), (4 * c, c), (c, c), (c, 3 * c)] {
        let (y, dx) = ((nn, [tokens, outputs, inputs]), (nt, [tokens, inputs, outputs]));
        all.extend([y, dx, (tn, [inputs, outputs, tokens])]);
    }
    // The classifier, whose weight is (V, C): logits = h w^T, dh = dlogits w, dw = dlogits^T h; and the other layouts.
    all.extend([(nt, [rows, v, c]), (nn, [rows, v, c]), (nn, [rows, c, v]), (tn, [v, c, rows]), (tn, [c, v, rows])]);
    all
}

fn matmul(s: &Sizes) -> Vec<Row> {
    let rows = |dtype| {
        let row = move |(layout, [m, n, k]): (usize, [usize; 3])| gemms(dtype, m, n, k).into_iter().nth(layout);
        step_gemms(s).into_iter().filter_map(row)
    };
    rows(DType::F32).chain(rows(DType::F16)).collect()
}

fn layers(s: &Sizes) -> Vec<Row> {
    let (b, t, c, n_head) = (s.batch, s.context, s.width, s.n_head);
    let (x, vector) = ((vec![b, t, c], AROUND_ZERO), (vec![c], AROUND_ZERO));
    let sizes = [vec![b, t, c], vec![c, 4 * c], vec![4 * c, c], vec![4 * c], vec![c]];
    let mlp = sizes.map(|shape| (shape, Values::Uniform(-0.1, 0.1))).to_vec();
    let qkv = || vec![(vec![b, t, 3 * c], AROUND_ZERO)];
    let new_token = vec![(vec![1, 1, 3 * c], AROUND_ZERO), (vec![1, t, 2 * c], AROUND_ZERO)];
    let heads = format!("{b}x{t}, {n_head} heads of {}", c / n_head);
    let dropout = Some((0.1, Key::new(3)));
    let linear = vec![x.clone(), (vec![c, 3 * c], AROUND_ZERO), (vec![3 * c], AROUND_ZERO)];
    let adapter = [vec![b, t, 3 * c], vec![b, t, c], vec![RANK, c], vec![3 * c, RANK], vec![3 * c, RANK]];
    let adapter = adapter.map(|shape| (shape, AROUND_ZERO)).to_vec();
    let summed = vec![x.clone(), vector.clone(), vector.clone(), x.clone()];
    let per_head = [vec![t, c / n_head], vec![c / n_head], vec![c / n_head]].map(|shape| (shape, AROUND_ZERO));
    let rotated = [qkv(), per_head.to_vec()].concat();
    let table = (vec![s.vocab, c], AROUND_ZERO);
    let ids = (vec![b, t], Values::Ids(s.vocab as u32));
    vec![
        Row::both("linear", format!("{}x{}x{c}", b * t, 3 * c), linear, &[1, 2], |x| {
            x[0].linear(&x[1], false, Some(&x[2]))
        }),
        Row::both("attention", heads.clone(), qkv(), &[], move |x| {
            x[0].causal_attention(Heads::multi_head(n_head), None, None)
        }),
        Row::both("attention", format!("{heads}, dropout"), qkv(), &[], move |x| {
            x[0].causal_attention(Heads::multi_head(n_head), None, dropout)
        }),
        Row::forward(
            "cached_attention",
            format!("1 after {}, {n_head} heads of {}", t - 1, c / n_head),
            new_token,
            move |x| {
                let heads = Heads::multi_head(n_head);
                x[0].append_and_attend(heads, &x[1], t - 1)
            },
        ),
        masked_attention([b.div_ceil(4), n_head, t, c / n_head]),
        half_attention(&heads, qkv(), n_head, None),
        half_attention(&format!("{heads}, dropout"), qkv(), n_head, dropout),
        Row::both("feed_forward", format!("{}x{c}, {} between", b * t, 4 * c), mlp, &[1, 2, 3, 4], |x| {
            x[0].feed_forward(&x[1], &x[2], Some((&x[3], &x[4])))
        }),
        Row::both("add_low_rank", format!("{}x{}x{c}, rank {RANK}", b * t, 3 * c), adapter, &[2, 3], |x| {
            // What backward adds up is what the adapter learns; the scales are given.
            x[0].clone().add_low_rank(&x[1], &x[2], &x[3], &x[4].detach())
        }),
        Row::both(
            "layer_norm",
            format!("{}x{c}", b * t),
            vec![x.clone(), vector.clone(), vector.clone()],
            &[1, 2],
            |x| x[0].layer_norm(&x[1], Some(&x[2]), 1e-5),
        ),
        Row::both("add_layer_norm", format!("{}x{c}", b * t), summed.clone(), &[1, 2], |x| {
            Ok(x[0].add_layer_norm(&x[3], None, DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        Row::both("add_layer_norm", format!("{}x{c}, dropout", b * t), summed.clone(), &[1, 2], move |x| {
            Ok(x[0].add_layer_norm(&x[3], dropout, DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        Row::both("rms_norm_to", format!("{}x{c}", b * t), summed[..2].to_vec(), &[1], |x| {
            x[0].rms_norm_to(DType::F32, &x[1], 1e-5)
        }),
        Row::both("add_rms_norm", format!("{}x{c}", b * t), vec![x.clone(), vector, x], &[1], |x| {
            Ok(x[0].add_rms_norm(&x[2], None, DType::F32, &x[1], 1e-5)?.1)
        }),
        Row::both("swiglu", format!("{}x{}", b * t, 4 * c), vec![(vec![b, t, 8 * c], AROUND_ZERO)], &[], |x| {
            x[0].swiglu()
        }),
        Row::both("rope", heads.clone(), rotated[..2].to_vec(), &[], move |x| {
            x[0].rope(Heads::multi_head(n_head), &x[1].detach(), None)
        }),
        Row::both("rope", format!("{heads}, QK-norm"), rotated, &[2, 3], move |x| {
            x[0].rope(Heads::multi_head(n_head), &x[1].detach(), Some((1e-6, [&x[2], &x[3]])))
        }),
        Row::both("softmax", format!("{}x{t}", b * t), vec![(vec![b * t, t], AROUND_ZERO)], &[], |x| x[0].softmax()),
        Row::both("log_softmax", format!("{}x{t}", b * t), vec![(vec![b * t, t], AROUND_ZERO)], &[], |x| {
            x[0].log_softmax()
        }),
        Row::both("embedding", format!("{} of {}x{c}", b * t, s.vocab), vec![table, ids], &[0], |x| {
            x[0].embedding(&x[1])
        }),
        sample("the softmax", s.vocab, |draw| draw),
        sample("top-k 200 and top-p 0.9", s.vocab, |draw| Draw { top_k: 200, top_p: 0.9, ..draw }),
    ]
}

/// The layers of ResNet-18 (He et al. 2016) on images of 224 x 224 pixels, or of a quarter of its channels and
/// pixels.
fn images(s: &Sizes) -> Vec<Row> {
    let (batch, part) = if s.width < 512 { (2 * s.batch, 4) } else { (4 * s.batch, 1) };
    let conv = |c_in: usize, c_out: usize, size: usize, kernel: usize, stride: usize| {
        let (c_in, c_out, size) = (if c_in > 3 { c_in / part } else { c_in }, c_out / part, size / part);
        let bound = 1.0 / ((c_in * kernel * kernel) as f32).sqrt();
        let weight = (vec![c_out, c_in, kernel, kernel], Values::Uniform(-bound, bound));
        let inputs = vec![(vec![batch, c_in, size, size], AROUND_ZERO), weight];
        let shape = format!("{batch}x{c_in}x{size}x{size} to {c_out}, {kernel}x{kernel}, stride {stride}");
        let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..ConvOptions::default() };
        Row::both("conv2d", shape, inputs, &[1], move |x| x[0].conv2d(&x[1], None, options))
    };
    let first = (vec![batch, 64 / part, 112 / part, 112 / part], AROUND_ZERO);
    let shape = move || format!("{batch}x{}x{1}x{1}", 64 / part, 112 / part);
    let parameters = || vec![(vec![64 / part], AROUND_ZERO); 2];
    let norm = |op, apply: fn(&[Tensor]) -> Result<Tensor>| {
        Row::both(op, shape(), [vec![first.clone()], parameters()].concat(), &[1, 2], apply)
    };
    let pool = |op, apply: fn(&[Tensor]) -> Result<Tensor>| Row::both(op, shape(), vec![first.clone()], &[], apply);
    vec![
        norm("batch_norm", |x| {
            let running = [Tensor::full(0.0, [x[1].len()], &x[0].device())?, x[1].detach().scale(1.0)?];
            x[0].batch_norm([&running[0], &running[1]], &x[1], &x[2], Some(0.1), 1e-5)
        }),
        norm("group_norm", |x| x[0].group_norm(8, &x[1], &x[2], 1e-5)),
        pool("max_pool2d", |x| {
            x[0].max_pool2d(PoolOptions { stride: [2; 2], padding: [1; 2], ..PoolOptions::new([3; 2]) })
        }),
        pool("avg_pool2d", |x| x[0].avg_pool2d(PoolOptions::new([2; 2]))),
        pool("adaptive_avg_pool2d", |x| x[0].adaptive_avg_pool2d([1; 2])),
        conv(3, 64, 224, 7, 2),
        conv(64, 64, 56, 3, 1),
        conv(64, 128, 56, 3, 2),
        conv(64, 128, 56, 1, 2),
        conv(128, 128, 28, 3, 1),
        conv(256, 256, 14, 3, 1),
        conv(512, 512, 7, 3, 1),
    ]
}

/// Layers of B texts in half a context of steps.
fn recurrent(s: &Sizes) -> Vec<Row> {
    let (steps, batch, c) = (s.context / 2, s.batch, s.width);
    let row = |cell: &'static str, gates: usize, states: usize| {
        let parameters = [vec![gates * c, c], vec![gates * c, c], vec![gates * c], vec![gates * c]];
        let shapes = [vec![vec![steps, batch, c]], vec![vec![1, batch, c]; states], parameters.to_vec()].concat();
        // Weights so small that no gate is at its end.
        let bound = 1.0 / (c as f32).sqrt();
        let inputs = shapes.into_iter().map(|shape| (shape, Values::Uniform(-bound, bound))).collect();
        let parameters: &[usize] = if states == 2 { &[3, 4, 5, 6] } else { &[2, 3, 4, 5] };
        Row::both(cell, format!("{steps} steps of {batch}x{c}"), inputs, parameters, move |x| {
            let [weight_ih, weight_hh, bias_ih, bias_hh] = &x[1 + states..] else { unreachable!("four parameters") };
            let direction = [RecurrentRef { weight_ih, weight_hh, bias: Some([bias_ih, bias_hh]) }];
            Ok(match cell {
                "lstm" => x[0].lstm(0, &direction, [&x[1], &x[2]])?.0,
                "gru" => x[0].gru(0, &direction, &x[1])?.0,
                _ => x[0].rnn(0, &direction, &x[1])?.0,
            })
        })
    };
    vec![row("rnn", 1, 1), row("lstm", 4, 2), row("gru", 3, 1)]
}

/// The next tokens of a few texts.
fn sample(from: &str, vocabulary: usize, change: fn(Draw) -> Draw) -> Row {
    const TEXTS: usize = 16;
    Row::new("sample", format!("{TEXTS}x{vocabulary}, {from}"), move |device| {
        let logits = draw(&[(vec![TEXTS, vocabulary], Values::Uniform(-8.0, 8.0))], device, SEED)?.remove(0);
        let of_text = |text: usize| {
            let key = Key::new(text as u64);
            let (tokens, top_k) = (vocabulary as u32, u32::MAX);
            change(Draw { tokens, temperature: 0.8, top_k, top_p: 1.0, min_p: 0.0, penalty: 1.0, key })
        };
        let settings = Draw::to_tensor(&(0..TEXTS).map(of_text).collect::<Vec<_>>(), device)?;
        Ok(Box::new(move || Ok(vec![logits.sample(&settings, None, None, 0)?])))
    })
}

/// Attention with a mask that is added, as learned biases of positions are.
fn masked_attention(shape: [usize; 4]) -> Row {
    let [batch, n_head, t, head_size] = shape;
    let name = format!("{batch}x{t}, {n_head} heads of {head_size}, a mask");
    let inputs = [vec![(shape.to_vec(), AROUND_ZERO); 3], vec![(vec![n_head, t, t], AROUND_ZERO)]].concat();
    Row::both("scaled_dot_product_attention", name, inputs, &[3], |x| {
        let mask = Some(AttentionMask::Additive(&x[3]));
        x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions { mask, ..AttentionOptions::default() })
    })
}

/// Attention that stores f16.
fn half_attention(heads: &str, qkv: Inputs, n_head: usize, dropout: Option<(f32, Key)>) -> Row {
    let row = Row::both("attention", format!("f16 {heads}"), qkv, &[], move |x| {
        x[0].to_dtype(DType::F16)?.causal_attention(Heads::multi_head(n_head), None, dropout)?.to_dtype(DType::F32)
    });
    Row { tolerance: 1e-2, f16: true, ..row }
}

fn losses(s: &Sizes) -> Vec<Row> {
    let (c, v, rows) = (s.width, s.vocab, s.logit_rows);
    let targets = |rows| (vec![rows], Values::Targets(v as u32));
    // Weights so small that logits are around 1.
    let classifier = |rows| vec![(vec![rows, c], AROUND_ZERO), (vec![v, c], Values::Uniform(-0.1, 0.1)), targets(rows)];
    let fused = |x: &[Tensor]| x[0].linear_cross_entropy(&x[1], &x[2], Criterion::default(), None);
    // Two chunks of the largest that a GPU takes.
    let more = 2 * rows;
    vec![
        Row::both(
            "cross_entropy",
            format!("{rows}x{v}"),
            vec![(vec![rows, v], AROUND_ZERO), targets(rows)],
            &[],
            |x| x[0].cross_entropy(&x[1], Criterion::default()),
        ),
        Row::both("linear_cross_entropy", format!("{more}x{v}x{c}"), classifier(more), &[1], fused),
        Row::forward("linear_cross_entropy", format!("{rows}x{v}x{c}, no gradient"), classifier(rows), fused),
    ]
}

/// Losses of rows of classes, of pairs of elements, and of pairs of vectors.
fn further_losses(s: &Sizes) -> Vec<Row> {
    let (tokens, c, v, rows) = (s.tokens(), s.width, s.vocab, s.logit_rows);
    let classes = || vec![(vec![rows, v], AROUND_ZERO), (vec![rows], Values::Targets(v as u32))];
    let pair = || vec![(vec![tokens, c], AROUND_ZERO), (vec![tokens, c], POSITIVE)];
    let shape = || format!("{tokens}x{c}");
    let weighted = [pair(), vec![(vec![c], POSITIVE)]].concat();
    let directions = [pair(), vec![(vec![tokens], AROUND_ZERO)]].concat();
    let of_pairs = LOSSES
        .iter()
        .map(|&(op, apply)| Row::both(op, shape(), pair(), &[], move |x| apply(&x[0], &x[1], Reduction::Mean)));
    let others = vec![
        Row::both("binary_cross_entropy_with_logits", format!("{}, weighted", shape()), weighted, &[], |x| {
            x[0].binary_cross_entropy_with_logits(&x[1], Some(&x[2].detach()), Reduction::Mean)
        }),
        Row::both("cosine_embedding_loss", shape(), directions, &[], |x| {
            x[0].cosine_embedding_loss(&x[1], &x[2].sign()?.detach(), 0.0, Reduction::Mean)
        }),
        Row::both("cross_entropy_loss", format!("{rows}x{v}"), classes(), &[], |x| {
            x[0].cross_entropy_loss(&x[1], Criterion::default(), Reduction::None)
        }),
        Row::both("nll_loss", format!("{rows}x{v}"), classes(), &[], |x| x[0].nll_loss(&x[1], None, Reduction::Mean)),
    ];
    of_pairs.chain(others).collect()
}

fn elementwise(s: &Sizes) -> Vec<Row> {
    let (b, t, c) = (s.batch, s.context, s.width);
    let mut rows = Vec::new();
    for &(op, apply) in UNARY {
        // Activations are those of a feed-forward layer.
        let width = if matches!(op, "gelu" | "silu") { 4 * c } else { c };
        let inputs = vec![(vec![b, t, width], domain(op))];
        rows.push(Row::both(op, format!("{}x{width}", b * t), inputs, &[], move |x| apply(&x[0])));
    }
    for &(op, apply) in BINARY {
        let inputs = vec![(vec![b, t, c], domain(op)), (vec![b, t, c], POSITIVE)];
        rows.push(Row::both(op, format!("{}x{c}", b * t), inputs, &[], move |x| apply(&x[0], &x[1])));
    }
    let repeated = vec![(vec![b, t, c], AROUND_ZERO), (vec![t, c], POSITIVE)];
    rows.push(Row::both("add", format!("{}x{c} + {t}x{c}", b * t), repeated, &[1], |x| x[0].add(&x[1])));
    let by_column = vec![(vec![b, t, c], AROUND_ZERO), (vec![b, t, 1], POSITIVE)];
    rows.push(Row::both("mul", format!("{0}x{c} * {0}x1", b * t), by_column, &[], |x| x[0].mul(&x[1])));
    for &(op, apply) in COMPARISONS {
        let inputs = vec![(vec![b, t, c], AROUND_ZERO), (vec![b, t, c], AROUND_ZERO)];
        rows.push(Row::forward(op, format!("{}x{c}", b * t), inputs, move |x| apply(&x[0], &x[1])));
    }
    let chosen = vec![(vec![t, t], AROUND_ZERO), (vec![b, t, t], AROUND_ZERO), (vec![], AROUND_ZERO)];
    rows.push(Row::both("where_cond", format!("{b}x{t}x{t} by {t}x{t}"), chosen, &[], |x| {
        let mask = x[0].gt(&x[2])?;
        mask.where_cond(&x[1], &x[2])
    }));
    let dropped = vec![(vec![b, t, c], AROUND_ZERO)];
    rows.push(Row::both("dropout", format!("{}x{c}", b * t), dropped, &[], |x| x[0].dropout(0.1, Key::new(5))));
    rows
}

/// Tensors larger than any cache: how near to copies a few ops come that read or write each element once.
fn streams(s: &Sizes) -> Vec<Row> {
    let (n, c) = (s.stream / 1024, 1024);
    let x = || (vec![n, c], AROUND_ZERO);
    let shape = || format!("{n}x{c}");
    let mut rows = vec![
        Row::forward("exp", shape(), vec![x()], |x| x[0].exp()),
        Row::forward("mul", shape(), vec![x(), x()], |x| x[0].mul(&x[1])),
    ];
    for (dim, of) in [(0, "columns"), (1, "rows")] {
        let shape = || format!("{of} of {n}x{c}");
        rows.push(Row::both("sum", shape(), vec![x()], &[], move |x| x[0].sum(dim)));
        rows.push(Row::both("max", shape(), vec![x()], &[], move |x| x[0].max(dim)));
        rows.push(Row::both("logsumexp", shape(), vec![x()], &[], move |x| x[0].logsumexp(dim)));
    }
    rows
}

/// Reductions, and ops that only move elements.
fn movement(s: &Sizes) -> Vec<Row> {
    let (b, t, c, n_head) = (s.batch, s.context, s.width, s.n_head);
    let flat = || vec![(vec![b * t, c], AROUND_ZERO)];
    let shape = || format!("{}x{c}", b * t);
    let mut rows = Vec::new();
    for &(op, apply) in REDUCTIONS.iter().filter(|(op, _)| !op.ends_with("_keepdim")) {
        for (dim, of) in [(0, "columns"), (1, "rows")] {
            let values = if op == "prod" { AROUND_ONE } else { AROUND_ZERO };
            let (inputs, shape) = (vec![(vec![b * t, c], values)], format!("{} of {}", of, shape()));
            let apply = move |x: &[Tensor]| apply(&x[0], &[dim]);
            // Numbers of elements have no gradient.
            rows.push(match op {
                "argmax" | "argmin" => Row::forward(op, shape, inputs, apply),
                _ => Row::both(op, shape, inputs, &[], apply),
            });
        }
    }
    let heads = vec![(vec![b, t, n_head, c / n_head], AROUND_ZERO)];
    let by_head = format!("{b}x{t}x{n_head}x{} to 0213", c / n_head);
    rows.push(Row::both("permute", by_head, heads, &[], |x| x[0].permute(&[0, 2, 1, 3])));
    rows.push(Row::both("permute", format!("{} to 10", shape()), flat(), &[], |x| x[0].permute(&[1, 0])));
    rows.extend(copies(s));
    let cast = Row::both("cast", shape(), flat(), &[], |x| x[0].to_dtype(DType::F16)?.to_dtype(DType::F32));
    // Rounding to 11 bits, to either neighbour.
    rows.push(Row { tolerance: 1e-3, f16: true, ..cast });
    rows.push(Row::both(AROUND_THE_OP[0], shape(), flat(), &[], |x| x[0].reshape(x[0].shape().clone())));
    let elements = b * t * c;
    rows.push(Row::new("fill", shape(), move |device| {
        let device = device.clone();
        Ok(Box::new(move || Ok(vec![Tensor::full(0.5, [elements], &device)?])))
    }));
    rows
}

/// Parts of tensors, larger ones, and lookups.
fn copies(s: &Sizes) -> Vec<Row> {
    let (b, t, c) = (s.batch, s.context, s.width);
    let flat = || vec![(vec![b * t, c], AROUND_ZERO)];
    let of = |what: &str| format!("{} of {}x{c}", what, b * t);
    let half = c / 2;
    let index = |rows: usize, columns: usize, below: usize| (vec![rows, columns], Values::Ids(below as u32));
    let scattered = vec![flat().remove(0), index(b * t, half, c), (vec![b * t, half], AROUND_ZERO)];
    let few = (vec![t], Values::Ids(c as u32));
    let rows = vec![(vec![b, t, c], AROUND_ZERO), (vec![half], Values::Ids(t as u32))];
    vec![
        Row::both("narrow", of(&format!("{half} columns")), flat(), &[], move |x| x[0].narrow(1, half, half)),
        Row::both("slice", of("every other row"), flat(), &[], move |x| x[0].slice(0, 0..b * t, 2)),
        Row::both("split", of("the first half"), flat(), &[], move |x| Ok(x[0].split(half, 1)?.remove(0))),
        Row::both("flip", of("the rows"), flat(), &[], |x| x[0].flip(&[0])),
        Row::both("expand", format!("{b}x1x{c} to {b}x{t}x{c}"), vec![(vec![b, 1, c], AROUND_ZERO)], &[], move |x| {
            x[0].expand([b, t, c])
        }),
        Row::both("pad", of("a row and 4 columns"), flat(), &[], |x| x[0].pad(&[(1, 0), (0, 4)], 0.0)),
        Row::both("cat", of("twice the columns"), [flat(), flat()].concat(), &[], |x| Tensor::cat(&[&x[0], &x[1]], 1)),
        Row::both("stack", of("two"), [flat(), flat()].concat(), &[], |x| Tensor::stack(&[&x[0], &x[1]], 1)),
        Row::both("tril", format!("{b}x{t}x{t}"), vec![(vec![b, t, t], AROUND_ZERO)], &[], |x| x[0].tril(0)),
        Row::both("triu", format!("{b}x{t}x{t}"), vec![(vec![b, t, t], AROUND_ZERO)], &[], |x| x[0].triu(1)),
        Row::both("gather", of("one column"), [flat(), vec![index(b * t, 1, c)]].concat(), &[], |x| {
            x[0].gather(1, &x[1])
        }),
        Row::both("index_select", of(&format!("{t} columns")), [flat(), vec![few]].concat(), &[], |x| {
            x[0].index_select(1, &x[1])
        }),
        Row::both("index_select", format!("{half} rows of {b}x{t}x{c}"), rows, &[], |x| x[0].index_select(1, &x[1])),
        Row::both("scatter_add", of(&format!("{half} columns")), scattered, &[], |x| x[0].scatter_add(1, &x[1], &x[2])),
    ]
}

/// A model of one parameter.
struct Flat(Parameter);

impl Module for Flat {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit("weight", &mut self.0);
    }
}

/// The updates, with the norm of the gradients before them, over the arenas of a model.
fn optimizers(s: &Sizes) -> Vec<Row> {
    let muon = Kind::Muon { momentum: 0.95, nesterov: true, ns_steps: 5, adjust_lr: AdjustLr::MatchRmsAdamW };
    let kinds = [
        ("adamw", Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("adam", Kind::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("sgd", Kind::Sgd { momentum: 0.9, nesterov: false }),
        ("rmsprop", Kind::RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false }),
        ("lion", Kind::Lion { beta1: 0.9, beta2: 0.99 }),
        ("muon", muon),
    ];
    let rows = s.vocab + 12 * s.n_layer * s.width;
    kinds
        .map(|(name, kind)| {
            // The matrices of one layer are enough for Muon.
            let outputs = vec![s.width; 12];
            let rows = if kind == muon { 12 * s.width } else { rows };
            let shape = vec![rows, s.width];
            Row::new(name, format!("{} parameters", rows * s.width), move |device| {
                let inputs = [(shape.clone(), AROUND_ZERO), (shape.clone(), AROUND_ZERO)];
                let [value, gradient] = &draw(&inputs, &Device::Cpu, SEED)?[..] else { unreachable!("two inputs") };
                let mut model = Flat(value.clone().into());
                model.0.linear = Some(LinearLayout { outputs_first: true, outputs: outputs.clone() });
                let parameters = ParameterArena::new(&mut model, device, DType::F32)?;
                model.0.grad().expect("gathered parameters have gradients").write_bytes(&gradient.to_bytes()?)?;
                // Steps so large that the update shows beside the tolerance.
                let learning_rate = 0.1;
                let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0)?;
                Ok(Box::new(move || Ok(vec![optimizer.step(&parameters, learning_rate)?, model.0.detach()])))
            })
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Limits;
    use crate::ops::cases;
    use crate::tensor::DryRun;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_of_the_table_of_ops_is_measured() {
        let names = |body: &dyn Fn(&Device)| -> BTreeSet<&'static str> {
            let dry_run = DryRun::new(Limits { f16: true, ..Limits::WEBGPU_DEFAULT });
            body(&Device::DryRun(dry_run.clone()));
            dry_run.take_plans().into_iter().map(|(name, _)| name).collect()
        };
        let tested = names(&|device| {
            for case in cases::all() {
                let leaf = |x: &Tensor| if x.dtype() == DType::F32 { x.requires_grad().unwrap() } else { x.clone() };
                let inputs: Vec<Tensor> = case.draw(device, 7).unwrap().iter().map(leaf).collect();
                let y = (case.apply)(&inputs).unwrap();
                y.backward_with(&y.detach()).unwrap();
            }
        });
        let measured = names(&|device| {
            for row in table(&Sizes::SMALL) {
                row.prepare(device).unwrap()().unwrap();
            }
        });
        let missing: Vec<_> = tested.difference(&measured).collect();
        assert!(missing.is_empty(), "src/bench/table.rs has no row that runs {missing:?}");
        for name in ["adamw", "adam", "sgd", "grad_norm"] {
            assert!(measured.contains(name), "{name} is missing in {measured:?}");
        }
    }
}
