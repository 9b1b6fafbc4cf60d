#!/usr/bin/env bash
# Checks that imports point left (docs/design.md): every `crate::` path in src/ may name only modules of lower or equal
# level, and each library that one part of the tree owns is named nowhere else.
#
#     bash scripts/check_layers.sh [folder of the sources, default src]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly root="${1:-src}"

# Module = level. Modules of one level may use each other.
readonly levels="error=0 device_kind=0 units=0 testing=0 cache=0 hub_cache=0 protobuf=0 shell_words=0 pool=0 profile=1 report=1 comm=1 gpu=2 cpu=2 tensor=3 ops=4
custom=5 nn=5 optim=5 models=6 fit=6 generate=7 train=8 bench=9 cli=10 main=11"
# What lib.rs re-exports, and the macro it exports, by the module that it comes from.
readonly homes="Error=error Result=error DType=tensor Device=tensor Shape=tensor Tensor=tensor shader=gpu"
# These stand beside the order: they use errors, the caches and units alone, and only what assembles a run uses them.
readonly beside="config data"
readonly assemblers="train generate cli main"

failures=0

# Reads files, prints "file:line: module" for every module or item that a `crate::` path starts with.
paths() {
    awk '
        function emit(name) { if (name != "") print FILENAME ":" FNR ": " name }
        # Feeds one character after `crate::{` to a parser that keeps the first segment of every path at depth 1.
        function feed(c) {
            if (c == "{") { depth++ }
            else if (c == "}") { if (depth == 1) { emit(word); word = "" } depth-- }
            else if (depth == 1 && c == ",") { emit(word); word = ""; segment = 0 }
            else if (depth == 1 && c == ":") { segment = 1 }
            else if (depth == 1 && !segment && c ~ /[A-Za-z0-9_]/) { word = word c }
        }
        FNR == 1 { depth = 0; word = ""; segment = 0 }
        {
            line = $0
            sub(/(^|[ \t])\/\/.*/, "", line)
            while (line != "") {
                if (depth > 0) {
                    feed(substr(line, 1, 1))
                    line = substr(line, 2)
                    continue
                }
                at = index(line, "crate::")
                if (at == 0) break
                before = at > 1 ? substr(line, at - 1, 1) : " "
                line = substr(line, at + 7)
                if (before ~ /[A-Za-z0-9_]/) continue
                if (substr(line, 1, 1) == "{") { depth = 1; word = ""; segment = 0; line = substr(line, 2); continue }
                if (match(line, /^[A-Za-z0-9_]+/)) { emit(substr(line, 1, RLENGTH)) }
            }
        }
    ' "$@"
}

# lookup "a=1 b=2" b -> 2; fails if there is no such key.
lookup() {
    local pair
    for pair in $1; do
        if [[ "${pair%%=*}" == "$2" ]]; then
            echo "${pair#*=}"
            return
        fi
    done
    return 1
}

contains() { [[ " $1 " == *" $2 "* ]]; }

complain() {
    echo "$1" >&2
    failures=$((failures + 1))
}

# Whether `from` may use `to`; prints why not.
allowed() {
    local from="$1" to="$2" level_from level_to
    [[ "$from" == "$to" || "$to" == error || "$to" == cache || "$to" == hub_cache || "$to" == device_kind || "$to" == units ]] && return
    if contains "$beside" "$to"; then
        contains "$assemblers" "$from" && return
        echo "only $assemblers may use $to"
        return
    fi
    if contains "$beside" "$from"; then
        echo "$from may use nothing but error, units and the caches"
        return
    fi
    level_to="$(lookup "$levels" "$to")" || { echo "$to has no place in the order of scripts/check_layers.sh"; return; }
    level_from="$(lookup "$levels" "$from")" || {
        echo "$from has no place in the order of scripts/check_layers.sh"
        return
    }
    if ((level_to > level_from)); then
        echo "$to is right of $from"
    fi
}

check_directions() {
    local files found file number name from to why
    mapfile -d '' -t files < <(find "$root" -name '*.rs' -print0 | sort -z)
    # Into a variable first, so that a failure ends the script instead of looking like no imports.
    found="$(paths "${files[@]}")"
    while IFS=: read -r file number name; do
        from="${file#"$root"/}"
        from="${from%%/*}"
        from="${from%.rs}"
        name="${name# }"
        # lib.rs names every module to export it.
        [[ "$from" == lib ]] && continue
        to="$(lookup "$homes" "$name")" || to="$name"
        why="$(allowed "$from" "$to")"
        [[ -z "$why" ]] || complain "$file:$number: uses $name, but $why"
    done <<<"$found"
}

# owned <pattern> <what it is> <path prefix that may use it>...
owned() {
    local pattern="$1" what="$2" hit prefix
    shift 2
    while IFS= read -r hit; do
        for prefix in "$@"; do
            [[ "$hit" == "$root/$prefix"* ]] && continue 2
        done
        complain "$hit   <- $what belongs to $*"
    done < <(grep -rnE --include='*.rs' "$pattern" "$root" | grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true)
}

check_directions
owned '\b(wgpu|pollster|naga)::' 'wgpu' gpu/
owned '\b(clap|anyhow)(::|!)' 'the command line' cli/ main.rs

if ((failures > 0)); then
    echo "$failures imports do not point left" >&2
    exit 1
fi
echo "imports point left"
