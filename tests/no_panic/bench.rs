//! Measurements of sizes that no memory holds, of nothing, and pictures of no numbers.

use super::{Defined, HUGE, LARGE, Refused, Row};
use rustyflow::bench::{
    GenerateTiming, Peaks, Sizes, StepCase, StepTiming, compare_tunings, gemms, hardware_table, measure_peaks,
    measure_roofline, plot_generate, plot_steps, random_model, select, step_cases, time_generate, time_row, time_step,
    time_training,
};
use rustyflow::models::ModelConfig;
use rustyflow::optim::{Kind, Optimizer, ParameterArena};
use rustyflow::profile::{MemoryStats, Profile, Report};
use rustyflow::{DType, Device, Error, Result};
use std::time::Duration;

const PEAKS: Peaks = Peaks { tflops: 0.0, f16_tflops: None, gb_per_s: f64::NAN };
const HUGE_SIZES: Sizes = Sizes { square: HUGE, ..Sizes::SMALL };
const NO_SIZES: Sizes = Sizes { batch: 0, stream: 0, ..Sizes::SMALL };

/// A model that is made in no time.
fn case(batch_size: usize) -> StepCase {
    let case = step_cases().remove(0);
    let config = ModelConfig { vocab_size: 7, block_size: 4, n_layer: 1, n_head: 1, n_embd: 4, ..case.config };
    StepCase { config, batch_size, ..case }
}

fn steps(device: &Device, batch_size: usize, steps: usize, rounds: usize) -> Result<()> {
    time_step(&case(batch_size), device, DType::F32, steps, rounds).map(drop)
}

fn training(device: &Device, shape: [usize; 2], steps: usize, rounds: usize) -> Result<()> {
    let mut model = random_model(&case(1))?;
    let parameters = ParameterArena::new(&mut *model, device, DType::F32)?;
    let mut optimizer = Optimizer::new(&parameters, Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1, 1.0)?;
    time_training("a", &*model, (&parameters, &mut optimizer, 1e-4), shape, steps, rounds).map(drop)
}

fn tokens(batch_size: usize, prompt_tokens: &[usize], new_tokens: usize) -> Result<()> {
    let case = case(1);
    time_generate(&case, &*random_model(&case)?, batch_size, prompt_tokens, new_tokens, &mut |_| Ok(()))
}

fn report() -> Report {
    Report::new(&Profile::default(), false, 0.0, 0.0, MemoryStats::default())
}

/// Timings of two contexts, at this speed.
fn step_timings(tokens_per_s: f64) -> [StepTiming; 2] {
    let (case, batch_size, ms_per_step, gib, loss, host_share) = ("a", 1, 1.0, 0.0, f32::NAN, f64::NAN);
    [1, HUGE].map(|context| {
        let report = report();
        StepTiming { case, batch_size, context, ms_per_step, tokens_per_s, gib, loss, host_share, report }
    })
}

/// Timings of two prompts, at this speed.
fn generate_timings(ms_per_token: f64) -> [GenerateTiming; 2] {
    [0, HUGE].map(|prompt_tokens| GenerateTiming {
        case: "a",
        batch_size: 0,
        prompt_tokens,
        new_tokens: 0,
        first_token_ms: f64::NAN,
        ms_per_token,
        tokens_per_s: f64::NAN,
        bytes_read: 1.0,
        host_share: f64::NAN,
        report: report(),
    })
}

pub fn rows() -> Vec<Row> {
    vec![
        ("Sizes::for_device", Defined, |d| select(&Sizes::for_device(d), &["matmul".into()]).map(drop)),
        ("select", Refused, |_| select(&Sizes::SMALL, &["".into()]).map(drop)),
        ("select", Refused, |_| select(&HUGE_SIZES, &[]).map(drop)),
        ("gemms", Defined, |_| {
            gemms(DType::U32, 0, HUGE, HUGE);
            Ok(())
        }),
        ("measure_peaks", Refused, |d| measure_peaks(d, &HUGE_SIZES).map(drop)),
        ("measure_roofline", Refused, |d| measure_roofline(d, &NO_SIZES, DType::F32).map(drop)),
        ("measure_roofline", Refused, |d| measure_roofline(d, &Sizes::SMALL, DType::U32).map(drop)),
        ("time_row", Refused, |d| time_row(&gemms(DType::F32, LARGE, LARGE, LARGE)[0], d, &PEAKS).map(drop)),
        ("time_row", Refused, |d| time_row(&gemms(DType::U32, 1, 1, 1)[0], d, &PEAKS).map(drop)),
        ("random_model", Refused, |_| {
            let case = case(1);
            let config = ModelConfig { n_embd: HUGE, ..case.config };
            random_model(&StepCase { config, ..case }).map(drop)
        }),
        ("time_step", Refused, |d| steps(d, 1, 0, 1)),
        ("time_step", Refused, |d| steps(d, 1, 1, 0)),
        ("time_step", Refused, |d| steps(d, 0, 1, 1)),
        ("time_step", Refused, |d| steps(d, HUGE, 1, 1)),
        ("time_step", Refused, |d| steps(d, LARGE, 1, 1)),
        ("time_training", Refused, |d| training(d, [1, 1], 0, 1)),
        ("time_training", Refused, |d| training(d, [1, 1], 1, 0)),
        ("time_training", Refused, |d| training(d, [0, 1], 1, 1)),
        ("time_training", Refused, |d| training(d, [HUGE, HUGE], 1, 1)),
        ("time_generate", Refused, |_| tokens(0, &[1], 1)),
        ("time_generate", Refused, |_| tokens(1, &[0], 1)),
        ("time_generate", Refused, |_| tokens(1, &[1], 0)),
        ("time_generate", Refused, |_| tokens(HUGE, &[HUGE], 1)),
        ("time_generate", Defined, |_| tokens(1, &[], 1)),
        ("compare_tunings", Refused, |device| match device {
            Device::Gpu(gpu) => compare_tunings([gpu, gpu], &NO_SIZES, Duration::ZERO).map(drop),
            _ => Err(Error::Invalid("no GPU".into())),
        }),
        ("compare_tunings", Refused, |device| match device {
            Device::Gpu(gpu) => compare_tunings([gpu, gpu], &HUGE_SIZES, Duration::MAX).map(drop),
            _ => Err(Error::Invalid("no GPU".into())),
        }),
        ("hardware_table", Defined, |_| {
            assert_eq!(hardware_table(&[]).lines().count(), 2);
            Ok(())
        }),
        ("plot_steps", Refused, |_| plot_steps(&step_timings(f64::NAN)).map(drop)),
        ("plot_steps", Defined, |_| {
            assert!(plot_steps(&[])?.is_none());
            plot_steps(&step_timings(1.0)).map(drop)
        }),
        ("plot_generate", Refused, |_| plot_generate(&generate_timings(0.0)).map(drop)),
        ("plot_generate", Defined, |_| plot_generate(&generate_timings(1.0)).map(drop)),
    ]
}
