//! Every variant of every shader, translated for Vulkan, Metal and DirectX 12 without any of them, under the limits of
//! several kinds of GPU: a kernel that would not compile or not fit on a machine that nobody here owns fails here.
#![cfg(feature = "gpu")]

mod variants;

use rayon::prelude::*;
use rustyflow::gpu::{CheckedShader, INCLUDES, Launch, Value, WgslError, source_of};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use variants::{Planned, planned};

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn every_variant_translates_and_fits_every_kind_of_device() {
    let mut launches = Vec::new();
    for Planned { device, limits, variants } in planned() {
        println!("{device}: {} variants", variants.len());
        launches.extend(variants.iter().map(|(kernel, launch)| (device, limits, kernel, launch)));
    }
    let translated: Mutex<HashSet<String>> = Mutex::default();
    let failure = |(device, limits, kernel, launch): (_, _, _, &Launch)| {
        let source = source_of(launch, limits).unwrap();
        let in_line = |WgslError { line, message }| match line {
            Some(line) => format!("{message}: {}", source.lines().nth(line - 1).unwrap_or_default().trim()),
            None => message,
        };
        let result = CheckedShader::new(launch, &source, limits).map_err(in_line).and_then(|shader| {
            // DirectX has no cooperative matrices, so such a device never gets these.
            let for_directx = !source.contains("enable wgpu_cooperative_matrix;");
            // The translations depend on the text alone.
            if !translated.lock().unwrap().insert(source.clone()) {
                return Ok(());
            }
            shader.to_spirv().and_then(|words| barriers_order_memory(&words)).map_err(|e| format!("SPIR-V: {e}"))?;
            shader.to_msl().map_err(|e| format!("Metal: {e}"))?;
            match for_directx {
                true => shader.to_hlsl().map(drop).map_err(|e| format!("DirectX: {e}")),
                false => Ok(()),
            }
        });
        let failed = |e| format!("{kernel} on {device}: {} {:?}: {e}", launch.shader.name, launch.values);
        result.err().map(failed)
    };
    let failures: Vec<String> = launches.into_par_iter().filter_map(failure).collect();
    println!("{} different shader texts", translated.lock().unwrap().len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Whether every control barrier orders memory of a storage class that Vulkan has: else it is not valid there
/// (VUID-StandaloneSpirv-MemorySemantics-10870), and orders nothing.
fn barriers_order_memory(words: &[u32]) -> Result<(), String> {
    const OP_CONSTANT: u32 = 43;
    const OP_CONTROL_BARRIER: u32 = 224;
    // UniformMemory, WorkgroupMemory and ImageMemory.
    const STORAGE_CLASSES: u32 = 0x40 | 0x100 | 0x800;
    let mut constants: HashMap<u32, u32> = HashMap::new();
    let mut rest = &words[5..];
    while let [first, ..] = rest {
        let (instruction, after) = rest.split_at((first >> 16) as usize);
        match (first & 0xffff, instruction) {
            (OP_CONSTANT, [_, _, id, value]) => drop(constants.insert(*id, *value)),
            (OP_CONTROL_BARRIER, [_, _, _, semantics]) if constants[semantics] & STORAGE_CLASSES == 0 => {
                return Err(format!("a barrier with the memory semantics {:#x}", constants[semantics]));
            }
            _ => {}
        }
        rest = after;
    }
    Ok(())
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
            lines.extend(source_of(launch, limits).unwrap().lines().map(|line| line.trim().to_string()));
        }
    }
    let all: BTreeSet<String> = rendered.values().flat_map(|(_, lines)| lines.clone()).collect();
    rendered.extend(INCLUDES.map(|(name, source)| (name, (source.to_string(), all.clone()))));
    rendered
}

/// The cases would prove little if they did not reach the branches of the templates.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn every_shader_and_every_line_of_it_is_reached() {
    let rendered = rendered_lines();
    let files: BTreeSet<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wgsl"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
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
#[ignore = "slow: scripts/test.sh --full"]
fn every_tiling_is_planned_with_whole_and_partial_tiles() {
    let tiles = combinations("matmul", ["BM"]);
    assert_eq!(tiles, [32, 64, 128, 256].map(|size: u32| [size.into()]).into());
    let tiles = combinations("matmul_coop", ["split_fp16", "BN"]);
    let wanted: [(bool, u32); 5] = [(false, 64), (false, 96), (false, 128), (true, 64), (true, 128)];
    assert_eq!(tiles, wanted.map(|(split_fp16, n)| [split_fp16.into(), n.into()]).into());
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
