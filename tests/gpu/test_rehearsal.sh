#!/usr/bin/env bash
# test_rehearsal.sh - a visit as on the day, on doubles: packed from a dev build, unpacked into an
# empty root, every step run; and what it leaves can be carried away and is not taken for a result.
#
#   tests/gpu/test_rehearsal.sh BUILD
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?build folder}
for tool in patchelf strip objdump; do
    type -P $tool >/dev/null || { echo "skipped: no $tool, which pack.sh needs"; exit 77; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/dp-rehearsal-test-XXXXXX")
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    echo "test_rehearsal: $*"
    failures=$((failures + 1))
}

"$here/pack.sh" --rehearsal "$build" "$work/dp-gpu.tar.gz" || exit 1
"$here/run.sh" --rehearse "$work/dp-gpu.tar.gz" --results "$work/results" || complain "run.sh --rehearse: exit code $?"
json=$work/results/results.json
wanted=$("$here/run.sh" --list | grep -c '^   [a-h]\.')
passed=$(grep -c '"verdict":"passed"' "$json")
[ "$passed" = "$wanted" ] || complain "$passed steps passed of $wanted"
grep -q '"rehearsal": true' "$json" || complain "the results do not say that they are of a rehearsal"
! "$here/results.py" "$json" >"$work/page" 2>&1 || complain "results.py makes a page of a rehearsal"
"$here/results.py" --rehearsal "$json" >"$work/page" || complain "results.py --rehearsal"
[ "$(grep '^## ' "$work/page" | grep -vc REHEARSAL)" = 1 ] || complain "a heading does not say REHEARSAL" # but for the open questions
# A few small files with plain names, all in one folder.
[ "$(find "$work/results" -type f | wc -l)" -le 8 ] || complain "more than 8 files: $(ls "$work/results")"
odd=$(find "$work/results" -mindepth 1 \( ! -type f -o -size +16000k -o -name '*[!A-Za-z0-9._-]*' \))
[ -z "$odd" ] || complain "these cannot be carried away: $odd"
for file in timeline.html.gz timeline.pftrace.gz ncu.tar.gz table.txt; do
    [ -s "$work/results/$file" ] || complain "no $file"
done
tar -tzf "$work"/results/logs-*.tar.gz | grep -q 'c\.killed\.log$' || complain "the logs are not there"
exit $((failures != 0))
