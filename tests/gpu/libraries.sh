#!/usr/bin/env bash
# libraries.sh - finds the CUDA driver, libcudart, libcublasLt and libnccl of this machine for the
# programs of a package (or build folder), and says which they are.
#
#   libraries.sh --print [ROOT]      a line each: name, version, path, where it was found; 1 where one
#                                    is missing or refused, with the reason in words
#   . libraries.sh; visit_libraries ROOT    the same, sets DP_VISIT_LIBRARIES (its fields, tabs between),
#                                    DP_VISIT_LD_LIBRARY_PATH, and exports UCX_MODULE_DIR
#
# Looks, in this order, in the folders of DP_GPU_LIBRARY_PATH (colons between them), in the toolkit's
# (CUDA_PATH, CUDA_HOME, nvcc's, /usr/local/cuda*, /opt/cuda), where the loader looks (LD_LIBRARY_PATH,
# its cache), in the driver's usual folders, and in the packages of every python3 (nvidia/*/lib,
# torch/lib). A library is opened and asked for its version; its file's name proves nothing.
# Set LD_LIBRARY_PATH to DP_VISIT_LD_LIBRARY_PATH for our programs only: PyTorch brings its own.

# What the package is built for: sonames, and the oldest version of the same major that will do.
visit_soname() { # NAME
    case $1 in
    libcuda) echo libcuda.so.1 ;;
    libcudart) echo libcudart.so.13 ;;
    libcublasLt) echo libcublasLt.so.13 ;;
    libnccl) echo libnccl.so.2 ;;
    esac
}

visit_oldest() { # NAME
    case $1 in libnccl) echo 2.26.2 ;; *) echo 13.0 ;; esac # runtime/engine/nccl/comm.c: OLDEST
}

# VERSION is as new as OLDEST, and of the same major; a driver also serves older majors.
visit_will_do() { # NAME VERSION OLDEST
    [ "$(printf '%s\n' "$2" "$3" | sort -V | head -n 1)" = "$3" ] &&
        { [ "$1" = libcuda ] || [ "${2%%.*}" = "${3%%.*}" ]; }
}

visit_toolkit_folders() {
    local nvcc home
    nvcc=$(type -P nvcc || true)
    for home in ${CUDA_PATH:-} ${CUDA_HOME:-} ${nvcc:+"$(dirname "$(dirname "$(readlink -f "$nvcc")")")"} \
        /usr/local/cuda /usr/local/cuda-[0-9]* /opt/cuda; do
        printf '%s\n' "$home/lib64" "$home/lib" "$home/targets/$(uname -m)-linux/lib"
    done
}

visit_python_folders() {
    local python
    { type -ap python3 python; printf '%s\n' "${VIRTUAL_ENV:-/none}/bin/python3" /opt/*/.venv/bin/python3 /opt/*/bin/python3; } 2>/dev/null |
        awk '!seen[$0]++' | while read -r python; do
        [ -x "$python" ] || continue
        timeout 20 "$python" -c 'import glob, site, sys
folders = sys.path + (site.getsitepackages() if hasattr(site, "getsitepackages") else [])
for folder in dict.fromkeys(f for f in folders if f):
    for found in sorted(glob.glob(folder + "/nvidia/*/lib")) + glob.glob(folder + "/torch/lib"):
        print(found)' 2>/dev/null
    done
}

# visit_candidates NAME: "HOW<tab>PATH" lines, best first; the bare soname is what the loader finds.
visit_candidates() {
    local soname folder how file
    soname=$(visit_soname "$1")
    {
        tr : '\n' <<<"${DP_GPU_LIBRARY_PATH:-}" | sed '/^$/d; s/^/DP_GPU_LIBRARY_PATH\t/'
        visit_toolkit_folders | sed 's/^/toolkit\t/'
        printf 'loader\t-\n'
        printf 'driver\t%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64-nvidia /usr/lib/wsl/lib
        sed '/^$/d; s/^/python\t/' <<<"$visit_python_found"
    } | while IFS=$'\t' read -r how folder; do
        if [ "$folder" = - ]; then
            printf '%s\t%s\n' "$how" "$soname"
            continue
        fi
        # The wanted soname, then any other version: it is refused by name.
        for file in "$folder/$soname" "$folder/${soname%%.so*}".so.[0-9]*; do
            if [ -f "$file" ]; then printf '%s\t%s\n' "$how" "$file"; fi
        done
    done | awk '!seen[$0]++'
}

