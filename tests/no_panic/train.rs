//! Training and what is around it: folders that hold no run, batches of nothing, configurations that make no run.

use super::data::{NOWHERE, tokenizer};
use super::models::{model, small};
use super::{Defined, HUGE, Refused, Row};
use rustyflow::config::{Config, Layers, Precision, Resolved};
use rustyflow::data::{Coverage, Question, Tokens};
use rustyflow::models::ModelConfig;
use rustyflow::profile::Roofline;
use rustyflow::train::{
    self, Cluster, Plan, PlannedRanks, RankTimes, Rates, RunFolder, RunPlan, TrainOptions, Windows,
};
use rustyflow::{DType, Device, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

fn nowhere() -> &'static Path {
    Path::new(NOWHERE)
}

/// A configuration of these lines.
fn resolved(lines: &str) -> Result<Resolved> {
    Layers::new().toml_str("test.toml", lines)?.build()
}

/// With a text that is not there.
fn without_text() -> Result<Resolved> {
    resolved(&format!("[run]\ndir = \"{NOWHERE}\"\n[data]\ncorpus = \"{NOWHERE}/text.txt\"\n"))
}

/// The run of a small model on a text of its own.
fn plan(device: &Device) -> Result<(Resolved, RunPlan)> {
    plan_of(1, device)
}

/// [`plan`] of so many ranks, which divide what the optimizer remembers.
fn plan_of(ranks: usize, device: &Device) -> Result<(Resolved, RunPlan)> {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "some words of a text\n".repeat(40)).expect("it can be written");
    let resolved = resolved(&format!(
        "[data]\ncorpus = {text:?}\ntokenizer = \"char\"\n[model]\nn_layer = 1\nn_head = 2\nn_embd = 8\n\
         block_size = 8\n[train]\nbatch_size = 2\nmax_steps = 3\nwarmup_steps = 0\nshard_optimizer = true\n"
    ))?;
    let ranks = PlannedRanks { count: ranks, on_machine: ranks, ..PlannedRanks::ONE };
    let plan = train::plan_run(&resolved, device, ranks, nowhere(), None)?;
    Ok((resolved, plan))
}

fn on_cluster(ranks: usize, device: &Device) -> Result<()> {
    let (resolved, mut plan) = plan(device)?;
    plan.estimate(&Rates::Earlier { run: PathBuf::new(), tokens_per_s: f64::NAN });
    let cluster = Cluster { ranks, network_bytes_per_s: Some(0.0), host_seconds_per_byte: f64::INFINITY };
    let peaks = Roofline { dtype: "f32", tflops: 0.0, gb_per_s: f64::NAN };
    plan.on_cluster(&resolved.config, cluster, device, Some(&peaks)).map(drop)
}

fn options<'a>(device: &Device, stop: &'a AtomicBool, on_event: &'a mut dyn FnMut(&train::Event)) -> TrainOptions<'a> {
    TrainOptions {
        device: device.clone(),
        others: &[],
        launch: None,
        started: Instant::now(),
        reopen: None,
        data_dir: nowhere(),
        cache_dir: None,
        resume: None,
        stop,
        training_log: None,
        trace: None,
        on_event,
    }
}

fn evaluated(ids: u32, windows: Windows, device: &Device) -> Result<()> {
    let coverage = Coverage { decodable_bytes: 0, unknown_share: f64::NAN, lossless: false };
    let tokens = Tokens::from((0..ids).collect::<Vec<u32>>());
    train::evaluate(&*model(&small(), device)?, &tokens, &coverage, windows, &AtomicBool::new(false)).map(drop)
}

const WINDOWS: Windows = Windows { context: 4, stride: 4, batch_size: 2, max_batches: 0 };

fn answered(choices: &[&str], answer: usize, context: usize, batch_size: usize, device: &Device) -> Result<()> {
    let choices = choices.iter().map(|choice| choice.to_string()).collect();
    let question = Question { question: "a".into(), choices, answer, line: 1 };
    train::evaluate_choices(&*model(&small(), device)?, &tokenizer()?, &[question], context, batch_size).map(drop)
}

pub fn rows() -> Vec<Row> {
    [folders(), runs(), plans(), evaluations()].concat()
}

fn folders() -> Vec<Row> {
    vec![
        ("find_checkpoint", Refused, |_| train::find_checkpoint(nowhere()).map(drop)),
        ("newest_run", Refused, |_| train::newest_run(nowhere()).map(drop)),
        ("newest_unfinished_run", Refused, |_| train::newest_unfinished_run(nowhere()).map(drop)),
        ("remove_run", Refused, |_| train::remove_run(nowhere()).map(drop)),
        ("run_config", Refused, |_| train::run_config(nowhere()).map(drop)),
        ("check_unused", Defined, |_| train::check_unused(nowhere())),
        ("RunFolder::create", Refused, |_| RunFolder::create(Path::new("Cargo.toml"), "a").map(drop)),
        ("RunFolder::open", Refused, |_| RunFolder::open(nowhere()).map(drop)),
        ("RunFolder::write", Refused, |_| {
            let folder = tempfile::tempdir().expect("a folder");
            RunFolder::create(folder.path(), "a")?.write("no/such/folder", "")
        }),
    ]
}

