//! Pooling: windows side by side, overlapping and apart, with padding and dilation, and more or fewer than pixels.

use super::Case;
use crate::ops::PoolOptions;
use crate::ops::inputs::AROUND_ZERO;
use crate::tensor::Tensor;

pub(super) fn all(cases: &mut Vec<Case>) {
    let plain = |kernel| PoolOptions::new(kernel);
    let ceil = |stride, padding, kernel| PoolOptions { stride, padding, ceil_mode: true, ..plain(kernel) };
    let sizes: [([usize; 4], PoolOptions); 10] = [
        ([1, 1, 1, 1], plain([1; 2])),
        ([2, 3, 6, 9], plain([2, 3])),
        ([2, 3, 7, 5], plain([2; 2])),
        ([2, 2, 9, 8], PoolOptions { stride: [2, 1], padding: [1; 2], ..plain([3; 2]) }),
        ([1, 3, 11, 10], PoolOptions { stride: [5, 4], padding: [0, 1], ..plain([2; 2]) }),
        ([3, 17, 12, 12], PoolOptions { stride: [2; 2], padding: [1; 2], ..plain([3; 2]) }),
        // Last windows that reach beyond the pixels, beyond the padding, beyond a whole image; one that is left out.
        ([2, 3, 7, 5], ceil([2; 2], [0; 2], [2; 2])),
        ([1, 3, 8, 10], ceil([2, 4], [1; 2], [3; 2])),
        ([2, 1, 3, 2], ceil([3; 2], [1, 0], [2, 3])),
        ([1, 2, 6, 5], ceil([4, 3], [1, 2], [3, 5])),
    ];
    for (x, options) in sizes {
        let inputs = vec![(x.to_vec(), AROUND_ZERO)];
        // The largest element changes while others overtake it: a kink.
        let apply = move |x: &[Tensor]| x[0].max_pool2d(options);
        cases.push(Case::new(format!("max_pool2d/{x:?}/{options:?}"), inputs.clone(), apply).not_smooth());
        for count_include_pad in [true, false] {
            let options = PoolOptions { count_include_pad, ..options };
            let apply = move |x: &[Tensor]| x[0].avg_pool2d(options);
            cases.push(Case::new(format!("avg_pool2d/{x:?}/{options:?}"), inputs.clone(), apply));
        }
    }
    let dilated = PoolOptions { stride: [2, 1], padding: [1; 2], dilation: [2, 3], ..plain([3, 2]) };
    let inputs = vec![(vec![2, 3, 9, 10], AROUND_ZERO)];
    cases.push(Case::new("max_pool2d/dilated", inputs, move |x| x[0].max_pool2d(dilated)).not_smooth());
    for (x, to) in [([2, 3, 7, 5], [1, 1]), ([2, 3, 7, 10], [3, 4]), ([1, 2, 3, 4], [5, 4]), ([2, 2, 8, 8], [4, 2])] {
        let inputs = vec![(x.to_vec(), AROUND_ZERO)];
        let apply = move |x: &[Tensor]| x[0].adaptive_avg_pool2d(to);
        cases.push(Case::new(format!("adaptive_avg_pool2d/{x:?}/{to:?}"), inputs, apply));
    }
    let sequences = || vec![(vec![2, 3, 11], AROUND_ZERO)];
    let options = PoolOptions { stride: [1, 2], padding: [0, 1], ..plain([1, 3]) };
    cases.push(Case::new("max_pool1d", sequences(), move |x| x[0].max_pool1d(options)).not_smooth());
    cases.push(Case::new("avg_pool1d", sequences(), move |x| x[0].avg_pool1d(options)));
    cases.push(Case::new("adaptive_avg_pool1d", sequences(), |x| x[0].adaptive_avg_pool1d(4)));
}
