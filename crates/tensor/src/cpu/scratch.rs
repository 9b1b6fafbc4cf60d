//! Per-thread scratch memory of kernels, reused between calls so that training steps do not allocate.

use std::cell::RefCell;

thread_local! {
    /// Free scratch buffers, as a stack for nested calls.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` with `len` numbers of unspecified value. Nested calls get other memory.
pub fn with_scratch<T>(len: usize, body: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut memory = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    let result = body(&mut memory[..len]);
    FREE.with_borrow_mut(|free| free.push(memory));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_and_never_lent_twice() {
        let fill = || {
            with_scratch(8, |outer| {
                let found = outer[0];
                outer.fill(1.0);
                with_scratch(8, |inner| inner.fill(2.0));
                assert_eq!(outer, [1.0; 8]);
                found
            })
        };
        assert_eq!([fill(), fill()], [0.0, 1.0]); // fresh memory is zero
    }
}
