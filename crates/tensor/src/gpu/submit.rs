//! Records kernels, and decides when to submit them.

use super::Gpu;
use super::checked::expect_fits;
use super::copy_queues::CopyQueues;
use super::plan::{Operand, Plan};
use super::pool::GpuSlice;
use super::recorder::Recorder;
use super::timestamps::Timestamps;
use crate::profile::{Cost, MemoryKind, Span};
use crate::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Operations recorded before a submit happens by itself, as long as the device's speed is not known: a few tens of
/// milliseconds of a mid-range GPU.
const FLOPS_PER_SUBMIT: f64 = 4e11;
/// GPU time per submit, seconds: between submits a GPU idles for about 50 us, and Windows and macOS reset a GPU that is
/// busy for a second or two.
const SECONDS_PER_SUBMIT: f64 = 0.1;
/// Most kernels per submit, so that the GPU starts early.
const KERNELS_PER_SUBMIT: usize = 512;
/// And as many after the host has waited for all that was submitted, because the GPU has nothing to do then; after each
/// submit a quarter more. With twice as many a GPU is done before the next are recorded, where kernels are short. Not
/// while there is something to compile, which is faster all at once.
pub(super) const KERNELS_WHEN_IDLE: usize = 16;
// Each has two timestamps at most, and so has its pass.
const _: () = assert!(4 * KERNELS_PER_SUBMIT <= Timestamps::CAPACITY as usize);
/// Submits that [`Gpu::flush_if_idle`] sees to it that the GPU has before it.
const SUBMITS_AHEAD: usize = 2;

impl Gpu {
    /// Kernels recorded and batches submitted since it was opened.
    pub fn counts(&self) -> (u64, u64) {
        let [kernels, submits] = self.0.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        (kernels, submits)
    }

    /// Lets the thread that submits panic over the commands recorded so far.
    #[cfg(test)]
    pub(super) fn panic_in_submit_for_tests(&self) {
        self.recorder().batch.panics = true;
    }

    /// Records a kernel's launches. `name` and `cost`, its FLOPs and bytes, are for the profile.
    ///
    /// # Errors
    /// If the plan binds an operand that does not exist, memory for scratch buffers runs out, or the driver reported an
    /// error.
    pub fn run(
        &self,
        name: &'static str,
        cost: Cost,
        plan: Plan,
        inputs: &[&GpuSlice],
        outputs: &[&GpuSlice],
    ) -> Result<()> {
        let started = Instant::now();
        plan.check_operands(name, inputs.len(), outputs.len())?;
        for launch in plan.launches.iter().filter(|launch| launch.shader.checked && launch.workgroups > 0) {
            self.0.pipelines.checked.expect(name, launch, &self.1)?;
            let bytes = launch.buffers.iter().map(|buffer| match buffer.operand {
                Operand::Input(i) => inputs[i].size,
                Operand::Output(i) => outputs[i].size,
                Operand::Scratch(i) | Operand::ReadScratch(i) => plan.scratch[i],
            });
            expect_fits(name, launch, bytes, self)?;
        }
        let scratch = plan.scratch.iter().map(|&size| self.alloc(size, MemoryKind::Scratch));
        let scratch = scratch.collect::<Result<Vec<_>>>()?;
        let range = |binding: &Operand| match *binding {
            Operand::Input(i) => inputs[i].into(),
            Operand::Output(i) => outputs[i].into(),
            Operand::Scratch(i) | Operand::ReadScratch(i) => (&scratch[i]).into(),
        };
        let launches = plan.launches.into_iter().filter(|launch| launch.workgroups > 0).map(|launch| {
            let ranges = launch.buffers.iter().map(|buffer| range(&buffer.operand)).collect();
            (launch, ranges)
        });
        let mut recorder = self.recorder();
        recorder.kernel(name, cost, launches);
        self.0.counts[0].fetch_add(1, Ordering::Relaxed);
        let batch = &recorder.batch;
        let flops = self.0.submitter.flops_per_second().map_or(FLOPS_PER_SUBMIT, |rate| rate * SECONDS_PER_SUBMIT);
        let enough =
            if batch.must_compile { KERNELS_PER_SUBMIT } else { self.0.kernels_per_submit.load(Ordering::Relaxed) };
        let due = batch.kernels >= enough || batch.flops >= flops;
        self.0.profiler.add_span(Span::Encode, started, started.elapsed());
        if due { self.submit_recorded(&mut recorder) } else { Ok(()) }
    }

