//! Models from elsewhere: folders as other programs write them, and runs that begin with them.

use crate::sandbox::{Sandbox, TINY_RUN};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::json;
use std::fs;

const EVAL: [&str; 6] = ["eval", "--text", "corpus.txt", "--device", "cpu", "--json"];

/// A tensor: name, type, shape, bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// A trained model, and the same in `there`: in three shards, one for each type of number, without the prefix of names,
/// with what older versions of transformers wrote besides, and with nothing of ours.
fn in_parts() -> Sandbox {
    let sandbox = Sandbox::trained();
    let from = sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006"));
    fs::create_dir(sandbox.path("there")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(from.join(name), sandbox.path("there").join(name)).unwrap();
    }
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut shards: [Vec<Stored>; 3] = Default::default();
    let mut tensors = file.tensors();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b)); // their order is of a hash map
    for (i, (name, view)) in tensors.into_iter().enumerate() {
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
        let (dtype, data) = match i % 3 {
            0 => (Dtype::F32, view.data().to_vec()),
            1 => (Dtype::F16, values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()),
            _ => (Dtype::BF16, values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()),
        };
        let name = name.strip_prefix("transformer.").unwrap_or(&name).to_string();
        shards[i % 3].push((name, dtype, view.shape().to_vec(), data));
    }
    shards[0].push(("h.0.attn.bias".into(), Dtype::U8, vec![1, 1, 2, 2], vec![1, 0, 1, 1]));
    let mut map = serde_json::Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-0000{}-of-00003.safetensors", i + 1);
        map.extend(shard.iter().map(|(name, ..)| (name.clone(), json!(file))));
        let views = shard
            .iter()
            .map(|(name, dtype, shape, data)| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        sandbox.write(format!("there/{file}"), safetensors::serialize(views, None).unwrap());
    }
    sandbox.write("there/model.safetensors.index.json", json!({ "metadata": {}, "weight_map": map }).to_string());
    sandbox
}

fn loss(sandbox: &Sandbox, model: &str) -> f64 {
    sandbox.run(&[&EVAL[..], &["--model", model]].concat()).succeeds().json()["loss"].as_f64().unwrap()
}

#[test]
fn a_folder_in_shards_of_other_types_is_read() {
    let sandbox = in_parts();
    let (here, there) = (loss(&sandbox, TINY_RUN), loss(&sandbox, "there"));
    // Half of the numbers have 8 or 11 bits.
    assert!((here - there).abs() < 0.01 && here != there, "{here} and {there}");
    let text = ["generate", "--model", "there", "--prompt", "the", "--device", "cpu"];
    sandbox.run(&text).succeeds().prints(&["the"]);
}

#[test]
fn what_the_tokenizer_puts_before_texts_is_seen_by_the_model_and_not_shown() {
    let sandbox = in_parts();
    let generate = || {
        let args = ["generate", "--model", "there", "--prompt", "the", "--device", "cpu", "-n", "5", "-t", "0"];
        sandbox.run(&args).succeeds().stdout
    };
    let before = generate();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&sandbox.read("there/tokenizer.json")).unwrap();
    let single = json!([{ "SpecialToken": { "id": "w", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }]);
    let first = json!({ "w": { "id": "w", "ids": [tokenizer["model"]["vocab"]["w"]], "tokens": ["w"] } });
    tokenizer["post_processor"] =
        json!({ "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": first });
    sandbox.write("there/tokenizer.json", tokenizer.to_string());
    let after = generate();
    assert!(after.starts_with("the") && after.len() == before.len(), "{before:?} and {after:?}");
    // A prompt that fills the context of 16 has no room for what stands before it.
    let full = ["generate", "--model", "there", "--prompt", "the dog sees the", "--device", "cpu", "-n", "1"];
    assert!(sandbox.run(&full).succeeds().stderr.contains("the prompt has 17 tokens"));
}

