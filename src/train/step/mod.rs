//! One update: micro-batches of a replica, on one device or on ranks that share the batch.

pub(super) mod carried;
pub(super) mod micro_batch;
pub(super) mod ranks;
pub(super) mod replica;
pub(super) mod update_rules;
