//! Models through a file and back, the goldens of the package `gguf`, and files that others damaged.

use super::value::write_text;
use super::*;
use crate::models::LlamaConfig;
use crate::models::build;
use crate::models::testing::{small, small_llama};
use crate::nn::RopeScaling;
use safetensors::SafeTensors;
use std::fs;

fn export(dtype: GgmlType) -> Export {
    let metadata = vec![("general.name".into(), Value::Text("x".into()))];
    Export { dtype, metadata, copied_row: 2, copies: 1 }
}

/// The model as a file.
fn written(model: &mut dyn LanguageModel, export: &Export) -> Result<(Vec<u8>, Written)> {
    let mut bytes = vec![];
    let written = write(model, export, &mut bytes, &|e| Error::io("write", "x.gguf", e))?;
    Ok((bytes, written))
}

fn open(bytes: &[u8]) -> Result<Arc<GgufFile>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    GgufFile::open(&path).map(Arc::new)
}

fn llama(change: impl Fn(&mut LlamaConfig)) -> ModelConfig {
    let mut config = small_llama("llama");
    change(config.llama.as_mut().unwrap());
    config
}

const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 4.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_block_size: 24 };

/// A model of each architecture and variant.
fn every_shape() -> Vec<ModelConfig> {
    vec![
        small(50, 12, 4, 64),
        ModelConfig { bias: false, tie_embeddings: false, ..small(50, 12, 4, 64) },
        small_llama("llama"),
        ModelConfig { tie_embeddings: false, ..llama(|l| l.rope_scaling = Some(LLAMA3)) },
        llama(|l| l.rope_scaling = Some(RopeScaling::Linear { factor: 2.0 })),
        llama(|l| (l.qkv_bias, l.head_dim) = (true, 4)),
        small_llama("qwen3"),
    ]
}

#[test]
fn every_model_comes_back_in_every_type_as_its_weights_were_rounded() {
    for config in every_shape() {
        let mut model = build(&config, 5).unwrap();
        for dtype in GgmlType::WRITTEN {
            let export = export(dtype);
            let (bytes, _) = written(&mut *model, &export).unwrap();
            let mut read = load(&open(&bytes).unwrap(), &export.config(&config)).unwrap();
            // Of 8 steps to the largest number of a block, half a step; of numbers with fewer bits, that of the last.
            let share = match dtype {
                GgmlType::F32 => 0.0,
                GgmlType::F16 | GgmlType::Q8_0 => 1.0 / 200.0,
                GgmlType::Bf16 => 1.0 / 256.0,
                _ => 1.0 / 7.9,
            };
            for ((name, x), (_, y)) in model.parameters().into_iter().zip(read.parameters()) {
                let (x, y) = (x.to_f32().unwrap(), y.to_f32().unwrap());
                let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                let (same, added) = y.split_at(x.len());
                let far = x.iter().zip(same).find(|(x, y)| (*x - *y).abs() > share * most);
                assert!(far.is_none(), "{config:?} {dtype:?} {name}: {far:?}");
                // The row that was added is a copy of row 2.
                assert_eq!(added, if added.is_empty() { &[][..] } else { &same[2 * config.n_embd..][..config.n_embd] });
            }
        }
    }
}

#[test]
fn names_types_and_keys_are_those_of_llama_cpp() {
    let mut model = build(&small(50, 12, 4, 64), 0).unwrap();
    let (bytes, _) = written(&mut *model, &export(GgmlType::Q4_0)).unwrap();
    let file = open(&bytes).unwrap();
    let spec = |name: &str| file.spec(name).unwrap_or_else(|| panic!("{name}"));
    // (outputs, inputs), where Hugging Face's Conv1D has (inputs, outputs).
    assert_eq!(spec("blk.0.attn_qkv.weight"), (GgmlType::Q4_0, &[192, 64][..]));
    assert_eq!(spec("blk.0.ffn_down.weight"), (GgmlType::Q4_0, &[64, 256][..]));
    assert_eq!(spec("blk.0.ffn_down.bias"), (GgmlType::F32, &[64][..]));
    assert_eq!(spec("token_embd.weight"), (GgmlType::Q8_0, &[51, 64][..]));
    assert_eq!(spec("position_embd.weight"), (GgmlType::F32, &[12, 64][..]));
    assert_eq!(file.names().count(), 16);
    assert_eq!(file.value("gpt2.context_length"), Some(&Value::U32(12)));
    assert_eq!(file.value("general.file_type"), Some(&Value::U32(2)));
    assert_eq!(file.value("general.name"), Some(&Value::Text("x".into())));

    let mut model = build(&llama(|l| l.rope_scaling = Some(LLAMA3)), 0).unwrap();
    let (bytes, unquantized) = written(&mut *model, &export(GgmlType::Q8_0)).unwrap();
    let file = open(&bytes).unwrap();
    // Rows of 16 and 20 numbers are no blocks.
    assert_eq!(file.spec("blk.1.attn_k.weight"), Some((GgmlType::F16, &[12, 16][..])));
    assert!(unquantized.unquantized.contains(&"blk.1.attn_k.weight".to_string()));
    assert_eq!(file.spec("rope_freqs.weight"), Some((GgmlType::F32, &[3][..])));
    for (key, value) in [("attention.head_count_kv", 2), ("attention.key_length", 6), ("rope.dimension_count", 6)] {
        assert_eq!(file.value(&format!("llama.{key}")), Some(&Value::U32(value)), "{key}");
    }
    // The fastest frequency stays, the slowest is divided by the factor.
    let divisors = file.tensor("rope_freqs.weight").unwrap();
    assert!((1.0..1.1).contains(&divisors[0]) && divisors[2] == 4.0, "{divisors:?}");
}

