//! Vector instructions: the widest that the processor has, found out at run time.

use pulp::Arch;

/// Runs `body`, compiled once for each vector extension (AVX-512, AVX2 with FMA, NEON, none) and taken from the widest
/// that this processor has. Loops in it must be plain and what they call `#[inline(always)]`: what is not inlined is
/// compiled for every processor alike. Multiplications and additions stay apart, so each extension gives the same bits.
#[inline(always)]
pub fn vectorized<T>(body: impl FnOnce() -> T) -> T {
    Arch::new().dispatch(body)
}
