//! Steps that update parameters while backward runs.

use super::{Losses, step_alone};
use crate::gpu::Limits;
use crate::nn::{Embedding, Linear, Module, Parameter, init_keys};
use crate::ops::Criterion;
use crate::optim::testing::{ADAMW, DTYPES, KINDS, Net, precisions};
use crate::optim::{ArenaOptions, Group, Kind, MomentDtype, Optimizer, ParameterArena};
use crate::profile::MemoryKind;
use crate::tensor::{DryRun, recompute, with_hook};
use crate::testing::buffers::with_at_most;
use crate::testing::faults::Countdown;
use crate::{DType, Device, Error, Tensor};
use std::cell::Cell;
use std::rc::Rc;

/// So many elements of gradients in a bucket, but for larger matrices: of [`Net`] the norm, the bias and the matrices
/// have their own.
const MOST: usize = 512;

const IDS: [u32; 12] = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3];

/// When and where parameters are updated.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Updates {
    AfterBackward,
    Layerwise,
    OnHost,
}
use Updates::{AfterBackward, Layerwise, OnHost};

fn arena(net: &mut Net, device: &Device, operands: DType, kind: Kind, updates: Updates) -> ParameterArena {
    let is_muon = matches!(kind, Kind::Muon { .. });
    let group_of = |_: &str, parameter: &Parameter| usize::from(is_muon && parameter.linear.is_none());
    let of_matmuls: &dyn Fn(&str) -> bool = &|name| ["linear.weight", "head.weight"].contains(&name);
    let options = ArenaOptions {
        group_of: &group_of,
        layerwise: updates != AfterBackward,
        offload: (updates == OnHost).then_some(of_matmuls),
        ..ArenaOptions::new(operands)
    };
    ParameterArena::with_options(net, device, options).unwrap()
}

fn optimizer(arena: &ParameterArena, kind: Kind, moment_dtype: MomentDtype, clip: f64) -> Optimizer {
    let group = |number: usize| Group { moment_dtype, ..Group::new([kind, ADAMW][number], 0.1) };
    Optimizer::with_groups(arena, &group, clip).unwrap()
}

/// Losses, norms and weights of three steps.
fn steps(
    device: &Device,
    operands: DType,
    (kind, dtype): (Kind, MomentDtype),
    clip: f64,
    updates: Updates,
) -> [Vec<f32>; 3] {
    let mut net = Net::new(1);
    let arena = arena(&mut net, device, operands, kind, updates);
    let mut optimizer = optimizer(&arena, kind, dtype, clip);
    assert!(arena.segments.len() >= 4 || updates == AfterBackward, "several buckets");
    let ids = Tensor::from_u32(&IDS, [IDS.len()], device).unwrap();
    let [mut losses, mut norms] = [vec![], vec![]];
    for _ in 0..3 {
        let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
        let update = step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).unwrap();
        losses.extend(update.loss.to_f32().unwrap());
        norms.push(update.squares.to_f32().unwrap()[0]);
    }
    expect_copies(&net, &arena);
    [losses, norms, arena.values().to_f32().unwrap()]
}

/// What the model computes with is what the optimizer has.
fn expect_copies(net: &Net, arena: &ParameterArena) {
    let parameters = [
        ("embed.weight", &net.embed.weight),
        ("linear.weight", &net.linear.weight),
        ("head.weight", &net.head.weight),
        ("linear.bias", net.linear.bias.as_ref().unwrap()),
    ];
    let values = arena.values().to_f32().unwrap();
    for (name, parameter) in parameters {
        let of_optimizer = &values[arena.entries.iter().find(|entry| entry.name == name).unwrap().range()];
        for tensor in [parameter.operand(), &parameter.value] {
            let half = |x: &f32| half::f16::from_f32(*x).to_f32();
            let want = of_optimizer.iter().map(|x| if tensor.dtype() == DType::F16 { half(x) } else { *x });
            assert!(tensor.to_f32().unwrap().into_iter().eq(want), "{name} {:?}", tensor.dtype());
        }
    }
}

