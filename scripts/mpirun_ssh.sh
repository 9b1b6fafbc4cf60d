#!/usr/bin/env bash
# Trains on several machines that can be reached by ssh without a password, by Open MPI's `mpirun`.
#
#     bash scripts/mpirun_ssh.sh node1:4,node2:4 my.toml [further arguments of `rustyflow train`]
#
# The list has the machines, each with its number of GPUs. The program and the text must lie at the same paths on all.
set -euo pipefail

hosts="${1:?usage: scripts/mpirun_ssh.sh HOST:GPUS,HOST:GPUS CONFIG [ARGUMENTS]}"
config="${2:?usage: scripts/mpirun_ssh.sh HOST:GPUS,HOST:GPUS CONFIG [ARGUMENTS]}"
shift 2

processes=0
IFS=, read -ra machines <<<"$hosts"
for machine in "${machines[@]}"; do
    gpus="${machine##*:}"
    if [[ ! "$gpus" =~ ^[0-9]+$ ]]; then
        echo "$machine: expected a machine and its number of GPUs, as in node1:4" >&2
        exit 2
    fi
    processes=$((processes + gpus))
done
exec mpirun -n "$processes" --host "$hosts" --bind-to none rustyflow train --config "$config" --device gpu "$@"
