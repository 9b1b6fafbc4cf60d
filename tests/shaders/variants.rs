//! Every launch that is asked for on several kinds of GPU, found by planning and without running any.

use rayon::prelude::*;
use rustyflow::gpu::{Launch, Limits, Operand, PARAMS_BYTES, Plan};
use rustyflow::models::{LlamaConfig, ModelConfig, ModelKind, Next, Past, Slots, build, to_device_quantized};
use rustyflow::nn::{Dropout, Parameter};
use rustyflow::ops::random::Key;
use rustyflow::ops::{Criterion, Heads, cases};
use rustyflow::optim::{AdjustLr, ArenaOptions, Group, Kind, MomentDtype, Optimizer, ParameterArena};
use rustyflow::tensor::DryRun;
use rustyflow::testing::buffers::with_bindings_of;
use rustyflow::{DType, Device, Tensor};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Kinds of GPU whose limits lead to different kernels.
fn devices() -> [(&'static str, Limits); 7] {
    const GIB: u64 = 1 << 30;
    let of = |binding_bytes, buffer_bytes, workgroup_kib: u32| Limits {
        binding_bytes,
        buffer_bytes,
        workgroup_bytes: workgroup_kib << 10,
        workgroup_threads: 1024,
        immediates: true,
        f16: true,
        ..Limits::WEBGPU_DEFAULT
    };
    let with_coop =
        |limits, side, subgroup_size| Limits { coop_matrix: side, subgroup_size, split_fp16: true, ..limits };
    [
        ("a data-centre GPU", with_coop(of(2 * GIB - 4, 4 * GIB, 48), 16, 32)),
        ("an Apple GPU", with_coop(of(4 * GIB - 4, 8 * GIB, 32), 8, 32)),
        ("a GPU with subgroups of 64", with_coop(of(4 * GIB - 4, 4 * GIB, 64), 16, 64)),
        // Subgroups vary between 8 and 32 lanes on Intel: no size is known.
        ("an integrated GPU", of(GIB, 2 * GIB, 32)),
        // f16 and subgroups, and no more threads and bytes than WebGPU promises.
        ("a small integrated GPU", Limits { workgroup_threads: 256, subgroup_size: 16, ..of(128 << 20, GIB, 16) }),
        ("a software adapter", Limits { subgroup_size: 8, ..of(128 << 20, 2 * GIB, 32) }),
        ("the floor of WebGPU", Limits::WEBGPU_DEFAULT),
    ]
}

fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    Tensor::zeros(shape.to_vec(), dtype, device).unwrap()
}

/// Forward and backward of an op; values play no part because nothing is computed. Once with leaves for inputs, whose
/// gradients are added in place, and once with intermediate results, whose gradients are written anew.
fn forward_and_backward(inputs: &[Tensor], apply: impl Fn(&[Tensor]) -> rustyflow::Result<Tensor>) {
    let leaf = |x: &Tensor| if x.dtype() != DType::U32 { x.requires_grad().unwrap() } else { x.clone() };
    let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
    let intermediate = |x: &Tensor| match x.dtype() {
        DType::F16 => x.to_dtype(DType::F32).unwrap().to_dtype(DType::F16).unwrap(),
        DType::F32 if x.grad().is_some() => x.scale(1.0).unwrap(),
        _ => x.clone(),
    };
    for inputs in [leaves.iter().map(intermediate).collect(), leaves] {
        let y = apply(&inputs).unwrap();
        y.backward_with(&zeros(y.shape(), y.dtype(), &y.device())).unwrap();
    }
}

/// Every case of the table of ops.
fn all_cases(device: &Device) {
    // `Tensor::to_dtype` refuses f16 on a device that lacks it.
    for case in cases::all().into_iter().filter(|case| device.has_f16() || !case.f16) {
        forward_and_backward(&case.draw(device, 7).unwrap(), &case.apply);
    }
    cases::Case::rows_apart(device).unwrap();
    // Two gradients that share memory, so that neither can be added to in place.
    forward_and_backward(&[zeros(&[5], DType::F32, device)], |x| x[0].add(&x[0]));
}

