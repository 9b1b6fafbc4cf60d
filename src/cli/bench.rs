//! `rustyflow bench`: what a device can do.

mod lora;
mod report;
mod tune;

use super::{at_least_one, device, output};
use crate::bench::{
    GenerateTiming, OpTiming, Peaks, Sizes, StepCase, StepTiming, gemms, measure_peaks, measure_roofline,
    plot_generate, plot_steps, random_model, select, step_cases, time_generate, time_row, time_step,
};
use crate::config::{DeviceConfig, Precision, WeightDtype};
use crate::profile::Roofline;
use crate::train::{check_f16_weights, check_precision, move_model, operands};
use crate::units;
use crate::{DType, Device, Error};
use anyhow::{Result, bail};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Time every kernel, beside the device's peak
    Ops(OpsArgs),
    /// Time training steps on random tokens
    Step(StepArgs),
    /// Time LoRA training steps of a model, on random tokens
    Lora(lora::Args),
    /// Time each generated token, with a model of random weights
    Generate(GenerateArgs),
    /// Autotune the GEMMs for this GPU, cache the result, print the speedup
    Tune(tune::Args),
    /// Write a report on this device: properties, kernel rates, a training step
    Report(report::Args),
}

#[derive(clap::Args)]
#[command(after_help = super::examples::BENCH_OPS)]
pub struct OpsArgs {
    /// Only these ops, such as matmul or layer_norm
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    only: Vec<String>,
    /// Instead of the table, GEMMs of these sizes, in the layouts nn, nt and tn
    #[arg(long, value_name = "MxNxK", value_delimiter = ',', value_parser = gemm_sizes)]
    shape: Vec<[usize; 3]>,
    /// gpt2-124m, or small; by default what suits the device
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    sizes: Option<Sizes>,
    /// Print one JSON object per kernel instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
}

#[derive(clap::Args)]
#[command(after_help = super::examples::BENCH_STEP)]
pub struct StepArgs {
    /// seed, shakespeare-char, gpt2-124m, gpt2-50257, gpt2-350m, llama-124m, cpu-small, cpu-seed or cpu-llama; may be
    /// repeated
    #[arg(long, required = true, value_name = "CASE", value_delimiter = ',')]
    case: Vec<String>,
    /// Steps per round
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Sequences per batch instead of the case's; several as 1,2,4
    #[arg(long, value_name = "B", value_delimiter = ',', value_parser = at_least_one)]
    batch_size: Vec<usize>,
    /// Tokens per sequence instead of the case's; several as 256,512
    #[arg(long, value_name = "T", value_delimiter = ',', value_parser = at_least_one)]
    context: Vec<usize>,
    /// f32, or mixed: matmuls of 16-bit floats
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::F32)]
    precision: Precision,
    /// Draw tokens/s against B and the time of a token against T, whichever has several values, into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also print the table by kernel, and what bounds the three largest: the device's peaks are measured for that
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per case, batch size and context instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
}

#[derive(clap::Args)]
#[command(after_help = super::examples::BENCH_GENERATE)]
pub struct GenerateArgs {
    /// The step case whose model is taken; may be repeated
    #[arg(long, required = true, value_name = "CASE", value_delimiter = ',')]
    case: Vec<String>,
    /// Length of the prompt; several as 16,256 [default: 1, then a quarter, a half and all of the context that the new
    /// tokens leave]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = at_least_one)]
    prompt_tokens: Vec<usize>,
    /// Tokens to write after each prompt
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: u32,
    /// Texts continued at once
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = at_least_one)]
    batch_size: usize,
    /// Type of the weights in matmuls: f32, f16, q8_0, q4_0 or nf4
    #[arg(long, value_name = "DTYPE", default_value_t = WeightDtype::F32)]
    dtype: WeightDtype,
    /// Draw the time of a token against the tokens before it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Add the time by kernel, the prompt's included
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per prompt instead
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: device::Flags,
}

