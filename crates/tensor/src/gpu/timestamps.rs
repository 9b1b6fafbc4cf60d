//! Measures GPU time with timestamp queries: around every compute pass, and on request around every kernel.
//!
//! Queries of a submit are resolved at its end and arrive in the profile some submits later; nothing waits for them.

use super::clock::Clock;
use super::readback::{Staging, StagingPool};
use crate::Result;
use crate::profile::{Cost, Profiler};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations beyond which the time of a submit says how fast the device is.
const MUCH: f64 = 1e11;

/// The scope of a pair of queries.
enum TimedScope {
    Pass,
    Kernel(&'static str, Cost),
}

/// Resolved queries on their way to the host.
struct ResolvedQueries {
    staging: Staging,
    pairs: Vec<(u32, TimedScope)>,
    flops: f64,
    /// Before the submit.
    recorded: Instant,
}

pub(super) struct Timestamps {
    /// Where the times are booked.
    profiler: Arc<Profiler>,
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    ns_per_tick: f64,
    clock: Clock,
    next: u32,
    /// (index of a pair's first query, scope), for the submit being recorded.
    pairs: Vec<(u32, TimedScope)>,
    in_flight: VecDeque<ResolvedQueries>,
    free: Vec<Staging>,
    /// FLOP/s of the last large submit.
    pub flops_per_second: Option<f64>,
}

impl Timestamps {
    /// WebGPU's largest query set.
    pub const CAPACITY: u32 = 4096;

    /// `None` if the device has no timestamps inside passes.
    pub fn new(device: &wgpu::Device, queue: &wgpu::Queue, profiler: Arc<Profiler>) -> Option<Timestamps> {
        let needed = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        if !device.features().contains(needed) {
            return None;
        }
        let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: Timestamps::CAPACITY,
        });
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("timestamps"),
            size: u64::from(Timestamps::CAPACITY) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let ns_per_tick = f64::from(queue.get_timestamp_period());
        Some(Timestamps {
            profiler,
            queries,
            resolved,
            ns_per_tick,
            clock: Clock::new(ns_per_tick),
            next: 0,
            pairs: Vec::new(),
            in_flight: VecDeque::new(),
            free: Vec::new(),
            flops_per_second: None,
        })
    }

    fn pair(&mut self, scope: TimedScope) -> u32 {
        let first = self.next;
        self.next += 2;
        self.pairs.push((first, scope));
        first
    }

    /// The queries of a pass that is about to begin.
    pub fn pass(&mut self) -> wgpu::ComputePassTimestampWrites<'_> {
        let first = self.pair(TimedScope::Pass);
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Marks the start of a kernel; give the result to [`Timestamps::end_kernel`].
    pub fn begin_kernel(&mut self, pass: &mut wgpu::ComputePass, name: &'static str, cost: Cost) -> u32 {
        let first = self.pair(TimedScope::Kernel(name, cost));
        pass.write_timestamp(&self.queries, first);
        first
    }

    pub fn end_kernel(&self, pass: &mut wgpu::ComputePass, first: u32) {
        pass.write_timestamp(&self.queries, first + 1);
    }

    /// Records the copy of all queries to the host, of a submit of so many operations; call [`Timestamps::submitted`]
    /// after the submit.
    pub fn resolve(&mut self, device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder, flops: f64) {
        if self.next == 0 {
            return;
        }
        let staging = self
            .free
            .pop()
            .unwrap_or_else(|| Staging::new(device, Timestamps::CAPACITY as usize * 8, &StagingPool::default()));
        let size = u64::from(self.next) * 8;
        encoder.resolve_query_set(&self.queries, 0..self.next, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &staging.buffer, 0, Some(size));
        let (pairs, recorded) = (std::mem::take(&mut self.pairs), Instant::now());
        self.in_flight.push_back(ResolvedQueries { staging, pairs, flops, recorded });
        self.next = 0;
    }

    /// Requests the copy that [`Timestamps::resolve`] recorded.
    pub fn submitted(&mut self, resolved: bool) {
        if resolved && let Some(last) = self.in_flight.back() {
            last.staging.map();
        }
    }

    /// Whether the submit being recorded holds queries.
    pub fn any(&self) -> bool {
        self.next > 0
    }

    /// Adds arrived timestamps to the profile.
    pub fn collect(&mut self) -> Result<()> {
        while let Some(front) = self.in_flight.front() {
            let Some(bytes) = front.staging.take(Timestamps::CAPACITY as usize * 8)? else { break };
            let ticks: &[u64] = &bytemuck::pod_collect_to_vec::<u8, u64>(&bytes);
            let done = self.in_flight.pop_front().expect("front was there");
            let is_traced = self.align(&done, ticks);
            let mut busy = Duration::ZERO;
            for (first, scope) in done.pairs {
                let elapsed = ticks[first as usize + 1].saturating_sub(ticks[first as usize]);
                let elapsed = Duration::from_nanos((elapsed as f64 * self.ns_per_tick) as u64);
                let started = is_traced.then(|| self.clock.instant(ticks[first as usize]));
                match scope {
                    TimedScope::Pass => {
                        busy += elapsed;
                        self.profiler.add_pass(started, elapsed);
                    }
                    TimedScope::Kernel(name, cost) => self.profiler.add_kernel(name, started, elapsed, cost),
                }
            }
            if done.flops >= MUCH {
                self.flops_per_second = Some(done.flops / busy.as_secs_f64());
            }
            self.free.push(done.staging);
        }
        Ok(())
    }

    /// Finds when a submit ran by the host's clock, if there is a trace, which alone wants to know.
    fn align(&mut self, done: &ResolvedQueries, ticks: &[u64]) -> bool {
        let Some(trace) = self.profiler.trace() else { return false };
        let ends = |first: &u32| [ticks[*first as usize], ticks[*first as usize + 1]];
        let all = done.pairs.iter().map(|(first, _)| ends(first));
        let Some(span) = all.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]) else { return false };
        self.clock.align(span, done.recorded, Instant::now());
        trace.set_clock_error(self.clock.error());
        true
    }
}