/// Shapes too large to compute in a test, for variants that are only chosen at such sizes: matmuls that fill a large
/// GPU with large tiles, or that are split along k, in every layout and with lengths that vectors divide or not.
fn large_matmuls(dtype: DType, device: &Device) {
    let medium = [(2048, 2048, 64), (2050, 2051, 65), (256, 256, 8192), (258, 257, 8195)];
    // One tile of the largest kinds for each multiprocessor of a data-centre GPU, without and with overhang.
    let large = [(33_792, 128, 64), (16_896, 256, 64), (33_790, 126, 65), (16_890, 254, 65)];
    for (m, n, k) in medium.into_iter().chain(large) {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = zeros(&if trans_a { [k, m] } else { [m, k] }, dtype, device);
            let b = zeros(&if trans_b { [n, k] } else { [k, n] }, dtype, device);
            forward_and_backward(&[a, b], |x| x[0].matmul_transposed(&x[1], trans_a, trans_b));
        }
        let inputs = [zeros(&[m, k], dtype, device), zeros(&[k, n], dtype, device), zeros(&[n], DType::F32, device)];
        forward_and_backward(&inputs, |x| x[0].linear(&x[1], false, Some(&x[2])));
    }
}

/// Attention of few heads, of many and of a long T, each of which takes other tiles, with and without overhang.
fn attention_of_every_tiling(device: &Device) {
    let few = [(33, 33, 16), (16, 65, 64), (16, 128, 64), (16, 130, 6), (16, 97, 8), (16, 97, 72), (16, 97, 128)];
    let many = [(33, 128, 64), (33, 130, 64), (33, 130, 6)];
    let long = [(5, 1024, 64), (5, 1030, 64), (5, 1030, 6)];
    for (batch, time, head_size) in [&few[..], &many, &long].concat() {
        for dropout in [None, Some((0.1, Key::new(1)))] {
            let qkv = zeros(&[batch, time, 3 * 4 * head_size], DType::F32, device);
            forward_and_backward(&[qkv], |x| x[0].causal_attention(Heads::multi_head(4), None, dropout));
        }
    }
    // Groups of queries, a band and documents.
    let heads = Heads { n_head: 4, n_kv_head: 2, window: Some(100) };
    for time in [1024, 1030] {
        let inputs = [zeros(&[5, time, 8 * 64], DType::F32, device), zeros(&[5, time], DType::U32, device)];
        forward_and_backward(&inputs, |x| x[0].causal_attention(heads, Some(&x[1]), None));
    }
}

/// GEMMs of so many rows that split-fp16 pays, and that 96 columns of f16 do; with whole and with partial tiles, with
/// every epilogue, and in batches.
fn matmuls_of_many_rows(dtype: DType, device: &Device) {
    for (rows, width) in [(16_384, 384), (16_388, 388)] {
        let x = zeros(&[rows, width], dtype, device);
        let weights = [zeros(&[width, 1536], dtype, device), zeros(&[1536, width], dtype, device)];
        let biases = [zeros(&[1536], DType::F32, device), zeros(&[width], DType::F32, device)];
        let all = [[x].as_slice(), &weights, &biases].concat();
        forward_and_backward(&all, |t| t[0].feed_forward(&t[1], &t[2], Some((&t[3], &t[4]))));
    }
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let a = zeros(&if trans_a { [388, 16_388] } else { [16_388, 388] }, dtype, device);
        let b = zeros(&[388, 388], dtype, device);
        forward_and_backward(&[a, b], |x| x[0].matmul_transposed(&x[1], trans_a, trans_b));
    }
    let batch = [zeros(&[3, 64, 32], dtype, device), zeros(&[3, 32, 64], dtype, device)];
    forward_and_backward(&batch, |x| x[0].matmul(&x[1]));
}

/// Products with quantized matrices, of few rows and of many, and rows of them.
fn quantized(device: &Device) {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Nf4] {
        let matrix = zeros(&[130, 192], DType::F32, device).to_dtype(dtype).unwrap();
        let operands = [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16));
        for (operand, rows) in operands.flat_map(|operand| [1, 4, 5, 200].map(|rows| (operand, rows))) {
            forward_and_backward(&[zeros(&[rows, 192], operand, device)], |x| x[0].linear(&matrix, true, None));
        }
        matrix.embedding(&zeros(&[3], DType::U32, device)).unwrap();
        let config = ModelConfig {
            kind: ModelKind::GPT2,
            vocab_size: 65,
            block_size: 17,
            n_layer: 1,
            n_head: 2,
            n_embd: 64,
            bias: true,
            tie_embeddings: true,
            llama: None,
        };
        let mut model = build(&config, 1).unwrap();
        to_device_quantized(&mut *model, dtype, "--dtype", device).unwrap();
        let mut cache = model.cache(1, 17).unwrap();
        for t in [9, 1] {
            model.next_token_logits(&zeros(&[1, t], DType::U32, device), &mut cache).unwrap();
        }
    }
}

