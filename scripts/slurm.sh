#!/usr/bin/env bash
# A job for Slurm: four processes on each of two machines, each with a GPU. Change the numbers, then
#
#     sbatch scripts/slurm.sh my.toml
#
# A job that Slurm starts again goes on from its last checkpoint.
#SBATCH --job-name=rustyflow
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail

config="${1:?usage: sbatch scripts/slurm.sh CONFIG}"
# The first time there is no unfinished run to go on with.
resume=()
if [[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]]; then
    resume=(--resume auto)
fi
srun --mpi=pmix rustyflow train --config "$config" --device gpu "${resume[@]}"
