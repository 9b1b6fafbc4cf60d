//! Losses: of classes, plain, with label smoothing, and with class weights; and of two tensors.

use super::{Case, LARGE, Values};
use crate::ops::inputs::{AROUND_ZERO, POSITIVE};
use crate::ops::{Criterion, LOSSES, Reduction};
use crate::{Result, Tensor};
use std::collections::BTreeSet;

pub(super) fn all(cases: &mut Vec<Case>) {
    plain(cases);
    log_probs(cases);
    weighed(cases);
    rows_of_classes(cases);
    pairs(cases);
    cosine(cases);
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
        let case =
            Case::new(name, inputs.clone(), |x| x[0].linear_cross_entropy(&x[1], &x[2], Criterion::default(), None));
        cases.push(case.tolerance(5e-6, 5e-6));
        let inputs = [inputs, vec![(vec![v], AROUND_ZERO)]].concat();
        let case = Case::new(format!("linear_cross_entropy/bias/{shape:?}x{c}x{v}"), inputs, |x| {
            x[0].linear_cross_entropy_with_bias(&x[1], Some(&x[3]), &x[2], Criterion::default(), None)
        });
        cases.push(case.tolerance(5e-6, 5e-6));
    }
}

/// Each with a row whose target is ignored.
fn log_probs(cases: &mut Vec<Case>) {
    for (shape, c, v) in [(vec![6], 8, 17), (vec![1], 1, 1), (vec![3, 50], 20, 65), (vec![9], 4, 132)] {
        let inputs = vec![
            ([&shape[..], &[c]].concat(), AROUND_ZERO),
            (vec![v, c], Values::Uniform(-0.5, 0.5)),
            (shape.clone(), Values::Targets(v as u32)),
        ];
        let name = format!("linear_log_probs/{shape:?}x{c}x{v}");
        let case = Case::new(name, inputs.clone(), |x| x[0].linear_log_probs(&x[1], None, &x[2], None));
        cases.push(case.tolerance(5e-6, 5e-6));
        let inputs = [inputs, vec![(vec![v], AROUND_ZERO)]].concat();
        let name = format!("linear_log_probs/bias/{shape:?}x{c}x{v}");
        let case = Case::new(name, inputs, |x| x[0].linear_log_probs(&x[1], Some(&x[3]), &x[2], None));
        cases.push(case.tolerance(5e-6, 5e-6));
    }
}

/// Weights, which have no gradient, on the device of x: the first is 0.
fn weights_of(shape: &[usize], x: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i % 5) as f32 / 2.0).collect();
    Tensor::from_f32(&values, shape, &x.device())
}

