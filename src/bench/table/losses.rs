//! Losses, of logits and of the layer before them.

use super::{Row, Sizes};
use crate::Tensor;
use crate::ops::inputs::{AROUND_ZERO, POSITIVE, Values};
use crate::ops::{Criterion, LOSSES, Reduction};

pub(super) fn losses(s: &Sizes) -> Vec<Row> {
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
pub(super) fn further_losses(s: &Sizes) -> Vec<Row> {
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
