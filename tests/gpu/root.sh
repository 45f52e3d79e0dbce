# root.sh - sourced by bash: an empty root with libc alone, to see what a package lacks.
#
#   visit_way                          says how a root can be entered here; fails where none can be
#                                      made: no root, no user namespaces, no patchelf
#   visit_root DIR ARCHIVE [TOOL...]   makes DIR: libc and its loader, and the archive as DIR/dp-gpu;
#                                      the tools, if any are named, as visit_tools has them
#   visit_tools DIR TOOL...            adds programs of this machine (bash, sed, python3, ...)
#   visit_enter DIR [NAME=VALUE...] COMMAND...
#                                      runs COMMAND with DIR as its root and this environment alone;
#                                      the exit code is the command's
#
# Tools lie in DIR/tools with libraries of their own, so that these hide nothing that a package should
# have brought: libc alone is where the loader looks. A package of doubles brings a libcuda, libcudart,
# libcublasLt and libnccl, which are put where a GPU machine may have them. visit_enter has mounts of
# its own (/dev, /proc, /sys), which end with its last process: remove DIR with rm -rf.

# What the visit's scripts call.
visit_script_tools="bash sh awk basename cat chmod cmp cp cut date dd df diff dirname du echo env
false find grep gzip head hostname id kill ldconfig ln ls mkdir mkfifo mktemp mv nproc od paste printf
ps pwd python3 readlink realpath rm rmdir sed seq sha256sum sleep sort split stat tail tar tee test
timeout touch tr true truncate uname uniq wc which xargs"

visit_way() {
    type -P patchelf >/dev/null || return 1
    if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
        echo root
    elif unshare --map-root-user --mount true 2>/dev/null; then
        echo user
    else
        return 1
    fi
}

visit_is_libc() { # NAME
    case $1 in
    libc.so.6 | libm.so.6 | libmvec.so.1 | libpthread.so.0 | libdl.so.2 | librt.so.1 | libutil.so.1 | \
        libresolv.so.2 | libanl.so.1 | ld-linux*.so.* | linux-vdso.so.* | libnss_*.so.2) return 0 ;;
    esac
    return 1
}

# The libraries that a file needs, but for libc's, as the loader finds them here.
visit_needs() { # FILE...
    local name path
    ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u |
        while read -r name path; do visit_is_libc "$name" || echo "$path"; done
}

# Copies of FILE... and what they need, which look for libraries in DIR/tools/lib alone.
visit_tool_files() { # DIR TO FILE...
    local dir=$1 to=$2 file
    shift 2
    for file in $(visit_needs "$@"); do
        [ -e "$dir/tools/lib/${file##*/}" ] && continue
        cp -L "$file" "$dir/tools/lib/" && patchelf --set-rpath /tools/lib "$dir/tools/lib/${file##*/}" || return 1
    done
    for file in "$@"; do
        cp -L "$file" "$to/" || return 1
        if patchelf --print-interpreter "$file" >/dev/null 2>&1; then
            patchelf --set-rpath /tools/lib "$to/${file##*/}" || return 1
        fi
    done
}