impl Command {
    /// Whether it prints JSON.
    pub fn is_for_machines(&self) -> bool {
        match self {
            Command::Ops(args) => args.json,
            Command::Step(args) => args.json,
            Command::Lora(args) => args.json,
            Command::Generate(args) => args.json,
            Command::Tune(args) => args.json,
            Command::Report(args) => args.is_for_machines(),
        }
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Ops(args) => ops(&args),
        Command::Step(args) => step(&args),
        Command::Lora(args) => lora::run(&args),
        Command::Generate(args) => generate(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Report(args) => report::run(&args),
    }
}

fn ops(args: &OpsArgs) -> Result<()> {
    // Before the device is opened and measured: what is misspelt should fail now.
    select(&Sizes::SMALL, &args.only)?;
    if !args.shape.is_empty() && args.only.iter().any(|op| op != "matmul") {
        bail!("--shape is about GEMMs: give it alone, or with --only matmul");
    }
    let device = device::open_autotuned(&args.device.over(&DeviceConfig::default()))?;
    let sizes = args.sizes.unwrap_or_else(|| Sizes::for_device(&device));
    let rows = match &args.shape[..] {
        [] => select(&sizes, &args.only)?,
        shapes => {
            let of = |dtype| shapes.iter().flat_map(move |&[m, n, k]| gemms(dtype, m, n, k));
            [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16)).flat_map(of).collect()
        }
    };
    let peaks = measure_peaks(&device, &sizes)?;
    if !args.json {
        print_heads(&device, &sizes, &peaks)?;
    }
    let mut wrong = Vec::new();
    for row in &rows {
        let name = format!("{} {}", row.op, row.shape);
        if row.f16 && !device.has_f16() {
            output::note(format_args!("{name}: left out, this device has no 16-bit floats"));
            continue;
        }
        let hint = if sizes == Sizes::SMALL { "" } else { "; --sizes small takes smaller tensors" };
        let timings =
            time_row(row, &device, &peaks).map_err(|e| Error::Invalid(format!("bench ops: {name}: {e}{hint}")))?;
        if let Some(OpTiming { difference: Some(difference), agrees: false, .. }) = timings.first() {
            wrong.push(format!("{name} (difference {difference:.0e}, tolerance {:.0e})", row.tolerance));
        }
        for timing in &timings {
            if args.json {
                output::line(op_json(timing, &device, &peaks)?)?
            } else {
                output::line(op_line(timing, &peaks))?
            }
        }
    }
    if !wrong.is_empty() {
        bail!("bench ops: results differ from the CPU: {}", wrong.join("; "));
    }
    Ok(())
}

/// What the device does at best, and the heads of the table's columns.
fn print_heads(device: &Device, sizes: &Sizes, peaks: &Peaks) -> Result<()> {
    output::line(format_args!(
        "{}: at best {} in f32 GEMMs, {}{}; sizes {}",
        device.describe(),
        units::si(1e12 * peaks.tflops, "FLOP/s"),
        peaks.f16_tflops.map_or(String::new(), |rate| format!("{} in f16, ", units::si(1e12 * rate, "FLOP/s"))),
        units::si(1e9 * peaks.gb_per_s, "B/s"),
        sizes.name
    ))?;
    output::line(format_args!(
        "{:<20} {:<32} {:<26} {:>9} {:>8} {:>8} {:<12} {:>10}",
        "op",
        "shape",
        "kernel",
        "ms",
        flop_rate_unit(peaks).0,
        "GB/s",
        "share",
        "difference"
    ))?;
    Ok(())
}

fn op_json(timing: &OpTiming, device: &Device, peaks: &Peaks) -> Result<serde_json::Value> {
    let mut object = serde_json::to_value(timing)?;
    object["device"] = device.describe().into();
    object["peak_tflops"] = peaks.tflops.into();
    object["peak_f16_tflops"] = peaks.f16_tflops.into();
    object["peak_gb_per_s"] = peaks.gb_per_s.into();
    Ok(object)
}

fn flop_rate_unit(peaks: &Peaks) -> (&'static str, f64) {
    units::flop_rate_unit(1e12 * peaks.tflops.max(peaks.f16_tflops.unwrap_or(0.0)))
}

