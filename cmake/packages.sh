# packages.sh - sourced by quickstart.sh and test.sh: what Debian packages the project stands on, and
# how they get here. Sets nothing but functions, and the variables of build tools for --prefix.

dp_build_packages="gcc:gcc:the_compiler
libc6-dev:-:C_headers
cmake:cmake:configures_the_build
ninja-build:ninja:builds
pkg-config:pkg-config:finds_libraries
libucx-dev:-:control_plane_and_links_between_machines
libevent-dev:-:event_loops
libsodium-dev:-:authentication
libhwloc-dev:-:which_cores_there_are
libopenblas-dev:-:matrix_products_of_the_GPT-2_example
libdnnl-dev:-:quicker_ones,_and_those_in_bf16
bible-kjv:bible:text_to_train_on"

dp_test_packages="g++:g++:a_C++_program_must_be_able_to_include_dp.h
libcmocka-dev:-:unit_tests
clang-format:clang-format:style
clang-tidy:clang-tidy:analysis
clang:clang:fuzzers
valgrind:valgrind:memory_of_whole_programs
chromium:chromium:opens_the_timeline_viewer
python3:python3:checks_of_files
python3-matplotlib:-:pictures_of_the_comparison
python3-numpy:-:the_Python_package
python3-torch:-:its_front_end_for_PyTorch
mypy:mypy:its_type_hints
python3-venv:-:Perfetto_definitions_for_one_test
patchelf:patchelf:where_packed_programs_look_for_libraries
dpkg-dev:dpkg-shlibdeps:what_Debian_packages_depend_on
procps:ps:tests_look_for_processes_left_behind
iproute2:ip:machines_made_of_namespaces
nftables:nft:networks_that_lose_packets
openssh-server:sshd:jobs_on_several_machines"

# For ./quickstart.sh --python.
dp_python_packages="python3:python3:the_examples_in_Python
python3-venv:-:an_environment_for_them
patchelf:patchelf:where_packed_programs_look_for_libraries
binutils:readelf:which_C_library_a_wheel_needs"

# For ./test.sh --all alone.
dp_night_packages="slurmctld:slurmctld:jobs_that_Slurm_starts
slurmd:slurmd:nodes_of_Slurm
slurm-client:srun:starts_jobs_there
munge:munged:Slurm_proves_who_its_users_are
libpmix-dev:-:PMIx_of_Slurm
openmpi-bin:mpirun.openmpi:mpirun_starts_jobs_there
lintian:lintian:faults_of_Debian_packages"

dp_say() { printf '%s\n' "$*"; }

dp_other_distributions() {
    cat <<'TXT'
  Fedora   gcc cmake ninja-build pkgconf ucx-devel libevent-devel libsodium-devel hwloc-devel openblas-devel
  Arch     base-devel cmake ninja pkgconf openucx libevent libsodium hwloc openblas
  openSUSE gcc cmake ninja pkgconf libucp-devel libevent-devel libsodium-devel hwloc-devel openblas-devel
TXT
}

# Names in $1 (lines name:program:why) that are not installed.
dp_missing() {
    printf '%s\n' "$1" | while IFS=: read -r name program why; do
        if [ "$program" != - ] && command -v "$program" >/dev/null 2>&1; then continue; fi
        if dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed'; then continue; fi
        printf '%s:%s\n' "$name" "$(printf '%s' "$why" | tr _ ' ')"
    done
}

# dp_install LIST: installs what is missing, with root or sudo.
dp_install() {
    if ! command -v apt-get >/dev/null 2>&1; then
        dp_say "  this is no Debian: install the packages yourself, then run with --no-install:"
        dp_other_distributions
        return 1
    fi
    missing=$(dp_missing "$1")
    [ -z "$missing" ] && { dp_say "  all packages are there"; return 0; }
    printf '%s\n' "$missing" | sed 's/^\([^:]*\):\(.*\)/  installing \1: \2/'
    names=$(printf '%s\n' "$missing" | cut -d: -f1)
    root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            dp_say "  not root, and there is no sudo: try --prefix DIR, which needs neither"
            return 1
        }
        root=sudo
    fi
    log=$(mktemp)
    # shellcheck disable=SC2086
    if $root apt-get update >"$log" 2>&1 &&
        $root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $names \
            >>"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    dp_say "  apt-get failed:"
    tail -n 15 "$log" | sed 's/^/    /'
    rm -f "$log"
    return 1
}

# dp_unpack DIR LIST: downloads what is missing and unpacks it below DIR, without root.
dp_unpack() {
    dir=$1
    missing=$(dp_missing "$2")
    mkdir -p "$dir/debs/partial" "$dir/lists/partial" || return 1
    if [ -n "$missing" ]; then
        names=$(printf '%s\n' "$missing" | cut -d: -f1)
        options="-o Dir::State::Lists=$dir/lists -o Dir::Cache=$dir/cache -o Debug::NoLocking=1"
        mkdir -p "$dir/cache/archives/partial"
        # shellcheck disable=SC2086
        apt-get $options update >"$dir/apt.log" 2>&1 || { tail -n 5 "$dir/apt.log"; return 1; }
        # What apt would install here, dependencies included.
        # shellcheck disable=SC2086
        all=$(apt-get $options -s install --no-install-recommends $names 2>>"$dir/apt.log" |
            awk '/^Inst / {print $2}')
        for name in $all; do dp_say "  unpacking $name"; done
        # shellcheck disable=SC2086
        (cd "$dir/debs" && apt-get $options download $all >>"$dir/apt.log" 2>&1) ||
            { tail -n 5 "$dir/apt.log"; return 1; }
        for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir" || return 1; done
    fi
    multiarch=$(gcc -print-multiarch 2>/dev/null || printf '%s-linux-gnu' "$(uname -m)")
    lib=$dir/usr/lib/$multiarch
    # The packages believe that they live in /usr.
    find "$dir/usr" -name '*.pc' -exec sed -i \
        -e "s#^\([a-zA-Z_]*\) *= */usr#\1=$dir/usr#" {} + 2>/dev/null
    for pc in "$lib/pkgconfig" "$lib/openblas-pthread/pkgconfig" "$dir/usr/share/pkgconfig"; do
        PKG_CONFIG_PATH=$pc${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    done
    PATH=$dir/usr/bin:$dir/usr/games:$PATH
    CPATH=$dir/usr/include:$dir/usr/include/$multiarch${CPATH:+:$CPATH}
    LIBRARY_PATH=$lib:$lib/openblas-pthread${LIBRARY_PATH:+:$LIBRARY_PATH}
    # RPATH, not RUNPATH: it also serves the libraries that our libraries need.
    LDFLAGS="-Wl,--disable-new-dtags,-rpath,$lib:$lib/openblas-pthread ${LDFLAGS:-}"
    LD_LIBRARY_PATH=$lib:$lib/openblas-pthread:$dir/lib/$multiarch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    CMAKE_PREFIX_PATH=$dir/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH} # oneDNN has no .pc
    BIBLE_PREFIX=$dir
    export CMAKE_PREFIX_PATH PATH PKG_CONFIG_PATH CPATH LIBRARY_PATH LDFLAGS LD_LIBRARY_PATH BIBLE_PREFIX
}