    /// Submits the recorded commands if the GPU would otherwise become idle, as at the end of a training step.
    /// Otherwise recording continues, because each submit costs idle time.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn flush_if_idle(&self) -> Result<()> {
        self.check()?;
        let ahead = self.0.submitter.ahead(|| self.poll())?;
        if ahead == 0 {
            // As after `synchronize`: what is recorded next is waited for.
            self.0.kernels_per_submit.store(KERNELS_WHEN_IDLE, Ordering::Relaxed);
        }
        if ahead < SUBMITS_AHEAD { self.submit() } else { Ok(()) }
    }

    /// Submits the recorded commands on a thread. A failure there is reported by a later call.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn submit(&self) -> Result<()> {
        self.submit_recorded(&mut self.recorder())
    }

    pub(super) fn submit_recorded(&self, recorder: &mut Recorder) -> Result<()> {
        if let Some(mut batch) = recorder.take() {
            self.0.counts[1].fetch_add(1, Ordering::Relaxed);
            let kernels = &self.0.kernels_per_submit;
            let submitted = kernels.load(Ordering::Relaxed);
            kernels.store((submitted + submitted / 4).min(KERNELS_PER_SUBMIT), Ordering::Relaxed);
            batch.is_announced = self.0.copy_queues.as_ref().is_some_and(CopyQueues::are_in_use);
            self.0.submitter.hand_over(batch)?;
        }
        self.check()
    }

    /// Lets callbacks run. Never waits.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn poll(&self) -> Result<()> {
        self.check()?;
        self.0.device.poll(wgpu::PollType::Poll).map_err(|e| Error::Gpu(e.to_string()))?;
        self.0.released.clear();
        self.check()
    }

    /// Waits until at most `in_flight` submits are unfinished, so that the host does not run far ahead.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn throttle(&self, in_flight: usize) -> Result<()> {
        self.0.submitter.throttle(in_flight, |last| self.wait(Some(last)))
    }

    /// Submits what is recorded and waits until all of it is done; timestamps are then in the profile.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn synchronize(&self) -> Result<()> {
        self.submit()?;
        self.finish_submits()?;
        self.wait(None)?;
        self.0.submitter.all_done();
        self.0.kernels_per_submit.store(KERNELS_WHEN_IDLE, Ordering::Relaxed);
        self.0.submitter.encoder().collect()
    }

    /// Waits until everything that was handed over is submitted.
    ///
    /// # Errors
    /// If the device is lost.
    pub(super) fn finish_submits(&self) -> Result<()> {
        self.0.submitter.drain()
    }

    pub(super) fn wait(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        // Of a submit that failed: a poll would panic, or not know it.
        self.check()?;
        let poll = || self.0.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        let polled = self.0.profiler.span(Span::Wait, poll);
        self.0.released.clear();
        self.check()?;
        polled.map(drop).map_err(|e| Error::Gpu(e.to_string()))
    }

    /// Sets whether every kernel gets timestamps, or only passes. Returns false if the device has no timestamps.
    pub fn time_kernels(&self, on: bool) -> bool {
        self.recorder().times_kernels = on && self.0.has_timestamps;
        self.0.has_timestamps
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gpu::{Launch, buffer, param};

    /// Sets as many words of f32 to a value.
    pub fn fill(len: usize, value: f32) -> Plan {
        Plan::one(Launch {
            shader: crate::shader!(fill),
            values: vec![],
            buffers: vec![buffer("x", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("value", value)],
            workgroups: len.div_ceil(256),
        })
    }

    #[test]
    fn a_panic_of_the_submitting_thread_is_a_lost_device_for_every_caller() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let slice = gpu.alloc(1024, MemoryKind::Other).unwrap();
        let reads = [0; 2].map(|_| gpu.download_later(&slice).unwrap());
        gpu.panic_in_submit_for_tests();
        let calls: [(&str, &(dyn Fn() -> Result<()> + Sync)); 8] = [
            ("synchronize", &|| gpu.synchronize()),
            ("submit", &|| {
                gpu.fill_zero(&slice);
                gpu.submit()
            }),
            ("throttle", &|| gpu.throttle(0)),
            ("flush_if_idle", &|| gpu.flush_if_idle()),
            ("download", &|| gpu.download(&slice).map(drop)),
            ("trim", &|| gpu.trim()),
            ("poll", &|| gpu.poll()),
            ("alloc", &|| gpu.alloc(12_345_678, MemoryKind::Other).map(drop)),
        ];
        let check = |name: &str, result: Result<()>| {
            let is_lost = |error: &Error| matches!(error, Error::DeviceLost(why) if why.contains("out of luck"));
            assert!(result.as_ref().is_err_and(is_lost), "{name}: {result:?}");
        };
        // The first waits for the thread, which panics meanwhile.
        check("synchronize", gpu.synchronize());
        std::thread::scope(|scope| {
            let threads = calls.map(|(name, call)| (name, scope.spawn(call)));
            threads.into_iter().for_each(|(name, thread)| check(name, thread.join().expect(name)));
        });
        reads.into_iter().for_each(|read| check("wait", read.wait().map(drop)));
    }

    #[test]
    fn an_idle_gpu_gets_work_early_and_a_busy_one_more_at_once() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        let out = gpu.alloc(4, MemoryKind::Other).unwrap();
        // The first time there is a shader to compile.
        for expected in [&[][..], &[16, 36, 61, 92], &[16, 36, 61, 92]] {
            gpu.synchronize().unwrap();
            let mut submits = Vec::new();
            for kernels in 1..=112 {
                let before = gpu.counts().1;
                gpu.run("fill", Cost::default(), fill(1, 0.0), &[], &[&out]).unwrap();
                if gpu.counts().1 > before {
                    submits.push(kernels);
                }
            }
            assert_eq!(submits, expected);
        }
    }

    #[test]
    fn a_gpu_that_is_dropped_in_the_middle_of_work_waits_for_it() {
        let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
        const LEN: usize = 1 << 22;
        for _ in 0..20 {
            let out = gpu.alloc(4 * LEN, MemoryKind::Other).unwrap();
            gpu.run("fill", Cost::default(), fill(LEN, 1.0), &[], &[&out]).unwrap();
        }
        gpu.submit().unwrap();
        // The submit keeps the aliases, and each of those the memory.
        let released = gpu.0.released.clone();
        let has_aliases = gpu.alloc(4, MemoryKind::Other).unwrap().buffer.allocation.memory.has_aliases();
        drop(gpu);
        assert_eq!(released.count() > 0, has_aliases);
    }
}