fn op_line(t: &OpTiming, peaks: &Peaks) -> String {
    format!(
        "{:<20} {:<32} {:<26} {:>9} {:>8} {:>8} {:>3.0}% {:<7} {:>10}",
        t.op,
        t.shape,
        t.kernel,
        units::digits(t.ms),
        units::digits(1e12 * t.tflops / flop_rate_unit(peaks).1),
        units::digits(t.gb_per_s),
        100.0 * t.share,
        t.bound,
        t.difference.map_or("-".to_string(), |d| format!("{d:.0e}")),
    )
}

/// "4096x4096x64".
fn gemm_sizes(text: &str) -> Result<[usize; 3], String> {
    let sizes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok().filter(|&n| n > 0)).collect();
    match sizes.as_deref() {
        Some(&[m, n, k]) => Ok([m, n, k]),
        _ => Err("expected three sizes above zero, as 4096x4096x64".into()),
    }
}

fn sizes(name: &str) -> Result<Sizes, String> {
    let names = Sizes::ALL.map(|s| s.name).join(" or ");
    Sizes::ALL.into_iter().find(|s| s.name == name).ok_or(format!("expected {names}"))
}

fn case_named(name: &str) -> Result<StepCase> {
    let known = step_cases();
    let names: Vec<&str> = known.iter().map(|c| c.name).collect();
    let message = format!("--case {name}: there is {}", names.join(", "));
    Ok(known.into_iter().find(|c| c.name == name).ok_or(Error::Invalid(message))?)
}

/// Those given, or the one that is there.
fn or_one(given: &[usize], one: usize) -> Vec<usize> {
    if given.is_empty() { vec![one] } else { given.to_vec() }
}

fn step(args: &StepArgs) -> Result<()> {
    let cases = cases_to_time(args)?;
    let nothing_to_plot =
        "--svg: there is nothing to plot against; give several values to --batch-size or to --context";
    if args.svg.is_some() && args.batch_size.len() < 2 && args.context.len() < 2 {
        bail!(nothing_to_plot);
    }
    let svg_file = create(args.svg.as_ref())?;
    let operands = operands(args.precision);
    let (mut timings, mut peaks) = (Vec::new(), None::<Option<_>>);
    for case in &cases {
        // A fresh device for each case, so that its peak memory is its own.
        let device = device::open_autotuned(&args.device.over(&DeviceConfig::default()))?;
        check_precision(args.precision, &device).map_err(|why| Error::Invalid(format!("--precision: {why}")))?;
        let (steps, rounds) = (args.steps as usize, args.rounds as usize);
        let mut timing = time_step(case, &device, operands, steps, rounds)?;
        // Where single kernels cannot be timed, nothing could be put beside the peaks.
        if args.profile
            && !timing.report.kernels.is_empty()
            && let Some(peaks) = *peaks.get_or_insert_with(|| peaks_or_note(&device, operands))
        {
            timing.report.set_peaks(peaks);
        }
        // Whoever compares with other tools' f32 should know how large GEMMs were computed.
        let split_fp16 = args.precision == Precision::F32 && device.split_fp16();
        if args.json {
            let mut object = serde_json::to_value(&timing)?;
            object["precision"] = args.precision.as_str().into();
            object["split_fp16"] = split_fp16.into();
            output::line(object)?;
        } else {
            let precision = if split_fp16 { "f32 (split-fp16)" } else { args.precision.as_str() };
            output::line(step_line(&timing, precision))?;
            if args.profile {
                output::line(timing.report.text())?;
            }
        }
        timings.push(timing);
    }
    if let (Some(path), Some(mut file)) = (&args.svg, svg_file) {
        let Some(svg) = plot_steps(&timings)? else { bail!(nothing_to_plot) };
        file.write_all(svg.as_bytes()).map_err(|e| Error::io("write", path, e))?;
    }
    Ok(())
}

/// The file of a plot, made before anything is measured: a path that cannot be written should fail then.
fn create(path: Option<&PathBuf>) -> Result<Option<File>> {
    let create = |path: &PathBuf| File::create(path).map_err(|e| Error::io("create", path, e));
    Ok(path.map(create).transpose()?)
}