fn runs() -> Vec<Row> {
    vec![
        ("train", Refused, |d| {
            let (stop, mut ignored) = (AtomicBool::new(false), |_: &train::Event| ());
            train::train(&without_text()?, options(d, &stop, &mut ignored)).map(drop)
        }),
        ("follow", Refused, |d| {
            let (stop, mut ignored) = (AtomicBool::new(false), |_: &train::Event| ());
            train::follow(&without_text()?, options(d, &stop, &mut ignored))
        }),
        ("verify_resume", Refused, |d| {
            let stop = AtomicBool::new(false);
            train::verify_resume(&without_text()?, HUGE, std::slice::from_ref(d), nowhere(), None, &stop).map(drop)
        }),
        ("verify_resume", Refused, |_| {
            let stop = AtomicBool::new(false);
            train::verify_resume(&without_text()?, 1, &[], nowhere(), None, &stop).map(drop)
        }),
        ("take_shape_of_init", Refused, |_| {
            train::take_shape_of_init(&mut resolved(&format!("[model]\ninit = \"{NOWHERE}\"\n"))?)
        }),
        ("data_spec", Defined, |_| {
            train::data_spec(&Config::default().data, nowhere(), None);
            Ok(())
        }),
        ("packing", Defined, |_| {
            train::packing(&Config::default().data);
            Ok(())
        }),
        ("prompt_ids", Defined, |_| {
            assert_eq!(train::prompt_ids(&tokenizer()?, "")?.len(), 1);
            Ok(())
        }),
        ("prompt_ids", Refused, |_| train::prompt_ids(&tokenizer()?, "\u{1f980}").map(drop)),
        ("operands", Defined, |_| {
            assert_eq!(train::operands(Precision::Mixed), DType::F16);
            Ok(())
        }),
        ("check_precision", Defined, |d| {
            train::check_precision(Precision::F32, d).expect("every device has f32");
            Ok(())
        }),
        ("describe_precision", Defined, |d| {
            for (n_head, n_embd) in [(0, 0), (HUGE, 4), (3, HUGE)] {
                for precision in [Precision::F32, Precision::Mixed] {
                    train::describe_precision(precision, d, &ModelConfig { n_head, n_embd, ..small() });
                }
            }
            Ok(())
        }),
    ]
}

fn plans() -> Vec<Row> {
    vec![
        ("Memory::available", Defined, |d| train::Memory::available(d, 0).map(drop)),
        ("plan_run", Refused, |d| train::plan_run(&without_text()?, d, PlannedRanks::ONE, nowhere(), None).map(drop)),
        ("plan_run", Refused, |d| plan_of(0, d).map(drop)),
        ("plan_run", Refused, |d| plan_of(HUGE, d).map(drop)),
        ("Plan::new", Defined, |_| {
            Plan::new(&small(), HUGE, DType::F16, None);
            Ok(())
        }),
        ("Plan::check_device", Refused, |d| Plan::new(&small(), HUGE, DType::F32, None).check_device(d)),
        ("check_size", Refused, |d| train::check_size(&small(), HUGE, DType::F32, d)),
        ("RunPlan::earlier_rates", Defined, |d| {
            let (resolved, plan) = plan(d)?;
            let mut config = resolved.config;
            config.run.dir = NOWHERE.into();
            assert!(plan.earlier_rates(&config, d).is_none());
            Ok(())
        }),
        ("RunPlan::estimate", Defined, |d| {
            let (_, mut plan) = plan(d)?;
            plan.estimate(&Rates::Earlier { run: PathBuf::new(), tokens_per_s: 0.0 });
            plan.estimate(&Rates::Peaks(Roofline { dtype: "", tflops: f64::NAN, gb_per_s: 0.0 }));
            Ok(())
        }),
        ("RunPlan::on_cluster", Defined, |d| on_cluster(2, d)),
        ("RunPlan::on_cluster", Refused, |d| on_cluster(0, d)),
        ("RunPlan::on_cluster", Refused, |d| on_cluster(HUGE, d)),
        ("rank_table", Defined, |_| {
            let rank = RankTimes {
                rank: HUGE,
                device: String::new(),
                sequences: HUGE,
                compute: f64::NAN,
                waiting: 0.0,
                communication: f64::INFINITY,
                memory: HUGE,
                weights: HUGE,
                moments: 0,
                notes: vec![],
            };
            train::rank_table(&[]);
            train::rank_table(&[rank]);
            Ok(())
        }),
    ]
}

fn evaluations() -> Vec<Row> {
    vec![
        ("evaluate", Refused, |d| evaluated(1, WINDOWS, d)),
        ("evaluate", Refused, |d| evaluated(9, Windows { batch_size: 0, ..WINDOWS }, d)),
        ("evaluate", Refused, |d| evaluated(9, Windows { context: 0, ..WINDOWS }, d)),
        ("evaluate", Refused, |d| evaluated(9, Windows { stride: 0, ..WINDOWS }, d)),
        ("evaluate", Refused, |d| evaluated(20, Windows { context: 16, stride: 16, ..WINDOWS }, d)),
        ("evaluate", Defined, |d| evaluated(9, Windows { batch_size: HUGE, max_batches: HUGE, ..WINDOWS }, d)),
        ("evaluate_choices", Refused, |d| answered(&["a", "b"], 0, 8, 0, d)),
        ("evaluate_choices", Refused, |d| answered(&["a", "t"], 2, 8, 2, d)),
        ("evaluate_choices", Refused, |d| answered(&[], 0, 8, 2, d)),
        ("evaluate_choices", Refused, |d| answered(&["a", "t"], 0, 0, 2, d)),
        ("evaluate_choices", Defined, |d| answered(&["a", "t"], 0, HUGE, HUGE, d)),
    ]
}
