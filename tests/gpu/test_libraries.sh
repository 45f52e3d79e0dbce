#!/usr/bin/env bash
# test_libraries.sh - libraries.py on machines that have the CUDA libraries in other places, of
# another version, or not at all: each an empty root with doubles of them.
#
#   exits with 77 where no empty root can be made
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/root.sh"
for tool in patchelf cc python3; do
    type -P $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
visit_way >/dev/null || { echo "skipped: neither root nor a user namespace is to be had"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
failed=0

mkdir -p "$work/dp-gpu"
cp "$here/libraries.py" "$work/dp-gpu/"
tar -C "$work" -cf "$work/package.tar" dp-gpu
visit_root "$root" "$work/package.tar" sh env python3 ||
    { echo "no empty root"; exit 1; }

library() { # FILE WHICH [MAJOR [NCCL-VERSION]]
    mkdir -p "$root/$(dirname "$1")"
    cc -shared -fPIC "-DDOUBLE_$2" "-DMAJOR=${3:-13}" "-DVERSION=${4:-22809}" -o "$root/$1" "$here/double/versions.c"
}

# Leaves a machine without any of the four.
clean() {
    rm -rf "${root:?}"/usr/local "$root"/usr/lib/*.so* "${root:?}"/opt/* "${root:?}"/home
}

expect() { # NAME CODE PATTERN... : lines of libraries.py, blanks as one
    local name=$1 wanted=$2 code pattern
    shift 2
    visit_enter "$root" "DP_GPU_LIBRARY_PATH=${named:-}" python3 /dp-gpu/libraries.py 2>&1 | tr -s ' ' >"$work/out"
    code=${PIPESTATUS[0]}
    [ "$code" = "$wanted" ] || { echo "$name: exit code $code, wanted $wanted"; cat "$work/out"; failed=1; return; }
    for pattern in "$@"; do
        grep -qE "$pattern" "$work/out" || { echo "$name: no line like $pattern"; cat "$work/out"; failed=1; return; }
    done
    echo "$name: ok"
}

site=opt/python/site-packages/nvidia
expect "none at all" 1 '^libcuda MISSING not found' '^libcudart MISSING not found' '^libcublasLt MISSING not found' '^libnccl MISSING not found'

library usr/lib/libcuda.so.1 DRIVER
library usr/local/cuda/lib64/libcudart.so.13 CUDART
library usr/local/cuda/lib64/libcublasLt.so.13 CUBLASLT
library $site/nccl/lib/libnccl.so.2 NCCL
expect "toolkit, NCCL of Python's" 0 '^libcuda 13.0 /usr/lib/libcuda.so.1 \(loader\)' \
    '^libcudart 13.0 /usr/local/cuda/lib64/libcudart.so.13 \(toolkit\)' \
    '^libcublasLt 13.0.0 /usr/local/cuda/lib64/libcublasLt.so.13 \(toolkit\)' \
    "^libnccl 2.28.9 /$site/nccl/lib/libnccl.so.2 \(python\)"

clean
library usr/local/nvidia/lib64/libcuda.so.1 DRIVER
library $site/cu13/lib/libcudart.so.13 CUDART
library $site/cu13/lib/libcublasLt.so.13 CUBLASLT
library $site/nccl/lib/libnccl.so.2 NCCL
expect "all in Python's packages" 0 '^libcuda 13.0 /usr/local/nvidia/lib64/libcuda.so.1 \(driver\)' \
    "^libcudart 13.0 /$site/cu13/lib/libcudart.so.13 \(python\)" "^libcublasLt .* \(python\)" '^libnccl .* \(python\)'

library usr/local/cuda/lib64/libcudart.so.12 CUDART 12
library usr/local/cuda/lib64/libcublasLt.so.13 CUBLASLT 12
library usr/local/cuda/lib64/libnccl.so.2 NCCL 13 21805
expect "older ones are passed over" 0 "^libcudart 13.0 /$site/cu13/lib" "^libcublasLt 13.0.0 /$site/cu13/lib" \
    "^libnccl 2.28.9 /$site/nccl"

library usr/local/cuda/lib64/libcudart.so.13 CUDART
expect "an old NCCL beside the toolkit's cudart" 0 '^libcudart 13.0 /usr/local' "^libnccl 2.28.9 /$site/nccl"

library usr/local/nvidia/lib64/libcuda.so.1 DRIVER 14
expect "a newer driver" 0 '^libcuda 14.0'

rm -r "${root:?}/$site/cu13" "${root:?}/usr/local/cuda/lib64/libcudart.so.13"
library usr/local/nvidia/lib64/libcuda.so.1 DRIVER 12
expect "other versions only" 1 \
    '^libcudart MISSING refused: /usr/local/cuda/lib64/libcudart.so.12 is version 12.0, wanted is 13, at least 13.0' \
    '^libcublasLt MISSING refused: /usr/local/cuda/lib64/libcublasLt.so.13 is version 12.0.0, wanted is 13, at least 13.0' \
    '^libcuda MISSING refused: /usr/local/nvidia/lib64/libcuda.so.1 is version 12.0' '^libnccl 2.28.9'

clean
library home/mine/libcudart.so.13 CUDART
library usr/local/cuda/lib64/libcudart.so.13 CUDART
echo "no library" >"$root/home/mine/libnccl.so.2"
named=../home/mine # from /, where visit_enter begins
expect "what the caller names comes first" 1 '^libcudart 13.0 /home/mine/libcudart.so.13 \(DP_GPU_LIBRARY_PATH\)' \
    '^libnccl MISSING refused: /home/mine/libnccl.so.2 does not open as libnccl: .*(too short|invalid ELF|file too short)'
exit $failed
