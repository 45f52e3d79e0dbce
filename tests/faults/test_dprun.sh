#!/bin/bash
# test_dprun.sh - drives the real dprun with tiny shell programs: exit codes, output, signals,
# failures, and that nothing is ever left behind.
#
# usage: test_dprun.sh DPRUN. Prints one line per claim; exits 1 when one does not hold.
# Waits are for events, with a limit that only a broken dprun reaches.
set -u
dprun=$1
mark="8$$" # an argument of sleep that no other process on this machine has
work=$(mktemp -d)
export XDG_RUNTIME_DIR="$work/runtime" TMPDIR="$work/runtime"
mkdir -m 700 "$XDG_RUNTIME_DIR"
failed=0
unset DP_RANK DP_SIZE

pid=
cleanup() {
    [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null # its agent ends the job
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' TERM INT

pass() { echo "ok      $1"; }
fail() {
    echo "FAILED  $1"
    shift
    for text in "$@"; do echo "        $text"; done
    for file in out err; do
        [ -f "$work/$file" ] && sed "s/^/        $file: /" "$work/$file" | head -30
    done
    failed=1
}

# check NAME CONDITION...: a test(1) expression
check() {
    name=$1
    shift
    if [ "$@" ]; then pass "$name"; else fail "$name" "not true: $*"; fi
}
has() { # has NAME FILE PATTERN
    if grep -qE -- "$3" "$work/$2"; then pass "$1"; else fail "$1" "no line matches: $3"; fi
}
run() { # runs dprun, keeps out, err and code
    "$dprun" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}
marked() { # processes with the mark as an argument; the bracket hides grep itself
    grep -lsxz -- "[8]${mark#8}" /proc/[0-9]*/cmdline | wc -l
}
wait_for() { # wait_for COMMAND...: until it holds; a minute at most
    for _ in $(seq 1200); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}
has_marked() { [ "$(marked)" = "$1" ]; }
wait_marked() { # wait_marked COUNT: until that many are there
    wait_for has_marked "$1" || fail "$1 processes with the mark" "there are $(marked)"
}
has_no_file() { [ -z "$(ls -A "$XDG_RUNTIME_DIR")" ]; }
nothing_left() { # nothing_left NAME
    wait_for has_marked 0
    check "$1: no process left" "$(marked)" = 0
    wait_for has_no_file # an agent whose dprun was killed tidies up a moment later
    check "$1: no file left" -z "$(ls -A "$XDG_RUNTIME_DIR")"
}

# ---- exit codes -----------------------------------------------------------------------------
run -np 3 true
check "success exits with 0" "$code" = 0
check "success is silent" ! -s "$work/err"
run -np 2 sh -c 'exit $((DP_RANK * 7))'
check "the exit code is the failed rank's" "$code" = 7
run -np 2 sh -c 'kill -SEGV $$'
check "a signal exits with 128 + signal" "$code" = 139
run -np 2
check "a missing program exits with 2" "$code" = 2
run -np 2000 true
check "too many ranks exit with 2" "$code" = 2
run true
check "a missing -np exits with 2" "$code" = 2
run -np 1 no-such-program-anywhere
check "a program not found exits with 127" "$code" = 127
echo text >"$work/plain"
run -np 1 "$work/plain"
check "a program not executable exits with 126" "$code" = 126
printf '\177ELF garbage' >"$work/broken"
chmod +x "$work/broken"
run -np 2 "$work/broken"
check "a program that cannot be executed exits with 126" "$code" = 126
has "and the report says why" err 'could not be started: .*[Ff]ormat'
run --fusion-byte 1M -np 1 true
check "an unknown flag exits with 2" "$code" = 2
has "and names the nearest" err 'did you mean --fusion-bytes'
run --fusion-bytes 1 -np 1 true
check "a value out of range exits with 2" "$code" = 2
run --inject kil:1 -np 1 true
check "a fault that is none exits with 2" "$code" = 2
has "and shows what is possible" err 'DP_INJECT: .kil:1. is no fault that is known; possible are WHAT:RANK'
run --config "$work/none" -np 1 true
check "a missing --config file exits with 2" "$code" = 2

# ---- what a rank sees -----------------------------------------------------------------------
run -np 3 sh -c 'echo "$DP_RANK/$DP_SIZE/$DP_LOCAL_RANK/$DP_LOCAL_SIZE/$DP_BOOTSTRAP_FD"'
has "a rank knows who it is" out '^\[2\] 2/3/2/3/200$'
run -np 2 sh -c 'echo "$OMP_NUM_THREADS/$UCX_DEBUG_SIGNO/${UCX_ERROR_SIGNALS-unset}"'
has "threads and UCX are set" out '^\[0\] [1-9][0-9]*/0/$'
OMP_NUM_THREADS=77 run -np 1 sh -c 'echo $OMP_NUM_THREADS'
has "what the user set stays" out '^\[0\] 77$'
run -np 1 --fusion-bytes 64M --no-trace -x A='b c' sh -c 'echo "$DP_FUSION_BYTES/$DP_TRACE/$A"'
has "flags become variables" out '^\[0\] 64M/0/b c$'
echo 'fusion-buffers = 5 # a comment' >"$work/config"
run -np 1 --config "$work/config" sh -c 'echo "$DP_FUSION_BUFFERS"'
has "lines of a --config file become variables" out '^\[0\] 5$'
DP_FUSION_BUFFERS=6 run -np 1 --config "$work/config" sh -c 'echo "$DP_FUSION_BUFFERS"'
has "a variable wins over the file" out '^\[0\] 6$'
run -np 1 sh -c 'test -d "$DP_RUN_DIR" && stat -c %a "$DP_RUN_DIR"'
has "the run directory is private" out '^\[0\] 700$'
run -np 1 sh -c 'ulimit -n'
has "the file limit is the user's" out "^\\[0\\] $(ulimit -n)\$"
descriptors='ls /proc/self/fd | sort -n | tr "\n" " "'
expected=$( (sh -c "$descriptors; echo") </dev/null 2>/dev/null | tr ' ' '\n')
run -np 1 --no-prefix sh -c "$descriptors"
check "a rank has the caller's descriptors and its ticket" \
    "$(echo $( (echo "$expected"; echo 200) | sort -n))" = "$(echo $(cat "$work/out"))"
nothing_left "after success"

# ---- input ----------------------------------------------------------------------------------
echo "line for zero" | "$dprun" -np 2 cat >"$work/out" 2>"$work/err"
check "standard input goes to rank 0 only" "$(cat "$work/out")" = "[0] line for zero"
echo "line for one" | "$dprun" -np 2 --stdin 1 cat >"$work/out" 2>"$work/err"
check "or to the rank named" "$(cat "$work/out")" = "[1] line for one"
echo "line" | "$dprun" -np 2 --stdin none cat >"$work/out" 2>"$work/err"
check "or to none" ! -s "$work/out"
"$dprun" -np 2 sh -c 'echo here' >"$work/out" 2>"$work/err" <&-
check "a closed standard input does no harm" "$(grep -c here "$work/out")" = 2

# ---- output ---------------------------------------------------------------------------------
cat >"$work/chatty" <<'END'
i=0
while [ $i -lt 400 ]; do
    printf 'out %s %s ' $DP_RANK $i
    printf 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx end\n'
    i=$((i + 1))
done
echo "err $DP_RANK" >&2
printf 'no newline'
END
run -np 8 sh "$work/chatty"
check "eight chatty ranks lose no line" "$(wc -l <"$work/out")" = 3208
check "and lines are whole" "$(grep -cE '^\[([0-7])\] out \1 [0-9]+ x{52} end$' "$work/out")" = 3200
check "and in order" "$(grep '^\[5\] out' "$work/out" | awk '{ if ($4 != NR - 1) bad++ } END { print bad + 0 }')" = 0
check "an open last line is shown" "$(grep -cE '^\[[0-7]\] no newline$' "$work/out")" = 8
check "standard error stays apart" "$(grep -cE '^\[[0-7]\] err [0-7]$' "$work/err")" = 8
run -np 1 --no-prefix printf 'plain\n'
check "--no-prefix" "$(cat "$work/out")" = plain
run -np 1 --timestamps echo text
has "--timestamps" out '^\+[0-9]{2}:[0-9]{2}\.[0-9]{3} \[0\] text$'
run -np 1 --quiet echo text
check "--quiet" ! -s "$work/out"
run -np 2 --color always echo text
check "--color always colours" "$(grep -c "$(printf '\033')" "$work/out")" = 2
run -np 1 printf 'a\000b\377c\n'
check "bytes pass through" "$(od -An -tx1 <"$work/out" | tr -d ' \n')" = 5b305d20610062ff630a
run -np 1 printf 'one\rtwo\r\nthree\n'
check "progress lines become lines in a file" "$(tr '\n' '|' <"$work/out")" = "[0] one|[0] two|[0] three|"
run -np 2 --quiet --output-dir "$work/logs" sh -c 'echo out; echo err >&2'
check "--output-dir has both streams" "$(cat "$work/logs/rank.1.out" "$work/logs/rank.1.err" | tr '\n' ' ')" = "out err "
run -np 1 --quiet --output-dir /proc/nowhere true
check "an --output-dir that cannot be made exits with 2" "$code" = 2

report=$work/report.json
field() { # field NAME: of the report, which has to be JSON
    python3 -c 'import json, sys; print(eval("r" + sys.argv[2], {"r": json.load(open(sys.argv[1]))}))' "$report" "$1" 2>&1 | tail -1
}
if command -v python3 >/dev/null; then
    run -np 3 --report "$report" sh -c 'echo "a \"line\""; [ $DP_RANK != 1 ] || kill -9 $$; exec sleep 60'
    check "--report names the cause" "$(field '["outcome"], r["exit_code"], r["cause"]["rank"], r["cause"]["kind"], r["cause"]["output"]')" = "('failed', 137, 1, 'killed', ['a \"line\"'])"
    check "--report has the end of each rank" "$(field '["ends"][1]["signal"], [e["told_to_end"] for e in r["ends"]]')" = "('SIGKILL', [True, False, True])"
    check "--report has the block" "$(field '["text"].splitlines()[0][:21]')" = "dprun: FAILED  rank 1"
    run -np 2 --report "$report" true
    check "--report of a job that went well" "$(field '["outcome"], r["exit_code"], "cause" in r, [e["exit_code"] for e in r["ends"]]')" = "('succeeded', 0, False, [0, 0])"
    run -np 2 --report "$report" --timeout 0.2 sleep 60
    check "--report of a job that took too long" "$(field '["outcome"], r["exit_code"], r["processes_left"]')" = "('timeout', 124, 0)"
    # torchrun reads it of a process that it has started: it is there only where the job failed.
    rm -f "$report"; export TORCHELASTIC_ERROR_FILE=$report
    run -np 2 true
    check "no file for torchrun of a job that went well" ! -e "$report"
    run -np 2 sh -c 'exit 3'
    check "torchrun's file" "$(field '["message"].startswith("dprun: FAILED  rank "), r["timestamp"] > 1e9')" = "(True, True)"
    run -np 2 ./none-such
    check "torchrun's file of a job that was not started" "$(field '["message"]')" = "$(sed 's/^dprun: //' "$work/err")"
    unset TORCHELASTIC_ERROR_FILE
    run -np 2 --report "$report" ./none-such
    check "--report of a job that was not started" "$(field '["outcome"], r["exit_code"], "none-such" in r["error"]')" = "('not_started', 127, True)"
fi
run -np 1 --report "$work/report.txt" sh -c 'exit 3'
check "--report of another name is the text" "$(cat "$work/report.txt")" = "$(cat "$work/err")"
run -np 1 --report /proc/nowhere/report.json touch "$work/started"
check "a --report that cannot be written exits with 2" "$code" = 2 -a ! -e "$work/started"
run -np 1 sh -c 'head -c 300000 /dev/zero | tr "\0" y; echo'
check "a very long line is split, not lost" "$(tr -cd y <"$work/out" | wc -c)" = 300000
"$dprun" -np 2 sh -c 'head -c 3000000 /dev/zero | tr "\0" "\n"' 2>"$work/err" | { sleep 0.5; wc -l >"$work/out"; }
check "a slow reader loses nothing" "$(cat "$work/out")" = 6000000
"$dprun" -np 2 sh -c "trap 'exit 0' TERM; yes; sleep $mark" 2>"$work/err" | head -1 >"$work/out"
check "a reader that leaves ends the job with 141" "${PIPESTATUS[0]}" = 141
nothing_left "a reader that leaves"
run -np 1 sh -c 'for i in 1 2 3; do echo line $i; done; kill -9 $$'
has "the last lines of a dying rank arrive" out 'line 3'

# ---- failures -------------------------------------------------------------------------------
run -np 4 sh -c "if [ \$DP_RANK = 2 ]; then echo reason >&2; sleep 0.1; kill -9 \$\$; fi; sleep $mark"
check "a killed rank exits with 137" "$code" = 137
has "the block names the rank" err '^dprun: FAILED  rank 2 \(.*, local 2, pid [0-9]+\): SIGKILL after \+[0-9]{2}:[0-9]{2}\.'
has "its cause" err '^  cause    killed from outside'
has "its output" err '^  output   \[2\] reason$'
has "the victims" err '^  victims  0,1,3: stopped by dprun$'
has "what is left" err '^  left     0 processes$'
has "the exit code" err '^  exit     137$'
check "the block comes last" "$(tail -1 "$work/err")" = "  exit     137"
nothing_left "after a failure"
run -np 2 sh -c "trap '' TERM; [ \$DP_RANK = 1 ] && exit 5; sleep $mark; sleep $mark"
check "a rank that ignores TERM is killed" "$code" = 5
has "and the report says so" err 'victims  0: killed by dprun'
nothing_left "a rank that ignores TERM"
# Ranks that wait for each other's state look at it: pid.N is where rank N says who it is.
cat >"$work/await" <<'END'
pid_of() { until [ -s "$1/pid.$2" ]; do sleep 0.02; done; cat "$1/pid.$2"; }
await_stopped() { pid=$(pid_of "$@"); until grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.02; done; }
await_gone() { pid=$(pid_of "$@"); while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done; }
i_am() { echo $$ >"$1/pid.$DP_RANK"; }
END
run -np 2 sh -c ". $work/await; [ \$DP_RANK = 0 ] && { await_stopped $work 1; exit 9; }; i_am $work; kill -STOP \$\$; sleep $mark"
rm -f "$work"/pid.*
has "a stopped rank is named" err 'rank 1 .* stood stopped by SIGSTOP'
nothing_left "a stopped rank"
# Both happen while the agent stands still, so it sees them at once: rank 0 is its first child, which stops it
# once the second one is there.
run -np 2 sh -c ". $work/await; agent=\$PPID; if [ \$DP_RANK = 0 ]; then pid_of $work 1; kill -STOP \$agent; await_stopped $work 1; (sleep 0.3; kill -CONT \$agent) & exit 9; fi; i_am $work; until grep -q '^State:.T' /proc/\$agent/status; do sleep 0.02; done; kill -STOP \$\$; sleep $mark"
rm -f "$work"/pid.*
has "a rank that stopped before another ended is named, seen at once or not" err 'rank 1 .* stood stopped by SIGSTOP'
run -np 3 sh -c ". $work/await; case \$DP_RANK in 0) i_am $work; exit 0;; 1) await_gone $work 0; exit 4;; esac; sleep $mark"
rm -f "$work"/pid.*
check "an early clean exit alone is no failure" "$code" = 4
has "but is told when others fail" err 'rank 0 had exited with code 0'
# Whoever ends the job waits until the other has written.
both_record='echo record > $DP_RUN_DIR/rank.$DP_RANK; until [ -s $DP_RUN_DIR/rank.0 ] && [ -s $DP_RUN_DIR/rank.1 ]; do sleep 0.02; done'
run -np 2 sh -c "$both_record; [ \$DP_RANK = 0 ] || exit 3"
has "recorders are kept after a failure, and named" err "saved    run directory $XDG_RUNTIME_DIR/dprun-.* \(2 files, [0-9.]+ [kM]B\)"
rm -rf "$XDG_RUNTIME_DIR"/dprun-*
run -np 2 --timeout 1 sleep "$mark"
check "--timeout exits with 124" "$code" = 124
has "and says what ranks did" err 'ranks    0,1: running'
nothing_left "--timeout"
run -np 2 --keep-run-dir sh -c 'echo record > $DP_RUN_DIR/rank.$DP_RANK'
has "--keep-run-dir names it" err 'saved run directory .* \(2 files, [0-9.]+ [kM]B\)'
rm -rf "$XDG_RUNTIME_DIR"/dprun-*

# ---- timeline -------------------------------------------------------------------------------
# A copy of dprun beside a stand-in for dptrace, which tells how it was called.
mkdir "$work/bin"
cp "$dprun" "$work/bin/dprun"
printf '#!/bin/sh\nls "$2" >"$4"\necho "$@" >>"$4"\n' >"$work/bin/dptrace"
chmod +x "$work/bin/dptrace"
real=$dprun
dprun=$work/bin/dprun
run -np 2 --timeline "$work/line:steps=3-9" sh -c 'echo record > $DP_RUN_DIR/rank.$DP_RANK'
check "--timeline succeeds" "$code" = 0
has "and says where it is" err "^dprun: saved timeline $work/line\$"
check "its merge sees every rank" "$(grep -c '^rank\.[01]$' "$work/line")" = 2
has "and the steps" line '^merge .*/dprun-[^ ]* -o .*/line --steps 3-9$'
nothing_left "--timeline"
run -np 2 --timeline "$work/line" sh -c "$both_record; exit \$DP_RANK"
has "a failed job has its timeline too" err "saved    timeline $work/line; run directory .* \(2 files, [0-9.]+ [kM]B\)"
rm -rf "$XDG_RUNTIME_DIR"/dprun-*
printf '#!/bin/sh\nexit 3\n' >"$work/bin/dptrace"
run -np 2 --timeline "$work/line" sh -c 'echo record > $DP_RUN_DIR/rank.$DP_RANK'
has "a failed merge is told" err 'dptrace merge exited with code 3'
has "and the recorders stay" err 'saved run directory'
rm -rf "$XDG_RUNTIME_DIR"/dprun-*
dprun=$real
run -np 1 --timeline "$work/none/line" true
check "a timeline that cannot be written exits with 2" "$code" = 2
run -np 1 --timeline "$work/line:steps=9-3" true
check "so do wrong steps" "$code" = 2

# ---- processes left by ranks ----------------------------------------------------------------
run -np 2 sh -c "setsid sleep $mark & sleep $mark & exit 0"
check "a rank that leaves processes behind succeeds" "$code" = 0
# by the name they have then: a shell that has not started its sleep yet is a shell
has "and they are named" err 'process [0-9]+ \([a-z]+\) was still there'
nothing_left "daemons of a rank"
run -np 2 sh -c "setsid sh -c 'trap \"\" TERM HUP; sleep $mark; sleep $mark' & sleep 0.1; exit 1"
nothing_left "daemons that ignore TERM"

# ---- signals --------------------------------------------------------------------------------
# start_job PROGRAM: in the background with its own group, as a terminal's job would be
start_job() {
    : >"$work/out" # the job opens them a moment later, and the last one's lines are no answer
    : >"$work/err"
    setsid "$dprun" "${@:2}" -np 2 sh -c "$1" >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
}
for signal in INT TERM HUP; do
    case $signal in INT) number=2 ;; TERM) number=15 ;; HUP) number=1 ;; esac
    # A background job of a script ignores INT; env(1) restores it.
    env --default-signal=INT setsid "$dprun" -np 2 sh -c "setsid sleep $mark & sleep $mark" \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
    wait_marked 4
    kill -$signal $pid
    wait $pid
    code=$?
    check "SIG$signal exits with 128 + $number" $code = $((128 + number))
    has "and is told" err "interrupted by SIG$signal"
    nothing_left "SIG$signal"