# visit_find PROBE NAME: "NAME<tab>VERSION<tab>PATH<tab>HOW", or NAME, -, - and the reason, and 1.
visit_find() {
    local probe=$1 name=$2 oldest how candidate kind version path reasons=
    oldest=$(visit_oldest "$name")
    while IFS=$'\t' read -r how candidate; do
        IFS=$'\t' read -r kind version path < <(timeout 60 "$probe" "$candidate" 2>&1)
        if [ "$kind" = "$name" ] && visit_will_do "$name" "$version" "$oldest"; then
            printf '%s\t%s\t%s\t%s\n' "$name" "$version" "$path" "$how"
            return 0
        elif [ "$kind" = "$name" ]; then
            reasons+="; $path is version $version, wanted is ${oldest%%.*}, at least $oldest"
        elif [ "$how" != loader ]; then
            reasons+="; $candidate does not open as $name: ${path:-${kind:-no answer in 60 s}}"
        elif [[ $path != *"No such file"* ]]; then
            reasons+="; $path"
        fi
    done < <(visit_candidates "$name")
    [ -n "$reasons" ] && reasons="refused: ${reasons#; }" ||
        reasons="not found in any folder where libraries.sh looks; DP_GPU_LIBRARY_PATH names more"
    printf '%s\t-\t-\t%s\n' "$name" "$reasons"
    return 1
}

# The loader takes the first file of a name, so the libraries that were chosen come first as links in
# a folder of their own: another version of one may lie beside the chosen one of another.
visit_link() { # FOLDER NAME PATH
    local link=$1/$(visit_soname "$2")
    rm -f "$link"
    [ "$3" = - ] || ln -s "$3" "$link"
}

# What programs will open is what was chosen.
visit_verify() { # PROBE
    local name version path how opened failed=0
    while IFS=$'\t' read -r name version path how; do
        case ${path:--} in -) continue ;; esac
        IFS=$'\t' read -r _ _ opened < <(LD_LIBRARY_PATH=$DP_VISIT_LD_LIBRARY_PATH timeout 60 "$1" "$(visit_soname "$name")" 2>&1)
        if ! [ "$opened" -ef "$path" ]; then
            printf '%-12s %-10s %s\n' "$name" MISSING "programs would open ${opened:-nothing} instead of $path"
            failed=1
        fi
    done <<<"$DP_VISIT_LIBRARIES"
    return $failed
}

visit_libraries() { # ROOT
    local root probe links name version path how folders= failed=0
    root=$(cd "$1" && pwd) || return 2
    probe=$root/tests/gpu_probe links=$root/cuda-libraries
    [ -x "$probe" ] || { echo "libraries.sh: $probe is missing" >&2; return 2; }
    mkdir -p "$links" && [ -w "$links" ] || { echo "libraries.sh: cannot write into $root" >&2; return 2; }
    DP_VISIT_LIBRARIES=
    visit_python_found=$(visit_python_folders)
    for name in libcuda libcudart libcublasLt libnccl; do
        IFS=$'\t' read -r name version path how < <(visit_find "$probe" "$name")
        DP_VISIT_LIBRARIES+="$name"$'\t'"$version"$'\t'"$path"$'\t'"$how"$'\n'
        if [ "$path" = - ]; then
            failed=1
            printf '%-12s %-10s %s\n' "$name" MISSING "$how"
        else
            printf '%-12s %-10s %s  (%s)\n' "$name" "$version" "$path" "$how"
        fi
        # A driver comes with more libraries, which the loader must find where it found this one. So
        # may others, but what the loader finds by itself needs no folder, which might hold other things.
        [ "$name" = libcuda ] || visit_link "$links" "$name" "$path"
        case $path:$how:$folders: in -:* | *:loader:* | *":${path%/*}:"*) ;; *) folders+=:${path%/*} ;; esac
    done
    DP_VISIT_LD_LIBRARY_PATH=$links$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if [ -d "$root/lib/ucx" ]; then export UCX_MODULE_DIR=$root/lib/ucx; fi
    visit_verify "$probe" && return $failed
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -u
    here=$(cd "$(dirname "$0")" && pwd)
    case ${1:-} in
    --print) visit_libraries "${2:-$here}" ;;
    --help | -h) sed -n '2,14s/^# \{0,1\}//p' "$0" ;;
    *) echo "libraries.sh: --print [ROOT] or --help" >&2; exit 2 ;;
    esac
fi
