#!/bin/sh
# Opens the page of a million events in a headless Chromium: browser.sh DPTRACE SYNTH [PICTURES].
# It must decode all of them, paint, and find; how long a frame took is printed, and judged by people.
# 77 where there is no browser.
set -eu
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; break; fi
done
[ -n "$browser" ] || { echo "skipped: no chromium"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pictures=${3:-$work}

show() { # show PAGE#HASH options...
  page=$1
  shift
  HOME=$work "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --hide-scrollbars --no-first-run --user-data-dir="$work/profile" --window-size=1600,1000 \
    "$@" "file://$page" 2>"$work/browser.log"
}
attribute() { # attribute FILE NAME: of the page's root
  sed -n "s/.*<html[^>]* data-$2=\"\([0-9.]*\)\".*/\1/p" "$1" | head -1
}
fail() { echo "FAILED: $*"; tail -5 "$work/browser.log"; exit 1; }

"$2" "$work/big" 8 500 32 64 3
"$1" view "$work/big" -o "$work/big.html"
grep -q '://' "$work/big.html" && fail "the page mentions an address"
show "$work/big.html#bench" --dump-dom >"$work/big.dom" || fail "the browser ended with $?"
events=$(attribute "$work/big.dom" events)
[ -n "$(attribute "$work/big.dom" ready)" ] || fail "the script did not reach its end"
[ "${events:-0}" -ge 1000000 ] || fail "${events:-no} events, expected a million"
[ "$(attribute "$work/big.dom" slopes)" = 0 ] || fail "counters are drawn with $(attribute "$work/big.dom" slopes) slopes"
echo "events $events, load $(attribute "$work/big.dom" load-ms) ms," \
  "frame median $(attribute "$work/big.dom" frame-ms) ms, p95 $(attribute "$work/big.dom" frame-p95-ms) ms"

"$2" "$work/run" 4 20 0 16 5
"$1" merge "$work/run" -o "$work/run.pftrace"
"$1" view "$work/run.pftrace" -o "$work/run.html"
show "$work/run.html#step=105&find=wte.4" --dump-dom >"$work/run.dom" || fail "the browser ended with $?"
grep -q 'on every rank' "$work/run.dom" || fail "the search selected no bucket"
grep -q '+5.00 ms' "$work/run.dom" || fail "the panel does not show rank 3 5 ms late"
for look in light dark; do
  show "$work/run.html#step=105&$look" --screenshot="$pictures/timeline-$look.png" >/dev/null ||
    fail "no picture"
  [ "$(wc -c <"$pictures/timeline-$look.png")" -gt 30000 ] || fail "the $look picture is empty"
done