# python3 with its own modules, which stay where they are and are mounted there.
visit_python() { # DIR
    local dir=$1 prefix binary stdlib
    { read -r binary; read -r prefix; read -r stdlib; } < <(python3 -c 'import os, sys, sysconfig
print(os.path.realpath(sys.executable)); print(sys.base_prefix); print(sysconfig.get_path("stdlib"))')
    [ -d "$stdlib" ] || return 1
    mkdir -p "$dir/tools/python" "$dir$stdlib"
    visit_tool_files "$dir" "$dir/tools/python" "$binary" || return 1
    mv "$dir/tools/python/${binary##*/}" "$dir/tools/python/python3" 2>/dev/null
    find "$stdlib/lib-dynload" -name '*.so' ! -name '_tkinter*' -print0 2>/dev/null | while read -r -d '' module; do
        visit_needs "$module"
    done | sort -u | while read -r library; do
        [ -e "$dir/tools/lib/${library##*/}" ] || cp -L "$library" "$dir/tools/lib/"
    done
    echo "$stdlib" >>"$dir/tools/mounts"
    printf '%s\n' '#!/bin/sh' "export LD_LIBRARY_PATH=/tools/lib PYTHONHOME=$prefix PYTHONPATH=/opt/python/site-packages" \
        'exec /tools/python/python3 "$@"' >"$dir/tools/bin/python3"
    chmod +x "$dir/tools/bin/python3"
}

visit_tools() { # DIR TOOL...
    local dir=$1 tool path files=()
    shift
    mkdir -p "$dir/tools/bin" "$dir/tools/lib"
    for tool in "$@"; do
        path=$(type -P "$tool" || type -P "/usr/sbin/$tool" || type -P "/sbin/$tool")
        case $tool in
        python3) [ -z "$path" ] || visit_python "$dir" || return 1 ;;
        *) [ -z "$path" ] || files+=("$path") ;;
        esac
    done
    [ ${#files[@]} = 0 ] || visit_tool_files "$dir" "$dir/tools/bin" "${files[@]}"
}

# The doubles of a package for a rehearsal, where a GPU machine has what they stand for: the driver
# where the loader looks, the toolkit, NCCL in Python's packages alone.
visit_doubles() { # DIR
    local dir=$1 from=$1/dp-gpu/doubles
    [ -d "$from" ] || return 0
    mkdir -p "$dir/usr/lib" "$dir/usr/local/cuda/lib64" "$dir/opt/python/site-packages/nvidia/nccl/lib"
    cp "$from"/libcuda.so.1 "$dir/usr/lib/" &&
        cp "$from"/libcudart.so.* "$from"/libcublasLt.so.* "$dir/usr/local/cuda/lib64/" &&
        cp "$from"/libnccl.so.* "$dir/opt/python/site-packages/nvidia/nccl/lib/"
}

visit_root() { # DIR ARCHIVE [TOOL...]
    local dir=$1 archive=$2 file loader
    shift 2
    mkdir -p "$dir"/{dev,proc,sys,tmp,etc,root,bin,usr/bin,usr/lib,opt} && chmod 1777 "$dir/tmp" || return 1
    # libc, where the loader looks for it: its own folder.
    loader=$(patchelf --print-interpreter "$(type -P bash)") || return 1
    mkdir -p "$dir${loader%/*}" && cp -L "$loader" "$dir$loader" || return 1
    for file in $(ldd "$(type -P bash)" | awk '$1 == "libc.so.6" {print $3}' | sed 's,/[^/]*$,,')/lib*.so.*; do
        visit_is_libc "${file##*/}" || continue
        mkdir -p "$dir${file%/*}" && cp -L "$file" "$dir$file" || return 1
    done
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$dir/etc/passwd"
    printf 'root:x:0:\n' >"$dir/etc/group"
    printf '127.0.0.1 localhost\n' >"$dir/etc/hosts"
    printf 'passwd: files\nhosts: files\n' >"$dir/etc/nsswitch.conf"
    tar -C "$dir" -xf "$archive" || return 1
    [ $# = 0 ] || visit_tools "$dir" "$@" || return 1
    visit_doubles "$dir"
    if [ -x "$dir/tools/bin/sh" ]; then
        for file in "$dir"/tools/bin/*; do ln -s "/tools/bin/${file##*/}" "$dir/bin/" || return 1; done
        ln -s /tools/bin/env "$dir/usr/bin/env"
    fi
}

visit_enter() { # DIR [NAME=VALUE...] COMMAND...
    local dir=$1 variables=() way
    shift
    while [[ $1 =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do
        variables+=("$1")
        shift
    done
    way=$(visit_way) || { echo "root.sh: no empty root is to be had here: neither root nor a user namespace, or no patchelf" >&2; return 77; }
    case $way in root) way=(unshare --mount) ;; user) way=(unshare --map-root-user --mount) ;; esac
    "${way[@]}" bash -c '
        root=$1; shift
        for folder in /dev /proc /sys; do mount --rbind "$folder" "$root$folder" || exit 77; done
        if [ -f "$root/tools/mounts" ]; then
            while read -r folder; do mount --bind "$folder" "$root$folder" || exit 77; done <"$root/tools/mounts"
        fi
        exec env -i PATH=/bin:/usr/bin HOME=/root TMPDIR=/tmp LC_ALL=C "$@"' root.sh "$dir" \
        "${variables[@]}" "$(type -P chroot || echo /usr/sbin/chroot)" "$dir" "$@"
}
