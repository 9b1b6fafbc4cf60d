//! Steps of a model whose tables no binding holds.

use super::{Losses, step_alone};
use crate::optim::testing::{ADAMW, Net, precisions};
use crate::optim::{ArenaOptions, Group, MomentDtype, Optimizer, ParameterArena};
use crate::testing::assert_close;
use crate::testing::buffers::with_bindings_of;
use crate::{DType, Device, Tensor};

const VOCAB: usize = 600;
const WIDTH: usize = 24;

/// Losses and weights of three steps, with gradients that are kept or, layerwise, are not, and moments of this type.
fn steps(device: &Device, operands: DType, layerwise: bool, moment_dtype: MomentDtype) -> [Vec<f32>; 2] {
    let mut net = Net::of_sizes(1, VOCAB, WIDTH);
    let options = ArenaOptions { layerwise, ..ArenaOptions::new(operands) };
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
    let tables = [&net.embed.weight, &net.head.weight];
    let (in_parts, of_head) = (tables[0].is_in_parts(), tables[1].operand().is_in_parts());
    assert_eq!(in_parts, of_head);
    losses.push(if in_parts { 1.0 } else { 0.0 });
    [losses, arena.values().to_f32().unwrap()]
}

#[test]
fn tables_in_parts_learn_as_those_in_one_buffer() {
    for (device, operands) in precisions() {
        let kinds = [MomentDtype::F32, MomentDtype::Int8].into_iter().flat_map(|dtype| [(false, dtype), (true, dtype)]);
        for (layerwise, dtype) in kinds {
            let run = || steps(&device, operands, layerwise, dtype);
            let ([mut whole, of_whole], [mut parts, of_parts]) = (run(), with_bindings_of(300 * WIDTH, run));
            assert_eq!((whole.pop(), parts.pop()), (Some(0.0), Some(1.0)));
            let what = format!("{device} {operands:?} layerwise {layerwise} {dtype:?}");
            let most = if operands == DType::F16 || dtype == MomentDtype::Int8 { 2e-3 } else { 1e-5 };
            assert_close(format!("{what}: losses"), &parts, &whole, most, 0.0);
            // A step changes a weight by 0.01, in either direction where a gradient is nearly 0.
            let far = of_parts.iter().zip(&of_whole).filter(|(a, b)| f64::from((*a - *b).abs()) > most).count();
            assert!(far <= of_whole.len() / 500, "{what}: {far} of {}", of_whole.len());
        }
    }
}