done
says_twice() { [ "$(grep -c "$1" "$work/out")" = 2 ]; }
start_job "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done" --grace 60
wait_for says_twice ready
kill -TERM $pid
wait_for says_twice told
sleep 0.6 # within half a second it would be the same request
kill -TERM $pid
wait $pid
check "a second signal kills at once" $? = 143
has "and is told" err 'ended 2 ranks, killed 2 of them \(rank 0,1\) at once, as asked, 0 processes left'
nothing_left "a second signal"
start_job "trap 'echo got usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
wait_for says_twice ready
kill -USR1 $pid
wait $pid
check "SIGUSR1 is passed on" "$(grep -c 'got usr1' "$work/out")" = 2
start_job "sleep $mark"
wait_marked 2
kill -TSTP $pid
state() { awk '/^State/ { print $2 }' "/proc/$pid/status"; }
stands() { [ "$(state)" = T ]; }
wait_for stands
check "SIGTSTP stops dprun" "$(state)" = T
kill -CONT $pid
kill -TERM $pid
wait $pid
check "SIGCONT lets it go on" $? = 143
nothing_left "stopped and continued"

# ---- dprun or its agent killed --------------------------------------------------------------
start_job "setsid sleep $mark & (sleep $mark; sleep $mark) & trap '' TERM HUP INT; sleep $mark; sleep $mark"
wait_marked 6
kill -9 $pid
wait $pid 2>/dev/null
nothing_left "dprun killed with SIGKILL"
start_job "setsid sleep $mark & sleep $mark"
wait_marked 4
child_of() { grep -lsE "^PPid:[[:space:]]$1\$" /proc/[0-9]*/status | tr -dc 0-9; }
guard=$(child_of "$pid") # dprun - guard - agent - ranks
kill -9 "$(child_of "$guard")"
wait $pid
check "a killed agent fails the job" $? = 1
nothing_left "the agent killed with SIGKILL"
start_job "setsid sleep $mark & sleep $mark"
wait_marked 4
kill -9 "$(child_of "$pid")"
wait $pid
check "a killed guard fails the job" $? = 1
nothing_left "the guard killed with SIGKILL"

