//! Valid operands of each op, and the variants it accepts, by op family.

use super::*;

/// Accepted variants of an op on any shape, f32 or f16.
const ANY: &str = "0 f16, 0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1";
const DROPOUT: Option<(f32, Key)> = Some((0.5, KEY));

pub(super) fn rows() -> Vec<Row> {
    [elementwise(), shapes(), matmuls(), layers(), attention(), recurrent(), images(), losses()]
        .into_iter()
        .flatten()
        .collect()
}

fn elementwise() -> Vec<Row> {
    let one = [f32(&[2, 3])];
    let unary = UNARY.iter().map(|&(op, apply)| row(op, &one, ANY, move |x| apply(&x[0])));
    let others = [
        row("softmax", &one, ANY, |x| x[0].softmax()),
        row("log_softmax", &one, ANY, |x| x[0].log_softmax()),
        row("dropout", &one, ANY, |x| x[0].dropout(0.5, KEY)),
    ];
    let broadcast = "0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 1 rank+1, 1 rank-1, 1 scalar";
    let of_none = "0 rank+1, 0 rank-1, 0 scalar, 0 dim0+1, 0 dim1+1, 1 rank+1, 1 rank-1, 1 scalar, 1 dim0+1";
    let empty = row("add", &[f32(&[2, 0]), f32(&[0])], of_none, |x| x[0].add(&x[1]));
    let pair = [f32(&[2, 3]), f32(&[3])];
    let binary =
        BINARY.iter().chain(COMPARISONS).map(|&(op, apply)| row(op, &pair, broadcast, move |x| apply(&x[0], &x[1])));
    let halves = [f16(&[2, 3]), f16(&[3])];
    let of_halves = BINARY[..1]
        .iter()
        .chain(&COMPARISONS[..1])
        .map(|&(op, apply)| row(op, &halves, broadcast, move |x| apply(&x[0], &x[1])));
    let chosen = "0 f16, 0 rank+1, 0 rank-1, 0 scalar, 1 rank+1, 1 rank-1, 1 scalar, 2 rank+1, 2 rank-1, 2 scalar";
    let choice = row("where_cond", &[f32(&[2, 3]), f32(&[2, 3]), f32(&[3])], chosen, |x| x[0].where_cond(&x[1], &x[2]));
    let ids = [u32(&[2, 3]), u32(&[3])];
    let of_ids = COMPARISONS.iter().map(|&(op, apply)| row(op, &ids, broadcast, move |x| apply(&x[0], &x[1])));
    unary.chain(others).chain(binary).chain(of_halves).chain(of_ids).chain([empty, choice]).collect()
}

