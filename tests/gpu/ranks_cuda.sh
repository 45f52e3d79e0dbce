#!/usr/bin/env bash
# ranks_cuda.sh - whole contexts on GPUs, or on their doubles: every case of ranks_cuda.cu on two
# ranks, an abort at every stage, and a rank that is killed.
#
#   tests/gpu/ranks_cuda.sh DPRUN PROGRAM [--case NAME]... [DPRUN-OPTION...]      e.g. --share-gpu
#   tests/gpu/ranks_cuda.sh --cases                                               their names
#
# Without --case, all of them; each alone, so that one that hangs leaves the others.
set -u
cases="allreduce rows rows-program shards-0 shards-1 shards-2 shards-3 shards-program shards-check scales free steps mixed scaled abort-0 abort-1 abort-2 abort-3 abort-4 abort-5 check fp16 shared several
by-mistake kill"
[ "${1:-}" != --cases ] || { echo $cases; exit 0; }
dprun=$1 program=$2
shift 2
chosen=
while [ "${1:-}" = --case ]; do
    case " "${cases//$'\n'/ }" " in *" $2 "*) ;; *) echo "ranks_cuda.sh: no case $2" >&2; exit 2 ;; esac
    chosen+=" $2"
    shift 2
done
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

two() { # CASE ARGUMENT...: two ranks of the program
    check 0 "$what" "$dprun" -np 2 "${options[@]}" "$program" "$@"
}

options=("$@")
for what in ${chosen:-$cases}; do
    case $what in
    allreduce | rows | free | steps | mixed | scaled) two "$what" ;;
    rows-program) DP_ORDER=program two rows ;;
    shards-program) DP_ORDER=program two shards 3 ;;
    shards-check) DP_CHECK_DATA=1 two shards 3 ;;
    shards-*) two shards "${what#shards-}" ;;
    scales) two scales 2 ;; # each step's follows from the one before, which nobody has waited for
    abort-*) two abort "${what#abort-}" ;;
    check) DP_CHECK_DATA=1 two check ;; # weights compared
    # Its scale follows from the last use, so that must be over: whoever runs ahead waits.
    fp16) DP_ORDER=program DP_WIRE=fp16 two steps ;;
    shared) check 0 "$what" env DP_TEST_GPUS=1 "$dprun" -np 2 --share-gpu "$program" steps ;;
    several) # the double of NCCL takes its version from the environment
        [ ${#options[@]} = 0 ] || continue
        check 0 "$what" env DP_TEST_GPUS=1 DP_TEST_NCCL_VERSION=23004 NCCL_MULTI_RANK_GPU_ENABLE=1 "$dprun" -np 2 --share-gpu "$program" steps
        check 1 "$what" env DP_TEST_GPUS=1 NCCL_MULTI_RANK_GPU_ENABLE=1 "$dprun" -np 2 --share-gpu "$program" steps &&
            { grep -q 'ranks 0 and 1 are on one GPU of .* wants NCCL 2.30 or newer, this is 2\.' "$log" || { cat "$log"; failed=1; }; }
        ;;
    by-mistake) # where it is not asked for, it is refused with advice
        [ ${#options[@]} = 0 ] || continue
        check 1 "$what" env DP_TEST_GPUS=1 "$dprun" -np 2 "$program" steps &&
            { grep -q 'ranks 0 and 1 are on one GPU of .* dprun --share-gpu' "$log" || { cat "$log"; failed=1; }; }
        ;;
    kill) # who is left says what its optimizer has seen, and that is checked in there
        check 137 "$what" "$dprun" -np 2 "${options[@]}" --inject kill:1@10 "$program" loop 40 &&
            { grep -q 'rank 0: .* 0 half-reduced' "$log" || { echo "rank 0 says nothing"; cat "$log"; failed=1; }; }
        ;;
    esac
done
exit $failed
