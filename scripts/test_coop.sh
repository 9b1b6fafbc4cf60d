#!/usr/bin/env bash
# Runs the tests of kernels on cooperative matrices, of 8 x 8 as Apple's GPUs have them, without such a GPU: on the
# software Vulkan of a newer Mesa than most systems have.
#
#     bash scripts/test_coop.sh
#
# scripts/provide_mesa.sh says where that Mesa comes from, and when these tests are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/provide_mesa.sh
provide_mesa
runtime="$(mktemp -d)"
trap 'rm -rf "$runtime"' EXIT
export XDG_RUNTIME_DIR="$runtime" RUSTYFLOW_REQUIRE_GPU=1 RUSTYFLOW_REQUIRE_COOP=1

# Cargo starts what it has built by the loader of the newer system, which finds that system's libraries first.
on_mesa() {
    cargo test "${packages[@]}" \
        --config "target.'cfg(all())'.runner = ['$loader', '--library-path', '$libraries']" "$@"
}
# With integration tests comes the command.
on_mesa --quiet --no-run --test mixed
devices="$("$loader" --library-path "$libraries" "${CARGO_TARGET_DIR:-target}/debug/rustyflow" devices)"
grep -q cooperative-matrix <<<"$devices" || fail "this Mesa has no cooperative matrices; delete $mesa for a newer one:
$devices"

# A name that no test has any more would pass unnoticed.
tests() {
    local output
    output="$(mktemp -p "$runtime")"
    on_mesa "$@" -- --include-ignored | tee "$output"
    grep -q '^running [1-9]' "$output" || fail "no test is called so: cargo test $*"
}
# This driver compiles shaders on one core: the longest test beside the others.
(
    tests --test mixed
    # Not --lib, which would build the Python package's too. Continuous integration has no time to compile for all.
    tests --tests "split_fp16${CI:+_is}"
    tests --tests f16_on_tensor_cores_agrees
    tests --tests a_batch_in_parts_has_the_loss_and_gradients_of_the_whole_with_dropout
) >"$runtime/others" 2>&1 &
others=$!
trap 'kill "$others" 2>/dev/null || true; rm -rf "$runtime"' EXIT
tests --test ops gpu_agrees_with_cpu_in_f16
wait "$others" || { cat "$runtime/others"; fail "tests failed"; }
cat "$runtime/others"
