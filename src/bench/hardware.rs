//! A record of one device: what it is, how fast its kernels and a training step are. The README's table of hardware is
//! made of such files (`docs/hardware/`).

use super::ops::{Peaks, measure_peaks, select, time_unchecked};
use super::step::{StepCase, StepTiming, step_cases, time_step};
use super::table::{Row, Sizes};
use crate::gpu::Limits;
use crate::units;
use crate::{DType, Device, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// What `rustyflow bench report` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HardwareReport {
    pub rustyflow: String,
    /// "release", or "debug": there every index of a shader is checked, which slows kernels.
    pub build: String,
    /// UTC.
    pub date: String,
    pub os: String,
    pub arch: String,
    /// Of the processor: physical and logical cores.
    pub cores: [usize; 2],
    pub device: String,
    /// As `rustyflow devices --json` shows it; `None` of the CPU.
    pub adapter: Option<serde_json::Value>,
    pub granted: Option<Granted>,
    /// `None` if single kernels cannot be timed.
    pub peaks: Option<Peaks>,
    /// What `bench ops --sizes` calls the sizes of `ops`.
    pub sizes: String,
    pub ops: Vec<OpRate>,
    /// What was not timed, and why.
    pub left_out: Vec<String>,
    pub steps: Vec<StepRate>,
    /// What all of it took.
    pub seconds: f64,
}

/// What kernels may use of an opened GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    pub binding_bytes: u64,
    pub buffer_bytes: u64,
    pub workgroup_bytes: u32,
    pub workgroup_threads: u32,
    pub immediates: bool,
    pub f16: bool,
    /// 0 if it is not known.
    pub subgroup_size: u32,
    /// The side of cooperative matrices; 0 if there are none.
    pub coop_matrix: u32,
    /// How large f32 GEMMs are computed: "fma" or "split-fp16".
    pub matmul_f32: String,
    /// Whether tiles are chosen by measurements of this adapter.
    pub autotuned: bool,
}

/// What one kernel of an op took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpRate {
    pub op: String,
    pub shape: String,
    pub kernel: String,
    pub ms: f64,
    pub tflops: f64,
    pub gb_per_s: f64,
}

/// A training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRate {
    pub case: String,
    /// "f32" or "mixed".
    pub precision: String,
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// The most memory that tensors took on the device.
    pub gib: f64,
}

/// The ops whose kernels are timed: GEMMs, attention, norms, passes over memory.
const OPS: [&str; 8] =
    ["matmul", "attention", "layer_norm", "add_layer_norm", "rms_norm_to", "softmax", "add", "scale"];

