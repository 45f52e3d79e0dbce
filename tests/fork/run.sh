#!/bin/sh
# run.sh DPRUN FORKER HOSTS - ranks that fork: their children's calls, a rank that is killed while its
# child lives on, a child that outlives its rank's world. Under dprun, on one host or several.
set -eu
dprun=$1 forker=$2 hosts=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_RUNTIME_DIR="$work" TMPDIR="$work"
export DP_PEER_TIMEOUT=400s # far above what forker.c calls soon, so that late answers are seen
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts

# check MODE CODE RANKS: dprun ends with this code, and so many ranks say that all is as it must be.
check() {
    code=0
    rm -f "$work/killed"
    "$dprun" -np 3 --pretend-nodes "$hosts" "$forker" "$1" "$work" >"$work/out" 2>&1 || code=$?
    count=$(grep -c "as it must be" "$work/out") || true
    if [ "$code" -ne "$2" ] || [ "$count" -ne "$3" ] || grep -qE "wrong:|: late$" "$work/out"; then
        sed 's/^/    /' "$work/out"
        echo "FAILED  $1 on $hosts hosts: exit code $code, $count ranks as it must be"
        exit 1
    fi
    grep "as it must be" "$work/out" || true
}
check calls 0 3
check killed 137 2
check spawned 137 2
check finalize 0 3
