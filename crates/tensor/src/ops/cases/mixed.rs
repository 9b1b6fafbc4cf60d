//! The ops of mixed precision: operands and most results are f16, and differ by a unit in the last of its 11 bits where
//! devices add up in another order.

use super::{Apply, Case, Values, scales};
use crate::ops::inputs::{AROUND_ZERO, POSITIVE, domain, draw};
use crate::ops::random::Key;
use crate::ops::{BINARY, Criterion, Heads, UNARY};
use crate::{DType, Result, Tensor};

pub(super) fn all(cases: &mut Vec<Case>) {
    matmul(cases);
    feed_forward(cases);
    low_rank(cases);
    unary(cases);
    binary(cases);
    layer_norm(cases);
    attention(cases);
    grouped_attention(cases);
    rope_and_swiglu(cases);
    losses(cases);
}

/// A case whose `apply` makes f16 of what is drawn as f32.
fn case(name: String, inputs: Vec<(Vec<usize>, Values)>, atol: f32, apply: Apply) -> Case {
    Case { name, inputs, apply, atol, rtol: 2e-3, smooth: false, f16: true }
}

fn half(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F16)
}

fn single(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)
}

fn matmul(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    // The last sizes are those of several tiles on the cooperative matrices, whole and not.
    let sizes = [[3, 5, 7], [65, 17, 33], [20, 24, 516], [256, 128, 64], [260, 132, 140], [136, 392, 2048]];
    for [m, n, k] in sizes {
        let spread = Values::Uniform(-1.0 / (k as f32).sqrt(), 1.0 / (k as f32).sqrt());
        let operands = vec![(vec![m, k], AROUND_ZERO), (vec![k, n], spread), (vec![n], AROUND_ZERO)];
        push(
            format!("matmul/f16/linear/{m}x{n}x{k}"),
            operands.clone(),
            4e-3,
            Box::new(|x| single(&half(&x[0])?.linear(&half(&x[1])?, false, Some(&x[2]))?)),
        );
        push(
            format!("matmul/f16/no bias/{m}x{n}x{k}"),
            operands[..2].to_vec(),
            4e-3,
            Box::new(|x| single(&half(&x[0])?.linear(&half(&x[1])?, false, None)?)),
        );
        push(
            format!("matmul/f16/nt/{m}x{n}x{k}"),
            vec![(vec![m, k], AROUND_ZERO), (vec![n, k], spread)],
            4e-3,
            Box::new(|x| single(&half(&x[0])?.matmul_transposed(&half(&x[1])?, false, true)?)),
        );
    }
}

fn feed_forward(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    for (shape, c, f, d) in [(vec![2, 33], 12, 20, 12), (vec![130], 128, 260, 132)] {
        let inputs = [[&shape[..], &[c]].concat(), vec![c, f], vec![f, d], vec![f], vec![d]];
        let inputs = inputs.map(|shape| (shape, Values::Uniform(-0.3, 0.3))).to_vec();
        push(
            format!("feed_forward/f16/{shape:?}x{c}x{f}x{d}"),
            inputs,
            4e-3,
            Box::new(|x| single(&half(&x[0])?.feed_forward(&half(&x[1])?, &half(&x[2])?, Some((&x[3], &x[4])))?)),
        );
    }
}

fn low_rank(cases: &mut Vec<Case>) {
    // y, x, a, b and the scales: of one matrix, and of two with a gap between them.
    for (rows, c, rank, outputs) in [(33, 17, 3, vec![(0, 20)]), (130, 128, 8, vec![(0, 64), (96, 132)])] {
        let (of_b, scales) = scales(rank, &outputs);
        let [n, columns] = of_b;
        let inputs = [vec![rows, n], vec![rows, c], vec![columns, c], vec![n, columns]];
        let inputs = inputs.map(|shape| (shape, Values::Uniform(-0.3, 0.3))).to_vec();
        let apply: Apply = Box::new(move |x| {
            let scales = Tensor::from_f32(&scales, of_b, &x[0].device())?;
            single(&half(&x[0])?.add_low_rank(&half(&x[1])?, &half(&x[2])?, &x[3], &scales)?)
        });
        cases.push(case(format!("add_low_rank/f16/{rows}x{c}x{rank}x{n}"), inputs, 4e-3, apply));
    }
}

fn unary(cases: &mut Vec<Case>) {
    for &(name, op) in UNARY {
        let apply: Apply = Box::new(move |x| single(&op(&half(&x[0])?)?));
        cases.push(case(format!("{name}/f16"), vec![(vec![17], domain(name))], 2e-3, apply));
    }
    let apply: Apply = Box::new(|x| single(&half(&x[0])?.gelu()?));
    cases.push(case("gelu/f16/33x128".into(), vec![(vec![33, 128], AROUND_ZERO)], 2e-3, apply));
}