fn shapes() -> Vec<Row> {
    let x = [f32(&[2, 3])];
    let reduced = "0 f16, 0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1";
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
        row("gather", &[f32(&[2, 3]), u32(&[2, 2])], "0 f16, 0 dim0+1, 0 dim1+1, 1 dim1+1", |x| x[0].gather(1, &x[1])),
        row("index_select", &[f32(&[2, 3]), u32(&[2])], "0 f16, 0 rank+1, 0 dim0+1, 0 dim1+1, 1 dim0+1", |x| {
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
            "linear_to_f32",
            &[f16(&[2, 3, 4]), f16(&[5, 4])],
            "0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1, 1 dim0+1",
            |x| x[0].detach().linear_to_f32(&x[1], None),
        ),
        row("linear_to_f32", &[f32(&[2, 3, 4]), f32(&[5, 4]), f32(&[5])], linear, |x| {
            x[0].detach().linear_to_f32(&x[1], Some(&x[2]))
        }),
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
    let rows = "0 f16, 0 rank+1, 0 rank-1, 0 dim0+1";
    let sum = [&norm[..], &[f32(&[2, 3])]].concat();
    vec![
        row("layer_norm", &norm, rows, |x| x[0].layer_norm(&x[1], Some(&x[2]), 1e-5)),
        row("layer_norm_to", &norm, rows, |x| x[0].layer_norm_to(DType::F16, &x[1], Some(&x[2]), 1e-5)),
        row("add_layer_norm", &sum, "3 f16", |x| {
            Ok(x[0].add_layer_norm(&x[3], DROPOUT, DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        row("embedding_at", &[f32(&[5, 4]), u32(&[2, 3]), f32(&[4, 4])], "0 dim0+1, 1 dim0+1, 2 dim0+1", |x| {
            x[0].embedding_at(&x[1], &x[2], 1)
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
        row("swiglu", &[f32(&[2, 3, 6])], "0 f16, 0 rank+1, 0 rank-1, 0 dim0+1, 0 dim1+1", |x| x[0].swiglu()),
        row("rms_norm_to", &norm[..2], rows, |x| x[0].rms_norm_to(DType::F16, &x[1], 1e-5)),
        row("add_rms_norm", &[f32(&[2, 3]), f32(&[3]), f32(&[2, 3])], "2 f16", |x| {
            Ok(x[0].add_rms_norm(&x[2], DROPOUT, DType::F32, &x[1], 1e-5)?.1)
        }),
    ]
}

fn attention() -> Vec<Row> {
    let operands = [f32(&[2, 3, 4]), f32(&[2, 5, 4]), f32(&[2, 5, 7])];
    let any_width = "0 dim1+1, 2 dim2+1";
    let [repeated, mask] = ["2 dim2+1, 3 rank+1, 3 rank-1, 3 scalar", "2 dim2+1, 3 rank-1, 3 scalar"];
    let rope = [f32(&[2, 3, 16]), f32(&[3, 4]), f32(&[4]), f32(&[4])];
    vec![
        row("causal_attention", &[f32(&[2, 4, 12])], "0 f16, 0 dim0+1, 0 dim1+1", |x| {
            x[0].causal_attention(Heads::multi_head(2), None, DROPOUT)
        }),
        row("scaled_dot_product_attention", &operands, any_width, |x| {
            x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions::default())
        }),
        row("scaled_dot_product_attention", &[&operands[..], &[f32(&[3, 5])]].concat(), repeated, |x| {
            let mask = Some(AttentionMask::Additive(&x[3]));
            x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions { mask, ..AttentionOptions::default() })
        }),
        row("scaled_dot_product_attention", &[&operands[..], &[f32(&[2, 3, 5])]].concat(), mask, |x| {
            let (mask, causal) = (Some(AttentionMask::Keep(&x[3])), true);
            let options = AttentionOptions { mask, causal, dropout: DROPOUT, ..AttentionOptions::default() };
            x[0].scaled_dot_product_attention(&x[1], &x[2], options)
        }),
        row("scaled_dot_product_attention", &[f32(&[2, 3, 4]), f32(&[2, 3, 4]), f32(&[2, 3, 4])], any_width, |x| {
            let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
            x[0].scaled_dot_product_attention(&x[1], &x[2], options)
        }),
        // For inference: nothing is recorded.
        row("append_and_attend", &[f32(&[2, 2, 12]), f32(&[2, 5, 8])], "0 f16, 1 f16, 0 dim1+1, 1 dim1+1", |x| {
            no_grad(|| x[0].append_and_attend(Heads::multi_head(2), &x[1], 1))
        }),
        row(
            "append_and_attend_ragged",
            &[f32(&[2, 1, 12]), f32(&[2, 5, 8]), u32(&[2])],
            "0 f16, 1 f16, 1 dim1+1",
            |x| no_grad(|| x[0].append_and_attend_ragged(Heads::multi_head(2), &x[1], &x[2])),
        ),
        row("cached_attention", &[f32(&[2, 2, 12]), f32(&[2, 5, 8])], "0 f16, 1 f16, 0 dim1+1, 1 dim1+1", |x| {
            no_grad(|| x[0].cached_attention(Heads::multi_head(2), &x[1], 1))
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

fn images() -> Vec<Row> {
    // Of the weight the number of outputs is any that the groups divide.
    let (x, weight) = (f32(&[2, 4, 5, 6]), f32(&[6, 2, 3, 2]));
    let (sizes, sequence) = (
        "0 f16, 1 f16, 2 f16, 0 dim0+1, 0 dim2+1, 0 dim3+1, 1 dim2+1, 1 dim3+1",
        "0 f16, 1 f16, 2 f16, 0 dim0+1, 0 dim2+1, 1 dim2+1",
    );
    let (pooled, sequences) = ("0 f16, 0 dim0+1, 0 dim1+1, 0 dim2+1, 0 dim3+1", "0 f16, 0 dim0+1, 0 dim1+1, 0 dim2+1");
    let norm = [f32(&[2, 4, 3]), f32(&[4]), f32(&[4]), f32(&[4]), f32(&[4])];
    let rows = "0 f16, 0 dim0+1, 0 dim2+1";
    fn running(x: &[Tensor]) -> [&Tensor; 2] {
        [&x[3], &x[4]]
    }
    let outputs = "0 f16, 1 f16, 2 f16, 0 dim0+1, 0 dim2+1, 0 dim3+1, 1 dim2+1, 1 dim3+1";
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
    let log_probs = |x: &[Tensor]| x[0].linear_log_probs(&x[1], None, &x[2], Some(&x[3]));
    fn weighed_by(weights: &Tensor) -> Criterion<'_> {
        Criterion { label_smoothing: 0.1, class_weights: Some(weights) }
    }
    let weighted = [&of(DType::F32)[..3], &[f32(&[5])]].concat();
    let biased = weighted.clone();
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
        row("linear_cross_entropy_with_bias", &biased, "0 rank+1, 2 rank+1", |x| {
            x[0].linear_cross_entropy_with_bias(&x[1], Some(&x[3]), &x[2], Criterion::default(), None)
        }),
        row("linear_cross_entropy", &of(DType::F32), chunked, loss),
        row("linear_cross_entropy", &of(DType::F16), chunked, loss),
        row("linear_log_probs", &of(DType::F32), chunked, log_probs),
        row("linear_log_probs", &of(DType::F16), chunked, log_probs),
        row("linear_log_probs", &weighted, "0 rank+1, 2 rank+1", |x| {
            x[0].linear_log_probs(&x[1], Some(&x[3]), &x[2], None)
        }),
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
