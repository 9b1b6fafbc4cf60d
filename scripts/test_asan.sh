#!/usr/bin/env bash
# Runs the tests of CPU kernels, tensors and memory under AddressSanitizer, which ends them at the first read or write
# outside of an allocation. It finds what the compiler cannot check: `unsafe` in `cpu/`, and the crate that multiplies
# matrices.
#
#     bash scripts/test_asan.sh
#
# Linux on x86-64 or ARM. Stable Rust has AddressSanitizer too, but grants it only where RUSTC_BOOTSTRAP=1 accepts that
# its flag may change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host="$(rustc -vV | sed -n 's/^host: //p')"
case "$host" in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
    *)
        echo "SKIPPED, AddressSanitizer: none for tests on $host"
        exit 0
        ;;
esac
# With the target named, the flags do not reach build scripts; in a folder of its own, because all crates are compiled
# anew, with few optimisations: the crate `gemm-f32` takes a quarter of an hour with all of them. Leaks are no concern
# of these tests: thread pools live until the end.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
# This build has no GPU that a test could ask for.
unset RUSTYFLOW_REQUIRE_GPU
asan() {
    cargo test --quiet -p rustyflow-tensor --target "$host" --target-dir target/asan --no-default-features \
        --config 'profile.dev.package."*".opt-level=1' "$@" --include-ignored
}
asan --lib -- ops:: tensor:: cpu::
# Every case of the table of ops, forward and backward; numerical gradients would compute the same a hundred times more.
asan --test ops -- every_number_of_threads
