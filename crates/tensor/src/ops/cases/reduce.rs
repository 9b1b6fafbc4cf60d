//! Reductions of one dimension and of several.

use super::{Case, LARGE, Values};
use crate::ops::REDUCTIONS;
use crate::ops::inputs::{AROUND_ONE, AROUND_ZERO};
use crate::{Result, Tensor};

pub(super) fn all(cases: &mut Vec<Case>) {
    // One element; short and long rows; few and many columns; enough rows for two passes in each direction.
    let shapes: [(&[usize], usize); 14] = [
        (&[1], 0),
        (&[17], 0),
        (&[5000], 0),
        (&[1, 5000], 1),
        (&[3, 65, 129], 0),
        (&[3, 65, 129], 1),
        (&[3, 65, 129], 2),
        (&[129, 3], 1),
        (&[129, 17], 0),
        (&[3000, 65], 0),
        (&[3000, 1], 0),
        (&[2, 1500, 3], 1),
        (&[1000, 3], 0),
        (&[2, 3, 1, 5], 2),
    ];
    // Neighbours, and others between them; vectors of four in two passes; all and none; nothing that is left.
    let several: [(&[usize], &[usize]); 9] = [
        (&[3, 5, 7], &[0, 1]),
        (&[3, 5, 7], &[2, 0]),
        (&[2, 3, 4], &[0, 1, 2]),
        (&[2, 3, 2, 3, 2, 3], &[1, 3, 5]),
        (&[2, 1, 5, 1], &[1, 2, 3]),
        (&[1000, 128], &[0]),
        (&[17], &[]),
        (&[], &[]),
        (&[0, 3], &[1]),
    ];
    for &(name, op) in REDUCTIONS {
        let keeps = name.ends_with("_keepdim");
        // What a dimension is kept for does not depend on the kernel.
        let one = shapes.iter().map(|(shape, dim)| (shape.to_vec(), vec![*dim])).filter(|_| !keeps);
        let several = several.iter().map(|(shape, dims)| (shape.to_vec(), dims.to_vec()));
        for (shape, dims) in one.chain(several) {
            let n: usize = dims.iter().map(|&dim| shape[dim]).product();
            if name.starts_with("var") && n < 2 {
                continue; // NaN
            }
            let values = if name.starts_with("prod") { AROUND_ONE } else { AROUND_ZERO };
            let case = Case::new(format!("{name}/{shape:?}/{dims:?}"), vec![(shape, values)], move |x| {
                differentiable(&op(&x[0], &dims)?, &x[0])
            });
            // 5000 terms of size 2 in another order: about sqrt(5000) roundings of partial sums near 100. As factors,
            // they are relative to the product.
            let case = case.tolerance(1e-4, if name.starts_with("prod") { 2e-5 } else { 2e-6 });
            // The largest element changes while others overtake it: a kink.
            let kinks = ["max", "min", "argmax", "argmin"].iter().any(|kind| name.starts_with(kind));
            // Thousands of factors multiply to what is no polynomial of a low degree.
            let steep = name.starts_with("prod") && n > 200;
            cases.push(if kinks || steep { case.not_smooth() } else { case });
        }
    }
    special_values(cases);
}

/// Numbers that are large, far from 0, or 0.
fn special_values(cases: &mut Vec<Case>) {
    type Method = fn(&Tensor) -> Result<Tensor>;
    let large: [(&str, Method); 3] = [("max", |x| x.max(0)), ("min", |x| x.min(0)), ("logsumexp", |x| x.logsumexp(0))];
    for (name, op) in large {
        let case = Case::new(format!("{name}/large"), vec![(vec![300, 3], LARGE)], move |x| op(&x[0]));
        // Vulkan grants exp(x) an error of 3 + 2|x| units in the last place, but e^-160 is nothing beside 1.
        cases.push(case.tolerance(2e-6, 2e-5).not_smooth());
    }
    // A mean a thousand times the deviation: the difference of the squares would be all rounding.
    let far = vec![(vec![17, 65], Values::Uniform(999.0, 1001.0))];
    cases.push(Case::new("var/far from 0", far, |x| x[0].var(1, 1)).tolerance(2e-4, 1e-4).not_smooth());
    // Factors that are 0: none, one, and several of a row.
    let apply = |x: &[Tensor]| {
        let zeros = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        x[0].mul(&Tensor::from_f32(&zeros, [3, 3], &x[0].device())?)?.prod(1)
    };
    cases.push(Case::new("prod/zeros", vec![(vec![3, 3], AROUND_ONE)], apply));
}

/// Numbers of elements as f32, with a gradient of 0; anything else as it is.
fn differentiable(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    if y.dtype() != crate::DType::U32 {
        return Ok(y.clone());
    }
    let numbers: Vec<f32> = (0..x.len().max(1)).map(|i| i as f32).collect();
    let numbers = Tensor::from_f32(&numbers, [numbers.len(), 1], &x.device())?.embedding(y)?;
    numbers.reshape(y.shape().clone())?.add(&x.sum(..)?.scale(0.0)?)
}