# ---- the rendezvous -------------------------------------------------------------------------
run -np 2 sh -c 'tail -c +7 /proc/self/fd/200 | head -c 2 | od -An -tu2 | tr -d " "; grep -ao "@dp-[0-9a-f]\{32\}" /proc/self/fd/200'
check "the rendezvous has no port" "$(grep -cE '^\[[01]\] 0$' "$work/out")" = 2
check "but a name on this machine" "$(grep -cE '^\[[01]\] @dp-' "$work/out")" = 2
cat >"$work/garbage" <<'END'
address=$(grep -aoE '@dp-[0-9a-f]{32}' /proc/self/fd/200)
[ $DP_RANK != 0 ] || python3 - "$address" <<'PYTHON'
import os, socket, sys
for i in range(4):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(20)
        caller.connect("\0" + sys.argv[1][1:])
        try:
            caller.sendall(os.urandom(100000))
            while caller.recv(4096):
                pass
        except ConnectionError:
            pass
print("done")
PYTHON
END
run -np 2 bash "$work/garbage"
check "garbage on the rendezvous costs nothing" "$code" = 0
has "and was sent" out done
has "but a line with the process" err 'rendezvous: dropped process [0-9]+ of user [0-9]+: '

# ---- looking --------------------------------------------------------------------------------
run -np 3 --dry-run --fusion-bytes 4M echo "a b"
has "--dry-run shows the command" out "command  echo 'a b'"
has "--dry-run shows the environment" out 'DP_FUSION_BYTES=4M'
has "--dry-run shows every rank" out '^rank 2 '
check "--dry-run starts nothing" "$code" = 0
run -np 2 --share-gpu --no-prefix sh -c 'echo "$NCCL_HOSTID $NCCL_NET $NCCL_ALGO"'
check "--share-gpu runs" "$code" = 0
check "--share-gpu makes each rank a host to NCCL" "$(sort -u "$work/out" | grep -c '^dprun-[0-9]*-r[01] Socket Ring$')" = 2
run -np 2 --share-gpu --no-prefix --env CUDA_MODULE_LOADING=LAZY sh -c 'echo "$CUDA_DEVICE_MAX_CONNECTIONS $CUDA_MODULE_LOADING"'
check "--share-gpu gives streams a queue each, and leaves what is set" "$(sort -u "$work/out" | grep -c '^32 LAZY$')" = 1
run -np 2 --share-gpu --no-prefix --env NCCL_MULTI_RANK_GPU_ENABLE=1 sh -c 'echo "<$NCCL_HOSTID$NCCL_NET$NCCL_P2P_DISABLE> $NCCL_MAX_CTAS"'
check "--share-gpu leaves ranks on one host where NCCL allows it" "$(grep -c '^<> 4$' "$work/out")" = 2
has "--share-gpu says what it is not" err '2 ranks share one GPU: functional test, not a benchmark'
run -np 2 sh -c 'echo "<$NCCL_HOSTID$NCCL_ALGO> $NCCL_SOCKET_IFNAME $NCCL_LAUNCH_ORDER_IMPLICIT"'
has "without it NCCL meets on loopback, and chooses the rest" out '<> =lo 1$'
NCCL_SOCKET_IFNAME=eth7 run -np 1 sh -c 'echo "$NCCL_SOCKET_IFNAME"'
has "a network that is set for NCCL stays" out 'eth7$'
run --help
check "--help exits with 0" "$code" = 0
for name in fusion-bytes fusion-buffers wire tree-arity stall-limit heartbeat start-timeout log pretend-nodes timeline output-dir dry-run; do
    grep -q -- "--$name" "$work/out" || fail "--help does not mention --$name"
done
check "--help mentions no internal row" "$(grep -c -- --bootstrap-fd "$work/out")" = 0
run --check
has "--check looks at shared memory" out '^(ok|FAILED) +shared memory'
has "--check meets itself as ranks do" out '^ok +rendezvous'
run --version
has "--version" out '^dprun [0-9]+\.[0-9]+\.[0-9]+$'
run -np 200 true
check "200 ranks" "$code" = 0
nothing_left "at the end"

[ $failed = 0 ] && echo "all claims hold"
exit $failed
