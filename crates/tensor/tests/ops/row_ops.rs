//! Promises of single ops that the table of cases cannot express.

use rustyflow_tensor::ops::random::Key;
use rustyflow_tensor::testing::assert_close;
use rustyflow_tensor::{DType, Device, Error, Tensor};

/// The CPU, and the GPU if there is one.
fn devices() -> impl Iterator<Item = Device> {
    [Device::Cpu].into_iter().chain(crate::common::gpu())
}

#[test]
fn reductions_agree_with_sums_by_hand() {
    for device in devices() {
        let x = Tensor::from_f32(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [1, 2, 3], &device).unwrap();
        for (dim, sum, shape) in [
            (0, vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0], &[2, 3][..]),
            (1, vec![9.0, 18.0, 36.0], &[1, 3]),
            (2, vec![7.0, 56.0], &[1, 2]),
        ] {
            assert_eq!(x.sum(dim).unwrap().shape()[..], *shape);
            assert_eq!(x.sum(dim).unwrap().to_f32().unwrap(), sum, "{device}, dimension {dim}");
            let n = x.shape()[dim] as f32;
            let times_n: Vec<f32> = x.mean(dim).unwrap().to_f32().unwrap().iter().map(|mean| mean * n).collect();
            assert_close(format!("{device}, dimension {dim}"), &times_n, &sum, 1e-5, 0.0);
        }
        assert_eq!(x.max(2).unwrap().to_f32().unwrap(), [4.0, 32.0], "{device}");
    }
}

#[test]
fn equal_ones_share_the_gradient_of_max() {
    for device in devices() {
        let x = [0.0, 2.0, 2.0, 2.0, -1.0, -1.0, -1.0, -1.0];
        let x = Tensor::from_f32(&x, [2, 4], &device).unwrap().requires_grad().unwrap();
        let y = x.max(1).unwrap();
        assert_eq!(y.to_f32().unwrap(), [2.0, -1.0]);
        y.backward_with(&Tensor::from_f32(&[3.0, 5.0], [2], &device).unwrap()).unwrap();
        assert_eq!(x.grad().unwrap().to_f32().unwrap(), [0.0, 1.0, 1.0, 1.0, 1.25, 1.25, 1.25, 1.25], "{device}");
    }
}

#[test]
fn max_of_nothing_but_minus_infinity_is_minus_infinity() {
    for device in devices() {
        let x = Tensor::from_f32(&[f32::NEG_INFINITY; 3000], [3000], &device).unwrap();
        assert_eq!(x.max(0).unwrap().item().unwrap(), f32::NEG_INFINITY, "{device}");
    }
}

#[test]
fn reductions_refuse_what_they_cannot_do() {
    let x = Tensor::from_f32(&[], [2, 0], &Device::Cpu).unwrap();
    assert!(matches!(x.sum(2), Err(Error::Shape { op: "sum", .. })));
    assert!(matches!(x.max(1), Err(Error::Shape { op: "max", .. })));
    assert_eq!(x.sum(1).unwrap().to_f32().unwrap(), [0.0, 0.0]);
    let ids = Tensor::from_u32(&[1], [1], &Device::Cpu).unwrap();
    assert!(matches!(ids.mean(0), Err(Error::DType { op: "mean", .. })));
}

#[test]
fn softmax_survives_infinities() {
    for device in devices() {
        let x = [f32::NEG_INFINITY, 1.0, 1.0, f32::NEG_INFINITY];
        let y = Tensor::from_f32(&x, [4], &device).unwrap().softmax().unwrap();
        assert_eq!(y.to_f32().unwrap(), [0.0, 0.5, 0.5, 0.0], "{device}");
    }
}

#[test]
fn layer_norm_refuses_a_weight_of_another_length() {
    let tensor = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let (x, good, bad) = (tensor(&[2, 3]), tensor(&[3]), tensor(&[4]));
    assert!(matches!(x.layer_norm(&bad, None, 1e-5), Err(Error::Shape { op: "layer_norm", .. })));
    assert!(matches!(x.layer_norm(&good, Some(&bad), 1e-5), Err(Error::Shape { op: "layer_norm", .. })));
}

