#!/bin/sh
# run.sh BUILD - a whole comparison of three rows at preset tiny: it makes a page, goes on in its
# folder without a run, and refuses a folder of another configuration and what cannot work.
set -eu

build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpcompare-XXXXXX")
trap 'rm -rf "$work"' EXIT
command="$build/dpcompare --quick --preset tiny --steps 8 --seeds 1 --ranks 1,2 --peers none"

# refused TEXT FLAGS...: it says so in one line, and runs nothing
refused() {
    text=$1
    shift
    if $command --out "$work/out" --rows single,dps,zero1 "$@" >"$work/refused" 2>&1; then
        echo "run.sh: not refused: $*" >&2
        exit 1
    fi
    grep -q "$text" "$work/refused" && [ "$(wc -l <"$work/refused")" = 1 ] || {
        cat "$work/refused" >&2
        echo "run.sh: $* should have said: $text" >&2
        exit 1
    }
}

$command --out "$work/out" --rows single,dps,zero1 >"$work/first" 2>&1 || { cat "$work/first" >&2; exit 1; }
for file in report.html summary.json runs.csv config.json; do
    [ -s "$work/out/$file" ] || { echo "run.sh: no $file" >&2; exit 1; }
done
grep -q '"gate": "checkpoint.s bytes"' "$work/out/summary.json"
if grep -q 'https\?://[^w]' "$work/out/report.html"; then echo "run.sh: the page wants a network" >&2; exit 1; fi
$command --out "$work/out" --rows single,dps,zero1 >"$work/second" 2>&1
[ "$(grep -c 'made before' "$work/second")" = "$(grep -c '^\[' "$work/first")" ]

refused "measured with other" --threads 2
refused "did you mean zero" --rows dps,zerro3
refused "does not divide by 3" --ranks 3
refused "no such link" --links 3g
refused "there is no gpt2 in" --build "$work"
refused "needs dps" --rows single
echo "run.sh: all as expected"
