//! GEMMs.

use super::{Row, SEED, Sizes};
use crate::Tensor;
use crate::ops::inputs::{AROUND_ZERO, Values, draw};
use crate::tensor::{DType, no_grad};

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
            let inputs = draw(&inputs, device, SEED)?.into_iter().map(convert).collect::<Result<Vec<_>, _>>()?;
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

pub(super) fn matmul(s: &Sizes) -> Vec<Row> {
    let rows = |dtype| {
        let row = move |(layout, [m, n, k]): (usize, [usize; 3])| gemms(dtype, m, n, k).into_iter().nth(layout);
        step_gemms(s).into_iter().filter_map(row)
    };
    rows(DType::F32).chain(rows(DType::F16)).collect()
}