#[test]
fn layer_norm_refuses_token_ids_for_a_branch() {
    let [x, weight] = [&[2, 3][..], &[3]].map(|shape| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap());
    let ids = Tensor::zeros([2, 3], DType::U32, &Device::Cpu).unwrap();
    let sum = x.add_layer_norm(&ids, None, DType::F32, &weight, None, 1e-5);
    assert!(matches!(sum, Err(Error::DType { op: "layer_norm", .. })));
}

/// Sums over the rows of dy n and of dy, in f64: the gradients of a layer norm's weight and bias.
fn parameter_gradients(x: &[f32], dy: &[f32], c: usize, eps: f64) -> [Vec<f64>; 2] {
    let mut sums = [vec![0.0; c], vec![0.0; c]];
    for (x, dy) in x.chunks(c).zip(dy.chunks(c)) {
        let average = |of: &dyn Fn(f64) -> f64| x.iter().map(|x| of(f64::from(*x))).sum::<f64>() / c as f64;
        let mean = average(&|x| x);
        let rstd = 1.0 / (average(&|x| (x - mean) * (x - mean)) + eps).sqrt();
        for (i, (x, dy)) in x.iter().zip(dy).enumerate() {
            sums[0][i] += f64::from(*dy) * (f64::from(*x) - mean) * rstd;
            sums[1][i] += f64::from(*dy);
        }
    }
    sums
}

#[test]
fn every_row_counts_once_in_the_gradients_of_a_layer_norm_and_passes_add_up() {
    // Rows around the ends of chunks, of 256 to 16 rows; so many that chunks are longer; rows that a thread cannot
    // hold.
    let few = [(1, 1), (257, 1), (255, 3), (129, 5), (31, 130), (33, 130), (15, 768), (16, 768), (17, 768)];
    let many = [(16_400, 132), (65, 1028), (3, 4100), (33, 2051), (18, 8196)];
    for (device, (rows, c)) in
        devices().flat_map(|device| few.into_iter().chain(many).map(move |s| (device.clone(), s)))
    {
        let [x, dy] = [1, 2].map(|seed| crate::common::uniform(rows * c, seed));
        let [want_weight, want_bias] = parameter_gradients(&x, &dy, c, 1e-5);
        let [x, dy] = [x, dy].map(|values| Tensor::from_f32(&values, [rows, c], &device).unwrap());
        let ones = Tensor::from_f32(&vec![1.0; c], [c], &device).unwrap();
        for with_bias in [false, true] {
            let [weight, bias] = [0, 1].map(|_| ones.requires_grad().unwrap());
            for pass in 1..=2 {
                let y = x.layer_norm(&weight, with_bias.then_some(&bias), 1e-5).unwrap();
                y.backward_with(&dy).unwrap();
                let sums = [(&weight, &want_weight), (&bias, &want_bias)];
                for (of, want) in sums.into_iter().take(1 + with_bias as usize) {
                    let want: Vec<f64> = want.iter().map(|want| f64::from(pass) * want).collect();
                    // Rounding of the terms, and of partial sums, which grow like sqrt(rows).
                    let atol = 1e-6 * (rows as f64).sqrt() + 5e-6;
                    let got = of.grad().unwrap().to_f32().unwrap();
                    assert_close(format!("{device}: {rows}x{c}, pass {pass}"), &got, &want, atol, 2e-6);
                }
            }
        }
    }
}

#[test]
fn embedding_gives_nan_for_ids_outside_the_table() {
    for device in devices() {
        for c in [1, 4] {
            let table = Tensor::from_f32(&vec![1.0; 3 * c], [3, c], &device).unwrap();
            let ids = Tensor::from_u32(&[2, 3, u32::MAX, 0], [4], &device).unwrap();
            let y = table.embedding(&ids).unwrap().to_f32().unwrap();
            let outside: Vec<bool> = y.iter().map(|y| y.is_nan()).collect();
            let want = [vec![false; c], vec![true; 2 * c], vec![false; c]].concat();
            assert_eq!(outside, want, "{device}, rows of {c}");
        }
    }
}