#[test]
fn on_the_host_updates_are_those_of_the_device() {
    for (device, kind) in [Device::Cpu].iter().flat_map(|device| KINDS.map(|kind| (device.clone(), kind))) {
        for (dtype, clip) in DTYPES.into_iter().flat_map(|dtype| [0.0, 0.1].map(|clip| (dtype, clip))) {
            let run = |updates| with_at_most(MOST, || steps(&device, DType::F16, (kind, dtype), clip, updates));
            assert_eq!(run(Layerwise), run(OnHost), "{device} {kind:?} {dtype:?} {clip}");
        }
    }
    // The CPU rounds otherwise than a GPU.
    for device in Device::for_tests().into_iter().filter(|device| device.is_gpu() && device.has_f16()) {
        for dtype in DTYPES {
            let run = |updates| with_at_most(MOST, || steps(&device, DType::F16, (ADAMW, dtype), 0.1, updates));
            let (on_device, on_host) = (run(Layerwise), run(OnHost));
            // A step changes a weight by 0.01; a code of 8 bits may be the next one.
            let most = if dtype == MomentDtype::F32 { 1e-4 } else { 1e-3 };
            for (a, b) in on_device.iter().zip(&on_host) {
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= most * a.abs() + most;
                assert!(a.iter().zip(b).all(near), "{device} {dtype:?}: {a:?}, {b:?}");
            }
        }
    }
}

#[test]
fn the_host_has_what_the_device_lacks() {
    let gpu = Device::DryRun(DryRun::new(Limits { f16: true, ..Limits::WEBGPU_DEFAULT }));
    let memory = |updates| {
        let mut net = Net::of_width(1, 256);
        let arena = arena(&mut net, &gpu, DType::F16, ADAMW, updates);
        let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 1.0);
        let ids = Tensor::zeros([12], DType::U32, &gpu).unwrap();
        let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
        step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).map(drop).unwrap();
        [&gpu, &gpu.host()].map(|device| {
            let used = device.memory().used_by_kind;
            [MemoryKind::Parameters, MemoryKind::OptimizerState].map(|kind| used[kind])
        })
    };
    let ([parameters, moments], [device, host]) = (memory(Layerwise)[0], memory(OnHost));
    // Of 6 bytes for each parameter those of f16, and the f32 of the embedding, the norm and the bias.
    let all = Net::VOCAB * 256 * 2 + 256 * 256 + 3 * 256;
    let in_f32 = Net::VOCAB * 256 + 3 * 256;
    // Buffers are of size classes.
    let is = |bytes: usize, expected: usize| (expected..expected + expected / 4).contains(&bytes);
    assert!(is(parameters, 6 * all), "{parameters}");
    assert!(is(device[0], 2 * all + 4 * in_f32) && is(host[0], 4 * all), "{device:?}, {host:?}");
    assert!(moments >= 8 * all && device[1] == 0 && host[1] == moments, "{moments}, {device:?}, {host:?}");
}

#[test]
fn averages_on_the_host_change_places_with_what_the_device_reads() {
    let ids = |device: &Device| Tensor::from_u32(&IDS, [IDS.len()], device).unwrap();
    for device in Device::for_tests().into_iter().filter(|device| !device.is_gpu() || device.has_f16()) {
        let mut net = Net::new(1);
        let arena = with_at_most(MOST, || arena(&mut net, &device, DType::F16, ADAMW, OnHost));
        let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 1.0);
        optimizer.keep_averages(&arena, 0.9).unwrap();
        let loss = |_, scale: Option<&Tensor>| net.loss(&ids(&device), scale);
        step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).unwrap();
        let before = arena.values().to_f32().unwrap();
        for is_swapped in [true, false] {
            optimizer.swap_averages(&arena).unwrap();
            assert_eq!(arena.values().to_f32().unwrap() != before, is_swapped, "{device}");
            expect_copies(&net, &arena);
        }
    }
}

