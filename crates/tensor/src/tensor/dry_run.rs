//! A device that computes nothing. Of a GPU it plans every kernel, so that each launch can be seen without having one;
//! of any device it counts the memory that the kernels take, and what they must compute and move.

use crate::gpu::{Limits, Plan};
use crate::pool::size_class;
use crate::profile::{Cost, MemoryCount, MemoryKind, MemoryStats};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Stands in for a device with certain limits. Its tensors have shapes and types, and no values.
#[derive(Debug)]
pub struct DryRun {
    limits: Limits,
    is_gpu: bool,
    seen: Mutex<Seen>,
    /// In place of the CPU beside it, once it is asked for.
    host: OnceLock<Arc<DryRun>>,
}

#[derive(Debug, Default)]
struct Seen {
    plans: Vec<(&'static str, Plan)>,
    costs: Vec<Cost>,
    count: MemoryCount,
    /// Free buffers by size.
    free: HashMap<usize, usize>,
}

impl Seen {
    fn take(&mut self, bytes: usize, kind: MemoryKind) {
        let free = self.free.entry(bytes).or_default();
        let is_new = *free == 0;
        *free -= usize::from(!is_new);
        self.count.take(bytes, kind, is_new);
    }

    fn give_back(&mut self, bytes: usize, kind: MemoryKind) {
        *self.free.entry(bytes).or_default() += 1;
        self.count.give_back(bytes, kind);
    }
}

impl DryRun {
    /// In place of a GPU with these limits.
    pub fn new(limits: Limits) -> Arc<DryRun> {
        Arc::new(DryRun { limits, is_gpu: true, seen: Mutex::default(), host: OnceLock::new() })
    }

    /// In place of the CPU.
    pub fn cpu() -> Arc<DryRun> {
        Arc::new(DryRun { limits: Limits::CPU, is_gpu: false, seen: Mutex::default(), host: OnceLock::new() })
    }

    /// In place of the CPU beside this device: itself, if it stands for one.
    pub(super) fn host(self: &Arc<Self>) -> Arc<DryRun> {
        if self.is_gpu { self.host.get_or_init(DryRun::cpu).clone() } else { self.clone() }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a kernel; `plan` says what a GPU with these limits would launch.
    pub(super) fn note(&self, name: &'static str, cost: Cost, plan: impl FnOnce(&Limits) -> Plan) {
        let plan = self.is_gpu.then(|| plan(&self.limits));
        let mut seen = self.seen();
        seen.costs.push(cost);
        let Some(plan) = plan else { return };
        // All of it at once, as a GPU's scratch is.
        let scratch: Vec<usize> = plan.scratch.iter().map(|&size| size_class(size)).collect();
        scratch.iter().for_each(|&bytes| seen.take(bytes, MemoryKind::Scratch));
        scratch.iter().for_each(|&bytes| seen.give_back(bytes, MemoryKind::Scratch));
        seen.plans.push((name, plan));
    }

    /// The name and the plan of every kernel so far, in their order; the next call begins with the next one.
    pub fn take_plans(&self) -> Vec<(&'static str, Plan)> {
        std::mem::take(&mut self.seen().plans)
    }

    /// The cost of every kernel so far; the next call begins with the next one.
    pub fn take_costs(&self) -> Vec<Cost> {
        std::mem::take(&mut self.seen().costs)
    }

    pub(super) fn reset_peak_memory(&self) {
        self.seen().count.reset_peak();
    }

    /// What the device's pool would hold.
    pub fn memory(&self) -> MemoryStats {
        self.seen().count.stats()
    }
}

/// Memory of a dry run.
#[derive(Debug, Clone)]
pub struct DrySlice(Arc<DryBuffer>);

#[derive(Debug)]
struct DryBuffer {
    device: Arc<DryRun>,
    bytes: usize,
    kind: MemoryKind,
}

impl Drop for DryBuffer {
    fn drop(&mut self) {
        self.device.seen().give_back(self.bytes, self.kind);
    }
}

impl DrySlice {
    pub(super) fn new(device: &Arc<DryRun>, size: usize, kind: MemoryKind) -> DrySlice {
        let bytes = size_class(size);
        device.seen().take(bytes, kind);
        DrySlice(Arc::new(DryBuffer { device: device.clone(), bytes, kind }))
    }

    pub(super) fn device(&self) -> &Arc<DryRun> {
        &self.0.device
    }

    pub(super) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}