#[test]
fn a_run_begins_with_the_weights_the_shape_and_the_tokenizer_of_a_folder() {
    let sandbox = in_parts();
    // One step that changes nothing.
    let still = ["--max-steps", "1", "--learning-rate", "1e-30", "--set", "data.validation_fraction=0.5"];
    let train = ["train", "--init", "there", "--corpus", "corpus.txt", "--device", "cpu", "--name", "on"];
    sandbox.run(&[&train[..], &still].concat()).succeeds();
    assert_eq!(loss(&sandbox, "runs/on"), loss(&sandbox, "there"));
    // A run stands for its best checkpoint.
    let train = ["train", "--init", TINY_RUN, "--corpus", "corpus.txt", "--device", "cpu", "--name", "of-run"];
    let run = sandbox.run(&[&train[..], &still].concat()).succeeds();
    assert!(!run.stdout.contains("quickstart"), "{}", run.stdout);
    assert_eq!(loss(&sandbox, "runs/of-run"), loss(&sandbox, TINY_RUN));
    let config = sandbox.read("runs/on/config.toml");
    let line = |section: &str, key: &str| {
        let of_section = config.lines().skip_while(|line| *line != format!("[{section}]"));
        of_section.skip(1).find(|line| line.split(' ').next() == Some(key)).expect(key).to_string()
    };
    for (key, told) in [("n_layer", "= 1 "), ("n_embd", "= 16 "), ("context", "= 16 "), ("vocab_size", "= ")] {
        let line = line("model", key);
        assert!(line.contains(told) && line.contains("in model.init"), "{line}");
    }
    let rows = line("model", "block_size");
    assert!(rows.contains("= 16 ") && rows.contains("# default: 1024, or the text or the model's context"), "{rows}");
    let line = line("data", "tokenizer");
    assert!(line.contains("\"there/\"") && line.contains("that of model.init"), "{line}");

    // What it needs is its own from here on.
    fs::remove_dir_all(sandbox.path("there")).unwrap();
    let on = ["train", "--resume", "runs/on", "--max-steps", "3", "--set", "train.warmup_steps=0"];
    sandbox.run(&on).succeeds().prints(&["resumed    after step 1"]);
}

#[test]
fn shorter_rows_leave_the_context_and_anything_else_that_differs_is_refused() {
    let sandbox = in_parts();
    let train = |further: &[&str]| {
        let args = ["train", "--init", "there", "--corpus", "corpus.txt", "--device", "cpu", "--max-steps", "1"];
        sandbox.run(&[&args[..], further].concat())
    };
    train(&["--block-size", "8", "--name", "short"]).succeeds();
    let config = sandbox.read("runs/short/checkpoints/step-000001/config.json");
    assert!(config.contains("\"n_positions\": 16"), "{config}");
    let read = |name: &str| -> serde_json::Value { serde_json::from_str(&sandbox.read(name)).unwrap() };
    let tokenizer = read("runs/short/checkpoints/step-000001/tokenizer_config.json");
    assert_eq!(tokenizer["model_max_length"], 16);
    // In windows of its rows, or of all that the model can read.
    let eval = |more: &[&str]| {
        let args = ["eval", "--model", "runs/short", "--corpus", "corpus.txt", "--device", "cpu"];
        sandbox.run(&[&args[..], more].concat())
    };
    eval(&[]).succeeds().prints(&["context 8, stride 8"]);
    eval(&["--context", "16"]).succeeds().prints(&["context 16, stride 16"]);
    eval(&["--context", "17"]).fails_with(&["--context is 17", "1 to 16"]);
    train(&["--block-size", "17"]).fails_with(&["--block-size: model.block_size", "is 17", "there", "16"]);
    train(&["--n-layer", "2"]).fails_with(&["--n-layer: model.n_layer", "is 2, but 1 in model.init"]);
    train(&["--set", "model.kind=llama"]).fails_with(&["model.kind", "\"gpt2\" in model.init"]);
    train(&["--tokenizer", "bpe", "--set", "data.vocab_size=300"]).fails_with(&[
        "--tokenizer: data.tokenizer: is not the tokenizer of the model in there",
        "it has no token ",
        "--new-tokenizer",
    ]);
    sandbox.run(&["train", "--init", "nowhere"]).fails_with(&["--init: model.init", "nowhere", "rustyflow fetch"]);
    sandbox.run(&["train", "--init", "./nowhere"]).fails_with(&["--init: model.init", "nowhere/config.json"]);
    assert_eq!(sandbox.names_in("runs"), ["corpus-L1-H2-E16-cpu", "short"], "nothing else was begun");
}

#[test]
fn what_is_wrong_with_a_folder_is_said_by_file_and_tensor() {
    let sandbox = in_parts();
    let eval = |told: &[&str]| {
        sandbox.run(&[&EVAL[..], &["--model", "there"]].concat()).fails_with(told);
    };
    let shard = "there/model-00002-of-00003.safetensors";
    let whole = fs::read(sandbox.path(shard)).unwrap();
    fs::remove_file(sandbox.path(shard)).unwrap();
    eval(&["model.safetensors.index.json", "model-00002-of-00003.safetensors", "missing"]);
    sandbox.write(shard, &whole[..whole.len() - 2]);
    eval(&["model-00002-of-00003.safetensors", "is damaged"]);
    sandbox.write(shard, [&(1_u64 << 63).to_le_bytes()[..], &whole[8..]].concat());
    eval(&["model-00002-of-00003.safetensors", "is damaged"]);
    sandbox.write(shard, &whole);
    let config = sandbox.read("there/config.json");
    sandbox.write("there/config.json", config.replace("\"n_positions\": 16", "\"n_positions\": 15"));
    eval(&["wpe.weight has shape [16, 16], config.json implies (15, 16)"]);
    sandbox.write("there/config.json", config.replace("\"n_layer\": 1", "\"n_layer\": 9"));
    eval(&["model.safetensors.index.json", "is too short for the", "config.json implies"]);
    sandbox.write("there/config.json", config.replace("gelu_new", "relu"));
    eval(&["there/config.json", "activation_function is \"relu\""]);
    sandbox.write("there/config.json", config);
    for name in sandbox.names_in("there").iter().filter(|name| name.starts_with("model")) {
        fs::remove_file(sandbox.path("there").join(name)).unwrap();
    }
    sandbox.write("there/pytorch_model.bin", "pickled");
    eval(&["there/pytorch_model.bin", "save_pretrained('there')"]);
}

