//! Batch and group norms: planes of one element and of many, whole vectors or not, few and many sets.

use super::Case;
use crate::Result;
use crate::ops::inputs::{AROUND_ZERO, POSITIVE, Values, draw};
use crate::tensor::Tensor;

/// Running statistics that are no inputs: they get no gradient.
fn running(x: &Tensor) -> Result<[Tensor; 2]> {
    let channels = x.shape()[1];
    let drawn = draw(&[(vec![channels], AROUND_ZERO), (vec![channels], POSITIVE)], &x.device(), 7)?;
    Ok([drawn[0].clone(), drawn[1].clone()])
}

pub(super) fn all(cases: &mut Vec<Case>) {
    let shapes =
        [vec![2, 1], vec![17, 3], vec![300, 65], vec![2, 6, 5], vec![3, 4, 4, 9], vec![2, 6, 33, 31], vec![1, 2, 1300]];
    for shape in shapes {
        let channels = shape[1];
        let inputs = [shape.clone(), vec![channels], vec![channels]].map(|shape| (shape, AROUND_ZERO)).to_vec();
        // With two elements of a channel n is 1 and -1 wherever they are, and what is left of dx is rounding.
        let steep = shape.iter().product::<usize>() == 2 * channels;
        for momentum in [Some(0.1), None] {
            let apply = move |x: &[Tensor]| {
                let [mean, variance] = running(&x[0])?;
                x[0].batch_norm([&mean, &variance], &x[1], &x[2], momentum, 1e-5)
            };
            let case = Case::new(format!("batch_norm/{momentum:?}/{shape:?}"), inputs.clone(), apply);
            // Sums of up to 2000 terms around 1.
            let case = case.tolerance(1e-4, 1e-5);
            cases.push(if steep { case.not_smooth() } else { case });
        }
        for groups in [1, 2, channels].into_iter().filter(|groups| channels % groups == 0) {
            if shape.len() == 2 && groups == channels {
                continue; // Sets of one element.
            }
            let apply = move |x: &[Tensor]| x[0].group_norm(groups, &x[1], &x[2], 1e-5);
            let case = Case::new(format!("group_norm/{groups}/{shape:?}"), inputs.clone(), apply);
            cases.push(case.tolerance(1e-4, 1e-5));
        }
    }
    // Running statistics that the batch has changed. Of x they are a function without a gradient, as in PyTorch.
    let inputs = vec![(vec![5, 3, 7], Values::Uniform(1.0, 4.0))];
    let case = Case::new("batch_norm/running", inputs, |x| {
        let [mean, variance] = running(&x[0])?;
        let [weight, bias] = running(&x[0])?;
        let y = x[0].batch_norm([&mean, &variance], &weight, &bias, Some(0.3), 1e-5)?;
        y.permute(&[0, 2, 1])?.add(&mean)?.add(&variance)
    });
    cases.push(case.tolerance(1e-4, 1e-5).not_smooth());
}
