//! Run-time dispatch to the widest vector extension of the processor.

use pulp::Arch;

/// Runs `body`, which is compiled once per vector extension (AVX-512, AVX2 with FMA, NEON, none), with the widest that
/// this processor supports. Its loops must be plain and its callees `#[inline(always)]`: other functions are compiled
/// for the baseline processor. Multiplications and additions are not fused, so all extensions give the same bits.
#[inline(always)]
pub fn vectorized<T>(body: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(body)
}
