#!/usr/bin/env bash
# Runs the tests of several processes under `mpirun`: the same bits as threads, ranks that die or freeze.
#
#     bash scripts/test_mpi.sh
#
# Needs Open MPI with its headers, and libclang. On Debian and Ubuntu, as root, it installs them; elsewhere without them
# it says so and tests nothing, unless RUSTYFLOW_REQUIRE_MPI is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/provide_mpi.sh
if ! has_mpi; then
    echo "there is no Open MPI with headers and libclang here: nothing was tested" >&2
    [[ -z "${RUSTYFLOW_REQUIRE_MPI:-}" ]]
    exit
fi
cargo test "${packages[@]}" --test mpi -- --include-ignored
