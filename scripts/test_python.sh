#!/usr/bin/env bash
# Tests the Python package: a wheel built and installed into a fresh environment, pytest (which runs the examples and
# the notebook, and checks their types), and what the extension depends on.
#
#     bash scripts/test_python.sh [arguments of pytest]
#
# On Debian and Ubuntu, as root, it installs Python and venv; packages come by pip. Where that is not to be had, it says
# so and passes, except with CI set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv="$PWD/target/python-venv" wheels="$PWD/target/wheels"

skip() {
    if [[ -n "${CI:-}" ]]; then
        echo "scripts/test_python.sh: $1" >&2
        exit 1
    fi
    echo "SKIPPED: $1"
    exit 0
}

has_python() { python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }

if ! has_python && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >/dev/null || true
    apt-get -qq install --no-install-recommends python3 python3-venv >/dev/null || true
fi
has_python || skip "Python 3.9 or newer with venv is not to be had"

# Installing the packages takes longest, so they stay for the next run; continuous integration begins anew.
rm -rf "$wheels"
if [[ -n "${CI:-}" ]] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    python3 -m venv "$venv"
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2' numpy pytest mypy matplotlib nbclient \
    nbformat ipykernel || skip "pip cannot install what the tests need"

cargo fmt -p rustyflow-python --check
# With these features and of this profile the other tests have compiled the libraries.
"$venv/bin/maturin" build --quiet --profile dev --features testing --manifest-path python/Cargo.toml \
    --interpreter "$venv/bin/python" --out "$wheels"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheels"/*.whl

# libc and its companions, and no loader of any GPU: that is looked for when the program runs.
library="$("$venv/bin/python" -c 'import rustyflow._rustyflow as m; print(m.__file__)')"
if [[ "$(uname -s)" == Linux ]]; then
    needed="$(ldd "$library" | awk '{ print $1 }' | sed 's,.*/,,')"
    readonly libc='^(linux-vdso|libc|libm|libgcc_s|libpthread|libdl|librt|ld-linux[a-z0-9_-]*)\.so'
    if other="$(grep -vE "$libc" <<<"$needed")"; then
        echo "the extension depends on more than libc: $other" >&2
        exit 1
    fi
fi

# The command that these models are compared with, as the other tests built it.
RUSTYFLOW_BINARY="$PWD/target/debug/rustyflow"
[[ -x "$RUSTYFLOW_BINARY" ]] || cargo build --quiet -p rustyflow -p rustyflow-python
export RUSTYFLOW_BINARY
# Mesa warns about a missing folder once per process.
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-$(mktemp -d)}"
# From another folder, so that the installed package is imported.
cd python/tests
"$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
