#!/bin/sh
# Trains on the GPU:  scripts/train_gpu.sh [CONFIG] [further arguments of `rustyflow train`]
# Without CONFIG, a small model on the sample corpus.
# Builds what is needed; RUSTYFLOW_BIN names a program to use instead.
# Without a usable GPU it warns and trains on the CPU.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
rustyflow() {
    if [ -n "${RUSTYFLOW_BIN:-}" ]; then
        "$RUSTYFLOW_BIN" "$@"
    else
        cargo run --quiet --release --bin rustyflow --manifest-path "$repository/Cargo.toml" -- "$@"
    fi
}

case ${1:-} in
    "" | -*) ;;
    *)
        config=$1
        shift
        set -- --config "$config" "$@"
        ;;
esac

# Ctrl-C is for the command, which then saves and reports.
trap : INT
# The command names the run's folder at its end; with --json, the line with the kind "end" does.
rustyflow train --device gpu --allow-fallback "$@"
case " $* " in
    *" --json "*) ;;
    *) printf 'log           %s\n' "$(pwd -P)/training_log.txt" ;;
esac
