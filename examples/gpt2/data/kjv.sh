#!/bin/sh
# kjv.sh OUT - writes the King James text (public domain, 4.4 MB) from Debian's package bible-kjv.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 OUT    writes the King James text to the file OUT" >&2
    exit 2
fi
if ! command -v bible >/dev/null 2>&1; then
    echo "$0: the program bible is missing; Debian and Ubuntu: apt-get install bible-kjv" >&2
    exit 1
fi
part="$1.part"
trap 'rm -f "$part"' EXIT
# Unpacked below a prefix, the program has to be told where its data are.
if [ -n "${BIBLE_PREFIX:-}" ] && [ -r "$BIBLE_PREFIX/usr/lib/bible.data" ]; then
    bible -p "$BIBLE_PREFIX/usr/lib" -f 'Gen1:1-Rev22:21' >"$part"
else
    bible -f 'Gen1:1-Rev22:21' >"$part"
fi
bytes=$(wc -c <"$part")
if [ "$bytes" -lt 4000000 ]; then
    echo "$0: bible wrote $bytes bytes, expected about 4400000" >&2
    exit 1
fi
# One verse per line in plain ASCII; anything else would waste vocabulary.
strange=$(LC_ALL=C tr -d '\n -~' <"$part" | wc -c)
if [ "$strange" -ne 0 ]; then
    echo "$0: $strange bytes of the text are not printable ASCII" >&2
    exit 1
fi
mv "$part" "$1"
