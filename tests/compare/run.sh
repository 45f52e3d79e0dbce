#!/bin/sh
# run.sh BUILD - a whole comparison of three rows at preset tiny: it makes a page, goes on in its
# folder without a run, goes on where it was interrupted or killed, and refuses a folder of another
# configuration and what cannot work.
set -eu

build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpcompare-XXXXXX")
trap 'rm -rf "$work"' EXIT
# Pictures take most of a page's time: the first page has them, the others are made as by a Python without
# Matplotlib.
mkdir "$work/bare"
echo 'raise ImportError("hidden by run.sh")' >"$work/bare/matplotlib.py"
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
for python in python3 /usr/bin/python3; do # as dpcompare looks for one
    "$python" -c 'import matplotlib' 2>/dev/null || continue
    grep -q '<svg' "$work/out/report.html" || { echo "run.sh: a page without pictures" >&2; exit 1; }
    break
done
export PYTHONPATH="$work/bare${PYTHONPATH:+:$PYTHONPATH}"
$command --out "$work/out" --rows single,dps,zero1 >"$work/second" 2>&1
grep -q 'no pictures: hidden by run.sh' "$work/second"
if grep -q '<svg' "$work/out/report.html"; then echo "run.sh: pictures without Matplotlib" >&2; exit 1; fi
[ "$(grep -c 'made before' "$work/second")" = "$(grep -c '^\[' "$work/first")" ]

grep -q '"waking up": ' "$work/out/summary.json" # a wait that the timeline alone knows

# interrupted SIGNAL: it leaves in the middle, keeps what was made, and the same command goes on.
# With so many turns it cannot be over before the signal; turns are no part of a folder's configuration. Without
# runs of the wide model, which two ranks would have: what is interrupted there is the same.
interrupted() {
    "$build/dpcompare" --quick --preset tiny --steps 8 --seeds 100 --ranks 1 --peers none \
        --rows single,dps,zero1 --out "$work/left" >"$work/left.log" 2>&1 &
    pid=$!
    before=$(find "$work/left/runs" -name '*.json' 2>/dev/null | wc -l)
    tries=0
    until [ "$(find "$work/left/runs" -name '*.json' 2>/dev/null | wc -l)" -ge $((before + 2)) ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] && kill -0 $pid || {
            cat "$work/left.log" >&2
            echo "run.sh: no two runs were made" >&2
            exit 1
        }
        sleep 0.1
    done
    kill -"$1" $pid
    wait $pid && { echo "run.sh: not interrupted by $1" >&2; exit 1; }
    return 0
}
interrupted TERM
grep -q 'what was measured is kept' "$work/left.log"
for base in /dev/shm "$work/left"; do
    [ ! -e "$base/dpcompare-$pid" ] || { echo "run.sh: $base/dpcompare-$pid is left" >&2; exit 1; }
done
interrupted KILL
$command --ranks 1 --out "$work/left" --rows single,dps,zero1 >"$work/again" 2>&1 || { cat "$work/again" >&2; exit 1; }
[ "$(grep -c 'made before' "$work/again")" -ge 4 ]
for base in /dev/shm "$work/left"; do
    [ ! -e "$base/dpcompare-$pid" ] || { echo "run.sh: $base/dpcompare-$pid is left for good" >&2; exit 1; }
done

refused "measured with other" --threads 2
refused "did you mean zero" --rows dps,zerro3
refused "does not divide by 3" --ranks 3
refused "no such link" --links 3g
refused "there is no gpt2 in" --build "$work"
refused "needs dps" --rows single
echo "run.sh: all as expected"
