//! Uploads and reads, on wgpu's queue or on transfer queues.

use super::Gpu;
#[cfg(test)]
use super::copy_queues::CopyQueues;
use super::copy_queues::{Direction, PendingCopy};
use super::pool::GpuSlice;
use super::readback::{PendingReadback, Staging, StagingPool, UploadPool, Way};
use crate::cpu::with_scratch;
use crate::profile::Span;
use crate::{Error, Result};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Uploads of at least this size are submitted at once: until then they are in host memory twice.
const LARGE_UPLOAD: usize = 16 << 20;

/// Bytes that are uploaded at a time of what is read from elsewhere: the next piece is read while this one is copied.
const PIECE: usize = 64 << 20;

/// Bytes of a piece that a thread writes at a time.
const PART: usize = 1 << 18;

/// The most bytes of uploads that are recorded and not done before more are read.
const MOST_PENDING: usize = 8 * PIECE;

impl Gpu {
    /// The pools of unused mapped buffers, for reads and uploads.
    #[cfg(test)]
    pub(super) fn host_pools(&self) -> [&super::readback::Buffers; 2] {
        [&self.0.staging_pool.0, &self.0.upload_pool.buffers]
    }

    #[cfg(test)]
    pub(super) fn copy_queues(&self) -> Option<&CopyQueues> {
        self.0.copy_queues.as_ref()
    }

    /// Records an upload of the concatenated `parts` to `slice`. Commands recorded before it still read the old
    /// contents.
    ///
    /// # Errors
    /// If the number of bytes differs from the slice's, host memory runs out, or the driver reported an error.
    pub fn upload(&self, slice: &GpuSlice, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes != slice.size {
            let size = slice.size;
            return Err(Error::Invalid(format!("upload: a slice of {size} bytes takes as many, not {bytes}")));
        }
        if bytes == 0 {
            return Ok(());
        }
        self.upload_mapped(slice, |mapped| write(mapped, parts))
    }

    /// Records an upload to `slice` of what `fill` writes: it receives the offset of a part in bytes, and memory for
    /// the part. Several threads call it at a time. Host memory holds a few pieces of [`PIECE`] bytes.
    ///
    /// # Errors
    /// Those of [`Gpu::upload`].
    pub(crate) fn upload_by(&self, slice: &GpuSlice, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) -> Result<()> {
        for start in (0..slice.size).step_by(PIECE) {
            let piece = slice.slice(start, PIECE.min(slice.size - start));
            if self.0.upload_pool.pending_bytes() >= MOST_PENDING {
                self.synchronize()?;
            }
            self.upload_mapped(&piece, |mapped| fill_parts(mapped, &|offset, out| fill(start + offset, out)))?;
        }
        Ok(())
    }

    /// Records an upload to `slice` of what `fill` writes to mapped memory.
    fn upload_mapped(&self, slice: &GpuSlice, fill: impl FnOnce(wgpu::WriteOnly<[u8]>)) -> Result<()> {
        let bytes = slice.size;
        #[cfg(feature = "testing")]
        self.fail_for_tests(bytes)?;
        let from = match self.0.upload_pool.take(&self.0.device, bytes) {
            Some(mapped) => mapped,
            None => self.retry_after_trim(|| self.made(bytes, || UploadPool::create(&self.0.device, bytes)))?,
        };
        let mut mapped = from.get_mapped_range_mut(..).map_err(|e| Error::Gpu(e.to_string()))?;
        fill(mapped.slice(..bytes));
        drop(mapped);
        from.unmap();
        let mut recorder = self.recorder();
        recorder.write(&from, slice.into());
        if bytes >= UploadPool::LARGE {
            let pool = self.0.upload_pool.clone();
            pool.is_pending(&from);
            recorder.batch.to_map_again.push((from, pool));
        }
        if recorder.batch.uploaded >= LARGE_UPLOAD { self.submit_recorded(&mut recorder) } else { Ok(()) }
    }

    /// Records a fill of `slice` with zeros.
    pub fn fill_zero(&self, slice: &GpuSlice) {
        self.recorder().clear(slice.into());
    }

    /// Records an asynchronous read of `slice`.
    ///
    /// # Errors
    /// If host memory runs out, or the driver reported an error.
    pub fn download_later(&self, slice: &GpuSlice) -> Result<PendingReadback> {
        #[cfg(feature = "testing")]
        self.fail_for_tests(slice.size)?;
        let make = || Staging::new(&self.0.device, slice.size, &self.0.staging_pool);
        let staging = self.retry_after_trim(|| self.made(slice.size, make))?;
        self.recorder().read(slice.into(), &staging);
        let way = Way::Mapped(staging, self.0.staging_pool.clone());
        Ok(PendingReadback { gpu: self.clone(), way, size: slice.size })
    }

    /// Makes host memory for reads of these sizes, on a thread of its own, and keeps it between them, however much it
    /// is: allocating gigabytes takes seconds.
    pub(crate) fn prepare_downloads(&self, sizes: Vec<usize>) -> Option<JoinHandle<()>> {
        let classes = sizes.iter().map(|size| StagingPool::size(&self.0.device, *size));
        self.0.staging_pool.expect(classes.sum());
        let gpu = self.clone();
        thread::Builder::new().name("staging".into()).spawn(move || gpu.make_downloads(&sizes)).ok()
    }

