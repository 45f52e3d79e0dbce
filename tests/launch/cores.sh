#!/usr/bin/env bash
# Whether ranks know that each of them has a core: bound apart, bound together, not bound.
#
#   cores.sh DPRUN MEMBER
set -u
dprun=$1 member=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export TMPDIR=$work DP_LOG=debug
export DP_FUSION_BYTES=1M # a job need not fill 96 MiB when it starts
bad() { echo "FAILED: $*"; tail -n 30 out err; exit 1; }

# The cores this test may use, one per line; a quota below two cores decides before any binding does.
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
    awk -F- '{for (i = $1; i <= (NF > 1 ? $2 : $1); i++) print i}')
[ "${#cores[@]}" -ge 2 ] || { echo "skipped: one core alone"; exit 77; }
if "$dprun" --check 2>&1 | grep -qE '^ *cores.* 1 of'; then echo "skipped: a quota of one core"; exit 77; fi

# each CORES DP.. COMMAND...: what both ranks say of their cores
each() {
    local expected=$1
    shift
    "$@" >out 2>err || bad "$*: code $?"
    [ "$(grep -c "ranks on this machine 2, cores for each $expected" err)" = 2 ] ||
        bad "$*: both ranks should say $expected: $(grep -o 'cores for each.*' err)"
}
bound() { # each rank at the core that its place in the list says
    printf '%s\n' 'core=("$@"); exec taskset -c "${core[$DP_RANK]}" "$MEMBER"' >rank
    MEMBER=$member "$dprun" -np 2 bash -c "$(cat rank)" rank "$@"
}
each 1 bound "${cores[0]}" "${cores[1]}"
each 0 bound "${cores[0]}" "${cores[0]}"
each 1 bound "${cores[0]}" "${cores[0]},${cores[1]}" # the second can stay on the other core
if [ "${#cores[@]}" -ge 4 ]; then
    each 2 bound "${cores[0]},${cores[1]}" "${cores[2]},${cores[3]}"
    each 2 "$dprun" -np 2 "$member"
else
    each 1 taskset -c "${cores[0]},${cores[1]}" "$dprun" -np 2 "$member"
fi
each 0 taskset -c "${cores[0]}" "$dprun" -np 2 "$member"
