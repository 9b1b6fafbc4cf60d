//! Every variant of every shader, translated for Vulkan, Metal and DirectX 12 without any of them, under the limits of
//! several kinds of GPU: a kernel that would not compile or not fit on a machine that nobody here owns fails here.
#![cfg(feature = "gpu")]

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};
use rustyflow::gpu::{Buffer, INCLUDES, Launch, Limits, Operand, PARAMS_BYTES, Plan, Value, source_of};
use rustyflow::models::{Gpt2, LanguageModel, ModelConfig, ModelKind};
use rustyflow::nn::Dropout;
use rustyflow::ops::cases;
use rustyflow::ops::random::Key;
use rustyflow::optim::{Kind, Optimizer, ParameterArena};
use rustyflow::tensor::DryRun;
use rustyflow::{DType, Device, Tensor};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

/// Kinds of GPU whose limits lead to different kernels.
fn devices() -> [(&'static str, Limits); 6] {
    let webgpu = Limits::WEBGPU_DEFAULT;
    let gib = 1 << 30;
    [
        (
            "a data-centre GPU",
            Limits {
                binding_bytes: 2 * gib - 4,
                buffer_bytes: 4 * gib,
                workgroup_bytes: 48 << 10,
                workgroup_threads: 1024,
                immediates: true,
                f16: true,
                subgroup_size: 32,
                coop_matrix: 16,
                split_fp16: true,
                ..Limits::WEBGPU_DEFAULT
            },
        ),
        (
            "an Apple GPU",
            Limits {
                binding_bytes: 4 * gib - 4,
                buffer_bytes: 8 * gib,
                workgroup_bytes: 32 << 10,
                workgroup_threads: 1024,
                immediates: true,
                f16: true,
                subgroup_size: 32,
                coop_matrix: 8,
                split_fp16: true,
                ..Limits::WEBGPU_DEFAULT
            },
        ),
        (
            "a GPU with subgroups of 64",
            Limits {
                binding_bytes: 4 * gib - 4,
                buffer_bytes: 4 * gib,
                workgroup_bytes: 64 << 10,
                workgroup_threads: 1024,
                immediates: true,
                f16: true,
                subgroup_size: 64,
                coop_matrix: 16,
                split_fp16: true,
                ..Limits::WEBGPU_DEFAULT
            },
        ),
        // Subgroups vary between 8 and 32 lanes on Intel: no size is known.
        (
            "an integrated GPU",
            Limits {
                binding_bytes: gib,
                buffer_bytes: 2 * gib,
                workgroup_bytes: 32 << 10,
                workgroup_threads: 1024,
                immediates: true,
                f16: true,
                subgroup_size: 0,
                coop_matrix: 0,
                split_fp16: false,
                ..Limits::WEBGPU_DEFAULT
            },
        ),
        (
            "a software adapter",
            Limits {
                binding_bytes: 128 << 20,
                buffer_bytes: 2 * gib,
                workgroup_bytes: 32 << 10,
                workgroup_threads: 1024,
                immediates: true,
                f16: true,
                subgroup_size: 8,
                coop_matrix: 0,
                split_fp16: false,
                ..Limits::WEBGPU_DEFAULT
            },
        ),
        ("the floor of WebGPU", webgpu),
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
    // Two gradients that share memory, so that neither can be added to in place.
    forward_and_backward(&[zeros(&[5], DType::F32, device)], |x| x[0].add(&x[0]));
}

/// Shapes too large to compute in a test, for variants that are only chosen at such sizes: products that fill a large
/// GPU with large tiles, or that are split along k, in every layout and with lengths that vectors divide or not.
fn large_products(dtype: DType, device: &Device) {
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
        forward_and_backward(&inputs, |x| x[0].linear(&x[1], Some(&x[2])));
    }
}

/// Attention of few heads, of many and of a long T, each of which takes other tiles, with and without overhang.
fn attention_of_every_tiling(device: &Device) {
    let few = [(33, 33, 16), (16, 65, 64), (16, 128, 64), (16, 130, 6)];
    let many = [(33, 128, 64), (33, 130, 64), (33, 130, 6)];
    let long = [(5, 1024, 64), (5, 1030, 64), (5, 1030, 6)];
    for (batch, time, head_size) in [&few[..], &many, &long].concat() {
        for dropout in [None, Some((0.1, Key::new(1)))] {
            let qkv = zeros(&[batch, time, 3 * 4 * head_size], DType::F32, device);
            forward_and_backward(&[qkv], |x| x[0].causal_attention(4, dropout));
        }
    }
}

/// GEMMs large enough for split-fp16, with whole and with partial tiles, and with every epilogue.
fn large_f32_matmuls(device: &Device) {
    for (rows, width) in [(16_384, 384), (16_388, 388)] {
        let x = zeros(&[rows, width], DType::F32, device);
        let weights = [zeros(&[width, 1536], DType::F32, device), zeros(&[1536, width], DType::F32, device)];
        let biases = [zeros(&[1536], DType::F32, device), zeros(&[width], DType::F32, device)];
        let all = [[x].as_slice(), &weights, &biases].concat();
        forward_and_backward(&all, |t| t[0].feed_forward(&t[1], &t[2], Some((&t[3], &t[4]))));
    }
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let a = zeros(&if trans_a { [388, 16_388] } else { [16_388, 388] }, DType::F32, device);
        let b = zeros(&[388, 388], DType::F32, device);
        forward_and_backward(&[a, b], |x| x[0].matmul_transposed(&x[1], trans_a, trans_b));
    }
}

