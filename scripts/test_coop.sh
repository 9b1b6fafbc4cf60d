#!/usr/bin/env bash
# Runs the tests of kernels on cooperative matrices, of 8 x 8 as Apple's GPUs have them, without such a GPU: on the
# software Vulkan of a newer Mesa than most systems have.
#
#     bash scripts/test_coop.sh
#
# That Mesa comes from the development suite of the system's own distribution (Debian's sid, Ubuntu's devel), by way of
# the sources that apt already uses. Its packages are unpacked, not installed, which needs no root: 70 MB to download,
# 350 MB in ~/.cache/rustyflow-tests, or in $RUSTYFLOW_TEST_CACHE, kept for the next time. Delete the folder for a newer
# Mesa.
#
# Without apt these tests are skipped. With CI=true or RUSTYFLOW_REQUIRE_COOP=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache="${RUSTYFLOW_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rustyflow-tests}"
mkdir -p "$cache"
cache="$(realpath "$cache")"
readonly mesa="$cache/mesa" part="$cache/mesa.part"

fail() {
    echo "scripts/test_coop.sh: $1" >&2
    exit 1
}

skip() {
    if [[ "${CI:-}" == true || -n "${RUSTYFLOW_REQUIRE_COOP:-}" ]]; then
        fail "$1, but these tests are required here"
    fi
    echo "SKIPPED, the tests of cooperative matrices: $1"
    exit 0
}

# apt with folders of its own and this list of sources.
own_apt() {
    local sources="$1"
    shift
    apt-get -q -o APT::Sandbox::User=root -o Dir::State="$part/apt" -o Dir::State::lists="$part/apt/lists" \
        -o Dir::State::status="$part/apt/status" -o Dir::Cache="$part/apt" -o Dir::Etc::sourcelist="$sources" \
        -o Dir::Etc::sourceparts=/dev/null "$@"
}

# Where the system gets its packages from: the archive of its own release first.
sites() {
    local lists="$1" release
    release="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
    apt-get indextargets ${lists:+-o Dir::State::lists="$lists"} --format '$(RELEASE) $(SITE)' 'Created-By: Packages' \
        | awk -v release="$release" '{ print ($1 == release ? 0 : 1), $2 }' | sort -s -k1,1 \
        | awk '!seen[$2]++ { print $2 }'
}

# Downloads and unpacks Mesa and all that it is linked with into $part.
unpack_mesa() {
    local log="$cache/mesa.log" keys="" key found site suite deb
    mkdir -p "$part/apt/lists/partial" "$part/apt/archives/partial" "$part/root"
    # No package counts as installed, so that even the C library comes along.
    : >"$part/apt/status"
    : >"$log"
    found="$(sites "")"
    if [[ -z "$found" ]]; then
        # Images of containers come without lists.
        apt-get -q -o Dir::State::lists="$part/apt/lists" update >>"$log" 2>&1 || true
        found="$(sites "$part/apt/lists")"
    fi
    [[ -n "$found" ]] || fail "apt has no sources that can be reached; see $log"
    for key in /usr/share/keyrings/{debian,ubuntu}-archive-keyring.gpg; do
        [[ ! -e "$key" ]] || keys+="${keys:+,}$key"
    done
    for site in $found; do
        for suite in sid devel; do
            echo "== $site $suite" >>"$log"
            echo "deb ${keys:+[signed-by=$keys] }$site $suite main" >"$part/apt/sources"
            own_apt "$part/apt/sources" update >>"$log" 2>&1 || continue
            own_apt "$part/apt/sources" -y --no-install-recommends --download-only install libvulkan1 \
                mesa-vulkan-drivers >>"$log" 2>&1 || continue
            for deb in "$part"/apt/archives/*.deb; do
                dpkg-deb -x "$deb" "$part/root"
            done
            return
        done
    done
    fail "could not get a newer Mesa from $(paste -sd' ' <<<"$found"): see $log.
  \`apt-get update\` must work; or copy $mesa from a machine where this script has run"
}

provide_mesa() {
    exec 9>"$cache/lock"
    flock 9
    # It gets its name when it is whole: what an interrupted run has left is made anew.
    if [[ ! -d "$mesa" ]]; then
        echo "== unpacking a newer Mesa in $mesa"
        rm -rf "$part"
        unpack_mesa
        rm -rf "$part/apt"
        mv -T "$part/root" "$mesa"
        rm -rf "$part"
    fi
    exec 9>&-
}

[[ "$(uname -s)" == Linux ]] || skip "only Linux has a software Vulkan with them"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "the newer Mesa that they need comes by apt-get"
provide_mesa

loader="$(compgen -G "$mesa/usr/lib/*/ld-linux*.so.*" | head -n 1)" || fail "$mesa is damaged: delete it"
driver="$(compgen -G "$mesa/usr/share/vulkan/icd.d/lvp_icd*.json" | head -n 1)" || fail "$mesa is damaged: delete it"
runtime="$(mktemp -d)"
trap 'rm -rf "$runtime"' EXIT
export VK_DRIVER_FILES="$driver" XDG_RUNTIME_DIR="$runtime" RUSTYFLOW_REQUIRE_GPU=1 RUSTYFLOW_REQUIRE_COOP=1
# Compiling shaders is most of what these tests do: what has not changed is compiled once.
export MESA_SHADER_CACHE_DIR="$cache/shaders"
mkdir -p "$MESA_SHADER_CACHE_DIR"

# With MPI, where there is one, as scripts/test.sh builds: so nothing is built anew. Its libraries are this system's.
source scripts/provide_mpi.sh
libraries="${loader%/*}"
! has_mpi || libraries+="$(libraries_known | sed -n 's,.* => \(.*\)/libmpi\.so\.[0-9]*$,:\1,p')"
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
    on_mesa "$@" | tee "$output"
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
