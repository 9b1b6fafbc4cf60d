//! Attention against the definition in f64, and in every way that a GPU may run it.

use super::*;
use crate::gpu::{Gpu, gpu_for_tests};
use crate::ops::random::splitmix64;
use crate::profile::MemoryKind;
use crate::tensor::{Device, run, run_into};
use crate::testing::assert_close;

/// Values in -1..1.
fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// y as the definition has it, in f64, with the whole matrix.
fn definition(op: &Attention, d: Dims, qkv: &[f32]) -> Vec<f64> {
    let (hs, width) = (d.head_size, d.width());
    let mut y = vec![0.0; d.batch * d.time * width];
    for b in 0..d.batch {
        for h in 0..d.n_head {
            let at = |part: usize, t: usize, c: usize| {
                f64::from(qkv[(b * d.time + t) * 3 * width + part * width + h * hs + c])
            };
            for i in 0..d.time {
                let score = |j: usize| (0..hs).map(|c| at(0, i, c) * at(1, j, c)).sum::<f64>() / (hs as f64).sqrt();
                let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (j, weight) in weights.iter().enumerate() {
                    let kept = op.dropout.map_or(1.0, |(p, key)| {
                        let bits = key.row(((b * d.n_head + h) * d.time + i) as u32).bits(j as u32);
                        if bits >= drop_threshold(p) { 1.0 / (1.0 - f64::from(p)) } else { 0.0 }
                    });
                    for c in 0..hs {
                        y[(b * d.time + i) * width + h * hs + c] += kept * weight / total * at(2, j, c);
                    }
                }
            }
        }
    }
    y
}

#[test]
fn cpu_computes_the_definition() {
    for (batch, time, n_head, head_size) in [(2, 1, 1, 1), (1, 65, 2, 3), (2, 129, 1, 17), (1, 70, 3, 64)] {
        for dropout in [None, Some((0.3, Key::new(5)))] {
            let op = Attention { n_head, dropout };
            let d = Dims { batch, time, n_head, head_size };
            let qkv = uniform(batch * time * 3 * d.width(), 3);
            let want = definition(&op, d, &qkv);
            let qkv = Tensor::from_f32(&qkv, [batch, time, 3 * d.width()], &Device::Cpu).unwrap();
            let y = qkv.causal_attention(n_head, dropout).unwrap().to_f32().unwrap();
            // Sums of at most 129 terms below 1.5, each rounded to 6e-8.
            assert_close(format!("{d:?} {dropout:?}"), &y, &want, 2e-6, 0.0);
        }
    }
}

/// Forward and backward in these tiles.
fn run_tiled(gpu: &Gpu, tiling: Tiling, op: Attention, qkv: &Tensor, dy: &Tensor) -> [Vec<f32>; 3] {
    let dims = op.dims(qkv.spec());
    let launch = |kernel: &dyn Kernel, plan: Plan, inputs: &[&Tensor]| -> Vec<Tensor> {
        let specs: Vec<&Spec> = inputs.iter().map(|t| t.spec()).collect();
        let outputs = kernel.output_specs(&specs).unwrap();
        let outputs: Vec<Tensor> = outputs
            .into_iter()
            .map(|s| Tensor::empty(s, &Device::Gpu(gpu.clone()), MemoryKind::Other).unwrap())
            .collect();
        let read: Vec<_> = inputs.iter().map(|t| t.storage().gpu()).collect();
        let write: Vec<_> = outputs.iter().map(|t| t.storage().gpu()).collect();
        gpu.run(kernel.name(), Cost::default(), plan, &read, &write).unwrap();
        outputs
    };
    let forward = launch(&op, op.forward_plan(dims, DType::F32, tiling), &[qkv]);
    let plan = op.backward_tiled(dims, DType::F32, tiling, gpu.limits());
    let backward = launch(&AttentionBackward(op), plan, &[qkv, &forward[0], &forward[1], dy]);
    [&forward[0], &forward[1], &backward[0]].map(|t| t.to_f32().unwrap())
}

