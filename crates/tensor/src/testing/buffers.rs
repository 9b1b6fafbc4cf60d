//! Devices whose largest buffer or binding is small, for tests of parameters that lie in several.

use std::cell::Cell;

thread_local! {
    static MOST: Cell<Option<usize>> = const { Cell::new(None) };
    static BINDABLE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `body`, in which arenas of parameters have at most so many elements in a buffer, on this thread.
pub fn with_at_most<T>(elements: usize, body: impl FnOnce() -> T) -> T {
    MOST.set(Some(elements));
    let result = body();
    MOST.set(None);
    result
}

/// Runs `body`, in which a binding takes at most so many elements of a matrix, on this thread.
pub fn with_bindings_of<T>(elements: usize, body: impl FnOnce() -> T) -> T {
    BINDABLE.set(Some(elements));
    let result = body();
    BINDABLE.set(None);
    result
}

/// What the bindings of this thread are limited to.
pub(crate) fn most_bindable() -> Option<usize> {
    BINDABLE.get()
}

/// What this thread is limited to.
pub fn most() -> Option<usize> {
    MOST.get()
}
