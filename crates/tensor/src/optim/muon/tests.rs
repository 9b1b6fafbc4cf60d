use super::*;
use crate::nn::{Linear, Module, Parameter, init_keys, join};
use crate::optim::testing::{ADAMW, KINDS, Net, optimizer};
use crate::optim::{Group, Optimizer, ParameterArena};
use crate::tensor::DryRun;
use crate::testing::worst_error;

/// Linear layers alone.
struct Layers(Vec<Linear>);

impl Layers {
    /// As many, alternately of two shapes and layouts, one of which fuses matrices.
    fn new(count: usize) -> Layers {
        Layers::scaled(count, 1)
    }

    /// With so many times as many inputs and outputs.
    fn scaled(count: usize, by: usize) -> Layers {
        let mut keys = init_keys(1);
        let layer = |i: usize| match i % 2 {
            0 => Linear::outputs_first(20 * by, &[12, 6, 6].map(|n| n * by), false, 0.5, keys()).unwrap(),
            _ => Linear::fused(10 * by, &[14, 14].map(|n| n * by), false, 0.5, keys()).unwrap(),
        };
        Layers((0..count).map(layer).collect())
    }
}

impl Module for Layers {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        for (i, layer) in self.0.iter_mut().enumerate() {
            layer.visit_parameters(&join("", &i.to_string()), visit);
        }
    }
}

/// An optimizer by Muon, without decay or clipping, and the kernels of a step on a device with these limits.
fn kernels(count: usize, limits: Limits) -> Vec<&'static str> {
    let dry_run = DryRun::new(limits);
    let device = Device::DryRun(dry_run.clone());
    let (arena, mut muon) = by_muon(&mut Layers::new(count), &device, DType::F32);
    dry_run.take_plans();
    muon.step(&arena, 0.1).unwrap();
    dry_run.take_plans().into_iter().map(|(name, _)| name).collect()
}

fn by_muon(module: &mut dyn Module, device: &Device, operands: DType) -> (ParameterArena, Optimizer) {
    let arena = ParameterArena::new(module, device, operands).unwrap();
    let optimizer = Optimizer::new(&arena, KINDS[3], 0.0, 0.0).unwrap();
    (arena, optimizer)
}

#[test]
fn more_layers_take_no_more_launches() {
    let few = kernels(2, Limits::WEBGPU_DEFAULT);
    // Shapes: (12, 20), (6, 20) and (10, 14), each gathered, made orthogonal and scattered.
    let count = |name| few.iter().filter(|kernel| **kernel == name).count();
    assert_eq!(["muon_momentum", "muon_gather", "muon_normalize", "muon_update"].map(count), [1, 3, 3, 3]);
    assert_eq!(["matmul", "muon_polynomial"].map(count), [3 * 5 * 3, 3 * 5]);
    assert_eq!(few, kernels(24, Limits::WEBGPU_DEFAULT));
}

#[test]
fn what_a_device_cannot_bind_at_once_makes_several_batches() {
    // A layer of (120, 100) has 12,000 elements, of (50, 140) 7,000: bound are 16,384 at a time.
    let limits = Limits { binding_bytes: 4 << 14, ..Limits::WEBGPU_DEFAULT };
    let device = Device::DryRun(DryRun::new(limits));
    let mut layers = Layers::scaled(6, 5);
    let arena = ParameterArena::new(&mut layers, &device, DType::F32).unwrap();
    let muon = Muon::new(arena.entries.iter(), &device).unwrap();
    assert!(muon.batches.iter().all(|batch| batch.window.len() <= bindable(&device)));
    let matrices: usize = muon.batches.iter().map(|batch| batch.table.shape()[0]).sum();
    assert_eq!((matrices, muon.batches.len()), (3 * 3 + 3 * 2, 9));
}

/// Whatever the batches, every matrix gets the same update.
#[test]
fn batches_do_not_show_in_the_bits() {
    for device in Device::for_tests() {
        let update = |together: bool| {
            let mut layers = Layers::new(6);
            let (arena, mut optimizer) = by_muon(&mut layers, &device, DType::F32);
            if !together {
                let one_by_one = arena.entries.iter().flat_map(|entry| {
                    let muon = Muon::new([entry].into_iter(), &device).unwrap();
                    muon.batches
                });
                optimizer.states[0].muon = Some(Muon { batches: one_by_one.collect() });
            }
            for entry in &arena.entries {
                let gradient: Vec<f32> = (0..entry.shape.elements()).map(|i| (i as f32 * 0.7).sin()).collect();
                arena.of_entry(entry)[1].write_bytes(bytemuck::cast_slice(&gradient)).unwrap();
            }
            optimizer.step(&arena, 0.1).unwrap();
            arena.values().to_f32().unwrap()
        };
        let (got, want) = (update(true), update(false));
        // GEMMs of other batch sizes may add up in another order.
        assert!(worst_error(&got, &want, |_, _| 1.0) < 1e-5, "{device}");
    }
}

