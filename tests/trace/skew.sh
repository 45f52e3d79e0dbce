#!/bin/sh
# A late rank is called late, and named, in every order, of the world and of a group, and on one node and two: skew.sh DPRUN DPTRACE STRAGGLER.
# The report and the statistics of a rank that waits both say how long it was.
set -eu
dprun=$1 dptrace=$2 straggler=$3
late=40 # ms a step; what the ranks of a busy machine wait for each other is less
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

job() { # job LATE OPTION...: writes $work/report and $work/figures
  late_ms=$1
  shift
  # shellcheck disable=SC2086
  timeout -k 5 60 "$dprun" --no-prefix --timeline "$work/t.pftrace" "$@" "$straggler" "$late_ms" $group >"$work/figures" ||
    { echo "FAILED: dprun $* ended with $?"; exit 1; }
  "$dptrace" report "$work/t.pftrace" >"$work/report"
  if ! grep -q '^first *find out why rank 1 ' "$work/report"; then
    echo "FAILED: $*: the report does not name rank 1 first"
    cat "$work/figures" "$work/report"
    exit 1
  fi
}

for world in "-np 2" "-np 3" "-np 2 --pretend-nodes 2" "-np 3 --pretend-nodes 2"; do
  for order in "--order negotiated" "--order program" group; do
    group= options=$order
    [ "$order" != group ] || { group=ordered options=; }
    # shellcheck disable=SC2086
    job $late $world $options
    awk -v late=$late -v what="$world $order" '
      FILENAME ~ /figures/ && /^wait/ { wait = $2; told = $4; transfer = $6 }
      FILENAME ~ /report/ && $1 == "skew" { skew = $2 }
      FILENAME ~ /report/ && /^communication/ { moved = $2 }
      END {
        printf "%s: of %.1f ms of waiting %.1f skew, %.1f by the report; transfer %.1f and %.1f ms\n", what, wait, told, skew, transfer, moved
        if (skew < 0.6 * late || skew > 2.5 * late) { print "FAILED: the skew of the report"; exit 1 }
        if (told < 0.6 * late || told > 2.5 * late || told > wait) { print "FAILED: the skew of dp_stats"; exit 1 }
        if (transfer > late || moved > late) { print "FAILED: the wait counts as transfer"; exit 1 }
      }' "$work/figures" "$work/report"
  done
done
group=
# Submitted in time, and late all the same: the data plane of rank 1 comes 8 ms late to each operation.
job 0 -np 2 --order program --inject slow:1@engine=8ms
