#!/usr/bin/env bash
# Checks that modules of one crate import from the left alone (docs/design.md). Between crates, Cargo does.
#
#     bash scripts/check_layers.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failures=0

# forbid <module> <names> [<parent>]: no path `crate::[parent::]name`, alone or in braces, in the files of the module;
# of a parent, those of tests excepted, which take whole runs.
forbid() {
    local module="$1" names="${2// /|}" parent="${3:+$3::}" file found
    while IFS= read -r file; do
        found="$(sed -E 's,(^|[[:space:]])//.*,,' "$file" | grep -Pzo "\bcrate::$parent(\{[^;]*?\b)?($names)\b" | tr '\0\n' '  ')" || continue
        echo "$file: $found" >&2
        failures=$((failures + 1))
    done < <(find "$module" "$module.rs" -name '*.rs' 2>/dev/null | grep -vE "${3:+/tests(/|\.rs$)|}^$")
}

# order <folder> [in=<parent>] <group>...: modules of a group may use those of their own group and of the groups before.
order() {
    local folder="$1" parent="" module
    shift
    case "$1" in in=*) parent="${1#in=}" && shift ;; esac
    while (($# > 1)); do
        for module in $1; do
            forbid "$folder/$module" "${*:2}" "$parent"
        done
        shift
    done
}

order crates/tensor/src "profile pool" "gpu cpu" "tensor" "ops" "opcheck nn optim" "step" "fit"
order src "config report" "models" "generate" "train" "bench serve" "cli"
order src/train in=train "evaluation" "checkpoint" "setup" "step" "plan" "run" "trainer" "loading export"
# What assembles a run knows the configuration and the data; a model and a benchmark do not, but for GGUF files, which
# hold a tokenizer.
for module in models bench; do forbid "src/$module" "config"; done
for module in src/bench src/models/*; do [[ "$module" == src/models/gguf ]] || forbid "$module" "data"; done
forbid src/config data
# One folder speaks to wgpu.
if grep -rnE --include='*.rs' '\b(wgpu|pollster|naga|ash)::' crates/tensor/src --exclude-dir=gpu | grep -vE ':[[:space:]]*//'; then
    echo "wgpu belongs to crates/tensor/src/gpu" >&2
    failures=$((failures + 1))
fi

if ((failures > 0)); then
    echo "$failures files import from the right" >&2
    exit 1
fi
echo "imports point left"