#[test]
fn a_llamas_queries_stand_as_its_rotation_takes_them_and_a_qwens_as_they_are() {
    // Rows 0..6 of a head are the first half 0 1 2 and the second 3 4 5.
    let rows = Shape::from([12, 1]);
    let values: Vec<f32> = (0..12).map(|row| row as f32).collect();
    let laid = Layout::Interleaved { heads: 2 }.apply(values.clone(), &rows);
    assert_eq!(laid, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);
    assert_eq!((0..12).map(|row| laid[row_in_file(row, 6)]).collect::<Vec<_>>(), values);
    let layout = |config: &ModelConfig, name: &str| mapping(config).unwrap().0.tensor(config, name).unwrap().1;
    let q = "model.layers.1.self_attn.q_proj.weight";
    assert_eq!(layout(&small_llama("llama"), q), Layout::Interleaved { heads: 4 });
    assert_eq!(layout(&small_llama("llama"), &q.replace("q_", "k_")), Layout::Interleaved { heads: 2 });
    assert_eq!(layout(&small_llama("llama"), &q.replace("q_", "v_")), Layout::Same);
    assert_eq!(layout(&small_llama("qwen3"), q), Layout::Same);
    assert_eq!(layout(&llama(|l| (l.qkv_bias, l.head_dim) = (true, 4)), q), Layout::Same);
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused_with_the_reason() {
    let mut qwen3 = small_llama("qwen3");
    qwen3.llama.as_mut().unwrap().rope_scaling = Some(LLAMA3);
    let mlp = ModelConfig { kind: "mlp".parse().unwrap(), ..small(5, 4, 1, 8) };
    for (config, told) in [
        (
            llama(|l| l.sliding_window = Some(5)),
            "no such llama: its llama attends to the whole context, not to a window of 5",
        ),
        (llama(|l| l.qkv_bias = true), "the heads of its qwen2 are 16 wide together, not 24"),
        (qwen3, "its qwen3 has no RoPE scaling of the type llama3"),
        (mlp, "llama.cpp has no architecture for a mlp"),
    ] {
        let error = architecture(&config).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    // A window of the whole context is none.
    assert_eq!(architecture(&llama(|l| l.sliding_window = Some(12))).unwrap(), "llama");
}

#[test]
fn a_weight_that_the_type_or_any_model_has_no_place_for_is_named() {
    for (value, told) in [(7e4, "has 70000, which f16 cannot hold"), (f32::NAN, "has NaN")] {
        let mut model = build(&small(5, 4, 1, 32), 0).unwrap();
        let (_, tensor) = model.parameters().remove(0);
        let mut values = tensor.to_f32().unwrap();
        values[3] = value;
        tensor.write_bytes(bytemuck::cast_slice(&values)).unwrap();
        let error = written(&mut *model, &export(GgmlType::F16)).err().unwrap().to_string();
        assert!(error.contains("token_embd.weight") && error.contains(told), "{error}");
    }
}

#[test]
fn a_file_of_another_model_is_refused() {
    let config = small(50, 12, 4, 64);
    let mut model = build(&config, 0).unwrap();
    let export = Export { copies: 0, ..export(GgmlType::F32) };
    let file = open(&written(&mut *model, &export).unwrap().0).unwrap();
    let refused = |config: &ModelConfig, told: &str| {
        let error = load(&file, config).err().unwrap().to_string();
        assert!(error.contains("x.gguf") && error.contains(told), "{error}");
    };
    refused(&ModelConfig { n_head: 2, ..config.clone() }, "gpt2.attention.head_count is Some(U32(4)); expected U32(2)");
    refused(
        &ModelConfig { vocab_size: 51, ..config.clone() },
        "token_embd.weight has shape [50, 64]; expected [51, 64]",
    );
    refused(&ModelConfig { tie_embeddings: false, ..config.clone() }, "has no tensor output.weight");
    refused(&small_llama("llama"), "general.architecture is");
}

/// scripts/make_gguf_goldens.py
#[test]
fn blocks_are_those_of_the_package_gguf_to_the_bit() {
    let bytes = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/gguf.safetensors")).unwrap();
    let goldens = SafeTensors::deserialize(&bytes).unwrap();
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(goldens.tensor("values").unwrap().data());
    for dtype in GgmlType::ALL {
        let tensor = |what: &str| goldens.tensor(&format!("{}.{what}", dtype.name())).unwrap().data().to_vec();
        let (bytes, theirs): (_, Vec<f32>) = (tensor("bytes"), bytemuck::pod_collect_to_vec(&tensor("values")));
        if GgmlType::WRITTEN.contains(&dtype) {
            let mut ours = vec![];
            dtype.encode(&values, &mut ours).unwrap();
            assert_eq!(ours, bytes, "{dtype:?}");
        }
        let mut back = vec![f32::NAN; theirs.len()];
        assert_eq!(dtype.size_bytes(theirs.len()), bytes.len());
        dtype.decode(&bytes, &mut back);
        assert_eq!(back, theirs, "{dtype:?}");
    }
}

/// A file that the package wrote: values of every type, another alignment.
#[test]
fn a_file_of_the_package_gguf_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/gguf/package.gguf");
    let file = GgufFile::open(path.as_ref()).unwrap();
    let value = |key: &str| file.value(key).unwrap_or_else(|| panic!("{key}"));
    assert_eq!(value("general.architecture"), &Value::Text("llama".into()));
    assert_eq!(value("a.u32"), &Value::U32(7));
    assert_eq!(value("a.i32"), &Value::I32(-7));
    assert_eq!(value("a.f32"), &Value::F32(0.5));
    assert_eq!(value("a.bool"), &Value::Bool(true));
    assert_eq!(value("a.texts"), &Value::Texts(vec!["x".into(), "▁y".into()]));
    assert_eq!(value("a.i32s"), &Value::I32s(vec![1, -2]));
    assert_eq!(value("a.f32s"), &Value::F32s(vec![0.5, -2.0]));
    for key in ["a.u8", "a.u64", "a.f64", "a.u64s"] {
        assert_eq!(value(key), &Value::Other, "{key}");
    }
    assert_eq!(file.spec("matrix"), Some((GgmlType::F32, &[2, 3][..])));
    assert_eq!(file.tensor("matrix").unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(file.spec("blocks"), Some((GgmlType::Q8_0, &[1, 32][..])));
    assert!(file.tensor("blocks").unwrap().iter().all(|x| (x - 1.0).abs() < 1e-3));
}

/// A header with these values and tensors: the name, sizes, type and offset of each.
fn header(values: &[(&str, Value)], tensors: &[(&str, &[u64], u32, u64)]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((values.len() as u64).to_le_bytes());
    for (key, value) in values {
        write_text(key, &mut bytes);
        value.write(&mut bytes);
    }
    for (name, sizes, dtype, offset) in tensors {
        write_text(name, &mut bytes);
        bytes.extend((sizes.len() as u32).to_le_bytes());
        sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        bytes.extend(dtype.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes
}

#[test]
fn whatever_a_file_claims_it_is_refused_and_takes_no_memory() {
    let refused = |bytes: &[u8], told: &str| {
        let error = open(bytes).err().unwrap_or_else(|| panic!("{told}")).to_string();
        assert!(error.contains("x.gguf") && error.contains("is damaged") && error.contains(told), "{error}");
    };
    let whole = header(&[("a", Value::Texts(vec!["b".into()]))], &[("t", &[32, 1], 0, 0)]);
    for length in 0..whole.len() {
        refused(&whole[..length], "");
    }
    refused(b"GGML\x03\0\0\0", "does not start with");
    refused(b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "version is 1");
    // Counts of 2^63: of tensors, of values, of the length of a text and of a list.
    let claims = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&(1u64 << 63).to_le_bytes());
        bytes
    };
    let key = 4 + 4 + 8 + 8;
    for at in [8, 16, key, key + 8 + 1 + 4 + 4, key + 8 + 1 + 4 + 4 + 8] {
        refused(&claims(at), "");
    }
    let mut long = MAGIC.to_vec();
    long.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'a']);
    long.extend([9, 0, 0, 0, 10, 0, 0, 0]); // a list of u64
    long.extend((1u64 << 62).to_le_bytes());
    refused(&long, "more than the file holds");
    let pad = |mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT) + 128, 0);
        bytes
    };
    let one = |sizes: &[u64], dtype: u32, offset: u64, told: &str| {
        refused(&pad(header(&[], &[("t", sizes, dtype, offset)])), told);
    };
    assert!(open(&pad(header(&[], &[("t", &[32], 0, 0)]))).is_ok());
    one(&[33], 0, 0, "t lies outside of the file");
    one(&[32], 0, 32, "t lies outside of the file");
    one(&[32], 0, u64::MAX - 31, "t lies outside of the file");
    one(&[32], 0, 1, "t lies outside of the file"); // not aligned
    one(&[1 << 40, 1 << 40], 0, 0, "more than the file holds");
    one(&[1 << 63], 0, 0, "more than the file holds");
    one(&[], 0, 0, "0 dimensions");
    one(&[1; 5], 0, 0, "5 dimensions");
    one(&[31], 8, 0, "not a multiple of the blocks of q8_0");
    one(&[256], 11, 0, "ggml's type 11");
    refused(&pad(header(&[], &[("t", &[1], 0, 0), ("t", &[1], 0, 0)])), "the tensor t twice");
    refused(&header(&[("a", Value::U32(1)), ("a", Value::U32(1))], &[]), "the key a twice");
    refused(&header(&[("general.alignment", Value::U32(0))], &[]), "not a power of two");
    let mut no_type = header(&[("a", Value::U32(1))], &[]);
    let at = no_type.len() - 8;
    no_type[at] = 99;
    refused(&no_type, "a: unknown value type 99");
}

