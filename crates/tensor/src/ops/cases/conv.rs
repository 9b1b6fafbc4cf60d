//! Convolutions: odd sizes, kernels of one element and as large as the image, every option by itself and together, all
//! kinds of tiles, whole and partial; one to four channels, which have a shader of their own, and more; groups of one
//! channel.

use super::{Case, Values};
use crate::ops::ConvOptions;
use crate::ops::inputs::AROUND_ZERO;

type Pair = [usize; 2];

const fn options(stride: Pair, padding: Pair, dilation: Pair, groups: usize) -> ConvOptions {
    ConvOptions { stride, padding, dilation, groups }
}

const PLAIN: ConvOptions = options([1; 2], [0; 2], [1; 2], 1);
const PADDED: ConvOptions = options([1; 2], [1; 2], [1; 2], 1);
const STRIDED: ConvOptions = options([2; 2], [1; 2], [1; 2], 1);

/// x, the weight, and a bias of the channels of the result.
fn inputs(x: &[usize], weight: &[usize], outputs: usize, bias: bool) -> Vec<(Vec<usize>, Values)> {
    let small = Values::Uniform(-0.5, 0.5);
    let bias = bias.then_some((vec![outputs], AROUND_ZERO));
    [(x.to_vec(), AROUND_ZERO), (weight.to_vec(), small)].into_iter().chain(bias).collect()
}

pub(super) fn all(cases: &mut Vec<Case>) {
    let sizes: [([usize; 4], [usize; 4], ConvOptions); 18] = [
        ([1, 1, 1, 1], [1, 1, 1, 1], PLAIN),
        ([2, 3, 5, 7], [4, 3, 1, 1], PLAIN),
        ([2, 3, 7, 5], [5, 3, 3, 2], PLAIN),
        ([1, 2, 4, 6], [3, 2, 4, 6], PLAIN),
        ([2, 3, 9, 8], [33, 3, 3, 3], PADDED),
        ([3, 17, 8, 8], [65, 17, 3, 3], PADDED),
        // The gradient of the weight in several parts, added up afterwards.
        ([2, 3, 33, 31], [36, 3, 7, 7], options([2; 2], [3; 2], [1; 2], 1)),
        ([2, 4, 9, 7], [6, 4, 3, 3], STRIDED),
        ([2, 5, 9, 7], [3, 5, 3, 3], STRIDED),
        // Pixels that no element of the kernel reaches, and residues that have none.
        ([2, 3, 8, 9], [4, 3, 1, 2], options([3, 4], [0, 1], [1; 2], 1)),
        ([2, 6, 8, 9], [4, 6, 1, 2], options([3, 4], [0, 1], [1; 2], 1)),
        ([1, 2, 3, 5], [2, 2, 2, 2], options([5, 7], [2, 4], [1; 2], 1)),
        ([2, 2, 11, 10], [3, 2, 3, 3], options([1; 2], [2, 3], [3, 2], 1)),
        ([2, 4, 12, 13], [6, 2, 3, 4], options([2, 3], [2, 1], [2, 4], 2)),
        // One channel for each.
        ([2, 5, 6, 7], [10, 1, 3, 3], options([1; 2], [1; 2], [1; 2], 5)),
        ([2, 130, 6, 6], [132, 130, 3, 3], PADDED),
        // A kernel that reaches far beyond the image, and more pixels than the CPU takes at a time.
        ([2, 3, 5, 6], [4, 3, 3, 3], options([1; 2], [30, 29], [30; 2], 1)),
        ([1, 1, 70, 70], [2, 1, 3, 3], PADDED),
    ];
    for (x, weight, options) in sizes {
        let name = format!("{x:?}/{weight:?}/{options:?}");
        for bias in [true, false] {
            let apply = move |x: &[crate::Tensor]| x[0].conv2d(&x[1], x.get(2), options);
            let case = Case::new(format!("conv2d/{bias}/{name}"), inputs(&x, &weight, weight[0], bias), apply);
            cases.push(summed(case));
        }
    }
    let transposed: [([usize; 4], [usize; 4], ConvOptions, Pair); 6] = [
        ([1, 1, 1, 1], [1, 1, 1, 1], PLAIN, [0; 2]),
        ([2, 3, 4, 5], [3, 4, 3, 3], PADDED, [0; 2]),
        ([2, 3, 4, 5], [3, 34, 2, 2], options([2; 2], [0; 2], [1; 2], 1), [0; 2]),
        ([2, 4, 5, 3], [4, 3, 3, 3], options([2; 2], [1; 2], [1; 2], 2), [1, 0]),
        ([1, 6, 4, 3], [6, 1, 3, 2], options([3, 2], [2, 1], [2, 3], 3), [2, 1]),
        // A wider output padding than the stride, which the dilation allows.
        ([1, 2, 4, 4], [2, 3, 3, 3], options([1; 2], [1; 2], [3; 2], 1), [2, 0]),
    ];
    for (x, weight, options, output_padding) in transposed {
        let outputs = weight[1] * options.groups;
        for bias in [true, false] {
            let name = format!("conv_transpose2d/{bias}/{x:?}/{weight:?}/{options:?}/{output_padding:?}");
            let apply = move |x: &[crate::Tensor]| x[0].conv_transpose2d(&x[1], x.get(2), options, output_padding);
            cases.push(summed(Case::new(name, inputs(&x, &weight, outputs, bias), apply)));
        }
    }
    let options = options([1, 2], [0, 3], [1, 2], 2);
    let apply = move |x: &[crate::Tensor]| x[0].conv1d(&x[1], x.get(2), options);
    let case = Case::new("conv1d/[3, 4, 19]/[6, 2, 5]", inputs(&[3, 4, 19], &[6, 2, 5], 6, true), apply);
    cases.push(summed(case));
}

/// Sums of up to 1200 products of numbers around 1, and of a thousand gradients.
fn summed(case: Case) -> Case {
    case.tolerance(5e-5, 1e-5)
}
