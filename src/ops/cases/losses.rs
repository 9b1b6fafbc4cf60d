//! Losses: plain, with label smoothing, and with class weights.

use super::{Case, Values};
use crate::ops::Criterion;
use crate::ops::inputs::AROUND_ZERO;
use crate::{Result, Tensor};

pub(super) fn all(cases: &mut Vec<Case>) {
    plain(cases);
    weighed(cases);
}

fn plain(cases: &mut Vec<Case>) {
    // log(sum exp) of up to 4,099 terms: a handful of roundings of numbers below 20.
    for (shape, v) in [(vec![1], 1), (vec![2, 4], 3), (vec![6], 17), (vec![7, 9], 65), (vec![40], 512), (vec![3], 4099)]
    {
        let logits = ([&shape[..], &[v]].concat(), AROUND_ZERO);
        let inputs = vec![logits, (shape.clone(), Values::Targets(v as u32))];
        let case = Case::new(format!("cross_entropy/{shape:?}x{v}"), inputs, |x| {
            x[0].cross_entropy(&x[1], Criterion::default())
        });
        cases.push(case.tolerance(5e-6, 5e-6));
    }
    // The same relative error, of logits up to 3e4.
    let inputs = vec![(vec![6, 65], Values::Uniform(-3e4, 3e4)), (vec![6], Values::Targets(65))];
    let case = Case::new("cross_entropy/large", inputs, |x| x[0].cross_entropy(&x[1], Criterion::default()));
    cases.push(case.tolerance(5e-6, 5e-6).not_smooth());
    for (shape, c, v) in [(vec![6], 8, 17), (vec![1], 1, 1), (vec![3, 50], 20, 65)] {
        let inputs = vec![
            ([&shape[..], &[c]].concat(), AROUND_ZERO),
            (vec![v, c], Values::Uniform(-0.5, 0.5)),
            (shape.clone(), Values::Targets(v as u32)),
        ];
        let name = format!("linear_cross_entropy/{shape:?}x{c}x{v}");
        let case = Case::new(name, inputs, |x| x[0].linear_cross_entropy(&x[1], &x[2], Criterion::default(), None));
        cases.push(case.tolerance(5e-6, 5e-6));
    }
}

/// Label smoothing and class weights, the first of which is 0.
fn weighed(cases: &mut Vec<Case>) {
    let class_weights = |v: usize, x: &Tensor| {
        let values: Vec<f32> = (0..v).map(|i| (i % 5) as f32 / 2.0).collect();
        Tensor::from_f32(&values, [v], &x.device())
    };
    for (label_smoothing, weighted) in [(0.1, false), (0.0, true), (0.3, true)] {
        let apply = move |v: usize, x: &Tensor, loss: &dyn Fn(Criterion) -> Result<Tensor>| {
            let weights = class_weights(v, x)?;
            loss(Criterion { label_smoothing, class_weights: weighted.then_some(&weights) })
        };
        for (shape, v) in [(vec![1], 1), (vec![6], 17), (vec![7, 9], 65), (vec![40], 512), (vec![3], 4099)] {
            let inputs = vec![([&shape[..], &[v]].concat(), AROUND_ZERO), (shape.clone(), Values::Targets(v as u32))];
            let name = format!("cross_entropy/{label_smoothing}/{weighted}/{shape:?}x{v}");
            let case = Case::new(name, inputs, move |x| apply(v, &x[0], &|with| x[0].cross_entropy(&x[1], with)));
            // As of the plain loss; sums of up to 4,099 differences of up to 4, of which e / V counts.
            cases.push(case.tolerance(5e-6, 5e-6));
        }
        for (shape, c, v) in [(vec![6], 8, 17), (vec![3, 50], 20, 65), (vec![9], 4, 132)] {
            let inputs = vec![
                ([&shape[..], &[c]].concat(), AROUND_ZERO),
                (vec![v, c], Values::Uniform(-0.5, 0.5)),
                (shape.clone(), Values::Targets(v as u32)),
            ];
            let name = format!("linear_cross_entropy/{label_smoothing}/{weighted}/{shape:?}x{c}x{v}");
            let case = Case::new(name, inputs, move |x| {
                apply(v, &x[0], &|with| x[0].linear_cross_entropy(&x[1], &x[2], with, None))
            });
            cases.push(case.tolerance(5e-6, 5e-6));
        }
    }
    // Logits far from 0 and from each other: the same relative error, of up to 3e4.
    let inputs = vec![(vec![6, 65], Values::Uniform(-3e4, 3e4)), (vec![6], Values::Targets(65))];
    let smoothed = Criterion { label_smoothing: 0.1, class_weights: None };
    let case = Case::new("cross_entropy/0.1/large", inputs, move |x| x[0].cross_entropy(&x[1], smoothed));
    cases.push(case.tolerance(5e-6, 5e-6).not_smooth());
}