#[test]
fn an_index_that_leads_elsewhere_or_is_no_index_is_refused() {
    let sandbox = in_parts();
    let path = "there/model.safetensors.index.json";
    let whole = sandbox.read(path);
    let eval = |index: &str, told: &[&str]| {
        sandbox.write(path, index);
        sandbox.run(&[&EVAL[..], &["--model", "there"]].concat()).fails_with(told);
    };
    let first = "model-00001-of-00003.safetensors";
    for other in ["../there/model-00001-of-00003.safetensors", "/etc/passwd", "a\\\\b", "."] {
        eval(&whole.replacen(first, other, 1), &["index.json: names", "which is not a file of this folder"]);
    }
    for (index, told) in
        [("", "is damaged"), ("[]", "is damaged"), (r#"{"weight_map": {"wte.weight": 1}}"#, "is damaged")]
    {
        eval(index, &["model.safetensors.index.json", told]);
    }
    #[cfg(unix)]
    {
        fs::rename(sandbox.path("there").join(first), sandbox.path("elsewhere")).unwrap();
        std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("there").join(first)).unwrap();
        eval(&whole, &["index.json: names", first, "a link to", "outside of this folder"]);
        fs::rename(sandbox.path("elsewhere"), sandbox.path("there").join(first)).unwrap();
    }
    sandbox.write("there/model-00002-of-00003.safetensors", fs::read(sandbox.path("there").join(first)).unwrap());
    eval(&whole, &["model-00002-of-00003.safetensors: has the tensor", "which is also in", first]);
}

#[test]
fn a_tokenizer_that_is_larger_than_the_embedding_is_refused() {
    let sandbox = in_parts();
    let mut config: serde_json::Value = serde_json::from_str(&sandbox.read("there/config.json")).unwrap();
    config["vocab_size"] = json!(config["vocab_size"].as_u64().unwrap() + 1);
    sandbox.write("there/config.json", config.to_string());
    let eval = [&EVAL[..], &["--model", "there"]].concat();
    // More rows than there are.
    let rows = format!("config.json implies ({}, 16)", config["vocab_size"]);
    sandbox.run(&eval).fails_with(&["wte.weight has shape [", &rows]);
    let sandbox = in_parts();
    let tokenizer: serde_json::Value = serde_json::from_str(&sandbox.read("there/tokenizer.json")).unwrap();
    let mut larger = tokenizer.clone();
    larger["model"]["vocab"]["\u{e9}"] = json!(tokenizer["model"]["vocab"].as_object().unwrap().len());
    sandbox.write("there/tokenizer.json", larger.to_string());
    sandbox.run(&eval).fails_with(&["there: tokenizer.json has", "tokens, the model", "do not match"]);
    let train = ["train", "--init", "there", "--corpus", "corpus.txt", "--device", "cpu", "--max-steps", "1"];
    sandbox.run(&train).fails_with(&["model.vocab_size", "the tokenizer has", "each needs a row of the embedding"]);
}

#[test]
fn what_a_config_asks_for_and_is_not_computed_is_refused_by_its_key() {
    let sandbox = in_parts();
    let config: serde_json::Value = serde_json::from_str(&sandbox.read("there/config.json")).unwrap();
    for (key, value, told) in [
        ("quantization_config", json!({ "quant_method": "gptq", "bits": 4 }), "quantization_config is set (\"gptq\")"),
        ("scale_attn_by_inverse_layer_idx", json!(true), "scale_attn_by_inverse_layer_idx is true"),
        ("add_cross_attention", json!(true), "add_cross_attention is true"),
        ("n_inner", json!(65), "n_inner is 65"),
        ("model_type", json!("mamba"), "model_type is \"mamba\"; rustyflow reads"),
    ] {
        let mut changed = config.clone();
        changed[key] = value;
        sandbox.write("there/config.json", changed.to_string());
        for command in [&EVAL[..], &["generate", "--device", "cpu"]] {
            let run = sandbox.run(&[command, &["--model", "there"]].concat());
            run.fails_with(&["there/config.json", told]);
        }
    }
}

/// Beside the trained model a folder `adapter` for it, whose B is zero but in the last column; its configuration is
/// this one with these keys changed.
fn adapter(sandbox: &Sandbox, changes: serde_json::Value) {
    let checkpoint = format!("../{TINY_RUN}/checkpoints/step-000006");
    let mut config = json!({"peft_type": "LORA", "base_model_name_or_path": checkpoint, "r": 2, "lora_alpha": 4});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    sandbox.write("adapter/adapter_config.json", config.to_string());
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let (a, b) = (bytes(&[0.25; 2 * 16]), bytes(&(0..64 * 2).map(|i| (i % 2) as f32).collect::<Vec<f32>>()));
    let name = |letter: &str| format!("base_model.model.transformer.h.0.mlp.c_fc.lora_{letter}.weight");
    let view = |shape: [usize; 2], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let tensors = [(name("A"), view([2, 16], &a)), (name("B"), view([64, 2], &b))];
    sandbox.write("adapter/adapter_model.safetensors", safetensors::serialize(tensors, None).unwrap());
}

#[test]
fn an_adapter_is_added_to_the_model_that_it_names() {
    let sandbox = Sandbox::trained();
    adapter(&sandbox, json!({}));
    let plain = loss(&sandbox, TINY_RUN);
    let adapted = loss(&sandbox, "adapter");
    assert_ne!(plain, adapted);
    // A run that begins with it begins there, with the tokenizer of its model.
    let still = ["--max-steps", "1", "--learning-rate", "1e-30", "--set", "data.validation_fraction=0.5"];
    let train = ["train", "--init", "adapter", "--corpus", "corpus.txt", "--device", "cpu", "--name", "on"];
    sandbox.run(&[&train[..], &still].concat()).succeeds();
    assert_eq!(loss(&sandbox, "runs/on"), adapted);
}

#[test]
fn an_adapter_that_is_no_sum_of_weights_or_for_another_model_is_refused() {
    let sandbox = Sandbox::trained();
    let refused = |changes: serde_json::Value, told: &[&str]| {
        adapter(&sandbox, changes);
        sandbox.run(&[&EVAL[..], &["--model", "adapter"]].concat()).fails_with(told);
    };
    refused(json!({"use_dora": true}), &["adapter_model.safetensors", "lora_magnitude_vector", "use_dora is true"]);
    refused(json!({"modules_to_save": ["lm_head"]}), &["modules_to_save", "lm_head"]);
    refused(json!({"base_model_name_or_path": "org/name"}), &["base_model_name_or_path", "org/name"]);
    refused(json!({"base_model_name_or_path": "../adapter"}), &["base_model_name_or_path"]);
    sandbox.write("adapter/config.json", "{}");
    refused(json!({"base_model_name_or_path": "."}), &["an adapter itself"]);
    fs::remove_file(sandbox.path("adapter/config.json")).unwrap();
    adapter(&sandbox, json!({}));
    let bytes = fs::read(sandbox.path("adapter/adapter_model.safetensors")).unwrap();
    let mut renamed = bytes.clone();
    for at in 0..bytes.len() - 4 {
        if &bytes[at..at + 4] == b".h.0" {
            renamed[at + 3] = b'9';
        }
    }
    sandbox.write("adapter/adapter_model.safetensors", renamed);
    let eval = |told: &[&str]| {
        sandbox.run(&[&EVAL[..], &["--model", "adapter"]].concat()).fails_with(told);
    };
    eval(&["adapter_model.safetensors", "h.9.mlp.c_fc.lora_A.weight", "does not have"]);
    sandbox.write("adapter/adapter_model.safetensors", &bytes[..bytes.len() - 4]);
    eval(&["adapter_model.safetensors", "is damaged"]);
    fs::remove_file(sandbox.path("adapter/adapter_model.safetensors")).unwrap();
    sandbox.write("adapter/adapter_model.bin", "pickled");
    eval(&["adapter_model.bin", "save_pretrained"]);
}

#[test]
fn a_merged_model_is_the_base_with_the_adapter_and_has_its_tokenizer() {
    let sandbox = Sandbox::trained();
    adapter(&sandbox, json!({}));
    let merge = ["merge", "adapter", "--output", "merged", "--device", "cpu"];
    sandbox.run(&merge).succeeds().prints(&["merged/model.safetensors", "logits         differ by 0 at most"]);
    assert_eq!(loss(&sandbox, "merged"), loss(&sandbox, "adapter"));
    assert!(sandbox.exists("merged/tokenizer.json"));
    sandbox.run(&["merge", TINY_RUN, "--output", "x"]).fails_with(&[TINY_RUN, "no adapter", "rustyflow export"]);
}