    fn make_downloads(&self, sizes: &[usize]) {
        let pool = &self.0.staging_pool;
        let make = |size| self.made(size, || Staging::new(&self.0.device, size, pool));
        // All are made before one is free, so that none is taken twice. What there is no memory for is made when it is
        // read, which says so.
        let made: Vec<Staging> = sizes.iter().map_while(|size| make(*size).ok()).collect();
        made.into_iter().for_each(|staging| pool.0.keep(staging.buffer));
    }

    /// Memory that a kernel writes and [`Gpu::download_by_copy_queue`] reads. `None` if the device has no transfer
    /// queues, or their memory limit is reached.
    ///
    /// # Errors
    /// If the driver refuses it.
    #[doc(hidden)]
    pub fn alloc_for_host(&self, size: usize) -> Result<Option<GpuSlice>> {
        let Some(copies) = &self.0.copy_queues else { return Ok(None) };
        let copy = copies.take(size, Direction::ToHost)?;
        Ok(copy.map(|copy| GpuSlice::of_copy(Arc::new(copy), size)))
    }

    /// [`Gpu::download_later`] that runs concurrently with later kernels, if the memory is from
    /// [`Gpu::alloc_for_host`]. Commands recorded later must not write to it.
    ///
    /// # Errors
    /// If host memory runs out, or the driver reported an error.
    #[doc(hidden)]
    pub fn download_by_copy_queue(&self, slice: &GpuSlice) -> Result<PendingReadback> {
        let Some(copy) = slice.copy() else { return self.download_later(slice) };
        self.recorder().read_by_copy_queue(copy.clone());
        Ok(PendingReadback { gpu: self.clone(), way: Way::CopyQueue(copy.clone()), size: slice.size })
    }

    /// Uploads these bytes on a transfer queue, concurrently with kernels, and waits. The returned memory is for
    /// kernels to read. `None` as for [`Gpu::alloc_for_host`].
    ///
    /// # Errors
    /// If the driver refuses it, or reported an error.
    #[doc(hidden)]
    pub fn upload_by_copy_queue(&self, bytes: &[u8]) -> Result<Option<GpuSlice>> {
        let Some(copies) = &self.0.copy_queues else { return Ok(None) };
        let Some(mut copy) = copies.take(bytes.len(), Direction::ToDevice)? else { return Ok(None) };
        copy.fill(bytes);
        {
            let _nobody_else_submits = self.recorder();
            self.0.submitter.drain()?;
            copies.copy_to_device(&copy);
        }
        self.wait_for_copy(&copy)?;
        Ok(Some(GpuSlice::of_copy(Arc::new(copy), bytes.len())))
    }

    /// The contents of `slice`, after everything recorded so far has run. Waits.
    ///
    /// # Errors
    /// If the driver reported an error.
    pub fn download(&self, slice: &GpuSlice) -> Result<Vec<u8>> {
        self.download_later(slice)?.wait()
    }

    /// Waits for a transfer-queue copy; submits recorded commands if the copy is among them.
    pub(super) fn wait_for_copy(&self, copy: &PendingCopy) -> Result<()> {
        if !copy.is_submitted() {
            self.submit()?;
        }
        self.0.profiler.span(Span::Wait, || {
            // So often it looks whether the device is lost.
            while !copy.wait(Duration::from_millis(100))? {
                self.check()?;
            }
            Ok(())
        })
    }
}

/// Lets all threads write parts of mapped memory, each by way of its cache.
fn fill_parts(to: wgpu::WriteOnly<[u8]>, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    let (whole, mut last) = to.into_chunks::<PART>();
    let end = PART * whole.len();
    rayon::in_place_scope(|scope| {
        for (part, to) in whole.into_iter().enumerate() {
            scope.spawn(move |_| {
                with_scratch(PART / 4, |scratch| {
                    let bytes = bytemuck::cast_slice_mut(scratch);
                    fill(PART * part, bytes);
                    wgpu::WriteOnly::<[u8]>::from(to).copy_from_slice(bytes);
                });
            });
        }
        with_scratch(last.len().div_ceil(4), |scratch| {
            let bytes = &mut bytemuck::cast_slice_mut(scratch)[..last.len()];
            fill(end, bytes);
            last.copy_from_slice(bytes);
        });
    });
}

/// Copies the bytes of all parts to mapped memory, which may be a card's, seen through the bus: four threads fill that,
/// once they are awake.
fn write(mut to: wgpu::WriteOnly<[u8]>, parts: &[&[u8]]) {
    const TASK: usize = 1 << 24;
    rayon::in_place_scope(|scope| {
        for part in parts {
            let (whole, rest) = std::mem::take(&mut to).split_at(part.len());
            to = rest;
            let (tasks, mut last) = whole.into_chunks::<TASK>();
            let own = part.chunks_exact(TASK);
            for (to, own) in tasks.into_iter().zip(own.clone()) {
                scope.spawn(move |_| wgpu::WriteOnly::<[u8]>::from(to).copy_from_slice(own));
            }
            last.copy_from_slice(own.remainder());
        }
    });
}
