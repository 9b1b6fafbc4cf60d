//! Joins a run led by another process.

use super::devices;
use super::load::tokenize;
use crate::Result;
use crate::config::Resolved;
use crate::train::plan::init_sizes;
use crate::train::run::options::TrainOptions;
use crate::train::step::ranks::{Place, Team};
use crate::train::trainer::sizes::{memory_of, passes};
use std::sync::Arc;

/// Joins a job whose rank 0 is in another process.
///
/// # Errors
/// Errors before the first step, and failures that end the job.
pub(in crate::train::trainer) fn follow(resolved: &Resolved, mut options: TrainOptions) -> Result<()> {
    let place = Place::of_first(options.launch, 1 + options.others.len());
    let (data, _precompile) = tokenize(resolved, &mut options, None, place)?;
    let TrainOptions { device, others, launch, .. } = &options;
    let devices = devices(device, others);
    let (mut resolved, memory) = (resolved.clone(), memory_of(&devices, *launch)?);
    let (shape, _) = init_sizes::settle(&mut resolved, &data.prepared, (device, devices.len()), true, &memory)?;
    let (tokens, validation) = (&data.prepared.train, &data.prepared.validation);
    let in_documents = tokens.is_in_documents() && !shape.is_recurrent();
    let splits = passes(&resolved, &shape, in_documents, &devices, place, &memory)?.splits;
    let config = &Arc::new(resolved.config);
    let (shape, data) = (&shape, &data.hash);
    Team { config, shape, data, tokens, validation, splits, device, others, launch: *launch }.follow()
}
