#!/usr/bin/env bash
# test_peer.sh - the peer of a visit on a CPU, in a tiny shape: it trains, its stream is bf16, it names its
# attention kernels, and the visit reads its lines. Skips (77) where $TORCH_PYTHON, else python3, has no
# PyTorch.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/dp-peer-XXXXXX")
trap 'rm -rf "$work"' EXIT
python=${TORCH_PYTHON:-python3} failures=0 id=e.torch-1
export OMP_NUM_THREADS=1
. "$here/../parts/clock.sh"
. "$here/../parts/e_speed.sh"

peer() { # ARGUMENT...
    "$python" "$here/gpt2_torch.py" --device cpu "$@" >"$work/log" 2>"$work/errors"
    case $? in
    0) ;;
    77) cat "$work/log"; exit 77 ;;
    *) cat "$work/errors"; failures=$((failures + 1)) ;;
    esac
}

says() { # PATTERN
    grep -qE -- "$1" "$work/log" || { echo "test_peer: nothing says $1:"; cat "$work/log"; failures=$((failures + 1)); }
}

peer --preset tiny --mode eager --batch 2 --seq 16 --steps 6
says '^torch [^,]*, CUDA .*, cuDNN '
says '^stream torch.bfloat16, '
says '^attention kernel .*flash_attention'
awk '/^stream/ { exit !($6 < $4) }' "$work/log" || { echo "test_peer: the loss does not fall"; failures=$((failures + 1)); }
torch_figures <"$work/log" >"$work/figures"
[ "$(cut -f 1 "$work/figures" | tr '\n' ' ')" = "tokens step memory " ] || { echo "test_peer: figures:"; cat "$work/figures"; failures=$((failures + 1)); }

peer --attention
says '^attention kernel .*flash_attention'
sdpa_figures <"$work/log" >"$work/figures"
[ "$(wc -l <"$work/figures")" = 4 ] || { echo "test_peer: figures:"; cat "$work/figures"; failures=$((failures + 1)); }
exit $((failures != 0))
