//! Devices whose largest buffer is small, for tests of parameters that lie in several.

use std::cell::Cell;

thread_local! {
    static MOST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `body`, in which arenas of parameters have at most so many elements in a buffer, on this thread.
pub fn with_at_most<T>(elements: usize, body: impl FnOnce() -> T) -> T {
    MOST.set(Some(elements));
    let result = body();
    MOST.set(None);
    result
}

/// What this thread is limited to.
pub fn most() -> Option<usize> {
    MOST.get()
}
