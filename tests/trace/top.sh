#!/bin/sh
# dptrace top tells which rank of a running job is late, which one stands still, and when the job is over; record takes
# its next steps:
# top.sh DPRUN DPTRACE STRAGGLER
set -eu
dprun=$1 dptrace=$2 straggler=$3
work=$(mktemp -d)
job=
end() {
  [ -z "$job" ] || kill -KILL "$job" 2>/dev/null || true # its agent ends the ranks
  rm -rf "$work"
}
trap end EXIT
mkdir -m 700 "$work/runtime"
export XDG_RUNTIME_DIR="$work/runtime"

await() { # await PATTERN: until a frame has such a line; a minute at most
  i=0
  until "$dptrace" top "$job" --once >"$work/frame" 2>&1 && grep -Eq "$1" "$work/frame"; do
    i=$((i + 1))
    [ $i -lt 600 ] || { echo "FAILED: no frame has a line: $1"; cat "$work/frame"; exit 1; }
    kill -0 "$job" 2>/dev/null || { echo "FAILED: the job has ended and no frame had a line: $1"; cat "$work/frame"; exit 1; }
    sleep 0.1
  done
}

"$dprun" --no-prefix -np 2 "$straggler" 3000 >"$work/out" 2>&1 &
job=$!
await '^step [0-9]+ .*: .*skew ([5-9][0-9]|100) %'
await '^ +1 .* (9[0-9]|100)  '     # rank 1 is the late one
await '^ +0 .*waiting for layer' # and rank 0 waits for it
directory=$(sed -n 's/^\(.*\): 2 ranks, for .*/\1/p' "$work/frame")
"$dptrace" top "$directory" --once | grep -q '^step ' || { echo "FAILED: by its directory"; exit 1; }
rank=
for process in /proc/[0-9]*; do
  if grep -qs "$directory/trace.1.dpt" "$process/maps"; then rank=${process#/proc/}; fi
done
[ -n "$rank" ] || { echo "FAILED: no process has the recorder of rank 1 mapped"; exit 1; }
"$dptrace" top "$rank" --once | grep -q "^$directory: 2 ranks" || { echo "FAILED: by the process of a rank"; exit 1; }
kill -STOP "$rank"
await '^ +1 .*stopped, '
kill -CONT "$rank"
await '^ +1 [^,]*$'
# The next steps of it as a timeline.
timeout 100 "$dptrace" record "$job" --steps 2 -o "$work/steps.pftrace" 2>"$work/frame" || { echo "FAILED: record"; cat "$work/frame"; exit 1; }
steps=$(sed -n 's/.*steps \([0-9]*\) to \([0-9]*\) are recorded$/\1-\2/p' "$work/frame")
[ $((${steps#*-} - ${steps%-*})) = 1 ] || { echo "FAILED: not two steps"; cat "$work/frame"; exit 1; }
"$dptrace" info "$work/steps.pftrace" >"$work/frame"
[ "$(grep -c "steps $steps," "$work/frame")" = 2 ] || { echo "FAILED: not steps $steps of two ranks"; cat "$work/frame"; exit 1; }
timeout 60 "$dptrace" top "$job" --every 0.1 >"$work/frames" &
watcher=$!
await '^step '
kill -TERM "$job"
wait "$watcher" || { echo "FAILED: top of a job that ends"; tail -5 "$work/frames"; exit 1; }
tail -1 "$work/frames" | grep -q 'the job has ended' || { echo "FAILED: the end is not told"; tail -5 "$work/frames"; exit 1; }
wait "$job" || true # SIGTERM ended it
for nothing in "$job" "$directory" nonsense; do
  if "$dptrace" top "$nothing" --once >"$work/frame" 2>&1; then echo "FAILED: top $nothing of no job"; exit 1; fi
done
job=
echo "top: ok"
