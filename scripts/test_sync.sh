#!/usr/bin/env bash
# Asks Vulkan's validation layer whether every access to GPU memory is ordered: `doctor` and a matrix of short runs
# (training of every architecture, several ranks, generation) must draw no message.
#
#     bash scripts/test_sync.sh [OUT]
#
# Each run is a stack: rustyflow, the layer of scripts/sync/slow_gpu.c, the validation layer, the layer of
# scripts/sync/transfer_queues.c, lavapipe. The second of ours shows two transfer queues, so that src/gpu/copy_queues.rs
# runs. The first delays what the host hears of the GPU; in two more runs it leaves out a barrier, and all waits of the
# transfer queues, which the validation layer must report, or it would report no other hazard either.
#
# Messages and outputs of the runs are kept in OUT, a new folder, if it is given. scripts/provide_mesa.sh says where
# lavapipe and the validation layer come from, and when this is skipped (those of Debian 12 miss hazards between two
# dispatches).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/provide_mesa.sh
provide_mesa
command -v cc >/dev/null || skip "it needs a C compiler"
work="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
out="$(realpath -m "${1:-$work/out}")"
[[ ! -e "$out" ]] || fail "$out exists; name a new folder"
mkdir -p "$out" "$work/runtime"
program="$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/rustyflow"
# With integration tests comes the command, as the other tests have built it.
cargo test "${packages[@]}" --quiet --no-run --test mixed

for layer in transfer_queues slow_gpu; do
    cc -shared -fPIC -O1 -Wall -Wextra -Werror -I"$mesa/usr/include" -o "$work/$layer.so" "scripts/sync/$layer.c"
    cat >"$work/$layer.json" <<JSON
{
    "file_format_version": "1.2.0",
    "layer": {
        "name": "VK_LAYER_RUSTYFLOW_$layer", "type": "GLOBAL", "library_path": "$work/$layer.so",
        "api_version": "1.3.0", "implementation_version": "1", "description": "scripts/sync/$layer.c"
    }
}
JSON
done
# What is compiled once is kept. Runs have the same data, and no settings of the user's.
export XDG_RUNTIME_DIR="$work/runtime" RUSTYFLOW_CACHE_DIR="$cache/sync" XDG_CONFIG_HOME="$work" \
    VK_LAYER_PATH="$mesa/usr/share/vulkan/explicit_layer.d:$work" \
    VK_INSTANCE_LAYERS=VK_LAYER_RUSTYFLOW_slow_gpu:VK_LAYER_KHRONOS_validation:VK_LAYER_RUSTYFLOW_transfer_queues

# Runs the program under the layers; its output goes to $out/NAME.out, their messages to $out/NAME.log.
under_layers() {
    local name="$1" settings="$work/settings-$1"
    shift
    mkdir -p "$settings"
    # Without the heuristic the accesses of shaders are not tracked.
    cat >"$settings/vk_layer_settings.txt" <<SETTINGS
khronos_validation.validate_core = true
khronos_validation.validate_sync = true
khronos_validation.syncval_shader_accesses_heuristic = true
khronos_validation.syncval_full_validation = true
khronos_validation.syncval_record_time_validation = true
khronos_validation.enable_message_limit = false
khronos_validation.report_flags = error,warn,perf
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = $out/$name.log
SETTINGS
    (cd "$out" && VK_LAYER_SETTINGS_PATH="$settings" "$loader" --library-path "$libraries" "$program" "$@") \
        >"$out/$name.out" 2>&1 || { tail -n 20 "$out/$name.out"; fail "$name failed under the validation layer"; }
    grep -q 'transfer_queues: ' "$out/$name.out" && [[ -e "$out/$name.log" ]] || fail "$name ran without the layers"
}

# The messages of a run, each with how often it came. wgpu writes shaders that spirv-val does not accept
# (https://github.com/gfx-rs/wgpu/issues/7696); nothing of ours can change that.
messages() {
    { grep -o 'Validation [A-Z][a-z]*: \[ [A-Za-z0-9_-]* \]' "$out/$1.log" || true; } \
        | { grep -v VUID-StandaloneSpirv-None-10684 || true; } | sed 's/.*\[ \(.*\) \]/\1/' | sort | uniq -c
}