/// A training step of GPTs with dropout under each optimizer: a small one, one without biases and a head of its own,
/// and one of GPT-2's vocabulary and head size.
fn model_steps(device: &Device) {
    let (beta1, beta2, eps) = (0.9, 0.95, 1e-8);
    let kinds = [Kind::AdamW { beta1, beta2, eps }, Kind::Adam { beta1, beta2, eps }, Kind::Sgd { momentum: 0.9 }];
    let small = ModelConfig {
        kind: ModelKind::GPT2,
        vocab_size: 65,
        block_size: 17,
        n_layer: 2,
        n_head: 3,
        n_embd: 24,
        bias: true,
        tie_embeddings: true,
    };
    let wide = ModelConfig { vocab_size: 50_257, block_size: 512, n_layer: 1, n_head: 2, n_embd: 128, ..small.clone() };
    let untied = ModelConfig { bias: false, tie_embeddings: false, ..small.clone() };
    let products = [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16));
    let models = [(small, kinds[0]), (untied, kinds[1]), (wide, kinds[2])];
    for (products, (config, kind)) in products.flat_map(|products| models.clone().map(|model| (products, model))) {
        let t = config.block_size;
        let mut model = Gpt2::new(config, 1).unwrap();
        let parameters = ParameterArena::new(&mut model, device, products).unwrap();
        let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
        let (ids, targets) = (zeros(&[2, t], DType::U32, device), zeros(&[2, t], DType::U32, device));
        parameters.zero_gradients(); // the first gradients replace what is there, the second are added
        for dropout in [Dropout::off(), Dropout::new(0.1, 1, 0)] {
            model.loss(&ids, &targets, &dropout, optimizer.loss_scale()).unwrap().backward().unwrap();
        }
        optimizer.step(&parameters, 1e-3).unwrap();
        model.logits(&ids).unwrap();
        let mut cache = model.kv_cache().unwrap();
        for tokens in [3, 1] {
            model.next_token_logits(&zeros(&[1, tokens], DType::U32, device), &mut cache).unwrap();
        }
    }
}

