//! Plans kernels instead of running them, so that tests see every launch of any device without having one.

use super::{Kernel, Spec};
use crate::gpu::{Limits, Plan};
use std::cell::RefCell;

struct Recorder {
    limits: Limits,
    plans: Vec<(&'static str, Plan)>,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// The name and the plan of every kernel that `body` runs on CPU tensors, as a GPU with these limits would be asked to
/// run it. Nothing is computed: the tensors that `body` makes have the right shapes and meaningless values.
///
/// # Panics
/// If `body` itself calls this.
pub fn record_plans(limits: &Limits, body: impl FnOnce()) -> Vec<(&'static str, Plan)> {
    let outer = RECORDER.replace(Some(Recorder { limits: limits.clone(), plans: Vec::new() }));
    assert!(outer.is_none(), "record_plans does not nest");
    body();
    RECORDER.take().expect("set above").plans
}

/// Keeps the kernel's plan if somebody records plans: then it must not run.
pub(super) fn record(kernel: &dyn Kernel, inputs: &[&Spec], outputs: &[&Spec]) -> bool {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return false };
        recorder.plans.push((kernel.name(), kernel.gpu(inputs, outputs, &recorder.limits)));
        true
    })
}
