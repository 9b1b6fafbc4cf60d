//! Every GPU variant of attention against the definition in f64.

use super::*;
use crate::gpu::{Gpu, gpu_for_tests};
use crate::ops::random::splitmix64;
use crate::profile::MemoryKind;
use crate::tensor::{Device, run, run_into};
use crate::testing::{assert_close, assert_within};

/// Values in -1..1.
fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

fn attention(n_head: usize, dropout: Option<(f32, Key)>) -> Attention {
    Attention { heads: Heads::multi_head(n_head), documents: false, dropout }
}

fn dims(op: &Attention, batch: usize, time: usize, head_size: usize) -> Dims {
    Dims { batch, time, n_head: op.heads.n_head, n_kv_head: op.heads.n_kv_head, head_size }
}

/// Heads of queries, keys and values, a window and documents in all kinds of combinations, each with n_head of 6 or 2.
fn patterns() -> Vec<Attention> {
    let dropout = Some((0.3, Key::new(5)));
    [
        (2, 2, None, false, None),
        (2, 2, None, false, dropout),
        (6, 2, None, false, dropout),
        (6, 1, None, false, None),
        (2, 2, Some(1), false, None),
        (2, 2, Some(40), false, dropout),
        (2, 1, None, true, None),
        (6, 2, Some(21), true, dropout),
    ]
    .map(|(n_head, n_kv_head, window, documents, dropout)| Attention {
        heads: Heads { n_head, n_kv_head, window },
        documents,
        dropout,
    })
    .into()
}

/// Documents of 1, 2, .. tokens and of 70, which begin elsewhere in each row: (B, T).
fn starts(batch: usize, time: usize) -> Vec<u32> {
    let row = |b: usize| {
        let lengths = (1..).map(move |n| if (n + b) % 4 == 3 { 70 } else { n + b });
        lengths.scan(0, |start, n| Some((std::mem::replace(start, *start + n), n)))
    };
    let row = |b| row(b).flat_map(|(start, n)| std::iter::repeat_n(start as u32, n)).take(time).collect::<Vec<_>>();
    (0..batch).flat_map(row).collect()
}

/// The inputs of attention besides qkv: where documents begin, if there are any.
fn documents(op: &Attention, [batch, time]: [usize; 2], device: &Device) -> Option<Tensor> {
    op.documents.then(|| Tensor::from_u32(&starts(batch, time), [batch, time], device).unwrap())
}