#[test]
fn weights_on_the_host_need_f16_copies_and_layerwise_updates() {
    let options =
        |operands, layerwise| ArenaOptions { layerwise, offload: Some(&|_| true), ..ArenaOptions::new(operands) };
    for (operands, layerwise) in [(DType::F32, true), (DType::F16, false)] {
        let arena = ParameterArena::with_options(&mut Net::new(1), &Device::Cpu, options(operands, layerwise));
        assert!(arena.err().unwrap().to_string().contains("need f16 operands, layerwise updates and one device"));
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn without_clipping_updates_are_those_after_backward() {
    for ((device, operands), kind) in precisions().flat_map(|on| KINDS.map(|kind| (on.clone(), kind))) {
        for dtype in DTYPES {
            let run = |updates| with_at_most(MOST, || steps(&device, operands, (kind, dtype), 0.0, updates));
            let ([losses, norms, weights], [own_losses, own_norms, own_weights]) = (run(AfterBackward), run(Layerwise));
            let what = format!("{device} {operands:?} {kind:?} {dtype:?}");
            assert_eq!(losses, own_losses, "{what}");
            assert_eq!(weights, own_weights, "{what}");
            // The sums are in another order.
            norms.iter().zip(&own_norms).for_each(|(a, b)| assert!((a / b - 1.0).abs() < 1e-5, "{what}: {a}, {b}"));
        }
    }
}

/// Where gradients do not depend on weights, the norm of the step before is that of every step.
#[test]
fn gradients_are_clipped_by_the_norm_of_the_step_before() {
    let sgd = Kind::Sgd { momentum: 0.0, nesterov: false };
    for device in Device::for_tests() {
        let changes = |layerwise: bool| {
            let mut keys = init_keys(3);
            let mut layers = Layers([(); 2].map(|()| Linear::new(32, 32, false, 0.5, keys()).unwrap()));
            let options = ArenaOptions { layerwise, ..ArenaOptions::new(DType::F32) };
            let arena = with_at_most(MOST, || ParameterArena::with_options(&mut layers, &device, options)).unwrap();
            let mut optimizer = Optimizer::new(&arena, sgd, 0.0, 0.25).unwrap();
            let mut values = vec![arena.values().to_f32().unwrap()];
            for _ in 0..3 {
                let loss = |_, _: Option<&Tensor>| {
                    let sums = layers.0.iter().map(|layer| layer.weight.operand().scale(2.0)?.sum(..));
                    sums.reduce(|a, b| a?.add(&b?)).unwrap()
                };
                step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.1).unwrap();
                values.push(arena.values().to_f32().unwrap());
            }
            let change = |pair: &[Vec<f32>]| [0, 1024].map(|at| pair[0][at] - pair[1][at]);
            values.windows(2).map(change).collect::<Vec<_>>()
        };
        let (whole, layerwise) = (changes(false), changes(true));
        // |g| = 2 sqrt(2048); in the first step the layer that backward reaches first does not know of the other.
        let clipped = 0.1 * 0.25 / 2048f32.sqrt();
        let is = |change: f32, expected: f32| (change / expected - 1.0).abs() < 1e-3;
        assert!(whole.iter().flatten().all(|&change| is(change, clipped)), "{device}: {whole:?}");
        assert!(is(layerwise[0][1], clipped * 2f32.sqrt()), "{device}: {layerwise:?}");
        assert!(is(layerwise[0][0], clipped), "{device}: {layerwise:?}");
        assert!(layerwise[1..].iter().flatten().all(|&change| is(change, clipped)), "{device}: {layerwise:?}");
    }
}

struct Layers([Linear; 2]);

impl Module for Layers {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        let [first, second] = &mut self.0;
        first.visit_parameters("first", visit);
        second.visit_parameters("second", visit);
    }
}