/// Rows of tables that no binding holds.
fn cut_tables(device: &Device) {
    for width in [12, 7] {
        let cut = || zeros(&[600, width], DType::F32, &Device::Cpu).to_device(device);
        let table = with_bindings_of(300 * width, cut).unwrap().detach().requires_grad().unwrap();
        let y = table.embedding(&zeros(&[3], DType::U32, device)).unwrap();
        y.backward_with(&zeros(y.shape(), DType::F32, device)).unwrap();
    }
}

/// A training step of models with dropout under each optimizer: a small GPT-2, one without biases and a head of its
/// own, one of GPT-2's vocabulary and head size, and Llamas with a window.
fn model_steps(device: &Device) {
    let (beta1, beta2, eps) = (0.9, 0.95, 1e-8);
    let kinds = [
        Kind::AdamW { beta1, beta2, eps },
        Kind::Adam { beta1, beta2, eps },
        Kind::Sgd { momentum: 0.9, nesterov: true },
    ];
    let lion = Kind::Lion { beta1, beta2: 0.99 };
    let rmsprop = Kind::RmsProp { alpha: 0.99, eps, momentum: 0.9, centered: true };
    let muon = Kind::Muon { momentum: 0.95, nesterov: true, ns_steps: 2, adjust_lr: AdjustLr::Original };
    let small = ModelConfig {
        kind: ModelKind::GPT2,
        vocab_size: 65,
        block_size: 17,
        n_layer: 2,
        n_head: 3,
        n_embd: 24,
        bias: true,
        tie_embeddings: true,
        llama: None,
    };
    let wide = ModelConfig { vocab_size: 50_257, block_size: 512, n_layer: 1, n_head: 2, n_embd: 128, ..small.clone() };
    let untied = ModelConfig { bias: false, tie_embeddings: false, ..small.clone() };
    // Heads that are no whole vectors, and several splits of keys.
    let odd = ModelConfig { block_size: 256, n_layer: 1, n_embd: 27, ..small.clone() };
    let products = [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16));
    let llama = LlamaConfig {
        n_kv_head: 1,
        head_dim: 8,
        intermediate_size: 40,
        qkv_bias: true,
        sliding_window: Some(9),
        norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
    };
    let llama = ModelConfig { kind: ModelKind::LLAMA, bias: false, llama: Some(llama), ..small.clone() };
    let qwen3 = ModelConfig { kind: "qwen3".parse().unwrap(), ..llama.clone() };
    let gpt2s = [(small, kinds[0]), (untied, kinds[1]), (wide, kinds[2]), (odd, kinds[0])];
    let models = gpt2s.into_iter().chain([(llama.clone(), lion), (llama, rmsprop), (qwen3, muon)]);
    for (products, (config, kind)) in products.flat_map(|products| models.clone().map(move |model| (products, model))) {
        let t = config.block_size;
        let mut model = build(&config, 1).unwrap();
        // What Muon does not update, AdamW does.
        let group_of = |_: &str, parameter: &Parameter| usize::from(kind == muon && parameter.linear.is_none());
        let parameters = ParameterArena::grouped(&mut *model, device, products, &group_of).unwrap();
        let group = |number: usize| Group::new([kind, kinds[0]][number], 0.1);
        let mut optimizer = Optimizer::with_groups(&parameters, &group, 1.0).unwrap();
        optimizer.keep_averages(&parameters, 0.9).unwrap();
        let (ids, targets) = (zeros(&[2, t], DType::U32, device), zeros(&[2, t], DType::U32, device));
        parameters.zero_gradients(); // the first gradients replace what is there, the second are added
        for dropout in [Dropout::off(), Dropout::new(0.1, 1, 0)] {
            model
                .loss(&ids, &targets, Past::Nothing, &dropout, Criterion::default(), optimizer.loss_scale())
                .unwrap()
                .backward()
                .unwrap();
        }
        let in_int8 = |number: usize| Group { moment_dtype: MomentDtype::Int8, ..group(number) };
        Optimizer::with_groups(&parameters, &in_int8, 1.0).unwrap().step(&parameters, 1e-3).unwrap();
        let squares = optimizer.step(&parameters, 1e-3).unwrap();
        optimizer.average(&parameters, &squares).unwrap();
        optimizer.swap_averages(&parameters).unwrap();
        let options = ArenaOptions { group_of: &group_of, layerwise: true, ..ArenaOptions::new(products) };
        layerwise_step(&config, device, options, &group);
        model.logits(&ids).unwrap();
        let mut cache = model.cache(2, t).unwrap();
        // Then what needs several splits of keys, where the context holds so many.
        for tokens in [3, 1].into_iter().chain((t > 200).then_some([180, 1]).into_iter().flatten()) {
            let logits = model.next_token_logits(&zeros(&[2, tokens], DType::U32, device), &mut cache).unwrap();
            let (bias, seen) = (logits.detach(), zeros(logits.shape(), DType::U32, device));
            for [has_bias, has_seen] in [[false, false], [false, true], [true, false], [true, true]] {
                let (bias, seen) = (has_bias.then_some(&bias), has_seen.then_some(&seen));
                logits.sample(&zeros(&[2, 8], DType::U32, device), bias, seen, 0).unwrap();
            }
        }
        // Of texts of different lengths, in a cache of one split of keys and of as many as the context has.
        for context in [t.min(64), t] {
            let mut slots = Slots::new(&*model, 2, context).unwrap();
            slots.step(&*model, &[None, Some(Next { id: 1, position: context - 1 })]).unwrap();
        }
    }
}

