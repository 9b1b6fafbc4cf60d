use super::super::layout::ALIGN;
use super::*;
use crate::optim::testing::{ADAMW, KINDS, Net};
use crate::optim::{Group, Kind, Moments, Optimizer};
use crate::tensor::Bytes;
use crate::testing::buffers;

#[test]
fn parameters_keep_their_values_and_decaying_ones_come_first() {
    let mut model = Net::new(1);
    let before: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
    let parameters = ParameterArena::new(&mut model, &Device::Cpu, DType::F32).unwrap();
    let after: Vec<_> = model.parameters().iter().map(|(n, t)| (n.clone(), t.to_f32().unwrap())).collect();
    assert_eq!(before, after);
    for entry in &parameters.entries {
        assert_eq!(entry.offset < parameters.segments[0].decay_end, entry.shape.len() > 1, "{}", entry.name);
    }
    let count: usize = parameters.entries.iter().map(|e| e.shape.elements()).sum();
    assert_eq!(count, Net::ELEMENTS);
}

#[test]
fn forgotten_gradients_are_zeros_and_what_got_none_is_not_updated() {
    for device in Device::for_tests() {
        let mut model = Net::new(1);
        let parameters = ParameterArena::new(&mut model, &device, DType::F32).unwrap();
        let ids = Tensor::from_u32(&[3; 34], [34], &device).unwrap();
        let backward = || model.loss(&ids, None).unwrap().backward().unwrap();
        backward();
        let once = parameters.gradients().unwrap().to_f32().unwrap();
        assert!(once.iter().any(|g| *g != 0.0));
        parameters.zero_gradients();
        for entry in &parameters.entries {
            assert!(parameters.of_entry(entry)[1].to_f32().unwrap().iter().all(|g| *g == 0.0), "{}", entry.name);
        }
        parameters.zero_gradients();
        backward();
        assert_eq!(parameters.gradients().unwrap().to_f32().unwrap(), once, "{device}");
        // No gradient at all: nothing changes.
        parameters.zero_gradients();
        let before = parameters.values().to_f32().unwrap();
        let mut optimizer =
            Optimizer::new(&parameters, Kind::Sgd { momentum: 0.9, nesterov: false }, 0.0, 1.0).unwrap();
        optimizer.step(&parameters, 0.1).unwrap();
        assert_eq!(parameters.values().to_f32().unwrap(), before, "{device}");
    }
}

/// With gradients so small that none is clipped: the sum of their squares has another order.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn parameters_in_several_buffers_are_updated_averaged_and_saved_as_in_one() {
    for (device, operands) in precisions() {
        for kind in KINDS {
            let run = |most: usize| {
                buffers::with_at_most(most, || {
                    let mut net = Net::new(1);
                    let is_muon = matches!(kind, Kind::Muon { .. });
                    let group_of = |_: &str, p: &Parameter| usize::from(is_muon && p.linear.is_none());
                    let arena = ParameterArena::grouped(&mut net, &device, operands, &group_of).unwrap();
                    let group = |number: usize| Group::new([kind, ADAMW][number], 0.1);
                    let mut optimizer = Optimizer::with_groups(&arena, &group, 1.0).unwrap();
                    optimizer.keep_averages(&arena, 0.9).unwrap();
                    for number in 0..3 {
                        let gradient = |i: usize| ((i * 7 + number * 13) % 11) as f32 * 1e-4 - 5e-4;
                        let mut gradients = vec![0.0; arena.trainable_len()];
                        arena.entries.iter().flat_map(Entry::range).for_each(|i| gradients[i] = gradient(i));
                        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                        let squares = optimizer.step(&arena, 0.1).unwrap();
                        optimizer.average(&arena, &squares).unwrap();
                    }
                    optimizer.swap_averages(&arena).unwrap();
                    let averages = arena.values().to_f32().unwrap();
                    optimizer.swap_averages(&arena).unwrap();
                    let halves = arena.halves.as_ref().map_or(Vec::new(), |halves| halves.to_f32().unwrap());
                    let moments = optimizer.moments().into_iter();
                    let moments = moments.map(|(m, tensor)| (m, Bytes::owned(tensor.to_bytes().unwrap())));
                    let saved = Moments::new(&arena, moments.collect()).encode().unwrap();
                    let weights = arena.values().to_f32().unwrap();
                    // Through the parameters, each where it lies in its buffer.
                    arena.zero_gradients();
                    let ids = Tensor::from_u32(&[3, 64, 0, 17], [4], &device).unwrap();
                    net.loss(&ids, None).unwrap().backward().unwrap();
                    let gradients = arena.gradients().unwrap().to_f32().unwrap();
                    (arena.cuts.len(), [weights, averages, halves, gradients], saved)
                })
            };
            let (none, whole, saved) = run(usize::MAX);
            let (some, parts, saved_of_parts) = run(1000);
            assert!(none == 0 && some >= 2, "{some} cuts");
            // The batches of Muon's GEMMs are others.
            let most = if matches!(kind, Kind::Muon { .. }) { 1e-3 } else { 0.0 };
            for (whole, parts) in whole.iter().zip(&parts) {
                let pairs = whole.iter().zip(parts);
                assert!(whole.len() == parts.len(), "{device} {kind:?}");
                assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= most), "{device} {operands:?} {kind:?}");
            }
            assert!(most > 0.0 || saved == saved_of_parts, "{device} {operands:?} {kind:?}: other moments");
        }
    }
}

