#!/usr/bin/env bash
# compare.sh - libdp beside Debian's OpenMPI, in turn, in one run: allreduce of fp32 sums, 2 ranks, in
# dp_alloc() memory, with the placement of the two CPUs before and after each turn. Prints medians over
# the turns of one placement and their ratio. Needs openmpi-bin and libopenmpi-dev.
#
#   tests/bench/compare.sh [BUILD_DIR] [BYTES] [TURNS]        default: build 67108864 7
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build} bytes=${2:-67108864} turns=${3:-7}
command -v mpicc >/dev/null 2>&1 || { echo "compare.sh: no mpicc: apt-get install openmpi-bin libopenmpi-dev" >&2; exit 77; }
[ -x "$build/dpbench" ] || { echo "compare.sh: $build/dpbench is not built" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpicc -O2 tests/bench/mpi_allreduce.c -o "$work/mpi_allreduce"
gcc -D_GNU_SOURCE -O2 -pthread tests/bench/placement.c -o "$work/placement"

place() {
    local ns
    ns=$("$work/placement")
    if [ "$ns" -lt 110 ]; then echo near; elif [ "$ns" -gt 140 ]; then echo far; else echo between; fi
}
iterations=$((bytes > 1048576 ? 20 : 300))
run_dp() { # the in-place median: the eighth column
    "$build/dprun" -np 2 --no-prefix "$build/dpbench" -b "$bytes" -e "$bytes" -n "$iterations" |
        awk '!/^#/ && NF >= 12 {print $8}'
}
run_mpi() {
    mpirun --allow-run-as-root --oversubscribe -n 2 --bind-to core "$work/mpi_allreduce" "$bytes" "$iterations" 2>/dev/null
}
# turn KIND: one measurement with the placement on both sides
turn() {
    local before after value
    before=$(place)
    value=$("run_$1")
    after=$(place)
    [ "$before" = "$after" ] || before=mixed
    printf '%s %s %s\n' "$1" "$before" "$value" | tee -a "$work/rows"
}
echo "# $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ //'), $(nproc) CPUs; $(mpirun --version | head -n 1); $bytes bytes; us"
for _ in $(seq "$turns"); do
    turn dp
    turn mpi
done
for where in near far between mixed; do
    for kind in dp mpi; do
        awk -v k=$kind -v w=$where '$1 == k && $2 == w {print $3}' "$work/rows" | sort -n >"$work/$kind"
    done
    [ -s "$work/dp" ] && [ -s "$work/mpi" ] || continue
    median() { sed -n "$(($(wc -l <"$1") / 2 + 1))p" "$1"; }
    awk -v w=$where -v d="$(median "$work/dp")" -v m="$(median "$work/mpi")" \
        'BEGIN {printf "%-8s libdp %.1f us, OpenMPI %.1f us: libdp takes %.2f of its time\n", w, d, m, d / m}'
done