/// Of operands in vectors, and of one function not in vectors and walked by strides; comparisons, and what they choose.
fn binary(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, apply| cases.push(case(name, inputs, 4e-3, apply));
    for (a, b) in [(vec![3, 64], vec![64]), (vec![3, 65], vec![65]), (vec![3, 1], vec![2, 1, 4])] {
        for &(name, apply) in BINARY.iter().filter(|(name, _)| b == [64] || *name == "mul") {
            let inputs =
                vec![(a.clone(), domain(name)), (b.clone(), if name == "div" { POSITIVE } else { AROUND_ZERO })];
            let apply: Apply = Box::new(move |x| single(&apply(&half(&x[0])?, &half(&x[1])?)?));
            push(format!("{name}/f16/{a:?}/{b:?}"), inputs, apply);
        }
    }
    let inputs = vec![(vec![3, 1], AROUND_ZERO), (vec![2, 1, 4], AROUND_ZERO)];
    let choice: Apply = Box::new(|x| {
        let [a, b] = [half(&x[0])?, half(&x[1])?];
        single(&a.lt(&b)?.where_cond(&a, &b)?)
    });
    push("where_cond/f16".into(), inputs, choice);
    for (rows, n) in [(5, 17), (3, 300)] {
        let inputs = || vec![(vec![rows, n], AROUND_ZERO)];
        push(format!("softmax/f16/{rows}x{n}"), inputs(), Box::new(|x| single(&half(&x[0])?.softmax()?)));
        push(format!("log_softmax/f16/{rows}x{n}"), inputs(), Box::new(|x| single(&half(&x[0])?.log_softmax()?)));
    }
}

fn layer_norm(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    let dropout = Some((0.3, Key::new(5)));
    for (rows, c, dropout) in
        [(65, 17, None), (33, 128, None), (17, 2051, None), (65, 17, dropout), (33, 128, dropout), (19, 1028, dropout)]
    {
        let inputs = [vec![rows, c], vec![c], vec![c], vec![rows, c]].map(|shape| (shape, AROUND_ZERO)).to_vec();
        let name = |of: &str| format!("{of}/{}{rows}x{c}", if dropout.is_some() { "dropout/" } else { "" });
        let both = move |x: &[Tensor], branch: &Tensor| {
            let (sum, normal) = x[0].add_layer_norm(branch, dropout, DType::F16, &x[1], Some(&x[2]), 1e-5)?;
            single(&normal)?.mul(&sum)
        };
        push(name("layer_norm/f16"), inputs.clone(), 4e-3, Box::new(move |x| both(x, &x[3])));
        // The branch of f16 too, with gradients of both results and of either.
        push(name("add_layer_norm/f16"), inputs.clone(), 4e-3, Box::new(move |x| both(x, &half(&x[3])?)));
        let either = move |x: &[Tensor]| x[0].add_layer_norm(&half(&x[2])?, dropout, DType::F32, &x[1], None, 1e-5);
        let inputs = [&inputs[..2], &inputs[3..]].concat();
        push(name("add_layer_norm/f16 branch"), inputs.clone(), 4e-3, Box::new(move |x| Ok(either(x)?.1)));
        push(name("add_layer_norm/f16 branch/sum"), inputs, 4e-3, Box::new(move |x| Ok(either(x)?.0)));
    }
}

fn attention(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    // The fourth is longer than the query block that backward holds.
    let sizes = [
        (2, 33, 2, 3),
        (1, 130, 2, 16),
        (2, 256, 1, 64),
        (1, 300, 1, 16),
        (1, 270, 1, 64),
        (1, 384, 1, 64),
        (2, 200, 1, 64),
        (1, 70, 2, 80),
        (1, 65, 1, 128),
        (3, 1, 2, 16),
        (2, 15, 1, 16),
        (1, 64, 2, 16),
    ];
    for (batch, time, n_head, head_size) in sizes {
        push(
            format!("attention/f16/{batch}x{time}x{n_head}x{head_size}"),
            vec![(vec![batch, time, 3 * n_head * head_size], AROUND_ZERO)],
            6e-3,
            Box::new(move |x| single(&half(&x[0])?.causal_attention(Heads::multi_head(n_head), None, None)?)),
        );
    }
    for (time, head_size) in [(97, 32), (64, 8), (70, 80), (270, 32), (384, 64)] {
        push(
            format!("attention/f16/dropout/{time}x{head_size}"),
            vec![(vec![2, time, 6 * head_size], AROUND_ZERO)],
            6e-3,
            Box::new(move |x| {
                single(&half(&x[0])?.causal_attention(Heads::multi_head(2), None, Some((0.25, Key::new(3))))?)
            }),
        );
    }
    // Scores that go far beyond those of the tiles before. All that matters of a row is a few keys.
    for time in [200, 270] {
        push(
            format!("attention/f16/large scores/{time}"),
            vec![(vec![2, time, 3 * 2 * 16], Values::Uniform(-6.0, 6.0))],
            2e-2,
            Box::new(|x| single(&half(&x[0])?.causal_attention(Heads::multi_head(2), None, None)?)),
        );
    }
}

