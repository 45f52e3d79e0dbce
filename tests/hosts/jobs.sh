#!/usr/bin/env bash
# jobs.sh - hello, dpbench and the GPT-2 trainer on two machines of two ranks each, and the timeline of
# both machines, of which one has another clock.
#
#   jobs.sh BUILD [PAGE.html]     the page is the timeline of the trainer, for people
set -u
self=$(readlink -f "$0") here=$(dirname "$(readlink -f "$0")") build=$(readlink -f "$1")
ahead=100000 # seconds of b's clock, to the nanosecond: both machines have one clock in truth
if [ -z "${JOBS_INSIDE:-}" ]; then
    JOBS_INSIDE=1 HOSTS_CLOCK=b:$ahead HOSTS_KEEP=${HOSTS_KEEP:-$build} exec timeout 280 \
        "$here/hosts.sh" a b -- "$self" "$build" "${2:+$(readlink -f "$2")}"
fi
bad() { echo "FAILED: $*" >&2; tail -n +1 out err 2>/dev/null; exit 1; }
cd "$HOSTS_DIR" || exit 1
dprun() { timeout -k 5 120 "$build/dprun" --no-prefix -H a:2,b:2 "$@" >out 2>err; }

dprun "$build/hello" || bad "hello: code $?"
for rank in 0 1 2 3; do grep -qx "rank $rank of 4: the sum is 10" out || bad "hello: no rank $rank"; done

dprun "$build/dpbench" --max 64K || bad "dpbench: code $?"
awk '$1 ~ /^[0-9]+$/ { lines++; wrong += $7 + $12 } END { exit !(lines >= 6 && wrong == 0) }' out ||
    bad "dpbench: sums are wrong"

dprun --keep-run-dir --timeline gpt2.pftrace "$build/gpt2" --device cpu --data "$here/../../docs/testing.md" \
    --steps 8 --threads 1 || bad "gpt2: code $?"
grep -Eq '^replicas bit-equal ([1-9][0-9]*)/\1,' out || bad "gpt2: the replicas differ"

# The clocks that dprun measured are within the error that it tells.
run_dir=$(sed -n 's/.*run directory \([^ ]*\).*/\1/p' out err | head -n 1)
awk -v ahead="${ahead}000000000" '
    /^#/ { next }
    { lines[$1]++; off = $3 + ($1 >= 2 ? ahead : 0); if (off < 0) off = -off
      if (off > $4 || $4 > 1e9) { print "rank", $1, "off by", off, "told", $4; failed = 1 } }
    END { exit failed || !(lines[0] && lines[1] && lines[2] && lines[3]) }' "$run_dir/clocks" ||
    { cat "$run_dir/clocks"; bad "a clock's error is not true"; }
"$build/dptrace" info gpt2.pftrace >info || bad "dptrace info"
grep -q 'rank 3/4 b .* clock error <= [0-9.]* [um]*s' info || { cat info; bad "the clock's error is not told"; }
# On one axis: the job took seconds, not the hundred thousand between the clocks.
awk 'NR == 1 { seconds = $(NF - 1) } END { exit !(seconds > 0 && seconds < 1000) }' info ||
    { cat info; bad "the machines are not on one axis"; }
[ -z "${2:-}" ] || "$build/dptrace" view gpt2.pftrace -o "$2"
cat info
echo ok
