//! `rustyflow bench`: what a device can do.

use crate::sandbox::{Sandbox, has_gpu, json_lines};
use serde_json::Value;

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
    for kernel in ["layer_norm", "layer_norm_backward", "layer_norm_weight_backward", "sum_rows", "all"] {
        assert!(kernels.contains(&kernel), "{kernels:?}");
    }
    assert!(kernels.contains(&"gelu_backward") && !kernels.contains(&"matmul"), "{kernels:?}");
    for line in &lines {
        assert!(number(line, "ms") > 0.0 && number(line, "gb_per_s") > 0.0 && number(line, "share") > 0.0, "{line}");
        let shares = [("tflops", "peak_tflops"), ("gb_per_s", "peak_gb_per_s")];
        let [compute, memory] = shares.map(|(rate, peak)| number(line, rate) / number(line, peak));
        assert!((number(line, "share") - compute.max(memory)).abs() < 1e-9, "{line}");
        assert_eq!(line["bound"], if compute > memory { "compute" } else { "memory" });
        assert!(line["difference"].is_null(), "the CPU is the reference: {line}");
    }
}

#[test]
fn ops_times_products_of_any_shape() {
    let args = [&["bench", "ops", "--only", "matmul", "--shape", "64x32x16,1x5x7", "--json"], &CPU[..]].concat();
    let lines = json_lines(&Sandbox::new().run(&args).succeeds().stdout);
    let shapes: Vec<&str> = lines.iter().map(|l| l["shape"].as_str().unwrap()).collect();
    assert_eq!(shapes, ["nn 64x32x16", "nt 64x32x16", "tn 64x32x16", "nn 1x5x7", "nt 1x5x7", "tn 1x5x7"]);
    let flops = number(&lines[0], "tflops") * number(&lines[0], "ms") * 1e9;
    assert!((flops - 2.0 * 64.0 * 32.0 * 16.0).abs() < 1.0, "{flops}");
}

#[test]
fn ops_checks_the_gpu_against_the_cpu() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let args = [&["bench", "ops", "--only", "softmax,sgd", "--sizes", "small", "--json"], &GPU[..]].concat();
    let lines = json_lines(&sandbox.run(&args).succeeds().stdout);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines.iter().all(|line| (0.0..1e-4).contains(&number(line, "difference"))), "{lines:?}");
}

#[test]
fn ops_refuses_what_it_cannot_time() {
    let sandbox = Sandbox::new();
    sandbox.run(&["bench", "ops", "--only", "matmull"]).fails_with(&["--only matmull", "matmul, linear, attention"]);
    let run = sandbox.run(&["bench", "ops", "--only", "softmax", "--shape", "8x8x8"]);
    run.fails_with(&["--shape", "--only matmul"]);
    let run = sandbox.run(&["bench", "ops", "--shape", "8x0x8"]);
    assert!(run.code == Some(2) && run.stderr.contains("as 4096x4096x64"), "{run:?}");
    let run = sandbox.run(&["bench", "ops", "--sizes", "huge"]);
    assert!(run.code == Some(2) && run.stderr.contains("gpt2-124m or small"), "{run:?}");
}
