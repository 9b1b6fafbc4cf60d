//! `rustyflow bench lora`.

use super::or_one;
use crate::Error;
use crate::bench::{StepTiming, time_training};
use crate::cli::configuration::build;
use crate::cli::{at_least_one, complete, device, examples, output};
use crate::config::{DeviceConfig, Layers, Precision, Recompute, WeightDtype};
use crate::train::{check_precision, initial_training};
use crate::units;
use anyhow::Result;

#[derive(clap::Args)]
#[command(after_help = examples::BENCH_LORA)]
pub struct Args {
    /// The frozen model: a folder, a GGUF file, a run, or a fetched model
    #[arg(long, value_name = "DIR|GGUF", add = complete::runs())]
    model: String,
    /// Rank of the adapters, on all linear layers
    #[arg(long, value_name = "R", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    rank: u32,
    /// Type of the frozen weights: f32, f16, q8_0, q4_0 or nf4; several as f16,nf4 [default: f16 with --precision
    /// mixed, else f32]
    #[arg(long, value_name = "DTYPE", value_delimiter = ',', add = complete::dtypes())]
    base_dtype: Vec<WeightDtype>,
    /// Train magnitudes too (lora.dora)
    #[arg(long)]
    dora: bool,
    /// Sequences per batch; several as 1,2,4
    #[arg(long, value_name = "B", value_delimiter = ',', value_parser = at_least_one)]
    batch_size: Vec<usize>,
    /// Tokens per sequence; several as 512,1024
    #[arg(long, value_name = "T", value_delimiter = ',', value_parser = at_least_one)]
    context: Vec<usize>,
    /// Activations that backward recomputes: none, attention or block (train.recompute)
    #[arg(long, value_name = "WHAT", default_value_t = Recompute::None)]
    recompute: Recompute,
    /// f32, or mixed: matmuls of 16-bit floats
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::F32, add = complete::precisions())]
    precision: Precision,
    /// Steps per round
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also print the table by kernel
    #[arg(long)]
    profile: bool,
    /// Print one JSON object per type, context and batch size instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    device: device::Flags,
}

pub fn run(args: &Args) -> Result<()> {
    let base = match args.precision {
        Precision::F32 => WeightDtype::F32,
        Precision::Mixed => WeightDtype::F16,
    };
    for base_dtype in if args.base_dtype.is_empty() { vec![base] } else { args.base_dtype.clone() } {
        for context in or_one(&args.context, 1024) {
            for batch_size in or_one(&args.batch_size, 1) {
                time(args, base_dtype, [batch_size, context])?;
            }
        }
    }
    Ok(())
}

fn time(args: &Args, base_dtype: WeightDtype, [batch_size, context]: [usize; 2]) -> Result<()> {
    let keys = [
        ("model.init", args.model.clone()),
        ("model.block_size", context.to_string()),
        ("train.batch_size", batch_size.to_string()),
        ("train.recompute", args.recompute.to_string()),
        ("device.precision", args.precision.to_string()),
        ("lora.rank", args.rank.to_string()),
        ("lora.base_dtype", base_dtype.to_string()),
        ("lora.dora", args.dora.to_string()),
    ];
    let mut layers = Layers::new();
    for (key, value) in keys {
        layers = layers.set(&format!("{key}={value}"))?;
    }
    let config = build(layers)?.config;
    // A fresh device for each, so that its peak memory is its own.
    let device = device::open_autotuned(&args.device.over(&DeviceConfig::default()))?;
    check_precision(args.precision, &device).map_err(|why| Error::Invalid(format!("--precision: {why}")))?;
    device.reset_peak_memory();
    let (model, parameters, mut optimizer) = initial_training(&config, &device)?;
    let (training, shape) = ((&parameters, &mut optimizer, config.train.learning_rate), [batch_size, context]);
    let timing = time_training("lora", &*model, training, shape, args.steps as usize, args.rounds as usize)?;
    let trained = parameters.entries.iter().filter(|entry| entry.trainable);
    let trained: usize = trained.map(|entry| entry.shape.elements()).sum();
    if args.json {
        let mut object = serde_json::to_value(&timing)?;
        object["model"] = config.model.init.clone().into();
        object["trained_parameters"] = trained.into();
        object["rank"] = args.rank.into();
        object["base_dtype"] = base_dtype.as_str().into();
        object["precision"] = args.precision.as_str().into();
        output::line(object)?;
        return Ok(());
    }
    output::line(line(&timing, trained, args, base_dtype))?;
    if args.profile {
        output::line(timing.report.text())?;
    }
    Ok(())
}

fn line(t: &StepTiming, trained: usize, args: &Args, base_dtype: WeightDtype) -> String {
    let what = format!("rustyflow lora r={} {} {base_dtype}", args.rank, args.precision);
    format!(
        "{what} B={} T={}: {} ms/step, {}, {}, {} trained parameters, loss {}, host {:.1}%",
        t.batch_size,
        t.context,
        units::digits(t.ms_per_step),
        units::tokens_per_s(Some(t.tokens_per_s)),
        units::bytes((t.gib * f64::from(1 << 30)) as u64),
        units::count(trained as f64),
        units::loss(t.loss.into()),
        100.0 * t.host_share
    )
}
