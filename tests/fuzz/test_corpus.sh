#!/usr/bin/env bash
# test_corpus.sh - every input of tests/fuzz/corpus is run, and a broken one is an error.
#
#   test_corpus.sh PROGRAMS    the folder with the programs fuzz_*
set -u
here=$(cd "$(dirname "$0")" && pwd)
programs=${1:?the folder with the programs}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
code=0
fail() { echo "$*"; code=1; }

read_back() { # PROGRAM CORPUS: how many inputs of the corpus it ran
    timeout -k 5 120 "$1" "$2" 0 2>"$scratch/errors" | sed -n 's/.* seeds and \([0-9]*\) of the corpus$/\1/p'
}

for corpus in "$here"/corpus/*; do
    name=$(basename "$corpus" .txt)
    program=$programs/fuzz_$name
    # Two targets are built only where their subjects are.
    [ -f "$here/fuzz_$name.c" ] || { fail "$corpus: there is no target fuzz_$name.c"; continue; }
    [ -x "$program" ] || continue
    lines=$(grep -c '^[^#]' "$corpus") ran=$(read_back "$program" "$corpus")
    [ "$lines" -gt 0 ] && [ "$ran" = "$lines" ] || fail "$corpus: $lines inputs, of which fuzz_$name ran ${ran:-none}"
done

# A torn escape and an over-long input are named by their line.
for torn in '\x4' '\q' "$(printf '%16385s' '' | tr ' ' a)"; do
    printf '# a comment\nwhole\n%s\n' "$torn" >"$scratch/torn.txt"
    "$programs/fuzz_wire" "$scratch/torn.txt" 0 >/dev/null 2>"$scratch/errors" && fail "passed: ${torn:0:20}"
    grep -q 'torn.txt:3:' "$scratch/errors" || fail "not named by its line: ${torn:0:20}: $(cat "$scratch/errors")"
done
exit $code