/// Devices without values, whose memory no other test shares.
fn dry_runs() -> [Device; 2] {
    [DryRun::cpu(), DryRun::new(Limits::WEBGPU_DEFAULT)].map(Device::DryRun)
}

/// The most bytes of gradients in use while `body` runs kernels.
fn most_gradients(device: &Device, body: impl FnOnce()) -> usize {
    let (most, on) = (Rc::new(Cell::new(0)), device.clone());
    let seen = most.clone();
    let look = move |_, _: &[&Tensor], _: &[&Tensor]| {
        seen.set(seen.get().max(on.memory().used_by_kind[MemoryKind::Gradients]));
    };
    with_hook(Box::new(look), body);
    most.get()
}

#[test]
fn gradients_take_the_memory_of_a_bucket() {
    for device in dry_runs() {
        with_at_most(MOST, || {
            let mut net = Net::of_width(1, 256);
            let arena = arena(&mut net, &device, DType::F32, ADAMW, Layerwise);
            let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 1.0);
            assert!(net.linear.weight.operand().grad().is_none() && arena.gradients().is_err(), "{device}");
            let ids = Tensor::zeros([12], DType::U32, &device).unwrap();
            let before = device.memory().used_bytes;
            let most = most_gradients(&device, || {
                let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
                step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).map(drop).unwrap();
            });
            assert_eq!(device.memory().used_bytes, before, "{device}: gradients are freed");
            // That of the matrix, without those of the tables.
            let [matrix, table] = [256, Net::VOCAB].map(|rows| 4 * rows * 256);
            assert!((matrix..matrix + table).contains(&most), "{device}: {most} of {matrix}");
        });
    }
}

/// What has no gradient in a step decays and moves along its momentum, as after backward.
#[test]
fn parameters_without_a_gradient_are_updated_at_the_end() {
    for device in Device::for_tests() {
        let run = |updates| {
            with_at_most(MOST, || {
                let mut net = Net::new(1);
                let arena = arena(&mut net, &device, DType::F32, ADAMW, updates);
                let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 0.0);
                let loss = |_, _: Option<&Tensor>| net.linear.weight.operand().scale(2.0)?.sum(..);
                for _ in 0..2 {
                    step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).unwrap();
                }
                arena.values().to_f32().unwrap()
            })
        };
        let before = {
            let mut net = Net::new(1);
            arena(&mut net, &device, DType::F32, ADAMW, AfterBackward).values().to_f32().unwrap()
        };
        let (whole, layerwise) = (run(AfterBackward), run(Layerwise));
        assert_eq!(whole, layerwise, "{device}");
        assert_ne!(whole[0], before[0], "{device}: the embedding decays");
    }
}

#[test]
fn a_step_of_several_passes_is_refused() {
    let mut net = Net::new(1);
    let arena = arena(&mut net, &Device::Cpu, DType::F32, ADAMW, Layerwise);
    let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 1.0);
    let ids = Tensor::from_u32(&IDS, [IDS.len()], &Device::Cpu).unwrap();
    let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
    let error = step_alone((&arena, &mut optimizer), Losses::Means, 0..2, loss, 0.01).err().unwrap();
    assert!(error.to_string().contains("in one pass; this step has 2 micro-batches"), "{error}");
}

/// A weight that two recomputed segments use has a gradient after its update.
#[test]
fn a_weight_of_several_recomputed_segments_is_refused() {
    let mut keys = init_keys(3);
    let mut shared = Shared(Embedding::new(8, 8, 0.5, keys()).unwrap());
    let options = ArenaOptions { layerwise: true, ..ArenaOptions::new(DType::F32) };
    let arena = ParameterArena::with_options(&mut shared, &Device::Cpu, options).unwrap();
    let mut optimizer = Optimizer::new(&arena, ADAMW, 0.0, 1.0).unwrap();
    let weight = shared.0.weight.operand().clone();
    let mut run = |segments: usize| {
        let loss = |_, _: Option<&Tensor>| {
            let mut x = Tensor::full(1.0, [8, 8], &Device::Cpu)?;
            for _ in 0..segments {
                let weight = weight.clone();
                x = recompute(&[&x], move |x| Ok((vec![x[0].mul(&weight)?], ())))?.0.remove(0);
            }
            x.sum(..)
        };
        step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).map(drop)
    };
    run(1).unwrap();
    let error = run(2).unwrap_err();
    assert!(error.to_string().contains("a weight got a gradient after its layerwise update"), "{error}");
}

