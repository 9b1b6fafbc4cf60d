//! Replaces the GPU in builds without the feature `gpu` by uninhabited types.

use super::{AdapterChoice, AdapterInfo, Launch, Limits, Plan};
use crate::profile::{Cost, MemoryKind, MemoryStats, Profiler};
use crate::{Error, Result};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Uninhabited: this build cannot open a GPU.
#[derive(Debug, Clone)]
pub struct Gpu(Infallible);

/// Uninhabited.
#[derive(Debug, Clone)]
pub struct GpuSlice(Infallible);

/// Uninhabited.
#[derive(Debug, Clone)]
pub struct PendingReadback(Infallible);

/// Uninhabited.
#[derive(Debug, Clone)]
pub struct MappedBytes(Infallible);

impl std::ops::Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

/// Empty: this build has no GPU support.
pub fn adapters() -> Vec<AdapterInfo> {
    Vec::new()
}

/// Always succeeds: this build cannot parse WGSL.
pub fn check_launch(_kernel: &'static str, _launch: &Launch, _limits: &Limits) -> Result<()> {
    Ok(())
}

/// Always an error.
pub fn translate(_launch: &Launch, _limits: &Limits) -> std::result::Result<(), String> {
    Err("this rustyflow was built without GPU support".into())
}

impl GpuSlice {
    /// Whether no other slice shares the buffer.
    pub fn is_unique(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn slice(&self, _offset: usize, _size: usize) -> GpuSlice {
        match self.0 {}
    }

    pub fn overlaps(&self, _other: &GpuSlice) -> bool {
        match self.0 {}
    }
}

impl PendingReadback {
    pub fn try_read(&self) -> Result<Option<MappedBytes>> {
        match self.0 {}
    }

    pub fn arrived_at(&self) -> Option<std::time::Instant> {
        match self.0 {}
    }

    pub fn wait_mapped(self) -> Result<MappedBytes> {
        match self.0 {}
    }

    pub fn wait(self) -> Result<Vec<u8>> {
        match self.0 {}
    }
}

impl Gpu {
    /// Always an error.
    pub fn open(_choice: &AdapterChoice) -> Result<Gpu> {
        Err(Error::NoAdapter {
            reason: "this rustyflow was built without GPU support".into(),
            hint: "build it with the feature `gpu`, which is on by default, or train with --device cpu".into(),
        })
    }

    pub fn info(&self) -> &AdapterInfo {
        match self.0 {}
    }

    pub fn limits(&self) -> &Limits {
        match self.0 {}
    }

    pub fn with_matmul_throughput(self, _gflops: Arc<[[u32; 4]]>) -> Gpu {
        match self.0 {}
    }

    pub fn with_split_fp16(self, _on: bool) -> Gpu {
        match self.0 {}
    }

    pub fn counts(&self) -> (u64, u64) {
        match self.0 {}
    }

    pub fn compiled(&self) -> usize {
        match self.0 {}
    }

    pub fn precompile(&self, _launches: &[Launch], _stop: &AtomicBool) {
        match self.0 {}
    }

    pub fn profiler(&self) -> &Profiler {
        match self.0 {}
    }

    pub fn memory(&self) -> MemoryStats {
        match self.0 {}
    }

    pub fn reset_peak_memory(&self) {
        match self.0 {}
    }

    pub fn memory_bytes(&self) -> Option<u64> {
        match self.0 {}
    }

    pub fn same(&self, _other: &Gpu) -> bool {
        match self.0 {}
    }

    pub fn alloc(&self, _size: usize, _kind: MemoryKind) -> Result<GpuSlice> {
        match self.0 {}
    }

    #[cfg(feature = "testing")]
    pub fn lose_for_tests(&self) {
        match self.0 {}
    }

    pub fn run(&self, _: &'static str, _: Cost, _: Plan, _: &[&GpuSlice], _: &[&GpuSlice]) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn pci(&self) -> Option<(u32, String)> {
        match self.0 {}
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn alloc_exported(&self, _size: usize) -> Result<Option<(GpuSlice, std::os::fd::OwnedFd, u64)>> {
        match self.0 {}
    }

    pub(crate) fn prepare_downloads(&self, _sizes: Vec<usize>) -> Option<std::thread::JoinHandle<()>> {
        match self.0 {}
    }

    pub(crate) fn upload_by(&self, _slice: &GpuSlice, _fill: &(dyn Fn(usize, &mut [u8]) + Sync)) -> Result<()> {
        match self.0 {}
    }

    pub fn upload(&self, _slice: &GpuSlice, _parts: &[&[u8]]) -> Result<()> {
        match self.0 {}
    }

    pub fn trim(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn fill_zero(&self, _slice: &GpuSlice) {
        match self.0 {}
    }

    pub fn download_later(&self, _slice: &GpuSlice) -> Result<PendingReadback> {
        match self.0 {}
    }

    pub(crate) fn alloc_for_host(&self, _size: usize) -> Result<Option<GpuSlice>> {
        match self.0 {}
    }

    pub(crate) fn download_by_copy_queue(&self, _slice: &GpuSlice) -> Result<PendingReadback> {
        match self.0 {}
    }

    pub(crate) fn upload_by_copy_queue(&self, _bytes: &[u8]) -> Result<Option<GpuSlice>> {
        match self.0 {}
    }

    pub fn download(&self, _slice: &GpuSlice) -> Result<Vec<u8>> {
        match self.0 {}
    }

    pub fn flush_if_idle(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn submit(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn poll(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn throttle(&self, _in_flight: usize) -> Result<()> {
        match self.0 {}
    }

    pub fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn time_kernels(&self, _on: bool) -> bool {
        match self.0 {}
    }
}
