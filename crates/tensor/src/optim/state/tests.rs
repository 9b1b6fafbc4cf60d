//! Moments that are saved and read again.

use super::*;
use crate::Device;
use crate::nn::Module;
use crate::optim::Kind;
use crate::optim::testing::{self, DTYPES, KINDS, Net};

fn setup(kind: Kind) -> (Net, ParameterArena, Optimizer) {
    setup_in(kind, MomentDtype::F32)
}

fn setup_in(kind: Kind, dtype: MomentDtype) -> (Net, ParameterArena, Optimizer) {
    let mut model = Net::new(1);
    let (parameters, optimizer) = testing::optimizer_in(&mut model, &Device::Cpu, kind, dtype);
    (model, parameters, optimizer)
}

fn cases() -> impl Iterator<Item = (Kind, MomentDtype)> {
    KINDS.into_iter().flat_map(|kind| DTYPES.map(|dtype| (kind, dtype)))
}

fn encode(parameters: &ParameterArena, optimizer: &Optimizer) -> Vec<u8> {
    let arenas = optimizer.moments().into_iter().map(|(name, arena)| (name, Bytes::owned(arena.to_bytes().unwrap())));
    Moments::new(parameters, arenas.collect()).encode().unwrap()
}

fn restore(optimizer: &mut Optimizer, parameters: &ParameterArena, path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).unwrap();
    optimizer.restore(parameters, &SavedMoments::new(path, &bytes)?, 3, 0, 1)
}

/// A step with other gradients each time.
fn step(optimizer: &mut Optimizer, parameters: &ParameterArena, number: usize) {
    let mut values = vec![0.0; parameters.trainable_len()];
    for i in parameters.entries.iter().flat_map(Entry::range) {
        values[i] = ((i * 7 + number * 13) % 11) as f32 - 5.0;
    }
    parameters.gradients().unwrap().write_bytes(bytemuck::cast_slice(&values)).unwrap();
    optimizer.step(parameters, 0.1).unwrap();
}

#[test]
fn a_restored_optimizer_goes_on_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    for (kind, dtype) in cases() {
        let (mut model, parameters, mut optimizer) = setup_in(kind, dtype);
        (0..3).for_each(|i| step(&mut optimizer, &parameters, i));
        std::fs::write(&path, encode(&parameters, &optimizer)).unwrap();
        let (mut other_model, other_parameters, mut other) = setup_in(kind, dtype);
        other_parameters.values().write_bytes(&parameters.values().to_bytes().unwrap()).unwrap();
        restore(&mut other, &other_parameters, &path).unwrap();
        step(&mut optimizer, &parameters, 3);
        step(&mut other, &other_parameters, 3);
        for ((name, left), (_, right)) in model.parameters().iter().zip(other_model.parameters()) {
            assert_eq!(left.to_bytes().unwrap(), right.to_bytes().unwrap(), "{kind:?} {dtype:?} {name}");
        }
    }
}

/// A run may change the type when it is resumed: the numbers are the same, as near as 8 bits are.
#[test]
fn moments_of_either_type_are_taken_for_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    let numbers = |state: &State| -> Vec<(&str, Vec<f32>)> {
        let names = state.group.kind.moment_names();
        let of = |(i, name): (usize, &&'static str)| match state.group.moment_dtype {
            MomentDtype::F32 => (*name, state.moments[i].to_f32().unwrap()),
            MomentDtype::Int8 => (*name, int8::decoded(&state.moments[0].to_u32().unwrap(), names, name)),
        };
        names.iter().enumerate().map(of).collect()
    };
    for (kind, dtype) in cases() {
        let (_model, parameters, mut optimizer) = setup_in(kind, dtype);
        (0..3).for_each(|i| step(&mut optimizer, &parameters, i));
        std::fs::write(&path, encode(&parameters, &optimizer)).unwrap();
        let (_model, other_parameters, mut other) = setup_in(kind, DTYPES[usize::from(dtype == DTYPES[0])]);
        restore(&mut other, &other_parameters, &path).unwrap();
        for (own, other) in optimizer.states.iter().zip(&other.states) {
            for ((name, own), (_, other)) in numbers(own).iter().zip(&numbers(other)) {
                for (own, other) in own.chunks(BLOCK).zip(other.chunks(BLOCK)) {
                    let largest = own.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.0075 * largest;
                    assert!(own.iter().zip(other).all(near) && largest > 0.0, "{kind:?} {dtype:?} {name}");
                }
            }
        }
    }
}

