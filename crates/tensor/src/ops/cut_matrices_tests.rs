//! Ops of matrices that are cut between rows (`tensor/rows.rs`).

use super::{Criterion, IGNORED, add_rows};
use crate::profile::MemoryKind;
use crate::tensor::{Edge, SparseGradient, Spec};
use crate::testing::assert_close;
use crate::testing::buffers::with_bindings_of;
use crate::{DType, Device, Tensor};

const ROWS: usize = 600;
const WIDTH: usize = 12;

fn wave(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * step).sin()).collect()
}

/// The same values in one buffer and in three, as leaves.
fn leaves(dtype: DType, device: &Device) -> [Tensor; 2] {
    let spec = Spec::new([ROWS, WIDTH], dtype);
    let whole = Tensor::from_f32(&wave(ROWS * WIDTH, 1.3), [ROWS, WIDTH], device).unwrap().to_dtype(dtype).unwrap();
    let cut = || Tensor::empty_by_rows(spec, device, MemoryKind::Other).unwrap();
    let parts = with_bindings_of(300 * WIDTH, cut);
    parts.write_bytes(&whole.to_bytes().unwrap()).unwrap();
    let rows: Vec<_> = parts.row_parts().into_iter().map(|(rows, _)| rows).collect();
    assert_eq!((whole.row_parts().len(), rows), (1, vec![0..256, 256..512, 512..600]));
    [whole, parts].map(|matrix| matrix.requires_grad().unwrap())
}

fn ids(device: &Device) -> Tensor {
    let ids: Vec<u32> = (0..40).map(|i| if i == 7 { 600 } else { i * i * 37 % 600 }).collect();
    Tensor::from_u32(&ids, [4, 10], device).unwrap()
}

fn types(device: &Device) -> impl Iterator<Item = DType> {
    [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16))
}

fn gradient(leaf: &Tensor) -> Vec<f32> {
    leaf.grad().unwrap().to_f32().unwrap()
}

#[test]
fn a_table_in_parts_gives_the_rows_and_gradients_of_one() {
    for device in Device::for_tests() {
        let positions = || Tensor::from_f32(&wave(15 * WIDTH, 0.4), [15, WIDTH], &device).unwrap();
        let of = |table: &Tensor, with_positions: bool| {
            let ids = ids(&device);
            let y = match with_positions {
                true => table.embedding_at(&ids, &positions(), 3).unwrap(),
                false => table.embedding(&ids).unwrap(),
            };
            let bits: Vec<u32> = y.to_f32().unwrap().iter().map(|y| y.to_bits()).collect();
            // An id beyond the table has no gradient, whatever that is.
            y.mul(&y.detach()).unwrap().sum(..).unwrap().backward().unwrap();
            bits
        };
        let [whole, parts] = leaves(DType::F32, &device);
        for with_positions in [false, true, false] {
            assert_eq!(of(&parts, with_positions), of(&whole, with_positions), "{device}");
            assert_eq!(gradient(&parts), gradient(&whole), "{device}");
        }
        assert!(gradient(&parts).iter().any(|g| *g != 0.0));
        parts.zero_grad();
        assert_eq!(gradient(&parts), [0.0; ROWS * WIDTH]);
        assert!(parts.embedding_at(&ids(&device), &positions(), 6).is_err(), "{device}: 16 of 15 positions");
    }
}

#[test]
fn rows_that_collect_apart_are_added_to_the_parts() {
    for device in Device::for_tests() {
        let gradients = leaves(DType::F32, &device).map(|table| {
            let Edge::Leaf(gradient) = table.edge() else { unreachable!("a leaf") };
            let kept: Vec<u32> = (0..40).filter(|i| *i != 7).map(|i| i * i * 37 % 600).collect();
            let mut row_of = vec![u32::MAX; ROWS];
            (0..).zip(&kept).for_each(|(row, id)| row_of[*id as usize] = row);
            let row_of = Tensor::from_u32(&row_of, [ROWS], &device).unwrap();
            let sparse = SparseGradient::new(row_of, kept.len());
            gradient.collect_rows(Some(sparse.clone()));
            let y = table.embedding(&ids(&device)).unwrap();
            y.mul(&y.detach()).unwrap().sum(..).unwrap().backward().unwrap();
            gradient.collect_rows(None);
            assert_eq!(self::gradient(&table), [0.0; ROWS * WIDTH]);
            let ids = Tensor::from_u32(&kept, [kept.len()], &device).unwrap();
            add_rows(gradient, &sparse.take().unwrap(), &ids).unwrap();
            self::gradient(&table)
        });
        assert_eq!(gradients[0], gradients[1], "{device}");
        for part in [0..256, 256..512, 512..ROWS] {
            assert!(gradients[1][part.start * WIDTH..part.end * WIDTH].iter().any(|g| *g != 0.0), "{part:?}");
        }
    }
}

