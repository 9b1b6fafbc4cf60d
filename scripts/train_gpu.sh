#!/bin/sh
# Trains on the GPU:  scripts/train_gpu.sh [CONFIG] [further arguments of `rustyflow train`]
# Without CONFIG, a small model on the sample corpus.
# Without a usable GPU it warns and trains on the CPU.
device_flags="--device gpu --allow-fallback"
. "$(dirname "$0")/train.sh"
