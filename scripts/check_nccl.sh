#!/usr/bin/env bash
# Checks training by NCCL or RCCL on the cards of this machine, two or more, by hand:
#
#     bash scripts/check_nccl.sh [PROGRAM]
#
# Losses against one card and against host memory, bits of two runs, of a sharded optimizer and of a resumed run, and
# what a run says where NCCL is missing or a rank has no card. PROGRAM is target/release/rustyflow if not given.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program="$(realpath "${1:-target/release/rustyflow}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# A run of the built-in model and text: NAME DEVICES SETTING...
run() {
    local name="$1" devices="$2" settings=()
    shift 2
    for setting in "$@"; do settings+=(--set "$setting"); done
    "$program" train --device "$devices" --name "$name" --max-steps 50 --set run.dir="$work" \
        --set train.grad_accum_steps=2 --set train.warmup_steps=5 --set log.every=1 "${settings[@]}" \
        >"$work/$name.log" 2>&1
}

says() {
    grep -q "$2" "$work/$1.log" || { echo "$1 does not say \"$2\":"; cat "$work/$1.log"; exit 1; }
    echo "ok: $1: $(grep -m1 "$2" "$work/$1.log")"
}

# The largest difference of the losses of two runs is at most this.
losses_agree() {
    python3 - "$work" "$@" <<'P'
import json, sys
work, a, b, most = sys.argv[1:]
losses = [[json.loads(line)["loss"] for line in open(f"{work}/{name}/metrics.jsonl") if '"train"' in line] for name in (a, b)]
assert len(losses[0]) == len(losses[1]) == 50, [len(of) for of in losses]
difference = max(abs(x - y) for x, y in zip(*losses))
print(f"{'ok' if difference <= float(most) else 'WRONG'}: losses of {a} and {b} differ by {difference:.2g}, at most {most}")
sys.exit(difference > float(most))
P
}

weights_agree() {
    local last
    last="checkpoints/$(cat "$work/$1/last")/model.safetensors"
    cmp "$work/$1/$last" "$work/$2/$last"
    echo "ok: $1 and $2 have the same weights to the bit"
}

run one gpu:0
run nccl gpu:all train.comm=nccl
run again gpu:all
run host gpu:all train.comm=host
run sharded gpu:all train.comm=nccl train.shard_optimizer=true
run halves gpu:all train.comm=nccl train.reduce_dtype=f16
run host_halves gpu:all train.comm=host train.reduce_dtype=f16
says nccl "gradients are summed by"
says again "gradients are summed by"
losses_agree one nccl 1e-5
losses_agree host nccl 1e-5
losses_agree host_halves halves 1e-3
weights_agree nccl again
weights_agree nccl sharded
"$program" verify-resume --device gpu:all --set train.comm=nccl --set train.grad_accum_steps=2 | grep "identical"
RUSTYFLOW_NCCL=/nowhere/libnccl.so.2 run missing gpu:all
says missing "gradients go through host memory"
! run mixed gpu:0,cpu train.comm=nccl
says mixed "is not possible: rank 1 (cpu"
echo "all passed"
