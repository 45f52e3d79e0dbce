#!/bin/sh
# fetch.sh - downloads training data, where there is a network.
#
#   fetch.sh shakespeare DIR     tiny Shakespeare, 1115394 bytes of text
#   fetch.sh fineweb DIR [N]     llm.c's tokenised FineWeb 10B sample: the validation shard and the
#                                first N (1) training shards of 100 million tokens, 200 MB each;
#                                gpt2 --data DIR trains on all of them
#
# A file that is already there and whole is not fetched again.
set -eu

usage() {
    sed -n '4,7p' "$0" | sed 's/^# *//' >&2
    exit 2
}

SHAKESPEARE=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
FINEWEB=https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve/main

# fetch URL FILE BYTES
fetch() {
    if [ -f "$2" ] && [ "$(wc -c <"$2")" -eq "$3" ]; then
        echo "$2: already there"
        return
    fi
    if ! curl --fail --location --retry 3 --output "$2.part" "$1"; then
        rm -f "$2.part"
        echo "$0: $1 could not be fetched" >&2
        exit 1
    fi
    bytes=$(wc -c <"$2.part")
    if [ "$bytes" -ne "$3" ]; then
        rm -f "$2.part"
        echo "$0: $1 has $bytes bytes, expected $3" >&2
        exit 1
    fi
    mv "$2.part" "$2"
    echo "$2: $bytes bytes, sha256 $(sha256sum "$2" | cut -d' ' -f1)"
}

# A shard is a header of 1024 bytes and 100 million tokens of two bytes; the trainer checks both.
SHARD_BYTES=200001024

[ $# -ge 2 ] || usage
if ! command -v curl >/dev/null 2>&1; then
    echo "$0: curl is missing; Debian and Ubuntu: apt-get install curl" >&2
    exit 1
fi
mkdir -p "$2"
case $1 in
shakespeare)
    fetch "$SHAKESPEARE" "$2/tinyshakespeare.txt" 1115394
    ;;
fineweb)
    count=${3:-1}
    fetch "$FINEWEB/fineweb_val_000000.bin" "$2/fineweb_val_000000.bin" "$SHARD_BYTES"
    i=1
    while [ "$i" -le "$count" ]; do
        name=$(printf 'fineweb_train_%06d.bin' "$i")
        fetch "$FINEWEB/$name" "$2/$name" "$SHARD_BYTES"
        i=$((i + 1))
    done
    ;;
*)
    usage
    ;;
esac