#[test]
fn the_shape_is_read_from_the_metadata() {
    let exported = |config: &ModelConfig| {
        let export = Export { copies: 0, ..export(GgmlType::F32) };
        open(&written(&mut *build(config, 0).unwrap(), &export).unwrap().0).unwrap()
    };
    for config in every_shape() {
        // The scaling of a Llama 3 is recognised by its divisors, and these are of no published one.
        let file = exported(&config);
        let of_llama3 = config.llama.as_ref().is_some_and(|llama| llama.rope_scaling == Some(LLAMA3));
        match read_shape(&file) {
            Err(error) => assert!(of_llama3 && error.to_string().contains("rope_freqs.weight holds"), "{error}"),
            // There every GPT-2 has biases, which may be zeros.
            Ok(read) => {
                assert_eq!(read, ModelConfig { bias: config.kind.as_str() == "gpt2", ..config.clone() });
                assert!(super::open(&file, &read, usize::MAX).is_ok());
            }
        }
    }
    let published =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_block_size: 8192 };
    let config = ModelConfig {
        block_size: 16_384,
        ..llama(|l| (l.rope_scaling, l.rope_theta, l.head_dim) = (Some(published), 500_000.0, 64))
    };
    assert_eq!(read_shape(&exported(&config)).unwrap(), config);
}

