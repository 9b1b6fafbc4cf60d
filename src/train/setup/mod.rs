//! Set-up from the configuration: devices, precision, data, model shape and initial weights.

pub(super) mod adapters;
pub(super) mod data_spec;
pub(super) mod init;
pub(super) mod memory_limit;
pub(super) mod model_shape;
pub(super) mod opening;
pub(super) mod precision;
pub(in crate::train) mod reference;
pub(super) mod schedule;
pub(super) mod vocabulary;
