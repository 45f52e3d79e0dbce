#!/usr/bin/env bash
# A rank comes to harm; every survivor learns the same cause, dprun names the right rank, nothing is
# left. Times are printed, not judged, but for a bound that only a hang exceeds.
#
#   test_ranks.sh DPRUN VICTIM HOW WHEN RANK [RANKS]
set -u
dprun=$1 victim=$2 how=$3 when=$4 rank=$5 ranks=${6:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work XDG_RUNTIME_DIR=$work
cp "$victim" "$work/victim" # a path of its own, to look for what is left
begin=$(date +%s%N)
timeout -k 5 60 "$dprun" -np "$ranks" "$work/victim" "$rank" "$how" "$when" >"$work/out" 2>"$work/err"
code=$?
ms=$((($(date +%s%N) - begin) / 1000000))
bad() { echo "FAILED: $*"; cat "$work/out" "$work/err"; exit 1; }

[ $code -ne 124 ] && [ $code -ne 137 -o "$how" = kill ] || bad "no end within 60 s"
[ $code -ne 0 ] || bad "exit code 0"
case $how in
kill) [ $code -eq 137 ] || bad "exit code $code, wanted 137" ;;
segv) [ $code -eq 139 ] || bad "exit code $code, wanted 139" ;;
exit5) [ $code -eq 5 ] || bad "exit code $code, wanted 5" ;;
esac
grep -q "dprun: FAILED  rank $rank " "$work/err" || bad "the block does not name rank $rank"
grep -q "left     0 processes" "$work/err" || bad "the block does not say that nothing is left"
pgrep -f "$work/victim" >/dev/null && bad "processes are left: $(pgrep -af "$work/victim")"
if [ "$when" = step ]; then
    learned=$(grep -o 'learned: .*' "$work/err" | sort -u)
    [ "$(printf '%s\n' "$learned" | wc -l)" = 1 ] && [ -n "$learned" ] ||
        bad "survivors learned different things: $learned"
    printf '%s' "$learned" | grep -q "rank $rank " || bad "survivors did not learn who: $learned"
    [ "$(grep -c 'learned: ' "$work/err")" -ge $((ranks - 1)) ] || [ "$how" = stop ] ||
        bad "only $(grep -c 'learned: ' "$work/err") of $((ranks - 1)) survivors told"
fi
echo "ok: $how at $when, rank $rank of $ranks: exit code $code after $ms ms"