#[test]
fn gpu_agrees_with_every_tiling() {
    let Some(gpu) = gpu_for_tests() else { return };
    // A software adapter promises less memory for workgroups than it has: there it is ordinary memory.
    let fits = |t: &Tiling| gpu.info().is_software() || t.workgroup_bytes() <= gpu.limits().workgroup_bytes;
    let tilings: Vec<Tiling> = [Tiling::SMALL, Tiling::MIDDLE, Tiling::LARGE].into_iter().filter(fits).collect();
    // Beyond, within and exactly at the edges of tiles; the last has two query blocks of 256.
    for (batch, time, head_size) in [(1, 1, 4), (1, 97, 64), (2, 33, 5), (3, 70, 128), (2, 128, 64), (2, 512, 16)] {
        let op = Attention { n_head: 2, dropout: Some((0.2, Key::new(9))) };
        let shape = [batch, time, 6 * head_size];
        let (qkv, dy) = (uniform(batch * time * 6 * head_size, 1), uniform(batch * time * 2 * head_size, 2));
        let tensors = |device: &Device| {
            let qkv = Tensor::from_f32(&qkv, shape, device).unwrap();
            (qkv, Tensor::from_f32(&dy, [batch, time, 2 * head_size], device).unwrap())
        };
        let (qkv_cpu, dy_cpu) = tensors(&Device::Cpu);
        let forward = run(&op, &[&qkv_cpu]).unwrap();
        let dqkv = run(&AttentionBackward(op), &[&qkv_cpu, &forward[0], &forward[1], &dy_cpu]).unwrap();
        let want = [&forward[0], &forward[1], &dqkv[0]].map(|t| t.to_f32().unwrap());
        let (qkv_gpu, dy_gpu) = tensors(&Device::Gpu(gpu.clone()));
        for &tiling in &tilings {
            let got = run_tiled(&gpu, tiling, op, &qkv_gpu, &dy_gpu);
            for (what, (got, want)) in ["y", "lse", "dqkv"].iter().zip(got.iter().zip(&want)) {
                // Sums of up to 128 terms around 1, in another order.
                assert_close(
                    format!("B {batch}, T {time}, head {head_size}, {tiling:?}: {what}"),
                    got,
                    want,
                    1e-5,
                    0.0,
                );
            }
        }
    }
}

#[test]
fn tiles_follow_the_length_and_how_many_heads_there_are() {
    let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
    let rows =
        |batch, time, n_head, limits: &Limits| Tiling::choose(Dims { batch, time, n_head, head_size: 64 }, limits).rows;
    // shakespeare-char with 1, 8, 16 and 64 sequences; seed; gpt2-124m with 16 and one; a prompt of one token.
    for (batch, time, n_head, want) in [
        (1, 256, 6, 64),
        (8, 256, 6, 64),
        (16, 256, 6, 32),
        (64, 256, 6, 32),
        (32, 64, 4, 64),
        (16, 1024, 12, 128),
        (1, 1024, 12, 64),
        (1, 1, 6, 32),
    ] {
        assert_eq!(rows(batch, time, n_head, &limits), want, "{batch} x {time}, {n_head} heads");
        assert_eq!(rows(batch, time, n_head, &Limits::WEBGPU_DEFAULT), 32, "{batch} x {time}, {n_head} heads");
    }
    // Too little memory in a workgroup for large tiles, and none that can be bound for the dS of 64 rows.
    let apple = Limits { workgroup_bytes: 32 << 10, ..limits.clone() };
    assert_eq!([(1, 12), (16, 12)].map(|(batch, n_head)| rows(batch, 1024, n_head, &apple)), [64, 32]);
    let bound = Limits { binding_bytes: 6 * 256 * 63 * 4, ..limits.clone() };
    assert_eq!(rows(1, 256, 6, &bound), 32);
}

#[test]
fn two_runs_give_the_same_bits() {
    let mut devices = vec![Device::Cpu];
    devices.extend(gpu_for_tests().map(Device::Gpu));
    for device in devices {
        let op = Attention { n_head: 3, dropout: None };
        for dtype in [DType::F32, DType::F16] {
            if dtype == DType::F16 && !device.has_f16() {
                continue;
            }
            let tensor = |width: usize, seed| {
                let values = uniform(2 * 130 * width, seed);
                Tensor::from_f32(&values, [2, 130, width], &device).unwrap().to_dtype(dtype).unwrap()
            };
            let (qkv, dy) = (tensor(3 * 48, 1), tensor(48, 2));
            let once = || {
                let forward = run(&op, &[&qkv]).unwrap();
                let dqkv = run(&AttentionBackward(op), &[&qkv, &forward[0], &forward[1], &dy]).unwrap();
                [forward[0].to_bytes().unwrap(), dqkv[0].to_bytes().unwrap()]
            };
            assert!(once() == once(), "{device}, {}", dtype.name());
        }
    }
}