/// Loss, gradients, log-probabilities and logits of a classifier.
#[test]
fn a_classifier_in_parts_gives_what_one_gives() {
    for (device, dtype) in Device::for_tests().iter().flat_map(|d| types(d).map(|t| (d.clone(), t))) {
        let targets: Vec<u32> = (0..300).map(|i| if i % 7 == 3 { IGNORED } else { i * 11 % 600 }).collect();
        let targets = Tensor::from_u32(&targets, [300], &device).unwrap();
        for has_bias in [false, true] {
            let [whole, parts] = leaves(dtype, &device).map(|weight| {
                let leaf = |values: &[f32], shape: &[usize], dtype| {
                    let tensor = Tensor::from_f32(values, shape, &device).unwrap().to_dtype(dtype).unwrap();
                    tensor.requires_grad().unwrap()
                };
                let h = leaf(&wave(300 * WIDTH, 0.7), &[300, WIDTH], dtype);
                let bias = has_bias.then(|| leaf(&wave(ROWS, 0.9), &[ROWS], DType::F32));
                let (criterion, scale) = (Criterion::default(), Tensor::full(64.0, [1], &device).unwrap());
                let loss = h.linear_cross_entropy_with_bias(&weight, bias.as_ref(), &targets, criterion, Some(&scale));
                let loss = loss.unwrap();
                loss.backward().unwrap();
                let y = h.linear_log_probs(&weight, bias.as_ref(), &targets, None).unwrap();
                y.backward_with(&Tensor::from_f32(&wave(300, 0.2), [300], &device).unwrap()).unwrap();
                let logits = h.detach().linear_to_f32(&weight, bias.as_ref()).unwrap();
                let z = h.linear(&weight, true, bias.as_ref()).unwrap().to_dtype(DType::F32).unwrap();
                let dz = Tensor::from_f32(&wave(300 * ROWS, 0.3), [300, ROWS], &device).unwrap();
                z.backward_with(&dz).unwrap();
                let leaves = [&h, &weight].into_iter().chain(&bias).map(gradient);
                let values = [loss, y, logits, z].map(|tensor| tensor.to_f32().unwrap());
                values.into_iter().chain(leaves).collect::<Vec<_>>()
            });
            let most = if dtype == DType::F16 { 2e-3 } else { 1e-5 };
            for (i, (parts, whole)) in parts.iter().zip(&whole).enumerate() {
                let largest = whole.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                assert_close(format!("{device} {dtype:?}, {i}"), parts, whole, most * f64::from(largest), most);
            }
        }
    }
}

/// The gradient would be lost otherwise.
#[test]
fn what_was_computed_in_parts_is_refused() {
    for device in Device::for_tests() {
        let [_, parts] = leaves(DType::F32, &device);
        let seen = parts.reshape([ROWS, WIDTH]).unwrap();
        let h = Tensor::from_f32(&wave(4 * WIDTH, 0.7), [4, WIDTH], &device).unwrap();
        let targets = Tensor::from_u32(&[1, 2, 3, 4], [4], &device).unwrap();
        for error in [
            seen.embedding(&ids(&device)).err(),
            h.linear(&seen, true, None).err(),
            h.linear_cross_entropy(&seen, &targets, Criterion::default(), None).err(),
            h.linear_log_probs(&seen, None, &targets, None).err(),
        ] {
            let error = error.expect("an error").to_string();
            assert!(error.contains("a leaf; this one was computed"), "{error}");
        }
    }
}

#[test]
fn parts_move_and_change_their_type() {
    for device in Device::for_tests().into_iter().filter(Device::has_f16) {
        let [whole, parts] = leaves(DType::F32, &device).map(|leaf| leaf.detach().to_dtype(DType::F16).unwrap());
        assert!(parts.is_in_parts() && !whole.is_in_parts());
        assert_eq!(parts.to_bytes().unwrap(), whole.to_bytes().unwrap(), "{device}");
        let bound = || whole.to_device(&Device::Cpu).unwrap().to_device(&device).unwrap();
        let moved = with_bindings_of(256 * WIDTH, bound);
        assert_eq!(moved.is_in_parts(), device.is_gpu());
        assert_eq!(moved.to_bytes().unwrap(), whole.to_bytes().unwrap(), "{device}");
    }
}