/// Any part of every parameter is the same part of the whole, whatever the layout and the blocks.
#[test]
fn parts_of_parameters_are_read_as_they_are_in_the_whole() {
    for (config, dtype) in [(small(50, 12, 4, 64), GgmlType::Q8_0), (small_llama("llama"), GgmlType::F16)] {
        let export = Export { copies: 0, ..export(dtype) };
        let file = open(&written(&mut *build(&config, 0).unwrap(), &export).unwrap().0).unwrap();
        let model = || super::open(&file, &config, usize::MAX).unwrap().parameters();
        for ((name, whole), (_, parts)) in model().iter().zip(model()) {
            let all = whole.to_device(&Device::Cpu).unwrap().to_f32().unwrap();
            for (start, len) in [(0, 1), (5, 40), (31, 34), (all.len() / 2, all.len() - all.len() / 2)] {
                let (start, end) = (start.min(all.len()), (start + len).min(all.len()));
                let len = end - start;
                let part = parts.slice_flat(start, [len].into()).to_device(&Device::Cpu).unwrap();
                assert_eq!(part.to_f32().unwrap(), all[start..start + len], "{name} {start} {len}");
            }
        }
    }
}

#[test]
fn metadata_that_change_what_is_computed_are_refused_by_name() {
    let config = small_llama("llama");
    let refused = |key: &str, value: Value, told: &[&str]| {
        let metadata = vec![(format!("llama.{key}"), value)];
        let export = Export { metadata, copies: 0, ..export(GgmlType::F32) };
        let file = open(&written(&mut *build(&config, 0).unwrap(), &export).unwrap().0).unwrap();
        let error = read_shape(&file).unwrap_err().to_string();
        assert!(told.iter().all(|told| error.contains(told)), "{error}");
    };
    refused("expert_count", Value::U32(8), &["x.gguf", "unsupported key llama.expert_count = Some(U32(8))"]);
    refused("rope.scaling.type", Value::Text("yarn".into()), &["llama.rope.scaling.type", "yarn"]);
    refused("rope.scaling.type", Value::Text("linear".into()), &["no key llama.rope.scaling.factor"]);
    refused("attention.causal", Value::Bool(false), &["llama.attention.causal is Bool(false)"]);
    refused("attention.sliding_window", Value::U32(4), &["llama.attention.sliding_window is 4"]);
}
