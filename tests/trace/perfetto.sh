#!/bin/sh
# Merges a job on paper and has Perfetto's own definitions decode it: perfetto.sh DPTRACE SYNTH.
# The interpreter that has the package is $PERFETTO_PYTHON, else python3. 77 where it is missing.
set -eu
here=$(dirname "$0")
python=${PERFETTO_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$work/run" 3 10 4 16 2
"$1" merge "$work/run" -o "$work/all.pftrace"
# steps 10, three spans each, short spans 6 x 4, submits 6 x 4, launches and what they cause
"$python" "$here/perfetto_check.py" "$work/all.pftrace" || exit $?
"$1" merge "$work/run" --steps 103-104 -o "$work/part.pftrace"
"$python" "$here/perfetto_check.py" "$work/part.pftrace"
"$1" merge "$work/run" -o "$work/all.json"
"$python" -c '
import json, sys
trace = json.load(open(sys.argv[1]))
phases = {}
for event in trace["traceEvents"]: phases[event["ph"]] = phases.get(event["ph"], 0) + 1
assert phases["s"] == phases["f"] and phases["X"] > 100 and phases["C"] > 10, phases
print("json", phases)' "$work/all.json"