/// A kind of GPU, and every different launch that it is asked for with the kernel that asks.
struct Planned {
    device: &'static str,
    limits: Limits,
    variants: Vec<(&'static str, Launch)>,
}

/// Planned once for all tests.
fn planned() -> &'static [Planned] {
    static PLANNED: OnceLock<Vec<Planned>> = OnceLock::new();
    PLANNED.get_or_init(|| {
        let plan = |(device, limits)| Planned { device, variants: variants(&limits), limits };
        devices().into_iter().map(plan).collect()
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
    plan(limits.clone(), &|device| large_products(DType::F32, device));
    plan(limits.clone(), &attention_of_every_tiling);
    plan(limits.clone(), &large_f32_matmuls);
    if limits.f16 {
        plan(limits.clone(), &|device| large_products(DType::F16, device));
    }
    // Where rates were measured any tile that fits may be taken: each in turn is the fastest. There are no more than
    // these.
    for fastest in 0..8 {
        let mut rates = [[1; 4]; 8];
        rates[fastest] = [1_000_000; 4];
        let limits = Limits { matmul_throughput: Some(Arc::new(rates)), ..limits.clone() };
        plan(limits, &|device| large_products(DType::F32, device));
    }
    plan(limits.clone(), &model_steps);
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

/// A shader that naga has accepted.
struct Checked {
    module: Module,
    info: ModuleInfo,
}

/// Parses and validates as wgpu does on a device with these limits, and holds the shader to them and to its launch.
fn check_shader(launch: &Launch, source: &str, limits: &Limits) -> Result<Checked, String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|e| e.emit_to_string(source))?;
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::IMMEDIATES, limits.immediates);
    capabilities.set(Capabilities::SHADER_FLOAT16, limits.f16);
    capabilities.set(Capabilities::SUBGROUP, limits.subgroup_size > 0);
    capabilities.set(Capabilities::COOPERATIVE_MATRIX, limits.coop_matrix > 0);
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(source))?;

    let [entry] = &module.entry_points[..] else { return Err("it needs exactly one entry point".into()) };
    if entry.name != "main" || entry.stage != ShaderStage::Compute {
        return Err(format!("its entry point is {:?} {}, not a compute shader named main", entry.stage, entry.name));
    }
    let threads: u32 = entry.workgroup_size.iter().product();
    if threads > limits.workgroup_threads {
        return Err(format!("{threads} threads where a workgroup may have {}", limits.workgroup_threads));
    }

    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).map_err(|e| e.to_string())?;
    let (mut workgroup_bytes, mut param_bytes) = (0, 0);
    let mut bound = BTreeMap::new();
    for (_, global) in module.global_variables.iter() {
        let layout = layouter[global.ty];
        match (global.space, &global.binding) {
            // Each variable starts on a multiple of 16 bytes, the strictest of all backends.
            (AddressSpace::WorkGroup, _) => workgroup_bytes += layout.size.next_multiple_of(16),
            (AddressSpace::Immediate, _) if limits.immediates => param_bytes += layout.size,
            (AddressSpace::Uniform, Some(ResourceBinding { group: 1, binding: 0 })) if !limits.immediates => {
                param_bytes += layout.size;
            }
            (AddressSpace::Storage { access }, Some(ResourceBinding { group: 0, binding })) => {
                bound.insert(*binding, access);
            }
            (AddressSpace::Private | AddressSpace::Handle, None) => {}
            other => return Err(format!("it declares a global of an unexpected kind: {other:?}")),
        }
    }
    if workgroup_bytes > limits.workgroup_bytes {
        return Err(format!("{workgroup_bytes} bytes of workgroup memory where there are {}", limits.workgroup_bytes));
    }
    if param_bytes as usize != 4 * launch.params.len() {
        return Err(format!("{param_bytes} bytes for {} words of parameters", launch.params.len()));
    }
    let wanted: BTreeMap<u32, StorageAccess> = (0..)
        .zip(&launch.buffers)
        .map(|(i, buffer)| match buffer.operand {
            Operand::Input(_) | Operand::ReadScratch(_) => (i, StorageAccess::LOAD),
            Operand::Output(_) | Operand::Scratch(_) => (i, StorageAccess::LOAD | StorageAccess::STORE),
        })
        .collect();
    if bound != wanted {
        return Err(format!("it declares the bindings {bound:?}, the launch binds {wanted:?}"));
    }
    Ok(Checked { module, info })
}

/// SPIR-V as wgpu asks for it on Vulkan.
fn to_spirv(shader: &Checked) -> Result<(), String> {
    let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let words = spv::write_vec(&shader.module, &shader.info, &options, None).map_err(|e| e.to_string())?;
    if words.is_empty() { Err("no SPIR-V came out".into()) } else { Ok(()) }
}

