//! f16 on the CPU: kernels there compute in f32, as GPUs do between loading and storing f16.

use super::{DType, Kernel, Spec, View, ViewMut};
use half::slice::HalfFloatSliceExt;

/// The tensor with its elements as f32, if they are f16.
pub(super) fn to_f32(bytes: &[u8], spec: &Spec) -> Option<(Spec, Vec<f32>)> {
    (spec.dtype == DType::F16).then(|| {
        let mut values = vec![0.0; spec.shape.elements()];
        bytemuck::cast_slice::<u8, half::f16>(bytes).convert_to_f32_slice(&mut values);
        (Spec::new(spec.shape.clone(), DType::F32), values)
    })
}

/// Runs a kernel on tensors of which some are f16. Outputs are upcast too, because a kernel may add to what they hold.
pub(super) fn run_in_f32(
    kernel: &dyn Kernel,
    read: &[&[u8]],
    input_specs: &[&Spec],
    write: &mut [&mut [u8]],
    output_specs: &[&Spec],
) {
    let inputs: Vec<_> = read.iter().zip(input_specs).map(|(bytes, spec)| to_f32(bytes, spec)).collect();
    let views = inputs.iter().zip(read).zip(input_specs).map(|((wide, bytes), spec)| match wide {
        Some((spec, values)) => View { spec, bytes: bytemuck::cast_slice(values) },
        None => View { spec, bytes },
    });
    let views: Vec<View> = views.collect();
    let mut outputs: Vec<_> = write.iter().zip(output_specs).map(|(bytes, spec)| to_f32(bytes, spec)).collect();
    let views_mut =
        outputs.iter_mut().zip(write.iter_mut()).zip(output_specs).map(|((wide, bytes), spec)| match wide {
            Some((spec, values)) => ViewMut { spec, bytes: bytemuck::cast_slice_mut(values) },
            None => ViewMut { spec, bytes },
        });
    kernel.cpu(&views, &mut views_mut.collect::<Vec<_>>());
    for (wide, bytes) in outputs.iter().zip(write) {
        if let Some((_, values)) = wide {
            bytemuck::cast_slice_mut::<u8, half::f16>(bytes).convert_from_f32_slice(values);
        }
    }
}