/// Devices, and the type of operands in each precision they have.
fn precisions() -> impl Iterator<Item = (Device, DType)> {
    let all = Device::for_tests().into_iter();
    all.flat_map(|device| [(device.clone(), DType::F32), (device, DType::F16)])
        .filter(|(device, operands)| *operands == DType::F32 || device.has_f16() || !device.is_gpu())
}

/// Three steps, with `mend` after each backward and `restore` after each update; the bits of all parameters then.
fn train(
    net: &mut Net,
    arena: &ParameterArena,
    optimizer: &mut Optimizer,
    mend: impl Fn(),
    restore: impl Fn(),
) -> Vec<(String, Vec<u8>)> {
    let device = arena.values().device();
    let ids = Tensor::from_u32(&(0..40).map(|i| i * 7 % 31).collect::<Vec<_>>(), [40], &device).unwrap();
    for _ in 0..3 {
        arena.zero_gradients();
        net.loss(&ids, optimizer.loss_scale()).unwrap().backward().unwrap();
        mend();
        optimizer.step(arena, 0.01).unwrap();
        restore();
    }
    net.parameters().iter().map(|(name, tensor)| (name.clone(), tensor.to_bytes().unwrap())).collect()
}

/// Of every kind of parameter in turn. Gradients are not clipped: their norm is one of fewer numbers, which are
/// added up in another order. For the same reason a weight is frozen with its bias, whose gradient comes from the
/// weight's matmul.
#[test]
fn frozen_parameters_keep_their_bits_and_the_others_learn_as_if_their_gradients_were_ignored() {
    let alone = ["embed.weight", "norm.weight", "norm.bias", "linear.bias", "head.weight"].map(|name| vec![name]);
    for (device, operands) in precisions() {
        for frozen in alone.iter().chain([&vec!["linear.weight", "linear.bias"]]) {
            let case = format!("{device} {operands:?}, {frozen:?} frozen");
            let initial = Net::new(1).parameters().into_iter().map(|(_, tensor)| tensor.to_bytes().unwrap());
            let mut net = Net::new(1);
            net.visit_parameters("", &mut |name, parameter| {
                if frozen.contains(&name) {
                    parameter.freeze();
                }
            });
            let arena = ParameterArena::new(&mut net, &device, operands).unwrap();
            let mut optimizer = Optimizer::new(&arena, ADAMW, 0.1, 0.0).unwrap();
            let got = train(&mut net, &arena, &mut optimizer, || (), || ());

            let mut net = Net::new(1);
            let whole = ParameterArena::new(&mut net, &device, operands).unwrap();
            let entries = whole.entries.iter().filter(|entry| frozen.contains(&&*entry.name));
            let ignored: Vec<&Entry> = entries.collect();
            let parts: Vec<Tensor> = ignored.iter().flat_map(|entry| whole.of_entry(entry)).collect();
            let before: Vec<_> = parts.iter().map(|part| part.to_bytes().unwrap()).collect();
            let mut ignoring = Optimizer::new(&whole, ADAMW, 0.1, 0.0).unwrap();
            let mend = || ignored.iter().for_each(|entry| whole.of_entry(entry)[1].fill_zero());
            let restore = || parts.iter().zip(&before).for_each(|(part, bytes)| part.write_bytes(bytes).unwrap());
            let want = train(&mut net, &whole, &mut ignoring, mend, restore);

            for (((name, got), (_, want)), initial) in got.into_iter().zip(want).zip(initial) {
                assert!(got == want, "{case}: {name}");
                assert_eq!(got == initial, frozen.contains(&&*name), "{case}: {name}");
            }
            let sizes = ignored.iter().map(|entry| entry.shape.elements().next_multiple_of(ALIGN));
            assert_eq!(arena.trainable_len() + sizes.sum::<usize>(), whole.trainable_len(), "{case}");
            assert_eq!(arena.values().len(), whole.values().len(), "{case}");
            for (moment, tensor) in optimizer.moments().into_iter().filter(|(m, _)| m.name != "loss_scale") {
                assert_eq!(tensor.len(), arena.trainable_len(), "{case}: {moment:?}");
            }
        }
    }
}

