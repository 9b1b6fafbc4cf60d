//! Shows every kernel that runs to whoever looks for the one that went wrong.

use super::Tensor;
use std::cell::RefCell;

/// Told the name, the inputs and the outputs of a kernel that was just run or recorded.
type Watcher = Box<dyn FnMut(&'static str, &[&Tensor], &[&Tensor])>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Runs `body` and shows each of its kernels to `watcher`, which may read tensors but runs no kernels itself.
pub(crate) fn watch<T>(watcher: Watcher, body: impl FnOnce() -> T) -> T {
    WATCHER.set(Some(watcher));
    let result = body();
    WATCHER.set(None);
    result
}

pub(super) fn seen(name: &'static str, inputs: &[&Tensor], outputs: &[&Tensor]) {
    if let Some(mut watcher) = WATCHER.take() {
        watcher(name, inputs, outputs);
        WATCHER.set(Some(watcher));
    }
}
