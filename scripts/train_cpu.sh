#!/bin/sh
# Trains on the CPU:  scripts/train_cpu.sh [CONFIG] [further arguments of `rustyflow train`]
# Without CONFIG, a small model on the sample corpus.
device_flags="--device cpu"
. "$(dirname "$0")/train.sh"