#[test]
fn an_update_is_orthogonal_and_as_long_as_one_of_adamw() {
    for device in Device::for_tests() {
        let mut layer = Layers(vec![Linear::outputs_first(24, &[24], false, 0.5, init_keys(3)()).unwrap()]);
        let (arena, mut muon) = by_muon(&mut layer, &device, DType::F32);
        let before = arena.values().to_f32().unwrap();
        let gradient: Vec<f32> = (0..24 * 24).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&[&gradient[..], &[0.0; 192]].concat())).unwrap();
        muon.step(&arena, 1.0).unwrap();
        let after = arena.values().to_f32().unwrap();
        let update: Vec<f32> = before.iter().zip(&after).map(|(b, a)| (b - a) / (0.2 * 24f32.sqrt())).collect();
        let dot = |i: usize, j: usize| (0..24).map(|k| update[24 * i + k] * update[24 * j + k]).sum::<f32>();
        let trace: f32 = (0..24).map(|i| dot(i, i)).sum();
        // Singular values are between 0.7 and 1.2 (Jordan et al. 2024).
        assert!((0.7f32.powi(2)..1.2f32.powi(2)).contains(&(trace / 24.0)), "{device}: {}", trace / 24.0);
        let rms = (update.iter().map(|u| u * u).sum::<f32>() / 576.0).sqrt() * 0.2 * 24f32.sqrt();
        assert!((0.14..0.24).contains(&rms), "{device}: {rms}");
    }
}

#[test]
fn what_is_no_weight_of_a_linear_layer_is_refused() {
    let arena = ParameterArena::new(&mut Net::new(1), &Device::Cpu, DType::F32).unwrap();
    let error = Optimizer::new(&arena, KINDS[3], 0.0, 0.0).err().unwrap().to_string();
    assert!(error.contains("only weights of linear layers, got embed.weight"), "{error}");
}

#[test]
fn mixed_precision_gets_f16_copies_of_what_was_updated() {
    for device in Device::for_tests().into_iter().filter(|device| device.has_f16() || !device.is_gpu()) {
        let mut layers = Layers::new(3);
        let (arena, mut muon) = by_muon(&mut layers, &device, DType::F16);
        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&vec![3f32; arena.trainable_len()])).unwrap();
        let before = arena.values().to_f32().unwrap();
        muon.step(&arena, 0.1).unwrap();
        for entry in &arena.entries {
            let [value, _, half] = &arena.of_entry(entry)[..] else { panic!("a value, a gradient and a copy") };
            let rounded: Vec<f32> = value.to_f32().unwrap().iter().map(|v| half::f16::from_f32(*v).to_f32()).collect();
            assert_eq!(half.to_f32().unwrap(), rounded, "{device} {}", entry.name);
            assert_ne!(value.to_f32().unwrap(), before[entry.range()], "{device} {}", entry.name);
        }
        // An overflow of the scaled gradients halves the scale and changes nothing else.
        let state = || muon_state(&arena, &muon);
        let (before, scale) = (state(), muon.loss_scale().unwrap().to_f32().unwrap()[0]);
        arena
            .gradients()
            .unwrap()
            .write_bytes(bytemuck::cast_slice(&vec![f32::INFINITY; arena.trainable_len()]))
            .unwrap();
        muon.step(&arena, 0.1).unwrap();
        assert_eq!(muon.loss_scale().unwrap().to_f32().unwrap()[0], scale / 2.0, "{device}");
        assert!(muon_state(&arena, &muon) == before, "{device}");
    }
}

/// Values, f16 copies and momentum.
fn muon_state(arena: &ParameterArena, muon: &Optimizer) -> Vec<Vec<u8>> {
    let halves = arena.halves.as_ref().map(|halves| halves.to_bytes().unwrap());
    let tensors = [arena.values(), &muon.states[0].moments[0]].map(|tensor| tensor.to_bytes().unwrap());
    tensors.into_iter().chain(halves).collect()
}

#[test]
fn a_rate_of_its_own_scales_the_matrices_alone() {
    let weights = |lr_scale: f64| {
        let mut net = Net::new(1);
        let group_of = |_: &str, parameter: &Parameter| usize::from(parameter.linear.is_none());
        let arena = ParameterArena::grouped(&mut net, &Device::Cpu, DType::F32, &group_of).unwrap();
        let group =
            |number: usize| Group { lr_scale: [lr_scale, 1.0][number], ..Group::new([KINDS[3], ADAMW][number], 0.0) };
        let mut both = Optimizer::with_groups(&arena, &group, 0.0).unwrap();
        let before = arena.values().to_f32().unwrap();
        arena.gradients().unwrap().write_bytes(bytemuck::cast_slice(&vec![1f32; arena.trainable_len()])).unwrap();
        both.step(&arena, 0.01).unwrap();
        let after = arena.values().to_f32().unwrap();
        let moved = |entry: &Entry| {
            let pairs = before[entry.range()].iter().zip(&after[entry.range()]);
            pairs.map(|(b, a)| (b - a).abs()).fold(0f32, f32::max)
        };
        ["linear.weight", "head.weight"].map(|name| moved(arena.entries.iter().find(|e| e.name == name).unwrap()))
    };
    let ([matrix, head], [scaled, same]) = (weights(1.0), weights(3.0));
    assert!((scaled / matrix - 3.0).abs() < 0.01, "{matrix} {scaled}");
    assert_eq!(head, same);
}

#[test]
fn both_parts_of_a_model_learn() {
    for device in Device::for_tests() {
        let mut net = Net::new(1);
        let (arena, mut both) = optimizer(&mut net, &device, KINDS[3]);
        let ids = Tensor::from_u32(&(0..40).map(|i| i * 7 % 31).collect::<Vec<_>>(), [40], &device).unwrap();
        let mut step = || {
            arena.zero_gradients();
            let loss = net.loss(&ids, None).unwrap();
            loss.backward().unwrap();
            both.step(&arena, 0.02).unwrap();
            loss.item().unwrap()
        };
        let first = step();
        let last = (0..30).map(|_| step()).last().unwrap();
        assert!(last < 0.5 * first, "{device}: from {first} to {last}");
    }
}