/// Every combination of case, context and batch size that was asked for.
fn cases_to_time(args: &StepArgs) -> Result<Vec<StepCase>> {
    let mut cases = Vec::new();
    for name in &args.case {
        let case = case_named(name)?;
        for context in or_one(&args.context, case.config.block_size) {
            for batch_size in or_one(&args.batch_size, case.batch_size) {
                let mut case = StepCase { batch_size, ..case.clone() };
                case.config.block_size = context;
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

/// What the device does at best, or a note that it could not be measured.
fn peaks_or_note(device: &Device, operands: DType) -> Option<Roofline> {
    measure_roofline(device, &Sizes::for_device(device), operands)
        .inspect_err(|e| output::note(format_args!("--profile: cannot measure the device's peaks: {e}")))
        .ok()
}

fn step_line(t: &StepTiming, precision: &str) -> String {
    format!(
        "rustyflow {} {precision} B={} T={}: {} ms/step, {}, {} us/token, {}, loss {}, host {:.1}%",
        t.case,
        t.batch_size,
        t.context,
        units::digits(t.ms_per_step),
        units::tokens_per_s(Some(t.tokens_per_s)),
        units::digits(1e6 / t.tokens_per_s),
        units::bytes((t.gib * f64::from(1 << 30)) as u64),
        units::loss(t.loss.into()),
        100.0 * t.host_share
    )
}

fn generate(args: &GenerateArgs) -> Result<()> {
    let new_tokens = args.new_tokens as usize;
    let mut cases = Vec::new();
    for name in &args.case {
        let case = case_named(name)?;
        let context = case.config.block_size;
        if let Some(length) = args.prompt_tokens.iter().find(|&&length| length > context) {
            bail!("--prompt-tokens {length}: the context of {name} holds {context}; give at most that");
        }
        let left = context.saturating_sub(new_tokens).max(1);
        let mut lengths = vec![1, (left / 4).max(1), (left / 2).max(1), left];
        lengths.dedup();
        cases.push((case, if args.prompt_tokens.is_empty() { lengths } else { args.prompt_tokens.clone() }));
    }
    let device = device::open(&args.device.over(&DeviceConfig::default()))?;
    if args.dtype == WeightDtype::F16 {
        check_f16_weights(&device)?;
    }
    let nothing_to_plot = "--svg: there is nothing to plot against; give several values to --prompt-tokens";
    if args.svg.is_some() && cases.iter().all(|(_, lengths)| lengths.len() < 2) {
        bail!(nothing_to_plot);
    }
    let (svg_file, mut timings) = (create(args.svg.as_ref())?, Vec::new());
    for (case, lengths) in &cases {
        let mut model = random_model(case)?;
        move_model(&mut *model, args.dtype, &device)?;
        time_generate(case, &*model, args.batch_size, lengths, new_tokens, &mut |timing| {
            let text = match args.json {
                true => serde_json::to_string(&timing).expect("plain numbers"),
                false if args.profile => format!("{}\n{}", generate_line(&timing, args.dtype), timing.report.text()),
                false => generate_line(&timing, args.dtype),
            };
            timings.push(timing);
            output::line(text).map_err(|e| Error::io("write to", "standard output", e))
        })?;
    }
    if let (Some(path), Some(mut file)) = (&args.svg, svg_file) {
        let Some(svg) = plot_generate(&timings)? else { bail!(nothing_to_plot) };
        file.write_all(svg.as_bytes()).map_err(|e| Error::io("write", path, e))?;
    }
    Ok(())
}

fn generate_line(t: &GenerateTiming, dtype: WeightDtype) -> String {
    format!(
        "rustyflow {} {dtype} B={}, prompt of {} tokens and {} new: {} ms to the first, then {} ms/token, {}, \
         {}, host {:.1}%",
        t.case,
        t.batch_size,
        t.prompt_tokens,
        t.new_tokens,
        units::digits(t.first_token_ms),
        units::digits(t.ms_per_token),
        units::tokens_per_s(Some(t.tokens_per_s)),
        units::si(1e3 * t.bytes_read / t.ms_per_token, "B/s"),
        100.0 * t.host_share
    )
}
