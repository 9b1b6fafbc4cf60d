//! `rustyflow bench`: what a device can do.

use crate::sandbox::{Sandbox, TINY_RUN, has_gpu, json_lines};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const CPU: [&str; 4] = ["--device", "cpu", "--threads", "1"];
const GPU: [&str; 3] = ["--device", "gpu", "--allow-software-gpu"];

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key} of {line}"))
}

#[test]
fn ops_times_every_kernel_of_an_op() {
    let args = [&["bench", "ops", "--only", "layer_norm,gelu", "--json"], &CPU[..]].concat();
    let lines = json_lines(&Sandbox::new().run(&args).succeeds().stdout);
    let kernels: Vec<&str> = lines.iter().map(|l| l["kernel"].as_str().unwrap()).collect();
    for kernel in ["layer_norm", "layer_norm_backward", "sum_rows", "all"] {
        assert!(kernels.contains(&kernel), "{kernels:?}");
    }
    assert!(kernels.contains(&"gelu_backward") && !kernels.contains(&"matmul"), "{kernels:?}");
    for line in &lines {
        assert!(number(line, "ms") > 0.0 && number(line, "gb_per_s") > 0.0 && number(line, "share") > 0.0, "{line}");
        let shares = [("tflops", "peak_tflops"), ("gb_per_s", "peak_gb_per_s")];
        let [compute, memory] = shares.map(|(rate, peak)| number(line, rate) / number(line, peak));
        assert!((number(line, "share") - compute.max(memory)).abs() < 1e-9, "{line}");
        assert_eq!(line["bound"], if compute > memory { "compute" } else { "memory" });
        assert!(line["difference"].is_null() && line["agrees"] == true, "the CPU is the reference: {line}");
    }
}

#[test]
fn ops_times_gemms_of_any_shape() {
    let args = [&["bench", "ops", "--only", "matmul", "--shape", "64x32x16,1x5x7", "--json"], &CPU[..]].concat();
    let lines = json_lines(&Sandbox::new().run(&args).succeeds().stdout);
    let shapes: Vec<&str> = lines.iter().map(|l| l["shape"].as_str().unwrap()).collect();
    assert_eq!(shapes, ["nn 64x32x16", "nt 64x32x16", "tn 64x32x16", "nn 1x5x7", "nt 1x5x7", "tn 1x5x7"]);
    let flops = number(&lines[0], "tflops") * number(&lines[0], "ms") * 1e9;
    assert!((flops - 2.0 * 64.0 * 32.0 * 16.0).abs() < 1.0, "{flops}");
}

