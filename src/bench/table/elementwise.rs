//! What reads and writes: elementwise ops, reductions, movement of data.

use super::{AROUND_THE_OP, Row, Sizes};
use crate::Tensor;
use crate::ops::inputs::{AROUND_ONE, AROUND_ZERO, POSITIVE, Values, domain};
use crate::ops::random::Key;
use crate::ops::{BINARY, COMPARISONS, REDUCTIONS, UNARY};
use crate::tensor::DType;

pub(super) fn elementwise(s: &Sizes) -> Vec<Row> {
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
pub(super) fn streams(s: &Sizes) -> Vec<Row> {
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
pub(super) fn movement(s: &Sizes) -> Vec<Row> {
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