/// y as the definition has it, in f64, with the whole matrix.
fn definition(op: &Attention, d: Dims, qkv: &[f32]) -> Vec<f64> {
    let (hs, width) = (d.head_size, d.width());
    let starts = starts(d.batch, d.time);
    let mut y = vec![0.0; d.batch * d.time * width];
    for b in 0..d.batch {
        for h in 0..d.n_head {
            let kv_head = h / (d.n_head / d.n_kv_head);
            let heads = [h, d.n_head + kv_head, d.n_head + d.n_kv_head + kv_head];
            let at = |part: usize, t: usize, c: usize| {
                f64::from(qkv[((b * d.time + t) * (d.n_head + 2 * d.n_kv_head) + heads[part]) * hs + c])
            };
            for i in 0..d.time {
                let score = |j: usize| (0..hs).map(|c| at(0, i, c) * at(1, j, c)).sum::<f64>() / (hs as f64).sqrt();
                let document = if op.documents { starts[b * d.time + i] as usize } else { 0 };
                let first = document.max(op.heads.window.map_or(0, |window| (i + 1).saturating_sub(window)));
                let weights: Vec<f64> = (0..=i).map(|j| if j < first { 0.0 } else { score(j).exp() }).collect();
                let total: f64 = weights.iter().sum();
                for (j, weight) in weights.iter().enumerate() {
                    let kept = op.dropout.map_or(1.0, |(p, key)| {
                        let bits = key.row(((b * d.n_head + h) * d.time + i) as u32).mask_bits(j as u32);
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
    for (batch, time, head_size) in [(2, 1, 1), (1, 65, 3), (2, 129, 17), (1, 70, 64)] {
        for op in patterns() {
            let d = dims(&op, batch, time, head_size);
            let qkv = uniform(batch * time * d.packed_width(), 3);
            let want = definition(&op, d, &qkv);
            let qkv = Tensor::from_f32(&qkv, [batch, time, d.packed_width()], &Device::Cpu).unwrap();
            let documents = documents(&op, [batch, time], &Device::Cpu);
            let y = qkv.causal_attention(op.heads, documents.as_ref(), op.dropout).unwrap().to_f32().unwrap();
            // Sums of at most 129 terms below 1.5, each rounded to 6e-8.
            assert_close(format!("{d:?} {op:?}"), &y, &want, 2e-6, 0.0);
        }
    }
}

/// Forward and backward by these plans.
fn run_plans(gpu: &Gpu, op: Attention, plans: [Plan; 2], [qkv, dy]: [&Tensor; 2], rest: &[&Tensor]) -> [Vec<f32>; 3] {
    let [forward, backward] = plans;
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
    let forward = launch(&op, forward, &[&[qkv], rest].concat());
    let backward = launch(&AttentionBackward(op), backward, &[&[qkv, &forward[0], &forward[1], dy], rest].concat());
    [&forward[0], &forward[1], &backward[0]].map(|t| t.to_f32().unwrap())
}

/// Beyond, within and exactly at the edges of tiles; groups of queries, a band within a tile and beyond one, documents.
/// Some have two query blocks of 256. Of each B, T and the head size.
fn cases() -> Vec<(Attention, [usize; 3])> {
    let multi_head = attention(2, Some((0.2, Key::new(9))));
    let of = |n_kv_head, window, documents| Attention {
        heads: Heads { n_head: 4, n_kv_head, window },
        documents,
        ..multi_head
    };
    vec![
        (multi_head, [1, 1, 4]),
        (multi_head, [1, 97, 64]),
        (multi_head, [2, 33, 5]),
        (multi_head, [3, 70, 128]),
        (multi_head, [2, 128, 64]),
        (multi_head, [2, 512, 16]),
        (of(2, None, false), [2, 97, 8]),
        (of(4, Some(20), false), [1, 150, 8]),
        (of(2, Some(150), true), [2, 300, 16]),
    ]
}

/// Forward and backward in these ways, compared with the CPU's. Queries and keys are between -1 and 1 times the first
/// of `sizes`, values times the second, dy times the third.
fn assert_agrees(gpu: &Gpu, op: Attention, [batch, time, head_size]: [usize; 3], sizes: [f32; 3], ways: &Ways) {
    let d = dims(&op, batch, time, head_size);
    let is_value = |i: usize| i % d.packed_width() >= (d.n_head + d.n_kv_head) * head_size;
    let [of_keys, of_values, of_dy] = sizes;
    let mut qkv = uniform(batch * time * d.packed_width(), 1);
    for (i, x) in qkv.iter_mut().enumerate() {
        *x *= if is_value(i) { of_values } else { of_keys };
    }
    let dy: Vec<f32> = uniform(batch * time * d.width(), 2).iter().map(|x| x * of_dy).collect();
    let size = |what, i| match what {
        "y" => of_values,
        "dqkv" if is_value(i) => of_dy,
        "dqkv" => of_dy * of_values * of_keys,
        _ => 1.0,
    };
    let tensors = |device: &Device| {
        let qkv = Tensor::from_f32(&qkv, [batch, time, d.packed_width()], device).unwrap();
        let dy = Tensor::from_f32(&dy, [batch, time, d.width()], device).unwrap();
        (qkv, dy, documents(&op, [batch, time], device))
    };
    let (qkv_cpu, dy_cpu, rest) = tensors(&Device::Cpu);
    let rest: Vec<&Tensor> = rest.iter().collect();
    let forward = run(&op, &[&[&qkv_cpu], &rest[..]].concat()).unwrap();
    let inputs = [&[&qkv_cpu, &forward[0], &forward[1], &dy_cpu], &rest[..]].concat();
    let dqkv = run(&AttentionBackward(op), &inputs).unwrap();
    let want = [&forward[0], &forward[1], &dqkv[0]].map(|t| t.to_f32().unwrap());
    let (qkv_gpu, dy_gpu, rest) = tensors(&Device::Gpu(gpu.clone()));
    let rest: Vec<&Tensor> = rest.iter().collect();
    for (name, plans) in ways(&op, d) {
        let got = run_plans(gpu, op, plans, [&qkv_gpu, &dy_gpu], &rest);
        for (what, (got, want)) in ["y", "lse", "dqkv"].into_iter().zip(got.iter().zip(&want)) {
            let case = format!("B {batch}, T {time}, head {head_size}, {op:?}, sizes {sizes:?}, {name}: {what}");
            // Sums of up to 128 terms around 1 times their size, in another order.
            assert_within(case, got, want, |i, _| 1e-5 * f64::from(size(what, i)));
        }
    }
}

/// Names and plans, forward and backward, of the ways to compute a case.
type Ways<'a> = dyn Fn(&Attention, Dims) -> Vec<(String, [Plan; 2])> + 'a;

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn gpu_agrees_with_every_tiling() {
    let Some(gpu) = gpu_for_tests() else { return };
    // A software adapter promises less memory for workgroups than it has: there it is ordinary memory.
    let fits = |t: &Tiling| gpu.info().is_software() || t.workgroup_bytes() <= gpu.limits().workgroup_bytes;
    let tilings: Vec<Tiling> = [Tiling::SMALL, Tiling::MIDDLE, Tiling::LARGE].into_iter().filter(fits).collect();
    for (op, sizes) in cases() {
        assert_agrees(&gpu, op, sizes, [1.0; 3], &|op, d| {
            let plans = tilings.iter().map(|&tiling| {
                let backward = op.backward_tiled(d, DType::F32, tiling, gpu.limits());
                (format!("{tiling:?}"), [op.forward_plan(d, DType::F32, tiling), backward])
            });
            plans.collect()
        });
    }
}

/// On cooperative matrices, where the GPU has some.
fn split_fp16(gpu: &Gpu, op: &Attention, d: Dims) -> Vec<(String, [Plan; 2])> {
    let limits = Limits { split_fp16: gpu.limits().coop_matrix > 0, ..gpu.limits().clone() };
    let tiling = CoopTiling::fitting(d, DType::F32, &limits);
    let plans = tiling.map(|tiling| {
        let backward = tiling.backward(op, d, op.delta(d, DType::F32), &limits);
        (format!("{tiling:?}"), [tiling.forward(op, d), backward])
    });
    plans.into_iter().collect()
}

#[test]
fn split_fp16_attention_agrees_with_the_cpu() {
    let Some(gpu) = gpu_for_tests() else { return };
    let computed = std::cell::Cell::new(0);
    for (op, sizes) in cases() {
        assert_agrees(&gpu, op, sizes, [1.0; 3], &|op, d| {
            let plans = split_fp16(&gpu, op, d);
            computed.set(computed.get() + plans.len());
            plans
        });
    }
    assert!(computed.get() > 0 || gpu.limits().coop_matrix == 0, "no case suits cooperative matrices");
}

/// Heads whose queries, keys, values and gradients have scales of their own, far from each other. The second has scores
/// far apart, for which sums are rescaled.
#[test]
fn split_fp16_is_scaled_by_head_in_attention() {
    let Some(gpu) = gpu_for_tests() else { return };
    let op = attention(2, Some((0.2, Key::new(9))));
    for sizes in [[1.0; 3], [4.0, 1.0, 1.0], [0.3, 1e6, 1e-6], [1e-3, 1e-12, 1e9]] {
        assert_agrees(&gpu, op, [1, 97, 16], sizes, &|op, d| split_fp16(&gpu, op, d));
    }
}

#[test]
fn tiles_follow_the_length_and_how_many_heads_there_are() {
    let limits = Limits { workgroup_bytes: 48 << 10, workgroup_threads: 1024, ..Limits::WEBGPU_DEFAULT };
    let rows = |batch, time, n_head, limits: &Limits| {
        Tiling::choose(dims(&attention(n_head, None), batch, time, 64), limits).rows
    };
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
        let op = attention(3, None);
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
            let y = run(&attention(1, None), &[&qkv]).unwrap().remove(0).to_f32().unwrap();
            assert!(y[..16].iter().all(|y| y.is_nan()), "{device}, {}: {:?}", dtype.name(), &y[..16]);
            assert!(y[16..].iter().all(|y| y.is_finite()), "{device}, {}", dtype.name());
        }
    }
}

#[test]
fn refuses_shapes_that_are_not_packed_heads() {
    let device = Device::Cpu;
    for (shape, n_head) in [(vec![2, 12], 1), (vec![1, 2, 13], 1), (vec![1, 2, 12], 3)] {
        let x = Tensor::zeros(shape.clone(), DType::F32, &device).unwrap();
        let error = x.causal_attention(Heads::multi_head(n_head), None, None).unwrap_err().to_string();
        assert!(error.contains("packed"), "{shape:?}: {error}");
    }
    let wide = Tensor::zeros([1, 1, 3 * 129], DType::F32, &device).unwrap();
    assert!(wide.causal_attention(Heads::multi_head(1), None, None).unwrap_err().to_string().contains("128"));
    let x = Tensor::zeros([1, 2, 12], DType::F32, &device).unwrap();
    let error = x.causal_attention(Heads::multi_head(1), None, Some((1.0, Key::new(0)))).unwrap_err().to_string();
    assert!(error.contains("dropout"), "{error}");
    // The output must be as large as it says, whoever provides it.
    assert!(run_into(&attention(1, None), &[&x], &[&x, &x]).is_err());
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn tokens_whose_keys_are_kept_get_the_attention_of_the_whole() {
    for device in Device::for_tests() {
        // More keys than a workgroup takes at a time; heads that fill it and that leave much of it idle; groups of
        // queries; windows within a split of keys, of a whole one, and beyond it.
        for (time, heads, head_size) in [
            (300, (2, 2, None), 5),
            (140, (1, 1, None), 128),
            (131, (3, 3, None), 64),
            (9, (2, 2, None), 1),
            (129, (2, 1, None), 3),
            (128, (1, 1, None), 100),
            (300, (6, 2, None), 8),
            (280, (2, 2, Some(3)), 5),
            (280, (4, 2, Some(128)), 5),
            (280, (2, 2, Some(150)), 5),
        ] {
            let heads = Heads { n_head: heads.0, n_kv_head: heads.1, window: heads.2 };
            // Two sequences, in a cache that has room for more.
            let d = dims(&Attention { heads, documents: false, dropout: None }, 2, time, head_size);
            let (width, room) = (d.packed_width(), time + 3);
            let values = uniform(2 * time * width, 11);
            let qkv = Tensor::from_f32(&values, [2, time, width], &device).unwrap();
            let want = qkv.causal_attention(heads, None, None).unwrap().to_f32().unwrap();
            let cache = Tensor::full(f32::NAN, [2, room, 2 * d.kv_width()], &device).unwrap();
            let (mut got, mut start) = ([Vec::<f32>::new(), Vec::new()], 0);
            for tokens in [3, 1, 1, 2].into_iter().chain(std::iter::repeat(60)) {
                // The last ones singly: those that fill a split of keys and that begin one.
                let tokens = tokens.min((time - start).div_ceil(2));
                let of = |sequence: usize| &values[(sequence * time + start) * width..][..tokens * width];
                let part = Tensor::from_f32(&[of(0), of(1)].concat(), [2, tokens, width], &device).unwrap();
                let y = part.append_and_attend(heads, &cache, start).unwrap().to_f32().unwrap();
                // Now that they are there, as of a model whose keys were put there before.
                let again = part.cached_attention(heads, &cache, start).unwrap().to_f32().unwrap();
                assert_close(format!("{device}, {time}, {heads:?} x {head_size}, again"), &again, &y, 1e-6, 0.0);
                got.iter_mut().zip(y.chunks(y.len() / 2)).for_each(|(got, y)| got.extend(y));
                start += tokens;
                if start == time {
                    break;
                }
            }
            // Sums of at most 300 terms below 1, each rounded to 6e-8, in another order.
            assert_close(format!("{device}, {time}, {heads:?} x {head_size}"), &got.concat(), &want, 2e-6, 0.0);

            let one = Tensor::from_f32(&values[..2 * width], [2, 1, width], &device).unwrap();
            assert!(one.append_and_attend(heads, &cache, room).is_err(), "the cache is full");
            assert!(one.cached_attention(heads, &qkv, 0).is_err(), "no cache");
        }
    }
}

#[test]
fn sequences_of_a_ragged_batch_get_the_attention_of_each_alone() {
    // A cache of one split of keys and of several; lengths at the beginning, the middle and the end.
    for (room, starts) in [(9, [3, 0, 8, 9]), (300, [299, 0, 127, u32::MAX])] {
        for (n_head, n_kv_head, window, head_size) in [(2, 2, None, 5), (6, 2, None, 8), (2, 1, Some(4), 3)] {
            for device in Device::for_tests() {
                let heads = Heads { n_head, n_kv_head, window };
                let d = dims(&Attention { heads, documents: false, dropout: None }, 4, 1, head_size);
                let (width, kept) = (d.packed_width(), 2 * d.kv_width());
                let (new, old) = (uniform(4 * width, 5), uniform(4 * room * kept, 6));
                let attend = |starts: &[u32]| {
                    let qkv = Tensor::from_f32(&new, [4, 1, width], &device).unwrap();
                    let cache = Tensor::from_f32(&old, [4, room, kept], &device).unwrap();
                    let starts = Tensor::from_u32(starts, [4], &device).unwrap();
                    let y = qkv.append_and_attend_ragged(heads, &cache, &starts).unwrap();
                    (y.to_f32().unwrap(), cache.to_f32().unwrap())
                };
                let (got, cache) = attend(&starts);
                let name = format!("{device}, {heads:?} x {head_size}, room for {room}");
                for (i, start) in starts.into_iter().enumerate() {
                    let (y, own) = (&got[i * d.width()..][..d.width()], i * room * kept..(i + 1) * room * kept);
                    if start as usize >= room {
                        assert_eq!((y, &cache[own.clone()]), (&vec![0.0; d.width()][..], &old[own]), "{name}: idle");
                        continue;
                    }
                    let qkv = Tensor::from_f32(&new[i * width..][..width], [1, 1, width], &device).unwrap();
                    let alone = Tensor::from_f32(&old[own.clone()], [1, room, kept], &device).unwrap();
                    let want = qkv.append_and_attend(heads, &alone, start as usize).unwrap().to_f32().unwrap();
                    // Sums of at most 300 terms below 1, each rounded to 6e-8, in another order.
                    assert_close(format!("{name}: after {start}"), y, &want, 2e-6, 0.0);
                    assert_eq!(cache[own], alone.to_f32().unwrap(), "{name}: after {start}");
                    // To the bit the same beside idle neighbours.
                    let mut others = [u32::MAX; 4];
                    others[i] = start;
                    assert_eq!(attend(&others).0[i * d.width()..][..d.width()], *y, "{name}: after {start}");
                }
            }
        }
    }
}

#[test]
fn refuses_heads_and_documents_that_do_not_fit() {
    let x = Tensor::zeros([2, 3, 16], DType::F32, &Device::Cpu).unwrap();
    let heads = Heads { n_head: 4, n_kv_head: 2, window: None };
    x.causal_attention(heads, None, None).unwrap();
    for (changed, told) in [
        (Heads { n_kv_head: 3, ..heads }, "n_head must be a multiple of n_kv_head"),
        (Heads { n_kv_head: 0, ..heads }, "n_head must be a multiple of n_kv_head"),
        (Heads::multi_head(0), "n_head must be a multiple of n_kv_head"),
        (Heads { window: Some(0), ..heads }, "the window at least 1"),
        (Heads { n_head: 2, ..heads }, "(2 + 2 * 2) heads"),
    ] {
        let error = x.causal_attention(changed, None, None).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    for (starts, told) in [
        (Tensor::from_u32(&[0; 3], [1, 3], &Device::Cpu).unwrap(), "document starts (2, 3)"),
        (Tensor::zeros([2, 3], DType::F32, &Device::Cpu).unwrap(), "u32"),
    ] {
        let error = x.causal_attention(heads, Some(&starts), None).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
