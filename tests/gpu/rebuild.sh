#!/usr/bin/env bash
# rebuild.sh - compiles a file of the package again, on the visited machine, and links what has it.
#
#   rebuild.sh SOURCE...     relative to src/, e.g. examples/gpt2/cuda/classifier.cu
#   rebuild.sh --list        every source that can be compiled again, and what has it
#
# Edit src/SOURCE first; headers, too: then name the sources that include them. The compilers are
# this machine's: nvcc, cc, c++. Programs and plug-ins that were linked before stay as NAME.before.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/libraries.sh"
case ${1:-} in
--help | -h | '') sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
cd "$here/relink" 2>/dev/null || { echo "rebuild.sh: $here has no relink/: only a package of pack.sh has" >&2; exit 2; }

# The products that are linked of an object or archive.
products_of() { # FILE
    awk -F '\t' -v file="$1" '{ n = split($2, words, " "); for (i = 1; i <= n; i++) if (words[i] == file) { print $1; next } }' links
}

if [ "$1" = --list ]; then
    while IFS=$'\t' read -r source object archive _; do
        file=$archive
        [ "$archive" != - ] || file=$object
        printf '%-44s %s\n' "$source" "$(products_of "$file" | tr '\n' ' ')"
    done <compiles | sort -u
    exit 0
fi

# Where the toolkit's and NCCL's headers are, and the libraries, as flags.
visit_libraries "$here" >libraries.log
nvcc=$(type -P nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -n 1)
[ -n "$nvcc" ] || { echo "rebuild.sh: no nvcc" >&2; exit 1; }
PATH=$(dirname "$nvcc"):$PATH
compile_flags="-I$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include -w"
link_flags=-L../cuda-libraries
while IFS=$'\t' read -r _ _ path _; do
    case ${path:--} in -) continue ;; esac
    [ ! -d "${path%/*}/../include" ] || compile_flags+=" -I${path%/*}/../include"
done <<<"$DP_VISIT_LIBRARIES"

mkdir -p objects
changed=
for source in "$@"; do
    source=${source#src/}
    found=0
    while IFS=$'\t' read -r name object archive command; do
        [ "$name" = "$source" ] || continue
        found=1
        echo "compiles $source"
        eval "${command//@CUDA_COMPILE@/$compile_flags}" || { echo "rebuild.sh: $source does not compile" >&2; exit 1; }
        if [ "$archive" = - ]; then
            changed+=" $(products_of "$object")"
        else
            ar r "$archive" "$object" || exit 1
            changed+=" $(products_of "$archive")"
        fi
    done <compiles
    [ $found = 1 ] || { echo "rebuild.sh: $source: not in the package; --list" >&2; exit 2; }
done
for product in $(tr ' ' '\n' <<<"$changed" | sort -u); do
    echo "links $product"
    [ -e "../$product.before" ] || cp "../$product" "../$product.before" || exit 1
    command=$(awk -F '\t' -v product="$product" '$1 == product {print $2}' links)
    cp "../$product" "objects/last" && rm "../$product"
    eval "${command//@CUDA_LINK@/$link_flags}" ||
        { mv objects/last "../$product"; echo "rebuild.sh: $product does not link; the old one stays" >&2; exit 1; }
done
