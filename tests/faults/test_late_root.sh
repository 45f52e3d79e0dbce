#!/bin/bash
# test_late_root.sh DPRUN VICTIM - a node's leader stands still, and the root, which alone can tell its
# own node of that, finds it later than the rank below the leader, which then has left already.
#
# Root and leader are stopped: the leader for good, the root while it counts the leader's silence, so
# that it counts anew. Every rank that learns a cause must name the leader all the same.
set -u
dprun=$(realpath "$1") victim=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' TERM INT
mkdir -m 700 "$work/run"
export XDG_RUNTIME_DIR=$work/run TMPDIR=$work/run DP_FUSION_BYTES=1M
unset DP_RANK DP_SIZE
cd "$work" || exit 1

say_failed() {
    echo "FAILED  $1"
    sed 's/^/        /' err
    exit 1
}

# Ranks 0 and 1, 2 and 3 are nodes. Each tells its process.
DP_INJECT=stop:2@engine/7 timeout -k 5 90 "$dprun" -np 4 --pretend-nodes 2 \
    sh -c 'echo $$ >pid.$DP_RANK; exec "$@"' sh "$victim" 1000 . >out 2>err </dev/null &
job=$!
for _ in $(seq 1500); do
    grep -q 'stop at engine' err && break
    sleep 0.02
done
sleep 1.2
root=$(cat pid.0)
kill -STOP "$root"
sleep 1.2
kill -CONT "$root"
wait $job
code=$?

grep -q 'stop at engine' err || say_failed "the leader was not stopped"
[[ $code == [34] ]] || say_failed "exit code $code, wanted that of a survivor"
grep -q '^\[3\] learned: DP_ERR_PEER_LOST: rank 2 ' err || say_failed "the rank below the leader learned nothing"
grep '\] learned: ' err | grep -qv 'learned: DP_ERR_PEER_LOST: rank 2 .*: no sign of life' &&
    say_failed "a survivor names another cause"
grep -q '^dprun: FAILED  rank 2 ' err || say_failed "the block names another rank"
echo "ok      $(grep -c '\] learned: ' err) survivors name the leader"
