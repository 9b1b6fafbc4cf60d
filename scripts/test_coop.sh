#!/usr/bin/env bash
# Runs the tests of products on cooperative matrices of 8 x 8, the size that Apple's GPUs have, without such a GPU: on
# the software Vulkan of a newer Mesa than most systems have, from Debian sid in a folder of its own (about 1 GiB).
#
#     sudo bash scripts/test_coop.sh [folder]
#
# Needs root, Rust, and debootstrap (Debian and Ubuntu: apt-get install debootstrap). Takes about a quarter of an hour on two cores. The folder,
# target/mesa if none is given, is kept for the next time. These tests are not part of scripts/test.sh: there, on an older
# Mesa, the same products run in f32 arithmetic.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$(realpath -m "${1:-target/mesa}")"

fail() {
    echo "scripts/test_coop.sh $1" >&2
    exit 1
}
[[ "$(id -u)" == 0 ]] || fail "makes a system folder and so needs root"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"

if [[ ! -e "$root/usr/share/vulkan/icd.d/lvp_icd.json" ]]; then
    echo "== Debian sid with Mesa in $root"
    debootstrap --variant=minbase --include=libvulkan1,mesa-vulkan-drivers sid "$root" https://deb.debian.org/debian >"$root.log" 2>&1 \
        || fail "could not make $root: $root.log says why"
fi

echo "== building the tests"
mkdir -p "$root/tests/run"
build=$(cargo test --release --no-run --lib --test mixed --test ops 2>&1) || fail "could not build the tests: $build"
for name in mixed ops; do
    binary=$(sed -n "s/.*Executable tests\/$name.rs (\(.*\))/\1/p" <<<"$build")
    install "$binary" "$root/tests/$name"
done
install "$(sed -n 's/.*Executable unittests src\/lib.rs (\(.*\))/\1/p' <<<"$build")" "$root/tests/lib"
install target/release/rustyflow "$root/tests/rustyflow"

inside() {
    chroot "$root" env XDG_RUNTIME_DIR=/tests/run HOME=/tests RUSTYFLOW_REQUIRE_GPU=1 \
        VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json "$@"
}
inside /tests/rustyflow devices
inside /tests/rustyflow devices | grep -q cooperative-matrix || fail "found no cooperative matrices in this Mesa"
inside /tests/mixed
inside /tests/lib split_fp16
inside /tests/ops gpu_agrees_with_cpu
echo "all passed"
