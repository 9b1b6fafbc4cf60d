//! What attention promises beyond its values.

use rustyflow_tensor::ops::Heads;
use rustyflow_tensor::{Device, Tensor};

#[test]
fn long_contexts_need_no_matrix_of_all_pairs() {
    let Some(device) = crate::common::gpu() else { return };
    let Device::Gpu(gpu) = &device else { unreachable!("`crate::common::gpu` opens a GPU") };
    let (time, width) = (4096, 8);
    let qkv = Tensor::from_f32(&crate::common::uniform(time * 3 * width, 1), [1, time, 3 * width], &device).unwrap();
    let qkv = qkv.requires_grad().unwrap();
    let y = qkv.causal_attention(Heads::multi_head(1), None, None).unwrap();
    y.backward_with(&y.detach()).unwrap();
    assert!(qkv.grad().unwrap().to_f32().unwrap().iter().all(|x| x.is_finite()));
    // qkv, its gradient twice, y, and row statistics, dS of a query block: all linear in T. The matrix alone would be
    // 64 MiB.
    let peak = gpu.memory().peak_bytes;
    assert!(peak < 4 << 20, "{peak} bytes at the peak");
}
