# For other scripts, which source it: `has_mpi`, and Open MPI with its headers and libclang on Debian and Ubuntu, as
# root, where they are missing. `packages` are the arguments of Cargo that what is tested is built with: the whole
# workspace, with the feature `mpi` where there is one, so that nothing is built once more for the tests of processes.

has_mpi() {
    command -v mpirun >/dev/null && command -v mpicc >/dev/null &&
        { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || libraries_known | grep libclang >/dev/null; }
}

# What the loader knows; its command is not in everybody's path.
libraries_known() { PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null; }

if ! has_mpi && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    echo "== installing openmpi-bin, libopenmpi-dev and libclang-dev"
    (
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update >/dev/null
        apt-get -qq install --no-install-recommends openmpi-bin libopenmpi-dev libclang-dev >/dev/null
    ) || echo "they could not be installed" >&2
fi
packages=(--workspace)
! has_mpi || packages+=(--features rustyflow/mpi)
