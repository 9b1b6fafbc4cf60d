//! What holds for all that a thread computes while a closure runs: whether operations are recorded on the tape, whether
//! layers use their adapters, who is shown the kernels, and where initial weights are made. Everything else a kernel
//! depends on comes with its tensors' device.

use super::{Device, Tensor};
use std::cell::{Cell, RefCell};

/// Shown the name, the inputs and the outputs of a kernel that was just run or recorded.
type Hook = Box<dyn FnMut(&'static str, &[&Tensor], &[&Tensor])>;

thread_local! {
    static GRAD_ENABLED: Cell<bool> = const { Cell::new(true) };
    static ADAPTERS_ENABLED: Cell<bool> = const { Cell::new(true) };
    static WEIGHTS: RefCell<Option<Device>> = const { RefCell::new(None) };
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Calls `restore` with `value` when it is dropped, also if a body panics.
struct Restore<T, F: FnMut(T)>(Option<T>, F);

impl<T, F: FnMut(T)> Drop for Restore<T, F> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            (self.1)(value);
        }
    }
}

/// Runs `body` without recording: nothing computed in it can be differentiated.
pub fn no_grad<T>(body: impl FnOnce() -> T) -> T {
    let _restore = Restore(Some(GRAD_ENABLED.replace(false)), |before| GRAD_ENABLED.set(before));
    body()
}

/// Switches recording on or off for what this thread computes from here on, and says what it was: for whoever cannot
/// give a closure to [`no_grad`].
pub fn set_grad_enabled(on: bool) -> bool {
    GRAD_ENABLED.replace(on)
}

/// Runs `body` with recording, within [`no_grad`] too.
pub(super) fn with_grad<T>(body: impl FnOnce() -> T) -> T {
    let _restore = Restore(Some(GRAD_ENABLED.replace(true)), |before| GRAD_ENABLED.set(before));
    body()
}

/// Whether operations are recorded now.
pub fn grad_enabled() -> bool {
    GRAD_ENABLED.get()
}

/// Runs `body`, in which this thread computes as if layers had no adapters: a model fine-tuned by LoRA is the frozen
/// model then.
pub fn without_adapters<T>(body: impl FnOnce() -> T) -> T {
    let _restore = Restore(Some(ADAPTERS_ENABLED.replace(false)), |before| ADAPTERS_ENABLED.set(before));
    body()
}

/// Whether layers use their adapters now.
pub(crate) fn adapters_enabled() -> bool {
    ADAPTERS_ENABLED.get()
}

/// Runs `body`, in which layers make their initial weights on `device`, a dry run: they have shapes and no values, so a
/// model of any size is built at once.
#[doc(hidden)]
pub fn with_weights_on<T>(device: Device, body: impl FnOnce() -> T) -> T {
    let _restore = Restore(Some(WEIGHTS.replace(Some(device))), |before| WEIGHTS.set(before));
    body()
}

/// Where initial weights are made instead of on the CPU, if anywhere.
pub fn weights_device() -> Option<Device> {
    WEIGHTS.with_borrow(Clone::clone)
}

/// Runs `body` and shows each of its kernels to `hook`, which may read tensors but runs no kernels itself.
#[doc(hidden)]
pub fn with_hook<T>(hook: Hook, body: impl FnOnce() -> T) -> T {
    let _restore = Restore(Some(HOOK.replace(Some(hook))), |before| HOOK.set(before));
    body()
}

/// Shows a kernel to the hook, if there is one.
pub(super) fn call_hook(name: &'static str, inputs: &[&Tensor], outputs: &[&Tensor]) {
    if let Some(mut hook) = HOOK.take() {
        hook(name, inputs, outputs);
        HOOK.set(Some(hook));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn what_is_recorded_follows_the_switch_and_the_leaves() {
        let x = Tensor::zeros([2], DType::F32, &Device::Cpu).unwrap();
        let leaf = x.requires_grad().unwrap();
        assert!(!x.tracks_grad() && leaf.tracks_grad() && leaf.neg().unwrap().tracks_grad());
        assert!(set_grad_enabled(false));
        assert!(!leaf.neg().unwrap().tracks_grad() && no_grad(|| !grad_enabled()) && !grad_enabled());
        assert!(!set_grad_enabled(true));
        leaf.neg().unwrap().sum(0).unwrap().backward().unwrap();
        assert_eq!(leaf.grad().unwrap().to_f32().unwrap(), [-1.0; 2]);
        leaf.zero_grad();
        x.zero_grad();
        assert_eq!(leaf.grad().unwrap().to_f32().unwrap(), [0.0; 2]);
    }
}
