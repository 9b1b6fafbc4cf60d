//! Allocations that fail on request, for tests of what happens when a device runs out of memory.
//!
//! Threads that work for one rank share a countdown; every other thread has its own.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static COUNTDOWN: RefCell<Countdown> = RefCell::default();
}

/// Allocations before the one that fails; 0 when none will.
#[derive(Clone, Default)]
pub struct Countdown(Arc<AtomicUsize>);

impl Countdown {
    /// That of this thread.
    pub fn own() -> Countdown {
        COUNTDOWN.with_borrow(Countdown::clone)
    }

    /// Makes it that of this thread too.
    pub fn share(self) {
        COUNTDOWN.set(self);
    }

    /// Lets allocation number `number` from now on fail, the first being 0, and no other.
    pub fn start(&self, number: usize) {
        self.0.store(number + 1, Ordering::Relaxed);
    }

    /// Stops it, and returns how many allocations were left before the failure; `None` if that has happened.
    pub fn stop(&self) -> Option<usize> {
        self.0.swap(0, Ordering::Relaxed).checked_sub(1)
    }
}

/// Whether the allocation that asks is the one that fails.
pub fn fails() -> bool {
    let Countdown(count) = Countdown::own();
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)) == Ok(1)
}
