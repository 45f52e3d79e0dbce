#!/usr/bin/env bash
# floor.sh - libdp's allreduce beside the floors of this machine, in one run: ratios by size, for memory
# of dp_alloc() (floor: both tensors mapped by both) and ordinary memory (floor: cross-memory attach),
# then the gradients of GPT-2 124M. See floor.c.
#
#   tests/bench/floor.sh [BUILD_DIR] [SECONDS_PER_ROW]        default: build 2
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} seconds=${2:-2}
[ -x "$build/floor" ] || { echo "floor.sh: $build/floor is not built" >&2; exit 1; }
run() { "$build/dprun" -np 2 --no-prefix "$build/floor" "seconds=$seconds" "$@"; }
echo "# $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ //'), $(nproc) CPUs"
echo "# tensors as the last operation left them"
run
echo "# every tensor rewritten before each operation"
run touch
run gradients
