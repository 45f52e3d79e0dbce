#!/usr/bin/env bash
# package.sh - every program and plug-in of the list is there and finds its libraries and symbols; so do UCX's modules.
# Nothing runs but the loader.
#
#   package.sh ROOT LIST        with the libraries' folders in LD_LIBRARY_PATH
root=$1 list=$2 failed=0 count=0
loader=
for file in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*; do
    [ ! -x "$file" ] || { loader=$file && break; }
done
[ -n "$loader" ] || { echo "no loader in /lib64 or /lib"; exit 1; }
[ -f "$list" ] || { echo "$list is not there"; exit 1; }
while read -r kind name _; do
    case $kind in program | plugin | library) ;; *) continue ;; esac
    count=$((count + 1))
    file=$root/$name
    [ "$kind" != library ] || [ -e "$file" ] || file=$root/lib/$name
    if [ ! -e "$file" ]; then
        echo "$name: not there"
        failed=1
        continue
    fi
    # As ldd -r does it: every library and symbol is looked up, the program is not started.
    if ! found=$(LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes LD_BIND_NOW=yes "$loader" "$file" 2>&1) ||
        grep -qE 'not found|undefined symbol' <<<"$found"; then
        echo "$name: does not start"
        grep -E 'not found|undefined symbol|error' <<<"$found" | sort -u | head -n 8 | sed 's/^/    /'
        failed=1
    fi
done < <(cat "$list"; cd "$root" && for file in lib/ucx/*.so*; do [ ! -e "$file" ] || echo "library $file"; done)
[ $failed = 1 ] || echo "$count programs and libraries find all they need"
[ $count != 0 ] && exit $failed