# A run that must end well without a message.
check() {
    local name="$1" started="$SECONDS" found
    under_layers "$@"
    found="$(messages "$name")"
    printf '%4d s  %-22s %s\n' "$((SECONDS - started))" "$name" "${found:+$(paste -sd';' <<<"$found")}"
    if [[ -n "$found" ]]; then
        touch "$work/failed"
        grep -m 3 -A 4 "\[ $(awk '{ print $2; exit }' <<<"$found") \]" "$out/$name.log"
    fi
}

# A run from which the layer above leaves out this (a variable that it reads), which must be reported.
check_left_out() {
    local name="$1" variable="$2" started="$SECONDS" found
    shift 2
    export "${variable?}"
    under_layers "$name" "$@"
    unset "${variable%=*}"
    grep -q 'slow_gpu: left out ' "$out/$name.out" || fail "$name: $variable left nothing out"
    found="$(messages "$name" | grep SYNC-HAZARD || true)"
    printf '%4d s  %-22s %s\n' "$((SECONDS - started))" "$name" "${found:+$(paste -sd';' <<<"$found")}"
    [[ -n "$found" ]] || fail "the validation layer does not report what $variable leaves out: it would miss hazards"
}

gpu=(--allow-software-gpu --device gpu)
brief=(--set train.batch_size=4 --set train.eval_every=4 --set train.eval_batches=2 --set log.samples=false
    --set generate.max_new_tokens=4)
small=("${brief[@]}" --set model.n_layer=2 --set model.n_embd=64 --set model.n_head=2 --set model.block_size=64
    --set data.vocab_size=512)
# train NAME STEPS ARGUMENTS..
train() {
    local name="$1" steps="$2"
    shift 2
    check "$name" train --allow-software-gpu "${small[@]}" --name "$name" --max-steps "$steps" "$@"
}
one=(--device gpu) two=(--device gpu:0,0) three=(--device gpu:0,0,0 --set train.batch_size=6)
mixed=(--precision mixed) llama=(--set model.kind=llama) qwen3=(--set model.kind=qwen3 --set optimizer.kind=muon)
lstm=(--set model.kind=lstm --set model.block_size=16) dropout=(--set model.dropout=0.1)
int8=(--set optimizer.state_dtype=int8) layerwise=(--set train.update=layerwise)
accumulate=(--set train.grad_accum_steps=2) recompute=(--set train.recompute=block)
shard=(--set train.shard_optimizer=true) half_sums=(--set train.reduce_dtype=f16) save=(--set checkpoint.every=3)

one_device() {
    train gpt2 8 "${one[@]}" "${accumulate[@]}" "${dropout[@]}" "${save[@]}"
    check gpt2-resumed train --resume runs/gpt2 --allow-software-gpu --set train.max_steps=12
    train gpt2-mixed 8 "${one[@]}" "${mixed[@]}" "${accumulate[@]}" "${dropout[@]}" "${save[@]}"
    train gpt2-int8 4 "${one[@]}" "${int8[@]}" "${accumulate[@]}"
    train gpt2-layerwise-mixed 6 "${one[@]}" "${layerwise[@]}" "${int8[@]}" "${mixed[@]}" "${dropout[@]}" "${save[@]}"
    train llama 6 "${one[@]}" "${llama[@]}" --set model.n_head=4 --set model.n_kv_head=2 "${recompute[@]}" "${dropout[@]}"
    train llama-mixed 6 "${one[@]}" "${llama[@]}" "${mixed[@]}" "${recompute[@]}" "${accumulate[@]}"
    train qwen3 6 "${one[@]}" "${qwen3[@]}"
    train qwen3-layerwise 4 "${one[@]}" "${qwen3[@]}" "${layerwise[@]}" "${recompute[@]}"
    train qwen3-mixed 6 "${one[@]}" "${qwen3[@]}" "${mixed[@]}" "${dropout[@]}" --set train.ema_decay=0.99
    train lstm 6 "${one[@]}" "${lstm[@]}" "${dropout[@]}" "${save[@]}"
    train lstm-mixed 6 "${one[@]}" "${lstm[@]}" "${mixed[@]}" "${accumulate[@]}"
    train gru 4 "${one[@]}" "${lstm[@]}" --set model.kind=gru
    check lora train "${gpu[@]}" --init runs/llama --name lora --max-steps 6 --set lora.rank=4 --set lora.dropout=0.1 \
        "${brief[@]}"
    check lora-f16 train "${gpu[@]}" --init runs/llama --name lora-f16 --max-steps 6 --set lora.rank=4 "${mixed[@]}" \
        --set lora.base_dtype=f16 "${brief[@]}"
    check dora train "${gpu[@]}" --init runs/llama --name dora --max-steps 4 --set lora.rank=4 --set lora.dora=true \
        "${mixed[@]}" "${brief[@]}"
    check generate generate "${gpu[@]}" --model runs/gpt2 --prompt "One morning" --max-tokens 40
    check generate-f16 generate "${gpu[@]}" --dtype f16 --model runs/llama --prompt "One morning" --max-tokens 40
    check eval eval "${gpu[@]}" --model runs/qwen3
}