#[test]
fn dropout_keeps_the_share_it_promises_and_the_mean() {
    for device in devices() {
        let n = 100_000;
        let ones = Tensor::from_f32(&vec![1.0; n], [n], &device).unwrap();
        for p in [0.1f32, 0.5, 0.9] {
            let y = ones.dropout(p, Key::new(1)).unwrap().to_f32().unwrap();
            let kept = y.iter().filter(|&&y| y != 0.0).count() as f32 / n as f32;
            // Four standard deviations of a binomial share.
            let bound = 4.0 * (p * (1.0 - p) / n as f32).sqrt();
            assert!((kept - (1.0 - p)).abs() < bound, "{device}: p = {p}: kept {kept}");
            assert!(y.iter().all(|&y| y == 0.0 || (y * (1.0 - p) - 1.0).abs() < 1e-6), "{device}: p = {p}");
            assert_ne!(y, ones.dropout(p, Key::new(2)).unwrap().to_f32().unwrap(), "{device}: keys must differ");
        }
    }
}

/// The stream, what it is normalized to, and the gradients of x, branch, weight and bias, where both are used.
fn sum_with_dropout(
    inputs: &[Tensor; 4],
    apply: impl Fn(&[Tensor]) -> rustyflow_tensor::Result<(Tensor, Tensor)>,
) -> Vec<Vec<f32>> {
    let leaves: Vec<Tensor> = inputs.iter().map(|x| x.requires_grad().unwrap()).collect();
    let (sum, normal) = apply(&leaves).unwrap();
    sum.mul(&normal).unwrap().backward_with(&inputs[0]).unwrap();
    let gradients = leaves.iter().map(|x| x.grad().unwrap().to_f32().unwrap());
    [sum, normal].iter().map(|x| x.to_f32().unwrap()).chain(gradients).collect()
}

#[test]
fn dropout_before_a_sum_and_its_norm_is_that_of_the_op_by_itself() {
    for device in devices() {
        for (rows, c) in [(1, 1), (3, 65), (129, 20), (7, 1030)] {
            let values = |shape: &[usize], seed| {
                Tensor::from_f32(&crate::common::uniform(shape.iter().product(), seed), shape, &device).unwrap()
            };
            let inputs = [values(&[rows, c], 1), values(&[rows, c], 2), values(&[c], 3), values(&[c], 4)];
            let (p, key, eps) = (0.4, Key::new(rows as u64), 1e-5);
            let fused = sum_with_dropout(&inputs, |x| {
                x[0].add_layer_norm(&x[1], Some((p, key)), DType::F32, &x[2], Some(&x[3]), eps)
            });
            let apart = sum_with_dropout(&inputs, |x| {
                x[0].add_layer_norm(&x[1].dropout(p, key)?, None, DType::F32, &x[2], Some(&x[3]), eps)
            });
            let names = ["sum", "norm", "gradient of x", "of the branch", "of the weight", "of the bias"];
            for ((name, fused), apart) in names.iter().zip(&fused).zip(&apart) {
                let what = format!("{device}: {rows}x{c}: {name}");
                let zeros = |x: &[f32]| x.iter().map(|x| *x == 0.0).collect::<Vec<_>>();
                assert_eq!(zeros(fused), zeros(apart), "{what}: other elements are dropped");
                // A GPU may round the product with 1/(1-p) and the sum once or twice.
                assert_close(what, fused, apart, 1e-5, 1e-5);
            }
        }
    }
}

#[test]
fn a_branch_of_f16_is_added_in_f32_and_gets_the_gradient_of_one_of_f32_rounded() {
    for device in devices().filter(|d| matches!(d, Device::Cpu) || d.has_f16()) {
        for ((rows, c), dropout) in [((65, 17), None), ((7, 1030), None), ((65, 17), Some((0.4, Key::new(1))))] {
            let values = |shape: &[usize], seed| {
                Tensor::from_f32(&crate::common::uniform(shape.iter().product(), seed), shape, &device).unwrap()
            };
            let branch = values(&[rows, c], 2).to_dtype(DType::F16).unwrap().to_dtype(DType::F32).unwrap();
            let inputs = [values(&[rows, c], 1), branch, values(&[c], 3), values(&[c], 4)];
            let of = |dtype| {
                sum_with_dropout(&inputs, |x| {
                    x[0].add_layer_norm(&x[1].to_dtype(dtype)?, dropout, DType::F32, &x[2], Some(&x[3]), 1e-5)
                })
            };
            let (half, single) = (of(DType::F16), of(DType::F32));
            let names = ["sum", "norm", "gradient of x", "of the branch", "of the weight", "of the bias"];
            for ((name, half), single) in names.iter().zip(&half).zip(&single) {
                // One unit in the last of 11 bits, of normal numbers of f16 and of those below.
                let (rtol, atol) = if *name == "of the branch" { (1e-3, 6e-8) } else { (1e-6, 1e-6) };
                assert_close(format!("{device}: {rows}x{c}: {name}"), half, single, atol, rtol);
            }
        }
    }
}