fn grouped_attention(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    // Groups of queries, bands within a tile and beyond one, documents that begin at tokens 3 and 150.
    for (n_head, n_kv_head, window, documents, time, head_size) in [
        (4, 2, None, false, 97, 16),
        (6, 1, None, false, 270, 16),
        (2, 2, Some(9), false, 130, 64),
        (4, 2, Some(150), false, 270, 16),
        (4, 2, None, true, 270, 32),
        (2, 1, Some(40), true, 200, 8),
    ] {
        let heads = Heads { n_head, n_kv_head, window };
        push(
            format!("attention/f16/{n_head}:{n_kv_head}/{window:?}/{documents}/{time}x{head_size}"),
            vec![(vec![2, time, (n_head + 2 * n_kv_head) * head_size], AROUND_ZERO)],
            6e-3,
            Box::new(move |x| {
                let starts = (0..2 * time as u32).map(|i| match i % time as u32 {
                    0..3 => 0,
                    3..150 => 3,
                    _ => 150,
                });
                let starts = Tensor::from_u32(&starts.collect::<Vec<_>>(), [2, time], &x[0].device())?;
                let dropout = Some((0.25, Key::new(3)));
                single(&half(&x[0])?.causal_attention(heads, documents.then_some(&starts), dropout)?)
            }),
        );
    }
}

fn rope_and_swiglu(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    for (head_size, norm) in [(16, false), (16, true), (6, true)] {
        let heads = Heads { n_head: 4, n_kv_head: 2, window: None };
        let weight = || (vec![head_size], AROUND_ZERO);
        push(
            format!("rope/f16/{norm}/{head_size}"),
            vec![(vec![2, 19, 8 * head_size], AROUND_ZERO), weight(), weight()][..if norm { 3 } else { 1 }].to_vec(),
            6e-3,
            Box::new(move |x| {
                let table = draw(&[(vec![19, head_size], AROUND_ZERO)], &x[0].device(), 7)?.remove(0);
                single(&half(&x[0])?.rope(heads, &table, norm.then(|| (1e-6, [&x[1], &x[2]])))?)
            }),
        );
    }
    for width in [10, 64] {
        push(
            format!("swiglu/f16/{width}"),
            vec![(vec![3, 5, width], AROUND_ZERO)],
            3e-3,
            Box::new(|x| single(&half(&x[0])?.swiglu()?)),
        );
    }
}

fn losses(cases: &mut Vec<Case>) {
    let mut push = |name, inputs, atol, apply| cases.push(case(name, inputs, atol, apply));
    for (rows, c, vocab) in [(65, 12, 37), (300, 64, 132)] {
        let spread = Values::Uniform(-1.0 / (c as f32).sqrt(), 1.0 / (c as f32).sqrt());
        push(
            format!("linear_cross_entropy/f16/{rows}x{c}x{vocab}"),
            vec![(vec![rows, c], AROUND_ZERO), (vec![vocab, c], spread), (vec![rows], Values::Targets(vocab as u32))],
            4e-3,
            Box::new(|x| {
                let scale = Tensor::full(1024.0, [1], &x[0].device())?;
                half(&x[0])?.linear_cross_entropy(&half(&x[1])?, &x[2], Criterion::default(), Some(&scale))
            }),
        );
        push(
            format!("linear_log_probs/f16/{rows}x{c}x{vocab}"),
            vec![(vec![rows, c], AROUND_ZERO), (vec![vocab, c], spread), (vec![rows], Values::Targets(vocab as u32))],
            4e-3,
            Box::new(|x| {
                // Of a scale the first number counts.
                let scale = Tensor::from_f32(&[16.0, 3.0, 5.0], [3], &x[0].device())?;
                half(&x[0])?.linear_log_probs(&half(&x[1])?, None, &x[2], Some(&scale))
            }),
        );
        push(
            format!("linear_cross_entropy/f16/bias/{rows}x{c}x{vocab}"),
            vec![
                (vec![rows, c], AROUND_ZERO),
                (vec![vocab, c], spread),
                (vec![rows], Values::Targets(vocab as u32)),
                (vec![vocab], AROUND_ZERO),
            ],
            4e-3,
            Box::new(|x| {
                let (h, weight, bias) = (half(&x[0])?, half(&x[1])?, Some(&x[3]));
                let scale = Tensor::full(1024.0, [1], &x[0].device())?;
                h.linear_cross_entropy_with_bias(&weight, bias, &x[2], Criterion::default(), Some(&scale))
            }),
        );
        push(
            format!("linear_cross_entropy/f16/weighed/{rows}x{c}x{vocab}"),
            vec![(vec![rows, c], AROUND_ZERO), (vec![vocab, c], spread), (vec![rows], Values::Targets(vocab as u32))],
            4e-3,
            Box::new(move |x| {
                let weights: Vec<f32> = (0..vocab).map(|i| (i % 5) as f32 / 2.0).collect();
                let weights = Tensor::from_f32(&weights, [vocab], &x[0].device())?;
                let criterion = Criterion { label_smoothing: 0.3, class_weights: Some(&weights) };
                let scale = Tensor::full(1024.0, [1], &x[0].device())?;
                half(&x[0])?.linear_cross_entropy(&half(&x[1])?, &x[2], criterion, Some(&scale))
            }),
        );
    }
}
