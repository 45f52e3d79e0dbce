#!/usr/bin/env bash
# pack.sh - a build and the libraries it needs as one archive, for a GPU machine without a network.
#
#   tests/gpu/pack.sh [BUILD] [ARCHIVE]     default: build, dp-gpu.tar.gz
#
# On the other machine: tar xzf dp-gpu.tar.gz && LD_LIBRARY_PATH=$PWD/dp-gpu/lib \
#     UCX_MODULE_DIR=$PWD/dp-gpu/lib/ucx dp-gpu/run.sh dp-gpu
# libc, the driver and the CUDA libraries are those of that machine.
set -eu
build=${1:-build}
archive=${2:-dp-gpu.tar.gz}
case $build in --help | -h) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ -x "$build/dprun" ] || { echo "pack.sh: no build in $build" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
to=$work/dp-gpu
mkdir -p "$to/lib/ucx" "$to/tests"
cp -r "$(dirname "$0")"/{run.sh,ranks_cuda.sh,peers} "$to/"
for program in dprun dptrace hello embed dpbench embed_cuda gpt2; do
    [ -x "$build/$program" ] && cp "$build/$program" "$to/"
done
for program in cuda_kernels ranks_cuda cuda_mma gpt2_attention gpt2_cuda_kernels_device; do
    [ -x "$build/tests/$program" ] && cp "$build/tests/$program" "$to/tests/"
done
cp -a "$build"/libdp*.so* "$to/lib/"
# What those need, but for what every machine has or brings with its driver and toolkit.
ldd "$to"/dprun "$to"/lib/libdp*.so* 2>/dev/null | awk '/=> \//{print $3}' | sort -u |
    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libcuda|libcudart|libnccl|libcublas[^/]*|libdp[^/]*)\.so' |
    while read -r library; do cp -L "$library" "$to/lib/"; done
ucx=$(ldd "$to"/lib/libdp.so | awk '/libuct/{print $3}')
modules=$(dirname "${ucx:-/none/none}")/ucx
[ -d "$modules" ] && cp -L "$modules"/*.so* "$to/lib/ucx/" 2>/dev/null
tar -C "$work" -czf "$archive" dp-gpu
echo "$archive: $(du -h "$archive" | cut -f1), $(find "$to" -type f | wc -l) files"
