# What train_cpu.sh and train_gpu.sh share. They read this file with `device_flags` set, which split at spaces.
# Builds what is needed; RUSTYFLOW_BIN names a program to use instead.
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
# The command names the run at its end; with --json, the line with the kind "end" does.
# shellcheck disable=SC2086 # split on purpose
rustyflow train $device_flags "$@"
case " $* " in
    *" --json "*) ;;
    *) if [ -w training_log.txt ]; then printf 'log     %s\n' "$(pwd -P)/training_log.txt"; fi ;;
esac
