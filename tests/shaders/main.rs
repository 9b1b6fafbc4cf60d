//! Every variant of every shader, translated for Vulkan, Metal and DirectX 12 without any of them, under the limits of
//! several kinds of GPU: a kernel that would not compile or not fit on a machine that nobody here owns fails here.
#![cfg(feature = "gpu")]

mod variants;

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, ShaderStage, StorageAccess};
use rustyflow::gpu::{Buffer, INCLUDES, Launch, Limits, Operand, Value, source_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use variants::{Planned, planned};

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

/// The lines of every text that a shader was rendered to, by shader, with its template.
fn rendered_lines() -> BTreeMap<&'static str, (String, BTreeSet<String>)> {
    let mut rendered: BTreeMap<&str, (String, BTreeSet<String>)> = BTreeMap::new();
    for Planned { variants, limits, .. } in planned() {
        for (_, launch) in variants {
            let (name, source) = (launch.shader.name, launch.shader.source);
            let (_, lines) = rendered.entry(name).or_insert_with(|| (source.to_string(), BTreeSet::new()));
            lines.extend(source_of(launch, limits).lines().map(|line| line.trim().to_string()));
        }
    }
    let all: BTreeSet<String> = rendered.values().flat_map(|(_, lines)| lines.clone()).collect();
    rendered.extend(INCLUDES.map(|(name, source)| (name, (source.to_string(), all.clone()))));
    rendered
}

/// The cases would prove little if they did not reach the branches of the templates.
#[test]
fn every_shader_and_every_line_of_it_is_reached() {
    let rendered = rendered_lines();
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
    assert!(unreached.is_empty(), "no variant contains\n{}", unreached.join("\n"));
}

/// Sizes that decide between whole kernels of different speed.
#[test]
fn every_tiling_is_planned_with_whole_and_partial_tiles() {
    let tiles = combinations("matmul", ["BM"]);
    assert_eq!(tiles, [32, 64, 128, 256].map(|size: u32| [size.into()]).into());
    for (shader, key, sizes) in [
        ("attention_forward", "rows", &[32, 64, 128][..]),
        ("attention_backward", "rows", &[32, 64, 128]),
        ("attention_coop_forward", "fragments", &[1, 2]),
        ("attention_coop_backward", "fragments", &[1, 2]),
    ] {
        let whole_and_partial = |&n: &u32| [false, true].map(|edge| [n.into(), edge.into()]);
        assert_eq!(combinations(shader, [key, "edge"]), sizes.iter().flat_map(whole_and_partial).collect());
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