/// The Metal shading language, with buffers numbered as wgpu does.
fn to_msl(shader: &Checked, buffers: &[Buffer]) -> Result<(), String> {
    let mut resources: BTreeMap<_, _> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| {
            let mutable = !buffer.operand.is_read_only();
            let target = msl::BindTarget { buffer: Some(binding as u8), mutable, ..msl::BindTarget::default() };
            (ResourceBinding { group: 0, binding }, target)
        })
        .collect();
    let count = buffers.len() as u8;
    let params = msl::BindTarget { buffer: Some(count + 2), ..msl::BindTarget::default() };
    resources.insert(ResourceBinding { group: 1, binding: 0 }, params);
    let resources =
        msl::EntryPointResources { resources, immediates_buffer: Some(count), sizes_buffer: Some(count + 1) };
    let options = msl::Options {
        // The oldest that has everything in use: half precision and subgroups (macOS 12, 2021).
        lang_version: (2, 4),
        per_entry_point_map: BTreeMap::from([("main".to_string(), resources)]),
        fake_missing_bindings: false,
        ..msl::Options::default()
    };
    let (_, info) = msl::write_string(&shader.module, &shader.info, &options, &msl::PipelineOptions::default())
        .map_err(|e| e.to_string())?;
    info.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|e| e.to_string()))
}

