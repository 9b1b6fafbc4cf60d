//! Applies ops to given inputs, for `scripts/check_fuzz.py`, which compares what they compute with PyTorch:
//!
//!     cargo run --release --example op_fuzz -- cpu < cases.jsonl > results.jsonl
//!
//! A line of standard input is a case: the op by its name in `crates/tensor/tests/goldens/ops.json`, its attributes,
//! its inputs as shape and values, and the gradient of its output. A line of standard output has the shape and the
//! values of the output, and the gradient of each float input, or an error.

#[path = "../crates/tensor/tests/common/golden_ops.rs"]
mod golden_ops;

use rustyflow::gpu::{AdapterChoice, Gpu};
use rustyflow::{Device, Result, Tensor};
use serde_json::{Value, json};
use std::io::{BufWriter, Write, stdin, stdout};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cpu") => Device::Cpu,
        Some("gpu") => Device::Gpu(Gpu::open(&AdapterChoice { allow_software: true, ..AdapterChoice::default() })?),
        _ => return Err("expected cpu or gpu".into()),
    };
    let mut out = BufWriter::new(stdout());
    for line in stdin().lines() {
        let case = serde_json::from_str(&line?)?;
        let result = apply(&case, &device).unwrap_or_else(|error| json!({ "error": error.to_string() }));
        writeln!(out, "{result}")?;
    }
    Ok(out.flush()?)
}

fn apply(case: &Value, device: &Device) -> Result<Value> {
    let inputs = case["inputs"].as_array().expect("inputs").iter().map(|input| tensor(input, device));
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    let y = golden_ops::apply(case["op"].as_str().expect("an op"), &case["attrs"], &inputs)?;
    y.backward_with(&tensor(&case["grad_output"], device)?)?;
    let grads = inputs.iter().filter_map(Tensor::grad).map(numbers).collect::<Result<Vec<_>>>()?;
    Ok(json!({ "shape": y.shape().to_vec(), "values": numbers(&y)?, "grads": grads }))
}

/// A leaf of floats, or ids.
fn tensor(value: &Value, device: &Device) -> Result<Tensor> {
    let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).expect("a shape");
    if value["ids"].as_bool().expect("whether they are ids") {
        let ids: Vec<u32> = serde_json::from_value(value["values"].clone()).expect("ids");
        return Tensor::from_u32(&ids, shape, device);
    }
    let values: Vec<f32> = serde_json::from_value(value["values"].clone()).expect("numbers");
    Tensor::from_f32(&values, shape, device)?.requires_grad()
}

/// As text, because JSON has no NaN.
fn numbers(tensor: &Tensor) -> Result<Vec<String>> {
    Ok(tensor.to_f32()?.iter().map(f32::to_string).collect())
}