#[test]
fn gradients_that_are_no_numbers_change_nothing_and_are_counted() {
    for device in crate::gpu::gpu_for_tests().map(Device::Gpu).into_iter().chain([Device::Cpu]) {
        for (kind, dtype) in cases() {
            let (parameters, mut optimizer) = testing::optimizer_in(&mut Net::new(1), &device, kind, dtype);
            step(&mut optimizer, &parameters, 1);
            let state = |optimizer: &Optimizer| {
                let values = parameters.values().to_bytes().unwrap();
                let moments: Vec<_> = optimizer.moments().iter().map(|(_, m)| m.to_bytes().unwrap()).collect();
                (values, moments, optimizer.skipped().to_u32().unwrap())
            };
            let (values, moments, skipped) = state(&optimizer);
            assert_eq!(skipped, [0]);
            // The square of the last is not finite, though it is.
            for (count, bad) in [f32::NAN, f32::NEG_INFINITY, 1e30].into_iter().enumerate() {
                let mut gradients = vec![0.5; parameters.trainable_len()];
                gradients[7] = bad;
                parameters.gradients().unwrap().write_bytes(bytemuck::cast_slice(&gradients)).unwrap();
                optimizer.step(&parameters, 0.1).unwrap();
                assert!(
                    state(&optimizer) == (values.clone(), moments.clone(), vec![count as u32 + 1]),
                    "{kind:?} {dtype:?} {bad}"
                );
            }
            step(&mut optimizer, &parameters, 2);
            assert!(state(&optimizer).0 != values, "{kind:?} {dtype:?} goes on");
        }
    }
}

#[test]
fn the_moments_of_another_rule_or_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    let (_model, parameters, optimizer) = setup(KINDS[0]);
    std::fs::write(&path, encode(&parameters, &optimizer)).unwrap();
    let (_model, parameters, mut sgd) = setup(KINDS[2]);
    let error = restore(&mut sgd, &parameters, &path).unwrap_err().to_string();
    assert!(error.contains("optimizer.safetensors") && error.contains("tensors"), "{error}");
    let (_model, mut parameters, mut adamw) = setup(KINDS[0]);
    parameters.entries[0].name = "other".into();
    let error = restore(&mut adamw, &parameters, &path).unwrap_err().to_string();
    assert!(error.contains("has no tensor exp_avg.other"), "{error}");
    std::fs::write(&path, b"short").unwrap();
    assert!(restore(&mut adamw, &parameters, &path).unwrap_err().to_string().contains("is damaged"));
}

/// Of a fused matrix B had blocks of zeros, and so another shape.
#[test]
fn the_moments_of_an_earlier_adapter_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("optimizer.safetensors");
    let (_model, mut parameters, mut adamw) = setup(KINDS[0]);
    parameters.entries[0].name = "c_attn.lora_B.weight".into();
    std::fs::write(&path, encode(&parameters, &adamw)).unwrap();
    let reversed: Vec<usize> = parameters.entries[0].shape.iter().rev().copied().collect();
    parameters.entries[0].shape = reversed.into();
    let error = restore(&mut adamw, &parameters, &path).unwrap_err().to_string();
    let parts = ["optimizer.safetensors", "c_attn.lora_B.weight", "[65, 24]", "[24, 65]", "`rustyflow merge`"];
    parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
}

/// Ranks that trained apart: each takes its own, one alone and others take the mean.
#[test]
fn moments_of_several_ranks_are_each_ranks_or_their_mean() {
    let (_model, parameters, mut optimizer) = setup(KINDS[0]);
    let mut tensors = Vec::new();
    for rank in 0..3 {
        step(&mut optimizer, &parameters, rank);
        let of = |(moment, t): (Moment, &Tensor)| (Moment { rank, ..moment }, Bytes::owned(t.to_bytes().unwrap()));
        tensors.extend(optimizer.moments().into_iter().map(of));
    }
    let momentum: Vec<f32> = (0..parameters.trainable_len()).map(|i| i as f32).collect();
    let bytes = Bytes::owned(bytemuck::cast_slice(&momentum).to_vec());
    let all: Vec<Vec<f32>> =
        tensors.iter().map(|(_, bytes): &(Moment, Bytes)| bytemuck::pod_collect_to_vec(bytes)).collect();
    tensors.push((Moment::outer(&parameters), bytes));
    let file = Moments::new(&parameters, tensors).encode().unwrap();
    let saved = SavedMoments::new("a".as_ref(), &file).unwrap();
    assert_eq!(saved.ranks(), 3);
    let mut taken = |rank, ranks| {
        optimizer.restore(&parameters, &saved, 3, rank, ranks).unwrap();
        optimizer.moments().iter().map(|(_, tensor)| tensor.to_f32().unwrap()).collect::<Vec<_>>()
    };
    for rank in 0..3 {
        assert!(taken(rank, 3) == all[2 * rank..][..2], "{rank}");
    }
    for (i, moment) in taken(1, 2).iter().enumerate() {
        let mean = |j: usize| (all[i][j] + all[2 + i][j] + all[4 + i][j]) / 3.0;
        assert!(moment.iter().enumerate().all(|(j, value)| (value - mean(j)).abs() < 1e-5), "{i}");
    }
    let outer = saved.outer_momentum(&parameters).unwrap();
    for entry in parameters.entries.iter() {
        assert_eq!(outer[entry.range()], momentum[entry.range()]);
    }
}
