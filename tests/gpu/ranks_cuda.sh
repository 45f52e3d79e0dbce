#!/usr/bin/env bash
# ranks_cuda.sh - whole contexts on GPUs, or on their doubles: every case of ranks_cuda.cu on two
# ranks, an abort at every stage, and a rank that is killed.
#
#   tests/gpu/ranks_cuda.sh DPRUN PROGRAM [DPRUN-OPTION...]      e.g. --share-gpu
set -u
dprun=$1 program=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

check() { # WANTED-CODE NAME COMMAND...
    local wanted=$1 name=$2 code
    shift 2
    timeout -k 5 100 "$@" >"$log" 2>&1
    code=$?
    [ $code = 77 ] && { cat "$log"; exit 77; }
    rm -rf $(sed -n 's/.*run directory \(\/[^ ]*\) .*/\1/p' "$log")
    if [ $code = "$wanted" ] && ! grep -q WARNING "$log"; then
        echo "$name: ok"
        return 0
    fi
    echo "$name: exit code $code, wanted $wanted"
    cat "$log"
    failed=1
    return 1
}

for what in allreduce steps mixed scaled; do
    check 0 "$what" "$dprun" -np 2 "$@" "$program" $what
done
for stage in 0 1 2 3 4 5; do
    check 0 "abort at stage $stage" "$dprun" -np 2 "$@" "$program" abort $stage
done
check 0 "weights compared" env DP_CHECK=1 "$dprun" -np 2 "$@" "$program" check
# Its scale follows from the last use, so that must be over: whoever runs ahead waits.
check 0 "fp16 in program order" env DP_ORDER=program DP_WIRE=fp16 "$dprun" -np 2 "$@" "$program" steps
check 0 "two ranks share a GPU" env DP_TEST_GPUS=1 "$dprun" -np 2 --share-gpu "$program" steps
if [ $# = 0 ] && check 1 "two ranks on a GPU by mistake" env DP_TEST_GPUS=1 "$dprun" -np 2 "$program" steps; then
    grep -q 'ranks 0 and 1 are on one GPU of .* dprun --share-gpu' "$log" || { cat "$log"; failed=1; }
fi
# Who is left says what its optimizer has seen, and that is checked in there.
if check 137 "a killed rank" "$dprun" -np 2 "$@" --inject kill:1@10 "$program" loop 40; then
    grep -q 'rank 0: .* 0 half-reduced' "$log" || { echo "rank 0 says nothing"; cat "$log"; failed=1; }
fi
exit $failed