/// The head's gradient is of several chunks of tokens, whose sum becomes the memory of the whole.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_large_tied_table_has_one_gradient() {
    const VOCAB: usize = 20_096;
    let steps = |device: &Device, layerwise: bool| {
        let mut keys = init_keys(3);
        let mut table = Shared(Embedding::new(VOCAB, 16, 0.5, keys()).unwrap());
        let options = ArenaOptions { layerwise, ..ArenaOptions::new(DType::F32) };
        let arena = ParameterArena::with_options(&mut table, device, options).unwrap();
        let mut optimizer = Optimizer::new(&arena, ADAMW, 0.0, 0.0).unwrap();
        let ids: Vec<u32> = (0..4000).map(|i| i * i * 7 % VOCAB as u32).collect();
        let ids = Tensor::from_u32(&ids, [ids.len()], device).unwrap();
        let most = most_gradients(device, || {
            for _ in 0..2 {
                let loss = |_, scale: Option<&Tensor>| {
                    let x = table.0.forward(&ids)?.tanh()?;
                    x.linear_cross_entropy(table.0.weight.operand(), &ids, Criterion::default(), scale)
                };
                step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).unwrap();
            }
        });
        (arena, most)
    };
    for device in Device::for_tests() {
        let [whole, layerwise] = [false, true].map(|layerwise| steps(&device, layerwise).0);
        assert!(whole.values().to_f32().unwrap() == layerwise.values().to_f32().unwrap(), "{device}");
    }
    for device in dry_runs() {
        let (table, (_, most)) = (4 * VOCAB * 16, steps(&device, true));
        assert!((table..table + table / 2).contains(&most), "{device}: {most} of {table}");
    }
}

struct Shared(Embedding);

impl Module for Shared {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.0.visit_parameters(prefix, visit);
    }
}

#[test]
fn a_step_that_runs_out_of_memory_can_be_retried_only_before_its_first_update() {
    fail_every_allocation(DType::F32, Layerwise);
    fail_every_allocation(DType::F16, OnHost);
}

fn fail_every_allocation(operands: DType, updates: Updates) {
    let (mut undone, mut half_way, mut allocations) = (0, 0, 0);
    let ids = Tensor::from_u32(&IDS, [IDS.len()], &Device::Cpu).unwrap();
    loop {
        let mut net = Net::new(1);
        let arena = with_at_most(MOST, || arena(&mut net, &Device::Cpu, operands, ADAMW, updates));
        let mut optimizer = optimizer(&arena, ADAMW, MomentDtype::F32, 1.0);
        let before = arena.values().to_f32().unwrap();
        let loss = |_, scale: Option<&Tensor>| net.loss(&ids, scale);
        let countdown = Countdown::own();
        countdown.start(allocations);
        let update = step_alone((&arena, &mut optimizer), Losses::Parts, 0..1, loss, 0.01).map(drop);
        if countdown.stop().is_some() {
            break update.unwrap();
        }
        allocations += 1;
        let is_unchanged = arena.values().to_f32().unwrap() == before;
        match update {
            Err(Error::OutOfMemory { .. }) if is_unchanged => undone += 1,
            Err(Error::Invalid(message)) if message.contains("resume from the last checkpoint") => half_way += 1,
            other => panic!("allocation {allocations}: {other:?}, unchanged: {is_unchanged}"),
        }
    }
    assert!(undone > 5 && half_way > 5, "{undone}, {half_way}");
}