#[test]
fn a_weight_that_is_f16_only_computes_the_same_and_takes_two_bytes_an_element() {
    for (device, operands) in precisions().filter(|(device, _)| device.has_f16() || !device.is_gpu()) {
        let mixed = operands == DType::F16;
        let mut taken = Vec::new();
        for freezes in [false, true] {
            // Nothing else on this device's pool.
            let device = match crate::gpu::gpu_for_tests() {
                Some(gpu) if device.is_gpu() => Device::Gpu(gpu),
                _ => device.clone(),
            };
            let ids = Tensor::from_u32(&[3, 5, 8, 13], [4], &device).unwrap();
            let mut net = Net::of_width(1, 512);
            if freezes {
                net.linear.weight.freeze_as_f16().unwrap();
            }
            let arena = ParameterArena::new(&mut net, &device, operands).unwrap();
            let mut optimizer = Optimizer::new(&arena, ADAMW, 0.1, 0.0).unwrap();
            let used_bytes = device.memory().used_bytes;
            let loss = net.loss(&ids, optimizer.loss_scale()).unwrap();
            loss.backward().unwrap();
            let before = net.linear.weight.to_bytes().unwrap();
            optimizer.step(&arena, 0.01).unwrap();
            assert_eq!(net.linear.weight.to_bytes().unwrap() == before, freezes, "{device}");
            assert_eq!(net.linear.weight.grad().is_none(), freezes, "{device}");
            let bytes: usize = arena.stored().map(|tensor| tensor.spec().size_bytes()).sum();
            let halves = arena.halves.as_ref().map_or(0, |halves| halves.spec().size_bytes());
            taken.push((loss.item().unwrap(), bytes + halves, arena.trainable_len(), used_bytes));
        }
        let [(loss, bytes, len, used), (f16_loss, f16_bytes, f16_len, f16_used)] = taken[..] else { unreachable!() };
        let elements = 512 * 512;
        // Mixed, the operand of the matmul is the same; in f32 it is rounded to 11 bits.
        let tolerance = if mixed { 0.0 } else { 0.01 };
        assert!((f16_loss - loss).abs() <= tolerance, "{device} {operands:?}: {f16_loss}, else {loss}");
        // Two bytes instead of four, or mixed instead of four and two; no gradient, no moments.
        let spared = if mixed { 4 } else { 2 };
        assert_eq!((f16_bytes + spared * elements, f16_len + elements), (bytes, len), "{device} {operands:?}");
        if device.is_gpu() {
            // With gradient and two moments. The pool rounds sizes up by an eighth at most.
            let spared = (used - f16_used) as f64 / ((spared + 12) * elements) as f64;
            assert!((0.8..1.2).contains(&spared), "{used} and {f16_used} bytes in use");
        }
    }
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let refused = |net: &mut Net| match ParameterArena::new(net, &Device::Cpu, DType::F32) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was taken"),
    };
    let mut net = Net::new(1);
    net.visit_parameters("", &mut |_, parameter| parameter.freeze());
    assert!(refused(&mut net).contains("every parameter is frozen"));
    let mut net = Net::new(1);
    net.head.weight = net.head.weight.to_dtype(DType::F16).unwrap().into();
    assert!(refused(&mut net).contains("head.weight is stored as f16 only"));
}