/// Label smoothing and class weights.
fn weighed(cases: &mut Vec<Case>) {
    for (label_smoothing, weighted) in [(0.1, false), (0.0, true), (0.3, true)] {
        let apply = move |v: usize, x: &Tensor, loss: &dyn Fn(Criterion) -> Result<Tensor>| {
            let weights = weights_of(&[v], x)?;
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

const REDUCTIONS: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::None];

/// The losses of rows, and their sum; of log-probabilities, and of logits.
fn rows_of_classes(cases: &mut Vec<Case>) {
    for (shape, v) in [(vec![1], 1), (vec![6], 17), (vec![7, 9], 65), (vec![3], 4099)] {
        for (label_smoothing, weighted) in [(0.0, false), (0.1, false), (0.0, true), (0.3, true)] {
            for by in REDUCTIONS {
                let inputs =
                    vec![([&shape[..], &[v]].concat(), AROUND_ZERO), (shape.clone(), Values::Targets(v as u32))];
                let name = format!("{label_smoothing}/{weighted}/{by:?}/{shape:?}x{v}");
                let weights = move |x: &Tensor| weighted.then(|| weights_of(&[v], x)).transpose();
                let case = Case::new(format!("cross_entropy_loss/{name}"), inputs.clone(), move |x| {
                    let weights = weights(&x[0])?;
                    let criterion = Criterion { label_smoothing, class_weights: weights.as_ref() };
                    x[0].cross_entropy_loss(&x[1], criterion, by)
                });
                // As of their mean; the sum has up to 63 of them.
                cases.push(case.tolerance(2e-5, 5e-6));
                if label_smoothing == 0.0 {
                    let case = Case::new(format!("nll_loss/{name}"), inputs, move |x| {
                        x[0].nll_loss(&x[1], weights(&x[0])?.as_ref(), by)
                    });
                    cases.push(case.tolerance(2e-5, 2e-6));
                }
            }
        }
    }
}

/// Losses of each element of two tensors.
fn pairs(cases: &mut Vec<Case>) {
    let weighted = |x: &[Tensor], weights: &[usize], by| {
        x[0].binary_cross_entropy_with_logits(&x[1], Some(&weights_of(weights, &x[0])?), by)
    };
    for shape in [vec![], vec![17], vec![3, 65], vec![0, 3], vec![2, 3, 700]] {
        for by in REDUCTIONS {
            if by == Reduction::Mean && shape.contains(&0) {
                continue; // NaN, which no tolerance allows: a test of its own.
            }
            for (number, &(name, op)) in LOSSES.iter().enumerate() {
                let inputs = vec![(shape.clone(), AROUND_ZERO), (shape.clone(), POSITIVE)];
                let case =
                    Case::new(format!("{name}/{number}/{by:?}/{shape:?}"), inputs, move |x| op(&x[0], &x[1], by));
                // Sums of up to 4200 numbers around 1, e^3 at most.
                let case = case.tolerance(2e-5, 1e-5);
                cases.push(if matches!(name, "l1_loss" | "huber_loss" | "smooth_l1_loss") {
                    case.not_smooth()
                } else {
                    case
                });
            }
            // Weights of all elements, of the last dimension, and of the others.
            let last = shape.last().copied().into_iter().collect();
            let others = shape.split_last().map_or(vec![], |(_, others)| [others, &[1]].concat());
            for weights in BTreeSet::from([shape.clone(), last, others]) {
                let name = format!("binary_cross_entropy_with_logits/{weights:?}/{by:?}/{shape:?}");
                let inputs = vec![(shape.clone(), AROUND_ZERO); 2];
                let case = Case::new(name, inputs, move |x| weighted(x, &weights, by));
                cases.push(case.tolerance(2e-5, 1e-5));
            }
        }
    }
    // Nothing overflows. A product of up to 80 rounds by 4e-6, unless it is fused with the sum.
    let inputs = vec![(vec![65], LARGE), (vec![65], Values::Uniform(0.0, 1.0))];
    let plain = |x: &[Tensor]| x[0].binary_cross_entropy_with_logits(&x[1], None, Reduction::None);
    let case = Case::new("binary_cross_entropy_with_logits/large", inputs.clone(), plain);
    cases.push(case.tolerance(2e-5, 2e-5).not_smooth());
    let weighted = move |x: &[Tensor]| weighted(x, &[65], Reduction::None);
    let case = Case::new("binary_cross_entropy_with_logits/weighted/large", inputs, weighted);
    cases.push(case.tolerance(2e-5, 2e-5).not_smooth());
}

fn cosine(cases: &mut Vec<Case>) {
    for (shape, c) in [(vec![], 3), (vec![4], 1), (vec![3, 2], 65), (vec![129], 17)] {
        for by in REDUCTIONS {
            let inputs = vec![([&shape[..], &[c]].concat(), AROUND_ZERO); 2];
            let name = format!("cosine_embedding_loss/{by:?}/{shape:?}x{c}");
            // All cosines are above the margin, where the loss has a kink. Some pairs should point apart.
            let shape = shape.clone();
            let case = Case::new(name, inputs, move |x| {
                let target: Vec<f32> = (0..shape.iter().product()).map(|i| [1.0, -1.0, 0.0][i % 3]).collect();
                let target = Tensor::from_f32(&target, shape.clone(), &x[0].device())?;
                x[0].cosine_embedding_loss(&x[1], &target, -2.0, by)
            });
            // Of numbers the cosine is 1 or -1.
            let case = case.tolerance(2e-5, 1e-5);
            cases.push(if c == 1 { case.not_smooth() } else { case });
        }
    }
}
