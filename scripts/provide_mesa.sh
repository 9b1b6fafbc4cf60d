# For other scripts, which source it: `provide_mesa` unpacks a newer Mesa than most systems have, whose software Vulkan
# has cooperative matrices, and Vulkan's validation layer with the headers that layers are built with. Afterwards
# `mesa` is their folder, `"$loader" --library-path "$libraries"` starts a program with them, and the environment names
# their driver. `packages` are scripts/provide_mpi.sh's, as scripts/test.sh builds: so nothing is built anew.
#
# They come from the development suite of the system's own distribution (Debian's sid, Ubuntu's devel), by way of the
# sources that apt already uses. Packages are unpacked, not installed, which needs no root: 90 MB to download, 450 MB in
# ~/.cache/rustyflow-tests, or in $RUSTYFLOW_TEST_CACHE, kept for the next time. Delete the folder for newer ones.
#
# Without apt the tests are skipped. With CI=true or RUSTYFLOW_REQUIRE_COOP=1 that is a failure.

source scripts/provide_mpi.sh

cache="${RUSTYFLOW_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rustyflow-tests}"
mkdir -p "$cache"
cache="$(realpath "$cache")"
readonly mesa="$cache/mesa" part="$cache/mesa.part"

fail() {
    echo "${BASH_SOURCE[-1]}: $1" >&2
    exit 1
}

skip() {
    if [[ "${CI:-}" == true || -n "${RUSTYFLOW_REQUIRE_COOP:-}" ]]; then
        fail "$1, but these tests are required here"
    fi
    echo "SKIPPED, ${BASH_SOURCE[-1]}: $1"
    exit 0
}

# apt with folders of its own and this list of sources.
own_apt() {
    local sources="$1"
    shift
    apt-get -q -o APT::Sandbox::User=root -o Dir::State="$part/apt" -o Dir::State::lists="$part/apt/lists" \
        -o Dir::State::status="$part/apt/status" -o Dir::Cache="$part/apt" -o Dir::Etc::sourcelist="$sources" \
        -o Dir::Etc::sourceparts=/dev/null "$@"
}

# Where the system gets its packages from: the archive of its own release first.
sites() {
    local lists="$1" release
    release="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
    apt-get indextargets ${lists:+-o Dir::State::lists="$lists"} --format '$(RELEASE) $(SITE)' 'Created-By: Packages' \
        | awk -v release="$release" '{ print ($1 == release ? 0 : 1), $2 }' | sort -s -k1,1 \
        | awk '!seen[$2]++ { print $2 }'
}

# Downloads and unpacks the packages and all that they are linked with into $part.
unpack_mesa() {
    local log="$cache/mesa.log" keys="" key found site suite deb
    mkdir -p "$part/apt/lists/partial" "$part/apt/archives/partial" "$part/root"
    # No package counts as installed, so that even the C library comes along.
    : >"$part/apt/status"
    : >"$log"
    found="$(sites "")"
    if [[ -z "$found" ]]; then
        # Images of containers come without lists.
        apt-get -q -o Dir::State::lists="$part/apt/lists" update >>"$log" 2>&1 || true
        found="$(sites "$part/apt/lists")"
    fi
    [[ -n "$found" ]] || fail "apt has no sources that can be reached; see $log"
    for key in /usr/share/keyrings/{debian,ubuntu}-archive-keyring.gpg; do
        [[ ! -e "$key" ]] || keys+="${keys:+,}$key"
    done
    for site in $found; do
        for suite in sid devel; do
            echo "== $site $suite" >>"$log"
            echo "deb ${keys:+[signed-by=$keys] }$site $suite main" >"$part/apt/sources"
            own_apt "$part/apt/sources" update >>"$log" 2>&1 || continue
            own_apt "$part/apt/sources" -y --no-install-recommends --download-only install libvulkan1 libvulkan-dev \
                mesa-vulkan-drivers vulkan-validationlayers >>"$log" 2>&1 || continue
            for deb in "$part"/apt/archives/*.deb; do
                dpkg-deb -x "$deb" "$part/root"
            done
            return
        done
    done
    fail "could not get a newer Mesa from $(paste -sd' ' <<<"$found"): see $log.
  \`apt-get update\` must work; or copy $mesa from a machine where this script has run"
}

provide_mesa() {
    [[ "$(uname -s)" == Linux ]] || skip "only Linux has the software Vulkan that it needs"
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "the newer Mesa that it needs comes by apt-get"
    exec 9>"$cache/lock"
    flock 9
    # It gets its name when it is whole: what an interrupted run has left is made anew.
    if [[ ! -e "$mesa/usr/include/vulkan/vk_layer.h" ]]; then
        echo "== unpacking a newer Mesa in $mesa"
        rm -rf "$part" "$mesa"
        unpack_mesa
        rm -rf "$part/apt"
        mv -T "$part/root" "$mesa"
        rm -rf "$part"
    fi
    exec 9>&-
    local driver
    loader="$(compgen -G "$mesa/usr/lib/*/ld-linux*.so.*" | head -n 1)" || fail "$mesa is damaged: delete it"
    driver="$(compgen -G "$mesa/usr/share/vulkan/icd.d/lvp_icd*.json" | head -n 1)" || fail "$mesa is damaged: delete it"
    # The newer system's libraries come first; those of MPI are this system's.
    libraries="${loader%/*}"
    ! has_mpi || libraries+="$(libraries_known | sed -n 's,.* => \(.*\)/libmpi\.so\.[0-9]*$,:\1,p')"
    # Compiling shaders is most of what these tests do: what has not changed is compiled once.
    export VK_DRIVER_FILES="$driver" MESA_SHADER_CACHE_DIR="$cache/shaders"
    mkdir -p "$MESA_SHADER_CACHE_DIR"
}
