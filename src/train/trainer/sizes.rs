//! Checks that devices and memory suffice for the sizes of a run.

use crate::comm::Launch;
use crate::config::{Config, Resolved};
use crate::models::ModelConfig;
use crate::train::plan::{Memory, Passes, Plan, largest_rank};
use crate::train::setup::adapters::check_base;
use crate::train::setup::precision::{check_configured_precision, operands};
use crate::train::step::ranks::{Place, Share};
use crate::train::step::update_rules::trained;
use crate::{Device, Result};

/// The memory of the first device, and its part of the machine's: processes of one machine share that.
///
/// # Errors
/// If the environment limits it by what is no number.
pub(super) fn memory_of(devices: &[&Device], launch: Option<Launch>) -> Result<Memory> {
    let on_cpu = devices.iter().filter(|device| !device.is_gpu()).count();
    Memory::available(devices[0], launch.map_or(1, |launch| launch.on_machine).saturating_mul(on_cpu))
}

/// In how many passes the ranks of these devices compute a batch.
///
/// # Errors
/// If a device or the machine has too little memory for the run, or a device cannot compute it at all.
pub(super) fn passes(
    resolved: &Resolved,
    shape: &ModelConfig,
    in_documents: bool,
    devices: &[&Device],
    place: Place,
    memory: &Memory,
) -> Result<Passes> {
    let config = &resolved.config;
    for device in devices {
        check_configured_precision(resolved, device)?;
        check_base(config, device)?;
    }
    let largest = largest_rank(config, shape, place.ranks, devices[0])?;
    let mut most: Option<Passes> = None;
    for device in devices {
        let memory = Memory { device: Memory::available(device, 1)?.device, ..*memory };
        let passes = Passes::of(config, shape, in_documents, (device, largest), &memory, false)?;
        if most.as_ref().is_none_or(|most| passes.splits > most.splits) {
            most = Some(passes);
        }
    }
    Ok(most.expect("there is a device"))
}

/// Checks what can be said of a device, one of so many ranks, and a model of this shape before there is one.
pub(super) fn check_device(resolved: &Resolved, shape: &ModelConfig, device: &Device, ranks: usize) -> Result<()> {
    check_configured_precision(resolved, device)?;
    check_sizes(&resolved.config, shape, device, ranks)
}

/// Checks that the device can bind what training takes in passes of whole batches.
fn check_sizes(config: &Config, model: &ModelConfig, device: &Device, ranks: usize) -> Result<()> {
    check_base(config, device)?;
    let (rows, _) = Share::largest(config, model.kind, ranks)?;
    let tokens = rows * config.model.block_size;
    let plan = Plan::new(model, tokens, operands(config.device.precision), Some(&trained(config, model, ranks)?));
    plan.check_device(device)
}