/// A query that sees nothing but -infinity has no weights; it must not look at what comes after it.
#[test]
fn a_row_of_minus_infinity_ends_as_nan() {
    let mut devices = vec![Device::Cpu];
    devices.extend(gpu_for_tests().map(Device::Gpu));
    for device in devices {
        for dtype in [DType::F32, DType::F16] {
            if dtype == DType::F16 && !device.has_f16() {
                continue;
            }
            // q_0 . k_0 = -infinity; all else is finite.
            let mut qkv = uniform(20 * 48, 1);
            qkv[0] = f32::INFINITY;
            qkv[16] = -1.0;
            for (t, row) in qkv.chunks_mut(48).enumerate().skip(1) {
                row[16] = if t % 2 == 0 { -1.0 } else { -0.5 };
            }
            let qkv = Tensor::from_f32(&qkv, [1, 20, 48], &device).unwrap().to_dtype(dtype).unwrap();
            let y = run(&Attention { n_head: 1, dropout: None }, &[&qkv]).unwrap().remove(0).to_f32().unwrap();
            assert!(y[..16].iter().all(|y| y.is_nan()), "{device}, {}: {:?}", dtype.name(), &y[..16]);
            assert!(y[16..].iter().all(|y| y.is_finite()), "{device}, {}", dtype.name());
        }
    }
}

#[test]
fn refuses_shapes_that_are_not_packed_heads() {
    let device = Device::Cpu;
    for (shape, n_head) in [(vec![2, 12], 1), (vec![1, 2, 13], 1), (vec![1, 2, 12], 3), (vec![1, 2, 12], 0)] {
        let x = Tensor::zeros(shape.clone(), DType::F32, &device).unwrap();
        let error = x.causal_attention(n_head, None).unwrap_err().to_string();
        assert!(error.contains("packed"), "{shape:?}: {error}");
    }
    let wide = Tensor::zeros([1, 1, 3 * 129], DType::F32, &device).unwrap();
    assert!(wide.causal_attention(1, None).unwrap_err().to_string().contains("128"));
    let x = Tensor::zeros([1, 2, 12], DType::F32, &device).unwrap();
    let error = x.causal_attention(1, Some((1.0, Key::new(0)))).unwrap_err().to_string();
    assert!(error.contains("dropout"), "{error}");
    // The output must be as large as it says, whoever provides it.
    assert!(run_into(&Attention { n_head: 1, dropout: None }, &[&x], &[&x, &x]).is_err());
}

#[test]
fn tokens_whose_keys_are_kept_get_the_attention_of_the_whole() {
    for device in Device::for_tests() {
        // More keys than a workgroup takes at a time; heads that fill it and that leave much of it idle.
        for (time, n_head, head_size) in
            [(300, 2, 5), (140, 1, 128), (131, 3, 64), (9, 2, 1), (129, 2, 3), (128, 1, 100)]
        {
            let width = n_head * head_size;
            let values = uniform(time * 3 * width, 11);
            let qkv = Tensor::from_f32(&values, [1, time, 3 * width], &device).unwrap();
            let want = qkv.causal_attention(n_head, None).unwrap().to_f32().unwrap();
            let cache = Tensor::full(f32::NAN, [time, 2 * width], &device).unwrap();
            let (mut got, mut start) = (Vec::new(), 0);
            for tokens in [3, 1, 1, 2].into_iter().chain(std::iter::repeat(60)) {
                // The last ones singly: those that fill a split of keys and that begin one.
                let tokens = tokens.min((time - start).div_ceil(2));
                let part = &values[start * 3 * width..][..tokens * 3 * width];
                let part = Tensor::from_f32(part, [1, tokens, 3 * width], &device).unwrap();
                got.extend(part.cached_attention(n_head, &cache, start).unwrap().to_f32().unwrap());
                start += tokens;
                if start == time {
                    break;
                }
            }
            // Sums of at most 300 terms below 1, each rounded to 6e-8, in another order.
            assert_close(format!("{device}, {time}, {n_head} x {head_size}"), &got, &want, 2e-6, 0.0);

            let one = Tensor::from_f32(&values[..3 * width], [1, 1, 3 * width], &device).unwrap();
            assert!(one.cached_attention(n_head, &cache, time).is_err(), "the cache is full");
            assert!(one.cached_attention(n_head, &qkv, 0).is_err(), "no cache");
        }
    }
}