#[test]
fn lora_times_steps_of_adapters_by_type_context_and_batch() {
    let sandbox = Sandbox::trained();
    let sizes = ["--rank", "2", "--context", "8,16", "--batch-size", "1,2", "--steps", "1", "--rounds", "1", "--json"];
    let args = [&["bench", "lora", "--model", TINY_RUN, "--base-dtype", "f32,f16"], &sizes[..], &CPU[..]].concat();
    let lines = json_lines(&sandbox.run(&args).succeeds().stdout);
    let of = |line: &Value| (line["base_dtype"].clone(), line["context"].clone(), line["batch_size"].clone());
    let expected: Vec<_> = ["f32", "f16"]
        .iter()
        .flat_map(|dtype| [8, 16].map(|t| (*dtype, t)))
        .flat_map(|(dtype, t)| [1, 2].map(|b| (Value::from(dtype), Value::from(t), Value::from(b))))
        .collect();
    assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), expected);
    for line in &lines {
        // 2 x (16 + 48) + 2 x (16 + 16) + 2 x (16 + 64) x 2
        assert_eq!(line["trained_parameters"], 512, "{line}");
        assert!(number(line, "tokens_per_s") > 0.0 && number(line, "gib") > 0.0, "{line}");
    }
    let missing = ["bench", "lora", "--model", "nowhere/at/all"];
    sandbox.run(&[&missing[..], &CPU[..]].concat()).fails_with(&["nowhere/at/all"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ops_checks_the_gpu_against_the_cpu() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let args = [&["bench", "ops", "--only", "softmax,sgd", "--sizes", "small", "--json"], &GPU[..]].concat();
    let lines = json_lines(&sandbox.run(&args).succeeds().stdout);
    let mut kernels: Vec<&str> = lines.iter().filter_map(|line| line["kernel"].as_str()).collect();
    kernels.sort_unstable();
    assert_eq!(kernels, ["all", "grad_norm", "sgd", "softmax", "softmax_backward", "sum"], "{lines:?}");
    assert!(lines.iter().all(|line| (0.0..1e-4).contains(&number(line, "difference"))), "{lines:?}");
}

#[test]
fn ops_refuses_what_it_cannot_time() {
    let sandbox = Sandbox::new();
    sandbox.run(&["bench", "ops", "--only", "matmull"]).fails_with(&["--only matmull", "matmul, linear, feed_forward"]);
    let run = sandbox.run(&["bench", "ops", "--only", "softmax", "--shape", "8x8x8"]);
    run.fails_with(&["--shape", "--only matmul"]);
    let run = sandbox.run(&["bench", "ops", "--shape", "8x0x8"]);
    assert!(run.code == Some(2) && run.stderr.contains("as 4096x4096x64"), "{run:?}");
    let run = sandbox.run(&["bench", "ops", "--sizes", "huge"]);
    assert!(run.code == Some(2) && run.stderr.contains("gpt2-124m or small"), "{run:?}");
}

const QUICK: [&str; 6] = ["--case", "cpu-small", "--steps", "1", "--rounds", "1"];

#[test]
fn step_times_every_batch_size_and_context_and_draws_them() {
    let sandbox = Sandbox::new();
    let sweep = ["--batch-size", "1,3", "--context", "8,16", "--svg", "steps.svg", "--json"];
    let run = sandbox.run(&[&["bench", "step"], &QUICK[..], &CPU, &sweep].concat()).succeeds();
    let lines = json_lines(&run.stdout);
    let sizes: Vec<_> = lines.iter().map(|l| (number(l, "context"), number(l, "batch_size"))).collect();
    assert_eq!(sizes, [(8.0, 1.0), (8.0, 3.0), (16.0, 1.0), (16.0, 3.0)]);
    for line in &lines {
        let tokens = number(line, "context") * number(line, "batch_size");
        assert!(
            (number(line, "tokens_per_s") * number(line, "ms_per_step") / 1e3 / tokens - 1.0).abs() < 1e-9,
            "{line}"
        );
        assert_eq!(line["precision"], "f32", "{line}");
    }
    // Each its own: 16 tokens after 24.
    let peaks: Vec<u64> = lines.iter().map(|l| l["report"]["memory"]["peak_bytes"].as_u64().unwrap()).collect();
    assert!(0 < peaks[0] && peaks[0] < peaks[1] && peaks[2] < peaks[1] && peaks[2] < peaks[3], "{peaks:?}");
    let svg = sandbox.read("steps.svg");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let named =
        ["tokens per second", "in proportion to B", "cpu-small T=16", "microseconds per token", "cpu-small B=3"];
    for name in named.iter().chain(&["predicted: attention in proportion to T"]) {
        assert!(svg.contains(name), "{name} is missing in {svg}");
    }
}

#[test]
fn step_refuses_sizes_that_make_no_sense() {
    let sandbox = Sandbox::new();
    let step = |further: &[&str]| sandbox.run(&[&["bench", "step"], &QUICK[..], &CPU, further].concat());
    step(&["--svg", "steps.svg"]).fails_with(&["--svg", "--batch-size", "--context"]);
    step(&["--svg", "missing/steps.svg", "--context", "2,4"]).fails_with(&["cannot create missing/steps.svg"]);
    assert_eq!(step(&["--batch-size", "0"]).code, Some(2));
    sandbox.run(&["bench", "step", "--case", "gpt5"]).fails_with(&["--case gpt5", "gpt2-124m"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn step_tells_gpu_memory_by_kind() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let small = ["--batch-size", "2", "--context", "16"];
    let line = sandbox.run(&[&["bench", "step", "--json"], &QUICK[..], &GPU, &small].concat()).succeeds().json();
    let memory = &line["report"]["memory"];
    let kinds = memory["peak_by_kind"].as_object().expect("an object");
    let bytes = |kind: &str| kinds[kind].as_u64().unwrap_or_else(|| panic!("{kind} of {memory}"));
    assert_eq!(kinds.keys().map(|kind| bytes(kind)).sum::<u64>(), memory["peak_bytes"].as_u64().unwrap(), "{memory}");
    assert!(memory["reserved_bytes"].as_u64() >= memory["peak_bytes"].as_u64(), "{memory}");
    // Values and gradients in one arena each, two moments; every matrix has its rows on multiples of 256 bytes.
    let arena = bytes("parameters");
    assert!(arena >= 4 * 800_000 && bytes("gradients") >= arena, "{memory}");
    assert_eq!(bytes("optimizer_state"), 2 * arena, "{memory}");
    assert!(bytes("activations") > 0 && bytes("other") < 4096, "{memory}");
    let run = sandbox.run(&[&["bench", "step", "--profile"], &QUICK[..], &GPU, &small].concat()).succeeds();
    let run = run.prints(&["  - GPU memory: ", " at most (optimizer state ", " obtained in "]);
    names_the_three_largest(&run.stdout);
}

/// Below the table, in its order and with its shares, beside peaks.
fn names_the_three_largest(report: &str) {
    let (table, largest) =
        report.split_once("\n  Largest kernels (the device's peaks just now: ").expect("the largest");
    let (_, table) = table.split_once("GB/s\n").expect("a table");
    let mut lines = largest.lines();
    let peaks = lines.next().unwrap();
    assert!(peaks.contains("FLOP/s in f32 GEMMs, ") && peaks.ends_with("B/s):"), "{peaks}");
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 3, "{report}");
    for (line, row) in lines.iter().zip(table.lines()) {
        let row: Vec<&str> = row.split_whitespace().collect();
        assert!(line.starts_with(&format!("  - {}, {}: ", row[0], row[3])), "{line}: {row:?}");
        let (_, why) = line.split_once("B/s; ").expect("both rates");
        let reasons = ["mostly arithmetic, ", "mostly memory, ", "it waits: small calls of ", "neither arithmetic ("];
        assert!(reasons.iter().any(|reason| why.starts_with(reason)), "{line}");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn step_says_what_bounds_the_largest_kernels() {
    let sandbox = Sandbox::new();
    let step = |further: &[&str]| sandbox.run(&[&["bench", "step"], &QUICK[..], &CPU, further].concat()).succeeds();
    names_the_three_largest(&step(&["--profile"]).stdout);
    let report = &step(&["--profile", "--json"]).json()["report"];
    assert_eq!(report["peaks"]["dtype"], "f32");
    for kernel in report["kernels"].as_array().expect("kernels") {
        let beside = &kernel["beside_peaks"];
        for (rate, share) in [("tflops", "compute"), ("gb_per_s", "memory")] {
            let expected = number(kernel, rate) / number(&report["peaks"], rate);
            assert!((number(beside, share) - expected).abs() <= 1e-9 * expected, "{kernel}");
        }
        assert!(beside["bound"].is_string() && number(kernel, "ms_per_call") > 0.0, "{kernel}");
    }
    let report = &step(&["--json"]).json()["report"];
    assert!(report["peaks"].is_null() && report["kernels"][0]["beside_peaks"].is_null(), "not measured: {report}");
}

#[test]
fn generate_times_tokens_after_prompts_of_several_lengths() {
    let sandbox = Sandbox::new();
    let generate =
        |further: &[&str]| sandbox.run(&[&["bench", "generate", "--case", "cpu-small"], &CPU[..], further].concat());
    let lines = json_lines(&generate(&["--prompt-tokens", "4,64", "--new-tokens", "3", "--json"]).succeeds().stdout);
    let lengths: Vec<f64> = lines.iter().map(|l| number(l, "prompt_tokens")).collect();
    assert_eq!(lengths, [4.0, 64.0]);
    for line in &lines {
        assert_eq!(number(line, "new_tokens"), 3.0);
        assert!(number(line, "first_token_ms") > 0.0, "{line}");
        assert!((number(line, "ms_per_token") * number(line, "tokens_per_s") / 1e3 - 1.0).abs() < 1e-9, "{line}");
    }
    let batch =
        generate(&["--prompt-tokens", "4", "--new-tokens", "3", "--batch-size", "5", "--json"]).succeeds().json();
    assert!((number(&batch, "ms_per_token") * number(&batch, "tokens_per_s") / 5e3 - 1.0).abs() < 1e-9, "{batch}");
    let run = generate(&["--new-tokens", "1"]).succeeds();
    run.prints(&["f32 B=1, prompt of 1 tokens and 1 new", "prompt of 63 tokens", "ms/token"]);
    generate(&["--prompt-tokens", "1,8", "--svg", "a.svg"]).succeeds();
    let svg = sandbox.read("a.svg");
    assert!(svg.contains("cpu-small B=1") && svg.contains("milliseconds per token"), "{svg}");
    generate(&["--prompt-tokens", "8", "--svg", "b.svg"]).fails_with(&["--svg", "--prompt-tokens"]);
    assert!(!sandbox.exists("b.svg"));
    generate(&["--dtype", "f16"]).fails_with(&["--dtype f16", "the CPU"]);
    generate(&["--prompt-tokens", "65"]).fails_with(&["--prompt-tokens 65", "cpu-small", "64"]);
}

#[test]
fn a_step_in_mixed_precision_is_for_gpus() {
    let step = ["bench", "step", "--case", "cpu-small", "--precision", "mixed"];
    Sandbox::new().run(&[&step[..], &CPU[..]].concat()).fails_with(&["--precision", "16-bit floats", "on the CPU"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn tune_keeps_what_it_measures_where_training_finds_it() {
    if !has_gpu() {
        return;
    }
    // Of WebGPU's default limits, so that few kernels are to be compiled.
    let limits = [("RUSTYFLOW_GPU_LIMITS", "default")];
    let sandbox = Sandbox::with_own_cache();
    let tune = [&["bench", "tune", "--seconds", "0", "--json"], &GPU[..]].concat();
    let told = sandbox.run_with(&tune, &limits).succeeds().json();
    let tiles = told["tiles"].as_object().expect("tiles");
    assert!(tiles.len() >= 3 && tiles.values().all(|tile| number(tile, "nn") > 0.0), "{told}");
    let gemms = told["gemms"].as_array().expect("GEMMs");
    assert!(gemms.len() > 10, "{told}");
    for gemm in gemms {
        assert!(number(gemm, "default_us") > 0.0 && number(gemm, "chosen_us") > 0.0, "{gemm}");
        let same = gemm["default_tile"] == gemm["chosen_tile"];
        assert!(!same || gemm["default_us"] == gemm["chosen_us"], "the same tile is timed once: {gemm}");
    }
    assert_eq!(told["matmul_f32"], serde_json::json!({ "before": "fma", "after": "fma" }));
    let kept = sandbox.run(&["devices", "--json"]).succeeds().json()["adapters"][0]["matmul_gflops"].clone();
    assert_eq!(kept, told["tiles"], "where every later start finds it");
    sandbox.run(&["bench", "tune", "--device", "cpu"]).fails_with(&["device cpu", "GPU's kernels", "gpu:0"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn report_writes_one_file_that_table_reads() {
    let sandbox = Sandbox::new();
    let report = ["bench", "report", "--seconds", "0", "--out", "cpu.json"];
    let run = sandbox.run(&[&report[..], &CPU].concat()).succeeds();
    let told: Value = serde_json::from_str(&sandbox.read("cpu.json")).unwrap();
    assert!(number(&told["peaks"], "tflops") > 0.0 && number(&told["peaks"], "gb_per_s") > 0.0, "{told}");
    let step = &told["steps"][0];
    assert_eq!((&step["case"], &step["precision"]), (&"cpu-small".into(), &"f32".into()), "{told}");
    assert!(number(step, "ms_per_step") > 0.0 && told["adapter"].is_null(), "{told}");
    let left_out = told["left_out"].as_array().expect("what no time was left for");
    assert!(left_out.iter().any(|what| what.as_str().unwrap().starts_with("attention")), "{told}");
    let table = sandbox.run(&["bench", "report", "--table", "cpu.json", "cpu.json"]).succeeds().stdout;
    let tokens_per_s = number(step, "tokens_per_s");
    // Three digits, as "15.3k".
    let digits = |value: f64| format!("{value:.*}", if value < 9.995 { 2 } else { usize::from(value < 99.95) });
    let rate = match tokens_per_s {
        rate if rate < 999.5 => digits(rate),
        rate => format!("{}k", digits(rate / 1e3)),
    };
    let row = format!("cpu-small f32: {rate} tokens/s");
    assert_eq!(table.matches(&row).count(), 2, "{table}");
    assert!(run.stdout.contains(&row), "{run:?}");
    sandbox.run(&["bench", "report", "--table", "corpus.txt"]).fails_with(&["corpus.txt", "bench report"]);
    sandbox.run(&["bench", "report", "--out", "missing/x.json"]).fails_with(&["cannot create missing/x.json"]);
}

/// What people with other hardware send in.
#[test]
fn the_table_in_the_readme_is_that_of_the_reports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join("docs/hardware")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|name| name == "json")).collect();
    files.sort();
    let files = files.iter().map(|path| path.to_str().unwrap());
    let args: Vec<&str> = ["bench", "report", "--table"].into_iter().chain(files).collect();
    let table = Sandbox::new().run(&args).succeeds().stdout;
    assert!(table.lines().count() > 2, "not a report");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(
        readme.contains(&table),
        "README.md lacks what `rustyflow bench report --table docs/hardware/*.json` prints:\n{table}"
    );
}
