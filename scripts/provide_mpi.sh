# For other scripts, which source it: `has_mpi`, and Open MPI with its headers and libclang on Debian and Ubuntu, as
# root, where they are missing. What is built with them has the arguments `mpi_features`, which are none without.

has_mpi() {
    command -v mpirun >/dev/null && command -v mpicc >/dev/null &&
        { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || ldconfig -p 2>/dev/null | grep -q libclang; }
}

if ! has_mpi && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    echo "== installing openmpi-bin, libopenmpi-dev and libclang-dev"
    (
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update >/dev/null
        apt-get -qq install --no-install-recommends openmpi-bin libopenmpi-dev libclang-dev >/dev/null
    )
fi
mpi_features=()
! has_mpi || mpi_features=(--features rustyflow/mpi)
