#!/usr/bin/env bash
# Runs the tests of several processes under `mpirun`: the same bits as threads, ranks that die or freeze.
#
#     bash scripts/test_mpi.sh
#
# Needs Open MPI with its headers, and libclang. On Debian and Ubuntu, as root, it installs them; elsewhere without them
# it says so and tests nothing, unless RUSTYFLOW_REQUIRE_MPI is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_mpi() {
    command -v mpirun >/dev/null && command -v mpicc >/dev/null &&
        { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || ldconfig -p 2>/dev/null | grep -q libclang; }
}

if ! has_mpi && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    echo "== installing openmpi-bin, libopenmpi-dev and libclang-dev"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >/dev/null
    apt-get -qq install --no-install-recommends openmpi-bin libopenmpi-dev libclang-dev >/dev/null
fi
if ! has_mpi; then
    echo "there is no Open MPI with headers and libclang here: nothing was tested" >&2
    [[ -z "${RUSTYFLOW_REQUIRE_MPI:-}" ]]
    exit
fi
# The Python package is there for the features of dependencies: scripts/test.sh.
cargo clippy --quiet -p rustyflow -p rustyflow-python --features rustyflow/mpi --all-targets -- -D warnings
cargo test -p rustyflow -p rustyflow-python --features rustyflow/mpi --test mpi
