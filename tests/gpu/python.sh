#!/usr/bin/env bash
# python.sh - the front ends of PyTorch on a GPU: python/tests/gpu.py, with the libdp of a package or build folder.
#
#   tests/gpu/python.sh [ROOT] [OPTION...]    ROOT: the package that python.sh lies in, else build
#     --results DIR    where the logs go [gpu-results/python]
#     --seconds N      for everything [120]
#     OPTION           any of gpu.py: --only ddp,fsdp, --jobs 1, --limit 30, --device cpu, --loading EAGER
#
# $PYTHON names the interpreter with PyTorch [python3]. It keeps the environment that it was installed for, and libdp's
# plug-in uses the libnccl and libcudart that PyTorch has loaded: start this in a shell without the LD_LIBRARY_PATH of libraries.py. The backend of torch.distributed is
# the package's where it was compiled for this PyTorch (pack.sh, TORCH_PYTHON), else it is compiled here, which takes a
# minute.
#
# Exit code: 0; 1 where a check failed; 77 where there is no PyTorch that sees a GPU.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3} root='' results=gpu-results/python seconds=120 options=()
while [ $# != 0 ]; do
    case $1 in
    --help | -h) sed -n '2,/^set -u/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --results | --seconds)
        [ $# -ge 2 ] || { echo "python.sh: $1 wants a value" >&2; exit 2; }
        if [ "$1" = --results ]; then results=$2; else seconds=$2; fi
        shift ;;
    --*)
        options+=("$1")
        if [ "$1" != --gpus-suffice ]; then options+=("${2:?a value}") && shift; fi ;;
    *) root=$1 ;;
    esac
    shift
done
began=$SECONDS
[ -n "$root" ] || { [ -x "$here/dprun" ] && root=$here; } || root=build
root=$(cd "$root" && pwd) || exit 2
package=$here/src/python # of a package; else the checkout's
[ -d "$package" ] || package=$(cd "$here/../../python" && pwd) || exit 2

unset DP_DEVICE DP_GPU_LIBRARY_PATH UCX_MODULE_DIR
[ ! -d "$root/lib/ucx" ] || export UCX_MODULE_DIR=$root/lib/ucx
export LIBDP_PATH=$root/libdp.so.0.3 PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
export DP_LOG=${DP_LOG:-info} # names the plug-in, and the NCCL and the CUDA that it found
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
if [ -d "$root/torch" ]; then # into a cache that nobody else may write, as the backend's loader wants
    mkdir -m 700 "$work/libdp" && cp "$root"/torch/*.so "$work/libdp/" && export XDG_CACHE_HOME=$work
fi
case " ${options[*]} " in *" --device cpu "*) device=cpu ;; *) device=cuda ;; esac
timeout -k 3 240 "$python" - $device <<'END' || { echo "python.sh: $python has no PyTorch for this" >&2; exit 77; }
import os, sys, torch
if sys.argv[1] == "cuda" and not torch.cuda.is_available():
    sys.exit("PyTorch sees no GPU")
from dp.torch import native
try:
    native.load()
except native.Unavailable as why:
    print(f"python.sh: the backend of torch.distributed cannot be had, so its checks fail: {why}", file=sys.stderr)
END
mkdir -p "$results" || exit 2
left=$((seconds - (SECONDS - began)))
"$python" "$package/tests/gpu.py" --dprun "$root/dprun" --logs "$results" --total $((left > 10 ? left : 10)) --jobs 3 --limit 40 "${options[@]}"