/// HLSL for DirectX 12, with registers numbered as wgpu does.
fn to_hlsl(shader: &Checked, buffers: &[Buffer]) -> Result<(), String> {
    let register = |space, register| hlsl::BindTarget { space, register, ..hlsl::BindTarget::default() };
    let options = hlsl::Options {
        // The oldest with 16-bit types; subgroups need 6.0.
        shader_model: hlsl::ShaderModel::V6_2,
        binding_map: (0..buffers.len() as u32)
            .map(|binding| (ResourceBinding { group: 0, binding }, register(0, binding)))
            .chain([(ResourceBinding { group: 1, binding: 0 }, register(3, 0))])
            .collect(),
        immediates_target: Some(register(1, 0)),
        // wgpu passes the number of workgroups in a constant buffer.
        special_constants_binding: Some(register(2, 0)),
        fake_missing_bindings: false,
        ..hlsl::Options::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    let info = hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(&shader.module, &shader.info, None)
        .map_err(|e| e.to_string())?;
    info.entry_point_names.into_iter().try_for_each(|name| name.map(drop).map_err(|e| e.to_string()))
}

#[test]
fn every_variant_translates_and_fits_every_kind_of_device() {
    let mut failures = Vec::new();
    let mut sources: HashMap<String, &'static str> = HashMap::new();
    for Planned { device, limits, variants } in planned() {
        println!("{device}: {} variants", variants.len());
        for (kernel, launch) in variants {
            let source = source_of(launch, limits);
            let result = check_shader(launch, &source, limits).and_then(|shader| {
                // DirectX has no cooperative matrices, so such a device never gets these.
                let for_directx = !source.contains("enable wgpu_cooperative_matrix;");
                // The translations depend on the text alone.
                if sources.insert(source, launch.shader.name).is_some() {
                    return Ok(());
                }
                to_spirv(&shader).map_err(|e| format!("SPIR-V: {e}"))?;
                to_msl(&shader, &launch.buffers).map_err(|e| format!("Metal: {e}"))?;
                match for_directx {
                    true => to_hlsl(&shader, &launch.buffers).map_err(|e| format!("DirectX: {e}")),
                    false => Ok(()),
                }
            });
            if let Err(e) = result {
                failures.push(format!("{kernel} on {device}: {} {:?}: {e}", launch.shader.name, launch.values));
            }
        }
    }
    println!("{} different shader texts", sources.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The parts of a template line that do not depend on the values: "a[{{ i }}u]" -> ["a[", "u]"].
fn fixed_parts(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find('{') {
        let end = match rest.as_bytes().get(start + 1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            Some(b'#') => "#}",
            // A brace of WGSL.
            _ => {
                parts.push(&rest[..=start]);
                rest = &rest[start + 1..];
                continue;
            }
        };
        parts.push(&rest[..start]);
        // A tag that ends on a later line leaves nothing fixed on this one.
        rest = rest[start..].find(end).map_or("", |at| &rest[start + at + 2..]);
    }
    parts.push(rest);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Which values of these keys the launches of a shader have together.
fn combinations<const N: usize>(shader: &str, keys: [&str; N]) -> BTreeSet<[Value; N]> {
    let launches = planned().iter().flat_map(|p| &p.variants).map(|(_, launch)| launch);
    let of_shader = launches.filter(|launch| launch.shader.name == shader);
    let value =
        |launch: &Launch, key: &str| launch.values.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let all = |launch| keys.iter().map(|key| value(launch, key)).collect::<Option<Vec<_>>>()?.try_into().ok();
    of_shader.filter_map(all).collect()
}

/// The cases above would prove little if they did not reach the branches of the templates.
#[test]
fn every_shader_and_every_line_of_it_is_reached() {
    let mut rendered: BTreeMap<&str, (String, BTreeSet<String>)> = BTreeMap::new();
    let mut values: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for Planned { variants, limits, .. } in planned() {
        for (_, launch) in variants {
            let name = launch.shader.name;
            let (_, lines) =
                rendered.entry(name).or_insert_with(|| (launch.shader.source.to_string(), BTreeSet::new()));
            lines.extend(source_of(launch, limits).lines().map(|line| line.trim().to_string()));
            for (key, value) in &launch.values {
                values.entry((name, key)).or_default().insert(format!("{value:?}"));
            }
        }
    }

    let all: BTreeSet<String> = rendered.values().flat_map(|(_, lines)| lines.clone()).collect();
    rendered.extend(INCLUDES.map(|(name, source)| (name, (source.to_string(), all.clone()))));
    let files: BTreeSet<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(rendered.keys().map(|name| name.to_string()).collect::<BTreeSet<_>>(), files, "left: launched");

    let mut unreached = Vec::new();
    for (name, (template, lines)) in &rendered {
        for (number, line) in template.lines().enumerate() {
            let parts = fixed_parts(line);
            let reached = lines.iter().any(|rendered| {
                let mut rest = rendered.as_str();
                parts.iter().all(|part| rest.find(part).map(|at| rest = &rest[at + part.len()..]).is_some())
            });
            if !reached {
                unreached.push(format!("shaders/{name}.wgsl:{}: {}", number + 1, line.trim()));
            }
        }
    }
    for ((shader, key), values) in &values {
        println!("{shader}.{key}: {values:?}");
    }
    assert!(unreached.is_empty(), "no variant contains\n{}", unreached.join("\n"));
    // Sizes that decide between whole kernels of different speed.
    let tiles: Vec<&str> = values[&("matmul", "BM")].iter().map(String::as_str).collect();
    assert_eq!(tiles, ["Int(128)", "Int(256)", "Int(32)", "Int(64)"]);
    for (shader, key, sizes) in [
        ("attention_forward", "rows", &[32, 64, 128][..]),
        ("attention_backward", "rows", &[32, 64, 128]),
        ("attention_coop_forward", "pieces", &[1, 2]),
        ("attention_coop_backward", "pieces", &[1, 2]),
    ] {
        let whole_and_overhanging = |&n: &u32| [false, true].map(|edge| [n.into(), edge.into()]);
        assert_eq!(combinations(shader, [key, "edge"]), sizes.iter().flat_map(whole_and_overhanging).collect());
    }
    // Every epilogue, of split-fp16 too.
    let epilogues = combinations("matmul_coop", ["split_fp16", "epilogue", "sums", "edge_m"]);
    for (epilogue, sums) in [("", false), ("gelu", false), ("multiply", false), ("", true)] {
        for edge in [false, true] {
            let wanted: [Value; 4] = [true.into(), epilogue.into(), sums.into(), edge.into()];
            assert!(epilogues.contains(&wanted), "{wanted:?}");
        }
    }
}
