#!/usr/bin/env bash
# Trains on two hosts that are network namespaces of this machine, over a link that can be slowed down and cut:
#
#     bash scripts/test_network.sh faults          the link is cut, a rank killed, a rank frozen: the job ends, resumes
#     bash scripts/test_network.sh speed [STEPS]   100 Mbit/s: an all-reduce each step against train.sync_every = 50
#
# Needs root, iproute2, Open MPI, and a binary with the feature `mpi` (RUSTYFLOW, else target/release/rustyflow).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rustyflow="$(realpath "${RUSTYFLOW:-target/release/rustyflow}")"
sample="$(realpath data)"
work="$(mktemp -d)"
hosts=(rf-host1 rf-host2)

clean_up() {
    for host in "${hosts[@]}"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$host" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

# Two namespaces, 10.77.0.1 and 10.77.0.2, with a cable between them.
connect() {
    for host in "${hosts[@]}"; do ip netns add "$host"; done
    ip link add veth1 netns "${hosts[0]}" type veth peer name veth2 netns "${hosts[1]}"
    for i in 1 2; do
        in_host="ip -n ${hosts[i - 1]}"
        $in_host addr add "10.77.0.$i/24" dev "veth$i"
        $in_host link set "veth$i" up
        $in_host link set lo up
        # The ranks end by themselves; mpirun, whose connections these are, when TCP gives up: after 15 minutes if not
        # told otherwise.
        ip netns exec "${hosts[i - 1]}" sysctl -qw net.ipv4.tcp_retries2=4
    done
}

# What mpirun calls instead of ssh: a command on the host of this address.
cat >"$work/agent" <<'AGENT'
#!/usr/bin/env bash
while [[ "$1" == -* ]]; do shift; done
host="rf-host${1##*.}"
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
AGENT
chmod +x "$work/agent"

# `rustyflow train` as two processes, one on each host.
train() {
    ip netns exec "${hosts[0]}" unshare --uts sh -c 'hostname rf-host1; exec "$@"' - \
        mpirun --allow-run-as-root --bind-to none -n 2 --host 10.77.0.1:1,10.77.0.2:1 \
        --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --wdir "$work" \
        "$rustyflow" train --data-dir "$sample" --device cpu --threads 1 -q "$@"
}

fail() {
    echo "$*" >&2
    exit 1
}

# A run of 400 small steps with a checkpoint every 20.
small=(--set data.tokenizer=char --n-layer 2 --n-head 2 --n-embd 32 --block-size 32 --batch-size 8 --max-steps 400
    --set train.eval_every=200 --set checkpoint.every=20 --set train.comm_timeout=3)

faults() {
    connect
    train "${small[@]}" --name whole >/dev/null
    for fault in cut killed frozen; do
        train "${small[@]}" --name "$fault" >"$work/$fault.log" 2>&1 &
        job=$!
        until [[ -e "$work/runs/$fault/last" ]]; do sleep 0.02; done
        victim="$(ip netns pids rf-host2 | while read -r pid; do
            [[ "$(cat "/proc/$pid/comm" 2>/dev/null)" == rustyflow ]] && echo "$pid"; done)"
        case $fault in
        cut) ip -n rf-host2 link set veth2 down ;;
        killed) kill -KILL "$victim" ;;
        frozen) kill -STOP "$victim" ;;
        esac
        since=$SECONDS
        if wait "$job"; then fail "$fault: the job ended as if nothing had happened"; fi
        took=$((SECONDS - since))
        echo "$fault: ended after $took s; $(grep -m1 -E 'rank|lost|signal' "$work/$fault.log" | head -c 150)"
        [[ "$took" -le 20 ]] || fail "$fault: that is too long"
        ip netns pids rf-host2 | xargs -r kill -KILL 2>/dev/null || true
        ip -n rf-host2 link set veth2 up
        train --resume "runs/$fault" --set train.comm_timeout=30 >/dev/null
        for file in model.safetensors optimizer.safetensors; do
            cmp "$work/runs/whole/checkpoints/$(cat "$work/runs/whole/last")/$file" \
                "$work/runs/$fault/checkpoints/$(cat "$work/runs/$fault/last")/$file" || fail "$fault: other bits"
        done
        echo "$fault: resumed to the bit"
    done
}

# A small model, whose gradients of 0.5 MB take longer than it computes; STEPS in 80 rounds if they are 4,000.
speed() {
    local steps="${1:-4000}"
    connect
    for i in 1 2; do
        tc -n "rf-host$i" qdisc add dev "veth$i" root tbf rate 100mbit burst 64kb latency 50ms
    done
    local model=(--corpus "$sample/sample.txt" --set data.tokenizer=char --n-layer 2 --n-head 4 --n-embd 64
        --block-size 64 --batch-size 16 --max-steps "$steps" --set train.eval_every=1000 --set checkpoint.every=0
        --set log.every=50 --set train.comm_timeout=60)
    train "${model[@]}" --name all-reduce
    train "${model[@]}" --name apart --set train.sync_every=50
    train "${model[@]}" --name apart-f16 --set train.sync_every=50 --set train.reduce_dtype=f16
    (cd "$work" && "$rustyflow" train "${model[@]}" --data-dir "$sample" --device cpu --threads 1 -q --name one)
    for run in one all-reduce apart apart-f16; do
        python3 - "$work/runs/$run" <<'PY'
import json, sys
run = sys.argv[1]
lines = [json.loads(line) for line in open(run + "/metrics.jsonl")]
speeds = sorted(line["tokens_per_s"] for line in lines if line["kind"] == "train")
loss = [line["loss"] for line in lines if line["kind"] == "eval"][-1]
print(f"{run.split('/')[-1]:<11} {speeds[len(speeds) // 2]:8.0f} tokens/s   validation loss {loss:.4f}")
PY
        sed -n '/rank  device/,$p' "$work/runs/$run/profile.txt"
    done
}

case "${1:-}" in
faults) faults ;;
speed) speed "${2:-}" ;;
*) fail "usage: test_network.sh faults | speed [STEPS]" ;;
esac