several_ranks() {
    train ranks2 6 "${two[@]}" "${save[@]}"
    train ranks2-f16 6 "${two[@]}" "${mixed[@]}" "${half_sums[@]}" "${accumulate[@]}" "${dropout[@]}"
    train ranks2-shard 6 "${two[@]}" "${shard[@]}" "${save[@]}"
    train ranks2-shard-mixed 6 "${two[@]}" "${llama[@]}" "${mixed[@]}" "${shard[@]}" "${half_sums[@]}"
    train ranks2-lstm 4 "${two[@]}" "${lstm[@]}"
    train ranks2-diloco 6 "${two[@]}" --set train.sync_every=2
    train ranks2-rows 3 "${two[@]}" --set model.vocab_size=140000 --set model.block_size=16
    train ranks2-buckets 3 "${two[@]}" --set model.n_head=4 --set model.n_embd=512 --set model.n_layer=4 \
        --set model.block_size=16 --set train.batch_size=2
    train ranks3 4 "${three[@]}" "${half_sums[@]}"
    train ranks3-shard-mixed 6 "${three[@]}" --set model.kind=qwen3 "${mixed[@]}" "${shard[@]}" "${half_sums[@]}" \
        "${save[@]}" "${accumulate[@]}"
}

# The kernels of a GPU that grants no more than WebGPU promises.
within_default_limits() {
    export RUSTYFLOW_GPU_LIMITS=default
    train default-gpt2 6 "${one[@]}" "${accumulate[@]}" "${dropout[@]}"
    train default-qwen3 4 "${one[@]}" "${qwen3[@]}" "${recompute[@]}"
    train default-lstm 4 "${one[@]}" "${lstm[@]}"
    train default-ranks2 4 "${two[@]}" "${shard[@]}"
    check default-generate generate "${gpu[@]}" --model runs/default-gpt2 --prompt "One morning" --max-tokens 40
    unset RUSTYFLOW_GPU_LIMITS
}

matrix() {
    # First those that show that hazards are seen.
    check_left_out without-a-barrier LEAVE_OUT_BARRIER=20 train --allow-software-gpu "${one[@]}" "${small[@]}" \
        --name without-a-barrier --max-steps 2
    check_left_out without-waits LEAVE_OUT_WAITS=1 train --allow-software-gpu "${two[@]}" "${small[@]}" \
        --name without-waits --max-steps 6 "${save[@]}"
    one_device
    several_ranks
    within_default_limits
    # The shaders of cooperative matrices, which this driver compiles for two minutes: small heads, and one step.
    # RUSTYFLOW_COOP=0 leaves them out.
    [[ "${RUSTYFLOW_COOP:-1}" != 0 ]] || return 0
    unset HIDE_COOPERATIVE_MATRICES
    train cooperative 1 "${one[@]}" "${mixed[@]}" --set model.n_layer=1 --set model.n_head=4 --set train.eval_every=0
}

export HIDE_COOPERATIVE_MATRICES=1
check doctor doctor "${gpu[@]}" >"$work/doctor" 2>&1 &
doctor=$!
matrix
wait "$doctor" || { cat "$work/doctor"; fail "doctor failed"; }
cat "$work/doctor"
[[ ! -e "$work/failed" ]] || fail "the validation layer reports accesses without an order, or a wrong use of Vulkan"
