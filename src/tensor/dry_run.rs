//! A device that plans kernels instead of running them, so that every launch of any GPU can be seen without having one.

use crate::gpu::{Limits, Plan};
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU with certain limits that only notes what it is asked to run. Its tensors have shapes and types, and no values.
#[derive(Debug)]
pub struct DryRun {
    limits: Limits,
    plans: Mutex<Vec<(&'static str, Plan)>>,
}

impl DryRun {
    pub fn new(limits: Limits) -> Arc<DryRun> {
        Arc::new(DryRun { limits, plans: Mutex::default() })
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn note(&self, name: &'static str, plan: Plan) {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner).push((name, plan));
    }

    /// The name and the plan of every kernel so far, in their order; the next call begins with the next one.
    pub fn take_plans(&self) -> Vec<(&'static str, Plan)> {
        std::mem::take(&mut self.plans.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Memory of a dry run: an identity and a size.
#[derive(Debug, Clone)]
pub struct DrySlice {
    pub(super) device: Arc<DryRun>,
    identity: Arc<()>,
}

impl DrySlice {
    pub(super) fn new(device: &Arc<DryRun>) -> DrySlice {
        DrySlice { device: device.clone(), identity: Arc::default() }
    }

    pub(super) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.identity) == 1
    }
}
