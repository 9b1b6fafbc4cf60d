//! Runs whose parameters are updated while backward runs.

use super::recompute::{configuration, gpt2_124m, outcome, run};
use crate::Device;
use crate::gpu::Limits;
use crate::profile::MemoryKind;
use crate::testing::buffers::with_at_most;
use crate::train::plan::Footprint;
use crate::train::step::ranks::Place;
use crate::train::verify_resume;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const LAYERWISE: &str = "train.update=layerwise";
const OFFLOAD: &str = "train.offload=optimizer";
const ONE_PASS: &str = "train.grad_accum_steps=1";

/// So small that every block has buckets of its own.
const MOST: usize = 1024;

/// The tensors of a safetensors file, by name.
fn tensors(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let file = safetensors::SafeTensors::deserialize(file).unwrap();
    file.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn without_clipping_a_run_has_the_bits_of_updates_after_backward() {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed"));
    let devices = Device::for_tests().into_iter().map(|device| (device, "device.precision=f32")).chain(mixed);
    for (device, precision) in devices {
        for (kind, recompute) in [("gpt2", "none"), ("llama", "block"), ("qwen3", "none")] {
            let dir = tempfile::tempdir().unwrap();
            let (kind, recompute) = (format!("model.kind={kind}"), format!("train.recompute={recompute}"));
            let of = |name: &str, update: &str| {
                let (name, update) = (format!("run.name={name}"), format!("train.update={update}"));
                let settings = [precision, &kind, &recompute, &name, &update, ONE_PASS, "train.grad_clip=0"];
                with_at_most(MOST, || run(&configuration(dir.path(), &settings), &device, None, 6));
                outcome(&dir.path().join(name.trim_start_matches("run.name=")))
            };
            let ((weights, moments, numbers), (own_weights, own_moments, own_numbers)) =
                (of("step", "step"), of("layerwise", "layerwise"));
            let what = format!("{device} {precision} {kind} {recompute}");
            assert!(weights == own_weights, "{what}: weights");
            // A file of layerwise updates has the norm of the last step too.
            let (moments, own_moments) = (tensors(&moments), tensors(&own_moments));
            assert_eq!(own_moments.len(), moments.len() + 1, "{what}");
            assert!(moments.iter().all(|(name, bytes)| own_moments[name] == *bytes), "{what}: moments");
            let losses = |numbers: &[String]| -> Vec<String> {
                numbers.iter().map(|line| line.rsplit_once(' ').unwrap().0.to_string()).collect()
            };
            assert_eq!(losses(&numbers), losses(&own_numbers), "{what}");
        }
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_resumed_run_is_the_same_to_the_bit() {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed"));
    let devices = Device::for_tests().into_iter().map(|device| (device, "optimizer.state_dtype=int8"));
    let devices = devices.chain(mixed).map(|(device, setting)| (device, setting, LAYERWISE));
    let offloaded = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "device.precision=mixed", OFFLOAD));
    for (device, setting, updates) in devices.chain(offloaded) {
        let dir = tempfile::tempdir().unwrap();
        // Clipped in every step.
        let settings = [updates, ONE_PASS, "train.grad_clip=0.1", "train.recompute=block", setting];
        let (resolved, stop) = (configuration(dir.path(), &settings), AtomicBool::new(false));
        let devices = std::slice::from_ref(&device);
        let verified =
            with_at_most(MOST, || verify_resume(&resolved, 3, devices, Path::new("data"), None, &stop).unwrap());
        assert!(verified.differences.is_empty(), "{device} {setting} {updates}: {:?}", verified.differences);
    }
}

/// From updates after backward to layerwise ones and back, in the middle of a run.
#[test]
fn a_run_may_change_when_it_updates() {
    let dir = tempfile::tempdir().unwrap();
    let of = |update: &str| {
        let update = format!("train.update={update}");
        configuration(dir.path(), &["run.name=a", &update, ONE_PASS, "train.grad_clip=0"])
    };
    let whole = configuration(dir.path(), &["run.name=whole", ONE_PASS, "train.grad_clip=0"]);
    run(&whole, &Device::Cpu, None, 6);
    run(&of("step"), &Device::Cpu, None, 2);
    let folder = dir.path().join("a");
    run(&of("layerwise"), &Device::Cpu, Some(&folder), 4);
    run(&of("step"), &Device::Cpu, Some(&folder), 6);
    let (changed, undisturbed) = (outcome(&folder), outcome(&dir.path().join("whole")));
    assert!(changed.0 == undisturbed.0 && changed.1 == undisturbed.1, "weights or moments differ");
}

/// GPT-2 with 124 million parameters: without a GPU, for none of it has values.
#[test]
fn gradients_take_the_memory_of_a_few_layers() {
    let dir = tempfile::tempdir().unwrap();
    let shape = gpt2_124m(64);
    // One that binds the table as a whole.
    let limits = Limits { binding_bytes: 1 << 30, buffer_bytes: 1 << 30, ..Limits::WEBGPU_DEFAULT };
    let dry_run = crate::tensor::DryRun::new(limits);
    for device in [Device::Cpu, Device::DryRun(dry_run)] {
        let of = |update: &str| {
            let settings = [&format!("train.update={update}"), ONE_PASS, "model.dropout=0", "model.block_size=64"];
            let resolved = configuration(dir.path(), &settings);
            let footprint = Footprint::new(&resolved.config, &shape, 1, 1, false, (&device, Place::ALONE)).unwrap();
            (footprint.memory.peak_by_kind[MemoryKind::Gradients], footprint.memory.peak_bytes)
        };
        let ((gradients, peak), (own_gradients, own_peak)) = (of("step"), of("layerwise"));
        let table = 4 * 50_304 * 768;
        assert!(gradients > 4 * 124_000_000, "{device}: {gradients}");
        // The table's, which is complete last, and a bucket or two of 64 MiB beside the gradients of activations.
        assert!((table..table + (160 << 20)).contains(&own_gradients), "{device}: {own_gradients}");
        assert!(peak - own_peak > 180_000_000, "{device}: {peak} {own_peak}");
    }
}
