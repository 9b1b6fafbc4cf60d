//! Steps of a model whose tables no binding holds.

use super::{Losses, step_alone};
use crate::optim::testing::{ADAMW, DTYPES, Net, precisions};
use crate::optim::{ArenaOptions, Group, MomentDtype, Moments, Optimizer, ParameterArena, SavedMoments};
use crate::tensor::Bytes;
use crate::testing::assert_close;
use crate::testing::buffers::with_bindings_of;
use crate::{DType, Device, Tensor};

const VOCAB: usize = 600;
const WIDTH: usize = 24;

/// When and where parameters are updated.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Updates {
    AfterBackward,
    Layerwise,
    OnHost,
}
use Updates::{AfterBackward, Layerwise, OnHost};

/// Whether tables are in parts, and losses and weights of three steps, with moments of this type.
fn steps(device: &Device, operands: DType, updates: Updates, moment_dtype: MomentDtype) -> (bool, [Vec<f32>; 2]) {
    let mut net = Net::of_sizes(1, VOCAB, WIDTH);
    let of_matmuls: &dyn Fn(&str) -> bool = &|name| ["linear.weight", "head.weight"].contains(&name);
    let layerwise = updates != AfterBackward;
    let offload = (updates == OnHost).then_some(of_matmuls);
    let options = ArenaOptions { layerwise, offload, ..ArenaOptions::new(operands) };
    let arena = ParameterArena::with_options(&mut net, device, options).unwrap();
    let group = |_| Group { moment_dtype, ..Group::new(ADAMW, 0.1) };
    let mut optimizer = Optimizer::with_groups(&arena, &group, if layerwise { 0.0 } else { 0.1 }).unwrap();
    let ids: Vec<u32> = (0..50).map(|i| i * i * 7 % VOCAB as u32).collect();
    let ids = Tensor::from_u32(&ids, [ids.len()], device).unwrap();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
        let update = step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).unwrap();
        losses.extend(update.loss.to_f32().unwrap());
    }
    expect_saved(&arena, &mut optimizer);
    let tables = [&net.embed.weight, &net.head.weight];
    let in_parts = tables.iter().all(|table| table.is_in_parts() && table.operand().is_in_parts());
    (in_parts, [losses, arena.values().to_f32().unwrap()])
}

/// A file has the moments of each table as one tensor, and gives them back to the bit.
fn expect_saved(arena: &ParameterArena, optimizer: &mut Optimizer) {
    let bytes = |optimizer: &Optimizer| -> Vec<Vec<u8>> {
        optimizer.moments().iter().map(|(_, tensor)| tensor.to_bytes().unwrap()).collect()
    };
    let before = bytes(optimizer);
    let moments = optimizer.moments().into_iter().map(|(moment, _)| moment);
    let moments = moments.zip(before.iter().cloned().map(Bytes::owned)).collect();
    let file = Moments::new(arena, moments).encode().unwrap();
    optimizer.moments().iter().for_each(|(_, tensor)| tensor.fill_zero());
    assert_ne!(bytes(optimizer), before);
    optimizer.restore(arena, &SavedMoments::new("a file".as_ref(), &file).unwrap(), 3, 0, 1).unwrap();
    assert_eq!(bytes(optimizer), before);
}

#[test]
fn tables_in_parts_learn_as_those_in_one_buffer() {
    for (device, operands) in precisions() {
        let kinds = [AfterBackward, Layerwise, OnHost].map(|updates| DTYPES.map(|dtype| (updates, dtype)));
        for (updates, dtype) in kinds.into_iter().flatten() {
            if updates == OnHost && operands == DType::F32 {
                continue;
            }
            let run = || steps(&device, operands, updates, dtype);
            let ((cut, [whole, of_whole]), (are_cut, [parts, of_parts])) = (run(), with_bindings_of(300 * WIDTH, run));
            assert!(are_cut && !cut);
            let what = format!("{device} {operands:?} {updates:?} {dtype:?}");
            let most = if operands == DType::F16 || dtype == MomentDtype::Int8 { 2e-3 } else { 1e-5 };
            assert_close(format!("{what}: losses"), &parts, &whole, most, 0.0);
            // A step changes a weight by 0.01, in either direction where a gradient is nearly 0.
            let far = of_parts.iter().zip(&of_whole).filter(|(a, b)| f64::from((*a - *b).abs()) > most).count();
            assert!(far <= of_whole.len() / 500, "{what}: {far} of {}", of_whole.len());
        }
    }
}