/// The updates of a step that updates while backward runs.
fn layerwise_step(config: &ModelConfig, device: &Device, options: ArenaOptions, group: &dyn Fn(usize) -> Group) {
    let parameters = ParameterArena::with_options(&mut *build(config, 1).unwrap(), device, options).unwrap();
    let mut optimizer = Optimizer::with_groups(&parameters, group, 1.0).unwrap();
    let mut step = optimizer.begin_layerwise(&parameters, 1e-3).unwrap();
    optimizer.update_rest(&parameters, &mut step).unwrap();
    optimizer.finish_layerwise(step).unwrap();
}

/// A kind of GPU, and every different launch that it is asked for with the kernel that asks.
pub struct Planned {
    pub device: &'static str,
    pub limits: Limits,
    pub variants: Vec<(&'static str, Launch)>,
}

/// Planned once for all tests.
pub fn planned() -> &'static [Planned] {
    static PLANNED: OnceLock<Vec<Planned>> = OnceLock::new();
    PLANNED.get_or_init(|| {
        let plan = |(device, limits)| Planned { device, variants: variants(&limits), limits };
        devices().into_par_iter().map(plan).collect()
    })
}

fn variants(limits: &Limits) -> Vec<(&'static str, Launch)> {
    let mut plans = Vec::new();
    let mut plan = |limits: Limits, body: &dyn Fn(&Device)| {
        let dry_run = DryRun::new(limits);
        body(&Device::DryRun(dry_run.clone()));
        plans.extend(dry_run.take_plans());
    };
    plan(limits.clone(), &all_cases);
    plan(limits.clone(), &|device| large_matmuls(DType::F32, device));
    plan(limits.clone(), &attention_of_every_tiling);
    plan(Limits { split_fp16: false, ..limits.clone() }, &attention_of_every_tiling);
    plan(limits.clone(), &|device| matmuls_of_many_rows(DType::F32, device));
    if limits.f16 {
        plan(limits.clone(), &|device| large_matmuls(DType::F16, device));
        plan(limits.clone(), &|device| matmuls_of_many_rows(DType::F16, device));
    }
    // Where rates were measured any tile that fits may be taken: each in turn is the fastest. There are no more than
    // these.
    for fastest in 0..8 {
        let mut rates = [[1; 4]; 8];
        rates[fastest] = [1_000_000; 4];
        let limits = Limits { matmul_throughput: Some(Arc::new(rates)), ..limits.clone() };
        plan(limits, &|device| large_matmuls(DType::F32, device));
    }
    plan(limits.clone(), &model_steps);
    plan(limits.clone(), &quantized);
    plan(limits.clone(), &cut_tables);
    for (kernel, plan) in &plans {
        check_plan(kernel, plan, limits);
    }
    let mut seen = BTreeSet::new();
    let launches = plans.into_iter().flat_map(|(kernel, plan)| plan.launches.into_iter().map(move |l| (kernel, l)));
    launches.filter(|(_, launch)| seen.insert((launch.shader.name, launch.values.clone()))).collect()
}

/// What holds for a plan whatever its shaders say.
fn check_plan(kernel: &str, plan: &Plan, limits: &Limits) {
    for &size in &plan.scratch {
        assert!(size as u64 <= limits.binding_bytes, "{kernel}: scratch of {size} bytes");
    }
    for Launch { buffers, params, .. } in &plan.launches {
        // The floors that WebGPU and its immediates (128 bytes on Vulkan) guarantee.
        assert!(buffers.len() <= 8, "{kernel}: {} buffers", buffers.len());
        assert!(4 * params.len() <= PARAMS_BYTES, "{kernel}: {} words of parameters", params.len());
        for buffer in buffers {
            if let Operand::Scratch(i) | Operand::ReadScratch(i) = buffer.operand {
                assert!(i < plan.scratch.len(), "{kernel}: scratch buffer {i} of {}", plan.scratch.len());
            }
        }
    }
}
