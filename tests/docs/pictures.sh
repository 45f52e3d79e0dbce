#!/usr/bin/env bash
# pictures.sh - draws the timelines that README.md and docs/launch.md show, from jobs that it runs.
#
#   pictures.sh BUILD       writes docs/timeline.png, docs/timeline-machines.png and docs/data/pictures.txt
#   pictures.sh --check     1: what draws the page has changed since, or a picture is not the one that was drawn
#
# Needs a release build, chromium, the text of cmake/packages.sh and root (tests/hosts/hosts.sh), on a machine
# without other work: a step in which a rank lost its core says little. docs/timeline-gpu.png is drawn from a
# recording on a GPU and stays.
set -eu -o pipefail
export LC_ALL=C
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$(dirname "$self")")")
pictures=(docs/timeline.png docs/timeline-machines.png)

# What decides how a page looks: its script and style, its rows, and this file.
sums() {
    cd "$root"
    printf '%s  drawing\n' "$(cat launcher/dptrace/view/* launcher/dptrace/view.c launcher/dptrace/timeline.c "$self" |
        sha256sum | cut -d ' ' -f 1)"
    sha256sum "${pictures[@]}"
}

if [ "$1" = --check ]; then
    sums | diff - "$root/docs/data/pictures.txt" && exit 0
    echo "the pictures are older than the page that they show: tests/docs/pictures.sh BUILD draws them anew"
    exit 1
fi

build=$(readlink -f "$1")
job=("$build/gpt2" --preset quick --steps 60 --threads 1 --eval-batches 1)
if [ -n "${PICTURES_INSIDE:-}" ]; then # on login, one of the machines
    exec "$build/dprun" -H a:1,b:1 --timeline "$PICTURES_INSIDE:steps=20-59" "${job[@]}" --data "$2"
fi
work=$(mktemp -d "${TMPDIR:-/var/tmp}/pictures-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$root/examples/gpt2/data/kjv.sh" "$work/text"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)

draw() { # draw TRACE PNG: its fastest step, in which least came between
    local step
    step=$("$build/dptrace" report --json "$work/$1" | python3 -c '
import json, sys
steps = {}
for cell in json.load(sys.stdin)["steps"]:
    steps.setdefault(cell["step"], []).append(cell["ms"])
print(min(steps, key=lambda step: max(steps[step])))')
    (cd "$work" && "$build/dptrace" view "$1" -o page.html) # the page shows the name
    HOME=$work "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --no-first-run --user-data-dir="$work/profile" --window-size=1500,900 --screenshot="$work/drawn.png" \
        "file://$work/page.html#step=$step&light" >/dev/null 2>"$work/browser.log" || { cat "$work/browser.log"; exit 1; }
    cp "$work/drawn.png" "$root/$2"
}

"$build/dprun" -np 2 --timeline "$work/timeline.pftrace:steps=20-59" "${job[@]}" --data "$work/text"
draw timeline.pftrace docs/timeline.png
PICTURES_INSIDE=$work/machines.pftrace HOSTS_CLOCK=b:100000 HOSTS_KEEP=$work:$build timeout 280 \
    "$root/tests/hosts/hosts.sh" a b -- "$self" "$build" "$work/text"
draw machines.pftrace docs/timeline-machines.png
sums >"$root/docs/data/pictures.txt"
cat "$root/docs/data/pictures.txt"