impl HardwareReport {
    /// Times the device: its ops until so much time has passed, then a training step. What cannot be timed is left out.
    ///
    /// # Errors
    /// If the device is lost, or no training step can be timed on it.
    pub fn measure(device: &Device, time: Duration) -> Result<HardwareReport> {
        let started = Instant::now();
        let sizes = Sizes::for_device(device);
        let mut left_out = Vec::new();
        let peaks = measure_peaks(device, &sizes).inspect_err(|e| left_out.push(format!("single kernels: {e}"))).ok();
        let ops = match &peaks {
            Some(peaks) => time_ops(device, &sizes, peaks, started + time, &mut left_out)?,
            None => Vec::new(),
        };
        let steps = time_steps(device, time / 20)?;
        let adapter = device.adapter().map(serde_json::to_value).transpose();
        Ok(HardwareReport {
            rustyflow: env!("CARGO_PKG_VERSION").into(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
            cores: [num_cpus::get_physical(), num_cpus::get()],
            device: device.describe(),
            adapter: adapter.expect("text and numbers alone"),
            granted: device.is_gpu().then(|| Granted::of(device.limits())),
            peaks,
            sizes: sizes.name.into(),
            ops,
            left_out,
            steps,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

impl Granted {
    fn of(limits: &Limits) -> Granted {
        Granted {
            binding_bytes: limits.binding_bytes,
            buffer_bytes: limits.buffer_bytes,
            workgroup_bytes: limits.workgroup_bytes,
            workgroup_threads: limits.workgroup_threads,
            immediates: limits.immediates,
            f16: limits.f16,
            subgroup_size: limits.subgroup_size,
            coop_matrix: limits.coop_matrix,
            matmul_f32: limits.matmul_f32().into(),
            autotuned: limits.matmul_throughput.is_some(),
        }
    }
}

fn time_ops(
    device: &Device,
    sizes: &Sizes,
    peaks: &Peaks,
    end: Instant,
    left_out: &mut Vec<String>,
) -> Result<Vec<OpRate>> {
    let (mut ops, mut turns) = (Vec::new(), HashMap::new());
    let turn = |row: Row| {
        let turn = turns.entry(row.op).or_insert(0);
        *turn += 1;
        (*turn, row)
    };
    // One row of each op, then the second of each: where time is short, all have some.
    let mut rows: Vec<(usize, Row)> = select(sizes, &OPS.map(str::to_string))?.into_iter().map(turn).collect();
    rows.sort_by_key(|(turn, _)| *turn);
    for (_, row) in rows {
        let name = format!("{} {}", row.op, row.shape);
        if row.f16 && !device.has_f16() {
            left_out.push(format!("{name}: the device has no 16-bit floats"));
        } else if Instant::now() >= end {
            left_out.push(format!("{name}: no time was left"));
        } else {
            match time_unchecked(&row, device, peaks) {
                Ok(timings) => ops.extend(timings.into_iter().map(|t| OpRate {
                    op: t.op.into(),
                    shape: t.shape,
                    kernel: t.kernel.into(),
                    ms: t.ms,
                    tflops: t.tflops,
                    gb_per_s: t.gb_per_s,
                })),
                // Too large for it; whether the device is lost, the steps tell.
                Err(error) => left_out.push(format!("{name}: {error}")),
            }
        }
    }
    Ok(ops)
}

/// A step of a small model in each precision, in rounds of about so much time.
fn time_steps(device: &Device, round: Duration) -> Result<Vec<StepRate>> {
    const ROUNDS: usize = 3;
    let name = if device.is_hardware_gpu() { "shakespeare-char" } else { "cpu-small" };
    let case: StepCase = step_cases().into_iter().find(|case| case.name == name).expect("it is in the table");
    let mixed = (device.is_gpu() && device.has_f16()).then_some(("mixed", DType::F16));
    let time = |(precision, operands): (&str, DType)| {
        let once = time_step(&case, device, operands, 1, 1)?.ms_per_step;
        let steps = (1e3 * round.as_secs_f64() / once.max(1e-6)).clamp(1.0, 100.0) as usize;
        let StepTiming { ms_per_step, tokens_per_s, gib, .. } = time_step(&case, device, operands, steps, ROUNDS)?;
        Ok(StepRate { case: name.into(), precision: precision.into(), ms_per_step, tokens_per_s, gib })
    };
    [Some(("f32", DType::F32)), mixed].into_iter().flatten().map(time).collect()
}

/// The reports as a table of Markdown, a row for each.
pub fn hardware_table(reports: &[HardwareReport]) -> String {
    let mut text =
        String::from("| device | version | f32 TFLOP/s | f16 TFLOP/s | GB/s | training |\n|---|---|---|---|---|---|\n");
    for report in reports {
        let digits = |rate: f64| if rate < 10.0 { format!("{rate:.3}") } else { format!("{rate:.1}") };
        let rate = |rate: Option<f64>| rate.map_or("-".to_string(), digits);
        // Without the number that it had there.
        let name =
            report.device.split_once(' ').filter(|(id, _)| id.starts_with("gpu")).map_or(&*report.device, |d| d.1);
        let (peaks, build) = (report.peaks.as_ref(), if report.build == "debug" { ", debug build" } else { "" });
        let step = |s: &StepRate| format!("{} {}: {}", s.case, s.precision, units::tokens_per_s(Some(s.tokens_per_s)));
        let steps: Vec<String> = report.steps.iter().map(step).collect();
        let _ = writeln!(
            text,
            "| {} ({}) | {}, {}{build} | {} | {} | {} | {} |",
            name.replace('|', "/"),
            report.os,
            report.rustyflow,
            report.date,
            rate(peaks.map(|peaks| peaks.tflops)),
            rate(peaks.and_then(|peaks| peaks.f16_tflops)),
            rate(peaks.map(|peaks| peaks.gb_per_s)),
            steps.join("; ")
        );
    }
    text
}
