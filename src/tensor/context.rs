//! What holds for all that a thread computes while a closure runs: whether operations are recorded on the tape, and who
//! is shown the kernels. Everything else a kernel depends on comes with its tensors' device.

use super::Tensor;
use std::cell::{Cell, RefCell};

/// Shown the name, the inputs and the outputs of a kernel that was just run or recorded.
type Hook = Box<dyn FnMut(&'static str, &[&Tensor], &[&Tensor])>;

thread_local! {
    static GRAD_ENABLED: Cell<bool> = const { Cell::new(true) };
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

/// Whether operations are recorded now.
pub fn grad_enabled() -> bool {
    GRAD_ENABLED.get()
}

/// Runs `body` and shows each of its kernels to `hook`, which may read tensors but runs no kernels itself.
pub(crate) fn with_hook<T>(hook: Hook, body: impl FnOnce() -> T) -> T {
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
