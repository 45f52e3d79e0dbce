#!/usr/bin/env bash
# Output that nobody reads, or that finds no room, harms no job: dprun serves signals, deadlines and
# the end of ranks meanwhile, and says what was lost.
#
#   output.sh DPRUN MEMBER UNREAD CASE
set -u
dprun=$1 member=$2 unread=$3 case=$4
work=$(mktemp -d)
trap 'kill -9 $(jobs -p) $(cat "$work"/pid* 2>/dev/null) 2>/dev/null; umount "$work/small" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
export TMPDIR=$work XDG_RUNTIME_DIR=$work
while read -r name; do unset "$name"; done < <(env | grep -Eo '^(DP_|SLURM_|PMI_|PMIX_|OMPI_)[A-Z0-9_]*')

bad() { echo "FAILED: $case: $*"; tail -n 20 "$work"/out* "$work"/err* 2>/dev/null; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
# ends CODE COMMAND...: with that code
ends() {
    local want=$1 code; shift
    "$@"; code=$?
    [ $code = "$want" ] || bad "code $code, expected $want: $*"
}
expect() { grep -qF -- "$2" "$1" || bad "'$2' is not in $1"; }

case $case in
long) # lines of up to 1 MiB: whole, and without a prefix byte for byte
    for rank in 0 1 2; do head -c $((700000 + rank)) /dev/zero | tr '\0' $rank; echo; done >lines
    for rank in 0 1 2; do sed -n $((rank + 1))p lines >line.$rank; done
    printf 'a\r\nb\rc\n\n\r\0\xff\xc3' | cat - line.0 >raw; printf 'no newline' >>raw
    ends 0 "$dprun" -np 1 --no-prefix cat raw >out; cmp raw out || bad "--no-prefix is not exact"
    ends 0 "$dprun" -np 1 --no-prefix sh -c 'cat raw >&2' 2>out; cmp raw out || bad "--no-prefix is not exact on stderr"
    for rank in 0 1 2; do sed "s/^/[$rank] /" line.$rank line.$rank; echo "[$rank] short"; done | sort >want
    for ((i = 0; i < 5; i++)); do # all at once, on both outputs into one file
        ends 0 "$dprun" -np 3 sh -c 'cat line.$DP_RANK; echo short; cat line.$DP_RANK >&2' >out 2>&1
        sort out | cmp - want || bad "not whole"
        ends 0 "$dprun" -np 3 --no-prefix sh -c 'cat line.$DP_RANK' >out
        sort out | cmp - lines || bad "--no-prefix: not whole"
    done
    # A longer one that stops in its line: others go on, and the rest of the line says whose it is.
    timeout 60 "$dprun" -np 2 sh -c 'if [ $DP_RANK = 1 ]; then until [ -s out ]; do sleep 0.02; done; echo hello; exit; fi
        cat line.0 line.0 | tr -d "\n"; until grep -q hello out; do sleep 0.02; done; echo end' >out || bad "code $?"
    grep -qxF '[1] hello' out || bad "hello is in a line of rank 0"
    grep -qxE '\[0\]\+ 0+end' out || bad "the rest of rank 0's line"
    [ "$(sed -n 's/^\[0\]+* //p' out | tr -cd 0 | wc -c)" = 1400000 ] || bad "not all of rank 0's line" ;;
signal) # a terminal and a pipe that nobody reads, full of a rank's output
    for kind in pty pipe; do ends 143 "$unread" -s 15 $kind 30 "$dprun" -np 2 yes; done ;;
timeout)
    ends 124 "$unread" -f pty 30 "$dprun" --timeout 1s -np 2 yes ;;
foreign) # a terminal that this user may not open again
    [ "$(id -u)" = 0 ] || skip "only root can start a program on a terminal of another user"
    chmod 755 "$work"; mkdir -m 777 theirs; export TMPDIR=$work/theirs XDG_RUNTIME_DIR=$work/theirs
    test -x "$dprun" && setpriv --reuid 65534 --clear-groups test -x "$dprun" || skip "no way to dprun for others"
    ends 143 "$unread" -u 65534 -s 15 pty 30 "$dprun" -np 2 yes ;;
failure) # a rank fails: the other is ended although dprun cannot say so yet
    "$unread" -f pty 60 "$dprun" -np 2 sh -c \
        'if [ $DP_RANK = 0 ]; then echo $$ >'"$work"'/pid0; exec yes; fi; until [ -s '"$work"'/pid0 ]; do sleep 0.01; done; exit 3' &
    watcher=$!
    for ((i = 0; i < 1500; i++)); do
        [ -s pid0 ] && ! kill -0 "$(cat pid0)" 2>/dev/null && break
        sleep 0.02
    done
    [ -s pid0 ] || bad "rank 0 did not start"
    kill -0 "$(cat pid0)" 2>/dev/null && bad "rank 0 runs on"
    kill $watcher; wait $watcher 2>/dev/null ;;
log) # the library's own lines: torchrun's ranks, whose standard error is full
    rank_of_2() {
        RANK=$1 WORLD_SIZE=2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 \
            TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 DP_LOG=debug \
            "$unread" -f -2 "$2" 40 "$member" 2 >"out$1"
    }
    for kind in pipe pty; do
        rank_of_2 0 $kind & pid=$!
        rank_of_2 1 $kind || bad "rank 1: code $?"
        wait $pid || bad "rank 0: code $?"
        for rank in 0 1; do [ "$(grep -c "rank $rank of 2, .* sum 3" "out$rank")" = 2 ] || bad "rank $rank"; done
    done ;;
full)
    ends 125 "$dprun" -np 2 echo hello >/dev/full 2>err
    expect err "writing output: No space left on device"
    ends 125 "$dprun" -np 2 sh -c 'echo hello >&2' >out 2>/dev/full
    ends 3 "$dprun" -np 2 sh -c 'echo hello; exit 3' >/dev/full 2>err # a rank's own code says more
    ends 0 "$dprun" -np 2 true >/dev/full 2>err
    mkdir small; mount -t tmpfs -o size=16k none small 2>/dev/null || { echo "no mount: not tried with --output-dir"; exit 0; }
    ends 125 "$dprun" -np 2 --quiet --output-dir small/out head -c 40000 /dev/zero >out 2>err
    expect err "No space left on device; not all output is saved" ;;
*) bad "no such case" ;;
esac
[ "$case" = failure ] || [ -z "$(find "$work" -name 'dprun-*')" ] || [ "$case" = full ] || bad "left: $(find "$work" -name 'dprun-*')"
echo "ok: $case"
