#!/usr/bin/env bash
# Checks the project: imports, format, lints, the tests with a GPU (a software one if there is no other), and the Python
# package. Ends with the time that each step took; the exit status says whether all passed.
#
#     bash scripts/test.sh           # every op in f32 on CPU and GPU, training, resume, ranks, the command, Python
#     bash scripts/test.sh --full    # all tests, every build, and what other GPUs need; continuous integration runs it
#
# Needs Rust with rustfmt and clippy, and a Vulkan driver. On Debian and Ubuntu, as root, it installs Mesa's software
# driver where there is no Vulkan at all, and for --full Open MPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
    "") full=false ;;
    --full) full=true ;;
    *)
        echo "usage: scripts/test.sh [--full]" >&2
        exit 2
        ;;
esac

need() {
    local what="$1" how="$2"
    shift 2
    if ! "$@" >/dev/null 2>&1; then
        echo "scripts/test.sh needs $what: $how" >&2
        exit 1
    fi
}

has_vulkan() {
    # The loader, under any of the names that distributions give its folder, and a driver for it.
    compgen -G '/usr/lib*/libvulkan.so.1' >/dev/null || compgen -G '/usr/lib/*/libvulkan.so.1' >/dev/null || return 1
    [[ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]] && return
    compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null
}

provide_vulkan() {
    # Macs come with Metal; other systems than Linux have their own drivers.
    if [[ "$(uname -s)" != Linux ]] || has_vulkan; then
        return
    fi
    if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
        echo "== installing libvulkan1 and mesa-vulkan-drivers"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update >/dev/null
        apt-get -qq install --no-install-recommends libvulkan1 mesa-vulkan-drivers >/dev/null
    fi
    need "a Vulkan driver" "install libvulkan1 and mesa-vulkan-drivers, or what they are called here" has_vulkan
}

work="$(mktemp -d)"
beside=
trap '[[ -z "$beside" ]] || kill -- "-$beside" 2>/dev/null || true; rm -rf "$work"' EXIT

step() {
    local name="$1" started="$SECONDS"
    shift
    echo "== $name"
    "$@"
    printf '%5d s  %s\n' "$((SECONDS - started))" "$name" >>"$work/times"
}

# Runs steps that occupy one core beside those that follow; `join_beside` waits for them and prints their output.
beside() {
    set -m # Its processes are a group, which can be killed.
    "$@" >"$work/beside" 2>&1 &
    set +m
    beside=$!
}

join_beside() {
    local status=0
    wait "$beside" || status=$?
    beside=
    cat "$work/beside"
    return "$status"
}

print_times() {
    printf '\n%s\n' "$1"
    cat "$work/times"
}

need cargo "install Rust from https://rustup.rs" cargo --version
need rustfmt "rustup component add rustfmt" cargo fmt --version
need clippy "rustup component add clippy" cargo clippy --version
provide_vulkan
packages=(--workspace)
! "$full" || source scripts/provide_mpi.sh

# Tests skip what needs a GPU where there is none; here a GPU is there, so that would hide a failure.
export RUSTYFLOW_REQUIRE_GPU=1
if [[ -n "${CI:-}" ]]; then
    export RUSTYFLOW_REQUIRE_MPI=1
    # What is built once needs neither.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none
fi
# Mesa warns about a missing or shared folder once per process.
export XDG_RUNTIME_DIR="$work/runtime"
mkdir -m 700 "$XDG_RUNTIME_DIR"

# Clippy checks what the tests are built from while it is compiled: nothing is compiled twice. Whoever calls Cargo from
# here on does the same, so that nothing is compiled anew.
RUSTC_WORKSPACE_WRAPPER="$(rustc --print sysroot)/bin/clippy-driver"
export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS="-Dwarnings__CLIPPY_HACKERY__"
test=(cargo test "${packages[@]}")

# What fails fast comes first.
step "imports point left" bash scripts/check_layers.sh
step "format" cargo fmt --check
step "build and lints" "${test[@]}" --quiet --no-run
if ! "$full"; then
    # Without those marked `#[ignore]`, which take seconds each: all f16 ops, damaged files, several GPUs, kills.
    step "tests" "${test[@]}" --no-fail-fast
    step "the Python package" bash scripts/test_python.sh -m "not slow"
    print_times "all passed; --full runs the rest"
    exit
fi

step "tests" "${test[@]}" --no-fail-fast -- --include-ignored

# The kernels of the GPUs that have cooperative matrices, which the software driver of most systems has not; then
# whether Vulkan's validation layer finds every access ordered.
on_newer_mesa() {
    [[ "${RUSTYFLOW_COOP:-1}" == 0 ]] || step "cooperative matrices" bash scripts/test_coop.sh
    step "synchronization" bash scripts/test_sync.sh
}
# The shaders of cooperative matrices compile for minutes: where there is no time for that, RUSTYFLOW_COOP=0 leaves them
# out.
beside on_newer_mesa

# The other builds, and the documentation, are checked without being compiled.
unwrapped() { env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS "$@"; }
step "build without MPI" unwrapped cargo clippy --quiet --workspace -- -D warnings
step "build without GPU" unwrapped cargo clippy --quiet --no-default-features --features cli -- -D warnings
step "build of the library alone" unwrapped cargo clippy --quiet --lib --no-default-features --features gpu -- -D warnings
step "documentation" unwrapped env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
# The kernels that a GPU runs which grants no more than WebGPU promises.
within_default_limits() (
    export RUSTYFLOW_GPU_LIMITS=default
    "${test[@]}" --quiet --test goldens --test training -- --include-ignored
    # The table of ops on top of the goldens' cases of them: three minutes that continuous integration has not.
    [[ -n "${CI:-}" ]] || "${test[@]}" --quiet --test ops gpu_agrees
)
step "tests within WebGPU's default limits" within_default_limits
# Tests of ranks and of processes have time limits: they run alone.
[[ -z "$beside" ]] || join_beside
step "the Python package" bash scripts/test_python.sh
# Reads and writes outside of an allocation, which no result need show. Everything is compiled anew for them: where
# there is no time for that, RUSTYFLOW_ASAN=0 leaves it out.
[[ "${RUSTYFLOW_ASAN:-1}" == 0 ]] || step "memory errors on the CPU" unwrapped bash scripts/test_asan.sh
# Examples compile with the tests; this one must also keep up with the template that it renders.
examples="${CARGO_TARGET_DIR:-target}/debug/examples"
step "an example" "$examples/gemm_lab" shaders/matmul.wgsl 68x72x36 tn 32x32x16x4x4
step "an op of an application" "$examples/custom_kernel" cpu "$examples/snake.svg"
# The same as the crate of its own that it is; the folder shares what the library alone was checked with.
step "an application" unwrapped env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}" cargo check --quiet --locked \
    --manifest-path examples/custom_kernel/Cargo.toml

print_times "all passed"