#[test]
fn dropout_of_zero_is_the_tensor_itself_and_probabilities_are_checked() {
    let x = Tensor::from_f32(&[1.0, f32::INFINITY], [2], &Device::Cpu).unwrap();
    assert_eq!(x.dropout(0.0, Key::new(1)).unwrap().to_f32().unwrap(), [1.0, f32::INFINITY]);
    for p in [-0.1, 1.0, f32::NAN] {
        let dropout = (p, Key::new(1));
        assert!(matches!(x.dropout(p, dropout.1), Err(Error::Invalid(_))), "{p}");
        let fused = x.add_layer_norm(&x, Some(dropout), DType::F32, &x, None, 1e-5);
        assert!(matches!(fused, Err(Error::Invalid(_))), "{p}");
    }
}

#[test]
fn reshape_refuses_another_number_of_elements() {
    let x = Tensor::zeros([2, 3], DType::U32, &Device::Cpu).unwrap();
    assert!(matches!(x.reshape([7]), Err(Error::Shape { op: "reshape", .. })));
    assert_eq!(x.reshape([3, 1, 2]).unwrap().shape()[..], [3, 1, 2]);
}

#[test]
fn gradients_pass_through_views_and_leave_the_seed_alone() {
    for device in devices() {
        let x = Tensor::from_f32(&[1.0, 2.0, 3.0, 4.0], [4], &device).unwrap().requires_grad().unwrap();
        let y = x.scale(2.0).unwrap();
        y.reshape([2, 2]).unwrap().sum(0).unwrap().sum(0).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_f32().unwrap(), [2.0; 4], "{device}");
        // Here the gradient of y is a view of the seed.
        let y = x.scale(2.0).unwrap();
        let ones = Tensor::from_f32(&[1.0; 4], [4], &device).unwrap();
        y.reshape([2, 2]).unwrap().reshape([4]).unwrap().backward_with(&ones).unwrap();
        assert_eq!(x.grad().unwrap().to_f32().unwrap(), [4.0; 4], "{device}");
        assert_eq!(ones.to_f32().unwrap(), [1.0; 4], "{device}: the seed was changed");
    }
}

#[test]
fn permute_moves_token_ids_too() {
    for device in devices() {
        let x = Tensor::from_u32(&[1, 2, 3, 4, 5, u32::MAX], [2, 3], &device).unwrap();
        let y = x.permute(&[1, 0]).unwrap();
        assert_eq!(y.shape()[..], [3, 2]);
        assert_eq!(y.to_u32().unwrap(), [1, 4, 2, 5, 3, u32::MAX], "{device}");
    }
}

#[test]
fn cast_keeps_what_f16_can_hold() {
    for device in devices().filter(|d| matches!(d, Device::Cpu) || d.has_f16()) {
        let x = [0.0, -1.5, 65504.0, 6.103_515_6e-5, 1e6, -1e6, 0.1];
        let x = Tensor::from_f32(&x, [7], &device).unwrap().requires_grad().unwrap();
        let half = x.to_dtype(DType::F16).unwrap();
        assert_eq!(half.dtype(), DType::F16);
        let y = half.to_dtype(DType::F32).unwrap();
        let got = y.to_f32().unwrap();
        assert_eq!(got[..4], [0.0, -1.5, 65504.0, 6.103_515_6e-5], "{device}");
        assert_eq!(got[4..6], [f32::INFINITY, f32::NEG_INFINITY], "{device}");
        assert!((got[6] - 0.1).abs() < 1e-4 && got[6] != 0.1, "{device}: {}", got[6]);
        y.backward_with(&Tensor::from_f32(&[0.25; 7], [7], &device).unwrap()).unwrap();
        assert_eq!(x.grad().unwrap().to_f32().unwrap(), [0.25; 7], "{device}");
    }
}

#[test]
fn cast_refuses_token_ids() {
    let ids = Tensor::from_u32(&[1], [1], &Device::Cpu).unwrap();
    assert!(matches!(ids.to_dtype(DType::F32), Err(Error::DType { op: "cast", .. })));
}
