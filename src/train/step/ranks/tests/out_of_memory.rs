//! Steps in which a rank runs out of memory: all ranks compute them again, and end with the same weights.

use super::{configuration, largest};
use crate::comm::{Background, threads};
use crate::config::{Config, WireDtype};
use crate::data::{Position, Tokens};
use crate::gpu::gpu_for_tests;
use crate::models::ModelConfig;
use crate::testing::faults::Countdown;
use crate::train::setup::init::first_model;
use crate::train::setup::model_shape::model_config;
use crate::train::step::ranks::{Place, join};
use crate::train::step::replica::{Replica, loader};
use crate::train::step::update_rules::on_device;
use crate::{Device, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const STEPS: usize = 4;

/// What every rank begins with.
struct Setup {
    config: Arc<Config>,
    shape: ModelConfig,
    tokens: Tokens,
    devices: Vec<Device>,
}

/// Allocation number `number` of update `step` fails on `rank`.
#[derive(Debug, Clone, Copy)]
struct Fault {
    rank: usize,
    step: usize,
    number: usize,
}

/// What became of a rank.
#[derive(Debug)]
struct Trained {
    /// The weights that it holds, and what its optimizer remembers of them.
    values: Vec<f32>,
    moments: Vec<f32>,
    losses: Vec<f32>,
    /// Allocations in each update, at least.
    allocations: Vec<usize>,
    notes: Vec<String>,
}

impl Setup {
    fn new(devices: Vec<Device>, settings: &[&str]) -> Setup {
        let common = [
            "model.n_layer=1",
            "model.block_size=8",
            "train.batch_size=6",
            "train.grad_accum_steps=1",
            "train.max_steps=4",
        ];
        let resolved = configuration(Path::new("unused"), "a", &[&common, settings].concat());
        let shape = model_config(&resolved, 256).unwrap();
        let tokens = Tokens::from((0..2000_u32).map(|i| (i * i + i / 7) % 250).collect::<Vec<_>>());
        Setup { config: Arc::new(resolved.config), shape, tokens, devices }
    }

    /// Makes a few updates on all ranks; in the end they hold what this gives.
    fn train(&self, fault: Option<Fault>) -> Vec<Result<Trained>> {
        let comms = threads(self.devices.len(), Some(Duration::from_secs(20)), &[]).unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = comms
                .into_iter()
                .enumerate()
                .map(|(rank, comm)| {
                    scope.spawn(move || {
                        let comm = Arc::new(Background::start(move || Ok(comm), None).unwrap());
                        let fault = fault.filter(|fault| fault.rank == rank);
                        // As a rank of a run does.
                        self.updates(&comm, fault).inspect_err(|error| comm.abort(&error.to_string()))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn updates(&self, comm: &Arc<Background>, fault: Option<Fault>) -> Result<Trained> {
        let (config, place) = (&self.config, Place { rank: comm.rank(), ranks: comm.size() });
        let (device, tokens) = (&self.devices[place.rank], self.tokens.clone());
        let trained = on_device(first_model(config, &self.shape, None)?, config, device, place)?;
        let loader = loader(config, self.shape.kind, tokens.clone(), Position::default())?;
        let mut replica = Replica::new(config.clone(), device.clone(), trained, tokens, loader, place).unwrap();
        let apart = join(&mut replica, comm, &config.train.device_batch, &Arc::default())?;
        assert!(apart.is_none());
        let (mut losses, mut allocations, countdown) = (Vec::new(), Vec::new(), Countdown::own());
        for step in 0..STEPS {
            let number = fault.filter(|fault| fault.step == step).map(|fault| fault.number);
            countdown.start(number.unwrap_or(usize::MAX - 1));
            let update = replica.update(step, 0.01)?;
            allocations.push(countdown.stop().map_or(0, |left| usize::MAX - 1 - left));
            losses.extend(update.loss.to_f32()?);
            device.end_step()?;
        }
        // The ranks need each other no more.
        comm.barrier()?;
        let values = replica.parameters.values().to_f32()?;
        let moments = replica.optimizer.moments().into_iter().map(|(_, tensor)| tensor.to_f32());
        let moments = moments.collect::<Result<Vec<_>>>()?.concat();
        Ok(Trained { values, moments, losses, allocations, notes: replica.notes })
    }

    /// Trains without a fault, and then with each of these: all ranks get the same weights, which are those without a
    /// fault but for rounding.
    fn check(&self, faults: impl Fn(&[Trained]) -> Vec<Fault>) {
        let all = |ranks: Vec<Result<Trained>>| ranks.into_iter().collect::<Result<Vec<_>>>();
        let undisturbed = all(self.train(None)).unwrap();
        // Sums of the parts of a batch are rounded otherwise than those of the whole: to 24 bits, or to 11 where they
        // are sent as f16.
        let tolerance = if self.config.train.reduce_dtype == WireDtype::F16 { 1e-3 } else { 1e-5 };
        let [first, ..] = &undisturbed[..] else { panic!("there are ranks") };
        for fault in faults(&undisturbed) {
            let ranks = all(self.train(Some(fault))).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            let note = ranks[fault.rank].notes.first().map_or("", |note| note);
            assert!(note.contains("continuing with micro-batches of"), "{fault:?} happens: {note:?}");
            for (rank, trained) in ranks.iter().enumerate() {
                let is_same = trained.values == ranks[0].values && trained.losses == ranks[0].losses;
                assert!(is_same, "{fault:?}: rank {rank} has other weights than rank 0");
                let of_own = &undisturbed[rank];
                for (name, got, want) in [
                    ("weight", &trained.values, &first.values),
                    ("moment", &trained.moments, &of_own.moments),
                    ("loss", &trained.losses, &first.losses),
                ] {
                    let differences = got.iter().zip(want).map(|(got, want)| (got - want).abs());
                    assert_eq!(got.len(), want.len());
                    let difference = largest(differences);
                    assert!(difference < tolerance, "{fault:?}: rank {rank}, a {name} is off by {difference}");
                }
            }
        }
    }
}

/// About so many faults, from the first allocation of an update on this rank to the last.
fn spread(undisturbed: &[Trained], rank: usize, step: usize, count: usize) -> Vec<Fault> {
    let all = undisturbed[rank].allocations[step];
    assert!(all > 20, "{all} allocations");
    let first_and_last = [0, 1, all - 3, all - 2, all - 1];
    let between = (0..count).map(|i| i * all / count.max(1));
    let mut numbers: Vec<usize> = first_and_last.into_iter().chain(between).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| Fault { rank, step, number }).collect()
}

/// Plain SGD, in which a wrong gradient shows as it is.
const SGD: [&str; 3] = ["optimizer.kind=sgd", "optimizer.momentum=0.5", "train.grad_clip=0"];

/// Faults in each test of the CPU.
const FAULTS: usize = 6;

#[test]
fn a_step_that_runs_out_of_memory_on_one_of_two_ranks_is_computed_again_on_both() {
    let setup = Setup::new(vec![Device::Cpu; 2], &SGD);
    for (rank, step) in [(1, 2), (0, 2), (1, 0), (0, 0)] {
        setup.check(|undisturbed| spread(undisturbed, rank, step, FAULTS));
    }
}

#[test]
fn a_step_that_runs_out_of_memory_on_one_of_three_ranks_is_computed_again_on_all() {
    let setup = Setup::new(vec![Device::Cpu; 3], &SGD);
    for (rank, step) in [(1, 2), (2, 0)] {
        setup.check(|undisturbed| spread(undisturbed, rank, step, FAULTS));
    }
}

#[test]
fn a_rank_may_run_out_of_memory_between_accumulated_passes() {
    let settings = [&SGD[..], &["train.grad_accum_steps=3", "model.dropout=0.1"]].concat();
    let setup = Setup::new(vec![Device::Cpu; 2], &settings);
    setup.check(|undisturbed| spread(undisturbed, 1, 1, FAULTS));
}

#[test]
fn a_rank_that_updates_a_part_of_the_weights_may_run_out_of_memory() {
    for (ranks, dtype) in [(2, "train.reduce_dtype=f16"), (3, "train.reduce_dtype=f32")] {
        let settings = [&SGD[..], &["train.shard_optimizer=true", dtype]].concat();
        let setup = Setup::new(vec![Device::Cpu; ranks], &settings);
        setup.check(|undisturbed| spread(undisturbed, 1, 2, FAULTS));
    }
}

#[test]
fn a_rank_whose_device_exchanges_gradients_may_run_out_of_memory() {
    for (ranks, further) in [(2, "train.shard_optimizer=true"), (3, "train.grad_accum_steps=2")] {
        let settings = [&SGD[..], &["train.comm=nccl", further]].concat();
        let setup = Setup::new(vec![Device::Cpu; ranks], &settings);
        setup.check(|undisturbed| spread(undisturbed, 1, 2, FAULTS));
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_gpu_of_two_may_run_out_of_memory() {
    let (Some(first), Some(second)) = (gpu_for_tests(), gpu_for_tests()) else { return };
    let setup = Setup::new(vec![Device::Gpu(first), Device::Gpu(second)], &SGD);
    setup.check(|undisturbed| {
        let spread = |step, count| spread(undisturbed, 1, step, count);
        spread(0, 2).into_iter().chain(spread(2, 6)).collect()
    });
}

/// A pass of one sequence cannot be made smaller: the error is the caller's, who may free memory and try again.
#[test]
fn a_step_that_cannot_be_computed_in_parts_leaves_the_replica_as_it_was() {
    let setup = Setup::new(vec![Device::Cpu], &["model.kind=gru", "train.batch_size=1", "model.dropout=0.1"]);
    let replica = || {
        let (config, tokens) = (&setup.config, setup.tokens.clone());
        let model = first_model(config, &setup.shape, None).unwrap();
        let trained = on_device(model, config, &Device::Cpu, Place::ALONE).unwrap();
        let loader = loader(config, setup.shape.kind, tokens.clone(), Position::default()).unwrap();
        let mut replica = Replica::new(config.clone(), Device::Cpu, trained, tokens, loader, Place::ALONE).unwrap();
        replica.carry_on_from(Path::new(""), &[]).unwrap();
        replica
    };
    let state = |replica: &Replica| {
        let moments = replica.optimizer.moments().into_iter().map(|(_, tensor)| tensor);
        let carried = replica.carried.iter().flat_map(|carried| carried.states().iter());
        let tensors = replica.parameters.stored().chain(moments).chain(carried);
        (tensors.map(|tensor| tensor.to_bytes().unwrap()).collect::<Vec<_>>(), replica.loader.position())
    };
    let (mut undisturbed, mut tried, countdown) = (replica(), replica(), Countdown::own());
    for step in 0..2 {
        undisturbed.update(step, 0.01).unwrap();
        let (before, mut failures) = (state(&tried), 0);
        loop {
            countdown.start(failures);
            let update = tried.update(step, 0.01);
            if countdown.stop().is_some() {
                update.map(drop).unwrap();
                break;
            }
            assert!(matches!(update, Err(crate::Error::OutOfMemory { .. })), "allocation {failures} fails");
            assert!(state(&tried) == before, "step {step}, allocation {failures}: the replica has changed");
            failures += 1;
        }
        assert!(failures > 20, "{failures} allocations");
        assert!(state(&tried) == state(&undisturbed), "step {step}: other bits");
    }
}
