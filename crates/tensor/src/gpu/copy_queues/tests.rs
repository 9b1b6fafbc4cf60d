use super::*;
use crate::gpu::{Gpu, Launch, Operand, PendingReadback, Plan, buffer, param};
use crate::profile::Cost;

const LEN: usize = 10_003;

/// A read of as many words of f32, which a kernel sets to this value.
fn read(gpu: &Gpu, value: f32) -> PendingReadback {
    let slice = gpu.alloc_for_host(LEN * size_of::<f32>()).unwrap().expect("there is memory for it");
    let fill = Plan::one(Launch {
        shader: crate::shader!(fill),
        values: vec![],
        buffers: vec![buffer("x", "f32", Operand::Output(0))],
        params: vec![param("len", LEN), param("value", value)],
        workgroups: LEN.div_ceil(256),
    });
    gpu.run("fill", Cost::default(), fill, &[], &[&slice]).unwrap();
    gpu.download_by_copy_queue(&slice).unwrap()
}

#[test]
fn reads_have_buffers_of_their_own_until_they_are_dropped() {
    let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
    let Some(queues) = gpu.copy_queues() else { return };
    for _ in 0..3 {
        // One that nobody waits for, but for those after it.
        drop(read(&gpu, 7.0));
        let reads: Vec<_> = (1..=3).map(|value| read(&gpu, value as f32)).collect();
        assert!(reads[0].try_read().unwrap().is_none(), "it is not submitted");
        let bytes: Vec<_> = reads.into_iter().map(|read| read.wait_mapped().unwrap()).collect();
        for (bytes, value) in bytes.iter().zip(1..) {
            assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(bytes), vec![value as f32; LEN]);
        }
    }
    let made = queues.0.staging().free.len();
    assert!((4..=6).contains(&made), "{made} for 12 reads: they are used again, once their copies are done");
    gpu.trim().unwrap();
    assert_eq!(queues.0.staging().bytes, [0; 2], "their memory is given back");
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&read(&gpu, 2.0).wait().unwrap()), vec![2.0; LEN]);
}

#[test]
fn memory_is_given_back_once_copies_under_way_are_done() {
    let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
    let Some(queues) = gpu.copy_queues() else { return };
    // To the device: nothing is submitted to wgpu's queue after it.
    drop(gpu.upload_by_copy_queue(&[1; 1000]).unwrap().expect("there is memory for it"));
    gpu.trim().unwrap();
    assert_eq!(queues.0.staging().bytes, [0; 2]);
    // To the host: a copy that takes until another thread says that it is done.
    let copy = queues.take(1000, Direction::ToHost).unwrap().expect("there is memory for it");
    let (raw, done) = (&queues.0.raw, copy.buffer().done);
    // SAFETY: nobody uses the fence.
    unsafe { raw.reset_fences(&[done]) }.unwrap();
    drop(copy);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            // SAFETY: nobody else submits.
            unsafe { raw.queue_submit(queues.0.queues[0], &[], done) }.unwrap();
        });
        queues.release();
        assert_eq!(queues.0.staging().bytes, [0; 2]);
    });
}

#[test]
fn a_lost_device_ends_reads() {
    let Some(gpu) = crate::gpu::gpu_for_tests() else { return };
    if gpu.copy_queues().is_some() {
        let read = read(&gpu, 1.0);
        gpu.lose_for_tests();
        assert!(read.wait().is_err());
    }
}
