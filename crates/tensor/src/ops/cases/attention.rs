//! Attention: causal of packed queries, keys and values, and of tensors apart with masks.

use super::{Case, LARGE, Values};
use crate::ops::inputs::AROUND_ZERO;
use crate::ops::random::Key;
use crate::ops::{AttentionMask, AttentionOptions, Heads};
use crate::{DType, Result, Tensor};

pub(super) fn all(cases: &mut Vec<Case>) {
    packed(cases);
    apart(cases);
}

fn packed(cases: &mut Vec<Case>) {
    // Sums of up to 128 products and of up to 129 keys, in an order of each device's own; exp on top.
    let (atol, rtol) = (5e-6, 1e-5);
    let sizes = [
        ([2, 1], 1, 1),
        ([1, 3], 2, 3),
        ([2, 17], 3, 8),
        ([1, 65], 2, 17),
        ([1, 129], 1, 32),
        ([1, 66], 2, 64),
        ([1, 40], 1, 80),
        ([1, 129], 1, 128),
    ];
    for ([b, t], n_head, head_size) in sizes {
        let name = format!("attention/{b}x{t}/{n_head}x{head_size}");
        let qkv = (vec![b, t, 3 * n_head * head_size], AROUND_ZERO);
        let case = Case::new(name, vec![qkv], move |x| x[0].causal_attention(Heads::multi_head(n_head), None, None));
        cases.push(case.tolerance(atol, rtol));
    }
    for (t, head_size) in [(33, 8), (130, 5)] {
        let qkv = (vec![2, t, 6 * head_size], AROUND_ZERO);
        let dropout = Some((0.25, Key::new(3)));
        let case = Case::new(format!("attention/dropout/{t}x{head_size}"), vec![qkv], move |x| {
            x[0].causal_attention(Heads::multi_head(2), None, dropout)
        });
        cases.push(case.tolerance(atol, rtol));
    }
    // Groups of queries, a window, and documents that begin at tokens 3 and 40.
    for (n_head, n_kv_head, window, documents) in
        [(4, 2, None, false), (6, 1, None, false), (2, 2, Some(33), false), (4, 2, None, true), (2, 1, Some(7), true)]
    {
        let heads = Heads { n_head, n_kv_head, window };
        for head_size in if documents { 5..6 } else { 8..9 } {
            let qkv = (vec![2, 70, (n_head + 2 * n_kv_head) * head_size], AROUND_ZERO);
            let name = format!("attention/{n_head}:{n_kv_head}/{window:?}/{documents}/{head_size}");
            let case = Case::new(name, vec![qkv], move |x| {
                let starts = (0..140).map(|i| [0, 3, 40][[3, 40].iter().filter(|start| i % 70 >= **start).count()]);
                let starts = Tensor::from_u32(&starts.collect::<Vec<_>>(), [2, 70], &x[0].device())?;
                x[0].causal_attention(heads, documents.then_some(&starts), Some((0.25, Key::new(3))))
            });
            cases.push(case.tolerance(atol, rtol));
        }
    }
    // Scores around 10,000, where one unit in the last place is 1e-3: so much of itself may a probability be off that
    // is neither 0 nor 1. Few are, so outputs of up to 80 and gradients of up to 250 show a part of that.
    let qkv = (vec![1, 65, 3 * 2 * 8], LARGE);
    let case = Case::new("attention/large", vec![qkv], |x| x[0].causal_attention(Heads::multi_head(2), None, None));
    cases.push(case.tolerance(2e-2, 1e-3).not_smooth());
}

fn attend(x: &[Tensor], options: AttentionOptions) -> Result<Tensor> {
    x[0].scaled_dot_product_attention(&x[1], &x[2], options)
}

/// Queries (..., Tq, D), keys (..., Tk, D), values (..., Tk, E), and a mask of some shape.
fn apart(cases: &mut Vec<Case>) {
    // As of the packed: sums of up to 129 products, in an order of each device's own; exp on top.
    let (atol, rtol) = (5e-6, 1e-5);
    let qkv = |leading: &[usize], [tq, tk, d, e]: [usize; 4]| {
        [[tq, d], [tk, d], [tk, e]].map(|last| ([leading, &last[..]].concat(), AROUND_ZERO)).to_vec()
    };
    for (leading, sizes) in [
        (vec![], [1, 1, 1, 1]),
        (vec![2], [3, 5, 4, 7]),
        (vec![2, 3], [7, 129, 17, 17]),
        (vec![2, 1, 2], [65, 65, 8, 8]),
        (vec![1], [9, 4, 130, 130]),
        (vec![2], [130, 1100, 4, 4]),
    ] {
        let [tq, tk, ..] = sizes;
        for causal in [false, true] {
            let options = AttentionOptions { causal, scale: Some(0.7), ..AttentionOptions::default() };
            let name = format!("scaled_dot_product_attention/{leading:?}{sizes:?}/{causal}");
            let case = Case::new(name, qkv(&leading, sizes), move |x| attend(x, options));
            cases.push(case.tolerance(atol, rtol));
        }
        // Of all queries and keys, of keys, of queries, of each head or text, and of everything.
        let of_leading = [&leading[..], &[tq, tk]].concat();
        let first = leading.iter().map(|_| 1).chain([tq, 1]).collect();
        for mask in [of_leading, vec![tq, tk], vec![tk], first, vec![]] {
            let name = format!("scaled_dot_product_attention/{leading:?}{sizes:?}/added {mask:?}");
            let inputs = [qkv(&leading, sizes), vec![(mask.clone(), AROUND_ZERO)]].concat();
            let case = Case::new(name, inputs, move |x| {
                let mask = Some(AttentionMask::Additive(&x[3]));
                attend(&x[..3], AttentionOptions { mask, ..AttentionOptions::default() })
            });
            // The gradient of a mask that is repeated sums up to a few thousand terms.
            cases.push(case.tolerance(2e-5, rtol));
            // Some keys are hidden, and of some queries all.
            let name = format!("scaled_dot_product_attention/{leading:?}{sizes:?}/kept {mask:?}");
            let inputs = [qkv(&leading, sizes), vec![(mask, Values::Ids(2))]].concat();
            let case = Case::new(name, inputs, move |x| {
                let kept = x[3].ne(&Tensor::zeros([], DType::U32, &x[0].device())?)?;
                let mask = Some(AttentionMask::Keep(&kept));
                attend(&x[..3], AttentionOptions { mask, causal: true, ..AttentionOptions::default() })
            });
            cases.push(case.tolerance(atol, rtol));
        }
    }
    for causal in [false, true] {
        let dropout = Some((0.25, Key::new(3)));
        let options = AttentionOptions { causal, dropout, ..AttentionOptions::default() };
        let name = format!("scaled_dot_product_attention/dropout/{causal}");
        let case = Case::new(name, qkv(&[2, 3], [33, 33, 8, 8]), move |x| attend(x, options));
        cases.push(case.tolerance(atol, rtol));
    }
    // Scores of up to a hundred thousand: as of the packed.
    let inputs = qkv(&[1], [9, 33, 17, 17]).into_iter().map(|(shape, _)| (shape, LARGE)).collect();
    let case = Case::new("scaled_dot_product_attention/large", inputs, move |x| {
        attend(x, AttentionOptions { causal: true, ..AttentionOptions::default() })
    });
    cases.push(case.tolerance(2e-2, 1e-3).not_smooth());
}
