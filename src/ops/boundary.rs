//! What every public op does with operands that do not fit: it says so, and never panics. A row of the table has
//! operands that fit, from which all others follow: each operand of every other type, of another rank, longer or empty
//! in each dimension, and on another device. What an op accepts of these by design stands in its row.

use super::random::Key;
use super::*;
use crate::Device;
use crate::gpu::{AdapterChoice, Gpu};
use crate::tensor::{Edge, no_grad};
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Apply = dyn Fn(&[Tensor]) -> Result<Tensor>;

struct Row {
    op: &'static str,
    operands: Vec<Spec>,
    /// Variants that it accepts, separated by commas.
    valid: &'static str,
    apply: Box<Apply>,
}

fn f32(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::F32)
}

fn f16(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::F16)
}

fn u32(shape: &[usize]) -> Spec {
    Spec::new(shape, DType::U32)
}

fn row(
    op: &'static str,
    operands: &[Spec],
    valid: &'static str,
    apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Row {
    Row { op, operands: operands.to_vec(), valid, apply: Box::new(apply) }
}

/// Of an op that takes any shape.
const ANY_SHAPE: &str = "0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1";
const KEY: Key = Key { words: [1, 2], slice_start: 0 };
const DROPOUT: Option<(f32, Key)> = Some((0.5, KEY));
const GROUPED: Heads = Heads { n_head: 2, n_kv_head: 1, window: None };

fn rows() -> Vec<Row> {
    [elementwise(), shapes(), matmuls(), layers(), recurrent(), images(), losses()].into_iter().flatten().collect()
}

fn elementwise() -> Vec<Row> {
    let one = [f32(&[2, 3])];
    let any: &'static str = "0 f16, 0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1";
    let unary = UNARY.iter().map(|&(op, apply)| row(op, &one, any, move |x| apply(&x[0])));
    let others = [
        row("softmax", &one, ANY_SHAPE, |x| x[0].softmax()),
        row("log_softmax", &one, ANY_SHAPE, |x| x[0].log_softmax()),
        row("dropout", &one, ANY_SHAPE, |x| x[0].dropout(0.5, KEY)),
    ];
    let broadcast = "0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 1 rank+1, 1 rank-1, 1 scalar";
    let of_none = "0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1, 1 rank+1, 1 rank-1, 1 scalar, 1 dim0+1";
    let empty = row("add", &[f32(&[2, 0]), f32(&[0])], of_none, |x| x[0].add(&x[1]));
    let pair = [f32(&[2, 3]), f32(&[3])];
    let binary =
        BINARY.iter().chain(COMPARISONS).map(|&(op, apply)| row(op, &pair, broadcast, move |x| apply(&x[0], &x[1])));
    let chosen = "0 rank+1, 0 rank-1, 0 scalar, 1 rank+1, 1 rank-1, 1 scalar, 2 rank+1, 2 rank-1, 2 scalar";
    let choice = row("where_cond", &[f32(&[2, 3]), f32(&[2, 3]), f32(&[3])], chosen, |x| x[0].where_cond(&x[1], &x[2]));
    let ids = [u32(&[2, 3]), u32(&[3])];
    let of_ids = COMPARISONS.iter().map(|&(op, apply)| row(op, &ids, broadcast, move |x| apply(&x[0], &x[1])));
    unary.chain(others).chain(binary).chain(of_ids).chain([empty, choice]).collect()
}

fn shapes() -> Vec<Row> {
    let x = [f32(&[2, 3])];
    let reduced = "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1";
    let any_type = "0 f16, 0 u32, 0 rank+1, 0 dim0+1, 0 dim1+1";
    let reductions = REDUCTIONS.iter().map(|&(op, apply)| row(op, &x, reduced, move |x| apply(&x[0], &[0])));
    let others = vec![
        row("permute", &x, "0 f16, 0 u32, 0 dim0+1, 0 dim1+1", |x| x[0].permute(&[1, 0])),
        row("narrow", &x, any_type, |x| x[0].narrow(1, 1, 1)),
        row("slice", &x, any_type, |x| x[0].slice(1, 0..2, 2)),
        row("split", &x, any_type, |x| Ok(x[0].split(2, 1)?.remove(0))),
        row("flip", &x, any_type, |x| x[0].flip(&[1])),
        row("expand", &x, "0 f16, 0 u32, 0 rank+1, 0 rank-1, 0 scalar", |x| x[0].expand([4, 2, 3])),
        row("pad", &x, "0 f16, 0 u32, 0 dim0+1, 0 dim1+1", |x| x[0].pad(&[(1, 0), (0, 2)], 0.5)),
        row("cat", &[f32(&[2, 3]), f32(&[2, 4])], "0 dim1+1, 1 dim1+1", |x| Tensor::cat(&[&x[0], &x[1]], 1)),
        row("stack", &[f32(&[2, 3]), f32(&[2, 3])], "", |x| Tensor::stack(&[&x[0], &x[1]], 1)),
        row("tril", &x, "0 f16, 0 rank+1, 0 dim0+1, 0 dim1+1", |x| x[0].tril(0)),
        row("triu", &x, "0 f16, 0 rank+1, 0 dim0+1, 0 dim1+1", |x| x[0].triu(0)),
        row("gather", &[f32(&[2, 3]), u32(&[2, 2])], "0 dim0+1, 0 dim1+1, 1 dim1+1", |x| x[0].gather(1, &x[1])),
        row("index_select", &[f32(&[2, 3]), u32(&[2])], "0 rank+1, 0 dim0+1, 0 dim1+1, 1 dim0+1", |x| {
            x[0].index_select(1, &x[1])
        }),
        row("scatter_add", &[f32(&[2, 3]), u32(&[2, 2]), f32(&[2, 2])], "0 dim0+1, 0 dim1+1", |x| {
            x[0].scatter_add(1, &x[1], &x[2])
        }),
        row("reshape", &x, "0 f16, 0 u32, 0 rank+1", |x| x[0].reshape([3, 2])),
        row("to_dtype", &x, "0 f16, 0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1", |x| x[0].to_dtype(DType::F16)),
        row(
            "embedding",
            &[f32(&[5, 3]), u32(&[2, 2])],
            "0 dim0+1, 0 dim1+1, 1 rank+1, 1 rank-1, 1 scalar, 1 dim0+1, 1 dim1+1",
            |x| x[0].embedding(&x[1]),
        ),
    ];
    reductions.chain(others).collect()
}

fn matmuls() -> Vec<Row> {
    let linear = "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1";
    let shared = "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1, 1 dim1+1";
    let low_rank = [&[2, 3, 4][..], &[2, 3, 5], &[1, 5], &[4, 1], &[4, 1]].map(f32);
    let mlp = |dtype| [&[2, 3, 4][..], &[4, 5], &[5, 6]].map(|shape| Spec::new(shape, dtype));
    vec![
        row("matmul", &[f32(&[2, 3, 4]), f32(&[4, 5])], shared, |x| x[0].matmul(&x[1])),
        row("matmul", &[f16(&[2, 3, 4]), f16(&[4, 5])], shared, |x| x[0].matmul(&x[1])),
        row("matmul", &[f32(&[2, 3, 4]), f32(&[2, 4, 5])], "0 dim1+1, 1 rank-1, 1 dim2+1", |x| x[0].matmul(&x[1])),
        row("matmul_transposed", &[f32(&[2, 4, 3]), f32(&[2, 5, 4])], "0 dim2+1, 1 rank-1, 1 dim1+1", |x| {
            x[0].matmul_transposed(&x[1], true, true)
        }),
        row("matmul_transposed", &[f32(&[4, 3]), f32(&[5, 4])], "0 rank+1, 0 dim1+1, 1 dim0+1", |x| {
            x[0].matmul_transposed(&x[1], true, true)
        }),
        row(
            "matmul_to_f32",
            &[f16(&[2, 3, 4]), f16(&[5, 4])],
            "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1, 1 dim0+1",
            |x| x[0].detach().matmul_to_f32(&x[1]),
        ),
        row("linear", &[f32(&[2, 3, 4]), f32(&[4, 5]), f32(&[5])], linear, |x| x[0].linear(&x[1], false, Some(&x[2]))),
        row("linear", &[f16(&[2, 3, 4]), f16(&[4, 5]), f32(&[5])], linear, |x| x[0].linear(&x[1], false, Some(&x[2]))),
        row("add_low_rank", &low_rank, "", |x| x[0].clone().add_low_rank(&x[1], &x[2], &x[3], &x[4])),
        row("feed_forward", &mlp(DType::F32), "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1, 2 dim1+1", |x| {
            x[0].feed_forward(&x[1], &x[2], None)
        }),
        row("feed_forward", &[&mlp(DType::F16)[..], &[f32(&[5]), f32(&[6])]].concat(), linear, |x| {
            x[0].feed_forward(&x[1], &x[2], Some((&x[3], &x[4])))
        }),
    ]
}

fn layers() -> Vec<Row> {
    let norm = [f32(&[2, 3]), f32(&[3]), f32(&[3])];
    let rows = "0 rank+1, 0 rank-1, 0 dim0+1";
    let sum = [&norm[..], &[f32(&[2, 3])]].concat();
    let attention = [f32(&[2, 3, 4]), f32(&[2, 5, 4]), f32(&[2, 5, 7])];
    let any_width = "0 dim1+1, 2 dim2+1";
    let [repeated, mask] = ["2 dim2+1, 3 rank+1, 3 rank-1, 3 scalar", "2 dim2+1, 3 rank-1, 3 scalar"];
    let rope = [f32(&[2, 3, 16]), f32(&[3, 4]), f32(&[4]), f32(&[4])];
    vec![
        row("layer_norm", &norm, rows, |x| x[0].layer_norm(&x[1], Some(&x[2]), 1e-5)),
        row("layer_norm_to", &norm, rows, |x| x[0].layer_norm_to(DType::F16, &x[1], Some(&x[2]), 1e-5)),
        row("add_layer_norm", &sum, "3 f16", |x| {
            Ok(x[0].add_layer_norm(&x[3], DROPOUT, DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        row("causal_attention", &[f32(&[2, 4, 12])], "0 f16, 0 dim0+1, 0 dim1+1", |x| {
            x[0].causal_attention(Heads::multi_head(2), None, DROPOUT)
        }),
        row("scaled_dot_product_attention", &attention, any_width, |x| {
            x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions::default())
        }),
        row("scaled_dot_product_attention", &[&attention[..], &[f32(&[3, 5])]].concat(), repeated, |x| {
            let mask = Some(AttentionMask::Additive(&x[3]));
            x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions { mask, ..AttentionOptions::default() })
        }),
        row("scaled_dot_product_attention", &[&attention[..], &[f32(&[2, 3, 5])]].concat(), mask, |x| {
            let (mask, causal) = (Some(AttentionMask::Keep(&x[3])), true);
            let options = AttentionOptions { mask, causal, dropout: DROPOUT, ..AttentionOptions::default() };
            x[0].scaled_dot_product_attention(&x[1], &x[2], options)
        }),
        row("scaled_dot_product_attention", &[f32(&[2, 3, 4]), f32(&[2, 3, 4]), f32(&[2, 3, 4])], any_width, |x| {
            let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
            x[0].scaled_dot_product_attention(&x[1], &x[2], options)
        }),
        // For inference: nothing is recorded.
        row("embedding_at", &[f32(&[5, 4]), u32(&[2, 3]), f32(&[4, 4])], "0 dim0+1, 1 dim0+1, 2 dim0+1", |x| {
            no_grad(|| x[0].embedding_at(&x[1], &x[2], 1))
        }),
        row("append_and_attend", &[f32(&[2, 2, 12]), f32(&[2, 5, 8])], "0 f16, 1 f16, 0 dim1+1, 1 dim1+1", |x| {
            no_grad(|| x[0].append_and_attend(Heads::multi_head(2), &x[1], 1))
        }),
        row("sample", &[f32(&[2, 5]), u32(&[2, 8]), f32(&[2, 5]), u32(&[2, 5])], "", |x| {
            x[0].sample(&x[1], Some(&x[2]), Some(&x[3]), 0)
        }),
        row(
            "norm_linear",
            &[f32(&[2, 4]), f32(&[4]), f32(&[4]), f32(&[2, 4]), f32(&[4, 3]), f32(&[3])],
            "3 f16, 4 f16",
            |x| {
                let norm = NormRef { weight: &x[1], bias: Some(&x[2]), eps: 1e-5, rms: false };
                let linear = LinearRef { weight: &x[4], outputs_first: false, bias: Some(&x[5]), gelu: false };
                no_grad(|| x[0].norm_linear(Some(&x[3]), norm, linear, DType::F32)).map(|(_, y)| y)
            },
        ),
        row("cached_attention", &[f32(&[2, 2, 12]), f32(&[2, 5, 8])], "0 f16, 1 f16, 0 dim1+1, 1 dim1+1", |x| {
            no_grad(|| x[0].cached_attention(Heads::multi_head(2), &x[1], 1))
        }),
        row("swiglu", &[f32(&[2, 3, 6])], "0 f16, 0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1", |x| x[0].swiglu()),
        row("rms_norm_to", &norm[..2], rows, |x| x[0].rms_norm_to(DType::F16, &x[1], 1e-5)),
        row("add_rms_norm", &[f32(&[2, 3]), f32(&[3]), f32(&[2, 3])], "2 f16", |x| {
            Ok(x[0].add_rms_norm(&x[2], DROPOUT, DType::F32, &x[1], 1e-5)?.1)
        }),
        row("rope", &rope[..2], "0 f16, 0 dim0+1, 1 dim0+1", |x| x[0].rope(GROUPED, &x[1], None)),
        row("rope", &rope, "0 f16, 0 dim0+1, 1 dim0+1", |x| x[0].rope(GROUPED, &x[1], Some((1e-6, [&x[2], &x[3]])))),
        row(
            "rope_append",
            &[f32(&[2, 2, 16]), f32(&[3, 4]), f32(&[2, 5, 8])],
            "0 f16, 2 f16, 1 dim0+1, 2 dim1+1",
            |x| no_grad(|| x[0].rope_append(GROUPED, &x[1], None, &x[2], 1)),
        ),
    ]
}

fn recurrent() -> Vec<Row> {
    // x, h, c of an LSTM, then W_ih, W_hh, b_ih, b_hh; all that may differ is the number of steps, and of an RNN and a
    // GRU that of the layers.
    let operands = |gates: usize, states: usize| {
        let parameters = [&[gates * 3, 4][..], &[gates * 3, 3], &[gates * 3], &[gates * 3]];
        let shapes = [vec![&[5usize, 2, 4][..]], vec![&[1, 2, 3][..]; states], parameters.to_vec()].concat();
        shapes.into_iter().map(f32).collect::<Vec<_>>()
    };
    fn parameters(x: &[Tensor]) -> [RecurrentRef<'_>; 1] {
        [RecurrentRef { weight_ih: &x[0], weight_hh: &x[1], bias: Some([&x[2], &x[3]]) }]
    }
    vec![
        row("rnn", &operands(1, 1), "0 dim0+1, 1 dim0+1", |x| Ok(x[0].rnn(0, &parameters(&x[2..]), &x[1])?.0)),
        row("lstm", &operands(4, 2), "0 dim0+1", |x| Ok(x[0].lstm(0, &parameters(&x[3..]), [&x[1], &x[2]])?.0)),
        row("gru", &operands(3, 1), "0 dim0+1, 1 dim0+1", |x| Ok(x[0].gru(0, &parameters(&x[2..]), &x[1])?.0)),
    ]
}

const CONV: ConvOptions = ConvOptions { stride: [2, 1], padding: [1, 0], dilation: [1, 2], groups: 2 };

fn images() -> Vec<Row> {
    // Of the weight the number of outputs is any that the groups divide.
    let (x, weight) = (f32(&[2, 4, 5, 6]), f32(&[6, 2, 3, 2]));
    let [sizes, sequence] = ["0 dim0+1, 0 dim2+1, 0 dim3+1, 1 dim2+1, 1 dim3+1", "0 dim0+1, 0 dim2+1, 1 dim2+1"];
    let (pooled, sequences) = ("0 dim0+1, 0 dim1+1, 0 dim2+1, 0 dim3+1", "0 dim0+1, 0 dim1+1, 0 dim2+1");
    let norm = [f32(&[2, 4, 3]), f32(&[4]), f32(&[4]), f32(&[4]), f32(&[4])];
    let rows = "0 dim0+1, 0 dim2+1";
    fn running(x: &[Tensor]) -> [&Tensor; 2] {
        [&x[3], &x[4]]
    }
    let outputs = "0 dim0+1, 0 dim2+1, 0 dim3+1, 1 dim2+1, 1 dim3+1";
    vec![
        row("conv2d", &[x.clone(), weight, f32(&[6])], sizes, |x| x[0].conv2d(&x[1], Some(&x[2]), CONV)),
        row("conv_transpose2d", &[x, f32(&[4, 3, 3, 2]), f32(&[6])], outputs, |x| {
            x[0].conv_transpose2d(&x[1], Some(&x[2]), CONV, [1, 0])
        }),
        row("max_pool2d", &[f32(&[2, 3, 5, 6])], pooled, |x| x[0].max_pool2d(PoolOptions::new([2; 2]))),
        row("avg_pool2d", &[f32(&[2, 3, 5, 6])], pooled, |x| x[0].avg_pool2d(PoolOptions::new([2; 2]))),
        row("adaptive_avg_pool2d", &[f32(&[2, 3, 5, 6])], pooled, |x| x[0].adaptive_avg_pool2d([2; 2])),
        row("max_pool1d", &[f32(&[2, 3, 6])], sequences, |x| x[0].max_pool1d(PoolOptions::new([1, 2]))),
        row("avg_pool1d", &[f32(&[2, 3, 6])], sequences, |x| x[0].avg_pool1d(PoolOptions::new([1, 2]))),
        row("adaptive_avg_pool1d", &[f32(&[2, 3, 6])], sequences, |x| x[0].adaptive_avg_pool1d(2)),
        row("batch_norm", &norm, rows, |x| x[0].batch_norm(running(x), &x[1], &x[2], None, 1e-5)),
        row("batch_norm", &norm, rows, |x| x[0].batch_norm(running(x), &x[1], &x[2], Some(0.1), 1e-5)),
        row("group_norm", &norm[..3], rows, |x| x[0].group_norm(2, &x[1], &x[2], 1e-5)),
        row("conv1d", &[f32(&[2, 4, 6]), f32(&[6, 2, 2]), f32(&[6])], sequence, |x| {
            x[0].conv1d(&x[1], Some(&x[2]), ConvOptions { groups: 2, ..ConvOptions::default() })
        }),
    ]
}

fn losses() -> Vec<Row> {
    let of = |dtype| [Spec::new([2, 4], dtype), Spec::new([5, 4], dtype), u32(&[2]), f32(&[1])];
    // A loss scale of more elements is what the optimizer has: the scale, and what it counts.
    let chunked = "0 rank+1, 1 dim0+1, 2 rank+1, 3 rank+1, 3 rank-1, 3 scalar, 3 dim0+1";
    let loss = |x: &[Tensor]| x[0].linear_cross_entropy(&x[1], &x[2], Criterion::default(), Some(&x[3]));
    fn weighed_by(weights: &Tensor) -> Criterion<'_> {
        Criterion { label_smoothing: 0.1, class_weights: Some(weights) }
    }
    let weighted = [&of(DType::F32)[..3], &[f32(&[5])]].concat();
    let pair = [f32(&[2, 3]), f32(&[2, 3])];
    let pairs = LOSSES.iter().map(|&(op, apply)| row(op, &pair, "", move |x| apply(&x[0], &x[1], Reduction::None)));
    let of_classes = [f32(&[2, 3]), u32(&[2])];
    let rows = vec![
        row("cross_entropy", &[f32(&[2, 3]), u32(&[2]), f32(&[3])], "0 rank+1, 1 rank+1", move |x| {
            x[0].cross_entropy(&x[1], weighed_by(&x[2].detach()))
        }),
        row("linear_cross_entropy", &weighted, "0 rank+1, 2 rank+1", move |x| {
            x[0].linear_cross_entropy(&x[1], &x[2], weighed_by(&x[3].detach()), None)
        }),
        row("cross_entropy", &[f32(&[2, 3]), u32(&[2])], "0 rank+1, 0 dim1+1, 1 rank+1", |x| {
            x[0].cross_entropy(&x[1], Criterion::default())
        }),
        row("linear_cross_entropy", &of(DType::F32), chunked, loss),
        row("linear_cross_entropy", &of(DType::F16), chunked, loss),
        row(
            "binary_cross_entropy_with_logits",
            &[&pair[..], &[f32(&[3])]].concat(),
            "2 rank+1, 2 scalar, 2 rank-1",
            |x| x[0].binary_cross_entropy_with_logits(&x[1], Some(&x[2].detach()), Reduction::None),
        ),
        row("cross_entropy_loss", &of_classes, "0 rank+1, 0 dim1+1, 1 rank+1", |x| {
            x[0].cross_entropy_loss(&x[1], Criterion::default(), Reduction::None)
        }),
        row("nll_loss", &of_classes, "0 rank+1, 0 dim1+1, 1 rank+1", |x| x[0].nll_loss(&x[1], None, Reduction::Mean)),
        row("nll_loss", &[&of_classes[..], &[f32(&[3])]].concat(), "0 rank+1, 1 rank+1", |x| {
            x[0].nll_loss(&x[1], Some(&x[2].detach()), Reduction::Sum)
        }),
        row("cosine_embedding_loss", &[&pair[..], &[f32(&[2])]].concat(), "", |x| {
            x[0].cosine_embedding_loss(&x[1], &x[2].detach(), 0.5, Reduction::None)
        }),
    ];
    pairs.chain(rows).collect()
}

/// Operands of which one differs from the row's.
struct Variant {
    name: String,
    operands: Vec<Spec>,
    /// The operand that is on another device.
    moved: Option<usize>,
}

fn variants(row: &Row) -> Vec<Variant> {
    let mut all = Vec::new();
    for (i, spec) in row.operands.iter().enumerate() {
        let mut push = |what: String, other: Spec| {
            let mut operands = row.operands.clone();
            operands[i] = other;
            all.push(Variant { name: format!("{i} {what}"), operands, moved: None });
        };
        for dtype in [DType::F32, DType::F16, DType::U32].into_iter().filter(|dtype| *dtype != spec.dtype) {
            push(dtype.name().into(), Spec::new(spec.shape.clone(), dtype));
        }
        let mut shape = |what: String, shape: Vec<usize>| push(what, Spec::new(shape, spec.dtype));
        shape("rank+1".into(), [&[1], &spec.shape[..]].concat());
        shape("rank-1".into(), spec.shape[1..].to_vec());
        shape("scalar".into(), vec![]);
        for dim in 0..spec.shape.len() {
            for (what, len) in [("+1", spec.shape[dim] + 1), ("=0", 0)] {
                let mut dims = spec.shape.to_vec();
                dims[dim] = len;
                shape(format!("dim{dim}{what}"), dims);
            }
        }
        if row.operands.len() > 1 {
            all.push(Variant { name: format!("{i} device"), operands: row.operands.clone(), moved: Some(i) });
        }
    }
    all
}

/// What the op makes of them: its error, or whether the result could be computed, read and differentiated.
type Outcome = std::thread::Result<std::result::Result<Result<()>, Error>>;

fn outcome(row: &Row, variant: &Variant, device: &Device, other: &Device) -> Outcome {
    let operand = |(i, spec): (usize, &Spec)| {
        let device = if variant.moved == Some(i) { other } else { device };
        let zeros = Tensor::zeros(spec.shape.clone(), spec.dtype, device)?;
        if spec.dtype == DType::U32 { Ok(zeros) } else { zeros.requires_grad() }
    };
    let apply = || {
        let operands = variant.operands.iter().enumerate().map(operand).collect::<Result<Vec<Tensor>>>()?;
        Ok(((row.apply)(&operands)?, operands))
    };
    let differentiate = |y: &Tensor, operands: &[Tensor]| {
        y.to_bytes()?;
        if matches!(y.edge(), Edge::Node(..)) {
            y.backward_with(&Tensor::zeros(y.shape().clone(), y.dtype(), device)?)?;
        }
        operands.iter().filter_map(Tensor::grad).try_for_each(|gradient| gradient.to_bytes().map(drop))
    };
    catch_unwind(AssertUnwindSafe(|| apply().map(|(y, operands)| differentiate(&y, &operands))))
}

/// Whether an error says what is wrong with operands, and not that something broke.
fn refuses(error: &Error) -> bool {
    matches!(error, Error::Shape { .. } | Error::DType { .. } | Error::DeviceMismatch { .. } | Error::Invalid(_))
}

/// Those for tests, and as another device one more GPU, with what every WebGPU grants: it has no f16.
fn devices() -> Vec<Device> {
    let mut devices = Device::for_tests();
    if devices.iter().any(Device::is_gpu) {
        let choice = AdapterChoice { allow_software: true, default_limits: true, ..AdapterChoice::default() };
        devices.push(Device::Gpu(Gpu::open(&choice).unwrap()));
    }
    devices
}

/// What is wrong with the outcome, of a variant that must be accepted or refused, or may be either.
fn complaint(outcome: &Outcome, accept: Option<bool>, f16: bool) -> Option<String> {
    match outcome {
        Err(_) => Some("panics".into()),
        Ok(Err(Error::GpuLimit { .. })) if !f16 => None,
        Ok(Err(error)) if !refuses(error) => Some(format!("is no error of operands: {error}")),
        Ok(Err(error)) if accept == Some(true) => Some(format!("is refused: {error}")),
        Ok(Ok(_)) if accept == Some(false) => Some("is accepted".into()),
        Ok(Ok(Err(error))) => Some(format!("is accepted, but cannot be computed: {error}")),
        Ok(_) => None,
    }
}

#[test]
fn every_op_refuses_operands_that_do_not_fit() {
    let devices = devices();
    let mut failures = Vec::new();
    for row in rows() {
        let as_it_is = Variant { name: "as it is".into(), operands: row.operands.clone(), moved: None };
        let valid: Vec<&str> = row.valid.split(", ").filter(|name| !name.is_empty()).chain(["as it is"]).collect();
        let all: Vec<Variant> = variants(&row).into_iter().chain([as_it_is]).collect();
        let unknown = valid.iter().filter(|name| !all.iter().any(|variant| variant.name == **name));
        failures.extend(unknown.map(|name| format!("{}: no variant {name}", row.op)));
        for variant in all {
            let accept = if variant.name.ends_with("=0") { None } else { Some(valid.contains(&&*variant.name)) };
            let mut accepted = Vec::new();
            for (i, device) in devices.iter().enumerate() {
                // One that has f16, if another has.
                let other = &devices[if i > 0 { i - 1 } else { devices.len().min(2) - 1 }];
                if variant.moved.is_some() && other.same(device) {
                    continue;
                }
                let f16 = !device.is_gpu() || device.has_f16();
                let outcome = outcome(&row, &variant, device, other);
                let operands = variant.operands.iter().map(Spec::to_string).collect::<Vec<_>>().join(", ");
                let what = format!("{device}: {} of {operands} ({})", row.op, variant.name);
                failures.extend(complaint(&outcome, accept, f16).map(|complaint| format!("{what} {complaint}")));
                accepted.extend(f16.then_some(matches!(outcome, Ok(Ok(_)))));
            }
            if accepted.windows(2).any(|pair| pair[0] != pair[1]) {
                failures.push(format!("{} ({}): one device accepts what another refuses", row.op, variant.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

type Attempt = fn(&Device) -> Result<()>;

/// Arguments other than tensors, and what is no op, each with the method that must refuse it.
fn other_arguments() -> Vec<(&'static str, Attempt)> {
    [arguments_of_ops(), arguments_of_tensors()].concat()
}

/// A shape whose number of elements wraps around to 0.
const WRAPS: [usize; 2] = [1 << (usize::BITS / 2); 2];

fn x(shape: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(shape, DType::F32, device).unwrap()
}

fn ids(device: &Device) -> Tensor {
    Tensor::zeros([2, 3], DType::U32, device).unwrap()
}

fn smoothed_by(label_smoothing: f32, device: &Device) -> Result<()> {
    let targets = Tensor::zeros([2], DType::U32, device)?;
    let criterion = Criterion { label_smoothing, class_weights: None };
    x(&[2, 3], device).cross_entropy(&targets, criterion).map(drop)
}

fn arguments_of_ops() -> Vec<(&'static str, Attempt)> {
    vec![
        ("sum", |d| x(&[2, 3], d).sum(2).map(drop)),
        ("mean", |d| x(&[2, 3], d).mean(usize::MAX).map(drop)),
        ("max", |d| x(&[2, 3], d).max(2).map(drop)),
        ("max", |d| x(&[2, 0], d).max(1).map(drop)),
        ("min", |d| x(&[2, 0], d).min(..).map(drop)),
        ("argmax", |d| x(&[2, 0], d).argmax(1).map(drop)),
        ("sum", |d| x(&[2, 3], d).sum([0, 0]).map(drop)),
        ("var", |d| x(&[2, 3], d).var([0, 2], 1).map(drop)),
        ("logsumexp", |d| x(&[2, 3], d).logsumexp(usize::MAX).map(drop)),
        ("prod", |d| x(&[2; 7], d).prod([0, 2]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, 0]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[1, 2]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, 1, usize::MAX]).map(drop)),
        ("permute", |d| x(&[1; 7], d).permute(&[6, 5, 4, 3, 2, 1, 0]).map(drop)),
        ("add", |d| x(&[2, 1, 2, 1, 2, 1, 2], d).add(&x(&[1, 2, 1, 2, 1, 2, 1], d)).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(2, 0, 1).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(1, 1, 3).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(1, 1, usize::MAX).map(drop)),
        ("narrow", |d| x(&[1; 7], d).narrow(0, 0, 1).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(1, 0..3, 0).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(1, Range { start: 2, end: 1 }, 1).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(usize::MAX, 0..1, 1).map(drop)),
        ("split", |d| x(&[2, 3], d).split(0, 1).map(drop)),
        ("split", |d| x(&[2, 3], d).split(1, 2).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[2]).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[1, 1]).map(drop)),
        ("expand", |d| x(&[2, 3], d).expand([3]).map(drop)),
        ("expand", |d| x(&[2, 3], d).expand([3, 3]).map(drop)),
        ("expand", |d| x(&[1], d).expand(WRAPS).map(drop)),
        ("expand", |d| x(&[1], d).expand([1; 7]).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(1, 1)], 0.0).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(0, 0), (usize::MAX, 0)], 0.0).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(WRAPS[0], 0), (WRAPS[0], 0)], 0.0).map(drop)),
        ("cat", |_| Tensor::cat(&[], 0).map(drop)),
        ("cat", |d| Tensor::cat(&[&x(&[2, 3], d)], 2).map(drop)),
        ("cat", |d| Tensor::cat(&[&x(&[], d)], 0).map(drop)),
        ("stack", |_| Tensor::stack(&[], 0).map(drop)),
        ("stack", |d| Tensor::stack(&[&x(&[2, 3], d)], 3).map(drop)),
        ("stack", |d| Tensor::stack(&[&x(&[1; 6], d)], 0).map(drop)),
        ("gather", |d| x(&[2, 3], d).gather(2, &ids(d)).map(drop)),
        ("index_select", |d| x(&[2, 3], d).index_select(2, &ids(d).reshape([6])?).map(drop)),
        ("scatter_add", |d| x(&[2, 3], d).scatter_add(usize::MAX, &ids(d), &x(&[2, 3], d)).map(drop)),
        ("reshape", |d| x(&[2, 3], d).reshape([7]).map(drop)),
        ("reshape", |d| x(&[2, 3], d).reshape([usize::MAX, 2]).map(drop)),
        ("reshape", |d| x(&[0], d).reshape(WRAPS).map(drop)),
        ("to_dtype", |d| x(&[2, 3], d).to_dtype(DType::U32).map(drop)),
        ("to_dtype", |d| ids(d).to_dtype(DType::F32).map(drop)),
        ("cast_into", |d| x(&[2, 3], d).cast_into(&x(&[7], d))),
        ("dropout", |d| x(&[2, 3], d).dropout(1.0, KEY).map(drop)),
        ("dropout", |d| x(&[2, 3], d).dropout(-0.1, KEY).map(drop)),
        ("dropout", |d| x(&[2, 3], d).dropout(f32::NAN, KEY).map(drop)),
        ("dropout", |d| ids(d).dropout(0.0, KEY).map(drop)),
        ("layer_norm_to", |d| x(&[2, 3], d).layer_norm_to(DType::U32, &x(&[3], d), None, 1e-5).map(drop)),
        ("add_layer_norm", |d| {
            x(&[2, 3], d).add_layer_norm(&x(&[2, 3], d), None, DType::U32, &x(&[3], d), None, 1e-5).map(drop)
        }),
        ("add_layer_norm", |d| {
            let dropout = Some((1.0, KEY));
            x(&[2, 3], d).add_layer_norm(&x(&[2, 3], d), dropout, DType::F32, &x(&[3], d), None, 1e-5).map(drop)
        }),
        ("cross_entropy", |d| smoothed_by(1.1, d)),
        ("cross_entropy", |d| smoothed_by(-0.1, d)),
        ("cross_entropy", |d| smoothed_by(f32::NAN, d)),
        ("linear_cross_entropy", |d| {
            let targets = Tensor::zeros([2], DType::U32, d)?;
            let weights = x(&[5], d).requires_grad()?;
            let criterion = Criterion { class_weights: Some(&weights), ..Criterion::default() };
            x(&[2, 3], d).linear_cross_entropy(&x(&[5, 3], d), &targets, criterion, None).map(drop)
        }),
        ("huber_loss", |d| x(&[2], d).huber_loss(&x(&[2], d), 0.0, Reduction::None).map(drop)),
        ("huber_loss", |d| x(&[2], d).huber_loss(&x(&[2], d), f32::NAN, Reduction::None).map(drop)),
        ("smooth_l1_loss", |d| x(&[2], d).smooth_l1_loss(&x(&[2], d), -1.0, Reduction::None).map(drop)),
        ("binary_cross_entropy_with_logits", |d| {
            let weight = x(&[2], d).requires_grad()?;
            x(&[2], d).binary_cross_entropy_with_logits(&x(&[2], d), Some(&weight), Reduction::None).map(drop)
        }),
        ("nll_loss", |d| {
            let weights = x(&[3], d).requires_grad()?;
            x(&[6, 3], d).nll_loss(&ids(d), Some(&weights), Reduction::None).map(drop)
        }),
        ("swiglu", |d| x(&[2, 3], d).swiglu().map(drop)),
        ("swiglu", |d| x(&[], d).swiglu().map(drop)),
        ("swiglu", |d| ids(d).swiglu().map(drop)),
        ("rms_norm_to", |d| x(&[2, 3], d).rms_norm_to(DType::U32, &x(&[3], d), 1e-5).map(drop)),
        ("rms_norm_to", |d| x(&[2, 0], d).rms_norm_to(DType::F32, &x(&[0], d), 1e-5).map(drop)),
        ("add_rms_norm", |d| {
            let dropout = Some((1.0, KEY));
            x(&[2, 3], d).add_rms_norm(&x(&[2, 3], d), dropout, DType::F32, &x(&[3], d), 1e-5).map(drop)
        }),
        ("rope", |d| x(&[1, 2, 12], d).rope(GROUPED, &x(&[2, 3], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(GROUPED, &x(&[1, 4], d), None).map(drop)),
        ("rope", |d| x(&[2, 16], d).rope(GROUPED, &x(&[2, 4], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 4 * 130], d).rope(GROUPED, &x(&[2, 130], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(Heads::multi_head(usize::MAX), &x(&[2, 4], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(Heads::multi_head(0), &x(&[2, 4], d), None).map(drop)),
        ("rope_append", |d| {
            x(&[1, 2, 16], d).rope_append(GROUPED, &x(&[9, 4], d), None, &x(&[1, 5, 8], d), 4).map(drop)
        }),
        ("rope_append", |d| {
            x(&[1, 2, 16], d).rope_append(GROUPED, &x(&[2, 4], d), None, &x(&[1, 5, 8], d), usize::MAX).map(drop)
        }),
        ("causal_attention", |d| x(&[1, 2, 12], d).causal_attention(Heads::multi_head(0), None, None).map(drop)),
        ("causal_attention", |d| x(&[1, 2, 12], d).causal_attention(Heads::multi_head(3), None, None).map(drop)),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(usize::MAX), None, None).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(usize::MAX / 3 + 1), None, None).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(2), None, Some((1.0, KEY))).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(2), None, Some((f32::NAN, KEY))).map(drop)
        }),
        ("causal_attention", |d| x(&[1, 2, 3 * 129], d).causal_attention(Heads::multi_head(1), None, None).map(drop)),
        ("scaled_dot_product_attention", |d| {
            let options = AttentionOptions { dropout: Some((1.0, KEY)), ..AttentionOptions::default() };
            x(&[2, 3, 4], d).scaled_dot_product_attention(&x(&[2, 3, 4], d), &x(&[2, 3, 4], d), options).map(drop)
        }),
        ("scaled_dot_product_attention", |d| {
            let (causal, dropout) = (true, Some((f32::NAN, KEY)));
            let options = AttentionOptions { causal, dropout, ..AttentionOptions::default() };
            x(&[2, 3, 4], d).scaled_dot_product_attention(&x(&[2, 3, 4], d), &x(&[2, 3, 4], d), options).map(drop)
        }),
        ("cached_attention", |d| {
            x(&[1, 2, 12], d).cached_attention(Heads::multi_head(2), &x(&[1, 5, 8], d), 4).map(drop)
        }),
        ("cached_attention", |d| {
            x(&[1, 2, 12], d).cached_attention(Heads::multi_head(2), &x(&[1, 5, 8], d), usize::MAX).map(drop)
        }),
        ("conv2d", |d| convolved(ConvOptions { stride: [0, 1], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { stride: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { padding: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { dilation: [1, 0], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { dilation: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { groups: 0, ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { groups: usize::MAX, ..CONV }, d)),
        ("conv_transpose2d", |d| transposed(CONV, [2, 0], d)),
        ("conv_transpose2d", |d| transposed(CONV, [usize::MAX; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { stride: [usize::MAX; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { padding: [usize::MAX; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { padding: [99; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { groups: usize::MAX, ..CONV }, [0; 2], d)),
        ("max_pool2d", |d| pooled(PoolOptions { padding: [2; 2], ..PoolOptions::new([3; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions::new([0, 2]), d)),
        ("max_pool2d", |d| pooled(PoolOptions::new([6, 2]), d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [0; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [usize::MAX; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { dilation: [usize::MAX; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { dilation: [0; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { padding: [usize::MAX; 2], ..PoolOptions::new([usize::MAX; 2]) }, d)),
        ("avg_pool2d", |d| {
            let options = PoolOptions { dilation: [2; 2], ..PoolOptions::new([2; 2]) };
            x(&[2, 3, 5, 6], d).avg_pool2d(options).map(drop)
        }),
        ("adaptive_avg_pool2d", |d| x(&[2, 3, 5, 6], d).adaptive_avg_pool2d([0, 1]).map(drop)),
        ("adaptive_avg_pool2d", |d| x(&[2, 3, 5, 6], d).adaptive_avg_pool2d([usize::MAX, 1]).map(drop)),
        ("batch_norm", |d| {
            let one = x(&[3], d);
            x(&[1, 3], d).batch_norm([&one.detach(), &one.detach()], &one, &one, Some(0.1), 1e-5).map(drop)
        }),
        ("group_norm", |d| x(&[2, 4], d).group_norm(0, &x(&[4], d), &x(&[4], d), 1e-5).map(drop)),
        ("group_norm", |d| x(&[2, 4], d).group_norm(3, &x(&[4], d), &x(&[4], d), 1e-5).map(drop)),
        ("conv1d", |d| x(&[2, 4, 6], d).conv1d(&x(&[6, 2, 2], d), None, CONV).map(drop)),
        ("rnn", |d| x(&[2, 3, 4], d).rnn(0, &[], &x(&[1, 3, 5], d)).map(drop)),
        ("rnn", |d| recurrent_layer(usize::MAX, 1, d)),
        ("rnn", |d| recurrent_layer(1, 1, d)),
        ("rnn", |d| recurrent_layer(0, 3, d)),
    ]
}

fn convolved(options: ConvOptions, device: &Device) -> Result<()> {
    x(&[2, 4, 5, 6], device).conv2d(&x(&[6, 2, 3, 2], device), None, options).map(drop)
}

fn pooled(options: PoolOptions, device: &Device) -> Result<()> {
    x(&[2, 3, 5, 6], device).max_pool2d(options).map(drop)
}

fn transposed(options: ConvOptions, output_padding: [usize; 2], device: &Device) -> Result<()> {
    let weight = x(&[4, 3, 3, 2], device);
    x(&[2, 4, 5, 6], device).conv_transpose2d(&weight, None, options, output_padding).map(drop)
}

/// Of a stack of one layer.
fn recurrent_layer(layer: usize, directions: usize, device: &Device) -> Result<()> {
    let (weight_ih, weight_hh) = (&x(&[5, 4], device), &x(&[5, 5], device));
    let directions = vec![RecurrentRef { weight_ih, weight_hh, bias: None }; directions];
    x(&[2, 3, 4], device).rnn(layer, &directions, &x(&[directions.len(), 3, 5], device)).map(drop)
}

fn arguments_of_tensors() -> Vec<(&'static str, Attempt)> {
    vec![
        ("from_f32", |d| Tensor::from_f32(&[0.0; 5], [2, 3], d).map(drop)),
        ("from_f32", |d| Tensor::from_f32(&[], WRAPS, d).map(drop)),
        ("from_u32", |d| Tensor::from_u32(&[0; 7], [2, 3], d).map(drop)),
        ("from_bytes", |d| Tensor::from_bytes(&[0; 11], Spec::new([2, 3], DType::F16), d).map(drop)),
        ("from_bytes", |d| Tensor::from_bytes(&[], Spec::new([1 << (usize::BITS - 1)], DType::F16), d).map(drop)),
        ("zeros", |d| Tensor::zeros(WRAPS, DType::F32, d).map(drop)),
        ("zeros", |d| Tensor::zeros([usize::MAX / 4 + 1], DType::F32, d).map(drop)),
        ("full", |d| Tensor::full(1.0, WRAPS, d).map(drop)),
        ("write_bytes", |d| x(&[2, 3], d).write_bytes(&[0; 23])),
        ("write_bytes", |d| x(&[2, 3], d).write_bytes(&[0; 25])),
        ("to_f32", |d| ids(d).to_f32().map(drop)),
        ("to_u32", |d| x(&[2, 3], d).to_u32().map(drop)),
        ("item", |d| x(&[2, 3], d).item().map(drop)),
        ("item", |d| x(&[0], d).item().map(drop)),
        ("requires_grad", |d| ids(d).requires_grad().map(drop)),
        ("backward", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward()),
        ("backward", |d| x(&[1], d).backward()),
        ("backward", |d| x(&[1], d).requires_grad()?.backward()),
        ("backward", |d| {
            let y = x(&[1], d).requires_grad()?.neg()?;
            y.backward()?;
            y.backward()
        }),
        ("backward_with", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward_with(&x(&[3, 2], d))),
        ("backward_with", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward_with(&ids(d))),
    ]
}

#[test]
fn every_op_refuses_other_arguments_that_make_no_sense() {
    for device in Device::for_tests() {
        for (i, (op, attempt)) in other_arguments().into_iter().enumerate() {
            let outcome = catch_unwind(AssertUnwindSafe(|| attempt(&device)));
            let refused = match &outcome {
                Ok(Err(error)) => refuses(error) || matches!(error, Error::Autograd(_)),
                _ => false,
            };
            assert!(refused, "{device}: {op}, attempt {i}: {outcome:?}");
        }
    }
}

#[test]
fn a_gradient_from_another_device_is_refused() {
    let devices = devices();
    for (device, other) in devices.iter().zip(devices.iter().cycle().skip(1)).filter(|(a, b)| !a.same(b)) {
        let x = Tensor::zeros([2, 3], DType::F32, device).unwrap().requires_grad().unwrap();
        let gradient = Tensor::zeros([2, 3], DType::F32, other).unwrap();
        let outcome = x.neg().unwrap().backward_with(&gradient);
        assert!(matches!(outcome, Err(Error::DeviceMismatch { .. })), "{device}: {outcome:?}");
    }
}

/// Methods of tensors in these sources that can fail, but for what rows of `functions!` make.
fn fallible_methods(folder: &std::path::Path, prefixes: &[&str], names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fallible_methods(&path, prefixes, names);
            continue;
        }
        let mut within = false;
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            within = line == "impl Tensor {" || within && line != "}";
            let method = prefixes.iter().find_map(|prefix| line.trim().strip_prefix(prefix));
            if let Some(method) = method.filter(|_| within) {
                let mut signature = method.to_string();
                while !signature.ends_with('{') {
                    signature += lines.next().expect("a body");
                }
                let name = signature.split('(').next().expect("a name").to_string();
                names.extend(signature.contains("-> Result").then_some(name));
            }
        }
    }
}

#[test]
fn every_method_that_can_fail_has_a_row() {
    let mut methods = BTreeSet::new();
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    fallible_methods(&sources.join("ops"), &["pub fn ", "pub(crate) fn "], &mut methods);
    fallible_methods(&sources.join("tensor"), &["pub fn "], &mut methods);
    let of_two = BINARY.iter().chain(COMPARISONS);
    let elementwise = UNARY.iter().map(|(name, _)| name).chain(of_two.map(|(name, _)| name));
    let elementwise = elementwise.chain(REDUCTIONS.iter().map(|(name, _)| name));
    methods.extend(elementwise.map(|name| name.to_string()));
    let of_table = rows().into_iter().map(|row| row.op);
    let tested: BTreeSet<&str> = of_table.chain(other_arguments().into_iter().map(|(op, _)| op)).collect();
    // These take nothing that could be wrong: only a device that fails makes them fail.
    let cannot_be_wrong = ["read_later", "to_bytes", "to_device"];
    let missing: Vec<_> = methods.iter().filter(|name| !tested.contains(&***name)).collect();
    assert_eq!(missing, cannot_be_wrong, "src/ops/boundary.rs has no row of these");
    let gone: Vec<_> = tested.iter().filter(|name| !methods.contains(**name)).collect();
    assert!(gone.is_empty(), "no method of tensors: {gone:?}");
}
