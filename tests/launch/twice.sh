#!/usr/bin/env bash
# An option that is given twice: the last one counts, so that a wrapper's caller can change what the wrapper
# says, and a line names both values where they differ. The same in every program.
#
#   twice.sh BUILD
set -u
build=$(readlink -f "$1")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_|SLURM_|PMI_|PMIX_|OMPI_)[A-Z0-9_]*')

bad() { echo "FAILED: $*"; cat all; exit 1; }
# row NAME FIRST LAST EFFECT PROGRAM ARGUMENTS...: @ among these is the place of the options; EFFECT is in a line
# that the program prints, and shows that LAST counts
row() {
    local name=$1 first=$2 last=$3 effect=$4 program=$build/$5 words=() word
    shift 5
    [ -x "$program" ] || { echo "no $program: not tried"; return; }
    for value in "$first" "$last"; do
        words=()
        for word in "$@"; do
            if [ "$word" = @ ]; then words+=("$name" "$value" "$name" "$last"); else words+=("$word"); fi
        done
        timeout -k 5 60 "$program" "${words[@]}" >all 2>&1
        grep -qE -- "$effect" all || bad "$program: $last does not count"
        if [ "$value" = "$last" ]; then
            grep twice all && bad "$program: a line about nothing"
        else
            grep -q -- "$name is given twice, $first and $last: the last one counts" all || bad "$program: no line names both values"
        fi
    done
}

seq 4000 >text
run=$(TMPDIR=$work XDG_RUNTIME_DIR='' "$build/dprun" -np 1 --keep-run-dir "$build/hello" 2>&1 | sed -n 's/.*run directory \([^ ]*\) .*/\1/p')
row -np 3 2 '^job +2 ranks' dprun @ --dry-run true
row --fusion-bytes 1M 2M '^ +DP_FUSION_BYTES=2M' dprun -np 1 @ --dry-run true
row --min 8 4 '^ +4 ' dpbench @ --max 4 --iterations 1
row --steps 3 1 '^step +1/1 ' gpt2 --data text @ --eval-batches 1
row --output one.pftrace two.pftrace 'two.pftrace: 1 ranks' dptrace merge "$run" @
echo ok
